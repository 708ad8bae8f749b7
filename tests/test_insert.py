"""Insertion on painted scenes whose light, grain and sharpness are known."""

from __future__ import annotations

import colorsys
import time

import numpy as np
import pytest

from editors.insert import RECIPES, choose_backdrop, choose_view, insert_object, render_insertion, shadow_pad
from editors.render import Frame, fit
from editors.scene import edge_sigma, measure_surroundings, photo_statistics
from editors.solids import SOLIDS, find_solid
from editors.tracing import View
from rekey.colors import COLORS
from rekey.editing import EditRequest, PhotoView
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.records import Slot, VisualKey


def _scene(height: int = 300, width: int = 400, seed: int = 0, grain: float = 3.0) -> np.ndarray:
    """A gray-brown floor below a pale wall with a dark door, with grain."""
    image = np.empty((height, width, 3), np.float32)
    image[:] = (196, 190, 178)
    image[height // 2:] = (128, 120, 108)
    image[height // 4:height // 2, :width // 6] = (40, 38, 36)
    image += np.random.default_rng(seed).normal(0, grain, image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _request(photo: np.ndarray, box: tuple[int, int, int, int], noun: str, color: str | None = "red",
             seed: int = 0, attempt: int = 0, pattern: str | None = None,
             cache: dict | None = None) -> EditRequest:
    edit = Box(*box)
    window = edit.grown(2 * max(edit.width, edit.height)).clipped(photo.shape[1], photo.shape[0])
    key = VisualKey(Slot("scene", "slot_1", "add", window, edit, (), (noun,)), "add", noun, color, pattern)
    return EditRequest(photo[window.slices].copy(), edit.moved(-window.left, -window.top), key, seed, attempt,
                       PhotoView(photo, window, {} if cache is None else cache))


FLOOR = (180, 190, 250, 255)


@pytest.mark.parametrize("noun, box", [
    ("bucket", FLOOR), ("clock", FLOOR), ("balloon", FLOOR), ("boat", FLOOR),
    ("box", (0, 230, 60, 300)), ("clock", (340, 0, 400, 40)), ("sign", (0, 0, 400, 300)),       # borders
    ("cat", (100, 200, 119, 217)), ("bag", (10, 200, 14, 203)), ("poster", (50, 50, 53, 90))])  # tiny
def test_nothing_changes_beyond_the_pad_around_the_box(noun, box):
    request = _request(_scene(), box, noun)
    before = request.canvas.copy()
    edited = insert_object(request)
    assert edited.shape == before.shape and edited.dtype == np.uint8
    assert np.array_equal(request.canvas, before), "the request's canvas was written to"
    outside = np.ones(before.shape[:2], bool)
    allowed = request.box.grown(shadow_pad(request.box)).clipped(before.shape[1], before.shape[0])
    outside[allowed.slices] = False
    assert np.array_equal(edited[outside], before[outside])
    assert (edited[request.box.slices] != before[request.box.slices]).any()


def test_the_object_itself_stays_inside_the_box():
    for noun in ("cat", "scooter", "umbrella", "kite", "poster"):
        insertion = render_insertion(_request(_scene(), FLOOR, noun))
        outside = insertion.alpha.copy()
        outside[_request(_scene(), FLOOR, noun).box.slices] = 0
        assert outside.max() < 0.25, noun                      # no more than a blurred rim


def test_the_same_request_gives_the_same_pixels_and_another_seed_others():
    first, second, other = (insert_object(_request(_scene(), FLOOR, "stroller", seed=s)) for s in (4, 4, 5))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_a_cache_shared_by_the_edits_of_a_photo_changes_no_pixel():
    photo, cache = _scene(), {}
    insert_object(_request(photo, (20, 200, 80, 260), "cat", cache=cache))
    warm = insert_object(_request(photo, FLOOR, "bag", cache=cache))
    assert cache and np.array_equal(warm, insert_object(_request(photo, FLOOR, "bag")))


def _name_by_hue(rgb: np.ndarray) -> str:
    """A coarse reading of one sRGB color, independent of `rekey.colors`."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(rgb / 255))
    spread = (rgb.max() - rgb.min()) / 255
    if spread < 0.12:
        return "black" if lightness < 0.25 else "white" if lightness > 0.75 else "gray"
    degrees = hue * 360
    if degrees < 18 or degrees >= 340:
        return "pink" if rgb.min() > 0.42 * rgb.max() else "red"
    if degrees < 45:
        return "brown" if rgb.max() < 165 else "orange"
    if degrees < 70:
        return "yellow"
    if degrees < 170:
        return "green"
    return "blue" if degrees < 255 else "purple" if degrees < 310 else "pink"


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("noun", ["box", "cat", "bicycle"])
def test_key_pixels_carry_the_named_color(noun, color):
    insertion = render_insertion(_request(_scene(), FLOOR, noun, color))
    shown = insertion.canvas[insertion.key_mask]
    assert len(shown) > 100
    assert _name_by_hue(np.median(shown, axis=0)) == color


def test_every_color_of_the_pool_has_a_recipe():
    assert set(RECIPES) == set(COLORS)


@pytest.mark.parametrize("noun", sorted(SOLIDS))
def test_every_noun_can_be_inserted_and_shows_its_key_color(noun):
    insertion = render_insertion(_request(_scene(), FLOOR, noun, "blue", attempt=3))
    assert insertion.key_mask.sum() > 0.04 * 70 * 65
    shown = np.median(insertion.canvas[insertion.key_mask], axis=0)
    assert _name_by_hue(shown) == "blue"


def test_a_standing_object_darkens_the_ground_at_its_foot_and_a_balloon_does_not():
    photo = _scene(grain=1.0)
    for noun, shadowed in (("bucket", True), ("balloon", False)):
        request = _request(photo, FLOOR, noun, "blue")
        insertion = render_insertion(request)
        bare = insertion.alpha == 0
        rows = np.arange(len(bare))[:, None]
        foot = bare & (rows >= request.box.bottom - 16) & (rows < request.box.bottom)
        foot[:, :request.box.left] = foot[:, request.box.right:] = False
        change = insertion.canvas[foot].mean() - request.canvas[foot].mean()
        assert (change < -3) == shadowed, (noun, change)


def _flat(color: tuple[int, int, int], deviation: float) -> np.ndarray:
    noise = np.random.default_rng(1).normal(0, deviation, (300, 400, 3))
    return np.clip(np.array(color) + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("photo, box, noun, expected", [
    (_flat((90, 130, 160), 6), FLOOR, "boat", ("boat", "water")),
    (_flat((90, 130, 160), 6), FLOOR, "lifebuoy", ("swim ring", "water")),
    (_flat((90, 130, 160), 6), FLOOR, "bucket", ("bucket", "ground")),
    (_flat((90, 130, 160), 25), FLOOR, "boat", ("boat", "ground")),           # blue but rough
    (_scene(), FLOOR, "boat", ("boat", "ground")),
    (_scene(), FLOOR, "clock", ("clock", "wall")),
    (_scene(), FLOOR, "kite", ("kite", "none")),
    (_flat((120, 170, 230), 1), (180, 40, 240, 90), "bird", ("gliding bird", "none")),
    (_flat((120, 170, 230), 1), (180, 40, 240, 90), "bicycle", ("bicycle", "none")),
    (_flat((120, 170, 230), 1), FLOOR, "bird", ("bird", "ground")),           # too low to be sky
])
def test_objects_stand_float_hang_or_fly_as_their_place_suggests(photo, box, noun, expected):
    request = _request(photo, box, noun)
    solid, backdrop = choose_backdrop(find_solid(noun), measure_surroundings(photo, Box(*box)), request)
    assert (solid.name, backdrop) == expected


def test_the_camera_looks_down_more_on_what_is_lower_in_the_photo():
    views = [choose_view(find_solid("bag"), "ground", Frame(70, 65), _request(_scene(), box, "bag"),
                         np.random.default_rng(0)) for box in ((180, 20, 250, 85), FLOOR)]
    assert views[0].elevation_deg + 8 < views[1].elevation_deg < 30


@pytest.mark.parametrize("size", [(40, 90), (60, 60), (130, 45)])
def test_the_chosen_view_fills_the_box_better_than_the_worst_one(size):
    solid, frame = find_solid("bicycle"), Frame(*size)
    request = _request(_scene(), FLOOR, "bicycle", attempt=2)
    view = choose_view(solid, "ground", frame, request, np.random.default_rng(0))
    views = [View(yaw, view.elevation_deg) for yaw in np.linspace(*solid.yaw, 15)]
    shares = [fit(solid, other, frame).key_share for other in views]
    assert fit(solid, view, frame).key_share > 0.5 * (min(shares) + max(shares))


def test_an_object_in_a_dark_or_a_tinted_photo_takes_that_over():
    photo = _scene()
    dark = (photo * 0.45).astype(np.uint8)
    warm = np.clip(photo * np.array((1.12, 1.0, 0.7)), 0, 255).astype(np.uint8)

    def shown(scene: np.ndarray) -> np.ndarray:
        insertion = render_insertion(_request(scene, FLOOR, "box", "blue"))
        return insertion.canvas[insertion.alpha > 0.9].mean(0)

    plain = shown(photo)
    assert shown(dark).mean() < plain.mean() - 8
    assert shown(warm)[0] / shown(warm)[2] > 1.05 * plain[0] / plain[2]


def test_grain_of_the_object_follows_that_of_the_photo():
    def roughness(grain: float) -> float:
        insertion = render_insertion(_request(_scene(grain=grain), FLOOR, "balloon", "white"))
        inside = insertion.alpha > 0.99
        pixels = insertion.canvas.astype(float).mean(2)
        fine = pixels[1:-1] - (pixels[:-2] + pixels[2:]) / 2
        return float(fine[inside[1:-1] & inside[:-2] & inside[2:]].std())

    assert roughness(4.0) > roughness(0.2) + 1


def test_edges_are_measured_sharper_than_blurred_ones():
    import cv2
    image = np.zeros((80, 80), np.float32)
    image[20:60, 25:55] = 0.8
    measured = [edge_sigma(cv2.GaussianBlur(image, (0, 0), sigma)) for sigma in (0.7, 1.0, 1.5)]
    assert measured == sorted(measured)
    assert measured[2] == pytest.approx(1.5, abs=0.15)
    assert edge_sigma(np.zeros((40, 40), np.float32)) is None


def test_the_grain_of_a_flat_photo_is_measured_right():
    rng = np.random.default_rng(3)
    photo = np.clip(128 + rng.normal(0, 3, (600, 900, 3)), 0, 255).round().astype(np.uint8)
    grain = photo_statistics(PhotoView(photo, Box(0, 0, 900, 600), {})).grain
    assert np.array(grain) * 255 == pytest.approx([3, 3, 3], rel=0.2)


def test_more_attempts_show_more_of_the_key_color():
    areas = [render_insertion(_request(_scene(), FLOOR, "beach chair", "red", attempt=attempt)).key_mask.sum()
             for attempt in (0, 3)]
    assert areas[1] > 1.3 * areas[0]
    late, later = (insert_object(_request(_scene(), FLOOR, "cup", "white", attempt=n)) for n in (3, 9))
    assert np.array_equal(late, later)                        # plainer than the last level there is nothing


def test_a_key_without_a_color_takes_one_from_the_pool_by_its_seed():
    request = _request(_scene(), FLOOR, "poster", None, pattern="striped")
    shown = insert_object(request)
    named = [_request(_scene(), FLOOR, "poster", color, pattern="striped") for color in COLORS]
    assert sum(np.array_equal(shown, insert_object(other)) for other in named) == 1


def test_what_cannot_be_drawn_is_said_in_one_line():
    for change, message in ((dict(noun="sousaphone"), "no drawing of 'sousaphone'; use an editor"),
                            (dict(noun="cat", color="mauve"), "color 'mauve' is unknown; expected one of"),
                            (dict(noun="cat", pattern="paisley"), "pattern 'paisley' is unknown; expected")):
        with pytest.raises(InputError) as error:
            insert_object(_request(_scene(), FLOOR, **change))
        assert str(error.value).startswith(f"scene/slot_1: {message}") and "\n" not in str(error.value)


def test_statistics_of_a_large_photo_take_no_copy_of_it_and_little_time():
    import tracemalloc
    photo = np.tile(_scene(500, 750), (3, 3, 1))              # 1500 x 2250
    tracemalloc.start()
    started = time.process_time()
    insert_object(_request(photo, FLOOR, "box"))
    elapsed_s = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6 and elapsed_s < 1.5                    # a float32 copy would be 40 MB; usual: 0.15 s
