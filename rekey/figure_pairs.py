"""Procedural figure pairs: a figure, its twin with one changed detail, and a question whose answer changes with it.

    pair = draw_pair(seed=1, number=0)                     # a pure function of its arguments
    pixels_a, pixels_b = render(pair.kind, pair.a), render(pair.kind, pair.b)
    pair.question, pair.options, pair.answer_a, pair.answer_b

The four kinds are those of the paper's cases (VisualSwap, Sec. 3): geometry, charts, function plots and counting
scenes.  Labels hold by construction, figures are unlimited and were never published; both pictures of a pair have one
size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rekey import figure_charts, figure_counting, figure_geometry, figure_plots
from rekey.draws import Draws
from rekey.errors import InputError
from rekey.figure_canvas import Canvas
from rekey.figure_forms import Form, Redraw, ask

_FORMS: dict[str, dict[str, Form]] = {
    "geometry": figure_geometry.FORMS, "chart": figure_charts.FORMS, "function plot": figure_plots.FORMS,
    "counting": figure_counting.FORMS,
}
_PAINTERS: dict[str, Callable[[dict[str, Any]], Canvas]] = {
    "geometry": figure_geometry.paint, "chart": figure_charts.paint, "function plot": figure_plots.paint,
    "counting": figure_counting.paint,
}
KINDS = tuple(_FORMS)
FORMS: dict[str, tuple[str, ...]] = {kind: tuple(forms) for kind, forms in _FORMS.items()}
_TRIES = 1000                 # far more than any form was ever seen to need


@dataclass(frozen=True)
class FigurePair:
    """Two figures as parameters, and a question that both answer differently.

    a, b: all that is drawn, as plain JSON data.  options: texts, empty where a number is asked for.  answer_a,
    answer_b: the right option's letter, or the number as text.
    """

    kind: str
    form: str
    a: dict[str, Any]
    b: dict[str, Any]
    question: str
    options: tuple[str, ...]
    answer_a: str
    answer_b: str


def draw_pair(seed: int, number: int, kind: str | None = None, form: str | None = None) -> FigurePair:
    """The pair of a seed with that number, counted from 0; kinds and forms take turns with the number.

    kind, form: keep to one of `KINDS`, or to one of its `FORMS`.  Raises InputError for unknown ones.
    """
    kind, form = _turn(number, kind, form)
    for attempt in range(_TRIES):
        draws = Draws("figure pair", kind, form, seed, number, attempt)
        try:
            twin = _FORMS[kind][form](draws)
            question, options, answer_a, answer_b = ask(twin, draws)
        except Redraw:
            continue
        sides = [(twin.a, answer_a), (twin.b, answer_b)]
        # Which of the two comes first is drawn, or a form that only adds would always grow from a to b.
        (a, answer_a), (b, answer_b) = draws.shuffled(sides)
        return FigurePair(kind, form, a, b, question, options, answer_a, answer_b)
    raise AssertionError(f"no {kind} figure {form!r} in {_TRIES} draws of seed {seed}, number {number}")


def _turn(number: int, kind: str | None, form: str | None) -> tuple[str, str]:
    if kind is not None and kind not in FORMS:
        raise InputError(f"figure kind {kind!r} is unknown; expected one of {', '.join(KINDS)}")
    if form is not None:
        kinds = [known for known in ([kind] if kind else KINDS) if form in FORMS[known]]
        if not kinds:
            known = ", ".join(name for owner in ([kind] if kind else KINDS) for name in FORMS[owner])
            raise InputError(f"figure form {form!r} is unknown; expected one of {known}")
        return kinds[0], form
    if kind is not None:
        return kind, FORMS[kind][number % len(FORMS[kind])]
    kind, turn = KINDS[number % len(KINDS)], number // len(KINDS)
    return kind, FORMS[kind][turn % len(FORMS[kind])]


def render(kind: str, parameters: dict[str, Any]) -> np.ndarray:
    """The picture of one figure: uint8 (height, width, 3)."""
    return _PAINTERS[kind](parameters).pixels()
