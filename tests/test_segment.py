"""The object inside a loose box: on drawn scenes whose true mask is known, and on outlined photographs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from editors.segment import MAX_OUTSIDE_PX, refine_alpha, segment_object
from experiments.demo_photos import demo_photos
from rekey.compositing import cut
from rekey.geometry import Box
from rekey.references import parse_reference
from rekey.scenes import draw_scene, render_scene, scene_slots

OUTLINES = Path(__file__).with_name("data") / "object_outlines.json"
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


def coffee_in_a_cup(shade=(0.42, 0.40, 0.38)):
    """(picture, mask of the coffee, mask of its shade, box): the wall of the cup has the coffee's hue."""
    wall = scene(ground=(205, 160, 118), noise=4)
    picture, coffee = with_shape(
        wall, lambda m: cv2.ellipse(m, (100, 80), (60, 36), 0, 0, 360, 1, -1), (225, 140, 50), noise=4)
    shadow = np.zeros(coffee.shape, np.uint8)
    cv2.ellipse(shadow, (100, 60), (26, 6), 0, 0, 360, 1, -1)
    soft = cv2.GaussianBlur(shadow.astype(np.float32), (0, 0), 0.7)[..., None]
    picture = (picture * (1 - soft * (1 - np.float32(shade)))).astype(np.uint8)
    return picture, coffee, shadow > 0, Box(38, 42, 162, 118)


def test_a_wall_of_the_object_s_hue_in_the_corners_of_the_box_is_left_alone():
    picture, coffee, _, box = coffee_in_a_cup()
    mask = segment_object(picture, box, frozenset({"orange", "brown"}))
    assert overlap(mask, coffee, box) > 0.93
    corners = [mask[y:y + 8, x:x + 8].max() for y in (42, 110) for x in (38, 154)]
    assert max(corners) == 0


def test_deep_shade_within_the_object_is_part_of_it_but_a_thing_of_another_hue_is_not():
    picture, _, shade, box = coffee_in_a_cup()
    inside = cv2.erode(shade.astype(np.uint8), np.ones((3, 3))).astype(bool)
    assert segment_object(picture, box, frozenset({"orange"}))[inside].mean() > 0.95
    picture, _, _, _ = coffee_in_a_cup(shade=(0.2, 0.5, 2.4))
    assert segment_object(picture, box, frozenset({"orange"}))[inside].mean() < 0.2


def test_a_shelf_of_the_object_s_color_that_runs_out_of_the_box_is_not_painted():
    crate = rectangle((70, 40), (130, 108))
    shelf = rectangle((20, 104), (190, 109))
    picture, _ = with_shape(scene(), lambda m: (crate(m), shelf(m)), (200, 150, 105))
    box = Box(50, 34, 150, 116)
    mask = segment_object(picture, box, frozenset({"brown"}))
    assert mask[44:100, 74:126].min() > 0.9
    assert mask[:, 50:62].max() == 0 and mask[:, 138:150].max() == 0


@pytest.fixture(scope="module")
def outlined():
    """(target, overlap, painted background, unpainted object) of each outlined object at hand.

    Outlines were drawn by hand on enlarged photographs.  Pixels of "either" (print, reflections, parts that
    a person may or may not count in) are not scored.
    """
    photos = demo_photos()
    scores = []
    for row in json.loads(OUTLINES.read_text(encoding="utf-8")):
        if row["image_id"] not in photos:
            continue
        with Image.open(photos[row["image_id"]]) as photo:
            canvas = np.asarray(photo.convert("RGB"))
        box = Box(*row["box"])
        truth, either = (rasterized(row[key], canvas.shape[:2])[box.slices] for key in ("object", "either"))
        found = segment_object(canvas, box, parse_reference(row["target"]).colors)[box.slices] > 0.5
        truth, found = truth[~either], found[~either]
        scores.append((row["target"], (found & truth).sum() / (found | truth).sum(),
                       (found & ~truth).sum() / truth.sum(), (truth & ~found).sum() / truth.sum()))
    if len(scores) < 15:
        pytest.skip("the packages that hold the outlined photographs are not installed")
    return scores


