"""Pairs files: every kind of bad pair has its line, and the rest are read."""

import gzip
import json

import numpy as np
import pytest

from rekey.errors import InputError
from rekey.geometry import Box
from rekey.images import pixel_sha256, save_png
from rekey.pairs import PAIRS_FILE, changed_box, read_pairs, write_pairs
from rekey.records import SwapPair
from rekey.store import dumps

GOOD = {"pair_id": "p", "image_a": "a.png", "image_b": "b.png", "question": "What color is the kite?",
        "options": ["red", "blue"], "answer_a": "A", "answer_b": "B"}
FREE = {"options": [], "answer_a": "3", "answer_b": "4"}


@pytest.fixture
def folder(tmp_path):
    a = np.full((20, 30, 3), 200, np.uint8)
    b = a.copy()
    b[4:9, 11:13, 1] = 7
    for name, pixels in (("a", a), ("b", b), ("same", a), ("wide", np.full((20, 31, 3), 9, np.uint8))):
        save_png(tmp_path / f"{name}.png", pixels)
    (tmp_path / "cut.png").write_bytes((tmp_path / "b.png").read_bytes()[:60])
    (tmp_path / "text.png").write_text("not a picture")
    return tmp_path


def write(folder, *lines):
    """lines: changes to a good pair, or a raw line."""
    path = folder / PAIRS_FILE
    path.write_text("".join(line if isinstance(line, str) else dumps(GOOD | {"pair_id": f"p{n}"} | line) + "\n"
                            for n, line in enumerate(lines)), encoding="utf-8")
    return path


