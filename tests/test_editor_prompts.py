"""Captions and instructions from records, over everything that the annotations can ask for."""

import re

import pytest

from editors.prompts import SAID_COLORS, caption, instruction
from rekey.colors import COLORS
from rekey.geometry import Box
from rekey.records import Slot, VisualKey
from rekey.references import COLOR_WORDS, parse_reference
from rekey.sampling import Pool, SamplingOptions
from rekey.slots import read_slots


def key(mode, name, color="red", **rest):
    slot = Slot("photo", "A", mode, Box(0, 0, 60, 60), Box(20, 20, 40, 40))
    return VisualKey(slot, mode, name, color, **rest)


@pytest.mark.parametrize("asked, said", [
    (key("replace", "blue jacket on the cyclist", "white"),
     "A candid photo of a plain white jacket on the cyclist. The jacket is entirely plain white. "
     "Natural light, realistic material."),
    (key("replace", "red-and-white slippers", "orange"),
     "A candid photo of orange slippers. The slippers are entirely orange. Natural light, realistic material."),
    (key("replace", "striped blue shirt", None, pattern="dotted"),
     "A candid photo of a blue dotted shirt. The shirt is entirely blue dotted. Natural light, realistic material."),
    (key("add", "cat", "orange"),
     "A candid photo of an orange cat standing there, fully visible. Realistic, natural light, soft contact shadow."),
    (key("add", "poster", "gray"),
     "A candid photo of a medium gray poster on the wall, fully visible. Realistic, natural light."),
    (key("add", "harpsichord", "green"),
     "A candid photo of a green harpsichord, fully visible. Realistic, natural light."),
])
def test_captions_describe_the_finished_picture(asked, said):
    assert caption(asked) == said


def test_an_instruction_is_the_papers():
    assert instruction(key("replace", "blue jacket on the cyclist", "white")) == (
        "Change ONLY the color of the blue jacket on the cyclist to white.")
    assert instruction(key("add", "bucket")) == "Add a red bucket in the marked area."


def test_colors_are_widened_for_the_model_only():
    for color in COLORS:
        assert SAID_COLORS.get(color, color).split()[-1] == color
        assert instruction(key("add", "cat", color)).count(color) == 1


@pytest.mark.parametrize("attribute", ["color", "pattern"])
def test_captions_of_all_annotated_slots_name_the_new_look_and_never_the_old(data_pack, attribute):
    images = read_slots(data_pack / "rekey" / "annotations" / "dynamic_vstar_slots_latest.jsonl")
    seen = set()
    for image in images.values():
        for asked in Pool(image, SamplingOptions(attribute=attribute)).keys(1):
            reference = parse_reference(asked.object)
            text = caption(asked)
            seen.add(text)
            assert "  " not in text and text.count(".") == (2 if asked.mode == "add" else 3) and text[0] == "A", text
            assert re.search(rf"\b{asked.value(attribute)}\b", text), text
            assert reference.name.split()[-1] in text
            if asked.mode == "replace" and attribute == "color":
                without_name = text.replace(reference.object, "").replace(reference.name, "")
                assert not {*COLOR_WORDS} & {*re.findall(r"[a-z-]+", without_name)} - {
                    *SAID_COLORS.get(asked.color, asked.color).split()}, text
    assert len(seen) > 500
    assert max(len(text.split()) for text in seen) < 40          # far below the 128 tokens that prompts are padded to
