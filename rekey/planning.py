"""What an audit of this size can find, and what size another would need.

    made = plan(original, renewed)
    made.power["5 pp"], made.smallest_drop, made.images_needed, made.seeds_needed

For benchmarks as hard as this one (see `rekey.stats.Difficulty`), by the normal form of the exact test (its z with
continuity correction), which in simulations is within three points of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special

from rekey.stats import Difficulty

ALPHA, WANTED = 0.05, 0.8
DROPS = (0.05, 0.10)                        # the drops to which power is told
TARGET = 0.05                               # the drop for which images and seeds are counted
SEEDS = (1, 2, 3, 5, 10, 20, 50)
MOST_IMAGES = 20_000


@dataclass(frozen=True)
class Plan:
    """Of a one-sided test at level 0.05.

    power: chance to find a drop of 5 and of 10 points, with these images and seeds.  smallest_drop: that is found four
    times in five; None where no drop is.  images_needed, seeds_needed: to find `target` four times in five, all else as
    it is; None where no number up to 20,000 images, or 50 seeds, does it.
    """

    n_images: int
    n_seeds: int
    power: dict[str, float]
    smallest_drop: float | None
    images_needed: int | None
    seeds_needed: int | None
    target: float = TARGET


def plan(original: np.ndarray, renewed: np.ndarray, target: float = TARGET) -> Plan | None:
    """original: (n,), renewed: (n, seeds) of 1, 0 or nan; None where nothing was answered.  target: a drop."""
    used = ~np.isnan(original) & ~np.isnan(renewed).all(1)
    n, n_seeds = int(used.sum()), renewed.shape[1]
    if n == 0:
        return None
    difficulty = Difficulty.of(renewed[used])
    if difficulty.headroom < target:
        return Plan(n, n_seeds, {}, None, None, None, target)

    def power(images: int = n, seeds: int = n_seeds, drop: float = target) -> float:
        return approximate_power(images, seeds, drop, difficulty)

    steps = np.arange(1, int(difficulty.headroom * 200) + 1) / 200                          # half points
    told = {f"{100 * drop:g} pp": power(drop=drop) for drop in sorted({*DROPS, target}) if drop <= difficulty.headroom}
    return Plan(n, n_seeds, told,
                next((float(drop) for drop in steps if power(drop=drop) >= WANTED), None),
                next((images for images in _sizes() if power(images) >= WANTED), None),
                next((seeds for seeds in SEEDS if power(seeds=seeds) >= WANTED), None), target)


def _sizes() -> Iterator[int]:
    """Numbers of images, each a few in a hundred more than the one before."""
    size = 10
    while size <= MOST_IMAGES:
        yield size
        size += max(5, round(size / 100) * 5)


def approximate_power(n: int, n_seeds: int, drop: float, difficulty: Difficulty, alpha: float = ALPHA) -> float:
    """How often the test finds a drop, by its normal form.

    Per image, with m ~ Beta(a, b) and the original right with chance m + r (1 - m): U = O - K / (S + 1) has the mean
    S / (S + 1) r E[1 - m]; the test takes its variance for K (S + 1 - K) / (S + 1)^2.
    """
    a, b, s = difficulty.a, difficulty.b, n_seeds
    m, mm = a / (a + b), a * (a + 1) / ((a + b) * (a + b + 1))                      # E m, E m^2
    r = min(1.0, drop / difficulty.headroom)
    o, om = m + r * (1 - m), mm + r * (m - mm)                                      # E O, E O m
    renewed_square = (m - mm) / s + mm                                              # E of the renewed mean's square
    mean = s / (s + 1) * (o - m)
    variance = (s / (s + 1)) ** 2 * (o - 2 * om + renewed_square) - mean ** 2
    k, kk = o + s * m, o + 2 * s * om + s ** 2 * renewed_square                     # E K, E K^2
    assumed = k / (s + 1) - kk / (s + 1) ** 2
    return float(special.ndtr((n * mean - 0.5 + special.ndtri(alpha) * math.sqrt(n * assumed))
                              / math.sqrt(n * variance)))
