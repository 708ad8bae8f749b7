"""A model's color drift is measured around the hole and taken out of all of the edit."""

import numpy as np
import pytest
from PIL import Image

from editors import drift as drift_module
from experiments.demo_photos import demo_photos
from rekey import colors
from rekey.certificate import MAX_RING_DELTA_E, _ring
from rekey.geometry import Box
from rekey.images import load_image

HOLE, BOX = Box(192, 192, 320, 320), Box(200, 200, 312, 312)


@pytest.fixture(scope="module")
def canvases():
    """The middle of every demo photo, on a canvas of 512."""
    photos = [load_image(path).pixels for path in demo_photos().values()]
    middles = [photo[photo.shape[0] // 2 - 100:, photo.shape[1] // 2 - 100:][:200, :200] for photo in photos]
    return [np.asarray(Image.fromarray(middle).resize((512, 512), Image.Resampling.LANCZOS)) for middle in middles]


def without_drift(canvas, edited, hole):
    return drift_module.as_bytes(drift_module.without_drift(canvas, np.float32(edited) / 255, hole))


def painted(canvas):
    """The canvas with a red square in its hole, as a perfect editor would give it."""
    edited = canvas.copy()
    edited[BOX.slices] = (200, 40, 40)
    return edited


def toned(image, shift, gain=1.0):
    moved = (image.astype(float) - 128) * gain + 128 + np.array(shift)
    return np.rint(np.clip(moved, 0, 255)).astype(np.uint8)


def ring_delta_e(canvas, edited):
    return _ring(canvas, edited, BOX, 8)[0]


DRIFTS = {"3% warmer": ((6, 2, -4), 1.0), "6% lighter": ((15, 15, 15), 1.0), "10% lighter": ((25, 25, 25), 1.0),
          "duller": ((0, 0, 0), 0.88), "duller and cooler": ((-8, 0, 8), 0.9)}


@pytest.mark.parametrize("drift", DRIFTS, ids=lambda name: name.replace(" ", "-"))
def test_a_drift_that_would_fail_its_certificate_is_taken_out(canvases, drift):
    shift, gain = DRIFTS[drift]
    before, after = [], []
    for canvas in canvases:
        edited = toned(painted(canvas), shift, gain)
        before.append(ring_delta_e(canvas, edited))
        after.append(ring_delta_e(canvas, without_drift(canvas, edited, HOLE)))
    assert np.mean(after) < 0.5 * np.mean(before), (before, after)
    assert max(after) < MAX_RING_DELTA_E, (before, after)


def test_what_was_painted_is_corrected_with_its_surroundings(canvases):
    for canvas in canvases:
        good = painted(canvas)
        mended = without_drift(canvas, toned(good, (12, 12, 12)), HOLE)
        lab, wanted = colors.to_lab(mended[BOX.slices]), colors.to_lab(good[BOX.slices])
        assert np.abs(lab.mean((0, 1)) - wanted.mean((0, 1))).max() < 4


def test_an_edit_without_drift_is_not_touched(canvases):
    for canvas in canvases:
        edited = painted(canvas)
        assert np.array_equal(without_drift(canvas, edited, HOLE), edited)


def test_an_object_that_leaves_its_hole_is_no_drift(canvases):
    for canvas in canvases:
        edited = canvas.copy()
        edited[BOX.top:BOX.bottom, 150:HOLE.right] = (200, 40, 40)       # out to the left, through the ring
        mended = without_drift(canvas, edited, HOLE)
        assert np.abs(mended.astype(int) - edited).mean() < 2


def test_a_hole_as_large_as_the_canvas_leaves_no_ring():
    canvas = np.full((64, 64, 3), 90, np.uint8)
    assert without_drift(canvas, canvas + 40, Box(0, 0, 64, 64)).mean() == 130
