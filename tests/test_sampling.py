"""Sampling records: constraints that hold, sizes that were counted twice, draws that never move."""

import itertools
import json
from dataclasses import replace

import pytest

from experiments.options import what_is_left
from rekey.colors import COLORS
from rekey.geometry import Box
from rekey.plausible import Plausible
from rekey.qa import build_question
from rekey.records import ImageSlots, Slot
from rekey.references import COLOR_WORDS, parse_reference
from rekey.sampling import NoItem, Pool, PoolSize, SamplingOptions, asked_axis, identity
from rekey.slots import read_slots, write_slots


def slot(slot_id, left, top, targets=(), candidates=(), mode=None, side=40, image_id="toy"):
    edit = Box(left, top, left + side, top + side)
    mode = mode or ("replace" if targets else "add")
    return Slot(image_id, slot_id, mode, edit.grown(20), edit, tuple(targets), tuple(candidates))


def image(*slots, category="direct_attributes"):
    return ImageSlots("toy", slots, category, (1000, 800))


TOY = image(slot("A", 100, 100, targets=["blue jacket on the cyclist"]),
            slot("B", 400, 120, candidates=["cat", "bucket", "jacket"]),
            slot("C", 700, 130, candidates=["cat", "umbrella"]))


def test_pool_sizes_equal_a_count_by_hand():
    # A: 11 colors less blue.  B: cat, bucket (no second jacket), C: cat, umbrella.
    # Pairs A-B: 10*22, A-C: 10*22, B-C: all four noun pairs but cat-cat, 121 colors each.
    assert Pool(TOY).size() == PoolSize(11 + 33 + 22, 11 * 33 + 11 * 22 + 33 * 22,
                                        10 + 22 + 22, 10 * 22 + 10 * 22 + 3 * 121)


def test_the_sampler_reaches_every_item_of_a_small_pool_and_no_other():
    listed = {identity(r) for r in Pool(TOY).records() if r.question_type == "attribute"}
    drawn = {identity(Pool(TOY).sample(seed)) for seed in range(1500)}
    assert drawn == listed
    assert len(listed) == 10 + 11 + 11 + 11          # a jacket, a bucket, an umbrella, and a cat in either place


@pytest.mark.parametrize("category", ["direct_attributes", "relative_position"])
@pytest.mark.parametrize("attribute", ["color", "pattern"])
def test_listed_keys_are_those_that_are_drawn(category, attribute):
    pool = Pool(image(*TOY.slots, category=category), SamplingOptions(attribute=attribute))
    listed = set(pool.keys(0))
    drawn = {key for seed in range(3000) for key in pool.sample(seed).keys}
    assert drawn <= listed
    assert {(k.slot.slot_id, k.object, k.value(attribute)) for k in drawn} == {
        (k.slot.slot_id, k.object, k.value(attribute)) for k in listed}


def test_position_items_listed_by_brute_force():
    position = image(*TOY.slots, category="relative_position")
    expected = set()
    jackets = [f"{color} jacket on the cyclist" for color in COLORS if color != "blue"]
    contents = {"A": jackets, "B": ["cat", "bucket"], "C": ["cat", "umbrella"]}         # from left to right
    for left, right in itertools.combinations("ABC", 2):
        expected |= {f"toy|position|color|horizontal|{first}|{second}"
                     for first, second in itertools.product(contents[left], contents[right]) if first != second}
    assert Pool(position).identities() == expected
    assert {identity(Pool(position).sample(seed)) for seed in range(1200)} == expected


def test_adding_an_image_changes_no_other_record(tmp_path):
    other = ImageSlots("another", (slot("Z", 100, 100, candidates=["dog"], image_id="another"),), None, (500, 500))
    for name, images in (("one", [TOY]), ("two", [other, TOY])):
        write_slots(tmp_path / name, images)
    one, two = (read_slots(tmp_path / name) for name in ("one", "two"))
    assert [Pool(one["toy"]).sample(s) for s in range(9)] == [Pool(two["toy"]).sample(s) for s in range(9)]


