"""Signed distances of simple shapes, for the solids that the classical editor inserts.

A solid is a function of space: how far is each point from the surface, negative inside.  The
formulas are Inigo Quilez's; everything is numpy and float32.  x points forward, y up (the ground
is y = 0) and z toward the viewer of an unturned solid.  ReKey (Sec. 3.3) only asks that an editor
paints the key that the record names; this is the part that needs no weights to do so.

    points = Points(x, y, z, min_radius=0.01)
    head = ellipsoid(points, (0.2, 0.8, 0), (0.15, 0.14, 0.17))
    parts = [(smooth_union(0.06, head, capsule(points, (0, 0.3, 0), (0.1, 0.6, 0), 0.15)), Material.KEY)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import pairwise
from math import cos, hypot, pi, radians, sin
from typing import NamedTuple

import numpy as np

Vector = tuple[float, float, float]


class Points(NamedTuple):
    """Points of space in the frame of one solid, or of one part of it."""

    x: np.ndarray
    """float32 (N,), forward."""
    y: np.ndarray
    """float32 (N,), up."""
    z: np.ndarray
    """float32 (N,), toward the viewer at yaw 0."""
    min_radius: float = 0.0
    """Tubes and sheets are never drawn thinner than this: about half an output pixel."""


class Material(IntEnum):
    """What a part is made of; the renderer turns it into an albedo that goes with the key color."""

    KEY = 0
    """The color that the question is about."""
    RUBBER = 1
    """Nearly black; dark gray where the key itself is black."""
    METAL = 2
    DETAIL = 3
    """Light on a dark key and dark on a light one, so that a mark never vanishes."""
    KEY_DARK = 4
    KEY_LIGHT = 5
    BEAK = 6
    WOOD = 7
    EYE = 8
    LEAF = 9
    GLASS = 10
    SKIN = 11
    HEART = 12
    """The middle of a flower: yellow, or brown where the petals are yellow."""
    NOSE = 13


# By name alone in the files of solids, where they stand in almost every line.
(KEY, RUBBER, METAL, DETAIL, KEY_DARK, KEY_LIGHT, BEAK, WOOD, EYE, LEAF, GLASS, SKIN, HEART, NOSE) = Material

KEY_MATERIALS = (Material.KEY, Material.KEY_DARK, Material.KEY_LIGHT)
"""Materials that a person would call by the name of the key color."""

Paint = Material | Callable[[Points], np.ndarray]
"""One material, or a pattern: points -> int (N,).  Patterns are evaluated for shading only."""
Part = tuple[np.ndarray, Paint]
"""The distance to one part, float32 (N,), and what it is made of."""


# -- moving the points ------------------------------------------------------------------------

def shifted(p: Points, origin: Vector) -> Points:
    """The points as seen from a part whose origin lies at `origin`."""
    return p._replace(x=p.x - origin[0], y=p.y - origin[1], z=p.z - origin[2])


def turned(p: Points, axis: str, degrees: float) -> Points:
    """The points as seen from a part that is turned by `degrees` (right-handed) about an axis."""
    # Python floats, not numpy scalars: the latter would promote every float32 array to float64.
    c, s = cos(radians(degrees)), sin(radians(degrees))
    if axis == "x":
        return p._replace(y=c * p.y + s * p.z, z=c * p.z - s * p.y)
    if axis == "y":
        return p._replace(x=c * p.x - s * p.z, z=s * p.x + c * p.z)
    return p._replace(x=c * p.x + s * p.y, y=c * p.y - s * p.x)


def mirrored(p: Points, axes: str = "z") -> Points:
    """The points folded over, so that one part at positive z (or x) appears on both sides."""
    return p._replace(**{axis: np.abs(getattr(p, axis)) for axis in axes})


def sixfold(p: Points) -> Points:
    """The points folded about the z axis so that a part along x appears on six spokes."""
    # Reflections only: arctan2 and back costs more than most solids do altogether.
    x, y = np.abs(p.x), np.abs(p.y)
    beyond = np.maximum(y * cos(pi / 6) - x * sin(pi / 6), 0)      # past the line at 30 degrees
    return p._replace(x=x + 2 * sin(pi / 6) * beyond, y=np.abs(y - 2 * cos(pi / 6) * beyond))


def eightfold(p: Points) -> Points:
    """The points folded about the y axis into the wedge between the x axis and its diagonal with z.

    A part at 22.5 degrees appears eight times, a part along x or along the diagonal four times.
    """
    x, z = np.abs(p.x), np.abs(p.z)
    return p._replace(x=np.maximum(x, z), z=np.minimum(x, z))


# -- combining distances ----------------------------------------------------------------------

def union(*distances: np.ndarray) -> np.ndarray:
    result = distances[0]
    for distance in distances[1:]:
        result = np.minimum(result, distance)
    return result


def intersection(*distances: np.ndarray) -> np.ndarray:
    result = distances[0]
    for distance in distances[1:]:
        result = np.maximum(result, distance)
    return result


def without(distance: np.ndarray, *holes: np.ndarray) -> np.ndarray:
    """The first shape with the others cut out of it."""
    return intersection(distance, *(-hole for hole in holes))


def smooth_union(blend: float, *distances: np.ndarray) -> np.ndarray:
    """Union with seams rounded over a width of `blend` (polynomial smooth minimum)."""
    result = distances[0]
    for distance in distances[1:]:
        h = np.maximum(blend - np.abs(result - distance), 0) / blend
        result = np.minimum(result, distance) - h * h * (blend * 0.25)
    return result


def length(*components: np.ndarray) -> np.ndarray:
    """Euclidean length; several times faster than stacking for np.linalg.norm."""
    total = components[0] * components[0]
    for component in components[1:]:
        total = total + component * component
    return np.sqrt(total)


def _bounded(*gaps: np.ndarray) -> np.ndarray:
    """Distance to a product of intervals, from the signed gap to each."""
    outside = length(*(np.maximum(gap, 0) for gap in gaps))
    return outside + np.minimum(intersection(*gaps), 0)


# -- primitives -------------------------------------------------------------------------------

def sphere(p: Points, center: Vector, radius: float) -> np.ndarray:
    q = shifted(p, center)
    return length(q.x, q.y, q.z) - radius


def ellipsoid(p: Points, center: Vector, radii: Vector) -> np.ndarray:
    """Not an exact distance: exact on the surface, and Lipschitz enough for a sphere tracer."""
    q = shifted(p, center)
    x, y, z = q.x / radii[0], q.y / radii[1], q.z / radii[2]
    k0 = np.maximum(length(x, y, z), 1e-4)
    k1 = np.maximum(length(x / radii[0], y / radii[1], z / radii[2]), 1e-4 / min(radii))
    return np.maximum(k0 * (k0 - 1) / k1, -min(radii))   # deep inside the formula overshoots


def capsule(p: Points, start: Vector, end: Vector, radius: float,
            end_radius: float | None = None) -> np.ndarray:
    """A rod with round ends, possibly tapering; never thinner than `p.min_radius`."""
    first = max(radius, p.min_radius)
    last = first if end_radius is None else max(end_radius, 0.8 * p.min_radius)
    along = [b - a for a, b in zip(start, end, strict=True)]
    q = shifted(p, start)
    h = (q.x * along[0] + q.y * along[1] + q.z * along[2]) / (sum(a * a for a in along) + 1e-9)
    h = np.clip(h, 0, 1)
    return length(q.x - h * along[0], q.y - h * along[1], q.z - h * along[2]) - (first + (last - first) * h)


def tube(p: Points, path: Sequence[Vector], radius: float, end_radius: float | None = None,
         blend: float = 0.0) -> np.ndarray:
    """A bent rod through the points of `path`; `blend` rounds its elbows."""
    last = radius if end_radius is None else end_radius
    n_pieces = len(path) - 1
    radii = [radius + (last - radius) * i / n_pieces for i in range(n_pieces + 1)]
    pieces = [capsule(p, path[i], path[i + 1], radii[i], radii[i + 1]) for i in range(n_pieces)]
    return smooth_union(blend, *pieces) if blend else union(*pieces)


def box(p: Points, center: Vector, half: Vector, rounding: float = 0.0) -> np.ndarray:
    """A box of half sizes `half`, its edges rounded inward."""
    q = shifted(p, center)
    gaps = (np.abs(c) - (h - rounding) for c, h in zip((q.x, q.y, q.z), half, strict=True))
    return _bounded(*gaps) - rounding


def _axial(p: Points, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two coordinates across `axis`, then the one along it."""
    return {"x": (p.y, p.z, p.x), "y": (p.x, p.z, p.y), "z": (p.x, p.y, p.z)}[axis]


