"""Counting scenes of procedural figures: shapes among others, dice and clocks, one of them changed.

    twin = FORMS["color and shape"](Draws("an example"))
    paint(twin.a).pixels(), twin.question, twin.answer_a

The scenes in which what is seen must be counted or read off (VisualSwap, Sec. 3).  The twin has one shape more or less,
or one with another color, shape, pattern, size or place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rekey.draws import Draws
from rekey.figure_canvas import draw_style
from rekey.figure_forms import Form, Redraw, Twin, between, near, need, other_than
from rekey.figure_scene_painting import REACH, SHAPES, Scene, paint

__all__ = ["FORMS", "paint"]

SIZES = ((480, 400), (512, 448), (448, 448), (560, 440), (600, 420))
PALETTES = (
    {"red": "#d62728", "blue": "#1f5fbf", "green": "#2b9348", "orange": "#f58220", "purple": "#7d3fa8",
     "black": "#222222"},
    {"red": "#b92e34", "blue": "#3778c2", "green": "#1f7a4d", "yellow": "#f2c230", "pink": "#ec7fb0",
     "gray": "#7f8790"},
    {"red": "#e63946", "blue": "#2a6fdb", "green": "#43a047", "brown": "#7b4a2b", "yellow": "#f4c20d",
     "purple": "#6a3d9a"},
)
PATTERNS = ("plain", "striped", "dotted", "hollow")
_PLURALS = {"cross": "crosses"}
_WHOLE = "Give a whole number."
_GAP_PX = 9                   # between two shapes, or a shape and an edge
_ANGLES = (0, 0, 0, 10, -10, 18, -18)          # a square turned further would pass for a diamond
_FEWEST, _MOST = 2, 8         # of what is counted
Item = dict[str, Any]


def _plural(shape: str) -> str:
    return _PLURALS.get(shape, f"{shape}s")


def _scene(draws: Draws, **parts: Any) -> Scene:
    # On dark ground the dark colors would be hard to tell apart.
    style = draw_style(draws, SIZES, dark=False)
    return {**style, "scene": "shapes", "objects": [], "frame": None, "rows": [], **parts}


class _Scatter:
    """Places for shapes in a scene, clear of each other."""

    def __init__(self, draws: Draws, scene: Scene):
        self.draws, self.scene = draws, scene
        self.taken: list[tuple[float, float, float]] = []

    def place(self, radius: float, inside: bool | None = None) -> dict[str, float]:
        """A free place; inside or outside of the scene's frame where that is given.  Raises Redraw if none is found."""
        reach = radius * REACH + _GAP_PX
        for _ in range(120):
            x = between(self.draws, round(reach), round(self.scene["width"] - reach))
            y = between(self.draws, round(reach), round(self.scene["height"] - reach))
            if inside is not None and inside != self._side(x, y, reach):
                continue
            if all((x - px) ** 2 + (y - py) ** 2 >= (reach + pr) ** 2 for px, py, pr in self.taken):
                self.taken.append((x, y, radius * REACH))
                return {"x": x, "y": y, "radius": radius, "angle": self.draws.choice(_ANGLES)}
        raise Redraw("no room")

    def _side(self, x: float, y: float, reach: float) -> bool | None:
        """Whether a shape lies inside the frame; None where it touches it."""
        left, top, right, bottom = self.scene["frame"]
        if left + reach <= x <= right - reach and top + reach <= y <= bottom - reach:
            return True
        if x + reach <= left or x - reach >= right or y + reach <= top or y - reach >= bottom:
            return False
        return None


def _item(shape: str, color: str, palette: dict[str, str], place: dict[str, float], pattern: str = "plain") -> Item:
    return {"shape": shape, "color": color, "rgb": palette[color], "pattern": pattern, **place}


def _kinds(draws: Draws, n_shapes: int = 3, n_colors: int = 3) -> tuple[list[str], list[str], dict[str, str]]:
    """Some shapes, some colors, and the palette of the colors."""
    palette = draws.choice(PALETTES)
    unlike = draws.choice(("square", "diamond"))           # the two are too much alike for one scene
    shapes = draws.shuffled([shape for shape in SHAPES if shape != unlike])
    return shapes[:n_shapes], draws.shuffled(sorted(palette))[:n_colors], palette


def _radius(draws: Draws) -> int:
    return between(draws, 21, 27)


