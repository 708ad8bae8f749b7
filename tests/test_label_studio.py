"""Importing Label Studio exports, all written by Label Studio 1.23.2.

`data/label_studio_export*.json` were marked through its interface for programs (two annotators, one open
task), `data/label_studio_drawn*.json` by mouse and keyboard in its labeling page.
"""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from experiments.cli import main
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.images import image_size
from rekey.label_studio import LABEL_CONFIG, default_context, image_name, import_label_studio
from rekey.slots import check_slots, read_slots

DATA = Path(__file__).parent / "data"
EXPORT, EXPORT_MIN = DATA / "label_studio_export.json", DATA / "label_studio_export_min.json"
DRAWN, DRAWN_MIN = DATA / "label_studio_drawn.json", DATA / "label_studio_drawn_min.json"
DRAWN_ROTATED = DATA / "label_studio_drawn_rotated.json"


# ------------------------------------------------------------------------------- real exports

def test_a_real_export_is_read_as_it_was_marked():
    marked = import_label_studio(EXPORT)
    assert marked.problems == []
    assert list(marked.images) == ["kitchen_table", "street_01", "park"]
    (slot,) = marked.images["kitchen_table"].slots
    # Marked on 800 x 600: edit at 25 %, 25 % of 10 % x 12 %; context at 15 %, 10 % of 35 % x 45 %.
    assert (slot.mode, slot.targets, slot.candidates) == ("replace", ("blue glove",), ())
    assert (slot.edit, slot.context) == (Box(200, 150, 280, 222), Box(120, 60, 400, 330))
    assert marked.images["kitchen_table"].image_size == (800, 600)
    assert marked.images["park"].category == "relative_position"


def test_the_annotator_can_be_chosen_and_the_choice_is_told():
    (image,) = import_label_studio(EXPORT, annotator="2").images.values()
    first, second = image.slots
    assert first.targets == ("blue plastic glove", "white cup")
    assert (second.slot_id, second.mode, second.candidates) == ("B1", "add", ("cat", "dog", "bucket"))
    assert image.category == "direct_attributes"
    notes = import_label_studio(EXPORT).notes
    assert any("task 1 (kitchen_table): 2 annotations; took the one by annotator 1" in note for note in notes)


def test_a_rotated_rectangle_becomes_the_box_around_it():
    second = import_label_studio(EXPORT, annotator="2").images["kitchen_table"].slots[1]
    # By hand: 80 x 120 px at (500, 300), turned by 30 degrees clockwise about that corner, has its other
    # corners at (569.3, 340), (440, 403.9) and (509.3, 443.9).
    assert second.edit == Box(440, 300, 569, 444)


def test_the_rotation_of_the_view_does_not_move_boxes():
    # street_01 was marked with image_rotation 90: at 40 %, 40 % of 10 % x 10 % on 600 x 400.
    assert '"image_rotation":90' in EXPORT.read_text()
    (slot,) = import_label_studio(EXPORT).images["street_01"].slots
    assert slot.edit == Box(240, 160, 300, 200)


def test_an_edit_region_gets_the_smallest_context_around_it_or_three_times_its_size():
    marked = import_label_studio(EXPORT)
    duck, bench = marked.images["park"].slots
    assert (duck.context, bench.context) == (Box(25, 25, 475, 475), Box(250, 250, 400, 400))
    (sign,) = marked.images["street_01"].slots
    assert (sign.edit, sign.context) == (Box(240, 160, 300, 200), Box(180, 100, 360, 260))
    assert any("street_01): slot A1: no context_region around" in note for note in marked.notes)


def test_skipped_and_open_tasks_are_named_and_left_out():
    notes = import_label_studio(EXPORT).notes
    assert "label_studio_export.json task 4 (skipped): skipped by its annotator; left out" in notes
    assert "label_studio_export.json task 5 (my cat): not annotated; left out" in notes


