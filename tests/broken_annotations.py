"""Annotation files that cannot be used, each with every error that a user sees (for test_slots.py)."""

from __future__ import annotations

import copy
import json

STREET = {
    "image_id": "street", "question_id": "0", "category": "direct_attributes", "slots": [
        {"slot_id": "A1", "context_region": {"xyxy": [0, 0, 100, 80], "ref": ""},
         "edit_region": {"xyxy": [20, 20, 60, 50], "mode": "replace"},
         "replace": {"targets": [{"target_ref": "blue glove", "edit_types": ["color_change"]}]}},
        {"slot_id": "B1", "context_region": {"xyxy": [200, 0, 300, 80], "ref": ""},
         "edit_region": {"xyxy": [220, 20, 260, 50], "mode": "add"},
         "add": {"objects": ["cat", "dog"]}}]}
LEFT_OUT = object()


def changed(**changes) -> str:
    """The line of STREET with parts replaced: changed(slots__0__edit_region__mode="swap")."""
    row = copy.deepcopy(STREET)
    for path, value in changes.items():
        *parents, last = [int(part) if part.isdigit() else part for part in path.split("__")]
        part = row
        for key in parents:
            part = part[key]
        if value is LEFT_OUT:
            del part[last]
        else:
            part[last] = value
    return json.dumps(row)


