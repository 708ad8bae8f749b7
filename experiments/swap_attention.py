"""Attention on the image before and after a phrase: the model's own, and the user's (VisualSwap, Table 5, Fig. 2, 3).

    python -m experiments.swap_attention --pairs DIR --model NAME --out runs/swap_attention
    python -m experiments.swap_attention --pairs DIR --model control:grounded --model control:anchored --out runs/tell
    python -m experiments.swap_attention --out runs/swap_attention --show

Runs the base trials, the probe and the user's turn on the same pairs, traces them (OUT/traces), and compares up to 100
tokens before and after the phrase.  Percent of the attention: the weights on all image tokens added up, mean over heads
and over the middle layers (the paper's scale, as far as it can be told).  "base": the answer about image a as it was
generated, cut where the probe puts its phrase, so that its change is what happens anyway.  Before the phrase, probe and
user's turn hold the same text as base, read again under image b.

The second part asks which scores of attention tell trials that follow the image from trials that follow their text
(OUT/separation.md): give a model that does the one and a model that does the other, as the controls are.  On those,
on one CPU core, 60 pairs take about a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.attend import AttendJob, attend, report_lines
from experiments.attention_by_length import Series, figure
from experiments.options import Listed
from experiments.progress import Progress
from experiments.swap_cells import multi_turn_cells, probe_cells
from experiments.swap_separation import WHOLE, Separation, separation, words
from experiments.swap_study import SwapStudy, list_failures, swap_experiment
from experiments.swap_windows import MEASURES, Change, Where, WindowMeans, changes, window_means
from experiments.tables import as_csv, markdown_table, p_text
from probes.trace import MIDDLE
from probes.trace_store import N_WINDOW, TrialTrace, read_header, read_trace, trace_path
from rekey import store
from rekey.errors import InputError
from rekey.stats import Estimate
from rekey.trials import GradedTrial

if TYPE_CHECKING:
    from probes.backends import ModelSpec

PROBE, (MULTI_TURN, *_) = probe_cells()[0], multi_turn_cells(histories=("kept",))
TRACES, SEPARATION = "traces", "separation"
COMPARED = (PROBE.condition, MULTI_TURN.condition)


@swap_experiment("swap_attention")
@click.option("--window", type=click.IntRange(min=1), default=N_WINDOW, show_default=True, metavar="TOKENS",
              help="On either side of the phrase.")
@click.option("--band", type=Listed(float, 0, 1), default=MIDDLE, show_default="0.5,0.6", metavar="LOW,HIGH",
              help="The layers of the table, as fractions of the depth; all others are in table.csv.")
@click.option("--layers", type=Listed(int, -1000), metavar="N,N,...",
              help="Trace only these layers; negative ones from the end.  [default: all]")
@click.option("--mean-heads", is_flag=True, help="Store the mean over heads alone; then single heads are not asked.")
def main(study: SwapStudy, window: int, band: tuple[float, ...], layers: tuple[int, ...] | None,
         mean_heads: bool) -> None:
    if len(band) != 2 or not band[0] < band[1]:
        raise InputError(f"--band {','.join(f'{share:g}' for share in band)}: expected two fractions of the depth, the "
                         "lower one first, such as 0.5,0.6")
    graded = study.run([PROBE, MULTI_TURN])
    if not study.show:
        for model in study.models:
            _trace(study, model, graded[model.identity().name], layers, not mean_heads, window)
    found = {model: read_traces(study.out / TRACES, trials, window, band) for model, trials in graded.items()}
    rows, text = tabulate(found)
    separated = separations(found)
    store.write_atomic(study.out / f"{SEPARATION}.csv", as_csv(separation_rows(separated)))
    store.write_atomic(study.out / f"{SEPARATION}.md", separation_text(separated))
    study.write(rows, text, figure({model: traced.series for model, traced in found.items()},
                                   {model: traced.where.name for model, traced in found.items()}, window),
                [*notes(window), *(f"{name}: {sentence}" for name, one in separated.items() for sentence in words(one)),
                 f"All of these scores: {SEPARATION}.md, {SEPARATION}.csv."])


def _trace(study: SwapStudy, model: ModelSpec, graded: Sequence[GradedTrial], layers: tuple[int, ...] | None,
           per_head: bool, window: int) -> None:
    keys = frozenset(one.trial.key for one in graded if one.trial.second is not None)
    job = AttendJob(study.file, model, study.out / TRACES, pairs=study.pairs, layers=layers, per_head=per_head,
                    window=window, keys=keys)
    click.echo(f"{model.name}: tracing {len(keys)} trials, into {job.out}")
    with Progress("trials") as progress:
        summary = attend(job, progress, lambda _: study.engine(model))
    for line in report_lines(summary):
        click.echo(f"  {line}")
    list_failures(summary.failures)
    study.n_failed += len(summary.failures)


# ---------------------------------------------------------------------------------- from the traces

@dataclass
class Traced:
    """What is kept of one model's traces.  where: the layers of the table and the figure."""

    where: Where
    means: list[WindowMeans] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)


