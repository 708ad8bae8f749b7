"""How good an annotator's slots are, measured against a person's on the same images (ReKey, Sec. 4.4, Table 3).

    study = annotator_study(read_slots("slots.jsonl"), proposed, np.random.default_rng(0))
    study.usable, study.found                   # of the proposed replace slots, and of the marked targets
    study.add_size.ratio                        # proposed median area / human median area, with its interval

A replace slot has a right place, the target's, and can be scored against it.  An add slot has none: wherever a new
object looks natural will do.  Of those the sizes are compared, how far from the center they are, and whether they
touch a target.  The paper judged usability by eye; here it is a `Criterion` in stated numbers, which says the same of
the same boxes every time.  What there is nothing to say of is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linear_sum_assignment

from rekey.errors import InputError
from rekey.geometry import Box
from rekey.records import ImageSlots, Slot
from rekey.references import kind, parse_reference, scene_nouns
from rekey.sampling import scene_kinds
from rekey.stats import LEVEL, N_DRAWS, Estimate, proportion

_WORDS_WORTH = 1e-6          # of fitting words, in IoU: decides between equals


@dataclass(frozen=True)
class Criterion:
    """When a proposed replace slot is usable: it covers its target, and little else.

    min_coverage: share of the human box that it holds.  Below one half, an edit confined to it leaves most of the
    object in its old color, and the answer is wrong.
    max_area_ratio: its area in human boxes.  At four, twice as long on each side, three quarters of it are not the
    target; beyond, other things change with it, and the slot no longer has the target's scale (Sec. 4.3).
    by_words: it must not be meant for another target: one that its words fit, while they do not fit this one's.  That
    they fit this one's is not asked: of 251 names in V*Bench's own questions, 46 have a noun that the annotators do not
    ("dress" for "red skirt", "telephone" for "orange phone").  The share whose words do fit is reported beside.
    max_overlap: an add slot is usable where it holds at most this share of any target, and at least one of its objects
    is of no kind that the targets name (Appendix B).
    """

    min_coverage: float = 0.5
    max_area_ratio: float = 4.0
    by_words: bool = True
    max_overlap: float = 0.0


# ------------------------------------------------------------------------------------- two boxes

def overlap_px2(a: Box, b: Box) -> int:
    """Area that two boxes share."""
    return Box(max(a.left, b.left), max(a.top, b.top), min(a.right, b.right), min(a.bottom, b.bottom)).area_px2


def iou(a: Box, b: Box) -> float:
    """Intersection over union, in [0, 1]; 0 for empty boxes."""
    shared = overlap_px2(a, b)
    return shared / (a.area_px2 + b.area_px2 - shared) if shared else 0.0


def coverage(box: Box, target: Box) -> float:
    """Share of the target that the box holds, in [0, 1]."""
    return overlap_px2(box, target) / target.area_px2 if target.area_px2 else 0.0


def center_inside(box: Box, target: Box) -> bool:
    """Whether the center of the box lies in the target ("pointing game")."""
    x, y = box.center
    return target.left <= x < target.right and target.top <= y < target.bottom


def eccentricity(box: Box, size: tuple[int, int]) -> float:
    """Distance of the box's center from that of an image of `size` (width, height): 0 there, 1 in a corner."""
    x, y = box.center
    return min(1.0, math.hypot(x / size[0] - 0.5, y / size[1] - 0.5) / math.hypot(0.5, 0.5))


def same_target(said: str, marked: str) -> bool:
    """Whether two descriptions may be of one object: the noun of one is named by the other.

    Lenient, since the boxes decide the rest: "dog in an orange vest" for "orange life vest on the dog".
    """
    first, second = parse_reference(said), parse_reference(marked)
    return (kind(first.head) in map(kind, scene_nouns(second))) or (kind(second.head) in map(kind, scene_nouns(first)))


# --------------------------------------------------------------------------------- replace slots

@dataclass(frozen=True)
class ReplaceScore:
    """A proposed replace slot against its target; None where no target is left for it.

    best_iou: with whichever target of the image it lies on best.  area_ratio: proposed area / human area.
    named: its words fit its target's.
    """

    image_id: str
    slot_id: str
    human_slot_id: str | None
    area_px2: int
    best_iou: float | None
    iou: float | None
    coverage: float | None
    area_ratio: float | None
    center_inside: bool | None
    named: bool | None
    usable: bool


