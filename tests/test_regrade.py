"""Stored responses graded again, by the function and by the command."""

import json

import pytest
from click.testing import CliRunner
from responding import answered, renewed, write

from experiments.cli import main
from experiments.regrade import as_text, regrade_files
from rekey.errors import InputError

LINES = [answered("a", "B"), answered("b", "B. It is a blue bag"), answered("c", "I cannot see it."),
         answered("d", None, error="HTTP 500"), answered("e", "B", finish="length")]


@pytest.fixture
def responses(tmp_path):
    return write(tmp_path / "seed1.jsonl", LINES)


def run(*words):
    result = CliRunner().invoke(main, ["regrade", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def test_every_response_is_graded_and_what_the_other_parser_reads_is_told(responses):
    report = regrade_files([responses], "strict")
    assert [(line["item_id"], line["outcome"], line["said"], line["said_by_other"]) for line in report.lines] == [
        ("a", "correct", "B", "B"), ("b", "correct", "B", "A"), ("c", "unparsed", None, None),
        ("e", "truncated", None, "B"), ("d", "error", None, None)]
    assert [(change.item_id, change.said, change.said_by_other) for change in report.changes] == [
        ("b", "B", "A"), ("e", None, "B")]
    other = regrade_files([responses], "paper")
    assert [line["outcome"] for line in other.lines] == ["correct", "wrong", "unparsed", "correct", "error"]
    assert [(change.said, change.said_by_other) for change in other.changes] == [("A", "B"), ("B", None)]


def test_errors_leave_the_denominator_of_the_table(responses):
    (head, row) = as_text(regrade_files([responses], "strict")).splitlines()[:2]
    assert head.split()[-3:] == ["unparsed", "truncated", "error"] and row.split()[-3:] == ["1", "1", "1"]
    assert " ".join(row.split()).startswith(f"{responses}, m 4 50.0 [")


def test_two_ways_of_asking_in_one_file_are_two_rows(tmp_path):
    path = write(tmp_path / "r.jsonl", [answered("a", "B"), answered("a", "C", prompt="cot")])
    text = " ".join(as_text(regrade_files([path], "strict")).split())
    assert "r.jsonl, m, prompt direct 1 100.0 [" in text and "r.jsonl, m, prompt cot 1 0.0 [" in text


def test_many_changes_are_cut_short(tmp_path):
    path = write(tmp_path / "r.jsonl", [answered(f"i{n}", "B. It is a blue bag") for n in range(25)])
    text = as_text(regrade_files([path], "strict"))
    assert "25 of 25 responses are read differently by the paper parser" in text
    assert text.endswith("... and 5 more") and text.count("strict B, paper A") == 20


def test_the_command_prints_a_table_and_writes_a_line_per_response(responses, tmp_path):
    before = responses.read_bytes()
    other = write(tmp_path / "seed2.jsonl", [renewed("a", 2, "B")])
    out = tmp_path / "graded.jsonl"
    result = run(responses, other, "--parser", "paper", "--out", out)
    assert result.exit_code == 0 and "2 of 6 responses are read differently by the strict parser" in result.output
    lines = [json.loads(line) for line in out.open()]
    assert len(lines) == 6 and lines[-1]["seed"] == 2 and lines[0]["model"] == "m"
    assert responses.read_bytes() == before
    assert "Next:  rekey regrade" in run(responses).output and "2 of 5 responses" in run(responses, responses).output


def test_responses_are_never_written_over(responses, tmp_path):
    shard = write(tmp_path / "seed1-0002-of-0002.jsonl", LINES[:1])
    for out in (responses, shard, tmp_path / "." / responses.name):
        before = out.read_bytes()
        result = run(responses, "--out", out)
        assert result.exit_code == 2 and "holds responses, which are never written over" in result.output
        assert out.read_bytes() == before


@pytest.mark.parametrize("name, text, message", (
    ("gone.jsonl", None, "gone.jsonl: no such file"), ("empty.jsonl", "", "empty.jsonl: no responses"),
    ("text.jsonl", "A\n", "text.jsonl line 1: not JSON"), ("other.jsonl", "{}\n", "other.jsonl line 1: has no key")))
def test_files_that_hold_no_responses_are_one_clear_line(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    result = run(tmp_path / name, "--out", tmp_path / "graded.jsonl")
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output
    assert not (tmp_path / "graded.jsonl").exists()
    with pytest.raises(InputError, match=message):
        regrade_files([tmp_path / name], "strict")
