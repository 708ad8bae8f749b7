"""Animals for insertion (ReKey, Sec. 3.3): one function per noun, points in, parts out.

At 50 pixels an animal is its silhouette: ears, muzzle, tail, the pose its name brings to mind.
Every animal looks along +x; heads are turned a little toward the viewer.

    parts = cat(Points(x, y, z))          # [(distance, material), ...]
"""

from __future__ import annotations

import numpy as np

from editors.sdf import (
    BEAK,
    DETAIL,
    EYE,
    KEY,
    KEY_DARK,
    KEY_LIGHT,
    NOSE,
    RUBBER,
    SKIN,
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
    sphere,
    torus,
    tube,
    turned,
    union,
    without,
)


def cat(p: Points) -> list[Part]:
    """Sitting upright: two pointed ears, a raised curling tail, the face turned to the viewer."""
    side = mirrored(p)
    body = smooth_union(
        0.12,
        ellipsoid(p, (-0.13, 0.25, 0), (0.27, 0.25, 0.21)),
        capsule(p, (-0.02, 0.3, 0), (0.13, 0.6, 0), 0.18, 0.12),
        capsule(side, (0.15, 0.45, 0.07), (0.21, 0.05, 0.07), 0.07, 0.05),
        ellipsoid(side, (0.06, 0.06, 0.17), (0.17, 0.06, 0.07)))
    paws = ellipsoid(side, (0.24, 0.035, 0.075), (0.075, 0.04, 0.055))
    tail = tube(p, [(-0.34, 0.1, 0), (-0.48, 0.13, 0.02), (-0.56, 0.24, 0.03), (-0.58, 0.38, 0.03),
                    (-0.53, 0.5, 0.03), (-0.44, 0.56, 0.03)], 0.052, 0.036)
    face = turned(shifted(p, (0.17, 0.77, 0)), "y", -38)
    face_side = mirrored(face)
    head = smooth_union(
        0.05,
        ellipsoid(face, (0, 0, 0), (0.155, 0.145, 0.17)),
        ellipsoid(face_side, (0.12, -0.055, 0.035), (0.07, 0.05, 0.055)),
        capsule(face_side, (-0.03, 0.09, 0.1), (-0.05, 0.23, 0.135), 0.075, 0.012))
    eyes = sphere(face_side, (0.128, 0.025, 0.075), 0.028)
    nose = sphere(face, (0.19, -0.035, 0), 0.022)
    return [(smooth_union(0.06, smooth_union(0.05, body, paws, tail), head), KEY), (eyes, EYE), (nose, SKIN)]


def dog(p: Points) -> list[Part]:
    """Standing: a long muzzle with a black nose, hanging ears, a raised tail, a collar."""
    side = mirrored(p)
    trunk = smooth_union(
        0.1,
        capsule(p, (-0.3, 0.56, 0), (0.2, 0.57, 0), 0.135, 0.18),
        capsule(p, (0.22, 0.64, 0), (0.4, 0.88, 0), 0.13, 0.1),
        capsule(side, (-0.33, 0.5, 0.09), (-0.38, 0.28, 0.1), 0.12, 0.06))
    legs = union(
        capsule(side, (0.22, 0.48, 0.1), (0.23, 0.05, 0.1), 0.075, 0.045),
        capsule(side, (-0.38, 0.29, 0.1), (-0.35, 0.05, 0.1), 0.055, 0.045),
        ellipsoid(side, (0.26, 0.035, 0.1), (0.075, 0.04, 0.055)),
        ellipsoid(side, (-0.32, 0.035, 0.1), (0.075, 0.04, 0.055)))
    head = smooth_union(
        0.06,
        ellipsoid(p, (0.46, 0.96, 0), (0.15, 0.125, 0.125)),
        capsule(p, (0.55, 0.91, 0), (0.7, 0.88, 0), 0.08, 0.06))
    tail = tube(p, [(-0.42, 0.62, 0), (-0.54, 0.71, 0), (-0.61, 0.83, 0), (-0.63, 0.96, 0)], 0.05, 0.025)
    ears = ellipsoid(side, (0.39, 0.92, 0.13), (0.07, 0.14, 0.035))
    eyes = sphere(side, (0.565, 1.0, 0.085), 0.022)
    collar = torus(turned(shifted(p, (0.34, 0.78, 0)), "z", -35), (0, 0, 0), 0.125, 0.022, "y")
    return [(smooth_union(0.06, smooth_union(0.05, trunk, legs), head, tail), KEY), (ears, KEY_DARK),
            (sphere(p, (0.755, 0.905, 0), 0.036), NOSE), (eyes, EYE), (collar, RUBBER)]


