"""The self-check passes where everything is right, and each of its checks fails when what it guards is broken."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from probing import tiny_vlm
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import probes.selfcheck as selfcheck_module
from probes import decode as decode_module
from probes import prefix, recorder
from probes import swap as swap_module
from probes.decode import decode
from probes.encoding import Prompter
from probes.interpose import interposed, text_attention_modules
from probes.layout import EncodedImage, Prompt
from probes.prefix import fork, prefill
from probes.reference import SoftmaxMasses, attention_set_to, drawing, own_inputs
from probes.selfcheck import Check, checks, selfcheck
from probes.steering import steering_image_attention
from probes.subject import HALF_LOGIT_LIMITS, LARGEST_LOGIT_LIMIT, MARGIN, Subject
from probes.template import template_facts
from probes.tiny_text import chat_template
from probes.vlm import LocalVLM, load_vlm


@pytest.fixture
def qwen() -> LocalVLM:
    return tiny_vlm("qwen3_vl")


@pytest.fixture
def hybrid() -> LocalVLM:
    return tiny_vlm("qwen3_5")


@pytest.fixture
def half() -> LocalVLM:
    torch.set_num_threads(1)
    return load_vlm("tiny:qwen3_vl", dtype="bfloat16", device_map="cpu", attention="sdpa")


def one(vlm: LocalVLM, name: str) -> Check:
    found = selfcheck(vlm, only=[name])
    assert len(found) == 1, f"one check is called {name!r}"
    return found[0]


def by_name(found: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in found}


# What is right passes.


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5", "ernie4_5_vl_moe", "kimi_k25"])
def test_nothing_fails_on_a_model_that_is_right(family):
    vlm = tiny_vlm(family)
    found = by_name(selfcheck(vlm))
    assert not [check for check in found.values() if check.failed]
    assert found["sdpa = flash_attention_2"].status == "skipped"
    assert (found["positions = the model's own"].status == "skipped") == (vlm.family.positions == "1d")
    assert ("same image back, splice" in found) == ("splice" in vlm.family.regimes)
    judged = [check for check in found.values() if check.status == "ok"]
    assert len(judged) == 11 + len(vlm.family.regimes) - (vlm.family.positions == "1d")


def test_nothing_fails_in_half_precision_and_tokens_are_shown_but_not_judged(half):
    found = selfcheck(half)
    assert not [check for check in found if check.failed]
    batch = by_name(found)["padded batch of 3 = one by one"]
    assert "tokens" in batch.measured and "tokens" not in batch.limit
    assert by_name(found)["recording changes nothing"].measured.startswith("0,"), "to the bit, in any precision"


def test_the_limit_in_half_precision_follows_the_rounding_of_the_model(half):
    least = HALF_LOGIT_LIMITS[torch.bfloat16]
    for rounding, limit in ((0.001, least), (0.03, MARGIN * 0.03), (0.4, LARGEST_LOGIT_LIMIT)):
        subject = Subject(half)
        subject.rounding = rounding
        assert subject.logit_limit == pytest.approx(limit)
        assert f"{limit:.1e}" in subject.limit_rule


def test_a_model_that_ends_its_answer_early_is_checked_all_the_same(qwen, monkeypatch):
    said = qwen.generate([Subject(qwen).prompt], 8)[0].token_ids
    monkeypatch.setattr(qwen, "stop_token_ids", (said[2],))
    monkeypatch.setattr(qwen.model.generation_config, "eos_token_id", said[2])
    n_said = said.index(said[2]) + 1
    found = by_name(selfcheck(qwen))
    assert not [check for check in found.values() if check.failed]
    assert f"tokens {n_said}/{n_said}" in found["decoding = the model's generate"].measured
    assert "tokens 8/8" in found["same image back, splice"].measured


def test_the_model_is_left_as_it_was_found(hybrid):
    def kernels() -> list[str]:
        return [getattr(hybrid.model.config, part)._attn_implementation for part in ("text_config", "vision_config")]

    def hooks() -> int:
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in hybrid.model.modules())

    entries, before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping), hooks()
    list(zip(range(6), checks(hybrid)))                       # eager has run, and the rest never does
    assert kernels() == ["sdpa", "sdpa"]
    assert ALL_ATTENTION_FUNCTIONS._local_mapping == entries
    assert hooks() == before


def test_the_softmax_of_the_reference_equals_a_sum_by_hand(qwen):
    prompt = Subject(qwen).prompt
    kept = {}

    def keep(call, proceed):
        kept[call.layer] = (call.query[0, :, -1], call.key[0])
        return proceed()

    modules = text_attention_modules(qwen.model)
    masses = SoftmaxMasses([prompt.ids], qwen.model.config.image_token_id)
    with interposed(modules.values(), keep), interposed(modules.values(), masses):
        prefill(qwen, [prompt])
    layer, head = 1, 3
    query, keys = kept[layer][0][head], kept[layer][1][head // 2]              # 4 query heads on 2 key heads
    weights = np.exp((keys @ query * query.shape[-1] ** -0.5).numpy().astype(float))
    by_hand = sum(weights[i] for i, token in enumerate(prompt.ids) if token == qwen.model.config.image_token_id)
    assert masses.array()[0, layer, head, 0] == pytest.approx(by_hand / weights.sum(), abs=1e-6)


def test_the_drawings_differ():
    pictures = [drawing(64, 96, number) for number in range(4)]
    assert all((a != b).any(-1).mean() > 0.1 for i, a in enumerate(pictures) for b in pictures[:i])


# What is broken fails.


def test_a_mass_that_is_off_by_a_thousandth_fails(qwen, monkeypatch):
    right = recorder._mass
    monkeypatch.setattr(recorder, "_mass", lambda *call: right(*call) * 1.001)
    assert one(qwen, "tap = softmax of the kernel's q, k").failed
    assert one(qwen, "tap = eager attention weights").failed


def test_a_tap_that_counts_padding_fails(qwen, monkeypatch):
    right = recorder._mass

    def without_mask(call, columns, keys):
        call = copy.copy(call)
        call.mask = None
        return right(call, columns, keys)

    monkeypatch.setattr(recorder, "_mass", without_mask)
    assert one(qwen, "tap = softmax of the kernel's q, k").failed
    assert one(qwen, "tap = eager attention weights").status == "ok", "one row alone has no padding"


def test_a_mass_that_is_off_by_a_tenth_fails_in_half_precision_too(half, monkeypatch):
    right = recorder._mass
    monkeypatch.setattr(recorder, "_mass", lambda *call: right(*call) * 1.1)
    assert one(half, "tap = softmax of the kernel's q, k").failed
    assert one(half, "tap = eager attention weights").failed


def test_rescoring_under_another_image_fails(qwen, monkeypatch):
    other = qwen.encode_image(Subject(qwen).pixels_b)
    monkeypatch.setattr("probes.attention.prefill", lambda vlm, prompts, chunk_tokens=None: prefill(
        vlm, [prompt.with_images([other]) for prompt in prompts]))
    assert one(qwen, "rescoring = tap while decoding").failed


def test_a_tap_that_changes_the_output_fails(qwen, monkeypatch):
    right = selfcheck_module.recording_image_attention

    @contextmanager
    def meddling(vlm):
        with right(vlm) as trace, steering_image_attention(vlm, log_bias=1e-4):
            yield trace

    monkeypatch.setattr(selfcheck_module, "recording_image_attention", meddling)
    assert one(qwen, "recording changes nothing").failed


def test_a_prompt_with_another_token_fails(qwen, monkeypatch):
    right = LocalVLM.prompt

    def wrong(*args, **kwargs):
        prompt = right(*args, **kwargs)
        return Prompt((*prompt.ids[:-1], prompt.ids[-1] + 1), prompt.codes, prompt.images)

    monkeypatch.setattr(LocalVLM, "prompt", wrong)
    check = one(qwen, "prompt ids = the processor's")
    assert check.failed and check.measured != check.limit


def test_other_pixels_than_the_processor_s_fail(qwen, monkeypatch):
    right = Prompter.encode_image
    monkeypatch.setattr(Prompter, "encode_image", lambda self, image: right(self, 255 - image))
    assert one(qwen, "prompt ids = the processor's").failed


def test_positions_of_a_transposed_image_fail(qwen, monkeypatch):
    right = EncodedImage.token_grid
    monkeypatch.setattr(EncodedImage, "token_grid", property(lambda image: right.fget(image)[::-1]))
    assert one(qwen, "positions = the model's own").failed
    assert one(qwen, "fork = reading all again").failed


def test_a_gap_in_the_positions_of_decoded_tokens_fails(qwen, monkeypatch):
    right = decode_module.run
    monkeypatch.setattr(decode_module, "run",
                        lambda vlm, cache, ids, axes, *rest: right(vlm, cache, ids, axes + 3, *rest))
    assert one(qwen, "decoding = the model's generate").failed


def test_two_kernels_that_disagree_on_padding_fail(qwen, monkeypatch):
    """FlashAttention-2 has garbled padded batches before; here one that is given no mask stands in for it."""
    monkeypatch.setattr(selfcheck_module, "choose_attention", lambda *_: ("flash_attention_2", ""))

    @contextmanager
    def other_kernel(vlm, name, broken):
        def without_mask(call, proceed):
            if broken:
                call.mask = None
            return proceed()
        with interposed(text_attention_modules(vlm.model).values(), without_mask):
            yield

    for broken, status in ((False, "ok"), (True, "FAILED")):
        monkeypatch.setattr(selfcheck_module, "attention_set_to",
                            lambda vlm, name, broken=broken: other_kernel(vlm, name, broken))
        assert one(qwen, "sdpa = flash_attention_2").status == status


def test_a_fork_that_shares_a_running_state_fails(hybrid, monkeypatch):
    def shallow(cache, n_columns=None):
        new = copy.copy(cache)
        new.layers = [copy.copy(layer) for layer in cache.layers]
        return new

    monkeypatch.setattr(prefix, "fork_cache", shallow)
    assert one(hybrid, "fork = reading all again").failed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_state_that_follows_the_model_s_last_positions_fails(qwen, half, dtype):
    vlm = qwen if dtype == "float32" else half

    def forget(_, args, kwargs):
        cache = kwargs.get("cache")
        if cache is not None and cache.get_seq_length():
            kwargs["position_ids"] = None
        return args, kwargs

    hook = vlm.model.register_forward_pre_hook(forget, with_kwargs=True)
    try:
        for _ in range(2):                  # the second time it finds the model as the first has left it
            assert one(vlm, "another prompt leaves no trace").failed
        assert one(vlm, "same image back, none").failed
    finally:
        hook.remove()


@pytest.mark.parametrize("regime", ["recompute", "splice"])
def test_a_swap_that_brings_back_other_pixels_fails(qwen, monkeypatch, regime):
    def dimmed(vlm, prompts, chunk_tokens=None):
        darker = [replace(image, pixels=image.pixels * 0.9) for prompt in prompts for image in prompt.images]
        return prefill(vlm, [prompts[0].with_images(darker)])

    monkeypatch.setattr(swap_module, "prefill", dimmed)
    assert one(qwen, f"same image back, {regime}").failed
    assert one(qwen, "same image back, none").status == "ok"


def test_no_swap_that_loses_a_token_fails(qwen, monkeypatch):
    monkeypatch.setattr(swap_module, "fork", lambda state: fork(state, state.n_columns - 1))
    assert one(qwen, "same image back, none").failed


def test_a_swap_that_does_nothing_fails(hybrid, monkeypatch):
    monkeypatch.setattr(selfcheck_module, "swap", lambda vlm, state, images, regime: fork(state))
    assert one(hybrid, "same image back, recompute").status == "ok", "this alone would not be noticed"
    assert one(hybrid, "another image shows").failed


def test_a_batch_whose_padding_is_seen_fails(hybrid):
    def unmasked(_, args, kwargs):
        return args, kwargs | {"attention_mask": None}

    hook = hybrid.model.register_forward_pre_hook(unmasked, with_kwargs=True)
    try:
        assert one(hybrid, "padded batch of 3 = one by one").failed
    finally:
        hook.remove()


def test_logits_that_are_not_numbers_fail(qwen):
    def poison(_, __, output):
        output.logits = output.logits * float("nan")

    hook = qwen.model.register_forward_hook(poison)
    try:
        assert one(qwen, "fork = reading all again").failed
    finally:
        hook.remove()


def test_a_check_that_raises_has_failed_and_the_next_is_made(qwen, monkeypatch):
    def out_of_memory(*_, **__):
        raise RuntimeError("out of memory\ntried to allocate everything")

    monkeypatch.setattr(selfcheck_module, "rescore", out_of_memory)
    found = selfcheck(qwen, only=["rescoring = tap while decoding", "recording changes nothing"])
    assert [check.status for check in found] == ["FAILED", "ok"]
    assert found[0].detail == "RuntimeError: out of memory"


# Chat templates.


@pytest.mark.parametrize(("thinking", "expected"), [
    (False, ["reasoning is kept", "nothing is added", "no think block"]),
    (True, ["reasoning is DROPPED", "reasoning is CLOSED", "opens <think>"]),
])
def test_the_habits_of_a_template_are_told(qwen, monkeypatch, thinking, expected):
    monkeypatch.setattr(qwen.processor, "chat_template", chat_template("qwen3_vl", thinking))
    facts = template_facts(qwen.processor)
    assert [fact.found for fact in facts] == expected
    assert ("enable_thinking=False: an empty, closed block" in facts[2].meaning) == thinking


def test_a_template_that_refuses_a_turn_is_noted_and_fails_nothing(qwen, monkeypatch):
    refusing = chat_template("qwen3_vl", False) + "{%- if messages[-1].role == 'assistant' -%}" \
        "{{- raise_exception('only users may speak last') -}}{%- endif -%}"
    monkeypatch.setattr(qwen.processor, "chat_template", refusing)
    found = one(qwen, "template: continued answer")
    assert (found.status, found.measured) == ("note", "cannot be rendered")
    assert "only users may speak last" in found.detail


# The yardstick itself.


def test_own_inputs_go_on_with_text(qwen):
    pixels = drawing(64, 96, 0)
    short, longer = own_inputs(qwen, [pixels], "Which?"), own_inputs(qwen, [pixels], "Which?", [5, 6])
    assert longer["input_ids"][0, -2:].tolist() == [5, 6]
    assert longer["attention_mask"].all() and not longer["mm_token_type_ids"][0, -2:].any()
    assert longer["input_ids"].shape[1] == short["input_ids"].shape[1] + 2


def test_another_kernel_is_put_back_after_an_error(qwen):
    with pytest.raises(ZeroDivisionError), attention_set_to(qwen, {"text_config": "eager"}):
        assert qwen.model.config.text_config._attn_implementation == "eager"
        assert qwen.model.config.vision_config._attn_implementation == "sdpa"
        raise ZeroDivisionError
    assert qwen.model.config.text_config._attn_implementation == "sdpa"
    decode(qwen, prefill(qwen, [qwen.prompt(Image.new("RGB", (96, 64)), "Which?")]), 1)
