"""Figures and readable case files of a folder of trials (VisualSwap, Fig. 2 and 3).

    drawn = plot(PlotJob(Path("runs/probe")))
    drawn.files, drawn.missing                         # what was written; what there is no data for, and what makes it

    OUT/curves.png, curves_column.png, enrichment.png      attention on the image, step by step, conditions overlaid
    OUT/heat_map_*.png, overlay_*.png                      one trial of each condition: layers x steps; over the image
    OUT/cases/index.html                                   trials to read

With several models in a folder each has its own figures, which then carry its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from experiments.attention_figures import COLUMN_IN, PAGE_IN, curves, heat_map
from experiments.attention_series import by_condition, panels_of
from experiments.cases import Pictures, TraceOf, cases_of, pick, shown_layers, write_cases
from experiments.figures import save
from experiments.options import command
from experiments.probe import TRIALS, trials_file
from probes.trace import MIDDLE
from probes.trace_store import TrialTrace, read_header, read_trace
from rekey import store
from rekey.answers import Parser
from rekey.errors import InputError
from rekey.evaluate import response_files, runs_file
from rekey.pairs import pairs_file
from rekey.records import SwapPair
from rekey.trials import SwapTrial, read_trials

CONDITIONS = ("base", "probe", "multi-turn")
"""What figures show where nothing else is asked for: the paper's three."""
N_CASES = 40
MAX_TRACES = 200                # of a model and condition that a mean curve is made of


@dataclass(frozen=True)
class PlotJob:
    """What is drawn of a folder, and how.

    folder: of `rekey probe`, `rekey attend` or both.  out: default FOLDER/plots.  layers, bands: panels of the curves
    (`panels_of`); the first band is also that of overlays and case files.  conditions: as tables name them; by default
    the paper's three in figures, and all in case files.  limit: only the first so many pairs.  n_cases: how many case
    files.  pairs: the pairs file, where it is not the one that the trials' runs name.  figures: False leaves case files
    alone.
    """

    folder: Path
    out: Path | None = None
    layers: tuple[int, ...] = ()
    bands: tuple[tuple[float, float], ...] = ()
    conditions: tuple[str, ...] = ()
    limit: int | None = None
    n_cases: int = N_CASES
    pairs: Path | None = None
    without_sinks: bool = False
    parser: Parser = "strict"
    figures: bool = True

    @property
    def destination(self) -> Path:
        return self.out or self.folder / "plots"


@dataclass
class Drawn:
    """files: in the order in which they were written.  missing: a line for each thing that could not be drawn."""

    files: list[Path] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def plot(job: PlotJob, progress: Callable[[int, int], None] = lambda done, total: None) -> Drawn:
    """Draw what there is.  Raises InputError for a folder with neither trials nor traces, and for bad choices."""
    found = find(job)
    drawn = Drawn()
    conditions = list(dict.fromkeys([trial.cell.condition for trial in found.trials]
                                    + [header["condition"] for header in found.headers.values()]))
    unknown = [name for name in job.conditions if name not in conditions]
    if unknown:
        there = ", ".join(f'"{name}"' for name in conditions)
        raise InputError(f"--conditions: {job.folder} holds nothing of {', '.join(unknown)}; it holds {there}")
    if job.figures and found.headers:
        _draw_attention(job, found, drawn)
    elif not found.headers:
        model = found.trials[0].model
        drawn.missing.append(f"no attention figures: {job.folder} holds no traces; make them with  " + command(
            "attend", "--trials", found.trials_at, "--model", model, "--out", found.trials_at / "traces"))
    if found.trials:
        _write_cases(job, found, drawn, progress)
    else:
        drawn.missing.append(f"no case files: no {TRIALS} in {job.folder} or beside it; give the folder of "
                             "`rekey probe`")
    return drawn


# ---------------------------------------------------------------------------------------- what there is

@dataclass(frozen=True)
class Found:
    """trials: in order; [] where there are none.  headers: of traces, by file, in the order of the trials.
    trials_at: their folder.  pairs_at: what images are relative to."""

    trials: list[SwapTrial]
    headers: dict[Path, dict]
    trials_at: Path
    pairs_at: Path | None
    why_no_pairs: str = ""

    @property
    def traces(self) -> TraceOf:
        return {header["key"]: partial(read_trace, path) for path, header in self.headers.items()}

    @property
    def pair_of(self) -> dict[str, SwapPair]:
        return {trial.pair.pair_id: trial.pair for trial in self.trials}


