"""Does it matter how the model says that it looks again?  Ten phrases, casual to formal (VisualSwap, Table 6).

    python -m experiments.swap_triggers --pairs DIR --model NAME --out runs/swap_triggers
    python -m experiments.swap_triggers --pairs DIR --model NAME --out runs/swap_triggers --retention 0,25,50,75,100
    python -m experiments.swap_triggers --out runs/swap_triggers --show

The paper reads robustness from a small standard deviation over its ten phrases.  How small it should be is a matter of
chance: n answers spread by sqrt(p (1 - p) / n) alone, and less where the phrases are put to the same pairs, of which
some are always right and some never.  Both stand beside it, and a test whether any phrase differs from the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
import numpy as np

from experiments.figures import dots, line_panels
from experiments.options import Listed
from experiments.swap_cells import controls_of, probe_cells
from experiments.swap_study import SwapStudy, swap_experiment
from experiments.swap_tables import (
    HOW,
    Answers,
    Group,
    answered,
    answers_of,
    follows_text,
    groups,
    null_note,
    right,
    share,
    share_cells,
    together,
    unread,
)
from experiments.tables import estimate, p_text, percent
from probes.phrases import REFLECTIONS
from rekey.stats import Estimate, binomial_sd, mean_and_sd
from rekey.trials import Cell, GradedTrial

N_DRAWS = 5000
DRAWS_AT_ONCE = 250             # bounds the memory: (draws, pairs, phrases) numbers
TOGETHER = "all phrases"


@swap_experiment("swap_triggers")
@click.option("--retention", type=Listed(float, 0, 100), default=(100.0,), metavar="N,N,...",
              help="Shares of the reasoning's tokens that are kept, in percent; with several, the full grid.  "
              "[default: 100]")
@click.option("--phrase", "phrases", multiple=True, metavar="TEXT",
              help="A phrase of your own in place of the ten.  Repeatable.")
def main(study: SwapStudy, retention: tuple[float, ...], phrases: tuple[str, ...]) -> None:
    phrases = tuple(dict.fromkeys(phrases)) or REFLECTIONS
    kept = sorted(percent / 100 for percent in retention)
    cells = probe_cells(kept, phrases)
    graded = study.run([*cells, *controls_of(cells)])
    rows, text, drawn = tabulate(graded, kept, phrases)
    if len(kept) > 1:
        figure = line_panels({"mean and range over phrases, %": drawn}, [f"{100 * share:g} %" for share in kept],
                             "share of the reasoning that is kept")
    else:
        figure = dots(drawn, phrases)
    study.write(rows, text, figure, [
        "sd: over the phrases' accuracies, in points.  by chance, same pairs: what it is expected to be if the phrases "
        "make no difference to these pairs; one sample: of as many answers to pairs drawn anew for each phrase, "
        f"sqrt(p (1 - p) / n).  p: whether any phrase differs, by the spread of their accuracies when each pair's "
        f"answers are dealt out to the phrases at random ({N_DRAWS:,} draws; Cochran's Q has the same order), as every "
        "pair meets every phrase.  Its interval beside all phrases: bootstrap over pairs.", HOW, null_note(graded)])


def tabulate(graded: Mapping[str, Sequence[GradedTrial]], kept: Sequence[float],
             phrases: Sequence[str]) -> tuple[list[tuple], list[tuple[str, ...]], dict[str, dict[str, Estimate]]]:
    """Rows for table.csv, rows for people, and what is drawn: of one share kept the phrases, of several their means
    and ranges."""
    rows: list[tuple] = [("model", "category", "pairs", "kept", "phrase", "n", "accuracy", "low", "high",
                          "follows_text", "sd", "sd_same_pairs", "sd_one_sample", "p", "n_unparsed", "n_truncated",
                          "n_errors")]
    text: list[tuple[str, ...]] = [("model", "category", "pairs", "kept", "phrase", "n", "accuracy", "follows text",
                                    "sd", "by chance: same pairs", "one sample", "p", "unread / cut off / failed")]
    drawn: dict[str, dict[str, Estimate]] = {}
    for model, trials in graded.items():
        by_cell = answers_of(trials)
        for share_kept in kept:
            for group in groups(by_cell):
                of_phrase = {phrase: group.of(by_cell.get(Cell("reasoning", kept=share_kept, phrase=phrase), {}))
                             for phrase in phrases}
                spread = spread_of(of_phrase)
                all_phrases = together(one for answers in of_phrase.values() for of_pair in answers.values()
                                       for one in of_pair)
                for phrase, answers in (of_phrase | {TOGETHER: all_phrases}).items():
                    row, line = _row((model, group, share_kept, phrase), answers, spread)
                    rows.append(row)
                    if group.label and (group.whole or phrase == TOGETHER):
                        text.append(line)
                if group.whole:
                    values = {phrase: share(answers, right) for phrase, answers in of_phrase.items()}
                    drawn.setdefault(model, {}).update(
                        values if len(kept) == 1 else {f"{100 * share_kept:g} %": _range(values)})
    return rows, text, drawn


def _row(what: tuple[str, Group, float, str], answers: Answers,
         spread: Spread) -> tuple[tuple, tuple[str, ...]]:
    """For table.csv and for people; the spread stands behind all phrases together."""
    model, group, kept, phrase = what
    accuracy, follows, counts = share(answers, right), share(answers, follows_text), unread(answers)
    sds = (spread.sd, spread.sd_same_pairs, spread.sd_one_sample) if phrase == TOGETHER else (None,) * 3
    p = spread.p if phrase == TOGETHER else None
    row = (model, group.category, group.pairs, kept, phrase, accuracy.n, *share_cells(accuracy), follows.value, *sds, p,
           counts.n_unparsed, counts.n_truncated, counts.n_errors)
    shown = (*map(percent, sds), p_text(p)) if phrase == TOGETHER else ("",) * 4
    return row, (model, group.category, group.label, f"{100 * kept:g} %", phrase, str(accuracy.n), estimate(accuracy),
                 estimate(follows), *shown, str(counts))


def _range(values: Mapping[str, Estimate]) -> Estimate:
    """The mean of some accuracies with the smallest and largest of them."""
    known = [value.value for value in values.values() if value.value is not None]
    if not known:
        return Estimate(None, None, None, 0)
    return Estimate(float(np.mean(known)), min(known), max(known), len(known))


# ----------------------------------------------------------------------------------- how they spread

@dataclass(frozen=True)
class Spread:
    """Of the accuracies of several phrases on the same pairs.

    sd: of the accuracies (n - 1).  sd_same_pairs: expected of it if a pair's answers could be exchanged among the
    phrases; sd_one_sample: of the accuracy of as many answers to pairs drawn anew.  p: of the permutation test.
    """

    sd: float | None
    sd_same_pairs: float | None
    sd_one_sample: float | None
    p: float | None
    n: int


def spread_of(of_phrase: Mapping[str, Answers]) -> Spread:
    """On pairs and seeds that have an answer to every phrase."""
    tables = [{(pair, one.trial.seed): right(one) for pair, trials in answers.items() for one in answered(trials)}
              for answers in of_phrase.values()]
    common = sorted(set.intersection(*map(set, tables)))
    pairs = sorted({pair for pair, _ in common})
    if not pairs or len(tables) < 2:
        return Spread(None, None, None, None, len(pairs))
    index = {pair: n for n, pair in enumerate(pairs)}
    n_right, n_seeds = np.zeros((len(pairs), len(tables))), np.zeros((len(pairs), 1))
    for pair, seed in common:
        n_right[index[pair]] += [table[pair, seed] for table in tables]
        n_seeds[index[pair]] += 1
    values = n_right / n_seeds                                              # (pairs, phrases)
    accuracies = values.mean(0)
    expected = float(np.sqrt(values.var(1, ddof=1).sum())) / len(pairs)
    return Spread(mean_and_sd(list(accuracies))[1], expected, binomial_sd(float(values.mean()), len(common)),
                  spread_test(values), len(pairs))


def spread_test(values: np.ndarray, n_draws: int = N_DRAWS) -> float:
    """p of the spread of column means, (pairs, phrases), under any exchange of the numbers within a row.

    With one answer of 0 or 1 a cell this is Cochran's Q, whose denominator no exchange changes, by permutations instead
    of its chi-square limit, which is poor where few pairs differ.  The observed table counts as one of the draws, so
    that p is valid with any number of them.
    """
    rows = values[values.min(1) < values.max(1)]                            # the others are the same in any order
    if not len(rows):
        return 1.0
    rng = np.random.default_rng(0)
    observed = rows.sum(0).var() - 1e-9
    n_more = 0
    for start in range(0, n_draws, DRAWS_AT_ONCE):
        n = min(DRAWS_AT_ONCE, n_draws - start)
        dealt = rng.permuted(np.broadcast_to(rows, (n, *rows.shape)), axis=2)
        n_more += int((dealt.sum(1).var(1) >= observed).sum())
    return (n_more + 1) / (n_draws + 1)


if __name__ == "__main__":
    main()
