"""Insert a drawn object into a photograph, without any weights (ReKey, Sec. 3.3, "add" slots).

The object is a small ray-marched solid in the wanted color that takes over the photo's exposure,
cast, tone range, sharpness and grain, and throws a shadow on what it stands on.

    canvas    = insert_object(request)              # uint8, changed only in and close around the box
    insertion = render_insertion(request)
    key_area  = insertion.key_mask.sum()            # pixels that show the key color

A failed certificate raises `request.attempt`, which makes the color plainer step by step: less
shade, cast, shadow and blur, exposure nearer to neutral, a larger object; from the third try on
labels and chrome take the key color, too, and a pattern lies flat in the picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from editors.render import Backdrop, Frame, Layers, fit, render
from editors.scene import (
    MAX_GRAIN,
    PhotoStatistics,
    Surroundings,
    edge_sigma,
    measure_surroundings,
    photo_statistics,
)
from editors.shading import LUMINANCE, PATTERNS, Finish, Lighting, to_linear, to_srgb
from editors.solids import Solid, find_solid
from editors.tracing import View
from rekey.colors import COLORS
from rekey.editing import EditRequest
from rekey.errors import InputError
from rekey.geometry import Box

MAX_PAD_PX, PAD_SHARE = 10, 0.12        # how far a shadow may leave the box
CAST_SHADOW, CONTACT_SHADOW = 0.42, 0.5     # deeper shadows would vote "black" in the color check
MAX_BLUR_PX = 1.3
FILL = (0.92, 0.95, 0.97, 0.98)         # of the box, by attempt
LAST_ATTEMPT = 3                        # plainer than this there is nothing
PLAINNESS = (0, 0, 1, 2)                # by attempt: labels and chrome, then tires take the key color, too
N_YAWS = 7
SKY_ABOVE, WATER_BELOW = 0.6, 0.3       # heights in the photo, 0 top to 1 bottom, that can be sky or water


@dataclass(frozen=True)
class ColorRecipe:
    """How a color name is painted so that it survives a photo's light.

    Found by search over albedo, exposure and cast against the survey namer (see `rekey.colors`).
    """

    srgb: tuple[float, float, float]
    shade_exponent: float
    """Below 1 compresses shade: yellow and orange in shade are called brown, white gray."""
    darkest_exposure: float
    brightest_exposure: float
    cast_power: float
    """How far it follows the photo's cast; grays with a cast are no longer called gray."""
    tone_ceiling: float = 0.88
    """Least sRGB level that its brightest surfaces reach, however dull the photo is."""


RECIPES = {
    "red": ColorRecipe((0.80, 0.05, 0.10), 0.65, 0.80, 1.10, 0.70),
    "blue": ColorRecipe((0.14, 0.34, 0.85), 0.90, 0.65, 1.10, 0.70),
    "yellow": ColorRecipe((1.00, 0.90, 0.10), 0.40, 0.92, 1.05, 0.50, 0.92),
    "green": ColorRecipe((0.10, 0.55, 0.20), 0.90, 0.65, 1.10, 0.70),
    "black": ColorRecipe((0.055, 0.055, 0.057), 1.00, 0.50, 0.90, 0.30),
    "white": ColorRecipe((1.00, 1.00, 1.00), 0.28, 0.97, 1.10, 0.25, 0.95),
    "orange": ColorRecipe((1.00, 0.45, 0.05), 0.45, 0.88, 1.05, 0.50, 0.92),
    "purple": ColorRecipe((0.50, 0.20, 0.65), 0.80, 0.70, 1.10, 0.60),
    "pink": ColorRecipe((1.00, 0.55, 0.70), 0.50, 0.85, 1.05, 0.50),
    "brown": ColorRecipe((0.45, 0.25, 0.10), 0.80, 0.70, 1.00, 0.60),
    "gray": ColorRecipe((0.55, 0.55, 0.55), 0.75, 0.70, 1.00, 0.20),
}


@dataclass(frozen=True)
class Insertion:
    """The edited canvas, and where the object is in it; for benchmarks and pictures."""

    canvas: np.ndarray
    """uint8 (height, width, 3)"""
    alpha: np.ndarray
    """float32 (height, width): coverage by the object, shadow not included"""
    key_mask: np.ndarray
    """bool (height, width): pixels that mostly show the key color"""


def insert_object(request: EditRequest) -> np.ndarray:
    """The canvas, uint8 of the same shape, with the key's object in its box.

    Raises InputError where the noun, color or pattern is none that can be drawn.
    """
    return render_insertion(request).canvas


