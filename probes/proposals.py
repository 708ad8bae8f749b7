"""Reading the slots that a model proposes for an image (ReKey, Sec. 4.4, RQ3); `probes.annotator` asks for them.

    slots, problems = parse_proposals(text, "street", (2250, 1500), coordinates="per-1000")
    found = read_proposals(text, "street", (2250, 1500), "per-1000")        # with what was mended, and counts

Responses are JSON in fences, in prose, in several lists, with trailing commas, after thoughts, or cut off: every whole
object counts.  Families of models write boxes in different units (`CONVENTIONS`).  The unit is never guessed from the
numbers, since most numbers fit several: a wrong guess would turn a model that sees well into one that sees badly.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rekey.errors import InputError
from rekey.geometry import Box
from rekey.label_studio import default_context
from rekey.records import Slot
from rekey.references import parse_reference
from rekey.slot_rows import MODES
from rekey.thinking import answer_start

MAX_NAME_WORDS = 12          # the longest released target has 8
MAX_DEPTH = 30               # of braces; without a limit, thousands of them would be tried one by one


@dataclass(frozen=True)
class Convention:
    """How a model writes a box.

    full: the number that stands for the far edge of the image; None where boxes are pixels.
    resized: pixels of the image as the processor resized it, not as it was given.
    rows_first: [top, left, bottom, right].  words: what the instructions say of the unit.
    """

    words: str
    full: float | None = None
    resized: bool = False
    rows_first: bool = False

    @property
    def order(self) -> str:
        return "[top, left, bottom, right]" if self.rows_first else "[left, top, right, bottom]"


_PER_1000 = "on a scale from 0 to 1000, where 1000 is the full width or the full height of the image"
CONVENTIONS: dict[str, Convention] = {
    "pixels": Convention("in pixels of the image, which is {width} wide and {height} high"),
    "seen-pixels": Convention("in pixels of the image", resized=True),
    "per-1000": Convention(_PER_1000, full=1000),
    "per-1000-rows-first": Convention(_PER_1000, full=1000, rows_first=True),
    "per-1": Convention("as fractions from 0 to 1 of the full width and the full height of the image", full=1),
}


def convention_of(coordinates: str) -> Convention:
    """The convention of that name."""
    if coordinates not in CONVENTIONS:
        raise InputError(f"coordinates {coordinates!r}: expected one of {', '.join(CONVENTIONS)}")
    return CONVENTIONS[coordinates]


@dataclass(frozen=True)
class Proposals:
    """What an annotator proposed for one image.

    problems: a line for everything that did not become a slot.  mended: a line for everything that did, changed.
    n_proposed: slots that were recognizable as such, good or bad.  n_reversed, n_clamped: boxes whose corners were
    exchanged, or that reached outside the image.  n_impossible: slots whose numbers the declared unit cannot give;
    many of them mean that another unit should be declared.  text: the response.
    """

    image_id: str
    image_size: tuple[int, int]
    slots: tuple[Slot, ...]
    problems: tuple[str, ...]
    mended: tuple[str, ...]
    n_proposed: int
    n_reversed: int
    n_clamped: int
    n_impossible: int
    text: str


def parse_proposals(text: str, image_id: str, size: tuple[int, int], *, coordinates: str,
                    seen_size: tuple[int, int] | None = None) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """(slots, problems) of a response; `read_proposals` without what was mended and counted."""
    found = read_proposals(text, image_id, size, coordinates, seen_size)
    return found.slots, found.problems


def read_proposals(text: str, image_id: str, size: tuple[int, int], coordinates: str,
                   seen_size: tuple[int, int] | None = None) -> Proposals:
    """What a response proposes for an image of `size`; all sizes here are (width, height) in pixels.

    Every JSON object that says a mode or an edit box is a proposal, wherever it stands; of a response that breaks off
    the whole ones count.  The k-th becomes slot "V<k>".  seen_size: of the image as the processor resized it.
    """
    convention = convention_of(coordinates)
    if convention.resized and seen_size is None:
        raise InputError(f"{image_id}: boxes in {coordinates} need the size of the image as the model saw it; give "
                         "seen_size, or let the model answer with a Generation")
    reader = _Reader(image_id, size, convention, seen_size if convention.resized else size)
    start = answer_start(text)
    if start is None:                   # drafts within a thought are no proposals
        reader.problems.append(f"{image_id}: the response ends before its thinking does; nothing was proposed")
    else:
        reader.read(text[start:])
    return Proposals(image_id, size, tuple(reader.slots), tuple(reader.problems), tuple(reader.mended),
                     reader.n_proposed, reader.n_reversed, reader.n_clamped, reader.n_impossible, text)


class _Unusable(Exception):
    """Why a proposal cannot become a slot."""


_EDIT_KEYS = ("edit", "edit_box", "edit_region", "bbox_2d", "box_2d", "bbox", "box")
_CONTEXT_KEYS = ("context", "context_box", "context_region")
_TARGET_KEYS = ("target", "targets", "target_ref", "replace", "label")
_OBJECT_KEYS = ("objects", "object", "candidates", "add")


@dataclass
class _Reader:
    """Turns decoded objects into slots, noting every fault on the way."""

    image_id: str
    size: tuple[int, int]
    convention: Convention
    frame: tuple[int, int]
    """(width, height) in the pixels that boxes are written in, where they are pixels."""
    slots: list[Slot] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    n_proposed: int = 0
    n_reversed: int = 0
    n_clamped: int = 0
    n_impossible: int = 0

    def read(self, text: str) -> None:
        objects, unreadable, broken_off = _decoded_objects(text)
        for mode, data in (found for part in objects for found in _proposals_in(part)):
            self.n_proposed += 1
            place = f"{self.image_id} proposal {self.n_proposed}"
            try:
                slot = self.slot(data, mode, place)
                twin = next((s for s in self.slots if (s.mode, s.edit) == (slot.mode, slot.edit)), None)
                if twin is not None:
                    raise _Unusable(f"the same place as {twin.slot_id} again")
                self.slots.append(slot)
            except _Unusable as fault:
                self.problems.append(f"{place}: {fault}")
        self.problems += [f"{self.image_id}: found {_shown(part)}, which is not JSON" for part in unreadable]
        if broken_off:
            self.problems.append(f"{self.image_id}: the response breaks off within an object; the whole ones before "
                                 "it are kept")
        if not (self.n_proposed or self.problems):
            self.problems.append(f"{self.image_id}: found no slot in the response, which begins {_shown(text)}")

    def slot(self, data: dict[str, Any], mode: str | None, place: str) -> Slot:
        region = _first(data, _EDIT_KEYS)
        if isinstance(region, dict):
            mode = region.get("mode") or mode
        mode = data.get("mode") or mode
        if mode is None:
            raise _Unusable("has no mode, expected replace or add")
        mode = str(mode).strip().lower()
        if mode not in MODES:
            raise _Unusable(f"found mode {_shown(mode)}, expected {', '.join(MODES)}")
        edit = self.box(region, "edit", place)
        targets = _names(_first(data, _TARGET_KEYS)) if mode != "add" else ()
        candidates = _nouns(_first(data, _OBJECT_KEYS)) if mode != "replace" else ()
        if mode != "add" and not targets:
            raise _Unusable(f"found mode {mode} without a target, expected what is there, such as \"blue glove\"")
        if mode != "replace" and not candidates:
            raise _Unusable(f"found mode {mode} without objects, expected what may be added, such as [\"cat\"]")
        context = _first(data, _CONTEXT_KEYS)
        if context is None:
            self.mended.append(f"{place}: has no context box; it got one of three times its longer side")
            around = default_context(edit, self.size)
        else:
            around = self.box(context, "context", place)
        if not around.contains(edit):
            self.mended.append(f"{place}: the edit box reaches outside the context box, which was enlarged")
            around = Box(min(around.left, edit.left), min(around.top, edit.top),
                         max(around.right, edit.right), max(around.bottom, edit.bottom))
        return Slot(self.image_id, f"V{self.n_proposed}", mode, around, edit, targets, candidates)

    def box(self, value: Any, what: str, place: str) -> Box:
        """A box in pixels of the image as given, inside it."""
        if value is None:
            raise _Unusable(f"has no {what} box")
        numbers = _four_numbers(value)
        if numbers is None:
            raise _Unusable(f"found {what} box {_shown(value)}, expected four numbers {self.convention.order}")
        self.check_unit(numbers, value, what)
        if self.convention.rows_first:
            numbers = [numbers[n] for n in (1, 0, 3, 2)]
        width, height = self.size
        full = self.convention.full
        frame = self.frame if full is None else (full, full)
        x1, x2 = (round(value * width / frame[0]) for value in numbers[::2])
        y1, y2 = (round(value * height / frame[1]) for value in numbers[1::2])
        box = Box(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
        if not box.area_px2:
            raise _Unusable(f"found {what} box {_shown(value)} of {box.width} x {box.height} pixels, expected an area")
        inside = box.clipped(width, height)
        if inside.width <= 0 or inside.height <= 0:
            self.n_impossible += 1
            raise _Unusable(f"found {what} box {_shown(value)}, which lies outside the image of {width} x {height} "
                            "pixels; is it in another unit?")
        if x1 > x2 or y1 > y2:
            self.n_reversed += 1
            self.mended.append(f"{place}: the corners of the {what} box {_shown(value)} were exchanged")
        if inside != box:
            self.n_clamped += 1
            self.mended.append(f"{place}: the {what} box {box} reached outside the image and was cut to {inside}")
        return inside

    def check_unit(self, numbers: list[float], value: Any, what: str) -> None:
        """Raises for numbers that the declared unit cannot give."""
        full = self.convention.full
        beyond = full is not None and max(numbers) > full
        fractions = full != 1 and max(map(abs, numbers)) <= 1
        if beyond or fractions:
            self.n_impossible += 1
            unit = "pixels" if full is None else f"0 to {full:g}"
            raise _Unusable(f"found {what} box {_shown(value)}, which cannot be in the declared unit ({unit}); is it "
                            "in another one?")


def _proposals_in(data: Any, mode: str | None = None) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """(mode of the group it stands in, object) of every proposal in decoded JSON: {"add": [{...}, {...}]}."""
    if isinstance(data, dict):
        if "mode" in data or any(key in data for key in _EDIT_KEYS):
            yield mode, data
            return
        for key, part in data.items():
            yield from _proposals_in(part, key if key in MODES else mode)
    elif isinstance(data, list | tuple):
        for part in data:
            yield from _proposals_in(part, mode)


def _first(data: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((data[key] for key in keys if data.get(key) is not None), None)


def _four_numbers(value: Any) -> list[float] | None:
    """The numbers of [1, 2, 3, 4], ["1", "2", "3", "4"], [[1, 2], [3, 4]] or {"xyxy": [1, 2, 3, 4]}."""
    if isinstance(value, dict):
        value = value.get("xyxy")
    if not isinstance(value, list | tuple):
        return None
    parts = [number for part in value for number in (part if isinstance(part, list | tuple) else [part])]
    if len(parts) != 4 or any(isinstance(part, bool) or not isinstance(part, int | float | str) for part in parts):
        return None
    try:
        numbers = [float(part) for part in parts]
    except (ValueError, OverflowError):
        return None
    return numbers if all(math.isfinite(number) and abs(number) < 1e9 for number in numbers) else None


def _texts(value: Any) -> list[str]:
    """All names in "cat, dog", ["cat", "dog"], {"objects": ["cat"]} or [{"target_ref": "blue glove"}]."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return _texts(_first(value, (*_TARGET_KEYS, *_OBJECT_KEYS, "name")))
    return [text for part in value for text in _texts(part)] if isinstance(value, list | tuple) else []