def _count_twin(draws: Draws, scene: Scene, objects: list[Item], change: Callable[[Item], Item | None],
                counted: Callable[[Item], bool], question: str) -> Twin:
    """A count that changes by one: some counted shape is changed so that it counts no more, or leaves."""
    n = sum(map(counted, objects))
    need(_FEWEST < n <= _MOST)
    chosen = draws.choice([i for i, item in enumerate(objects) if counted(item)])
    changed = change(objects[chosen])
    need(changed is None or not counted(changed))
    others = [item if i != chosen else changed for i, item in enumerate(objects)]
    # In a drawn order, so that what is counted is not always painted first.
    order = draws.shuffled(range(len(objects)))
    a = {**scene, "objects": [objects[i] for i in order]}
    b = {**scene, "objects": [others[i] for i in order if others[i] is not None]}
    return Twin(a, b, question, str(n), str(n - 1), near(draws, n, n - 1), _WHOLE)


def _plain_objects(draws: Draws, scene: Scene, shapes: list[str], colors: list[str], palette: dict[str, str],
                   n: int) -> list[Item]:
    scatter, radius = _Scatter(draws, scene), _radius(draws)
    return [_item(draws.choice(shapes), draws.choice(colors), palette, scatter.place(radius)) for _ in range(n)]


# ---------------------------------------------------------------------------------- forms

def _color_and_shape(draws: Draws) -> Twin:
    scene = _scene(draws)
    shapes, colors, palette = _kinds(draws)
    shape, color = shapes[0], colors[0]
    objects = _plain_objects(draws, scene, shapes, colors, palette, between(draws, 10, 16))
    for index in range(between(draws, 2, 5)):          # or those asked for would be few
        objects[index] = {**objects[index], "shape": shape, "color": color, "rgb": palette[color]}
    new_shape, new_color, what = other_than(draws, shapes, shape), other_than(draws, colors, color), draws.below(3)

    def change(item: Item) -> Item | None:
        return ({**item, "shape": new_shape}, {**item, "color": new_color, "rgb": palette[new_color]}, None)[what]
    return _count_twin(draws, scene, objects, change, lambda item: item["shape"] == shape and item["color"] == color,
                       f"How many {color} {_plural(shape)} are there?")


def _one_color(draws: Draws) -> Twin:
    scene = _scene(draws)
    shapes, colors, palette = _kinds(draws, 4, 4)
    objects = _plain_objects(draws, scene, shapes, colors, palette, between(draws, 12, 18))
    new_color = colors[1]
    return _count_twin(draws, scene, objects, lambda item: {**item, "color": new_color, "rgb": palette[new_color]},
                       lambda item: item["color"] == colors[0], f"How many {colors[0]} shapes are there?")


def _one_shape(draws: Draws) -> Twin:
    scene = _scene(draws)
    shapes, colors, palette = _kinds(draws, 4, 4)
    objects = _plain_objects(draws, scene, shapes, colors, palette, between(draws, 12, 18))
    return _count_twin(draws, scene, objects, lambda item: {**item, "shape": shapes[1]},
                       lambda item: item["shape"] == shapes[0], f"How many {_plural(shapes[0])} are there?")


def _pattern(draws: Draws) -> Twin:
    scene = _scene(draws)
    shapes, colors, palette = _kinds(draws)
    patterns = draws.shuffled(PATTERNS)
    scatter, radius = _Scatter(draws, scene), between(draws, 25, 29)
    objects = [_item(draws.choice(shapes), draws.choice(colors), palette, scatter.place(radius),
                     draws.choice(patterns[:3])) for _ in range(between(draws, 9, 13))]
    named = {"plain": "solid-colored", "hollow": "empty (outline only)"}.get(patterns[0], patterns[0])
    return _count_twin(draws, scene, objects, lambda item: {**item, "pattern": patterns[1]},
                       lambda item: item["pattern"] == patterns[0], f"How many {named} shapes are there?")