BROKEN = {
    "empty file": (b" \n", [
        "f.jsonl: found an empty file, expected JSON lines in UTF-8; write one JSON object per image into "
        "it"]),
    "binary file": (b"\x89PNG\r\n\x1a\n\0\0", [
        "f.jsonl: found a binary file, expected JSON lines in UTF-8; give the annotation file, not an image "
        "or an archive"]),
    "UTF-16": ('{"image_id": "a"}'.encode("utf-16"), [
        "f.jsonl: found UTF-16 text, expected JSON lines in UTF-8; save it again as UTF-8"]),
    "Latin-1": (b'{}\n{"image_id": "caf\xe9"}', [
        "f.jsonl: found byte 0xe9 on line 2, which is not UTF-8, expected JSON lines in UTF-8; save the "
        "file again as UTF-8"]),
    "comma missing": ('{"image_id": "street" "slots": []}', [
        "f.jsonl line 1: found a line that is not JSON (Expecting ',' delimiter, column 23), expected one "
        "JSON object; correct the line"]),
    "cut off": (changed() + "\n" + changed(image_id="b")[:100], [
        "f.jsonl line 2: found a line that is not JSON (Unterminated string starting at, column 100), "
        "expected one JSON object; correct the line"]),
    "key twice": ('{"image_id": "a", "image_id": "b"}', [
        "f.jsonl line 1: found a line that is not JSON (key 'image_id' twice in one object), expected one "
        "JSON object; correct the line"]),
    "NaN": (changed().replace("[0, 0, 100, 80]", "[0, 0, NaN, 80]"), [
        "f.jsonl line 1: found a line that is not JSON (NaN is not a JSON number), expected one JSON object; "
        "correct the line"]),
    "half a character": ('{"image_id": "a\\ud800"}', [
        "f.jsonl line 1: found a line that is not JSON (half of a surrogate pair in a text), expected one "
        "JSON object; correct the line"]),
    "nested 100,000 deep": ("[" * 100_000 + "\n" + changed(), [
        "f.jsonl line 1: found a line that is not JSON (nested too deeply), expected one JSON object; "
        "correct the line"]),
    "a text file": ("dear diary\n" * 9, [
        *(f"f.jsonl line {n}: found a line that is not JSON (Expecting value, column 1), expected one JSON "
          "object; correct the line" for n in range(1, 6)),
        "f.jsonl line 6: found 4 more lines that are not JSON, this the first and line 9 the last, expected "
        "one JSON object per line; is this an annotation file?"]),
    "JSON array": (json.dumps([STREET]), [
        "f.jsonl: found one JSON document over the whole file, expected JSON lines; put each image on a "
        "line of its own"]),
    "indented JSON": (json.dumps(STREET, indent=1), [
        "f.jsonl: found one JSON document over the whole file, expected JSON lines; put each image on a "
        "line of its own"]),
    "Label Studio export": (json.dumps([{"id": 1, "data": {}, "annotations": []}]), [
        "f.jsonl: found a Label Studio export, expected JSON lines; run `rekey slots import` on it first"]),
    "number for a line": ("5\n" + changed(), [
        'f.jsonl line 1: found 5, expected an object with "image_id" and "slots"; correct the line']),
    "no image_id": (changed(image_id=LEFT_OUT), [
        "f.jsonl line 1: found no image_id in the line, expected a text; add it"]),
    "image_id a number": (changed(image_id=7), [
        "f.jsonl line 1: found image_id 7, expected a text; correct it"]),
    "image_id with a separator": (changed(image_id="../a"), [
        'f.jsonl line 1: found image_id "../a" (a leading dot), expected a name that can be part of a file '
        "name; rename it"]),
    "image_id with a folder": (changed(image_id="a\\b"), [
        'f.jsonl line 1: found image_id "a\\\\b" (a character that file names cannot hold everywhere), '
        "expected a name that can be part of a file name; rename it"]),
    "image_id with an escape": (changed(image_id="a\x1b[2J"), [
        'f.jsonl line 1: found image_id "a\\u001b[2J" (a character that file names cannot hold everywhere), '
        "expected a name that can be part of a file name; rename it"]),
    "image_id too long": (changed(image_id="é" * 76), [
        f'f.jsonl line 1: found image_id "{"é" * 56}... (more than 150 bytes), expected a name that can be '
        "part of a file name; rename it"]),
    "image twice": (changed() + "\n" + changed(), [
        "f.jsonl line 2, street: found image_id street again (first on line 1), expected one line per "
        "image; join the two lines or rename one"]),
    "no slots": (changed(slots=LEFT_OUT), [
        "f.jsonl line 1, street: found no slots in the line, expected a list; add it"]),
    "slots a text": (changed(slots="A1"), [
        'f.jsonl line 1, street: found slots "A1", expected a list; correct it']),
    "slot a text": (changed(slots__1="B1"), [
        'f.jsonl line 1, street slot number 2: found "B1", expected an object; correct the slot']),
    "slot without id": (changed(slots__0__slot_id=LEFT_OUT), [
        "f.jsonl line 1, street slot number 1: found no slot_id in the slot, expected a text; add it"]),
    "slot twice": (changed(slots__1__slot_id="A1"), [
        "f.jsonl line 1, street slot A1: found slot_id A1 twice, expected one slot of that name per image; "
        "rename one"]),
    "no context": (changed(slots__0__context_region=LEFT_OUT), [
        "f.jsonl line 1, street slot A1: found no context_region in the slot, expected an object; add it"]),
    "no edit": (changed(slots__0__edit_region=LEFT_OUT), [
        "f.jsonl line 1, street slot A1: found no edit_region in the slot, expected an object; add it"]),
    "edit a list": (changed(slots__0__edit_region=[20, 20, 60, 50]), [
        "f.jsonl line 1, street slot A1: found edit_region [20, 20, 60, 50], expected an object; correct "
        "it"]),
    "no box": (changed(slots__0__edit_region__xyxy=LEFT_OUT), [
        "f.jsonl line 1, street slot A1: found no xyxy in the edit region, expected a list; add it"]),
    "box of three": (changed(slots__0__edit_region__xyxy=[20, 20, 60]), [
        "f.jsonl line 1, street slot A1: found edit box [20, 20, 60], expected four numbers [left, top, "
        "right, bottom]; correct it"]),
    "box of texts": (changed(slots__0__edit_region__xyxy=["20", 20, 60, True]), [
        'f.jsonl line 1, street slot A1: found edit box ["20", 20, 60, true], expected four numbers [left, '
        "top, right, bottom]; correct it"]),
    "box with a huge number": (changed(slots__0__edit_region__xyxy=[20, 20, 60, 10**400]), [
        f"f.jsonl line 1, street slot A1: found edit box [20, 20, 60, 1{'0' * 43}..., expected four numbers "
        "[left, top, right, bottom]; correct it"]),
    "zero width": (changed(slots__0__edit_region__xyxy=[20, 20, 20.4, 50]), [
        "f.jsonl line 1, street slot A1: found edit box [20, 20, 20, 50] of 0 x 30 pixels, expected [left, "
        "top, right, bottom] with right > left and bottom > top; correct it (is it [left, top, width, "
        "height]?)"]),
    "width and height": (changed(slots__0__edit_region__xyxy=[60, 50, 40, 30]), [
        "f.jsonl line 1, street slot A1: found edit box [60, 50, 40, 30] of -20 x -20 pixels, expected "
        "[left, top, right, bottom] with right > left and bottom > top; correct it (is it [left, top, "
        "width, height]?)"]),
    "negative corner": (changed(slots__0__context_region__xyxy=[-5, 0, 100, 80]), [
        "f.jsonl line 1, street slot A1: found context box [-5, 0, 100, 80] that reaches outside the image, "
        "expected a box inside the image; shrink it, or check that it was drawn on this image at this size"]),
    "outside the stated size": (changed(image_size=[250, 100]), [
        f"f.jsonl line 1, street slot B1: found {box} that reaches outside the image of 250 x 100 pixels, "
        "expected a box inside the image; shrink it, or check that it was drawn on this image at this size"
        for box in ("context box [200, 0, 300, 80]", "edit box [220, 20, 260, 50]")]),
    "edit outside context": (changed(slots__0__edit_region__xyxy=[20, 20, 120, 50]), [
        "f.jsonl line 1, street slot A1: found edit box [20, 20, 120, 50] that reaches outside its context "
        "box [0, 0, 100, 80], expected the edit box inside the context box; enlarge the context box or "
        "shrink the other"]),
    "unknown mode": (changed(slots__0__edit_region__mode="swap"), [
        'f.jsonl line 1, street slot A1: found mode "swap", expected replace, add or either; correct it']),
    "no mode": (changed(slots__0__edit_region__mode=LEFT_OUT), [
        "f.jsonl line 1, street slot A1: found no mode in the edit region, expected a text; add it"]),
    "add without block": (changed(slots__1__add=LEFT_OUT), [
        'f.jsonl line 1, street slot B1: found mode add without objects to add, expected a block "add": '
        '{"objects": ["cat", ...]}; add it']),
    "add without objects": (changed(slots__1__add__objects=[]), [
        'f.jsonl line 1, street slot B1: found mode add without objects to add, expected a block "add": '
        '{"objects": ["cat", ...]}; add it']),
    "objects a text": (changed(slots__1__add__objects="cat"), [
        'f.jsonl line 1, street slot B1: found objects "cat", expected a list; correct it']),
    "object twice": (changed(slots__1__add__objects=["cat", " Cat"]), [
        "f.jsonl line 1, street slot B1: found object to add 'cat' twice in one slot, expected each name "
        "once; take one out"]),
    "object blank": (changed(slots__1__add__objects=["cat", " "]), [
        'f.jsonl line 1, street slot B1: found object to add " ", expected a word or two; correct it or '
        "take it out"]),
    "object a number": (changed(slots__1__add__objects=["cat", 3]), [
        "f.jsonl line 1, street slot B1: found object to add 3, expected a word or two; correct it or take "
        "it out"]),
    "replace without targets": (changed(slots__0__replace__targets=[]), [
        'f.jsonl line 1, street slot A1: found mode replace without targets, expected a block "replace": '
        '{"targets": [{"target_ref": "blue glove"}]}; add it']),
    "target a text": (changed(slots__0__replace__targets=["blue glove"]), [
        'f.jsonl line 1, street slot A1: found target "blue glove", expected an object {"target_ref": "blue '
        'glove"}; '
        "correct it"]),
    "target without ref": (changed(slots__0__replace__targets=[{}]), [
        "f.jsonl line 1, street slot A1: found no target_ref in the target, expected a text; add it"]),
    "edit_types a text": (changed(slots__0__replace__targets__0__edit_types="color_change"), [
        'f.jsonl line 1, street slot A1: found edit_types "color_change", expected a list; correct it or '
        "leave it out"]),
    "image_size of zero": (changed(image_size=[0, 100]), [
        "f.jsonl line 1, street: found image_size [0, 100], expected [width, height] in pixels; correct it "
        "or leave it out"]),
    "clutter of two": (changed(slots__0__clutter=2), [
        "f.jsonl line 1, street slot A1: found clutter 2, expected a number from 0 to 1; run `rekey slots "
        "measure` again"]),
    "category a number": (changed(category=5), [
        "f.jsonl line 1, street: found category 5, expected a text; correct it"]),
    "question_id a list": (changed(question_id=[1]), [
        "f.jsonl line 1, street: found question_id [1], expected a text; correct it"]),
    "several faults at once": (changed(slots__0__edit_region__mode="swap", slots__1__add=7) + "\nnull\n"
                               + changed(image_id="b", slots=3), [
        'f.jsonl line 1, street slot A1: found mode "swap", expected replace, add or either; correct it',
        "f.jsonl line 1, street slot B1: found add 7, expected an object; correct it",
        'f.jsonl line 2: found null, expected an object with "image_id" and "slots"; correct the line',
        "f.jsonl line 3, b: found slots 3, expected a list; correct it"]),
}
