"""Steps that wait are recorded as if each had been summed at once, and the CUDA kernel records the same as torch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from probing import image, processor_inputs, tiny_vlm

from probes import recorder
from probes.attention import recording_image_attention
from probes.decode import decode
from probes.prefix import extend, fork, prefill, stack
from probes.steering import steering_image_attention

ROOT = Path(__file__).resolve().parents[1]
COMPARE = """
import numpy as np, torch
from probes import mass_triton
from probes.attention import recording_image_attention
from probes.vlm import load_vlm

torch.set_num_threads(1)
rng = np.random.default_rng(0)
vlm = load_vlm("tiny:{family}")
prompts = [vlm.prompt(rng.integers(0, 255, size, np.uint8), text)
           for size, text in (((120, 160, 3), "What color?"), ((60, 200, 3), "Left or right of the kite?"))]
launches = []
write = mass_triton.write_partial_mass
mass_triton.write_partial_mass = lambda *args, **kwargs: (launches.append(1), write(*args, **kwargs))
with recording_image_attention(vlm) as by_kernel:
    vlm.generate(prompts, 4)
mass_triton.available = lambda query: False
with recording_image_attention(vlm) as by_torch:
    vlm.generate(prompts, 4)
assert len(launches) == {launches_per_layer} * len(by_torch.layers), launches
for a, b in zip(by_kernel.sequences(), by_torch.sequences()):
    for name in ("scores", "sink", "template", "question", "generated"):
        assert np.abs(getattr(a, name) - getattr(b, name)).max() < 1e-6, name
    assert 0.05 < a.scores.mean() < 0.95
print("same")
"""


@pytest.fixture
def vlm():
    return tiny_vlm("qwen3_vl")


def traces(vlm, run, monkeypatch, **settings):
    found = []
    for together in (1, 5):
        monkeypatch.setattr(recorder, "ROWS_TOGETHER", together)
        for name, value in (settings.items() if together > 1 else ()):
            monkeypatch.setattr(recorder, name, value)
        with recording_image_attention(vlm) as trace:
            run()
        found.append(trace.sequences())
    return found


def same(at_once, waited):
    assert len(at_once) == len(waited)
    for a, b in zip(at_once, waited):
        assert np.array_equal(a.query_index, b.query_index)
        for name in ("scores", "images", "sink", "template", "question", "generated"):
            assert np.abs(getattr(a, name) - getattr(b, name)).max() < 1e-5, name
        if a.before_steering is not None:
            assert np.abs(a.before_steering - b.before_steering).max() < 1e-5


def test_a_padded_batch(vlm, monkeypatch):
    prompts = [vlm.prompt(image(0), "What color?"),
               vlm.prompt(image(1, 64, 200), "Left or right of the kite, above or below?"),
               vlm.prompt([image(2, 64, 64), image(3)], "two")]
    same(*traces(vlm, lambda: vlm.generate(prompts, 13), monkeypatch))


def test_pieces_moved_to_the_cpu_between_steps(vlm, monkeypatch):
    prompt = vlm.prompt(image(0), "What color?")
    same(*traces(vlm, lambda: vlm.generate([prompt], 13), monkeypatch, FLUSH_BYTES=0))


def test_steps_that_are_steered_in_between(vlm, monkeypatch):
    prompt = vlm.prompt(image(0), "What color?")

    def run():
        with steering_image_attention(vlm, log_bias=1.0, layers=[1], steps=range(3, 5)):
            vlm.generate([prompt], 13)
    same(*traces(vlm, run, monkeypatch))


def test_layers_that_wait_for_different_steps_when_pieces_move_to_the_cpu(vlm, monkeypatch):
    prompt = vlm.prompt(image(0), "What color?")

    def run():
        with steering_image_attention(vlm, log_bias=1.0, layers=[1], steps=range(3, 5)):
            vlm.generate([prompt], 13)
    same(*traces(vlm, run, monkeypatch, FLUSH_BYTES=0))


def test_forks_and_stacks(vlm, monkeypatch):
    prompt = vlm.prompt(image(0), "What color?")
    said = vlm.generate([prompt], 12)[0].token_ids

    def run():
        state = prefill(vlm, [prompt.then(said)])
        cells = [extend(vlm, fork(state, len(prompt) + n), [vlm.encode(" wait, look")]) for n in (3, 9)]
        decode(vlm, stack(cells), 9)
    same(*traces(vlm, run, monkeypatch))


@pytest.mark.parametrize("static", [False, True])
def test_a_generate_of_transformers(vlm, monkeypatch, static):
    inputs = processor_inputs(vlm, [([image(0)], "What?"), ([image(1, 64, 200)], "What color is the kite there?")])
    options = {"cache_implementation": "static", "disable_compile": True} if static else {}
    same(*traces(vlm, lambda: vlm.model.generate(**inputs, max_new_tokens=12, **options), monkeypatch))


def test_an_exception_amid_a_pass_leaves_the_finished_steps(vlm, monkeypatch):
    prompt = vlm.prompt(image(0), "What color?")
    calls = []

    def stop(module, args):
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
    state = prefill(vlm, [prompt])

    def run():
        calls.clear()
        hook = vlm.model.model.language_model.layers[2].register_forward_pre_hook(stop)
        try:
            with pytest.raises(KeyboardInterrupt):
                decode(vlm, state, 13)
        finally:
            hook.remove()
    at_once, waited = traces(vlm, run, monkeypatch)
    same(at_once, waited)
    assert waited[0].scores.shape[-1] == 6


def test_the_null_case_a_shifted_group_is_seen(vlm, monkeypatch):
    prompt = vlm.prompt(image(0), "What color?")
    a, _ = traces(vlm, lambda: vlm.generate([prompt], 13), monkeypatch)
    with pytest.raises(AssertionError):
        same(a, [type(a[0])(**{**vars(a[0]), "scores": np.roll(a[0].scores, 1, -1)})])


def test_latent_attention_holds_no_keys():
    kimi = tiny_vlm("kimi_k25")
    prompt = kimi.prompt(image(0), "What color?")
    with recording_image_attention(kimi) as trace:
        kimi.generate([prompt], 4)
        assert not trace._waiting


def test_the_block_lets_go_of_the_cache_when_it_ends(vlm):
    prompt = vlm.prompt(image(0), "What color?")
    with recording_image_attention(vlm) as trace:
        vlm.generate([prompt], 4)
        assert not trace._waiting                   # our decoding says when it ends
        vlm.model.generate(**processor_inputs(vlm, [([image(0)], "What?")]), max_new_tokens=4)
        assert trace._waiting                       # transformers' own does not
    assert not trace._waiting


@pytest.mark.slow
@pytest.mark.parametrize("family, launches_per_layer", [("qwen3_vl", 2), ("kimi_k25", 4)])
def test_the_kernel_records_what_torch_records(family, launches_per_layer):
    """In Triton's interpreter, on a left-padded batch: grouped heads, and Kimi's wider keys."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    code = COMPARE.format(family=family, launches_per_layer=launches_per_layer)
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.strip().endswith("same"), ran.stderr[-2000:]
