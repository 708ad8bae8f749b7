"""Pictures of solids: signed distances ray-marched with numpy under an orthographic camera.

Drawn objects stand in for the paper's image editor in "add" slots (ReKey, Sec. 3.3) where no
weights are at hand.  Distances, soft shadows and ambient occlusion follow Inigo Quilez.

    frame  = Frame(width=64, height=60, pad=7)
    layers = render(find_solid("bucket"), View(-35, 15), frame, Finish((.6, .01, .01)), Lighting())
    result = background * layers.light_kept(.4, .5)[..., None] * (1 - layers.alpha[..., None]) + layers.color

World: x forward along the object, y up with the ground at 0, z toward the viewer at yaw 0; objects
are about one unit large.  Colors are linear light throughout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from editors.shading import Finish, Lighting, Surface, shade
from editors.tracing import Field, View, direct_light, march, occlusion, slab, surface_points

if TYPE_CHECKING:
    from editors.solids import Solid

MAX_RENDER_PX = 256         # a larger frame is drawn at this size and enlarged: time grows with area
SUBSAMPLES = 2              # per axis; 3 and 4 look the same once the photo's blur is matched
THIN_RADIUS_PX = 0.62       # tubes never get thinner than this, or their color would not survive
INTERREFLECTION = 0.25      # sky light that reaches even the deepest crease, by way of the object itself
HALF_SHADOW_FROM_PX = 110   # from this frame side on, ground shadows are drawn at half resolution

Backdrop = Literal["ground", "wall", "water", "none"]


@dataclass(frozen=True)
class Frame:
    """The box to fill, in pixels, and a margin around it that only a shadow may enter."""

    width: int
    height: int
    pad: int = 0
    fill: float = 0.92
    """Share of the box's width or height, whichever binds, that the silhouette takes."""


@dataclass(frozen=True)
class Layers:
    """What a compositor needs; float32 arrays of (height + 2 pad, width + 2 pad)."""

    color: np.ndarray
    """(..., 3): linear light, premultiplied by alpha; may exceed 1 in highlights."""
    alpha: np.ndarray
    key: np.ndarray
    """Coverage by surfaces that show the key color."""
    cast: np.ndarray
    """Direct light that still reaches the ground or wall behind; 1 where nothing is in the way."""
    contact: np.ndarray
    """Sky light that still reaches it; small where the object touches."""

    def light_kept(self, cast_strength: float, contact_strength: float) -> np.ndarray:
        """Factor on the background's linear light."""
        return (1 - cast_strength * (1 - self.cast)) * (1 - contact_strength * (1 - self.contact))


class Fit(NamedTuple):
    """How a view of a solid lies in a frame."""

    unit_px: float
    """Pixels per world unit."""
    center_u: float
    bottom_v: float
    top_v: float
    key_share: float
    """Estimated share of the box that the key-colored parts cover (hidden parts counted too)."""


def fit(solid: Solid, view: View, frame: Frame, waterline: float | None = None) -> Fit:
    """The largest size at which the silhouette stays within `frame.fill` of the box."""
    points = surface_points(solid, waterline)
    right, up, _ = view.axes
    u, v = right @ points.xyz, up @ points.xyz
    left, bottom, width, height = u.min(), v.min(), np.ptp(u), np.ptp(v)
    unit_px = frame.fill * min(frame.width / width, frame.height / height)
    cells = 24
    column = np.minimum(((u - left) / width * cells).astype(int), cells - 1)
    row = np.minimum(((v - bottom) / height * cells).astype(int), cells - 1)
    filled = len(np.unique((row * cells + column)[points.is_key])) / cells ** 2
    share = filled * width * height * unit_px ** 2 / (frame.width * frame.height)
    return Fit(float(unit_px), float(left + width / 2), float(bottom), float(bottom + height), float(share))


