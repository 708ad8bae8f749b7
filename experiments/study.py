"""What the experiments share: ask models under several conditions, keep the lines, write a table and a figure.

    @experiment("relabel_gap")
    @ORIGINAL
    @RELABEL
    def main(study: Study, original: Path | None, relabel: Path | None) -> None:
        files = study.ask(benchmarks(study, original, relabel))
        study.write(rows, text, figure)

    OUT/responses/original.jsonl ...    the lines, of all models; stopped or killed, the same command goes on
    OUT/table.md, OUT/table.csv, OUT/figure.png, OUT/run.json

With `--show` no model is asked: table and figure are made again from the lines that are there.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli import EXIT_SOME_FAILED, ReportedErrors
from experiments.figures import save
from experiments.progress import Progress, aligned
from experiments.tables import as_csv, markdown_table
from rekey import store
from rekey.answers import PARSERS, Parser
from rekey.audit import Audit, audit
from rekey.errors import InputError
from rekey.evaluate import MAX_NEW_TOKENS, Settings
from rekey.prompts import PromptStyle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from probes.backends import ModelSpec

RESPONSES, TABLE, FIGURE = "responses", "table", "figure.png"
CONDITIONS = ("original", "relabel", "renewed")


class Command(ReportedErrors, click.Command):
    """An experiment's command: errors as those of `rekey`."""


@dataclass(frozen=True)
class Ask:
    """One benchmark, and how it is put.  items: its folder, None with --show.  no_thinking: where there is a switch."""

    items: Path | None
    prompt: PromptStyle = "direct"
    no_thinking: bool = False
    zoom_steps: int | None = None


@dataclass
class Study:
    """One experiment's folder, models, and way to ask."""

    out: Path
    models: tuple[ModelSpec, ...]
    settings: Settings
    parser: Parser
    show: bool
    batch_size: int
    workers: int
    started: float = dataclasses.field(default_factory=time.time)
    n_failed: int = 0

    def path(self, condition: str) -> Path:
        return self.out / RESPONSES / f"{condition}.jsonl"

    def ask(self, asks: Mapping[str, Ask]) -> dict[str, Path]:
        """The file of responses to each benchmark by name; every model answers what it has not answered yet.

        With --show nothing is asked, and all files must be there.  A model is loaded once, when it is needed.
        """
        paths = {name: self.path(name) for name in asks}
        if self.show:
            missing = [str(path) for path in paths.values() if not path.exists()]
            if missing:
                raise InputError(f"--show: {', '.join(missing)} not there; run the same line with models and items")
            return paths
        from experiments.evaluate import read_benchmark
        for one in asks.values():               # all of them, before a model is loaded for the first
            read_benchmark(one.items)
        for model in self.models:
            for zoom_steps, group in itertools.groupby(asks.items(), lambda pair: pair[1].zoom_steps):
                self._ask_one(replace(model, zoom_steps=zoom_steps), dict(group))
        return paths

    def _ask_one(self, model: ModelSpec, asks: Mapping[str, Ask]) -> None:
        from experiments.evaluate import EvaluateJob, evaluate, report_lines
        from probes.backends import LoadedWhenAsked
        vlm = LoadedWhenAsked(model) if self.workers == 1 or model.backend != "hf" else None
        for name, one in asks.items():
            thinking = False if one.no_thinking and model.has_thinking_switch() else None
            settings = replace(self.settings, prompt=one.prompt, thinking=thinking)
            click.echo(f"{model.name}, {name}")
            with Progress("questions") as progress:
                summary = evaluate(EvaluateJob(one.items, model, self.path(name), settings, self.batch_size,
                                               self.workers), progress, vlm=vlm)
            for line in report_lines(summary):
                click.echo(f"  {line}")
            self.n_failed += len(summary.failures)

    def stored(self, name: str) -> bool:
        """Whether responses of that name are there."""
        return self.path(name).exists()

    def stored_numbers(self, name: str) -> list[int]:
        """Numbers n of the responses "name-n.jsonl" that are there."""
        found = (path.stem.removeprefix(f"{name}-") for path in (self.out / RESPONSES).glob(f"{name}-*.jsonl"))
        return sorted(int(number) for number in found if number.isdecimal())

    def write(self, rows: Sequence[Sequence[Any]], text: Sequence[Sequence[str]], figure: Figure,
              notes: Sequence[str] = ()) -> None:
        """As `write_results`; exit 3 where questions failed."""
        settings = {"models": [model.name for model in self.models], "parser": self.parser, "show": self.show,
                    **dataclasses.asdict(self.settings)}
        write_results(self.out, rows, text, figure, notes, settings, self.started)
        if self.n_failed:
            click.echo(f"{self.n_failed} questions failed; the same line asks them again", err=True)
            click.get_current_context().exit(EXIT_SOME_FAILED)


def write_results(out: Path, rows: Sequence[Sequence[Any]], text: Sequence[Sequence[str]], figure: Figure,
                  notes: Sequence[str], settings: Mapping[str, Any], started: float) -> None:
    """An experiment's table and figure, and what it prints.

    rows: numbers for table.csv, head first.  text: the same for people, table.md and the terminal.  settings, started:
    for run.json.
    """
    store.write_atomic(out / f"{TABLE}.csv", as_csv(rows))
    store.write_atomic(out / f"{TABLE}.md", markdown_table(text) + "".join(f"\n{note}\n" for note in notes))
    save(figure, out / FIGURE)
    store.write_json(out / "run.json", store.run_manifest(dict(settings), started))
    click.echo("\n" + aligned(text))
    for note in notes:
        click.echo(note)
    click.echo(f"\n{out / TABLE}.md, {out / TABLE}.csv, {out / FIGURE}")


