"""On a CUDA device: the real kernels, half precision, and that recording changes nothing there either."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from probing import ALL, QUESTION, image, plain_generate, processor_inputs
from swapping import write_scene_pairs
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import is_flash_attn_2_available

from experiments.attend import AttendJob, attend
from experiments.evaluate import EvaluateJob, evaluate
from experiments.probe import ProbeJob, probe
from experiments.scenes import write_benchmark
from experiments.swap_cells import BASES, TRIGGER, controls_of, multi_turn_cells, probe_cells
from experiments.swap_tables import null_check
from probes import mass_triton
from probes.attention import recording_image_attention, rescore
from probes.backends import ModelSpec
from probes.decode import decode
from probes.layout import IMAGE
from probes.mass import group_mass
from probes.prefix import prefill
from probes.steering import steering_image_attention
from probes.trace_store import iter_traces
from probes.vlm import LocalVLM, load_vlm
from rekey.evaluate import Settings
from rekey.store import read_jsonl
from rekey.trials import Cell, SwapTrial, grade_trial, read_trials

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
needs_flash = pytest.mark.skipif(not is_flash_attn_2_available(), reason="flash-attn is not installed")

ROOT = Path(__file__).resolve().parents[1]
ROWS = [([image(0)], QUESTION), ([image(1, 60, 200)], "Where?"),
        ([image(2, 64, 64), image(3, 90, 64)], "Left or right of it, above or below?")]
N = 12


def loaded(family: str, dtype: str):
    vlm = load_vlm(f"tiny:{family}", dtype=dtype, device_map="cuda", attention="sdpa")
    return vlm, [vlm.prompt(*row) for row in ROWS]


@contextmanager
def flash_text(vlm: LocalVLM) -> Iterator[None]:
    """The language model under FlashAttention-2; the vision tower stays as it is, so image features do too."""
    vlm.model.set_attn_implementation({"text_config": "flash_attention_2", "vision_config": "sdpa"})
    try:
        yield
    finally:
        vlm.model.set_attn_implementation("sdpa")


def waits_for_device(run: Callable[[], object]) -> int:
    """How many calls of torch make the CPU wait for the GPU while `run` runs."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ALL)
def test_recording_changes_no_token_on_cuda(family, dtype):
    vlm, prompts = loaded(family, dtype)
    plain = [out.token_ids for out in vlm.generate(prompts, N)]
    with recording_image_attention(vlm) as trace:
        assert [out.token_ids for out in vlm.generate(prompts, N)] == plain
    assert [sequence.scores.shape[-1] for sequence in trace.sequences()] == [N] * 3


@pytest.mark.parametrize("family", ALL)
def test_float32_masses_on_cuda_are_those_of_the_cpu(family, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)      # the image patches enter by a convolution
    vlm, prompts = loaded(family, "float32")
    with recording_image_attention(vlm) as trace:
        said = vlm.generate(prompts, N)
    on_cpu = load_vlm(f"tiny:{family}", dtype="float32", device_map="cpu")
    for prompt, out, sequence in zip(prompts, said, trace.sequences()):
        expected = rescore(on_cpu, prompt, out.token_ids)
        # Other orders of summation; noise of 1e-7 on the weights already moves these masses by up to 3e-5.
        assert np.abs(sequence.scores - expected.scores).max() < 1e-3
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
    assert len(launches) == 2 * len(fast.layers)            # the prompt, and then all steps at once
    monkeypatch.setattr(mass_triton, "available", lambda *_: False)
    n = len(launches)
    with recording_image_attention(vlm) as slow:
        assert vlm.generate(prompts[:1], N)[0].token_ids == said
    assert len(launches) == n
    assert np.abs(fast.scores - slow.scores).max() < 1e-4


def test_a_static_cache_is_recorded_alike_on_cuda():
    vlm, _ = loaded("qwen3_vl", "float32")
    inputs = {name: value.to(vlm.device) for name, value in processor_inputs(vlm, ROWS[:2]).items()}
    with recording_image_attention(vlm) as dynamic:
        said = plain_generate(vlm, inputs, N).sequences
    with recording_image_attention(vlm) as static:
        again = plain_generate(vlm, inputs, N, cache_implementation="static", disable_compile=True).sequences
    assert torch.equal(said, again)
    assert np.abs(dynamic.scores - static.scores).max() < 1e-3


def test_the_mass_of_a_long_half_precision_context_is_that_of_float64():
    generator = torch.Generator("cuda").manual_seed(0)
    query = torch.randn(2, 16, 1, 128, generator=generator, device="cuda", dtype=torch.bfloat16)
    key = torch.randn(2, 4, 5000, 128, generator=generator, device="cuda", dtype=torch.bfloat16)
    codes = torch.randint(1, 6, (2, 5000), generator=generator, device="cuda", dtype=torch.uint8)
    found = group_mass(query, key, codes, 6, 128**-0.5)
    weights = (query.double() @ key.repeat_interleave(4, 1).double().transpose(2, 3) * 128**-0.5).softmax(-1)
    expected = torch.stack([(weights * (codes == group)[:, None, None]).sum(-1) for group in range(6)], -1)
    assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("n_prompts", [1, 3])