def cylinder(p: Points, center: Vector, radius: float, half_length: float, axis: str = "y",
             rounding: float = 0.0) -> np.ndarray:
    u, v, w = _axial(shifted(p, center), axis)
    return _bounded(length(u, v) - (radius - rounding), np.abs(w) - (half_length - rounding)) - rounding


def torus(p: Points, center: Vector, ring_radius: float, radius: float, axis: str = "z") -> np.ndarray:
    """A ring around `axis`; never thinner than `p.min_radius`."""
    u, v, w = _axial(shifted(p, center), axis)
    return length(length(u, v) - ring_radius, w) - max(radius, p.min_radius)


def cone(p: Points, center: Vector, bottom_radius: float, top_radius: float, half_height: float,
         rounding: float = 0.0) -> np.ndarray:
    """An upright truncated cone."""
    q = shifted(p, center)
    return turned_profile(q, [(bottom_radius, -half_height), (top_radius, half_height)], rounding)


def polygon(u: np.ndarray, v: np.ndarray, outline: Sequence[tuple[float, float]]) -> np.ndarray:
    """Signed distance in the plane to a simple polygon of any shape and turning direction."""
    nearest = None
    inside = np.zeros(np.shape(u), bool)
    for (u0, v0), (u1, v1) in pairwise([*outline, outline[0]]):
        edge_u, edge_v = u1 - u0, v1 - v0
        du, dv = u - u0, v - v0
        h = np.clip((du * edge_u + dv * edge_v) / (edge_u * edge_u + edge_v * edge_v + 1e-12), 0, 1)
        bu, bv = du - edge_u * h, dv - edge_v * h
        squared = bu * bu + bv * bv
        nearest = squared if nearest is None else np.minimum(nearest, squared)
        above, below, left = v >= v0, v < v1, edge_u * dv > edge_v * du
        inside ^= (above & below & left) | ~(above | below | left)
    distance = np.sqrt(nearest)
    return np.where(inside, -distance, distance)


