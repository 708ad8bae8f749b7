"""Swap pairs from regenerated items: two states of one slot, one question, two answers (VisualSwap, Sec. 3).

    found = pairs_of_items({1: items_of_seed_1, 2: items_of_seed_2})
    found.plans, found.skipped                              # what can be asked; and why the rest cannot, with counts

An item that asks for an attribute has one slot, edited on the source and on nothing else.  So the source and the item's
image differ in that slot alone, and so do the images of two items of one slot and object: the question is the same, and
the answers are what the annotator wrote down and what the seeds drew.  No label rests on a look at pixels.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rekey.draws import Draws
from rekey.qa import N_OPTIONS, annotated_values, attribute_text
from rekey.records import Attribute, Item, VisualKey, option_letter
from rekey.sampling import VALUES

SOURCE = "source"
"""Names the image before any edit, where a seed would name an instance."""


@dataclass(frozen=True)
class State:
    """One image of a slot, and what the slot shows in it.  item: None for the source."""

    name: str
    """"source", or "seed1"."""
    value: str
    item: Item | None


@dataclass(frozen=True)
class PairPlan:
    """A pair to be, its images not yet looked at."""

    pair_id: str
    key: VisualKey
    """The slot and its object; the value that it carries says nothing."""
    attribute: Attribute
    a: State
    b: State
    question: str
    options: tuple[str, ...]

    @property
    def image_id(self) -> str:
        return self.key.slot.image_id

    def answer(self, state: State) -> str:
        return option_letter(self.options.index(state.value))

    def source(self) -> dict[str, Any]:
        """Where it comes from, as plain JSON."""
        return {"from": "items", "image_id": self.image_id, "slot_id": self.key.slot.slot_id, "mode": self.key.mode,
                "object": self.key.object, "attribute": self.attribute,
                "a": {"image": self.a.name, "value": self.a.value}, "b": {"image": self.b.name, "value": self.b.value}}


@dataclass(frozen=True)
class Found:
    """All pairs that the items give.  skipped: how many things gave none, by reason."""

    plans: tuple[PairPlan, ...]
    skipped: dict[str, int]


def pairs_of_items(instances: Mapping[int, Sequence[Item]]) -> Found:
    """Every pair that items of several seeds give.

    For each slot and object: an item's image against the source, where the annotation tells what that showed; and two
    items' images, where their values differ.  As in the paper, image a is the edited one and b the original; of two
    edited ones a is of the lower seed.
    """
    skipped: Counter[str] = Counter()
    groups: dict[tuple, list[tuple[int, Item]]] = {}
    for seed in sorted(instances):
        for item in instances[seed]:
            if (reason := _unusable(item)) is not None:
                skipped[reason] += 1
                continue
            groups.setdefault(_what_else(item), []).append((seed, item))
    plans: dict[str, PairPlan] = {}
    for found in groups.values():
        for plan in _plans(found, skipped):
            # Two objects may go by one name in a file name ("Red car", "red car").
            number = next(n for n in itertools.count(1) if _numbered(plan.pair_id, n) not in plans)
            plan = replace(plan, pair_id=_numbered(plan.pair_id, number))
            plans[plan.pair_id] = plan
    return Found(tuple(plans.values()), dict(skipped))


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _unusable(item: Item) -> str | None:
    if item.record is None:
        return "items without a sampling record: not made by `rekey generate`"
    if item.record.question_type == "position":
        return "position items: recoloring moves nothing, so that both images have one answer"
    return None


def _what_else(item: Item) -> tuple:
    """All that two images of a pair share: image, slot, object, and every attribute but the one asked about."""
    (key,) = item.record.keys
    attribute = item.record.attribute
    slot = replace(key.slot, clutter=None)
    return slot, key.mode, key.object, attribute, replace(key, slot=slot, **{attribute: None})


def _plans(found: Sequence[tuple[int, Item]], skipped: Counter[str]) -> Iterator[PairPlan]:
    """The pairs of one slot and object."""
    attribute, (key,) = found[0][1].record.attribute, found[0][1].record.keys
    states = [State(f"seed{seed}", item.record.keys[0].value(attribute), item) for seed, item in found]
    old = annotated_values(key, attribute)
    if key.mode == "add":
        skipped["added objects against the source, which does not show them"] += len(states)
    elif len(old) != 1:
        skipped[f"{attribute} against the source, whose {attribute} the annotation "
                + ("leaves open" if old else "does not tell")] += len(states)
    else:
        before = State(SOURCE, *old, None)
        yield from (_plan(key, attribute, old, after, before) for after in states if after.value != before.value)
    for a, b in itertools.combinations(states, 2):
        if a.value == b.value:
            skipped["two seeds that gave one slot one value"] += 1
        else:
            yield _plan(key, attribute, old, a, b)


def _plan(key: VisualKey, attribute: Attribute, old: frozenset[str], a: State, b: State) -> PairPlan:
    slot = key.slot
    name = "-".join(map(_file_name, (slot.image_id, slot.slot_id, key.object, a.name, b.name)))
    draws = Draws("pair options", name)
    pool = [value for value in VALUES[attribute] if value not in (a.value, b.value)]
    # What the object had may be half right ("red-and-white"); patterns are too few to do without.
    kept = [value for value in pool if attribute == "pattern" or value not in old]
    options = draws.shuffled([a.value, b.value, *draws.shuffled(kept)[:N_OPTIONS - 2]])
    return PairPlan(name, key, attribute, a, b, attribute_text(key, attribute), tuple(options))


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text)[:60]