def render_insertion(request: EditRequest) -> Insertion:
    """As `insert_object`, with the object's coverage and key-colored pixels."""
    key, box, canvas = request.key, request.box, request.canvas
    where = f"{key.slot.image_id}/{key.slot.slot_id}"
    solid = find_solid(key.object)
    if solid is None:
        raise InputError(f"{where}: no drawing of {key.object!r}; use an editor with weights, "
                         "or drop this candidate")
    pattern = key.pattern or "plain"
    if pattern not in PATTERNS:
        raise InputError(f"{where}: pattern {pattern!r} is unknown; expected one of {', '.join(PATTERNS)}")
    pose_rng, color_rng, grain_rng = np.random.default_rng(request.seed).spawn(3)
    color = key.color or COLORS[color_rng.integers(len(COLORS))]
    if color not in RECIPES:
        raise InputError(f"{where}: color {color!r} is unknown; expected one of {', '.join(RECIPES)}")
    attempt = min(request.attempt, LAST_ATTEMPT)
    recipe = RECIPES[color]
    photo = photo_statistics(request.photo)
    around = measure_surroundings(canvas, box)

    pad = shadow_pad(box)
    frame = Frame(box.width, box.height, pad, FILL[attempt])
    solid, backdrop = choose_backdrop(solid, around, request)
    view = choose_view(solid, backdrop, frame, request, pose_rng)
    finish = Finish(tuple(to_linear(recipe.srgb).tolist()), recipe.shade_exponent * (1 - 0.2 * attempt),
                    pattern, flat_pattern=PLAINNESS[attempt] > 0, plainness=PLAINNESS[attempt],
                    one_tone=key.pattern is not None)
    layers = render(solid, view, frame, finish, Lighting(ground=_bounce(around)), backdrop)

    outer = box.grown(pad)
    inner = outer.clipped(canvas.shape[1], canvas.shape[0])
    crop = inner.moved(-outer.left, -outer.top).slices
    tile = canvas[inner.slices].astype(np.float32) / 255
    light_kept = _shadow(layers, around, pad, box, solid.shadow_scale, attempt)[crop]
    color_linear = _matched_light(layers, recipe, color, photo, around, attempt)[crop]
    alpha, key_coverage = layers.alpha[crop], layers.key[crop]

    background = to_linear(tile)
    color_linear, alpha = _matched_blur(background, color_linear, alpha, photo, around, attempt)
    mixed = to_srgb(background * light_kept[..., None] * (1 - alpha[..., None]) + color_linear)
    mixed += _matched_grain(mixed.shape, photo, around, grain_rng) * alpha[..., None]

    result = canvas.copy()
    result[inner.slices] = np.rint(np.clip(mixed, 0, 1) * 255).astype(np.uint8)
    full_alpha = np.zeros(canvas.shape[:2], np.float32)
    full_alpha[inner.slices] = alpha
    key_mask = np.zeros(canvas.shape[:2], bool)
    key_mask[inner.slices] = key_coverage > 0.5
    return Insertion(result, full_alpha, key_mask)


def shadow_pad(box: Box) -> int:
    """How many pixels around the box the insertion may change."""
    return min(MAX_PAD_PX, round(PAD_SHARE * min(box.width, box.height)))


# ------------------------------------------------------------------------------------ placement

def choose_backdrop(solid: Solid, around: Surroundings, request: EditRequest) -> tuple[Solid, Backdrop]:
    """The variant of the solid that belongs in this place, and what its shadow falls on.

    Wall and air objects say so themselves.  Over a smooth bluish strip in the lower part of a photo
    boats and ducks float (else they stand ashore); what an annotator put into plain sky throws no
    shadow, and a bird glides there.
    """
    if solid.placement == "wall":
        return solid, "wall"
    if solid.placement == "air":
        return solid, "none"
    depth = _depth_in_photo(request)
    if around.sky_behind and depth < SKY_ABOVE:
        return find_solid(solid.airborne) if solid.airborne else solid, "none"
    if around.water_below and depth > WATER_BELOW:
        if solid.afloat:
            return find_solid(solid.afloat), "water"
        if solid.waterline is not None:
            return solid, "water"
    return solid, "ground"


def _depth_in_photo(request: EditRequest) -> float:
    """Where the box's lower edge lies in the whole photograph: 0 top, 1 bottom."""
    window = request.photo.window
    scale = window.height / request.canvas.shape[0]
    return min(1.0, (window.top + request.box.bottom * scale) / request.photo.pixels.shape[0])


