"""`rekey probe`: swap the image under a model's reasoning, and see by which image it answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from experiments.cli import EXIT_SOME_FAILED
from experiments.options import Listed, command
from experiments.progress import Progress, aligned, list_failures
from experiments.study import PARSER
from experiments.swap_cells import CONDITIONS, INSTRUCTION, named_cells
from experiments.swap_study import PAIRS, asking_options, keys_of, list_problems
from experiments.swap_tables import (
    NullCheck,
    follows_neither,
    follows_text,
    null_check,
    right,
    share,
    together,
    unread,
)
from experiments.tables import estimate
from probes.phrases import REFLECTIONS
from rekey.answers import Parser
from rekey.errors import InputError
from rekey.evaluate import Settings
from rekey.trials import Cell, GradedTrial, SwapTrial, grade_all, read_trials

REGIMES = ("recompute", "splice", "none")
MOST_LAYERS = 1000
DEFAULT_CONDITIONS = "base,probe,multi-turn,stripped"


@click.command()
@PAIRS
@click.option("--model", required=True, metavar="NAME", help="A hub id, a folder, control:NAME or tiny:FAMILY.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="The trials' folder; several models may share it.")
@click.option("--conditions", default=DEFAULT_CONDITIONS, show_default=True, metavar="NAME,...",
              help=f"What is tried: {', '.join(CONDITIONS)}.  Swaps come with their null swap (the image for itself) "
              "and with no swap.")
@click.option("--retention", type=Listed(float, 0, 100), default=(100.0,), metavar="N,N,...",
              help="probe: shares of the reasoning's tokens that are kept, in percent.  [default: 100]")
@click.option("--triggers", multiple=True, default=("3",), metavar="N,N|all|TEXT",
              help=f"What the model says to itself: numbers of the {len(REFLECTIONS)} phrases, all of them, or a text "
              "of your own.  Repeatable.  [default: 3]")
@click.option("--instruction", default=INSTRUCTION, show_default=True, metavar="TEXT",
              help="multi-turn, stripped, removed: what the user says.")
@click.option("--regime", "regimes", default="recompute", show_default=True, metavar="NAME,...",
              help=f"How the image is exchanged: {', '.join(REGIMES)} (recompute: all that follows is read again; "
              "splice: the image's keys and values alone).")
@click.option("--steer", "doses", type=Listed(float, low=-100, high=100), default=(0.0,),
              metavar="X,X,...", help="Added to the logits of image keys from the phrase on (of a base trial, from the "
              "first token it says), each a run of all conditions; 0: nothing is steered.  [default: 0]")
@click.option("--steer-layers", "layers", metavar="N-N,N", help="--steer: layers, numbered from 0.  [default: all]")
@asking_options
@PARSER
@click.option("--shard", metavar="i/n", help="Run the i-th of n parts, into a file of its own; every command that "
              "reads the trials reads the shards as well.")
@click.option("--revision", help="A commit or branch of a hub model.")
@click.option("--dtype", type=click.Choice(("auto", "bfloat16", "float16", "float32")), default="auto",
              show_default=True, help="auto: bfloat16 on a GPU, float32 on a CPU.")
@click.option("--device", "device_map", default="auto", show_default=True, metavar="auto|cpu|cuda:N",
              help="Where the model runs; auto spreads it over all GPUs.")
@click.option("--attention", type=click.Choice(("auto", "sdpa", "flash_attention_2")), default="auto",
              show_default=True, help="The attention kernel.")
@click.option("--min-pixels", type=click.IntRange(min=1), metavar="PX2",
              help="Smallest area of an image, in square pixels.  [default: the model's]")
@click.pass_context
def probe(ctx: click.Context, pairs: Path | None, model: str, out: Path, conditions: str, retention: tuple[float, ...],
          triggers: tuple[str, ...], instruction: str, regimes: str, doses: tuple[float, ...], layers: str | None,
          settings: Settings, seeds: tuple[int, ...] | None, parser: Parser, shard: str | None, limit: int | None,
          pairs_at_once: int, rows_at_once: int, workers: int, **loading) -> None:
    """Swap the image under a model's reasoning: does it look again?

    \b
    rekey pairs build --from scenes --ask color --n 20 --seed 1 --out pairs
    rekey probe --pairs pairs --model control:anchored --out runs/probe --max-new-tokens 64
    rekey probe --pairs pairs --model Qwen/Qwen3-VL-8B-Thinking --out runs/probe --retention 0,25,50,75,100 \\
                --triggers all --shard 2/8

    A model answers about image a; its answer is continued, by its own words or a user's, while it sees image b.  It
    looks again if its answer follows the image, not the text.  Stopped or killed, the same line goes on where it was;
    trials that failed are asked again.  Paper tables are made from the same trials:
    `python -m experiments.swap_main --trials DIR --show --out OUT`.
    """
    from experiments.probe import ProbeJob, report_lines, trials_file, usable_pairs
    from experiments.probe import probe as run
    from probes.backends import ModelSpec
    from rekey.store import parse_shard
    if pairs is None:
        raise InputError("--pairs: is needed; give the folder of `rekey pairs build`, or a file in its format")
    cells = steered(named_cells(words(conditions, CONDITIONS, "--conditions"), [share / 100 for share in retention],
                                phrases(triggers), instruction, words(regimes, REGIMES, "--regime")),
                    doses, layer_numbers(layers))
    spec = ModelSpec(model, **loading)
    job = ProbeJob(pairs, spec, out, cells, settings, seeds or (0,), pairs_at_once, rows_at_once, workers,
                   parse_shard(shard) if shard else None, limit)
    usable, problems = usable_pairs(pairs, limit)
    list_problems(problems)
    plan, file = job.plan(), trials_file(out)
    n_seeds = f" x {len(job.seeds)} seeds" if len(job.seeds) > 1 else ""
    click.echo(f"Probing {model}: {len(usable)} pairs x {len(plan)} cells{n_seeds}, "
               + (f"part {shard} of them, " if shard else "") + f"into {file}")
    with Progress("trials") as progress:
        summary = run(job, progress)
    for line in report_lines(summary):
        click.echo(line)
    list_failures(summary.failures)
    keys = set(keys_of(usable, plan, spec.identity(), settings, job.seeds))
    trials = [trial for trial in read_trials(file) if trial.key in keys]
    for line in outcome_lines(trials, plan, parser):
        click.echo(line)
    click.echo(f"Next:  {command('attend', '--trials', out, '--model', model, '--out', file.parent / 'traces')}\n"
               f"then   {command('plot', out)}")
    if summary.failures:
        click.echo("the same line asks failed trials again", err=True)
    if summary.failures or problems:
        ctx.exit(EXIT_SOME_FAILED)


# ------------------------------------------------------------------------------ what was asked for

def words(given: str, known: Sequence[str], option: str) -> tuple[str, ...]:
    """Names between commas, each of them known."""
    found = tuple(dict.fromkeys(word.strip() for word in given.split(",")))
    if unknown := [word for word in found if word not in known]:
        raise InputError(f"{option}: {unknown[0]!r}; expected some of {', '.join(known)}")
    return found


def phrases(given: Sequence[str]) -> tuple[str, ...]:
    """What --triggers names: numbers from 1, "all", or texts."""
    found: list[str] = []
    for one in given:
        if one == "all":
            found += REFLECTIONS
        elif one.strip() and re.fullmatch(r"[\d,\s]+", one):
            numbers = [int(number) for number in re.findall(r"\d+", one)]
            if not numbers or not all(1 <= number <= len(REFLECTIONS) for number in numbers):
                raise InputError(f"--triggers: {one!r}; expected numbers from 1 to {len(REFLECTIONS)}, all, or a text")
            found += [REFLECTIONS[number - 1] for number in numbers]
        elif one.strip():
            found.append(one)
        else:
            raise InputError("--triggers: an empty text; expected a phrase, numbers, or all")
    return tuple(dict.fromkeys(found))


def layer_numbers(given: str | None) -> tuple[int, ...]:
    """ "10-12,20" as 10, 11, 12, 20; none for all layers."""
    found: set[int] = set()
    for part in given.split(",") if given else ():
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last >= MOST_LAYERS:
            raise InputError(f"--steer-layers: {part!r}; expected numbers and ranges from 0, such as 10-20,25")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


def steered(cells: Sequence[Cell], doses: Sequence[float], layers: tuple[int, ...]) -> tuple[Cell, ...]:
    """The cells once for each dose."""
    if layers and not any(doses):
        raise InputError("--steer-layers: nothing is steered; give --steer a dose other than 0")
    return tuple(replace(cell, log_bias=dose, layers=layers if dose else ()) for dose in doses for cell in cells)


# ------------------------------------------------------------------------------------ what came of it

Row = tuple[str, str, float | None, float]         # condition, regime, share kept, dose


def row_of(cell: Cell) -> Row:
    """Cells of one row: the phrases are taken together."""
    if cell.place == "base":
        return f"base, image {cell.image}", "", None, cell.log_bias
    return cell.condition, cell.regime, cell.kept if cell.place == "reasoning" else None, cell.log_bias


def outcome_lines(trials: Sequence[SwapTrial], plan: Sequence[Cell], parser: Parser) -> list[str]:
    """A table of what answers follow, by condition; then whether null swaps were null, and what was skipped."""
    graded = grade_all(trials, parser)
    regimes = sorted({cell.regime for cell in plan if cell.continues} - {"none"})
    checks = {regime: null_check(graded, regime) for regime in regimes}
    lines = ["", aligned(outcome_table(graded, plan, checks)), "",
             *(null_line(regime, check) for regime, check in checks.items() if check.n)]
    # Of a swap and its controls one line does: what they continue is the same.
    reasons = Counter((trial.cell.condition, trial.skipped) for trial in trials
                      if trial.skipped and trial.cell.image == "b")
    return lines + [f"nothing to do in {count} trials of {condition}: {reason}"
                    for (condition, reason), count in sorted(reasons.items())]


def outcome_table(graded: Sequence[GradedTrial], plan: Sequence[Cell],
                  checks: Mapping[str, NullCheck]) -> list[list[str]]:
    """Rows for a terminal.  Null swaps that are exactly null say what no swap says, and are left out."""
    by_row: dict[Row, list[GradedTrial]] = {}
    for one in graded:
        by_row.setdefault(row_of(one.trial.cell), []).append(one)
    shown = [cell for cell in plan if row_of(cell) in by_row
             and not (cell.condition.startswith("null swap") and checks[cell.regime].exact)]
    table = [["condition", "regime", "kept", "steer", "pairs", "follows image %", "follows text %", "neither %",
              "unread / cut off / failed"]]
    for row, cell in {row_of(cell): cell for cell in shown}.items():
        answers = together(by_row[row])
        accuracy = share(answers, right)
        swapped = cell.continues and cell.image == "b"          # else image and text say the same
        table.append([row[0], row[1], "" if row[2] is None else f"{100 * row[2]:g} %", f"{row[3]:g}", str(accuracy.n),
                      estimate(accuracy), estimate(share(answers, follows_text)) if swapped else "",
                      estimate(share(answers, follows_neither)), str(unread(answers))])
    steered_at_all = any(cell.log_bias for cell in plan)
    return [line if steered_at_all else [*line[:3], *line[4:]] for line in table]


def null_line(regime: str, check: NullCheck) -> str:
    if check.exact:
        return f"null swap ({regime}): exactly null, {check} the same as no swap, token for token"
    return (f"null swap ({regime}): NOT exactly null, {check} the same as no swap, token for token, {check.n_changed} "
            "with another answer; in half precision rounding does this: take that many changed answers for noise, or "
            "give --dtype float32")
