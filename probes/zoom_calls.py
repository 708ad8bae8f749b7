"""Calls of the crop-and-zoom tool, read from what a model wrote (ReKey, Sec. 4.2).

    call = read_call('I look closer. <tool_call>{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [1, 2, 3, 4]}}')
    call.box, call.error                       # ((1.0, 2.0, 3.0, 4.0), None); or None and what to tell the model
    read_call("The answer is (B).")            # None: no call

Models that were not trained on this form come close to it in many ways: fences, single quotes, a tag left out, a brace
too few, the argument as a string, the XML form of Qwen3.5.  What names one box without doubt is taken; all else is an
error in words that say what is expected.  No words of the model are repeated in them: they could hold control tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rekey.thinking import thoughts_end

MAX_STEPS = 5               # calls, good or bad, to one question
TOOL_NAME = "image_zoom_in_tool"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
CALL_FORM = f'{OPEN}\n{{"name": "{TOOL_NAME}", "arguments": {{"bbox_2d": [x1, y1, x2, y2]}}}}\n{CLOSE}'
EXPECTED = f"Expected one call in this form, with four numbers from 0 to 1000:\n{CALL_FORM}"
MAX_CALL_CHARACTERS = 4000      # more is no call, and costs time to read

_BOX_KEYS = ("bbox_2d", "bbox")
_BOX_IN_TEXT = re.compile(r"bbox(?:_2d)?[\"'>]?\s*[:=]?\s*[\[(]+([^\]()\[]*)[\])]")
_NAME_IN_TEXT = re.compile(r"(?:[\"']name[\"']\s*:\s*[\"']|<function=)\s*([^\"'>\s]+)")
_NUMBER = re.compile(r"[^\s,;\[\]()]+")
_UNREADABLE = object()


@dataclass(frozen=True)
class Call:
    """The first call in a text.

    box: (x1, y1, x2, y2), finite, corners in order, in thousandths of the picture and possibly beyond it; None where
    the call is bad.  error: then, what was wrong.  swapped: corners came in another order.  end: index of the first
    character after the call.
    """

    box: tuple[float, float, float, float] | None
    error: str | None
    swapped: bool
    end: int


def read_call(text: str) -> Call | None:
    """The first call in what a model wrote after its reasoning, or None."""
    start = thoughts_end(text)
    opened = text.find(OPEN, start)
    if opened >= 0:
        closed = text.find(CLOSE, opened)
        inside = opened + len(OPEN)
        if closed >= 0:
            return _read(text[inside:closed], closed + len(CLOSE))
        begin, end = next(_objects(text, inside), (inside, len(text)))
        return _read(text[begin:end], end)
    for begin, end in _objects(text, start):
        payload = text[begin:end]
        # Without tags an object has to name the tool: a box alone may be part of an answer.
        if re.search(rf"[\"']{TOOL_NAME}[\"']", payload):
            closed = re.compile(rf"[\s`]*{CLOSE}").match(text, end)
            return _read(payload, closed.end() if closed else end)
    return None


def _objects(text: str, start: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of every outermost {...}; one that is not closed reaches to the end."""
    depth = begin = 0
    for match in re.compile("[{}]").finditer(text, start):
        if match[0] == "{":
            begin = begin if depth else match.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                yield begin, match.end()
    if depth:
        yield begin, len(text)


def _read(payload: str, end: int) -> Call:
    """The call that a payload spells."""
    def bad(what: str) -> Call:
        return Call(None, f"Error: {what} {EXPECTED}", False, end)

    if len(payload) > MAX_CALL_CHARACTERS:
        return bad(f"the call has more than {MAX_CALL_CHARACTERS} characters.")
    name, value = _name_and_box(payload)
    if name not in (None, TOOL_NAME):
        return bad(f"there is no such tool; the only one is {TOOL_NAME}.")
    if value is _UNREADABLE:
        return bad("the call is not readable as JSON.")
    if value is None:
        return bad("the call has no bbox_2d.")
    numbers = _numbers(value)
    if len(numbers) != 4:
        return bad(f"bbox_2d holds {len(numbers)} values, not 4.")
    if None in numbers:
        return bad("bbox_2d holds something that is not a number.")
    if not all(map(math.isfinite, numbers)):
        return bad("bbox_2d holds a number that is not finite.")
    if max(numbers) <= 1 and min(numbers) >= 0 and any(numbers):
        return bad("the values look like fractions of the picture; they are thousandths.")
    x1, y1, x2, y2 = numbers
    box = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
    return Call(box, None, box != (x1, y1, x2, y2), end)


def _name_and_box(payload: str) -> tuple[str | None, Any]:
    """The name of the tool, where one is given, and what stands for the box."""
    begin, end = next(_objects(payload, 0), (0, len(payload)))
    call = _json(payload[begin:end])
    if isinstance(call, dict):
        call = call["function"] if isinstance(call.get("function"), dict) else call
        name = call.get("name")
        arguments = call.get("arguments", call.get("parameters", call))
        if isinstance(arguments, str):
            arguments = _json(arguments)
        if isinstance(arguments, dict):
            value = next((arguments[key] for key in _BOX_KEYS if key in arguments), None)
            return (name if isinstance(name, str) else None), value
    named, boxed = _NAME_IN_TEXT.search(payload), _BOX_IN_TEXT.search(payload)
    return named and named[1], boxed[1] if boxed else _UNREADABLE


def _json(text: str) -> Any:
    """A JSON value, single quotes allowed; `_UNREADABLE` for anything else."""
    for spelled in (text, text.replace("'", '"')):
        try:
            return json.loads(spelled)
        except (ValueError, RecursionError):
            pass
    return _UNREADABLE


def _numbers(value: Any) -> list[float | None]:
    """The values of a box, in a list, in lists in a list (two corners), or in words; None for what is no number."""
    if isinstance(value, str):
        value = _NUMBER.findall(value)
    if not isinstance(value, list | tuple):
        return [None]
    flat = [part for outer in value for part in (outer if isinstance(outer, list | tuple) else [outer])]
    return [_number(part) for part in flat]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None
