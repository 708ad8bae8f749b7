"""Statistics of an audit: exact tests, intervals, power.

    test = exchange_test(original, renewed)           # (n,) and (n, seeds) of 1, 0 or nan
    test.drop, test.low, test.high, test.p            # this benchmark: images fixed
    drop_of_images(original, renewed)                 # images like these: BCa bootstrap over images

Nothing here gives nan: what cannot be said is None, which prints as "n/a".
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

LEVEL = 0.95
N_DRAWS = 10_000
_LOG_ODDS_LIMIT = 30.0          # an odds ratio beyond e^30 is infinite for any benchmark
_SMALLEST = sys.float_info.min  # no p-value is zero, however little of it floats can hold


@dataclass(frozen=True)
class Estimate:
    """A number with its interval; value, low and high are None where there is nothing to count."""

    value: float | None
    low: float | None
    high: float | None
    n: int


def proportion(k: int, n: int, level: float = LEVEL) -> Estimate:
    """k of n with its Wilson interval."""
    if n == 0:
        return Estimate(None, None, None, 0)
    z = float(special.ndtri((1 + level) / 2))
    middle, half = k + z * z / 2, z * math.sqrt(k * (n - k) / n + z * z / 4)
    low, high = ((middle + side * half) / (n + z * z) for side in (-1, 1))
    return Estimate(k / n, 0.0 if k == 0 else low, 1.0 if k == n else high, n)


def mean_and_sd(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation (n - 1) over seeds; the latter needs two."""
    values = [value for value in values if value is not None]
    mean = float(np.mean(values)) if values else None
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else None


def binomial_sd(p: float | None, n: int) -> float | None:
    """The standard deviation that accuracy p on n items has by sampling alone."""
    return None if p is None or n == 0 else math.sqrt(p * (1 - p) / n)


# ------------------------------------------------------------------------- original against all seeds

@dataclass(frozen=True)
class ExchangeTest:
    """Original items against the renewals of the same images.

    n: images with both.  n_informative: those that were neither all right nor all wrong.
    only_original, only_renewed: with one seed, McNemar's two counts; else None.
    drop: mean over images of original minus mean renewed correctness; low, high: its exact conditional interval for
    this benchmark (images fixed).  p: one-sided, original higher; p_two_sided: twice the smaller tail.
    """

    n: int
    n_informative: int
    only_original: int | None
    only_renewed: int | None
    drop: float | None
    low: float | None
    high: float | None
    p: float | None
    p_two_sided: float | None


