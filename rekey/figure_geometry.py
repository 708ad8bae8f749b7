"""Geometry questions of procedural figures: true-to-scale diagrams, one label and what it labels changed.

    twin = FORMS["angle sum"](Draws("an example"))
    paint(twin.a).pixels(), twin.question, twin.answer_a

The vision-dominant geometry that the paper takes from MathVerse (VisualSwap, Sec. 3): the text names what is wanted,
and only the picture holds the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rekey.draws import Draws
from rekey.figure_canvas import draw_style
from rekey.figure_diagram import Figure, crowded, paint
from rekey.figure_forms import Form, Redraw, Twin, between, near, other_than, typical

__all__ = ["FORMS", "paint"]

SIZES = ((480, 400), (512, 448), (560, 420), (448, 448), (600, 440))
_NAMES = ("ABC", "PQR", "DEF", "XYZ", "KLM", "RST")
_DEGREES = "Give a whole number of degrees."
_UNITS = ("cm", "m", "in", "mm")
# A leg that two right triangles of whole numbers share, and their other legs.
_LEGS = ((20, 15, 21), (21, 20, 28), (40, 30, 42), (45, 24, 28), (48, 14, 20), (48, 36, 55), (56, 33, 42),
         (60, 25, 32), (60, 32, 45), (60, 45, 63), (63, 60, 84), (72, 21, 30), (72, 54, 65), (80, 39, 60), (80, 60, 84))
_TURNS = (0, 0, 0, -8, 7, -14, 13, 22, -24, 180)
_MARGIN_PX = 46


def _figure(points: dict[str, tuple[float, float]], segments: list[list[str]], **parts: Any) -> Figure:
    """A diagram in units of its own, y upward, before `_place` puts it on a canvas."""
    empty: Figure = {"circles": [], "angles": [], "lengths": [], "ticks": [], "arrows": [], "dots": [], "area": []}
    return {**empty, "points": points, "segments": segments, **parts}


def _ray(length: float, degrees: float, start: tuple[float, float] = (0, 0)) -> tuple[float, float]:
    """The point at a distance and direction, y upward."""
    return start[0] + length * math.cos(math.radians(degrees)), start[1] + length * math.sin(math.radians(degrees))


def _meet(at_a: float, at_b: float, base: float = 10) -> tuple[float, float]:
    """The third corner of a triangle over (0, 0) and (base, 0) with these angles at the two."""
    side = base * math.sin(math.radians(at_b)) / math.sin(math.radians(180 - at_a - at_b))
    return _ray(side, at_a)


def _angle(at: str, start: str, end: str, label: str, **more: Any) -> dict[str, Any]:
    return {"at": at, "from": start, "to": end, "label": label, **more}


def _ring(names: str) -> list[list[str]]:
    return [[name, after] for name, after in zip(names, names[1:] + names[0])]


def _place(draws: Draws, a: Figure, b: Figure, turns: tuple[int, ...] = _TURNS,
           mirrors: tuple[int, ...] = (1, -1)) -> tuple[Figure, Figure]:
    """Both figures turned, mirrored and scaled alike, so that what they share falls on the same pixels.

    Raises Redraw where the labels of one collide.
    """
    style = draw_style(draws, SIZES)
    turn, mirror = draws.choice(turns), draws.choice(mirrors)

    def turned(figure: Figure) -> dict[str, tuple[float, float]]:
        cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
        return {name: (mirror * (x * cos - y * sin), x * sin + y * cos) for name, (x, y) in figure["points"].items()}

    reach = []
    for figure in (a, b):
        for name, (x, y) in turned(figure).items():
            radius = max((circle["radius"] for circle in figure["circles"] if circle["center"] == name), default=0)
            reach += [(x - radius, y - radius), (x + radius, y + radius)]
    left, right = min(x for x, _ in reach), max(x for x, _ in reach)
    low, high = min(y for _, y in reach), max(y for _, y in reach)
    scale = min((style["width"] - 2 * _MARGIN_PX) / (right - left), (style["height"] - 2 * _MARGIN_PX) / (high - low))
    x0, y0 = (style["width"] - scale * (left + right)) / 2, (style["height"] + scale * (low + high)) / 2
    placed = []
    for figure in (a, b):
        points = {name: [round(x0 + scale * x, 2), round(y0 - scale * y, 2)] for name, (x, y) in turned(figure).items()}
        circles = [{**circle, "radius": round(circle["radius"] * scale, 2)} for circle in figure["circles"]]
        placed.append({**style, **figure, "points": points, "circles": circles})
        if crowded(placed[-1]):
            raise Redraw("labels collide")
    return placed[0], placed[1]


def _step(draws: Draws, value: int, low: int, high: int, by: tuple[int, int] = (6, 13)) -> int:
    """Another value in the range, a visible step away."""
    return other_than(draws, [value + sign * step for step in range(by[0], by[1] + 1) for sign in (-1, 1)
                              if low <= value + sign * step <= high])


def _unknown(draws: Draws) -> str:
    return draws.choice(("x", "x", "?"))


def _asked(mark: str, named: str) -> str:
    """The question for an angle that carries a mark, which may be named by letters instead."""
    return "What is the value of x in the figure, in degrees?" if mark == "x" else f"How many degrees is {named}?"


def _angle_twin(draws: Draws, one: Callable[[int], Figure], values: tuple[int, int], question: str,
                answer: Callable[[int], int], mistakes: tuple[int, ...]) -> Twin:
    """A question for an angle, where `one` draws the figure for a value and `answer` solves it."""
    a, b = _place(draws, one(values[0]), one(values[1]))
    right = [answer(value) for value in values]
    mistake = typical(draws, *(m for m in mistakes if 10 <= m <= 170)) if draws.below(2) else ()
    wrong = mistake + near(draws, *right, lowest=10, step=5)
    return Twin(a, b, question, str(right[0]), str(right[1]), wrong, _DEGREES, "°")


# ---------------------------------------------------------------------------------- forms

def _angle_sum(draws: Draws) -> Twin:
    p, q, r = names = "".join(draws.shuffled(draws.choice(_NAMES)))
    mark, alpha, beta = _unknown(draws), between(draws, 38, 84), between(draws, 38, 84)
    other = _step(draws, beta, 34, 88)
    if not all(30 <= 180 - alpha - value <= 100 for value in (beta, other)):
        raise Redraw("a flat triangle")

    def one(value: int) -> Figure:
        return _figure({p: (0, 0), q: (10, 0), r: _meet(alpha, value)}, _ring(names), angles=[
            _angle(p, q, r, f"{alpha}°"), _angle(q, p, r, f"{value}°"), _angle(r, p, q, mark)])
    return _angle_twin(draws, one, (beta, other), _asked(mark, f"angle {r} of triangle {''.join(sorted(names))}"),
                       lambda value: 180 - alpha - value, (alpha + beta, alpha + other, 180 - alpha, 90 - alpha))


def _exterior_angle(draws: Draws) -> Twin:
    p, q, r, s = ("A", "B", "C", "D") if draws.below(2) else ("P", "Q", "R", "S")
    mark, top, base = _unknown(draws), between(draws, 35, 80), between(draws, 35, 75)
    other = _step(draws, top, 32, 84)
    if not all(80 <= base + value <= 145 for value in (top, other)):
        raise Redraw("a flat triangle")

    def one(value: int) -> Figure:
        return _figure({p: _meet(base, 180 - base - value), q: (0, 0), r: (10, 0), s: (15, 0)},
                       [[p, q], [q, s], [p, r]], angles=[
            _angle(p, q, r, f"{value}°"), _angle(q, p, r, f"{base}°"), _angle(r, p, s, mark)])
    return _angle_twin(draws, one, (top, other), _asked(mark, f"angle {p}{r}{s}"), lambda value: base + value,
                       (180 - base - top, 180 - base - other, 180 - top, 180 - base, 90 + base))


def _parallel_lines(draws: Draws) -> Twin:
    tilt = between(draws, 42, 76)
    given, asked = draws.below(4), draws.below(4)
    if draws.below(2):
        tilt = 180 - tilt
    moved = bool(draws.below(2))
    other_tilt = tilt if moved else _step(draws, tilt, 38, 142)
    if abs(other_tilt - 90) < 12:
        raise Redraw("too near to a right angle")
    other_asked = (asked + draws.choice((1, 3))) % 4 if moved else asked
    sizes = [value if place % 2 == 0 else 180 - value
             for value, place in ((tilt, asked), (other_tilt, other_asked))]

    def one(value: int, place: int) -> Figure:
        half = 3 / math.sin(math.radians(value))
        ends = {"_t1": _ray(half + 2.2, value), "_t2": _ray(half + 2.2, value + 180),
                "_p": _ray(half, value), "_q": _ray(half, value + 180)}
        lines = {"_l1": (-7, 3), "_r1": (7, 3), "_l2": (-7, -3), "_r2": (7, -3)}
        around = {"_p": ("_r1", "_t1", "_l1", "_q"), "_q": ("_r2", "_p", "_l2", "_t2")}
        printed = value if given % 2 == 0 else 180 - value
        angles = [_angle(at, around[at][quarter], around[at][(quarter + 1) % 4], label)
                  for at, quarter, label in (("_p", given, f"{printed}°"), ("_q", place, "x"))]
        return _figure(lines | ends, [["_l1", "_r1"], ["_l2", "_r2"], ["_t1", "_t2"]], angles=angles,
                       arrows=[{"of": ["_l1", "_r1"], "share": 0.9}, {"of": ["_l2", "_r2"], "share": 0.9}])
    a, b = _place(draws, one(tilt, asked), one(other_tilt, other_asked))
    wrong = typical(draws, *(180 - size for size in sizes), *(90 - size for size in sizes if size < 80),
                    lowest=10) + near(draws, *sizes, step=10)
    return Twin(a, b, "The two lines marked with arrowheads are parallel. What is the value of x, in degrees?",
                str(sizes[0]), str(sizes[1]), wrong, _DEGREES, "°")


def _right_triangle(draws: Draws) -> Twin:
    shared, *legs = draws.choice(_LEGS)
    legs = draws.shuffled(legs)
    p, q, r = names = "".join(draws.shuffled(draws.choice(_NAMES)))
    unit, mark, wants_leg = draws.choice(_UNITS), _unknown(draws), bool(draws.below(2))

    def longest(leg: int) -> int:
        return round(math.hypot(shared, leg))

    def one(leg: int) -> Figure:
        leg_label, longest_label = (mark, f"{longest(leg)} {unit}") if wants_leg else (f"{leg} {unit}", mark)
        return _figure({p: (0, 0), q: (shared, 0), r: (0, leg)}, _ring(names), area=[p, q, r], lengths=[
            {"of": [p, q], "label": f"{shared} {unit}"}, {"of": [p, r], "label": leg_label},
            {"of": [q, r], "label": longest_label}],
            angles=[_angle(p, q, r, "", right=True)])
    a, b = _place(draws, one(legs[0]), one(legs[1]), (0, 0, 0, 90, 180, -10, 12))
    right = legs if wants_leg else [longest(leg) for leg in legs]
    asked = "x" if mark == "x" else f"the length of {p if wants_leg else q}{r}"
    printed = [longest(leg) for leg in legs] if wants_leg else legs
    wrong = typical(draws, *(side + shared for side in printed), *(abs(side - shared) for side in printed))
    wrong += near(draws, *right, lowest=2)
    return Twin(a, b, f"In the right triangle shown, what is {asked}, in {unit}?", str(right[0]), str(right[1]), wrong,
                f"Give a whole number of {unit}.", f" {unit}")


def _angles_on_a_line(draws: Draws) -> Twin:
    mark, first, last = _unknown(draws), between(draws, 28, 80), between(draws, 28, 80)
    other = _step(draws, first, 26, 84)
    if not all(34 <= 180 - value - last <= 110 for value in (first, other)):
        raise Redraw("a narrow angle")

    def one(value: int) -> Figure:
        return _figure({"O": (0, 0), "A": (6, 0), "B": (-6, 0), "C": _ray(6, value), "D": _ray(6, 180 - last)},
                       [["A", "B"], ["O", "C"], ["O", "D"]], dots=["O"], angles=[
            _angle("O", "A", "C", f"{value}°"), _angle("O", "D", "B", f"{last}°"), _angle("O", "C", "D", mark)])
    return _angle_twin(draws, one, (first, other), f"AB is a straight line. {_asked(mark, 'angle COD')}",
                       lambda value: 180 - value - last,
                       (first + last, other + last, 180 - first, 180 - last, 180 - other, 360 - first - last))


def _inscribed_angle(draws: Draws) -> Twin:
    central_given = bool(draws.below(2))
    half, mark, place = between(draws, 34, 70), _unknown(draws), between(draws, -18, 18)
    other = _step(draws, half, 32, 72, (5, 10))

    def one(value: int) -> Figure:
        at_center, at_rim = (f"{2 * value}°", mark) if central_given else (mark, f"{value}°")
        points = {"O": (0.0, 0.0), "A": _ray(5, -30), "B": _ray(5, -30 - 2 * value), "C": _ray(5, 90 + place)}
        return _figure(points, [["O", "A"], ["O", "B"], ["C", "A"], ["C", "B"]], dots=["O"],
                       circles=[{"center": "O", "radius": 5}],
                       angles=[_angle("O", "A", "B", at_center), _angle("C", "A", "B", at_rim)])
    named = "angle ACB" if central_given else "angle AOB"
    mistakes = (2 * half, 2 * other, 180 - 2 * half, 180 - half, 180 - other, 90 - half)
    return _angle_twin(draws, one, (half, other), f"O is the center of the circle. {_asked(mark, named)}",
                       lambda value: value if central_given else 2 * value, mistakes)


def _isosceles(draws: Draws) -> Twin:
    p, q, r = names = "".join(draws.shuffled(draws.choice(_NAMES)))
    apex_given, mark = bool(draws.below(2)), _unknown(draws)
    base, other_step = between(draws, 40, 64), draws.choice((-6, -5, -4, 4, 5, 6))

    def one(value: int) -> Figure:
        apex_label, base_label = (f"{180 - 2 * value}°", mark) if apex_given else (mark, f"{value}°")
        return _figure({p: _meet(value, value), q: (0, 0), r: (10, 0)}, _ring(names),
                       ticks=[{"of": [p, q], "n": 1}, {"of": [p, r], "n": 1}],
                       angles=[_angle(p, q, r, apex_label), _angle(q, p, r, base_label)])
    apex = 180 - 2 * base
    return _angle_twin(draws, one, (base, base + other_step), _asked(mark, f"angle {q if apex_given else p}"),
                       lambda value: value if apex_given else 180 - 2 * value,
                       (apex, 180 - apex, apex // 2, 180 - base, 90 - apex // 2, 2 * base))


def _equal_sides(draws: Draws) -> Twin:
    p, q, r = names = "".join(draws.choice(_NAMES))
    n, lean = draws.choice((1, 2)), draws.choice((*range(44, 54), *range(67, 75)))
    kinds = draws.shuffled(("left", "right", "top"))[:2]
    corners = {"left": _ray(10, lean), "right": _ray(10, 180 - lean, (10, 0)), "top": _meet(lean, lean)}
    equal = {"left": ([p, q], [p, r]), "right": ([p, q], [q, r]), "top": ([p, r], [q, r])}

    def one(kind: str) -> Figure:
        return _figure({p: (0, 0), q: (10, 0), r: corners[kind]}, _ring(names),
                       ticks=[{"of": side, "n": n} for side in equal[kind]], area=[p, q, r])
    a, b = _place(draws, one(kinds[0]), one(kinds[1]))
    texts = {kind: " and ".join("".join(side) for side in sides) for kind, sides in equal.items()}
    return Twin(a, b, f"Which sides of triangle {names} are marked as equal?", texts[kinds[0]], texts[kinds[1]],
                (*texts.values(), f"{p}{q}, {p}{r} and {q}{r}"))


def _l_shape(draws: Draws, wants_area: bool) -> Twin:
    width, height = between(draws, 8, 15), between(draws, 7, 12)
    notch_width, notch_height = between(draws, 3, width - 3), between(draws, 3, height - 3)
    unit, sign = draws.choice(_UNITS), draws.choice((-1, 1))
    # An area changes with the notch, a perimeter only with the outer sides.
    other = (width, height, notch_width, notch_height + sign) if wants_area else (
        width + sign, height, notch_width, notch_height)
    if other[3] < 2 or other[3] > height - 2:
        raise Redraw("a thin arm")

    def one(sides: tuple[int, int, int, int]) -> Figure:
        w, h, nw, nh = sides
        corners = ((0, 0), (w, 0), (w, h - nh), (w - nw, h - nh), (w - nw, h), (0, h))
        points = {f"_{i}": corner for i, corner in enumerate(corners)}
        names = list(points)
        lengths = [{"of": ["_0", "_1"], "label": f"{w} {unit}"}, {"of": ["_5", "_0"], "label": f"{h} {unit}"}]
        if wants_area or draw_notch:
            lengths += [{"of": ["_2", "_3"], "label": f"{nw} {unit}", "away_from": "_0"},
                        {"of": ["_3", "_4"], "label": f"{nh} {unit}", "away_from": "_0"}]
        squares = [_angle(name, before, after, "", right=True) for before, name, after in zip(
            names[-1:] + names[:-1], names, names[1:] + names[:1]) if name != "_3"]      # its right angle lies outside
        return _figure(points, [[name, after] for name, after in zip(names, names[1:] + names[:1])], area=names,
                       lengths=lengths, angles=squares)
    draw_notch = bool(draws.below(2))
    both = ((width, height, notch_width, notch_height), other)
    a, b = _place(draws, one(both[0]), one(both[1]), (0, 0, 90, 180))
    if wants_area:
        right = [w * h - nw * nh for w, h, nw, nh in both]
        mistakes = [width * height, *(nw * nh for _, _, nw, nh in both), right[0] + width, right[1] - height]
        question, how, unit_of = "area", f"square {unit}", f" {unit}²"
    else:
        right = [2 * (w + h) for w, h, _, _ in both]
        mistakes = [r - 2 * notch_height for r in right] + [r + notch_width for r in right] + [sum(both[0])]
        question, how, unit_of = "perimeter", unit, f" {unit}"
    wrong = typical(draws, *mistakes) + near(draws, *right, step=2)
    return Twin(a, b, f"All corners of the shape are right angles. What is its {question}, in {how}?", str(right[0]),
                str(right[1]), wrong, "Give a whole number.", unit_of)


def _circle(draws: Draws) -> Twin:
    length, turn, unit = 2 * between(draws, 2, 9), between(draws, 5, 175), draws.choice(_UNITS)
    wants_area, moved = bool(draws.below(2)), bool(draws.below(2))
    whole = bool(draws.below(2))
    other = (length, not whole) if moved else (2 * other_than(draws, range(2, 10), length // 2), whole)

    def one(value: int, diameter: bool) -> Figure:
        # The letter O stands clockwise of the diameter, so the length goes to the other side.
        points = {"O": (0.0, 0.0), "A": _ray(5, turn), "_o": _ray(1, turn - 90)}
        points |= {"B": _ray(5, turn + 180)} if diameter else {}
        segment = ["B" if diameter else "O", "A"]
        return _figure(points, [segment], dots=["O"], circles=[{"center": "O", "radius": 5, "filled": True}],
                       lengths=[{"of": segment, "label": f"{value} {unit}", "away_from": "_o"}])
    a, b = _place(draws, one(length, whole), one(*other), (0,), (1,))

    def answer(value: int, diameter: bool) -> str:
        radius = value // 2 if diameter else value
        return f"{radius * radius if wants_area else 2 * radius}π {unit}{'²' if wants_area else ''}"
    power = "²" if wants_area else ""
    wrong = tuple(f"{number}π {unit}{power}" for value in (length, other[0]) for number in draws.shuffled(
        [value, 2 * value, value // 2, value * value, value * value // 4, 4 * value]))
    question = f"O is the center of the circle. What is its {'area' if wants_area else 'circumference'}?"
    return Twin(a, b, question, answer(length, whole), answer(*other), wrong)


FORMS: dict[str, Form] = {
    "angle sum": _angle_sum, "exterior angle": _exterior_angle, "parallel lines": _parallel_lines,
    "right triangle": _right_triangle, "angles on a line": _angles_on_a_line, "inscribed angle": _inscribed_angle,
    "isosceles triangle": _isosceles, "equal sides": _equal_sides,
    "area of an L": lambda draws: _l_shape(draws, True), "perimeter of an L": lambda draws: _l_shape(draws, False),
    "circle": _circle,
}
