"""Make a benchmark instance: every image through `rekey.regenerate`, in parallel, resumable.

    summary = generate(GenerateJob(slots_file, images, seed=1, out=folder))

The folder holds, when done:

    items.jsonl      certified items, in the order of the annotation file
    failed.jsonl     images that gave none, with the reason
    rejected.jsonl   draws that were made and thrown away, with their certificates
    images/          the renewed images, PNG
    pairs/           before and after of each edit, for looking
    contact_sheet*.jpg
    plan.json        the settings; a folder never mixes two plans
    journal.jsonl    what the first three are made from: one line per image, appended as each is done
    run.json         command, commit, versions, times

Killed at any point and started again, it ends in the same bytes (run.json, which holds times, aside).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from editors.painting import PaintingEditor
from experiments.contact_sheet import write_contact_sheets
from experiments.editors_by_name import Choices, make_editor, modules_of
from experiments.painting import PaintingService, RemotePainter
from experiments.plans import PLAN, claim, read_plan, refuse_other_plans
from experiments.workers import in_parallel, stop_requested
from rekey import __version__, store
from rekey.editing import Editor
from rekey.errors import InputError, Interrupted
from rekey.geometry import Box
from rekey.images import find_image, image_size, index_images, load_image, save_png
from rekey.qa import Distractors
from rekey.records import ImageSlots, to_json
from rekey.regenerate import Outcome, regenerate, unchanged_outside
from rekey.sampling import Pool, SamplingOptions
from rekey.slots import read_slots

COMMAND = "rekey generate"
PAIR_PX = 224            # side of each half of a before/after picture
MAX_LISTED = 20          # problems named one by one in a message


@dataclass(frozen=True)
class GenerateJob:
    """One instance to make; all paths and settings."""

    slots_file: Path
    images: Path
    out: Path
    seed: int
    editor: str = "classical"
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    distractors: Distractors = "paper"
    avoid: frozenset[str] = frozenset()
    shard: tuple[int, int] | None = None
    workers: int = 1
    choices: Choices = ()
    """Settings of the editor, as (key, value) pairs of text."""

    def plan(self, slots: dict[str, ImageSlots]) -> dict[str, Any]:
        """Everything the result depends on, but for the pixels of the sources."""
        plausible = self.sampling.plausible
        return {
            "rekey": __version__,
            "slots_sha256": store.sha256_json(to_json(tuple(slots.values()))),
            "image_ids": list(slots),
            "seed": self.seed,
            "editor": make_editor(self.editor, self.choices).describe(),
            "question_type": self.sampling.question_type,
            "attribute": self.sampling.attribute,
            "difficulty": self.sampling.difficulty,
            "plausible": plausible and plausible.digest(),
            "distractors": self.distractors,
            "avoid_sha256": store.sha256_json(sorted(self.avoid)) if self.avoid else None,
        }


@dataclass(frozen=True)
class Summary:
    """What came of a run."""

    n_items: int
    failures: tuple[str, ...]
    n_rejected: int
    n_resumed: int
    """Images that were finished before this call."""
    painted: dict[str, Any] | None = None
    """Of a model that painted for several processes: batches, edits, and the share of the batches that these filled."""


def generate(job: GenerateJob, progress: Callable[[int, int], None] = lambda done, total: None,
             stop: threading.Event | None = None) -> Summary:
    """Make or continue the instance in `job.out`; of a shard, only its journal (see `merge`).

    progress: called with (images done, images in all), first with what an earlier run left.
    stop: ends the run when set; without it, SIGTERM and SIGINT do.
    Raises InputError before anything is written where the input is bad, and Interrupted after a
    stop, with everything finished so far on disk.
    """
    with stop_requested(stop) as stop:
        return _generate(job, progress, stop)


def _generate(job: GenerateJob, progress: Callable[[int, int], None], stop: threading.Event) -> Summary:
    started = time.time()
    editor = make_editor(job.editor, job.choices)
    if job.sampling.attribute not in editor.attributes:
        raise InputError(f"--attribute {job.sampling.attribute}: the {job.editor} editor can change "
                         f"{' and '.join(editor.attributes)} only; give one of these, or another --editor")
    slots = read_slots(job.slots_file)
    paths = _find_images(job.images, slots)
    editor.check()
    plan = job.plan(slots)
    refuse_other_plans(job.out, plan, COMMAND)
    mine = store.shard_of(list(slots.values()), job.shard)
    # Whatever shard did an image, and of how many, it need not be done again.
    lines = _newest(line for line in _all_lines(job.out) if _still_true(line, job.out, paths))
    todo = [image for image in mine if image.image_id not in lines]
    if todo:                                        # before anything is written: it may say what is missing
        editor.expect(key for image in todo for key in Pool(image, job.sampling).keys(job.seed))
    claim(job.out, plan, COMMAND)
    with store.Journal(job.out / store.shard_name("journal", job.shard)) as journal:
        journal.keep(lambda line: lines.get(line["image_id"]) == line)
        n_before = len(mine) - len(todo)
        progress(n_before, len(mine))
        n_workers = min(job.workers, len(todo) or 1)
        with _served(editor, n_workers) as service:
            tasks = [_Task(image, paths[image.image_id], job, service and service.remote) for image in todo]
            made = in_parallel(_make, tasks, n_workers, stop, modules_of(job.editor))
            for n_made, line in enumerate(made, 1):
                journal.append(line | {"made_at": time.time()})
                lines[line["image_id"]] = line
                if service:
                    service.n_busy = min(n_workers, len(todo) - n_made)
                progress(sum(image.image_id in lines for image in mine), len(mine))
        idle = not journal.lines
    done = [lines[image.image_id] for image in mine if image.image_id in lines]
    if len(done) < len(mine):
        raise Interrupted(f"{len(done)} of {len(mine)} images done")
    if job.shard and idle:                          # others did all of it; leave nothing to merge
        (job.out / store.shard_name("journal", job.shard)).unlink()
        return _summary(done, n_before)
    settings = plan | {"slots": str(job.slots_file), "images": str(job.images), "workers": job.workers,
                       "shard": job.shard and "{}/{}".format(*job.shard)}
    painted = service.describe() if service else None
    manifest = store.run_manifest(settings, started) | ({"painted": painted} if painted else {})
    store.write_json(job.out / store.shard_name("run", job.shard, ".json"), manifest)
    if job.shard is None:
        _finish(job.out, done)
    return _summary(done, n_before, painted)


def _served(editor: Editor, n_workers: int) -> contextlib.AbstractContextManager[PaintingService | None]:
    """What paints for several workers; None where there is one, or an editor that needs no model."""
    if n_workers == 1 or not isinstance(editor, PaintingEditor):
        return contextlib.nullcontext()
    return PaintingService(editor.painter, editor.settings.batch_at, n_workers)


def merge(out: Path) -> Summary:
    """Join the shards of an instance; the folder is then as one run would have left it."""
    if not (out / PLAN).exists():
        raise InputError(f"{out}: no plan.json there; expected the --out folder of `rekey generate --shard i/n`")
    lines = _newest(line for line in _all_lines(out) if _has_pictures(line, out))
    order = read_plan(out).get("image_ids")
    if not isinstance(order, list):
        raise InputError(f"{out / PLAN}: not the plan of an instance; restore it, or start in a new folder")
    missing = [image_id for image_id in order if image_id not in lines]
    if missing:
        raise InputError(f"{out}: {len(missing)} of {len(order)} images are not done ({_listed(missing)}); "
                         "run the shards that hold them to their end, then merge")
    manifests = sorted(out.glob("run-*-of-*.json"))
    if manifests:
        store.write_json(out / "run.json", {"shards": [store.read_json(path) for path in manifests]})
    ordered = [lines[image_id] for image_id in order]
    _finish(out, ordered)
    return _summary(ordered, 0)


def _all_lines(out: Path) -> list[dict[str, Any]]:
    """Lines of all journals in the folder, those of other shards included."""
    lines = []
    for path in sorted(out.glob("journal*.jsonl")):
        for number, line in enumerate(store.read_journal(path), 1):
            if not isinstance(line, dict) or not isinstance(line.get("image_id"), str):
                raise InputError(f"{path} line {number}: not a line of a journal; remove it, and run again")
            lines.append(line)
    return lines


def _newest(lines: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The last made line of each image; those of a finished journal hold no time, and are the oldest."""
    return {line["image_id"]: line for line in sorted(lines, key=lambda line: line.get("made_at", 0.0))}


