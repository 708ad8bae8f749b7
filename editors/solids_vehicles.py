"""Vehicles for insertion (ReKey, Sec. 3.3): one function per noun, points in, parts out.

The front is at +x.  What names a vehicle at 50 pixels is the outline of its body and one emblem of
its trade (ladder, cross, gun, paddle); panels between dark wheels and glass carry the key color.

    parts = bus(Points(x, y, z))          # [(distance, material), ...]
"""

from __future__ import annotations

import numpy as np

from editors.sdf import (
    DETAIL,
    GLASS,
    KEY,
    KEY_DARK,
    KEY_LIGHT,
    METAL,
    RUBBER,
    Part,
    Points,
    box,
    capsule,
    cylinder,
    ellipsoid,
    extruded,
    half_space,
    intersection,
    length,
    mirrored,
    shifted,
    smooth_union,
    sphere,
    torus,
    tube,
    turned,
    union,
    without,
)

# -- wheels ------------------------------------------------------------------------------------

def _small_wheel(p: Points, center: tuple[float, float, float], radius: float, tire: float,
                 hub_width: float) -> list[Part]:
    """A rubber ring around a disc in the key color: dark wheels alone would outvote a thin frame."""
    return [(torus(p, center, radius - tire, tire), RUBBER),
            (cylinder(p, center, radius - 1.5 * tire, hub_width * 1.05, "z"), KEY)]


def _road_wheels(p: Points, centers_x: tuple[float, ...], radius: float, track: float,
                 half_width: float = 0.08) -> list[Part]:
    """Tires and metal hubs on both sides at z = +-track."""
    side = mirrored(p)
    tires = [cylinder(side, (x, radius, track), radius, half_width, "z", rounding=0.03) for x in centers_x]
    hubs = [cylinder(side, (x, radius, track), radius * 0.55, half_width + 0.01, "z") for x in centers_x]
    return [(union(*tires), RUBBER), (union(*hubs), METAL)]