def rasterized(polygons, shape):
    mask = np.zeros(shape, np.uint8)
    for polygon in polygons:
        cv2.fillPoly(mask, [np.round(np.array(polygon) * 16).astype(np.int32)], 1, shift=4)
    return mask > 0


def test_objects_outlined_by_hand_in_photographs_are_found(outlined):
    assert np.mean([overlap for _, overlap, _, _ in outlined]) > 0.875
    assert [(target, round(float(overlap), 2)) for target, overlap, _, _ in outlined if overlap < 0.7] == []


def test_little_background_is_painted_and_little_of_the_outlined_objects_is_left(outlined):
    assert np.mean([painted for _, _, painted, _ in outlined]) < 0.07
    assert np.mean([left for _, _, _, left in outlined]) < 0.063


def test_the_coffee_in_the_demo_s_cup_has_no_painted_corners_and_no_hole(outlined):
    (_, overlap, painted, left), = (score for score in outlined if score[0].startswith("orange-brown coffee"))
    assert overlap > 0.94 and painted < 0.03 and left < 0.04


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


def test_a_mask_that_overshoots_by_two_pixels_does_not_paint_the_background():
    truth = np.hypot(*np.mgrid[-60:60, -60:60]) < 35
    soft = cv2.GaussianBlur(truth.astype(np.float32), (0, 0), 0.5)[..., None]
    picture = (soft * np.float32((225, 140, 50)) + (1 - soft) * np.float32((250, 240, 228))).astype(np.uint8)
    mask = cv2.dilate(truth.astype(np.float32), np.ones((5, 5)))
    alpha, _ = refine_alpha(picture, mask, Box(15, 15, 105, 105))
    ring = (mask > 0) & (soft[..., 0] < 0.05)
    assert ring.sum() > 20 and alpha[ring].max() < 0.2


def test_a_part_of_a_third_color_keeps_the_mask_s_edge():
    picture = np.full((80, 80, 3), (195, 215, 245), np.uint8)      # sky, a brown vase, its cream rim
    picture[20:60, 20:60] = (110, 80, 50)
    picture[20:60, 57:60] = (255, 235, 160)
    mask = np.zeros((80, 80), np.float32)
    mask[20:60, 20:60] = 1
    alpha, _ = refine_alpha(picture, mask, Box(10, 10, 70, 70))
    assert alpha[30:50, 57:59].min() > 0.6 and alpha[30:50, 62:].max() < 0.2


def test_alpha_reaches_only_a_few_pixels_beyond_the_box():
    picture = np.full((80, 80, 3), (190, 40, 40), np.uint8)
    box = Box(20, 20, 60, 60)
    mask = np.zeros((80, 80), np.float32)
    mask[box.slices] = 1
    alpha, _ = refine_alpha(picture, mask, box)
    far = np.ones((80, 80), bool)
    far[box.grown(MAX_OUTSIDE_PX).slices] = False
    assert alpha[far].max() == 0 and alpha[30:50, 30:50].min() == 1


@pytest.mark.parametrize("color", ("black", "white", "gray", "red"))
def test_flat_objects_on_a_gray_ground_are_found_whatever_their_color(color):
    found = []
    for seed in range(60):
        scene = draw_scene("segment", seed)
        pixels = render_scene(scene)
        for o, slot in zip(scene.objects, scene_slots(scene, "s").slots):
            if o.color != color:
                continue
            crop = cut(pixels, slot)
            mask = segment_object(crop.canvas, crop.box, frozenset({color})) > 0.5
            others = replace(scene, objects=tuple(other for other in scene.objects if other is not o))
            truth = (pixels != render_scene(others)).any(-1)[crop.window.slices]
            found.append((mask & truth).sum() / (mask | truth).sum())
    # Black, white and gray once took in the whole box: their mean was 0.78, 0.57 and 0.46, and 23, 54 and 73% failed.
    assert np.mean(found) > 0.8 and np.mean(np.array(found) < 0.6) <= 0.15, (len(found), np.mean(found))
