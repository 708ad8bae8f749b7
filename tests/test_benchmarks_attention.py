"""The attention benchmark runs and writes its table; how fast anything is depends on the machine, and is not asked."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.attention import HEADER
from benchmarks.attention_modes import QWEN3_VL_8B, model_of_8b_shape, modes, plain
from benchmarks.measuring import (
    Clock,
    Memory,
    can_measure_memory,
    in_a_fork,
    in_use_mb,
    interleaved,
    peak_mb,
    reset_peak,
)
from probes.vlm import load_vlm

ROOT = Path(__file__).resolve().parents[1]


def table(device: str, out: Path) -> dict[str, list[str]]:
    """Cells by mode of the table that the script writes."""
    command = [sys.executable, "-m", "benchmarks.attention", "--small", "--device", device, "--out", str(out)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    text = out.read_text(encoding="utf-8")
    assert text in ran.stdout
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert rows[0] == list(HEADER) and all(len(row) == len(HEADER) for row in rows)
    return {row[0]: row[1:] for row in rows[2:]} | {"notes": [line for line in text.splitlines() if line[:1] == "-"]}


def check(found: dict[str, list[str]]) -> None:
    decoded = ["sdpa, plain", "sdpa, recorded, 4 layers", "sdpa, recorded, all layers", "eager",
               "eager + output_attentions"]
    read = [*decoded, "rescore, 30 rows, all layers", "grid, 50 separate prefills",
            "grid, one prefill, forked and extended", "grid, one prefill, one batch per retention"]
    assert set(read) <= set(found)
    assert all(float(found[name][0]) > 0 for name in decoded)
    assert all(float(found[name][6].replace(",", "")) > 0 for name in read)
    assert found["sdpa, plain"][1] == found["sdpa, plain"][3] == "1.000"
    assert any("next token equal in 50 of 50 cells" in line for line in found["notes"])
    for peer in ("nnsight", "flash_attention_2"):
        assert any(peer in name for name in found) or any(line.startswith(f"- {peer}: ") for line in found["notes"])


@pytest.mark.slow
def test_the_small_run_writes_a_table_with_every_mode(tmp_path):
    check(table("cpu", tmp_path / "tables" / "attention.md"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_small_run_writes_its_table_on_a_gpu(tmp_path):
    found = table("cuda", tmp_path / "attention.md")
    check(found)
    assert all(float(cells[8].replace(",", "")) > 0 for name, cells in found.items() if name == "sdpa, plain")


def test_a_mode_puts_the_kernel_back_also_when_the_run_fails():
    vlm = load_vlm("tiny:qwen3_vl", device_map="cpu")
    for mode in modes(vlm, 2)[0]:
        with pytest.raises(RuntimeError, match="stop"), mode.watch(vlm):
            raise RuntimeError("stop")
        assert vlm.model.config.get_text_config()._attn_implementation == "sdpa"
        assert not vlm.model._forward_hooks and not vlm.model._forward_pre_hooks


def test_eager_really_runs_while_its_mode_is_open():
    vlm = load_vlm("tiny:qwen3_vl", device_map="cpu")
    eager = next(mode for mode in modes(vlm, 2)[0] if mode.name == "eager")
    with eager.watch(vlm):
        assert vlm.model.config.get_text_config()._attn_implementation == "eager"
    with plain(vlm):
        assert vlm.model.config.get_text_config()._attn_implementation == "sdpa"


def test_a_ratio_pairs_the_rounds_and_ignores_those_that_one_side_sat_out():
    slow = Clock(wall=[2.0, 8.0], cpu=[2.0, 8.0])
    fast = Clock(wall=[1.0, 2.0, 100.0], cpu=[1.0, 2.0, 100.0])
    assert slow.wall_ratio_to(fast) == 3.0                           # the median of 2 and 4


def test_every_work_runs_once_a_round_and_a_peer_only_in_the_first():
    order = []

    def work(name: str, clock: Clock) -> None:
        clock.time(lambda: order.append(name))

    clocks = interleaved({name: (partial(work, name), n) for name, n in (("a", 3), ("b", 3), ("peer", 1))}, "test")
    assert order == ["a", "b", "peer", "b", "a", "a", "b"]
    assert [len(clock.wall) for clock in clocks.values()] == [3, 3, 1]


@pytest.mark.skipif(not can_measure_memory(), reason="the platform does not tell a process's peak memory")
def test_a_peak_is_seen_and_what_was_freed_is_not_held():
    def work() -> Memory:
        start = reset_peak()
        block = torch.ones(64 * 2**20 // 4)
        peak = peak_mb()
        del block
        return Memory(peak - start, in_use_mb() - start)

    used = in_a_fork(work, 1)
    assert 60 < used.peak < 80
    assert used.held < 8


def test_the_clock_of_a_wait_is_wall_time_without_processor_time():
    clock = Clock()
    clock.time(lambda: time.sleep(0.05))
    assert clock.wall[0] >= 0.05 > clock.cpu[0]


def test_the_model_for_a_gpu_has_the_shape_of_qwen3_vl_8b():
    model, _ = model_of_8b_shape(torch.device("meta"))
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert 8.7e9 < n_parameters < 8.85e9                             # the checkpoint has 8.77 G
    assert len(model.model.language_model.layers) == QWEN3_VL_8B["num_hidden_layers"]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
