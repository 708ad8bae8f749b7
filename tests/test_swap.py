"""Swapping the image under finished text: null swaps change nothing, and the three regimes are three experiments."""

from __future__ import annotations

import pytest
import torch
from probing import (
    ALL,
    CROPPABLE,
    HYBRIDS,
    QUESTION,
    continued,
    image,
    plain_logits,
    poison,
    processor_inputs,
    refused,
    tiny_vlm,
)
from transformers import DynamicCache

from probes.decode import decode
from probes.layout import IMAGE
from probes.prefix import extend, prefill, stack, with_logits
from probes.swap import check_regime, swap
from rekey.errors import InputError
from rekey.geometry import Box

SAID = " it is red or blue so let me look again at the figure"
TRIGGER = " wait, check the image"


def read(family: str, seed: int = 0):
    vlm = tiny_vlm(family)
    prompt = vlm.prompt(image(seed), QUESTION).then(vlm.encode(SAID))
    return vlm, prompt, prefill(vlm, [prompt])


def farthest(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item()


@pytest.mark.parametrize("family", ALL)
def test_swapping_in_the_same_image_reproduces_the_uninterrupted_forty_tokens_in_every_regime(family):
    vlm = tiny_vlm(family)
    prompt = vlm.prompt(image(0), QUESTION)
    whole = decode(vlm, prefill(vlm, [prompt]), 40, stop_ids=())[0].ids
    state = prefill(vlm, [prompt.then(whole[:20])])
    poison(vlm)
    rows = [with_logits(vlm, swap(vlm, state, [vlm.encode_image(image(0))], regime)) for regime in vlm.family.regimes]
    assert len(rows) == (2 if family in HYBRIDS else 3)
    assert [decode(vlm, row, 20, stop_ids=())[0].ids for row in rows] == [whole[20:]] * len(rows)


@pytest.mark.parametrize("family", ALL)
def test_recompute_reads_all_text_under_the_new_image_as_a_plain_forward_pass_does(family):
    vlm, prompt, state = read(family)
    poison(vlm)
    swapped = swap(vlm, state, [vlm.encode_image(image(9))], "recompute")
    inputs = continued(processor_inputs(vlm, [([image(9)], QUESTION)]), vlm.encode(SAID))
    assert list(swapped.rows[0].ids) == inputs["input_ids"][0].tolist() == list(prompt.ids)
    assert farthest(swapped.logits[0], plain_logits(vlm, inputs)[0, -1]) < 1e-4
    assert farthest(swapped.logits, state.logits) > 0.05


@pytest.mark.parametrize("family", CROPPABLE)
def test_splice_is_the_old_texts_keys_with_the_new_images_keys_put_together_by_hand(family):
    vlm, prompt, state = read(family)
    inputs = {seed: continued(processor_inputs(vlm, [([image(seed)], QUESTION)]), vlm.encode(SAID)) for seed in (0, 9)}
    caches = {}
    for seed in (0, 9):                                     # two full prefills by transformers alone
        plain_logits(vlm, inputs[seed])
        with torch.no_grad():
            caches[seed] = vlm.model(**inputs[seed], cache=DynamicCache(config=vlm.model.config), use_cache=True).cache
    on_image = inputs[0]["input_ids"][0] == vlm.model.config.image_token_id
    for old, new in zip(caches[0].layers, caches[9].layers):
        old.keys = torch.where(on_image[:, None], new.keys, old.keys)
        old.values = torch.where(on_image[:, None], new.values, old.values)
    trigger = torch.tensor([vlm.encode(TRIGGER)])
    positions = state.following.item() + torch.arange(trigger.shape[1])[None]
    if vlm.family.positions == "mrope":
        positions = positions.expand(3, 1, -1)
    with torch.no_grad():
        expected = vlm.model(input_ids=trigger, position_ids=positions, cache=caches[0], use_cache=True).logits[0, -1]
    spliced = swap(vlm, state, [vlm.encode_image(image(9))], "splice")
    assert farthest(extend(vlm, spliced, trigger.tolist()).logits[0], expected) < 1e-4


@pytest.mark.parametrize("family", ALL)
def test_under_another_image_the_regimes_are_distinct_experiments(family):
    vlm, prompt, state = read(family)
    other = vlm.encode_image(image(9))
    logits = {regime: extend(vlm, swap(vlm, state, [other], regime), [vlm.encode(TRIGGER)]).logits
              for regime in vlm.family.regimes}
    names = sorted(logits)
    assert len(names) == (2 if vlm.family.hybrid else 3)
    for a in names:
        for b in names:
            assert a == b or farthest(logits[a], logits[b]) > 0.05
    assert torch.equal(logits["none"], extend(vlm, state, [vlm.encode(TRIGGER)]).logits)


@pytest.mark.parametrize("family", ALL)
def test_a_swap_leaves_the_given_state_as_it_is(family):
    vlm, prompt, state = read(family)
    before = decode(vlm, state, 6), extend(vlm, state, [vlm.encode(TRIGGER)]).logits
    for regime in vlm.family.regimes:
        decode(vlm, swap(vlm, state, [vlm.encode_image(image(9))], regime), 3)
    assert decode(vlm, state, 6) == before[0]
    assert torch.equal(extend(vlm, state, [vlm.encode(TRIGGER)]).logits, before[1])
    assert state.rows[0].images[0] is prompt.images[0]


@pytest.mark.parametrize("family", CROPPABLE)
def test_swapping_there_and_back_restores_what_the_text_would_be_followed_by(family):
    vlm, prompt, state = read(family)
    there = swap(vlm, state, [vlm.encode_image(image(9))], "splice")
    back = swap(vlm, there, list(prompt.images), "splice")
    assert farthest(with_logits(vlm, back).logits, state.logits) < 1e-4
    assert farthest(with_logits(vlm, there).logits, state.logits) > 0.05


@pytest.mark.parametrize("family", CROPPABLE)
@pytest.mark.parametrize("regime", ["recompute", "splice"])
def test_of_two_images_one_can_be_swapped(family, regime):
    vlm = tiny_vlm(family)
    first, second, other = map(vlm.encode_image, (image(0, 64, 96), image(1, 96, 64), image(2, 96, 64)))
    prompt = vlm.prompt([first, second], QUESTION).then(vlm.encode(SAID))
    state = prefill(vlm, [prompt])
    null = with_logits(vlm, swap(vlm, state, [first, second], regime))
    assert farthest(null.logits, state.logits) < 1e-4
    swapped = with_logits(vlm, swap(vlm, state, [first, other], regime))
    assert farthest(swapped.logits, state.logits) > 0.05
    if regime == "recompute":
        again = prefill(vlm, [vlm.prompt([first, other], QUESTION).then(vlm.encode(SAID))])
        assert farthest(swapped.logits, again.logits) < 1e-4


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("regime", ["recompute", "none", "splice"])
def test_an_image_turned_on_its_side_is_refused_in_every_regime(family, regime):
    vlm, prompt, state = read(family)
    if regime not in vlm.family.regimes:
        pytest.skip("this family refuses the regime itself")
    turned = vlm.encode_image(image(9).transpose(1, 0, 2).copy())
    assert turned.n_tokens == prompt.n_image_tokens
    with refused(r"^image swap: image 1 is 160x120 \(patch .*\), its replacement 120x160 .*expected equal sizes"):
        swap(vlm, state, [turned], regime)


@pytest.mark.parametrize("family", HYBRIDS)
def test_hybrids_refuse_splice_with_the_reason(family):
    vlm, prompt, state = read(family)
    with pytest.raises(InputError) as error:
        swap(vlm, state, list(prompt.images), "splice")
    assert str(error.value) == (
        f"regime splice: has no meaning for {vlm.family.title}: most of its layers keep one running state in which the "
        "old image stays, and only the few attention layers have image keys to exchange; use recompute")


def test_a_sliding_window_refuses_splice_with_the_reason_and_recomputes():
    vlm = tiny_vlm("qwen2_5_vl", use_sliding_window=True, sliding_window=8)
    prompt = vlm.prompt(image(0), QUESTION)
    with pytest.raises(InputError) as error:
        check_regime(vlm, "splice")
    assert str(error.value).startswith("regime splice: ") and "sliding" in str(error.value)
    whole = decode(vlm, prefill(vlm, [prompt]), 20, stop_ids=())[0].ids
    state = prefill(vlm, [prompt.then(whole[:9])])
    assert decode(vlm, swap(vlm, state, list(prompt.images), "recompute"), 11, stop_ids=())[0].ids == whole[9:]


def test_an_unknown_regime_names_the_three():
    with refused(r"^regime 'replace': expected one of recompute, splice, none$"):
        check_regime(tiny_vlm("qwen3_vl"), "replace")


def test_rows_are_swapped_one_at_a_time_and_then_stacked():
    vlm, prompt, state = read("qwen3_vl")
    other = vlm.encode_image(image(9))
    with refused(r"^swap: a state of 2 rows; swap rows one at a time, then stack them$"):
        swap(vlm, stack([state, state]), [other], "recompute")
    rows = [with_logits(vlm, swap(vlm, state, [other], regime)) for regime in ("recompute", "splice", "none")]
    assert decode(vlm, stack(rows), 10) == [decode(vlm, row, 10)[0] for row in rows]


@pytest.mark.parametrize("regime", ["recompute", "splice"])
def test_the_new_images_region_is_what_is_watched_afterwards(regime):
    vlm, prompt, state = read("qwen3_vl")
    other = vlm.encode_image(image(9), region=Box(0, 0, 80, 60))
    assert other.region and not prompt.images[0].region
    swapped = swap(vlm, state, [other], regime)
    inside = [code == IMAGE + 1 for code in swapped.rows[0].codes]
    assert sum(inside) == len(other.region)
    assert [code == IMAGE + 1 for code in swapped.codes[0].tolist()] == inside


def test_a_long_text_is_reread_in_chunks_to_the_same_end():
    vlm, prompt, state = read("qwen3_vl")
    other = vlm.encode_image(image(9))
    chunked = swap(vlm, state, [other], "recompute", chunk_tokens=5)
    assert farthest(chunked.logits, swap(vlm, state, [other], "recompute").logits) < 1e-4
