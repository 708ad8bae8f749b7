"""What is doubtful about slots that can be read, and whether they fit their images.

    check_slots("slots.jsonl", "photos/")           # in rekey.slots; calls the functions here

An error makes a file unusable.  A doubt is a warning: the slot is used, but a person should look
at it, because fewer items (or worse ones) come from it than its author may expect.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rekey.colors import COLORS
from rekey.errors import InputError
from rekey.images import find_image, image_size
from rekey.records import ImageSlots, Slot
from rekey.references import COLOR_WORDS, Reference, kind, parse_reference
from rekey.sampling import others_meant, scene_kinds
from rekey.slot_rows import Finding, ParsedSlots

HUGE_EDIT_PX2 = 60_000      # 17 times the median of the released slots: no longer a small detail
TINY_SIDE_PX = 8            # the smallest side in the released slots is 9
MIN_MARGIN_PX = 4           # a context box that ends this close to the edit on all sides shows nothing


_NO_SIZE = "found no size of this image, expected [width, height]; add it to the sizes"


# ------------------------------------------------------------------------------ image sizes

def image_sizes(source: str | Path, image_ids: Iterable[str],
                ) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """(width, height) in pixels per image id, and for each id without one the reason.

    source: a folder of images, or a JSON file {"image id": [width, height]}.
    """
    source = Path(source)
    sizes: dict[str, tuple[int, int]] = {}
    reasons: dict[str, str] = {}
    if source.is_dir():
        for image_id in image_ids:
            try:
                sizes[image_id] = image_size(find_image(source, image_id))
            except InputError as error:
                reasons[image_id] = "; ".join(error.problems).removeprefix(f"{image_id}: ")
        return sizes, reasons
    try:
        data = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror}); give a folder of images, or a JSON "
                         "file of sizes") from None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise InputError(f'{source}: found no JSON object, expected {{"image id": [width, height], ...}}; '
                         "correct the file or give a folder of images")
    for image_id in image_ids:
        size = data.get(image_id)
        if isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size):
            sizes[image_id] = (size[0], size[1])
        else:
            reasons[image_id] = f"found {json.dumps(size)} in {source.name}, expected [width, height]; add it"
    return sizes, reasons


def size_errors(parsed: ParsedSlots, sizes: Mapping[str, tuple[int, int]] | str | Path) -> Iterator[Finding]:
    """An error for every image without a size and every box outside its image."""
    reasons: Mapping[str, str] = {}
    if isinstance(sizes, (str, Path)):
        sizes, reasons = image_sizes(sizes, parsed.images)
    for image_id, image in parsed.images.items():
        size = sizes.get(image_id)
        if size is None:
            yield _finding("error", parsed, image, reasons.get(image_id, _NO_SIZE))
            continue
        shown = f"{size[0]} x {size[1]} pixels"
        if image.image_size is not None and image.image_size != size:
            yield _finding("error", parsed, image,
                           f"found image_size {list(image.image_size)}, expected {list(size)}, the size of "
                           "the image; were the boxes drawn on another version of it?")
        for slot in image.slots:
            for what, box in (("context", slot.context), ("edit", slot.edit)):
                if not box.inside(*size):
                    yield _finding("error", parsed, image,
                                   f"found {what} box {box} that reaches outside the image of {shown}, "
                                   "expected a box inside; shrink it, or check that it was drawn on this "
                                   "image", slot)


# ----------------------------------------------------------------------------------- doubts

def doubts(parsed: ParsedSlots) -> Iterator[Finding]:
    """A warning for everything that a person should look at once more."""
    for image in parsed.images.values():
        for text, slot in itertools.chain(_image_doubts(image), _target_doubts(image),
                                          _candidate_doubts(image), _box_doubts(image)):
            yield _finding("warning", parsed, image, text, slot)


def _finding(level, parsed: ParsedSlots, image: ImageSlots, text: str, slot: Slot | None = None) -> Finding:
    return Finding(level, parsed.file, text, parsed.lines[image.image_id], image.image_id,
                   slot.slot_id if slot else None)


Doubt = tuple[str, Slot | None]


def _image_doubts(image: ImageSlots) -> Iterator[Doubt]:
    if not image.slots:
        yield "found no slots; no item can be made from this image: add slots or remove the line", None
    elif image.category == "relative_position" and len(image.slots) < 2:
        yield "found one slot in a relative_position image; a position question needs two", None


def _target_doubts(image: ImageSlots) -> Iterator[Doubt]:
    for slot in image.slots:
        for target in slot.targets:
            reference = parse_reference(target)
            if not target.isascii():
                yield (f"found target {target!r}, expected English words; its color cannot be read, so the "
                       "old color may be painted again", slot)
                continue
            yield from ((text, slot) for text in _color_doubts(target, reference, len(slot.targets) > 1))
            for other in others_meant(image, slot, target)[:1]:
                yield (f"found target {target!r} beside {other!r}: a question about the {reference.object} could "
                       "mean both, so none is asked; say which one is meant, such as ... on the left", slot)
        if slot.mode == "add" and slot.targets:
            yield (f"found mode add with targets ({', '.join(slot.targets)}); they are never recolored, but "
                   "count as objects of the scene", slot)


def _color_doubts(target: str, reference: Reference, beside_others: bool) -> Iterator[str]:
    if not reference.color_words and reference.object.lower() in COLOR_WORDS:
        yield f"found target {target!r}, a color without an object; write what has it, such as '{target} cup'"
    elif not reference.color_words and beside_others:
        yield (f"found target {target!r} without a color word among several targets of one slot; an editor cannot "
               "tell which is meant: name its color")
    elif not reference.color_words:
        yield (f"found target {target!r} without a color word; its old color is unknown and may be painted "
               "again: name the color first, if it has one")
    strange = [word for word in reference.color_words if word not in (*COLORS, "grey")]
    if strange:
        excluded = sorted(reference.colors, key=COLORS.index)
        effect = f"{', '.join(excluded)} will not be painted" if excluded else "no color is excluded for it"
        yield (f"found color {', '.join(strange)} in target {target!r}, expected a color that can be "
               f"painted; {effect}")


def _candidate_doubts(image: ImageSlots) -> Iterator[Doubt]:
    """Objects that cannot be added, because the image has (or may have) one already (Sec. 3.2)."""
    present = scene_kinds(image)
    for slot in image.slots:
        if slot.mode == "replace":
            continue
        clashes = {name: owner for name in slot.candidates
                   if (owner := present.get(name.lower()) or present.get(kind(parse_reference(name).head)))}
        for name, owner in clashes.items():
            yield (f"found object {name!r} to add beside target {owner!r}; it is never added, as it would "
                   "not be the only one", slot)
        if clashes and len(clashes) == len(slot.candidates) and slot.mode == "add":
            yield "found no object that can be added; the slot is never used: name another object", slot


def _box_doubts(image: ImageSlots) -> Iterator[Doubt]:
    for slot in image.slots:
        edit, context = slot.edit, slot.context
        size = f"{edit.width} x {edit.height} pixels"
        if edit.area_px2 > HUGE_EDIT_PX2:
            yield (f"found edit box of {size}; a slot is meant to be a small detail: mark only the "
                   "object", slot)
        if min(edit.width, edit.height) < TINY_SIDE_PX:
            yield f"found edit box of {size}; nothing can be recognized in so few pixels", slot
        if context.area_px2 and edit.grown(MIN_MARGIN_PX).contains(context):
            yield ("found a context box hardly larger than the edit box; an editor sees nothing around it: "
                   "enlarge it", slot)
    for first, second in itertools.combinations(image.slots, 2):
        if first.edit.intersects(second.edit):
            yield (f"found edit box {second.edit} over that of slot {first.slot_id}; the two are never "
                   "edited together", second)
