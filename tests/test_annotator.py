"""Asking a model for slots and reading its answers, up to a benchmark that is made from them."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from experiments.generate import GenerateJob, generate
from experiments.scenes import write_benchmark
from probes.annotator import (
    CONVENTIONS,
    COORDINATES_OF_FAMILY,
    LocalAnnotator,
    as_image_slots,
    coordinates_of,
    instructions,
    parse_proposals,
    propose,
    read_proposals,
)
from probes.families import FAMILIES
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.images import image_size, load_image
from rekey.localization import annotator_study
from rekey.records import Generation, Item, Slot, from_json
from rekey.scenes import SIDE_PX, AskedScene, scene_benchmark
from rekey.slots import check_slots, read_slots, write_slots
from rekey.store import read_jsonl

SIZE = (2000, 1000)
GLOVE = {"mode": "replace", "edit": [100, 200, 150, 260], "context": [50, 150, 300, 400], "target": "blue glove"}
CAT = {"mode": "add", "edit": [700, 800, 740, 840], "context": [650, 700, 900, 900], "objects": ["cat", "dog"]}
GLOVE_SLOT = Slot("im", "V1", "replace", Box(50, 150, 300, 400), Box(100, 200, 150, 260), ("blue glove",))
CAT_SLOT = Slot("im", "V2", "add", Box(650, 700, 900, 900), Box(700, 800, 740, 840), (), ("cat", "dog"))


def parsed(text: str | dict | list, coordinates: str = "pixels", **more):
    return parse_proposals(text if isinstance(text, str) else json.dumps(text), "im", SIZE, coordinates=coordinates,
                           **more)


def read(text: str | dict | list, coordinates: str = "pixels"):
    return read_proposals(text if isinstance(text, str) else json.dumps(text), "im", SIZE, coordinates)


def box_of(numbers: list, coordinates: str, **more) -> Box:
    (slot,), problems = parsed(CAT | {"edit": numbers, "context": None}, coordinates, **more)
    assert problems == ()
    return slot.edit


# -------------------------------------------------------------------------- responses of all forms

LIST = json.dumps([GLOVE, CAT])
WHOLE = {
    "a list": LIST,
    "indented": json.dumps([GLOVE, CAT], indent=2),
    "a fence": f"```json\n{LIST}\n```",
    "prose around a fence": f"The slots {{as asked}}:\n\n```json\n{LIST}\n```\nI chose \"small\" ones; it's fine.",
    "prose around a list": f"The man's glove [1] fits.\n{LIST}\nThat is all I found.",
    "one object a line": f"{json.dumps(GLOVE)}\n{json.dumps(CAT)}",
    "two lists": f"Replace:\n[{json.dumps(GLOVE)}]\nAdd:\n[{json.dumps(CAT)}]",
    "an object around the list": json.dumps({"image": {"width": 9}, "slots": [GLOVE, CAT]}),
    "groups by mode": json.dumps({mode: [{k: v for k, v in slot.items() if k != "mode"}]
                                  for mode, slot in (("replace", GLOVE), ("add", CAT))}),
    "trailing commas": LIST.replace("}", ",}").replace("]}", ",]}") + ",",
    "Python literals": str([GLOVE, CAT]),
    "curly quotes": LIST.replace('"', "“"),
    "comments": json.dumps([GLOVE, CAT], indent=2).replace('"replace",', '"replace",  // the man\'s glove'),
    "a list that never ends": LIST[:-1],
    "thoughts before it": f"<think>Maybe {json.dumps(CAT | {'edit': [1, 1, 9, 9]})}? No.</think>\n{LIST}",
    "two thoughts": f"<think>Hm.</think>{json.dumps(CAT)} Wait.<think>No.</think>\n{LIST}",
    "a quote that never ends": f"I use {{5\" of context}}.\n{LIST}",
    "thoughts without a beginning": f"Maybe {json.dumps(GLOVE)}.</think>{LIST}",
    "the released format": json.dumps({"image_id": "x", "slots": [
        {"slot_id": "A1", "context_region": {"xyxy": GLOVE["context"], "ref": ""},
         "edit_region": {"xyxy": GLOVE["edit"], "mode": "replace"},
         "replace": {"targets": [{"target_ref": "blue glove", "edit_types": ["color_change"]}]}},
        {"slot_id": "B1", "context_region": {"xyxy": CAT["context"], "ref": ""},
         "edit_region": {"xyxy": CAT["edit"], "mode": "add"}, "add": {"objects": ["cat", "dog"]}}]}),
    "names of other tools": json.dumps([
        {"mode": "Replace", "bbox_2d": GLOVE["edit"], "context_box": GLOVE["context"], "label": "The blue glove."},
        {"mode": "ADD", "bbox": [["700", "800"], ["740", "840"]], "context": CAT["context"],
         "candidates": "Cat, a dog, cat"}]),
    "a capital and a color too many": LIST.replace('"cat"', '"Red cat"').replace("blue glove", "The  Blue glove"),
}


@pytest.mark.parametrize("form", WHOLE)
def test_slots_are_found_in_every_form_of_response(form):
    slots, problems = parsed(WHOLE[form])
    assert problems == ()
    assert slots == (GLOVE_SLOT, CAT_SLOT)


def test_of_a_response_that_breaks_off_the_whole_slots_are_kept():
    for text in (LIST, json.dumps({"slots": [GLOVE, CAT]}), f"```json\n{json.dumps([GLOVE, CAT], indent=1)}"):
        end_of_first, start_of_second = text.index("}"), text.rindex("{")
        end_of_second = text.index("}", start_of_second)
        for cut in range(end_of_first + 1, end_of_second + 1):
            slots, problems = parsed(text[:cut])
            assert slots == (GLOVE_SLOT,)
            if cut > start_of_second:
                assert problems == ("im: the response breaks off within an object; the whole ones before it are kept",)


NONE = {
    "": 'im: found no slot in the response, which begins ""',
    "I cannot see any small objects.": "im: found no slot in the response, which begins "
                                       '"I cannot see any small objects."',
    "[[1, 2, 3, 4]]": 'im: found no slot in the response, which begins "[[1, 2, 3, 4]]"',
    f"<think>{LIST}": "im: the response ends before its thinking does; nothing was proposed",
    '{"mode": "add", "edit": [left, top, right, bottom]}':
        'im: found "{\\"mode\\": \\"add\\", \\"edit\\": [left, top, right, bottom]}", which is not JSON',
}


@pytest.mark.parametrize("text", NONE)
def test_a_response_without_slots_is_one_line(text):
    assert parsed(text) == ((), (NONE[text],))


BAD = {
    "no mode": ({"edit": [1, 2, 9, 9]}, "has no mode, expected replace or add"),
    "strange mode": (CAT | {"mode": "paint"}, 'found mode "paint", expected replace, add, either'),
    "no edit box": ({"mode": "add", "objects": ["cat"]}, "has no edit box"),
    "three numbers": (CAT | {"edit": [1, 2, 3]},
                      "found edit box [1, 2, 3], expected four numbers [left, top, right, bottom]"),
    "words": (CAT | {"edit": "top left"},
              'found edit box "top left", expected four numbers [left, top, right, bottom]'),
    "not a number": (CAT | {"edit": [1, 2, True, 4]},
                     "found edit box [1, 2, true, 4], expected four numbers [left, top, right, bottom]"),
    "infinite": (CAT | {"edit": [1, 2, float("inf"), 4]},
                 "found edit box [1, 2, Infinity, 4], expected four numbers [left, top, right, bottom]"),
    "no width": (CAT | {"edit": [5, 5, 5, 9]}, "found edit box [5, 5, 5, 9] of 0 x 4 pixels, expected an area"),
    "no context area": (CAT | {"context": [5, 5, 9, 5]},
                        "found context box [5, 5, 9, 5] of 4 x 0 pixels, expected an area"),
    "add without objects": (CAT | {"objects": []},
                            'found mode add without objects, expected what may be added, such as ["cat"]'),
    "add with empty names": (CAT | {"objects": ["", " ", "..."]},
                             'found mode add without objects, expected what may be added, such as ["cat"]'),
    "replace without a target": (GLOVE | {"target": None},
                                 'found mode replace without a target, expected what is there, such as "blue glove"'),
    "either without objects": (GLOVE | {"mode": "either"},
                               'found mode either without objects, expected what may be added, such as ["cat"]'),
    "outside": (CAT | {"edit": [2100, 10, 2200, 90]},
                "found edit box [2100, 10, 2200, 90], which lies outside the image of 2000 x 1000 pixels; is it in "
                "another unit?"),
    "a sermon": (GLOVE | {"target": "word " * 13},
                 'found "word word word word word word word word word word word w... as a name, expected at most 12 '
                 "words"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_proposal_is_one_line_and_the_others_are_kept(name):
    proposal, line = BAD[name]
    slots, problems = parsed([proposal, CAT])
    assert slots == (CAT_SLOT,)
    assert problems == (f"im proposal 1: {line}",)


def test_the_same_place_twice_is_one_slot():
    slots, problems = parsed([CAT, GLOVE, CAT, CAT | {"objects": ["duck"]}])
    assert [slot.slot_id for slot in slots] == ["V1", "V2"]
    assert problems == tuple(f"im proposal {n}: the same place as V1 again" for n in (3, 4))


def test_either_takes_both_and_the_others_only_what_they_need():
    (slot,), _ = parsed(GLOVE | {"mode": "either", "objects": ["cat"]})
    assert (slot.mode, slot.targets, slot.candidates) == ("either", ("blue glove",), ("cat",))
    slots, _ = parsed([GLOVE | {"objects": ["cat"]}, CAT | {"target": "grass"}])
    assert slots == (GLOVE_SLOT, CAT_SLOT)


@pytest.mark.parametrize("said, name", [
    ("the Red Bull can", "Red Bull can"), ("A white suv", "white suv"), ("White SUV", "White SUV"),
    ("“blue  jacket\non the cyclist”.", "blue jacket on the cyclist"), ("The red cup", "red cup"), ("Cup", "cup")])
def test_names_are_written_as_annotators_write_them(said, name):
    (slot,), _ = parsed(GLOVE | {"target": said})
    assert slot.targets == (name,)


# ------------------------------------------------------------------------------------- boxes and units

@pytest.mark.parametrize("coordinates, numbers, more", [
    ("pixels", [100, 200, 300, 250], {}),
    ("seen-pixels", [50, 160, 150, 200], {"seen_size": (1000, 800)}),
    ("per-1000", [50, 200, 150, 250], {}),
    ("per-1000-rows-first", [200, 50, 250, 150], {}),
    ("per-1", [0.05, 0.2, 0.15, 0.25], {})])
def test_one_box_in_every_unit(coordinates, numbers, more):
    assert box_of(numbers, coordinates, **more) == Box(100, 200, 300, 250)


def test_every_unit_is_tested_above_and_every_default_is_a_unit():
    assert set(CONVENTIONS) == {"pixels", "seen-pixels", "per-1000", "per-1000-rows-first", "per-1"}
    assert set(COORDINATES_OF_FAMILY.values()) <= set(CONVENTIONS)
    assert set(FAMILIES) - set(COORDINATES_OF_FAMILY) == {"kimi_k25"}        # nowhere documented


def test_the_far_edge_is_the_full_number():
    for coordinates, full, more in (("pixels", [2000, 1000], {}), ("per-1000", [1000, 1000], {}),
                                    ("per-1", [1, 1], {}), ("seen-pixels", [1988, 980], {"seen_size": (1988, 980)})):
        assert box_of([0, 0, *full], coordinates, **more) == Box(0, 0, *SIZE)


def test_numbers_that_fit_several_units_are_read_in_the_declared_one():
    numbers = [100, 100, 200, 200]
    assert box_of(numbers, "pixels") == Box(100, 100, 200, 200)
    assert box_of(numbers, "per-1000") == Box(200, 100, 400, 200)
    assert box_of(numbers, "seen-pixels", seen_size=(500, 250)) == Box(400, 400, 800, 800)


@pytest.mark.parametrize("coordinates, numbers, unit", [
    ("per-1000", [900, 800, 1001, 900], "0 to 1000"), ("per-1000", [0.2, 0.3, 0.4, 0.5], "0 to 1000"),
    ("per-1000-rows-first", [1400, 20, 1500, 90], "0 to 1000"), ("per-1", [0.2, 0.3, 1.4, 0.5], "0 to 1"),
    ("per-1", [100, 200, 300, 400], "0 to 1"), ("pixels", [0.2, 0.3, 0.4, 0.5], "pixels")])
def test_numbers_that_the_declared_unit_cannot_give_are_listed_and_not_read_in_another(coordinates, numbers, unit):
    found = read([CAT | {"edit": numbers, "context": None}], coordinates)
    assert found.slots == ()
    assert found.problems == (f"im proposal 1: found edit box {json.dumps(numbers)}, which cannot be in the declared "
                              f"unit ({unit}); is it in another one?",)
    assert (found.n_proposed, found.n_impossible) == (1, 1)


def test_reversed_corners_are_mended_and_counted():
    found = read([CAT | {"edit": [740, 800, 700, 840]}, GLOVE])
    assert [slot.edit for slot in found.slots] == [CAT_SLOT.edit, GLOVE_SLOT.edit]
    assert (found.n_reversed, found.n_clamped) == (1, 0)
    assert found.mended == ("im proposal 1: the corners of the edit box [740, 800, 700, 840] were exchanged",)


def test_boxes_that_reach_outside_are_cut_and_counted():
    found = read([CAT | {"edit": [1950, -10, 2040, 40], "context": [1900, -5, 2040, 90]}])
    assert (found.slots[0].edit, found.slots[0].context) == (Box(1950, 0, 2000, 40), Box(1900, 0, 2000, 90))
    assert (found.n_clamped, found.problems) == (2, ())
    assert found.mended[0] == ("im proposal 1: the edit box [1950, -10, 2040, 40] reached outside the image and was "
                               "cut to [1950, 0, 2000, 40]")


def test_a_context_box_is_made_up_or_enlarged_where_it_does_not_hold_the_edit_box():
    found = read([CAT | {"context": None}, GLOVE | {"context": [120, 150, 300, 400]}])
    assert found.slots[0].context == Box(660, 760, 780, 880)                 # 40 x 40, three times as long
    assert found.slots[1].context == Box(100, 150, 300, 400)
    assert [line.split(": ")[0] for line in found.mended] == ["im proposal 1", "im proposal 2"]


def test_the_size_that_the_model_saw_is_demanded_and_not_assumed():
    with pytest.raises(InputError, match="im: boxes in seen-pixels need the size of the image as the model saw it"):
        parsed([CAT], "seen-pixels")
    with pytest.raises(InputError, match="coordinates 'percent': expected one of pixels, seen-pixels, "):
        parsed([CAT], "percent")


@pytest.mark.parametrize("seed", range(4))
def test_no_response_breaks_the_reader_and_what_it_gives_can_be_written(seed, tmp_path):
    rng = np.random.default_rng(seed)
    pieces = ["{", "}", "[", "]", '"', ",", ":", "\\", "\n", "'", "-1", "1e400", "1e99", "NaN", "null", '"\\ud800"',
              '"mode"', '"add"', '"edit"', '"objects"', "[1, 2, 30, 40]", json.dumps(CAT), json.dumps(GLOVE), "<think>"]
    n_slots = 0
    for _ in range(250):
        text = list("".join(rng.choice(pieces, rng.integers(1, 40))) if rng.integers(2) else f"Yes. {LIST}")
        for _ in range(rng.integers(4)):
            text[rng.integers(len(text))] = str(rng.choice(pieces))
        found = read("".join(text), str(rng.choice(["pixels", "per-1000", "per-1"])))
        assert found.slots or found.problems
        assert all("\n" not in line and line.startswith("im") for line in found.problems)
        write_slots(tmp_path / "f.jsonl", [as_image_slots(found)])
        assert tuple(read_slots(tmp_path / "f.jsonl")["im"].slots) == found.slots
        n_slots += len(found.slots)
    assert n_slots > 100


def test_deep_nesting_and_endless_repetition_end_soon():
    began = time.process_time()
    assert read("{" * 20_000).slots == ()
    assert read('{"slots": ' * 5_000 + "1" + "}" * 5_000).slots == ()
    found = read(json.dumps([CAT] * 2_000))
    assert (len(found.slots), len(found.problems)) == (1, 1999)
    assert time.process_time() - began < 3


# ------------------------------------------------------------------------------------------ asking

def test_the_instructions_say_the_question_the_unit_and_the_order():
    text = instructions(SIZE, "pixels", "What color is\nthe glove?")
    assert '"What color is the glove?"' in text
    assert text.endswith("[left, top, right, bottom] in pixels of the image, which is 2000 wide and 1000 high.")
    rows = instructions(SIZE, "per-1000-rows-first")
    assert "[top, left, bottom, right]" in rows and "[left" not in rows and "0 to 1000" in rows
    assert "3,535 square pixels, 0.18% of this image" in instructions(SIZE, "pixels", typical_area_px2=3535)
    for one in (text, rows):
        assert not set("{}") & set(one.replace('{"mode"', "").replace('"}', "").replace("]}", ""))


def test_a_model_that_repeats_its_instructions_proposes_nothing():
    for coordinates in CONVENTIONS:
        found = read_proposals(instructions(SIZE, coordinates), "im", SIZE, coordinates, SIZE)
        assert found.slots == ()


def test_a_plain_function_is_an_annotator():
    asked = []

    def answer(image, text: str) -> str:
        asked.append((image.shape, text))
        return LIST
    found = propose(answer, np.zeros((1000, 2000, 3), np.uint8), "im", "What color is the glove?", "pixels")
    assert found.slots == (GLOVE_SLOT, CAT_SLOT)
    assert asked == [((1000, 2000, 3), instructions(SIZE, "pixels", "What color is the glove?"))]


def test_a_failure_to_answer_is_no_empty_proposal():
    with pytest.raises(InputError, match="im: the model gave no answer but None; ask again"):
        propose(lambda image, text: None, None, "im", coordinates="pixels", size=SIZE)


def test_a_unit_that_is_not_known_is_asked_for():
    with pytest.raises(InputError, match="im: in which unit does this model write boxes"):
        propose(lambda image, text: LIST, np.zeros((9, 9, 3), np.uint8), "im")
    with pytest.raises(InputError, match="model family kimi_k25: it is not known in which unit"):
        coordinates_of("kimi_k25")
    with pytest.raises(InputError, match="im: the image is a object; give its size"):
        propose(lambda image, text: LIST, object(), "im", coordinates="pixels")


def test_the_size_that_a_model_saw_comes_with_its_generation():
    class Qwen25:
        family = "qwen2_5_vl"

        def __call__(self, image, text):
            return Generation(LIST, (), 1, 1, ((2000, 1000),), "stop", 0.1)         # (height, width)
    found = propose(Qwen25(), None, "im", size=SIZE)
    assert [slot.edit for slot in found.slots] == [Box(200, 100, 300, 130), Box(1400, 400, 1480, 420)]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_random_model_is_asked_and_proposes_nothing(family, tmp_path):
    from PIL import Image
    from probing import tiny_vlm
    Image.new("RGB", (200, 100), "gray").save(tmp_path / "gray.png")
    found = propose(LocalAnnotator(tiny_vlm(family), max_new_tokens=8), tmp_path / "gray.png", "gray")
    assert (found.image_size, found.slots, len(found.problems)) == ((200, 100), (), 1)
    assert found.text


# ------------------------------------------------------------------ from proposals to a benchmark

N_SCENES = 10


def free_place(one: AskedScene, side_px: int = 60) -> Box:
    """A square of the scene that is far from all its objects."""
    taken = [o.box.grown(30) for o in one.scene.objects]
    return next(box for y in range(20, SIDE_PX - side_px - 20, 12) for x in range(20, SIDE_PX - side_px - 20, 12)
                if not any((box := Box(x, y, x + side_px, y + side_px)).intersects(other) for other in taken))


class Scripted:
    """Answers with what is known of the scenes, in thousandths."""

    def __init__(self, scenes: list[AskedScene]):
        self.scenes = {one.slots.image_id: one for one in scenes}

    def __call__(self, image: Path, text: str) -> str:
        one = self.scenes[image.stem]
        assert one.question.text in text

        def thousandths(box: Box) -> list[float]:
            return [round(1000 * value / SIDE_PX, 1) for value in box.as_list()]
        slots = [{"mode": "replace", "edit": thousandths(slot.edit), "context": thousandths(slot.context),
                  "target": slot.targets[0]} for slot in one.slots.slots]
        slots.append({"mode": "add", "edit": thousandths(free_place(one)), "objects": ["ball", "bucket", "mug"]})
        return f"Here you are.\n```json\n{json.dumps(slots, indent=1)}\n```"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> tuple[Path, dict]:
    """The folder of a scene benchmark, and what the scripted annotator proposes for it."""
    folder = tmp_path_factory.mktemp("annotated") / "scenes"
    write_benchmark(folder, N_SCENES, 3)
    annotator = Scripted(scene_benchmark(N_SCENES, 3))
    proposed = {}
    for line in read_jsonl(folder / "items.jsonl"):
        item = from_json(Item, line)
        found = propose(annotator, folder / item.image, item.item_id, item.question, "per-1000")
        assert found.problems == ()
        proposed[item.item_id] = as_image_slots(found, item.category)
    return folder, proposed


def test_proposals_on_scenes_are_the_known_boxes(scenes):
    folder, proposed = scenes
    study = annotator_study(read_slots(folder / "slots.jsonl"), proposed, np.random.default_rng(0))
    assert study.n_images == N_SCENES and study.n_empty == 0
    assert study.usable.value == study.found.value == study.named.value == study.pointed.value == 1
    assert study.median_iou > 0.99
    assert study.add_usable.value == 1 and study.add.n == N_SCENES and study.add.touching.value == 0
    assert study.replace_size.ratio.value == pytest.approx(1, abs=0.02)
    assert (study.add_size.ratio.value, study.add_size.human_median_px2) == (None, None)


@pytest.mark.parametrize("modes", [("replace", "add"), ("add",)], ids=["all slots", "add only"])
def test_the_benchmark_made_from_proposals_is_certified(scenes, modes, tmp_path):
    folder, proposed = scenes
    kept = [type(image)(image.image_id, tuple(s for s in image.slots if s.mode in modes),
                        "direct_attributes" if modes == ("add",) else image.category, image.image_size)
            for image in proposed.values()]
    write_slots(tmp_path / "proposed.jsonl", kept)
    assert list(read_slots(tmp_path / "proposed.jsonl").values()) == kept
    assert [f for f in check_slots(tmp_path / "proposed.jsonl", folder / "images") if f.level == "error"] == []
    summary = generate(GenerateJob(tmp_path / "proposed.jsonl", folder / "images", tmp_path / "renewed", seed=1))
    assert (summary.n_items, summary.failures) == (N_SCENES, ())
    drawn = set()
    for line in read_jsonl(tmp_path / "renewed" / "items.jsonl"):
        item = from_json(Item, line)
        assert item.certificate and all(found.passed for found in item.certificate)
        assert load_image(tmp_path / "renewed" / item.image).sha256 == item.image_sha256
        assert image_size(tmp_path / "renewed" / item.image) == (SIDE_PX, SIDE_PX)
        drawn |= {key.mode for key in item.record.keys}
    assert drawn == set(modes)
