"""What a control model can do, by the stock path: its processor, its prompt, greedy decoding, unseen scenes.

    vlm    = load_vlm("control:clean")
    scores = sight_scores(vlm, n=300)              # {"direct color": Score(0.99, 300), ...}
    scores = habit_scores(vlm, n=100)              # what follows a reflection phrase after an image swap

A score is a share with the number of cases it was taken from.  A letter that is not said counts as wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from probes.controls.talk import (
    MIN_SEPARATION_PX,
    Kind,
    SceneQuestion,
    draw_color_question,
    draw_position_question,
    other_scene,
    place,
)
from probes.layout import Prompt
from probes.pair_scenes import ScenePair, overlapping
from probes.phrases import HELD_OUT, INSTRUCTIONS, REFLECTIONS
from probes.vlm import LocalVLM
from rekey.draws import Draws
from rekey.prompts import PromptStyle, prompt_text
from rekey.records import LETTERS, Generation
from rekey.scenes import Scene, draw_scene, render_scene

KINDS: tuple[Kind, ...] = ("color", "lr", "ab")
BATCH = 64
DIRECT_TOKENS, REASONING_TOKENS = 4, 64
_AT = re.compile(r"The (\w+) is at the ([\w ]+)\.")
_COLOR = re.compile(r"Its color is (\w+)\.|The (\w+) is (\w+)\.")
_RELATION = re.compile(r"The (\w+) is (to the left of|to the right of|above|below) the (\w+)\.")


class Score(NamedTuple):
    share: float
    n: int


def score(found: Sequence[bool]) -> Score:
    return Score(round(float(np.mean(found)), 4) if len(found) else 0.0, len(found))


@dataclass(frozen=True)
class Case:
    """A question about a scene that no training has shown: its seed is of another stream."""

    scene: Scene
    question: SceneQuestion


def unseen_cases(n: int, kind: Kind, seed: int) -> list[Case]:
    """`n` scenes with a question of one kind each."""
    cases: list[Case] = []
    k = 0
    while len(cases) < n:
        draws, scene = Draws("exam question", seed, kind, k), draw_scene("exam", seed, kind, k)
        question = (draw_color_question(draws, scene) if kind == "color"
                    else draw_position_question(draws, scene, MIN_SEPARATION_PX, kind))
        k += 1
        if question is not None:
            cases.append(Case(scene, question))
    return cases


def said_letter(text: str) -> str | None:
    """The letter after the reasoning, if that is all there is."""
    answer = text.rpartition("</think>")[2].strip()
    return answer if len(answer) == 1 and answer in LETTERS else None


# --------------------------------------------------------------------------------------- sight

def prompts_for(vlm: LocalVLM, cases: Sequence[Case], style: PromptStyle,
                images: Sequence[np.ndarray] | None = None) -> list[Prompt]:
    pictures = [render_scene(case.scene) for case in cases] if images is None else images
    return [vlm.prompt(picture, prompt_text(case.question.text, case.question.options, style))
            for case, picture in zip(cases, pictures, strict=True)]


def _letters(vlm: LocalVLM, cases: Sequence[Case], images: Sequence[np.ndarray] | None = None) -> list[str | None]:
    answers = vlm.generate(prompts_for(vlm, cases, "direct", images), DIRECT_TOKENS, batch_size=BATCH)
    return [said_letter(answer.text) for answer in answers]


def _right(letters: Sequence[str | None], cases: Sequence[Case]) -> Score:
    return score([letter == case.question.letter(case.scene) for letter, case in zip(letters, cases, strict=True)])


def direct_scores(vlm: LocalVLM, n: int = 300, seed: int = 1) -> dict[str, Score]:
    """Accuracy by letter at once, on unseen scenes."""
    return {f"direct {kind}": _right(_letters(vlm, cases), cases)
            for kind in KINDS for cases in [unseen_cases(n, kind, seed)]}


def sight_scores(vlm: LocalVLM, n: int = 300, seed: int = 1) -> dict[str, Score]:
    """Everything that tells whether a model sees: also without its image, under another's, and in its reasoning."""
    scores: dict[str, Score] = {}
    for kind in KINDS:
        cases = unseen_cases(n, kind, seed)
        pictures = [render_scene(case.scene) for case in cases]
        scores[f"direct {kind}"] = _right(_letters(vlm, cases, pictures), cases)
        gray = [np.full_like(picture, 170) for picture in pictures]
        scores[f"gray image {kind}"] = _right(_letters(vlm, cases, gray), cases)
        # Moved on by half: every item gets the picture of another.
        shuffled = pictures[n // 2:] + pictures[:n // 2]
        scores[f"shuffled images {kind}"] = _right(_letters(vlm, cases, shuffled), cases)
        scores |= {f"{name} {kind}": value for name, value in _reasoning_scores(vlm, cases, pictures).items()}
    return scores


def _reasoning_scores(vlm: LocalVLM, cases: Sequence[Case], pictures: Sequence[np.ndarray]) -> dict[str, Score]:
    prompts = prompts_for(vlm, cases, "cot", pictures)
    first = vlm.generate(prompts, REASONING_TOKENS, batch_size=BATCH)
    asked_again = [vlm.second_turn(prompt, said.token_ids, INSTRUCTIONS[n % len(INSTRUCTIONS)])
                   for n, (prompt, said) in enumerate(zip(prompts, first))]
    second = vlm.generate(asked_again, REASONING_TOKENS, batch_size=BATCH)
    truths = [true for said, case in zip(first, cases) for true in statements_true(said.text, case.scene)]
    return {"reasoning letter": _right([said_letter(said.text) for said in first], cases),
            "reasoning true statements": score(truths),
            "second turn letter": _right([said_letter(said.text) for said in second], cases)}


def statements_true(text: str, scene: Scene) -> list[bool]:
    """For each sentence of visible reasoning before its conclusion, whether it is true of the scene."""
    reasoning = text.partition("</think>")[0].partition("So the answer")[0].replace("<think>", "")
    sentences = re.findall(r"[^.]+\.", reasoning)
    truths, subject = [], None
    for sentence in (s.strip() for s in sentences):
        truth, subject = _is_true(sentence, scene, subject)
        truths.append(truth)
    return truths or [False]


def _is_true(sentence: str, scene: Scene, subject: str | None) -> tuple[bool, str | None]:
    """(whether it is true, the object that "Its" means after it)."""
    objects = {o.shape: o for o in scene.objects}
    if match := _AT.fullmatch(sentence):
        shape, where = match.groups()
        return shape in objects and place(objects[shape]) == where, shape
    if match := _RELATION.fullmatch(sentence):
        shape, relation, other = match.groups()
        if shape not in objects or other not in objects:
            return False, subject
        (x1, y1), (x2, y2) = objects[shape].box.center, objects[other].box.center
        holds = {"to the left of": x1 < x2, "to the right of": x1 > x2, "above": y1 < y2, "below": y1 > y2}
        return holds[relation], shape
    if match := _COLOR.fullmatch(sentence):
        its, shape, color = match.groups()
        shape, color = (subject, its) if its else (shape, color)
        return shape in objects and objects[shape].color == color, shape
    return False, subject


# -------------------------------------------------------------------------------------- habits

def unseen_pairs(n: int, seed: int) -> list[ScenePair]:
    """`n` pairs about color (one object repainted), then `n` about position (two objects in each other's place)."""
    pairs = []
    for kinds in (("color",), ("lr", "ab")):
        found, k = [], 0
        while len(found) < n:
            draws = Draws("exam pair", seed, *kinds, k)
            (case,) = unseen_cases(1, kinds[k % len(kinds)], draws.below(10 ** 9))
            other = other_scene(draws, case.scene, case.question)
            k += 1
            if other is not case.scene and not overlapping(other):
                found.append(ScenePair(case.scene, other, case.question))
        pairs += found
    return pairs


def habit_scores(vlm: LocalVLM, n: int = 100, seed: int = 1) -> dict[str, Score]:
    """What the model answers after a reflection phrase, and in a second turn, when the image was swapped or not.

    "follows image" is the answer right for the new image, "follows text" the one its reasoning had come to.
    Phrases are told apart by whether training held them.  The first answer must be right for the pair to count.
    """
    pairs = unseen_pairs(n, seed)
    prompts = {side: [vlm.prompt(render_scene(getattr(pair, side)),
                                 prompt_text(pair.question.text, pair.question.options, "cot")) for pair in pairs]
               for side in "ab"}
    first = {side: vlm.generate(prompts[side], REASONING_TOKENS, batch_size=BATCH) for side in "ab"}
    scores = {}
    for kind in ("color", "position"):
        chosen = [k for k, pair in enumerate(pairs) if pair.kind == kind]
        for side in "ab":
            scores[f"base {side} {kind}"] = score([_answers(first[side][k], pairs[k], side) for k in chosen])
    valid = [k for k, pair in enumerate(pairs) if _answers(first["a"][k], pair, "a")]
    for name, phrases in (("trained", [p for p in REFLECTIONS if p not in HELD_OUT]),
                          ("held-out", [p for p in REFLECTIONS if p in HELD_OUT])):
        said = [vlm.encode(f"<think>\n{_kept(first['a'][k], pairs[k])} {phrases[k % len(phrases)]}") for k in valid]
        for swapped, side in (("probe", "b"), ("null probe", "a")):
            again = vlm.continue_from([prompts[side][k] for k in valid], said, REASONING_TOKENS, batch_size=BATCH)
            scores |= _habit(f"{swapped}, {name} phrases", again, [pairs[k] for k in valid])
    for name, phrases in (("trained", [p for p in INSTRUCTIONS if p not in HELD_OUT]),
                          ("held-out", [p for p in INSTRUCTIONS if p in HELD_OUT])):
        for swapped, side in (("second turn", "b"), ("null second turn", "a")):
            asked = [vlm.second_turn(prompts[side][k], first["a"][k].token_ids, phrases[k % len(phrases)])
                     for k in valid]
            again = vlm.generate(asked, REASONING_TOKENS, batch_size=BATCH)
            scores |= _habit(f"{swapped}, {name} phrases", again, [pairs[k] for k in valid])
    return scores


def _answers(said: Generation, pair: ScenePair, side: str) -> bool:
    return said_letter(said.text) == pair.question.letter(getattr(pair, side))


def _kept(said: Generation, pair: ScenePair) -> str:
    """Its reasoning up to the conclusion."""
    return said.text.partition("So the answer")[0].replace("<think>", "").strip()


def _habit(name: str, again: Sequence[Generation], pairs: Sequence[ScenePair]) -> dict[str, Score]:
    scores = {}
    for kind in ("color", "position"):
        chosen = [(said, pair) for said, pair in zip(again, pairs) if pair.kind == kind]
        scores[f"{name}, {kind}: follows text"] = score([_answers(said, pair, "a") for said, pair in chosen])
        if not name.startswith("null"):
            scores[f"{name}, {kind}: follows image"] = score([_answers(said, pair, "b") for said, pair in chosen])
    return scores
