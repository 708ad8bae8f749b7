"""One line of an annotation file, already JSON, to the slots of an image.

    RowReader(parsed, line=7).read(row)         # adds to parsed.images and parsed.findings

Faults are noted rather than raised, so that a file is mended in one go.  The format is described in
`rekey.slots`; `rekey.slot_parsing` reads whole files.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from rekey.geometry import Box
from rekey.records import ImageSlots, Slot

MODES = ("replace", "add", "either")
CATEGORIES = ("direct_attributes", "relative_position")
EDIT_TYPES = ("color_change", "pattern_change", "material_change")
MAX_ID_BYTES = 150          # an id becomes part of a file name; most file systems stop at 255 bytes

_ROW_KEYS = {"image_id", "slots", "question_id", "category", "image_size"}
_SLOT_KEYS = {"slot_id", "context_region", "edit_region", "add", "replace", "clutter"}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (error) or worth a second look (warning) in an annotation file."""

    level: Literal["error", "warning"]
    file: str
    text: str
    line: int | None = None
    image_id: str | None = None
    slot_id: str | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file} line {self.line}"
        if self.image_id is not None:
            place += f", {self.image_id}"
        if self.slot_id is not None:
            place += f" slot {self.slot_id}"
        return f"{place}: {self.text}"


@dataclass
class ParsedSlots:
    """What could be read of an annotation file, and everything that could not."""

    file: str
    images: dict[str, ImageSlots] = dataclasses.field(default_factory=dict)
    lines: dict[str, int] = dataclasses.field(default_factory=dict)
    """Line number of each image."""
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """The JSON objects as written, for commands that only add to them."""
    findings: list[Finding] = dataclasses.field(default_factory=list)