def test_json_min_agrees_with_json_where_it_can_and_is_refused_where_it_cannot():
    full, least = import_label_studio(EXPORT), import_label_studio(EXPORT_MIN)
    assert least.images == {name: full.images[name] for name in ("kitchen_table", "street_01")}
    full_of_2, least_of_2 = import_label_studio(EXPORT, "2"), import_label_studio(EXPORT_MIN, "2")
    assert least_of_2.images == full_of_2.images != {}
    assert least.problems == [
        "label_studio_export_min.json task 3 (park): found 1 target for 2 edit regions, expected as many: "
        "this JSON_MIN export does not say which belongs to which; export as JSON"]


def test_the_labeling_config_names_the_fields_that_the_import_reads():
    tree = ElementTree.fromstring(LABEL_CONFIG)
    controls = {node.get("name"): node.tag for node in tree.iter() if node.get("toName")}
    used = {entry["from_name"]: entry["type"] for task in json.loads(EXPORT.read_text())
            for work in task["annotations"] for entry in work["result"]}
    assert {name: tag.lower() for name, tag in controls.items()} == used
    assert {node.get("value") for node in tree.iter("Label")} == {"edit_region", "context_region"}


# ------------------------------------------------------- exports drawn by mouse in the labeling page

def test_boxes_lie_where_the_mouse_drew_them():
    boxes = {f"{image.image_id} {slot.slot_id}": slot.edit
             for image in import_label_studio(DRAWN).images.values() for slot in image.slots}
    # Mouse down and up in pixels of the page, less the picture's corner.  All but "large" were shown 1:1.
    assert boxes.pop("large A1") == Box(1193, 856, 1552, 1245)
    assert boxes == {"china A1": Box(179, 30, 269, 80), "coffee A1": Box(324, 220, 408, 328),
                     "my_rocket A1": Box(301, 120, 346, 414), "my_rocket B1": Box(51, 21, 128, 85),
                     "sideways A1": Box(160, 77, 454, 367)}


def test_a_box_that_was_drawn_in_the_zoomed_picture_is_right_to_a_pixel_of_the_screen():
    (slot,) = import_label_studio(DRAWN).images["large"].slots
    # Drawn from 53 %, 57 % to 69 %, 83 % of 2250 x 1500, where a pixel of the screen was 2.5 of the image.
    drawn = (0.53 * 2250, 0.57 * 1500, 0.69 * 2250, 0.83 * 1500)
    assert max(abs(a - b) for a, b in zip(slot.edit.as_list(), drawn)) <= 2.5


def test_texts_typed_in_the_labeling_page_belong_to_the_region_that_was_selected():
    images = import_label_studio(DRAWN).images
    fields = {f"{image.image_id} {slot.slot_id}": (slot.mode, slot.targets, slot.candidates)
              for image in images.values() for slot in image.slots}
    assert fields["coffee A1"] == ("either", ("gray metal spoon",), ("cookie", "sugar cube"))
    assert fields["my_rocket A1"] == ("replace", ("white rocket",), ())
    assert fields["my_rocket B1"] == ("add", (), ("kite", "balloon", "airplane"))
    assert (images["china"].category, images["my_rocket"].category, images["coffee"].category) == (
        "direct_attributes", "relative_position", None)


def test_json_min_of_one_region_is_read_whatever_its_mode():
    # china has mode replace, and candidates that it does not need.
    assert import_label_studio(DRAWN_MIN).problems == []
    assert import_label_studio(DRAWN_MIN).images == import_label_studio(DRAWN).images


def test_a_photo_with_exif_orientation_is_marked_in_the_upright_frame(tmp_path):
    # sideways.jpg was stored as 427 x 640 pixels with orientation 6, as cameras do.
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (427, 640)).save(tmp_path / "sideways.jpg", exif=exif)
    marked = import_label_studio(DRAWN).images["sideways"]
    assert marked.image_size == (640, 427) == image_size(tmp_path / "sideways.jpg")


