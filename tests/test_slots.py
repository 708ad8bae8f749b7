"""Reading, checking and writing annotation files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from broken_annotations import BROKEN, LEFT_OUT, STREET, changed
from click.testing import CliRunner
from PIL import Image

from experiments.cli import main
from rekey.clutter import edge_density
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.sampling import Pool
from rekey.slots import check_slots, read_slots, slots_to_row, write_slots


def written(folder: Path, text: str | bytes, name: str = "f.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gives_exactly_these_errors(name, tmp_path):
    content, expected = BROKEN[name]
    path = written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_slots(path)
    assert list(caught.value.problems) == expected
    assert [str(f) for f in check_slots(path) if f.level == "error"] == expected


@pytest.mark.parametrize("name", BROKEN)
def test_check_exits_with_2_for_a_broken_file_and_shows_no_traceback(name, tmp_path):
    path = written(tmp_path, BROKEN[name][0])
    result = CliRunner().invoke(main, ["slots", "check", str(path)])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert all(f"error: {line}" in result.output.split("\n") for line in BROKEN[name][1])


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.jsonl: cannot be read \(No such file or directory\)"):
        read_slots(tmp_path / "nowhere.jsonl")
    with pytest.raises(InputError, match="found a folder, expected an annotation file"):
        read_slots(tmp_path)


def test_a_good_file_is_read_field_by_field(tmp_path):
    (image,) = read_slots(written(tmp_path, changed(image_size=[400, 300], slots__1__clutter=0.25))).values()
    first, second = image.slots
    assert (image.image_id, image.question_id, image.category, image.image_size) == (
        "street", "0", "direct_attributes", (400, 300))
    assert (first.image_id, first.slot_id, first.mode, first.targets, first.candidates, first.clutter) == (
        "street", "A1", "replace", ("blue glove",), (), None)
    assert (second.context, second.edit) == (Box(200, 0, 300, 80), Box(220, 20, 260, 50))
    assert (second.mode, second.candidates, second.clutter) == ("add", ("cat", "dog"), 0.25)


def test_float_boxes_are_rounded(tmp_path):
    text = changed(slots__0__edit_region__xyxy=[19.6, 20.4, 60.0, 49.51])
    (image,) = read_slots(written(tmp_path, text)).values()
    assert image.slots[0].edit == Box(20, 20, 60, 50)


def test_either_several_targets_and_colorless_targets_are_read(tmp_path):
    text = changed(slots__0__edit_region__mode="either", slots__0__add={"objects": ["duck"]},
                   slots__0__replace={"targets": [{"target_ref": "red cup"}, {"target_ref": "Mickey Mouse"}]})
    slot = next(iter(read_slots(written(tmp_path, text)).values())).slots[0]
    assert (slot.mode, slot.targets, slot.candidates) == ("either", ("red cup", "Mickey Mouse"), ("duck",))


def test_a_byte_order_mark_and_crlf_are_read_and_warned_about(tmp_path):
    path = written(tmp_path, b"\xef\xbb\xbf" + (changed() + "\r\n").encode())
    assert list(read_slots(path)) == ["street"]
    texts = [f.text for f in check_slots(path)]
    assert len(texts) == 2 and "byte order mark" in texts[0] and "CRLF" in texts[1]


def test_a_clean_file_has_no_findings(tmp_path):
    assert check_slots(written(tmp_path, changed()), {"street": (400, 300)}) == []


@pytest.mark.parametrize(("changes", "fragment"), [
    ({"catgory": "x"}, 'unknown keys ["catgory"]'),
    ({"slots__0__modes": 1}, 'unknown keys ["modes"]'),
    ({"category": "OCR"}, 'category "OCR"'),
    ({"slots": []}, "no slots"),
    ({"category": "relative_position", "slots__1": LEFT_OUT}, "one slot in a relative_position image"),
    ({"slots__0__replace__targets__0__target_ref": "spider"}, "'spider' without a color word"),
    ({"slots__0__replace__targets__0__target_ref": "silver lock"}, "color silver in target 'silver lock', "
                                                                   "expected a color that can be painted; "
                                                                   "white, gray will not be painted"),
    ({"slots__0__replace__targets__0__target_ref": "蓝色手套"}, "expected English words"),
    ({"slots__0__replace__targets__0__edit_types": ["shape_change"]}, 'edit_types ["shape_change"]'),
    ({"slots__1__add__objects": ["glove", "dog"]}, "'glove' to add beside target 'blue glove'"),
    ({"slots__1__add__objects": ["glove"]}, "no object that can be added"),
    ({"slots__1__replace": {"targets": [{"target_ref": "red cup"}]}}, "mode add with targets (red cup)"),
    ({"slots__0__edit_region__mode": "either"}, "mode either with targets only"),
    ({"slots__0__edit_region__xyxy": [20, 20, 27, 50]}, "7 x 30 pixels; nothing can be recognized"),
    ({"slots__0__context_region__xyxy": [17, 17, 63, 53]}, "context box hardly larger"),
    ({"slots__0__context_region__xyxy": [0, 0, 900, 900], "slots__0__edit_region__xyxy": [20, 20, 420, 180]},
     "400 x 160 pixels; a slot is meant to be a small detail"),
    ({"slots__1__edit_region__xyxy": [50, 20, 90, 50], "slots__1__context_region__xyxy": [0, 0, 100, 80]},
     "over that of slot A1"),
    ({"slots__1": {**STREET["slots"][1], "edit_region": {"xyxy": [220, 20, 260, 50], "mode": "replace"},
                   "replace": {"targets": [{"target_ref": "red glove"}]}}},
     "a question about the glove could mean both"),
])
def test_each_doubt_is_a_warning_and_the_file_is_still_read(changes, fragment, tmp_path):
    path = written(tmp_path, changed(**changes))
    read_slots(path)
    findings = check_slots(path)
    assert [f.level for f in findings] == ["warning"] * len(findings)
    assert any(fragment in f.text for f in findings), [f.text for f in findings]


# ------------------------------------------------------------------------- sizes and images

def saved_image(folder: Path, name: str, width: int, height: int) -> None:
    folder.mkdir(exist_ok=True)
    Image.new("RGB", (width, height), "gray").save(folder / name)


def test_boxes_are_checked_against_the_images(tmp_path):
    rows = changed(), changed(image_id="gone"), changed(image_id="wide", image_size=[300, 80])
    path = written(tmp_path, "\n".join(rows))
    saved_image(tmp_path / "photos", "street.png", 250, 100)
    saved_image(tmp_path / "photos", "wide.png", 600, 160)
    errors = [str(f) for f in check_slots(path, tmp_path / "photos") if f.level == "error"]
    assert len(errors) == 4
    assert "street slot B1: found context box [200, 0, 300, 80] that reaches outside" in errors[0]
    assert "street slot B1: found edit box [220, 20, 260, 50] that reaches outside" in errors[1]
    assert "line 2, gone: no image of that name" in errors[2]
    assert "wide: found image_size [300, 80], expected [600, 160]" in errors[3]


def test_sizes_come_from_a_json_file_too(tmp_path):
    path = written(tmp_path, changed())
    sizes = written(tmp_path, '{"street": [250, 100]}', "sizes.json")
    assert [f.slot_id for f in check_slots(path, sizes)] == ["B1", "B1"]
    missing = check_slots(path, written(tmp_path, '{"street": [0, 1]}', "zero.json"))
    assert [f.text for f in missing] == ["found [0, 1] in zero.json, expected [width, height]; add it"]
    for text in ("[]", "no json", ""):
        with pytest.raises(InputError, match="found no JSON object"):
            check_slots(path, written(tmp_path, text, "bad.json"))


def test_writing_and_reading_again_gives_the_same_slots(tmp_path):
    text = changed(image_size=[400, 300], slots__0__clutter=0.5,
                   slots__1__replace={"targets": [{"target_ref": "red cup"}]})
    images = read_slots(written(tmp_path, text))
    write_slots(tmp_path / "again.jsonl", images.values())
    assert read_slots(tmp_path / "again.jsonl") == images


# ------------------------------------------------------------------------------------ clutter

def test_edge_density_is_0_on_a_flat_field_and_counts_the_pixels_beside_an_edge():
    pixels = np.zeros((60, 100, 3), np.uint8)
    box = Box(0, 0, 100, 60)
    assert edge_density(pixels, box) == 0
    pixels[:, 50:] = 100
    # The slope of a step of 100 levels, smoothed with sigma 1, is 100 * normal_pdf(x) averaged over the
    # central difference: 37.6 at +-0.5 px, 18.7 at 1.5, 5.2 at 2.5; so four columns exceed 8 levels per px.
    assert edge_density(pixels, box) == pytest.approx(4 / 100)
    assert edge_density(pixels, Box(0, 0, 40, 60)) == 0


def test_edge_density_ignores_sensor_noise_and_grows_with_texture():
    rng = np.random.default_rng(0)
    noise = np.clip(rng.normal(128, 6, (200, 200, 1)), 0, 255).astype(np.uint8).repeat(3, axis=2)
    blocks = np.kron(rng.integers(0, 256, (20, 20, 1)), np.ones((10, 10, 3))).astype(np.uint8)
    assert edge_density(noise, Box(0, 0, 200, 200)) < 0.01 < edge_density(blocks, Box(0, 0, 200, 200)) < 0.7


def test_measure_adds_size_and_clutter_and_keeps_all_else(tmp_path):
    path = written(tmp_path, changed(slots__0__context_region__ref="a table", own_key=1) + "\n")
    saved_image(tmp_path / "photos", "street.png", 400, 300)
    out = tmp_path / "measured.jsonl"
    result = CliRunner().invoke(main, ["slots", "measure", str(path), "--images", str(tmp_path / "photos"),
                                       "--out", str(out)])
    assert result.exit_code == 0, result.output
    row = json.loads(out.read_text())
    assert row.pop("image_size") == [400, 300]
    assert [slot.pop("clutter") for slot in row["slots"]] == [0.0, 0.0]
    assert row == json.loads(path.read_text())


def test_measure_writes_nothing_when_an_image_is_missing(tmp_path):
    path = written(tmp_path, changed())
    (tmp_path / "photos").mkdir()
    out = tmp_path / "measured.jsonl"
    result = CliRunner().invoke(main, ["slots", "measure", str(path), "--images", str(tmp_path / "photos"),
                                       "--out", str(out)])
    assert result.exit_code == 2 and "no image of that name" in result.output and not out.exists()


# --------------------------------------------------------------------------- released annotations

@pytest.fixture(scope="module")
def released(data_pack) -> Path:
    return data_pack / "rekey" / "annotations" / "dynamic_vstar_slots_latest.jsonl"


@pytest.fixture(scope="module")
def warnings(released, data_pack) -> list:
    findings = check_slots(released, data_pack / "rekey" / "vstar" / "image_sizes.json")
    assert [str(f) for f in findings if f.level == "error"] == []
    return findings


def slots_warned(warnings, fragment: str) -> set[str]:
    return {f"{f.image_id[-4:]} {f.slot_id}" for f in warnings if fragment in f.text}


def images_warned(warnings, fragment: str) -> set[str]:
    return {f.image_id[-4:] for f in warnings if fragment in f.text}


def test_the_released_file_has_191_images_and_752_slots(released):
    images = read_slots(released)
    slots = [slot for image in images.values() for slot in image.slots]
    assert (len(images), len(slots)) == (191, 752)
    assert Counter(slot.mode for slot in slots) == {"add": 485, "replace": 267}
    assert list(images) == [f"vstar_{n:04}" for n in range(191)]
    assert [(slot.image_id, slot.slot_id, slot.mode, slot.targets)
            for slot in slots if slot.targets and slot.candidates] == [
        ("vstar_0021", "D1", "add", ("white jet ski",)), ("vstar_0024", "C1", "add", ("green tank",))]


def test_the_released_file_survives_writing_byte_for_byte_in_content(released):
    rows = [json.loads(line) for line in released.read_text().splitlines()]
    assert [slots_to_row(image) for image in read_slots(released).values()] == rows


def test_the_chinese_file_is_read_with_a_warning_for_every_target(released):
    chinese = released.with_name("dynamic_vstar_slots_latest_zh.jsonl")
    images = read_slots(chinese)
    assert (len(images), sum(len(image.slots) for image in images.values())) == (191, 267)
    findings = check_slots(chinese)
    assert sum("expected English words" in f.text for f in findings) == 267
    assert not any(f.level == "error" for f in findings)


def test_known_anomalies_of_the_released_file_are_warned_about(warnings):
    assert slots_warned(warnings, "a slot is meant to be a small detail") == {
        "0065 B1", "0065 D1", "0124 A1", "0131 B1", "0142 B1", "0148 B1", "0155 B1", "0156 B1", "0160 B1",
        "0164 B1", "0165 B1", "0167 B1", "0177 B1", "0183 B1"}
    assert images_warned(warnings, "over that of slot") == {
        "0065", "0079", "0131", "0142", "0148", "0164", "0166", "0167", "0176", "0183"}
    assert slots_warned(warnings, "mode add with targets") == {"0021 D1", "0024 C1"}
    assert slots_warned(warnings, "without a color word") == {"0014 A1", "0021 A1", "0064 A1", "0116 A1"}
    assert images_warned(warnings, "expected a color that can be painted") >= {
        "0007", "0063", "0103", "0115", "0124", "0147", "0172", "0182"}
    # 18 slots of these images hit the published rule; ours also refuses nouns of one kind (suv beside a car).
    assert images_warned(warnings, "it is never added") >= {
        "0021", "0024", "0032", "0036", "0054", "0057", "0065", "0083", "0098", "0117", "0133", "0156",
        "0181"}
    assert "0181 D1" in slots_warned(warnings, "no object that can be added")
    assert images_warned(warnings, "could mean both") == {
        "0116", "0141", "0147", "0153", "0181", "0182", "0186", "0188"}


def test_objects_warned_about_are_those_that_the_sampler_leaves_out(released, warnings):
    left_out = {f"{image.image_id[-4:]} {line}" for image in read_slots(released).values()
                for line in Pool(image).excluded if "would not be the only one in the scene" in line}
    warned = {f"{f.image_id[-4:]} {f.slot_id}: a {f.text.split(chr(39))[1]} would not be the only one in "
              "the scene"
              for f in warnings if "it is never added" in f.text}
    assert warned == left_out and len(warned) > 18
