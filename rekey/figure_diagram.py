"""Plane geometry diagrams: where labels go, and the painting.

    figure = {**style, "points": {"A": [60, 300], "B": [420, 300], "C": [200, 80]}, "segments": [["A", "B"], ...],
              "angles": [{"at": "A", "from": "B", "to": "C", "label": "40°"}], "lengths": [], ...}
    crowded(figure) or paint(figure).pixels()

Points whose names begin with "_" are not labelled.  An angle is the one below 180° between two rays.  All is drawn to
scale: a label's number is the size of what it labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rekey.figure_canvas import Canvas, Lettering, Point, direction, lettering, polar, text_size

Figure = dict[str, Any]
UNKNOWN = ("x", "?")
_GAP_PX = 5.0                 # between a label and the nearest line
_TICK_PX = 6.0


@dataclass(frozen=True)
class Label:
    """A text with its center and estimated size."""

    text: str
    center: Point
    width: float
    height: float
    letters: Lettering
    color: str

    def box(self, margin: float = 0) -> tuple[float, float, float, float]:
        half_width, half_height = self.width / 2 + margin, self.height / 2 + margin
        x, y = self.center
        return x - half_width, y - half_height, x + half_width, y + half_height


def _point(figure: Figure, name: str) -> Point:
    x, y = figure["points"][name]
    return x, y


def _wedge(start: float, end: float) -> tuple[float, float]:
    """The angle below 180° between two directions, as (where it begins, its size)."""
    sweep = (end - start) % 360
    return (start, sweep) if sweep <= 180 else (end, 360 - sweep)


def _angle(figure: Figure, angle: dict[str, Any]) -> tuple[Point, float, float, float]:
    """An angle's vertex, where it begins, its size, and the radius of its arc."""
    vertex = _point(figure, angle["at"])
    start, sweep = _wedge(*(direction(vertex, _point(figure, angle[end])) for end in ("from", "to")))
    return vertex, start, sweep, (24 if sweep >= 60 else 29 if sweep >= 40 else 35)


def _extent(width: float, height: float, degrees: float) -> float:
    """How far a box reaches from its center in a direction."""
    return (abs(math.cos(math.radians(degrees))) * width + abs(math.sin(math.radians(degrees))) * height) / 2


def _clear_distance(width: float, height: float, start: float, sweep: float) -> float:
    """How far from the vertex along the bisector a box must be to stay clear of both sides of a wedge."""
    if sweep >= 180:
        return _extent(width, height, start + sweep / 2) + _GAP_PX
    return max((_extent(width, height, side + 90) + _GAP_PX) / math.sin(math.radians(sweep / 2))
               for side in (start, start + sweep))


def labels(figure: Figure) -> list[Label]:
    """All texts of a diagram with their places."""
    return [*_point_labels(figure), *_angle_labels(figure), *_length_labels(figure)]


def _point_labels(figure: Figure) -> Iterator[Label]:
    letters = lettering(figure).faced("italic").sized(1.08)
    for name in figure["points"]:
        if name.startswith("_"):
            continue
        at = _point(figure, name)
        start, sweep = _widest_gap(sorted(_directions(figure, name)))
        width, height = text_size(name, letters)
        distance = _clear_distance(width, height, start, sweep) + (3 if name in figure["dots"] else 0)
        yield Label(name, polar(at, distance, start + sweep / 2), width, height, letters, figure["ink"])


def _directions(figure: Figure, name: str) -> Iterator[float]:
    """In which directions lines leave a point."""
    at = _point(figure, name)
    for segment in figure["segments"]:
        ends = [_point(figure, end) for end in segment]
        distances = [math.dist(at, end) for end in ends]
        if abs(sum(distances) - math.dist(*ends)) < 0.05:
            yield from (direction(at, end) for end, distance in zip(ends, distances) if distance > 1)
    for circle in figure["circles"]:
        center = _point(figure, circle["center"])
        if abs(math.dist(at, center) - circle["radius"]) < 1:
            inward = direction(at, center)
            yield from ((inward + turn) % 360 for turn in (-88, 0, 88))


def _widest_gap(directions: list[float]) -> tuple[float, float]:
    """Where the largest angle without a line begins, and its size."""
    if not directions:
        return 0, 180
    gaps = [((after - before) % 360 or 360, before)
            for before, after in zip(directions, [*directions[1:], directions[0]])]
    sweep, start = max(gaps, key=lambda gap: (round(gap[0], 1), gap[1]))
    return start, sweep


def _angle_labels(figure: Figure) -> Iterator[Label]:
    for angle in figure["angles"]:
        if not angle["label"]:
            continue
        vertex, start, sweep, radius = _angle(figure, angle)
        letters, color = _label_look(figure, angle["label"])
        width, height = text_size(angle["label"], letters)
        distance = max(radius + _extent(width, height, start + sweep / 2) + 3,
                       _clear_distance(width, height, start, sweep))
        yield Label(angle["label"], polar(vertex, distance, start + sweep / 2), width, height, letters, color)


