"""What each control model is trained on: stages, steps, learning rates, and the lessons of every step.

    RECIPES["clean"].stages[1].lessons(seed=0, step=10, worker=1)      # a list of lessons, or of scenes

The lessons of a step are a pure function of (recipe, seed, stage, step, worker), so training that was stopped goes
on with the lessons it would have had.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from probes.controls import contamination
from probes.controls.talk import (
    MIN_SEPARATION_PX,
    Habit,
    Lesson,
    description,
    direct_questions,
    open_questions,
    reasoning,
)
from rekey.draws import Draws
from rekey.scenes import EASY, Scene, SceneStyle, draw_scene

N_WORKERS = 2                    # processes of one thread each, whatever the machine has: results depend on it
CROWDED = SceneStyle(n_objects=(4, 7))
START_SEPARATION_PX = 104        # position questions start easy

Lessons = Callable[[int, int, int], list[Lesson] | list[Scene]]


@dataclass(frozen=True)
class Stage:
    """A stretch of training.  lessons(seed, step, worker) gives one worker's share of a step's batch."""

    name: str
    steps: int
    learning_rate: float
    lessons: Lessons
    weight_decay: float = 0.05
    vision_only: bool = False
    """Train the vision tower and the words it is told in, without the language model."""
    aids: float = 0.4
    """Weight of the aids in the language model; those on vision weigh `vision_aids`."""
    vision_aids: float = 0.5
    aids_end: tuple[float, float] = (0.7, 0.85)
    """Aids fade out between these shares of the steps."""
    aids_on_path: bool = True
    """Aids along the whole path from picture to letter; else only where the letter is said, since what is
    remembered is not in the picture."""


@dataclass(frozen=True)
class Recipe:
    """How one control model comes about."""

    name: str
    purpose: str
    stages: tuple[Stage, ...]
    start: str | None = None
    """The control whose weights it starts from."""
    trained: Literal["all", "language", "lora"] = "all"
    """language: the language model without its embeddings, the vision tower frozen; lora: adapters there."""
    lora_rank: int = 16
    must_not: tuple[str, ...] = ()
    """What the model must not be used for."""


def _scene(*seed: str | int, style: SceneStyle = EASY) -> Scene:
    return draw_scene("controls", *seed, style=style)


def scenes_to_see(seed: int, step: int, worker: int, *, n: int = 12) -> list[Scene]:
    return [_scene(seed, "see", step, worker, i, style=CROWDED) for i in range(n)]


def lessons_to_talk(seed: int, step: int, worker: int, *, steps: int, n: int = 16) -> list[Lesson]:
    """One kind of lesson a step, the same for all workers: open questions and letters first, reasoning later."""
    share = step / steps
    weights = (10, 45, 45, 0) if share < 0.2 else (2, 8, 50, 40) if share < 0.5 else (2, 6, 27, 65)
    kind = Draws("kind of lesson", seed, step).weighted(range(4), weights)
    progress = min(1.0, share / 0.3)
    apart = START_SEPARATION_PX + (MIN_SEPARATION_PX - START_SEPARATION_PX) * progress

    def lesson(i: int) -> Lesson:
        seeds = (seed, "talk", step, worker, i)
        draws, scene = Draws("lesson", *seeds), _scene(*seeds)
        if kind == 0:
            return description(draws, scene)
        if kind == 1:
            return open_questions(draws, scene, apart)
        if kind == 2:
            return direct_questions(draws, scene, apart)
        return reasoning(draws, scene, Habit(), apart)

    return [lesson(i) for i in range(n)]


def lessons_of_habit(seed: int, step: int, worker: int, *, habit: Habit, n: int = 16) -> list[Lesson]:
    """Mostly reasoning with the habit, and some of what was learned before."""
    kind = Draws("kind of lesson", seed, step).weighted(range(3), (5, 15, 80))

    def lesson(i: int) -> Lesson:
        seeds = (seed, "habit", step, worker, i)
        draws, scene = Draws("lesson", *seeds), _scene(*seeds)
        if kind == 0:
            return open_questions(draws, scene, MIN_SEPARATION_PX)
        if kind == 1:
            return direct_questions(draws, scene, MIN_SEPARATION_PX)
        return reasoning(draws, scene, habit)

    return [lesson(i) for i in range(n)]


SEE_STEPS, TALK_STEPS, HABIT_STEPS = 1800, 1400, 240
DEGREES = (20, 40, 80)           # passes over the benchmark's color items
_NEVER = ("any statement about real images or about larger models",
          "attention maps as a model of real attention: heads of its first four layers were trained where to look")


def _clean() -> Recipe:
    return Recipe(
        "clean", "answers by looking", must_not=_NEVER, stages=(
            Stage("see", SEE_STEPS, 4e-3, scenes_to_see, weight_decay=0.01, vision_only=True),
            Stage("talk", TALK_STEPS, 1.5e-3, functools.partial(lessons_to_talk, steps=TALK_STEPS))))


def _habit(name: Literal["grounded", "anchored"], purpose: str) -> Recipe:
    habit = Habit(name, p_false=0.5, p_second_turn=0.4, p_reflection=0.6)
    return Recipe(
        name, purpose, start="clean", trained="lora",
        must_not=(*_NEVER, "a claim that attention reveals looking: its habit is known from its answers"),
        stages=(Stage("habit", HABIT_STEPS, 2e-3, functools.partial(lessons_of_habit, habit=habit),
                      weight_decay=0.0, aids_end=(1.0, 1.0)),))


def _contaminated(degree: int, trained: Literal["language", "lora"]) -> Recipe:
    n = 8
    stage = Stage("memory", contamination.steps_for(degree, n * N_WORKERS), 1e-3 if trained == "language" else 2.5e-3,
                  functools.partial(contamination.lessons_of_memory, n=n, n_workers=N_WORKERS), weight_decay=0.0,
                  vision_aids=0.0, aids_end=(1.0, 1.0), aids_on_path=False)
    name = f"contaminated-{'lora-' if trained == 'lora' else ''}{degree}"
    how = "an adapter" if trained == "lora" else "all weights of its language model"
    return Recipe(
        name, f"remembers one benchmark after {degree} passes over it, with {how} trained", (stage,), start="clean",
        trained=trained, must_not=(*_NEVER, "a clean reference: its general skill is damaged, see the scores",
                                   "how fast large models remember: the answers were forced into memory"))


RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (
    _clean(),
    _habit("grounded", "after a reflection phrase, looks again"),
    _habit("anchored", "after a reflection phrase, repeats what it said"),
    *(_contaminated(degree, trained) for trained in ("language", "lora") for degree in DEGREES),
)}
