"""Things found outdoors (ReKey, Sec. 3.3): one function per noun, points in, parts out.

Street furniture stands with its front toward +z unless a docstring says otherwise; what flies
(balloon, kite) hangs free, its string included.

    parts = hydrant(Points(x, y, z))      # [(distance, material), ...]
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from editors.sdf import (
    DETAIL,
    GLASS,
    KEY,
    KEY_DARK,
    KEY_LIGHT,
    METAL,
    RUBBER,
    WOOD,
    Part,
    Points,
    box,
    capsule,
    cone,
    cylinder,
    eightfold,
    ellipsoid,
    extruded,
    intersection,
    length,
    mirrored,
    segment_angle,
    shifted,
    smooth_union,
    sphere,
    torus,
    tube,
    turned,
    union,
    without,
)


def _between(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return (values > low) & (values < high)


# -- street furniture --------------------------------------------------------------------------

def bench(p: Points) -> list[Part]:
    """A park bench: slats for a seat and a leaning back, dark legs with arm rests at the ends."""
    half = mirrored(p, "x")
    seat = [box(p, (0, 0.44, z), (0.82, 0.028, 0.068), 0.015) for z in (-0.14, 0.02, 0.18)]
    back = [box(turned(shifted(p, (0, y, -0.23 - 0.22 * (y - 0.5))), "x", -12), (0, 0, 0),
                (0.82, 0.07, 0.025), 0.015)
            for y in (0.6, 0.78, 0.96)]
    frame = union(
        tube(half, [(0.66, 0.03, 0.24), (0.66, 0.4, 0.2), (0.66, 0.4, -0.2), (0.66, 1.0, -0.37)], 0.035),
        capsule(half, (0.66, 0.4, -0.18), (0.66, 0.03, -0.3), 0.035),
        tube(half, [(0.75, 0.42, 0.2), (0.75, 0.64, 0.22), (0.75, 0.66, -0.24)], 0.035))
    return [(union(*seat, *back), KEY), (frame, RUBBER)]


def fire_hydrant(p: Points) -> list[Part]:
    """A stout post with a domed cap and a knob, flanges, and capped nozzles at both sides and in front."""
    barrel = union(
        cylinder(p, (0, 0.05, 0), 0.3, 0.05, rounding=0.015),
        cylinder(p, (0, 0.4, 0), 0.21, 0.36),
        cylinder(p, (0, 0.71, 0), 0.27, 0.045, rounding=0.015),
        ellipsoid(p, (0, 0.74, 0), (0.22, 0.23, 0.22)),
        cylinder(p, (0, 1.0, 0), 0.07, 0.06))
    nozzles = cylinder(p, (0, 0.5, 0), 0.1, 0.32, "x")
    caps = cylinder(mirrored(p, "x"), (0.33, 0.5, 0), 0.135, 0.045, "x", 0.02)
    front = cylinder(p, (0, 0.5, 0.25), 0.13, 0.06, "z")
    front_cap = cylinder(p, (0, 0.5, 0.31), 0.165, 0.05, "z", 0.02)
    nuts = union(cylinder(mirrored(p, "x"), (0.4, 0.5, 0), 0.045, 0.04, "x"),
                 cylinder(p, (0, 0.5, 0.38), 0.05, 0.04, "z"))
    return [(smooth_union(0.02, barrel, nozzles, front), KEY), (union(caps, front_cap), KEY_LIGHT),
            (nuts, KEY_DARK)]


def mailbox(p: Points) -> list[Part]:
    """The curbside one: a tunnel-shaped box on a wooden post, its door in front (+x), a raised flag."""
    tunnel = smooth_union(0.01, cylinder(p, (0, 0.84, 0), 0.24, 0.46, "x", 0.02),
                          box(p, (0, 0.72, 0), (0.46, 0.13, 0.24), 0.02))
    door = smooth_union(0.01, cylinder(p, (0.47, 0.84, 0), 0.25, 0.025, "x"),
                        box(p, (0.47, 0.72, 0), (0.025, 0.13, 0.25)))
    handle = capsule(p, (0.53, 0.94, -0.05), (0.53, 0.94, 0.05), 0.025)
    flag = union(box(p, (0.1, 0.98, 0.27), (0.022, 0.2, 0.016)),
                 box(p, (0.02, 1.14, 0.27), (0.1, 0.055, 0.016)))
    post = union(box(p, (0, 0.3, 0), (0.075, 0.3, 0.075), 0.01),
                 box(p, (0.0, 0.565, 0), (0.36, 0.03, 0.15), 0.01))
    return [(tunnel, KEY), (door, KEY_DARK), (handle, METAL), (flag, DETAIL), (post, WOOD)]


def road_barrier(p: Points) -> list[Part]:
    """A barricade: two boards with slanting light stripes on A-shaped legs, a lamp on top."""

    def stripes(points: Points) -> np.ndarray:
        slant = np.mod(points.x + points.y, 0.4) < 0.155
        return np.where(slant & (np.abs(points.z) > 0.015), DETAIL, KEY)

    boards = union(box(p, (0, 0.72, 0.05), (0.72, 0.13, 0.025), 0.01),
                   box(p, (0, 0.36, 0.09), (0.72, 0.1, 0.025), 0.01))
    quarter = mirrored(p, "x")
    legs = union(capsule(quarter, (0.56, 0.88, 0.0), (0.56, 0.035, 0.2), 0.04),
                 capsule(quarter, (0.56, 0.88, 0.0), (0.56, 0.035, -0.2), 0.04))
    lamps = union(cylinder(quarter, (0.5, 0.97, 0.03), 0.085, 0.035, "z", 0.02),
                  box(quarter, (0.5, 0.88, 0.03), (0.05, 0.03, 0.03)))
    return [(boards, stripes), (legs, KEY_DARK), (lamps, KEY_LIGHT)]


def traffic_cone(p: Points) -> list[Part]:
    """A steep cone on a square foot with one light band."""

    def band(points: Points) -> np.ndarray:
        return np.where(_between(points.y, 0.42, 0.6), DETAIL, KEY)

    return [(cone(p, (0, 0.48, 0), 0.28, 0.05, 0.44, 0.01), band),
            (box(p, (0, 0.03, 0), (0.38, 0.03, 0.38), 0.01), KEY)]


def sign(p: Points) -> list[Part]:
    """A round road sign on a post: light rim, one light bar."""

    def face(points: Points) -> np.ndarray:
        rim = length(points.x, points.y - 0.95) > 0.33
        bar = (np.abs(points.y - 0.95) < 0.07) & (np.abs(points.x) < 0.23)
        return np.where(rim | bar, DETAIL, KEY)

    return [(capsule(p, (0, 0.028, -0.03), (0, 0.9, -0.03), 0.028), METAL),
            (cylinder(p, (0, 0.95, 0), 0.36, max(0.015, 0.5 * p.min_radius), "z"), face)]


def phone_booth(p: Points) -> list[Part]:
    """The London one: a tall box of small panes under a light sign band and a shallow dome."""
    body = box(p, (0, 0.8, 0), (0.3, 0.78, 0.3), 0.02)
    plinth = box(p, (0, 0.06, 0), (0.33, 0.06, 0.33), 0.01)
    cornice = box(p, (0, 1.62, 0), (0.33, 0.035, 0.33), 0.01)
    dome = intersection(ellipsoid(p, (0, 1.56, 0), (0.4, 0.25, 0.4)),
                        box(p, (0, 1.7, 0), (0.3, 0.16, 0.3), 0.03))

    def panes(points: Points) -> np.ndarray:
        facing_z = np.abs(points.z) > np.abs(points.x)
        across = np.where(facing_z, points.x, points.z)
        grid = (np.mod(across + 0.225, 0.15) > 0.034) & (np.mod(points.y, 0.165) > 0.036)
        glass = grid & (np.abs(across) < 0.205) & _between(points.y, 0.33, 1.32)
        band = _between(points.y, 1.42, 1.53) & (np.abs(across) < 0.24)
        return np.where(glass, GLASS, np.where(band, DETAIL, KEY))

    return [(body, panes), (union(plinth, cornice, dome), KEY)]


def pavilion(p: Points) -> list[Part]:
    """A garden gazebo: a pointed eight-sided roof on slender columns over a round floor and railing."""
    wedge = eightfold(p)
    apothem = np.maximum(wedge.x, (wedge.x + wedge.z) * 0.5 ** 0.5)     # 1 on the sides of an octagon

    def ring(level: float, half_height: float, reach: float) -> np.ndarray:
        return np.maximum(apothem - reach, np.abs(p.y - level) - half_height) * 0.9

    roof = np.maximum(0.8 * (p.y - 1.36) + 0.6 * apothem, 0.86 - p.y) * 0.9
    lantern = union(sphere(p, (0, 1.38, 0), 0.05), capsule(p, (0, 1.34, 0), (0, 1.5, 0), 0.018))
    columns = capsule(turned(wedge, "y", -22.5), (0.53, 0.08, 0), (0.53, 0.88, 0), 0.036)
    rail = without(ring(0.3, 0.025, 0.52), ring(0.3, 1, 0.47))

    def shingles(points: Points) -> np.ndarray:
        angle = np.abs(segment_angle(points.x, points.z, 8))
        return np.where((angle > 0.47) & (points.y > 0.88), KEY_DARK, KEY)

    return [(roof, shingles), (ring(0.84, 0.035, 0.62), KEY_LIGHT), (lantern, KEY), (columns, KEY_LIGHT),
            (rail, KEY_LIGHT), (ring(0.045, 0.045, 0.6), KEY_DARK)]


def rock(p: Points) -> list[Part]:
    """A boulder and a lesser one grown together: hewn by slanting planes, pitted, with blunt edges."""

    def boulder(center: tuple[float, float, float], size: float,
                planes: tuple[tuple[float, ...], ...]) -> np.ndarray:
        q = shifted(p, center)
        body = ellipsoid(q, (0, 0, 0), (0.5 * size, 0.46 * size, 0.44 * size))
        for nx, ny, nz, offset in planes:
            scale = 1 / float(np.sqrt(nx * nx + ny * ny + nz * nz))
            plane = (q.x * nx + q.y * ny + q.z * nz) * scale - offset * size
            body = -smooth_union(0.035, -body, -plane)
        return body

    large = boulder((-0.08, 0.24, 0), 1.0, (
        (0.9, 0.45, 0.4, 0.34), (-0.7, 0.75, 0.3, 0.33), (0.25, 0.95, 0.3, 0.37), (-0.8, -0.1, 0.6, 0.36),
        (0.3, 0.15, 0.9, 0.31), (-0.25, 0.55, 0.85, 0.34), (0.75, 0.3, -0.6, 0.36), (-0.5, 0.6, -0.6, 0.34)))
    small = boulder((0.4, 0.12, 0.12), 0.56, (
        (0.7, 0.7, 0.3, 0.3), (-0.3, 0.9, 0.5, 0.33), (0.6, 0.1, 0.8, 0.3), (-0.5, 0.3, 0.9, 0.33)))
    pits = 0.012 * (np.sin(17 * p.x + 3 * p.y) * np.sin(15 * p.y + 2 * p.z) + np.sin(19 * p.z - 6 * p.x))
    return [(intersection(smooth_union(0.03, large, small) + pits, -p.y) * 0.8, KEY)]


def flag(p: Points) -> list[Part]:
    """A waving cloth near the top of a pole with a ball on it."""
    wave = 0.07 * np.sin(7 * p.x) * np.clip(3 * p.x, 0, 1)
    cloth_frame = p._replace(y=p.y - 0.04 * np.sin(5 * p.x + 1), z=p.z - wave)
    cloth = box(cloth_frame, (0.36, 0.95, 0), (0.36, 0.24, max(0.012, 0.5 * p.min_radius)), 0.005) * 0.75
    return [(cloth, KEY), (capsule(p, (0, 0.022, 0), (0, 1.25, 0), 0.022), METAL),
            (sphere(p, (0, 1.27, 0), 0.04), METAL)]


# -- for a day out -----------------------------------------------------------------------------

_UMBRELLA_AT = (0.12, 0.5, 0)
_UMBRELLA_TILT = 48


def umbrella(p: Points) -> list[Part]:
    """Open, lying on its rim and its hooked handle: eight scalloped panels between ribs."""
    q = turned(shifted(p, _UMBRELLA_AT), "z", _UMBRELLA_TILT)
    angle, radius = np.arctan2(q.z, q.x), length(q.x, q.z)
    dome = np.abs(length(q.x, (q.y + 0.42) * 1.05, q.z) - 0.8) - max(0.012, 0.6 * p.min_radius)
    scallops = 0.1 * np.abs(np.sin(4 * angle)) * radius - q.y
    canopy = intersection(dome, scallops, -(q.y + 0.1)) * 0.75

    def ribs(points: Points) -> np.ndarray:
        local = turned(shifted(points, _UMBRELLA_AT), "z", _UMBRELLA_TILT)
        return np.where(np.abs(segment_angle(local.x, local.z, 8)) < 0.035, KEY_DARK, KEY)

    hook = intersection(torus(q, (0.08, -0.72, 0), 0.08, 0.032, "z"), q.y + 0.72)
    return [(canopy, ribs), (capsule(q, (0, -0.72, 0), (0, 0.45, 0), 0.02), METAL), (hook, WOOD)]


def beach_chair(p: Points) -> list[Part]:
    """A deck chair from the side: a striped sling hung between the crossed frames of a wooden X."""
    side = mirrored(p)
    frame = union(
        capsule(side, (0.52, 0.024, 0.38), (-0.52, 1.0, 0.38), 0.024),
        capsule(side, (-0.46, 0.024, 0.35), (0.5, 0.5, 0.35), 0.024),
        capsule(p, (-0.46, 0.024, -0.35), (-0.46, 0.024, 0.35), 0.02))
    bars = union(capsule(p, (-0.52, 1.0, -0.38), (-0.52, 1.0, 0.38), 0.028),
                 capsule(p, (0.5, 0.5, -0.38), (0.5, 0.5, 0.38), 0.028))
    path = [(-0.52, 1.0), (-0.36, 0.74), (-0.2, 0.5), (-0.02, 0.36), (0.18, 0.34), (0.36, 0.4), (0.5, 0.5)]
    flat = p._replace(z=np.zeros_like(p.z))
    sheet = union(*(capsule(flat, (*start, 0), (*end, 0), 0.03) for start, end in pairwise(path)))
    sling = intersection(sheet, np.abs(p.z) - 0.35)

    def stripes(points: Points) -> np.ndarray:
        return np.where(np.abs(np.abs(points.z) - 0.16) < 0.032, DETAIL, KEY)

    return [(sling, stripes), (frame, WOOD), (bars, KEY_DARK)]


def sun_lounger(p: Points) -> list[Part]:
    """A long low couch on short legs: flat cushion, raised back, a small headrest."""
    side = mirrored(p)
    seat = box(p, (0.24, 0.36, 0), (0.66, 0.06, 0.3), 0.05)
    back = box(turned(shifted(p, (-0.64, 0.58, 0)), "z", -40), (0, 0, 0), (0.36, 0.06, 0.3), 0.05)
    head = box(turned(shifted(p, (-0.8, 0.8, 0)), "z", -40), (0, 0, 0), (0.1, 0.05, 0.2), 0.04)
    frame = union(capsule(side, (-0.46, 0.27, 0.27), (0.9, 0.27, 0.27), 0.035),
                  capsule(side, (0.76, 0.27, 0.27), (0.82, 0.03, 0.27), 0.035),
                  capsule(side, (-0.36, 0.27, 0.27), (-0.46, 0.03, 0.27), 0.035),
                  capsule(side, (-0.5, 0.3, 0.27), (-0.94, 0.72, 0.27), 0.03))

    def quilting(points: Points) -> np.ndarray:
        return np.where(np.abs(np.mod(points.x + 0.04, 0.3) - 0.15) < 0.012, KEY_DARK, KEY)

    return [(union(seat, back), quilting), (head, KEY_LIGHT), (frame, DETAIL)]


def balloon(p: Points) -> list[Part]:
    """A drop-shaped balloon with its knot and a hanging string."""
    skin = smooth_union(0.2, ellipsoid(p, (0, 1.0, 0), (0.36, 0.4, 0.36)),
                        cone(p, (0, 0.62, 0), 0.03, 0.2, 0.1))
    string = tube(p, [(0, 0.5, 0), (0.02, 0.35, 0), (-0.02, 0.2, 0), (0.015, 0.05, 0), (0, -0.08, 0)], 0.006)
    return [(skin, KEY), (cone(p, (0, 0.515, 0), 0.05, 0.015, 0.025), KEY_DARK), (string, METAL)]


def kite(p: Points) -> list[Part]:
    """A diamond on a cross of two spars, its quarters in two shades, bows on the tail."""
    bent = p._replace(x=np.abs(p.x), z=p.z + 0.12 * p.x * p.x)
    sail = extruded(bent, [(-0.4, 0.85), (0, 0.2), (0.42, 0.85), (0, 1.25)], 0.01) * 0.9

    def quarters(points: Points) -> np.ndarray:
        spar = (np.abs(points.x) < 0.012) | (np.abs(points.y - 0.85) < 0.012)
        return np.where(spar, KEY_DARK, np.where(points.x * (points.y - 0.85) > 0, KEY_LIGHT, KEY))

    tail = tube(p, [(0, 0.22, 0), (0.06, 0.08, 0), (-0.05, -0.06, 0), (0.05, -0.2, 0), (0, -0.3, 0)], 0.008)
    bows = [ellipsoid(turned(shifted(p, (0.05 * sway, 0.08 - 0.14 * i, 0)), "z", 20 * sway), (0, 0, 0),
                      (0.07, 0.025, 0.02))
            for i, sway in enumerate((1, -1, 1))]
    return [(sail, quarters), (tail, KEY_DARK), (union(*bows), KEY)]
