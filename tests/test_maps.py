"""The map of a window is what eager attention gives, and its sum what the recorder gives for the same rows."""

import math

import numpy as np
import pytest
import torch
from probing import QUESTION, image, refused, tiny_vlm

from probes import maps as module
from probes.attention import recording_image_attention
from probes.decode import decode
from probes.layout import Prompt
from probes.maps import mapping_image_attention
from probes.prefix import extend, prefill
from probes.reference import eager_run
from probes.steering import steering_image_attention
from rekey.geometry import Box

SAID = list(range(40, 52))


def windows_of(prompt: Prompt) -> dict[str, tuple[int, int]]:
    n = len(prompt)
    return {"before": (n - 1, n + 4), "phrase": (n + 4, n + 7), "after": (n + 7, n + 100), "none": (n + 50, n + 60)}


def read(vlm, prompt, layers=None):
    with recording_image_attention(vlm, layers) as trace, \
            mapping_image_attention(vlm, prompt, windows_of(prompt), layers) as maps:
        prefill(vlm, [prompt.then(SAID[:-1])])
    return trace.sequences()[0], maps.arrays()


def in_window(attention, window):
    return (attention.query_index >= window[0]) & (attention.query_index < window[1])


def agree(attention, maps, prompt):
    """Sums over the image tokens are the recorder's means over the same rows and heads."""
    assert list(maps) == ["before", "phrase", "after"]
    for name, weights in maps.items():
        scores = attention.scores[..., in_window(attention, windows_of(prompt)[name])].mean((1, 2))
        assert np.abs(weights.sum((1, 2)) - scores).max() < 1e-5, name
        assert weights.max() > 2 * weights.mean(), "attention is uneven, or equality would say little"


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_maps_are_those_of_eager_attention(family, monkeypatch):
    vlm = tiny_vlm(family)
    prompt = vlm.prompt(image(3, 120, 200), QUESTION)
    attention, maps = read(vlm, prompt)
    agree(attention, maps, prompt)
    _, weights = eager_run(vlm, [image(3, 120, 200)], QUESTION, SAID[:-1], len(SAID))        # (H, T, S) by layer
    start, stop = prompt.image_end - prompt.n_image_tokens, prompt.image_end
    for name, found in maps.items():
        assert found.shape[1:] == prompt.images[0].token_grid
        rows = torch.from_numpy(in_window(attention, windows_of(prompt)[name]))
        for layer, by_head in weights.items():
            wanted = by_head[:, rows, start:stop].mean((0, 1)).numpy()
            assert np.abs(found[layer].ravel() - wanted).max() < 1e-5, (name, layer)
    monkeypatch.setattr(module, "LOGITS_PER_BLOCK", 1)                                       # a row at a time
    _, by_row = read(vlm, prompt)
    assert all(np.abs(by_row[name] - maps[name]).max() < 1e-6 for name in maps)


def test_decoding_maps_what_reading_the_same_text_maps():
    vlm = tiny_vlm("qwen3_vl")
    prompt = vlm.prompt(image(1), QUESTION)
    windows = {"all": (len(prompt) - 1, len(prompt) + 8)}
    with mapping_image_attention(vlm, prompt, windows, [1, -1]) as decoding:
        said = decode(vlm, prefill(vlm, [prompt]), 9)[0].ids
    with mapping_image_attention(vlm, prompt, windows, [1, -1]) as reading:
        prefill(vlm, [prompt.then(said[:-1])])
    assert decoding.arrays()["all"].shape == (2, *prompt.images[0].token_grid)
    assert np.abs(decoding.arrays()["all"] - reading.arrays()["all"]).max() < 1e-5


@pytest.mark.parametrize("region", [False, True])
def test_steered_rows_are_mapped_as_steered(region):
    vlm = tiny_vlm("qwen3_vl")
    prompt = vlm.prompt(vlm.encode_image(image(2), Box(0, 0, 80, 60)), QUESTION)
    longer = prompt.then(SAID[:5])

    def steered(bias):
        with recording_image_attention(vlm) as trace, \
                mapping_image_attention(vlm, prompt, windows_of(prompt)) as maps:
            state = prefill(vlm, [longer])
            with steering_image_attention(vlm, log_bias=bias, layers=[1, 2], region=region):
                extend(vlm, state, [SAID[5:]])
        return trace.sequences()[0], maps.arrays()

    attention, maps = steered(math.log(3))
    agree(attention, maps, prompt)
    held = np.isin(np.arange(prompt.n_image_tokens), prompt.images[0].region)
    after = in_window(attention, windows_of(prompt)["after"])
    region_mass = attention.region[..., after].mean((1, 2))
    assert np.abs(maps["after"].reshape(len(region_mass), -1)[:, held].sum(1) - region_mass).max() < 1e-5
    _, plain = steered(1e-6)
    assert np.abs(maps["before"] - plain["before"]).max() < 1e-5
    assert maps["after"][1].sum() > 1.2 * plain["after"][1].sum()


def test_what_has_no_one_map_is_refused():
    vlm = tiny_vlm("qwen3_vl")
    prompt = vlm.prompt(image(0), QUESTION)
    with refused("2 rows are read together"), mapping_image_attention(vlm, prompt, {"all": (0, 999)}):
        prefill(vlm, [prompt, prompt])
    with refused("has 2 images"), mapping_image_attention(vlm, vlm.prompt([image(0), image(1)], "x"), {}):
        pass
