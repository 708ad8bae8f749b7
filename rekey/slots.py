"""Annotation files: the human-marked slots of each image, in the released format (ReKey, Sec. 3.1).

    images = read_slots("slots.jsonl")              # {"vstar_0000": ImageSlots(...), ...}, in file order
    for finding in check_slots("slots.jsonl"):      # everything that is wrong or doubtful
        print(finding)

One JSON object per line:

    {"image_id": "vstar_0000", "question_id": "0", "category": "direct_attributes", "slots": [
      {"slot_id": "A1",
       "context_region": {"xyxy": [389, 58, 776, 368], "ref": ""},
       "edit_region": {"xyxy": [554, 128, 728, 310], "mode": "replace"},
       "replace": {"targets": [{"target_ref": "blue glove", "edit_types": ["color_change"]}]}},
      {"slot_id": "B1", "context_region": {...}, "edit_region": {"xyxy": [...], "mode": "add"},
       "add": {"objects": ["cat", "dog"]}}]}

Ours, both optional: `image_size` [width, height] of the image and `clutter` of a slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rekey.errors import InputError
from rekey.records import ImageSlots, Slot
from rekey.slot_parsing import parse_slots
from rekey.slot_rows import Finding
from rekey.store import write_jsonl


def read_slots(path: str | Path) -> dict[str, ImageSlots]:
    """The slots of every image of an annotation file, in the order of the file.

    Raises InputError with one line for every fault in the file.
    """
    parsed = parse_slots(path)
    errors = [str(f) for f in parsed.findings if f.level == "error"]
    if errors:
        raise InputError(*errors)
    return parsed.images


def check_slots(path: str | Path,
                sizes: Mapping[str, tuple[int, int]] | str | Path | None = None) -> list[Finding]:
    """All errors, then all warnings, each in the order of the file.

    sizes: (width, height) in pixels per image id, or the path of a folder of images, or of a JSON
    file {"image id": [width, height]}.  Where it is given, boxes are checked against it, and an
    image that it lacks is an error.
    """
    # Here, since the doubts ask the sampler what it would do, and the sampler needs no annotations read.
    from rekey.slot_checks import doubts, size_errors
    parsed = parse_slots(path)
    findings = list(parsed.findings)
    if sizes is not None:
        findings += size_errors(parsed, sizes)
    findings += doubts(parsed)
    return sorted(findings, key=lambda f: (f.level == "warning", f.line or 0))


def write_slots(path: str | Path, images: Iterable[ImageSlots]) -> None:
    """Write an annotation file in the released format; an existing file is replaced in one step."""
    write_jsonl(Path(path), [slots_to_row(image) for image in images])


def slots_to_row(image: ImageSlots) -> dict[str, Any]:
    """The JSON object of one image in the released format."""
    row: dict[str, Any] = {"image_id": image.image_id,
                           "slots": [_slot_to_json(slot) for slot in image.slots]}
    if image.question_id is not None:
        row["question_id"] = image.question_id
    if image.category is not None:
        row["category"] = image.category
    if image.image_size is not None:
        row["image_size"] = list(image.image_size)
    return row


def _slot_to_json(slot: Slot) -> dict[str, Any]:
    data: dict[str, Any] = {
        "slot_id": slot.slot_id,
        "context_region": {"xyxy": slot.context.as_list(), "ref": ""},
        "edit_region": {"xyxy": slot.edit.as_list(), "mode": slot.mode},
    }
    if slot.candidates:
        data["add"] = {"objects": list(slot.candidates)}
    if slot.targets:
        data["replace"] = {"targets": [{"target_ref": target, "edit_types": ["color_change"]}
                                       for target in slot.targets]}
    if slot.clutter is not None:
        data["clutter"] = slot.clutter
    return data