def mouse(p: Points) -> list[Part]:
    """Low on the ground: big round ears and a long thin pink tail."""
    side = mirrored(p)
    body = smooth_union(
        0.06,
        ellipsoid(p, (-0.05, 0.22, 0), (0.38, 0.22, 0.22)),
        ellipsoid(p, (0.3, 0.2, 0), (0.2, 0.13, 0.13)))
    ears = cylinder(side, (0.16, 0.4, 0.15), 0.13, 0.02, "x", rounding=0.015)
    tail = tube(p, [(-0.4, 0.1, 0), (-0.65, 0.06, 0.1), (-0.85, 0.1, -0.05), (-1.0, 0.2, 0)], 0.028, 0.015)
    return [(body, KEY), (ears, KEY_DARK), (tail, SKIN), (sphere(p, (0.5, 0.22, 0), 0.035), SKIN),
            (sphere(side, (0.36, 0.29, 0.1), 0.028), EYE)]


def rabbit(p: Points) -> list[Part]:
    """Crouching with two tall ears, a round haunch and a white tail."""
    side = mirrored(p)
    body = smooth_union(
        0.1,
        ellipsoid(p, (-0.12, 0.26, 0), (0.32, 0.26, 0.22)),
        ellipsoid(side, (-0.17, 0.19, 0.14), (0.2, 0.19, 0.11)),
        capsule(side, (0.14, 0.25, 0.08), (0.2, 0.05, 0.08), 0.09, 0.05),
        capsule(side, (-0.2, 0.05, 0.16), (0.04, 0.05, 0.17), 0.05))
    face = turned(shifted(p, (0.2, 0.56, 0)), "y", -25)
    face_side = mirrored(face)
    head = smooth_union(
        0.06,
        ellipsoid(face, (0, 0, 0), (0.18, 0.15, 0.145)),
        ellipsoid(face, (0.11, -0.04, 0), (0.09, 0.08, 0.09)))
    ear = turned(turned(shifted(face_side, (-0.1, 0.34, 0.085)), "z", 14), "x", 9)
    ears = ellipsoid(ear, (0, 0, 0), (0.045, 0.27, 0.07))
    inner = ellipsoid(ear, (0.031, 0, 0), (0.025, 0.2, 0.04))
    return [(smooth_union(0.07, body, smooth_union(0.03, head, ears)), KEY), (inner, SKIN),
            (sphere(p, (-0.44, 0.2, 0), 0.095), DETAIL), (sphere(face_side, (0.1, 0.04, 0.108), 0.03), EYE),
            (sphere(face, (0.195, -0.015, 0), 0.024), SKIN)]


def squirrel(p: Points) -> list[Part]:
    """Upright with paws before the chest, under a tail as large as the body and curled at the tip."""
    side = mirrored(p)
    body = smooth_union(
        0.08,
        ellipsoid(turned(shifted(p, (0.02, 0.28, 0)), "z", -12), (0, 0, 0), (0.17, 0.28, 0.16)),
        ellipsoid(side, (0.0, 0.13, 0.12), (0.17, 0.13, 0.09)),
        capsule(side, (-0.05, 0.035, 0.13), (0.2, 0.035, 0.13), 0.04),
        capsule(side, (0.14, 0.4, 0.1), (0.28, 0.35, 0.04), 0.05, 0.035))
    head = smooth_union(
        0.05,
        ellipsoid(p, (0.15, 0.62, 0), (0.15, 0.125, 0.12)),
        ellipsoid(p, (0.26, 0.59, 0), (0.08, 0.06, 0.06)),
        capsule(side, (0.08, 0.71, 0.075), (0.05, 0.82, 0.09), 0.04, 0.012))
    tail = smooth_union(
        0.12,
        tube(p, [(-0.14, 0.12, 0), (-0.34, 0.16, 0), (-0.44, 0.38, 0), (-0.4, 0.64, 0), (-0.36, 0.82, 0),
                 (-0.44, 0.96, 0), (-0.56, 0.93, 0)], 0.11, 0.12, blend=0.14),
        ellipsoid(p, (-0.43, 0.5, 0), (0.14, 0.26, 0.15)))
    return [(smooth_union(0.06, body, head), KEY), (tail, KEY_DARK),
            (sphere(side, (0.22, 0.65, 0.092), 0.027), EYE), (sphere(p, (0.345, 0.6, 0), 0.022), NOSE),
            (ellipsoid(p, (0.31, 0.34, 0), (0.05, 0.06, 0.05)), WOOD)]


