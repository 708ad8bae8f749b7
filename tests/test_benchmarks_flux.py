"""The Flux benchmark runs through on a CPU and writes its table; its arithmetic is that of the real configurations.

How fast anything is depends on the machine, and is not asked.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.flux_edits import certified
from benchmarks.flux_models import FULL, TINY, Arithmetic, arithmetic, built
from benchmarks.flux_tables import minutes_per_instance, tables
from editors.flux import FluxSettings
from editors.tiny_flux import tiny_flux
from rekey.store import read_jsonl

ROOT = Path(__file__).resolve().parents[1]
PARTS = {"setting", "arithmetic", "cpu", "load", "speed", "certified"}


def run(out: Path, *options: str) -> tuple[list[dict], str]:
    """The lines and the table of a run."""
    command = [sys.executable, "-m", "benchmarks.flux_editing", "--device", "cpu", "--no-compiled", "--out", str(out)]
    ran = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    table = (out / "table.md").read_text(encoding="utf-8")
    assert table in ran.stdout
    return read_jsonl(out / "lines.jsonl"), table


def of(lines: list[dict], part: str) -> list[dict]:
    return [line for line in lines if line["part"] == part]


@pytest.mark.slow
def test_a_tiny_run_measures_every_part_and_says_that_it_is_no_result(tmp_path):
    lines, table = run(tmp_path / "new" / "out", "--random", "tiny", "--pictures")
    assert {line["part"] for line in lines} == PARTS
    speed = of(lines, "speed")
    assert len({(line["canvas_px"], line["start"], line["batch"]) for line in speed}) == len(speed) == 12
    assert all(line["s_per_edit"] > 0 and line["floor_s"] is None for line in speed)
    (cpu,) = of(lines, "cpu")
    assert set(cpu["seconds"]) == {"cut", "prepaint, edges", "drift", "paste, certify", "save the photograph"}
    assert all(seconds > 0 for seconds in cpu["seconds"].values())
    assert "TINY RANDOM MODEL" in table and "ON A CPU" in table
    assert "held" not in table.replace("held - GB", "") and "MISSED" not in table and "hide" not in table
    assert all((tmp_path / "new" / "out" / f"edits_{start}.png").stat().st_size for start in ("prepaint", "source"))


@pytest.mark.slow
def test_weights_in_folders_are_measured_and_their_edits_certified_or_not(tmp_path):
    tiny = tiny_flux(tmp_path / "flux")
    lines, table = run(tmp_path, "--base", str(tiny.base), "--controlnet", str(tiny.controlnet), "--small")
    assert {line["part"] for line in lines} == PARTS
    found = of(lines, "certified")
    assert {(line["mode"], line["start"]): line["n"] for line in found} == {
        (mode, start): 2 for mode in ("replace", "add") for start in ("prepaint", "source")}
    assert sum(line["passed"] for line in found) == 0           # random pixels
    assert all(sum(line["failed_checks"].values()) >= line["n"] for line in found)
    assert set(of(lines, "setting")[0]["weights"]) == {"base", "controlnet"}
    assert "SMALL CANVASES" in table


@pytest.mark.slow
def test_what_does_not_fit_the_minutes_is_left_out_and_listed(tmp_path):
    lines, table = run(tmp_path, "--random", "tiny", "--minutes", "0.0001")
    assert not of(lines, "speed") and not of(lines, "certified")
    left_out = {line["what"] for line in of(lines, "left out")}
    assert {"the CPU side", "certified edits"} <= left_out and all(what in table for what in left_out)


# -------------------------------------------------------------------------------------------------- certified

class Returns:
    """A painter that changes nothing."""

    def paint(self, paintings):
        return [painting.start.astype(np.float32) / 255 for painting in paintings]


def test_certified_edits_are_counted_by_mode_and_start():
    """Started from the classical edit, a painter that changes nothing has the classical editor's rate; else none."""
    lines = certified(Returns(), FluxSettings(), None, seconds=60, n_most=8)
    found = {(line["mode"], line["start"]): line for line in lines}
    assert all(line["n"] == 4 for line in lines) and len(lines) == 4
    for mode in ("replace", "add"):
        assert found[mode, "source"]["passed"] == 0 and found[mode, "source"]["failed_checks"]["changed area"] == 4
        assert found[mode, "prepaint"]["passed"] >= 3


def test_no_edit_is_begun_that_would_not_end_in_time():
    assert certified(Returns(), FluxSettings(), None, seconds=-1) == []


# ------------------------------------------------------------------------------------------------ arithmetic

def test_the_full_configurations_have_the_published_number_of_parameters():
    models = built(FULL, torch.device("meta"), torch.bfloat16)
    billions = [sum(weight.numel() for weight in model.parameters()) / 1e9 for model in models]
    assert billions == pytest.approx([11.90, 2.14, 0.084], abs=0.005)