def _still_true(line: dict[str, Any], out: Path, paths: dict[str, Path]) -> bool:
    """Whether a journal line holds: its source is the same file, and its pictures are there."""
    path = paths.get(line["image_id"])
    return path is not None and line.get("source_file_sha256") == store.sha256_file(path) and _has_pictures(line, out)


def _has_pictures(line: dict[str, Any], out: Path) -> bool:
    """Whether the pictures of a line are there, whole by their size."""
    return all((out / name).exists() and (out / name).stat().st_size == n_bytes
               for name, n_bytes in line.get("pictures", {}).items())


# --------------------------------------------------------------------------------- one image

@dataclass(frozen=True)
class _Task:
    image: ImageSlots
    path: Path
    job: GenerateJob
    painter: RemotePainter | None
    """What paints for a worker, where the editor lets a model do so."""


def _make(task: _Task) -> dict[str, Any]:
    """Renew one image, write its pictures, and return its journal line."""
    job, image_id = task.job, task.image.image_id
    try:
        source = load_image(task.path)
    except InputError as error:                     # without the file's hash, so that a resume tries again
        return {"image_id": image_id, "failure": str(error)}
    editor = make_editor(job.editor, job.choices, task.painter)
    outcome = regenerate(source, Pool(task.image, job.sampling), job.seed, editor, distractors=job.distractors,
                         avoid=job.avoid)
    line: dict[str, Any] = {"image_id": image_id, "source_file_sha256": store.sha256_file(task.path),
                            "source_sha256": source.sha256}
    if outcome.rejected:
        line["rejected"] = list(outcome.rejected)
    if outcome.item is None:
        return line | {"failure": outcome.failure}
    path = job.out / outcome.item.image
    save_png(path, outcome.pixels)
    _check_saved(path, source.pixels, outcome)
    pairs = job.out / "pairs" / f"{image_id}.png"
    save_png(pairs, _pairs(source.pixels, outcome))
    sizes = {str(file.relative_to(job.out)): file.stat().st_size for file in (path, pairs)}
    return line | {"item": to_json(outcome.item), "pictures": sizes}