def test_recording_makes_decoding_wait_for_the_device_no_more_often(n_prompts, monkeypatch):
    vlm, prompts = loaded("qwen3_vl", "bfloat16")
    state = prefill(vlm, prompts[:n_prompts])
    launches, write = [], mass_triton.write_partial_mass

    def counted(*args, **kwargs):
        launches.append(1)
        return write(*args, **kwargs)

    monkeypatch.setattr(mass_triton, "write_partial_mass", counted)
    decode(vlm, state, 40)
    with recording_image_attention(vlm):
        decode(vlm, state, 40)                              # compiles the kernel for both numbers of rows
    launches.clear()
    plain = waits_for_device(lambda: decode(vlm, state, 40))
    with recording_image_attention(vlm) as trace:
        recorded = waits_for_device(lambda: decode(vlm, state, 40))
        assert len(launches) >= len(trace.layers), "32 steps were summed while waits were counted"
        read = waits_for_device(trace.sequences)
    assert plain >= 2, "decoding looks every 16 tokens which rows have finished"
    assert recorded == plain
    assert read >= len(trace.layers), "reading the trace has to wait"


@needs_flash
@pytest.mark.parametrize("family", [family for family in ALL if family != "kimi_k25"])
def test_flash_attention_records_what_sdpa_records(family):
    vlm, prompts = loaded(family, "bfloat16")
    words = vlm.encode(" it is red or blue so let me look again")
    by_sdpa = [rescore(vlm, prompt, words) for prompt in prompts]
    with flash_text(vlm):
        by_flash = [rescore(vlm, prompt, words) for prompt in prompts]
        plain = [out.token_ids for out in vlm.generate(prompts, N)]
        with recording_image_attention(vlm) as trace:
            assert [out.token_ids for out in vlm.generate(prompts, N)] == plain
    for a, b in zip(by_sdpa, by_flash):
        # The first layer that attends reads equal inputs; later ones read what the kernels rounded differently.
        assert np.abs(a.scores[0] - b.scores[0]).max() < 1e-4
        assert np.abs(a.scores - b.scores).mean() < 0.02
    assert np.isfinite(trace.scores).all()


@needs_flash
def test_flash_attention_is_steered_as_sdpa_is():
    vlm, prompts = loaded("qwen3_vl", "bfloat16")

    def logits() -> torch.Tensor:
        with steering_image_attention(vlm, log_bias=1.0, layers=[1, 2]):
            return prefill(vlm, prompts[:1]).logits

    by_sdpa, unsteered = logits(), prefill(vlm, prompts[:1]).logits
    with flash_text(vlm):
        by_flash = logits()
    assert (by_sdpa - by_flash).abs().mean() < 0.5 * (by_sdpa - unsteered).abs().mean()


def test_the_bench_writes_its_table_on_the_device(tmp_path):
    table = tmp_path / "table.md"
    command = [sys.executable, "-m", "benchmarks.attention", "--small", "--device", "cuda", "--out", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert torch.cuda.get_device_name() in table.read_text(encoding="utf-8")


def test_a_benchmark_is_answered_as_on_the_cpu(tmp_path):
    write_benchmark(tmp_path / "scenes", 8, 3)
    texts = {}
    for device in ("cpu", "cuda"):
        out = tmp_path / f"{device}.jsonl"
        evaluate(EvaluateJob(tmp_path / "scenes", ModelSpec("control:clean", device_map=device), out,
                             Settings(max_new_tokens=8), batch_size=4))
        texts[device] = {line["key"]: line["generation"]["text"] for line in read_jsonl(out)}
    assert texts["cpu"] == texts["cuda"] and len(texts["cpu"]) == 8


def test_worker_processes_answer_on_the_gpu(tmp_path):
    write_benchmark(tmp_path / "scenes", 6, 3)
    model = ModelSpec("control:clean")
    out = tmp_path / "responses.jsonl"
    assert not evaluate(EvaluateJob(tmp_path / "scenes", model, out, Settings(max_new_tokens=8), workers=2)).failures
    runs = read_jsonl(tmp_path / "responses.runs.jsonl")
    devices = {place for line in runs for place in line.get("model", {}).get("devices", ())}
    assert devices and all(place.startswith("cuda") for place in devices)


def swapped(folder: Path, device: str) -> dict[str, SwapTrial]:
    """Trials of two scene pairs on a control, by pair, condition, regime and dose, with their traces beside them."""
    write_scene_pairs(folder / "pairs", 2)
    model = ModelSpec("control:grounded", device_map=device)
    cells = [*BASES, *probe_cells((0.5, 1.0), regimes=("recompute", "splice")), *multi_turn_cells(),
             Cell("reasoning", phrase=TRIGGER, log_bias=1.0)]
    out = folder / device
    probe(ProbeJob(folder / "pairs", model, out, (*cells, *controls_of(cells)),
                   Settings(prompt="cot", max_new_tokens=64, seed=0)))
    attend(AttendJob(out, model, out / "traces", ("probe", "multi-turn")))
    return {repr((trial.pair.pair_id, trial.cell)): trial for trial in read_trials(out / "trials.jsonl")}


def test_swap_trials_and_their_traces_are_on_cuda_what_they_are_on_the_cpu(tmp_path):
    here, there = swapped(tmp_path, "cpu"), swapped(tmp_path, "cuda")
    assert {name: trial.second.text for name, trial in there.items()} == {
        name: trial.second.text for name, trial in here.items()}
    assert null_check([*map(grade_trial, there.values(), [{}] * len(there))], "splice").exact
    traces = {device: {repr((trace.pair_id, trace.cell)): trace for trace in iter_traces(tmp_path / device / "traces")}
              for device in ("cpu", "cuda")}
    assert traces["cpu"].keys() == traces["cuda"].keys() and traces["cpu"]
    for name, trace in traces["cpu"].items():
        np.testing.assert_allclose(traces["cuda"][name].attention.scores, trace.attention.scores, atol=1e-4)
        for window, weights in trace.maps.items():
            np.testing.assert_allclose(traces["cuda"][name].maps[window], weights, atol=1e-4)
