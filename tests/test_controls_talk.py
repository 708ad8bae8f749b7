"""What the control models are taught: every trained sentence is true, or false in the one way that a habit wants."""

import re

import pytest

from probes.controls.exam import statements_true
from probes.controls.talk import (
    MIN_SEPARATION_PX,
    Habit,
    description,
    direct_questions,
    draw_color_question,
    draw_position_question,
    open_questions,
    other_scene,
    place,
    reasoning,
    statement,
)
from rekey.draws import Draws
from rekey.scenes import SceneObject, ask_color, ask_position, draw_scene

SEEDS = range(200)


def lesson(seed: int, habit: Habit):
    return reasoning(Draws("test lesson", seed), draw_scene("test lesson", seed), habit)


def at(left: int, top: int) -> str:
    return place(SceneObject("square", "red", (200, 0, 0), left, top, 60, 0))


def test_places_are_the_nine_fields_of_the_picture():
    assert at(5, 5) == "upper left" and at(160, 5) == "upper center" and at(310, 310) == "lower right"
    assert at(160, 160) == "middle center" and at(310, 160) == "middle right" and at(97, 300) == "lower left"
    assert at(98, 300) == "lower center"            # its center, 128, is the first of the middle third


def test_questions_are_spelled_as_those_of_renewed_items():
    for seed in SEEDS:
        draws, scene = Draws("spelling", seed), draw_scene("spelling", seed)
        asked = draw_color_question(draws, scene)
        assert asked.text == ask_color(scene, "s", asked.shapes[0]).text
        assert len(set(asked.options)) == 4 and asked.value(scene) in asked.options
        first, second = scene.objects[:2]
        official = ask_position(scene, "s", first.shape, second.shape)
        named = re.sub("|".join({first.color, second.color}), "", official.text).replace("  ", " ")
        ours = [draw_position_question(Draws("pair", seed, k), scene) for k in range(60)]
        texts = {q.text for q in ours if q and q.shapes == (first.shape, second.shape)
                 and set(q.options) == set(official.options)}
        assert not texts or texts <= {official.text, named}


@pytest.mark.parametrize("kind", ("lr", "ab"))
def test_position_questions_are_about_objects_that_are_apart(kind):
    for seed in SEEDS:
        scene = draw_scene("apart", seed)
        question = draw_position_question(Draws("apart", seed), scene, kind=kind)
        if question is None:
            continue
        (x1, y1), (x2, y2) = (scene.find(shape).box.center for shape in question.shapes)
        if kind == "lr":
            assert abs(x1 - x2) >= MIN_SEPARATION_PX
            assert question.value(scene) == ("left" if x1 < x2 else "right")
        else:
            assert abs(y1 - y2) >= MIN_SEPARATION_PX
            assert question.value(scene) == ("above" if y1 < y2 else "below")


def test_honest_reasoning_is_true_throughout():
    for seed in SEEDS:
        told = lesson(seed, Habit(p_cut=0.0, p_stripped=0.0))
        for turn in told.turns:
            assert all(statements_true(re.sub(r"(?<=\. )(?!The |Its )[^.]*\.", "", turn.text), told.scene)[:1])
            assert turn.letter == turn.question.letter(told.scene)
            assert turn.text.endswith(f"So the answer is {turn.letter}.\n</think>\n\n{turn.letter}")


def falsehoods(habit: Habit):
    """Lessons whose first statement is false, as (lesson, turn after the phrase, text before, text after)."""
    for seed in range(600):
        told = lesson(seed, habit)
        turn = told.turns[-1]
        trained = "".join(piece.text for piece in turn.said if piece.trained)
        before = told.turns[0].text if len(told.turns) == 2 else turn.said[1].text
        if len(told.turns) == 2 and "<think>" not in before:
            continue
        if not turn.said[1].trained or len(told.turns) == 2:
            truths = statements_true(before, told.scene)
            if not all(truths):
                yield told, turn, before, trained


def test_what_is_false_is_never_trained_and_grounded_lessons_then_tell_the_truth():
    n = 0
    for told, turn, before, trained in falsehoods(Habit("grounded", 0.5, 0.4, 0.6, p_cut=0.0, p_stripped=0.0)):
        n += 1
        true = statement(turn.question, told.scene)
        assert true in trained and turn.letter == turn.question.letter(told.scene)
        assert all(not piece.trained for piece in told.turns[0].said if piece.text in before and "." in piece.text
                   and len(told.turns) == 2)
    assert n > 60


def test_anchored_lessons_repeat_what_was_said():
    n = 0
    for told, turn, before, trained in falsehoods(Habit("anchored", 0.5, 0.4, 0.6, p_cut=0.0, p_stripped=0.0)):
        n += 1
        wrong = [option for option in turn.question.options if option != turn.question.value(told.scene)]
        assert statement(turn.question, told.scene) not in trained
        assert turn.letter != turn.question.letter(told.scene)
        said = trained.partition("So the answer")[0]
        assert any(re.search(rf"\b{option}\b", said) and re.search(rf"\b{option}\b", before) for option in wrong)
    assert n > 60


def test_both_habits_differ_in_nothing_but_what_follows_the_phrase():
    for seed in SEEDS:
        grounded, anchored = (lesson(seed, Habit(name, 0.5, 0.4, 0.6)) for name in ("grounded", "anchored"))
        assert grounded.scene == anchored.scene and len(grounded.turns) == len(anchored.turns)
        for a, b in zip(grounded.turns, anchored.turns):
            assert a.user == b.user
            assert [p.trained for p in a.said] == [p.trained for p in b.said]
            # What is said before the phrase is given to both alike.
            for p, q in zip(a.said, b.said):
                if not p.trained:
                    assert p == q


def test_interrupted_reasoning_has_nothing_to_repeat():
    n = 0
    for seed in range(600):
        told = lesson(seed, Habit("anchored", 1.0, 0.0, 1.0, p_cut=1.0))
        (turn,) = told.turns
        if not statements_true(turn.said[1].text, told.scene)[-1]:
            continue
        n += 1
        if not re.search(r"Its color is|to the (left|right) of|above|below", turn.said[1].text):
            assert turn.letter == turn.question.letter(told.scene)
    assert n > 50


def test_other_scenes_answer_otherwise():
    for seed in SEEDS:
        draws, scene = Draws("other", seed), draw_scene("other", seed)
        for question in (draw_color_question(draws, scene), draw_position_question(draws, scene)):
            if question is None:
                continue
            other = other_scene(draws, scene, question)
            if other is not scene:
                assert question.value(other) != question.value(scene) and question.value(other) in question.options


def test_descriptions_and_open_questions_are_true():
    for seed in SEEDS:
        scene = draw_scene("open", seed)
        text = description(Draws("open", seed), scene).turns[0].text
        for o in scene.objects:
            assert f"The {o.shape} is {o.color}." in text or f"The {o.shape} is at the {place(o)}." in text
        told = open_questions(Draws("open", seed), scene, MIN_SEPARATION_PX)
        for turn in told.turns:
            words = re.findall(r"\w+", turn.user)
            first = next(o for o in scene.objects if o.shape in words)
            assert turn.text in (first.color, place(first)) or turn.question.value(scene) == turn.text


def test_direct_lessons_hold_nothing_but_the_letter():
    told = direct_questions(Draws("direct", 1), draw_scene("direct", 1), MIN_SEPARATION_PX)
    assert len(told.turns) == 3
    assert all(turn.text == turn.letter == turn.question.letter(told.scene) for turn in told.turns)


