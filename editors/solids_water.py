"""Things that float (ReKey, Sec. 3.3): one function per noun, points in, parts out.

The bow is at +x.  Each stands on the ground at y = 0; on water the renderer cuts it at the
waterline that the registry in `editors.solids` gives.

    parts = kayak(Points(x, y, z))        # [(distance, material), ...]
"""

from __future__ import annotations

import numpy as np

from editors.sdf import (
    DETAIL,
    GLASS,
    KEY,
    KEY_DARK,
    KEY_LIGHT,
    RUBBER,
    WOOD,
    Part,
    Points,
    box,
    capsule,
    cylinder,
    ellipsoid,
    extruded,
    intersection,
    length,
    mirrored,
    segment_angle,
    shifted,
    smooth_union,
    torus,
    tube,
    turned,
    union,
    without,
)


def _sail(p: Points, outline: list[tuple[float, float]], luff_x: float) -> np.ndarray:
    """A triangle of cloth that bellies out with the distance from its mast."""
    bellied = p._replace(z=p.z - 0.1 * np.sin(3 * np.abs(p.x - luff_x)))
    return extruded(bellied, outline, 0.012) * 0.85


def boat(p: Points) -> list[Part]:
    """A sailing dinghy: a large triangular sail and a small one over a pointed hull."""
    bow = np.clip((p.x + 0.1) / 0.75, 0, 1)
    half_beam = 0.2 * (1 - bow * bow * bow) * np.clip(0.55 + 0.9 * p.y, 0, 1) + 0.01
    hull = intersection(np.abs(p.z) - half_beam, p.y - 0.3 - 0.12 * bow * bow, -p.y,
                        np.abs(p.x + 0.02) - 0.6 - 0.18 * (p.y - 0.1)) * 0.75
    cockpit = box(p, (-0.14, 0.34, 0), (0.38, 0.1, 0.13), 0.05)

    def stripe(points: Points) -> np.ndarray:
        return np.where((points.y > 0.2) & (points.y < 0.245), DETAIL, KEY)

    return [(without(hull, cockpit), stripe), (capsule(p, (0.05, 0.2, 0), (0.05, 1.28, 0), 0.02), WOOD),
            (_sail(p, [(0.02, 0.44), (0.02, 1.24), (-0.56, 0.44)], 0.05), KEY),
            (_sail(p, [(0.09, 0.44), (0.09, 1.1), (0.6, 0.46)], 0.09), DETAIL),
            (capsule(p, (0.02, 0.42, 0), (-0.58, 0.42, 0.1), 0.018), WOOD)]


def speedboat(p: Points) -> list[Part]:
    """A long raked bow, a low wraparound windshield, seats behind it and an outboard motor."""
    bow = np.clip((p.x + 0.25) / 1.2, 0, 1)
    half_beam = (0.33 * (1 - bow ** 2.6) + 0.015) * np.clip(0.5 + 1.2 * p.y, 0, 1)
    stem = 0.66 * p.x - 0.52 - 0.48 * p.y
    hull = intersection(np.abs(p.z) - half_beam, p.y - 0.36 - 0.12 * bow, -p.y, -p.x - 0.85, stem) * 0.75
    cockpit = box(p, (-0.38, 0.42, 0), (0.4, 0.13, 0.24), 0.06)

    def stripe(points: Points) -> np.ndarray:
        along = np.abs(points.y - 0.2 - 0.08 * points.x) < 0.032
        return np.where(along & (np.abs(points.z) > 0.1), DETAIL, KEY)

    shield = np.abs(length(p.x + 0.12, p.z * 1.1) - 0.34) - 0.016
    rake = p.x + 0.5 * (p.y - 0.4)
    shield = intersection(shield, 0.36 - p.y, p.y - 0.58, 0.02 - rake) * 0.8
    seats = box(mirrored(p), (-0.5, 0.42, 0.12), (0.05, 0.13, 0.09), 0.03)
    motor = union(box(p, (-0.93, 0.5, 0), (0.1, 0.12, 0.09), 0.05),
                  box(p, (-0.93, 0.28, 0), (0.05, 0.2, 0.04), 0.02))
    return [(without(hull, cockpit), stripe), (shield, GLASS), (seats, KEY_LIGHT), (motor, RUBBER)]


