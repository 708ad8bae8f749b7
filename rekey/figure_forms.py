"""What every question form of a procedural figure hands back, and how its options are put together.

    twin = Twin(a, b, "What is angle C?", "40", "52", ("140", "50"), unit="°", how="Give a whole number of degrees.")
    question, options, letter_a, letter_b = ask(twin, draws)

A form draws one figure and its twin with a single detail changed, so that both share the question (VisualSwap, Sec. 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rekey.draws import Draws
from rekey.records import option_letter

N_OPTIONS = 4


class Redraw(Exception):
    """What was drawn makes no good figure (labels collide, answers agree); the next draw is tried."""


@dataclass(frozen=True)
class Twin:
    """Two figures as parameters, what is asked of both, and both answers.

    distractors: wrong answers in order of preference; those that equal an answer, or come twice, are passed over.
    how: for answers that are numbers, how to give one without options; empty where there are always options.
    unit: what is printed after a number among the options.
    """

    a: dict[str, Any]
    b: dict[str, Any]
    question: str
    answer_a: str
    answer_b: str
    distractors: tuple[str, ...]
    how: str = ""
    unit: str = ""


Form = Callable[[Draws], Twin]


def need(holds: bool) -> None:
    """Raises Redraw unless it holds."""
    if not holds:
        raise Redraw("not as wanted")


def ask(twin: Twin, draws: Draws) -> tuple[str, tuple[str, ...], str, str]:
    """The question, its options (none where a number is asked for), and the answers to both figures.

    Raises Redraw where the answers agree or there are too few wrong ones.
    """
    if twin.answer_a == twin.answer_b:
        raise Redraw("equal answers")
    if twin.how and draws.below(2):
        return f"{twin.question} {twin.how}", (), twin.answer_a, twin.answer_b
    answers = list(dict.fromkeys((twin.answer_a, twin.answer_b, *twin.distractors)))[:N_OPTIONS]
    if len(answers) < N_OPTIONS:
        raise Redraw("too few wrong answers")
    options = draws.shuffled(answers)
    letter_a, letter_b = (option_letter(options.index(answer)) for answer in (twin.answer_a, twin.answer_b))
    return twin.question, tuple(f"{option}{twin.unit}" for option in options), letter_a, letter_b


def between(draws: Draws, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return low + draws.below(high - low + 1)


def other_than(draws: Draws, options: Iterable[Any], *taken: Any) -> Any:
    """One of the options that is none of the taken ones.  Raises Redraw where none is left."""
    left = [option for option in options if option not in taken]
    if not left:
        raise Redraw("nothing left to choose")
    return draws.choice(left)


def near(draws: Draws, a: int, b: int, lowest: int = 0, highest: int | None = None, step: int = 1) -> tuple[str, ...]:
    """Neighbors of both answers as wrong answers, in a drawn order, the likeliest first; none outside of the range.

    They come from a run of numbers that begins anywhere below the answers: were they always the next ones on both
    sides, the right answers would be known by lying in the middle.
    """
    low, high = min(a, b), max(a, b)
    n_steps = max(N_OPTIONS - 1, math.ceil((high - low) / step) + 1)
    allowed = range(lowest, high + 10 * step if highest is None else highest + 1)
    starts = [start for start in range(high - n_steps * step, low + 1, step)
              if start in allowed and start + n_steps * step in allowed]
    start = draws.choice(starts) if starts else low
    run = draws.shuffled([start + i * step for i in range(n_steps + 1)])
    more = [number for distance in (1, 2, 3) for number in (low - distance * step, high + distance * step)]
    return tuple(dict.fromkeys(str(number) for number in (*run, *more) if number in allowed))


def typical(draws: Draws, *numbers: int, lowest: int = 1) -> tuple[str, ...]:
    """The result of one typical mistake as a wrong answer; numbers that nobody would give are left out.

    One, to be followed by neighbors: mistakes tend to be larger than the right answers, which would show them.
    """
    sensible = sorted({number for number in numbers if number >= lowest})
    return (str(draws.choice(sensible)),) if sensible else ()
