"""Build a folder of swap pairs, in parallel, resumable (VisualSwap, Sec. 3).

    summary = build_pairs(SceneSource(n=100, seed=1), Path("pairs"))

The folder holds, when done:

    pairs.jsonl         one pair a line, in the order of their numbers (see docs/pairs.md)
    images/             ID_a.png and ID_b.png of every pair
    failed.jsonl        pairs that could not be made, with the reason
    contact_sheet.jpg   the first pairs, for looking
    plan.json           the settings; a folder never mixes two plans
    journal.jsonl       what the first is made from: one line per pair, appended as each is done
    run.json            command, commit, versions, times

Killed at any point and started again, it ends in the same bytes (run.json, which holds times, aside).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.pair_sheet import write_pair_sheet
from experiments.pair_sources import Draft, Source
from experiments.plans import claim
from experiments.workers import in_parallel, stop_requested
from rekey import __version__, store
from rekey.errors import InputError, Interrupted
from rekey.images import pixel_sha256, save_png
from rekey.pairs import PAIRS_FILE, changed_box, parse_pair
from rekey.records import SwapPair, from_json, to_json

SHEET_PAIRS = 40
PAIRS_PER_WORKER = 16           # fewer are drawn before a process has started
JOURNAL, FAILED, SHEET = "journal.jsonl", "failed.jsonl", "contact_sheet.jpg"


@dataclass(frozen=True)
class Summary:
    """What came of a run."""

    by_category: dict[str, int]
    failures: tuple[str, ...]
    n_resumed: int
    """Pairs that were made before this call."""

    @property
    def n_pairs(self) -> int:
        return sum(self.by_category.values())


def build_pairs(source: Source, out: Path, workers: int = 1,
                progress: Callable[[int, int], None] = lambda done, total: None,
                stop: threading.Event | None = None) -> Summary:
    """Make or continue the pairs in `out`.

    progress: called with (pairs done, pairs in all), first with what an earlier run left.  stop: ends the run when set;
    without it, SIGTERM and SIGINT do.  Raises InputError before anything is written where the source has nothing to
    give or the folder is another run's, and Interrupted after a stop, with everything finished so far on disk.
    """
    with stop_requested(stop) as stop:
        return _build(source, out, workers, progress, stop)


def _build(source: Source, out: Path, workers: int, progress: Callable[[int, int], None],
           stop: threading.Event) -> Summary:
    started = time.time()
    drafts = list(source.drafts())
    if not drafts:
        raise InputError("; ".join(["no pair can be made from what was given", *source.notes()]))
    plan = {"rekey": __version__, **source.describe()}
    claim(out, plan, "rekey pairs build")
    with store.Journal(out / JOURNAL) as journal:
        journal.keep(lambda line: _still_there(line, out))
        lines = {line["pair_id"]: line for line in journal.lines}
        todo = [_Task(draft, out) for draft in drafts if draft.pair_id not in lines]
        n_resumed = len(drafts) - len(todo)
        progress(n_resumed, len(drafts))
        n_workers = max(1, min(workers, len(todo) // PAIRS_PER_WORKER))
        for n_made, line in enumerate(in_parallel(_make, todo, n_workers, stop), 1):
            journal.append(line)
            lines[line["pair_id"]] = line
            progress(n_resumed + n_made, len(drafts))
    if len(lines) < len(drafts):
        raise Interrupted(f"{len(lines)} of {len(drafts)} pairs made")
    ordered = [lines[draft.pair_id] for draft in drafts]
    summary = _finish(out, ordered, n_resumed)
    notes = list(source.notes())
    store.write_json(out / "run.json", store.run_manifest(plan | {"workers": workers}, started)
                     | {"pairs": summary.by_category, "failed": len(summary.failures), "left_out": notes})
    return summary


def _still_there(line: dict[str, Any], out: Path) -> bool:
    """Whether a line is of a pair whose images are there, whole by their size; one that failed is tried again."""
    return isinstance(line, dict) and "pair" in line and all(
        (out / name).is_file() and (out / name).stat().st_size == n_bytes for name, n_bytes in line["pictures"].items())


@dataclass(frozen=True)
class _Task:
    draft: Draft
    out: Path


def _make(task: _Task) -> dict[str, Any]:
    """Draw one pair, write its images, and return its journal line."""
    pair_id = task.draft.pair_id
    try:
        drawn = task.draft.draw()
        pair = replace(drawn.pair, changed=changed_box(drawn.a, drawn.b), sha256_a=pixel_sha256(drawn.a),
                       sha256_b=pixel_sha256(drawn.b), **{f"image_{side}": _image(pair_id, side) for side in "ab"})
        parse_pair(to_json(pair), pair_id)          # what a reader would refuse is not written
    except InputError as error:
        return {"pair_id": pair_id, "failure": str(error)}
    if pair.changed is None:                        # raised by hand: `python -O` drops assert statements
        raise AssertionError(f"{pair_id}: both images show the same pixels")
    pictures = {}
    for name, pixels in ((pair.image_a, drawn.a), (pair.image_b, drawn.b)):
        save_png(task.out / name, pixels)
        pictures[name] = (task.out / name).stat().st_size
    return {"pair_id": pair_id, "pair": to_json(pair), "pictures": pictures}


def _image(pair_id: str, side: str) -> str:
    return f"images/{pair_id}_{side}.png"


def _finish(out: Path, lines: list[dict[str, Any]], n_resumed: int) -> Summary:
    """Write the files that people and later commands read, from the lines in order."""
    made = [line for line in lines if "pair" in line]
    failed = [line for line in lines if "failure" in line]
    store.write_jsonl(out / PAIRS_FILE, (line["pair"] for line in made))
    store.write_jsonl(out / FAILED, ({"pair_id": line["pair_id"], "reason": line["failure"]} for line in failed))
    pairs = [from_json(SwapPair, line["pair"]) for line in made]
    shown = pairs[:SHEET_PAIRS]
    title = f"{len(pairs)} pairs" + (f", the first {len(shown)}" if len(shown) < len(pairs) else "")
    write_pair_sheet(out / SHEET, shown, out, title + "; the outlined part differs")
    store.write_jsonl(out / JOURNAL, lines)
    named = {out / name for line in made for name in line["pictures"]}
    for path in {*out.rglob(".*.tmp")} | {*out.glob("images/*.png")} - named:     # what a kill left half-written
        path.unlink()
    by_category: dict[str, int] = {}
    for pair in pairs:
        by_category[pair.category] = by_category.get(pair.category, 0) + 1
    return Summary(dict(sorted(by_category.items())), tuple(f"{line['pair_id']}: {line['failure']}" for line in failed),
                   n_resumed)
