"""Edges at the scale of an enlarged crop."""

import cv2
import numpy as np
import pytest

from editors.canny import HIGH, LOW, as_rgb, canny_edges, clear, outline
from experiments.demo_photos import demo_photos, demo_slots_file
from rekey.compositing import cut
from rekey.geometry import Box
from rekey.images import load_image
from rekey.slots import read_slots


@pytest.fixture(scope="module")
def crops():
    """(enlarged canvas, its scale, the crop at its own size) of two slots of every demo photo."""
    photos, found = demo_photos(), []
    for image_id, image in read_slots(demo_slots_file()).items():
        if image_id in photos:
            pixels = load_image(photos[image_id]).pixels
            for slot in image.slots[:2]:
                crop = cut(pixels, slot, (512,))
                window = crop.square
                if window == crop.window:
                    found.append((crop.canvas, crop.scale, pixels[window.slices]))
    return found


def recovered(edges: np.ndarray, native: np.ndarray) -> float:
    """Share of the edges of the crop at its own size that lie within 3 of its pixels of an edge of the canvas."""
    truth = cv2.Canny(cv2.cvtColor(native, cv2.COLOR_RGB2GRAY), LOW, HIGH)
    rows, columns = np.nonzero(truth)
    scale = len(edges) / len(native)
    distance = cv2.distanceTransform(255 - edges, cv2.DIST_L2, 3)
    at = [np.minimum(((index + 0.5) * scale).astype(int), len(edges) - 1) for index in (rows, columns)]
    return float((distance[tuple(at)] < 2.5 * scale).mean())


def test_an_enlarged_crop_keeps_the_edges_that_it_has_at_its_own_size(crops):
    with_rule = [recovered(canny_edges(canvas, scale), native) for canvas, scale, native in crops]
    plain = [recovered(canny_edges(canvas), native) for canvas, _, native in crops]
    assert len(crops) >= 8
    assert np.mean(with_rule) > 0.95
    assert np.mean(plain) < np.mean(with_rule) - 0.1             # the usual thresholds on the enlarged crop


def test_lines_stay_a_pixel_wide(crops):
    for canvas, scale, _ in crops:
        edges = canny_edges(canvas, scale) > 0
        solid = cv2.erode(edges.astype(np.uint8), np.ones((3, 3), np.uint8))
        assert solid.sum() == 0                                  # no 3 x 3 block is all edge


def test_without_enlargement_it_is_plain_canny():
    image = np.random.default_rng(0).integers(0, 255, (64, 96, 3)).astype(np.uint8)
    plain = cv2.Canny(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), LOW, HIGH)
    for scale in (1.0, 0.4):
        assert np.array_equal(canny_edges(image, scale), plain)


def test_clearing_takes_the_edges_of_a_box_and_no_others():
    edges = np.full((40, 40), 255, np.uint8)
    clear(edges, Box(30, -5, 60, 10))
    assert edges[:10, 30:].sum() == 0
    assert (edges == 255).sum() == 40 * 40 - 100


def test_an_outline_is_the_rim_of_what_is_covered():
    coverage = np.zeros((20, 20), np.uint8)
    coverage[5:10, 5:15] = 255
    rim = outline(coverage) == 255
    assert rim.sum() == 7 * 12 - 5 * 10
    assert not rim[5:10, 5:15].any()


def test_a_control_picture_is_rgb_in_bytes():
    edges = np.zeros((4, 5), np.uint8)
    edges[1, 2] = 255
    picture = as_rgb(edges)
    assert picture.shape == (4, 5, 3) and picture.dtype == np.uint8
    assert picture[1, 2].tolist() == [255, 255, 255] and picture.sum() == 3 * 255
