"""Graphs of functions on a labelled grid, painted from their parameters.

    plot = {**style, "x": [-6, 6], "y": [-5, 5], "unit_px": 30, "axes": "cross", "label_every": 1,
            "curves": [{"type": "polynomial", "coefficients": [1, 0, -0.5], "color": "#c0272d"}], "dots": []}
    paint(plot).pixels(), value(plot["curves"][0], 2.0)

One unit is as long on both axes.  Curves: "polynomial" (coefficients, lowest first), "absolute" (slope |x - h| + k),
"wave" (a cosine with its peak, period, amplitude and mean) and "broken" (straight lines between points).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rekey.figure_canvas import Canvas, Point, lettering, text_size

Plot = dict[str, Any]
MARGIN_PX = 34
_SAMPLE_PX = 3                # between two points of a curve
_SMALL = 0.7                  # of the style's letters: numbers beside the axes


def value(curve: dict[str, Any], x: float) -> float:
    """The y of a curve at x; nan outside of a broken line."""
    if curve["type"] == "polynomial":
        return sum(c * x ** power for power, c in enumerate(curve["coefficients"]))
    if curve["type"] == "absolute":
        return curve["slope"] * abs(x - curve["h"]) + curve["k"]
    if curve["type"] == "wave":
        return curve["mean"] + curve["amplitude"] * math.cos(2 * math.pi * (x - curve["peak"]) / curve["period"])
    for (x0, y0), (x1, y1) in zip(curve["points"], curve["points"][1:]):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return math.nan


def place(plot: Plot, x: float, y: float) -> Point:
    """Where a point of the plane lies in the picture."""
    left, top = MARGIN_PX + (plot["axes"] == "frame") * 10, MARGIN_PX - 8
    return left + (x - plot["x"][0]) * plot["unit_px"], top + (plot["y"][1] - y) * plot["unit_px"]


def picture_size(plot: Plot) -> tuple[int, int]:
    """Width and height that the grid and its margins take, in pixels."""
    right, bottom = place(plot, plot["x"][1], plot["y"][0])
    return round(right + MARGIN_PX - 6), round(bottom + MARGIN_PX + (plot["axes"] == "frame") * 10)


def paint(plot: Plot) -> Canvas:
    """The picture of a plot."""
    canvas = Canvas(plot["width"], plot["height"], plot["background"])
    _paint_grid(canvas, plot)
    if plot["axes"] == "cross":
        _paint_cross(canvas, plot)
    else:
        _paint_frame(canvas, plot)
    for curve in plot["curves"]:
        for run in _runs(plot, curve):
            canvas.line(run, curve["color"], plot["line_px"] + 0.8)
    for dot in plot["dots"]:
        canvas.circle(place(plot, *dot), 4.6, plot["curves"][0]["color"])
    return canvas


def _paint_grid(canvas: Canvas, plot: Plot) -> None:
    (x0, x1), (y0, y1) = plot["x"], plot["y"]
    for x in range(x0, x1 + 1):
        canvas.line([place(plot, x, y0), place(plot, x, y1)], plot["grid"], 1)
    for y in range(y0, y1 + 1):
        canvas.line([place(plot, x0, y), place(plot, x1, y)], plot["grid"], 1)


def _ticks(plot: Plot, axis: str) -> list[int]:
    low, high = plot[axis]
    return [tick for tick in range(low, high + 1) if tick % plot["label_every"] == 0]


def _paint_cross(canvas: Canvas, plot: Plot) -> None:
    """Axes through the origin, with arrowheads and the numbers beside them."""
    (x0, x1), (y0, y1) = plot["x"], plot["y"]
    ink, letters = plot["ink"], lettering(plot)
    small = letters.sized(_SMALL)
    (right, middle), (center, top) = place(plot, x1, 0), place(plot, 0, y1)
    canvas.line([place(plot, x0, 0), (right + 12, middle)], ink, 1.6)
    canvas.line([place(plot, 0, y0), (center, top - 12)], ink, 1.6)
    canvas.arrow_head((right + 16, middle), 0, 10, ink)
    canvas.arrow_head((center, top - 16), 90, 10, ink)
    canvas.text((right + 14, middle + letters.size_px * 0.85), "x", letters.faced("italic"), ink)
    canvas.text((center - letters.size_px * 0.8, top - 15), "y", letters.faced("italic"), ink)
    for x in range(x0 + 1, x1):
        left, level = place(plot, x, 0)
        canvas.line([(left, level - 3), (left, level + 3)], ink, 1.2)
    for y in range(y0 + 1, y1):
        left, level = place(plot, 0, y)
        canvas.line([(left - 3, level), (left + 3, level)], ink, 1.2)
    for x, y, side in plot["numbers"]:
        text, at = _number_place(plot, x, y, side)
        half_width, half_height = (size / 2 + 1 for size in text_size(text, small))
        # Grid lines stop short of a number.
        canvas.rectangle(at[0] - half_width, at[1] - half_height, at[0] + half_width, at[1] + half_height,
                         plot["background"])
        canvas.text(at, text, small.faced("italic") if text == "O" else small, ink)


def free_numbers(plots: Sequence[Plot]) -> list[list[int]]:
    """Which numbers stand beside the axes, as [x, y, side], so that no curve of any of the plots runs through them.

    side: 0 is the usual one, below or left of the axis; a number that is free on neither is left out.
    """
    plot = plots[0]
    if plot["axes"] == "frame":
        return []
    curve = [point for one in plots for c in one["curves"] for run in _runs(one, c) for point in _dense(run)]
    margin = 7 if plot["dots"] else 4
    ticks = [(x, 0) for x in _ticks(plot, "x") if abs(x) < plot["x"][1]]
    ticks += [(0, y) for y in _ticks(plot, "y") if y and abs(y) < plot["y"][1]]
    numbers = []
    for x, y in ticks:
        for side in range(4 if x == y == 0 else 2):
            text, (left, level) = _number_place(plot, x, y, side)
            width, height = text_size(text, lettering(plot).sized(_SMALL))
            half_width, half_height = width / 2 + margin, height / 2 + margin
            if not any(abs(px - left) < half_width and abs(py - level) < half_height for px, py in curve):
                numbers.append([x, y, side])
                break
    return numbers


def _number_place(plot: Plot, x: int, y: int, side: int) -> tuple[str, Point]:
    """The text of a number beside an axis, and its center."""
    left, level = place(plot, x, y)
    if x == y == 0:
        return "O", (left + (9 if side % 2 else -9), level + (-11 if side > 1 else 11))
    if y == 0:
        return _number(x), (left, level + (-12 if side else 12))
    away = 7 + text_size(_number(y), lettering(plot).sized(_SMALL))[0] / 2
    return _number(y), (left + (away if side else -away), level)


def _dense(run: list[Point]) -> Iterator[Point]:
    """A run's points and, between far ones, more of them."""
    for (x0, y0), (x1, y1) in zip(run, run[1:]):
        n = 1 + int(max(abs(x1 - x0), abs(y1 - y0)) / 4)
        yield from ((x0 + (x1 - x0) * i / n, y0 + (y1 - y0) * i / n) for i in range(n))
    yield run[-1]