# What every kind of study is asked with.
MODELS = click.option("--model", "names", multiple=True, metavar="NAME", help="A model to ask, as for `rekey "
                      "evaluate`.  Repeatable.")
OUT = click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The study's folder.")
SHOW = click.option("--show", is_flag=True, help="Ask nothing; table and figure anew from the stored lines.")
PARSER = click.option("--parser", type=click.Choice(PARSERS), default="strict", show_default=True,
                      help="How answers are read: strict, or as the papers do.")
MAX_PIXELS = click.option("--max-pixels", type=click.IntRange(min=1), metavar="PX2",
                          help="Largest area of an image, in square pixels.  [default: the model's]")


_OPTIONS = (
    MODELS,
    OUT,
    SHOW,
    PARSER,
    click.option("--backend", type=click.Choice(("hf", "vllm", "openai")), default="hf", show_default=True),
    click.option("--base-url", metavar="URL", help="openai: the server."),
    click.option("--processor", metavar="NAME", help="openai: the model's files here."),
    MAX_PIXELS,
    click.option("--max-new-tokens", "n_tokens", type=click.IntRange(min=1), help="[default: what the paper gives]"),
    click.option("--batch-size", type=click.IntRange(min=1), default=1, show_default=True),
    click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True),
)


def experiment(name: str, max_new_tokens: int = MAX_NEW_TOKENS) -> Callable[[Callable], click.Command]:
    """Turns a function of a study into `python -m experiments.NAME`; the module's docstring is its help."""

    def decorate(function: Callable) -> click.Command:
        @functools.wraps(function)
        def wrapped(names, out, show, parser, backend, base_url, processor, max_pixels, n_tokens, batch_size, workers,
                    **rest):
            from probes.backends import ModelSpec
            if not names and not show:
                raise InputError("--model: name at least one model, or give --show to draw what is stored")
            models = tuple(ModelSpec(model, backend, max_pixels=max_pixels, base_url=base_url, processor=processor)
                           for model in names)
            for model in models:
                model.check()
            settings = Settings(max_new_tokens=n_tokens or max_new_tokens)
            study = Study(out, models, settings, parser, show, batch_size, workers)
            out.mkdir(parents=True, exist_ok=True)
            return function(study, **rest)

        return as_command(name, wrapped, _OPTIONS)

    return decorate


def as_command(name: str, function: Callable, options: Sequence[Callable]) -> click.Command:
    """A function with options as a command, whose help is the docstring of the module it stands in."""
    text = inspect.unwrap(function).__globals__["__doc__"].replace("\n\n    ", "\n\n\b\n    ")      # \b: as they stand
    for option in reversed(options):
        function = option(function)
    return click.command(name, cls=Command, help=text,
                         context_settings={"help_option_names": ["-h", "--help"]})(function)


def condition(name: str, text: str, multiple: bool = False) -> Callable:
    """An option for a benchmark's folder."""
    return click.option(f"--{name}", type=click.Path(path_type=Path), multiple=multiple, metavar="DIR",
                        help=text + ("  Repeatable." if multiple else ""))


ORIGINAL = condition("original", "The original benchmark.")
RELABEL = condition("relabel", "New questions on the original images.")
RENEWED = condition("renewed", "A renewed benchmark: one seed.", multiple=True)


def benchmarks(study: Study, original: Path | None, relabel: Path | None = None,
               renewed: Sequence[Path] = (), ways: Mapping[str, dict[str, Any]] | None = None) -> dict[str, Ask]:
    """The given benchmarks, or with --show those that are stored: "original", "relabel", "renewed-1", ...

    ways: each benchmark is asked in all of them, "original-cot".
    """
    ways = {f"-{name}": way for name, way in ways.items()} if ways else {"": {}}
    asks: dict[str, Ask] = {}
    for way, how in ways.items():
        for name, items in (("original", original), ("relabel", relabel)):
            if items is not None or study.show and study.stored(name + way):
                asks[name + way] = Ask(items, **how)
        numbers = study.stored_numbers(f"renewed{way}") if study.show else range(1, len(renewed) + 1)
        for number in numbers:
            asks[f"renewed{way}-{number}"] = Ask(None if study.show else renewed[number - 1], **how)
    if not asks:
        raise InputError("no benchmark: give --original, --relabel or --renewed, or --show where responses are stored")
    return asks


def audited(study: Study, original: Path | None, renewed: Sequence[Path], relabel: Path | None = None) -> Audit:
    """The audit of the study's models on these benchmarks, which are asked first."""
    asks = benchmarks(study, original, relabel, renewed)
    need(asks, "original", "renewed")
    files = study.ask(asks)
    return audit(of_name(files, "original"), of_name(files, "renewed"), of_name(files, "relabel"), study.parser)


def need(asks: Mapping[str, Any], *names: str) -> None:
    """Raises InputError where an experiment lacks one of its benchmarks."""
    for name in names:
        if not any(key == name or key.startswith(f"{name}-") for key in asks):
            raise InputError(f"--{name}: is needed by this experiment; give the benchmark's folder, or --show where "
                             "its responses are stored")


def of_name(files: Mapping[str, Path], name: str) -> list[Path]:
    """The files of a benchmark: one, or of "renewed" one per seed."""
    return [path for key, path in files.items() if key == name or key.removeprefix(f"{name}-").isdecimal()]