def score_replace(human: ImageSlots, proposed: ImageSlots, criterion: Criterion = Criterion()) -> list[ReplaceScore]:
    """Every proposed replace slot of an image, matched one to one with the human ones.

    The matching (Hungarian) has the highest sum of IoU, and among equals the most fitting words.  Slots that are meant
    for another target, or beyond the number of targets, stay without one: they are not usable.
    """
    targets, slots = slots_of_mode(human, "replace"), slots_of_mode(proposed, "replace")
    shape = len(slots), len(targets)
    overlaps = np.array([[iou(slot.edit, target.edit) for target in targets] for slot in slots]).reshape(shape)
    fits = np.array([[_named(slot, target) for target in targets] for slot in slots], bool).reshape(shape)
    barred = criterion.by_words & fits.any(1, keepdims=True) & ~fits
    rows, columns = linear_sum_assignment(np.where(barred, 0, overlaps + _WORDS_WORTH * fits), maximize=True)
    matched = {row: column for row, column in zip(rows.tolist(), columns.tolist()) if not barred[row, column]}
    scores = []
    for n, slot in enumerate(slots):
        best = float(overlaps[n].max()) if targets else None
        if n not in matched:
            scores.append(ReplaceScore(slot.image_id, slot.slot_id, None, slot.edit.area_px2, best, None, None, None,
                                       None, None, False))
            continue
        target = targets[matched[n]]
        covered, ratio = coverage(slot.edit, target.edit), slot.edit.area_px2 / target.edit.area_px2
        usable = covered >= criterion.min_coverage and ratio <= criterion.max_area_ratio
        scores.append(ReplaceScore(slot.image_id, slot.slot_id, target.slot_id, slot.edit.area_px2, best,
                                   float(overlaps[n, matched[n]]), covered, ratio,
                                   center_inside(slot.edit, target.edit), bool(fits[n, matched[n]]), usable))
    return scores


def _named(slot: Slot, target: Slot) -> bool:
    return any(same_target(said, marked) for said in slot.targets for marked in target.targets)


def slots_of_mode(image: ImageSlots, mode: str) -> list[Slot]:
    """Its slots of a mode; one of mode "either" is of both."""
    return [slot for slot in image.slots if slot.mode in (mode, "either")]


# ------------------------------------------------------------------------------------- add slots

@dataclass(frozen=True)
class AddScore:
    """Where an add slot stands.  target_overlap: the largest share of any human target that its edit box holds.

    eccentricity: None where the size of the image is not known.  usable: see `Criterion.max_overlap`.
    """

    image_id: str
    slot_id: str
    area_px2: int
    eccentricity: float | None
    target_overlap: float
    usable: bool


def score_add(human: ImageSlots, proposed: ImageSlots, criterion: Criterion = Criterion()) -> list[AddScore]:
    """Every proposed add slot of an image, against the targets that a person marked there."""
    targets, present = slots_of_mode(human, "replace"), scene_kinds(human)
    size = human.image_size or proposed.image_size
    scores = []
    for slot in slots_of_mode(proposed, "add"):
        held = max((coverage(slot.edit, target.edit) for target in targets), default=0.0)
        absent = [name for name in slot.candidates
                  if name.lower() not in present and kind(parse_reference(name).head) not in present]
        scores.append(AddScore(slot.image_id, slot.slot_id, slot.edit.area_px2, size and eccentricity(slot.edit, size),
                               held, held <= criterion.max_overlap and bool(absent)))
    return scores


# ----------------------------------------------------------------------------------------- sizes

@dataclass(frozen=True)
class SizeComparison:
    """Median edit areas of two sets of slots on the same images.

    ratio: proposed / human, with a bootstrap interval over images (the slots of an image travel together).
    n_images: those with a slot of either set.
    """

    human_median_px2: float | None
    proposed_median_px2: float | None
    n_human: int
    n_proposed: int
    n_images: int
    ratio: Estimate


def compare_sizes(human: Mapping[str, Sequence[int]], proposed: Mapping[str, Sequence[int]],
                  rng: np.random.Generator, level: float = LEVEL, n_draws: int = N_DRAWS) -> SizeComparison:
    """Areas (px2) per image id of two annotators, compared by their medians.

    The percentile interval of the ratio resamples images; draws in which a side has no slot are left out.
    """
    image_ids = sorted({image_id for side in (human, proposed) for image_id, areas in side.items() if len(areas)})
    first, second = (_Areas(side, image_ids) for side in (human, proposed))
    medians = [side.median for side in (first, second)]
    ratio = Estimate(None, None, None, len(image_ids))
    if None not in medians and medians[0]:
        low, high = None, None
        weights = rng.multinomial(len(image_ids), np.full(len(image_ids), 1 / len(image_ids)), n_draws)
        below, above = first.medians(weights), second.medians(weights)
        drawn = (above / below)[~(np.isnan(below) | np.isnan(above))]
        if len(drawn):
            low, high = (float(q) for q in np.quantile(drawn, ((1 - level) / 2, (1 + level) / 2)))
        ratio = Estimate(medians[1] / medians[0], low, high, len(image_ids))
    return SizeComparison(*medians, len(first.areas), len(second.areas), len(image_ids), ratio)


