"""Run trials of an image swap: resumable, on several GPUs, one line each (VisualSwap, Sec. 2 and 5).

    summary = probe(ProbeJob(pairs=Path("pairs.jsonl"), model=ModelSpec("control:grounded"), out=Path("runs/probe"),
                             cells=(Cell("base", image="b"), Cell("reasoning", phrase=REFLECTIONS[2]))))

    runs/probe/trials.jsonl         one line per trial, pair by pair; failures too, which a resume runs again
    runs/probe/trials.runs.jsonl    one line per run: command, versions, machine, model; how many tokens were read

The first answer about image a is a trial of its own, which all that continue it share.  Pairs are read and rows
decoded in batches cut from the whole plan, so that what stands beside a trial does not depend on where a run stopped: a
run that was killed and started again leaves the same bytes (with several workers, the same lines).
"""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.workers import in_parallel, stop_requested, worker_number
from probes.backends import ModelSpec
from rekey import store
from rekey.errors import InputError, Interrupted
from rekey.evaluate import Identity, Settings, all_settings, response_files, runs_file
from rekey.pairs import pairs_file, read_pairs
from rekey.records import SwapPair, to_json
from rekey.trials import Cell, SwapTrial, bare, check_trials_file, done_keys, read_trials, trial_key

if TYPE_CHECKING:
    from probes.protocol import Said, Work
    from probes.vlm import LocalVLM

TRIALS = "trials.jsonl"
FIRST = Cell("base", image="a")
SETTINGS = Settings(prompt="cot", temperature=0.1, seed=0)


@dataclass(frozen=True)
class ProbeJob:
    """Pairs, a model, and what is tried on them.  pairs: a pairs file or its folder.  out: the folder of trials."""

    pairs: Path
    model: ModelSpec
    out: Path
    cells: tuple[Cell, ...]
    settings: Settings = SETTINGS
    seeds: tuple[int, ...] = (0,)
    """Each is a run of the whole plan with random numbers of its own."""
    pairs_at_once: int = 8
    rows_at_once: int = 32
    workers: int = 1
    shard: tuple[int, int] | None = None
    limit: int | None = None
    """Only the first so many pairs: a trial."""

    def plan(self) -> tuple[Cell, ...]:
        """The cells in order: base trials first, the answer about image a among them where something continues it."""
        cells = tuple(dict.fromkeys(self.cells))
        if any(cell.continues for cell in cells):
            cells = (FIRST, *(cell for cell in cells if cell != FIRST))
        return tuple(sorted(cells, key=lambda cell: cell.continues))


@dataclass(frozen=True)
class Summary:
    """What came of a run.  failures: a line for each pair and reason; problems: for each pair that cannot be used."""

    n_trials: int
    n_resumed: int
    n_skipped: int
    failures: tuple[str, ...]
    problems: tuple[str, ...]
    n_read: int
    n_one_by_one: int
    """Tokens read before anything was said, and what every trial read alone would have taken."""
    n_failed: int
    n_cut: int
    """First answers that ran out of tokens: what continues them continues an unfinished thought."""


def trials_file(out: Path) -> Path:
    """The file of trials in a folder of `rekey probe`, or the file itself."""
    return out if out.suffix == ".jsonl" else out / TRIALS


def probe(job: ProbeJob, progress: Callable[[int, int], None] = lambda done, total: None,
          stop: threading.Event | None = None, vlm: LocalVLM | None = None) -> Summary:
    """Run the trials that `job.out` and its shards do not hold yet.

    vlm: a model that is loaded already (of `job.model`); then there is one worker.
    Raises InputError before anything is asked where the input is bad, Interrupted after a stop, with every trial kept.
    """
    with stop_requested(stop) as stop:
        return _probe(job, progress, stop, vlm)


def usable_pairs(path: Path, limit: int | None = None,
                 progress: Callable[[int, int], None] = lambda done, total: None) -> tuple[list[SwapPair], list[str]]:
    """As `read_pairs`; raises InputError with all problems where no pair can be used."""
    pairs, problems = read_pairs(path, limit, progress)
    if not pairs:
        raise InputError(*problems, f"{pairs_file(path)}: no pair can be used")
    return pairs, problems


