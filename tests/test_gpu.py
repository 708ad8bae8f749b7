"""On a CUDA device: the real kernels, half precision, and that recording changes nothing there either."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from probing import ALL, QUESTION, image
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from probes import mass_triton
from probes.attention import recording_image_attention, rescore
from probes.decode import decode
from probes.layout import IMAGE
from probes.mass import group_mass
from probes.prefix import extend, prefill
from probes.steering import steering_image_attention
from probes.vlm import load_vlm

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
needs_flash = pytest.mark.skipif(importlib.util.find_spec("flash_attn") is None, reason="flash-attn is not installed")

ROOT = Path(__file__).resolve().parents[1]
ROWS = [([image(0)], QUESTION), ([image(1, 60, 200)], "Where?"),
        ([image(2, 64, 64), image(3, 90, 64)], "Left or right of it, above or below?")]
N = 12


def loaded(family: str, dtype: str, attention: str = "sdpa"):
    vlm = load_vlm(f"tiny:{family}", dtype=dtype, device_map="cuda", attention=attention)
    return vlm, [vlm.prompt(*row) for row in ROWS]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ALL)
def test_recording_changes_no_token_on_cuda(family, dtype):
    vlm, prompts = loaded(family, dtype)
    plain = [out.token_ids for out in vlm.generate(prompts, N)]
    with recording_image_attention(vlm) as trace:
        assert [out.token_ids for out in vlm.generate(prompts, N)] == plain
    assert [sequence.scores.shape[-1] for sequence in trace.sequences()] == [N] * 3


@pytest.mark.parametrize("family", ALL)
def test_float32_masses_on_cuda_are_those_of_the_cpu(family):
    vlm, prompts = loaded(family, "float32")
    with recording_image_attention(vlm) as trace:
        said = vlm.generate(prompts, N)
    on_cpu = load_vlm(f"tiny:{family}", dtype="float32", device_map="cpu")
    for prompt, out, sequence in zip(prompts, said, trace.sequences()):
        expected = rescore(on_cpu, prompt, out.token_ids)
        assert np.abs(sequence.scores - expected.scores).max() < 1e-4
        everything = sequence.scores + sequence.sink + sequence.template + sequence.question + sequence.generated
        assert np.abs(everything - 1).max() < 1e-4


@pytest.mark.parametrize("family", ALL)
def test_bfloat16_masses_are_a_float32_softmax_over_the_kernels_own_queries_and_keys(family):
    vlm, prompts = loaded(family, "bfloat16")
    prompt, seen, plain = prompts[0], [], ALL_ATTENTION_FUNCTIONS["sdpa"]

    def watch(module, query, key, value, mask, **kwargs):
        if getattr(module, "layer_idx", None) == 3:
            keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1).float()
            seen.append((query[:, :, -1:].float() @ keys.transpose(2, 3))[0, :, 0] * kwargs["scaling"])
        return plain(module, query, key, value, mask, **kwargs)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = watch
    try:
        with recording_image_attention(vlm, layers=[3]) as trace:
            vlm.generate([prompt], N)
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]
    on_image = torch.tensor([i for i, code in enumerate(prompt.codes) if code >= IMAGE], device="cuda")
    expected = torch.stack([scores.softmax(-1)[:, on_image].sum(-1) for scores in seen], -1).cpu().numpy()
    assert np.abs(trace.scores[0] - expected).max() < 1e-4


def test_decoding_uses_the_triton_kernel_and_it_agrees_with_torch(monkeypatch):
    vlm, prompts = loaded("qwen3_vl", "bfloat16")
    launches, write = [], mass_triton.write_partial_mass

    def counted(*args, **kwargs):
        launches.append(1)
        return write(*args, **kwargs)

    monkeypatch.setattr(mass_triton, "write_partial_mass", counted)
    with recording_image_attention(vlm) as fast:
        said = vlm.generate(prompts[:1], N)[0].token_ids
    assert launches
    monkeypatch.setattr(mass_triton, "available", lambda *_: False)
    n = len(launches)
    with recording_image_attention(vlm) as slow:
        assert vlm.generate(prompts[:1], N)[0].token_ids == said
    assert len(launches) == n
    assert np.abs(fast.scores - slow.scores).max() < 1e-4


def test_the_mass_of_a_long_half_precision_context_is_that_of_float64():
    generator = torch.Generator("cuda").manual_seed(0)
    query = torch.randn(2, 16, 1, 128, generator=generator, device="cuda", dtype=torch.bfloat16)
    key = torch.randn(2, 4, 5000, 128, generator=generator, device="cuda", dtype=torch.bfloat16)
    codes = torch.randint(1, 6, (2, 5000), generator=generator, device="cuda", dtype=torch.uint8)
    found = group_mass(query, key, codes, 6, 128**-0.5)
    weights = (query.double() @ key.repeat_interleave(4, 1).double().transpose(2, 3) * 128**-0.5).softmax(-1)
    expected = torch.stack([(weights * (codes == group)[:, None, None]).sum(-1) for group in range(6)], -1)
    assert (found - expected).abs().max() < 1e-5


def test_recording_waits_for_the_device_only_when_the_trace_is_read():
    vlm, prompts = loaded("qwen3_vl", "bfloat16")
    state = extend(vlm, prefill(vlm, prompts[:1]), [[5]])
    with recording_image_attention(vlm) as trace:
        decode(vlm, state, 2)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in trace._steps:
                assert all(mass.is_cuda for mass in step.masses.values())
        finally:
            torch.cuda.set_sync_debug_mode(before)
    assert trace.scores.shape[-1] >= 2


@needs_flash
@pytest.mark.parametrize("family", [family for family in ALL if family != "kimi_k25"])
def test_flash_attention_records_what_sdpa_records(family):
    sdpa, prompts = loaded(family, "bfloat16")
    flash, _ = loaded(family, "bfloat16", "flash_attention_2")
    words = sdpa.encode(" it is red or blue so let me look again")
    for prompt in prompts:
        a, b = rescore(sdpa, prompt, words), rescore(flash, prompt, words)
        assert np.abs(a.scores[0] - b.scores[0]).max() < 2e-2              # the first layer reads equal inputs
        assert np.abs(a.scores - b.scores).mean() < 2e-2
    with recording_image_attention(flash) as trace:
        said = [out.token_ids for out in flash.generate(prompts, N)]
    assert said == [out.token_ids for out in flash.generate(prompts, N)]
    assert np.isfinite(trace.scores).all()


@needs_flash
def test_flash_attention_is_steered_as_sdpa_is():
    logits = []
    for attention in ("sdpa", "flash_attention_2"):
        vlm, prompts = loaded("qwen3_vl", "bfloat16", attention)
        with steering_image_attention(vlm, log_bias=1.0, layers=[1, 2]):
            logits.append(prefill(vlm, prompts[:1]).logits)
    assert (logits[0] - logits[1]).abs().max() < 0.25 * logits[0].std()


def test_the_bench_writes_its_table_on_the_device(tmp_path):
    table = tmp_path / "table.md"
    command = [sys.executable, "-m", "benchmarks.attention", "--small", "--device", "cuda", "--out", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert torch.cuda.get_device_name() in table.read_text(encoding="utf-8")