def _between(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return (values > low) & (values < high)


def _panes(x: np.ndarray, start: float, pitch: float, pane: float) -> np.ndarray:
    """True on window panes of width `pane`, repeated every `pitch` from `start`."""
    return np.mod(x - start, pitch) < pane


# -- people's wheels ---------------------------------------------------------------------------

def scooter(p: Points) -> list[Part]:
    """The kick scooter: a low deck, a raked stem, a T bar with dark grips, two small wheels."""
    fender = intersection(np.abs(length(p.x + 0.5, p.y - 0.11) - 0.15) - 0.018, np.abs(p.z) - 0.06,
                          0.13 - p.y)
    frame = union(
        box(p, (-0.06, 0.13, 0), (0.38, 0.045, 0.11), 0.04),
        capsule(p, (0.24, 0.14, 0), (0.42, 0.32, 0), 0.055),
        capsule(p, (0.46, 0.12, 0), (0.31, 1.04, 0), 0.052),
        capsule(p, (-0.38, 0.14, 0), (-0.5, 0.12, 0), 0.04),
        fender,
        capsule(p, (0.3, 1.04, -0.2), (0.3, 1.04, 0.2), 0.036))
    grips = capsule(p, (0.3, 1.04, -0.29), (0.3, 1.04, 0.29), 0.036) - 0.008
    return [*_small_wheel(p, (-0.5, 0.11, 0), 0.11, 0.034, 0.05),
            *_small_wheel(p, (0.46, 0.11, 0), 0.11, 0.034, 0.05), (frame, KEY), (grips, RUBBER)]


def stroller(p: Points) -> list[Part]:
    """A half-egg tub under a ribbed quarter hood, on four wheels, with a dark push bar."""
    side = mirrored(p)
    hip = (0, 0.72, 0)
    height = p.y - 0.72
    tub = ellipsoid(p, hip, (0.5, 0.42, 0.27))
    tub = intersection(tub, height, -(tub + 0.03))
    hood = intersection(np.abs(ellipsoid(p, hip, (0.5, 0.5, 0.27)) + 0.02) - 0.018, -height,
                        p.x * 0.9 + height * 0.35 - 0.1)

    def ribs(points: Points) -> np.ndarray:
        angle = np.degrees(np.arctan2(points.y - 0.72, -points.x))
        return np.where(np.abs(np.mod(angle + 2, 30) - 2) < 3, KEY_DARK, KEY)

    frame = union(
        capsule(side, (-0.32, 0.13, 0.22), (0.2, 0.42, 0.2), 0.02),
        capsule(side, (0.34, 0.13, 0.22), (-0.2, 0.42, 0.2), 0.02),
        tube(side, [(-0.36, 0.66, 0.25), (-0.56, 0.98, 0.25), (-0.66, 1.06, 0.22)], 0.02),
        capsule(p, (-0.66, 1.06, -0.22), (-0.66, 1.06, 0.22), 0.034))
    return [*_small_wheel(side, (-0.32, 0.13, 0.24), 0.13, 0.032, 0.02),
            *_small_wheel(side, (0.34, 0.13, 0.24), 0.13, 0.032, 0.02),
            (tub, KEY), (hood, ribs), (frame, RUBBER),
            (ellipsoid(p, (0.18, 0.68, 0), (0.27, 0.1, 0.21)), KEY_LIGHT)]


def bicycle(p: Points) -> list[Part]:
    """Two large thin wheels, a diamond frame, saddle and handlebar; rims and mudguards in the key color."""
    side = mirrored(p)
    rear, front, hub_y = -0.52, 0.53, 0.34

    def rod(a: tuple[float, float], b: tuple[float, float], radius: float = 0.038) -> np.ndarray:
        return capsule(p, (*a, 0), (*b, 0), radius)

    def mudguard(x: float) -> np.ndarray:
        return intersection(np.abs(length(p.x - x, p.y - hub_y) - 0.375) - 0.014, np.abs(p.z) - 0.05,
                            0.36 - p.y)

    tubes = union(
        rod((-0.05, 0.31), (-0.19, 0.8)), rod((-0.16, 0.72), (0.34, 0.75)),
        rod((0.36, 0.68), (-0.05, 0.31), 0.046), rod((0.33, 0.86), (0.38, 0.66), 0.034),
        capsule(side, (-0.05, 0.31, 0.03), (rear, hub_y, 0.05), 0.02),
        capsule(side, (-0.16, 0.72, 0.03), (rear, hub_y, 0.05), 0.018),
        capsule(side, (0.38, 0.66, 0.04), (front, hub_y, 0.05), 0.022))
    rims = union(*(torus(p, (x, hub_y, 0), 0.268, 0.024) for x in (rear, front)))
    tires = union(*(torus(p, (x, hub_y, 0), 0.318, 0.022) for x in (rear, front)))
    chain_guard = box(turned(shifted(p, (-0.28, 0.34, 0.06)), "z", -2), (0, 0, 0), (0.26, 0.05, 0.012), 0.01)
    bar = union(capsule(p, (0.33, 0.86, 0), (0.3, 0.95, 0), 0.024),
                tube(side, [(0.3, 0.95, 0), (0.31, 0.96, 0.14), (0.22, 0.95, 0.24)], 0.022))
    pedals = union(capsule(p, (-0.05, 0.31, 0.05), (0.03, 0.18, 0.07), 0.016),
                   capsule(p, (0.03, 0.18, 0.06), (0.03, 0.18, 0.13), 0.02))
    return [(union(tubes, rims, mudguard(rear), mudguard(front), chain_guard), KEY), (tires, RUBBER),
            (ellipsoid(p, (-0.21, 0.84, 0), (0.13, 0.035, 0.06)), RUBBER), (bar, METAL),
            (cylinder(p, (-0.05, 0.31, 0.03), 0.075, 0.012, "z"), METAL), (pedals, RUBBER)]


def motorcycle(p: Points) -> list[Part]:
    """Fat tires, a bulging tank before a dark seat, raked fork with a round lamp, a long exhaust."""
    side = mirrored(p)
    rear, front, hub_y = -0.58, 0.62, 0.28
    tires = union(*(torus(p, (x, hub_y, 0), 0.215, 0.068) for x in (rear, front)))
    rims = union(*(cylinder(p, (x, hub_y, 0), 0.165, 0.05, "z") for x in (rear, front)))
    tank = smooth_union(
        0.08,
        ellipsoid(turned(shifted(p, (0.12, 0.7, 0)), "z", 10), (0, 0, 0), (0.3, 0.15, 0.16)),
        ellipsoid(p, (0.24, 0.6, 0), (0.16, 0.14, 0.15)))
    tail = smooth_union(
        0.06,
        capsule(p, (-0.3, 0.58, 0), (-0.84, 0.72, 0), 0.14, 0.07),
        ellipsoid(p, (-0.28, 0.48, 0), (0.16, 0.13, 0.14)))
    belly = extruded(p, [(-0.24, 0.22), (0.24, 0.18), (0.36, 0.4), (0.3, 0.54), (0.1, 0.4), (-0.22, 0.34)],
                     0.15, 0.03)
    guards = intersection(
        np.abs(length(p.x - front, p.y - hub_y) - 0.32) - 0.025, np.abs(p.z) - 0.1,
        half_space(p, (front, hub_y), (0.25, -1)) + 0.1)
    cowl = ellipsoid(turned(shifted(p, (0.42, 0.84, 0)), "z", -28), (0, 0, 0), (0.14, 0.17, 0.15))
    seat = smooth_union(0.05, capsule(p, (-0.16, 0.71, 0), (-0.42, 0.73, 0), 0.105),
                        capsule(p, (-0.42, 0.75, 0), (-0.68, 0.84, 0), 0.1, 0.07))
    engine = box(p, (-0.04, 0.44, 0), (0.2, 0.12, 0.11), 0.04)
    metal = union(
        tube(p, [(0.2, 0.34, 0.13), (0.1, 0.2, 0.16), (-0.3, 0.22, 0.18)], 0.035),
        capsule(p, (-0.3, 0.22, 0.18), (-0.74, 0.3, 0.18), 0.045, 0.055))
    fork = capsule(side, (0.36, 0.86, 0.1), (front, hub_y, 0.12), 0.042)
    bar = tube(side, [(0.34, 0.96, 0), (0.33, 1.0, 0.2), (0.2, 0.98, 0.32)], 0.028)
    return [(union(tank, tail, belly, guards, cowl, fork), KEY), (rims, KEY), (tires, RUBBER), (seat, RUBBER),
            (engine, METAL), (metal, METAL), (bar, RUBBER), (sphere(p, (0.53, 0.84, 0), 0.085), DETAIL)]


def wheelchair(p: Points) -> list[Part]:
    """A seat between two large wheels, small casters before them, push handles, a foot rest."""
    side = mirrored(p)
    wheel = shifted(side, (-0.12, 0.36, 0.31))
    tires = torus(wheel, (0, 0, 0), 0.34, 0.026)
    wheels = union(torus(wheel, (0, 0, 0), 0.29, 0.02), cylinder(wheel, (0, 0, 0), 0.06, 0.03, "z"))
    spokes = union(*(capsule(wheel, (-x, -y, 0), (x, y, 0), 0.006)
                     for x, y in ((0.28, 0), (0, 0.28), (0.2, 0.2), (0.2, -0.2))))
    cloth = union(
        box(p, (0.06, 0.5, 0), (0.3, 0.045, 0.25), 0.03),
        box(turned(shifted(p, (-0.27, 0.76, 0)), "z", 6), (0, 0, 0), (0.035, 0.27, 0.25), 0.03),
        box(side, (0.04, 0.62, 0.26), (0.22, 0.1, 0.02), 0.015))
    frame = union(
        tube(side, [(-0.26, 0.5, 0.25), (-0.32, 1.02, 0.25), (-0.46, 1.04, 0.25)], 0.026),
        tube(side, [(0.34, 0.5, 0.22), (0.46, 0.18, 0.22), (0.46, 0.1, 0.22)], 0.024))
    pads = union(box(side, (0, 0.745, 0.26), (0.24, 0.025, 0.035), 0.02),
                 box(side, (0.56, 0.1, 0.12), (0.11, 0.02, 0.09), 0.01),
                 torus(side, (0.32, 0.1, 0.27), 0.07, 0.03))
    return [(cloth, KEY), (wheels, KEY), (tires, RUBBER), (spokes, METAL), (frame, KEY), (pads, RUBBER)]


# -- road traffic ------------------------------------------------------------------------------

def car(p: Points) -> list[Part]:
    """A sedan: low hood and trunk, a rounded cabin of glass between them."""
    outline = [(-0.94, 0.2), (0.94, 0.2), (0.97, 0.36), (0.86, 0.45), (0.4, 0.52), (-0.62, 0.53),
               (-0.93, 0.49), (-0.97, 0.36)]
    body = extruded(p, outline, 0.37, 0.05)
    lean = p._replace(z=p.z * (1 + 0.55 * np.clip(p.y - 0.5, 0, 0.35)))
    cabin = extruded(lean, [(-0.7, 0.5), (0.46, 0.5), (0.16, 0.75), (-0.42, 0.76)], 0.33, 0.05) * 0.85
    arches = union(*(cylinder(mirrored(p), (x, 0.19, 0.4), 0.225, 0.12, "z") for x in (-0.58, 0.6)))

    def windows(points: Points) -> np.ndarray:
        x, y, z = points.x, points.y, np.abs(points.z)
        glass = _between(y, 0.56, 0.755)
        sides = _between(x - 0.8 * (0.76 - y), -0.99 + 0.72 * y, 0.12) & (np.abs(x + 0.13) > 0.025)
        screens = (z < 0.27) & ((x > 0.16) | (x < -0.44))
        return np.where(glass & ((sides & (z > 0.27)) | screens), GLASS, KEY)

    lamps = ellipsoid(mirrored(p), (0.94, 0.42, 0.28), (0.08, 0.05, 0.09))
    bumpers = box(p, (0, 0.24, 0), (1.0, 0.045, 0.36), 0.03)
    return [(without(smooth_union(0.03, body, cabin), arches), windows),
            *_road_wheels(p, (-0.58, 0.6), 0.19, 0.33), (lamps, DETAIL), (bumpers, KEY_DARK)]


def suv(p: Points) -> list[Part]:
    """A tall box of a car: the roof runs straight back over three side windows."""
    side = mirrored(p)
    narrow = 1 - 0.28 * np.maximum(p.y - 0.5, 0)
    body = box(p, (0, 0.36, 0), (0.85, 0.2, 0.36), 0.09)
    cabin_frame = p._replace(x=(p.x + 0.12 + 0.25 * np.maximum(p.y - 0.5, 0)) / narrow, z=p.z / narrow)
    cabin = box(cabin_frame, (0, 0.6, 0), (0.6, 0.26, 0.34), 0.1) * 0.85

    def windows(points: Points) -> np.ndarray:
        pane = np.abs(np.mod(points.x + 0.72, 0.4) - 0.2) < 0.175
        return np.where(_between(points.y, 0.57, 0.79) & (pane | (np.abs(points.z) < 0.22)), GLASS, KEY)

    return [(smooth_union(0.03, body, cabin), windows), *_road_wheels(p, (-0.48, 0.5), 0.17, 0.3, 0.07),
            (sphere(side, (0.83, 0.4, 0.24), 0.06), DETAIL),
            (box(p, (0, 0.17, 0), (0.87, 0.05, 0.33), 0.03), RUBBER)]


def bus(p: Points) -> list[Part]:
    """A long upright box: one row of windows from end to end, a tall windshield, a door."""
    body = box(p, (0, 0.52, 0), (1.15, 0.4, 0.32), 0.07)

    def windows(points: Points) -> np.ndarray:
        x, y, z = points.x, points.y, np.abs(points.z)
        row = _between(y, 0.55, 0.76) & _panes(x, -1.08, 0.3, 0.255) & (np.abs(x) < 1.07) & (z > 0.28)
        leaves = _between(np.abs(x - 0.89), 0.015, 0.11)
        door = _between(y, 0.17, 0.76) & leaves & (points.z > 0.28)
        screen = _between(y, 0.42, 0.76) & (z < 0.28) & (np.abs(x) > 1.12)
        board = _between(y, 0.8, 0.88) & (z < 0.22) & (x > 1.12)
        stripe = _between(y, 0.4, 0.44) & (z > 0.28) & (x < 0.78)
        return np.where(row | door | screen, GLASS, np.where(board | stripe, DETAIL, KEY))

    arches = union(*(cylinder(mirrored(p), (x, 0.16, 0.34), 0.2, 0.1, "z") for x in (-0.66, 0.62)))
    lamps = sphere(mirrored(p), (1.12, 0.28, 0.24), 0.055)
    return [(without(body, arches), windows), *_road_wheels(p, (-0.66, 0.62), 0.165, 0.27, 0.05),
            (lamps, DETAIL)]


def _cab(p: Points, front: float, roof: float) -> tuple[np.ndarray, Part]:
    """A flat-nosed truck cab ending at x = front: its distance, and its windows."""
    outline = [(front - 0.52, 0.2), (front - 0.03, 0.2), (front - 0.03, 0.5), (front - 0.09, roof),
               (front - 0.52, roof)]
    windshield = box(p, (front - 0.02, 0.5 * (roof + 0.48), 0), (0.05, 0.5 * (roof - 0.56), 0.27), 0.02)
    door_glass = box(p, (front - 0.25, 0.5 * (roof + 0.5), 0), (0.14, 0.5 * (roof - 0.58), 0.362), 0.02)
    return extruded(p, outline, 0.35, 0.03), (union(windshield, door_glass), GLASS)


def _beacons(p: Points, x: float, y: float) -> Part:
    return box(p, (x, y, 0), (0.07, 0.05, 0.24), 0.03), DETAIL


def fire_truck(p: Points) -> list[Part]:
    """A ladder lies along the roof past the cab; lockers with shutters, a light stripe, a beacon."""
    cab, glass = _cab(p, 1.1, 0.86)
    body = box(p, (-0.28, 0.52, 0), (0.82, 0.3, 0.36), 0.03)
    lift = turned(shifted(p, (-0.95, 0.9, 0)), "z", 7)
    rails = capsule(mirrored(lift), (0.0, 0, 0.14), (2.1, 0, 0.14), 0.034)
    spaced = lift._replace(x=np.mod(lift.x, 0.2) - 0.1)
    rungs = intersection(capsule(spaced, (0, 0, -0.14), (0, 0, 0.14), 0.022), np.abs(lift.x - 1.05) - 1.04)

    def lockers(points: Points) -> np.ndarray:
        x, y, z = points.x, points.y, np.abs(points.z)
        shutter = _between(y, 0.52, 0.72) & _panes(x, -1.0, 0.52, 0.38) & _between(x, -0.5, 0.45) & (z > 0.34)
        stripe = _between(y, 0.37, 0.43) & (z > 0.34)
        return np.where(shutter, METAL, np.where(stripe, DETAIL, KEY))

    turntable = cylinder(p, (-0.7, 0.85, 0), 0.2, 0.06)
    return [(union(body, cab), lockers), glass, (union(rails, rungs), METAL), (turntable, KEY_DARK),
            (box(p, (0, 0.2, 0), (1.08, 0.07, 0.3), 0.02), RUBBER),
            *_road_wheels(p, (-0.62, 0.72), 0.2, 0.31), _beacons(p, 0.9, 0.92)]


def ambulance(p: Points) -> list[Part]:
    """A van with a tall box behind a sloping nose: a cross on the side, a light bar on the roof."""
    box_body = box(p, (-0.3, 0.56, 0), (0.66, 0.42, 0.36), 0.05)
    nose = extruded(p, [(0.2, 0.18), (0.92, 0.18), (0.94, 0.42), (0.62, 0.52), (0.42, 0.8), (0.2, 0.8)],
                    0.34, 0.04)

    def marks(points: Points) -> np.ndarray:
        x, y, z = points.x, points.y, np.abs(points.z)
        u, v = np.abs(x + 0.34), np.abs(y - 0.66)
        cross = (np.minimum(u, v) < 0.06) & (np.maximum(u, v) < 0.18) & (z > 0.34)
        stripe = _between(y, 0.34, 0.4) & (z > 0.32)
        return np.where(cross | stripe, DETAIL, KEY)

    def glazing(points: Points) -> np.ndarray:
        x, y, z = points.x, points.y, np.abs(points.z)
        screen = (z < 0.29) & (y > 0.54) & (y < 0.8) & (x > 0.42)
        door = (z > 0.3) & _between(y, 0.54, 0.76) & (x > 0.3) & (x < 0.94 - 0.72 * y)
        return np.where(screen | door, GLASS, marks(points))

    return [(box_body, marks), (nose, glazing), _beacons(p, 0.26, 1.02),
            (sphere(mirrored(p), (0.94, 0.36, 0.26), 0.055), DETAIL),
            *_road_wheels(p, (-0.55, 0.58), 0.19, 0.31)]


def garbage_truck(p: Points) -> list[Part]:
    """A high ribbed hopper that slopes off at the rear over a dark loading mouth, behind a cab."""
    cab, glass = _cab(p, 1.1, 0.82)
    hopper = extruded(p, [(-0.7, 0.32), (0.48, 0.32), (0.48, 1.0), (-0.5, 1.08), (-0.78, 0.96)], 0.35, 0.03)
    tail = extruded(p, [(-0.7, 0.3), (-1.0, 0.3), (-1.1, 0.5), (-0.82, 1.02), (-0.7, 1.0)], 0.37, 0.03)
    mouth = box(turned(shifted(p, (-1.05, 0.5, 0)), "z", -22), (0, 0, 0), (0.14, 0.17, 0.3), 0.02)

    def ribs(points: Points) -> np.ndarray:
        rib = _panes(points.x, -0.66, 0.22, 0.06) & (points.x < 0.46) & (points.y > 0.36)
        return np.where(rib, KEY_DARK, KEY)

    return [(hopper, ribs), (cab, KEY), glass, (without(tail, mouth), KEY),
            (box(p, (0, 0.22, 0), (1.06, 0.08, 0.3), 0.02), RUBBER),
            (box(p, (-0.96, 0.5, 0), (0.05, 0.17, 0.3)), RUBBER),
            *_road_wheels(p, (-0.62, -0.2, 0.74), 0.19, 0.31)]


def food_truck(p: Points) -> list[Part]:
    """A tall step van whose side opens into a counter under a striped awning."""
    body = extruded(p, [(-1.0, 0.2), (1.0, 0.2), (1.02, 0.5), (0.9, 0.98), (-1.0, 0.98)], 0.4, 0.04)
    hatch = box(p, (-0.22, 0.68, 0.42), (0.46, 0.15, 0.06), 0.01)
    awning = box(turned(shifted(p, (-0.22, 0.84, 0.56)), "x", 24), (0, 0, 0), (0.54, 0.02, 0.2), 0.01)
    counter = box(p, (-0.22, 0.5, 0.5), (0.5, 0.03, 0.1), 0.01)

    def windows(points: Points) -> np.ndarray:
        x, y, z = points.x, points.y, np.abs(points.z)
        screen = (x > 0.9) & _between(y, 0.58, 0.9) & (z < 0.33)
        door = _between(x, 0.56, 0.84) & _between(y, 0.56, 0.86) & (z > 0.38)
        return np.where(screen | door, GLASS, KEY)

    def awning_stripes(points: Points) -> np.ndarray:
        return np.where(_panes(points.x, -0.76, 0.24, 0.12), KEY, DETAIL)

    lamps = sphere(mirrored(p), (1.04, 0.34, 0.28), 0.06)
    return [(without(body, hatch), windows), (box(p, (-0.22, 0.68, 0.37), (0.46, 0.15, 0.012)), RUBBER),
            (awning, awning_stripes), (counter, METAL), (lamps, DETAIL),
            (box(p, (0, 0.2, 0), (1.0, 0.05, 0.34), 0.02), RUBBER),
            *_road_wheels(p, (-0.6, 0.62), 0.19, 0.34)]


def tank(p: Points) -> list[Part]:
    """The armored one: a turret with a long gun above two tracks, plates covering their upper run."""
    side = mirrored(p)
    track_outline = [(-0.74, 0.05), (0.62, 0.05), (0.84, 0.24), (0.78, 0.36), (-0.82, 0.36), (-0.9, 0.24)]
    track = extruded(side, track_outline, 0.13, 0.04, center_z=0.38)
    road_wheels = union(*(cylinder(side, (x, 0.15, 0.5), 0.105, 0.05, "z", 0.02)
                          for x in (-0.62, -0.37, -0.12, 0.13, 0.38, 0.6)))
    hull = extruded(p, [(-0.86, 0.24), (0.6, 0.2), (0.96, 0.36), (0.62, 0.5), (-0.86, 0.52)], 0.4, 0.03)
    skirts = box(side, (-0.04, 0.4, 0.42), (0.88, 0.09, 0.13), 0.03)
    turret_frame = p._replace(z=p.z * (1 + 0.5 * np.clip(p.y - 0.5, 0, 0.4)))
    turret_outline = [(-0.58, 0.52), (0.34, 0.52), (0.42, 0.64), (0.16, 0.8), (-0.5, 0.8), (-0.62, 0.7)]
    turret = extruded(turret_frame, turret_outline, 0.34, 0.04) * 0.9
    gun = union(capsule(p, (0.3, 0.67, 0), (1.34, 0.74, 0), 0.05, 0.042),
                capsule(p, (1.24, 0.733, 0), (1.36, 0.741, 0), 0.065))
    hatch = cylinder(p, (-0.26, 0.86, 0.1), 0.13, 0.04, "y", 0.02)
    aerial = capsule(p, (-0.5, 0.8, -0.2), (-0.56, 1.2, -0.2), 0.008)
    return [(union(smooth_union(0.02, hull, skirts), turret), KEY), (gun, KEY), (road_wheels, KEY_DARK),
            (track, RUBBER), (hatch, KEY_DARK), (aerial, RUBBER)]