def read_traces(folder: Path, graded: Iterable[GradedTrial], window: int, band: tuple[float, ...]) -> Traced:
    """Windows and lines of the trials of one model, one trace in memory at a time.

    Raises InputError where traces are missing.
    """
    graded = [one for one in graded if one.trial.second is not None]
    paths = {one.trial.key: trace_path(folder, one.trial.key) for one in graded}
    there = [one for one in graded if paths[one.trial.key].exists()]
    if not there:
        raise InputError(f"{folder}: holds no traces of these trials; run the same line with --pairs and --model, "
                         "which makes them")
    if len(there) < len(graded):
        click.echo(f"{len(graded) - len(there)} of {len(graded)} trials are not traced; run the same line with --pairs "
                   "and --model", err=True)
    cuts = {(one.trial.pair.pair_id, one.trial.seed): read_header(paths[one.trial.key])["t_phrase"] for one in there
            if one.trial.cell == PROBE}
    found: Traced | None = None
    for one in there:
        trace = read_trace(paths[one.trial.key])
        found = found or Traced(Where.band(trace, band))
        if trace.cell.continues:
            cut = None
        elif trace.cell.image == "b" or (cut := cuts.get((trace.pair_id, trace.seed))) is None:
            continue                     # nothing to lay it beside
        found.means.append(replace(window_means(trace, window, cut), follows=one.follows))
        found.series.append(series_of(trace, found.where, cut))
    if found is None or not found.means:
        raise InputError(f"{folder}: holds no traces of the probe; run the same line with --pairs and --model")
    return found


def series_of(trace: TrialTrace, where: Where, cut: int | None) -> Series:
    """Percent of the attention in some layers, by tokens from the phrase on (from `cut`, in a base trial)."""
    start = trace.t_phrase if cut is None else cut
    percent = 100 * trace.attention.scores[list(where.at)].mean((0, 1))
    return Series(trace.condition, trace.pair_id, trace.attention.query_index - start, percent,
                  trace.t_after - trace.t_phrase)


def separations(found: Mapping[str, Traced]) -> dict[str, Separation]:
    """By condition and models: models of one architecture together, and each alone that has trials of both kinds."""
    alike: dict[tuple, list[str]] = {}
    for model, traced in found.items():
        one = traced.means[0]
        alike.setdefault((one.layers, one.n_layers, one.mass.shape[2]), []).append(model)
    result: dict[str, Separation] = {}
    for condition in COMPARED:
        for models in alike.values():
            for names in (models, *([model] for model in models if len(models) > 1)):
                means = [one for name in names for one in found[name].means if one.condition == condition]
                one = separation(means, found[names[0]].where)
                if one.enough or names == models:
                    result[f"{condition}, {' + '.join(names)}"] = one
    return result


# ------------------------------------------------------------------------------------------- tables

