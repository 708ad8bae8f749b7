"""Edits of the demo photographs for `benchmarks.flux_editing`: what they cost the CPU, and how many certify.

    cpu_seconds(settings, folder, n_edits=12)               # seconds an edit by stage, without any model
    certified(painter, settings, folder, seconds=180)       # of first attempts, with real weights
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.certified_edits import Trial, keys_of, save_sheet
from editors.flux import FluxEditor, FluxSettings
from editors.painting import Painter, Painting
from experiments.demo_photos import demo_photos, demo_slots_file
from rekey.certificate import certify
from rekey.compositing import Crop, cut, mask_margin_px, paste, to_window
from rekey.draws import Draws
from rekey.editing import EditRequest, PhotoView
from rekey.images import load_image, save_png
from rekey.records import VisualKey
from rekey.regenerate import KeyEdit
from rekey.slots import read_slots
from rekey.stats import proportion

VSTAR_SIZE = (2250, 1500)       # width, height of a photograph of V*Bench
STARTS = ("prepaint", "source")


@cache
def _photo(path: Path) -> np.ndarray:
    return load_image(path).pixels


@dataclass
class Edit:
    """One key of a demo photograph, on its way through an editor."""

    key: VisualKey
    photo: np.ndarray
    cache: dict[str, Any] = field(default_factory=dict)

    def request(self, canvases_px: Sequence[int]) -> tuple[Crop, EditRequest]:
        crop = cut(self.photo, self.key.slot, canvases_px)
        slot = self.key.slot
        seed = Draws("flux_editing", slot.image_id, slot.slot_id, self.key.object, self.key.color).seed()
        view = PhotoView(self.photo, crop.window, self.cache)
        return crop, EditRequest(crop.canvas, crop.box, self.key, seed, 0, view, crop.scale)

    def trial(self, crop: Crop, edited: np.ndarray) -> Trial:
        """Pasted and certified.  edited: uint8 canvas, as `FluxEditor.finish` returns it."""
        edited = to_window(crop, edited)
        renewed = paste(self.photo.copy(), crop, edited)
        before, after = (pixels[crop.window.slices] for pixels in (self.photo, renewed))
        box = crop.edit.moved(-crop.window.left, -crop.window.top)
        certificate = certify(before, after, edited, box, mask_margin_px(crop.edit), self.key)
        shown = crop.edit.grown(24).clipped(self.photo.shape[1], self.photo.shape[0]).slices
        return Trial(self.key, KeyEdit(crop, edited, certificate), None, self.photo[shown], renewed[shown].copy())


def demo_edits() -> list[Edit]:
    """All keys of the demo photographs that are here, in an order that mixes photographs and modes."""
    photos = demo_photos()
    by_mode: dict[str, list[Edit]] = defaultdict(list)
    for image_id, image in sorted(read_slots(demo_slots_file()).items()):
        if image_id in photos:
            shared: dict[str, Any] = {}
            for slot in image.slots:
                by_mode[slot.mode] += [Edit(key, _photo(photos[image_id]), shared) for key in keys_of(slot)]
    mixed = [Draws("flux_editing", mode).shuffled(edits) for mode, edits in sorted(by_mode.items())]
    return [edit for pair in zip(*mixed) for edit in pair]          # as many of each mode


# --------------------------------------------------------------------------------------------- the CPU side

class Unused:
    """Stands where a painter would."""


def cpu_seconds(settings: FluxSettings, folder: Path, n_edits: int) -> dict[str, float]:
    """Mean seconds an edit by stage, all in this one process; the model is left out."""
    editor = FluxEditor("flux-canny", settings, Unused())
    spent: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        spent[name].append(time.perf_counter() - started)
    warm, *edits = demo_edits()[:n_edits + 1]
    editor.prepare(warm.request(settings.canvases_px)[1])
    for edit in edits:
        with stage("cut"):
            crop, request = edit.request(settings.canvases_px)
        with stage("prepaint, edges"):
            painting = editor.prepare(request)
        picture = np.clip((painting.start.astype(np.float32) + 2) / 255, 0, 1)              # drifted a little
        with stage("drift"):
            edited = editor.finish(request, painting, picture)
        with stage("paste, certify"):
            edit.trial(crop, edited)
    large = np.asarray(Image.fromarray(warm.photo).resize(VSTAR_SIZE, Image.Resampling.BICUBIC))
    with stage("save the photograph"):
        save_png(folder / "photograph.png", large)
    (folder / "photograph.png").unlink()
    return {name: statistics.mean(seconds) for name, seconds in spent.items()}


# ------------------------------------------------------------------------------------------ certified edits

@dataclass
class Tally:
    """First attempts of one mode and start."""

    n: int = 0
    passed: int = 0
    failed_checks: Counter = field(default_factory=Counter)

    def add(self, trial: Trial) -> None:
        self.n += 1
        self.passed += trial.passed
        self.failed_checks.update(trial.edit.certificate.failed_checks)

    def line(self) -> dict[str, Any]:
        share = proportion(self.passed, self.n)
        return {"n": self.n, "passed": self.passed, "share": share.value, "low": share.low, "high": share.high,
                "failed_checks": dict(self.failed_checks.most_common())}


def certified(painter: Painter, settings: FluxSettings, folder: Path | None, seconds: float,
              n_most: int | None = None) -> list[dict[str, Any]]:
    """Certified share of first attempts by mode and start; the same keys for both starts.

    Only edits of the commonest canvas, so that no batch needs filling up.  folder: for a sheet of befores and afters
    per start.  seconds: no batch is begun that would not end in time.
    """
    by_canvas: dict[int, list[Edit]] = defaultdict(list)
    for edit in demo_edits():
        by_canvas[len(edit.request(settings.canvases_px)[0].canvas)].append(edit)
    side, edits = max(by_canvas.items(), key=lambda entry: len(entry[1]), default=(0, []))
    edits = edits[:n_most]
    editors = {start: FluxEditor("flux-canny", replace(settings, start=start), painter) for start in STARTS}
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    trials: dict[str, list[Trial]] = defaultdict(list)
    begun, longest = time.perf_counter(), 0.0
    size = settings.batch_at(side) if edits else 1
    for first in range(0, len(edits), size):
        started = time.perf_counter()
        if started - begun + longest > seconds:
            break
        batch = edits[first:first + size]
        for start, editor in editors.items():
            for edit, trial in zip(batch, _tried(editor, batch, settings)):
                tallies[edit.key.mode, start].add(trial)
                trials[start].append(trial)
        longest = max(longest, time.perf_counter() - started)
    if folder is not None:
        for start, some in trials.items():
            save_sheet(folder / f"edits_{start}.png", some)
    return [{"canvas_px": side, "mode": mode, "start": start, **tally.line()}
            for (mode, start), tally in sorted(tallies.items())]


def _tried(editor: FluxEditor, batch: Sequence[Edit], settings: FluxSettings) -> list[Trial]:
    asked = [edit.request(settings.canvases_px) for edit in batch]
    paintings: list[Painting] = [editor.prepare(request) for _, request in asked]
    pictures = editor.painter.paint(paintings)
    return [edit.trial(crop, editor.finish(request, painting, picture))
            for edit, (crop, request), painting, picture in zip(batch, asked, paintings, pictures)]


def prompts(settings: FluxSettings) -> list[str]:
    """What the model is told in all demo edits."""
    editor = FluxEditor("flux-canny", settings, Unused())
    return sorted({editor.prompt(edit.key) for edit in demo_edits()})
