"""Color words in references, grammar of nouns, and names of measured colors."""

import json

import numpy as np
import pytest

from rekey.colors import COLORS, is_plural, name_shares, parse_reference, to_lab


@pytest.mark.parametrize("text, colors, obj, head, owner", [
    ("blue jacket on the cyclist", {"blue"}, "jacket on the cyclist", "jacket", "cyclist"),
    ("orange-and-white lifebuoy", {"orange", "white"}, "lifebuoy", "lifebuoy", None),
    ("blue-white-and-yellow volleyball", {"blue", "white", "yellow"}, "volleyball", "volleyball", None),
    ("red and yellow kite", {"red", "yellow"}, "kite", "kite", None),
    ("light pink buoy", {"pink"}, "buoy", "buoy", None),
    ("silver-gray SUV", {"gray", "white"}, "SUV", "suv", None),
    ("curly-haired dog", set(), "curly-haired dog", "dog", None),
    ("golden retriever", {"yellow", "orange", "brown"}, "golden retriever", "retriever", None),
    ("police car", set(), "police car", "car", None),
    ("colorful logo", set(), "logo", "logo", None),
    ("orange", set(), "orange", "orange", None),
    ("blue label on the water bottle", {"blue"}, "label on the water bottle", "label", "bottle"),
    ("blue clothes on the person riding a motorcycle", {"blue"},
     "clothes on the person riding a motorcycle", "clothes", "person"),
    ("blue slippers", {"blue"}, "slippers", "slipper", None),
])
def test_references_are_taken_apart(text, colors, obj, head, owner):
    reference = parse_reference(text)
    assert (reference.colors, reference.object, reference.head, reference.owner) == (colors, obj, head, owner)


@pytest.mark.parametrize("noun, plural", [
    ("slippers", True), ("shorts", True), ("clothes", True), ("people", True), ("scissors", True),
    ("bus", False), ("dress", False), ("glass", False), ("glasses", True), ("lens", False), ("cactus", False),
    ("tennis", False), ("boxes", True), ("cup", False), ("", False)])
def test_number_of_nouns(noun, plural):
    assert is_plural(noun) is plural


def test_every_released_reference_keeps_an_object_and_loses_its_colors(data_pack):
    lines = (data_pack / "rekey/annotations/dynamic_vstar_slots_latest.jsonl").read_text().splitlines()
    references = {t["target_ref"] for line in lines for slot in json.loads(line)["slots"]
                  for t in slot.get("replace", {}).get("targets", [])}
    assert len(references) == 230
    for text in references:
        reference = parse_reference(text)
        assert reference.object
        assert not set(reference.object.lower().replace("-", " ").split()) & set(COLORS)
    colorless = {t for t in references if not parse_reference(t).color_words}
    assert colorless == {"Mickey Mouse", "curly-haired dog", "golden retriever", "police car", "spider"}


# One everyday sRGB value per name, taken from no table that the code uses.
EVERYDAY = {"red": (190, 25, 35), "blue": (30, 80, 190), "yellow": (245, 215, 40), "green": (40, 130, 60),
            "black": (20, 20, 22), "white": (245, 245, 243), "orange": (240, 130, 25), "purple": (110, 50, 150),
            "pink": (245, 150, 180), "brown": (105, 65, 35), "gray": (128, 130, 129)}


@pytest.mark.parametrize("name, rgb", EVERYDAY.items())
def test_everyday_colors_get_their_names(name, rgb):
    shares = name_shares(to_lab(np.array([[rgb]], np.uint8)))
    assert shares.shape == (1, 11)
    assert COLORS[shares.argmax()] == name
    assert shares.sum() == pytest.approx(1, abs=1e-5)
