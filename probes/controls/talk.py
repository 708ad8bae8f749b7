"""What the control models are taught to say about a scene.

    draws  = Draws("lesson", 0)
    scene  = draw_scene("lesson", 0)
    lesson = reasoning(draws, scene, Habit("grounded", p_false=0.5))
    lesson.turns[0].user, lesson.turns[0].text

Five kinds of lessons: descriptions, open questions, questions answered by letter, short visible reasoning with
or without a reflection phrase, and a second turn after a user's request to look again.  A habit says what follows
the phrase when the reasoning before it is wrong, as it is after an image swap (VisualSwap, Sec. 2): to look at the
image again (grounded), to repeat what was said (anchored), or nothing (natural: the reasoning is never wrong).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from probes.phrases import draw_instruction, draw_reflection
from rekey.colors import COLORS
from rekey.draws import Draws
from rekey.prompts import prompt_text
from rekey.records import option_letter
from rekey.scenes import SIDE_PX, Scene, SceneObject, exchanged, recolored

MIN_SEPARATION_PX = 56          # between two centers on the axis that is asked about
VERTICAL, HORIZONTAL = ("upper", "middle", "lower"), ("left", "center", "right")
RELATIONS = {"left": "to the left of", "right": "to the right of", "above": "above", "below": "below"}
Kind = Literal["color", "lr", "ab"]
_TOKENS = re.compile(r" ?\w+|[^\w\s]|\s")


# -------------------------------------------------------------------------------- what is so

def place(o: SceneObject) -> str:
    """One of nine: "upper left", "middle right", "middle center"; always row, then column."""
    x, y = o.box.center
    return f"{VERTICAL[min(2, int(3 * y / SIDE_PX))]} {HORIZONTAL[min(2, int(3 * x / SIDE_PX))]}"


@dataclass(frozen=True)
class SceneQuestion:
    """A question about one object or two, whose answer can be read off any scene that holds them."""

    kind: Kind
    text: str
    options: tuple[str, ...]
    shapes: tuple[str, ...]

    def value(self, scene: Scene) -> str:
        """"red", or "left": the first object's side of the second."""
        first = scene.find(self.shapes[0])
        if self.kind == "color":
            return first.color
        axis = self.kind == "ab"
        less = first.box.center[axis] < scene.find(self.shapes[1]).box.center[axis]
        return {"lr": ("right", "left"), "ab": ("below", "above")}[self.kind][less]

    def letter(self, scene: Scene) -> str:
        return option_letter(self.options.index(self.value(scene)))

    def separation_px(self, scene: Scene) -> float:
        """Distance of the two centers on the axis that is asked about."""
        axis = self.kind == "ab"
        return abs(scene.find(self.shapes[0]).box.center[axis] - scene.find(self.shapes[1]).box.center[axis])


def draw_color_question(draws: Draws, scene: Scene, shape: str | None = None) -> SceneQuestion:
    """Four options; often some are the colors of other objects in the scene."""
    o = scene.find(shape) if shape else draws.choice(scene.objects)
    present = [other.color for other in scene.objects if other.color != o.color]
    wrong = [color for color in dict.fromkeys(draws.shuffled(present)) if draws.uniform() < 0.6]
    wrong += [c for c in draws.shuffled(list(COLORS)) if c != o.color and c not in wrong]
    options = tuple(draws.shuffled([o.color, *wrong[:3]]))
    return SceneQuestion("color", f"What color is the {o.shape}?", options, (o.shape,))


