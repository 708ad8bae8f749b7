"""Scores of proposed slots against hand counts, brute force, the published sizes, and a null experiment."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from rekey.errors import InputError
from rekey.geometry import Box
from rekey.localization import (
    Criterion,
    annotator_study,
    center_inside,
    compare_sizes,
    coverage,
    eccentricity,
    iou,
    overlap_px2,
    same_target,
    score_add,
    score_replace,
)
from rekey.records import ImageSlots, Slot
from rekey.slots import read_slots

rng_of = np.random.default_rng


def slot(image_id: str, slot_id: str, mode: str, box: tuple, *words: str) -> Slot:
    edit = Box(*box)
    return Slot(image_id, slot_id, mode, edit.grown(20), edit, words if mode == "replace" else (),
                words if mode == "add" else ())


def image(*slots: Slot, size=(400, 300), image_id="street") -> ImageSlots:
    return ImageSlots(image_id, slots, image_size=size)


GLOVE = slot("street", "A1", "replace", (100, 100, 140, 120), "blue glove")               # 40 x 20
CAR = slot("street", "A2", "replace", (200, 100, 260, 130), "red car")                    # 60 x 30


def proposed(box: tuple, *words: str, mode: str = "replace", slot_id: str = "V1") -> Slot:
    return slot("street", slot_id, mode, box, *words)


# ------------------------------------------------------------------------------------- two boxes

@pytest.mark.parametrize("a, b, shared", [
    ((0, 0, 10, 10), (0, 0, 10, 10), 100), ((0, 0, 10, 10), (5, 5, 15, 15), 25), ((0, 0, 10, 10), (10, 0, 20, 10), 0),
    ((0, 0, 10, 10), (30, 40, 50, 60), 0), ((0, 0, 10, 10), (2, 3, 4, 5), 4)])
def test_overlaps_are_as_counted_pixel_by_pixel(a, b, shared):
    first, second = Box(*a), Box(*b)
    pixels = [{(x, y) for x in range(box.left, box.right) for y in range(box.top, box.bottom)}
              for box in (first, second)]
    assert overlap_px2(first, second) == len(pixels[0] & pixels[1]) == shared
    assert iou(first, second) == iou(second, first) == shared / len(pixels[0] | pixels[1])
    assert coverage(first, second) == shared / len(pixels[1])


def test_a_box_points_at_what_holds_its_center():
    assert center_inside(Box(0, 0, 10, 10), Box(5, 5, 6, 6))
    assert not center_inside(Box(0, 0, 10, 10), Box(0, 0, 5, 10))            # right edges are outside
    assert not center_inside(Box(0, 0, 30, 30), Box(0, 0, 10, 10))


def test_eccentricity_runs_from_the_center_to_the_corner():
    assert eccentricity(Box(190, 140, 210, 160), (400, 300)) == 0
    assert eccentricity(Box(0, 0, 0, 0), (400, 300)) == 1
    assert eccentricity(Box(0, 140, 0, 160), (400, 300)) == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize("said, marked, same", [
    ("the glove", "blue glove", True), ("glove", "red car", False), ("sedan", "red car", True),
    ("dog in an orange vest", "orange life vest on the dog", True), ("red dustpan", "blue dustpan", True),
    ("telephone", "orange phone", False)])
def test_descriptions_fit_where_the_noun_of_one_is_named_by_the_other(said, marked, same):
    assert same_target(said, marked) is same_target(marked, said) is same


# --------------------------------------------------------------------------------- replace slots

def test_a_replace_slot_is_measured_as_by_hand():
    (score,) = score_replace(image(GLOVE), image(proposed((110, 100, 150, 140), "glove")))
    # 40 x 40 against 40 x 20; they share 30 x 20.
    assert (score.iou, score.best_iou) == (600 / 1800, 600 / 1800)
    assert (score.coverage, score.area_ratio, score.area_px2) == (600 / 800, 2.0, 1600)
    assert (score.center_inside, score.named, score.usable, score.human_slot_id) == (False, True, True, "A1")


@pytest.mark.parametrize("box, usable", [
    ((100, 100, 120, 120), True), ((100, 100, 119, 120), False),             # half of it, and less
    ((100, 100, 180, 140), True), ((100, 100, 181, 140), False),             # four times as large, and more
    ((0, 0, 400, 300), False), ((300, 200, 340, 220), False)])
def test_usable_is_half_of_the_target_in_at_most_four_times_its_area(box, usable):
    (score,) = score_replace(image(GLOVE), image(proposed(box, "glove")))
    assert score.usable is usable


def test_the_numbers_of_the_criterion_are_the_ones_used():
    here = image(GLOVE), image(proposed((100, 100, 119, 120), "glove"))
    assert score_replace(*here, Criterion(min_coverage=0.4))[0].usable
    there = image(GLOVE), image(proposed((100, 100, 181, 140), "glove"))
    assert score_replace(*there, Criterion(max_area_ratio=4.1))[0].usable


def test_other_words_for_the_only_target_do_not_make_a_slot_unusable():
    (score,) = score_replace(image(GLOVE), image(proposed((100, 100, 140, 120), "blue mitten")))
    assert (score.named, score.usable) == (False, True)


def test_a_slot_that_is_meant_for_another_target_is_not_usable():
    swapped = image(proposed((200, 100, 260, 130), "glove", slot_id="V1"),
                    proposed((100, 100, 140, 120), "car", slot_id="V2"))
    scores = score_replace(image(GLOVE, CAR), swapped)
    assert [score.usable for score in scores] == [False, False]
    assert [score.best_iou for score in scores] == [1, 1]
    assert [score.human_slot_id for score in scores] == ["A1", "A2"]         # by their words
    by_place = score_replace(image(GLOVE, CAR), swapped, Criterion(by_words=False))
    assert [(score.human_slot_id, score.usable, score.named) for score in by_place] == [
        ("A2", True, False), ("A1", True, False)]


def test_a_second_slot_for_one_target_is_not_taken_for_another_one():
    slots = [proposed((100, 100, 140, 120), "glove"), proposed((200, 100, 260, 130), "glove", slot_id="V2")]
    assert [score.human_slot_id for score in score_replace(image(GLOVE, CAR), image(*slots))] == ["A1", None]


def test_words_decide_where_boxes_do_not():
    slots = [proposed((300, 200, 340, 220), "car"), proposed((10, 200, 40, 220), "glove", slot_id="V2")]
    for criterion in (Criterion(), Criterion(by_words=False)):
        scores = score_replace(image(GLOVE, CAR), image(*slots), criterion)
        assert [(score.human_slot_id, score.iou) for score in scores] == [("A2", 0), ("A1", 0)]


def test_one_target_counts_once_however_many_slots_lie_on_it():
    slots = [proposed((100, 100, 140, 120 + n), "glove", slot_id=f"V{n}") for n in range(4)]
    scores = score_replace(image(GLOVE), image(*slots))
    assert [score.human_slot_id for score in scores] == ["A1", None, None, None]
    assert sum(score.usable for score in scores) == 1
    assert scores[3].best_iou == 20 / 23 and scores[3].iou is None


@pytest.mark.parametrize("seed", range(8))
def test_the_matching_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)

    def drawn(n: int, prefix: str) -> list[Slot]:
        corners = rng.integers(0, 60, (n, 2)).tolist()
        return [slot("street", f"{prefix}{k}", "replace", (x, y, x + 40, y + 30), f"thing{prefix}{k}")
                for k, (x, y) in enumerate(corners)]

    targets, slots = drawn(4, "A"), drawn(3, "V")
    found = score_replace(image(*targets), image(*slots))
    best = max(sum(iou(s.edit, t.edit) for s, t in zip(slots, order)) for order in itertools.permutations(targets, 3))
    assert sum(score.iou for score in found) == pytest.approx(best)
    assert len({score.human_slot_id for score in found}) == 3


def test_without_targets_or_proposals_nothing_is_scored():
    nothing, tree = image(), slot("street", "B1", "add", (10, 10, 20, 20), "cat")
    assert score_replace(image(GLOVE), nothing) == []
    (score,) = score_replace(image(tree), image(proposed((0, 0, 9, 9), "glove")))
    assert (score.human_slot_id, score.best_iou, score.iou, score.named, score.usable) == (None,) * 4 + (False,)


# ------------------------------------------------------------------------------------- add slots

def test_an_add_slot_is_usable_off_the_targets_with_an_object_that_is_not_there():
    def score(box: tuple, *words: str):
        return score_add(image(GLOVE, CAR), image(proposed(box, *words, mode="add")))[0]

    free = score((10, 10, 50, 60), "cat", "sedan")
    assert (free.usable, free.target_overlap, free.area_px2) == (True, 0.0, 2000)
    assert free.eccentricity == pytest.approx(math.hypot(30 / 400 - 0.5, 35 / 300 - 0.5) / math.hypot(0.5, 0.5))
    assert not score((10, 10, 50, 60), "sedan", "glove").usable              # both are in the scene
    touching = score((120, 100, 160, 120), "cat")
    assert (touching.usable, touching.target_overlap) == (False, 0.5)


def test_without_the_size_of_the_image_there_is_no_eccentricity():
    (score,) = score_add(image(GLOVE, size=None), image(proposed((1, 1, 9, 9), "cat", mode="add"), size=None))
    assert score.eccentricity is None


# ----------------------------------------------------------------------------------------- sizes

def test_medians_and_their_ratio_are_as_by_hand():
    sizes = compare_sizes({"a": [100, 300], "b": [200]}, {"a": [900], "b": [500], "c": []}, rng_of(0))
    assert (sizes.human_median_px2, sizes.proposed_median_px2, sizes.ratio.value) == (200, 700, 3.5)
    assert (sizes.n_human, sizes.n_proposed, sizes.n_images) == (3, 2, 2)
    assert 500 / 200 <= sizes.ratio.low <= 3.5 <= sizes.ratio.high <= 900 / 200


def test_the_bootstrap_takes_whole_images_as_a_plain_one_does():
    rng = np.random.default_rng(5)
    human, other = ({str(k): rng.integers(10, 900, n).tolist() for k, n in enumerate(rng.integers(0, 4, 7))}
                    for _ in range(2))
    sizes = compare_sizes(human, other, rng_of(1), n_draws=2500)
    ids = sorted(image_id for image_id in human if human[image_id] or other[image_id])
    weights = rng_of(1).multinomial(len(ids), np.full(len(ids), 1 / len(ids)), 2500)
    ratios = []
    for row in weights:
        drawn = [[area for image_id, n in zip(ids, row) for area in side[image_id] * n] for side in (human, other)]
        if all(drawn):
            ratios.append(np.median(drawn[1]) / np.median(drawn[0]))
    assert (sizes.ratio.low, sizes.ratio.high) == pytest.approx(np.quantile(ratios, (0.025, 0.975)))


def test_the_interval_of_the_ratio_covers_the_truth_nearly_as_often_as_it_says():
    rng, held = np.random.default_rng(3), 0
    for _ in range(200):
        human, other = ({k: np.exp(rng.normal(scale, 0.8, 2)) for k in range(60)} for scale in (8.0, 9.0))
        ratio = compare_sizes(human, other, rng, n_draws=400).ratio
        held += ratio.low <= math.e <= ratio.high
    assert 0.90 <= held / 200 <= 0.995


def test_nothing_to_compare_is_none_and_never_nan():
    for human, other in (({}, {}), ({"a": []}, {"a": [5]}), ({"a": [5]}, {})):
        sizes = compare_sizes(human, other, rng_of(0))
        assert (sizes.ratio.value, sizes.ratio.low, sizes.ratio.high) == (None, None, None)
    assert compare_sizes({"a": [5]}, {}, rng_of(0)).human_median_px2 == 5


# ------------------------------------------------------------------------------- a whole annotator

def test_a_small_study_counts_as_by_hand():
    human = {"street": image(GLOVE, CAR, slot("street", "B1", "add", (10, 10, 30, 30), "cat")),
             "empty": image(dataclasses.replace(GLOVE, image_id="empty"), image_id="empty"),
             "unasked": image(dataclasses.replace(CAR, image_id="unasked"), image_id="unasked")}
    found = {"street": image(proposed((100, 100, 140, 120), "glove"),
                             proposed((210, 200, 260, 240), "car", slot_id="V2"),
                             proposed((10, 200, 90, 280), "dog", mode="add", slot_id="V3")),
             "empty": image(image_id="empty")}
    study = annotator_study(human, found, rng_of(0))
    assert (study.n_images, study.n_empty) == (2, 1)
    assert (study.usable.value, study.usable.n) == (1 / 2, 2)
    assert (study.found.value, study.found.n) == (1 / 3, 3)
    assert (study.pointed.value, study.named.value, study.add_usable.value) == (1 / 2, 1, 1)
    assert (study.median_iou, study.median_coverage) == (1 / 2, 1 / 2)
    assert study.replace_size.human_median_px2 == 800                        # of 800, 1800, 800
    assert study.replace_size.proposed_median_px2 == 1400                    # of 800, 2000
    assert (study.add_size.human_median_px2, study.add_size.proposed_median_px2) == (400, 6400)
    assert study.add_size.ratio.value == 16
    assert (study.add.n, study.human_add.n, study.add.touching.value) == (1, 1, 0)


def test_a_study_of_nothing_is_none_throughout():
    study = annotator_study({}, {}, rng_of(0))
    estimates = (study.usable, study.found, study.add_usable, study.pointed, study.named, study.add.touching,
                 study.replace_size.ratio, study.add_size.ratio)
    assert all(estimate.value is None for estimate in estimates)
    assert (study.median_iou, study.add.area_px2, study.human_add.eccentricity) == (None, None, None)


def test_images_that_nobody_marked_are_named():
    with pytest.raises(InputError, match=r"1 proposed images have no human slots \(street\)"):
        annotator_study({}, {"street": image(GLOVE)}, rng_of(0))


# ----------------------------------------------------------------------------- the released slots

@pytest.fixture(scope="module")
def released(data_pack) -> dict[str, ImageSlots]:
    sizes = json.loads((data_pack / "rekey/vstar/image_sizes.json").read_text())
    slots = read_slots(data_pack / "rekey/annotations/dynamic_vstar_slots_latest.jsonl")
    return {image_id: dataclasses.replace(found, image_size=tuple(sizes[image_id]))
            for image_id, found in slots.items()}


def test_people_scored_against_themselves_are_perfect_and_of_the_published_sizes(released, data_pack):
    study = annotator_study(released, released, rng_of(0))
    assert (study.replace_size.human_median_px2, study.add_size.human_median_px2) == (3843, 3256)    # Table 3
    assert (study.replace_size.n_human, study.add_size.n_human) == (267, 485)
    for sizes in (study.replace_size, study.add_size):
        assert (sizes.ratio.value, sizes.ratio.low, sizes.ratio.high) == (1, 1, 1)
    assert all(score.iou == score.best_iou == score.coverage == score.area_ratio == 1
               for score in study.replace_scores)
    assert study.usable.value == study.found.value == study.pointed.value == study.named.value == 1
    assert study.add_usable.value == pytest.approx(476 / 485)    # 6 touch a target, 3 name only what is there
    assert study.add == study.human_add


def test_boxes_of_other_images_are_hardly_ever_usable(released):
    """What luck gives: every image gets the boxes of the next, with its own words."""
    shifted = {}
    for (image_id, own), other in zip(released.items(), [*list(released.values())[1:], released["vstar_0000"]]):
        pairs = zip([s for s in own.slots if s.mode == "replace"], [s for s in other.slots if s.mode == "replace"])
        shifted[image_id] = dataclasses.replace(own, slots=tuple(
            dataclasses.replace(mine, context=its.context, edit=its.edit) for mine, its in pairs))
    study = annotator_study(released, shifted, rng_of(0))
    assert study.usable.n > 200
    assert study.usable.value < 0.02


def test_slots_three_times_as_large_are_found_to_be_so(released):
    def enlarged(found: Slot) -> Slot:
        grown = round(found.edit.height * 2)
        return dataclasses.replace(found, edit=dataclasses.replace(found.edit, bottom=found.edit.bottom + grown))
    large = {image_id: dataclasses.replace(found, slots=tuple(map(enlarged, found.slots)))
             for image_id, found in released.items()}
    study = annotator_study(released, large, rng_of(0))
    for sizes in (study.replace_size, study.add_size):
        assert sizes.ratio.value == sizes.ratio.low == sizes.ratio.high == pytest.approx(3)
    assert study.usable.value == study.median_coverage == 1
    assert study.median_iou == pytest.approx(1 / 3)
