"""Which scores of attention tell a trial that looked from one that repeated its text (VisualSwap, Sec. 5.3).

    found = separation(means, Where.band(means[0]))            # means: `swap_windows.window_means` of one condition
    found.scores[0].auc, found.scores[0].p_adjusted
    found.held_out                                              # the best single head, chosen on half of the pairs

A trial whose answer goes by the exchanged image has looked; one that gives the answer of its own text has not.  AUC is
the chance that the first scores higher than the second: 1.0 and 0.0 separate, 0.5 says nothing.  Hundreds of scores are
tried, single heads among them, so each p is that of the largest |AUC - 0.5| of *all* scores when the labels are
shuffled (within pairs where each pair has both kinds), and the null column is what halves of one kind give.  "Before":
the same quantity over the text before the phrase, where both kinds have done the same.  What separates there already
tells models apart, and not what they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from experiments.swap_windows import AFTER, BEFORE, PHRASE, Where, WindowMeans

N_SHUFFLES = 2000
N_SPLITS = 200
MIN_TRIALS = 5                   # of either kind; below that no shuffle could be told from luck
NEGLIGIBLE = 0.001               # of the attention: what separates on less than that says nothing
ALPHA = 0.05
APART = 0.9                      # an AUC (or 1 - AUC) from which single trials can be told apart, and not only means
WHOLE = "all layers"


@dataclass(frozen=True)
class Separated:
    """One score: its AUC, what halves of one kind give (95%), its means, and its p, alone and among all scores.

    auc_before: of the same quantity before the phrase, None for a difference.  n_image, n_text: trials that have the
    score: not all have image tokens that changed.
    """

    quantity: str
    where: str
    auc: float
    null_low: float
    null_high: float
    mean_image: float
    mean_text: float
    p: float
    p_adjusted: float
    auc_before: float | None
    n_image: int
    n_text: int
    is_mass: bool = True

    @property
    def name(self) -> str:
        return f"{self.quantity}, {self.where}"

    @property
    def differs(self) -> bool:
        """More than chance gives the best of all scores that were tried."""
        return self.p_adjusted <= ALPHA and not self.is_negligible

    @property
    def was_there(self) -> bool:
        """Whether the text before the phrase shows the same, half as far from 0.5 at least: then it is a mark of the
        models or the questions, and not of looking."""
        side = 1 if self.auc > 0.5 else -1
        return self.auc_before is not None and side * (self.auc_before - 0.5) >= side * (self.auc - 0.5) / 2

    @property
    def separates(self) -> bool:
        return self.differs and not self.was_there and max(self.auc, 1 - self.auc) >= APART

    @property
    def is_negligible(self) -> bool:
        return self.is_mass and max(abs(self.mean_image), abs(self.mean_text)) < NEGLIGIBLE


@dataclass(frozen=True)
class HeldOut:
    """A single head, chosen as the best on one half of the pairs: its AUC there and on the other half.

    Turned, if need be, so that the AUC where it was chosen is above 0.5.
    """

    name: str
    chosen: float
    held_out: float


@dataclass(frozen=True)
class Separation:
    """scores: over all layers, in the band, by layer, and of single heads the best and worst of each quantity.
    n_scores: that were tried.  paired: labels were shuffled within pairs.  n_models: whose trials these are."""

    n_image: int
    n_text: int
    n_scores: int
    paired: bool
    n_models: int
    scores: tuple[Separated, ...] = ()
    held_out: tuple[HeldOut, ...] = ()

    @property
    def enough(self) -> bool:
        return min(self.n_image, self.n_text) >= MIN_TRIALS

    def by_kind(self) -> dict[str, list[Separated]]:
        """The scores in the order in which one would try them."""
        found: dict[str, list[Separated]] = {"Means over all layers": [], "Single layers and the band": [],
                                             "Single heads, the best and worst of each kind": []}
        whole, layers, heads = found.values()
        for one in self.scores:
            (heads if "head" in one.where else whole if one.where == WHOLE else layers).append(one)
        return found


@dataclass(frozen=True, eq=False)
class _Score:
    quantity: str
    where: str
    values: np.ndarray               # (n,), nan in trials that do not have it
    before: np.ndarray | None
    is_head: bool = False
    is_mass: bool = True


def separation(means: Sequence[WindowMeans], band: Where, seed: int = 0) -> Separation:
    """Over trials of one condition.  Of several seeds of a model and pair the first is taken, since trials must be
    independent of each other, given the pair."""
    once = {(one.model, one.pair_id): one for one in sorted(means, key=lambda one: -one.seed)}
    found = [one for _, one in sorted(once.items()) if one.follows in ("image", "text") and one.n_tokens[AFTER]]
    label = np.array([one.follows == "image" for one in found], bool)
    n_image, n_text = int(label.sum()), int((~label).sum())
    n_models = len({one.model for one in found})
    if min(n_image, n_text) < MIN_TRIALS:
        return Separation(n_image, n_text, 0, False, n_models)
    scores = [one for one in _scores(found, band) if _n_known(one.values, label) >= MIN_TRIALS]
    values = np.stack([score.values for score in scores])                                           # (S, n)
    pairs = np.array([one.pair_id for one in found])
    rng = np.random.default_rng(seed)
    auc = _aucs(values, label[:, None])[:, 0]
    shuffled, paired = _shuffled(label, pairs, rng)
    beyond = np.abs(_aucs(values, shuffled) - 0.5)                                                  # (S, shuffles)
    observed = np.abs(auc - 0.5)[:, None] - 1e-12
    p = (1 + (beyond >= observed).sum(1)) / (1 + beyond.shape[1])
    p_adjusted = (1 + (beyond.max(0) >= observed).sum(1)) / (1 + beyond.shape[1])
    null = _null(values, label if n_image >= n_text else ~label, rng)                               # (S, splits)

    def separated(n: int, where: str, of_null: np.ndarray) -> Separated:
        one, known = scores[n], np.isfinite(scores[n].values)
        low, high = np.quantile(of_null, (0.025, 0.975))
        before = None if one.before is None else float(_aucs(one.before[None], label[:, None])[0, 0])
        return Separated(one.quantity, where, float(auc[n]), float(low), float(high),
                         float(one.values[label & known].mean()), float(one.values[~label & known].mean()),
                         float(p[n]), float(p_adjusted[n]), before, int((label & known).sum()),
                         int((~label & known).sum()), one.is_mass)

    result = [separated(n, score.where, null[n]) for n, score in enumerate(scores) if not score.is_head]
    for quantity in dict.fromkeys(score.quantity for score in scores if score.is_head):
        heads = np.array([n for n, score in enumerate(scores) if score.is_head and score.quantity == quantity])
        order = heads[np.argsort(auc[heads])]
        for n, what, extreme in ((order[-1], "highest", np.max), (order[0], "lowest", np.min)):
            # What a search among as many heads finds where there is nothing to find.
            result.append(separated(n, f"{scores[n].where} ({what} of {len(heads)})", extreme(null[heads], 0)))
    return Separation(n_image, n_text, len(scores), paired, n_models, tuple(result),
                      _held_out(scores, label, pairs, rng))


def _scores(means: Sequence[WindowMeans], band: Where) -> list[_Score]:
    mass, text = np.stack([one.mass for one in means]), np.stack([one.generated for one in means])  # (n, W, L, H)
    changed = np.stack([one.region if one.n_region_tokens else np.full_like(one.region, np.nan) for one in means])
    by_head = {"image after": (mass[:, AFTER], mass[:, BEFORE]),
               "image, after - before": (mass[:, AFTER] - mass[:, BEFORE], None),
               "image in the phrase": (mass[:, PHRASE], mass[:, BEFORE]),
               "changed part after": (changed[:, AFTER], changed[:, BEFORE]),
               "own text after": (text[:, AFTER], text[:, BEFORE])}
    no_sink = np.stack([one.measure("without sink") for one in means]) / 100                        # (n, W, L)
    enriched = np.stack([one.enrichment for one in means])
    by_layer = {name: tuple(part if part is None else part.mean(2) for part in both) for name, both in by_head.items()}
    by_layer |= {"image after, without sink": (no_sink[:, AFTER], no_sink[:, BEFORE]),
                 "enrichment after": (enriched[:, AFTER], enriched[:, BEFORE])}
    layers = means[0].layers
    wheres = [(WHOLE, tuple(range(len(layers))))]
    wheres += [(band.name, band.at)] if len(band.at) > 1 else []             # a single one is among the layers
    wheres += [(f"layer {layer}", (n,)) for n, layer in enumerate(layers)] if len(layers) > 1 else []
    scores = []
    for quantity, both in by_layer.items():
        for where, at in wheres:
            values, before = (part if part is None else part[:, at].mean(1) for part in both)
            scores.append(_Score(quantity, where, values, before, is_mass=quantity != "enrichment after"))
    for quantity, (values, before) in by_head.items():
        if values.shape[2] > 1:
            scores += [_Score(quantity, f"layer {layer} head {head}", values[:, n, head],
                              before if before is None else before[:, n, head], is_head=True)
                       for n, layer in enumerate(layers) for head in range(values.shape[2])]
    return scores


def _n_known(values: np.ndarray, label: np.ndarray) -> int:
    known = np.isfinite(values)
    return min(int((label & known).sum()), int((~label & known).sum()))


def _aucs(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(S, K) AUC of scores (S, n) for labels (n, K), ties counting half, over the trials that have the score."""
    known = np.isfinite(values)
    ranks = np.where(known, rankdata(values, axis=1, nan_policy="omit"), 0)
    n_first = known.astype(float) @ labels
    n_second = known.sum(1)[:, None] - n_first
    return (ranks @ labels - n_first * (n_first + 1) / 2) / np.maximum(n_first * n_second, 1)