def find(job: PlotJob) -> Found:
    """Trials and traces in a folder, in the folder above (traces lie in that of their trials) and in those below."""
    folder = job.folder.parent if job.folder.suffix == ".jsonl" else job.folder
    if not folder.is_dir():
        raise InputError(f"{job.folder}: no such folder; expected that of `rekey probe` or `rekey attend`")
    files = sorted(folder.glob("*.npz")) or sorted(folder.glob("*/*.npz"))
    trials_at = next((place for place in _trial_places(folder, files) if response_files(trials_file(place))), None)
    if trials_at is None and not files:
        raise InputError(f"{folder}: holds neither trials nor traces; expected the folder of `rekey probe` or "
                         "`rekey attend`")
    trials = [] if trials_at is None else read_trials(trials_file(trials_at))
    headers = {path: read_header(path) for path in files}
    pair_ids = list(dict.fromkeys([trial.pair.pair_id for trial in trials] or
                                  sorted(header["pair_id"] for header in headers.values())))[:job.limit]
    trials = [trial for trial in trials if trial.pair.pair_id in set(pair_ids)]
    place = {trial.key: n for n, trial in enumerate(trials)}
    kept = [path for path, header in headers.items() if header["pair_id"] in set(pair_ids)]
    kept.sort(key=lambda path: (place.get(headers[path]["key"], len(place)), path.name))
    pairs_at, why = _pairs_folder(job, trials_at, files)
    return Found(trials, {path: headers[path] for path in kept}, trials_at or folder, pairs_at, why)


def _trial_places(folder: Path, traces: Sequence[Path]) -> list[Path]:
    """Where the trials may lie: here, above, or where the traces' run says."""
    named = [settings["trials"] for settings in _settings_of_traces(traces) if settings.get("trials")]
    return [folder, folder.parent, *(Path(name).parent if name.endswith(".jsonl") else Path(name) for name in named)]


def _settings_of_traces(traces: Sequence[Path]) -> list[dict]:
    runs = [path for path in dict.fromkeys(trace.parent / "run.json" for trace in traces) if path.exists()]
    return [store.read_json(path).get("settings", {}) for path in runs]


def _pairs_folder(job: PlotJob, trials_at: Path | None, traces: Sequence[Path]) -> tuple[Path | None, str]:
    """What the paths of images are relative to, or None and why it is not known."""
    if job.pairs is not None:
        file = pairs_file(job.pairs)
        if not file.exists():
            raise InputError(f"--pairs {job.pairs}: no such pairs file; give the file or folder of `rekey pairs build`")
        return file.parent, ""
    named = [] if trials_at is None else [
        Path(line["settings"]["pairs"]).parent for file in response_files(trials_file(trials_at))
        for line in store.read_journal(runs_file(file)) if line.get("settings", {}).get("pairs")]
    named += [Path(settings["pairs"]) for settings in _settings_of_traces(traces) if settings.get("pairs")]
    there = next((folder for folder in named if folder.is_dir()), None)
    if there is not None:
        return there, ""
    where = f"they were in {named[0]}, which is gone" if named else "no run tells where they lie"
    return None, f"the images were not found ({where}); give --pairs"


# --------------------------------------------------------------------------------------------- drawing

def _draw_attention(job: PlotJob, found: Found, drawn: Drawn) -> None:
    models = list(dict.fromkeys(header["model"] for header in found.headers.values()))
    if found.pairs_at is None:
        drawn.missing.append(f"no overlays: {found.why_no_pairs}")
    for model in models:
        mine = {path: header for path, header in found.headers.items() if header["model"] == model}
        suffix = f"_{_slug(model)}" if len(models) > 1 else ""
        _draw_curves(job, mine, suffix, drawn)
        _draw_single(job, found, mine, suffix, drawn)


