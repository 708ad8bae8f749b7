"""Attention traces of stored trials: every layer, head and step, and maps over the image (VisualSwap, Sec. 5.3).

    summary = attend(AttendJob(Path("runs/probe"), ModelSpec("control:grounded"), Path("runs/probe/traces")))

    OUT/<key>.npz              one trace per trial (`probes.trace_store`); those that are there are kept
    OUT/traces.jsonl           one line per trace, in the order of the trials: what it is of, and its file
    OUT/traces.runs.jsonl      one line per run: command, versions, machine, model

Nothing is generated.  Trials are read in the regime in which they were run; a trial whose question was asked with other
weights, or that comes out as other tokens, is refused and not traced as something else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.probe import engine_of, trials_file
from experiments.workers import stop_requested
from probes.backends import ModelSpec
from probes.trace_store import N_WINDOW, read_header, trace_path, write_trace
from rekey import store
from rekey.errors import InputError, Interrupted
from rekey.evaluate import response_files, runs_file
from rekey.pairs import pairs_file
from rekey.trials import SwapTrial, grade_all, read_trials

if TYPE_CHECKING:
    from probes.tracing import Tracing
    from probes.trial_rows import Case
    from probes.vlm import LocalVLM

INDEX = "traces.jsonl"
LOADING = ("revision", "dtype", "min_pixels", "max_pixels")
"""Settings of a trial that fix which model answered, beside its name."""


@dataclass(frozen=True)
class AttendJob:
    """Stored trials, their model, and what is traced of them.

    trials: a trials file or its folder.  conditions: as tables name them; all where there are none.  pairs: the pairs
    file, by default the one that the trials' runs name.  layers, per_head, window: as `probes.tracing.Tracing`.
    limit: only trials of the first so many pairs.  keys: only these trials; all where there are none.
    """

    trials: Path
    model: ModelSpec
    out: Path
    conditions: tuple[str, ...] = ()
    pairs: Path | None = None
    layers: tuple[int, ...] | None = None
    per_head: bool = True
    window: int = N_WINDOW
    limit: int | None = None
    keys: frozenset[str] = frozenset()


@dataclass
class Summary:
    """What came of a run.  n_without: trials without an answer, of which there is nothing to trace.  n_tokens: that
    were read; n_bytes: of all traces of the trials asked for."""

    n_trials: int
    n_kept: int
    n_without: int
    n_traced: int = 0
    n_tokens: int = 0
    n_bytes: int = 0
    elapsed_s: float = 0.0
    failures: list[str] = field(default_factory=list)


def attend(job: AttendJob, progress: Callable[[int, int], None] = lambda done, total: None,
           load: Callable[[ModelSpec], LocalVLM] = engine_of) -> Summary:
    """Trace the trials that `job.out` holds no trace of yet.

    load: gives the model, and is asked only if there is something to trace.  Raises InputError before anything is read
    where the input is bad, Interrupted after a stop, with every trace kept.
    """
    from probes.tracing import Tracing
    started = time.time()
    everything = read_trials(trials_file(job.trials))
    mine = _wanted(everything, job)
    chosen = [trial for trial in mine if trial.second is not None]
    spec = _spec_of(job, chosen)
    folder = _pairs_folder(job)
    tracing = Tracing(job.layers, job.per_head, job.window)
    wanted = tracing.made_with(spec.identity().options["dtype"])
    todo = [trial for trial in chosen if not _is_there(job.out, trial, wanted)]
    summary = Summary(len(chosen), len(chosen) - len(todo), len(mine) - len(chosen))
    progress(summary.n_kept, len(chosen))
    with stop_requested() as stop:
        if todo:
            loaded = load(spec)
            tracing.check(loaded)
            settings = {"trials": str(job.trials), "pairs": str(folder), "conditions": list(job.conditions), **wanted,
                        "limit": job.limit, "model": loaded.describe()}
            with store.Journal(runs_file(job.out / INDEX)) as runs:
                runs.append(store.run_manifest(settings, started))
            try:
                _trace(job.out, loaded, tracing, everything, todo, folder, summary, progress, stop)
            finally:
                _write_index(job.out, everything)
    summary.n_bytes = sum(path.stat().st_size for trial in chosen if (path := trace_path(job.out, trial.key)).exists())
    if summary.n_kept + summary.n_traced + len(summary.failures) < len(chosen):
        raise Interrupted(f"{summary.n_kept + summary.n_traced} of {len(chosen)} trials traced")
    return summary


def _trace(out: Path, vlm: LocalVLM, tracing: Tracing, everything: Sequence[SwapTrial], todo: Sequence[SwapTrial],
           folder: Path, summary: Summary, progress: Callable[[int, int], None], stop: threading.Event) -> None:
    import torch

    from probes.tracing import settings_of, trace_trial
    from probes.trial_rows import Case
    firsts = {trial.key: trial.second.token_ids for trial in everything if trial.second is not None}
    follows = {graded.trial.key: graded.follows for graded in grade_all(everything)}
    case: tuple[Any, Case] | None = None
    began = time.perf_counter()
    for trial in todo:
        if stop.is_set():
            break
        try:
            settings = settings_of(trial)
            asked = trial.pair, settings.prompt, settings.thinking
            if case is None or case[0] != asked:            # trials of one pair follow each other
                case = asked, Case.of(vlm, trial.pair, folder, settings)
            if trial.first is not None and trial.first not in firsts:
                raise InputError(f"pair {trial.pair.pair_id}, {trial.cell.condition}: the answer that it continues is "
                                 "not in the file; run the same `rekey probe` line again, which asks it")
            trace = trace_trial(vlm, case[1], trial, firsts.get(trial.first, ()), follows[trial.key], tracing)
        except InputError as error:
            summary.failures.append("; ".join(error.problems))
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            summary.failures.append(f"pair {trial.pair.pair_id}, {trial.cell.condition}: out of memory "
                                    f"({str(error).splitlines()[0]}); give fewer --layers, or --mean-heads")
        else:
            write_trace(out, trace)
            summary.n_traced += 1
            summary.n_tokens += trace.n_tokens
        summary.elapsed_s = time.perf_counter() - began
        progress(summary.n_kept + summary.n_traced + len(summary.failures), summary.n_trials)


def _wanted(trials: Sequence[SwapTrial], job: AttendJob) -> list[SwapTrial]:
    """The trials of the model under the conditions asked for."""
    names = {Path(job.model.name).resolve().name, job.model.name}
    mine = [trial for trial in trials if trial.model in names]
    if not mine:
        others = ", ".join(sorted({trial.model for trial in trials})) or "no model"
        raise InputError(f"{job.trials}: holds trials of {others}, none of {job.model.name}; give that --model")
    unknown = [name for name in job.conditions if name not in {trial.cell.condition for trial in mine}]
    if unknown:
        there = ", ".join(f'"{name}"' for name in dict.fromkeys(trial.cell.condition for trial in mine))
        raise InputError(f"--conditions: {job.trials} holds no trials of {', '.join(unknown)}; it holds {there}")
    pairs = list(dict.fromkeys(trial.pair.pair_id for trial in mine))[:job.limit]
    return [trial for trial in mine if trial.pair.pair_id in set(pairs)
            and (not job.conditions or trial.cell.condition in job.conditions)
            and (not job.keys or trial.key in job.keys) and trial.skipped is None]


def _spec_of(job: AttendJob, trials: Sequence[SwapTrial]) -> ModelSpec:
    """The model as the trials were asked with it.  Raises InputError where that is not the one given."""
    if not trials:
        raise InputError(f"{job.trials}: none of the trials asked for has an answer, so there is nothing to trace")
    ways = {tuple(trial.settings.get(name) for name in LOADING) for trial in trials}
    if len(ways) > 1:
        listed = "; ".join(", ".join(f"{n} {v}" for n, v in zip(LOADING, way)) for way in sorted(ways, key=str))
        raise InputError(f"{job.trials}: holds trials that were asked in {len(ways)} ways ({listed}); keep those of "
                         "each in a file of their own")
    revision, dtype, min_pixels, max_pixels = ways.pop()
    given = job.model
    spec = ModelSpec(given.name, "hf", given.revision, dtype if given.dtype == "auto" and dtype else given.dtype,
                     given.device_map, given.attention, min_pixels, max_pixels)
    found = spec.identity().options["revision"]
    if found != revision:
        raise InputError(f"{job.trials}: the trials were asked with {trials[0].model} in revision {_short(revision)}, "
                         f"and {given.name} is here in revision {_short(found)}; give the weights they were asked with "
                         "(--revision for a hub model)")
    return spec


def _short(revision: str | None) -> str:
    return "unknown" if revision is None else revision[:12]


def _pairs_folder(job: AttendJob) -> Path:
    """What the paths of the pairs' images are relative to."""
    if job.pairs is not None:
        return pairs_file(job.pairs).parent
    named = [line["settings"]["pairs"] for file in response_files(trials_file(job.trials))
             for line in store.read_journal(runs_file(file)) if line.get("settings", {}).get("pairs")]
    if not named:
        raise InputError(f"{runs_file(trials_file(job.trials))}: does not tell where the pairs lie; give --pairs")
    folder = Path(named[-1]).parent
    if not folder.is_dir():
        raise InputError(f"{folder}: is not there, where the trials' pairs were; give their new place as --pairs")
    return folder


