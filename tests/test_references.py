"""Taking annotators' descriptions apart: colors, objects, owners, number, kinds."""

import json

import pytest

from rekey.references import COLOR_WORDS, could_mean, is_plural, kind, parse_reference, scene_nouns, singular, the


@pytest.mark.parametrize("text, colors, obj, head, owners", [
    ("blue jacket on the cyclist", {"blue"}, "jacket on the cyclist", "jacket", ("cyclist",)),
    ("orange-and-white lifebuoy", {"orange", "white"}, "lifebuoy", "lifebuoy", ()),
    ("blue-white-and-yellow volleyball", {"blue", "white", "yellow"}, "volleyball", "volleyball", ()),
    ("red and yellow kite", {"red", "yellow"}, "kite", "kite", ()),
    ("light pink buoy", {"pink"}, "buoy", "buoy", ()),
    ("silver-gray SUV", {"gray", "white"}, "SUV", "suv", ()),
    ("curly-haired dog", set(), "curly-haired dog", "dog", ()),
    ("golden retriever", {"yellow", "orange", "brown"}, "retriever", "retriever", ()),
    ("wooden blue bench", {"blue"}, "wooden bench", "bench", ()),
    ("two blue chairs", {"blue"}, "two chairs", "chair", ()),
    ("red, white flag", {"red", "white"}, "flag", "flag", ()),
    ("red & white flag", {"red", "white"}, "flag", "flag", ()),
    ("green house", {"green"}, "house", "house", ()),
    ("Red Bull can", set(), "Red Bull can", "can", ()),
    ("light bulb", set(), "light bulb", "bulb", ()),
    ("dark red car", {"red"}, "car", "car", ()),
    ("Red Box", {"red"}, "Box", "box", ()),
    ("Sky Blue Book", {"blue"}, "Book", "book", ()),
    ("sky blue jacket", {"blue"}, "jacket", "jacket", ()),
    ("forest green tent", {"green"}, "tent", "tent", ()),
    ("hot pink bag", {"pink"}, "bag", "bag", ()),
    ("reddish brown dog", {"red", "brown"}, "dog", "dog", ()),
    ("off-white car", {"white"}, "car", "car", ()),
    ("sky-blue jacket", {"blue"}, "jacket", "jacket", ()),
    ("multi-colored umbrella", set(), "umbrella", "umbrella", ()),
    ("hot dog", set(), "hot dog", "dog", ()),
    ("man wearing a red hat", set(), "man wearing a red hat", "man", ("hat",)),
    ("Mickey Mouse", set(), "Mickey Mouse", "mouse", ()),
    ("police car", set(), "police car", "car", ()),
    ("colorful logo", set(), "logo", "logo", ()),
    ("orange", set(), "orange", "orange", ()),
    ("blue label on the water bottle", {"blue"}, "label on the water bottle", "label", ("bottle",)),
    ("blue clothes on the person riding a motorcycle", {"blue"},
     "clothes on the person riding a motorcycle", "clothes", ("person", "motorcycle")),
    ("blue slippers", {"blue"}, "slippers", "slipper", ()),
])
def test_references_are_taken_apart(text, colors, obj, head, owners):
    reference = parse_reference(text)
    assert (reference.colors, reference.object, reference.head, reference.owners) == (colors, obj, head, owners)


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
        assert not set(reference.object.lower().replace("-", " ").split()) & set(COLOR_WORDS)
    colorless = {t for t in references if not parse_reference(t).color_words}
    assert colorless == {"Mickey Mouse", "curly-haired dog", "police car", "spider"}


@pytest.mark.parametrize("plural, one", [
    ("slippers", "slipper"), ("boxes", "box"), ("puppies", "puppy"), ("cookies", "cookie"), ("mice", "mouse"),
    ("people", "person"), ("knives", "knife"), ("shorts", "shorts"), ("bus", "bus"), ("glass", "glass"),
    ("watches", "watch"), ("cat", "cat")])
def test_singulars(plural, one):
    assert singular(plural) == one


def test_articles_are_left_out_before_names():
    assert the("jacket on the cyclist") == "the jacket on the cyclist"
    assert the("Mickey Mouse") == "Mickey Mouse"
    assert the("SUV") == "the SUV"


def test_riders_come_with_what_they_ride():
    assert scene_nouns(parse_reference("blue jacket on the cyclist")) == ("jacket", "cyclist", "bicycle")
    assert "motorcycle" in scene_nouns(parse_reference("blue clothes on the person riding a motorcycle"))


def test_kinds_join_what_people_call_alike():
    assert kind("sedan") == kind("car") != kind("cart")


@pytest.mark.parametrize("name, target, could", [
    ("white car", "police car", True), ("red car", "silver sedan", True), ("police car", "white car", False),
    ("red umbrella", "blue umbrella", True), ("blue baby stroller", "red stroller", False),
    ("red stroller", "blue baby stroller", True), ("red cup", "red cap", False),
    ("white hat on the man", "red hat on the woman", False), ("black trash bin", "green trash can", True),
    ("gray statue", "gray sculpture", True)])
def test_names_that_could_mean_another_target(name, target, could):
    assert could_mean(name, target) is could


def test_the_nearest_pool_color_of_other_words():
    assert parse_reference("silver car").named_colors == ("gray",)
    assert parse_reference("rose-pink suitcase").named_colors == ("pink",)
    assert parse_reference("colorful logo").named_colors == ()