def _sum_of_binomials(counts: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """(sum of counts + 1,) probabilities of how many of all draws succeed, `counts` of them at each chance."""
    pmf = np.ones(1)
    for count, chance in zip(counts, chances):
        pmf = np.convolve(pmf, _binomial(int(count), float(chance)))
    return pmf


def _binomial(n: int, chance: float) -> np.ndarray:
    """(n + 1,) probabilities; scipy's, which checks its arguments, takes twenty times as long."""
    k = np.arange(n + 1)
    with np.errstate(under="ignore"):
        return np.exp(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
                      + special.xlogy(k, chance) + special.xlog1py(n - k, -chance))


class _Exchange:
    """Sums of independent draws, O_i ~ Bernoulli(theta K / (theta K + S + 1 - K)), grouped by (K, S)."""

    def __init__(self, original: np.ndarray, renewed: np.ndarray):
        known = ~np.isnan(renewed)
        self.n_seeds = known.sum(1)                                         # (n,)
        right = np.where(known, renewed, 0).sum(1)
        self.right = original + right                                       # (n,) K
        informative = (self.right > 0) & (self.right < self.n_seeds + 1)
        self.observed = int(original[informative].sum())
        groups, counts = np.unique(np.stack([self.right, self.n_seeds], 1)[informative], axis=0, return_counts=True)
        self.groups, self.counts, self.n = groups, counts, len(original)
        self.n_informative = int(informative.sum())
        self.drop = float(np.mean(original - right / self.n_seeds)) if len(original) else None

    def chances(self, log_odds: float) -> np.ndarray:
        """(G,) chance that the original is the right one of a group's images, at an odds ratio e^log_odds."""
        right, seeds = self.groups.T
        return 1 / (1 + np.exp(-log_odds) * (seeds + 1 - right) / right)

    def distribution(self, log_odds: float) -> np.ndarray:
        """(n_informative + 1,) probabilities of how many informative originals are right."""
        return _sum_of_binomials(self.counts, self.chances(log_odds))

    def tails(self, pmf: np.ndarray) -> tuple[float, float]:
        """P(as many or fewer), P(as many or more)."""
        return _as_p(pmf[:self.observed + 1].sum()), _as_p(pmf[self.observed:].sum())

    def tilted(self) -> Callable[[float], np.ndarray]:
        """`distribution`, from one convolution: it is an exponential family, P(k) goes with e^(k log_odds).

        The convolution is made where the observed count is expected, so that nothing near it is lost to underflow.
        """
        expected = np.clip(self.observed, 0.5, self.n_informative - 0.5)
        center = optimize.brentq(lambda x: self.counts @ self.chances(x) - expected, -_LOG_ODDS_LIMIT, _LOG_ODDS_LIMIT)
        with np.errstate(divide="ignore", under="ignore"):
            log_pmf = np.log(self.distribution(center))
        k = np.arange(self.n_informative + 1) - self.observed

        def at(log_odds: float) -> np.ndarray:
            log_weights = log_pmf + (log_odds - center) * k
            with np.errstate(under="ignore"):
                weights = np.exp(log_weights - log_weights.max())
                return weights / weights.sum()
        return at

    def drop_at(self, log_odds: float) -> float:
        """The mean drop that an odds ratio of e^log_odds gives on these images."""
        right, seeds = self.groups.T
        chance = self.chances(log_odds) if np.isfinite(log_odds) else np.full(len(right), float(log_odds > 0))
        return float((self.counts * (chance - (right - chance) / seeds)).sum() / self.n)

    def interval(self, level: float) -> tuple[float | None, float | None]:
        """Drops whose odds ratios the observed count does not reject, (1 - level) / 2 on each side."""
        if not self.n:
            return None, None
        if not self.n_informative:
            return 0.0, 0.0
        tail, distribution = (1 - level) / 2, self.tilted()

        def where(side: int, unbounded: bool) -> float:
            """The odds ratio at which that tail of the observed count has just `tail`."""
            if unbounded:
                return math.inf if side == 0 else -math.inf
            return optimize.brentq(lambda x: self.tails(distribution(x))[side] - tail, -_LOG_ODDS_LIMIT,
                                   _LOG_ODDS_LIMIT, xtol=1e-6)

        low = where(1, self.observed == 0)
        high = where(0, self.observed == self.n_informative)
        return self.drop_at(low), self.drop_at(high)


def exchange_test(original: np.ndarray, renewed: np.ndarray, level: float = LEVEL) -> ExchangeTest:
    """The exact test of original items against all their renewals.

    original: (n,), renewed: (n, seeds), of 1, 0 or nan (no answer).  H0: given the image, the original item is one more
    draw like the renewed ones.  Then, given that K of an image's S + 1 items are right, the original is one of them
    with chance K / (S + 1), independently over images.  Under a common odds ratio theta of the original item the
    chance is theta K / (theta K + S + 1 - K): inverted, the test bounds theta, and with it the mean drop.  With one
    seed this is McNemar's exact test; with more, pooling the pairs would count the luck of each original item once
    per seed (false alarms of 12% at three seeds, 23% at ten).
    """
    original, renewed = np.asarray(original, float), np.asarray(renewed, float)
    used = ~np.isnan(original) & ~np.isnan(renewed).all(1)
    original, renewed = original[used], renewed[used]
    exchange = _Exchange(original, renewed)
    fewer, more = exchange.tails(exchange.distribution(0.0))
    low, high = exchange.interval(level)
    one_seed = renewed.shape[1] == 1 if renewed.ndim == 2 else False
    pairs = [int(((original == a) & (renewed[:, 0] == 1 - a)).sum()) for a in (1, 0)] if one_seed else [None, None]
    return ExchangeTest(len(original), exchange.n_informative, *pairs, exchange.drop, low, high,
                        more if len(original) else None, min(1.0, 2 * min(fewer, more)) if len(original) else None)


def mcnemar(only_first: int, only_second: int, mid_p: bool = False) -> float:
    """Two-sided exact p of McNemar's test; 1 where no pair is discordant.  mid_p: half of the observed count's own."""
    n, smaller = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    pmf = _binomial(n, 0.5)
    p = 2 * float(pmf[:smaller + 1].sum())
    if mid_p:
        p -= float(pmf[smaller])
    return _as_p(p)


def sign_flip_test(differences: np.ndarray) -> float:
    """Two-sided exact p of whole-numbered differences, one per image, being as often to either side (nan: none).

    Each keeps its size and takes either sign with equal chance: what two ways of asking the same items give, where all
    items of an image stay together.  With one item an image this is McNemar's test.
    """
    sizes = np.abs(differences[~np.isnan(differences)]).astype(int)
    total, observed = int(sizes.sum()), abs(int(np.nansum(differences)))
    pmf = np.ones(1)                                                        # of the sum, from -total to total
    for size in sizes[sizes > 0]:
        step = np.zeros(2 * size + 1)
        step[[0, -1]] = 0.5
        pmf = np.convolve(pmf, step)
    return _as_p(pmf[np.abs(np.arange(-total, total + 1)) >= observed].sum())


def _as_p(value: float) -> float:
    return float(min(1.0, max(_SMALLEST, value)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p-values (Holm 1979): all at most 0.05 may be rejected with a family-wise error of 0.05."""
    known = sorted((p, n) for n, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, n) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[n] = highest
    return adjusted


# ------------------------------------------------------------------------------ images like these

def drop_of_images(original: np.ndarray, renewed: np.ndarray, rng: np.random.Generator, level: float = LEVEL,
                   n_draws: int = N_DRAWS) -> Estimate:
    """The mean drop with its BCa bootstrap interval over images; all seeds of an image travel together.

    Images with the same drop are the same to the bootstrap, so it draws how often each value comes.
    """
    original, renewed = np.asarray(original, float), np.asarray(renewed, float)
    used = ~np.isnan(original) & ~np.isnan(renewed).all(1)
    return bootstrap_mean(original[used] - np.nanmean(renewed[used], 1) if used.any() else np.zeros(0), rng, level,
                          n_draws)


def bootstrap_mean(values: np.ndarray, rng: np.random.Generator, level: float = LEVEL,
                   n_draws: int = N_DRAWS) -> Estimate:
    """A mean with its BCa interval (Efron 1987); constant values give the point."""
    n = len(values)
    if n == 0:
        return Estimate(None, None, None, 0)
    mean = float(np.mean(values))
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) == 1:
        return Estimate(mean, mean, mean, n)
    draws = rng.multinomial(n, counts / n, n_draws) @ distinct / n              # (n_draws,)
    below = (np.mean(draws < mean - 1e-12) + np.mean(draws <= mean + 1e-12)) / 2
    bias = special.ndtri(np.clip(below, 1 / (2 * n_draws), 1 - 1 / (2 * n_draws)))
    centered = values - mean                # in proportion to the jackknife's mean less its values, in this sign
    acceleration = float((centered ** 3).sum() / (6 * (centered ** 2).sum() ** 1.5))
    z = special.ndtri([(1 - level) / 2, (1 + level) / 2])
    shares = special.ndtr(bias + (bias + z) / (1 - acceleration * (bias + z)))
    low, high = np.quantile(draws, np.clip(shares, 0, 1))
    return Estimate(mean, float(low), float(high), n)


# ------------------------------------------------------------------------------------------ power

@dataclass(frozen=True)
class Difficulty:
    """How often a model that only looks would be right, over images: Beta(a, b)."""

    a: float
    b: float

    @property
    def headroom(self) -> float:
        """How often it would be wrong: the most that memory could add."""
        return self.b / (self.a + self.b)

    @classmethod
    def of(cls, renewed: np.ndarray) -> Difficulty:
        """Fitted to (n, seeds) renewed outcomes: their mean, and how far images differ beyond luck.

        With one seed images cannot be told from luck: then a spread like that of Beta(3, 1) is taken, a + b = 4.
        """
        known = ~np.isnan(renewed)
        mean = float(np.clip(np.nanmean(renewed), 0.01, 0.99)) if known.any() else 0.5
        several = known.sum(1) >= 2
        total = TYPICAL.a + TYPICAL.b
        if several.sum() >= 2:
            n_seeds, right = known[several].sum(1), np.nansum(renewed[several], 1)
            # Two different seeds of one image are both right with chance E m^2 = mean^2 + var.
            both = float((right * (right - 1)).sum() / (n_seeds * (n_seeds - 1)).sum())
            shared = (both - mean ** 2) / (mean * (1 - mean))       # 1 / (a + b + 1)
            total = float(np.clip(1 / max(shared, 1e-3) - 1, 0.2, 200))
        return cls(mean * total, (1 - mean) * total)


TYPICAL = Difficulty(3, 1)       # the setting in which the tests were simulated


def simulated_p(n: int, n_seeds: int, drop: float, rng: np.random.Generator, n_runs: int,
                difficulty: Difficulty = TYPICAL) -> np.ndarray:
    """(n_runs,) one-sided p of `exchange_test` on simulated audits of n images.

    drop: how much of the original accuracy is memory: a share r of images is remembered, of which the original item
    is right whatever the model sees, so that accuracy is `drop` higher on average.
    """
    remembered = min(1.0, drop / difficulty.headroom)
    chance = rng.beta(difficulty.a, difficulty.b, (n_runs, n))
    renewed = rng.binomial(n_seeds, chance)                                                         # (n_runs, n)
    original = (rng.random((n_runs, n)) < chance) | (rng.random((n_runs, n)) < remembered)
    return np.array([p_of_counts(o, o + r, n_seeds) for o, r in zip(original, renewed)])


def p_of_counts(original: np.ndarray, right: np.ndarray, n_seeds: int) -> float:
    """P(as many originals right or more), given the numbers right (n,) among the S + 1 items of an image."""
    counts = np.bincount(right, minlength=n_seeds + 2)[1:n_seeds + 1]
    pmf = _sum_of_binomials(counts, np.arange(1, n_seeds + 1) / (n_seeds + 1))
    observed = int(original[(right > 0) & (right < n_seeds + 1)].sum())
    return _as_p(pmf[observed:].sum())


def power(n: int, n_seeds: int, drop: float, rng: np.random.Generator, n_runs: int = 1000, alpha: float = 0.05,
          difficulty: Difficulty = TYPICAL) -> Estimate:
    """How often `exchange_test` finds a drop, with the Wilson interval of the simulation."""
    p = simulated_p(n, n_seeds, drop, rng, n_runs, difficulty)
    return proportion(int((p <= alpha).sum()), n_runs)
