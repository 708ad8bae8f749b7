"""Recoloring on drawn objects: the named color, the kept form, the untouched surroundings."""

from __future__ import annotations

import dataclasses

import cv2
import numpy as np
import pytest

from editors.classical import ClassicalEditor
from editors.recolor import paint_pattern, recolor_object
from rekey import colors
from rekey.editing import EditRequest, PhotoView
from rekey.geometry import Box
from rekey.records import Slot, VisualKey

BOX = Box(40, 36, 124, 120)
START = {"red": (215, 30, 34), "blue": (40, 70, 160), "black": (26, 26, 28), "white": (250, 250, 248),
         "brown": (110, 72, 44)}


def photo(color, seed=0):
    """(uint8 picture of a shaded, grainy ball in front of a mottled wall, bool mask of the ball)."""
    rng = np.random.default_rng(seed)
    wall = np.array((128, 138, 120), np.float32) + cv2.GaussianBlur(
        rng.normal(0, 60, (160, 168, 3)).astype(np.float32), (0, 0), 5)
    y, x = np.mgrid[:160, :168].astype(np.float32)
    u, v = (x - 82) / 34, (y - 78) / 34
    light = np.clip(0.85 + 0.25 * (-0.5 * u - 0.6 * v), 0.55, 1.1)[..., None]
    grain = 1 + 0.05 * cv2.GaussianBlur(rng.normal(0, 2, y.shape).astype(np.float32), (0, 0), 1)[..., None]
    ball = np.array(color, np.float32) * light * grain
    mask = np.hypot(u, v) < 1
    soft = cv2.GaussianBlur(mask.astype(np.float32), (0, 0), 0.8)[..., None]
    return np.clip(wall * (1 - soft) + ball * soft, 0, 255).astype(np.uint8), mask


def request(canvas, color, target="ball", pattern=None, attempt=0, seed=1, box=BOX):
    slot = Slot("p", "A1", "replace", Box(0, 0, canvas.shape[1], canvas.shape[0]), box, (target,))
    key = VisualKey(slot, "replace", target, color, pattern)
    return EditRequest(canvas, box, key, seed, attempt, PhotoView(canvas, slot.context))


def inner(mask, px=3):
    return cv2.erode(mask.astype(np.uint8), np.ones((2 * px + 1, 2 * px + 1))).astype(bool)


def votes(picture, where):
    return colors.name_shares(colors.to_lab(cv2.GaussianBlur(picture, (0, 0), 1.0))[where]).mean(0)


@pytest.mark.parametrize("start,color", [(s, c) for s in START for c in colors.COLORS if s != c])
def test_every_color_is_named_as_such_from_any_start(start, color):
    canvas, ball = photo(START[start])
    out = recolor_object(request(canvas, color, f"{start} ball"))
    share = votes(out, inner(ball))
    assert colors.COLORS[share.argmax()] == color and share.max() > 0.6
    assert votes(canvas, inner(ball))[colors.COLORS.index(color)] < 0.5          # it was not so before


@pytest.mark.parametrize("color", ["yellow", "green", "purple", "gray"])
def test_light_still_falls_from_the_same_side_and_grain_survives(color):
    canvas, ball = photo(START["red"])
    out = recolor_object(request(canvas, color, "red ball"))
    before, after = (colors.to_lab(image)[..., 0][inner(ball)] for image in (canvas, out))
    assert np.corrcoef(before, after)[0, 1] > 0.9
    assert after.std() > 0.25 * before.std()


@pytest.mark.parametrize("color", ["blue", "black", "white", "yellow"])
def test_the_wall_is_not_painted_and_no_rim_of_the_old_color_stays(color):
    canvas, ball = photo(START["red"])
    out = recolor_object(request(canvas, color, "red ball"))
    changed = np.abs(out.astype(int) - canvas).max(-1) > 12
    far_wall = ~cv2.dilate(ball.astype(np.uint8), np.ones((9, 9))).astype(bool)
    assert changed[far_wall].mean() < 0.002
    rim = cv2.dilate(ball.astype(np.uint8), np.ones((5, 5))).astype(bool) & ~inner(ball, 2)
    red = colors.name_shares(colors.to_lab(out)[rim])[:, colors.COLORS.index("red")]
    assert red.mean() < 0.03
    was_red = colors.name_shares(colors.to_lab(canvas)[rim])[:, colors.COLORS.index("red")]
    assert was_red.mean() > 0.2


