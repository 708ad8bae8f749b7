"""Give an object another color, or a two-tone pattern, with its shading kept (ReKey, Sec. 3.3).

    out = recolor_object(request)        # uint8 canvas; request.key.color is painted
    out = paint_pattern(request)         # request.key.pattern is painted

A surface lit by s times the light has its CIELAB (a, b) scaled like L + 16, so a color is a hue, a
chroma at a reference lightness, and a band of lightness in which people still use the name.  The
object's median lightness is moved into the band, its shading is squeezed to fit, and its chroma
follows the new lightness.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from editors.segment import refine_alpha, segment_object
from rekey import colors
from rekey.editing import EditRequest
from rekey.geometry import Box
from rekey.references import parse_reference


@dataclass(frozen=True)
class _Paint:
    """A pool color as a person expects it on an object in a photograph (CIELAB, D65)."""

    lightness: float            # of the middle of the object
    darkest: float              # where its 5th and 95th percentile may lie
    lightest: float
    a: float                    # at `lightness`
    b: float


_PAINTS = {
    "red": _Paint(43, 24, 58, 63, 43), "blue": _Paint(38, 18, 58, 17, -58),
    "yellow": _Paint(84, 66, 94, 2, 74), "green": _Paint(47, 25, 66, -46, 36),
    "black": _Paint(10, 3, 24, 0, 0), "white": _Paint(91, 74, 97, 0, 1),
    "orange": _Paint(66, 54, 78, 38, 66), "purple": _Paint(36, 19, 58, 46, -48),
    "pink": _Paint(73, 62, 86, 40, -4), "brown": _Paint(33, 20, 45, 17, 27),
    "gray": _Paint(54, 36, 72, 0, 0),
}
_KEPT_TEXTURE, _NEUTRAL_KEPT_TEXTURE = 0.2, 0.1     # of the old chroma's variation
_MAX_TEXTURE = 12.0
_MAX_ATTEMPT = 4
# By attempt.  A first failure is either too little form or too little color: one try with deeper
# shading, then ever plainer.
_PLAINNESS = (0.0, 0.0, 0.4, 0.7, 1.0)
_MORE_FORM = 6.0                # lower bound of lightness moved down in the second try


def recolor_object(request: EditRequest) -> np.ndarray:
    """The canvas with the boxed object in `request.key.color`.

    uint8 (height, width, 3) like the canvas; untouched beyond a few pixels around the box.  Higher
    attempts take in more of the box and move closer to the plain color.
    """
    area = _Area.of(request)
    painted = _painted(area, _PAINTS[request.key.color], request.attempt)
    return area.blended(painted, 1.0)


def paint_pattern(request: EditRequest) -> np.ndarray:
    """The canvas with the boxed object striped, dotted, checked, or without any pattern (plain).

    The base is `request.key.color`, or the object's own color where that is None; the second tone is
    white, or black on a light base.
    """
    key = request.key
    area = _Area.of(request, solid=True)
    if key.pattern == "plain":
        return area.blended(_plain(area, key.color, request.attempt), 1.0)
    if key.color is not None:
        paint = _PAINTS[key.color]
        base = _painted(area, paint, request.attempt)
    else:
        # On the object as it is; where that was unreadable (print, folds), on its own plain color.
        paint = _own_paint(area)
        base = area.lab if request.attempt == 0 else _painted(area, paint, request.attempt)
    second = _painted(area, _PAINTS["white" if paint.lightness < 62 else "black"], request.attempt)
    elements = _elements(key.pattern, area, np.random.default_rng(request.seed), request.attempt)
    mixed = base + (second - base) * elements[..., None]
    keeps_pixels = key.color is None and request.attempt == 0
    return area.blended(mixed, elements if keeps_pixels else 1.0)


@dataclass(frozen=True)
class _Area:
    """The part of the canvas that an edit works on, with the object's mask in it."""

    canvas: np.ndarray
    window: Box
    box: Box                    # in the window
    alpha: np.ndarray           # float32 (h, w)
    object_rgb: np.ndarray      # uint8 (h, w, 3), unmixed from the background
    lab: np.ndarray             # float32 (h, w, 3) of object_rgb
    core: np.ndarray            # bool (h, w): surely the object

    @staticmethod
    def of(request: EditRequest, solid: bool = False) -> _Area:
        height, width = request.canvas.shape[:2]
        box = request.box.clipped(width, height)
        hint = parse_reference(request.key.object).colors
        mask = segment_object(request.canvas, box, hint, min(request.attempt, _MAX_ATTEMPT), solid)
        window = box.grown(24).clipped(width, height)
        inner = box.moved(-window.left, -window.top)
        crop = request.canvas[window.slices]
        alpha, object_rgb = refine_alpha(crop, mask[window.slices], inner)
        core = alpha > 0.8
        if core.sum() < 12:
            core = alpha >= np.percentile(alpha[inner.slices], 90)
        lab = colors.to_lab(object_rgb)
        return _Area(request.canvas, window, inner, alpha, object_rgb, lab, core)

    def blended(self, lab: np.ndarray, share: float | np.ndarray) -> np.ndarray:
        """The canvas with the object's color replaced by `lab`; alpha and share weigh the change."""
        # The background's part of a rim pixel stays; only the object's part changes.
        change = np.clip(cv2.cvtColor(lab.astype(np.float32, copy=False), cv2.COLOR_LAB2RGB), 0, 1)
        change *= 255
        change -= self.object_rgb
        change *= (self.alpha * np.asarray(share, np.float32))[..., None]
        change += self.canvas[self.window.slices]
        change += 0.5
        out = self.canvas.copy()
        out[self.window.slices] = np.clip(change, 0, 255, out=change).astype(np.uint8)
        return out


