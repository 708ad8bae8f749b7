"""Swap pairs on disk: read them, and list what is wrong with each (VisualSwap, Sec. 3).

    pairs, problems = read_pairs(Path("pairs.jsonl"))       # the good ones, and one line for each that is not
    write_pairs(Path("out/pairs.jsonl"), pairs)
    changed_box(a, b)                                       # where two images differ

A pairs file holds one JSON object per line with the fields of `SwapPair`; its images lie in paths relative to its
folder.  Two images must have one size, or the number of image tokens would change with the image; their answers must
differ; and the question must be answerable from its options, or by a number or a word where it has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rekey import store
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.images import load_image
from rekey.quantities import quantity
from rekey.records import LETTERS, SwapPair, from_json, option_index, to_json
from rekey.values import same_value

PAIRS_FILE = "pairs.jsonl"
_TEXTS = ("pair_id", "image_a", "image_b", "question", "answer_a", "answer_b")
_MAYBE_TEXTS = ("category", "sha256_a", "sha256_b")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def pairs_file(path: Path) -> Path:
    """The file itself, or the one in a folder of pairs."""
    return path / PAIRS_FILE if path.is_dir() else path


def write_pairs(path: Path, pairs: Iterable[SwapPair]) -> None:
    store.write_jsonl(path, map(to_json, pairs))


def read_pairs(path: Path, limit: int | None = None,
               progress: Callable[[int, int], None] = lambda done, total: None) -> tuple[list[SwapPair], list[str]]:
    """The pairs of a file that can be used, and one line for each that cannot: what is wrong and what to do.

    Every image is opened.  limit: look at the first so many lines only.  progress: called with (lines looked at, lines
    in all).  Raises InputError for a file that is missing, damaged beyond single lines, or holds no line at all.
    """
    path = pairs_file(path)
    lines = _lines(path)[:limit]
    good: list[SwapPair] = []
    problems: list[str] = []
    seen: dict[str, int] = {}
    for n_done, (number, line) in enumerate(lines, 1):
        where = f"{path} line {number}"
        try:
            pair = parse_pair(line, where)
            if pair.pair_id in seen:
                raise InputError(f"{where}: pair {pair.pair_id!r} was there already, in line {seen[pair.pair_id]}; "
                                 "give every pair an id of its own")
            seen[pair.pair_id] = number
            good.append(check_images(pair, path.parent, f"{where}: pair {pair.pair_id!r}"))
        except InputError as error:
            problems += error.problems
        progress(n_done, len(lines))
    if not lines:
        raise InputError(f"{path}: holds no pairs; expected one JSON object per line (`rekey pairs build` writes such)")
    return good, problems


def _lines(path: Path) -> list[tuple[int, Any]]:
    """(number, what it holds) of every line; an InputError in place of what is not JSON."""
    bad: list[InputError] = []
    lines: list[tuple[int, Any]] = []
    for numbered in store.iter_jsonl(path, bad_line=bad.append):
        lines += [(0, error) for error in bad] + [numbered]
        bad.clear()
    return lines + [(0, error) for error in bad]


def parse_pair(line: Any, where: str) -> SwapPair:
    """The pair of one line, its images not yet looked at.  Raises InputError naming `where`."""
    if isinstance(line, InputError):
        raise line
    if not isinstance(line, dict):
        raise InputError(f"{where}: is {type(line).__name__}, not an object; expected the fields of a swap pair")
    name = f"{where}: pair {line['pair_id']!r}" if isinstance(line.get("pair_id"), str) else where
    for field in _TEXTS:
        if not isinstance(line.get(field), str) or not line[field].strip():
            raise InputError(f"{name}: {field} is {line.get(field)!r:.60}; expected text")
    if _CONTROL.search(line["pair_id"]):
        raise InputError(f"{name}: its id holds a line break or a control character; expected a name of one line")
    for field in _MAYBE_TEXTS:
        if not isinstance(line.get(field), str | None):
            raise InputError(f"{name}: {field} is {line[field]!r:.60}; expected text, or leave it out")
    options = line.get("options")
    if not isinstance(options, list) or not all(isinstance(option, str) and option.strip() for option in options):
        raise InputError(f"{name}: options are {options!r:.60}; expected a list of texts, [] for a free-form answer")
    if options:
        _check_options(options, line, name)
    else:
        _check_free_form(line["answer_a"], line["answer_b"], name)
    if line.get("changed") is not None:
        _check_box(line["changed"], name)
    try:
        store.dumps(line).encode()
    except ValueError as error:                                 # what comes of a pair is written as JSON, too
        raise InputError(f"{name}: holds NaN, an infinity or half of a character ({error}); expected JSON in UTF-8; "
                         "leave it out or write null") from None
    try:
        return from_json(SwapPair, line)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name}: is no swap pair ({error}); expected the fields of SwapPair") from None


def _check_options(options: list[str], line: dict[str, Any], name: str) -> None:
    if not 2 <= len(options) <= len(LETTERS):
        raise InputError(f"{name}: has {len(options)} option(s); expected 2 to {len(LETTERS)}, or [] for a free-form "
                         "answer")
    folded = [option.strip().casefold() for option in options]
    if twice := next((option for n, option in enumerate(folded) if option in folded[:n]), None):
        raise InputError(f"{name}: option {twice!r} is there twice; expected different ones; correct the options")
    letters = LETTERS[:len(options)]
    for field in ("answer_a", "answer_b"):
        if line[field] not in tuple(letters):
            raise InputError(f"{name}: {field} is {line[field]!r:.40}; expected the letter of one of its "
                             f"{len(options)} options, {letters[0]} to {letters[-1]}")
    if line["answer_a"] == line["answer_b"]:
        raise _equal_answers(name, line["answer_a"])
    a, b = (options[option_index(line[field])] for field in ("answer_a", "answer_b"))
    # Numbers only, and exactly: formulas take seconds to compare, and 3.1 and 3.14 may be options on purpose.
    one, two = quantity(a), quantity(b)
    if one is not None and two is not None and (one.value, one.unit) == (two.value, two.unit):
        raise InputError(f"{name}: the answers {line['answer_a']} ({a}) and {line['answer_b']} ({b}) are the same "
                         "value; expected different ones; correct the options")


def _check_free_form(a: str, b: str, name: str) -> None:
    if same_value(a, b):
        raise _equal_answers(name, a)
    if len(a) == len(b) == 1 and a in LETTERS and b in LETTERS:
        raise InputError(f"{name}: its answers are the letters {a} and {b}, but it has no options; expected what the "
                         "letters stand for; give the options, or answers in words or numbers (\"point A\")")


def _equal_answers(name: str, answer: str) -> InputError:
    return InputError(f"{name}: both answers are {answer!r:.60}; expected different ones, or nothing tells which image "
                      "was seen; leave the pair out or correct it")


def _check_box(box: Any, name: str) -> None:
    if not (isinstance(box, list) and len(box) == 4 and all(type(edge) is int for edge in box)
            and 0 <= box[0] < box[2] and 0 <= box[1] < box[3]):
        raise InputError(f"{name}: changed is {box!r:.60}; expected [left, top, right, bottom] in whole pixels, right "
                         "and bottom beyond the last changed ones, or leave it out")


def check_images(pair: SwapPair, folder: Path, name: str) -> SwapPair:
    """The pair with the hashes of its images filled in.  Raises InputError where they cannot be a pair."""
    images = {}
    for side in ("a", "b"):
        path = folder / getattr(pair, f"image_{side}")
        try:
            if not path.is_file():
                raise InputError(f"no image {path}; restore the file, or correct image_{side}")
            images[side] = load_image(path)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        except OSError as error:                                # a path too long, a folder that may not be read
            raise InputError(f"{name}: image_{side} cannot be read ({error.strerror}): {str(path):.80}; correct it, "
                             "or the file's permissions") from None
        wanted = getattr(pair, f"sha256_{side}")
        if wanted and wanted != images[side].sha256:
            raise InputError(f"{name}: {path} is not the image that the pair was made with (its pixels have another "
                             "hash); restore it, or make the pairs again")
    a, b = images["a"], images["b"]
    if a.pixels.shape != b.pixels.shape:
        sizes = " and ".join(f"{image.width}x{image.height}" for image in (a, b))
        raise InputError(f"{name}: its images are {sizes} pixels; expected one size, or the number of image tokens "
                         "changes with the image; resize or pad one of them")
    if a.sha256 == b.sha256:
        raise InputError(f"{name}: both images show the same pixels; expected two; leave the pair out")
    if pair.changed is not None and not pair.changed.inside(a.width, a.height):
        raise InputError(f"{name}: changed is {pair.changed}; expected a box inside the {a.width}x{a.height} image, or "
                         "leave it out")
    return replace(pair, sha256_a=a.sha256, sha256_b=b.sha256)


def changed_box(a: np.ndarray, b: np.ndarray) -> Box | None:
    """The smallest box outside of which two images are equal; None where they are equal everywhere.

    a, b: uint8 (height, width, 3) of one shape, or ValueError.
    """
    if a.shape != b.shape:
        raise ValueError(f"images of shapes {a.shape} and {b.shape}; expected one shape")
    differs = (a != b).any(-1)                                  # (height, width)
    rows, columns = np.flatnonzero(differs.any(1)), np.flatnonzero(differs.any(0))
    if not len(rows):
        return None
    return Box(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
