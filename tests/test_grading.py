"""Stored responses, graded: outcomes, fields, and lines that are none."""

import json

import pytest
from responding import answered, renewed, write

from rekey import grading
from rekey.errors import InputError
from rekey.grading import grade, grade_files, grade_line, system_names


def outcome(line, parser="strict"):
    graded = grade_line(line, parser)
    return graded.outcome, graded.said


@pytest.mark.parametrize("text, strict, paper", (
    ("B", ("correct", "B"), ("correct", "B")),
    ("C", ("wrong", "C"), ("wrong", "C")),
    ("It is blue.", ("correct", "B"), ("unparsed", None)),
    ("B. It is a blue bag", ("correct", "B"), ("wrong", "A")),          # the article, for the published rule
    ("I cannot see it.", ("unparsed", None), ("unparsed", None)),
    ("E", ("unparsed", None), ("unparsed", None)),                      # an option that there is not
    ("", ("unparsed", None), ("unparsed", None))))
def test_each_parser_gives_its_outcome(text, strict, paper):
    assert outcome(answered("a", text)) == strict
    assert outcome(answered("a", text), "paper") == paper


def test_a_cut_off_answer_is_truncated_and_the_published_rule_reads_it_all_the_same():
    line = answered("a", "The answer is B", finish="length")
    assert outcome(line) == ("truncated", None)
    assert outcome(line, "paper") == ("correct", "B")
    assert outcome(answered("a", "I think", finish="length"), "paper") == ("unparsed", None)


@pytest.mark.parametrize("parser", ("strict", "paper"))
def test_a_failure_is_an_error_and_says_why(parser):
    graded = grade_line(answered("a", None, error="HTTP 503 after 5 tries"), parser)
    assert (graded.outcome, graded.said, graded.how) == ("error", None, "HTTP 503 after 5 tries")


def test_the_published_rule_has_its_own_way_with_reasoning():
    text = "Answer: B, not a red one"
    assert outcome(answered("a", text), "paper") == ("wrong", "A")
    assert outcome(answered("a", text, prompt="cot"), "paper") == ("correct", "B")


def test_the_published_rule_may_say_an_option_that_there_is_not():
    graded = grade_line(answered("a", "D", options=("left", "right")), "paper")
    assert (graded.outcome, graded.said, graded.said_text) == ("wrong", "D", None)


@pytest.mark.parametrize("parser", ("strict", "paper"))
@pytest.mark.parametrize("text, found", (
    ("The answer is 0.5", "correct"), ("7", "wrong"), ("I cannot tell.", "unparsed")))
def test_items_without_options_are_read_as_values_by_either_parser(text, found, parser):
    line = answered("a", text, answer="1/2", options=())
    assert outcome(line, parser)[0] == found
    assert grade_line(line, parser).chance == 0
    assert grade_line(line, parser).said_text == grade_line(line, parser).said


def test_fields_of_a_renewed_item_come_from_its_record():
    edits = [("add", (10, 20, 40, 60)), ("replace", (0, 0, 20, 10))]
    line = renewed("photo", 7, "C", "position", edits, source="white")
    graded = grade_line(line, "strict")
    assert (graded.image_id, graded.item_id, graded.seed, graded.kind) == ("photo", "photo/seed7", 7, "position")
    assert (graded.mode, graded.area_px2) == ("add+replace", 200)
    assert (graded.source_answer, graded.said_text, graded.chance) == ("white", "white", 0.25)
    assert grade_line(renewed("photo", 7, "C", edits=[("add", (0, 0, 3, 3))] * 2), "strict").mode == "add"


@pytest.mark.parametrize("category, kind", (("direct_attributes", "attribute"), ("relative_position", "position"),
                                            ("counting", "counting"), (None, None)))
def test_an_item_without_a_record_stands_for_its_own_image(category, kind):
    graded = grade_line(answered("photo", "B", category=category), "strict")
    assert (graded.image_id, graded.seed, graded.mode, graded.area_px2) == ("photo", None, None, None)
    assert graded.kind == kind


def test_settings_that_are_equal_are_one_system_and_others_have_names():
    lines = (answered("a", "B"), answered("a", "B", temperature=0), answered("a", "B", prompt="cot"),
             answered("a", "B", model="other"))
    systems = [grade_line(line, "strict").system for line in lines]
    assert systems[0] == systems[1] and len(set(systems)) == 3
    assert list(system_names(dict.fromkeys(systems)).values()) == ["m, prompt direct", "m, prompt cot", "other"]
    with_switch = [grade_line(answered("a", "B", **some), "strict").system for some in ({}, {"thinking": True})]
    assert list(system_names(with_switch).values()) == ["m, thinking default", "m, thinking True"]


