"""Household things for insertion (ReKey, Sec. 3.3): one function per noun, points in, parts out.

Containers are thick-walled and open where the real one is; flat things stand, or lean back so far
that a camera above the ground still sees their outline.  Fronts face +z.

    parts = bucket(Points(x, y, z))       # [(distance, material), ...]
"""

from __future__ import annotations

import numpy as np

from editors.sdf import (
    DETAIL,
    HEART,
    KEY,
    KEY_DARK,
    KEY_LIGHT,
    LEAF,
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
    sixfold,
    smooth_union,
    sphere,
    torus,
    tube,
    turned,
    turned_profile,
    union,
    without,
)


def _between(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return (values > low) & (values < high)


# -- vessels -----------------------------------------------------------------------------------

def bottle(p: Points) -> list[Part]:
    """A cylinder that narrows to a neck with a cap; a light label around the belly."""
    body = smooth_union(
        0.12,
        cylinder(p, (0, 0.32, 0), 0.19, 0.32, rounding=0.04),
        cone(p, (0, 0.7, 0), 0.13, 0.065, 0.12),
        cylinder(p, (0, 0.85, 0), 0.065, 0.13))

    def label(points: Points) -> np.ndarray:
        return np.where(_between(points.y, 0.24, 0.42), DETAIL, KEY)

    return [(body, label), (cylinder(p, (0, 1.0, 0), 0.08, 0.055, rounding=0.015), KEY_DARK)]


def can(p: Points) -> list[Part]:
    """A drink can: shoulders narrowing to a bright metal rim and lid, a slanting light band."""
    body = turned_profile(p, [(0.26, 0.0), (0.3, 0.06), (0.3, 0.94), (0.25, 1.04)])
    rims = union(torus(p, (0, 1.05, 0), 0.25, 0.022, "y"), torus(p, (0, 0.015, 0), 0.25, 0.02, "y"),
                 cylinder(p, (0, 1.03, 0), 0.25, 0.012))
    tab = cylinder(p._replace(z=p.z * 0.7), (0.04, 1.055, 0), 0.09, 0.012)

    def band(points: Points) -> np.ndarray:
        height = 0.5 + 0.13 * np.sin(2.2 * np.arctan2(points.x, points.z))
        return np.where(np.abs(points.y - height) < 0.075, DETAIL, KEY)

    return [(body, band), (rims, METAL), (tab, KEY_LIGHT)]


def bucket(p: Points) -> list[Part]:
    """A tapered pail, open at the top, with a rolled rim and a wire handle."""
    wall = without(cone(p, (0, 0.35, 0), 0.27, 0.37, 0.35), cone(p, (0, 0.42, 0), 0.25, 0.36, 0.38))
    rims = union(torus(p, (0, 0.7, 0), 0.375, 0.025, "y"), torus(p, (0, 0.58, 0), 0.355, 0.012, "y"))
    hinge = turned(shifted(p, (0, 0.66, 0)), "x", 38)
    handle = intersection(torus(hinge, (0, 0, 0), 0.385, 0.016, "z"), -hinge.y)
    lugs = sphere(mirrored(p, "x"), (0.385, 0.66, 0), 0.035)
    return [(union(wall, rims), KEY), (union(handle, lugs), METAL)]


def cup(p: Points) -> list[Part]:
    """A mug: a straight wall, one ring of a handle, something dark inside."""
    outer = cylinder(p, (0, 0.33, 0), 0.3, 0.33, rounding=0.05)
    hollow = cylinder(p, (0, 0.42, 0), 0.265, 0.36, rounding=0.03)
    handle = intersection(torus(p, (0.31, 0.34, 0), 0.17, 0.045, "z"), 0.27 - p.x)
    return [(without(smooth_union(0.04, outer, handle), hollow), KEY),
            (cylinder(p, (0, 0.5, 0), 0.262, 0.01), WOOD)]


def bowl(p: Points) -> list[Part]:
    """Half an ellipsoid on a foot ring, hollow, with a rounded lip."""
    shell = intersection(ellipsoid(p, (0, 0.36, 0), (0.42, 0.36, 0.42)), p.y - 0.34,
                         -ellipsoid(p, (0, 0.38, 0), (0.39, 0.33, 0.39)))
    foot = cylinder(p, (0, 0.025, 0), 0.17, 0.03, rounding=0.01)
    return [(union(shell, foot, torus(p, (0, 0.34, 0), 0.405, 0.018, "y")), KEY)]


def flower_pot(p: Points) -> list[Part]:
    """A tapered pot with a broad rim, in it a low rosette of green leaves."""
    pot = union(cone(p, (0, 0.27, 0), 0.24, 0.37, 0.27), cylinder(p, (0, 0.59, 0), 0.43, 0.09, rounding=0.02))
    pot = without(pot, cylinder(p, (0, 0.7, 0), 0.36, 0.06))
    wedge = eightfold(turned(p, "y", 15))
    outer = turned(shifted(turned(wedge, "y", -22.5), (0.17, 0.82, 0)), "z", 46)
    inner = turned(shifted(wedge, (0.08, 0.88, 0)), "z", 70)
    leaves = union(ellipsoid(outer, (0.04, 0, 0), (0.22, 0.035, 0.085)),
                   ellipsoid(inner, (0.04, 0, 0), (0.22, 0.035, 0.075))) * 0.8
    return [(pot, KEY), (cylinder(p, (0, 0.64, 0), 0.36, 0.02), WOOD), (leaves, LEAF)]


# -- bags and boxes ----------------------------------------------------------------------------

def bag(p: Points) -> list[Part]:
    """A handbag: a soft trapezoid with a seam, a clasp and two arched handles."""
    side = mirrored(p)
    soft = p._replace(x=p.x / (1 - 0.22 * (p.y - 0.3)), z=p.z / (1.25 - 0.7 * np.clip(p.y, -0.3, 0.9)))
    body = box(soft, (0, 0.3, 0), (0.43, 0.3, 0.19), 0.09) * 0.7
    handles = intersection(torus(side, (0, 0.58, 0.09), 0.2, 0.026, "z"), 0.5 - p.y)

    def seam(points: Points) -> np.ndarray:
        return np.where(np.abs(points.y - 0.46) < 0.012, KEY_DARK, KEY)

    return [(body, seam), (handles, KEY_DARK), (box(side, (0, 0.47, 0.15), (0.05, 0.045, 0.05), 0.01), METAL)]


def backpack(p: Points) -> list[Part]:
    """A tall rounded sack with a front pocket, zips, a loop on top and shoulder straps."""
    thinning = p._replace(z=p.z * (1 + 0.25 * np.clip(p.y - 0.3, 0, 0.7)))
    body = box(thinning, (0, 0.46, 0), (0.34, 0.46, 0.22), 0.18) * 0.9
    pocket = box(p, (0, 0.25, 0.21), (0.25, 0.18, 0.09), 0.07)
    sides = box(mirrored(p, "x"), (0.36, 0.2, 0), (0.06, 0.15, 0.12), 0.05)
    loop = torus(p, (0, 0.92, -0.06), 0.075, 0.022, "z")
    straps = tube(mirrored(p, "x"), [(0.14, 0.84, -0.2), (0.2, 0.6, -0.32), (0.2, 0.2, -0.24)], 0.04)

    def zips(points: Points) -> np.ndarray:
        arch = np.abs(length(points.x, np.maximum(points.y - 0.62, 0)) - 0.26) < 0.014
        return np.where(arch & _between(points.y, 0.5, 0.9) & (points.z > 0), RUBBER, KEY)

    def pocket_zip(points: Points) -> np.ndarray:
        return np.where(_between(points.y, 0.355, 0.38) & (points.z > 0.22), RUBBER, KEY)

    return [(body, zips), (pocket, pocket_zip), (sides, KEY_DARK), (loop, RUBBER), (straps, KEY_DARK)]


def cardboard_box(p: Points) -> list[Part]:
    """A closed carton: the slit between its flaps and a strip of tape over it."""

    def tape(points: Points) -> np.ndarray:
        strip = (np.abs(points.z) < 0.05) & (points.y > 0.42)
        slit = (np.abs(points.x) < 0.004) & (points.y > 0.59)
        return np.where(strip, KEY_LIGHT, np.where(slit, KEY_DARK, KEY))

    return [(box(p, (0, 0.3, 0), (0.42, 0.3, 0.32), 0.015), tape)]


def suitcase(p: Points) -> list[Part]:
    """An upright shell with vertical grooves, a pulled-out handle and casters."""

    def grooves(points: Points) -> np.ndarray:
        return np.where(np.abs(np.mod(points.x + 0.08, 0.16) - 0.08) < 0.012, KEY_DARK, KEY)

    half = mirrored(p, "x")
    handle = union(capsule(half, (0.12, 0.8, 0), (0.12, 1.1, 0), 0.016),
                   capsule(p, (-0.12, 1.1, 0), (0.12, 1.1, 0), 0.03))
    casters = sphere(mirrored(p, "xz"), (0.24, 0.05, 0.1), 0.055)
    return [(box(p, (0, 0.45, 0), (0.32, 0.38, 0.15), 0.07), grooves), (union(handle, casters), RUBBER)]


# -- on the table ------------------------------------------------------------------------------

def phone(p: Points) -> list[Part]:
    """From behind, where the key color is: a rounded slab with three lenses on a camera island."""

    def screen(points: Points) -> np.ndarray:
        front = (points.z < 0) & (np.abs(points.x) < 0.2) & (np.abs(points.y - 0.5) < 0.44)
        return np.where(front, RUBBER, KEY)

    lenses = union(*(cylinder(p, (-0.15 + 0.08 * (i % 2), 0.76 + 0.06 * i, 0.07), 0.038, 0.012, "z")
                     for i in range(3)))
    return [(box(p, (0, 0.5, 0), (0.27, 0.5, 0.045), 0.04), screen),
            (box(p, (-0.11, 0.82, 0.045), (0.11, 0.13, 0.02), 0.02), KEY_DARK), (lenses, RUBBER),
            (cylinder(p, (0, 0.45, 0.045), 0.06, 0.004, "z"), KEY_DARK)]


def flower(p: Points) -> list[Part]:
    """Six round petals about a contrasting heart, on a green stem with two leaves."""
    head = turned(shifted(p, (0, 0.78, 0.03)), "x", -25)
    petals = ellipsoid(sixfold(head), (0.17, 0, 0), (0.15, 0.09, 0.035)) * 0.8
    leaves = union(
        ellipsoid(turned(shifted(p, (0.14, 0.3, 0)), "z", 35), (0, 0, 0), (0.17, 0.05, 0.07)),
        ellipsoid(turned(shifted(p, (-0.12, 0.2, 0)), "z", -40), (0, 0, 0), (0.16, 0.05, 0.07)))
    stem = tube(p, [(0, 0.76, 0), (0.02, 0.4, 0), (0, 0, 0)], 0.022)
    return [(petals, KEY), (ellipsoid(head, (0, 0, 0.02), (0.085, 0.085, 0.05)), HEART),
            (union(stem, leaves), LEAF)]


def glove(p: Points) -> list[Part]:
    """A knitted hand held up: four fingers, a thumb held away, a ribbed cuff."""
    q = turned(p, "x", -10)
    fingers = [capsule(q, (x, 0.5, 0), (1.5 * x, top, 0), 0.068, 0.06)
               for x, top in ((-0.165, 0.82), (-0.055, 0.93), (0.055, 0.9), (0.165, 0.78))]
    thumb = capsule(q, (0.12, 0.34, 0.02), (0.36, 0.56, 0.05), 0.085, 0.066)
    palm = box(q, (0, 0.4, 0), (0.22, 0.2, 0.085), 0.08)
    hand = smooth_union(0.035, union(*fingers), smooth_union(0.06, palm, thumb))
    cuff = box(q, (0, 0.12, 0), (0.2, 0.12, 0.1), 0.05)

    def ribs(points: Points) -> np.ndarray:
        return np.where(np.mod(points.x, 0.075) < 0.025, KEY, KEY_DARK)

    return [(hand, KEY), (cuff, ribs)]


def key(p: Points) -> list[Part]:
    """A door key leaning back: a round bow with a hole, a long shaft, two teeth."""
    q = turned(turned(p, "x", -38), "z", -32)
    q = shifted(q, (0.0, 0.04, 0.04))
    bow = without(cylinder(q, (0, 0.78, 0), 0.24, 0.05, "z", 0.03),
                  cylinder(q, (0, 0.84, 0), 0.085, 0.2, "z"))
    shaft = box(q, (0, 0.3, 0), (0.062, 0.32, 0.045), 0.025)
    teeth = union(box(q, (0.12, 0.07, 0), (0.11, 0.05, 0.035), 0.015),
                  box(q, (0.1, 0.23, 0), (0.09, 0.045, 0.035), 0.015))
    return [(smooth_union(0.02, bow, shaft, teeth), KEY),
            (torus(q, (0, 0.78, 0), 0.17, 0.062, "z"), KEY_LIGHT)]


def wrench(p: Points) -> list[Part]:
    """An open-ended spanner leaning back: a flat bar between an open jaw and a ring."""
    q = turned(turned(p, "x", -40), "z", 52)
    q = shifted(q, (0.07, 0.68, 0.03))
    bar = box(q, (0, 0, 0), (0.075, 0.5, 0.045), 0.03)
    jaw = without(cylinder(q, (0, 0.55, 0), 0.21, 0.06, "z", 0.02),
                  box(turned(shifted(q, (0.03, 0.72, 0)), "z", -15), (0, 0, 0), (0.095, 0.2, 0.2)))
    ring = without(cylinder(q, (0, -0.55, 0), 0.17, 0.06, "z", 0.02),
                   cylinder(q, (0, -0.55, 0), 0.09, 0.2, "z"))
    groove = box(q, (0, 0, 0.04), (0.03, 0.34, 0.012))
    return [(smooth_union(0.04, bar, jaw, ring), KEY), (groove, KEY_DARK)]


# -- in the room -------------------------------------------------------------------------------

def clock(p: Points) -> list[Part]:
    """A wall clock: twelve ticks and two hands at ten past ten on a dial in the key color."""

    def dial(points: Points) -> np.ndarray:
        x, y = points.x, points.y - 0.5
        radius = length(x, y)
        off_tick = np.abs(segment_angle(y, x, 12)) * (np.pi / 6) * radius
        quarter = np.abs(segment_angle(y, x, 4)) < 0.1
        long_enough = (radius > np.where(quarter, 0.27, 0.31)) & (radius < 0.38)
        tick = long_enough & (off_tick < np.where(quarter, 0.028, 0.016))
        return np.where(tick, DETAIL, KEY)

    hands = union(capsule(p, (0, 0.5, 0.07), (-0.17, 0.6, 0.07), 0.026),
                  capsule(p, (0, 0.5, 0.07), (0.12, 0.8, 0.07), 0.02),
                  cylinder(p, (0, 0.5, 0.07), 0.045, 0.02, "z"))
    return [(cylinder(p, (0, 0.5, 0), 0.5, 0.05, "z", 0.02), dial),
            (torus(p, (0, 0.5, 0.03), 0.46, 0.05, "z"), KEY_DARK), (hands, DETAIL)]


def poster(p: Points) -> list[Part]:
    """A sheet with a light margin, a title bar, one disc and two lines of print."""

    def printed(points: Points) -> np.ndarray:
        x, y = np.abs(points.x), points.y
        margin = (x > 0.33) | (np.abs(y - 0.5) > 0.47)
        title = _between(y, 0.74, 0.84) & (x < 0.24)
        lines = _between(y, 0.12, 0.2) & (np.mod(y, 0.04) < 0.02) & (x < 0.2)
        disc = length(points.x, y - 0.46) < 0.16
        return np.where(margin | title | lines, DETAIL, np.where(disc, KEY_LIGHT, KEY))

    return [(box(p, (0, 0.5, 0), (0.36, 0.5, max(0.008, 0.5 * p.min_radius))), printed)]


def socket(p: Points) -> list[Part]:
    """A wall outlet: a square plate with a round recess and two dark pin holes."""
    plate = without(box(p, (0, 0.5, 0), (0.5, 0.5, 0.07), 0.05), cylinder(p, (0, 0.5, 0.13), 0.33, 0.13, "z"))
    holes = cylinder(mirrored(p, "x"), (0.14, 0.5, 0.0), 0.06, 0.012, "z")
    clips = box(mirrored(shifted(p, (0, 0.5, 0)), "y"), (0, 0.29, 0.02), (0.04, 0.05, 0.03))
    return [(plate, KEY), (torus(p, (0, 0.5, 0.06), 0.34, 0.022, "z"), KEY_DARK), (holes, RUBBER),
            (clips, METAL)]


def pillow(p: Points) -> list[Part]:
    """A stuffed square leaning back: fat in the middle, its four corners drawn out to tips."""
    q = shifted(turned(p, "x", -24), (0, 0.5, 0.0))
    u, v = np.minimum(np.abs(q.x) / 0.56, 1), np.minimum(np.abs(q.y) / 0.5, 1)
    pinch = 0.1
    edge = np.maximum(np.abs(q.x) - 0.56 + pinch * (1 - v * v), np.abs(q.y) - 0.5 + pinch * (1 - u * u))
    fullness = np.sqrt((1 - u ** 2.4) * (1 - v ** 2.4))
    body = np.maximum(np.abs(q.z) - 0.03 - 0.2 * fullness, edge) * 0.55

    def piping(points: Points) -> np.ndarray:
        local = shifted(turned(points, "x", -24), (0, 0.5, 0.0))
        return np.where(np.abs(local.z) < 0.022, KEY_DARK, KEY)

    return [(body, piping)]


def broom(p: Points) -> list[Part]:
    """A long stick into a fan of bristles, bound twice."""
    q = turned(p, "z", 7)
    stick = capsule(q, (0, 0.4, 0), (0, 1.45, 0), 0.04)
    fan = extruded(q, [(-0.32, 0.06), (0.32, 0.02), (0.16, 0.42), (0.07, 0.54), (-0.07, 0.54), (-0.16, 0.42)],
                   0.1, 0.02)
    bands = union(box(q, (0, 0.41, 0), (0.19, 0.022, 0.115), 0.01),
                  box(q, (0, 0.31, 0), (0.235, 0.02, 0.115), 0.01))

    def bristles(points: Points) -> np.ndarray:
        local = turned(points, "z", 7)
        strand = local.x / (0.34 - 0.44 * np.clip(local.y, 0, 0.5))
        return np.where((np.mod(strand, 0.22) < 0.06) & (local.y < 0.36), KEY_DARK, KEY)

    return [(fan, bristles), (stick, KEY), (bands, DETAIL), (sphere(q, (0, 1.47, 0), 0.05), KEY_DARK)]


def ball(p: Points) -> list[Part]:
    """A sphere with two seams."""

    def seams(points: Points) -> np.ndarray:
        return np.where(np.minimum(np.abs(points.x), np.abs(points.y - 0.4)) < 0.012, KEY_DARK, KEY)

    return [(sphere(p, (0, 0.4, 0), 0.4), seams)]


def chair(p: Points) -> list[Part]:
    """A kitchen chair: a square seat, an upright back, four thin legs."""
    side = mirrored(p)
    boards = union(box(p, (0, 0.45, 0), (0.25, 0.03, 0.25), 0.02),
                   box(turned(shifted(p, (-0.26, 0.8, 0)), "z", 8), (0, 0, 0), (0.02, 0.22, 0.24), 0.02))
    legs = union(capsule(side, (0.21, 0.44, 0.21), (0.23, 0.025, 0.22), 0.028),
                 capsule(side, (-0.22, 0.44, 0.21), (-0.25, 0.025, 0.22), 0.028),
                 capsule(side, (-0.23, 0.45, 0.2), (-0.27, 0.7, 0.2), 0.025))
    return [(boards, KEY), (legs, KEY_DARK)]
