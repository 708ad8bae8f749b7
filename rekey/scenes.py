"""Procedural cluttered scenes: pictures whose every detail is known, for demos, tests and the control models.

    scene  = draw_scene("demo", 7)                         # a pure function of its arguments
    pixels = render_scene(scene)                           # uint8 (384, 384, 3)
    image, item = scene_slots(scene, "scene_7"), ask(scene, "scene_7")

A scene holds a few colored shapes on a textured ground among short strokes.  Its slots have the form of human
annotations, so `rekey generate` renews a scene as it renews a photograph (ReKey, Sec. 3), and its questions
are spelled by the same function as those of renewed items.  Everything is whole numbers from `rekey.draws`, so
a seed gives the same picture on every machine.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from rekey.colors import COLORS
from rekey.draws import Draws
from rekey.geometry import MAX_MASK_MARGIN_PX, Box
from rekey.qa import Question, build_question
from rekey.records import ImageSlots, SamplingRecord, Slot, VisualKey
from rekey.sampling import asked_axis

SIDE_PX = 384
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross", "ring", "diamond", "moon", "bar", "arrow")
# ((red, green, blue), how far all three may move together, how far each alone).  The namer that certifies edits calls
# every one of these paints by its name.
PAINTS: dict[str, tuple[tuple[int, int, int], int, int]] = {
    "red": ((199, 29, 34), 10, 9), "blue": ((10, 86, 185), 10, 9), "yellow": ((247, 208, 57), 8, 5),
    "green": ((28, 129, 46), 10, 9), "black": ((27, 27, 27), 10, 3), "white": ((236, 236, 235), 10, 4),
    "orange": ((244, 130, 33), 8, 8), "purple": ((115, 55, 163), 10, 8), "pink": ((245, 151, 188), 8, 8),
    "brown": ((113, 66, 35), 8, 6), "gray": ((128, 128, 128), 14, 4),
}
ANGLES = (-12, -8, -4, 0, 0, 4, 8, 12)
EDIT_MARGIN_PX, CONTEXT_MARGIN_PX = 5, 40
MIN_GAP_PX = 12               # between the boxes of two objects
_GRID, _LEVELS, _WEIGHT_SUM = 5, 8, 64       # a ground is interpolated from 5 x 5 values, in eighths of a level
_GRAIN_TILE = 509             # its grain is cut from one tile
_SUPERSAMPLING = 4


@dataclass(frozen=True)
class SceneStyle:
    """What scenes are drawn like.  Ranges include both ends; sizes are pixels."""

    n_objects: tuple[int, int] = (3, 6)
    size_px: tuple[int, int] = (54, 80)
    n_strokes: tuple[int, int] = (2, 10)


EASY = SceneStyle()
HARD = SceneStyle(n_objects=(5, 7), size_px=(38, 54), n_strokes=(8, 16))


@dataclass(frozen=True)
class SceneObject:
    """One colored shape in a square box."""

    shape: str
    color: str
    rgb: tuple[int, int, int]
    left: int
    top: int
    size_px: int
    angle: int
    """Degrees, counterclockwise."""

    @property
    def box(self) -> Box:
        return Box(self.left, self.top, self.left + self.size_px, self.top + self.size_px)

    @property
    def name(self) -> str:
        """As an annotator would write it: "red square"."""
        return f"{self.color} {self.shape}"


@dataclass(frozen=True)
class Stroke:
    """A short line of clutter."""

    box: Box
    rgb: tuple[int, int, int]


@dataclass(frozen=True)
class Scene:
    """Everything that a picture shows, in the order of painting."""

    ground: tuple[int, ...]
    """`_GRID` x `_GRID` x 3 brightness values, in `_LEVELS`-ths of a gray level, then the corner of its grain."""
    strokes: tuple[Stroke, ...]
    objects: tuple[SceneObject, ...]

    def find(self, shape: str) -> SceneObject:
        return next(o for o in self.objects if o.shape == shape)


# --------------------------------------------------------------------------------- drawing lots

def draw_scene(*seed: str | int, style: SceneStyle = EASY) -> Scene:
    """The scene of a seed (any strings and integers); no shape comes twice in a scene."""
    draws = Draws("scene", *seed)
    gray = _LEVELS * _between(draws, 155, 195)
    tint = [_LEVELS * _bell(draws, 14) for _ in range(3)]
    ground = [gray + tint[channel] + _bell(draws, _LEVELS * 12) for _ in range(_GRID ** 2) for channel in range(3)]
    ground += [draws.below(_GRAIN_TILE - SIDE_PX), draws.below(_GRAIN_TILE - SIDE_PX)]
    strokes = tuple(_draw_stroke(draws) for _ in range(_between(draws, *style.n_strokes)))
    return Scene(tuple(ground), strokes, _draw_objects(draws, style))


def _between(draws: Draws, low: int, high: int) -> int:
    return low + draws.below(high - low + 1)


def _bell(draws: Draws, spread: int) -> int:
    """A number around zero, most often near it; `spread` is about two standard deviations."""
    return (_between(draws, -spread, spread) + _between(draws, -spread, spread)) * 3 // 5


def _draw_stroke(draws: Draws) -> Stroke:
    length, thickness = _between(draws, 8, 40), _between(draws, 3, 9)
    width, height = (length, thickness) if draws.below(2) else (thickness, length)
    left, top = draws.below(SIDE_PX - width), draws.below(SIDE_PX - height)
    rgb = (_between(draws, 60, 210),) * 3 if draws.uniform() < 0.6 else PAINTS[draws.choice(COLORS)][0]
    return Stroke(Box(left, top, left + width, top + height), rgb)


def _draw_objects(draws: Draws, style: SceneStyle) -> tuple[SceneObject, ...]:
    wanted = _between(draws, *style.n_objects)
    for _ in range(1000):               # from the start where one does not find a place
        placed: list[SceneObject] = []
        for shape in draws.shuffled(list(SHAPES))[:wanted]:
            for _ in range(60):
                size = _between(draws, *style.size_px)
                left, top = (_between(draws, EDIT_MARGIN_PX, SIDE_PX - EDIT_MARGIN_PX - size) for _ in range(2))
                box = Box(left, top, left + size, top + size).grown(MIN_GAP_PX)
                if not any(box.intersects(other.box) for other in placed):
                    color = draws.choice(COLORS)
                    placed.append(SceneObject(shape, color, draw_paint(draws, color), left, top, size,
                                              draws.choice(ANGLES)))
                    break
        if len(placed) == wanted:
            return tuple(placed)
    raise ValueError(f"{style}: {wanted} objects of that size do not fit into {SIDE_PX}x{SIDE_PX} pixels; "
                     "give fewer or smaller ones")


def draw_paint(draws: Draws, color: str) -> tuple[int, int, int]:
    """One of the paints that go by the name of `color`."""
    rgb, together, alone = PAINTS[color]
    shade = _between(draws, -together, together)
    return tuple(min(255, max(0, value + shade + _between(draws, -alone, alone))) for value in rgb)


def recolored(scene: Scene, shape: str, color: str, draws: Draws) -> Scene:
    """The same scene with one object in another color."""
    paint = draw_paint(draws, color)
    return dataclasses.replace(scene, objects=tuple(
        dataclasses.replace(o, color=color, rgb=paint) if o.shape == shape else o for o in scene.objects))


def erased(scene: Scene, shape: str) -> Scene:
    """The same scene without one object."""
    return dataclasses.replace(scene, objects=tuple(o for o in scene.objects if o.shape != shape))


def exchanged(scene: Scene, shape: str, other: str) -> Scene:
    """The same scene with two objects in each other's places."""
    first, second = scene.find(shape), scene.find(other)

    def at(moved: SceneObject, place: SceneObject) -> SceneObject:
        limit = SIDE_PX - EDIT_MARGIN_PX - moved.size_px
        left, top = (min(max(corner + (place.size_px - moved.size_px) // 2, EDIT_MARGIN_PX), limit)
                     for corner in (place.left, place.top))
        return dataclasses.replace(moved, left=left, top=top)

    moved = {shape: at(first, second), other: at(second, first)}
    return dataclasses.replace(scene, objects=tuple(moved.get(o.shape, o) for o in scene.objects))


# ----------------------------------------------------------------------------------- painting

def render_scene(scene: Scene) -> np.ndarray:
    """uint8 (SIDE_PX, SIDE_PX, 3)."""
    pixels = _painted_ground(scene.ground)
    for stroke in scene.strokes:
        pixels[stroke.box.slices] = stroke.rgb
    for o in scene.objects:
        region = pixels[o.box.slices]
        cover = _cover(o.shape, o.size_px, o.angle)                 # 0 to 255
        change = (np.array(o.rgb, np.int32) - region) * cover
        region += ((change + 127) // 255).astype(np.int16)
    return np.clip(pixels, 0, 255, out=pixels).astype(np.uint8)


def _painted_ground(ground: tuple[int, ...]) -> np.ndarray:
    """int16 (SIDE_PX, SIDE_PX, 3): smooth clouds with grain."""
    *values, down, right = ground
    weights = _smooth_weights()                                     # (SIDE_PX, _GRID)
    coarse = np.array(values, np.float32).reshape(_GRID, _GRID, 3)
    # Whole numbers below 2**24 throughout: float32 holds them exactly, in whatever order they are added.
    columns = np.einsum("xg,ygc->yxc", weights, coarse)             # (_GRID, SIDE_PX, 3)
    clouds = weights @ columns.reshape(_GRID, -1)                   # (SIDE_PX, SIDE_PX * 3)
    clouds *= 1 / (_LEVELS * _WEIGHT_SUM ** 2)                      # a power of two: exact again
    clouds = clouds.astype(np.int16).reshape(SIDE_PX, SIDE_PX, 3)
    clouds += _grain()[down:down + SIDE_PX, right:right + SIDE_PX]
    return clouds


@functools.cache
def _smooth_weights() -> np.ndarray:
    """(SIDE_PX, _GRID) cosine interpolation weights, as whole numbers of sum `_WEIGHT_SUM` a row."""
    at = (np.arange(SIDE_PX) + 0.5) * (_GRID - 1) / SIDE_PX
    cell = at.astype(int)
    share = np.rint((1 - np.cos(math.pi * (at - cell))) / 2 * _WEIGHT_SUM)
    weights = np.zeros((SIDE_PX, _GRID), np.float32)
    weights[np.arange(SIDE_PX), cell] = _WEIGHT_SUM - share
    weights[np.arange(SIDE_PX), cell + 1] = share
    return weights


@functools.cache
def _grain() -> np.ndarray:
    """int16 (_GRAIN_TILE, _GRAIN_TILE, 3): gray noise around zero, standard deviation about 4."""
    draws = Draws("grain of scenes")
    words = [draws.word() for _ in range(-(-_GRAIN_TILE ** 2 // 2))]
    parts = np.array(words, "<u8").view(np.uint8).reshape(-1, 4).astype(np.int16) % 8
    gray = (parts.sum(1) - 14)[:_GRAIN_TILE ** 2].reshape(_GRAIN_TILE, _GRAIN_TILE, 1)
    return np.repeat(gray, 3, 2).astype(np.int16)


@functools.lru_cache(maxsize=8192)
def _cover(shape: str, size_px: int, angle: int) -> np.ndarray:
    """int32 (size_px, size_px, 1): how much of each pixel the shape covers, 0 to 255."""
    n = size_px * _SUPERSAMPLING
    drawn = Image.new("L", (n, n), 0)
    brush = ImageDraw.Draw(drawn)
    for outline, fill in _outlines(shape):
        turned = [_turned(x, y, angle) for x, y in outline]
        brush.polygon([(n * (0.5 + x / 2), n * (0.5 + y / 2)) for x, y in turned], fill=fill)
    small = drawn.reduce(_SUPERSAMPLING)
    return np.asarray(small, np.int32)[..., None]


def _turned(x: float, y: float, angle: int) -> tuple[float, float]:
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return x * cos + y * sin, y * cos - x * sin


Outline = list[tuple[float, float]]


def _ellipse(x: float, y: float, radius: float) -> Outline:
    return [(x + radius * math.cos(t * math.pi / 36), y + radius * math.sin(t * math.pi / 36)) for t in range(72)]


@functools.cache
def _outlines(shape: str) -> list[tuple[Outline, int]]:
    """Polygons in [-1, 1], y down, painted one over the other: 255 covers, 0 clears."""
    if shape == "circle":
        return [(_ellipse(0, 0, 0.9), 255)]
    if shape == "square":
        return [([(-0.76, -0.76), (0.76, -0.76), (0.76, 0.76), (-0.76, 0.76)], 255)]
    if shape == "triangle":
        return [([(0, -0.92), (0.86, 0.6), (-0.86, 0.6)], 255)]
    if shape == "star":
        points = [(radius * math.sin(k * math.pi / 5), -radius * math.cos(k * math.pi / 5))
                  for k, radius in enumerate((0.97, 0.41) * 5)]
        return [(points, 255)]
    if shape == "heart":
        t = [k * math.pi / 30 for k in range(60)]
        return [([(0.9 * math.sin(a) ** 3, -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a)
                                             - math.cos(4 * a)) / 17.5) for a in t], 255)]
    if shape == "cross":
        return [([(-0.3, -0.88), (0.3, -0.88), (0.3, -0.3), (0.88, -0.3), (0.88, 0.3), (0.3, 0.3), (0.3, 0.88),
                  (-0.3, 0.88), (-0.3, 0.3), (-0.88, 0.3), (-0.88, -0.3), (-0.3, -0.3)], 255)]
    if shape == "ring":
        return [(_ellipse(0, 0, 0.95), 255), (_ellipse(0, 0, 0.4), 0)]
    if shape == "diamond":
        return [([(0, -0.97), (0.6, 0), (0, 0.97), (-0.6, 0)], 255)]
    if shape == "moon":
        return [(_ellipse(0, 0, 0.92), 255), (_ellipse(0.46, -0.26, 0.74), 0)]
    if shape == "bar":
        return [([(-0.94, -0.3), (0.94, -0.3), (0.94, 0.3), (-0.94, 0.3)], 255)]
    assert shape == "arrow", shape
    return [([(-0.95, -0.28), (0.1, -0.28), (0.1, -0.78), (0.95, 0), (0.1, 0.78), (0.1, 0.28), (-0.95, 0.28)], 255)]


# --------------------------------------------------------------------------- slots and questions

def scene_slots(scene: Scene, image_id: str, shapes: Sequence[str] | None = None,
                category: str | None = None) -> ImageSlots:
    """The scene's annotation: a `replace` slot for each object (or each of `shapes`), as a person would mark it."""
    chosen = [o for o in scene.objects if shapes is None or o.shape in shapes]
    whole = Box(0, 0, SIDE_PX, SIDE_PX)
    slots = []
    for number, o in enumerate(chosen, 1):
        edit = o.box.grown(EDIT_MARGIN_PX)
        context = edit.grown(CONTEXT_MARGIN_PX).clipped(SIDE_PX, SIDE_PX)
        assert whole.contains(edit), (image_id, o)
        slots.append(Slot(image_id, f"A{number}", "replace", context, edit, (o.name,)))
    return ImageSlots(image_id, tuple(slots), category, (SIDE_PX, SIDE_PX))


def ask_color(scene: Scene, image_id: str, shape: str, seed: int = 0) -> Question:
    """What color is the square?  Four options of the pool, in random order."""
    (slot,) = scene_slots(scene, image_id, [shape]).slots
    key = VisualKey(slot, "replace", slot.targets[0], scene.find(shape).color)
    return build_question(SamplingRecord(image_id, seed, "attribute", "color", (key,)))


def ask_position(scene: Scene, image_id: str, shape: str, other: str, seed: int = 0) -> Question:
    """Is the red square to the left or right of (or above or below) the blue circle?

    The axis is the one on which they are farther apart, as in renewed items.
    """
    slots = {slot.targets[0]: slot for slot in scene_slots(scene, image_id, [shape, other]).slots}
    pair = [scene.find(shape), scene.find(other)]
    keys = tuple(VisualKey(slots[o.name], "replace", o.name, o.color) for o in pair)
    assert asked_axis(keys[0].slot, keys[1].slot) is not None, (image_id, shape, other)
    return build_question(SamplingRecord(image_id, seed, "position", "color", keys))


@dataclass(frozen=True)
class AskedScene:
    """One original benchmark instance: a scene, its question, and the slots of what the question is about."""

    scene: Scene
    slots: ImageSlots
    question: Question
    asked: tuple[str, ...]
    """The one shape, or the two, that the question names."""


def asked_scene(image_id: str, *seed: str | int, kind: Literal["color", "position"],
                style: SceneStyle = EASY, relabel: bool = False) -> AskedScene:
    """The scene of a seed with a question of a kind, about objects that the seed draws as well.

    A position question is about two objects that can both be renewed: their edits must not touch.  relabel: another
    question of that kind on the same scene (ReKey, App. A).
    """
    for attempt in range(100):
        scene = draw_scene(*seed, *([attempt] if attempt else []), style=style)
        draws = Draws("asked", *seed, attempt)
        shapes = draws.shuffled([o.shape for o in scene.objects])
        if kind == "color":
            asked = (shapes[relabel],)
            question = ask_color(scene, image_id, *asked)
            break
        apart = [pair for pair in itertools.permutations(shapes, 2) if _edits_apart(*map(scene.find, pair))]
        if apart:
            other = [pair for pair in apart if {*pair} != {*apart[0]}]
            asked = other[0] if relabel and other else apart[0][::-1] if relabel else apart[0]
            question = ask_position(scene, image_id, *asked)
            break
    else:
        raise AssertionError(f"no position question in 100 scenes of seed {seed}")
    return AskedScene(scene, scene_slots(scene, image_id, asked, question.category), question, asked)


def _edits_apart(first: SceneObject, second: SceneObject) -> bool:
    margin = EDIT_MARGIN_PX + MAX_MASK_MARGIN_PX
    return not first.box.grown(margin).intersects(second.box.grown(margin))


# ------------------------------------------------------------------------------ a whole benchmark

POSITION_SHARE = 0.4          # as in V*Bench: 76 of 191


def scene_benchmark(n: int, seed: int, style: SceneStyle = EASY, relabel: bool = False) -> list[AskedScene]:
    """`n` scenes with one question each: color questions, and `POSITION_SHARE` about position, evenly spread.

    Scene k is the same whatever `n` is.  relabel: the same scenes with other questions of the same kinds.
    """
    def kind(k: int) -> Literal["color", "position"]:
        share = POSITION_SHARE
        return "position" if math.floor((k + 1) * share) > math.floor(k * share) else "color"
    return [asked_scene(f"scene_{seed}_{k:04d}", "benchmark", seed, k, kind=kind(k), style=style, relabel=relabel)
            for k in range(n)]