def test_published_seeds_keep_their_records():
    assert [identity(Pool(TOY).sample(s)) for s in range(4)] == [
        "toy|attribute|color|umbrella|white",
        "toy|attribute|color|bucket|blue",
        "toy|attribute|color|umbrella|orange",
        "toy|attribute|color|jacket on the cyclist|gray"]


@pytest.mark.parametrize("candidate", ["jacket", "cyclist", "bike on the road"])
def test_added_objects_never_stand_for_a_target_or_its_owner(candidate):
    scene = image(slot("A", 100, 100, targets=["blue jacket on the cyclist", "red bicycle"]),
                  slot("B", 400, 100, candidates=[candidate]))
    assert all(k.slot.slot_id == "A" for s in range(60) for k in Pool(scene).sample(s).keys)


def test_a_target_on_an_add_slot_counts_as_part_of_the_scene():
    scene = image(slot("A", 100, 100, candidates=["tank"], targets=["green tank"], mode="add"),
                  slot("B", 400, 100, candidates=["bench"]))
    assert {Pool(scene).sample(s).keys[0].object for s in range(60)} == {"bench"}


def test_either_slots_are_replaced_or_filled():
    scene = image(slot("A", 100, 100, targets=["red cup", "green bowl"], candidates=["phone"], mode="either"))
    seen = {(k.mode, k.object) for s in range(80) for k in Pool(scene).sample(s).keys}
    assert seen == {("replace", "red cup"), ("replace", "green bowl"), ("add", "phone")}
    assert Pool(scene).size().attribute_formula == 33


def test_twins_are_not_asked_about_and_are_told_apart_by_color():
    twins = image(slot("A", 100, 100, targets=["red umbrella"]), slot("B", 400, 100, targets=["blue umbrella"]),
                  slot("C", 700, 100, candidates=["cat"]))
    assert {Pool(twins).sample(s).keys[0].object for s in range(40)} == {"cat"}
    position = replace(twins, category="relative_position")
    for seed in range(200):
        keys = {k.slot.slot_id: k for k in Pool(position).sample(seed).keys}
        assert "C" in keys
        painted = next(k for k in keys.values() if k.mode == "replace")
        assert painted.color not in ("red", "blue")


def test_a_bare_noun_is_not_asked_about_where_it_could_mean_two():
    scene = image(slot("A", 100, 100, targets=["red car"]), slot("B", 400, 100, targets=["police car"]),
                  slot("C", 700, 100, targets=["blue umbrella", "green umbrella"]))
    asked = {Pool(scene).sample(s).keys[0].object for s in range(60)}
    assert asked == {"police car"}


def test_two_targets_in_one_slot_are_told_apart_too():
    scene = image(slot("A", 100, 100, targets=["red car", "blue car"]), slot("B", 400, 100, candidates=["dog"]),
                  category="relative_position")
    painted = {k.color for s in range(200) for k in Pool(scene).sample(s).keys if k.mode == "replace"}
    assert not painted & {"red", "blue"}


def test_a_patterned_twin_keeps_its_pattern_to_itself():
    scene = image(slot("A", 100, 100, targets=["red umbrella"]), slot("B", 400, 100, targets=["striped umbrella"]),
                  slot("C", 700, 100, candidates=["dog"]), category="relative_position")
    records = [Pool(scene, SamplingOptions(attribute="pattern")).sample(s) for s in range(200)]
    assert all(k.pattern not in ("striped", "plain") for r in records for k in r.keys if k.object == "red umbrella")


def test_position_needs_separation_on_the_asked_axis_and_edits_that_do_not_touch():
    near = image(slot("A", 100, 100, candidates=["cat"], side=20), slot("B", 112, 110, candidates=["cup"], side=20),
                 category="relative_position")
    with pytest.raises(NoItem, match="no position question is possible"):
        Pool(near).sample(1)
    touching = image(slot("A", 100, 100, candidates=["cat"]), slot("B", 160, 100, candidates=["cup"]),
                     category="relative_position")
    with pytest.raises(NoItem):
        Pool(touching).sample(1)
    above = image(slot("A", 100, 100, candidates=["cat"]), slot("B", 130, 400, candidates=["cup"]))
    assert asked_axis(*above.slots) == "vertical"