BAD = {
    "unequal sizes": ({"image_b": "wide.png"}, "its images are 30x20 and 31x20 pixels"),
    "equal answers": ({"answer_b": "A"}, "both answers are 'A'"),
    "equal numbers": (FREE | {"answer_b": "3.0"}, "both answers are '3'"),
    "equal values": ({"options": ["0.5", "1/2"]}, "the answers A (0.5) and B (1/2) are the same value"),
    "a missing file": ({"image_b": "nowhere.png"}, "no image"),
    "a duplicate id": ({"pair_id": "p0"}, "was there already, in line 1"),
    "letters without options": ({"options": []}, "its answers are the letters A and B, but it has no options"),
    "options that are no list": ({"options": "red"}, "options are 'red'"),
    "one option": ({"options": ["red"]}, "has 1 option(s)"),
    "an option twice": ({"options": ["red", "Red "]}, "option 'red' is there twice"),
    "a letter beyond the options": ({"answer_b": "C"}, "answer_b is 'C'"),
    "a word for a letter": ({"answer_a": "red"}, "answer_a is 'red'"),
    "a cut image": ({"image_b": "cut.png"}, "cut.png"),
    "a text for an image": ({"image_a": "text.png"}, "text.png"),
    "the same image": ({"image_b": "same.png"}, "both images show the same pixels"),
    "another image than the hash says": ({"sha256_a": "0" * 64}, "is not the image that the pair was made with"),
    "no question": ({"question": " "}, "question is ' '"),
    "a number for an answer": (FREE | {"answer_a": 3}, "answer_a is 3"),
    "a box outside": ({"changed": [0, 0, 31, 20]}, "expected a box inside the 30x20 image"),
    "a box of fractions": ({"changed": [0, 0, 1.5, 2]}, "expected [left, top, right, bottom] in whole pixels"),
    "an empty box": ({"changed": [5, 5, 5, 9]}, "expected [left, top, right, bottom] in whole pixels"),
    "a number for a category": ({"category": 3}, "category is 3"),
    "a line that is no object": ("[1, 2]\n", "is list, not an object"),
    "an id of two lines": ({"pair_id": "a\nb"}, r"pair 'a\nb': its id holds a line break"),
    "a path too long": ({"image_a": "x" * 5000}, "image_a cannot be read"),
    "a number that JSON lacks": (json.dumps(GOOD | {"pair_id": "p1", "source": float("nan")}) + "\n", "holds NaN"),
    "half of a character": (json.dumps(GOOD | {"pair_id": "p1", "question": "\udc00"}) + "\n", "half of a character"),
    "brackets without end": ("[" * 100_000 + "\n", "cannot be read as JSON"),
    "a number without end": ("1" * 5000 + "\n", "cannot be read as JSON"),
    "a line that is not JSON": ("{'pair_id': 1}\n", "not JSON"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_pair_has_one_line_and_the_others_are_kept(folder, kind):
    line, expected = BAD[kind]
    good, problems = read_pairs(write(folder, {}, line, FREE))
    assert [pair.pair_id for pair in good] == ["p0", "p2"]
    (problem,) = problems
    assert expected in problem and "\n" not in problem and "line 2" in problem


@pytest.mark.parametrize("options", [["3.1", "3.14"], ["5 cm", "5 m"], ["y = 2x + 1", "y = x + 1"], ["left", "right"]])
def test_options_that_are_near_are_no_problem(folder, options):
    good, problems = read_pairs(write(folder, {"options": options}))
    assert len(good) == 1 and not problems


def test_good_pairs_come_with_the_hashes_of_their_pixels(folder):
    (pair,), problems = read_pairs(write(folder, {"category": "color", "source": {"any": [1]}}))
    assert not problems and pair.source == {"any": [1]}
    b = np.full((20, 30, 3), 200, np.uint8)
    assert pair.sha256_a == pixel_sha256(b)
    b[4:9, 11:13, 1] = 7
    assert pair.sha256_b == pixel_sha256(b)
    assert (pair.answer_text("a"), pair.answer_text("b")) == ("red", "blue")


def test_what_was_written_is_read_zipped_or_not(folder):
    pair = SwapPair("p", "a.png", "b.png", "How many?", (), "3", "4", changed=Box(11, 4, 13, 9))
    write_pairs(folder / PAIRS_FILE, [pair])
    (read,), _ = read_pairs(folder)
    (folder / "zipped.jsonl.gz").write_bytes(gzip.compress((folder / PAIRS_FILE).read_bytes()))
    assert read_pairs(folder / "zipped.jsonl.gz")[0] == [read]
    assert (read.pair_id, read.changed, read.options) == ("p", Box(11, 4, 13, 9), ())


def test_a_limit_looks_at_the_first_lines_only(folder):
    seen = []
    good, problems = read_pairs(write(folder, {}, "nonsense\n", {}, {}), 3, lambda *done: seen.append(done))
    assert [pair.pair_id for pair in good] == ["p0", "p2"] and len(problems) == 1
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("content", [None, b"", b"\x1f\x8b damaged"])
def test_a_file_without_any_line_is_refused(folder, content):
    path = folder / PAIRS_FILE
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError):
        read_pairs(path)


def test_a_line_that_is_not_utf8_is_listed(folder):
    path = write(folder, {}, {})
    path.write_bytes(path.read_bytes().replace(b"p1", b"\xff1"))
    good, (problem,) = read_pairs(path)
    assert len(good) == 1 and "not UTF-8" in problem


def test_the_changed_box_is_the_one_found_pixel_by_pixel():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 255, (12, 17, 3), np.uint8)
    assert changed_box(a, a.copy()) is None
    for n_changes in (1, 2, 5):
        b = a.copy()
        places = [(int(rng.integers(12)), int(rng.integers(17))) for _ in range(n_changes)]
        for y, x in places:
            b[y, x, rng.integers(3)] ^= 1
        differing = {(y, x) for y in range(12) for x in range(17) if tuple(a[y, x]) != tuple(b[y, x])}
        ys, xs = zip(*differing)
        assert changed_box(a, b) == Box(min(xs), min(ys), max(xs) + 1, max(ys) + 1)
    with pytest.raises(ValueError, match="one shape"):
        changed_box(a, a[:5])


def test_lines_hold_nothing_that_json_lacks(folder):
    write_pairs(folder / PAIRS_FILE, [SwapPair("p", "a.png", "b.png", "Wie groß ist β?", (), "3", "4")])
    (line,) = (folder / PAIRS_FILE).read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["question"] == "Wie groß ist β?" and "sha256_a" not in line