def _length_labels(figure: Figure) -> Iterator[Label]:
    drawn = list(figure["points"].values())
    middle = (sum(x for x, _ in drawn) / len(drawn), sum(y for _, y in drawn) / len(drawn))
    for length in figure["lengths"]:
        start, end = (_point(figure, name) for name in length["of"])
        center = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        across = direction(start, end) + 90
        shunned = _point(figure, length["away_from"]) if "away_from" in length else middle
        if math.cos(math.radians(direction(shunned, center) - across)) < 0:
            across += 180
        letters, color = _label_look(figure, length["label"])
        width, height = text_size(length["label"], letters)
        distance = _extent(width, height, across) + _GAP_PX + 2
        yield Label(length["label"], polar(center, distance, across), width, height, letters, color)


def _label_look(figure: Figure, text: str) -> tuple[Lettering, str]:
    letters = lettering(figure)
    if text in UNKNOWN:
        return letters.faced("italic" if text == "x" else "bold").sized(1.1), figure["accent"]
    return letters, figure["ink"]


# ----------------------------------------------------------------------------- collisions

def crowded(figure: Figure) -> bool:
    """Whether some label touches a line, another label, or the edge of the picture."""
    placed = labels(figure)
    boxes = [label.box(1.5) for label in placed]
    if any(left < 4 or top < 4 or right > figure["width"] - 4 or bottom > figure["height"] - 4
           for left, top, right, bottom in boxes):
        return True
    for i, box in enumerate(boxes):
        if any(box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
               for other in boxes[:i]):
            return True
    strokes = list(_strokes(figure))
    return any(_crosses(start, end, box) for box in boxes for start, end in strokes)


def _strokes(figure: Figure) -> Iterator[tuple[Point, Point]]:
    """Every line of a diagram as short straight pieces."""
    for segment in figure["segments"]:
        yield _point(figure, segment[0]), _point(figure, segment[1])
    curves = [(_point(figure, circle["center"]), 0.0, 360.0, circle["radius"]) for circle in figure["circles"]]
    for angle in figure["angles"]:
        vertex, start, sweep, radius = _angle(figure, angle)
        curves.append((vertex, start, sweep, radius))
    for center, start, sweep, radius in curves:
        n = max(3, round(sweep / 10))
        points = [polar(center, radius, start + sweep * i / n) for i in range(n + 1)]
        yield from zip(points, points[1:])


def _crosses(start: Point, end: Point, box: tuple[float, float, float, float]) -> bool:
    """Whether a segment meets a box (Liang and Barsky's clipping)."""
    enter, leave = 0.0, 1.0
    for axis in (0, 1):
        step = end[axis] - start[axis]
        low, high = box[axis] - start[axis], box[axis + 2] - start[axis]
        if abs(step) < 1e-9:
            if low > 0 or high < 0:
                return False
            continue
        first, last = sorted((low / step, high / step))
        enter, leave = max(enter, first), min(leave, last)
    return enter <= leave


# ------------------------------------------------------------------------------- painting

def paint(figure: Figure) -> Canvas:
    """The picture of a diagram."""
    canvas = Canvas(figure["width"], figure["height"], figure["background"])
    ink, line_px = figure["ink"], figure["line_px"]
    for circle in figure["circles"]:
        fill = figure["tint"] if circle.get("filled") else None
        canvas.circle(_point(figure, circle["center"]), circle["radius"], fill, ink, line_px)
    if figure["area"]:
        canvas.polygon([_point(figure, name) for name in figure["area"]], figure["tint"])
    for angle in figure["angles"]:
        _paint_angle(canvas, figure, angle)
    for segment in figure["segments"]:
        canvas.line([_point(figure, name) for name in segment], ink, line_px)
    for tick in figure["ticks"]:
        _paint_ticks(canvas, figure, tick)
    for arrow in figure["arrows"]:
        start, end = (_point(figure, name) for name in arrow["of"])
        towards = direction(start, end)
        canvas.arrow_head(polar(start, math.dist(start, end) * arrow["share"], towards), towards, 13, ink)
    for name in figure["dots"]:
        canvas.circle(_point(figure, name), line_px + 1.4, ink)
    for label in labels(figure):
        canvas.text(label.center, label.text, label.letters, label.color)
    return canvas


def _paint_angle(canvas: Canvas, figure: Figure, angle: dict[str, Any]) -> None:
    vertex, start, sweep, radius = _angle(figure, angle)
    color = figure["accent"] if angle["label"] in UNKNOWN else figure["ink"]
    thin = max(1.2, figure["line_px"] * 0.75)
    if angle.get("right"):
        side = 14.0
        corner = polar(polar(vertex, side, start), side, start + sweep)
        canvas.line([polar(vertex, side, start), corner, polar(vertex, side, start + sweep)], color, thin)
    else:
        canvas.arc(vertex, radius, start, sweep, color, thin)


def _paint_ticks(canvas: Canvas, figure: Figure, tick: dict[str, Any]) -> None:
    start, end = (_point(figure, name) for name in tick["of"])
    along = direction(start, end)
    middle = polar(start, math.dist(start, end) / 2, along)
    for i in range(tick["n"]):
        at = polar(middle, (i - (tick["n"] - 1) / 2) * 5, along)
        canvas.line([polar(at, _TICK_PX, along + 90), polar(at, _TICK_PX, along - 90)], figure["ink"],
                    max(1.4, figure["line_px"] * 0.85))
