"""Cutting to a canvas and pasting back."""

import numpy as np
import pytest

from rekey.compositing import cut, mask_margin_px, paste, soft_mask, to_window
from rekey.geometry import Box
from rekey.records import Slot

PHOTO = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)


def slot(edit, context=None):
    return Slot("x", "A", "add", context or edit.grown(10).clipped(400, 300), edit, (), ("cat",))


EDITS = [Box(100, 80, 160, 140), Box(0, 0, 40, 30), Box(370, 280, 400, 300), Box(10, 10, 27, 29),
         Box(0, 0, 400, 300), Box(100, 100, 390, 110)]


@pytest.mark.parametrize("edit", EDITS, ids=str)
@pytest.mark.parametrize("canvases_px", [(), (512,)])
def test_pixels_outside_the_mask_are_untouched_and_inside_the_box_all_new(edit, canvases_px):
    crop = cut(PHOTO, slot(edit), canvases_px)
    edited = to_window(crop, 255 - crop.canvas)
    result = paste(PHOTO.copy(), crop, edited)
    margin = mask_margin_px(edit)
    outside = np.ones(PHOTO.shape[:2], bool)
    outside[edit.grown(margin).clipped(400, 300).slices] = False
    assert np.array_equal(result[outside], PHOTO[outside])
    window_edit = edit.moved(-crop.window.left, -crop.window.top)
    assert np.array_equal(result[edit.slices], edited[window_edit.slices])


def test_the_mask_falls_evenly_from_one_to_zero():
    edit = Box(50, 50, 110, 90)
    mask = soft_mask(edit, Box(0, 0, 200, 150))
    assert mask[edit.slices].min() == 1
    row = mask[70, 110:130]
    assert (np.diff(row) <= 0).all()
    assert 0 < row[0] < 1
    assert row[mask_margin_px(edit)] == 0
    assert np.array_equal(mask[30:, 20:], soft_mask(edit, Box(20, 30, 200, 150)))


def test_an_identity_editor_changes_nothing():
    for edit in EDITS:
        crop = cut(PHOTO, slot(edit))
        assert np.array_equal(paste(PHOTO.copy(), crop, crop.canvas), PHOTO)


def test_square_canvases_hold_the_box_and_keep_the_aspect():
    crop = cut(PHOTO, slot(Box(150, 100, 250, 140), Box(120, 90, 300, 150)), (512,))
    assert crop.canvas.shape == (512, 512, 3)
    assert crop.window.width == crop.window.height == 180
    assert crop.window.contains(Box(120, 90, 300, 150))
    assert crop.box.width / crop.box.height == pytest.approx(100 / 40, rel=0.03)


def test_where_the_image_is_narrower_than_the_square_the_aspect_is_kept():
    strip = PHOTO[:100]
    wide = Slot("x", "A", "add", Box(0, 0, 300, 100), Box(100, 30, 200, 70), (), ("cat",))
    crop = cut(strip, wide, (512,))
    assert crop.window == Box(0, 0, 300, 100)
    assert crop.box.width / crop.box.height == pytest.approx(100 / 40, rel=0.03)
    result = paste(strip.copy(), crop, to_window(crop, crop.canvas))
    assert np.abs(result.astype(int) - strip).mean() < 3         # resampled up and down again, in its place


def test_the_canvas_holds_the_ring_that_certificates_measure():
    crop = cut(PHOTO, slot(Box(100, 80, 160, 140), Box(100, 80, 160, 140)))
    assert crop.window.contains(Box(100, 80, 160, 140).grown(mask_margin_px(crop.edit) + 7))


def test_an_editor_that_changes_the_size_is_caught():
    crop = cut(PHOTO, slot(EDITS[0]))
    with pytest.raises(ValueError, match="the editor returned"):
        to_window(crop, crop.canvas[:-1])


def test_a_canvas_of_floats_is_rounded_once():
    smooth = np.linspace(40, 210, 300)[None, :, None] + np.linspace(-30, 30, 200)[:, None, None] + np.array([0, 9, -9])
    crop = cut(smooth.astype(np.uint8), slot(Box(150, 100, 250, 140), Box(120, 90, 290, 150)), (512,))
    exact = crop.canvas.astype(np.float32)
    as_bytes, as_floats = to_window(crop, crop.canvas), to_window(crop, exact)
    assert as_floats.dtype == np.uint8 and np.abs(as_floats.astype(int) - as_bytes).max() <= 1
    rng = np.random.default_rng(0)
    shaken = [to_window(crop, exact + rng.normal(0, 0.01, exact.shape).astype(np.float32)) for _ in range(3)]
    assert max(np.abs(one.astype(int) - as_floats).max() for one in shaken) <= 1
    native = cut(PHOTO, slot(EDITS[0]))
    assert np.array_equal(to_window(native, native.canvas.astype(np.float32) + 0.4), native.canvas)
