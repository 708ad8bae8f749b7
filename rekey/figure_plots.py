"""Function plots of procedural figures: a curve on a labelled grid, one coefficient or corner changed.

    twin = FORMS["vertex"](Draws("an example"))
    paint(twin.a).pixels(), twin.question, twin.answer_a

The function plots that the paper takes from MathVista (VisualSwap, Sec. 3).  What is asked for lies on grid points, so
that careful reading gives it exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rekey.draws import Draws
from rekey.figure_canvas import draw_style
from rekey.figure_forms import Form, Twin, between, near, need, other_than, typical
from rekey.figure_plot_painting import Plot, free_numbers, paint, picture_size

__all__ = ["FORMS", "paint"]

Curve = dict[str, Any]
_INTEGER = "Give an integer."
_SLOPES = (-3, -2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2, 3)
_SECOND_COLORS = ("#2f6fb3", "#2e8b57", "#e07b00", "#8e44ad")


def _plane(draws: Draws, half_width: tuple[int, int] = (5, 8), half_height: tuple[int, int] = (5, 7)) -> Plot:
    """An empty grid; its reach in both directions is drawn from the two ranges."""
    x, y = between(draws, *half_width), between(draws, *half_height)
    # The picture's size follows from the grid, whose sides are from 300 to 580 pixels long.
    unit = draws.choice([unit for unit in range(24, 45, 2) if unit * min(x, y) >= 150 and unit * max(x, y) <= 290])
    label_every = draws.choice((1, 1, 2)) if unit >= 28 else 2
    plot: Plot = {**draw_style(draws, [(0, 0)]), "x": [-x, x], "y": [-y, y], "unit_px": unit, "curves": [],
                  "dots": [], "axes": draws.choice(("cross", "cross", "frame")), "label_every": label_every}
    plot["width"], plot["height"] = picture_size(plot)
    return plot


def _with(plot: Plot, *curves: Curve, dots: Iterable[Iterable[int]] = ()) -> Plot:
    colors = (plot["accent"], _SECOND_COLORS[plot["unit_px"] % len(_SECOND_COLORS)])
    return {**plot, "curves": [{**curve, "color": color} for curve, color in zip(curves, colors)],
            "dots": [list(dot) for dot in dots]}


def _parabola(a: float, h: int, k: int) -> Curve:
    return {"type": "polynomial", "coefficients": [a * h * h + k, -2 * a * h, a]}


def _line(slope: float, intercept: float) -> Curve:
    return {"type": "polynomial", "coefficients": [intercept, slope]}


def _inside(plot: Plot, x: float, y: float, margin: float = 1) -> bool:
    """Whether a point lies in the grid and not at its edge."""
    return (plot["x"][0] + margin <= x <= plot["x"][1] - margin
            and plot["y"][0] + margin <= y <= plot["y"][1] - margin)


def _pair(x: float, y: float) -> str:
    return f"({x:g}, {y:g})"


def _shifted(draws: Draws, plot: Plot, h: int, k: int) -> tuple[int, int]:
    """A grid point one or two steps beside another or above it."""
    step = draws.choice((-2, -1, 1, 2))
    h, k = (h + step, k) if draws.below(2) else (h, k + step)
    need(_inside(plot, h, k))
    return h, k


def _point_of(draws: Draws, plot: Plot) -> tuple[int, int]:
    return between(draws, plot["x"][0] + 2, plot["x"][1] - 2), between(draws, plot["y"][0] + 2, plot["y"][1] - 2)


# ---------------------------------------------------------------------------------- forms

def _vertex(draws: Draws) -> Twin:
    plot = _plane(draws)
    h, k = _point_of(draws, plot)
    other_h, other_k = _shifted(draws, plot, h, k)
    a = draws.choice((0.5, 1, 1, 2))
    a = -a if k > 0 else a               # it opens to where there is room
    mistakes = [_pair(x, y) for x, y in ((-h, k), (k, h), (h, -k), (-other_h, other_k), (other_k, other_h), (h, k + 1),
                                         (h - 1, k))]
    return Twin(_with(plot, _parabola(a, h, k)), _with(plot, _parabola(a, other_h, other_k)),
                "What are the coordinates of the vertex of the parabola?", _pair(h, k), _pair(other_h, other_k),
                tuple(draws.shuffled(mistakes)))


def _y_intercept(draws: Draws) -> Twin:
    plot = _plane(draws)
    c = between(draws, plot["y"][0] + 1, plot["y"][1] - 1)
    other = c + draws.choice((-2, -1, 1, 2))
    slope = draws.choice(_SLOPES)
    need(c != 0 and other != 0 and _inside(plot, 0, other))
    bend = draws.choice((0, 0, 0.5, -0.5))
    curves = [{"type": "polynomial", "coefficients": [start, slope, bend] if bend else [start, slope]}
              for start in (c, other)]
    wrong = draws.shuffled([str(number) for number in (-c, -other) if number not in (c, other)])
    return Twin(_with(plot, curves[0]), _with(plot, curves[1]), "At which value of y does the graph cross the y-axis?",
                str(c), str(other), (*wrong, *near(draws, c, other, lowest=-9)), _INTEGER)


def _slope(draws: Draws) -> Twin:
    plot = _plane(draws)
    slope, c = draws.choice(_SLOPES), between(draws, -3, 3)
    alike = [other for other in _SLOPES if other * slope > 0 and other != slope]
    other = draws.choice(sorted(alike, key=lambda other: abs(other - slope))[:2])
    dots = [[[0, c], [2, round(c + 2 * m)]] for m in (slope, other)]
    need(all(_inside(plot, *dot, margin=0) for both in dots for dot in both))
    shown = draws.below(2)
    mistakes = [f"{m:g}" for m in (-slope, 1 / slope, -other, 1 / other, slope + 1, other + 0.5, other - 0.5)
                if m and m * 2 == round(m * 2)]
    return Twin(_with(plot, _line(slope, c), dots=dots[0] if shown else ()),
                _with(plot, _line(other, c), dots=dots[1] if shown else ()), "What is the slope of the line?",
                f"{slope:g}", f"{other:g}", tuple(draws.shuffled(mistakes)), "Give a number with at most one decimal.")


def _zeros(draws: Draws) -> Twin:
    plot = _plane(draws, (7, 8), (6, 7))
    middle, sign = between(draws, -2, 2), draws.choice((1, -1))
    # The curve moves up or down across the axis and stays a whole unit clear of it before and after.
    if draws.below(2):
        a = draws.choice((0.5, 1)) * sign
        over, under = (_parabola(a, middle, sign * k) for k in (between(draws, 1, 2), -between(draws, 1, 2)))
        right = 0, 2
    else:
        # y = swing (u^3 - 3 u) / 2 with u = (x - middle) / 2 has its turns at a height of +-swing, two units away.
        swing, flip = draws.choice((2, 3)), draws.choice((1, -1))
        cubic = [swing * sign * c / 2 for c in (-(middle ** 3) / 8 + 1.5 * middle, 3 * middle ** 2 / 8 - 1.5,
                                                -3 * middle / 8, 1 / 8)]
        over, under = ({"type": "polynomial", "coefficients": [cubic[0] + flip * k, *cubic[1:]]}
                       for k in (swing + 1, swing - 1))
        right = 1, 3
    return Twin(_with(plot, over), _with(plot, under), "How many times does the curve shown cross the x-axis?",
                str(right[0]), str(right[1]), ("0", "1", "2", "3"), "Give a whole number.")


def _broken(draws: Draws, plot: Plot) -> list[list[int]]:
    """Corners of a line of straight pieces, at whole numbers."""
    gaps, x = [], plot["x"][0] + between(draws, 0, 1)
    while x <= plot["x"][1]:
        gaps.append([x, between(draws, plot["y"][0] + 1, plot["y"][1] - 1)])
        x += between(draws, 2, 3)
    return gaps


def _value_at(draws: Draws) -> Twin:
    plot = _plane(draws)
    corners = _broken(draws, plot)
    index = draws.below(len(corners))
    x, y = corners[index]
    other = y + draws.choice((-2, -1, 1, 2))
    need(_inside(plot, plot["x"][0] + 1, other) and x not in (y, other))
    moved = [*corners[:index], [x, other], *corners[index + 1:]]
    dotted = draws.below(2)
    wrong = [str(number) for number in (-y, -other, x) if number not in (y, other)]
    return Twin(_with(plot, {"type": "broken", "points": corners}, dots=corners if dotted else ()),
                _with(plot, {"type": "broken", "points": moved}, dots=moved if dotted else ()),
                f"The graph of the function f is shown. What is f({x})?", str(y), str(other),
                (*draws.shuffled(wrong), *near(draws, y, other, lowest=-9)), _INTEGER)


def _peak(draws: Draws) -> Twin:
    plot = _plane(draws)
    corners = _broken(draws, plot)
    highest = bool(draws.below(2))
    sign = 1 if highest else -1
    ranked = sorted(range(len(corners)), key=lambda i: sign * corners[i][1], reverse=True)
    first, second = ranked[:2]
    gap = sign * (corners[first][1] - corners[second][1])
    other = corners[first][1] + sign
    need(1 <= gap <= 2 and plot["y"][0] <= other <= plot["y"][1])
    moved = [*corners[:second], [corners[second][0], other], *corners[second + 1:]]
    dotted = draws.below(2)
    right = corners[first][0], corners[second][0]
    wrong = draws.shuffled([str(x) for x, _ in corners if x not in right])
    return Twin(_with(plot, {"type": "broken", "points": corners}, dots=corners if dotted else ()),
                _with(plot, {"type": "broken", "points": moved}, dots=moved if dotted else ()),
                f"At which x does the graph reach its {'highest' if highest else 'lowest'} point?", str(right[0]),
                str(right[1]), tuple(wrong), _INTEGER)


def _wave(draws: Draws) -> tuple[Plot, Curve]:
    plot = _plane(draws, (7, 8), (5, 6))
    period = draws.choice((4, 6, 8))
    return plot, {"type": "wave", "peak": between(draws, -2, 2), "period": period, "mean": between(draws, -1, 1),
                  "amplitude": between(draws, 1, 4)}


def _amplitude(draws: Draws) -> Twin:
    plot, wave = _wave(draws)
    amplitude, mean = wave["amplitude"], wave["mean"]
    other = amplitude + draws.choice((-1, 1))
    need(other >= 1 and max(amplitude, other) + abs(mean) < plot["y"][1])
    wrong = typical(draws, 2 * amplitude, 2 * other, amplitude + mean, other + mean) if draws.below(2) else ()
    wrong += near(draws, amplitude, other, lowest=1)
    return Twin(_with(plot, wave), _with(plot, {**wave, "amplitude": other}), "What is the amplitude of the wave?",
                str(amplitude), str(other), wrong, "Give a whole number.")


def _period(draws: Draws) -> Twin:
    plot, wave = _wave(draws)
    period = wave["period"]
    other = other_than(draws, [p for p in (3, 4, 5, 6, 7, 8) if abs(p - period) <= 2], period)
    need(wave["amplitude"] >= 2 and wave["amplitude"] + abs(wave["mean"]) < plot["y"][1])
    # Two peaks are in sight, both on grid lines.
    need(all(wave["peak"] - one > plot["x"][0] or wave["peak"] + one < plot["x"][1] for one in (period, other)))
    wrong = typical(draws, period // 2, other // 2, 2 * period, 2 * other) + near(draws, period, other, lowest=2)
    return Twin(_with(plot, wave), _with(plot, {**wave, "period": other}),
                "What is the period of the wave, in units of x?", str(period), str(other), wrong,
                "Give a whole number.")


def _crossing(draws: Draws) -> Twin:
    plot = _plane(draws)
    x, y = _point_of(draws, plot)
    kept, moved = draws.choice(_SLOPES), draws.choice(_SLOPES)
    need(abs(kept - moved) >= 1)
    other_x = x + draws.choice((-2, -1, 1, 2))
    other_y = y + kept * (other_x - x)
    need(other_y == round(other_y) and _inside(plot, other_x, other_y))
    fixed = _line(kept, y - kept * x)
    twins = [_with(plot, fixed, _line(moved, level - moved * at)) for at, level in ((x, y), (other_x, other_y))]
    if draws.below(2):
        wrong = [str(number) for number in (y, round(other_y)) if number not in (x, other_x)]
        return Twin(*twins, "What is the x-coordinate of the point where the two lines cross?", str(x), str(other_x),
                    (*draws.shuffled(wrong), *near(draws, x, other_x, lowest=-9)), _INTEGER)
    mistakes = [_pair(p, q) for p, q in ((y, x), (-x, y), (x, -y), (other_y, other_x), (x + 1, y), (other_x, y))]
    return Twin(*twins, "At which point do the two lines cross?", _pair(x, y), _pair(other_x, other_y),
                tuple(draws.shuffled(mistakes)))


def _signed(number: float, symbol: str = "") -> str:
    """A term to be added: " + 2x", " - x", or nothing for 0."""
    if not number:
        return ""
    size = "" if symbol and abs(number) == 1 else f"{abs(number):g}"
    return f" {'-' if number < 0 else '+'} {size}{symbol}"


def _factor(number: float) -> str:
    return {1: "", -1: "-"}.get(number, f"{number:g}")


def _equation(draws: Draws) -> Twin:
    plot = _plane(draws)
    shape = draws.choice(("line", "parabola", "absolute"))
    h, k = _point_of(draws, plot)
    a = draws.choice((0.5, 1, 2) if shape != "line" else (0.5, 1, 2, 3)) * draws.choice((1, -1))
    if shape == "line":
        h, other = 0, (0, k + draws.choice((-2, -1, 1, 2)))
        need(k and other[1] and _inside(plot, *other))
    else:
        a = abs(a) if k <= 0 else -abs(a)
        other = _shifted(draws, plot, h, k)
        need(h and k and all(other))

    def curve(h: int, k: int) -> Curve:
        return {"line": _line(a, k), "parabola": _parabola(a, h, k),
                "absolute": {"type": "absolute", "slope": a, "h": h, "k": k}}[shape]

    def text(a: float, h: int, k: int) -> str:
        if shape == "line":
            return f"y = {_factor(a)}x{_signed(k)}"
        inner = f"x{_signed(-h)}"
        return f"y = {_factor(a)}" + (f"({inner})²" if shape == "parabola" else f"|{inner}|") + _signed(k)
    mistakes = [text(*parts) for parts in ((-a, h, k), (a, -h, k), (a, h, -k), (a, -h, -k), (-a, *other),
                                           (a, -other[0], other[1]), (a, other[0], -other[1]))]
    return Twin(_with(plot, curve(h, k)), _with(plot, curve(*other)), "Which equation belongs to the graph?",
                text(a, h, k), text(a, *other), tuple(draws.shuffled(mistakes)))


def _monotone(draws: Draws) -> Twin:
    plot = _plane(draws)
    h, k = _point_of(draws, plot)
    other = h + draws.choice((-2, -1, 1, 2))
    a = draws.choice((0.5, 1)) * (-1 if k > 0 else 1)
    need(_inside(plot, other, k, 2))
    rising = bool(draws.below(2))
    sign, opposite = (">", "<") if (a > 0) == rising else ("<", ">")
    mistakes = [f"x {opposite} {h}", f"x {opposite} {other}", f"x {sign} {k}", f"x {sign} {h - 3}"]
    curves = [_parabola(a, h, k), _parabola(a, other, k)] if draws.below(2) else [
        {"type": "absolute", "slope": a, "h": x, "k": k} for x in (h, other)]
    return Twin(_with(plot, curves[0]), _with(plot, curves[1]),
                f"For which values of x is the function {'increasing' if rising else 'decreasing'}?", f"x {sign} {h}",
                f"x {sign} {other}", tuple(mistakes))


def _numbered(form: Form) -> Form:
    """The form, with the numbers beside the axes where the curves of neither figure run through them."""
    def numbered(draws: Draws) -> Twin:
        twin = form(draws)
        numbers = free_numbers((twin.a, twin.b))
        return replace(twin, a={**twin.a, "numbers": numbers}, b={**twin.b, "numbers": numbers})
    return numbered


FORMS: dict[str, Form] = {name: _numbered(form) for name, form in {
    "vertex": _vertex, "y-intercept": _y_intercept, "slope": _slope, "zeros": _zeros, "value at x": _value_at,
    "highest point": _peak, "amplitude": _amplitude, "period": _period, "crossing of lines": _crossing,
    "equation": _equation, "monotone interval": _monotone,
}.items()}