def _shown(value: Any, limit: int = 60) -> str:
    """The value on one line, cut to a length that fits into a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[:limit - 3] + "..."


def unsafe_id(name: str) -> str | None:
    """Why a name cannot become part of a file name, or None where it can."""
    if not name or name != name.strip():
        return "empty, or with spaces around it"
    if name.startswith("."):
        return "a leading dot"
    if any(c in '/\\:*?"<>|' or not c.isprintable() for c in name):
        return "a character that file names cannot hold everywhere"
    if len(name.encode("utf-8", "replace")) > MAX_ID_BYTES:
        return f"more than {MAX_ID_BYTES} bytes"
    return None


class RowReader:
    """Turns one line into `ImageSlots`, noting every fault on the way."""

    def __init__(self, parsed: ParsedSlots, line: int):
        self.parsed, self.line = parsed, line
        self.image_id: str | None = None
        self.slot_id: str | None = None
        self.n_errors = 0

    def note(self, level: Literal["error", "warning"], text: str) -> None:
        self.parsed.findings.append(
            Finding(level, self.parsed.file, text, self.line, self.image_id, self.slot_id))

    def error(self, found: str, expected: str, todo: str) -> None:
        self.n_errors += 1
        self.note("error", f"found {found}, expected {expected}; {todo}")

    def warn_unknown(self, data: dict, known: set[str], what: str) -> None:
        unknown = sorted(set(data) - known)
        if unknown:
            self.note("warning", f"found unknown keys {_shown(unknown)} in the {what}; they are ignored; "
                                 f"known are {', '.join(sorted(known))}")

    def get(self, data: dict, key: str, kind: type, what: str, required: bool = True) -> Any:
        """data[key] if it is of the wanted type, else None after an error."""
        names = {dict: "an object", list: "a list", str: "a text"}
        value = data.get(key)
        if key not in data or (value is None and not required):
            if required:
                self.error(f"no {key} in the {what}", names[kind], "add it")
            return None
        if not isinstance(value, kind):
            self.error(f"{key} {_shown(value)}", names[kind], "correct it")
            return None
        return value

    def read(self, row: Any) -> None:
        if not isinstance(row, dict):
            return self.error(_shown(row), 'an object with "image_id" and "slots"', "correct the line")
        self.image_id = self.read_id(row, "image_id", "line")
        if self.image_id is not None and self.image_id in self.parsed.lines:
            self.error(f"image_id {self.image_id} again (first on line {self.parsed.lines[self.image_id]})",
                       "one line per image", "join the two lines or rename one")
        self.warn_unknown(row, _ROW_KEYS, "line")
        size = self.read_size(row)
        category = self.get(row, "category", str, "line", required=False)
        if category is not None and category not in CATEGORIES:
            self.note("warning", f"found category {_shown(category)}, expected {' or '.join(CATEGORIES)}; "
                                 "it is not used to choose between attribute and position questions")
        question_id = row.get("question_id")
        if question_id is not None and type(question_id) not in (str, int):
            self.error(f"question_id {_shown(question_id)}", "a text", "correct it")
        entries = self.get(row, "slots", list, "line") or []
        slots = self.read_slot_list(entries, size)
        if self.n_errors:
            if self.image_id is not None:
                self.parsed.lines.setdefault(self.image_id, self.line)
            return
        self.parsed.lines[self.image_id] = self.line
        self.parsed.rows.append(row)
        self.parsed.images[self.image_id] = ImageSlots(
            self.image_id, tuple(slots), category, size, None if question_id is None else str(question_id))

    def read_id(self, data: dict, key: str, what: str) -> str | None:
        name = self.get(data, key, str, what)
        if name is None:
            return None
        reason = unsafe_id(name)
        if reason is None:
            return name
        self.error(f"{key} {_shown(name)} ({reason})", "a name that can be part of a file name", "rename it")
        return None

    def read_size(self, row: dict) -> tuple[int, int] | None:
        size = row.get("image_size")
        if size is None:
            return None
        if not isinstance(size, list) or len(size) != 2 or not all(type(n) is int and n > 0 for n in size):
            self.error(f"image_size {_shown(size)}", "[width, height] in pixels",
                       "correct it or leave it out")
            return None
        return size[0], size[1]

    def read_slot_list(self, entries: list, size: tuple[int, int] | None) -> list[Slot]:
        slots: list[Slot] = []
        seen: set[str] = set()
        for position, entry in enumerate(entries, start=1):
            self.slot_id = f"number {position}"
            if not isinstance(entry, dict):
                self.error(_shown(entry), "an object", "correct the slot")
                continue
            slot_id = self.read_id(entry, "slot_id", "slot")
            if slot_id is not None:
                self.slot_id = slot_id
                if slot_id in seen:
                    self.error(f"slot_id {slot_id} twice", "one slot of that name per image", "rename one")
                seen.add(slot_id)
            slot = self.read_slot(entry, size)
            if slot is not None:
                slots.append(slot)
        self.slot_id = None
        return slots

    def read_slot(self, entry: dict, size: tuple[int, int] | None) -> Slot | None:
        self.warn_unknown(entry, _SLOT_KEYS, "slot")
        context_region = self.get(entry, "context_region", dict, "slot")
        edit_region = self.get(entry, "edit_region", dict, "slot")
        context = self.read_box(context_region, "context", size)
        edit = self.read_box(edit_region, "edit", size)
        if context is not None and edit is not None and not context.contains(edit):
            self.error(f"edit box {edit} that reaches outside its context box {context}",
                       "the edit box inside the context box", "enlarge the context box or shrink the other")
        candidates, targets = self.read_candidates(entry), self.read_targets(entry)
        mode = self.read_mode(edit_region, candidates, targets)
        clutter = entry.get("clutter")
        if clutter is not None and not (_is_number(clutter) and 0 <= clutter <= 1):
            self.error(f"clutter {_shown(clutter)}", "a number from 0 to 1",
                       "run `rekey slots measure` again")
        if None in (context, edit, mode, self.slot_id, self.image_id):
            return None
        return Slot(self.image_id, self.slot_id, mode, context, edit, targets or (), candidates or (),
                    clutter)

    def read_box(self, region: dict | None, what: str, size: tuple[int, int] | None) -> Box | None:
        if region is None:
            return None
        xyxy = self.get(region, "xyxy", list, f"{what} region")
        if xyxy is None:
            return None
        if len(xyxy) != 4 or not all(map(_is_number, xyxy)):
            self.error(f"{what} box {_shown(xyxy)}", "four numbers [left, top, right, bottom]", "correct it")
            return None
        box = Box(*(round(value) for value in xyxy))
        if box.width <= 0 or box.height <= 0:
            self.error(f"{what} box {box} of {box.width} x {box.height} pixels",
                       "[left, top, right, bottom] with right > left and bottom > top",
                       "correct it (is it [left, top, width, height]?)")
            return None
        if min(box.left, box.top) < 0 or (size is not None and not box.inside(*size)):
            of_size = f" of {size[0]} x {size[1]} pixels" if size else ""
            self.error(f"{what} box {box} that reaches outside the image{of_size}", "a box inside the image",
                       "shrink it, or check that it was drawn on this image at this size")
            return None
        return box

    def read_mode(self, region: dict | None, candidates: tuple | None, targets: tuple | None) -> Any:
        if region is None:
            return None
        mode = self.get(region, "mode", str, "edit region")
        if mode is None:
            return None
        if mode not in MODES:
            self.error(f"mode {_shown(mode)}", "replace, add or either", "correct it")
            return None
        # None means that the block is there and has its own error; () that there is nothing in it.
        if candidates == () and (mode == "add" or mode == "either" and targets == ()):
            self.error(f"mode {mode} without objects to add", 'a block "add": {"objects": ["cat", ...]}',
                       "add it")
        if targets == () and (mode == "replace" or mode == "either" and candidates == ()):
            self.error(f"mode {mode} without targets",
                       'a block "replace": {"targets": [{"target_ref": "blue glove"}]}', "add it")
        if mode == "either" and bool(candidates) != bool(targets):
            self.note("warning", f"found mode either with {'objects to add' if candidates else 'targets'} "
                                 f"only; the slot can only {'add' if candidates else 'replace'}")
        return mode

    def read_candidates(self, entry: dict) -> tuple[str, ...] | None:
        """Objects to add; () without an "add" block, None after an error."""
        if entry.get("add") is None:
            return ()
        block = self.get(entry, "add", dict, "slot")
        objects = None if block is None else self.get(block, "objects", list, "add block")
        return None if objects is None else self.read_names(objects, "object to add")

    def read_targets(self, entry: dict) -> tuple[str, ...] | None:
        """References to existing objects; () without a "replace" block, None after an error."""
        if entry.get("replace") is None:
            return ()
        block = self.get(entry, "replace", dict, "slot")
        targets = None if block is None else self.get(block, "targets", list, "replace block")
        if targets is None:
            return None
        references = []
        for target in targets:
            if not isinstance(target, dict):
                self.error(f"target {_shown(target)}", 'an object {"target_ref": "blue glove"}', "correct it")
                return None
            reference = self.get(target, "target_ref", str, "target")
            if reference is None:
                return None
            references.append(reference)
            types = target.get("edit_types")
            if types is None:
                continue
            if not isinstance(types, list):
                self.error(f"edit_types {_shown(types)}", "a list", "correct it or leave it out")
            elif any(kind not in EDIT_TYPES for kind in types):
                self.note("warning", f"found edit_types {_shown(types)} for {reference!r}; known are "
                                     f"{', '.join(EDIT_TYPES)}; the attribute is chosen when sampling")
        return self.read_names(references, "target")

    def read_names(self, names: list, what: str) -> tuple[str, ...] | None:
        words = []
        for name in names:
            word = " ".join(name.split()) if isinstance(name, str) else ""
            if not word or not word.isprintable():
                self.error(f"{what} {_shown(name)}", "a word or two", "correct it or take it out")
                return None
            words.append(word)
        lowered = [word.lower() for word in words]
        repeated = next((word for word in lowered if lowered.count(word) > 1), None)
        if repeated is not None:
            self.error(f"{what} {repeated!r} twice in one slot", "each name once", "take one out")
            return None
        return tuple(words)


def _is_number(value: Any) -> bool:
    # The bound also refuses infinity, and integers that have no float.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9
