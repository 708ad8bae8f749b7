"""`rekey doctor` and `rekey doctor --model`: what a user sees and which status the job gets."""

from __future__ import annotations

import re

import pytest
import torch
from click.testing import CliRunner

import probes.selfcheck as selfcheck_module
from experiments.cli import main
from experiments.cli_doctor import TABLE_WIDTH
from probes import recorder

MODEL = ("--model", "tiny:qwen3_vl", "--device-map", "cpu", "--attention", "sdpa")


def doctor(*words: str):
    torch.set_num_threads(1)
    return CliRunner().invoke(main, ["doctor", *words], catch_exceptions=False)


@pytest.fixture
def few_checks(monkeypatch):
    """The self-check with two of its checks, which take a second less."""
    right = selfcheck_module.checks
    names = ["rounding of this model", "tap = softmax of the kernel's q, k", "template: start of an answer"]
    monkeypatch.setattr(selfcheck_module, "checks", lambda vlm: right(vlm, only=names))


def test_without_a_model_nothing_is_loaded():
    result = doctor()
    assert result.exit_code == 0
    assert "disk" in result.output and "what is compared" not in result.output


def test_the_table_is_aligned_and_no_wider_than_it_says():
    result = doctor(*MODEL, "--dtype", "float32", "--max-pixels", "40000")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    head = next(line for line in lines if line.startswith("status"))
    table = lines[lines.index(head):lines.index("", lines.index(head))]
    assert all(len(line) <= TABLE_WIDTH for line in table)
    starts = [head.index(title) for title in ("what is compared", "measured", "limit")]
    rows = [line for line in table[2:] if not line.startswith(" ")]
    assert len(rows) == 19 and all(line[start - 1] == " " and line[start] != " " for line in rows for start in starts)
    assert "4,096 to 40,000 pixels" in result.stdout
    shown = re.search(r"vlm = (load_vlm\(.*\))", result.stdout)[1]
    assert eval(shown, {"load_vlm": lambda name, **given: (name, given)}) == ("tiny:qwen3_vl", {
        "dtype": "float32", "device_map": "cpu", "attention": "sdpa", "max_pixels": 40000})


def test_a_failed_check_is_one_line_on_stderr_and_status_3(few_checks, monkeypatch):
    right = recorder._mass
    monkeypatch.setattr(recorder, "_mass", lambda *call: right(*call) * 1.5)
    result = doctor(*MODEL)
    assert result.exit_code == 3
    errors = [line for line in result.stderr.splitlines() if line.startswith("rekey:")]
    assert len(errors) == 1 and errors[0].startswith("rekey: tiny:qwen3_vl: tap = softmax of the kernel's q, k: ")
    assert "expected 1.0e-05" in errors[0]
    assert "Refused" in result.stdout and "load_vlm" not in result.stdout


def test_half_precision_is_named_with_its_limit(few_checks):
    result = doctor(*MODEL, "--dtype", "bfloat16")
    assert result.exit_code == 0
    assert "bfloat16 on cpu" in result.stdout and "In bfloat16 the ways compared below" in result.stdout
    assert "2 notes" in result.stdout and "1 ok, 0 failed" in result.stdout


def test_options_of_a_model_need_a_model():
    result = doctor("--dtype", "float32", "--max-pixels", "40000")
    assert result.exit_code == 2
    assert "rekey: --dtype, --max-pixels: " in result.stderr and "add --model NAME" in result.stderr


def test_a_model_that_is_not_there_is_one_line_and_status_2(tmp_path):
    result = doctor("--model", str(tmp_path / "nothing"))
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1 and "no config.json there" in result.stderr


def test_help_shows_a_line_that_works_offline():
    assert "rekey doctor --model tiny:qwen3_vl" in doctor("--help").output