def without_stray_entries(folder: Path) -> Path:
    """DRAWN_ROTATED without the "1" and "2" that were typed into fields, and without task 10."""
    tasks = json.loads(DRAWN_ROTATED.read_text())[:2]
    for entry in (entry for task in tasks for entry in task["annotations"][0]["result"]):
        if "text" in entry["value"]:
            entry["value"]["text"] = [text for text in entry["value"]["text"] if not text.isdigit()]
    return export_of(folder, *tasks)


def test_boxes_drawn_while_the_view_was_rotated_lie_in_the_unrotated_image(tmp_path):
    images = import_label_studio(without_stray_entries(tmp_path)).images
    # 640 x 427.  china was turned right; the mouse went from (362, 189) to (401, 220) in that view, and
    # x = y_view, y = 427 - x_view.
    assert images["china"].slots[0].edit == Box(189, 427 - 401, 220, 427 - 362)
    # sideways was turned left: (382, 0) to (424, 68) in that view, and x = 640 - y_view, y = x_view.
    assert images["sideways"].slots[0].edit == Box(640 - 68, 382, 640, 424)
    # There a second rectangle was rotated by its handle. On a screenshot of that view its corners lie
    # at (137, 375), (257, 228), (334, 291), (215, 438).
    seen = (640 - 438, 137, 640 - 228, 334)
    assert max(abs(a - b) for a, b in zip(images["sideways"].slots[1].edit.as_list(), seen)) <= 2


def test_a_label_key_that_was_typed_into_a_field_is_found():
    assert [problem.split("): ")[1] for problem in import_label_studio(DRAWN_ROTATED).problems] == [
        "edit_region [572, 382, 640, 424]: found target '1', expected words; delete this entry (a key that "
        "was meant for the picture?)",
        "edit_region [1289, 261, 1727, 846]: found candidates '2', expected words; delete this entry (a key "
        "that was meant for the picture?)"]


# ------------------------------------------------------------------------------- made-up exports

def rectangle(key: str, label: str, x=25.0, y=25.0, width=10.0, height=10.0, **more) -> dict:
    return {"id": key, "type": "rectanglelabels", "from_name": "box", "to_name": "image",
            "original_width": 1000, "original_height": 500, "image_rotation": 0,
            "value": {"x": x, "y": y, "width": width, "height": height, "rotation": 0,
                      "rectanglelabels": [label], **more}}


def text(key: str, name: str, *texts: str) -> dict:
    kind = "choices" if name in ("mode", "category") else "textarea"
    return {"id": key, "type": kind, "from_name": name, "to_name": "image",
            "value": {"choices" if kind == "choices" else "text": list(texts)}}


def task(*result: dict, number: int = 1, image: object = "/data/upload/1/0a1b2c3d-cup.jpg", **more) -> dict:
    return {"id": number, "data": {"image": image}, "annotations": [
        {"id": number, "completed_by": 1, "was_cancelled": False, "updated_at": "2026-01-01T00:00:00Z",
         "result": list(result), **more}]}


def export_of(folder: Path, *tasks: object) -> Path:
    path = folder / "e.json"
    path.write_text(json.dumps(list(tasks)))
    return path


EDIT, CONTEXT = rectangle("e", "edit_region"), rectangle("c", "context_region", 15, 15, 30, 30)
TARGET = text("e", "target", "red cup")

