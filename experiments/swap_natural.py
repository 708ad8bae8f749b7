"""Do models look when they say so by themselves?  How often they do, and swaps at those points (VisualSwap, Sec. 6).

    python -m experiments.swap_natural --pairs DIR --model NAME --out runs/swap
    python -m experiments.swap_natural --out runs/swap --show

A phrase that is put in might not work as one of the model's own does.  So its reasoning about image a is searched for
sentences that say that the picture is looked at again (`rekey.reflections`), and the image is exchanged behind the
first of them: nothing is put in, the model goes on from its own words.  Beside it, on the same answers: image b seen
alone, the probe with its phrase behind the whole reasoning, and the null swap.  A reasoning without such a sentence
gives a prevalence and nothing to swap at; short answers hold none, thinking models many.

Given the --out of another swap experiment, no answer is asked twice.  Also writes reflections.csv: every sentence that
was counted, to be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from experiments.figures import color_of, in_lines, plain
from experiments.swap_cells import BASES, TRIGGER, controls_of
from experiments.swap_study import SwapStudy, swap_experiment
from experiments.swap_tables import (
    HOW,
    Answers,
    Change,
    Group,
    answers_of,
    change,
    follows_text,
    groups,
    null_note,
    right,
    share,
    share_cells,
)
from experiments.tables import as_csv, estimate, p_text
from rekey import store
from rekey.reflections import Reflection, find_reflections
from rekey.stats import Estimate
from rekey.trials import Cell, GradedTrial, SwapTrial, first_texts, grade_all, kept_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NATURAL = Cell("natural")
BASE, NULL = BASES[1], controls_of([NATURAL])[1]
SENTENCES = "reflections.csv"
HEAD = ("model", "pairs", "what", "n", "value", "low", "high", "against_base", "against_base_low", "against_base_high",
        "p_base", "against_probe", "against_probe_low", "against_probe_high", "p_probe", "follows_text",
        "follows_text_low", "follows_text_high")
TEXT_HEAD = ("model", "pairs", "what", "n", "value [95 %]", "against base", "p", "against probe", "p", "follows text")
NOTHING = Change(None, None, None, None, 0)


@dataclass(frozen=True)
class Reasoning:
    """What one answer about image a reasons, and where it turns back.  n_tokens: of the reasoning."""

    trial: SwapTrial
    n_tokens: int
    text: str
    found: tuple[Reflection, ...]

    @property
    def visual(self) -> tuple[Reflection, ...]:
        return tuple(one for one in self.found if one.visual)


@swap_experiment("swap_natural")
@click.option("--trigger", default=TRIGGER, show_default=True, metavar="TEXT", help="The phrase of the probe.")
def main(study: SwapStudy, trigger: str) -> None:
    probe = Cell("reasoning", phrase=trigger)
    trials = study.trials([probe, NATURAL, *controls_of([NATURAL])])
    rows: list[tuple] = [HEAD]
    text: list[tuple[str, ...]] = [TEXT_HEAD]
    drawn: dict[str, dict[str, Estimate]] = {}
    places: dict[str, list[float]] = {}
    sentences: list[tuple] = [("model", "pair_id", "seed", "share_of_reasoning", "visual", "sentence")]
    notes = [HOW]
    swapped: dict[str, list[GradedTrial]] = {}
    for model, own in trials.items():
        graded = grade_all(own, study.parser)
        thoughts = reasonings(own, probe)
        add_rows(rows, text, model, graded, thoughts, probe)
        drawn[model] = accuracies(graded, probe)
        places[model] = [place(one, thought) for thought in thoughts.values() for one in thought.visual]
        sentences += [(model, thought.trial.pair.pair_id, thought.trial.seed, place(one, thought), int(one.visual),
                       one.text) for thought in thoughts.values() for one in thought.found]
        swapped[model] = [one for one in graded if one.trial.cell.place == "natural"]
        if not places[model]:
            notes.append(f"{model}: 0 of {len(thoughts)} answers say by themselves that the picture is looked at "
                         "again, so there was nothing to swap at.")
    if any(swapped.values()):
        notes.append(null_note(swapped))
    store.write_atomic(study.out / SENTENCES, as_csv(sentences))
    study.write(rows, text, draw(drawn, places), notes)


def reasonings(trials: Sequence[SwapTrial], probe: Cell) -> dict[str, Reasoning]:
    """By key of the first answer, the whole of R_a: what the probe's trials kept of it."""
    texts = first_texts(trials)
    found: dict[str, Reasoning] = {}
    for trial in trials:
        if trial.cell == probe and trial.first in texts:
            text = kept_text(trial, texts)
            found[trial.first] = Reasoning(trial, trial.n_kept, text, tuple(find_reflections(text)))
    return found


def place(reflection: Reflection, reasoning: Reasoning) -> float:
    """Where in the reasoning it begins, as a share of its length."""
    return reflection.start / len(reasoning.text)


def accuracies(graded: Sequence[GradedTrial], probe: Cell) -> dict[str, Estimate]:
    """Of answers whose reasoning holds a reflection of its own: base, probe and natural accuracy."""
    by_cell = answers_of(graded)
    natural = by_cell.get(NATURAL, {})
    return {name: share(beside(by_cell.get(cell, {}), natural), right)
            for name, cell in (("base", BASE), ("probe", probe), ("natural", NATURAL))}


def beside(answers: Answers, natural: Answers) -> dict[str, Sequence[GradedTrial]]:
    """The answers of pairs and seeds that have a natural swap."""
    seeds = {pair: {one.trial.seed for one in trials} for pair, trials in natural.items()}
    return {pair: [one for one in answers[pair] if one.trial.seed in seeds[pair]]
            for pair in answers.keys() & seeds.keys()}