def extruded(p: Points, outline: Sequence[tuple[float, float]], half_depth: float, rounding: float = 0.0,
             center_z: float = 0.0) -> np.ndarray:
    """A plate or block with a polygon of (x, y) as its side view; `rounding` makes it grow."""
    gap = np.abs(p.z - center_z) - max(half_depth - rounding, 0.5 * p.min_radius)
    return _bounded(polygon(p.x, p.y, outline), gap) - rounding


def turned_profile(p: Points, outline: Sequence[tuple[float, float]], rounding: float = 0.0) -> np.ndarray:
    """A body of revolution about the y axis; `outline` holds (radius, y) from bottom to top."""
    closed = [(-1.0, outline[0][1]), *outline, (-1.0, outline[-1][1])]
    return polygon(length(p.x, p.z), p.y, closed) - rounding


def segment_angle(u: np.ndarray, v: np.ndarray, n_segments: int) -> np.ndarray:
    """How far (u, v) is from the nearest of `n_segments` spokes, in segments: -0.5 to 0.5; 0 is along u."""
    return np.mod(np.arctan2(v, u) * (n_segments / (2 * np.pi)) + 0.5, 1) - 0.5


def half_space(p: Points, through: tuple[float, float], outward: tuple[float, float]) -> np.ndarray:
    """All that lies behind a plane which stands on its edge in the (x, y) view."""
    size = hypot(*outward)
    return (p.x - through[0]) * (outward[0] / size) + (p.y - through[1]) * (outward[1] / size)
