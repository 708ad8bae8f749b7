"""The answers of each model in an audit, side by side: original, relabeled, and renewed benchmarks.

    sheets, notes = read_sheets([original], [seed1, seed2], [], "strict")
    sheets["control:clean"].matrix(images)                  # (images, seeds) of 1, 0 or nan
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rekey.answers import Parser
from rekey.errors import InputError
from rekey.grading import Graded, grade_files, system_names

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
    """One sheet per model and way of asking, under a name that tells them apart; and what was left out, and why.

    The order of files and lines says nothing, except that of two answers to an image the later one counts.
    """
    found: dict[str, Sheet] = {}
    n_twice = 0

    def sheet(graded: Graded) -> Sheet:
        return found.setdefault(graded.system, Sheet({}, {}, {}))

    read = grade_files((*original, *relabel, *renewed), parser)
    for path in dict.fromkeys(original):
        for graded in read[path]:
            n_twice += _put(sheet(graded).original, graded, path)
    for path in dict.fromkeys(relabel):
        for graded in read[path]:
            n_twice += _put(sheet(graded).relabel, graded, path)
    for path, stem in _stems(renewed).items():
        for graded in read[path]:
            name = stem if graded.seed is None else f"seed {graded.seed}"
            n_twice += _put(sheet(graded).renewed.setdefault(name, {}), graded, path)
    names = system_names(found)
    notes = [f"{n_twice} images were asked again after a change; the later answers count"] if n_twice else []
    kept = {}
    for system, one in found.items():
        if one.original and one.renewed:
            kept[names[system]] = _in_order(one)
        else:
            lacks = "no answers to the original" if not one.original else "no answers to a renewed benchmark"
            notes.append(f"{names[system]}: left out, it has {lacks} under the same settings")
    if not kept:
        raise InputError("audit: no model answered both the original and a renewed benchmark under the same settings ("
                         + ("; ".join(notes) or "the files hold no responses") + ")")
    return kept, notes


def _put(answers: Answers, graded: Graded, path: Path) -> bool:
    """Whether the image had an answer before, which gives way unless the new one is a failure."""
    before = answers.get(graded.image_id)
    if before is not None and before.seed != graded.seed:
        raise InputError(f"{path}: {graded.model} answered {before.item_id} and {graded.item_id}, both of image "
                         f"{graded.image_id}; expected one benchmark, give responses to others with --renewed")
    if before is None or graded.outcome != "error":
        answers[graded.image_id] = graded
    return before is not None


def _in_order(sheet: Sheet) -> Sheet:
    """Seeds in the order of their numbers, images in that of their names, as nothing may depend on the files'."""
    originals = {graded.key for graded in sheet.original.values()}
    if again := next((graded for graded in sheet.all_renewed() if graded.key in originals), None):
        raise InputError(f"audit: the response of {again.model} to {again.item_id} is given as original and as "
                         "renewed; expected a file for each")
    seeds = sorted(sheet.renewed.items(), key=lambda pair: _natural(pair[0]))
    return Sheet(dict(sorted(sheet.original.items())), dict(sorted(sheet.relabel.items())),
                 {name: dict(sorted(answers.items())) for name, answers in seeds})


def _natural(name: str) -> list[str | int]:
    """Seed 10 after seed 9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _stems(paths: Sequence[Path]) -> dict[Path, str]:
    """What an instance is called whose items tell no seed: its file, with folders where two have the same name."""
    paths = list(dict.fromkeys(paths))
    stems = [path.stem for path in paths]
    return {path: stem if stems.count(stem) == 1 else path.with_suffix("").as_posix()
            for path, stem in zip(paths, stems)}
