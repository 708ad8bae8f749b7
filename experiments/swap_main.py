"""Does a model see the image that it says it checks?  Base against probe accuracy (VisualSwap, Table 2).

    python -m experiments.swap_main --pairs DIR --model NAME --model NAME --out runs/swap_main
    python -m experiments.swap_main --pairs DIR --model NAME --out runs/swap_main --regimes recompute,splice
    python -m experiments.swap_main --out runs/swap_main --show

A model reasons about image a; the image becomes image b, a phrase that it looks again is put behind its reasoning, and
it goes on.  Base: the right answer to image b when it is seen alone.  The paper reports drops of 18 to 60 points.
Regimes: recompute reads the whole text again under image b; splice exchanges the image's keys and values alone, so that
the text still remembers image a.  The null swap, image a for itself, is run with every swap: it must change no token.
The answers that follow the text tell blindness from confusion: a model that does not look gives the answer of image a.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from experiments.figures import bars
from experiments.swap_cells import TRIGGER, controls_of
from experiments.swap_study import SwapStudy, swap_experiment
from experiments.swap_tables import (
    HOW,
    answers_of,
    change,
    follows_neither,
    follows_text,
    groups,
    holm_by_group,
    null_check,
    null_note,
    p_with_holm,
    right,
    share,
    share_cells,
    unread,
)
from experiments.tables import estimate
from rekey.errors import InputError
from rekey.stats import Estimate
from rekey.trials import Cell, GradedTrial

BASE = Cell("base", image="b")
REGIMES = ("recompute", "splice")


@swap_experiment("swap_main")
@click.option("--regimes", default="recompute", show_default=True, metavar="NAME,...",
              help=f"How the image is exchanged: {' and/or '.join(REGIMES)}.")
@click.option("--trigger", default=TRIGGER, show_default=True, metavar="TEXT", help="The phrase that it looks again.")
def main(study: SwapStudy, regimes: str, trigger: str) -> None:
    names = tuple(dict.fromkeys(regimes.split(",")))
    if unknown := [name for name in names if name not in REGIMES]:
        raise InputError(f"--regimes: {unknown[0]!r}; expected {' or '.join(REGIMES)} (no swap is always run beside)")
    probes = {name: Cell("reasoning", regime=name, phrase=trigger) for name in names}
    graded = study.run([*probes.values(), *controls_of(tuple(probes.values()))])
    rows, text, drawn = tabulate(graded, probes)
    study.write(rows, text, bars(drawn, "share of pairs, %"), [HOW, null_note(graded, names)])


def tabulate(graded: Mapping[str, Sequence[GradedTrial]],
             probes: Mapping[str, Cell]) -> tuple[list[tuple], list[tuple[str, ...]], dict[str, dict[str, Estimate]]]:
    """Rows for table.csv, rows for people, and the bars.  probes: by name of the regime."""
    rows: list[tuple] = [("model", "regime", "category", "pairs", "n", "base_b", "base_b_low", "base_b_high", "probe",
                          "probe_low", "probe_high", "change", "change_low", "change_high", "p", "p_holm",
                          "follows_text", "follows_text_low", "follows_text_high", "neither", "n_unparsed",
                          "n_truncated", "n_errors", "null_identical", "null_n")]
    text: list[tuple[str, ...]] = [("model", "regime", "category", "pairs", "n", "base", "probe", "change [95 %]",
                                    "p (Holm)", "follows text", "null swap", "unread / cut off / failed")]
    drawn: dict[str, dict[str, Estimate]] = {}
    found = []
    for model, trials in graded.items():
        by_cell = answers_of(trials)
        for regime, cell in probes.items():
            check = null_check(trials, regime)
            for group in groups(by_cell):
                base, probe = group.of(by_cell.get(BASE, {})), group.of(by_cell.get(cell, {}))
                found.append((model, regime, group, base, probe, change(base, probe), check))
    adjusted = holm_by_group([(regime if group.whole else None, drop.p)
                              for _, regime, group, _, _, drop, _ in found])
    for (model, regime, group, base, probe, drop, check), p_holm in zip(found, adjusted):
        accuracies = share(base, right), share(probe, right)
        follows = share(probe, follows_text)
        counts = unread(base, probe)
        rows.append((model, regime, group.category, group.pairs, drop.n, *share_cells(accuracies[0]),
                     *share_cells(accuracies[1]), *drop.cells(), p_holm, *share_cells(follows),
                     share(probe, follows_neither).value, counts.n_unparsed, counts.n_truncated, counts.n_errors,
                     check.n_identical, check.n))
        if group.label:
            text.append((model, regime, group.category, group.label, str(drop.n), *map(estimate, accuracies), str(drop),
                         p_with_holm(drop.p, p_holm, len(graded)), estimate(follows), str(check), str(counts)))
        if group.whole:
            name = model if len(probes) == 1 else f"{model}, {regime}"
            drawn[name] = {"base": accuracies[0], "probe": accuracies[1], "probe follows text": follows}
    return rows, text, drawn



if __name__ == "__main__":
    main()
