"""The classical edit on a diffusion model's canvas."""

import numpy as np
import pytest
from PIL import Image

from editors.classical import ClassicalEditor
from editors.prepaint import drawn_outline, prepainted
from rekey.compositing import cut, mask_margin_px, paste
from rekey.editing import EditRequest, PhotoView
from rekey.geometry import Box
from rekey.records import Slot, VisualKey

RNG = np.random.default_rng(5)
PHOTO = np.clip(RNG.normal(130, 6, (300, 401, 3)) + np.linspace(-30, 30, 401)[None, :, None], 0, 255).astype(np.uint8)
PHOTO[110:170, 160:230] = (30, 60, 170)


def request_of(key, side=512, attempt=0):
    crop = cut(PHOTO, key.slot, (side,))
    return crop, EditRequest(crop.canvas, crop.box, key, 7, attempt, PhotoView(PHOTO, crop.window), crop.scale)


def key(mode, edit, name, color="red", **rest):
    return VisualKey(Slot("photo", "A", mode, edit.grown(40).clipped(401, 300), edit), mode, name, color, **rest)


RECOLOR = key("replace", Box(150, 100, 240, 180), "blue sign")
INSERT = key("add", Box(280, 180, 340, 260), "bucket")
CORNER = key("add", Box(0, 240, 50, 300), "cat")


@pytest.mark.parametrize("asked", [RECOLOR, INSERT, CORNER], ids=["recolor", "insert", "corner"])
def test_it_is_the_classical_edit_enlarged(asked):
    crop, request = request_of(asked)
    start = prepainted(request)
    native = cut(PHOTO, asked.slot)
    view = PhotoView(PHOTO, native.window)
    edited = ClassicalEditor().edit(EditRequest(native.canvas, native.box, asked, 7, 0, view))
    result = paste(PHOTO.copy(), native, edited)
    assert start.shape == request.canvas.shape
    whole = np.asarray(Image.fromarray(start).resize((crop.square.width,) * 2, Image.Resampling.LANCZOS))
    shown = whole[crop.window.moved(-crop.square.left, -crop.square.top).slices]
    assert np.abs(shown.astype(int) - result[crop.window.slices]).mean() < 4
    changed = np.abs(start.astype(int) - request.canvas).max(-1) > 40
    assert changed.mean() > 0.01


def test_nothing_changes_far_from_the_box():
    _, request = request_of(INSERT)
    start = prepainted(request)
    # The mask's margin, and the reach of the resampling filter.
    reach = round((mask_margin_px(INSERT.slot.edit) + 4) * request.scale)
    outside = np.ones(start.shape[:2], bool)
    outside[request.box.grown(reach).clipped(512, 512).slices] = False
    assert np.array_equal(start[outside], request.canvas[outside])


def test_later_attempts_are_plainer_by_the_classical_editor():
    first, last = (prepainted(request_of(INSERT, attempt=attempt)[1]) for attempt in (0, 3))
    assert not np.array_equal(first, last)


def test_what_cannot_be_drawn_is_not_prepainted():
    _, request = request_of(key("add", Box(280, 180, 340, 260), "harpsichord"))
    assert prepainted(request) is None
    assert drawn_outline(request) is None


def test_an_outline_runs_around_the_inserted_object():
    _, request = request_of(INSERT)
    rim = drawn_outline(request) > 0
    rows, columns = np.nonzero(rim)
    box = request.box.grown(round(10 * request.scale))
    assert box.left <= columns.min() and columns.max() < box.right
    assert box.top <= rows.min() and rows.max() < box.bottom
    changed = np.abs(prepainted(request).astype(int) - request.canvas).max(-1) > 60
    inside = np.zeros_like(rim)
    inside[rows.min():rows.max() + 1, columns.min():columns.max() + 1] = True
    assert changed[inside].mean() > 0.3 and 0.001 < rim.mean() < 0.05
    assert drawn_outline(request_of(RECOLOR)[1]) is None
