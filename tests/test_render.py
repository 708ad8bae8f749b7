"""The ray marcher against shapes whose pictures are known: areas, normals, shadows, patterns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from editors.render import Frame, fit, render
from editors.sdf import Material, box, capsule, sphere, torus
from editors.shading import PATTERNS, Finish, Lighting, pattern_contrast, to_linear, to_srgb
from editors.solids import Solid, find_solid
from editors.tracing import Field, View, march, slab, surface_points

RED = Finish((0.6, 0.01, 0.02), shade_exponent=0.7)
VIEW = View(-35, 18)


def _ball(points):
    return [(sphere(points, (0, 0.5, 0), 0.5), Material.KEY)]


def _brick(points):
    return [(box(points, (0, 0.25, 0), (0.5, 0.25, 0.3)), Material.KEY)]


BALL, BRICK = Solid("test ball", _ball, gloss=0.0), Solid("test brick", _brick, gloss=0.0)


def test_the_silhouette_of_a_sphere_has_the_area_of_a_disc():
    frame = Frame(101, 101, pad=4, fill=0.9)
    alpha = render(BALL, VIEW, frame, RED, Lighting(), "none").alpha
    radius_px = 0.5 * 101 * 0.9
    assert alpha.sum() == pytest.approx(np.pi * radius_px ** 2, rel=0.01)


def test_a_silhouette_fills_the_wanted_share_of_its_box_and_stays_inside():
    for name in ("cat", "bicycle", "bottle", "umbrella", "boat", "broom"):
        for size in ((60, 60), (120, 40), (40, 110)):
            frame = Frame(*size, pad=6, fill=0.92)
            alpha = render(find_solid(name), VIEW, frame, RED, Lighting(), "ground").alpha
            rows, columns = np.nonzero(alpha > 0.5)
            share = max(np.ptp(columns) / size[0], np.ptp(rows) / size[1])
            assert 0.84 < share < 0.97, (name, size)
            alpha[5:-5, 5:-5] = 0
            assert alpha.max() == 0, (name, size)


@pytest.mark.parametrize("solid, analytic", [
    (BALL, lambda p: p - np.array([[0], [0.5], [0]])),
    (Solid("rod", lambda q: [(capsule(q, (-0.5, 0.5, 0), (0.5, 0.5, 0), 0.2), Material.KEY)]),
     lambda p: p - np.stack((np.clip(p[0], -0.5, 0.5), np.full_like(p[0], 0.5), np.zeros_like(p[0])))),
    (Solid("ring", lambda q: [(torus(q, (0, 0.5, 0), 0.4, 0.1), Material.KEY)]),
     lambda p: p - np.stack((0.4 * p[0], 0.4 * (p[1] - 0.5), 0 * p[0])) / np.hypot(p[0], p[1] - 0.5)
        - np.array([[0], [0.5], [0]])),
])
def test_normals_are_those_of_the_formula(solid, analytic):
    points = surface_points(solid).xyz
    expected = analytic(points)
    expected = expected / np.linalg.norm(expected, axis=0)
    cosine = (Field(solid).normal(*points, step=0.005) * expected).sum(0)
    assert cosine.min() > np.cos(np.radians(2))


def test_rays_hit_a_sphere_at_the_distance_of_the_formula():
    grid = np.meshgrid(np.linspace(-0.6, 0.6, 41), np.linspace(0, 1, 41))
    x, y = (g.ravel().astype(np.float32) for g in grid)
    origin, down_z = [x, y, np.full_like(x, 3)], np.array((0, 0, -1), np.float32)
    bounds = np.full(3, -1.0), np.full(3, 1.5)
    index, t = march(Field(BALL), origin, down_z, *slab(origin, down_z, *bounds), subpixel=0.002)
    square = 0.25 - x ** 2 - (y - 0.5) ** 2
    assert set(np.flatnonzero(square > 0.002)) <= set(index) <= set(np.flatnonzero(square > -0.002))
    inside = square[index] > 0.002
    assert np.abs(t - (3 - np.sqrt(np.maximum(square[index], 0))))[inside].max() < 0.01


def test_points_spread_over_a_surface_lie_on_it():
    for name in ("cat", "umbrella", "bag"):
        points = surface_points(find_solid(name))
        assert points.xyz.shape[1] > 500
        assert np.abs(Field(find_solid(name)).distance(*points.xyz)).max() < 0.01


def test_the_estimated_key_share_follows_the_drawn_one():
    frame = Frame(80, 80)
    for name in ("box", "bottle", "ball"):
        solid = find_solid(name)
        drawn = render(solid, VIEW, frame, RED, Lighting(), "none").key.mean()
        assert fit(solid, VIEW, frame).key_share == pytest.approx(drawn, abs=0.15), name


def test_rendering_twice_gives_the_same_arrays():
    first, second = (render(find_solid("cat"), VIEW, Frame(50, 60, 6), RED, Lighting()) for _ in range(2))
    for name in ("color", "alpha", "key", "cast", "contact"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


def test_a_mirrored_view_of_a_symmetric_object_is_the_mirror_image_under_mirrored_light():
    frame, light = Frame(60, 60, 6), Lighting()
    flipped = Lighting(sun=(-light.sun[0], *light.sun[1:]))
    plain = render(BRICK, VIEW, frame, RED, light)
    mirrored = render(BRICK, View(-35, 18, mirrored=True), frame, RED, flipped)
    assert np.abs(mirrored.color[:, ::-1] - plain.color).max() < 1e-3
    assert np.abs(mirrored.cast[:, ::-1] - plain.cast).max() < 1e-3


def test_the_shadow_lies_on_the_side_away_from_the_sun_and_at_the_foot():
    frame = Frame(80, 80, pad=10, fill=0.6)
    layers = render(BRICK, View(0, 25), frame, RED, Lighting(sun=(-0.6, 0.7, 0.3)))
    bare = layers.alpha < 0.01
    middle = layers.alpha.shape[1] // 2
    blocked = np.where(bare, 1 - layers.cast, 0)
    assert blocked[:, middle:].sum() > 10 * blocked[:, :middle].sum() + 50
    below = np.nonzero(layers.alpha[:, middle] > 0.5)[0].max() + 2
    assert layers.contact[below, middle] < 0.8 < layers.contact[below + 8, middle]
    assert layers.contact[0].min() == 1


def test_nothing_falls_on_the_sky():
    layers = render(find_solid("balloon"), View(-20, -12), Frame(60, 60, 6), RED, Lighting(), "none")
    assert layers.cast.min() == layers.contact.min() == 1
    assert np.array_equal(layers.light_kept(0.4, 0.5), np.ones_like(layers.cast))


def test_water_cuts_the_hull_and_a_dry_one_is_whole():
    boat = find_solid("boat")
    assert surface_points(boat, boat.waterline).low[1] >= boat.waterline - 0.03
    assert surface_points(boat).low[1] < boat.waterline - 0.03
    wet = render(boat, View(-35, 15), Frame(80, 80, 8), RED, Lighting(), "water")
    assert wet.cast.min() >= 0.3 - 1e-6 and wet.contact.max() > 1.0       # a mirror image and bright ripples


def test_only_key_materials_count_as_key():
    layers = render(find_solid("bottle"), VIEW, Frame(60, 90), RED, Lighting(), "none")
    assert 0.4 < layers.key.sum() / layers.alpha.sum() < 0.95             # the label is not red
    assert (layers.key <= layers.alpha + 1e-6).all()
    whole = render(find_solid("bottle"), VIEW, Frame(60, 90), replace(RED, plainness=1), Lighting(), "none")
    assert whole.key.sum() == pytest.approx(whole.alpha.sum())


def test_a_large_frame_is_an_enlarged_drawing_of_the_same_silhouette():
    small = render(BALL, VIEW, Frame(200, 150, 5), RED, Lighting())
    large = render(BALL, VIEW, Frame(800, 600, 10), RED, Lighting())
    assert large.alpha.shape == (620, 820)
    assert large.alpha[10:-10, 10:-10].mean() == pytest.approx(small.alpha[5:-5, 5:-5].mean(), rel=0.03)


def _edges(image: np.ndarray) -> int:
    """Strong horizontal and vertical luma steps inside the object."""
    luma = to_srgb(image) @ np.array((0.3, 0.6, 0.1), np.float32)
    return int((np.abs(np.diff(luma, axis=0)) > 0.1).sum() + (np.abs(np.diff(luma, axis=1)) > 0.1).sum())


@pytest.mark.parametrize("pattern", ["striped", "dotted", "checked"])
@pytest.mark.parametrize("name", ["bag", "bucket", "ball", "cat", "umbrella"])
def test_patterns_have_more_edges_than_plain_at_60_px_and_keep_the_key_color(name, pattern):
    def drawn(pattern: str):
        finish = replace(RED, pattern=pattern)
        return render(find_solid(name), VIEW, Frame(60, 60), finish, Lighting(), "none")

    plain, patterned = drawn("plain"), drawn(pattern)
    assert _edges(patterned.color) > 1.3 * _edges(plain.color) + 30
    assert 0.4 < patterned.key.sum() / plain.key.sum() < 0.9
    assert np.array_equal(plain.alpha, patterned.alpha)


def test_stripes_are_few_bold_and_mostly_of_the_key_color():
    height = np.linspace(0, 1, 1000, dtype=np.float32)
    xyz = np.stack((0 * height, height, 0 * height))
    normal = np.stack((1 + 0 * height, 0 * height, 0 * height))
    contrast = pattern_contrast("striped", xyz, normal, np.ones(3))
    assert 5 <= np.abs(np.diff(contrast.astype(int))).sum() <= 8          # bands of 1/7 of the height or so
    assert 0.3 < contrast.mean() < 0.5


def test_a_flat_pattern_repeats_evenly_across_the_picture_and_a_bent_one_does_not():
    def band_heights(flat: bool) -> np.ndarray:
        finish = replace(RED, pattern="striped", flat_pattern=flat)
        key = render(BALL, View(0, 50), Frame(120, 120), finish, Lighting(), "none").key[:, 60] > 0.5
        return np.diff(np.flatnonzero(np.diff(key.astype(int))))[1:-1]     # whole bands, in pixels

    assert np.ptp(band_heights(True)[::2]) <= 2 and np.ptp(band_heights(True)[1::2]) <= 2
    assert np.ptp(band_heights(False)[::2]) > 4 or np.ptp(band_heights(False)[1::2]) > 4


def test_an_unknown_pattern_is_named_in_the_error():
    with pytest.raises(ValueError, match="'paisley' is unknown; expected one of plain, striped, dotted"):
        pattern_contrast("paisley", np.zeros((3, 1)), np.ones((3, 1)), np.ones(3))
    assert set(PATTERNS) == {"plain", "striped", "dotted", "checked"}


def test_srgb_conversion_inverts_and_knows_middle_gray():
    values = np.linspace(0, 1, 101)
    assert np.abs(to_srgb(to_linear(values)) - values).max() < 1e-5
    assert to_linear(0.5) == pytest.approx(0.2140, abs=1e-4)
