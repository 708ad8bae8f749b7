"""Stale answers: does a model pick the old color more often than that color is picked anyway?  An exact test.

    test = stale_test(picks, rng)               # over wrong answers to items whose old color is a wrong option
    test.rate, test.expected, test.p

The null is not 1 / (options - 1): some colors are guessed more than others.  What is compared with is the placebo, the
same color where it is an ordinary distractor.  Were each wrong answer counted once as "picks the old color or not" and
again, for its other options, as placebo, one answer would stand on both sides, and a table stratified by color
(Cochran-Mantel-Haenszel) would cry wolf: to pick the old color is not to pick the placebo.  The test here conditions on
the same margins, how often each color was picked in all, but lets every answer speak once: under the null (the pick
depends on the colors alone) all ways to deal the picked colors to the items that offered them are equally likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

N_CHAINS = 999                  # the smallest p is 1 / (N_CHAINS + 1)
N_SWEEPS = 24
MAX_CELLS = 150_000             # chains x answers: very many answers get fewer chains, to be done in seconds


@dataclass(frozen=True)
class Pick:
    """A wrong answer: the wrong options that were there, which of them is the old one, and which was picked (texts)."""

    options: tuple[str, ...]
    old: str
    picked: str


@dataclass(frozen=True)
class StaleTest:
    """n_items: renewed items that offer their old answer.  n_wrong: those answered wrong.  n_stale: by the old answer.

    rate: of the items.  rate_of_wrong: of the wrong answers.  expected: what rate_of_wrong is where the old color draws
    no more than any color of its name.  p: one-sided, of the old color drawing more; None without a wrong answer.
    """

    n_items: int
    n_wrong: int
    n_stale: int
    rate: float | None
    rate_of_wrong: float | None
    expected: float | None
    p: float | None


def stale_test(picks: Sequence[Pick], n_items: int, rng: np.random.Generator) -> StaleTest:
    """Picks: of all wrong answers to the `n_items` items that offer their old color."""
    n_wrong = len(picks)
    n_stale = sum(pick.picked == pick.old for pick in picks)
    rate = n_stale / n_items if n_items else None
    if not n_wrong:
        return StaleTest(n_items, 0, 0, rate, None, None, None)
    draws = _redealt(picks, rng)                                                        # (chains,)
    p = float((1 + (draws >= n_stale).sum()) / (len(draws) + 1))
    return StaleTest(n_items, n_wrong, n_stale, rate, n_stale / n_wrong, float(draws.mean() / n_wrong), p)


def _redealt(picks: Sequence[Pick], rng: np.random.Generator) -> np.ndarray:
    """(chains,) numbers of old colors picked when the picks are dealt anew, colors and what was offered as they are.

    Two items exchange their picks, or not, where each offered the other's; a chain of such sweeps leaves the uniform
    distribution over all deals as it is.  The chains start from one state that lies as many sweeps before the data, so
    that data and draws are exchangeable whether or not the chain has mixed (Besag & Clifford 1989, parallel method);
    for that, what pairs there are in a sweep is drawn first, and the way back goes through the sweeps backward.
    """
    colors = sorted({option for pick in picks for option in pick.options})
    number = {color: n for n, color in enumerate(colors)}
    offered = np.zeros((len(picks), len(colors)), bool)                                 # (items, colors)
    for row, pick in zip(offered, picks):
        row[[number[option] for option in pick.options]] = True
    old = np.array([number[pick.old] for pick in picks])
    dealt = np.array([[number[pick.picked]] for pick in picks])                         # (items, chains)
    n_chains = int(np.clip(MAX_CELLS // len(picks), 199, N_CHAINS))
    shifts = rng.integers(len(picks), size=N_SWEEPS)
    for shift in shifts[::-1]:
        _exchange(dealt, offered, shift, rng)
    dealt = np.repeat(dealt, n_chains, 1)
    for shift in shifts:
        _exchange(dealt, offered, shift, rng)
    return (dealt == old[:, None]).sum(0)


def _exchange(dealt: np.ndarray, offered: np.ndarray, shift: int, rng: np.random.Generator) -> None:
    """One sweep, in place: items i and shift - i (modulo their number) exchange picks with a chance of a half."""
    items = np.arange(len(dealt))
    partner = (shift - items) % len(dealt)
    first, second = items[items < partner], partner[items < partner]
    one, other = dealt[first], dealt[second]                                            # (pairs, chains)
    row = offered.shape[1] * items[:, None]
    swap = offered.take(row[first] + other) & offered.take(row[second] + one)           # of the flat array
    swap &= rng.integers(2, size=one.shape, dtype=bool)
    dealt[first], dealt[second] = np.where(swap, other, one), np.where(swap, one, other)
