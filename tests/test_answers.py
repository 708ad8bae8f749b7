"""Answers read from texts, against what a person reads; and the published rule, against the published logs."""

import gzip
import json

import pytest

from rekey.answers import options_named, paper_letter, parse_answer, read_answer
from rekey.errors import InputError

OPTIONS = {"A": "red", "B": "blue", "C": "white", "D": "yellow"}

SAID = (
    # a label and little else
    ("C", "C"), ("C.", "C"), ("(C)", "C"), ("[C]", "C"), ("c", "C"), ("(c)", "C"), ("c.", "C"), ("**C**", "C"),
    ("`C`", "C"),
    ("\uff23", "C"), ("\uff08\uff23\uff09", "C"), ('"C"', "C"), ("C) white", "C"), ("(C) white, like a cloud", "C"),
    ("C: white", "C"), ("C, white", "C"), ("A", "A"), ("A.", "A"), ("\n\nB\n", "B"), ("B<|im_end|>", "B"),
    ("B. It is a red bag", "B"), ("C) white\n\nLooking at this image, which appears to be a plaza", "C"),
    ("**(C)**\n\n*(Note: This is a forced choice...)*", "C"),
    # declared
    ("Based on the image, the answer is D.", "D"), ("Answer: **D**", "D"), ("The correct answer is (B)", "B"),
    ("The correct answer is d.", "D"), ("Therefore, the answer is:\n(A)", "A"), ("The correct option is **(B)**.", "B"),
    ("Option B is correct.", "B"), ("(B) is the correct answer.", "B"), ("I would choose (C).", "C"),
    ("I'll go with D", "D"),
    ("ANSWER: C", "C"), ("answer:c", "C"), ("The answer is red.", "A"), ("the answer is a red bag", "A"),
    ("The answer is **blue**.", "B"), ("\u7b54\u6848\uff1aB", "B"), ("\u7b54\u6848\u662f B\u3002", "B"),
    ("\\boxed{C}", "C"), ("\\boxed{\\text{C}}", "C"), ("So $\\boxed{(C)}$.", "C"), ("\\boxed{white}", "C"),
    ("<answer>B</answer>", "B"), ("<|begin_of_box|>B<|end_of_box|>", "B"),
    ("I considered (A), but it is incorrect. Final answer: D.", "D"), ("The answer is not A. The answer is B.", "B"),
    ("At first the answer is A. Wait, I was wrong. The answer is B.", "B"),
    ("So the answer is D.\nLet's reconsider. There are three.\n\nA", "A"),
    ("There is no correct option. If forced to choose:\n(B) blue\n\nSystem Instruction:", "B"),
    ("I must select an option and there is no correct answer.\nAnswer: (B)", "B"),
    ("Therefore, the most likely intended answer is red.", "A"),
    # said, not declared
    ("A dog is visible, so (C)", "C"), ("Both bags are red. C", "C"), ("The bag is blue.\n\n(B)", "B"), ("red", "A"),
    ("Red.", "A"), ("The umbrella is **white**.", "C"), ("It must be C.", "C"),
    ("I can't see it well, but if forced to pick: D", "D"),
    # reasoning that ended
    ("<think>It is A. Or B?</think>\n\nB", "B"), ("A or B? ...</think>\n\nB", "B"),
    # nothing that can be counted
    ("", None), ("   \n", None), ("Cannot determine", None), ("I can't see a dog", None), ("A black dog is here", None),
    ("I cannot identify a dog in this image.", None), ("**Answer:** None of the above", None),
    ("Answer: (Cannot be determined)", None), ("There is no dog visible in the image.", None),
    ("...if you'd like me to choose... I cannot accurately do so", None), ("<think>A or B, let me", None),
    ("The answer options are A, B, C and D.", None),
    ("Looking at the corner, there is a cat. The cat appears to be", None),
    ("It is not red, it is blue.", None), ("If the answer is A, it would be red.", None),
    # contradictions, and labels that the item does not have
    ("B or C", None), ("A/B", None), ("(A) or (B)", None), ("The answer is A. The answer is B.", None),
    ("Answer: A\nAnswer: B", None), ("A) blue", None), ("The answer is (A) blue.", None),
    ("The answer is A.\n\nB", None),
    ("The image shows a red car and a blue one.", None), ("E", None), ("Answer: E", None), ("(F) purple", None),
)


@pytest.mark.parametrize("text, label", SAID)
def test_strict_reads_what_a_person_reads(text, label):
    assert parse_answer(text, OPTIONS) == label, read_answer(text, OPTIONS)


def test_never_an_option_that_the_item_does_not_have():
    two = {"A": "left", "B": "right"}
    for text, _ in SAID:
        assert parse_answer(text, two) in (None, "A", "B")
    assert parse_answer("The answer is C.", two) is None and read_answer("C", two).how == "no such option"


def test_the_longer_option_covers_the_shorter_one_in_it():
    options = {"A": "blue", "B": "light blue", "C": "red"}
    assert options_named("It is light blue.", options) == ["B"] and parse_answer("It is light blue.", options) == "B"
    assert parse_answer("the answer is light blue", options) == "B"


@pytest.mark.parametrize("text, letter", (
    ("B. It is a red bag", "A"), ("(C) white, like a cloud", "A"), ("I can't see a dog", "A"),
    ("Cannot determine", None),
    ("if you'd like me to choose", "D"), ("a or B", "B"), ("", None)))
def test_the_papers_rule_takes_articles_for_answers(text, letter):
    assert parse_answer(text, OPTIONS, parser="paper") == paper_letter(text) == letter


def test_the_papers_rule_for_reasoning():
    said = "Answer: (B) because a cat"
    assert paper_letter(said, cot=True) == "B" and paper_letter(said) == "A"
    assert paper_letter("no cue, so C", cot=True) == "C"


def test_an_unknown_parser_is_one_clear_line():
    with pytest.raises(InputError, match="parser 'llm': expected strict or paper"):
        parse_answer("A", OPTIONS, parser="llm")


def test_on_the_published_logs_strict_changes_few_readings_and_gains_no_letter_by_chance(published):
    items, rows = published
    changed = []
    for key, row in rows.items():
        options = items[row["condition"], row["seed"], row["item"]]["options"]
        strict, paper = parse_answer(row["response"], options), paper_letter(row["response"])
        assert strict is None or strict in options
        assert (paper == row["gold"]) == row["stored_correct"], key
        if strict != paper:
            changed.append((key, paper, strict))
    assert len(rows) == 7640 and len(changed) <= 70, len(changed)


@pytest.fixture(scope="module")
def published(data_pack):
    logs = data_pack / "rekey" / "logs"

    def lines(name: str):
        with gzip.open(logs / name, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    items = {(row["condition"], row.get("seed"), row["item"]): row for row in lines("items.jsonl.gz")}
    rows: dict[tuple, dict] = {}
    for row in lines("table1_standard.jsonl.gz"):
        key = tuple(row[name] for name in ("model", "condition", "seed", "item"))
        if key not in rows or rows[key]["line"] < row["line"]:
            rows[key] = row
    return items, rows
