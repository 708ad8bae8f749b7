"""The answers of each model in an audit, side by side: original, relabeled, and renewed benchmarks.

    sheets, notes = read_sheets([original], [seed1, seed2], [], "strict")
    sheets["control:clean"].matrix(images)                  # (images, seeds) of 1, 0 or nan
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rekey.answers import Parser
from rekey.errors import InputError
from rekey.grading import Graded, grade

Answers = dict[str, Graded]                     # by image
UNCERTAIN = ("unparsed", "truncated", "error")
_VALUES = {"correct": 1.0, "error": np.nan}


@dataclass
class Sheet:
    """The answers of one model: to the original, the relabeled, and each renewed benchmark ("seed 3")."""

    original: Answers
    relabel: Answers
    renewed: dict[str, Answers]

    @property
    def images(self) -> list[str]:
        return sorted(self.original.keys() | {image for answers in self.renewed.values() for image in answers})

    def all_renewed(self) -> Iterator[Graded]:
        return (graded for answers in self.renewed.values() for graded in answers.values())

    def matrix(self, images: Sequence[str], uncertain: float | None = None) -> np.ndarray:
        """(images, seeds) 1, 0 or nan."""
        return np.stack([column(answers, images, uncertain) for answers in self.renewed.values()], 1)


def column(answers: Answers, images: Sequence[str], uncertain: float | None = None) -> np.ndarray:
    """(images,) 1, 0 or nan (no answer).  uncertain: what unread, cut-off and failed answers count as instead."""
    found = np.full(len(images), np.nan)
    for row, image in enumerate(images):
        if (graded := answers.get(image)) is not None:
            doubtful = uncertain is not None and graded.outcome in UNCERTAIN
            found[row] = uncertain if doubtful else _VALUES.get(graded.outcome, 0.0)
    return found


def read_sheets(original: Sequence[Path], renewed: Sequence[Path], relabel: Sequence[Path],
                parser: Parser) -> tuple[dict[str, Sheet], list[str]]:
    """One sheet per model and way of asking, under a name that tells them apart; and what was left out, and why."""
    found: dict[str, Sheet] = {}
    n_twice = 0

    def put(answers: Answers, graded: Graded) -> None:
        nonlocal n_twice
        n_twice += graded.image_id in answers
        answers[graded.image_id] = graded

    def sheet(graded: Graded) -> Sheet:
        return found.setdefault(graded.system, Sheet({}, {}, {}))

    for path in original:
        for graded in grade(path, parser):
            put(sheet(graded).original, graded)
    for path in relabel:
        for graded in grade(path, parser):
            put(sheet(graded).relabel, graded)
    for path in renewed:
        for graded in grade(path, parser):
            name = f"seed {graded.seed}" if graded.seed is not None else path.stem
            put(sheet(graded).renewed.setdefault(name, {}), graded)
    names = _names(list(found))
    notes = [f"{n_twice} answers were replaced by later ones to the same image (it was asked again after a change)"
             ] if n_twice else []
    kept = {}
    for system, one in found.items():
        if one.original and one.renewed:
            one.renewed = dict(sorted(one.renewed.items(), key=lambda pair: _natural(pair[0])))
            kept[names[system]] = one
        else:
            lacks = "no answers to the original" if not one.original else "no answers to a renewed benchmark"
            notes.append(f"{names[system]}: left out, it has {lacks} under the same settings")
    if not kept:
        raise InputError("audit: no model answered both the original and a renewed benchmark under the same settings ("
                         + ("; ".join(notes) or "the files hold no responses") + ")")
    return kept, notes


def _natural(name: str) -> tuple[str, int]:
    """Seeds in the order of their numbers."""
    head, _, tail = name.rpartition(" ")
    return (head, int(tail)) if tail.isdecimal() else (name, 0)


def _names(systems: Sequence[str]) -> dict[str, str]:
    """A name for each model and way of asking: the model's own, with the settings in which its ways differ."""
    read = {system: json.loads(system) for system in systems}
    names = {}
    for system, (model, settings) in read.items():
        others = [other for name, other in read.values() if name == model]
        differing = sorted({key for other in others for key in {**settings, **other}
                            if settings.get(key) != other.get(key)})
        names[system] = model + "".join(f", {key} {settings.get(key, 'default')}" for key in differing)
    return names