FAULTY = {
    "no fields": ([EDIT, CONTEXT], "slot A1, edit_region [250, 125, 350, 175]: found no mode, target or "
                                   "candidates, expected at least one; select the region and fill in its "
                                   "fields"),
    "replace without target": ([EDIT, text("e", "mode", "replace"), text("e", "target", "  ")],
                               "slot A1, edit_region [250, 125, 350, 175]: found mode replace without "
                               "target, expected a text; select the region and fill it in"),
    "add without candidates": ([EDIT, text("e", "mode", "add"), TARGET],
                               "slot A1, edit_region [250, 125, 350, 175]: found mode add without "
                               "candidates, expected a text; select the region and fill it in"),
    "either with one": ([EDIT, text("e", "mode", "either"), TARGET],
                        "slot A1, edit_region [250, 125, 350, 175]: found mode either with only one of "
                        "target and candidates, expected both; select the region and fill them in"),
    "another mode": ([EDIT, text("e", "mode", "swap"), TARGET],
                     "edit_region [250, 125, 350, 175]: found mode swap, expected replace, add or either; "
                     "choose one"),
    "another label": ([rectangle("e", "Airplane")], "found label 'Airplane', expected edit_region or "
                                                    "context_region; use the config that `rekey slots "
                                                    "label-config` prints"),
    "no label": ([rectangle("e", "edit_region", rectanglelabels=[])],
                 "found a region of type rectanglelabels without a known label, expected a labeled "
                 "rectangle; delete it or draw it again"),
    "an ellipse": ([EDIT, TARGET, {**EDIT, "id": "o", "type": "ellipselabels", "value": {
        "x": 1, "y": 1, "radiusX": 2, "radiusY": 2, "ellipselabels": ["edit_region"]}}],
        "found a region of type ellipselabels without a known label, expected a labeled rectangle; delete "
        "it or draw it again"),
    "no original size": ([{k: v for k, v in EDIT.items() if k != "original_width"}],
                         "found edit_region without original_width and original_height, expected the size "
                         "of the image; open the task in Label Studio, submit it again and export"),
    "a stray click": ([rectangle("e", "edit_region", width=0.01, height=0.02)],
                      "found edit_region that is empty or outside the image ([250, 125, 250, 125]), "
                      "expected at least a pixel; delete it (it may be a stray click) or draw it again"),
    "text for numbers": ([rectangle("e", "edit_region", x="25")],
                         "found edit_region at x, y, width, height = ['25', 25.0, 10.0, 10.0], expected "
                         "percentages; draw it again"),
    "field on a context": ([EDIT, TARGET, CONTEXT, text("c", "target", "a table")],
                           "context_region [150, 75, 450, 225]: found target a table, expected it at an "
                           "edit_region; move the text to the edit_region"),
    "a size without end": ([{**EDIT, "original_width": 10**400}],
                           "found edit_region without original_width and original_height, expected the size "
                           "of the image; open the task in Label Studio, submit it again and export"),
    "an escape sequence": ([EDIT, text("e", "candidates", "cat, \x1b[2Jdog")],
                           "edit_region [250, 125, 350, 175]: found candidates '\\x1b[2Jdog', expected "
                           "letters; type it again"),
    "two image sizes": ([EDIT, TARGET, {**CONTEXT, "original_width": 999}],
                        "found regions drawn on images of 2 sizes, expected one; mark the image again"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_annotation_gives_exactly_this_problem(name, tmp_path):
    result, expected = FAULTY[name]
    marked = import_label_studio(export_of(tmp_path, task(*result)))
    assert marked.problems == [f"e.json task 1 (cup): {expected}"]
    assert marked.images == {}


def test_problems_of_all_tasks_are_listed_and_good_tasks_are_kept(tmp_path):
    path = export_of(tmp_path, task(EDIT, rectangle("f", "edit_region", 60, 60)),
                     task(EDIT, TARGET, number=2, image="s3://bucket/b.png"),
                     task(EDIT, TARGET, number=3, image="https://host/b.png"),
                     task(EDIT, TARGET, number=4, image="data:image/png;base64,AAAA"),
                     task(EDIT, TARGET, number=5, image=None), {"id": 6, "data": [], "annotations": []})
    marked = import_label_studio(path)
    assert list(marked.images) == ["b"]
    assert [problem.split(":")[0] for problem in marked.problems] == [
        "e.json task 1 (cup)", "e.json task 1 (cup)", "e.json task 3 (b)", "e.json task 4", "e.json task 5",
        "e.json task 6"]


@pytest.mark.parametrize(("content", "fragment"), [
    (b"", "found no JSON"), (b"\x89PNG\0", "found no JSON"), (b"5", "found no list of tasks"),
    (b"[5]", "found no list of tasks"), (b"[]", "found an export without tasks"),
    (b"[" * 100_000, "found no JSON"), (b'[{"data": {"image": "a\\ud800.jpg"}}]', "found no JSON"),
     (b'{"images": [], "categories": []}', "found no list of tasks")])
def test_a_file_that_is_no_export_is_an_input_error(content, fragment, tmp_path):
    path = tmp_path / "e.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=fragment):
        import_label_studio(path)


@pytest.mark.parametrize("rotation", [0, 17, 90, 133.7, 180, 271, 359])
def test_rotated_boxes_agree_with_the_formula_of_label_studio(rotation, tmp_path):
    x, y, width, height, image_width, image_height = 45.0, 40.0, 8.0, 12.0, 1000, 500
    region = rectangle("e", "edit_region", x, y, width, height, rotation=rotation)
    path = export_of(tmp_path, task(region, TARGET))
    (image,) = import_label_studio(path).images.values()
    # rotateBboxCoords of its front end works in percent and corrects for the aspect of the image.
    ratio, angle = image_width / image_height, math.radians(rotation)
    corners = [(dx * math.cos(angle) - dy * math.sin(angle) / ratio + x,
                dx * math.sin(angle) * ratio + dy * math.cos(angle) + y)
               for dx in (0, width) for dy in (0, height)]
    xs, ys = [cx * image_width / 100 for cx, _ in corners], [cy * image_height / 100 for _, cy in corners]
    assert image.slots[0].edit == Box(round(min(xs)), round(min(ys)), round(max(xs)), round(max(ys)))


@pytest.mark.parametrize(("address", "name"), [
    ("/data/upload/3/1a2b3c4d-cat.jpg", "cat.jpg"),
    ("http://localhost:8080/data/upload/3/1a2b3c4d-deadbeef-cat.jpg", "deadbeef-cat.jpg"),
    ("/data/local-files/?d=photos%2Fmy%20cat.jpg", "my cat.jpg"),
    ("/data/local-files/?d=photos/1a2b3c4d-cat.jpg", "1a2b3c4d-cat.jpg"),
    ("https://host/folder/the%20cat.jpg?X-Amz-Signature=a%2Fb#top", "the cat.jpg"),
    ("s3://bucket/folder/100% cat #1.jpg", "100% cat #1.jpg"),
    ("gs://bucket/cat.v2.jpg", "cat.v2.jpg"),
    ("C:\\photos\\cat.jpg", "cat.jpg"),
    ("photos/cat.jpg", "cat.jpg"),
    ("deadbeef-cat.jpg", "deadbeef-cat.jpg")])
def test_image_names_are_those_before_the_upload(address, name):
    assert image_name(address) == name


def test_separators_in_fields_and_repeated_names(tmp_path):
    result = [EDIT, text("e", "target", "black, white cup; red cup"),
              text("e", "candidates", "cat,dog\ncat", "jet  ski")]
    (image,) = import_label_studio(export_of(tmp_path, task(*result))).images.values()
    (slot,) = image.slots
    assert (slot.mode, slot.targets, slot.candidates) == (
        "either", ("black, white cup", "red cup"), ("cat", "dog", "jet ski"))


def test_a_context_that_misses_the_edit_by_a_little_is_enlarged_and_else_not_used(tmp_path):
    near = rectangle("c", "context_region", 15, 15, 19, 19)         # to 340, 170; the edit ends at 350, 175
    far = rectangle("d", "context_region", 70, 70, 10, 10)
    marked = import_label_studio(export_of(tmp_path, task(EDIT, TARGET, near, far)))
    assert marked.images["cup"].slots[0].context == Box(150, 75, 350, 175)
    assert [note.split("): ")[1].split(" [")[0] for note in marked.notes] == [
        "slot A1: the edit_region reaches a little outside its context_region", "context_region"]


def test_a_default_context_stays_inside_the_image():
    assert default_context(Box(100, 100, 140, 120), (1000, 500)) == Box(60, 60, 180, 160)
    assert default_context(Box(0, 480, 40, 500), (1000, 500)) == Box(0, 440, 80, 500)


def test_the_latest_annotation_is_taken_and_an_e_mail_names_an_annotator(tmp_path):
    both = task(EDIT, TARGET, completed_by={"id": 7, "email": "a@example.com"},
                updated_at="2026-02-01T00:00:00Z")
    earlier = task(EDIT, text("e", "target", "old cup"), completed_by=8, updated_at="2026-01-15T00:00:00Z")
    both["annotations"] += earlier["annotations"]
    path = export_of(tmp_path, both)
    targets = {}
    for who in (None, "7", "a@example.com", "8", "nobody"):
        images = import_label_studio(path, who).images.values()
        targets[who] = [slot.targets for image in images for slot in image.slots]
    assert targets == {None: [("red cup",)], "7": [("red cup",)], "a@example.com": [("red cup",)],
                       "8": [("old cup",)], "nobody": []}


# ------------------------------------------------------------------------------------ command

def run(*arguments: object):
    return CliRunner().invoke(main, ["slots", *map(str, arguments)])


def test_an_imported_file_passes_the_check(tmp_path):
    out = tmp_path / "slots.jsonl"
    result = run("import", EXPORT, "--out", out)
    assert result.exit_code == 0, result.output
    assert "3 images with 4 slots written" in result.output
    sizes = {"kitchen_table": (800, 600), "street_01": (600, 400), "park": (500, 500)}
    assert check_slots(out, sizes) == []
    assert read_slots(out) == import_label_studio(EXPORT).images


def test_nothing_is_written_over_a_file_or_after_a_problem(tmp_path):
    out = tmp_path / "slots.jsonl"
    result = run("import", EXPORT_MIN, "--out", out)
    assert result.exit_code == 2 and "task 3 (park)" in result.output and not out.exists()
    result = run("import", EXPORT_MIN, "--out", out, "--skip-bad")
    assert result.exit_code == 3 and list(read_slots(out)) == ["kitchen_table", "street_01"]
    before = out.read_bytes()
    result = run("import", EXPORT, "--out", out)
    assert result.exit_code == 2 and "exists already" in result.output and out.read_bytes() == before
    assert run("import", EXPORT, "--out", out, "--force").exit_code == 0
    assert len(read_slots(out)) == 3


def test_label_config_prints_the_config_and_nothing_else():
    assert run("label-config").output == LABEL_CONFIG


def test_the_commands_of_docs_annotate_work_in_their_order(tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "annotate.md").read_text(encoding="utf-8")
    commands = [line.split() for line in page.split("\n") if line.startswith("    rekey ")]
    assert [words[2] for words in commands if words[1] == "slots"] == [
        "label-config", "import", "check", "preview", "measure"]
    monkeypatch.chdir(tmp_path)
    Path("project-1.json").write_bytes(EXPORT.read_bytes())
    Path("photos").mkdir()
    for name, size in {"kitchen_table": (800, 600), "street_01": (600, 400), "park": (500, 500)}.items():
        Image.new("RGB", size, "gray").save(f"photos/{name}.png")
    for words in commands:
        if words[1] == "generate":              # edits pixels: tested elsewhere, on photographs
            continue
        arguments = words[1:words.index(">")] if ">" in words else words[1:]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, (words, result.output)
    slots = read_slots("slots.jsonl")
    assert slots["park"].image_size == (500, 500) and slots["park"].slots[0].clutter == 0
    assert len(Path("seed1.jsonl").read_text().splitlines()) == 3