def _own_paint(area: _Area, colorful: bool = False) -> _Paint:
    """The object's own color as a paint; colorful: that of its more colorful half (red of red-and-white)."""
    pixels = area.lab[area.core]
    if colorful:
        chroma = np.hypot(pixels[:, 1], pixels[:, 2])
        pixels = pixels[chroma >= np.percentile(chroma, 60)]
    lightness, a, b = (float(v) for v in np.median(pixels, axis=0))
    return _Paint(lightness, max(2.0, lightness - 18), min(98.0, lightness + 14), a, b)


def _plain(area: _Area, color: str | None, attempt: int) -> np.ndarray:
    """Lab of the area in one color, its old pattern wiped out and only broad shading kept."""
    paint = _own_paint(area, colorful=True) if color is None else _PAINTS[color]
    painted = _painted(area, paint, attempt)
    inside = area.core.astype(np.float32)
    sigma = max(3.0, 0.2 * np.sqrt(area.core.sum()))
    lightness = cv2.GaussianBlur(painted[..., 0] * inside, (0, 0), sigma)
    lightness /= cv2.GaussianBlur(inside, (0, 0), sigma) + 1e-6
    detail = np.clip(painted[..., 0] - lightness, -2, 2)             # weave and noise stay, stripes go
    chroma = np.broadcast_to(np.float32([paint.a, paint.b]), painted[..., 1:].shape)
    return np.dstack([np.clip(lightness + detail, 0, 100), chroma]).astype(np.float32)


def _painted(area: _Area, paint: _Paint, attempt: int) -> np.ndarray:
    """Lab of the area as if the object's surface had the color: float32 (h, w, 3)."""
    strength = _PLAINNESS[min(attempt, _MAX_ATTEMPT)]
    darkest = paint.darkest - (_MORE_FORM if attempt == 1 else 0)
    lightness = area.lab[..., 0]
    low, middle, high = (float(v) for v in np.percentile(lightness[area.core], (5, 50, 95)))
    goal = _goal_lightness(paint, middle, strength)
    # Squeeze shading into the band of the name; later attempts flatten it further.
    squeeze = 1 - 0.4 * strength
    below = _gain(middle - low, goal - darkest) * squeeze
    above = _gain(high - middle, paint.lightest - goal) * squeeze
    offset = lightness - middle
    new_lightness = goal + np.where(offset < 0, _soft(offset * below, goal - darkest),
                                    _soft(offset * above, paint.lightest - goal))
    chroma_scale = (new_lightness + 16) / (paint.lightness + 16)
    over = np.clip((new_lightness - paint.lightest) / max(1.0, 100 - paint.lightest), 0, 1)
    chroma_scale = np.clip(np.minimum(chroma_scale, 1.15) * (1 - 0.7 * over), 0.45, 1.15)
    ab = area.lab[..., 1:]
    texture = ab - np.median(ab[area.core], axis=0)
    is_neutral = np.hypot(paint.a, paint.b) < 5
    kept = (_NEUTRAL_KEPT_TEXTURE if is_neutral else _KEPT_TEXTURE) * (1 - strength)
    texture = np.clip(kept * texture, -_MAX_TEXTURE, _MAX_TEXTURE)
    new_ab = np.array((paint.a, paint.b), np.float32) * chroma_scale[..., None] + texture
    out = np.dstack([np.clip(new_lightness, 0, 100), new_ab]).astype(np.float32, copy=False)
    shine = _highlights(area, middle) * (1 - 0.5 * strength)
    shows = shine > 0
    out[shows] += (area.lab[shows] - out[shows]) * shine[shows][:, None]
    return out