def tabulate(found: Mapping[str, Traced]) -> tuple[list[tuple], list[tuple[str, ...]]]:
    """Rows for table.csv, which hold every layer, and rows for people, which hold the band."""
    rows: list[tuple[Any, ...]] = [
        ("model", "condition", "layers", "measure", "n_pairs", "tokens_before", "tokens_phrase", "tokens_after",
         "before", "phrase", "after", "change", "low", "high", "p", "p_holm", "before_read_again")]
    text: list[tuple[str, ...]] = [
        ("model", "condition", "layers", "measure", "pairs", "tokens", "before", "phrase", "after", "change [95 %]",
         "p", "text before")]
    for model, traced in found.items():
        whole = Where(WHOLE, tuple(range(len(traced.means[0].layers))))
        of_band = changes(traced.means, [traced.where, whole], between=(COMPARED[1], COMPARED[0]))
        by_layer = changes(traced.means, Where.each(traced.means[0]), between=(COMPARED[1], COMPARED[0]),
                           layerwise=True)
        for one in [*of_band, *by_layer]:
            rows.append((model, one.condition, one.where, one.measure, one.n, *one.tokens, one.before, one.phrase,
                         one.after, one.change.value, one.change.low, one.change.high, one.p, one.p_holm,
                         int(one.reread)))
        text += [_in_words(model, one) for one in of_band if one.where == traced.where.name]
    return rows, text


def _in_words(model: str, one: Change) -> tuple[str, ...]:
    digits = 2
    before, phrase, after = ("" if value is None else f"{value:.{digits}f}"
                             for value in (one.before, one.phrase, one.after))
    tokens = " / ".join(f"{n:.0f}" for n in one.tokens)
    under = "" if one.before is None else "read again" if one.reread else "as generated"
    return (model, one.condition, one.where, one.measure, str(one.n), tokens, before, phrase, after,
            _signed(one.change, digits), p_text(one.p), under)


def _signed(value: Estimate, digits: int) -> str:
    if value.value is None:
        return "n/a"
    shown = [f"{round(number, digits) + 0.0:+.{digits}f}" for number in (value.value, value.low, value.high)]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def notes(window: int) -> list[str]:
    return [*(f"{name}: {meaning}." for name, meaning in MEASURES.items()),
            f"Windows of up to {window} tokens; tokens: their mean number before / in / after the phrase.  Intervals: "
            "BCa bootstrap over pairs; p: sign flips over pairs, exact, two-sided; all layers are in table.csv, there "
            "with Holm's adjustment.",
            "Text before: of base as it was generated under image a; of the others the same text read again under "
            "image b, as the swap does it.  base is cut where the probe puts its phrase: its change is what comes "
            "without one."]


def separation_rows(found: Mapping[str, Separation]) -> list[tuple]:
    rows: list[tuple[Any, ...]] = [("trials", "score", "layers", "n_image", "n_text", "auc", "null_low", "null_high",
                                    "auc_before", "mean_image", "mean_text", "p", "p_adjusted", "n_scores", "differs",
                                    "separates")]
    for name, one in found.items():
        rows += [(name, score.quantity, score.where, score.n_image, score.n_text, score.auc, score.null_low,
                  score.null_high, score.auc_before, score.mean_image, score.mean_text, score.p, score.p_adjusted,
                  one.n_scores, int(score.differs), int(score.separates)) for score in one.scores]
    return rows


def separation_text(found: Mapping[str, Separation]) -> str:
    """Markdown: tables and sentences."""
    parts = ["# Which scores tell trials that follow the image from trials that follow their text?\n",
             "AUC: the chance that one of the first scores higher; 0.5 says nothing.  Null: what random halves of one "
             "kind give (95 %; of the best head, the best of as many).  Before: AUC of the same quantity over the text "
             "before the phrase, where both kinds have done the same.  Masses are shares of the attention.  p: among "
             "all scores.\n"]
    for name, one in found.items():
        parts.append(f"## {name}\n")
        if one.scores:
            table = [("score", "layers", "AUC", "null", "before", "mean, image", "mean, text", "p", "n")]
            table += [(score.quantity, score.where, f"{score.auc:.2f}", f"{score.null_low:.2f}-{score.null_high:.2f}",
                       "" if score.auc_before is None else f"{score.auc_before:.2f}", f"{score.mean_image:.3f}",
                       f"{score.mean_text:.3f}", p_text(score.p_adjusted), f"{score.n_image} + {score.n_text}")
                      for score in one.scores]
            parts.append(markdown_table(table))
        parts += [f"- {sentence}" for sentence in words(one)]
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    main()
