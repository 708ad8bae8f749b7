"""`rekey controls`: list, card, export, train, score."""

import dataclasses
import functools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import experiments.controls
from experiments.cli import main
from probes.controls.cards import control_names
from probes.controls.recipes import RECIPES, Stage, lessons_of_habit, lessons_to_talk, scenes_to_see
from probes.controls.talk import Habit
from probes.vlm import load_vlm
from rekey.store import read_jsonl

ROOT = Path(__file__).resolve().parents[1]
SHORT = {
    "clean": (Stage("see", 3, 1e-3, functools.partial(scenes_to_see, n=2), vision_only=True),
              Stage("talk", 3, 1e-3, functools.partial(lessons_to_talk, steps=3, n=2))),
    "anchored": (Stage("habit", 3, 1e-3, functools.partial(lessons_of_habit, habit=Habit("anchored", 0.5), n=2)),),
    "contaminated-20": (dataclasses.replace(RECIPES["contaminated-20"].stages[0], steps=3),),
}


def run(*arguments: str):
    return CliRunner().invoke(main, ["controls", *arguments], catch_exceptions=False)


@pytest.fixture
def short(monkeypatch):
    """Recipes of a few steps, trained in one process, examined on a few scenes."""
    for name, stages in SHORT.items():
        monkeypatch.setitem(RECIPES, name, dataclasses.replace(RECIPES[name], stages=stages))
    monkeypatch.setattr(experiments.controls, "train", functools.partial(experiments.controls.train, n_workers=1))
    monkeypatch.setattr(experiments.controls, "habit_scores", functools.partial(experiments.controls.habit_scores, n=2))
    monkeypatch.setattr(experiments.controls, "memory_scores",
                        functools.partial(experiments.controls.memory_scores, seeds=()))


def test_the_list_names_every_control_and_its_scores():
    result = run("list")
    assert result.exit_code == 0
    for name in control_names():
        assert f"control:{name} " in result.output and f"control:{name}: " in result.output
    assert max(map(len, result.output.splitlines())) <= 120


def test_a_card_is_json():
    assert json.loads(run("card", "control:clean").output)["name"] == "clean"
    result = run("card", "nobody")
    assert result.exit_code == 2 and "expected one of clean" in result.output


def test_export_refuses_a_folder_with_something_in_it(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("x")
    result = run("export", "clean", "--out", str(tmp_path / "model"))
    assert result.exit_code == 2 and "exists and is not empty" in result.output


@pytest.mark.parametrize("name", SHORT)
def test_training_writes_a_checkpoint_the_weights_to_ship_and_a_card(name, short, tmp_path):
    out = tmp_path / name
    result = run("train", name, "--out", str(out), "--n", "2")
    assert result.exit_code == 0, result.output
    assert all(f"stage {stage.name}: " in result.output for stage in SHORT[name])
    card = json.loads((out / "card.json").read_text())
    assert card["command"] == f"rekey controls train {name} --seed 0" and card["start"] == RECIPES[name].start
    assert {stage: entry["steps"] for stage, entry in card["stages"].items()} == {s.name: 3 for s in SHORT[name]}
    assert [line["stage"] for line in read_jsonl(out / "training.jsonl")] == [s.name for s in SHORT[name]]
    shipped = {path.name for path in (out / "shelf").iterdir()}
    assert shipped == {"clean": {"model.safetensors", "scaffold.safetensors", "card.json"},
                       "anchored": {"adapter_model.safetensors", "adapter_config.json", "card.json"},
                       "contaminated-20": {"model.safetensors", "card.json"}}[name]
    vlm = load_vlm(out)
    assert sum(p.numel() for p in vlm.model.parameters()) == sum(
        p.numel() for p in load_vlm("control:clean").model.parameters())
    assert not (out / "checkpoint.safetensors").exists()


def test_a_training_killed_at_any_point_leaves_the_journal_of_one_that_was_not(short, tmp_path, monkeypatch):
    def killed(*_: object, **__: object):
        raise KeyboardInterrupt

    monkeypatch.setattr("probes.controls.training.REPORT_EVERY", 1)
    run("train", "anchored", "--out", str(tmp_path / "straight"), "--n", "2")
    with monkeypatch.context() as patch:
        patch.setattr(experiments.controls, "examine", killed)
        assert run("train", "anchored", "--out", str(tmp_path / "killed"), "--n", "2").exit_code == 75
    assert (tmp_path / "killed" / "checkpoint.safetensors").exists()
    assert run("train", "anchored", "--out", str(tmp_path / "killed"), "--n", "2").exit_code == 0
    lines = [[{**line, "elapsed_s": 0} for line in read_jsonl(tmp_path / name / "training.jsonl")]
             for name in ("straight", "killed")]
    assert lines[0] == lines[1] and len(lines[0]) == 3
    weights = "shelf/adapter_model.safetensors"
    assert (tmp_path / "straight" / weights).read_bytes() == (tmp_path / "killed" / weights).read_bytes()


def test_only_the_weights_that_differ_are_shipped(short, tmp_path):
    from safetensors.torch import load_file
    run("train", "contaminated-20", "--out", str(tmp_path / "x"), "--n", "2")
    names = load_file(tmp_path / "x" / "shelf" / "model.safetensors")
    assert names and all("language_model" in name and "embed" not in name for name in names)


def test_a_name_without_a_recipe_is_refused(tmp_path):
    result = run("train", "natural", "--out", str(tmp_path / "x"))
    assert result.exit_code == 2 and "no recipe; expected one of clean, grounded" in result.output


@pytest.mark.slow
def test_two_processes_stopped_by_a_signal_go_on_where_they_were(tmp_path):
    command = [sys.executable, "-m", "experiments.cli", "controls", "train", "contaminated-20", "--n", "2", "--out",
               str(tmp_path / "x")]
    first = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    began = time.time()
    journal = tmp_path / "x" / "training.jsonl"
    while time.time() - began < 120 and not (journal.exists() and journal.read_text().count("\n")):
        time.sleep(0.2)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=60)
    if first.returncode == 0:
        pytest.skip("it was done before it was stopped")
    assert first.returncode == 75, said
    assert "run the same line again" in said and "steps done" in said
    assert (tmp_path / "x" / "checkpoint.safetensors").exists()
