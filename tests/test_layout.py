"""Positions, regions and cuts: against the models' own position functions, hand tables and the pixels themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from probing import (
    ALL,
    MROPE,
    QUESTION,
    image,
    processor_inputs,
    refused,
    tiny_vlm,
)

from probes.layout import GENERATED, IMAGE, SINK, TEMPLATE, EncodedImage, Prompt, rope_positions
from probes.layout import QUESTION as QUESTION_CODE
from rekey.errors import InputError
from rekey.geometry import Box


def encoded(rows: int, columns: int, size: tuple[int, int] | None = None) -> EncodedImage:
    """An image of rows x columns tokens, 10 pixels a token unless a (height, width) is given."""
    size = size or (10 * rows, 10 * columns)
    pixels = torch.zeros(4 * rows * columns, 3)
    return EncodedImage(pixels, (1, 2 * rows, 2 * columns), merge=2, size=size, seen=size, filled=size)


def sequence(*parts: int | EncodedImage) -> Prompt:
    """Text of so many tokens, images, text, ... with ids that count up."""
    codes, images = b"", []
    for part in parts:
        if isinstance(part, EncodedImage):
            codes += part.codes(len(images))
            images.append(part)
        else:
            codes += bytes([TEMPLATE] * part)
    return Prompt(tuple(range(len(codes))), codes, tuple(images))


def test_positions_of_two_words_a_two_by_three_image_and_two_words_are_those_of_the_hand_table():
    row = sequence(2, encoded(2, 3), 2)
    axes, following = rope_positions(row.codes, row.images, "mrope")
    assert axes.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],      # time: the image is one moment
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],      # height
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],      # width; text goes on after the larger side, 2 + 3
    ]
    assert following == 7


def test_a_tall_image_is_followed_by_its_height_and_a_second_image_starts_there():
    row = sequence(1, encoded(3, 1), encoded(1, 2), 1)
    axes, following = rope_positions(row.codes, row.images, "mrope")
    assert axes.tolist() == [[0, 1, 1, 1, 4, 4, 6], [0, 1, 2, 3, 4, 4, 6], [0, 1, 1, 1, 4, 5, 6]]
    assert following == 7


def test_one_dimensional_positions_count_tokens():
    row = sequence(2, encoded(2, 3), 2)
    axes, following = rope_positions(row.codes, row.images, "1d", first=5)
    assert axes.tolist() == [list(range(5, 15))] and following == 15


@pytest.mark.parametrize("family", MROPE)
@pytest.mark.parametrize("sizes", [[(120, 160)], [(60, 200), (200, 60)], [(96, 96), (64, 128), (128, 64)]])
def test_positions_are_those_of_the_models_own_function(family, sizes):
    vlm = tiny_vlm(family)
    pictures = [image(seed, *size) for seed, size in enumerate(sizes)]
    inputs = processor_inputs(vlm, [(pictures, QUESTION)])
    theirs, delta = vlm.model.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"],
        attention_mask=inputs["attention_mask"])
    prompt = vlm.prompt(pictures, QUESTION)
    axes, following = rope_positions(prompt.codes, prompt.images, vlm.family.positions)
    assert np.array_equal(axes, theirs[:, 0].numpy())
    assert following == len(prompt) + delta.item()
    assert len(np.unique(axes[:, -1])) == 1 and axes.max() < len(prompt) - 1, "an image shortens the count"


def test_a_box_takes_the_tokens_of_which_half_lies_inside():
    picture = encoded(3, 4)                                           # tokens of 10 x 10 pixels, numbered along rows
    assert picture.tokens_in(Box(10, 10, 30, 20)) == (5, 6)           # exactly two tokens
    assert picture.tokens_in(Box(5, 0, 10, 10)) == (0,)               # exactly half of one
    assert picture.tokens_in(Box(6, 0, 20, 10)) == (1,)               # four tenths of token 0 are too few
    assert picture.tokens_in(Box(0, 0, 40, 30)) == tuple(range(12))
    assert picture.tokens_in(Box(30, 20, 40, 30), Box(0, 0, 10, 10)) == (0, 11)
    assert picture.tokens_in(Box(-50, -50, 10, 10)) == (0,)           # what lies outside the image does not count


def test_tokens_keep_to_the_image_as_given_where_the_processor_resized_it():
    picture = encoded(2, 2, size=(200, 100))                          # tokens cover 50 x 100 pixels
    assert picture.tokens_in(Box(0, 100, 50, 200)) == (2,)
    assert picture.tokens_in(Box(50, 0, 100, 200)) == (1, 3)


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("size", [(128, 192), (112, 168), (120, 160), (100, 130)])
def test_the_tokens_of_a_box_are_those_whose_pixels_change_when_the_box_is_painted(family, size):
    vlm = tiny_vlm(family)
    before = np.full((*size, 3), 128, np.uint8)
    whole = vlm.encode_image(before)
    box = Box(32, 64, 96, 96)
    after = before.copy()
    after[box.top:box.bottom, box.left:box.right] = 255
    changed = (vlm.encode_image(after).pixels - whole.pixels).abs().flatten(1).mean(1)      # per patch
    rows, columns = whole.token_grid
    if family == "kimi_k25":                                          # patches along image rows, not token by token
        per_token = changed.view(rows, 2, columns, 2).mean((1, 3)).flatten()
    else:
        per_token = changed.view(rows * columns, 4).mean(1)
    share = per_token / (vlm.encode_image(np.full((*size, 3), 255, np.uint8)).pixels - whole.pixels).abs().max()
    clear = (share - 0.5).abs() > 0.1                                 # resizing blurs the border of the box
    painted = set(torch.nonzero((share > 0.5) & clear).flatten().tolist())
    untouched = set(torch.nonzero((share < 0.5) & clear).flatten().tolist())
    found = set(whole.tokens_in(box))
    assert painted and painted <= found and not untouched & found


def test_a_box_of_no_token_is_one_clear_line():
    with pytest.raises(InputError) as error:
        encoded(3, 4).tokens_in(Box(12, 12, 15, 15))
    assert str(error.value) == (
        "region (12, 12, 15, 15): covers no image token: in the 40x30 image one token is 10x10 px and none has half of "
        "it inside; give a larger box, or raise max_pixels so that tokens cover less")


def test_one_empty_box_among_good_ones_is_refused_too():
    with refused(r"^region \(12, 12, 15, 15\): covers no image token"):
        encoded(3, 4).with_region(Box(0, 0, 20, 20), Box(12, 12, 15, 15))


def test_the_codes_of_the_second_image_tell_its_region_apart():
    picture = encoded(1, 3).with_region(Box(10, 0, 20, 10))
    assert list(picture.codes(0)) == [IMAGE, IMAGE + 1, IMAGE]
    assert list(picture.codes(1)) == [IMAGE + 2, IMAGE + 3, IMAGE + 2]


def test_what_is_said_after_a_prompt_counts_as_generated_and_the_prompt_stays_as_it_is():
    row = sequence(2, encoded(1, 2), 3)
    longer = row.then([90, 91])
    assert longer.ids == (*row.ids, 90, 91) and list(longer.codes[-2:]) == [GENERATED] * 2
    assert (len(row), row.n_prompt, longer.n_prompt, longer.image_end) == (7, 7, 7, 4)
    assert row.then([5], QUESTION_CODE).n_prompt == 8


def test_a_cut_lies_between_the_last_image_and_the_end():
    row = sequence(2, encoded(1, 2), 3)
    assert row.cut(4).ids == (0, 1, 2, 3) and row.cut(7).ids == row.ids
    for n_tokens in (3, 8, -1):
        with refused(rf"^cut at token {n_tokens}: a sequence of 7 tokens whose last image ends at token 4 "):
            row.cut(n_tokens)


def test_other_images_take_the_places_in_order_and_bring_their_regions():
    row = sequence(1, encoded(1, 2), 1, encoded(2, 1), 1)
    other = row.with_images([encoded(1, 2).with_region(Box(10, 0, 20, 10)),
                             encoded(2, 1).with_region(Box(0, 0, 10, 10))])
    assert other.ids == row.ids
    assert list(other.codes) == [TEMPLATE, IMAGE, IMAGE + 1, TEMPLATE, IMAGE + 3, IMAGE + 2, TEMPLATE]
    assert list(other.with_images(row.images).codes) == list(row.codes)


def test_a_grid_turned_on_its_side_is_refused_although_its_tokens_are_as_many():
    row = sequence(1, encoded(2, 3), 1)
    with pytest.raises(InputError) as error:
        row.with_images([encoded(3, 2)])
    assert str(error.value) == (
        "image swap: image 1 is 30x20 (patch grid 4x6, 6 tokens), its replacement 20x30 (patch grid 6x4, 6 tokens); "
        "expected equal sizes: give images of one size, or encode them with encode_pair(..., resize=True)")


def test_fewer_images_than_places_are_refused():
    row = sequence(1, encoded(1, 2), 1, encoded(2, 1))
    with refused(r"^image swap: the sequence has 2 image\(s\), 1 given; give one for each$"):
        row.with_images([encoded(1, 2)])


def test_the_codes_are_distinct_and_images_come_last():
    codes = (SINK, TEMPLATE, QUESTION_CODE, GENERATED, IMAGE)
    assert len(set(codes)) == 5 and max(codes) == IMAGE
