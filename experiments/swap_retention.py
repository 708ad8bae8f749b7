"""The less of its reasoning is left, the more does a model look?  Accuracy against the share kept (VisualSwap, Fig. 4).

    python -m experiments.swap_retention --pairs DIR --model NAME --out runs/swap_retention
    python -m experiments.swap_retention --out runs/swap_retention --show

The first 0, 25, 50, 75 and 100 % of the tokens of the reasoning about image a are kept, then comes the phrase, and the
image is b.  In the paper accuracy falls with every step, for thinking models the most (88.8 to 34.1 %).  Where nothing
is kept the model answers a new question after a phrase: that, not the base accuracy, is the line's true beginning.
Trend: a pair's slope over the ranks of the shares, its sign flipped over pairs, exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import click
import numpy as np

from experiments.figures import line_panels
from experiments.options import Listed
from experiments.swap_cells import RETENTIONS, TRIGGER, controls_of, probe_cells
from experiments.swap_study import SwapStudy, swap_experiment
from experiments.swap_tables import (
    HOW,
    ByCell,
    answered,
    answers_of,
    change,
    follows_text,
    groups,
    holm_by_group,
    null_note,
    p_with_holm,
    right,
    share,
    share_cells,
    unread,
)
from experiments.tables import estimate, points
from rekey.stats import Estimate, sign_flip_test
from rekey.trials import Cell, GradedTrial


@swap_experiment("swap_retention")
@click.option("--retention", type=Listed(float, 0, 100), default=tuple(100 * kept for kept in RETENTIONS),
              metavar="N,N,...", help="Shares of the reasoning's tokens that are kept, in percent.  "
              f"[default: {','.join(f'{100 * kept:g}' for kept in RETENTIONS)}]")
@click.option("--trigger", default=TRIGGER, show_default=True, metavar="TEXT", help="The phrase that it looks again.")
def main(study: SwapStudy, retention: tuple[float, ...], trigger: str) -> None:
    cells = probe_cells(sorted(percent / 100 for percent in retention), (trigger,))
    graded = study.run([*cells, *controls_of(cells)])
    rows, text, drawn = tabulate(graded, cells)
    note = ("change: against the smallest share kept, on the same pairs.  trend: mean over pairs of the slope over the "
            "ranks of the shares, in points a step; its p, two-sided, by sign flips of the pairs' slopes, exact: if "
            "the share made no difference, a pair's answers could as well have come in the opposite order.  In "
            "brackets: adjusted over the models (Holm).  tokens: median number kept.")
    shares = [f"{100 * cell.kept:g} %" for cell in cells]
    figure = line_panels(drawn, shares, "share of the reasoning that is kept")
    study.write(rows, text, figure, [note, HOW, null_note(graded)])


def tabulate(graded: Mapping[str, Sequence[GradedTrial]],
             cells: Sequence[Cell]) -> tuple[list[tuple], list[tuple[str, ...]],
                                             dict[str, dict[str, dict[str, Estimate]]]]:
    """Rows for table.csv, rows for people, and the panels.  cells: by the share kept, the smallest first."""
    rows: list[tuple] = [("model", "category", "pairs", "kept", "n_tokens_kept", "n", "accuracy", "low", "high",
                          "follows_text", "follows_text_low", "follows_text_high", "change", "change_low",
                          "change_high", "p", "slope", "p_trend", "p_trend_holm", "n_unparsed", "n_truncated",
                          "n_errors")]
    text: list[tuple[str, ...]] = [("model", "category", "pairs", "kept", "tokens", "n", "accuracy", "follows text",
                                    "change [95 %]", "trend", "p of trend", "unread / cut off / failed")]
    drawn: dict[str, dict[str, dict[str, Estimate]]] = {"answers by the image, %": {}, "answers by the text, %": {}}
    found = []
    for model, trials in graded.items():
        by_cell = answers_of(trials)
        found += [(model, group, by_cell, *trend({cell: group.of(by_cell.get(cell, {})) for cell in cells}, cells))
                  for group in groups(by_cell)]
    adjusted = holm_by_group([("trend" if group.whole else None, p) for _, group, _, _, p in found])
    for (model, group, by_cell, slope, p), p_holm in zip(found, adjusted):
        first = group.of(by_cell.get(cells[0], {}))
        for cell in cells:
            answers = group.of(by_cell.get(cell, {}))
            accuracy, follows, counts = share(answers, right), share(answers, follows_text), unread(answers)
            kept = [one.trial.n_kept for trials in answers.values() for one in answered(trials)]
            n_tokens = median(kept) if kept else None
            since = change(first, answers)
            last = cell == cells[-1]
            rows.append((model, group.category, group.pairs, cell.kept, n_tokens, accuracy.n, *share_cells(accuracy),
                         *share_cells(follows), *since.cells(), slope, p, p_holm, counts.n_unparsed,
                         counts.n_truncated, counts.n_errors))
            if group.label:
                text.append((model, group.category, group.label, f"{100 * cell.kept:g} %",
                             "n/a" if n_tokens is None else f"{n_tokens:g}", str(accuracy.n), estimate(accuracy),
                             estimate(follows), "" if cell == cells[0] else str(since), points(slope) if last else "",
                             p_with_holm(p, p_holm, len(graded)) if last else "", str(counts)))
            if group.whole:
                for panel, value in zip(drawn.values(), (accuracy, follows)):
                    panel.setdefault(model, {})[f"{100 * cell.kept:g} %"] = value
    return rows, text, drawn


def trend(by_cell: ByCell, cells: Sequence[Cell]) -> tuple[float | None, float | None]:
    """Mean slope of accuracy over the ranks of the shares kept, a step, and its p; on pairs answered in all cells.

    The weights -(m - 1), ..., m - 3, m - 1 change their sign when the order of the shares is turned around.  If the
    share makes no difference, both orders are as likely, so a pair's slope may take either sign.
    """
    m = len(cells)
    if m < 2:
        return None, None
    weights = np.arange(m) * 2 - (m - 1)
    slopes = []
    for pair in sorted(set.intersection(*(set(by_cell[cell]) for cell in cells))):
        seeds = [{one.trial.seed: right(one) for one in answered(by_cell[cell][pair])} for cell in cells]
        in_all = set.intersection(*map(set, seeds))
        if in_all:
            per_seed = [sum(weight * of_cell[seed] for weight, of_cell in zip(weights, seeds)) for seed in in_all]
            slopes.append((sum(per_seed), len(per_seed)))
    if not slopes:
        return None, None
    # Least squares over the ranks 0, 1, ...: sum (w / 2) y / sum (w / 2)^2.
    per_step = float(np.mean([total / n for total, n in slopes]) / 2 / (weights ** 2 / 4).sum())
    return per_step, sign_flip_test(np.array([total for total, _ in slopes], float))


if __name__ == "__main__":
    main()
