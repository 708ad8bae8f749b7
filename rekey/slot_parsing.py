"""The text of an annotation file: what could be read of it, and everything that is wrong with it.

    parsed = parse_slots("slots.jsonl")
    parsed.images, parsed.findings

Most callers want `rekey.slots.read_slots`, which raises on errors.  This file deals with bytes, text
and JSON; `rekey.slot_rows` with what a line says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rekey.errors import InputError
from rekey.slot_rows import Finding, ParsedSlots, RowReader

_MAX_BAD_LINES = 5          # unreadable lines quoted one by one before the rest is counted


def parse_slots(path: str | Path) -> ParsedSlots:
    """Read an annotation file as far as it can be read; raises InputError only if it cannot be opened."""
    path = Path(path)
    parsed = ParsedSlots(path.name)
    text = _decoded(path, parsed.findings)
    if text is None or _is_one_document(text, parsed):
        return parsed
    bad_lines: list[int] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
            if "\\u" in line:               # an escaped half of a character cannot be written again
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            bad_lines.append(number)
            if len(bad_lines) <= _MAX_BAD_LINES:
                parsed.findings.append(Finding(
                    "error", path.name, f"found a line that is not JSON ({_json_fault(error)}), expected one "
                    "JSON object; correct the line", number))
            continue
        RowReader(parsed, number).read(row)
    if len(bad_lines) > _MAX_BAD_LINES:
        parsed.findings.append(Finding(
            "error", path.name, f"found {len(bad_lines) - _MAX_BAD_LINES} more lines that are not JSON, this "
            f"the first and line {bad_lines[-1]} the last, expected one JSON object per line; is this an "
            "annotation file?", bad_lines[_MAX_BAD_LINES]))
    return parsed


def _decoded(path: Path, findings: list[Finding]) -> str | None:
    """The text of the file, or None after a finding that says why there is none."""
    try:
        raw = path.read_bytes()
    except IsADirectoryError:
        raise InputError(f"{path}: found a folder, expected an annotation file (JSON lines); "
                         "give the file itself") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of an annotation "
                         "file (JSON lines)") from None

    def error(found: str, todo: str) -> None:
        findings.append(Finding("error", path.name, f"found {found}, expected JSON lines in UTF-8; {todo}"))

    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return error("UTF-16 text", "save it again as UTF-8")
    if b"\0" in raw:
        return error("a binary file", "give the annotation file, not an image or an archive")
    if raw.startswith(b"\xef\xbb\xbf"):
        raw = raw[3:]
        findings.append(Finding("warning", path.name, "found a byte order mark before the first line; "
                                "it is ignored, but other readers stop at it: save as UTF-8 without BOM"))
    if b"\r\n" in raw:
        findings.append(Finding("warning", path.name, "found Windows line ends (CRLF); they are read, "
                                "but other tools may not: save with LF"))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        return error(f"byte 0x{raw[problem.start]:02x} on line {line}, which is not UTF-8",
                     "save the file again as UTF-8")
    if not text.strip():
        return error("an empty file", "write one JSON object per image into it")
    return text


def _is_one_document(text: str, parsed: ParsedSlots) -> bool:
    """Whether the file is a single JSON document instead of lines; if so, that is a finding."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if isinstance(document, dict) and "\n" not in text.strip():
        return False
    rows = document if isinstance(document, list) else [document]
    if any(isinstance(row, dict) and ("annotations" in row or "box" in row) for row in rows):
        found, todo = "a Label Studio export", "run `rekey slots import` on it first"
    else:
        found, todo = "one JSON document over the whole file", "put each image on a line of its own"
    parsed.findings.append(Finding("error", parsed.file, f"found {found}, expected JSON lines; {todo}"))
    return True


def _json_fault(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {error.colno}"
    if isinstance(error, UnicodeEncodeError):
        return "half of a surrogate pair in a text"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} twice in one object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
