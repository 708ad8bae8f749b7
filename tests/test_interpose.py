"""The shadow of the attention function: right layers, order of handlers, and nothing left behind."""

from __future__ import annotations

import threading

import pytest
import torch
from probing import (
    ALL,
    QUESTION,
    flash_stand_in,
    image,
    n_attention_layers,
    processor_inputs,
    refused,
    tiny_vlm,
)
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from probes.interpose import AttentionCall, attention_kernel, interposed, text_attention_modules
from probes.prefix import prefill


def read(vlm) -> torch.Tensor:
    return prefill(vlm, [vlm.prompt(image(0), QUESTION)]).logits


@pytest.mark.parametrize("family", ALL)
def test_the_modules_found_are_the_language_models_attention_layers(family):
    vlm = tiny_vlm(family)
    modules = text_attention_modules(vlm.model)
    assert list(modules) == ([3] if vlm.family.hybrid else [0, 1, 2, 3])
    paths = {module: name for name, module in vlm.model.named_modules()}
    assert all("language_model" in paths[module] and paths[module].endswith("self_attn") for module in modules.values())
    called = []
    with interposed(modules.values(), lambda call, proceed: called.append(call.layer) or proceed()):
        read(vlm)
    assert called == list(modules) and len(called) == n_attention_layers(vlm)


@pytest.mark.parametrize("family", ALL)
def test_a_handler_sees_queries_and_keys_before_heads_are_shared_out(family):
    vlm, seen = tiny_vlm(family), []

    def look(call, proceed):
        output = proceed()
        seen.append((call.query.shape, call.key.shape, output[0].shape, call.scaling, call.module.num_key_value_groups))
        return output

    modules = text_attention_modules(vlm.model)
    n = len(vlm.prompt(image(0), QUESTION))
    with interposed(modules.values(), look):
        read(vlm)
    for query, key, output, scaling, repeats in seen:
        assert query[:3] == (1, 4, n) and key[:3] == (1, 4 // repeats, n) and output[:3] == (1, n, 4)
        assert 0 < scaling <= 1 and query[3] == key[3]


def test_handlers_nest_first_outermost_and_each_may_change_the_output():
    vlm, order = tiny_vlm("qwen3_vl"), []
    modules = [text_attention_modules(vlm.model)[2]]

    def handler(name, factor):
        def handle(call, proceed):
            order.append(f"{name} in")
            mixed, weights = proceed()
            order.append(f"{name} out")
            return mixed * factor, weights
        return handle

    plain = read(vlm)
    with interposed(modules, handler("a", 2.0)), interposed(modules, handler("b", 0.5)), \
            interposed(modules, handler("c", 1.0), first=True):
        assert torch.equal(read(vlm), plain)                         # times 2, times 1/2: nothing
    assert order == ["c in", "a in", "b in", "b out", "a out", "c out"]
    with interposed(modules, handler("a", 2.0)):
        assert not torch.equal(read(vlm), plain)
    assert torch.equal(read(vlm), plain)


def test_layers_that_nobody_watches_and_vision_towers_pass_straight_through():
    vlm, seen = tiny_vlm("qwen3_vl"), []
    modules = text_attention_modules(vlm.model)
    with interposed([modules[1]], lambda call, proceed: seen.append(call.module) or proceed()):
        read(vlm)
    assert seen == [modules[1]]


def test_the_shadow_goes_with_the_last_block_whichever_ends_first():
    vlm = tiny_vlm("qwen3_vl")
    modules = list(text_attention_modules(vlm.model).values())
    before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    calls = {"first": 0, "second": 0}

    def count(name):
        def handle(call, proceed):
            calls[name] += 1
            return proceed()
        return handle

    first, second = interposed(modules, count("first")), interposed(modules[:1], count("second"))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)                                 # not the order in which they were opened
    read(vlm)
    assert calls == {"first": 0, "second": 1}
    second.__exit__(None, None, None)
    assert dict(ALL_ATTENTION_FUNCTIONS._local_mapping) == before
    read(vlm)
    assert calls == {"first": 0, "second": 1}


