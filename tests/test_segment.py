"""The object inside a loose box: on drawn scenes whose true mask is known, and on one photograph."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from editors.segment import MAX_OUTSIDE_PX, refine_alpha, segment_object
from rekey.geometry import Box

GROUND = (120, 130, 118)


def scene(size=(160, 200), seed=0, noise=6.0, ground=GROUND):
    rng = np.random.default_rng(seed)
    rows = np.linspace(-14, 14, size[0])[:, None, None]
    return np.array(ground, np.float32) + rows + rng.normal(0, noise, (*size, 3)).astype(np.float32)


def with_shape(image, draw, color, seed=1, noise=6.0):
    """(uint8 picture, true mask): `draw(mask)` fills the shape; shaded from left to right."""
    mask = np.zeros(image.shape[:2], np.uint8)
    draw(mask)
    rng = np.random.default_rng(seed)
    columns = np.nonzero(mask.any(0))[0]
    shading = np.interp(np.arange(image.shape[1]), (columns.min(), columns.max()), (0.75, 1.15))
    body = np.array(color, np.float32) * shading[None, :, None] + rng.normal(0, noise, image.shape)
    soft = cv2.GaussianBlur(mask.astype(np.float32), (0, 0), 0.7)[..., None]
    return np.clip(image * (1 - soft) + body * soft, 0, 255).astype(np.uint8), mask > 0


def disc(center, radius):
    return lambda mask: cv2.circle(mask, center, radius, 1, -1)


def rectangle(first, last):
    return lambda mask: cv2.rectangle(mask, first, last, 1, -1)


def overlap(mask, truth, box):
    """Intersection over union inside the box."""
    found, truth = mask[box.slices] > 0.5, truth[box.slices]
    return (found & truth).sum() / (found | truth).sum()


COLORS = {"red": (190, 40, 40), "blue": (40, 70, 170), "white": (225, 225, 222), "black": (28, 28, 30),
          "yellow": (220, 190, 50)}


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("radius", [14, 40])
def test_a_disc_in_a_loose_box_is_found_whole_and_alone(color, radius):
    picture, truth = with_shape(scene(), disc((100, 80), radius), COLORS[color])
    box = Box(100, 80, 100, 80).grown(radius + 6)
    assert overlap(segment_object(picture, box), truth, box) > (0.85 if radius < 20 else 0.93)


def test_an_object_much_smaller_than_its_box_is_found():
    picture, truth = with_shape(scene(), rectangle((88, 66), (112, 94)), COLORS["red"])
    box = Box(60, 40, 140, 120)
    assert overlap(segment_object(picture, box, frozenset({"red"})), truth, box) > 0.85


def test_an_object_that_fills_its_box_and_goes_on_outside_is_taken_whole():
    picture, _ = with_shape(scene(), rectangle((20, 20), (180, 140)), COLORS["blue"])
    box = Box(60, 40, 140, 120)
    mask = segment_object(picture, box)
    assert mask[box.slices].mean() > 0.95


def test_an_object_that_leaves_the_box_on_one_side_is_cut_at_the_box_only():
    picture, truth = with_shape(scene(), rectangle((70, 60), (199, 100)), COLORS["red"])
    box = Box(60, 50, 140, 110)
    mask = segment_object(picture, box)
    assert overlap(mask, truth, box) > 0.9
    assert mask[:, :60].max() == 0 and mask[:, 140:].max() == 0


def test_a_thin_object_survives():
    def draw(mask):
        cv2.line(mask, (50, 120), (150, 45), 1, 5)
    picture, truth = with_shape(scene(), draw, COLORS["yellow"])
    box = Box(46, 40, 154, 124)
    assert overlap(segment_object(picture, box, frozenset({"yellow"})), truth, box) > 0.6


def test_skin_beside_a_garment_is_not_painted():
    picture, jacket = with_shape(scene(), rectangle((60, 70), (140, 130)), COLORS["blue"])
    picture, skin = with_shape(picture.astype(np.float32), disc((100, 52), 20), (205, 150, 125))
    box = Box(52, 36, 148, 136)
    mask = segment_object(picture, box, frozenset({"blue"}))
    assert overlap(mask, jacket & ~skin, box) > 0.85
    assert mask[skin & cv2.erode(skin.astype(np.uint8), np.ones((5, 5))).astype(bool)].mean() < 0.03


def test_the_written_color_decides_between_two_objects_in_one_box():
    picture, left = with_shape(scene(), rectangle((62, 50), (98, 110)), COLORS["red"])
    picture, right = with_shape(picture.astype(np.float32), rectangle((103, 50), (139, 110)), COLORS["blue"])
    box = Box(56, 44, 145, 116)
    red = segment_object(picture, box, frozenset({"red"}))
    blue = segment_object(picture, box, frozenset({"blue"}))
    assert overlap(red, left, box) > 0.8 and red[right].mean() < 0.1
    assert overlap(blue, right, box) > 0.8 and blue[left].mean() < 0.1


def test_a_color_word_that_fits_nothing_changes_little():
    picture, truth = with_shape(scene(), disc((100, 80), 30), COLORS["blue"])
    box = Box(64, 44, 136, 116)
    assert overlap(segment_object(picture, box, frozenset({"orange"})), truth, box) > 0.9


def test_solid_includes_the_print_on_an_object():
    picture, truth = with_shape(scene(), disc((100, 80), 34), COLORS["red"])
    picture[74:86, 88:112] = 240
    box = Box(62, 42, 138, 118)
    plain = segment_object(picture, box, frozenset({"red"}))
    solid = segment_object(picture, box, frozenset({"red"}), solid=True)
    assert plain[76:84, 92:108].mean() < 0.2 and solid[76:84, 92:108].mean() > 0.9
    assert overlap(solid, truth, box) > 0.9


def test_the_mask_is_the_same_for_any_number_of_threads_and_leaves_no_trace_of_earlier_calls():
    picture, _ = with_shape(scene(), disc((100, 80), 30), COLORS["blue"])
    box = Box(64, 44, 136, 116)
    threads = cv2.getNumThreads()
    masks = []
    try:
        for n, seed in ((1, 5), (4, 77), (2, 12345)):
            cv2.setNumThreads(n)
            cv2.setRNGSeed(seed)                       # as if other code had used the generator
            masks.append(segment_object(picture, box))
    finally:
        cv2.setNumThreads(threads)
    assert np.array_equal(masks[0], masks[1]) and np.array_equal(masks[0], masks[2])


@pytest.mark.parametrize("box", [Box(0, 0, 200, 160), Box(0, 0, 9, 9), Box(190, 150, 200, 160),
                                 Box(50, 0, 60, 160)])
def test_any_box_gives_a_mask_within_it(box):
    picture = np.clip(scene(noise=30), 0, 255).astype(np.uint8)
    mask = segment_object(picture, box)
    assert mask.shape == picture.shape[:2] and 0 <= mask.min() and mask.max() <= 1
    assert mask[box.slices].any()
    outside = mask.copy()
    outside[box.slices] = 0
    assert outside.max() == 0


@pytest.mark.parametrize("value", [0, 128, 255])
def test_a_uniform_picture_is_no_error(value):
    flat = np.full((60, 60, 3), value, np.uint8)
    assert segment_object(flat, Box(10, 10, 50, 50))[10:50, 10:50].mean() > 0.3


def test_alpha_at_a_blurred_edge_follows_the_true_mixture():
    true_alpha = cv2.GaussianBlur(np.float32(np.hypot(*np.mgrid[-60:60, -60:60]) < 35), (0, 0), 1.2)
    red, ground = np.float32((190, 40, 40)), np.float32((110, 125, 140))
    picture = (true_alpha[..., None] * red + (1 - true_alpha[..., None]) * ground + 0.5).astype(np.uint8)
    mask = np.float32(true_alpha > 0.8)                # a mask drawn too small
    alpha, unmixed = refine_alpha(picture, mask, Box(15, 15, 105, 105))
    assert np.abs(alpha - true_alpha).mean() < 0.015
    rim = (true_alpha > 0.4) & (true_alpha < 0.9)
    assert np.abs(alpha - true_alpha)[rim].mean() < 0.15
    assert np.abs(unmixed[rim] - red).mean() < 12      # the rim holds no ground any more


def test_alpha_reaches_only_a_few_pixels_beyond_the_box():
    picture = np.full((80, 80, 3), (190, 40, 40), np.uint8)
    box = Box(20, 20, 60, 60)
    mask = np.zeros((80, 80), np.float32)
    mask[box.slices] = 1
    alpha, _ = refine_alpha(picture, mask, box)
    far = np.ones((80, 80), bool)
    far[box.grown(MAX_OUTSIDE_PX).slices] = False
    assert alpha[far].max() == 0 and alpha[30:50, 30:50].min() == 1