# ------------------------------------------------------------------------------------------- files

def test_a_file_gives_one_answer_per_key_the_last_error_only_where_there_is_no_answer(tmp_path):
    lines = [answered("a", None, error="first"), answered("a", "B"), answered("b", None, error="first"),
             answered("b", None, error="second")]
    write(tmp_path / "r.jsonl", lines)
    write(tmp_path / "r-0002-of-0002.jsonl", [answered("a", "C"), answered("c", "B")])
    found = {graded.item_id: (graded.outcome, graded.how) for graded in grade(tmp_path / "r.jsonl")}
    assert found == {"a": ("correct", "bare"), "b": ("error", "second"), "c": ("correct", "bare")}


def test_a_line_that_is_still_being_written_is_left_out(tmp_path):
    path = write(tmp_path / "r.jsonl", [answered("a", "B")])
    path.write_text(path.read_text() + '{"key": "torn')
    assert [graded.item_id for graded in grade(path)] == ["a"]


def broken(**changes):
    return answered("a", "B") | changes


@pytest.mark.parametrize("line, message", (
    ([1], r"line 1: is not an object"),
    ({"key": "k"}, r"line 1: has no item"),
    (broken(item=None), r"line 1: has no item"),
    (broken(item=["item_id"]), r"line 1: has no item"),
    (broken(key=["k"]), r"line 1: has no key"),
    (broken(settings="direct"), r"line 1: has no settings"),
    (broken(generation="B"), r"line 1: has no generation and no error"),
    (broken(generation={"finish": "stop"}), r"item 'a', cannot be graded \(no 'text'\)"),
    (broken(generation={"text": None}), r"item 'a', cannot be graded"),
    (broken(item=answered("a", "B")["item"] | {"options": {"A": "red"}}), r"options .* not a list of texts"),
    (broken(item=answered("a", "B")["item"] | {"options": [1, 2]}), r"options .* not a list of texts"),
    (broken(item=answered("a", "B")["item"] | {"answer": "blue"}), r"answer 'blue', not the letter of one of 4"),
    (broken(item=answered("a", "B")["item"] | {"answer": "E"}), r"answer 'E', not the letter of one of 4"),
    (broken(item=answered("a", "B")["item"] | {"answer": ""}), r"answer '', not the letter of one of 4"),
    (broken(item=answered("a", "B")["item"] | {"answer": None}), r"answer None, not the letter of one of 4"),
    (broken(item=answered("a", "B")["item"] | {"record": {"image_id": "a"}}), r"cannot be graded \(no 'keys'\)"),
    (broken(item=answered("a", "B")["item"] | {"record": 5}), r"item 'a', cannot be graded")))
@pytest.mark.parametrize("parser", ("strict", "paper"))
def test_a_line_that_is_no_response_is_one_clear_line(tmp_path, line, message, parser):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=message) as caught:
        list(grade(path, parser))
    assert len(caught.value.problems) == 1 and "r.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_many_megabytes_are_graded_by_several_processes_and_come_out_the_same(tmp_path, monkeypatch):
    paths = [write(tmp_path / f"r{n}.jsonl", [answered(f"i{n}", "B"), answered("x", None)]) for n in range(3)]
    at_once = grade_files([*paths, paths[0]])
    assert list(at_once) == paths and [graded.item_id for graded in at_once[paths[1]]] == ["i1", "x"]
    monkeypatch.setattr(grading, "FORK_FROM_BYTES", 0)
    monkeypatch.setattr(grading.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert grade_files([*paths, paths[0]]) == at_once
    write(paths[2], [answered("i", "B", answer="E")])
    with pytest.raises(InputError, match="r2.jsonl: the line of m, item 'i', cannot be graded"):
        grade_files(paths)


def test_files_and_parsers_that_are_none_are_one_clear_line(tmp_path):
    with pytest.raises(InputError, match="gone.jsonl: no such file"):
        list(grade(tmp_path / "gone.jsonl"))
    (tmp_path / "text.jsonl").write_text("A\n")
    with pytest.raises(InputError, match="text.jsonl line 1: not JSON"):
        list(grade(tmp_path / "text.jsonl"))
    with pytest.raises(InputError, match="parser 'loose': expected strict or paper"):
        list(grade(tmp_path / "gone.jsonl", "loose"))