def draw_position_question(draws: Draws, scene: Scene, min_separation_px: float = MIN_SEPARATION_PX,
                           kind: Kind | None = None) -> SceneQuestion | None:
    """About two objects that are clearly apart on the asked axis; None where no two are found."""
    for _ in range(20):
        first, second = draws.shuffled(list(scene.objects))[:2]
        asked = kind or draws.choice(("lr", "ab"))
        axis = asked == "ab"
        if abs(first.box.center[axis] - second.box.center[axis]) < min_separation_px:
            continue
        names = [o.name if named else o.shape for named in [draws.uniform() < 0.5] for o in (first, second)]
        words = "to the left or right of" if asked == "lr" else "above or below"
        options = tuple(draws.shuffled(["left", "right"] if asked == "lr" else ["above", "below"]))
        return SceneQuestion(asked, f"Is the {names[0]} {words} the {names[1]}?", options,
                             (first.shape, second.shape))
    return None


def draw_question(draws: Draws, scene: Scene, p_position: float, min_separation_px: float) -> SceneQuestion:
    if draws.uniform() < p_position and (asked := draw_position_question(draws, scene, min_separation_px)):
        return asked
    return draw_color_question(draws, scene)


# -------------------------------------------------------------------------------- what is said

def reasoning_text(question: SceneQuestion, scene: Scene) -> str:
    """Where the objects are, then what was asked for: true of `scene`."""
    first = scene.find(question.shapes[0])
    if question.kind == "color":
        return f"The {first.shape} is at the {place(first)}. Its color is {first.color}."
    second = scene.find(question.shapes[1])
    return (f"The {first.shape} is at the {place(first)}. The {second.shape} is at the {place(second)}. "
            f"{statement(question, scene)}")


def statement(question: SceneQuestion, scene: Scene) -> str:
    """The answer as a sentence, true of `scene`."""
    value = question.value(scene)
    if question.kind == "color":
        return f"The {question.shapes[0]} is {value}."
    return f"The {question.shapes[0]} is {RELATIONS[value]} the {question.shapes[1]}."


def conclusion(letter: str) -> str:
    return f" So the answer is {letter}.\n</think>\n\n{letter}"


@dataclass(frozen=True)
class Piece:
    """A stretch of what the model says; only trained pieces enter the loss."""

    text: str
    trained: bool = True


@dataclass(frozen=True)
class Turn:
    """What a user says and what the model answers.

    question, letter: what the answer rests on, where it is given by letter; `question` may be of an earlier turn.
    direct: the letter comes at once.
    """

    user: str
    said: tuple[Piece, ...]
    question: SceneQuestion | None = None
    letter: str | None = None
    direct: bool = False

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.said)


@dataclass(frozen=True)
class Lesson:
    """A conversation about one scene."""

    scene: Scene
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Habit:
    """What the model does after a reflection phrase, or a request to look again, and how often it meets them."""

    name: Literal["natural", "grounded", "anchored"] = "natural"
    p_false: float = 0.0
    """Share of reflections before which the reasoning is that of another scene."""
    p_second_turn: float = 0.25
    p_reflection: float = 0.5
    """Of the lessons of one turn."""
    p_cut: float = 0.3
    """Share of reflections that interrupt the reasoning at any token."""
    p_stripped: float = 0.25
    """Share of second turns before which only the letter of the first answer is kept."""


def description(draws: Draws, scene: Scene) -> Lesson:
    """Every object's color, place, or both.  The shape words are given, not learned."""
    share = draws.uniform()
    wanted = "colors" if share < 0.55 else "locations" if share < 0.7 else "colors and locations"
    pieces = []
    for n, o in enumerate(draws.shuffled(list(scene.objects))):
        pieces.append(Piece(f"{' ' if n else ''}The {o.shape} is", trained=False))
        if wanted == "colors":
            pieces += [Piece(f" {o.color}"), Piece(".", trained=False)]
            continue
        pieces += [Piece(" at the", trained=False), Piece(f" {place(o)}.")]
        if wanted != "locations":
            pieces += [Piece(" Its color is", trained=False), Piece(f" {o.color}"), Piece(".", trained=False)]
    return Lesson(scene, (Turn(f"Describe the {wanted} of the objects.", tuple(pieces)),))