def _names(value: Any) -> tuple[str, ...]:
    """Targets as an annotator writes them: no article, no capital at the start of a sentence, each once."""
    names: dict[str, str] = {}
    for text in _texts(value):
        words = text.strip(" \t\r\n\"'“”.").split()
        while words and words[0].lower() in ("a", "an", "the"):
            words.pop(0)
        name = " ".join(words)
        if not name.isprintable() or not any(c.isalnum() for c in name):
            continue
        if len(words) > MAX_NAME_WORDS:
            raise _Unusable(f"found {_shown(name)} as a name, expected at most {MAX_NAME_WORDS} words")
        if name[:1].isupper() and name[1:] == name[1:].lower():             # "Red cup", but "Red Bull can", "SUV"
            name = name.lower()
        names.setdefault(name.lower(), name)
    return tuple(names.values())


def _nouns(value: Any) -> tuple[str, ...]:
    """Objects to add, without colors: those are drawn later."""
    listed = [part for text in _texts(value) for part in text.split(",")]
    return tuple(dict.fromkeys(parse_reference(name).object for name in _names(listed)))


def _shown(value: Any, limit: int = 60) -> str:
    """The value on one line, cut to a length that fits into a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = str(value)
    return text if len(text) <= limit else text[:limit - 3] + "..."


# ------------------------------------------------------------------------------ JSON in a response

_STRUCTURE = re.compile(r'\\.|[{}"\n]', re.DOTALL)


def _decoded_objects(text: str) -> tuple[list[dict], list[str], bool]:
    """(outermost JSON objects in a text, pieces that look like one but are none, whether the last one is cut off).

    Only braces count, so fences, prose around and between, lists that never end, and several lists are all alike.
    """
    spans: list[tuple[int, int]] = []
    open_at: list[int] = []
    in_string = False
    for match in _STRUCTURE.finditer(text):
        mark = match.group()
        if mark == "\n":                # JSON strings end on their line: a stray quote costs one line at most
            in_string = False
        elif mark == '"':
            in_string = bool(open_at) and not in_string
        elif mark == "{" and not in_string:
            open_at.append(match.start())
        elif mark == "}" and open_at and not in_string:
            spans.append((open_at.pop(), match.end()))
            if len(open_at) > MAX_DEPTH:
                spans.pop()
    spans.sort()                        # an object before those inside it
    objects: list[dict] = []
    unreadable: list[str] = []
    done = 0
    for n, (start, end) in enumerate(spans):
        if start < done:
            continue
        found = _decoded(text[start:end])
        if isinstance(found, dict):
            objects.append(found)
            done = end
        elif ":" in text[start:end] and (n + 1 == len(spans) or spans[n + 1][0] > end):
            unreadable.append(text[start:end])
    # Braces that opened earlier are stray, or hold whole objects only.
    broken_off = bool(open_at) and open_at[-1] >= max((end for _, end in spans), default=0)
    return objects, unreadable, broken_off


def _decoded(text: str) -> Any:
    """The value of JSON, or of nearly JSON: trailing commas, comments, curly or single quotes; None for the rest."""
    nearly = re.sub(r"(?m)(?<![:\"'\w])//.*$", "", text.replace("“", '"').replace("”", '"'))
    nearly = re.sub(r",(\s*[}\]])", r"\1", nearly)
    for read, written in ((_json, text), (_json, nearly), (ast.literal_eval, nearly)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")         # of "\d", in what may not be Python at all
                return read(written)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return None


def _json(text: str) -> Any:
    return json.loads(text, strict=False)