def test_pixels_away_from_the_box_are_the_same_bytes():
    canvas, _ = photo(START["blue"])
    tight = Box(60, 60, 104, 100)                      # the ball goes on outside
    out = recolor_object(request(canvas, "orange", "blue ball", box=tight))
    outside = np.ones(canvas.shape[:2], bool)
    outside[tight.grown(4).slices] = False
    assert np.array_equal(out[outside], canvas[outside])
    assert out.dtype == np.uint8 and out.shape == canvas.shape


def test_a_lamp_s_reflection_stays_white():
    canvas, _ = photo(START["red"])
    cv2.circle(canvas, (72, 66), 4, (252, 252, 250), -1)
    out = recolor_object(request(canvas, "green", "red ball"))
    assert out[66, 72].min() > 220


def test_the_same_request_gives_the_same_bytes_and_the_seed_moves_only_patterns():
    canvas, _ = photo(START["red"])
    first = recolor_object(request(canvas, "green", "red ball", seed=1))
    assert np.array_equal(first, recolor_object(request(canvas, "green", "red ball", seed=99)))
    striped = [paint_pattern(request(canvas, None, "red ball", "striped", seed=s)) for s in (1, 1, 2)]
    assert np.array_equal(striped[0], striped[1]) and not np.array_equal(striped[0], striped[2])


def test_the_request_s_canvas_is_left_alone():
    canvas, _ = photo(START["red"])
    kept = canvas.copy()
    canvas.setflags(write=False)
    recolor_object(request(canvas, "blue", "red ball"))
    paint_pattern(request(canvas, "blue", "red ball", "dotted"))
    assert np.array_equal(canvas, kept)


def test_a_later_attempt_is_plainer():
    canvas, ball = photo(START["black"])
    first, last = (recolor_object(request(canvas, "yellow", "black ball", attempt=a)) for a in (0, 4))
    index = colors.COLORS.index("yellow")
    assert votes(last, inner(ball))[index] >= votes(first, inner(ball))[index]
    assert colors.to_lab(last)[inner(ball)].std(0)[0] < colors.to_lab(first)[inner(ball)].std(0)[0]


def test_patterns_on_the_object_s_own_color_leave_the_base_tone():
    canvas, ball = photo(START["red"])
    out = paint_pattern(request(canvas, None, "red ball", "striped"))
    untouched = (np.abs(out.astype(int) - canvas).max(-1) <= 2)[inner(ball)].mean()
    assert 0.3 < untouched < 0.7
    share = votes(out, inner(ball))
    assert share[colors.COLORS.index("white")] > 0.25 and share[colors.COLORS.index("red")] > 0.2


@pytest.mark.parametrize("pattern", ["striped", "dotted", "checked"])
def test_a_pattern_has_both_its_base_color_and_a_contrasting_tone(pattern):
    canvas, ball = photo(START["red"])
    for color, second in (("blue", "white"), ("yellow", "black")):
        share = votes(paint_pattern(request(canvas, color, "red ball", pattern)), inner(ball))
        assert share[colors.COLORS.index(color)] > 0.25 and share[colors.COLORS.index(second)] > 0.12


def test_the_editor_says_what_it_cannot_do():
    editor = ClassicalEditor()
    canvas, _ = photo(START["red"])
    key = request(canvas, "blue").key
    assert editor.can(key) is None
    assert "materials" in editor.can(dataclasses.replace(key, material="wooden"))
    assert editor.can(dataclasses.replace(key, color=None)) is not None
    assert "mauve" in editor.can(dataclasses.replace(key, color="mauve"))
    assert "zigzag" in editor.can(dataclasses.replace(key, pattern="zigzag"))
    assert "flux capacitor" in editor.can(dataclasses.replace(key, mode="add", object="flux capacitor"))
    assert editor.can(dataclasses.replace(key, mode="add", object="bucket")) is None
    wooden = dataclasses.replace(request(canvas, "blue"), key=dataclasses.replace(key, material="wooden"))
    with pytest.raises(ValueError, match="materials"):
        editor.edit(wooden)


def test_the_editor_repaints_as_the_functions_do():
    canvas, _ = photo(START["red"])
    plain, striped = request(canvas, "blue"), request(canvas, "blue", pattern="striped")
    editor = ClassicalEditor()
    assert np.array_equal(editor.edit(plain), recolor_object(plain))
    assert np.array_equal(editor.edit(striped), paint_pattern(striped))