def _probe(job: ProbeJob, progress: Callable[[int, int], None], stop: threading.Event,
           vlm: LocalVLM | None) -> Summary:
    pairs, problems = usable_pairs(job.pairs, job.limit)
    identity = job.model.identity()
    groups = [_Group(tuple(pairs[n:n + job.pairs_at_once]), job, identity, replace(job.settings, seed=seed))
              for seed in job.seeds for n in range(0, len(pairs), job.pairs_at_once)]
    mine = store.shard_of(groups, job.shard)
    n_mine = sum(len(group.keys()) for group in mine)
    whole = trials_file(job.out)
    path = whole.with_name(store.shard_name(whole.stem, job.shard, whole.suffix))
    check_trials_file(path)
    done = done_keys(whole)
    todo = [replace(group, missing=frozenset(missing)) for group in mine if (missing := group.keys() - done)]
    n_before = n_mine - sum(len(group.missing) for group in todo)
    firsts = _first_answers(whole, todo)
    new: list[SwapTrial] = []
    n_read = n_one_by_one = 0
    progress(n_before, n_mine)
    with store.Journal(path) as journal:
        for trials, work in _made(job, path, [group.with_firsts(firsts) for group in todo], stop, vlm):
            for trial in trials:
                if trial.key not in done:
                    journal.append(to_json(trial))
                    new.append(trial)
            n_read, n_one_by_one = n_read + work.read, n_one_by_one + work.one_by_one
            progress(n_before + len(new), n_mine)
    if n_before + len(new) < n_mine:
        raise Interrupted(f"{n_before + len(new)} of {n_mine} trials done")
    n_cut = sum(trial.cell == FIRST and trial.second is not None and trial.second.finish == "length" for trial in new)
    return Summary(n_mine, n_before, sum(trial.skipped is not None for trial in new), _failures(new), tuple(problems),
                   n_read, n_one_by_one, sum(trial.error is not None for trial in new), n_cut)


def _failures(trials: Sequence[SwapTrial]) -> tuple[str, ...]:
    """A line for each pair and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for trial in trials:
        if trial.error is not None:
            found.setdefault((trial.pair.pair_id, trial.error), []).append(trial.cell.condition)
    return tuple(f"{pair}, {conditions[0] if len(conditions) == 1 else f'{len(conditions)} trials'}: {error}"
                 for (pair, error), conditions in found.items())


@dataclass(frozen=True)
class _Group:
    """Pairs that are read together, under one seed.  missing: keys of trials that are still to be run."""

    pairs: tuple[SwapPair, ...]
    job: ProbeJob
    identity: Identity
    settings: Settings
    missing: frozenset[str] = frozenset()
    firsts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By key of its trial, the token ids of a first answer that is stored."""

    def key(self, pair: SwapPair, cell: Cell) -> str:
        return trial_key(pair, cell, self.identity, self.settings)

    def with_firsts(self, known: dict[str, tuple[int, ...]]) -> _Group:
        keys = (self.key(pair, FIRST) for pair in self.pairs)
        return replace(self, firsts={key: known[key] for key in keys if key in known})

    def keys(self) -> set[str]:
        return {self.key(pair, cell) for pair in self.pairs for cell in self.job.plan()}


def _first_answers(path: Path, groups: Sequence[_Group]) -> dict[str, tuple[int, ...]]:
    """Token ids of stored answers that trials still to be run continue."""
    wanted = {group.key(pair, FIRST) for group in groups for pair in group.pairs}
    trials = read_trials(path) if wanted and response_files(path) else []
    return {trial.key: trial.second.token_ids for trial in trials if trial.key in wanted and trial.second is not None}


# --------------------------------------------------------------------------------------- running

Made = tuple[list[SwapTrial], "Work"]


def _made(job: ProbeJob, path: Path, todo: list[_Group], stop: threading.Event,
          vlm: LocalVLM | None) -> Iterator[Made]:
    """Trials of the groups as they come; what the model is like is noted before the first of them."""
    if not todo:
        return
    run = uuid.uuid4().hex[:12]
    settings = {"pairs": str(pairs_file(job.pairs).resolve()), "workers": job.workers,
                "shard": job.shard and "{}/{}".format(*job.shard), "seeds": list(job.seeds),
                "cells": [to_json(cell) for cell in job.plan()], "pairs_at_once": job.pairs_at_once,
                "rows_at_once": job.rows_at_once, **to_json(job.settings), **to_json(job.model)}
    with store.Journal(runs_file(path)) as runs:
        runs.append({"run": run} | store.run_manifest(settings, time.time()))
        known: list[dict[str, Any]] = []
        for made, description in _results(job, todo, stop, vlm):
            if description not in known:
                known.append(description)
                runs.append({"run": run, "model": description})
            yield made


def _results(job: ProbeJob, todo: list[_Group], stop: threading.Event,
             vlm: LocalVLM | None) -> Iterator[tuple[Made, dict[str, Any]]]:
    if vlm is None and job.workers > 1 and len(todo) > 1:
        return in_parallel(_run_in_worker, todo, min(job.workers, len(todo)), stop)
    loaded = vlm or engine_of(job.model)
    return in_parallel(lambda group: (run_group(loaded, group), loaded.describe()), todo, 1, stop)


