"""Counting scenes painted from their parameters: scattered shapes, dice, and a clock.

    scene = {**style, "scene": "shapes", "frame": None, "rows": [], "objects": [
        {"shape": "star", "color": "red", "rgb": "#d62728", "pattern": "plain", "x": 90, "y": 80, "radius": 26,
         "angle": 10}]}
    paint(scene).pixels()

A shape is one patch of its color: whatever pattern it has, its outline has that color.
"""

from __future__ import annotations

from typing import Any

from rekey.figure_canvas import Canvas, Point, lettering, polar

Scene = dict[str, Any]
# Corners as (direction in degrees, distance in radii), chosen for areas that look alike.
_POLYGONS: dict[str, tuple[tuple[float, float], ...]] = {
    "square": tuple((45 + 90 * i, 1.1) for i in range(4)),
    "triangle": tuple((90 + 120 * i, 1.16) for i in range(3)),
    "diamond": ((90, 1.2), (180, 0.78), (270, 1.2), (0, 0.78)),
    "hexagon": tuple((60 * i, 1.04) for i in range(6)),
    "star": tuple((90 + 36 * i, 0.5 if i % 2 else 1.2) for i in range(10)),
    "cross": tuple((90 * i + turn, reach) for i in range(4)
                   for turn, reach in ((-18.4, 1.16), (18.4, 1.16), (45, 0.52))),
    "circle": tuple((7.5 * i, 1.0) for i in range(48)),
}
SHAPES = tuple(_POLYGONS)
REACH = 1.2                   # of the largest shape, in radii
# Where the pips of a die lie, in sixths of its side from the middle.
PIPS = {1: ((0, 0),), 2: ((-1, -1), (1, 1)), 3: ((-1, -1), (0, 0), (1, 1)), 4: ((-1, -1), (-1, 1), (1, -1), (1, 1)),
        5: ((-1, -1), (-1, 1), (0, 0), (1, -1), (1, 1)),
        6: ((-1, -1), (-1, 0), (-1, 1), (1, -1), (1, 0), (1, 1))}


def corners(item: dict[str, Any]) -> list[Point]:
    """The outline of a shape, in pixels."""
    return [polar((item["x"], item["y"]), item["radius"] * reach, item["angle"] + turn)
            for turn, reach in _POLYGONS[item["shape"]]]


def paint(scene: Scene) -> Canvas:
    """The picture of a scene."""
    canvas = Canvas(scene["width"], scene["height"], scene["background"])
    if scene["scene"] == "clock":
        _paint_clock(canvas, scene)
    elif scene["scene"] == "dice":
        for die in scene["dice"]:
            _paint_die(canvas, scene, die)
    else:
        _paint_shapes(canvas, scene)
    return canvas


def _paint_shapes(canvas: Canvas, scene: Scene) -> None:
    if scene["frame"]:
        left, top, right, bottom = scene["frame"]
        canvas.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], scene["tint"])
        canvas.line([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], scene["ink"], 2.4,
                    dash_px=10)
    for row in scene["rows"]:
        canvas.text((row["x"], row["y"]), row["text"], lettering(scene), scene["ink"], "lm")
        if row["line_y"]:
            canvas.line([(20, row["line_y"]), (scene["width"] - 20, row["line_y"])], scene["grid"], 1.6)
    for item in scene["objects"]:
        outline = corners(item)
        if item["pattern"] == "plain":
            canvas.polygon(outline, item["rgb"])
        else:
            if item["pattern"] != "hollow":
                canvas.patterned(outline, scene["background"], item["rgb"], item["pattern"], item["radius"] / 2.4)
            canvas.polygon(outline, None, item["rgb"], 2.6)


def _paint_die(canvas: Canvas, scene: Scene, die: dict[str, Any]) -> None:
    center, half, angle = (die["x"], die["y"]), die["side"] / 2, die["angle"]
    rounding = half * 0.28
    inner = [polar(center, (half - rounding) * 2 ** 0.5, angle + 45 + 90 * i) for i in range(4)]
    rim = [polar(corner, rounding, angle + 90 * i + turn) for i, corner in enumerate(inner)
           for turn in range(0, 91, 10)]
    canvas.polygon(rim, scene["die"], scene["ink"], scene["line_px"])
    for across, down in PIPS[die["pips"]]:
        turned = polar(polar(center, across * half * 0.52, angle), down * half * 0.52, angle - 90)
        canvas.circle(turned, half * 0.155, scene["pip"])


def _paint_clock(canvas: Canvas, scene: Scene) -> None:
    center, radius, ink = (scene["x"], scene["y"]), scene["radius"], scene["ink"]
    canvas.circle(center, radius, scene["tint"], ink, scene["line_px"] * 2)
    for minute in range(60):
        hour = minute % 5 == 0
        length, width = (0.09, 2.6) if hour else (0.045, 1.3)
        canvas.line([polar(center, radius * 0.94, -6 * minute), polar(center, radius * (0.94 - length), -6 * minute)],
                    ink, width)
    letters = lettering(scene).sized(radius / 122)
    for hour in range(1, 13):
        if hour % scene["number_every"] == 0:
            canvas.text(polar(center, radius * 0.75, 90 - 30 * hour), str(hour), letters, ink)
    for degrees, reach, width, color in ((scene["hour_hand"], 0.38, 7, ink), (scene["minute_hand"], 0.62, 4, ink)):
        canvas.line([polar(center, radius * 0.1, 270 - degrees), polar(center, radius * reach, 90 - degrees)], color,
                    width)
    canvas.circle(center, 7, scene["accent"])