def render(solid: Solid, view: View, frame: Frame, finish: Finish, lighting: Lighting,
           backdrop: Backdrop = "ground") -> Layers:
    """Draw `solid`, in key color `finish`, as large as fits `frame`; deterministic.

    backdrop: what receives the shadow. "water" cuts the solid at its waterline and mirrors it
    faintly; on "wall" and "none" it is centered in the box, else it stands on the lower edge.
    """
    shrink = max(frame.width, frame.height) / MAX_RENDER_PX
    if shrink > 1:
        return _enlarged(solid, view, frame, finish, lighting, backdrop, shrink)
    waterline = solid.waterline if backdrop == "water" else None
    placed = fit(solid, view, frame, waterline)
    pixel = 1 / placed.unit_px
    field = Field(solid, THIN_RADIUS_PX * pixel, waterline)
    points = surface_points(solid, waterline)
    bounds = points.low - field.min_radius, points.high + field.min_radius
    sun = view.to_object((-lighting.sun[0] if view.mirrored else lighting.sun[0], *lighting.sun[1:]))
    sun = sun / np.sqrt((sun ** 2).sum())

    n_columns, n_rows = frame.width + 2 * frame.pad, frame.height + 2 * frame.pad
    if backdrop in ("ground", "water"):
        floor_v = placed.bottom_v - pixel * frame.height * (1 - frame.fill) / 2
    else:
        floor_v = (placed.bottom_v + placed.top_v - pixel * frame.height) / 2
    top_v = floor_v + (frame.height + frame.pad) * pixel
    left_u = placed.center_u - n_columns * pixel / 2

    def screen(step: int) -> list[np.ndarray]:
        """Centers of pixels (of blocks of step x step) on the picture plane, in object coordinates."""
        u = left_u + (np.arange(round(n_columns / step)) + 0.5) * step * pixel
        v = top_v - (np.arange(round(n_rows / step)) + 0.5) * step * pixel
        u, v = (g.ravel().astype(np.float32) for g in np.meshgrid(u, v))
        right, up, _ = view.axes
        return [right[axis] * u + up[axis] * v for axis in range(3)]

    image = _draw_object(field, view, screen(1), bounds, pixel, finish,
                         replace(lighting, sun=tuple(sun.tolist())), on_ground=backdrop == "ground")
    image = image.reshape(n_rows, n_columns, 5)
    cast = contact = np.ones((n_rows, n_columns), np.float32)
    if backdrop != "none":
        halved = 2 if max(n_rows, n_columns) >= HALF_SHADOW_FROM_PX and min(n_rows, n_columns) > 2 else 1
        shape = round(n_rows / halved), round(n_columns / halved)
        hidden = _well_inside(_resized(image[..., 3], shape) > 0.999)
        cast, contact = _draw_shadow(field, view, screen(halved), hidden.ravel(), bounds, sun, backdrop)
        cast, contact = (_resized(a.reshape(shape), (n_rows, n_columns)) for a in (cast, contact))
    if view.mirrored:
        image, cast, contact = image[:, ::-1], cast[:, ::-1], contact[:, ::-1]
    return Layers(image[..., :3], image[..., 3], image[..., 4], cast, contact)