def _draw_curves(job: PlotJob, headers: dict[Path, dict], suffix: str, drawn: Drawn) -> None:
    wanted = job.conditions or [name for name in CONDITIONS if any(header["condition"] == name
                                                                   for header in headers.values())]
    chosen: list[Path] = []
    for name in wanted:
        paths = [path for path, header in headers.items() if header["condition"] == name]
        if len(paths) > MAX_TRACES:
            drawn.missing.append(f"curves of {name}: of the first {MAX_TRACES} of {len(paths)} traces")
        chosen += paths[:MAX_TRACES]
    for name in wanted:
        if not any(headers[path]["condition"] == name for path in chosen):
            drawn.missing.append(f"no curve of {name}: no traces of it")
    if not chosen:
        there = ", ".join(dict.fromkeys(header["condition"] for header in headers.values()))
        drawn.missing.append(f"no figures: of {', '.join(wanted or CONDITIONS)} there are no traces; name some of "
                             f"{there} with --conditions")
        return
    groups = by_condition(slim(read_trace(path)) for path in chosen)
    for name, measure, width_in in (("curves", "percent", PAGE_IN), ("curves_column", "percent", COLUMN_IN),
                                    ("enrichment", "enrichment", PAGE_IN)):
        _save(drawn, job.destination / f"{name}{suffix}.png",
              curves(groups, job.layers, job.bands, measure, width_in=width_in))


def slim(trace: TrialTrace) -> TrialTrace:
    """A trace without what curves do not need: one value per layer and step is left of the heads'."""
    from dataclasses import replace
    attention = trace.attention
    mean = attention.scores.mean(1, keepdims=True)
    nothing = mean[:, :, :0]
    return replace(trace, texts=(), maps={}, attention=replace(
        attention, scores=mean, images=nothing[None], region=nothing, sink=nothing, template=nothing, question=nothing,
        generated=nothing, before_steering=None))


def _draw_single(job: PlotJob, found: Found, headers: dict[Path, dict], suffix: str, drawn: Drawn) -> None:
    """A heat map and an overlay of the first trial of each condition."""
    from experiments.image_overlay import overlay
    firsts: dict[str, Path] = {}
    for path, header in headers.items():
        if header["condition"] in (job.conditions or CONDITIONS):
            firsts.setdefault(header["condition"], path)
    for condition, path in firsts.items():
        trace = read_trace(path)
        name = f"{_slug(condition)}{suffix}.png"
        _save(drawn, job.destination / f"heat_map_{name}", heat_map(trace))
        pair = found.pair_of.get(trace.pair_id) or _bare_pair(trace)
        pictures = Pictures(pair, found.pairs_at)
        pixels = pictures.named(trace.image.path)
        if pixels is None or not trace.maps:
            if found.pairs_at is not None:
                drawn.missing.append(f"no overlay of {condition}: {pictures.missing or 'its trace holds no maps'}")
            continue
        before = pictures.named(trace.image_before) if trace.image_before != trace.image.path else None
        panel = panels_of(trace, bands=job.bands[:1])[0] if job.bands else shown_layers(trace, MIDDLE)
        _save(drawn, job.destination / f"overlay_{name}",
              overlay(trace, pixels, panel, before, pictures.changed, job.without_sinks))


def _bare_pair(trace: TrialTrace) -> SwapPair:
    """What a trace alone tells of its pair: the image seen, and the one before it."""
    return SwapPair(trace.pair_id, trace.image_before, trace.image.path, "", (), "", "")


def _write_cases(job: PlotJob, found: Found, drawn: Drawn, progress: Callable[[int, int], None]) -> None:
    cases = [case for case in cases_of(found.trials, job.parser)
             if not job.conditions or case.trial.cell.condition in job.conditions]
    chosen = pick(cases, job.n_cases)
    if len(chosen) < len(cases):
        drawn.missing.append(f"{len(chosen)} of {len(cases)} trials have a case file, some of every model, condition "
                             f"and verdict; all of them:  --cases {len(cases)}")
    if found.pairs_at is None and chosen:
        drawn.missing.append(f"no pictures in the case files: {found.why_no_pairs}")
    if chosen:
        drawn.files += write_cases(job.destination / "cases", chosen, found.pairs_at, found.traces,
                                   job.bands[0] if job.bands else MIDDLE, progress)


def _save(drawn: Drawn, path: Path, figure) -> None:
    save(figure, path)
    drawn.files.append(path)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("._") or "model"
