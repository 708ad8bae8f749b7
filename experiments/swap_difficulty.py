"""Are the two images of a pair equally hard when each is seen alone?  (VisualSwap, Table 3.)

    python -m experiments.swap_difficulty --pairs DIR --model NAME --out runs/swap_difficulty
    python -m experiments.swap_difficulty --out runs/swap_difficulty --show --margin 5

If image b were the harder one, a lower accuracy after a swap would say nothing about looking.  The paper finds gaps of
0.1 to 6.3 points.  A p above 0.05 is no evidence that there is none (few pairs suffice for that): equally hard are
called images whose gap's whole interval lies within a margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from experiments.figures import bars
from experiments.swap_cells import BASES
from experiments.swap_study import SwapStudy, swap_experiment
from experiments.swap_tables import HOW, Change, answers_of, change, groups, right, share, share_cells, unread
from experiments.tables import estimate, p_text
from rekey.stats import Estimate
from rekey.trials import GradedTrial

MARGIN_PP = 5.0


@swap_experiment("swap_difficulty")
@click.option("--margin", type=click.FloatRange(min=0, min_open=True), default=MARGIN_PP, show_default=True,
              help="The largest gap that may count as none, in percentage points.")
def main(study: SwapStudy, margin: float) -> None:
    graded = study.run(BASES)
    rows, text, drawn = tabulate(graded, margin / 100)
    note = (f"gap: image b minus image a.  Equally hard: yes where its 95 % interval lies within ±{margin:g} points, "
            "no where it lies outside of them, else not known: more pairs are needed.  It takes about 75 pairs without "
            "a single difference to show a gap below 5 points.")
    study.write(rows, text, bars(drawn), [note, HOW])


def tabulate(graded: Mapping[str, Sequence[GradedTrial]],
             margin: float) -> tuple[list[tuple], list[tuple[str, ...]], dict[str, dict[str, Estimate]]]:
    """Rows for table.csv, rows for people, and the bars.  margin: a fraction."""
    rows: list[tuple] = [("model", "category", "n", "base_a", "base_a_low", "base_a_high", "base_b", "base_b_low",
                          "base_b_high", "gap", "gap_low", "gap_high", "p", "equally_hard", "n_valid", "n_unparsed",
                          "n_truncated", "n_errors")]
    text: list[tuple[str, ...]] = [("model", "category", "n", "base, image a", "base, image b", "gap [95 %]", "p",
                                    "equally hard", "valid pairs", "unread / cut off / failed")]
    drawn: dict[str, dict[str, Estimate]] = {}
    for model, trials in graded.items():
        by_cell = answers_of(trials)
        all_groups = groups(by_cell)
        # On valid pairs both are right by definition: they are counted, a gap of theirs would be 0.
        for group, valid in zip(all_groups[::2], all_groups[1::2]):
            a, b = (group.of(by_cell.get(cell, {})) for cell in BASES)
            gap, counts = change(a, b), unread(a, b)
            verdict = equally_hard(gap, margin)
            rows.append((model, group.category, gap.n, *share_cells(share(a, right)), *share_cells(share(b, right)),
                         *gap.cells(), verdict, len(valid.ids), counts.n_unparsed, counts.n_truncated,
                         counts.n_errors))
            text.append((model, group.category, str(gap.n), estimate(share(a, right)), estimate(share(b, right)),
                         str(gap), p_text(gap.p), verdict, str(len(valid.ids)), str(counts)))
            if group.whole:
                drawn[model] = {"image a": share(a, right), "image b": share(b, right)}
    return rows, text, drawn


def equally_hard(gap: Change, margin: float) -> str:
    """ "yes", "no" or "not known", by where the interval lies."""
    if gap.low is None:
        return "n/a"
    if -margin <= gap.low and gap.high <= margin:
        return "yes"
    return "no" if gap.low > margin or gap.high < -margin else "not known"


if __name__ == "__main__":
    main()