def _shuffled(label: np.ndarray, pairs: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, bool]:
    """(n, shuffles) labels as chance would give them, and whether they stay within their pairs."""
    names, of = np.unique(pairs, return_inverse=True)
    n_image = np.bincount(of[label], minlength=len(names))
    n_text = np.bincount(of[~label], minlength=len(names))
    if (n_image == 1).all() and (n_text == 1).all():
        return label[:, None] ^ rng.integers(0, 2, (len(names), N_SHUFFLES)).astype(bool)[of], True
    return np.stack([rng.permutation(label) for _ in range(N_SHUFFLES)], 1), False


def _null(values: np.ndarray, kind: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(S, splits) AUC between random halves of one kind of trials."""
    half = np.arange(int(kind.sum())) < int(kind.sum()) // 2
    return _aucs(values[:, kind], np.stack([rng.permutation(half) for _ in range(N_SPLITS)], 1))


def _held_out(scores: Sequence[_Score], label: np.ndarray, pairs: np.ndarray,
              rng: np.random.Generator) -> tuple[HeldOut, ...]:
    """Both ways: a random half of the pairs to choose, the rest to check.  Of scores that all trials have."""
    heads = [score for score in scores if score.is_head and np.isfinite(score.values).all()]
    names = np.unique(pairs)
    half = np.isin(pairs, rng.permutation(names)[::2])
    if not heads or min((kind & part).sum() for kind in (label, ~label) for part in (half, ~half)) < MIN_TRIALS:
        return ()
    values = np.stack([score.values for score in heads])
    found = []
    for part in (half, ~half):
        here, there = (_aucs(values[:, of], label[of, None])[:, 0] for of in (part, ~part))
        best = int(np.argmax(np.abs(here - 0.5)))
        turned = here[best] < 0.5
        found.append(HeldOut(f"{heads[best].quantity}, {heads[best].where}" + (" (less of it)" if turned else ""),
                             float(1 - here[best] if turned else here[best]),
                             float(1 - there[best] if turned else there[best])))
    return tuple(found)


def words(found: Separation) -> list[str]:
    """What separates and what does not, in sentences."""
    if not found.enough:
        return [f"{found.n_image} trials follow the image and {found.n_text} their text: at least {MIN_TRIALS} of each "
                "are needed to ask what separates them (give models of both kinds, such as control:grounded and "
                "control:anchored)."]
    shuffled = "within pairs" if found.paired else "over all trials"
    lines = [f"{found.n_image} trials follow the image, {found.n_text} their text.  {found.n_scores} scores were "
             f"tried.  They differ where p among all of them is at most {ALPHA} (labels shuffled {shuffled}), and "
             f"separate where beside that the AUC is {APART:g} or more, or {1 - APART:.1g} or less, and the text "
             "before the phrase does not show the same."]
    if found.n_models > 1:
        lines.append("Which kind a trial is of goes with the model here, so what differs may be a mark of their "
                     "weights; within one model that does both it would be one of looking.")
    for title, group in found.by_kind().items():
        if group:
            separate = [_in_words(one) for one in group if one.separates]
            already = [_in_words(one) for one in group if one.differs and one.was_there]
            differ = [_in_words(one) for one in group if one.differs and not one.separates and not one.was_there]
            neither: dict[str, list[float]] = {}
            for one in group:
                if not one.differs:
                    neither.setdefault(one.quantity, []).append(one.auc)
            left = [f"{quantity} ({_range(aucs)})" for quantity, aucs in neither.items()]
            lists = {"Separate": separate, "Differ and overlap": differ, "Differ before the phrase already": already,
                     "Do not differ": left}
            lines.append(f"{title}.  " + "  ".join(f"{name}: {'; '.join(of)}." for name, of in lists.items()
                                                   if of or name == "Separate").replace(": .", ": none."))
    negligible = [one.name for one in found.scores if one.is_negligible and one.p_adjusted <= ALPHA]
    if negligible:
        lines.append(f"Less than {100 * NEGLIGIBLE:g} % of the attention, so not counted: "
                     + "; ".join(negligible) + ".")
    lines += [f"Held out: the best single head on one half of the pairs, {one.name}, has AUC {one.chosen:.2f} there "
              f"and {one.held_out:.2f} on the other half." for one in found.held_out]
    return lines


def _in_words(one: Separated) -> str:
    before = "" if one.auc_before is None else f", before {one.auc_before:.2f}"
    return f"{one.name} (AUC {one.auc:.2f}{before})"


def _range(aucs: Sequence[float]) -> str:
    low, high = (f"{of(aucs):.2f}" for of in (min, max))
    return low if low == high else f"{low} to {high}"
