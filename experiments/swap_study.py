"""What the swap experiments share: run the trials that one needs on every model, write a table and a figure.

    @swap_experiment("swap_main")
    def main(study: SwapStudy) -> None:
        graded = study.run(probe_cells())           # by model, the graded trials of these cells and of the base trials
        study.write(rows, text, figure, notes)

    OUT/trials.jsonl, OUT/trials.runs.jsonl         the trials of all models; stopped or killed, the same line goes on
    OUT/table.md, OUT/table.csv, OUT/figure.png, OUT/run.json

Experiments that are given one and the same `--trials` (a folder; that of `rekey probe` will do) share them: what
another one has asked already is not asked again.  With `--show` no model is asked: table and figure are made again from
the lines that are there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli import EXIT_SOME_FAILED
from experiments.options import Listed
from experiments.probe import ProbeJob, probe, report_lines, trials_file, usable_pairs
from experiments.progress import Progress, list_failures
from experiments.study import MAX_PIXELS, MODELS, OUT, PARSER, SHOW, as_command, write_results
from experiments.swap_cells import BASES
from rekey.answers import Parser
from rekey.errors import InputError
from rekey.evaluate import MAX_NEW_TOKENS, Identity, Settings, all_settings, response_files
from rekey.records import SwapPair
from rekey.trials import Cell, GradedTrial, SwapTrial, grade_all, read_trials, trial_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from probes.backends import ModelSpec
    from probes.vlm import LocalVLM

TEMPERATURE = 0.1               # Sec. 4


@dataclass
class SwapStudy:
    """One experiment's folder, pairs and models, and the way they are asked.

    pairs: None with --show.  seeds: with --show None where all that are stored are wanted.  kept_in: the folder of the
    trials, where it is not `out`.
    """

    out: Path
    pairs: Path | None
    models: tuple[ModelSpec, ...]
    settings: Settings
    seeds: tuple[int, ...] | None
    parser: Parser = "strict"
    show: bool = False
    limit: int | None = None
    pairs_at_once: int = 8
    rows_at_once: int = 32
    workers: int = 1
    kept_in: Path | None = None
    started: float = dataclasses.field(default_factory=time.time)
    n_failed: int = 0
    problems: tuple[str, ...] = ()
    """Pairs that cannot be used, a line each."""
    _loaded: tuple[ModelSpec, LocalVLM] | None = None

    @property
    def file(self) -> Path:
        """The trials of all models."""
        return trials_file(self.kept_in or self.out)

    def run(self, cells: Iterable[Cell]) -> dict[str, list[GradedTrial]]:
        """By model, the graded trials of these cells and of both base trials, of all seeds.

        Those that had nothing to do are left out; `trials` has them.
        """
        return {model: self.grade(trials) for model, trials in self.trials(cells).items()}

    def trials(self, cells: Iterable[Cell]) -> dict[str, list[SwapTrial]]:
        """As `run`, ungraded, with those that had nothing to do; what is missing is asked, unless with --show."""
        plan = tuple(dict.fromkeys((*BASES, *cells)))
        return self._stored(plan) if self.show else self._asked(plan)

    def grade(self, trials: Sequence[SwapTrial]) -> list[GradedTrial]:
        return grade_all(trials, self.parser)

    def engine(self, model: ModelSpec) -> LocalVLM:
        """The model in the probe engine, loaded once; of several models the last one is held."""
        if self._loaded is None or self._loaded[0] != model:
            from experiments.probe import engine_of
            self._loaded = None                     # free its memory before the next one is loaded
            self._loaded = model, engine_of(model)
        return self._loaded[1]

    def write(self, rows: Sequence[Sequence[Any]], text: Sequence[Sequence[str]], figure: Figure,
              notes: Sequence[str] = ()) -> None:
        """As `study.write_results`; exit 3 where pairs could not be used or trials failed."""
        settings = {"pairs": self.pairs and str(self.pairs), "models": [model.name for model in self.models],
                    "parser": self.parser, "show": self.show, "limit": self.limit, "trials": str(self.file),
                    **dataclasses.asdict(self.settings), "seed": self.seeds}
        write_results(self.out, rows, text, figure, notes, settings, self.started)
        if self.n_failed:
            click.echo(f"{self.n_failed} trials failed; the same line asks them again", err=True)
        if self.problems:
            click.echo(f"{len(self.problems)} pairs were left out, as listed above", err=True)
        if self.n_failed or self.problems:
            click.get_current_context().exit(EXIT_SOME_FAILED)

    # ------------------------------------------------------------------------------------ asking

    def _asked(self, plan: tuple[Cell, ...]) -> dict[str, list[SwapTrial]]:
        pairs, problems = usable_pairs(self.pairs, self.limit)
        if not self.problems:
            list_problems(problems)
        self.problems = tuple(problems)
        identities = {model: model.identity() for model in self.models}
        earlier = self._read_if_there()
        for identity in identities.values():        # all of them, before a model is loaded for the first
            self._check_settings(earlier, identity)
        keys = {model: keys_of(pairs, plan, identity, self.settings, self.seeds)
                for model, identity in identities.items()}
        done = {trial.key for trial in earlier if trial.error is None}
        todo = [model for model in self.models if not done.issuperset(keys[model])]
        for model in todo:
            self._ask(model, plan, len(pairs))
        by_key = {trial.key: trial for trial in (self._read_if_there() if todo else earlier)}
        return {identities[model].name: [by_key[key] for key in keys[model] if key in by_key]
                for model in self.models}

    def _ask(self, model: ModelSpec, plan: tuple[Cell, ...], n_pairs: int) -> None:
        n_seeds = f" x {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        click.echo(f"{model.name}: {n_pairs} pairs x {len(plan)} cells{n_seeds}, into {self.file}")
        job = ProbeJob(self.pairs, model, self.file, plan, self.settings, self.seeds, self.pairs_at_once,
                       self.rows_at_once, self.workers, limit=self.limit)
        with Progress("trials") as progress:
            summary = probe(job, progress, vlm=self.engine(model) if self.workers == 1 else None)
        for line in report_lines(summary):
            click.echo(f"  {line}")
        list_failures(summary.failures)
        self.n_failed += summary.n_failed

    def _check_settings(self, trials: Iterable[SwapTrial], identity: Identity) -> None:
        """Raises InputError where the model was asked in another way before: `--show` could not tell them apart."""
        mine = without_seed(all_settings(identity, self.settings))
        for trial in trials:
            theirs = without_seed(trial.settings)
            if trial.model == identity.name and theirs != mine:
                other = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
                there = ", ".join(f"{name} {theirs.get(name)} (now {mine.get(name)})" for name in other)
                raise InputError(f"{self.file}: holds trials of {trial.model} with {there}, and two ways of asking "
                                 "must not be mixed; give another --out")

    # ----------------------------------------------------------------------------------- showing

    def _stored(self, plan: tuple[Cell, ...]) -> dict[str, list[SwapTrial]]:
        """The stored trials of these cells.  Raises InputError where a model has none of one of them."""
        by_model: dict[str, list[SwapTrial]] = {}
        for trial in read_trials(self.file):
            if self.seeds is None or trial.seed in self.seeds:
                by_model.setdefault(trial.model, []).append(trial)
        if names := [Path(model.name).name for model in self.models]:
            by_model = {name: trials for name, trials in by_model.items() if Path(name).name in names}
        if not by_model:
            raise InputError(f"--show: {self.file} holds no trials of {', '.join(names) or 'these seeds'}; run the "
                             "same line with --pairs and --model")
        return {name: self._of_plan(name, trials, plan) for name, trials in by_model.items()}

    def _of_plan(self, model: str, trials: Sequence[SwapTrial], plan: tuple[Cell, ...]) -> list[SwapTrial]:
        ways = {tuple(sorted(without_seed(trial.settings).items())) for trial in trials}
        if len(ways) > 1:
            raise InputError(f"--show: {self.file} holds trials of {model} under several settings, which must not be "
                             "mixed; make them in folders of their own")
        images = {(trial.pair.pair_id, trial.pair.sha256_a, trial.pair.sha256_b) for trial in trials}
        if len(images) > len({pair_id for pair_id, *_ in images}):
            raise InputError(f"--show: {self.file} holds trials of {model} on pairs of one id with several images; "
                             "pairs that were made anew need a folder of their own")
        wanted = list(dict.fromkeys(trial.pair.pair_id for trial in trials))[:self.limit]
        seeds = {trial.seed for trial in trials}
        found = {(trial.pair.pair_id, trial.seed, trial.cell): trial for trial in trials}
        lacking = [cell for cell in plan if not any((pair, seed, cell) in found for pair in wanted for seed in seeds)]
        if lacking:
            listed = ", ".join(dict.fromkeys(cell_name(cell) for cell in lacking))
            raise InputError(f"--show: {self.file} holds no trials of {model} for {listed}; run the same line with "
                             "--pairs and --model, which asks what is missing")
        keys = [(pair, seed, cell) for pair in wanted for seed in sorted(seeds) for cell in plan]
        if n_missing := sum(key not in found for key in keys):
            click.echo(f"{model}: {n_missing} of {len(keys)} trials are not there; run the same line with --pairs and "
                       "--model to ask them", err=True)
        return [found[key] for key in keys if key in found]

    def _read_if_there(self) -> list[SwapTrial]:
        return read_trials(self.file) if response_files(self.file) else []


def keys_of(pairs: Sequence[SwapPair], plan: Sequence[Cell], identity: Identity, settings: Settings,
            seeds: Sequence[int]) -> list[str]:
    """The keys of all trials of a plan, pair by pair."""
    return [trial_key(pair, cell, identity, replace(settings, seed=seed))
            for pair in pairs for seed in seeds for cell in plan]


def without_seed(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "seed"}


def cell_name(cell: Cell) -> str:
    """A cell in a few words: what sets it apart, behind its condition."""
    words = [cell.condition]
    if cell.continues and cell.regime == "splice":
        words.append(cell.regime)
    if cell.kept != 1:
        words.append(f"{100 * cell.kept:g} % kept")
    if cell.phrase:
        words.append(f'"{cell.phrase}"')
    if cell.log_bias:
        words.append(f"steered by {cell.log_bias:g}")
    return ", ".join(words)


def list_problems(problems: Sequence[str]) -> None:
    """Pairs that cannot be used, on stderr: what is wrong with each, and what to do."""
    for problem in problems:
        click.echo(f"left out: {problem}", err=True)


# ------------------------------------------------------------------------------------------ options

_ASKING = (
    click.option("--prompt", type=click.Choice(("cot", "direct")), default="cot", show_default=True,
                 help="Ask for steps first, as a swap needs reasoning to stand in, or for the answer alone."),
    click.option("--thinking", type=click.Choice(("default", "on", "off")), default="default", show_default=True,
                 help="For models whose chat template has the switch."),
    click.option("--max-new-tokens", type=click.IntRange(min=1), default=MAX_NEW_TOKENS, show_default=True,
                 help="Of one answer, in tokens."),
    click.option("--temperature", type=click.FloatRange(min=0), default=TEMPERATURE, show_default=True,
                 help="Of sampling; 0 takes the most likely token."),
    click.option("--greedy", is_flag=True, help="As --temperature 0."),
    click.option("--seeds", type=Listed(), metavar="N,N,...", help="Every trial once with the random numbers of each.  "
                 "[default: 0; of an experiment's --show: all]"),
    MAX_PIXELS,
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N pairs: a trial.  "
                 "[default: all]"),
    click.option("--pairs-at-once", type=click.IntRange(min=1), default=8, show_default=True,
                 help="Pairs whose trials are planned together; part of what makes a run repeatable."),
    click.option("--rows-at-once", type=click.IntRange(min=1), default=32, show_default=True,
                 help="Answers that are decoded together; fewer take less memory."),
    click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True,
                 help="Processes with a model each, on GPUs in turn."),
)


def asking_options(function: Callable) -> Callable:
    """Adds the options of how trials are asked; the command gets `settings`, without a seed, and `seeds`."""

    @functools.wraps(function)
    def wrapped(prompt, thinking, max_new_tokens, temperature, greedy, seeds, **rest):
        temperature = 0.0 if greedy else temperature
        if not math.isfinite(temperature):
            raise InputError(f"--temperature: {temperature}; expected a number from 0")
        if temperature == 0 and seeds and len(seeds) > 1:
            raise InputError("--seeds: several make no difference at temperature 0; give one, or a --temperature")
        settings = Settings(prompt, {"on": True, "off": False}.get(thinking), max_new_tokens, temperature)
        return function(settings=settings, seeds=seeds, **rest)

    for option in reversed(_ASKING):
        wrapped = option(wrapped)
    return wrapped


PAIRS = click.option("--pairs", type=click.Path(path_type=Path), metavar="FILE|DIR",
                     help="Swap pairs: the folder of `rekey pairs build`, or a file in its format.")
TRIALS = click.option("--trials", "kept_in", type=click.Path(path_type=Path), metavar="DIR",
                      help="Where trials are kept: experiments that share it ask nothing twice.  [default: --out]")


def swap_experiment(name: str) -> Callable[[Callable], click.Command]:
    """Turns a function of a swap study into `python -m experiments.NAME`; the module's docstring is its help."""

    def decorate(function: Callable) -> click.Command:
        @asking_options
        @functools.wraps(function)
        def wrapped(pairs, names, out, kept_in, show, parser, settings, seeds, max_pixels, limit, pairs_at_once,
                    rows_at_once, workers, **rest):
            from probes.backends import ModelSpec
            for option, given in (("--pairs", pairs), ("--model", names)):
                if not given and not show:
                    raise InputError(f"{option}: is needed; or give --show to draw what is stored")
            models = tuple(ModelSpec(model, max_pixels=max_pixels) for model in dict.fromkeys(names))
            study = SwapStudy(out, None if show else pairs, models, settings, seeds if show else seeds or (0,), parser,
                              show, limit, pairs_at_once, rows_at_once, workers, kept_in)
            out.mkdir(parents=True, exist_ok=True)
            return function(study, **rest)

        return as_command(name, wrapped, (PAIRS, MODELS, OUT, TRIALS, SHOW, PARSER))

    return decorate
