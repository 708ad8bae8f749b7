"""Pairs from regenerated items: answers against the pixels and the scenes, and what gives none is told."""

import dataclasses

import numpy as np
import pytest

from experiments.generate import GenerateJob, generate
from experiments.pair_sources import ItemSource
from experiments.scenes import write_benchmark
from rekey.errors import InputError
from rekey.images import load_image, save_png
from rekey.pair_items import pairs_of_items
from rekey.pairs import changed_box
from rekey.qa import build_question
from rekey.records import Item, SamplingRecord, Slot, VisualKey, from_json, option_index
from rekey.scenes import PAINTS, scene_benchmark
from rekey.store import read_jsonl, write_jsonl

N, SEED = 5, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A benchmark of scenes, and two instances of it."""
    folder = tmp_path_factory.mktemp("items")
    write_benchmark(folder / "scenes", N, SEED)
    for seed in (1, 2):
        generate(GenerateJob(folder / "scenes" / "slots.jsonl", folder / "scenes" / "images", folder / f"seed{seed}",
                             seed))
    return folder


@pytest.fixture(scope="module")
def source(folder):
    return ItemSource((folder / "seed1", folder / "seed2"), folder / "scenes" / "images")


def painted(pixels, box):
    """Names of the paints that a changed box shows, those that cover most first: a look that no record guides."""
    inner = pixels[box.slices].reshape(-1, 3).astype(int)
    names = list(PAINTS)
    paints = np.array([PAINTS[name][0] for name in names])
    nearest = ((inner[:, None] - paints) ** 2).sum(-1)
    counts = np.bincount(nearest.argmin(1)[nearest.min(1) < 1500], minlength=len(names))
    return [names[k] for k in counts.argsort()[::-1]]


def test_answers_are_what_the_pixels_show(source):
    drawn = [draft.draw() for draft in source.drafts()]
    assert len(drawn) >= 6 and {pair.source["b"]["image"] for pair in (d.pair for d in drawn)} == {"source", "seed2"}
    for one in drawn:
        box = changed_box(one.a, one.b)
        for side, pixels in (("a", one.a), ("b", one.b)):
            # Clutter and ground in the box may be nearest to a paint as well, gray above all.
            assert one.pair.answer_text(side) in painted(pixels, box)[:2], (one.pair.pair_id, side)


def test_the_source_has_the_color_of_the_scene(source):
    scenes = {one.slots.image_id: one for one in scene_benchmark(N, SEED)}
    n_checked = 0
    for draft in source.drafts():
        plan = draft.plan
        if plan.b.item is None:
            shape = plan.key.object.split()[-1]
            assert plan.b.value == scenes[plan.image_id].scene.find(shape).color
            assert plan.question == f"What color is the {shape}?"
            n_checked += 1
    assert n_checked == 6                                   # 3 of 5 scenes ask for a color, two seeds each


def test_two_items_of_a_pair_share_the_question_that_each_was_asked(folder, source):
    asked = {item["item_id"]: from_json(Item, item) for seed in (1, 2)
             for item in read_jsonl(folder / f"seed{seed}" / "items.jsonl")}
    for draft in source.drafts():
        plan = draft.plan
        for state in (plan.a, plan.b):
            if state.item is not None:
                item = asked[state.item.item_id]
                assert (plan.question, state.value) == (item.question, item.answer_text)
        assert plan.answer(plan.a) != plan.answer(plan.b)
        assert len(set(plan.options)) == 4 and plan.options[option_index(plan.answer(plan.a))] == plan.a.value


def test_position_items_are_counted_and_give_nothing(source):
    (note,) = [note for note in source.notes() if "position" in note]
    assert note.startswith("4 left out: position items")
    assert all(draft.plan.attribute == "color" for draft in source.drafts())


# -------------------------------------------------------------------- hand-made records

def item(object_name, value, seed, mode="replace", attribute="color", **key):
    from rekey.geometry import Box
    slot = Slot("photo", "A1", mode, Box(0, 0, 60, 60), Box(10, 10, 40, 40), (object_name,), clutter=seed / 10)
    record = SamplingRecord("photo", seed, "attribute", attribute,
                            (VisualKey(slot, mode, object_name, **{"color": None, attribute: value} | key),))
    question = build_question(record)
    return Item(f"photo/seed{seed}", "x.png", "0", question.text, question.options, question.answer, record=record)


def pairs_of(*items):
    return pairs_of_items({one.record.seed: [one] for one in items})


def test_an_old_color_that_may_mean_two_gives_no_pair_with_the_source():
    for name, old in (("silver car", {"gray", "white"}), ("red-and-white flag", {"red", "white"})):
        found = pairs_of(item(name, "blue", 1), item(name, "green", 2))
        assert [(plan.a.name, plan.b.name) for plan in found.plans] == [("seed1", "seed2")]
        assert found.skipped == {"color against the source, whose color the annotation leaves open": 2}
        assert not old & set(found.plans[0].options), "an option that is half right"


def test_an_old_color_that_is_not_told_gives_no_pair_with_the_source():
    found = pairs_of(item("car", "blue", 1))
    assert not found.plans
    assert found.skipped == {"color against the source, whose color the annotation does not tell": 1}


def test_an_added_object_is_compared_with_itself_in_another_color_only():
    found = pairs_of(item("balloon", "blue", 1, "add"), item("balloon", "green", 2, "add"),
                     item("kite", "red", 3, "add"))
    (plan,) = found.plans
    assert (plan.a.value, plan.b.value, plan.question) == ("blue", "green", "What color is the balloon?")


def test_objects_that_differ_in_something_else_as_well_give_no_pair():
    striped = [item("bag", "striped", 1, "add", "pattern", color="red"),
               item("bag", "dotted", 2, "add", "pattern", color="blue")]
    assert not pairs_of(*striped).plans
    same = [striped[0], item("bag", "dotted", 2, "add", "pattern", color="red")]
    (plan,) = pairs_of(*same).plans
    assert set(plan.options) == {"plain", "striped", "dotted", "checked"}


def test_patterns_and_materials_are_compared_with_what_the_annotator_wrote():
    (plan,) = pairs_of(item("striped towel", "dotted", 1, attribute="pattern")).plans
    assert (plan.a.value, plan.b.value, plan.question) == ("dotted", "striped", "What pattern does the towel have?")
    (plan,) = pairs_of(item("wood chair", "metal", 1, attribute="material")).plans
    assert (plan.b.value, plan.question) == ("wood", "What material is the chair made of?")
    # A towel is plain by default for the sampler, but nobody wrote that down.
    assert not pairs_of(item("towel", "dotted", 1, attribute="pattern")).plans


def test_one_value_twice_gives_no_pair():
    found = pairs_of(item("car", "blue", 1), item("car", "blue", 2))
    assert not found.plans and found.skipped["two seeds that gave one slot one value"] == 1


def test_a_pair_does_not_depend_on_the_others():
    items = [item("red car", color, seed) for seed, color in enumerate(("blue", "green", "white"), 1)]
    alone = {plan.pair_id: plan for plan in pairs_of(*items[:2]).plans}
    together = {plan.pair_id: plan for plan in pairs_of(*items).plans}
    assert len(alone) == 3 and len(together) == 6
    assert all(together[name] == plan for name, plan in alone.items())


# -------------------------------------------------------------------------- files that lie

def test_a_source_that_is_not_the_edited_image_is_refused(folder, source, tmp_path):
    draft = next(draft for draft in source.drafts() if draft.plan.b.item is None)
    pixels = load_image(draft.path_b).pixels.copy()
    pixels[:2, :2] ^= 1
    save_png(tmp_path / "other.png", pixels)
    with pytest.raises(InputError, match="beyond their slot"):
        dataclasses.replace(draft, path_b=tmp_path / "other.png").draw()
    save_png(tmp_path / "small.png", pixels[:100])
    with pytest.raises(InputError, match="384x384 and 384x100 pixels"):
        dataclasses.replace(draft, path_b=tmp_path / "small.png").draw()
    with pytest.raises(InputError, match="is not the image that"):
        dataclasses.replace(draft, path_a=tmp_path / "other.png").draw()


def test_folders_that_do_not_fit_are_refused(folder, tmp_path):
    with pytest.raises(InputError, match="is of seed 1, as is"):
        ItemSource((folder / "seed1", folder / "seed1"))
    with pytest.raises(InputError, match="of 0 seeds"):
        ItemSource((folder / "scenes",))
    lines = [line for seed in (1, 2) for line in read_jsonl(folder / f"seed{seed}" / "items.jsonl")]
    write_jsonl(tmp_path / "items.jsonl", lines)
    with pytest.raises(InputError, match="of 2 seeds"):
        ItemSource((tmp_path,))
    (tmp_path / "images").mkdir()
    with pytest.raises(InputError, match="no image of that name") as error:
        ItemSource((folder / "seed1",), tmp_path / "images")
    assert len(error.value.problems) == 3


def test_without_the_source_images_only_seeds_are_paired(folder, source):
    alone = ItemSource((folder / "seed1", folder / "seed2"))
    with_sources = [draft.pair_id for draft in source.drafts() if draft.plan.b.item is not None]
    assert [draft.pair_id for draft in alone.drafts()] == with_sources
    assert any("--images" in note for note in alone.notes())