def _goal_lightness(paint: _Paint, middle: float, strength: float) -> float:
    """Where the middle of the object goes: near the name's own lightness, on the side it came from."""
    nearest = float(np.clip(middle, paint.darkest + 0.35 * (paint.lightness - paint.darkest),
                            paint.lightest - 0.35 * (paint.lightest - paint.lightness)))
    trust = 0.35 * (1 - strength)
    return paint.lightness + trust * (nearest - paint.lightness)


def _gain(spread: float, room: float) -> float:
    """How much of the old shading fits; a dark object's crushed shading is opened up a little."""
    return float(np.clip(room / max(spread, 1.0), 0.1, 1.25 if spread < 8 else 1.0))


def _soft(offset: np.ndarray, room: float) -> np.ndarray:
    """Offsets run linear up to the room and then level off, so that the tails keep some form."""
    room = max(room, 1.0)
    size = np.abs(offset)
    return np.sign(offset) * np.where(size <= room, size, room + 0.5 * room * np.tanh((size - room) / room))


def _highlights(area: _Area, middle: float) -> np.ndarray:
    """Weight of pixels that show the lamp and not the surface: bright, neutral and few."""
    lightness, chroma = area.lab[..., 0], np.hypot(area.lab[..., 1], area.lab[..., 2])
    shine = np.clip((lightness - max(middle + 28, 72)) / 10, 0, 1) * np.clip((16 - chroma) / 8, 0, 1)
    if (shine[area.core] > 0.5).mean() > 0.08:       # that is white paint, not a reflection
        return np.zeros_like(shine)
    return cv2.GaussianBlur(shine, (0, 0), 0.6)


# --------------------------------------------------------------------------- patterns

def _elements(pattern: str, area: _Area, rng: np.random.Generator, attempt: int) -> np.ndarray:
    """Where the second tone lies: float32 (h, w) in [0, 1], antialiased.  A few bold elements."""
    height, width = area.alpha.shape
    rows, columns = np.nonzero(area.core)
    extent = min(np.ptp(rows), np.ptp(columns)) + 1
    extent = max(12.0, min(extent, 1.5 * np.sqrt(area.core.sum())))
    y, x = np.mgrid[:height, :width].astype(np.float32)
    y, x = y - np.float32(rows.mean()), x - np.float32(columns.mean())
    few = 1 - 0.04 * min(attempt, _MAX_ATTEMPT)          # bolder, so fewer, with every attempt
    if pattern == "striped":
        period = max(10.0, extent / (3.5 * few))
        angle = np.deg2rad(rng.choice((0, 45, 90, 135)) + rng.uniform(-8, 8))
        across = x * np.cos(angle) + y * np.sin(angle) + rng.uniform(0, period)
        wave = np.abs((across / period) % 1 - 0.5) * period       # 0 in the middle of a stripe
        return np.clip(0.5 + period / 4 - wave, 0, 1)
    angle = np.deg2rad(rng.uniform(-12, 12))
    u = x * np.cos(angle) + y * np.sin(angle)
    v = -x * np.sin(angle) + y * np.cos(angle)
    if pattern == "checked":
        cell = max(6.0, extent / (4.2 * few))
        edge = np.minimum(*(np.abs((t / cell + 0.5) % 1 - 0.5) for t in (u, v))) * cell
        second = (np.floor(u / cell) + np.floor(v / cell)) % 2 > 0
        return np.clip(0.5 + np.where(second, edge, -edge), 0, 1)
    if pattern == "dotted":
        period = max(11.0, extent / (3.2 * few))
        row = np.round(v / (period * 0.87))
        du = (u / period + 0.5 * (row % 2)) % 1 - 0.5
        distance = np.hypot(du * period, v - row * period * 0.87)
        return np.clip(0.5 + 0.30 * period - distance, 0, 1)
    raise ValueError(f"pattern {pattern!r}: expected striped, dotted or checked")