def _check_saved(path: Path, source: np.ndarray, outcome: Outcome) -> None:
    """The promise of the benchmark, on the file as it lies on disk."""
    saved = load_image(path)
    if saved.sha256 != outcome.item.image_sha256:       # raised by hand: `python -O` drops assert statements
        raise AssertionError(f"{path}: the file does not hold the pixels that were saved")
    if not unchanged_outside(source, saved.pixels, outcome.edits):
        raise AssertionError(f"{path}: a pixel outside the edit mask changed")


def _pairs(source: np.ndarray, outcome: Outcome) -> np.ndarray:
    """Before | after of each edit, one row per key: uint8 (rows * PAIR_PX, 2 * PAIR_PX, 3)."""
    from PIL import Image
    height, width = source.shape[:2]
    rows = []
    for edit in outcome.edits:
        box = edit.crop.edit
        side = min(max(PAIR_PX, 3 * max(box.width, box.height)), width, height)
        x, y = box.center
        left, top = (int(min(max(0, c - side / 2), limit - side)) for c, limit in ((x, width), (y, height)))
        window = Box(left, top, left + side, top + side)
        halves = [np.asarray(Image.fromarray(np.ascontiguousarray(pixels[window.slices]))
                             .resize((PAIR_PX, PAIR_PX), Image.LANCZOS)) for pixels in (source, outcome.pixels)]
        rows.append(np.hstack(halves))
    return np.vstack(rows)


# ------------------------------------------------------------------------- checks and results

def _find_images(folder: Path, slots: dict[str, ImageSlots]) -> dict[str, Path]:
    """The file of every image; all missing files and all boxes that leave their image are listed."""
    paths, problems = {}, []
    index = index_images(folder)
    for image in slots.values():
        try:
            path = paths[image.image_id] = find_image(folder, image.image_id, index)
            width, height = image_size(path)
        except InputError as error:
            problems.extend(error.problems)
            continue
        problems.extend(f"{image.image_id}/{slot.slot_id}: edit box {slot.edit} leaves the {width}x{height} image "
                        f"{path.name}; check whether the boxes were drawn on a resized copy"
                        for slot in image.slots if not slot.edit.inside(width, height))
    if len(problems) > MAX_LISTED:
        problems[MAX_LISTED:] = [f"... and {len(problems) - MAX_LISTED} more problems of this kind"]
    if problems:
        raise InputError(*problems)
    return paths


def _finish(out: Path, lines: list[dict[str, Any]]) -> None:
    """Write the files that people and later commands read, from the lines in annotation order."""
    store.write_jsonl(out / "rejected.jsonl", ({"image_id": line["image_id"], **rejected}
                                               for line in lines for rejected in line.get("rejected", ())))
    store.write_jsonl(out / "failed.jsonl", ({"image_id": line["image_id"], "reason": line["failure"]}
                                             for line in lines if "failure" in line))
    items = [line["item"] for line in lines if "item" in line]
    store.write_jsonl(out / "items.jsonl", items)
    sheets = write_contact_sheets(out, items)
    store.write_jsonl(out / "journal.jsonl", ({k: v for k, v in line.items() if k != "made_at"} for line in lines))
    named = {out / name for line in lines for name in line.get("pictures", {})} | set(sheets)
    pictures = {*out.glob("images/*.png"), *out.glob("pairs/*.png"), *out.glob("contact_sheet*.jpg")}
    # What shards wrote for the merge, what a kill left half-written, and pictures of items that are no more.
    shards = {*out.glob("journal-*-of-*.jsonl"), *out.glob("run-*-of-*.json")}
    for path in shards | {*out.rglob(".*.tmp")} | pictures - named:
        path.unlink()


def _summary(lines: list[dict[str, Any]], n_resumed: int, painted: dict[str, Any] | None = None) -> Summary:
    return Summary(sum("item" in line for line in lines),
                   tuple(f"{line['image_id']}: {line['failure']}" for line in lines if "failure" in line),
                   sum(len(line.get("rejected", ())) for line in lines), n_resumed, painted)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