def add_rows(rows: list[tuple], text: list[tuple[str, ...]], model: str, graded: Sequence[GradedTrial],
             thoughts: Mapping[str, Reasoning], probe: Cell) -> None:
    by_cell = answers_of(graded)

    def add(group: Group, what: str, value: Estimate, shown: str, against_base: Change = NOTHING,
            against_probe: Change = NOTHING, follows: Estimate | None = None) -> None:
        follows = follows or Estimate(None, None, None, 0)
        rows.append((model, group.pairs, what, value.n, *share_cells(value), *against_base.cells(),
                     *against_probe.cells(), *share_cells(follows)))
        compared = [cell for one in (against_base, against_probe)
                    for cell in ((str(one), p_text(one.p)) if one.n else ("", ""))]
        text.append((model, group.pairs, what, str(value.n), shown, *compared,
                     estimate(follows) if follows.n else ""))

    for group in groups(by_cell, categories=False):
        probed, natural = (group.of(by_cell.get(cell, {})) for cell in (probe, NATURAL))
        if group.whole:
            for what, visual in (("answers with a visual reflection", True), ("answers with any reflection", False)):
                value = share(probed, lambda one, visual=visual: reflects(thoughts.get(one.trial.first), visual))
                add(group, what, value, estimate(value))
            for what, value in rates(list(thoughts.values())).items():
                add(group, what, value, "n/a" if value.value is None else f"{value.value:.2f}")
            value = first_place(list(thoughts.values()))
            add(group, "first visual one, % of the reasoning: median [quartiles]", value, estimate(value))
        elif not natural:
            continue
        base, probed = (beside(answers, natural) for answers in (group.of(by_cell.get(BASE, {})), probed))
        value = share(base, right)
        add(group, "accuracy there, base", value, estimate(value))
        value = share(probed, right)
        add(group, "accuracy there, probe", value, estimate(value), change(base, probed),
            follows=share(probed, follows_text))
        value = share(natural, right)
        add(group, "accuracy there, natural", value, estimate(value), change(base, natural), change(probed, natural),
            share(natural, follows_text))
        value = share(group.of(by_cell.get(NULL, {})), right)
        add(group, "image a kept (null swap), natural", value, estimate(value))


def reflects(reasoning: Reasoning | None, visual: bool) -> bool:
    return reasoning is not None and bool(reasoning.visual if visual else reasoning.found)


def rates(thoughts: Sequence[Reasoning]) -> dict[str, Estimate]:
    """How often answers reflect for their length; n: answers."""
    n_tokens = sum(one.n_tokens for one in thoughts)

    def per_thousand(n: int) -> Estimate:
        return Estimate(1000 * n / n_tokens if n_tokens else None, None, None, len(thoughts))

    return {"visual reflections per 1,000 tokens": per_thousand(sum(len(one.visual) for one in thoughts)),
            "reflections per 1,000 tokens": per_thousand(sum(len(one.found) for one in thoughts))}


def first_place(thoughts: Sequence[Reasoning]) -> Estimate:
    """Where the first visual reflection of an answer begins: median and, in place of an interval, quartiles."""
    first = [place(one.visual[0], one) for one in thoughts if one.visual]
    if not first:
        return Estimate(None, None, None, 0)
    low, middle, high = (float(value) for value in np.quantile(first, (0.25, 0.5, 0.75)))
    return Estimate(middle, low, high, len(first))


def draw(drawn: Mapping[str, Mapping[str, Estimate]], places: Mapping[str, Sequence[float]]) -> Figure:
    """Accuracy of base, probe and natural swap on the same answers; where in the reasoning the reflections stand."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(4.6 + 1.1 * len(drawn), 3.2), dpi=150, layout="constrained")
    left, right_ = figure.subplots(1, 2, width_ratios=[1 + len(drawn), 2.6])
    draw_accuracies(left, drawn)
    edges = np.linspace(0, 1, 11)
    n_most = 1
    for number, (model, where) in enumerate(places.items()):
        counts, _ = np.histogram(where, edges)
        n_most = max(n_most, int(counts.max()))
        right_.stairs(counts, 100 * edges, color=color_of(model, number), linewidth=1.5,
                      linestyle=("-", "--", ":", "-.")[number % 4], label=f"{model}, n={len(where)}")
    right_.set_ylim(0, 1.1 * n_most)
    right_.set_xlabel("place in the reasoning, %", fontsize=8)
    right_.set_ylabel("visual reflections", fontsize=8)
    right_.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    plain(right_)
    return figure


def draw_accuracies(axis: Axes, drawn: Mapping[str, Mapping[str, Estimate]]) -> None:
    looks: dict[str, dict[str, Any]] = {"base": {"color": "#1f4e79"}, "probe": {"color": "#c8501e"},
                                        "natural": {"color": "#e8b48f", "hatch": "///", "edgecolor": "white"}}
    for row, values in enumerate(drawn.values()):
        for number, (name, value) in enumerate(values.items()):
            at = row + 0.27 * (number - 1)
            if value.value is None:
                continue
            axis.bar(at, 100 * value.value, 0.25, **looks[name])
            axis.plot([at, at], [100 * value.low, 100 * value.high], color="#222222", linewidth=1)
        if values["natural"].value is None:
            axis.text(row, 3, "no reflection\nof its own", ha="center", fontsize=7, color="#555555")
    for name, look in looks.items():
        axis.bar([0], [0], label=name, **look)
    axis.set_xticks(range(len(drawn)), [f"{in_lines(name)}\nn={values['natural'].n}" for name, values in drawn.items()])
    axis.set_xlim(-0.6, len(drawn) - 0.4)
    axis.set_ylim(0, 105)
    axis.set_ylabel("accuracy by image b, %", fontsize=8)
    axis.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    plain(axis)


if __name__ == "__main__":
    main()
