"""A live benchmark may be looked at after each new seed: the exact test, with its level spent over the looks.

    for look in looks(original, renewed):               # open-ended; or n_planned=5
        look.n_seeds, look.p, look.level, look.found
    false_alarms(n=191, n_looks=10, rng)                # by simulation: at most the level

The looks share the luck of the original items, so their tests hang together.  Let U_s be the sum over images of what
the original item has more than the mean of all s + 1.  If images are right with chances m, cov(U_s, U_t) for s < t is
s / (s + 1) times the sum of m (1 - m), whatever m: the tests are a Brownian motion seen at information s / (s + 1).  So
the boundaries of group-sequential trials hold (Lan & DeMets 1983), and since information never passes 1, they hold for
looks without end.  The levels are those of a normal statistic; exact p-values, which are coarser, err on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from rekey.errors import InputError
from rekey.stats import TYPICAL, Difficulty, Estimate, exchange_test, p_of_counts, proportion

ALPHA = 0.05
MAX_LOOKS = 100                         # beyond, what a look adds is finer than the grid
_REACH, _N_STEPS = 6.0, 3000            # grid of the Brownian motion's density, in units of its sd at information 1
_GRID = np.linspace(-_REACH, _REACH, _N_STEPS + 1)
_STEP = 2 * _REACH / _N_STEPS

# What share of alpha may be spent up to an information between 0 and 1.
SPENDING: dict[str, Callable[[float, float], float]] = {
    "pocock": lambda t, alpha: alpha * math.log(1 + (math.e - 1) * t),
    "obrien-fleming": lambda t, alpha: float(2 * special.ndtr(special.ndtri(alpha / 2) / math.sqrt(t))),
}


@dataclass(frozen=True)
class Look:
    """The test after `n_seeds` seeds.  found: its p is at most the level of this look."""

    n_seeds: int
    drop: float | None
    p: float | None
    level: float
    found: bool


def levels(n_looks: int, n_planned: int | None = None, spending: str = "pocock", alpha: float = ALPHA) -> list[float]:
    """The level of each of the first `n_looks` looks.  n_planned: there will never be more; None: looks without end."""
    if spending not in SPENDING:
        raise InputError(f"spending {spending!r}: expected {', '.join(SPENDING)}")
    if not 0 < alpha < 1:
        raise InputError(f"alpha {alpha}: expected a level between 0 and 1")
    if not 1 <= n_looks <= (MAX_LOOKS if n_planned is None else n_planned) <= MAX_LOOKS:
        planned = "any number" if n_planned is None else n_planned
        raise InputError(f"looks: {n_looks} seeds, {planned} planned; expected 1 to {MAX_LOOKS}, and no more than are "
                         "planned, which is fixed before the first look")
    most = 1.0 if n_planned is None else n_planned / (n_planned + 1)
    times = [s / (s + 1) / most for s in range(1, n_looks + 1)]
    spent = [0.0, *(SPENDING[spending](min(t, 1.0), alpha) for t in times)]
    density, before, found = None, 0.0, []
    for time, budget in zip(times, np.diff(spent)):
        bound, density = _next_bound(density, math.sqrt(time - before), budget)
        found.append(float(special.ndtr(-bound / math.sqrt(time))))
        before = time
    return found


def _next_bound(density: np.ndarray | None, sd: float, budget: float) -> tuple[float, np.ndarray]:
    """Where the paths that are not found yet cross with a chance of `budget`, and the density of those that do not.

    density: of where they are, on the grid; None at the start, 0.  sd: of what is added now.
    """
    if density is None:
        bound, after = -float(special.ndtri(budget)) * sd, _normal(sd)
    else:
        bound = optimize.brentq(lambda x: _STEP * (density * special.ndtr((_GRID - x) / sd)).sum() - budget, -_REACH,
                                2 * _REACH)
        after = _STEP * np.convolve(density, _normal(sd), "same")
    return bound, np.where(_GRID < bound, after, 0.0)


def _normal(sd: float) -> np.ndarray:
    """The normal density on the grid."""
    return np.exp(-0.5 * (_GRID / sd) ** 2) / (sd * math.sqrt(2 * math.pi))


def looks(original: np.ndarray, renewed: np.ndarray, n_planned: int | None = None, spending: str = "pocock",
          alpha: float = ALPHA) -> tuple[Look, ...]:
    """One look after each seed, at most a hundred where none are planned.

    original: (n,), renewed: (n, seeds), of 1, 0 or nan, seeds in order.
    """
    n_looks = renewed.shape[1] if n_planned is not None else min(renewed.shape[1], MAX_LOOKS)
    found = []
    for n_seeds, level in enumerate(levels(n_looks, n_planned, spending, alpha), 1):
        test = exchange_test(original, renewed[:, :n_seeds])
        found.append(Look(n_seeds, test.drop, test.p, level, test.p is not None and test.p <= level))
    return tuple(found)


def false_alarms(n: int, n_looks: int, rng: np.random.Generator, n_planned: int | None = None,
                 spending: str = "pocock", alpha: float = ALPHA, difficulty: Difficulty = TYPICAL,
                 n_runs: int = 400, drop: float = 0.0) -> Estimate:
    """How often simulated audits of n images are found at any look; with a drop, the power of looking."""
    planned = levels(n_looks, n_planned, spending, alpha)
    n_found = 0
    for _ in range(n_runs):
        chance = rng.beta(difficulty.a, difficulty.b, n)
        remembered = rng.random(n) < min(1.0, drop / difficulty.headroom)
        original = ((rng.random(n) < chance) | remembered).astype(int)
        right = original.copy()
        for n_seeds, level in enumerate(planned, 1):
            right += rng.random(n) < chance
            if p_of_counts(original, right, n_seeds) <= level:
                n_found += 1
                break
    return proportion(n_found, n_runs)