def _size(draws: Draws) -> Twin:
    scene = _scene(draws)
    shapes, colors, palette = _kinds(draws, 3, 4)
    scatter, sizes = _Scatter(draws, scene), {"large": between(draws, 29, 32), "small": between(draws, 13, 15)}
    wanted, other = draws.shuffled(sorted(sizes))
    objects = []
    for _ in range(between(draws, 9, 13)):
        place = scatter.place(sizes["large"])              # room for a large one, whatever it will be
        objects.append(_item(draws.choice(shapes), draws.choice(colors), palette,
                             {**place, "radius": sizes[draws.choice(sorted(sizes))]}))

    def counted(item: Item) -> bool:
        return item["shape"] == shapes[0] and item["radius"] == sizes[wanted]
    need(any(item["radius"] == sizes[other] for item in objects))
    return _count_twin(draws, scene, objects, lambda item: {**item, "radius": sizes[other]}, counted,
                       f"How many {wanted} {_plural(shapes[0])} are there?")


def _inside_frame(draws: Draws) -> Twin:
    scene = _scene(draws)
    width, height = scene["width"], scene["height"]
    left, top = between(draws, width // 8, width // 4), between(draws, height // 8, height // 5)
    scene["frame"] = [left, top, left + between(draws, width // 2, width * 5 // 8),
                      top + between(draws, height // 2, height * 5 // 8)]
    shapes, colors, palette = _kinds(draws)
    scatter, radius = _Scatter(draws, scene), between(draws, 16, 19)
    n_inside, n_outside = between(draws, 4, 8), between(draws, 3, 6)
    objects = [_item(draws.choice(shapes), draws.choice(colors), palette, scatter.place(radius, i < n_inside))
               for i in range(n_inside + n_outside)]
    outside = scatter.place(radius, False)
    wanted = draws.choice((None, shapes[0]))

    def counted(item: Item) -> bool:
        left, top, right, bottom = scene["frame"]
        return left < item["x"] < right and top < item["y"] < bottom and wanted in (None, item["shape"])
    return _count_twin(draws, scene, objects, lambda item: {**item, "x": outside["x"], "y": outside["y"]}, counted,
                       f"How many {_plural(wanted) if wanted else 'shapes'} are inside the dashed frame?")


def _most_frequent(draws: Draws) -> Twin:
    scene, by = _scene(draws), draws.choice(("shape", "color"))
    shapes, colors, palette = _kinds(draws, 4, 4)
    names = shapes if by == "shape" else colors
    top = between(draws, 4, 5)
    counts = dict(zip(names, (top, top - 1, between(draws, 2, top - 2), between(draws, 2, top - 2))))
    scatter, radius = _Scatter(draws, scene), _radius(draws)
    objects = [_item(name if by == "shape" else draws.choice(shapes), name if by == "color" else draws.choice(colors),
                     palette, scatter.place(radius)) for name, n in counts.items() for _ in range(n)]
    order = draws.shuffled(range(len(objects)))
    # One of the most frequent becomes one of the second most frequent.
    changed = {**objects[0], "shape": names[1]} if by == "shape" else {
        **objects[0], "color": names[1], "rgb": palette[names[1]]}
    a, b = ({**scene, "objects": [items[i] for i in order]} for items in (objects, [changed, *objects[1:]]))
    return Twin(a, b, f"Which {by} occurs most often?", names[0], names[1], tuple(draws.shuffled(names[2:])))


def _difference(draws: Draws) -> Twin:
    scene = _scene(draws)
    shapes, colors, palette = _kinds(draws, 3, 3)
    objects = _plain_objects(draws, scene, shapes, colors, palette, between(draws, 10, 16))
    counts = Counter(item["color"] for item in objects)
    more, less, third = colors
    n = counts[more] - counts[less]
    need(n >= 2 and counts[less] and counts[third])
    index = next(i for i, item in enumerate(objects) if item["color"] == more)
    changed = {**objects[index], "color": third, "rgb": palette[third]}
    others = [changed if i == index else item for i, item in enumerate(objects)]
    return Twin({**scene, "objects": objects}, {**scene, "objects": others},
                f"How many more {more} shapes than {less} shapes are there?", str(n), str(n - 1),
                near(draws, n, n - 1, lowest=1), _WHOLE)


def _fullest_row(draws: Draws) -> Twin:
    scene = _scene(draws)
    shapes, colors, palette = _kinds(draws, 3, 4)
    n_rows, n_columns, left = 4, between(draws, 6, 7), 96
    step, pitch = (scene["width"] - left - 24) / n_columns, (scene["height"] - 24) / n_rows
    radius = round(min(step, pitch) * 0.32)
    scene["rows"] = [{"text": f"Row {row + 1}", "x": 22, "y": round(12 + pitch * (row + 0.5), 1),
                      "line_y": round(12 + pitch * row, 1) if row else 0} for row in range(n_rows)]
    top = between(draws, 4, n_columns - 1)
    first, second, *rest = draws.shuffled(range(n_rows))
    counts = {first: top, second: top - 1} | {row: between(draws, 1, top - 2) for row in rest}
    columns = {row: draws.shuffled(range(n_columns))[:counts[row]] for row in range(n_rows)}
    need(bool(set(columns[first]) - set(columns[second])))
    moving = min(set(columns[first]) - set(columns[second]))
    objects, others = [], []
    for row in range(n_rows):
        for column in sorted(columns[row]):
            place = {"x": round(left + step * (column + 0.5), 1), "y": scene["rows"][row]["y"], "radius": radius,
                     "angle": 0}
            objects.append(_item(draws.choice(shapes), draws.choice(colors), palette, place))
            moves = row == first and column == moving
            others.append({**objects[-1], "y": scene["rows"][second]["y"]} if moves else objects[-1])
    right = [f"Row {row + 1}" for row in (first, second)]
    return Twin({**scene, "objects": objects}, {**scene, "objects": others}, "Which row has the most shapes?", *right,
                tuple(f"Row {row + 1}" for row in rest))


def _dice(draws: Draws) -> Twin:
    scene = _scene(draws, scene="dice")
    scene["die"], scene["pip"] = draws.choice((("#ffffff", "#1a1a1a"), ("#c0272d", "#ffffff"), ("#1f5fbf", "#ffffff"),
                                               ("#fbf3d5", "#7b2d1b"), ("#2b2b2b", "#f5f5f5")))
    n, side = between(draws, 3, 5), between(draws, 74, 88)
    scatter = _Scatter(draws, scene)
    dice = []
    for _ in range(n):
        place = scatter.place(side * 0.6)
        dice.append({"x": place["x"], "y": place["y"], "side": side, "angle": between(draws, -40, 40),
                     "pips": between(draws, 1, 6)})
    index = draws.below(n)
    other = other_than(draws, range(1, 7), dice[index]["pips"])
    changed = [{**die, "pips": other} if i == index else die for i, die in enumerate(dice)]
    right = [sum(die["pips"] for die in both) for both in (dice, changed)]
    return Twin({**scene, "dice": dice}, {**scene, "dice": changed}, "What is the total number of pips on the dice?",
                str(right[0]), str(right[1]), near(draws, *right, lowest=3), _WHOLE)


def _clock(draws: Draws) -> Twin:
    scene = _scene(draws, scene="clock", number_every=draws.choice((1, 1, 3)))
    scene |= {"x": scene["width"] // 2, "y": scene["height"] // 2, "radius": scene["height"] // 2 - 28}
    hour, minute = between(draws, 1, 12), 5 * draws.below(12)
    if draws.below(2):
        times = (hour, minute), (hour % 12 + 1, minute)
    else:
        times = (hour, minute), (hour, (minute + 5 * draws.choice((1, 2, 3))) % 60)

    # Hands that lie on each other are hard to read.
    need(all(abs((h % 12 * 30 - m * 5.5 + 180) % 360 - 180) > 14 for h, m in times))

    def text(hour: int, minute: int) -> str:
        return f"{hour}:{minute:02d}"

    def hands(hour: int, minute: int) -> Scene:
        return {**scene, "hour_hand": hour % 12 * 30 + minute / 2, "minute_hand": minute * 6}
    before = (hour + 10) % 12 + 1
    mixed_up = (minute // 5 or 12, hour % 12 * 5)           # the hands taken for each other
    mistakes = [text(before, minute), text(hour, (minute + 30) % 60), text(*mixed_up), text(hour, (minute + 5) % 60)]
    return Twin(hands(*times[0]), hands(*times[1]), "What time does the clock show?", text(*times[0]), text(*times[1]),
                tuple(draws.shuffled(mistakes)))


FORMS: dict[str, Form] = {
    "color and shape": _color_and_shape, "one color": _one_color, "one shape": _one_shape, "pattern": _pattern,
    "size": _size, "inside a frame": _inside_frame, "most frequent": _most_frequent,
    "difference of counts": _difference, "fullest row": _fullest_row, "dice": _dice, "clock": _clock,
}