def test_old_patterns_and_materials_are_left_out():
    scene = image(slot("A", 100, 100, targets=["red-and-yellow striped train", "blue plastic stool", "red cup"]))
    records = [Pool(scene, SamplingOptions(attribute=a)).sample(s) for a in ("pattern", "material") for s in range(60)]
    shown = {(r.keys[0].object, r.keys[0].value(r.attribute)) for r in records}
    assert ("red-and-yellow striped train", "striped") not in shown
    assert ("red-and-yellow striped train", "plain") in shown
    assert ("red cup", "plain") not in shown
    assert ("blue plastic stool", "plastic") not in shown
    assert ("blue plastic stool", "wood") in shown


def test_the_plausibility_filter_acts_on_added_objects():
    builtin = Plausible.load("builtin")
    cats = image(slot("A", 100, 100, candidates=["cat"]))
    painted = {Pool(cats, SamplingOptions(plausible=builtin)).sample(s).keys[0].color for s in range(120)}
    assert painted == {"black", "white", "gray", "orange", "brown"}
    assert len({Pool(cats).sample(s).keys[0].color for s in range(120)}) == 11
    table = Plausible({"cat": {"color": frozenset()}}, "none")
    with pytest.raises(NoItem, match="no color is left for the cat"):
        Pool(cats, SamplingOptions(plausible=table)).sample(1)


def test_the_vaw_table_can_be_used_as_a_filter(data_pack):
    vaw = Plausible.load(data_pack / "rekey/vaw/vaw_object_attributes.json")
    dogs = image(slot("A", 100, 100, candidates=["dog"]))
    painted = {Pool(dogs, SamplingOptions(plausible=vaw)).sample(s).keys[0].color for s in range(200)}
    assert painted == set(vaw.table["dog"]["color"]) & set(COLORS)


def test_an_avoided_item_never_comes_again_until_the_pool_is_empty():
    scene = image(slot("A", 100, 100, targets=["red cup"]))
    released = set()
    for seed in range(10):
        record = Pool(scene).sample(seed, released)
        assert identity(record) not in released
        released.add(identity(record))
    with pytest.raises(NoItem, match="of 10 attribute items of this image none is left: 10 are in the ledger"):
        Pool(scene).sample(10, released)


def test_a_twin_of_unknown_color_leaves_no_color_to_tell_it_by():
    scene = image(slot("A", 100, 100, targets=["red car"]), slot("B", 400, 100, targets=["police car"]),
                  slot("C", 700, 100, candidates=["cat"]), category="relative_position")
    assert {k.object for s in range(100) for k in Pool(scene).sample(s).keys} == {"police car", "cat"}


def test_what_is_left_counts_both_kinds_where_the_image_takes_both():
    both = replace(TOY, category=None)
    kinds = {i.split("|")[1] for i in Pool(both).identities()}
    assert kinds == {"attribute", "position"}
    assert len(Pool(both).identities()) == sum(
        len(Pool(replace(TOY, category=c)).identities()) for c in ("direct_attributes", "relative_position"))


def test_the_ledger_says_how_many_questions_are_left():
    released = {identity(Pool(TOY).sample(1))}
    assert what_is_left([TOY], SamplingOptions(), released | {"of another image"}) == (
        "42 of 43 questions are left for later instances; toy has the fewest, 42")


def test_tried_records_are_not_drawn_again_and_all_of_the_rest_is_reached():
    scene, tried = image(slot("A", 100, 100, targets=["red cup"], candidates=["cat"], mode="either")), set()
    while True:
        try:
            record = Pool(scene).sample(3, first_draw=len(tried), usable=lambda r: r.keys not in tried)
        except NoItem as reason:
            assert "the others could not be made" in str(reason)
            break
        assert record.keys not in tried
        tried.add(record.keys)
    assert len(tried) == 21