# 10^12 operations a step, and to encode and decode; counted once by hand-written scripts on the same configurations.
TABLE = {(512, 512): (21.5, 2.4, 1.1, 2.5), (512, 128): (15.8, 1.8, 1.1, 2.5), (1024, 512): (74.4, 8.3, 4.9, 10.5)}


@pytest.mark.slow
@pytest.mark.parametrize(("canvas_px", "text_tokens"), list(TABLE))
def test_an_edit_of_the_full_size_takes_the_counted_operations(canvas_px, text_tokens):
    found = arithmetic(FULL, canvas_px, text_tokens)
    counted = (found.transformer, found.controlnet, found.encode, found.decode)
    assert counted == pytest.approx(TABLE[canvas_px, text_tokens], abs=0.05)


def test_operations_grow_with_the_tokens_and_attention_with_their_square():
    small, large, larger = (arithmetic(TINY, side, 128) for side in (64, 128, 256))
    assert small.transformer < large.transformer < larger.transformer
    # 144, 192 and 384 tokens: one term per token, one per pair of tokens, none else.
    pairs = (larger.transformer - 384 / 192 * large.transformer) / (384 ** 2 - 384 * 192)
    each = large.transformer / 192 - pairs * 192
    assert small.transformer == pytest.approx(each * 144 + pairs * 144 ** 2, rel=0.02)


def test_an_edit_is_its_steps_three_encodings_and_one_decoding():
    assert Arithmetic(10, 2, 0.5, 3).tf_per_edit(4) == 4 * 12 + 1.5 + 3


# ------------------------------------------------------------------------------------------------- the table

SETTING = {"part": "setting", "canvases_px": [512, 1024], "usual_batch": 4, "random": "full", "small": False,
           "device": "cuda", "date": "2026-11-30", "hardware": "a GPU", "torch": "2", "cuda": "13", "diffusers": "0",
           "transformers": "5", "dtype": "bfloat16", "text_tokens": 128,
           "weights": {"base": {"id": "random", "revision": None}}}
FLOPS = [{"part": "arithmetic", "canvas_px": side, "text_tokens": 128, "transformer": tf, "controlnet": 1.0,
          "encode": 1.0, "decode": 1.0} for side, tf in ((512, 9.0), (1024, 39.0))]


def speed(canvas_px: int, batch: int, s_per_edit: float) -> dict:
    return {"part": "speed", "canvas_px": canvas_px, "batch": batch, "start": "prepaint", "mode": "eager", "steps": 16,
            "s_per_edit": s_per_edit, "tf_per_edit": 160.0, "tflops": 160 / s_per_edit, "floor_s": 0.2,
            "share_of_peak": 0.3, "peak_gb": 40.0, "first_call_s": 1.0, "first_of_its_shape": True}


def test_an_instance_is_256_small_and_12_large_edits():
    lines = [speed(512, 1, 9.0), speed(512, 4, 0.6), speed(1024, 1, 3.0)]
    assert minutes_per_instance(SETTING, lines, FLOPS, "prepaint", "eager") == (
        pytest.approx((256 * 0.6 + 12 * 3.0) / 60), True)
    assert minutes_per_instance(SETTING, lines, FLOPS, "source", "eager") is None


def test_a_large_canvas_that_was_not_measured_costs_by_its_arithmetic():
    found = minutes_per_instance(SETTING, [speed(512, 4, 0.6)], FLOPS, "prepaint", "eager")
    assert found == (pytest.approx((256 * 0.6 + 12 * 2.4) / 60), False)


@pytest.mark.parametrize(("s_per_edit", "verdict"), [(0.6, "held"), (1.2, "MISSED")])
def test_the_goal_is_judged_on_a_gpu_only(s_per_edit, verdict):
    lines = [SETTING, *FLOPS, speed(512, 4, s_per_edit), speed(1024, 1, 3.0)]
    assert f"under 5 wanted: {verdict}" in tables(lines) and "RANDOM WEIGHTS" in tables(lines)
    for change in ({"device": "cpu"}, {"random": "tiny"}, {"small": True}):
        assert verdict not in tables([SETTING | change, *lines[1:]])


@pytest.mark.parametrize(("gpu_s", "said"), [(0.6, "hides behind"), (0.05, "does NOT hide behind")])
def test_the_cpu_side_is_compared_with_the_fastest_painting(gpu_s, said):
    cpu = {"part": "cpu", "n_cores": 16, "n_edits": 8, "seconds": {"prepaint, edges": 1.0, "cut": 0.6}}
    assert said in tables([SETTING, *FLOPS, cpu, speed(512, 4, gpu_s)])


def test_nothing_measured_is_a_table_too():
    assert "a GPU" in tables([SETTING])