def kayak(p: Points) -> list[Part]:
    """A slender hull, both ends pointed and lifted, a cockpit, a double paddle raised across it."""
    reach = np.abs(p.x) / 1.08
    taper = np.clip(1 - reach * reach, 0, 1)
    height = p.y - 0.17 - 0.14 * reach ** 3
    depth = np.where(height > 0, 0.09 * taper + 0.03, 0.17 * taper + 0.03)
    hull = (length(p.z / (0.27 * taper + 0.03), height / depth) - 1) * (0.1 * taper + 0.02)
    hull = intersection(hull, np.abs(p.x) - 1.07, -p.y) * 0.8
    opening = ellipsoid(p, (-0.04, 0.3, 0), (0.33, 0.14, 0.15))
    rim = ellipsoid(p, (-0.04, 0.25, 0), (0.37, 0.045, 0.19))
    q = turned(turned(shifted(p, (0.0, 0.42, 0)), "y", 59), "z", 14)
    shaft = capsule(q, (-0.56, 0, 0), (0.56, 0, 0), 0.022)
    blades = ellipsoid(mirrored(q, "x"), (0.62, 0, 0), (0.19, 0.09, 0.03))
    return [(without(hull, opening), KEY), (without(rim, opening), RUBBER),
            (ellipsoid(p, (-0.04, 0.19, 0), (0.3, 0.03, 0.13)), RUBBER), (shaft, RUBBER), (blades, KEY_LIGHT)]


def jet_ski(p: Points) -> list[Part]:
    """A motorcycle on the water: a stepped wedge of a hull, a dark saddle, handlebars on a cowl."""
    bow = np.clip((p.x + 0.1) / 1.0, 0, 1)
    half_beam = 0.3 * (1 - bow ** 2.4) + 0.02
    flare = np.clip(0.55 + 1.4 * p.y, 0, 1)
    hull = intersection(np.abs(p.z) - half_beam * flare, p.y - 0.3 - 0.16 * bow, -p.y, -p.x - 0.82,
                        0.7 * p.x - 0.5 - 0.55 * p.y) * 0.75
    cowl = extruded(p, [(-0.1, 0.3), (0.82, 0.38), (0.62, 0.5), (0.26, 0.72), (0.06, 0.7), (-0.12, 0.46)],
                    0.13, 0.06)
    seat_base = extruded(p, [(-0.78, 0.28), (0.1, 0.28), (0.1, 0.44), (-0.74, 0.46)], 0.11, 0.05)
    seat = smooth_union(0.06, capsule(p, (0.02, 0.52, 0), (-0.34, 0.5, 0), 0.09),
                        capsule(p, (-0.36, 0.53, 0), (-0.68, 0.56, 0), 0.1))
    bar = tube(mirrored(p), [(0.14, 0.76, 0), (0.12, 0.82, 0.12), (0.04, 0.82, 0.3)], 0.03)
    shield = extruded(p, [(0.22, 0.74), (0.5, 0.6), (0.2, 0.9), (0.16, 0.9)], 0.09, 0.02)

    def stripe(points: Points) -> np.ndarray:
        return np.where(np.abs(points.y - 0.2 - 0.12 * points.x) < 0.035, DETAIL, KEY)

    return [(hull, stripe), (smooth_union(0.04, cowl, seat_base), KEY), (seat, RUBBER), (bar, RUBBER),
            (shield, GLASS)]


def _banded(points: Points, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Four light bands around a ring."""
    return np.where(np.abs(segment_angle(u, v, 4)) > 0.36, DETAIL, KEY)


def lifebuoy(p: Points) -> list[Part]:
    """The ring from a ship's rail, upright: thick, with four light bands and a rope around it."""
    ring = torus(p, (0, 0.5, 0), 0.36, 0.13, "z")
    return [(ring, lambda points: _banded(points, points.x, points.y - 0.5))]


def swim_ring(p: Points) -> list[Part]:
    """The inflatable ring, lying flat: fatter than a lifebuoy, in seven bands."""

    def gores(points: Points) -> np.ndarray:
        return np.where(np.abs(segment_angle(points.x, points.z, 7)) > 0.33, DETAIL, KEY)

    valve = cylinder(p, (0.36, 0.4, 0.36), 0.03, 0.03, "y", 0.01)
    return [(torus(p, (0, 0.2, 0), 0.5, 0.2, "y"), gores), (valve, KEY_DARK)]