def _paint_frame(canvas: Canvas, plot: Plot) -> None:
    """A frame with the numbers outside of it; the lines through the origin are a little darker."""
    (x0, x1), (y0, y1) = plot["x"], plot["y"]
    ink, letters = plot["ink"], lettering(plot)
    small = letters.sized(_SMALL)
    canvas.line([place(plot, x0, 0), place(plot, x1, 0)], ink, 1.1)
    canvas.line([place(plot, 0, y0), place(plot, 0, y1)], ink, 1.1)
    canvas.polygon([place(plot, x, y) for x, y in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], None, ink, 1.5)
    for x in _ticks(plot, "x"):
        left, bottom = place(plot, x, y0)
        canvas.line([(left, bottom), (left, bottom + 5)], ink, 1.3)
        canvas.text((left, bottom + 14), _number(x), small, ink)
    for y in _ticks(plot, "y"):
        left, level = place(plot, x0, y)
        canvas.line([(left - 5, level), (left, level)], ink, 1.3)
        canvas.text((left - 9, level), _number(y), small, ink, "rm")
    right, bottom = place(plot, x1, y0)
    canvas.text(((place(plot, x0, 0)[0] + right) / 2, bottom + 30), "x", letters.sized(0.9).faced("italic"), ink)
    top = place(plot, x0, y1)[1]
    canvas.text((10, (top + bottom) / 2), "y", letters.sized(0.9).faced("italic"), ink)


def _number(number: int) -> str:
    return f"−{-number}" if number < 0 else str(number)


def _runs(plot: Plot, curve: dict[str, Any]) -> list[list[Point]]:
    """The parts of a curve that lie inside the grid, in pixels, cut exactly at its edge."""
    (x0, x1), (low, high) = plot["x"], plot["y"]
    if curve["type"] == "broken":
        return [[place(plot, x, y) for x, y in curve["points"]]]
    n = round((x1 - x0) * plot["unit_px"] / _SAMPLE_PX)
    xs = [x0 + (x1 - x0) * i / n for i in range(n + 1)]
    if curve["type"] == "absolute":
        xs = sorted({*xs, curve["h"]})
    runs: list[list[Point]] = [[]]
    before: Point | None = None
    for x in xs:
        point = (x, value(curve, x))
        inside = low <= point[1] <= high
        if before is not None and inside != (low <= before[1] <= high):
            edge = high if max(point[1], before[1]) > high else low
            share = (edge - before[1]) / (point[1] - before[1])
            runs[-1].append(place(plot, before[0] + share * (x - before[0]), edge))
        if inside:
            runs[-1].append(place(plot, *point))
        elif runs[-1]:
            runs.append([])
        before = point
    return [run for run in runs if len(run) > 1]
