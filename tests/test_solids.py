"""The solids are checked by a small tracer of their own, not by the renderer that draws them."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter

import numpy as np
import pytest

from editors.sdf import (
    KEY_MATERIALS,
    Material,
    Points,
    box,
    capsule,
    cone,
    cylinder,
    ellipsoid,
    extruded,
    polygon,
    sphere,
    torus,
    turned,
    union,
)
from editors.solids import SOLIDS, Solid, find_solid, known_nouns

EVERY_SOLID = [pytest.param(solid, id=name) for name, solid in SOLIDS.items()]
LOW, HIGH = np.array([-1.3, -0.35, -1.1]), np.array([1.5, 1.85, 1.1])
SIDE_PX = 44


def points_at(xyz: np.ndarray, min_radius: float = 0.0) -> Points:
    return Points(*np.asarray(xyz, np.float32), min_radius)


def distance(solid: Solid, xyz: np.ndarray, min_radius: float = 0.0) -> np.ndarray:
    return union(*(d for d, _ in solid.build(points_at(xyz, min_radius))))


def random_points(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(LOW[:, None], HIGH[:, None], (3, n)).astype(np.float32)


def gradient(solid: Solid, xyz: np.ndarray, step: float = 1e-3) -> np.ndarray:
    shifts = step * np.eye(3, dtype=np.float32)[:, :, None]
    return np.stack([distance(solid, xyz + s) - distance(solid, xyz - s) for s in shifts]) / (2 * step)


@functools.cache
def surface_points(solid: Solid) -> np.ndarray:
    """(3, n) points on the surface: random points near it, pulled onto it by Newton steps."""
    xyz = random_points(36_000, seed=1)
    xyz = xyz[:, np.abs(distance(solid, xyz)) < 0.08]
    for _ in range(5):
        slope = gradient(solid, xyz)
        pull = distance(solid, xyz) * slope / np.maximum((slope ** 2).sum(0), 0.05)
        xyz = (xyz - 0.8 * pull).astype(np.float32)
    return xyz[:, np.abs(distance(solid, xyz)) < 0.003]


@functools.cache
def picture(solid: Solid) -> np.ndarray:
    """int (SIDE_PX, SIDE_PX): materials in a middling view that fills the square; -1 outside."""
    yaw, elevation = np.radians(sum(solid.yaw) / 2), np.radians(-12 if solid.placement == "air" else 16)

    def to_object(x: float, y: float, z: float) -> np.ndarray:
        return np.array([x * np.cos(yaw) - z * np.sin(yaw), y, x * np.sin(yaw) + z * np.cos(yaw)], np.float32)

    right, up = to_object(1, 0, 0), to_object(0, np.cos(elevation), -np.sin(elevation))
    back = to_object(0, np.sin(elevation), np.cos(elevation))
    u, v = right @ surface_points(solid), up @ surface_points(solid)
    pixel = max(np.ptp(u), np.ptp(v)) / (SIDE_PX - 2)
    at = (np.arange(SIDE_PX) - (SIDE_PX - 1) / 2) * pixel
    uu, vv = np.meshgrid((u.min() + u.max()) / 2 + at, (v.min() + v.max()) / 2 - at)
    xyz = (right[:, None] * uu.ravel() + up[:, None] * vv.ravel() + 2.5 * back[:, None]).astype(np.float32)
    for _ in range(55):
        xyz = xyz - back[:, None] * np.minimum(distance(solid, xyz, 0.5 * pixel), 0.3)
    parts = solid.build(points_at(xyz, 0.5 * pixel))
    nearest = np.argmin([d for d, _ in parts], axis=0)
    kinds = [kind(points_at(xyz)) if callable(kind) else int(kind) for _, kind in parts]
    material = np.choose(nearest, kinds)
    hit = np.min([d for d, _ in parts], axis=0) < 0.7 * pixel
    return np.where(hit, material, -1).reshape(SIDE_PX, SIDE_PX)


# -- shapes --------------------------------------------------------------------------------------

@pytest.mark.parametrize("solid", EVERY_SOLID)
def test_distances_are_finite_float32_and_the_solid_is_bounded(solid):
    xyz = random_points(4000, seed=0)
    for part, _ in solid.build(points_at(xyz)):
        assert part.dtype == np.float32 and part.shape == (4000,)
        assert np.isfinite(part).all()
    outside = np.random.default_rng(0).normal(size=(3, 4000))
    outside = (outside / np.abs(outside).max(0) * 2.2).astype(np.float32)      # on a cube well outside
    assert distance(solid, outside).min() > 0.2


def overstep(solid: Solid, factor: float = 1.0) -> float:
    """The largest ratio of the claimed distance to the true one, over points outside the solid.

    A ray marcher steps by the claimed distance: above 1 it may step over thin parts.  A Lipschitz
    bound would ask too much, since the ellipsoid formula is steep where it underestimates.
    """
    from scipy.spatial import cKDTree

    xyz = random_points(6000, seed=2)
    claimed = factor * distance(solid, xyz)
    true, _ = cKDTree(surface_points(solid).T).query(xyz.T)
    far = claimed > 0.08
    return float((claimed[far] / true[far]).max())


@pytest.mark.parametrize("solid", EVERY_SOLID)
def test_claimed_distances_hardly_exceed_true_ones(solid):
    assert overstep(solid) < 1.27


def test_a_field_that_is_too_steep_is_noticed():
    assert overstep(SOLIDS["ball"], factor=1.4) > 1.35


@pytest.mark.parametrize("solid", EVERY_SOLID)
def test_standing_and_floating_solids_touch_the_ground(solid):
    lowest = surface_points(solid)[1].min()
    if solid.placement in ("standing", "water"):
        assert abs(lowest) < 0.05
    else:
        assert lowest > -0.4


@pytest.mark.parametrize("solid", EVERY_SOLID)
def test_thin_parts_only_grow_with_the_minimum_radius(solid):
    xyz = random_points(5000, seed=3)
    grown = distance(solid, xyz) - distance(solid, xyz, min_radius=0.03)
    assert grown.min() > -1e-5
    assert grown.max() < 0.04


@pytest.mark.parametrize("solid", EVERY_SOLID)
def test_building_leaves_the_points_alone(solid):
    xyz = random_points(500, seed=4)
    points = points_at(xyz.copy())
    first = [d.copy() for d, _ in solid.build(points)]
    assert all(np.array_equal(a, b) for a, b in zip(points[:3], xyz, strict=True))
    again = [d for d, _ in solid.build(points)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


# -- what a person sees ---------------------------------------------------------------------------

@pytest.mark.parametrize("solid", EVERY_SOLID)
def test_most_of_what_is_visible_has_the_key_color(solid):
    seen = picture(solid)
    seen = seen[seen >= 0]
    assert set(seen.tolist()) <= set(Material)
    assert np.isin(seen, KEY_MATERIALS).mean() > 0.5


@pytest.mark.parametrize("solid", EVERY_SOLID)
def test_a_solid_fills_its_square_enough_to_be_seen(solid):
    assert (picture(solid) >= 0).mean() > 0.08


def likeness(a: Solid, b: Solid) -> float:
    """Share of the joint silhouette where both show the same kind of surface."""
    first, second = picture(a), picture(b)
    either = (first >= 0) | (second >= 0)
    return float(((first == second) & either).sum() / either.sum())


def test_no_two_nouns_share_an_outline_but_clock_and_ball():
    def overlap(a: Solid, b: Solid) -> float:
        first, second = picture(a) >= 0, picture(b) >= 0
        return (first & second).sum() / (first | second).sum()

    pairs = itertools.combinations(SOLIDS.values(), 2)
    assert [(a.name, b.name) for a, b in pairs if overlap(a, b) >= 0.9] == [("clock", "ball")]


def test_no_two_nouns_look_alike():
    pairs = itertools.combinations(SOLIDS.values(), 2)
    alike = {(a.name, b.name): likeness(a, b) for a, b in pairs}
    assert {pair: value for pair, value in alike.items() if value >= 0.85} == {}


# -- nouns ----------------------------------------------------------------------------------------

def test_the_solids_cover_the_candidates_of_the_released_add_slots(data_pack):
    lines = (data_pack / "rekey/annotations/dynamic_vstar_slots_latest.jsonl").read_text().splitlines()
    candidates = [slot["add"]["objects"] for line in lines
                  for slot in json.loads(line)["slots"] if slot.get("add")]
    mentions = Counter(noun for nouns in candidates for noun in nouns)
    drawn = sum(n for noun, n in mentions.items() if find_solid(noun))
    assert (len(candidates), mentions.total()) == (485, 1420)
    assert drawn == 1419
    assert [noun for noun in mentions if find_solid(noun) is None] == ["cyclist"]


def test_there_are_at_least_42_nouns():
    assert len(SOLIDS) >= 42


@pytest.mark.parametrize("noun, name", [
    ("kick scooter", "scooter"), ("float", "swim ring"), ("road sign", "sign"), ("rubber duck", "duck"),
    ("sedan", "car"), ("SUV", "suv"), ("soda can", "can"), ("Bike", "bicycle"), ("rucksack", "backpack"),
    ("cats", "cat"), ("mice", "mouse"), ("boxes", "box"), ("buses", "bus"), ("puppies", "dog"),
    ("benches", "bench"), ("a  fire-hydrant", "fire hydrant"), ("an umbrella", "umbrella"), ("jet_skis",
                                                                                             "jet ski"),
])
def test_a_noun_as_an_annotator_writes_it_finds_its_solid(noun, name):
    assert find_solid(noun) is SOLIDS[name]


@pytest.mark.parametrize("noun", ["cyclist", "giraffe", "", "the", "s", "red cat", "catss", "boxe"])
def test_a_noun_we_cannot_draw_finds_nothing(noun):
    assert find_solid(noun) is None


def test_every_known_noun_belongs_to_exactly_one_solid():
    nouns = [noun for solid in SOLIDS.values() for noun in (solid.name, *solid.synonyms)]
    assert len(nouns) == len(set(nouns)) == len(known_nouns())
    assert all(find_solid(noun).name in SOLIDS for noun in nouns)
    assert all(noun == " ".join(noun.lower().replace("-", " ").split()) for noun in nouns)


@pytest.mark.parametrize("solid", EVERY_SOLID)
def test_the_fields_of_a_solid_fit_each_other(solid):
    assert solid.placement != "water" or solid.waterline is not None
    assert solid.waterline is None or 0 < solid.waterline < 0.5 * surface_points(solid)[1].max()
    assert solid.yaw[0] < solid.yaw[1]
    assert solid.airborne is None or SOLIDS[solid.airborne].placement == "air"
    assert solid.afloat is None or SOLIDS[solid.afloat].placement == "water"
    assert all(0 <= value <= 1 for value in (solid.gloss, solid.translucency, solid.fur, solid.cloth,
                                             solid.shadow_scale))


# -- primitives -----------------------------------------------------------------------------------

def test_primitive_distances_agree_with_distances_worked_out_by_hand():
    p = points_at(np.array([[3, 0, 1.5], [0, 5, 1.5], [4, 0, 0]], np.float64))
    origin = (0.0, 0.0, 0.0)
    assert np.allclose(sphere(p, origin, 2), [3, 3, 1.5 * 2 ** 0.5 - 2], atol=1e-5)
    assert np.allclose(box(p, origin, (1, 2, 1)), [(2 ** 2 + 3 ** 2) ** 0.5, 3, 0.5], atol=1e-5)
    assert np.allclose(box(p, origin, (1, 2, 1), 0.5), [(2.5 ** 2 + 3.5 ** 2) ** 0.5 - 0.5, 3, 0.5],
                       atol=1e-5)
    assert np.allclose(cylinder(p, origin, 1, 2), [4, 3, 0.5], atol=1e-5)
    assert np.allclose(cone(p, origin, 1, 1, 2), [4, 3, 0.5], atol=1e-5)
    assert np.allclose(torus(p, origin, 2, 0.5, "y"), [2.5, 29 ** 0.5 - 0.5,
                                                       (0.5 ** 2 + 1.5 ** 2) ** 0.5 - 0.5],
                       atol=1e-5)
    assert np.allclose(capsule(p, origin, (0, 3, 0), 0.5), [4.5, 1.5, 1.0], atol=1e-5)
    assert np.allclose(ellipsoid(p, origin, (2, 2, 2)), [3, 3, 1.5 * 2 ** 0.5 - 2], atol=1e-5)


def test_a_polygon_with_a_notch_has_the_distances_of_a_second_method():
    outline = [(0, 0), (3, 0), (3, 2), (2, 2), (2, 1), (1, 1), (1, 2), (0, 2)]         # the letter U
    u, v = np.random.default_rng(0).uniform(-1, 4, (2, 500))
    corners = np.array([*outline, outline[0]], float)
    along = np.linspace(0, 1, 2000)[:, None]
    edge = np.concatenate([a + (b - a) * along for a, b in itertools.pairwise(corners)])
    brute = np.array([np.hypot(*(edge - point).T).min() for point in zip(u, v, strict=True)])
    inside = (u > 0) & (u < 3) & (v > 0) & (v < 2) & ~((u > 1) & (u < 2) & (v > 1))
    for path in (outline, outline[::-1]):
        assert np.allclose(polygon(u, v, path), np.where(inside, -brute, brute), atol=2e-3)


def test_a_plate_is_as_thick_as_asked_and_its_rounding_grows_the_outline():
    square = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
    p = points_at(np.array([[0, 2, 0], [0, 0, 2.5], [1.0, 0, 0]], np.float64))
    assert np.allclose(extruded(p, square, 0.25), [0.75, 1, 1.5], atol=1e-5)
    assert np.allclose(extruded(p, square, 0.25, rounding=0.1), [0.75, 0.9, 1.4], atol=1e-5)


def test_turning_a_part_is_right_handed():
    for axis, moved in (("x", (0, 0, 1)), ("y", (0, 1, 0)), ("z", (-1, 0, 0))):
        tip = turned(points_at(np.array([moved], np.float64).T), axis, 90)
        assert np.allclose((tip.x[0], tip.y[0], tip.z[0]), (0, 1, 0), atol=1e-6)


def test_thin_rods_are_drawn_no_thinner_than_the_minimum_radius():
    on_axis = points_at(np.array([[0.5], [0.0], [0.0]]), min_radius=0.05)
    assert capsule(on_axis, (0, 0, 0), (1, 0, 0), 0.001)[0] == pytest.approx(-0.05)
    assert torus(on_axis, (0, 0, 0), 0.5, 0.001, "z")[0] == pytest.approx(-0.05)
