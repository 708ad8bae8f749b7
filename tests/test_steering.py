"""Steered attention against a mask built by hand under eager attention, and against its closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import probing
import pytest
import torch
from probing import (
    ALL,
    HYBRIDS,
    N_HEADS,
    QUESTION,
    eager_text,
    flash_text,
    image,
    n_attention_layers,
    plain_generate,
    processor_inputs,
    refused,
    tiny_vlm,
)

from probes.attention import recording_image_attention, rescore
from probes.decode import decode
from probes.interpose import interposed, text_attention_modules
from probes.layout import IMAGE
from probes.prefix import extend, prefill
from probes.steering import steering_image_attention
from rekey.errors import InputError
from rekey.geometry import Box

LOG3 = math.log(3)
STATIC = dict(cache_implementation="static", disable_compile=True)
ROWS = [([image(0)], QUESTION), ([image(1, 60, 200)], "Where?"),
        ([image(2, 64, 64), image(3, 90, 64)], "Left or right of it, above or below?")]
BOX = Box(0, 0, 70, 60)
N = 8


def prompts_of(vlm, rows=ROWS) -> list:
    return [vlm.prompt([vlm.encode_image(picture, BOX) for picture in images], question) for images, question in rows]


def layers_of(vlm) -> list[int]:
    return [3] if vlm.family.hybrid else [1, 2]


@contextmanager
def biased_masks(vlm, bias: torch.Tensor, layers: list[int], heads: list[int],
                 steps: Callable[[int], bool]) -> Iterator[None]:
    """Under eager attention: `bias` (B, T) is added to the 4D mask that chosen layers get, in the last query row.

    Step 0 is the forward pass over the prompt, step t that of the t-th token.
    """
    modules, step, hooks = text_attention_modules(vlm.model), [-1], []

    def count(*_) -> None:
        step[0] += 1

    def add(module, args, kwargs):
        if steps(step[0]):
            mask = kwargs["attention_mask"]
            mask = mask.expand(-1, N_HEADS, -1, -1).clone()
            mask[:, heads, -1] += bias[:, None, :mask.shape[-1]]
            kwargs["attention_mask"] = mask
        return args, kwargs

    with eager_text(vlm.model):
        hooks.append(vlm.model.register_forward_pre_hook(count))
        hooks += [modules[layer].register_forward_pre_hook(add, with_kwargs=True) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def logits_of(vlm, inputs) -> tuple[torch.Tensor, list[list[int]]]:
    out = plain_generate(vlm, inputs, N, output_logits=True)
    return torch.stack(out.logits, 1), out.sequences[:, inputs["input_ids"].shape[1]:].tolist()


def step_logits(vlm, prompts, n=N) -> tuple[torch.Tensor, list]:
    """(B, n, V) logits of greedy decoding, and what was said."""
    state, seen = prefill(vlm, prompts), []
    seen.append(state.logits)
    hook = vlm.model.register_forward_hook(lambda _, __, output: seen.append(output.logits[:, -1]))
    try:
        said = decode(vlm, state, n, stop_ids=())
    finally:
        hook.remove()
    return torch.stack(seen, 1), said


@pytest.mark.parametrize("family, heads", [*((family, [1, 2]) for family in ALL), ("qwen2_vl", None),
                                           ("qwen3_5", None)])
def test_a_log_bias_is_an_additive_mask_on_image_keys_of_chosen_layers_heads_and_steps(family, heads):
    vlm = tiny_vlm(family)
    prompts, inputs, layers = prompts_of(vlm), processor_inputs(vlm, ROWS), layers_of(vlm)
    on_image = (inputs["input_ids"] == vlm.model.config.image_token_id).float()
    bias = torch.nn.functional.pad(LOG3 * on_image, (0, N))
    with biased_masks(vlm, bias, layers, list(range(N_HEADS)) if heads is None else heads, range(2, 6).__contains__):
        expected, words = logits_of(vlm, inputs)
    with steering_image_attention(vlm, log_bias=LOG3, layers=layers, heads=heads, steps=range(2, 6)):
        found, said = step_logits(vlm, prompts)
    plain, _ = step_logits(vlm, prompts)
    assert [list(out.ids) for out in said] == words
    assert (found - expected).abs().max() < (5e-4 if vlm.family.hybrid else 1e-4)
    assert torch.equal(found[:, :2], plain[:, :2]), "steps before the bias are untouched to the bit"
    assert (found[:, 2] - plain[:, 2]).abs().max() > 0.02, "and the first biased one is not"


@pytest.mark.parametrize("family", ALL)
def test_in_the_first_steered_layer_the_mass_follows_the_closed_form_for_each_head(family):
    vlm = tiny_vlm(family)
    prompts, first = prompts_of(vlm), layers_of(vlm)[0]
    with steering_image_attention(vlm, log_bias=LOG3, layers=layers_of(vlm), heads=[0, 3]), \
            recording_image_attention(vlm) as trace:
        decode(vlm, prefill(vlm, prompts), N)
    for sequence in trace.sequences():
        at = sequence.layers.index(first)
        plain, steered = sequence.before_steering[at], sequence.scores[at]
        assert np.abs(steered[[0, 3]] - 3 * plain[[0, 3]] / (1 - plain[[0, 3]] + 3 * plain[[0, 3]])).max() < 1e-5
        assert np.abs(steered[[1, 2]] - plain[[1, 2]]).max() < 1e-5
        assert np.abs(steered[[0, 3]] - plain[[0, 3]]).max() > 0.05
        everything = sequence.scores + sequence.sink + sequence.template + sequence.question + sequence.generated
        assert np.abs(everything - 1).max() < 1e-5
        below = sequence.scores[:at] - sequence.before_steering[:at]
        assert np.abs(below).max(initial=0) < 1e-6, "below it nothing is steered"


@pytest.mark.parametrize("family", ALL)
def test_what_was_recorded_before_steering_is_the_plain_mass_at_the_first_step(family):
    vlm = tiny_vlm(family)
    prompt, first = prompts_of(vlm)[0], layers_of(vlm)[0]
    with recording_image_attention(vlm, layers=[first]) as plain:
        vlm.generate([prompt], 1)
    with recording_image_attention(vlm, layers=[first]) as trace, \
            steering_image_attention(vlm, log_bias=2.0, layers=layers_of(vlm)):
        vlm.generate([prompt], 1)
    assert plain.sequences()[0].before_steering is None
    assert np.abs(trace.sequences()[0].before_steering - plain.scores).max() < 1e-6
    assert np.abs(trace.scores - plain.scores).max() > 0.05


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "qwen3_5", "kimi_k25"])
def test_a_gain_adds_its_share_of_each_logits_size(family):
    # By hand, from the queries and keys that the kernel of an unsteered run gets in the first steered layer.
    vlm = tiny_vlm(family)
    prompt, layer = prompts_of(vlm)[0], layers_of(vlm)[0]
    module, seen = text_attention_modules(vlm.model)[layer], []
    def look(call, proceed):
        keys = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], 1)
        seen.append((call.query[0, :, -1:] @ keys[0].transpose(1, 2))[:, 0] * call.scaling)
        return proceed()

    with interposed([module], look):
        prefill(vlm, [prompt])
    with steering_image_attention(vlm, gain=0.5, layers=[layer], heads=[0, 2]), \
            recording_image_attention(vlm, layers=[layer]) as trace:
        prefill(vlm, [prompt])
    scores, on_image = seen[0], torch.tensor([code >= IMAGE for code in prompt.codes])
    raised = scores + 0.5 * scores.abs() * on_image
    steered = torch.where(torch.tensor([True, False, True, False])[:, None], raised, scores)
    expected = steered.softmax(-1)[:, on_image].sum(-1)
    assert np.abs(trace.scores[0, :, 0] - expected.numpy()).max() < 1e-5
    assert np.abs(trace.scores[0, 0, 0] - scores.softmax(-1)[0, on_image].sum().item()) > 1e-3


def test_a_region_is_steered_alone():
    vlm = tiny_vlm("qwen3_vl")
    prompt = prompts_of(vlm)[2]
    assert 0 < sum(len(picture.region) for picture in prompt.images) < prompt.n_image_tokens
    with recording_image_attention(vlm, layers=[1]) as plain:
        vlm.generate([prompt], 1)
    with steering_image_attention(vlm, log_bias=LOG3, layers=[1], region=True), \
            recording_image_attention(vlm, layers=[1]) as trace:
        vlm.generate([prompt], 1)
    before, after = plain.sequences()[0], trace.sequences()[0]
    share = before.region / (1 - before.region + 3 * before.region)
    assert np.abs(after.region - 3 * share).max() < 1e-5
    rest = (before.scores - before.region) / (1 - before.region + 3 * before.region)
    assert np.abs((after.scores - after.region) - rest).max() < 1e-5


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("form", [dict(log_bias=0.0), dict(gain=0.0)], ids=["log_bias 0", "gain 0"])
def test_steering_by_nothing_changes_nothing_beyond_rounding(family, form):
    vlm = tiny_vlm(family)
    prompts = prompts_of(vlm)
    words = [vlm.encode(" wait, check the left side")] * 3
    plain = extend(vlm, prefill(vlm, prompts), words).logits
    with steering_image_attention(vlm, **form):
        steered = extend(vlm, prefill(vlm, prompts), words).logits
    assert (steered - plain).abs().max() < (1e-4 if vlm.family.hybrid else 2e-5)
    assert not torch.equal(steered, plain), "the rows did go through the explicit softmax"


@pytest.mark.parametrize("family", ALL)
def test_reading_text_at_once_is_steered_as_reading_it_token_by_token(family):
    vlm = tiny_vlm(family)
    prompts = prompts_of(vlm)[:1]
    words = vlm.encode(" wait, check the left side again")
    with steering_image_attention(vlm, log_bias=1.0, steps=lambda step: step % 2 == 1):
        at_once = extend(vlm, prefill(vlm, prompts), [words]).logits
        state = prefill(vlm, prompts)
        for word in words:
            state = extend(vlm, state, [[word]])
        together = prefill(vlm, [prompts[0].then(words)]).logits
        steps = prefill(vlm, prompts).logits, prefill(vlm, prompts).logits
    assert (at_once - state.logits).abs().max() < 1e-4 and (together - state.logits).abs().max() < 1e-4
    assert torch.equal(steps[0], prefill(vlm, prompts).logits), "step 0 is even: not steered"
    assert (at_once - extend(vlm, prefill(vlm, prompts), [words]).logits).abs().max() > 0.02


@pytest.mark.parametrize("steps", [range(1, 3), {1, 2}, lambda step: step in (1, 2)], ids=["range", "set", "function"])
def test_steps_can_be_given_in_three_ways(steps):
    vlm = tiny_vlm("qwen3_vl")
    prompts = prompts_of(vlm)[:1]
    with steering_image_attention(vlm, log_bias=LOG3, steps=steps), recording_image_attention(vlm) as trace:
        decode(vlm, prefill(vlm, prompts), 6, stop_ids=())
    moved = np.abs(trace.sequences()[0].scores - trace.sequences()[0].before_steering).max((0, 1)) > 0
    assert moved.tolist() == [False, True, True, False, False, False]


def test_a_generator_of_steps_serves_every_layer_and_pass():
    vlm = tiny_vlm("qwen3_vl")
    prompts, found = prompts_of(vlm), []
    for steps in (range(1, 3), (step for step in (1, 2))):
        with steering_image_attention(vlm, log_bias=LOG3, steps=steps), recording_image_attention(vlm) as trace:
            vlm.generate(prompts, 6)
        found.append(trace.scores)
    assert np.array_equal(*found, equal_nan=True)


@pytest.mark.parametrize("given, line", [
    (dict(steps=2), "steps: got 2; expected a list of whole numbers"),
    (dict(steps="early"), "steps: got 'early'; expected a list of whole numbers"),
    (dict(heads=0), "heads: got 0; expected a list of whole numbers"),
    (dict(heads=[]), r"heads \[\]: expected some of the model's 4, counted from 0"),
    (dict(heads=[0.5]), r"heads: got \[0.5\]; expected a list of whole numbers"),
    (dict(layers=3), "layers: got 3; expected a list of whole numbers"),
    (dict(layers=[]), r"layers \[\]: expected some of \[0, 1, 2, 3\]")], ids=str)
def test_what_chooses_nothing_is_one_clear_line(given, line):
    with refused(f"^{line}"), steering_image_attention(tiny_vlm("qwen3_vl"), log_bias=1.0, **given):
        pass


def test_rescored_text_is_steered_as_it_was_decoded():
    vlm = tiny_vlm("qwen3_vl")
    prompt = prompts_of(vlm)[0]
    with steering_image_attention(vlm, log_bias=LOG3, layers=[1, 2]):
        with recording_image_attention(vlm) as trace:
            said = vlm.generate([prompt], N)[0].token_ids
        again = rescore(vlm, prompt, said)
    assert np.abs(again.scores - trace.scores).max() < 1e-5
    assert np.abs(again.before_steering - trace.sequences()[0].before_steering).max() < 1e-5


def test_more_rows_than_a_block_are_steered_alike(monkeypatch):
    vlm = tiny_vlm("qwen3_vl")
    prompt, words = prompts_of(vlm)[0], vlm.encode(" red blue green left right above below one two three") * 2
    with steering_image_attention(vlm, log_bias=1.0):
        whole = rescore(vlm, prompt, words)
        monkeypatch.setattr("probes.steering.LOGITS_PER_BLOCK", 3 * 4 * (len(prompt) + len(words)))
        blocks = rescore(vlm, prompt, words)
    assert np.abs(whole.scores - blocks.scores).max() < 1e-5
    assert np.abs(whole.before_steering - whole.scores).max() > 0.05


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "qwen3_5", "kimi_k25"])
def test_under_flash_attention_steering_is_that_under_sdpa(family):
    vlm = tiny_vlm(family)
    prompts, words = prompts_of(vlm), [vlm.encode(" wait, check the left side")] * 3

    def steered() -> tuple[torch.Tensor, list, np.ndarray]:
        with steering_image_attention(vlm, log_bias=LOG3, layers=layers_of(vlm)), \
                recording_image_attention(vlm) as trace:
            state = extend(vlm, prefill(vlm, prompts), words)
            said = decode(vlm, state, 6)
        return state.logits, said, trace.scores

    sdpa = steered()
    with flash_text(vlm) as calls:
        flash = steered()
    assert len(calls) >= 7 * n_attention_layers(vlm)
    assert (flash[0] - sdpa[0]).abs().max() < 1e-4 and flash[1] == sdpa[1]
    assert np.abs(flash[2] - sdpa[2]).max() < 1e-5


def generated_under_steering(vlm, rows: list, **options) -> tuple[list, torch.Tensor, np.ndarray, np.ndarray]:
    """Words, logits and recorded masses with and before steering of a steered `generate` by transformers."""
    with steering_image_attention(vlm, log_bias=LOG3, layers=layers_of(vlm)), recording_image_attention(vlm) as trace:
        out = plain_generate(vlm, processor_inputs(vlm, rows), N, output_logits=True, **options)
    before = np.stack([sequence.before_steering for sequence in trace.sequences()])
    return out.sequences[:, -N:].tolist(), torch.stack(out.logits), trace.scores, before


@pytest.mark.parametrize("kernel, rows", [("sdpa", ROWS[:1]), ("sdpa", ROWS), ("flash", ROWS)],
                         ids=["sdpa alone", "sdpa padded", "flash padded"])
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "kimi_k25"])
def test_in_a_static_cache_steering_is_that_in_a_growing_one(family, kernel, rows, monkeypatch):
    """Without padding FlashAttention-2 has no mask and reads the empty room itself: that is not compared."""
    vlm = tiny_vlm(family)
    growing = generated_under_steering(vlm, rows)
    monkeypatch.setattr(probing, "flash_stand_in", probing.up_to_the_mask(probing.flash_stand_in))
    with flash_text(vlm) if kernel == "flash" else nullcontext():
        static = generated_under_steering(vlm, rows, **STATIC)
    assert static[0] == growing[0]
    assert (static[1] - growing[1]).abs().max() < 1e-4
    for ours, expected in zip(static[2:], growing[2:]):
        assert np.abs(ours - expected).max() < 1e-5
    assert np.abs(static[2] - static[3]).max() > 0.05, "nothing was steered"


def test_long_text_that_is_steered_at_once_leaves_no_weights_on_single_tokens():
    """Of 600 rows, their masses on groups are kept: H x R x T weights of every layer would fill a GPU."""
    vlm = tiny_vlm("qwen3_vl")
    prompt = prompts_of(vlm)[0].then([5] * 600)
    kept = []

    def look(call, proceed):
        result = proceed()
        kept.append([tensor for tensor in vars(call.steered).values() if isinstance(tensor, torch.Tensor)])
        return result

    modules = text_attention_modules(vlm.model)
    with steering_image_attention(vlm, log_bias=1.0, layers=[0, 1]), \
            interposed([modules[0], modules[1]], look, first=True):
        prefill(vlm, [prompt])
    n_codes = IMAGE + 2
    assert len(kept) == 2
    for tensors in kept:
        assert sorted(tuple(tensor.shape) for tensor in tensors) == [(1, N_HEADS, 601, n_codes), (1, 601)]
        assert sum(t.untyped_storage().nbytes() for t in tensors) <= 601 * (4 * N_HEADS * n_codes + 1)


def test_steering_ends_with_the_block_also_by_an_exception():
    vlm = tiny_vlm("qwen3_vl")
    prompts = prompts_of(vlm)[:1]
    plain = prefill(vlm, prompts).logits
    with pytest.raises(KeyboardInterrupt), steering_image_attention(vlm, log_bias=1.0):
        assert not torch.equal(prefill(vlm, prompts).logits, plain)
        raise KeyboardInterrupt
    assert torch.equal(prefill(vlm, prompts).logits, plain)


def test_two_biases_on_different_layers_and_heads_hold_together():
    vlm = tiny_vlm("qwen3_vl")
    prompts = prompts_of(vlm)
    with steering_image_attention(vlm, log_bias=1.0, layers=[0, 2]):
        one = prefill(vlm, prompts).logits
        with steering_image_attention(vlm, log_bias=-1.0, layers=[1]):
            both = prefill(vlm, prompts).logits
    with steering_image_attention(vlm, log_bias=-1.0, layers=[1]), \
            steering_image_attention(vlm, log_bias=1.0, layers=[0, 2]):
        assert torch.equal(prefill(vlm, prompts).logits, both)
    assert (one - both).abs().max() > 0.02


def test_two_biases_on_one_layer_add_up_or_are_refused():
    vlm = tiny_vlm("qwen3_vl")
    prompts = prompts_of(vlm)
    with steering_image_attention(vlm, log_bias=2.0, layers=[1]):
        summed = prefill(vlm, prompts).logits
    try:
        with steering_image_attention(vlm, log_bias=1.5, layers=[1]), \
                steering_image_attention(vlm, log_bias=0.5, layers=[1]):
            twice = prefill(vlm, prompts).logits
    except InputError:
        return
    assert (summed - twice).abs().max() < 1e-4


def test_a_transformers_generate_is_steered_too_or_refused():
    vlm = tiny_vlm("qwen3_vl")
    inputs = processor_inputs(vlm, ROWS[:1])
    with steering_image_attention(vlm, log_bias=LOG3):
        expected = [list(out.ids) for out in decode(vlm, prefill(vlm, prompts_of(vlm)[:1]), N, stop_ids=())]
        try:
            _, words = logits_of(vlm, inputs)
        except InputError:
            return
    assert words == expected != logits_of(vlm, inputs)[1]


@pytest.mark.parametrize("given", [dict(), dict(log_bias=1.0, gain=1.0)])
def test_exactly_one_form_is_asked_for(given):
    with refused(r"^steering: log_bias is .* and gain is .*; give exactly one of them$"):
        with steering_image_attention(tiny_vlm("qwen3_vl"), **given):
            pass


@pytest.mark.parametrize("head", [4, -5])
def test_a_head_that_the_model_lacks_is_one_clear_line(head):
    with refused(rf"^heads \[{head}\]: expected some of the model's 4, counted from 0$"):
        with steering_image_attention(tiny_vlm("qwen3_vl"), log_bias=1.0, heads=[head]):
            pass


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_layer_without_attention_cannot_be_steered(family):
    with refused(r"^layers \[1\]: expected some of \[3\]"):
        with steering_image_attention(tiny_vlm(family), log_bias=1.0, layers=[1]):
            pass


@pytest.mark.parametrize("strength", [{"log_bias": float("nan")}, {"gain": float("inf")}, {"log_bias": "1"}], ids=str)
def test_a_strength_that_is_no_finite_number_is_refused(strength):
    with refused("^steering: log_bias or gain is .*; expected a finite number$"):
        with steering_image_attention(tiny_vlm("qwen3_vl"), **strength):
            pass
