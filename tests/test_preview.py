"""Previews and contact sheets: what a person gets to see."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image, ImageDraw, ImageFont

from experiments.cli import main
from rekey.geometry import Box
from rekey.preview import (
    CONTEXT_COLOR,
    MODE_COLORS,
    SHEET_WIDTH_PX,
    contact_sheet,
    draw_outline,
    preview_slots,
    wrapped,
)
from rekey.records import ImageSlots, Slot


def slot(slot_id: str, mode: str, edit: Box, margin: int = 40, **more) -> Slot:
    return Slot("street", slot_id, mode, edit.grown(margin), edit, **more)


def rgb(color: str) -> tuple[int, int, int]:
    return tuple(int(color[i:i + 2], 16) for i in (1, 3, 5))


def n_pixels(picture: Image.Image, color: str) -> int:
    return int((np.asarray(picture) == rgb(color)).all(axis=2).sum())


@pytest.fixture
def gray() -> np.ndarray:
    return np.full((600, 800, 3), 128, np.uint8)


def test_every_mode_and_context_is_drawn_in_its_color(gray):
    image = ImageSlots("street", (slot("A1", "replace", Box(100, 100, 160, 160), targets=("red cup",)),
                                  slot("B1", "add", Box(400, 300, 460, 340), candidates=("cat",))))
    picture = preview_slots(gray, image)
    assert picture.width > SHEET_WIDTH_PX and picture.mode == "RGB"
    assert n_pixels(picture, CONTEXT_COLOR) > 500
    assert n_pixels(picture, MODE_COLORS["replace"]) > 500 and n_pixels(picture, MODE_COLORS["add"]) > 500
    assert n_pixels(picture, MODE_COLORS["either"]) == 0


def test_an_outline_lies_around_its_box_and_hides_no_pixel_of_it(gray):
    box = Box(300, 200, 340, 230)
    picture = Image.fromarray(gray)
    draw_outline(ImageDraw.Draw(picture), box, "#ff0000", 3)
    pixels = np.asarray(picture)
    assert (pixels[box.slices] == 128).all()
    assert (pixels[199, 300:340] != 128).all() and (pixels[200:230, 340] != 128).all()
    assert n_pixels(picture, "#ff0000") == 48 * 38 - 42 * 32


def test_boxes_at_the_rim_beyond_it_and_of_one_pixel_do_not_fail(gray):
    for edit in (Box(0, 0, 1, 1), Box(799, 599, 800, 600), Box(790, 590, 900, 700), Box(0, 0, 800, 600),
                 Box(2000, 2000, 2100, 2100)):
        image = ImageSlots("street", (slot("A1", "either", edit, targets=("x",), candidates=("y",)),))
        assert preview_slots(gray, image).height > 600
    assert preview_slots(gray, ImageSlots("street", ())).height > 600
    assert preview_slots(gray[:, :9], ImageSlots("street", ())).height > 600


def test_remarks_make_the_picture_taller_and_are_red(gray):
    image = ImageSlots("street", (slot("A1", "replace", Box(100, 100, 160, 160), targets=("red cup",)),))
    plain = preview_slots(gray, image)
    remarked = preview_slots(gray, image, {"A1": ["found something " * 20], None: ["and more"]})
    assert remarked.height > plain.height
    assert n_pixels(plain, "#c92a2a") == 0 < n_pixels(remarked, "#c92a2a")


def test_the_same_input_gives_the_same_pixels(gray):
    image = ImageSlots("street", (slot("A1", "replace", Box(100, 100, 160, 160), targets=("red cup",)),))
    assert preview_slots(gray, image).tobytes() == preview_slots(gray, image).tobytes()


@pytest.mark.parametrize("text", ["", "a", "orange-and-white lifebuoy on the boat " * 8, "x" * 300, "a\n\nb",
                                  "蓝色塑料手套" * 30])
def test_wrapped_lines_fit_and_lose_no_letter(text):
    font = ImageFont.load_default(16)
    lines = wrapped(text, font, 200)
    assert all(font.getlength(line) <= 200 for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_contact_sheet_shows_before_left_of_after():
    red, blue = np.full((30, 30, 3), (255, 0, 0), np.uint8), np.full((30, 30, 3), (0, 0, 255), np.uint8)
    sheet = np.asarray(contact_sheet([(red, blue, "A1: red -> blue")] * 3, columns=2, cell_px=100))
    reds, blues = (np.argwhere((sheet == color).all(axis=2)) for color in ((255, 0, 0), (0, 0, 255)))
    assert len(reds) == len(blues) == 3 * 100 * 100
    assert reds[:, 1].min() < blues[:, 1].min() and reds[:, 0].min() == blues[:, 0].min()


def test_a_contact_sheet_takes_pictures_of_any_shape_and_mode_and_none_at_all():
    rows = [(np.zeros((5, 300, 3), np.uint8), Image.new("L", (1, 1)), "one\ntwo"),
            (Image.new("RGBA", (9, 900)), Image.new("P", (2, 2)), "")]
    assert contact_sheet(rows, columns=3, title="seed 1").width == 3 * (2 * 220 + 4) + 2 * 20 + 2 * 20
    assert contact_sheet([]).width > 100
    with pytest.raises(ValueError, match="at least 1 column"):
        contact_sheet(rows, columns=0)


def test_preview_writes_a_picture_per_image_and_a_page_and_names_what_it_could_not(tmp_path):
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    rows = [{"image_id": name, "slots": [
        {"slot_id": "A1", "context_region": {"xyxy": [0, 0, 60, 60]},
         "edit_region": {"xyxy": [20, 20, 40, 40], "mode": "add"}, "add": {"objects": ["cat"]}}]}
        for name in ("a cat's", "gone", "broken")]
    slots = tmp_path / "slots.jsonl"
    slots.write_text("\n".join(map(json.dumps, rows)))
    Image.new("RGB", (100, 80), "gray").save(photos / "a cat's.png")
    (photos / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    arguments = ["slots", "preview", str(slots), "--images", str(photos), "--out", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 3
    assert "failed: gone: no image of that name" in result.output and "broken.png" in result.output
    assert "1 image drawn, 2 failed" in result.output
    assert sorted(path.name for path in out.iterdir()) == ["a cat's.jpg", "index.html"]
    assert 'src="a%20cat%27s.jpg"' in (out / "index.html").read_text()
    result = CliRunner().invoke(main, [*arguments, "--image", "a cat's"])
    assert result.exit_code == 0
    result = CliRunner().invoke(main, [*arguments, "--image", "nobody"])
    assert result.exit_code == 2 and "found --image nobody" in result.output
