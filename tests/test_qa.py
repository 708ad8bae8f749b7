"""Questions spelled from records."""

from collections import Counter

import pytest
from test_sampling import slot

from rekey.qa import build_question, instruction
from rekey.records import SamplingRecord, VisualKey


def record(*keys, attribute="color", seed=0):
    return SamplingRecord("toy", seed, "attribute" if len(keys) == 1 else "position", attribute, keys)


def painted(target, color, left=100, top=100, **look):
    return VisualKey(slot("A", left, top, targets=[target]), "replace", target, color, **look)


def added(noun, color, left=400, top=100, **look):
    return VisualKey(slot("B", left, top, candidates=[noun]), "add", noun, color, **look)


@pytest.mark.parametrize("key, text", [
    (painted("blue jacket on the cyclist", "white"), "What color is the jacket on the cyclist?"),
    (painted("green shorts on the man", "white"), "What color are the shorts on the man?"),
    (painted("blue slippers", "red"), "What color are the slippers?"),
    (painted("red bus", "blue"), "What color is the bus?"),
    (added("kick scooter", "pink"), "What color is the kick scooter?"),
])
def test_attribute_questions_are_grammatical(key, text):
    question = build_question(record(key))
    assert question.text == text
    assert question.options["ABCD".index(question.answer)] == key.color


def test_other_attributes_have_their_own_wording():
    train = painted("red-and-yellow striped train", None, pattern="dotted")
    striped = build_question(record(train, attribute="pattern"))
    assert striped.text == "What pattern does the train have?"
    assert set(striped.options) == {"plain", "striped", "dotted", "checked"}
    assert striped.source_answer == "striped"
    shorts = build_question(record(painted("blue shorts", None, pattern="striped"), attribute="pattern"))
    assert shorts.text == "What pattern do the shorts have?"
    stool = build_question(record(painted("blue plastic stool", None, material="wood"), attribute="material"), "lure")
    assert stool.text == "What material is the stool made of?"
    assert stool.source_answer == "plastic"
    assert "plastic" in stool.options


@pytest.mark.parametrize("first, second, text, answer", [
    (painted("blue jacket on the cyclist", "white"), added("cat", "red"),
     "Is the white jacket on the cyclist to the left or right of the cat?", "left"),
    (added("cat", "red"), painted("blue shorts", "white"),
     "Is the cat to the left or right of the white shorts?", "right"),
    (painted("blue shorts", "white", 390, 500), added("cat", "red"),
     "Are the white shorts above or below the cat?", "below"),
])
def test_position_questions_name_what_is_painted(first, second, text, answer):
    question = build_question(record(first, second))
    assert question.text == text
    assert question.options["AB".index(question.answer)] == answer


def test_option_order_is_random_for_both_kinds():
    letters = Counter(build_question(record(painted("red cup", "blue"), seed=s)).answer for s in range(400))
    assert all(60 < letters[x] < 140 for x in "ABCD")
    sides = Counter(build_question(record(painted("red cup", "blue"), added("cat", "red"), seed=s)).options[0]
                    for s in range(400))
    assert 150 < sides["left"] < 250


def test_the_lure_is_the_old_color_and_paper_never_offers_it():
    for seed in range(100):
        key = painted("orange-and-white lifebuoy", "blue")
        lured = build_question(record(key, seed=seed), "lure")
        assert lured.source_answer in ("orange", "white")
        assert lured.source_answer in lured.options
        assert "purple" not in lured.options                   # borders on the answer, blue
        paper = build_question(record(key, seed=seed), "paper")
        assert not {"orange", "white"} & set(paper.options)
    silver = build_question(record(painted("silver car", "red")), "lure")
    assert "silver" in silver.options


def test_an_added_object_has_no_old_color():
    question = build_question(record(added("cat", "red")), "lure")
    assert question.source_answer is None
    assert len(set(question.options)) == 4


def test_instructions_follow_the_papers_templates():
    assert instruction(painted("blue jacket", "white")) == "Change ONLY the color of the blue jacket to white."
    assert instruction(added("bucket", "red")) == "Add a red bucket in the marked area."
