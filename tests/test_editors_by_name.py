"""Editors by name: data that agrees with the classes, choices that are checked, and `rekey editors`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from editors.models import known
from experiments.cli import main
from experiments.cli_editors import WIDTH
from experiments.editors_by_name import (
    EDITORS,
    choices_from,
    editor_settings,
    licenses_to_mind,
    make_editor,
    modules_of,
)
from rekey.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
WITH_WEIGHTS = [name for name, entry in EDITORS.items() if entry.weights]
PAINTING = [name for name, entry in EDITORS.items() if entry.settings]


class NoPainter:
    """Stands where a model would."""


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """No weights of this machine."""
    from huggingface_hub import constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def run(*words: str):
    return CliRunner().invoke(main, ["editors", *words], catch_exceptions=False)


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_the_weights_of_the_table_are_those_that_are_used_and_are_known(name):
    settings = editor_settings(name)
    for setting, hub_id in EDITORS[name].weights:
        assert getattr(settings, setting) == hub_id
        assert known(hub_id) is not None
    left_out = {"base", "controlnet"} - {setting for setting, _ in EDITORS[name].weights}
    assert not any(getattr(settings, setting, None) for setting in left_out)


@pytest.mark.parametrize("name", PAINTING)
def test_an_editor_is_made_of_its_classes_with_the_settings_chosen(name):
    editor = make_editor(name, (("best_of", "3"),), NoPainter())
    assert editor.name == name
    assert isinstance(editor.painter, NoPainter)
    assert editor.best_of == editor.settings.best_of == 3
    assert editor.settings.batch_at(min(editor.canvases_px)) == editor.settings.batch_size
    assert editor.prompt and not getattr(type(editor), "__abstractmethods__", None)
    assert type(editor).__module__ in modules_of(name) and type(editor.settings).__module__ in modules_of(name)


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_a_missing_model_is_one_line_with_its_terms_and_how_to_get_it(name):
    with pytest.raises(InputError) as raised:
        make_editor(name).check()
    for (_, weights), line in zip(EDITORS[name].weights, raised.value.problems, strict=True):
        for text in (weights, "not in the local cache", known(weights).license.name, f"hf download {weights}"):
            assert text in line and "\n" not in line


def test_an_editor_is_made_once_per_process():
    assert make_editor("tiny-flux") is make_editor("tiny-flux", ())
    assert make_editor("tiny-flux") is not make_editor("tiny-flux", (("steps", "1"),))


@pytest.mark.parametrize("name, choices, said", [
    ("dalle", (), "--editor dalle: no such editor; there is classical, flux-canny"),
    ("classical", (("steps", "4"),), "--set steps=...: the classical editor has no settings"),
    ("flux-canny", (("step", "4"),), "--set step=...: no such setting of this editor; there is base"),
    ("flux-canny", (("steps", "many"),), "--set steps=many: expected a whole number"),
    ("flux-canny", (("steps", "4"), ("steps", "8")), "--set steps=...: given twice"),
    ("flux-canny", (("canvases_px", "500"),), "a canvas must be divisible by 16; the nearest is 496"),
])
def test_wrong_choices_are_named(name, choices, said):
    with pytest.raises(InputError, match=re.escape(said)):
        make_editor(name, choices)


def test_choices_are_pairs():
    assert choices_from(["steps=4", "base=models/a=b"]) == (("steps", "4"), ("base", "models/a=b"))
    for word in ("steps", "=4", "=", "steps="):
        with pytest.raises(InputError, match="expected KEY=VALUE"):
            choices_from([word])


def test_weights_that_are_chosen_are_not_built(tmp_path):
    from editors.tiny_flux import tiny_flux
    mine = tiny_flux(tmp_path / "mine", vae="clear")
    editor = make_editor("tiny-flux", (("base", str(mine.base)),))
    assert editor.settings.base == str(mine.base)
    assert editor.settings.controlnet != "random" and Path(editor.settings.controlnet).is_dir()
    editor.check()
    assert licenses_to_mind(editor) == []
    assert licenses_to_mind(make_editor("classical")) == []


def test_what_a_license_forbids_is_said_of_each_set_of_weights():
    class Described:
        def describe(self):
            return {"weights": {"base": {"id": "black-forest-labs/FLUX.1-dev"}, "other": {"id": "folder"},
                                "free": {"id": "black-forest-labs/FLUX.1-schnell"}}}
    (line,) = licenses_to_mind(Described())
    assert line.startswith("black-forest-labs/FLUX.1-dev: FLUX.1 [dev] Non-Commercial")
    assert "commercial" in line.partition("forbids")[2]


def test_the_table_lists_every_editor_and_fits_the_terminal():
    result = run()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert {line.split()[0] for line in lines if line and not line.startswith(" ")} >= set(EDITORS)
    assert max(map(len, lines)) <= WIDTH
    for name in WITH_WEIGHTS:
        for _, hub_id in EDITORS[name].weights:
            row = next(line for line in lines if f" {hub_id} " in line)
            assert ("non-commercial" in row) == (known(hub_id).license.forbids is not None)
            assert row.endswith("no")                                           # an empty cache


def test_the_table_and_classical_need_no_torch(tmp_path):
    """As where torch is not installed: the name leads to a module that cannot be imported."""
    for name in ("torch", "diffusers", "transformers"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    for words in ([], ["classical"]):
        shown = subprocess.run([sys.executable, "-m", "experiments.cli", "editors", *words], env=environment,
                               capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr


def test_what_workers_import_holds_no_torch():
    modules = {module for name in EDITORS for module in modules_of(name)}
    code = ("import sys, importlib, experiments.generate, experiments.preload\n"
            f"for module in {sorted(modules)}: importlib.import_module(module)\n"
            "print(sorted({'torch', 'diffusers', 'transformers'} & set(sys.modules)))")
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert shown.strip() == "[]" and len(modules) >= 3


def test_without_its_packages_an_editor_says_what_to_install(monkeypatch):
    import importlib.util
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "diffusers" else find(name))
    with pytest.raises(InputError, match=r"--editor flux-canny: diffusers not installed; .*pip install"):
        make_editor("flux-canny", (("steps", "7"),))


@pytest.mark.parametrize("name", [*WITH_WEIGHTS, "tiny-flux"])
def test_one_editor_shows_every_setting_with_its_meaning(name):
    result = run(name, "--set", "best_of=2")
    assert result.exit_code == (2 if EDITORS[name].weights else 0), result.output
    lines = result.stdout.splitlines()
    shown = {match[1]: match[2] for line in lines if (match := re.match(r"  (\w+)=(.*)", line))}
    settings = editor_settings(name)
    assert set(shown) == set(vars(settings))
    assert shown["best_of"] == "2"
    assert max(len(line) for line in lines if not line.strip().startswith("hf download")) <= WIDTH
    below = {line.split("=")[0].strip(): after for line, after in zip(lines, lines[1:]) if re.match(r"  \w+=", line)}
    without = [key for key, after in below.items() if not after.startswith("      ")]
    assert not without, f"no meaning is given of {without}"
    for _, hub_id in EDITORS[name].weights:
        assert f"      {known(hub_id).download()}" in lines
    if EDITORS[name].weights:
        assert result.stderr.startswith("rekey: ")
    else:
        assert "It can run here." in result.stdout


def test_settings_need_the_name_of_an_editor():
    result = run("--set", "steps=4")
    assert result.exit_code == 2
    assert "of which editor?" in result.output
