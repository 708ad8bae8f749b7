"""The demo's annotation file and the photographs it was drawn on."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from editors.solids import find_solid
from experiments import demo_photos as module
from experiments.demo_photos import PACKAGED_PHOTOS, PackagedPhoto, demo_photos, demo_slots_file
from rekey.colors import COLORS
from rekey.records import ImageSlots
from rekey.references import parse_reference
from rekey.sampling import Pool
from rekey.slots import check_slots, read_slots

IMAGES = read_slots(demo_slots_file())
PICTURE_SUFFIXES = {".png", ".jpg", ".jpeg", ".gif", ".tif", ".tiff", ".webp", ".bmp"}


def gap_px(a, b) -> float:
    """Distance between the nearest points of two boxes."""
    dx = max(a.left - b.right, b.left - a.right, 0)
    dy = max(a.top - b.bottom, b.top - a.bottom, 0)
    return (dx ** 2 + dy ** 2) ** 0.5


@pytest.fixture(params=IMAGES.values(), ids=IMAGES)
def image(request) -> ImageSlots:
    return request.param


def test_the_checker_finds_nothing_to_say_about_the_demo_slots():
    sizes = {name: image.image_size for name, image in IMAGES.items()}
    assert [str(finding) for finding in check_slots(demo_slots_file(), sizes)] == []


def test_there_are_at_least_24_slots_of_both_modes_in_both_categories():
    modes = Counter(slot.mode for image in IMAGES.values() for slot in image.slots)
    assert modes["replace"] >= 10
    assert modes["add"] >= 20
    assert sum(modes.values()) >= 24
    assert {image.category for image in IMAGES.values()} == {"direct_attributes", "relative_position"}


def test_scikit_image_and_matplotlib_alone_give_24_slots():
    required = {photo.image_id for photo in PACKAGED_PHOTOS if photo.package != "sklearn"}
    assert sum(len(IMAGES[image_id].slots) for image_id in required) >= 24


def test_every_annotated_photo_is_listed_and_every_listed_photo_is_annotated():
    assert [photo.image_id for photo in PACKAGED_PHOTOS] == list(IMAGES)


def test_image_sizes_are_those_of_the_packaged_files(image):
    path = demo_photos().get(image.image_id)
    if path is None:
        pytest.skip(f"the package that holds {image.image_id} is not installed")
    with Image.open(path) as photo:
        assert photo.size == image.image_size


def test_boxes_lie_inside_the_photo_and_their_context(image):
    width, height = image.image_size
    for slot in image.slots:
        assert slot.edit.inside(width, height), slot.slot_id
        assert slot.context.inside(width, height), slot.slot_id
        assert slot.context.contains(slot.edit), slot.slot_id
        assert min(slot.edit.width, slot.edit.height) >= 36, slot.slot_id


def test_slots_of_a_photo_are_at_least_30_px_apart_and_tell_left_from_right_or_above_from_below(image):
    assert len(image.slots) >= 4
    for a, b in itertools.combinations(image.slots, 2):
        (ax, ay), (bx, by) = a.edit.center, b.edit.center
        assert gap_px(a.edit, b.edit) >= 30, (a.slot_id, b.slot_id)
        assert max(abs(ax - bx), abs(ay - by)) >= 20, (a.slot_id, b.slot_id)


def test_every_candidate_can_be_drawn(image):
    undrawable = [noun for slot in image.slots for noun in slot.candidates if find_solid(noun) is None]
    assert undrawable == []


def test_every_target_states_a_color_of_the_pool_and_an_owner(image):
    for slot in image.slots:
        for target in slot.targets:
            reference = parse_reference(target)
            assert reference.colors and reference.colors < set(COLORS), target
            assert reference.owners, target


def test_no_candidate_is_of_a_kind_that_a_target_names(image):
    named = {word for slot in image.slots for target in slot.targets
             for word in (parse_reference(target).head, *parse_reference(target).owners)}
    assert not named & {noun for slot in image.slots for noun in slot.candidates}


def test_each_photo_gives_its_kind_of_item_for_seeds_1_to_50(image):
    pool = Pool(image)
    assert pool.excluded == []
    kind = "position" if image.category == "relative_position" else "attribute"
    assert {pool.sample(seed).question_type for seed in range(1, 51)} == {kind}


def test_looking_for_the_photos_imports_none_of_their_packages():
    code = ("import sys; from experiments.demo_photos import demo_photos; demo_photos(); "
            "print(sorted({'skimage', 'matplotlib', 'sklearn', 'numpy'} & set(sys.modules)))")
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"


def test_photos_of_absent_packages_are_left_out(monkeypatch):
    here = demo_photos()
    monkeypatch.setattr(module, "PACKAGED_PHOTOS", (
        *PACKAGED_PHOTOS,
        PackagedPhoto("ghost", "no_such_package_of_photos", "data/ghost.png"),
        PackagedPhoto("renamed", "skimage", "data/no_such_photo.png")))
    assert demo_photos() == here


def test_no_picture_of_others_is_part_of_the_package_data():
    folder = demo_slots_file().parent
    assert [path.name for path in folder.rglob("*") if path.suffix.lower() in PICTURE_SUFFIXES] == []


def test_the_page_on_the_demo_credits_every_photo():
    page = Path(__file__).resolve().parents[1].joinpath("docs", "demo.md").read_text(encoding="utf-8")
    for photo in PACKAGED_PHOTOS:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{photo.image_id}` |"))
        assert f"`{photo.file}`" in row


def test_each_line_of_the_annotation_file_is_one_image():
    lines = demo_slots_file().read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["image_id"] for line in lines] == list(IMAGES)