def _is_there(out: Path, trial: SwapTrial, wanted: dict[str, Any]) -> bool:
    path = trace_path(out, trial.key)
    if not path.exists():
        return False
    made_with = read_header(path)["made_with"]
    if made_with != wanted:
        differing = ", ".join(f"{name} {made_with.get(name)} (now {value})" for name, value in wanted.items()
                              if made_with.get(name) != value)
        raise InputError(f"{path}: was made with {differing}; give another --out, or the same options")
    return True


def _write_index(out: Path, trials: Sequence[SwapTrial]) -> None:
    """A line for every trace of these trials, the same however often the run was stopped; those of others stay."""
    fields = ("key", "model", "pair_id", "condition", "follows", "seed", "n_asked", "t_phrase", "t_after",
              "image_before", "n_image_tokens")
    mine = {trial.key for trial in trials}
    lines = [line for line in store.read_journal(out / INDEX) if line["key"] not in mine]
    for trial in trials:
        path = trace_path(out, trial.key)
        if path.exists():
            header = read_header(path)
            lines.append({"file": path.name, **{name: header[name] for name in fields}, "cell": header["cell"]})
    store.write_jsonl(out / INDEX, lines)


def report_lines(summary: Summary) -> list[str]:
    """What a person should know of a run, a line each."""
    lines = [f"{summary.n_trials} trials: {summary.n_kept} traced before, {summary.n_traced} now, "
             f"{len(summary.failures)} failed; {summary.n_bytes / 2**20:.1f} MB"]
    if summary.n_without:
        lines.append(f"{summary.n_without} more have no answer (they failed), so there is nothing to trace")
    if summary.n_traced:
        lines.append(f"read {summary.n_tokens:,} tokens in {summary.elapsed_s:.1f} s "
                     f"({summary.n_tokens / max(summary.elapsed_s, 1e-9):,.0f}/s)")
    return lines
