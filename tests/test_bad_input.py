"""What a user sees for bad input: one clear line per problem, exit 2, nothing half-written."""

import json

import pytest
from click.testing import CliRunner
from PIL import Image

from experiments.cli import main

GOOD = {"image_id": "a", "category": "direct_attributes", "question_id": "0", "slots": [
    {"slot_id": "A1", "context_region": {"xyxy": [0, 0, 90, 90], "ref": ""},
     "edit_region": {"xyxy": [20, 20, 60, 60], "mode": "add"}, "add": {"objects": ["cat"]}}]}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (100, 90), "gray").save(tmp_path / "photos" / "a.png")
    (tmp_path / "slots.jsonl").write_text(json.dumps(GOOD) + "\n")
    return tmp_path


def run(*args):
    return CliRunner().invoke(main, list(args))


def generate(slots="slots.jsonl", images="photos", *more):
    return run("generate", "--slots", slots, "--images", images, "--seed", "1", "--out", "out", "--workers", "1", *more)


def check(result, *expected):
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    for text in expected:
        assert text in result.output, result.output


@pytest.mark.parametrize("args, expected", [
    (["generate"], "Missing option"),
    (["generate", "--seed", "-1"], "-1 is not in the range"),
    (["nonsense"], "No such command"),
    (["sample", "--slots", "none.jsonl", "--seed", "1"], "none.jsonl"),
    (["sample", "--slots", "photos", "--seed", "1"], "photos"),
    (["sample", "--slots", "slots.jsonl", "--seed", "1", "--plausible", "none.json"], "none.json: cannot be read"),
    (["sample", "--slots", "slots.jsonl", "--seed", "1", "--plausible", "slots.jsonl"], "not a table of plausible"),
    (["sample", "--slots", "slots.jsonl", "--seed", "1", "--avoid", "gone"], "--avoid gone: no items.jsonl there"),
    (["sample", "--slots", "slots.jsonl", "--seed", "1", "--avoid", "slots.jsonl"], "line 1: no sampling record"),
    (["merge", "gone"], "no plan.json there"),
    (["merge", "photos"], "no plan.json there"),
])
def test_bad_arguments(place, args, expected):
    before = sorted(p.name for p in place.rglob("*"))
    check(run(*args), expected)
    assert sorted(p.name for p in place.rglob("*")) == before


def test_unknown_editors_and_shards(place):
    check(generate("slots.jsonl", "photos", "--editor", "dalle"), "--editor dalle: no such editor; there is classical")
    check(generate("slots.jsonl", "photos", "--shard", "5/4"), "--shard 5/4: expected i/n with 1 <= i <= n")
    assert not (place / "out").exists()


def test_missing_images_are_all_listed(place):
    lines = [GOOD | {"image_id": name} for name in ("a", "b", "c")]
    (place / "slots.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = generate()
    check(result, "b", "c")
    assert len(result.output.strip().splitlines()) == 3          # what it will do, then one line per problem
    assert not (place / "out").exists()


def test_boxes_outside_the_image(place):
    wide = json.loads(json.dumps(GOOD).replace("[20, 20, 60, 60]", "[70, 20, 140, 60]").replace("[0, 0, 90, 90]",
                                                                                         "[0, 0, 200, 90]"))
    (place / "slots.jsonl").write_text(json.dumps(wide) + "\n")
    check(generate(), "a/A1: edit box [70, 20, 140, 60] leaves the 100x90 image a.png; check whether the boxes were "
                      "drawn on a resized copy")
    assert not (place / "out").exists()


@pytest.mark.parametrize("data, expected", [
    (b"", "empty"), (b"not an image", "not a readable image; expected JPEG"),
    (b"\x89PNG\r\n\x1a\n", "damaged PNG header; copy or download the file again")])
def test_files_that_are_no_images(place, data, expected):
    (place / "photos" / "a.png").write_bytes(data)
    check(generate(), "a.png", expected)
    assert not (place / "out").exists()


@pytest.mark.parametrize("args", [
    ["demo", "--out", "slots.jsonl"],
    ["sample", "--slots", "slots.jsonl", "--seed", "1", "--out", "photos"],
    ["sample", "--slots", "slots.jsonl", "--seed", "1", "--out", "slots.jsonl/x"],
    ["slots", "preview", "slots.jsonl", "--images", "photos", "--out", "slots.jsonl/x"],
    ["generate", "--slots", "slots.jsonl", "--images", "photos", "--seed", "1", "--out", "slots.jsonl/x"]])
def test_paths_that_cannot_be_written(place, args):
    text = (place / "slots.jsonl").read_text()
    check(run(*args), "give another")
    assert (place / "slots.jsonl").read_text() == text


@pytest.mark.parametrize("table, expected", [
    ('{"cat": {"color": "black"}}', "cat: found 'black' as color, expected a list of names"),
    ('{"cat": {"color": ["blak"]}}', "cat: found color blak, expected some of red, blue"),
    ('{"cat": {"colour": ["black"]}, "dog": 3}', "cat: found attribute 'colour', expected one of color"),
    ("[]", "not a table of plausible values"), ("{", "not a JSON file")])
def test_tables_that_are_no_tables(place, table, expected):
    (place / "table.json").write_text(table)
    check(run("sample", "--slots", "slots.jsonl", "--seed", "1", "--plausible", "table.json"), expected)


def test_an_out_that_is_a_file(place):
    (place / "out").write_text("mine")
    check(generate(), "out: is not empty and holds no run")
    assert (place / "out").read_text() == "mine"


def test_a_damaged_plan_or_journal_is_named(place):
    assert generate().exit_code in (0, 3)
    (place / "out" / "journal.jsonl").write_text('{"image_id": "a"\n{"image_id":"a"}\n')
    check(generate(), "journal.jsonl line 1: not JSON")
    (place / "out" / "journal.jsonl").write_text("42\n")
    check(generate(), "journal.jsonl line 1: not a line of a journal")
    (place / "out" / "plan.json").write_text("[]")
    check(generate(), "plan.json: not the plan of a run")
    (place / "out" / "journal.jsonl").write_text("")
    check(run("merge", "out"), "plan.json: not the plan of a run")
    (place / "out" / "plan.json").write_text("{")
    check(generate(), "plan.json: not a JSON file")