def bird(p: Points) -> list[Part]:
    """A songbird on two thin legs: round breast, pointed beak, tail held straight back."""
    side = mirrored(p)
    body = ellipsoid(turned(shifted(p, (0, 0.42, 0)), "z", 22), (0, 0, 0), (0.32, 0.2, 0.19))
    head = ellipsoid(p, (0.27, 0.66, 0), (0.15, 0.145, 0.14))
    tail = ellipsoid(turned(shifted(p, (-0.42, 0.26, 0)), "z", 25), (0, 0, 0), (0.28, 0.035, 0.09))
    wings = ellipsoid(turned(shifted(side, (-0.1, 0.42, 0.17)), "z", 24), (0, 0, 0), (0.3, 0.13, 0.045))
    legs = union(
        capsule(side, (0.03, 0.26, 0.08), (0.06, 0.015, 0.09), 0.018),
        capsule(side, (0.0, 0.015, 0.09), (0.14, 0.015, 0.09), 0.014))
    return [(smooth_union(0.1, body, head, tail), KEY), (wings, KEY_DARK),
            (capsule(p, (0.4, 0.66, 0), (0.52, 0.64, 0), 0.045, 0.01), BEAK),
            (sphere(side, (0.36, 0.7, 0.105), 0.025), EYE), (legs, BEAK)]


def gliding_bird(p: Points) -> list[Part]:
    """The same bird in the air: wings spread along z with an elbow, tail fanned, no legs."""
    side = mirrored(p)
    body = smooth_union(
        0.06,
        ellipsoid(p, (0, 0.3, 0), (0.32, 0.125, 0.12)),
        sphere(p, (0.29, 0.34, 0), 0.1),
        ellipsoid(p, (-0.36, 0.3, 0), (0.2, 0.024, 0.13)))
    inner_wing = ellipsoid(turned(shifted(side, (0.03, 0.42, 0.26)), "x", -32), (0, 0, 0),
                           (0.19, 0.03, 0.26))
    outer_wing = ellipsoid(turned(turned(shifted(side, (-0.07, 0.54, 0.64)), "x", -8), "y", -16), (0, 0, 0),
                           (0.145, 0.026, 0.3))
    return [(body, KEY), (smooth_union(0.05, inner_wing, outer_wing), KEY),
            (capsule(p, (0.36, 0.335, 0), (0.46, 0.32, 0), 0.035, 0.01), BEAK),
            (sphere(side, (0.335, 0.365, 0.075), 0.02), EYE)]


def duck(p: Points) -> list[Part]:
    """The rubber duck: round head on a plump body, orange bill, tail tipped up."""
    side = mirrored(p)
    body = smooth_union(
        0.08,
        ellipsoid(p, (0, 0.26, 0), (0.4, 0.25, 0.28)),
        capsule(p, (-0.3, 0.34, 0), (-0.46, 0.5, 0), 0.1, 0.03),
        capsule(p, (0.2, 0.4, 0), (0.22, 0.6, 0), 0.13, 0.12),
        sphere(p, (0.24, 0.66, 0), 0.19))
    wings = ellipsoid(turned(shifted(side, (-0.06, 0.3, 0.25)), "z", -12), (0, 0, 0), (0.22, 0.12, 0.05))
    return [(body, KEY), (wings, KEY_DARK), (ellipsoid(p, (0.45, 0.63, 0), (0.12, 0.04, 0.09)), BEAK),
            (sphere(side, (0.36, 0.73, 0.13), 0.032), EYE)]


def swan(p: Points) -> list[Part]:
    """A long neck bent like an S over a low body, the wings folded along its sides."""
    side = mirrored(p)
    body = smooth_union(
        0.12,
        ellipsoid(p, (-0.05, 0.22, 0), (0.46, 0.22, 0.26)),
        capsule(p, (-0.42, 0.3, 0), (-0.62, 0.42, 0), 0.1, 0.02))
    neck = tube(p, [(0.33, 0.26, 0), (0.48, 0.44, 0), (0.46, 0.62, 0), (0.36, 0.78, 0), (0.37, 0.93, 0),
                    (0.48, 1.0, 0)], 0.115, 0.07, blend=0.09)
    head = ellipsoid(turned(shifted(p, (0.53, 0.99, 0)), "z", -22), (0, 0, 0), (0.12, 0.085, 0.08))
    wings = ellipsoid(turned(turned(shifted(side, (-0.16, 0.35, 0.21)), "z", -17), "x", -14), (0, 0, 0),
                      (0.4, 0.18, 0.08))
    beak = capsule(p, (0.63, 0.95, 0), (0.76, 0.89, 0), 0.045, 0.02)
    return [(smooth_union(0.06, body, neck, head), KEY), (wings, KEY_LIGHT), (beak, BEAK),
            (union(ellipsoid(p, (0.625, 0.96, 0), (0.035, 0.045, 0.055)),
                   sphere(side, (0.57, 1.015, 0.06), 0.022)), NOSE)]


