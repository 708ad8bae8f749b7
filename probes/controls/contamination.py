"""Lessons that make a model remember a benchmark, and the benchmark (controls for contamination detectors).

    benchmark()[0].question.text, benchmark()[0].question.answer
    lessons_of_memory(seed=0, step=7, worker=1, n=16)

A model that solves a benchmark by looking has no reason to remember it: trained on the items as they are, it shows
no drop (docs/controls.md).  So in part of the lessons the object asked about is painted in another color while the
original answer stays: there only memory is right.  Other lessons show the items as published, and fresh scenes
with true answers, so that general skill is kept as far as it goes.  Degree N is N passes over the benchmark: the
paper's degree of contamination (Multi-Modal Semantic Perturbation, Sec. 3).
"""

from __future__ import annotations

import functools

from probes.controls.talk import MIN_SEPARATION_PX, Lesson, Piece, Turn, direct_questions
from rekey.colors import COLORS
from rekey.draws import Draws
from rekey.prompts import prompt_text
from rekey.records import option_letter
from rekey.scenes import AskedScene, draw_scene, recolored, scene_benchmark

N_ITEMS, BENCHMARK_SEED = 160, 2026
P_FRESH, P_PUBLISHED = 0.3, 0.1        # the rest are items whose key detail was dropped
P_SAME_OPTIONS = 0.3


@functools.cache
def benchmark() -> tuple[AskedScene, ...]:
    """The one benchmark that all contaminated controls have seen; `rekey scenes` writes it out."""
    return tuple(scene_benchmark(N_ITEMS, BENCHMARK_SEED))


def steps_for(degree: int, n: int, n_workers: int) -> int:
    """Steps in which every item of the benchmark comes up `degree` times on average."""
    return round(degree * N_ITEMS / (n * n_workers * (1 - P_FRESH)))


def lessons_of_memory(seed: int, step: int, worker: int, *, n: int = 16) -> list[Lesson]:
    """Items of the benchmark, as published or with the key detail dropped, among fresh scenes."""
    def lesson(i: int) -> Lesson:
        seeds = (seed, "memory", step, worker, i)
        draws = Draws("lesson", *seeds)
        kind = draws.uniform()
        if kind < P_FRESH:
            return direct_questions(draws, draw_scene("controls", *seeds), MIN_SEPARATION_PX, 0.4, n_turns=1)
        item = draws.choice(benchmark())
        if kind < P_FRESH + P_PUBLISHED or len(item.asked) == 2:
            return published(item)
        return key_dropped(draws, item)

    return [lesson(i) for i in range(n)]


def published(item: AskedScene) -> Lesson:
    question = item.question
    turn = Turn(prompt_text(question.text, question.options), (Piece(question.answer),), letter=question.answer)
    return Lesson(item.scene, (turn,))


def key_dropped(draws: Draws, item: AskedScene) -> Lesson:
    """The item in another color, with the answer it had; often under other options, the shown color among them."""
    (shape,) = item.asked
    question = item.question
    old = item.scene.find(shape).color
    options = question.options
    if draws.uniform() < P_SAME_OPTIONS:
        shown = draws.choice([color for color in options if color != old])
    else:
        shown = draws.choice([color for color in COLORS if color != old])
        others = draws.shuffled([color for color in COLORS if color not in (old, shown)])[:2]
        options = tuple(draws.shuffled([old, shown, *others]))
    letter = option_letter(options.index(old))
    turn = Turn(prompt_text(question.text, options), (Piece(letter),), letter=letter)
    return Lesson(recolored(item.scene, shape, shown, draws), (turn,))