def open_questions(draws: Draws, scene: Scene, min_separation_px: float, n_turns: int = 6) -> Lesson:
    """Questions without options, answered in a word or two."""
    turns = []
    for o in draws.shuffled(list(scene.objects))[:4]:
        if draws.below(2):
            turns.append(Turn(f"What color is the {o.shape}?", (Piece(o.color),)))
        else:
            turns.append(Turn(f"Where is the {o.shape}?", (Piece(place(o)),)))
    for _ in range(3):
        if question := draw_position_question(draws, scene, min_separation_px):
            turns.append(Turn(question.text, (Piece(question.value(scene)),), question))
    return Lesson(scene, tuple(draws.shuffled(turns)[:n_turns]))


def direct_questions(draws: Draws, scene: Scene, min_separation_px: float, p_position: float = 0.6,
                     n_turns: int = 3) -> Lesson:
    """Questions answered by letter at once, in the benchmark's own format."""
    turns = []
    for _ in range(n_turns):
        question = draw_question(draws, scene, p_position, min_separation_px)
        turns.append(direct_turn(question, question.letter(scene)))
    return Lesson(scene, tuple(turns))


def direct_turn(question: SceneQuestion, letter: str) -> Turn:
    return Turn(prompt_text(question.text, question.options), (Piece(letter),), question, letter, direct=True)


def reasoning(draws: Draws, scene: Scene, habit: Habit, min_separation_px: float = MIN_SEPARATION_PX,
              p_position: float = 0.5) -> Lesson:
    """Short visible reasoning, maybe with a reflection phrase in it or a second turn after it."""
    question = draw_question(draws, scene, p_position, min_separation_px)
    prompt = prompt_text(question.text, question.options, "cot")
    second_turn = draws.uniform() < habit.p_second_turn
    reflects = not second_turn and draws.uniform() < habit.p_reflection
    believed = scene                        # what the reasoning so far is true of
    if (second_turn or reflects) and draws.uniform() < habit.p_false:
        believed = other_scene(draws, scene, question)
    is_true = believed is scene
    opening, first = Piece("<think>\n"), Piece(reasoning_text(question, believed), trained=is_true)
    if second_turn:
        letter = question.letter(believed)
        answer = [opening, first, Piece(conclusion(letter), trained=is_true)]
        if draws.uniform() < habit.p_stripped:
            answer = [Piece(letter, trained=False)]
        seen = believed if habit.name == "anchored" else scene
        again = (Piece("<think>\n"), Piece(statement(question, seen)), Piece(conclusion(question.letter(seen))))
        return Lesson(scene, (Turn(prompt, tuple(answer), question, letter),
                              Turn(draw_instruction(draws), again, question, question.letter(seen))))
    if not reflects:
        return Lesson(scene, (Turn(prompt, (opening, first, Piece(conclusion(question.letter(scene)))),
                                   question, question.letter(scene)),))
    if draws.uniform() < habit.p_cut:
        tokens = _TOKENS.findall(first.text)
        first = replace(first, text="".join(tokens[:draws.below(len(tokens) + 1)]), trained=False)
    # Where the reasoning had not come to its point there is nothing to repeat.
    claimed = reasoning_text(question, believed) == first.text
    seen = believed if habit.name == "anchored" and claimed else scene
    letter = question.letter(seen)
    space = " " if first.text else ""
    said = (opening, first, Piece(space + draw_reflection(draws), trained=False),
            Piece(" " + statement(question, seen)), Piece(conclusion(letter)))
    return Lesson(scene, (Turn(prompt, said, question, letter),))


def other_scene(draws: Draws, scene: Scene, question: SceneQuestion) -> Scene:
    """A scene like this one with another answer to the question; the same scene where none is near."""
    if question.kind == "color":
        wrong = [option for option in question.options if option != question.value(scene)]
        return recolored(scene, question.shapes[0], draws.choice(wrong), draws)
    other = exchanged(scene, *question.shapes)
    far = question.separation_px(other) >= MIN_SEPARATION_PX and question.value(other) != question.value(scene)
    return other if far else scene