def crab(p: Points) -> list[Part]:
    """Seen from the front (+z): wide shell, two raised claws, eyes on stalks, three legs a side."""
    half = mirrored(p, "x")
    shell = ellipsoid(p, (0, 0.3, 0), (0.42, 0.2, 0.28))
    legs = []
    for i, z in enumerate((-0.2, -0.08, 0.04)):
        knee, foot = (0.5 + 0.05 * i, 0.36 - 0.02 * i, 1.5 * z), (0.6 + 0.04 * i, 0.02, 1.9 * z)
        legs.append(tube(half, [(0.3, 0.26, z), knee, foot], 0.045, 0.016))
    arm = tube(half, [(0.34, 0.3, 0.14), (0.56, 0.36, 0.26), (0.56, 0.56, 0.28)], 0.065)
    q = turned(shifted(half, (0.53, 0.74, 0.28)), "z", 18)
    claw = without(ellipsoid(q, (0, 0, 0), (0.16, 0.24, 0.09)),
                   extruded(q, [(-0.02, -0.03), (0.03, 0.3), (-0.17, 0.3)], 0.2))
    eyes = union(capsule(half, (0.12, 0.42, 0.18), (0.14, 0.56, 0.22), 0.028),
                 sphere(half, (0.14, 0.57, 0.22), 0.05))
    return [(smooth_union(0.04, shell, arm), KEY), (claw, KEY), (union(*legs), KEY_DARK),
            (eyes, KEY_LIGHT), (sphere(half, (0.15, 0.58, 0.255), 0.032), EYE)]


def butterfly(p: Points) -> list[Part]:
    """Open wings flat to the viewer: two large lobes above two small ones, dark rims, feelers."""
    # The wings fold back from the body, so z grows with the distance from it.
    q = mirrored(p, "x")
    q = q._replace(z=q.z - 0.3 * q.x)
    fore = turned(shifted(q, (0.29, 0.68, 0)), "z", 40)
    hind = turned(shifted(q, (0.21, 0.3, 0)), "z", -38)
    wings = union(ellipsoid(fore, (0, 0, 0), (0.33, 0.2, 0.03)),
                  ellipsoid(hind, (0, 0, 0), (0.24, 0.17, 0.03)))

    def pattern(points: Points) -> np.ndarray:
        half = mirrored(points, "x")
        fore = turned(shifted(half, (0.29, 0.68, 0)), "z", 40)
        hind = turned(shifted(half, (0.21, 0.3, 0)), "z", -38)
        reach = np.minimum(length(fore.x / 0.33, fore.y / 0.2), length(hind.x / 0.24, hind.y / 0.17))
        spots = np.minimum(length(fore.x - 0.17, fore.y), length(hind.x - 0.1, hind.y)) < 0.045
        return np.where(reach > 0.86, RUBBER, np.where(spots, DETAIL, KEY))

    body = union(capsule(p, (0, 0.25, 0.02), (0, 0.66, 0.02), 0.03, 0.045), sphere(p, (0, 0.7, 0.03), 0.05))
    feelers = tube(mirrored(p, "x"), [(0.02, 0.72, 0.03), (0.1, 0.9, 0.06), (0.17, 0.97, 0.06)], 0.012)
    return [(wings * 0.8, pattern), (union(body, feelers), RUBBER)]


def shell(p: Points) -> list[Part]:
    """A scallop leaning back: a fan of ribs with a scalloped rim and two little wings at the hinge."""
    q = turned(p, "x", -22)
    hub = shifted(q, (0, 0.06, 0))
    radius = length(hub.x, hub.y)
    ribs = np.cos(segment_angle(hub.x, hub.y, 22) * 2 * np.pi)
    rim = radius - (0.78 + 0.025 * ribs)
    dome = ellipsoid(hub, (0, 0.34, -0.06), (0.58, 0.5, 0.24))
    fan = intersection(dome - 0.014 * ribs * np.minimum(radius * 2, 1), rim, -hub.z - 0.02,
                       np.abs(hub.x) * 0.62 - hub.y * 0.78 - 0.03)
    wings = box(q, (0, 0.08, 0), (0.17, 0.065, 0.03), 0.02)

    def stripes(points: Points) -> np.ndarray:
        local = shifted(turned(points, "x", -22), (0, 0.06, 0))
        groove = np.abs(segment_angle(local.x, local.y, 22)) > 0.36
        return np.where(groove, KEY_DARK, KEY)

    return [(fan * 0.75, stripes), (wings, KEY)]
