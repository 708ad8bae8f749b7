"""Attention before and after the phrase: windows of tokens, paired statistics (VisualSwap, Table 5).

    means = [window_means(trace) for trace in iter_traces(folder)]          # 100 tokens on either side
    for change in changes(means, Where.band(means[0], (0.5, 0.6))):
        change.condition, change.before, change.after, change.change.value, change.p

A window holds what there is: shorter texts give fewer tokens, and tables say how many.  Seeds of one pair are averaged
first, so that n counts pairs.  The p is that of sign flips: they test the mean, which is what the table gives, while a
signed rank test asks about another number and may disagree with the interval beside it.  Without a change each pair's
difference has either sign with equal chance.  Exact for differences rounded to a thousandth of the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probes.trace import MIDDLE, layers_near
from probes.trace_store import N_WINDOW, WINDOWS, TrialTrace, windows_of
from rekey.errors import InputError
from rekey.stats import Estimate, bootstrap_mean, holm

BEFORE, PHRASE, AFTER = range(3)
FLIP_STEPS = 1000
MEASURES = {
    "percent": "percent of the attention: the weights on all image tokens added up, x 100, mean over heads",
    "without sink": "percent of the attention that is not on the first token (the sink)",
    "enrichment": "times the image's share of the context: 1 where attention is spread evenly over all tokens",
}


@dataclass(frozen=True, eq=False)
class WindowMeans:
    """A trial's attention, averaged over the rows of each window: before, phrase, after; nan where one is empty.

    n_tokens: (W,) rows.  mass, sink, region, generated: (W, L, H) on the image, the first token, the image tokens that
    differ, and all text since the question.  enrichment: (W, L) of the mean over heads.
    """

    model: str
    pair_id: str
    condition: str
    seed: int
    follows: str | None
    reread: bool
    n_tokens: np.ndarray
    mass: np.ndarray
    sink: np.ndarray
    region: np.ndarray
    generated: np.ndarray
    enrichment: np.ndarray
    layers: tuple[int, ...]
    n_layers: int
    n_region_tokens: int

    def measure(self, name: str) -> np.ndarray:
        """(W, L) one of MEASURES."""
        mass = self.mass.mean(2)
        if name == "percent":
            return 100 * mass
        if name == "without sink":
            # Of means over heads: in a head that is all sink the quotient of its own masses would be noise.
            return 100 * mass / (1 - self.sink.mean(2))
        return self.enrichment


def window_means(trace: TrialTrace, n: int = N_WINDOW, cut: int | None = None) -> WindowMeans:
    """n: tokens on either side of the phrase.  cut: in a base trial, the token before which its answer is taken to be
    interrupted: where the probe of the same pair puts its phrase, say.
    """
    attention = trace.attention
    ends = (trace.t_phrase, trace.t_after) if cut is None else (cut, cut)
    windows = windows_of(trace.n_asked, *ends, trace.n_tokens, n)
    rows = [trace.rows(windows[name]) for name in WINDOWS]

    def mean(values: np.ndarray) -> np.ndarray:
        """(..., T) -> (W, ...)"""
        empty = np.full(values.shape[:-1], np.nan)
        return np.stack([values[..., window].mean(-1, dtype=np.float64) if window.any() else empty for window in rows])

    share = attention.n_image_tokens / attention.context_len                                        # (T,)
    return WindowMeans(
        model=trace.model, pair_id=trace.pair_id, condition=trace.condition, seed=trace.seed, follows=trace.follows,
        reread=trace.reread, n_tokens=np.array([window.sum() for window in rows]), mass=mean(attention.scores),
        sink=mean(attention.sink), region=mean(attention.region), generated=mean(attention.generated),
        enrichment=mean(attention.scores.mean(1) / share), layers=attention.layers, n_layers=attention.n_layers,
        n_region_tokens=attention.n_region_tokens)


@dataclass(frozen=True)
class Where:
    """Some layers, averaged.  at: their positions among the recorded ones.  name: for tables."""

    name: str
    at: tuple[int, ...]

    @classmethod
    def band(cls, means: WindowMeans | TrialTrace, band: tuple[float, float] = MIDDLE) -> Where:
        """Layers between two fractions of the depth; of a small model that has none there, the one nearest to it."""
        of = getattr(means, "attention", means)
        at = layers_near(band, of.layers, of.n_layers)
        layers = [of.layers[n] for n in at]
        listed = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"
        return cls(f"{listed} of {of.n_layers}", at)

    @classmethod
    def each(cls, means: WindowMeans) -> list[Where]:
        return [cls(f"layer {layer} of {means.n_layers}", (n,)) for n, layer in enumerate(means.layers)]

    def of(self, values: np.ndarray) -> np.ndarray:
        """(W, L) -> (W,)"""
        return values[:, self.at].mean(1)


@dataclass(frozen=True)
class Change:
    """What the phrase changes in one condition, or by how much more in one than in another ("multi-turn - probe").

    n: pairs.  tokens: mean number in each window.  before, phrase, after: means, None for a difference of conditions.
    change: after - before, with a BCa interval over pairs.  p: two-sided, of sign flips.  p_holm: adjusted for the
    layers beside it, None for a band.  reread: whether the text before was read under the other image than the one it
    was written about.
    """

    model: str
    condition: str
    where: str
    measure: str
    n: int
    tokens: tuple[float, ...]
    before: float | None
    phrase: float | None
    after: float | None
    change: Estimate
    p: float | None
    reread: bool
    p_holm: float | None = None


def changes(means: Iterable[WindowMeans], wheres: Sequence[Where], measures: Sequence[str] = tuple(MEASURES),
            between: tuple[str, str] = ("multi-turn", "probe"), layerwise: bool = False) -> list[Change]:
    """Of every condition that holds text before the phrase, and of one condition against another on the same pairs.

    means: of one model.  layerwise: adjust p for the number of `wheres`.
    """
    found = [one for one in means if one.n_tokens[BEFORE] and one.n_tokens[AFTER]]
    if len({one.model for one in found}) > 1:
        raise InputError("changes: trials of several models; give those of one at a time")
    conditions = list(dict.fromkeys(one.condition for one in found))
    result: list[Change] = []
    for measure in measures:
        for condition in conditions:
            mine = [one for one in found if one.condition == condition]
            result += _adjusted([_change(mine, where, measure) for where in wheres], layerwise)
        if set(between) <= set(conditions):
            both = [[one for one in found if one.condition == condition] for condition in between]
            result += _adjusted([_between(*both, where, measure) for where in wheres], layerwise)
    return result


def _change(means: Sequence[WindowMeans], where: Where, measure: str) -> Change:
    windows = _by_pair(means, lambda one: where.of(one.measure(measure)))
    values = np.array(list(windows.values()))                                                       # (n, W)
    difference = values[:, AFTER] - values[:, BEFORE]
    phrase = values[:, PHRASE][~np.isnan(values[:, PHRASE])]
    return Change(means[0].model, means[0].condition, where.name, measure, len(values),
                  tuple(np.mean([one.n_tokens for one in means], 0).tolist()), float(values[:, BEFORE].mean()),
                  float(phrase.mean()) if len(phrase) else None, float(values[:, AFTER].mean()),
                  bootstrap_mean(difference, np.random.default_rng(0)), sign_flip_p(difference), means[0].reread)


def _between(first: Sequence[WindowMeans], second: Sequence[WindowMeans], where: Where, measure: str) -> Change:
    """The difference of differences, over pairs that have both."""
    def change(one: WindowMeans) -> np.ndarray:
        windows = where.of(one.measure(measure))
        return windows[AFTER] - windows[BEFORE]

    one, other = _by_pair(first, change), _by_pair(second, change)
    shared = [pair for pair in one if pair in other]
    difference = np.array([one[pair] - other[pair] for pair in shared])
    tokens = tuple(np.mean([m.n_tokens for m in (*first, *second)], 0).tolist())
    return Change(first[0].model, f"{first[0].condition} - {second[0].condition}", where.name, measure, len(shared),
                  tokens, None, None, None, bootstrap_mean(difference, np.random.default_rng(0)),
                  sign_flip_p(difference), first[0].reread)


def _by_pair(means: Sequence[WindowMeans], of: Callable[[WindowMeans], np.ndarray]) -> dict[str, np.ndarray]:
    """The mean over seeds of each pair."""
    found: dict[str, list[np.ndarray]] = {}
    for one in means:
        found.setdefault(one.pair_id, []).append(of(one))
    return {pair: np.mean(values, 0) for pair, values in sorted(found.items())}


def _adjusted(row: list[Change], layerwise: bool) -> list[Change]:
    if not layerwise:
        return row
    return [replace(one, p_holm=p) for one, p in zip(row, holm([one.p for one in row]))]


def sign_flip_p(differences: np.ndarray) -> float | None:
    """Two-sided p of the mean of `differences` when each takes either sign with equal chance; None without any.

    Exact for differences rounded to a thousandth of the largest: all 2^n sums are counted, by their size.
    """
    largest = np.abs(differences).max(initial=0)
    if not len(differences):
        return None
    if largest == 0:
        return 1.0
    steps = np.rint(differences / largest * FLIP_STEPS).astype(int)
    sizes = np.abs(steps)
    counts = np.zeros(sizes.sum() + 1)                   # chance of each sum of those that are positive
    counts[0] = 1.0
    for size in sizes[sizes > 0]:
        shifted = np.zeros_like(counts)
        shifted[size:] = counts[:-size]
        counts = (counts + shifted) / 2
    sums = 2 * np.arange(len(counts)) - sizes.sum()
    return float(min(1.0, max(counts[np.abs(sums) >= abs(steps.sum())].sum(), np.finfo(float).tiny)))