def engine_of(model: ModelSpec) -> LocalVLM:
    """The model in the probe engine.  Raises InputError for one that cannot be swapped under."""
    from probes.loading import in_probe_engine
    from probes.vlm import load_vlm
    if model.backend != "hf":
        raise InputError(f"--backend {model.backend}: has no states to swap under; give --backend hf")
    if not in_probe_engine(model.name, model.revision):
        raise InputError(f"{model.name}: is of no family of the probe engine, so its image cannot be exchanged; see "
                         "docs/models.md for those that are")
    return load_vlm(model.name, model.dtype, model.device_map, model.attention, model.min_pixels, model.max_pixels,
                    model.revision)


def _run_in_worker(group: _Group) -> tuple[Made, dict[str, Any]]:
    vlm = _loaded_once(group.job.model)
    return run_group(vlm, group), vlm.describe()


@functools.cache
def _loaded_once(model: ModelSpec) -> LocalVLM:
    """In a worker process: the model, on a GPU of its own where there are several."""
    return engine_of(model.on_gpu_of(worker_number() or 0))


def run_group(vlm: LocalVLM, group: _Group) -> Made:
    """The missing trials of some pairs, in the order of the plan, pair by pair."""
    from probes.protocol import Case, Work, check_cells, continue_cells
    plan, job = group.job.plan(), group.job
    check_cells(vlm, plan)
    cases: dict[str, Case] = {}
    found: dict[str, SwapTrial] = {}
    work = Work()
    for pair in group.pairs:
        try:
            cases[pair.pair_id] = Case.of(vlm, pair, pairs_file(job.pairs).parent, group.settings)
        except InputError as error:
            found |= {group.key(pair, cell): _failed(group, pair, cell, str(error)) for cell in plan}

    def run(cells: Sequence[Cell], first_of: Callable[[SwapPair], Sequence[int]]) -> None:
        outcome = continue_cells(
            vlm, [(case, first_of(case.pair), cells) for case in cases.values()], group.settings, job.rows_at_once,
            lambda pair, cell: group.key(pair, cell) in group.missing)
        work.add(outcome.work)
        for said in outcome.said:
            trial = _trial(vlm, group, said)
            found[trial.key] = trial

    run([cell for cell in plan if not cell.continues], lambda pair: ())
    firsts = dict(group.firsts)
    for pair in [case.pair for case in cases.values()]:
        key = group.key(pair, FIRST)
        # What is stored stays: read again on another machine an answer may differ, and no line would hold it.
        if key not in firsts and key in found and found[key].second is not None:
            firsts[key] = found[key].second.token_ids
    continuing = [cell for cell in plan if cell.continues]
    for pair in [case.pair for case in cases.values() if group.key(case.pair, FIRST) not in firsts]:
        del cases[pair.pair_id]
        found |= {group.key(pair, cell): _failed(group, pair, cell, "its first answer failed") for cell in continuing}
    run(continuing, lambda pair: firsts[group.key(pair, FIRST)])
    in_order = [found.get(group.key(pair, cell)) for pair in group.pairs for cell in plan]
    return [trial for trial in in_order if trial is not None and trial.key in group.missing], work


def _failed(group: _Group, pair: SwapPair, cell: Cell, reason: str) -> SwapTrial:
    return SwapTrial(group.key(pair, cell), bare(pair), group.identity.name,
                     all_settings(group.identity, group.settings), cell, error=reason)


def _trial(vlm: LocalVLM, group: _Group, said: Said) -> SwapTrial:
    pair, row = said.case.pair, said.row
    trial = SwapTrial(group.key(pair, said.cell), bare(pair), group.identity.name,
                      all_settings(group.identity, group.settings), said.cell,
                      first=group.key(pair, FIRST) if said.cell.continues else None, second=said.generation,
                      skipped=said.skipped, error=said.error)
    if row is None:
        return trial
    kept = row.prompt.ids[row.n_asked:row.n_asked + row.n_kept]
    return replace(trial, n_kept=row.n_kept, n_kept_chars=len(vlm.text_of(kept)), injected=row.injected)


def report_lines(summary: Summary) -> list[str]:
    """What a person should know of a run, a line each."""
    lines = [f"{summary.n_trials} trials: {summary.n_resumed} done before, "
             f"{summary.n_trials - summary.n_resumed - summary.n_failed} now, {summary.n_failed} failed"
             + (f", {summary.n_skipped} with nothing to do" if summary.n_skipped else "")]
    if summary.n_read:
        lines.append(f"read {summary.n_read:,} tokens before the answers; one by one the trials would have taken "
                     f"{summary.n_one_by_one:,} ({summary.n_one_by_one / summary.n_read:.1f} times as many)")
    if summary.n_cut:
        lines.append(f"warning: {summary.n_cut} first answers ran out of tokens, so that their trials continue an "
                     "unfinished thought; give more --max-new-tokens")
    return lines
