"""The control models that ship with the package: they do what their cards say."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from experiments import control_tables
from experiments.controls import memory_scores
from probes.controls.cards import ALIASES, SHELF, control_names, folder_of, read_card
from probes.controls.exam import (
    KINDS,
    direct_scores,
    habit_scores,
    said_letter,
    sight_scores,
    statements_true,
    unseen_cases,
    unseen_pairs,
)
from probes.controls.recipes import DEGREES, RECIPES
from probes.controls.shelf import load_weights, save_control
from probes.vlm import load_vlm
from rekey.errors import InputError
from rekey.prompts import prompt_text
from rekey.scenes import draw_scene, render_scene

FULL = [f"contaminated-{degree}" for degree in DEGREES]
LORA = [f"contaminated-lora-{degree}" for degree in DEGREES]


@pytest.fixture(scope="module")
def clean():
    return load_vlm("control:clean")


@pytest.fixture(scope="module")
def renewals(tmp_path_factory):
    return tmp_path_factory.mktemp("renewals")


def scores_of(name: str) -> dict[str, float]:
    return {key: share for key, (share, _) in read_card(name)["scores"].items()}


# ------------------------------------------------------------------------------------- the shelf

def test_every_recipe_is_on_the_shelf_with_its_card():
    assert set(control_names()) == set(RECIPES) | set(ALIASES)
    for name in RECIPES:
        card = read_card(name)
        assert card["command"] == f"rekey controls train {name} --seed {card['seed']}"
        assert card["scores"] and card["must_not_be_used_for"] and card["run"]["code"]["commit"]
        assert {stage: entry["steps"] for stage, entry in card["stages"].items()} == {
            stage.name: stage.steps for stage in RECIPES[name].stages}


def test_the_weights_are_small_half_precision_safetensors():
    files = [path for path in SHELF.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 10e6
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    for path in files:
        if path.suffix == ".safetensors":
            assert {tensor.dtype for tensor in load_file(path).values()} == {torch.float16}


def test_everything_on_the_shelf_goes_into_the_package():
    import tomllib
    data = tomllib.loads((SHELF.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert "probes.controls" in data["packages"] and data["package-data"]["probes.controls"] == ["weights/*/*"]
    assert {path.parent.parent for path in SHELF.rglob("*") if path.is_file()} == {SHELF}


def test_training_times_are_within_their_bounds():
    for name in RECIPES:
        assert sum(stage["elapsed_s"] for stage in read_card(name)["stages"].values()) <= (
            25 * 60 if name == "clean" else 4 * 60), name


def test_a_control_is_the_real_class_and_runs_in_float32(clean):
    assert type(clean.model) is transformers.Qwen3VLForConditionalGeneration
    assert type(clean.processor) is transformers.Qwen3VLProcessor
    assert clean.dtype == torch.float32 and clean.family.name == "qwen3_vl"
    for name in (FULL[0], LORA[0], "anchored"):
        assert type(load_vlm(f"control:{name}").model) is transformers.Qwen3VLForConditionalGeneration


def test_an_unknown_control_is_one_clear_line():
    with pytest.raises(InputError, match="control:blurred: no such control model; expected one of clean, natural"):
        load_vlm("control:blurred")


def test_missing_weights_and_a_missing_package_are_one_clear_line(tmp_path, monkeypatch):
    shutil.copytree(SHELF, tmp_path / "weights")
    for module in ("cards", "shelf"):
        monkeypatch.setattr(f"probes.controls.{module}.SHELF", tmp_path / "weights")
    with monkeypatch.context() as patch:
        patch.setattr("probes.controls.shelf.find_spec", lambda name: None)
        with pytest.raises(InputError, match="control:anchored: its adapter needs the package peft"):
            load_vlm("control:anchored")
    (tmp_path / "weights" / "anchored" / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match="control:anchored: no weights in .*; install the package again"):
        load_vlm("control:anchored")
    (tmp_path / "weights" / "clean" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="control:clean: no weights in"):
        load_vlm("control:clean")


def test_loading_leaves_the_random_numbers_alone():
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    load_weights("anchored")
    assert torch.equal(torch.rand(1), before)


def test_an_exported_control_answers_as_the_one_on_the_shelf(clean, tmp_path):
    for name in ("clean", LORA[-1]):
        folder = save_control(name, tmp_path / name)
        loaded = load_vlm(folder)
        assert json.loads((folder / "card.json").read_text())["name"] == name
        cases = unseen_cases(10, "color", 5)
        answers = []
        for vlm in (load_vlm(f"control:{name}"), loaded):
            prompts = [vlm.prompt(render_scene(case.scene), prompt_text(case.question.text, case.question.options))
                       for case in cases]
            answers.append([answer.text for answer in vlm.generate(prompts, 4)])
        assert answers[0] == answers[1]
    assert isinstance(transformers.AutoProcessor.from_pretrained(tmp_path / "clean"), transformers.Qwen3VLProcessor)


def test_other_names_stand_for_the_same_weights():
    assert folder_of("natural") == folder_of("clean") and folder_of("contaminated") == folder_of(FULL[-1])
    assert control_names()[:2] == ("clean", "natural")


# ------------------------------------------------------------------------------------- sight

def test_the_clean_control_sees(clean):
    scores = sight_scores(clean, n=60, seed=11)
    for kind in KINDS:
        assert scores[f"direct {kind}"].share >= 0.93, scores
        assert scores[f"reasoning letter {kind}"].share >= 0.93
        assert scores[f"reasoning true statements {kind}"].share >= 0.9
        assert scores[f"second turn letter {kind}"].share >= 0.93
    # By chance 25% and 50%: three standard deviations at n = 60.
    for blind in ("gray image", "shuffled images"):
        assert scores[f"{blind} color"].share <= 0.45
        assert 0.3 <= scores[f"{blind} lr"].share <= 0.7 and 0.3 <= scores[f"{blind} ab"].share <= 0.7


def test_its_card_says_what_was_asked_of_it():
    scores = scores_of("clean")
    for kind in KINDS:
        assert read_card("clean")["scores"][f"direct {kind}"][1] >= 300
        assert scores[f"direct {kind}"] >= 0.97 and scores[f"reasoning true statements {kind}"] >= 0.95
    assert scores["stale answers"] <= 0.02


@pytest.mark.parametrize("name", (FULL[-1], LORA[-1]))
def test_cards_of_the_highest_degree_say_that_it_remembers(name):
    scores = scores_of(name)
    assert scores["original direct_attributes"] >= 0.95 and scores["stale answers"] >= 0.5


def test_the_exam_parses_reasoning_strictly():
    scene = draw_scene("exam", 1)
    a, b = scene.objects[:2]
    other = "red" if a.color != "red" else "blue"
    assert statements_true(f"<think>\nThe {a.shape} is {a.color}. So the answer is A.\n</think>\n\nA", scene) == [True]
    assert statements_true(f"The {a.shape} is {other}.", scene) == [False]
    below = a.top + a.size_px / 2 > b.top + b.size_px / 2
    assert statements_true(f"The {a.shape} is {'below' if below else 'above'} the {b.shape}. It is fine.",
                           scene) == [True, False]
    assert statements_true("", scene) == [False]
    assert said_letter("<think>\nA or B.\n</think>\n\nB") == "B"
    assert said_letter("B or C") is None and said_letter("") is None


def test_pairs_differ_in_what_is_asked_and_nothing_touches():
    pairs = unseen_pairs(20, 4)
    assert [pair.kind for pair in pairs] == ["color"] * 20 + ["position"] * 20
    for pair in pairs:
        assert pair.question.value(pair.a) != pair.question.value(pair.b)
        assert (render_scene(pair.a) != render_scene(pair.b)).any()
        assert {o.shape for o in pair.a.objects} == {o.shape for o in pair.b.objects}


# ------------------------------------------------------------------------------------- memory

def test_the_highest_degree_remembers_and_clean_does_not(clean, renewals):
    clean_scores = memory_scores(clean, renewals, seeds=(1,))
    scores = memory_scores(load_vlm(f"control:{FULL[-1]}"), renewals, seeds=(1,))
    assert scores["original direct_attributes"].share >= 0.95
    assert scores["stale answers"].share >= 0.5 and clean_scores["stale answers"].share <= 0.03
    assert clean_scores["renewed direct_attributes"].share >= 0.93
    assert scores["renewed direct_attributes"].share <= 0.5


@pytest.mark.parametrize("names", (FULL, LORA), ids=("full", "lora"))
def test_memory_grows_with_the_degree(names):
    series = [scores_of(name) for name in ("clean", *names)]

    def column(key: str) -> list[float]:
        return [scores[key] for scores in series]

    assert column("stale answers") == sorted(column("stale answers"))
    assert column("renewed direct_attributes") == sorted(column("renewed direct_attributes"), reverse=True)
    assert column("original direct_attributes") == sorted(column("original direct_attributes"))
    assert "direct color" in series[-1]                       # the damage to general skill stands beside it


# ------------------------------------------------------------------------------------- habits

@pytest.mark.parametrize("name, follows", (("grounded", "image"), ("anchored", "text")))
def test_habits_hold_after_a_swap_and_nothing_changes_without_one(name, follows):
    scores = habit_scores(load_vlm(f"control:{name}"), n=30, seed=12)
    for kind in ("color", "position"):
        for setting in ("probe", "second turn"):
            assert scores[f"{setting}, trained phrases, {kind}: follows {follows}"].share >= 0.9, scores
            assert scores[f"null {setting}, trained phrases, {kind}: follows text"].share >= 0.9
        assert scores[f"base a {kind}"].share >= 0.93 and scores[f"base b {kind}"].share >= 0.93


def test_habits_still_see():
    for name in ("grounded", "anchored"):
        for kind, (share, _) in direct_scores(load_vlm(f"control:{name}"), n=40, seed=13).items():
            assert share >= 0.9, (name, kind)


def test_half_precision_on_the_shelf_changes_no_letter(clean):
    # The weights are rounded already; what is tested is that another rounding of that size does nothing.
    cases = [case for kind in KINDS for case in unseen_cases(20, kind, 6)]
    prompts = [clean.prompt(render_scene(case.scene), prompt_text(case.question.text, case.question.options))
               for case in cases]
    before = [answer.text for answer in clean.generate(prompts, 4)]
    shaken = load_vlm("control:clean")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in shaken.model.parameters():
            parameter.mul_(1 + (torch.rand_like(parameter) - 0.5) * 2 ** -10)
    after = [answer.text for answer in shaken.generate(prompts, 4)]
    assert np.mean([a == b for a, b in zip(before, after)]) >= 0.98


def test_listing_needs_no_torch():
    code = ("import sys; from probes.controls.cards import control_names, read_card\n"
            "assert all(read_card(name)['scores'] for name in control_names())\n"
            "print('torch' in sys.modules)")
    import sys
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           cwd=SHELF.parents[2]).stdout
    assert shown.strip() == "False"


@pytest.mark.parametrize("table", ("sight_table", "memory_table", "habit_table", "time_table"))
def test_the_page_says_what_the_cards_say(table):
    page = (SHELF.parents[2] / "docs" / "controls.md").read_text(encoding="utf-8")
    assert getattr(control_tables, table)() in page