def choose_view(solid: Solid, backdrop: Backdrop, frame: Frame, request: EditRequest,
                rng: np.random.Generator) -> View:
    """A direction from the solid's range at which it fills the box well.

    The camera looks down more steeply the lower the box lies in the photo.  Among evenly spread
    yaws, one whose key-colored silhouette covers nearly the most of the box is drawn at random.
    """
    if solid.elevation is not None:
        elevation = float(solid.elevation)
    elif backdrop in ("ground", "water"):
        elevation = 8 + 20 * _depth_in_photo(request)
    else:                                   # only what is made to fly is seen from below
        elevation = -12.0 if solid.placement == "air" else 4.0
    mirrored = bool(rng.integers(2))
    low, high = solid.yaw
    yaws = np.linspace(low, high, N_YAWS) + (rng.random() - 0.5) * (high - low) / N_YAWS
    views = [View(float(np.clip(yaw, low, high)), elevation, mirrored) for yaw in yaws]
    waterline = solid.waterline if backdrop == "water" else None
    shares = np.array([fit(solid, view, frame, waterline).key_share for view in views])
    enough = 0.9 if request.attempt < 2 else 0.98
    return views[rng.choice(np.flatnonzero(shares >= enough * shares.max()))]


# ---------------------------------------------------------------------------- matching the photo

def _bounce(around: Surroundings) -> tuple[float, float, float]:
    """Color that the ground throws back: its hue, at a moderate strength."""
    ground = np.array(around.ground)
    brightest = ground.max()
    return tuple((ground / max(brightest, 0.02) * np.clip(brightest, 0.12, 0.45)).tolist())


def _matched_light(layers: Layers, recipe: ColorRecipe, color: str, photo: PhotoStatistics,
                   around: Surroundings, attempt: int) -> np.ndarray:
    """Premultiplied linear color under the photo's exposure, cast and tone range."""
    darkest, brightest = recipe.darkest_exposure, recipe.brightest_exposure
    if color == "black":
        brightest *= 1 - 0.12 * attempt
    else:
        darkest += (min(1.0, brightest) - darkest) * attempt / 3
    exposure = float(np.clip((around.bright / 0.5) ** 0.45, darkest, brightest))
    lit = layers.color * exposure * photo.cast_gains(recipe.cast_power * (1 - 0.33 * attempt))
    alpha = np.maximum(layers.alpha, 1e-3)[..., None]
    ceiling = max(photo.brightest, recipe.tone_ceiling)
    ceiling += (1 - ceiling) * attempt / LAST_ATTEMPT
    ranged = photo.darkest + (ceiling - photo.darkest) * to_srgb(lit / alpha)
    return to_linear(ranged) * layers.alpha[..., None]


def _shadow(layers: Layers, around: Surroundings, pad: int, box: Box, scale: float,
            attempt: int) -> np.ndarray:
    """Factor on the background's light, faded to 1 at the outer border."""
    kept = layers.light_kept(CAST_SHADOW * (1 - 0.28 * attempt) * scale * around.shadow_hardness,
                             CONTACT_SHADOW * (1 - 0.15 * attempt) * scale)
    height, width = kept.shape
    rows, columns = np.arange(height), np.arange(width)
    to_border = np.minimum(np.minimum(rows, rows[::-1])[:, None], np.minimum(columns, columns[::-1]))
    fade = np.clip(to_border / max(pad, 0.07 * min(height, width) + 1), 0, 1)
    kept = (1 - (1 - kept) * fade).astype(np.float32)
    return cv2.GaussianBlur(kept, (0, 0), max(0.6, 0.012 * box.height))


def _matched_blur(background: np.ndarray, color: np.ndarray, alpha: np.ndarray, photo: PhotoStatistics,
                  around: Surroundings, attempt: int) -> tuple[np.ndarray, np.ndarray]:
    """Object blurred as much as the photo is blurrier than a sharp composite, by one estimator."""
    wanted = around.edge_sigma_px or photo.edge_sigma_px
    raw = to_srgb(background * (1 - alpha[..., None]) + color) @ LUMINANCE
    inside = cv2.dilate((alpha > 0.5).astype(np.float32), np.ones((3, 3), np.uint8))
    present = edge_sigma(raw, inside)
    if not wanted or not present:
        return color, alpha
    # Blur mixes thin parts with what lies behind them, so it is given up with the attempts, too.
    sigma = min(np.sqrt(max(wanted ** 2 - present ** 2, 0)), MAX_BLUR_PX * (1 - attempt / LAST_ATTEMPT))
    if sigma < 0.25:
        return color, alpha
    return cv2.GaussianBlur(color, (0, 0), sigma), cv2.GaussianBlur(alpha, (0, 0), sigma)


def _matched_grain(shape: tuple[int, ...], photo: PhotoStatistics, around: Surroundings,
                   rng: np.random.Generator) -> np.ndarray:
    """Noise (height, width, 3) like the photo's, mostly in luma; never above its flattest blocks."""
    sigma = np.minimum(np.minimum(around.grain, 1.3 * np.array(photo.grain)), MAX_GRAIN)
    white = rng.standard_normal(shape, dtype=np.float32)
    noise = 0.75 * np.sqrt(3) * white.mean(2, keepdims=True) + 0.5 * white
    noise = cv2.GaussianBlur(noise, (0, 0), 0.5)
    return (noise / (noise.std() + 1e-9) * sigma).astype(np.float32)
