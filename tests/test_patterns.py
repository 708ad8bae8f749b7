"""Reading patterns: against patterns drawn here by other code than the editor's, and null pictures."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from editors.recolor import paint_pattern, recolor_object
from rekey import colors
from rekey.certificate import measure_change
from rekey.editing import EditRequest, PhotoView
from rekey.geometry import Box
from rekey.patterns import MIN_PIXELS, PATTERNS, read_pattern
from rekey.records import Slot, VisualKey

TONES = {"red on white": ((200, 40, 40), (235, 235, 230)), "blue on gray": ((40, 60, 160), (150, 150, 150)),
         "black on yellow": ((25, 25, 28), (225, 195, 60))}


def drawn(pattern, size, tones, turn_deg=8.0, n=3.5, seed=0):
    """Lab of a shaded, noisy, slightly blurred square cloth: float32 (size, size, 3)."""
    first, second = (np.array(t, np.float32) for t in tones)
    y, x = np.mgrid[:size, :size] - size / 2 + 0.37
    turn = np.deg2rad(turn_deg)
    u, v = x * np.cos(turn) + y * np.sin(turn), -x * np.sin(turn) + y * np.cos(turn)
    period = size / n
    if pattern == "striped":
        on = (u / period) % 1 < 0.5
    elif pattern == "checked":
        on = ((u / period * 2) // 1 + (v / period * 2) // 1) % 2 == 0
    elif pattern == "dotted":                          # a square lattice; the editor's own is staggered
        on = np.hypot((u / period) % 1 - 0.5, (v / period) % 1 - 0.5) < 0.29
    else:
        on = np.ones((size, size), bool)
    rng = np.random.default_rng(seed)
    light = np.clip(1.0 - 0.35 * x / size - 0.25 * y / size, 0.5, 1.2)[..., None]
    picture = np.where(on[..., None], first, second) * light + rng.normal(0, 5, (size, size, 3))
    return colors.to_lab(cv2.GaussianBlur(np.clip(picture, 0, 255).astype(np.uint8), (0, 0), 1.0))


@pytest.mark.parametrize("tones", TONES)
@pytest.mark.parametrize("size", [40, 70, 120])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_drawn_pattern_is_read_at_any_size_and_contrast(pattern, size, tones):
    reading = read_pattern(drawn(pattern, size, TONES[tones]), np.ones((size, size), bool))
    assert reading.name == pattern, reading
    assert 0.34 <= reading.share <= 1


@pytest.mark.parametrize("turn", [0, 20, 45, 70, 90, 135])
@pytest.mark.parametrize("pattern", ["striped", "checked", "dotted"])
def test_turning_a_pattern_does_not_change_its_name(pattern, turn):
    reading = read_pattern(drawn(pattern, 90, TONES["red on white"], turn), np.ones((90, 90), bool))
    assert reading.name == pattern, reading


def test_plain_objects_are_read_as_plain_whatever_their_noise_and_shading():
    rng = np.random.default_rng(3)
    names = []
    for k in range(60):
        size = int(rng.integers(40, 120))
        color = rng.uniform(20, 235, 3).astype(np.float32)
        y, x = np.mgrid[:size, :size] / size
        light = 1 + 0.6 * (np.cos(rng.uniform(1, 5) * x + rng.uniform(0, 6)) * rng.uniform(0, 0.8)
                           + (y - 0.5) * rng.uniform(-1, 1))
        noise = rng.normal(0, 40, (size, size)).astype(np.float32)
        texture = cv2.GaussianBlur(noise, (0, 0), rng.uniform(0.7, 4))
        picture = np.clip(color * light[..., None] + texture[..., None], 0, 255).astype(np.uint8)
        if k % 2:
            cv2.putText(picture, "A7", (size // 5, size // 2), 0, size / 80, (240, 240, 240), 1 + size // 50)
        names.append(read_pattern(colors.to_lab(picture), np.ones((size, size), bool)).name)
    assert names.count("plain") >= 59, names


def test_irregular_blotches_and_a_single_edge_are_not_a_pattern():
    rng = np.random.default_rng(5)
    found = []
    for _ in range(20):
        field = cv2.GaussianBlur(rng.normal(0, 1, (90, 90)).astype(np.float32), (0, 0), 7)
        picture = np.where((field > 0)[..., None], np.uint8((200, 40, 40)), np.uint8((235, 235, 230)))
        found.append(read_pattern(colors.to_lab(picture), np.ones((90, 90), bool)).name)
    assert found.count("plain") >= 17, found
    halves = np.where(np.arange(90)[None, :, None] < 45, np.uint8((200, 40, 40)), np.uint8((40, 60, 160)))
    halves = np.broadcast_to(halves, (90, 90, 3)).copy()
    assert read_pattern(colors.to_lab(halves), np.ones((90, 90), bool)).name == "plain"


def test_too_few_changed_pixels_give_no_name():
    changed = np.zeros((50, 50), bool)
    changed.flat[:MIN_PIXELS - 1] = True
    reading = read_pattern(drawn("striped", 50, TONES["red on white"]), changed)
    assert reading.name is None and reading.share == 0


def test_a_cloth_that_was_striped_only_where_it_changed_is_still_striped():
    lab = drawn("striped", 80, TONES["red on white"])
    white_only = lab[..., 1] < 20                       # the editor painted the white stripes, no more
    assert 0.3 < white_only.mean() < 0.7
    assert read_pattern(lab, white_only).name == "striped"


def test_what_lies_outside_of_the_changed_region_is_ignored():
    lab = drawn("plain", 100, TONES["blue on gray"])
    lab[:, :50] = drawn("checked", 100, TONES["red on white"])[:, :50]
    changed = np.zeros((100, 100), bool)
    changed[10:90, 55:95] = True
    assert read_pattern(lab, changed).name == "plain"


@pytest.mark.parametrize("color", [None, "blue", "yellow", "black"])
def test_what_the_editor_paints_is_read_back(color):
    canvas = np.full((120, 120, 3), (125, 135, 120), np.uint8)
    canvas[20:100, 20:100] = np.array((190, 40, 40)) * np.linspace(0.8, 1.1, 80)[None, :, None]
    box = Box(16, 16, 104, 104)
    slot = Slot("p", "A1", "replace", Box(0, 0, 120, 120), box, ("red cloth",))

    def read(pattern, seed):
        key = VisualKey(slot, "replace", "red cloth", color or "green", pattern)
        if pattern is not None:
            key = VisualKey(slot, "replace", "red cloth", color, pattern)
        edit = recolor_object if pattern is None else paint_pattern
        out = edit(EditRequest(canvas, box, key, seed, 0, PhotoView(canvas, slot.context)))
        change = measure_change(canvas, out, box)
        return read_pattern(change.lab_after, change.changed).name

    for seed in range(3):
        assert [read(p, seed) for p in ("striped", "dotted", "checked")] == ["striped", "dotted", "checked"]
    assert read(None, 0) == "plain"