def _resized(array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    import cv2
    if array.shape[:2] == shape:
        return array
    smaller = shape[0] < array.shape[0]
    return cv2.resize(np.ascontiguousarray(array), shape[::-1],
                      interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR)


def _well_inside(covered: np.ndarray) -> np.ndarray:
    """Covered pixels two pixels from the outline; nearer ones need a shadow, or blur draws a bright rim."""
    import cv2
    return cv2.erode(covered.astype(np.uint8), np.ones((5, 5), np.uint8), borderValue=0).astype(bool)


def _enlarged(solid, view, frame: Frame, finish, lighting, backdrop, shrink: float) -> Layers:
    small = Frame(max(1, round(frame.width / shrink)), max(1, round(frame.height / shrink)),
                  round(frame.pad / shrink), frame.fill)
    layers = render(solid, view, small, finish, lighting, backdrop)
    shape = frame.height + 2 * frame.pad, frame.width + 2 * frame.pad
    return Layers(*(_resized(getattr(layers, name), shape) for name in Layers.__dataclass_fields__))


def _trace(field: Field, view: View, centers, bounds, pixel: float):
    """(indices of covered samples: pixel x SUBSAMPLES^2 + sample; points x, y, z hit there)."""
    right, up, back = view.axes
    spread = ((np.arange(SUBSAMPLES) + 0.5) / SUBSAMPLES - 0.5) * pixel
    du, dv = (g.ravel().astype(np.float32) for g in np.meshgrid(spread, -spread))
    origin = [(c[:, None] + r * du + u * dv).ravel() for c, r, u in zip(centers, right, up)]
    enter, leave = slab(origin, -back, *bounds)
    samples, t = march(field, origin, -back, enter, leave, pixel / SUBSAMPLES)
    return samples, [p[samples] - b * t for p, b in zip(origin, back)]


def _draw_object(field: Field, view: View, centers, bounds, pixel: float, finish: Finish,
                 lighting: Lighting, on_ground: bool) -> np.ndarray:
    """float32 (pixels, 5): linear premultiplied color, alpha, coverage by the key color."""
    samples, (x, y, z) = _trace(field, view, centers, bounds, pixel)
    normal = field.normal(x, y, z, 0.6 * pixel / SUBSAMPLES)
    # Soft light varies little within a pixel: one sample of each pixel stands for its neighbors.
    _, first, member = np.unique(samples // SUBSAMPLES ** 2, return_index=True, return_inverse=True)
    chosen, chosen_normal = (x[first], y[first], z[first]), normal[:, first]
    ambient = np.maximum(occlusion(field, chosen, chosen_normal, 0.06), INTERREFLECTION)
    if on_ground:
        ambient = ambient * np.clip(0.55 + 0.45 * chosen[1] / 0.12, 0.55, 1)
    direct = np.ones_like(ambient)
    if not field.solid.translucency:
        sun = np.array(lighting.sun, np.float32)
        lit = np.flatnonzero(sun @ chosen_normal > 0)
        direct[lit] = direct_light(field, [p[lit] for p in chosen], chosen_normal[:, lit], sun, bounds,
                                   sharpness=5, n_steps=14, offset=0.02)
    surface = Surface(np.stack((x, y, z)), normal, field.material(x, y, z), ambient[member], direct[member])
    extent = surface_points(field.solid, field.waterline)
    size = np.ptp(extent.xyz[:, extent.is_key], axis=1) if extent.is_key.any() else np.ones(3)
    color, is_key = shade(surface, field.solid, size, finish, lighting, view.axes)
    layers = np.zeros((len(centers[0]) * SUBSAMPLES ** 2, 5), np.float32)
    layers[samples, :3], layers[samples, 3], layers[samples, 4] = color, 1, is_key
    return layers.reshape(-1, SUBSAMPLES ** 2, 5).mean(1)


def _draw_shadow(field: Field, view: View, origin, hidden: np.ndarray, bounds, sun: np.ndarray,
                 backdrop: Backdrop) -> tuple[np.ndarray, np.ndarray]:
    """(cast, contact) on the ground, the water or the wall behind, flat arrays like `hidden`."""
    low, high = bounds
    axis = 2 if backdrop == "wall" else 1
    level = {"wall": low[2], "ground": 0.0, "water": field.waterline}[backdrop]
    back = view.axes[2]
    cast, contact = np.ones(hidden.shape, np.float32), np.ones(hidden.shape, np.float32)
    if abs(back[axis]) < 0.05:              # seen edge-on: the plane has no visible area
        return cast, contact
    t = (level - origin[axis]) / back[axis]
    plane = [(p + b * t).astype(np.float32) for p, b in zip(origin, back)]
    near = ~hidden
    for other in {0, 1, 2} - {axis}:
        near &= (plane[other] > low[other] - 0.75) & (plane[other] < high[other] + 0.75)
    near = np.flatnonzero(near)
    points = [p[near] for p in plane]
    normal = np.zeros((3, len(near)), np.float32)
    normal[axis] = 1
    if not len(near):
        return cast, contact
    contact[near] = occlusion(field, points, normal, 0.07)
    if backdrop == "water":
        # No shadow falls on water; it mirrors the object toward the viewer, and ripples at the hull.
        mirrored = np.array((-back[0], back[1], -back[2]), np.float32)
        reflected = direct_light(field, points, normal, mirrored, bounds, sharpness=3, n_steps=14,
                                 offset=0.01)
        cast[near] = 0.3 + 0.7 * reflected
        away = np.maximum(field.distance(*points), 0)
        contact[near] += 0.16 * np.exp(-away / 0.12) * np.sin(away * (2 * np.pi / 0.09))
    else:
        cast[near] = direct_light(field, points, normal, sun, bounds, sharpness=4, n_steps=18, offset=0.01)
    return cast, contact
