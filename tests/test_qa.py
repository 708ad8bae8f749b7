"""Questions spelled from records."""

from collections import Counter

import pytest
from test_sampling import slot

from rekey.colors import COLORS
from rekey.draws import Draws
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
        paper = build_question(record(key, seed=seed), "paper")
        assert not {"orange", "white"} & set(paper.options)
    silver = build_question(record(painted("silver car", "red")), "lure")
    assert "gray" in silver.options                        # the pool's word: "silver" would stand out as never right
    colorful = build_question(record(painted("colorful logo", "red")), "lure")
    assert colorful.source_answer is None


def test_options_with_a_lure_tell_nothing_to_who_knows_the_old_color():
    """Given the three options that are not the old color, each is right equally often."""
    counts = Counter()
    for seed in range(12_000):
        draw = Draws("answer", seed)
        answer = draw.choice([c for c in COLORS if c != "blue"])
        question = build_question(record(painted("blue cup", answer), seed=seed), "lure")
        others = tuple(sorted(o for o in question.options if o != "blue"))
        assert len(others) == 3
        counts[others, others.index(answer)] += 1
    triples = {others for others, _ in counts}
    assert len(triples) == 120
    chi2 = sum((counts[t, n] - total / 3) ** 2 / (total / 3) for t in triples for n in range(3)
               for total in [sum(counts[t, m] for m in range(3))])
    assert chi2 < 314                                      # 0.1% point of chi-square with 240 degrees

def test_an_added_object_has_no_old_color():
    question = build_question(record(added("cat", "red")), "lure")
    assert question.source_answer is None
    assert len(set(question.options)) == 4


def test_instructions_follow_the_papers_templates():
    assert instruction(painted("blue jacket", "white")) == "Change ONLY the color of the blue jacket to white."
    assert instruction(added("bucket", "red")) == "Add a red bucket in the marked area."
