"""Seed -> sampling record (ReKey, Sec. 3.2 and Appendix B).

    pool   = Pool(image_slots, SamplingOptions())
    record = pool.sample(seed=7)                      # or raises NoItem, with the reason
    pool.size()                                       # how many items the image can give

A record is a pure function of (the image's slots, options, seed): adding an image to the annotation
file changes no other image's record.  Constraints hold while drawing, not by repair afterwards:

- a renewed color is never the old one, nor any part of it ("orange-and-white");
- an added object is of no kind that any target in the image names, as object or as owner;
- an attribute question's object is named by one target only;
- a position question names two different kinds of objects, whose edits do not touch, with centers
  at least MIN_SEPARATION_PX apart on the axis it asks about.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from typing import Literal

from rekey.colors import COLORS
from rekey.difficulty import Difficulty, DifficultyWeights
from rekey.draws import Draws
from rekey.geometry import MAX_MASK_MARGIN_PX
from rekey.plausible import Plausible
from rekey.records import PATTERNS, Attribute, ImageSlots, Mode, QuestionType, SamplingRecord, Slot, VisualKey
from rekey.references import Reference, could_mean, kind, parse_reference, scene_nouns

MIN_SEPARATION_PX = 20
MAX_DRAWS = 64                # random draws before the rest of the pool is listed
ATTRIBUTE_SHARE = 0.6         # of images without a category: 115 of the 191 V*Bench questions

_QUESTION_OF: dict[str | None, QuestionType] = {"direct_attributes": "attribute", "relative_position": "position"}
VALUES: dict[str, tuple[str, ...]] = {
    "color": COLORS,
    "pattern": PATTERNS,
    "material": ("plastic", "metal", "wood", "glass", "leather", "paper", "fabric", "rubber"),
}

class NoItem(Exception):
    """The image cannot give an item under the options; the message says why."""


@dataclass(frozen=True)
class SamplingOptions:
    """What to draw.  All of it is part of what a record depends on."""

    question_type: Literal["auto", "attribute", "position"] = "auto"
    """auto: the category of the original question decides."""
    attribute: Attribute = "color"
    difficulty: Difficulty | None = None
    plausible: Plausible | None = None


@dataclass(frozen=True)
class Content:
    """One thing a slot can show: an object, and the values its attribute may take."""

    slot: Slot
    mode: Mode
    object: str
    kind: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class PoolSize:
    """Numbers of items derivable from one image, told apart by what is painted where (Sec. 3.2).

    Several may have one question and answer; `Pool.identities` tells those that differ in these.
    """

    attribute_formula: int
    """Sum of n_k over the slots, without any constraint."""
    position_formula: int
    """Sum of n_j n_k over slot pairs, without any constraint."""
    attribute: int
    position: int

    def __add__(self, other: PoolSize) -> PoolSize:
        return PoolSize(self.attribute_formula + other.attribute_formula,
                        self.position_formula + other.position_formula,
                        self.attribute + other.attribute, self.position + other.position)


def asked_axis(first: Slot, second: Slot) -> Literal["horizontal", "vertical"] | None:
    """The axis a position question about two slots asks about: the one their centers differ on most.

    None where they are closer than MIN_SEPARATION_PX on it, so that no answer would be certain.
    """
    (x1, y1), (x2, y2) = first.edit.center, second.edit.center
    dx, dy = abs(x1 - x2), abs(y1 - y2)
    if max(dx, dy) < MIN_SEPARATION_PX:
        return None
    return "horizontal" if dx >= dy else "vertical"


def identity(record: SamplingRecord) -> str:
    """What makes two items of an image the same for a model that remembers: question and answer.

    Two records that differ only in what the question does not name (which of two places an added
    object stands in, or the color of one in a position question) have one identity.
    """
    def name(key: VisualKey) -> str:
        return parse_reference(key.object).object.lower()

    if record.question_type == "attribute":
        (key,) = record.keys
        said = (name(key), key.value(record.attribute))
    else:
        first, second = record.keys
        axis = asked_axis(first.slot, second.slot)
        n = 1 if axis == "vertical" else 0
        in_order = sorted(record.keys, key=lambda key: key.slot.edit.center[n])
        said = (axis, *(f"{key.value(record.attribute)} {name(key)}" if key.mode == "replace" else name(key)
                        for key in in_order))
    return "|".join((record.image_id, record.question_type, record.attribute, *said))


def scene_kinds(image: ImageSlots) -> dict[str, str]:
    """Kind (and full name) of everything that the image's targets name -> the target that names it.

    Such things are in the scene already, so none of their kind is added (Appendix B).
    """
    found: dict[str, str] = {}
    for target in (target for slot in image.slots for target in slot.targets):
        reference = parse_reference(target)
        for name in (reference.object.lower(), *map(kind, scene_nouns(reference))):
            found.setdefault(name, target)
    return found


def others_meant(image: ImageSlots, slot: Slot, target: str) -> list[str]:
    """Other targets of the image that the name of this one could mean as well."""
    others = [t for s in image.slots for t in s.targets if (s.slot_id, t) != (slot.slot_id, target)]
    return [other for other in others if could_mean(target, other)]


@dataclass
class Pool:
    """All that one image can show under the options, and draws from it."""

    image: ImageSlots
    options: SamplingOptions = field(default_factory=SamplingOptions)

    def __post_init__(self) -> None:
        self.excluded: list[str] = []
        """Why contents are missing, one line each."""
        contents = [c for slot in self.image.slots for c in self._contents(slot)]
        weigh = DifficultyWeights(self.image, self.options.difficulty)
        self._single: dict[str, list[Content]] = {}
        for content in contents:
            if self._named_once(content):
                self._single.setdefault(content.slot.slot_id, []).append(content)
        self._pairs: dict[tuple[str, str], list[tuple[Content, Content]]] = {}
        for first, second in itertools.combinations(contents, 2):
            if self._can_be_compared(first, second):
                self._pairs.setdefault((first.slot.slot_id, second.slot.slot_id), []).append((first, second))
        self._weights = ({key: weigh(found[0].slot) for key, found in self._single.items()}
                         | {key: weigh(*(c.slot for c in found[0])) for key, found in self._pairs.items()})

    # ------------------------------------------------------------------- what can be shown

    def _contents(self, slot: Slot) -> Iterator[Content]:
        taken = scene_kinds(self.image)
        if slot.mode in ("replace", "either"):
            for target in slot.targets:
                reference = parse_reference(target)
                old = self._old_values(reference)
                values = tuple(v for v in VALUES[self.options.attribute] if v not in old)
                yield from self._plausible_content(slot, "replace", target, reference.head, values)
        if slot.mode in ("add", "either"):
            for noun in slot.candidates:
                head = parse_reference(noun).head
                if kind(head) in taken or noun.lower() in taken:
                    self.excluded.append(f"{slot.slot_id}: a {noun} would not be the only one in the scene")
                    continue
                yield from self._plausible_content(slot, "add", noun, head, VALUES[self.options.attribute])

    def _old_values(self, reference: Reference) -> frozenset[str]:
        if self.options.attribute == "color":
            return reference.colors
        if self.options.attribute == "pattern":
            # A target without a pattern word is taken for plain: "plain" would ask for no change.
            return frozenset((reference.pattern or "plain",))
        return frozenset(reference.object.lower().split())

    def _plausible_content(self, slot, mode, noun, head, values) -> Iterator[Content]:
        if self.options.plausible is not None:
            allowed = self.options.plausible.values(noun, head, self.options.attribute)
            if allowed is not None:
                values = tuple(v for v in values if v in allowed)
        if values:
            yield Content(slot, mode, noun, kind(head), values)
        else:
            self.excluded.append(f"{slot.slot_id}: no {self.options.attribute} is left for the {noun}")

    def _named_once(self, content: Content) -> bool:
        """Whether "the {object}" means one thing in the image."""
        others = others_meant(self.image, content.slot, content.object) if content.mode == "replace" else []
        if others:
            self.excluded.append(f"{content.slot.slot_id}: {content.object} and {others[0]} are named alike")
        return not others

    def _can_be_compared(self, first: Content, second: Content) -> bool:
        return (first.slot.slot_id != second.slot.slot_id and first.kind != second.kind
                and asked_axis(first.slot, second.slot) is not None
                and not first.slot.edit.grown(MAX_MASK_MARGIN_PX).intersects(second.slot.edit.grown(MAX_MASK_MARGIN_PX))
                and bool(self._named_values(first)) and bool(self._named_values(second)))

    def _named_values(self, content: Content) -> tuple[str, ...]:
        """Values under which a position question's phrase means this object alone."""
        if content.mode == "add":
            return content.values
        others = [self._old_values(parse_reference(t)) for t in others_meant(self.image, content.slot, content.object)]
        if not all(others):             # the police car may have any color, this one's new color as well
            return ()
        return tuple(v for v in content.values if not any(v in taken for taken in others))

    # ----------------------------------------------------------------------------- drawing

    def sample(self, seed: int, avoid: Set[str] = frozenset(), first_draw: int = 0,
               usable: Callable[[SamplingRecord], bool] | None = None) -> SamplingRecord:
        """The record of a seed: the first draw, from `first_draw` on, that is not avoided, and usable.

        avoid: identities of released items.  usable: False for records that cannot be made.
        Raises NoItem where the image has none to give.
        """
        def wanted(record: SamplingRecord) -> bool:
            return not (avoid and identity(record) in avoid) and (usable is None or usable(record))

        for draw in range(first_draw, first_draw + MAX_DRAWS):
            if wanted(record := self._draw(seed, draw)):
                return record
        question_type = self._question_type(seed)
        rest = [r for r in self.records(seed, first_draw + MAX_DRAWS) if r.question_type == question_type]
        left = {identity(r): r for r in rest if wanted(r)}
        if not left:
            names = {identity(r) for r in rest}
            raise NoItem(f"of {len(names)} {question_type} items of this image none is left: {len(names & avoid)} are "
                         f"in the ledger{'' if usable is None else ', the others could not be made'}")
        return left[Draws("left", self.image.image_id, seed, first_draw).choice(sorted(left))]

    def _question_type(self, seed: int) -> QuestionType:
        if self.options.question_type != "auto":
            return self.options.question_type
        if self.image.category in _QUESTION_OF:
            return _QUESTION_OF[self.image.category]
        heads = Draws("question type", self.image.image_id, seed).uniform() < ATTRIBUTE_SHARE
        return "attribute" if heads else "position"

    def _draw(self, seed: int, draw: int) -> SamplingRecord:
        draws = Draws("record", self.image.image_id, seed, draw)
        question_type = self._question_type(seed)
        if question_type == "attribute":
            content = draws.choice(self._single[self._weighted(draws, self._single, question_type)])
            keys = (self._key(content, draws.choice(content.values), draws),)
        else:
            pair = draws.choice(self._pairs[self._weighted(draws, self._pairs, question_type)])
            keys = tuple(self._key(content, draws.choice(self._named_values(content)), draws)
                         for content in draws.shuffled(pair))
        return SamplingRecord(self.image.image_id, seed, question_type, self.options.attribute, keys, draw)

    def _weighted(self, draws: Draws, contents: dict, question_type: str):
        if not contents:
            reason = "; ".join(dict.fromkeys(self.excluded)) or "too few slots, or slots too close to each other"
            raise NoItem(f"no {question_type} question is possible: {reason}")
        weights = [self._weights[key] for key in contents]
        if not sum(weights):
            raise NoItem(f"no slot of difficulty {self.options.difficulty} fits the {question_type} question")
        return draws.weighted(list(contents), weights)

    def _key(self, content: Content, value: str, draws: Draws) -> VisualKey:
        attribute = self.options.attribute
        # An inserted object needs a color even where the question is about something else.
        color = draws.choice(COLORS) if content.mode == "add" and attribute != "color" else None
        return VisualKey(content.slot, content.mode, content.object, **({"color": color} | {attribute: value}))

    def keys(self, seed: int) -> Iterator[VisualKey]:
        """Every key that some record of the seed may hold; repeats where several questions share one."""
        if self._question_type(seed) == "attribute":
            contents = [c for found in self._single.values() for c in found]
        else:
            contents = [c for pairs in self._pairs.values() for pair in pairs for c in pair]
        for content in dict.fromkeys(contents):
            colors = COLORS if content.mode == "add" and self.options.attribute != "color" else (None,)
            for value, color in itertools.product(content.values, colors):
                yield VisualKey(content.slot, content.mode, content.object,
                                **({"color": color} | {self.options.attribute: value}))

    # ---------------------------------------------------------------------------- counting

    def records(self, seed: int = 0, draw: int = 0) -> Iterator[SamplingRecord]:
        """Records of both question types that reach every identity (two places may share one)."""
        def record(question_type: QuestionType, *keys: VisualKey) -> SamplingRecord:
            return SamplingRecord(self.image.image_id, seed, question_type, self.options.attribute, keys, draw)

        draws = Draws("unnamed colors", self.image.image_id, seed, draw)
        for slot_id, contents in self._single.items():
            for content in contents if self._weights[slot_id] else ():
                for value in content.values:
                    yield record("attribute", self._key(content, value, draws))
        for slot_ids, pairs in self._pairs.items():
            for pair in pairs if self._weights[slot_ids] else ():
                named = [self._named_values(c) if c.mode == "replace" else (draws.choice(c.values),) for c in pair]
                for values in itertools.product(*named):
                    yield record("position", *(self._key(c, v, draws) for c, v in zip(pair, values, strict=True)))

    def identities(self) -> set[str]:
        """Identities of all items that some seed could ask for."""
        known = self.options.question_type != "auto" or self.image.category in _QUESTION_OF
        return {identity(r) for r in self.records() if not known or r.question_type == self._question_type(0)}

    def size(self) -> PoolSize:
        n = len(VALUES[self.options.attribute])
        counts = [n * (len(slot.targets) * (slot.mode != "add") + len(slot.candidates) * (slot.mode != "replace"))
                  for slot in self.image.slots]
        return PoolSize(
            attribute_formula=sum(counts),
            position_formula=sum(a * b for a, b in itertools.combinations(counts, 2)),
            attribute=sum(len(c.values) for slot_id, contents in self._single.items() if self._weights[slot_id]
                          for c in contents),
            position=sum(len(self._named_values(a)) * len(self._named_values(b))
                         for slot_ids, pairs in self._pairs.items() if self._weights[slot_ids] for a, b in pairs))