def test_one_handler_may_watch_in_two_blocks_and_leaves_with_the_second():
    vlm, calls = tiny_vlm("qwen3_vl"), []
    modules = [text_attention_modules(vlm.model)[0]]

    def handle(call, proceed):
        calls.append(1)
        return proceed()

    with interposed(modules, handle):
        with interposed(modules, handle):
            read(vlm)
        assert len(calls) == 2
        read(vlm)
    assert len(calls) == 3


def test_an_exception_of_a_handler_leaves_nothing_behind():
    vlm = tiny_vlm("qwen3_vl")
    before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)

    def fail(call, proceed):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"), interposed(text_attention_modules(vlm.model).values(), fail):
        read(vlm)
    assert dict(ALL_ATTENTION_FUNCTIONS._local_mapping) == before


def test_blocks_of_two_threads_do_not_lose_each_other():
    pair = [tiny_vlm("qwen3_vl"), tiny_vlm("qwen2_vl")]
    before, counts, plain = dict(ALL_ATTENTION_FUNCTIONS._local_mapping), [0, 0], [read(vlm) for vlm in pair]
    same = [False, False]

    def work(number):
        def handle(call, proceed):
            counts[number] += 1
            return proceed()
        for _ in range(5):
            with interposed(text_attention_modules(pair[number].model).values(), handle):
                same[number] = torch.equal(read(pair[number]), plain[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [20, 20] and same == [True, True]
    assert dict(ALL_ATTENTION_FUNCTIONS._local_mapping) == before


def attention_of(config_name):
    module = nn.Module()
    module.config = type("Config", (), {"_attn_implementation": config_name})()
    return module


@pytest.mark.parametrize("name", ["eager", None, "flash_of_mine"])
def test_kernels_without_a_shared_function_are_refused_by_name(name):
    with refused(rf"^attention: the model runs under {name!r}, .*expected sdpa or flash_attention_2"):
        attention_kernel([attention_of(name)])


def test_layers_under_two_kernels_are_refused():
    with refused(r"^attention: these layers run under \['eager', 'sdpa'\]; expected one kernel for all"):
        attention_kernel([attention_of("sdpa"), attention_of("eager")])


def test_a_model_without_attention_layers_is_refused():
    with refused(r"^Sequential: no attention layer with a layer_idx found; expected a transformers"):
        text_attention_modules(nn.Sequential(nn.Linear(2, 2)))


@pytest.mark.parametrize("n_rows, rows", [(1, slice(0, 1)), (5, slice(0, 5)), (5, slice(1, 3)), (3, slice(2, 3))])
@pytest.mark.parametrize("form", ["none", "window", "padding", "padding and window", "bool", "float"])
def test_hidden_keys_give_the_weights_of_the_kernel(n_rows, rows, form):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, length, 8, generator=generator)
                         for heads, length in ((4, 5), (2, 9), (2, 9)))
    module = nn.Module()
    module.layer_idx, module.sliding_window = 0, 4 if "window" in form else None
    mask, real = None, torch.ones(2, 9, dtype=torch.bool)
    if "padding" in form:
        real[1, :3] = False
        mask = real
    visible = real[:, None, None] & (torch.arange(9) <= torch.arange(4, 9)[:, None])
    if form == "bool":
        mask = visible
    if form == "float":
        mask = torch.where(visible, 0.0, torch.finfo(torch.float32).min)
    kernel_mask = real if form in ("bool", "float") else mask
    expected, _ = flash_stand_in(module, query, key, value, kernel_mask, sliding_window=module.sliding_window)
    call = AttentionCall(module, query, key, value, mask, {}, flash_stand_in)
    logits = query[:, :, -n_rows:][:, :, rows] @ key.repeat_interleave(2, 1).mT * 8**-0.5
    weights = (logits + call.hidden(n_rows, rows)).softmax(-1)
    found = (weights @ value.repeat_interleave(2, 1)).transpose(1, 2)
    assert torch.allclose(found, expected[:, -n_rows:][:, rows], atol=1e-6)


def test_a_plain_generate_passes_through_without_any_probe_of_it():
    vlm, called = tiny_vlm("qwen3_vl"), []
    inputs = processor_inputs(vlm, [([image(0)], QUESTION)])
    modules = text_attention_modules(vlm.model)
    with interposed(modules.values(), lambda call, proceed: called.append(call.layer) or proceed()):
        vlm.model.generate(**inputs, max_new_tokens=3)
    assert called == [0, 1, 2, 3] * 3