def test_difficulty_bands_and_like_source_choose_slots():
    scene = image(slot("small", 100, 100, candidates=["cat"], side=22),
                  slot("large", 500, 400, candidates=["cat"], side=160),
                  slot("source", 800, 100, targets=["red cup"], side=24))
    def drawn(difficulty, n=200):
        return [Pool(scene, SamplingOptions(difficulty=difficulty)).sample(s).keys[0].slot.slot_id for s in range(n)]
    assert set(drawn("hard")) == {"small", "source"}
    assert set(drawn("easy")) == {"large"}
    assert drawn("like-source").count("large") == 0
    with pytest.raises(NoItem, match="no slot of difficulty medium"):
        drawn("medium")
    assert Pool(scene, SamplingOptions(difficulty="easy")).size().attribute == 11
    assert Pool(scene, SamplingOptions(difficulty="hard")).size().attribute == 11 + 10


# ------------------------------------------------------------------ the released annotations

@pytest.fixture(scope="module")
def vstar(data_pack):
    slots = read_slots(data_pack / "rekey/annotations/dynamic_vstar_slots_latest.jsonl")
    sizes = json.loads((data_pack / "rekey/vstar/image_sizes.json").read_text())
    return [replace(image, image_size=tuple(sizes[image.image_id])) for image in slots.values()]


def test_published_pool_sizes(vstar):
    total, by_category = PoolSize(0, 0, 0, 0), {"direct_attributes": 0, "relative_position": 0}
    for scene in vstar:
        size = Pool(scene).size()
        total += size
        by_category[scene.category] += (size.attribute_formula if scene.category == "direct_attributes"
                                        else size.position_formula)
    assert (total.attribute_formula, total.position_formula) == (18_557, 694_298)
    assert by_category == {"direct_attributes": 12_177, "relative_position": 186_824}
    assert total.attribute < total.attribute_formula
    assert total.position < total.position_formula


@pytest.mark.slow
def test_a_thousand_seeds_keep_every_promise(vstar):
    n_items, without = 0, set()
    pools = [Pool(scene) for scene in vstar]
    for seed in range(1_000):
        for scene, pool in zip(vstar, pools, strict=True):
            try:
                record = pool.sample(seed)
            except NoItem:
                without.add(scene.image_id)
                continue
            n_items += 1
            check_promises(scene, record, build_question(record, "lure" if seed % 2 else "paper"), lure=bool(seed % 2))
    # vstar_0148 has two large, overlapping targets and no slot to add at.
    assert without == {"vstar_0148"}
    assert n_items == 190_000


def check_promises(scene, record, question, lure):
    """Checked from the annotation and the wording alone, not with the sampler's own helpers."""
    right = question.options["ABCD".index(question.answer)]
    assert len(set(question.options)) == len(question.options)
    words = question.text.rstrip("?").replace("-", " ").lower().split()
    if record.question_type == "attribute":
        (key,) = record.keys
        assert right == key.color
        old = set(key.object.replace("-", " ").split()) if key.mode == "replace" else set()
        assert right not in old
        assert not set(words[2:]) & set(COLOR_WORDS)
        assert len(question.options) == 4
        if lure and question.source_answer:
            assert question.source_answer in question.options
        if not lure:
            assert not old & set(question.options)
    else:
        first, second = record.keys
        assert first.slot.slot_id != second.slot.slot_id
        assert parse_reference(first.object).head != parse_reference(second.object).head
        named = [w for w in words if w in COLORS]
        assert named == [k.color for k in record.keys if k.mode == "replace"]
        (x1, y1), (x2, y2) = first.slot.edit.center, second.slot.edit.center
        distance, expected = {True: (abs(x1 - x2), "left" if x1 < x2 else "right"),
                              False: (abs(y1 - y2), "above" if y1 < y2 else "below")}["left" in words]
        assert right == expected
        assert distance >= 20
    targets = " ".join(t for s in scene.slots for t in s.targets).lower().split()
    for key in record.keys:
        assert key.mode == "replace" or key.object.split()[-1].lower() not in targets