class _Areas:
    """All areas of one annotator, sorted, each with the image it is on."""

    def __init__(self, by_image: Mapping[str, Sequence[int]], image_ids: Sequence[str]):
        pairs = sorted((area, n) for n, image_id in enumerate(image_ids) for area in by_image.get(image_id, ()))
        self.areas = np.array([area for area, _ in pairs], float)                   # (n,)
        self.image = np.array([n for _, n in pairs], int)                           # (n,)

    @property
    def median(self) -> float | None:
        return float(np.median(self.areas)) if len(self.areas) else None

    def medians(self, weights: np.ndarray) -> np.ndarray:
        """(draws,) medians with image k taken weights[:, k] times; nan where none is.  weights: (draws, images)."""
        found = np.full(len(weights), np.nan)
        for start in range(0, len(weights), 1000):                                  # 1,000 x 485 counts at a time
            counts = np.cumsum(weights[start:start + 1000, self.image], axis=1)     # (draws, n)
            totals = counts[:, -1]
            some = totals > 0
            # The middle one of an odd number of areas; the mean of the middle two of an even number.
            middle = [self.areas[(counts <= place[:, None]).sum(1).clip(max=len(self.areas) - 1)]
                      for place in ((totals - 1) // 2, totals // 2)]
            found[start:start + 1000][some] = ((middle[0] + middle[1]) / 2)[some]
        return found


# ------------------------------------------------------------------------------- a whole annotator

@dataclass(frozen=True)
class Placement:
    """Medians over a set of add slots, and how many touch a target."""

    n: int
    area_px2: float | None
    eccentricity: float | None
    touching: Estimate


@dataclass(frozen=True)
class AnnotatorStudy:
    """Everything that Table 3 needs, and the scores that it is made from.

    n_images: images that the annotator was asked about; n_empty: those for which it proposed no slot.
    usable: of the proposed replace slots (the paper's row); found: of the human targets, those that a usable slot
    covers; add_usable: of the proposed add slots.
    pointed, named: of the proposed replace slots, those whose center lies in their target, whose words fit it.
    median_iou, median_coverage: over the proposed replace slots that have a target.
    human_add: the person's own add slots, measured alike.
    """

    criterion: Criterion
    n_images: int
    n_empty: int
    replace_size: SizeComparison
    add_size: SizeComparison
    usable: Estimate
    found: Estimate
    add_usable: Estimate
    pointed: Estimate
    named: Estimate
    median_iou: float | None
    median_coverage: float | None
    add: Placement
    human_add: Placement
    replace_scores: tuple[ReplaceScore, ...] = field(repr=False)
    add_scores: tuple[AddScore, ...] = field(repr=False)


def annotator_study(human: Mapping[str, ImageSlots], proposed: Mapping[str, ImageSlots], rng: np.random.Generator,
                    criterion: Criterion = Criterion(), n_draws: int = N_DRAWS) -> AnnotatorStudy:
    """Proposed slots against human ones, over the images in `proposed`.

    An image for which nothing usable was proposed belongs in `proposed` too, with no slots.  Raises InputError for
    images that no person marked.
    """
    strangers = [image_id for image_id in proposed if image_id not in human]
    if strangers:
        raise InputError(f"{len(strangers)} proposed images have no human slots ({', '.join(strangers[:5])}"
                         f"{', ...' if len(strangers) > 5 else ''}); give the annotation file of the same images")
    pairs = [(human[image_id], image) for image_id, image in proposed.items()]
    replace_scores = [score for pair in pairs for score in score_replace(*pair, criterion)]
    add_scores = [score for pair in pairs for score in score_add(*pair, criterion)]
    human_add = [score for image, _ in pairs for score in score_add(image, image, criterion)]
    n_targets = sum(len(slots_of_mode(image, "replace")) for image, _ in pairs)
    n_usable = sum(score.usable for score in replace_scores)
    matched = [score for score in replace_scores if score.human_slot_id is not None]
    sizes = [compare_sizes(*(_areas(images, mode) for images in zip(*pairs)), rng, n_draws=n_draws) if pairs
             else compare_sizes({}, {}, rng) for mode in ("replace", "add")]
    return AnnotatorStudy(
        criterion, len(pairs), sum(not image.slots for image in proposed.values()), *sizes,
        usable=proportion(n_usable, len(replace_scores)), found=proportion(n_usable, n_targets),
        add_usable=proportion(sum(score.usable for score in add_scores), len(add_scores)),
        pointed=proportion(sum(bool(score.center_inside) for score in replace_scores), len(replace_scores)),
        named=proportion(sum(bool(score.named) for score in replace_scores), len(replace_scores)),
        median_iou=_median(score.iou for score in matched),
        median_coverage=_median(score.coverage for score in matched),
        add=_placement(add_scores), human_add=_placement(human_add),
        replace_scores=tuple(replace_scores), add_scores=tuple(add_scores))


def _areas(images: Iterable[ImageSlots], mode: str) -> dict[str, list[int]]:
    return {image.image_id: [slot.edit.area_px2 for slot in slots_of_mode(image, mode)] for image in images}


def _placement(scores: Sequence[AddScore]) -> Placement:
    return Placement(len(scores), _median(score.area_px2 for score in scores),
                     _median(score.eccentricity for score in scores),
                     proportion(sum(score.target_overlap > 0 for score in scores), len(scores)))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
