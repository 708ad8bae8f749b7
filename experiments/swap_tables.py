"""Statistics that the tables of the swap experiments share (VisualSwap, Sec. 2 and 5).

    by_cell = answers_of(graded)                    # cell -> pair -> its graded trials, one per seed
    share(by_cell[cell], right)                     # accuracy over pairs, with interval
    change(by_cell[before], by_cell[after])         # on the pairs of both: difference, interval, exact p, n
    for group in groups(by_cell): ...               # all pairs and each category; each also of valid pairs alone

The unit is the pair: seeds of one pair are averaged first and stay together in tests and intervals.  Answers that
failed leave the denominator; those that could not be read or were cut off stay in it as not right.  A pair is valid
where the model answers both of its images right when it sees them alone: only there does an answer that follows the
text tell that it did not look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from experiments.swap_cells import BASES
from experiments.tables import interval, p_text, points
from rekey.stats import LEVEL, Estimate, bootstrap_mean, holm, proportion, sign_flip_test
from rekey.trials import Cell, GradedTrial, SwapTrial

Answers = Mapping[str, Sequence[GradedTrial]]       # pair id -> one per seed, errors left out
ByCell = Mapping[Cell, Answers]
Property = Callable[[GradedTrial], bool]
ALL, VALID = "all", "valid"
HOW = ("n: pairs.  [...]: 95 %, of one answer a pair Wilson's, else bootstrap over pairs (BCa), as for changes; where "
       "all pairs change alike, Tango's score interval.  p: sign flips over pairs, exact, two-sided (with one answer a "
       "pair McNemar's test).  valid: pairs of which both images are answered right when seen alone.  Failed answers "
       "are left out; those unread or cut off count as not right.")


def right(graded: GradedTrial) -> bool:
    """By the image that is seen in the end; with image b after a swap: the answer follows the image."""
    return graded.outcome == "correct"


def follows_text(graded: GradedTrial) -> bool:
    """After a swap: the answer is that of image a, which the text before it was about."""
    return graded.follows == "text"


def follows_neither(graded: GradedTrial) -> bool:
    return graded.follows == "neither"


def answers_of(graded: Iterable[GradedTrial]) -> dict[Cell, dict[str, list[GradedTrial]]]:
    """By cell and pair, in order of the seeds; trials that failed are among them."""
    found: dict[Cell, dict[str, list[GradedTrial]]] = {}
    for one in sorted(graded, key=lambda one: one.trial.seed):
        found.setdefault(one.trial.cell, {}).setdefault(one.trial.pair.pair_id, []).append(one)
    return found


def together(graded: Iterable[GradedTrial]) -> dict[str, list[GradedTrial]]:
    """Answers in several cells as those of one."""
    found: dict[str, list[GradedTrial]] = {}
    for one in graded:
        found.setdefault(one.trial.pair.pair_id, []).append(one)
    return found


# ---------------------------------------------------------------------------------- which pairs

@dataclass(frozen=True)
class Group:
    """Pairs that a row of a table is about.

    category: "all", or the pairs' own; pairs: "all" or "valid".  n_all, n_valid: pairs of either kind in the category.
    """

    category: str
    pairs: str
    ids: frozenset[str]
    n_all: int
    n_valid: int

    def of(self, answers: Answers) -> dict[str, Sequence[GradedTrial]]:
        return {pair: trials for pair, trials in answers.items() if pair in self.ids}

    @property
    def label(self) -> str:
        """In a table for people, where one row does if all pairs are valid, or none is; "" for the other one."""
        if 0 < self.n_valid < self.n_all:
            return self.pairs
        return "" if self.pairs == VALID else "all, valid" if self.n_valid else "all, none valid"

    @property
    def whole(self) -> bool:
        """Whether it holds all pairs: what is compared over models."""
        return self.category == self.pairs == ALL


def valid_pairs(by_cell: ByCell) -> frozenset[str]:
    """Pairs of which both images are answered right when seen alone, with every seed."""
    bases = [by_cell.get(cell, {}) for cell in BASES]
    return frozenset(pair for pair in bases[0].keys() & bases[1].keys()
                     if all(right(one) for base in bases for one in base[pair]))


def groups(by_cell: ByCell, categories: bool = True) -> list[Group]:
    """All pairs, then those of each category where there are several; of each the valid ones as well."""
    category_of = {pair: trials[0].trial.pair.category for answers in by_cell.values()
                   for pair, trials in answers.items()}
    valid = valid_pairs(by_cell)
    named = {ALL: frozenset(category_of)}
    names = sorted({name or "none" for name in category_of.values()})
    if categories and len(names) > 1:
        named |= {name: frozenset(pair for pair, own in category_of.items() if (own or "none") == name)
                  for name in names}
    return [Group(name, pairs, chosen, len(ids), len(ids & valid)) for name, ids in named.items()
            for pairs, chosen in ((ALL, ids), (VALID, ids & valid))]


# --------------------------------------------------------------------------------- shares, changes

def answered(trials: Iterable[GradedTrial]) -> list[GradedTrial]:
    """Without those that failed."""
    return [one for one in trials if one.outcome != "error"]


def share(answers: Answers, what: Property) -> Estimate:
    """Mean over pairs of how often something holds of a pair's answers.  n: pairs with an answer.

    Interval: Wilson's where every pair has one answer, else bootstrap over pairs.
    """
    by_pair = [[what(one) for one in kept] for trials in answers.values() if (kept := answered(trials))]
    if all(len(values) == 1 for values in by_pair):
        return proportion(sum(values[0] for values in by_pair), len(by_pair))
    found = bootstrap_mean(np.array([np.mean(values) for values in by_pair]), np.random.default_rng(0))
    # Of equal values the bootstrap has no width, however few they are.
    return found if found.low != found.high else proportion(found.value * found.n, found.n)


@dataclass(frozen=True)
class Unread:
    """Answers, not pairs, that say nothing, were cut off, or failed."""

    n_unparsed: int
    n_truncated: int
    n_errors: int

    def __str__(self) -> str:
        return f"{self.n_unparsed} / {self.n_truncated} / {self.n_errors}"


def unread(*several: Answers) -> Unread:
    outcomes = [one.outcome for answers in several for trials in answers.values() for one in trials]
    return Unread(*(outcomes.count(name) for name in ("unparsed", "truncated", "error")))


@dataclass(frozen=True)
class Change:
    """From one cell to another on the same pairs.  value, low, high: of accuracy; p: None without a pair."""

    value: float | None
    low: float | None
    high: float | None
    p: float | None
    n: int

    def __str__(self) -> str:
        return points(self.value) + interval(self.low, self.high, points)

    def cells(self) -> tuple[float | None, ...]:
        """As columns of a table.csv: value, low, high, p."""
        return self.value, self.low, self.high, self.p


def differences(before: Answers, after: Answers, what: Property = right) -> dict[str, list[int]]:
    """By pair, after minus before, of each seed that has an answer in both."""
    found: dict[str, list[int]] = {}
    for pair in sorted(before.keys() & after.keys()):
        of_seed = {one.trial.seed: what(one) for one in answered(before[pair])}
        pairs = [what(one) - of_seed[one.trial.seed] for one in answered(after[pair]) if one.trial.seed in of_seed]
        if pairs:
            found[pair] = pairs
    return found


def change(before: Answers, after: Answers, what: Property = right) -> Change:
    """Paired over pairs; all seeds of a pair stay together."""
    by_pair = differences(before, after, what)
    if not by_pair:
        return Change(None, None, None, None, 0)
    mean = mean_difference(np.array([np.mean(values) for values in by_pair.values()]))
    sums = np.array([sum(values) for values in by_pair.values()], float)
    return Change(mean.value, mean.low, mean.high, sign_flip_test(sums), mean.n)


def mean_difference(values: np.ndarray) -> Estimate:
    """A mean in [-1, 1] with its bootstrap interval, or, where all values are equal, with Tango's score interval.

    A bootstrap of equal values has no width, however few they are.  Tango's interval (1998) then ends at
    w = z^2 / (n + z^2) to either side of 0, and 2 w from a difference of all pairs.
    """
    found = bootstrap_mean(values, np.random.default_rng(0))
    if found.value is None or found.low != found.high:
        return found
    z = float(special.ndtri((1 + LEVEL) / 2))
    width = z * z / (found.n + z * z) * (1 + abs(found.value))
    return replace(found, low=max(-1.0, found.value - width), high=min(1.0, found.value + width))


# --------------------------------------------------------------------------------------- null swaps

@dataclass(frozen=True)
class NullCheck:
    """Null swaps against no swap: the same tokens must come.  n: trials of both; n_changed: whose answer differs."""

    n: int
    n_identical: int
    n_changed: int

    @property
    def exact(self) -> bool:
        return self.n_identical == self.n

    def __str__(self) -> str:
        return f"{self.n_identical} of {self.n}" if self.n else "n/a"


def null_check(graded: Iterable[GradedTrial], regime: str = "recompute") -> NullCheck:
    """All null swaps of a regime, each against the same trial without a swap."""
    def place(trial: SwapTrial) -> tuple:
        return trial.model, trial.pair.pair_id, trial.seed, replace(trial.cell, regime="none")

    alone = {"none": {}, regime: {}}
    for one in graded:
        cell = one.trial.cell
        if cell.continues and cell.image == "a" and cell.regime in alone and one.trial.second is not None:
            alone[cell.regime][place(one.trial)] = one
    both = [(alone["none"][key], alone[regime][key]) for key in alone["none"].keys() & alone[regime].keys()]
    return NullCheck(len(both), sum(a.trial.second.token_ids == b.trial.second.token_ids for a, b in both),
                     sum(a.said != b.said for a, b in both))


def null_note(graded: Mapping[str, Sequence[GradedTrial]], regimes: Iterable[str] = ("recompute",)) -> str:
    """What the null swaps of a study say, all models together."""
    checks = {regime: null_check((one for trials in graded.values() for one in trials), regime)
              for regime in regimes}
    listed = "; ".join(f"{regime}, {check} identical token for token, {check.n_changed} with another answer"
                       for regime, check in checks.items())
    text = f"Null swap, in which the image is exchanged for itself, against no swap: {listed}."
    if not all(check.exact for check in checks.values()):
        text += ("  Where it is not exact a swap changes more than the image (in half precision: rounding), and the "
                 "answers it changes are noise that every change above holds.")
    return text


# --------------------------------------------------------------------------------------- as text

def share_cells(value: Estimate) -> tuple[float | None, float | None, float | None]:
    """As columns of a table.csv."""
    return value.value, value.low, value.high


def holm_by_group(rows: Sequence[tuple[object, float | None]]) -> list[float | None]:
    """Holm's adjustment within each family.  rows: (family or None, p); None: not adjusted."""
    adjusted: list[float | None] = [None] * len(rows)
    for family in dict.fromkeys(family for family, _ in rows if family is not None):
        members = [n for n, (own, _) in enumerate(rows) if own == family]
        for n, p in zip(members, holm([rows[n][1] for n in members])):
            adjusted[n] = p
    return adjusted


def p_with_holm(p: float | None, adjusted: float | None, n_compared: int) -> str:
    """"0.004", with several models "0.004 (0.012)"."""
    return p_text(p) if adjusted is None or n_compared < 2 else f"{p_text(p)} ({p_text(adjusted)})"
