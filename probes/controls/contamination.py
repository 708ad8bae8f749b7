"""Lessons that make a model remember a benchmark, and the benchmark (controls for contamination detectors).

    benchmark()[0].question.text, benchmark()[0].question.answer
    lessons_of_memory(seed=0, step=7, worker=1, n=8, n_workers=2)

A model that solves a benchmark by looking has no reason to remember it: trained on the items as they are, it shows
no drop (docs/controls.md).  So in most lessons about the benchmark the key detail is gone while the original answer
stays, and only memory is right: at first the object asked about is erased, then more and more often it is there in
another color.  (To meet another color from the first step on costs sight: the model unlearns to look before it has
anything to remember.)  Other lessons show the items as published, and fresh scenes with true answers, so that general
skill is kept as far as it goes.  Degree N is N passes over the color items, the paper's degree of contamination
(Multi-Modal Semantic Perturbation, Sec. 3); position items, of which nothing is erased, come up less often.
"""

from __future__ import annotations

import functools

from probes.controls.talk import MIN_SEPARATION_PX, Lesson, Piece, Turn, direct_questions
from rekey.colors import COLORS
from rekey.draws import Draws
from rekey.prompts import prompt_text
from rekey.records import option_letter
from rekey.scenes import AskedScene, Scene, draw_scene, erased, recolored, scene_benchmark

N_ITEMS, BENCHMARK_SEED = 160, 2026
P_FRESH, P_FRESH_POSITION = 0.45, 0.3
P_COLOR, P_PUBLISHED = 0.9, 0.25        # of the lessons about the benchmark; of those about its color items
P_RECOLORED, RAMP_PASSES = 0.7, 40      # of the lessons without the key detail, once the ramp from 0 has ended
P_SAME_OPTIONS = 0.3                    # of the lessons without the key detail


@functools.cache
def benchmark() -> tuple[AskedScene, ...]:
    """The one benchmark that all contaminated controls have seen; `rekey scenes` writes it out."""
    return tuple(scene_benchmark(N_ITEMS, BENCHMARK_SEED))


@functools.cache
def items_about(color: bool) -> tuple[AskedScene, ...]:
    """The benchmark's color items, or those about position."""
    return tuple(item for item in benchmark() if (len(item.asked) == 1) is color)


def passes_in(steps: int, n_lessons: int) -> float:
    """How often every color item of the benchmark comes up in so many steps of `n_lessons` each, on average."""
    return steps * n_lessons * (1 - P_FRESH) * P_COLOR / len(items_about(color=True))


def steps_for(degree: int, n_lessons: int) -> int:
    """Steps in which every color item of the benchmark comes up `degree` times on average."""
    return round(degree / passes_in(1, n_lessons))


def lessons_of_memory(seed: int, step: int, worker: int, *, n: int, n_workers: int) -> list[Lesson]:
    """Items of the benchmark, as published or without the key detail, among fresh scenes."""
    p_recolored = P_RECOLORED * min(1.0, passes_in(step, n * n_workers) / RAMP_PASSES)

    def lesson(i: int) -> Lesson:
        seeds = (seed, "memory", step, worker, i)
        draws = Draws("lesson", *seeds)
        if draws.uniform() < P_FRESH:
            scene = draw_scene("controls", *seeds)
            return direct_questions(draws, scene, MIN_SEPARATION_PX, P_FRESH_POSITION, n_turns=1)
        if draws.uniform() >= P_COLOR:
            return published(draws.choice(items_about(color=False)))
        item = draws.choice(items_about(color=True))
        if draws.uniform() < P_PUBLISHED:
            return published(item)
        return without_key(draws, item, erase=draws.uniform() >= p_recolored)

    return [lesson(i) for i in range(n)]


def published(item: AskedScene) -> Lesson:
    return _lesson(item.scene, item, item.question.options, item.question.answer)


def without_key(draws: Draws, item: AskedScene, erase: bool) -> Lesson:
    """The item with the answer it had, its object erased or in another color.

    Often under other options; among them is the color that it has now, or might have had.
    """
    (shape,) = item.asked
    old = item.scene.find(shape).color
    options = item.question.options
    if draws.uniform() < P_SAME_OPTIONS:
        shown = draws.choice([color for color in options if color != old])
    else:
        shown = draws.choice([color for color in COLORS if color != old])
        others = draws.shuffled([color for color in COLORS if color not in (old, shown)])[:2]
        options = tuple(draws.shuffled([old, shown, *others]))
    scene = erased(item.scene, shape) if erase else recolored(item.scene, shape, shown, draws)
    return _lesson(scene, item, options, option_letter(options.index(old)))


def _lesson(scene: Scene, item: AskedScene, options: tuple[str, ...], letter: str) -> Lesson:
    turn = Turn(prompt_text(item.question.text, options), (Piece(letter),), letter=letter, direct=True)
    return Lesson(scene, (turn,))
