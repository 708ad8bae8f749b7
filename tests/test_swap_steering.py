"""The dose curve of steering: dose 0 is no steering, its numbers are those of the lines, its layers are the model's."""

from __future__ import annotations

import pytest
from probing import refused, tiny_vlm
from swapping import FAST, run_experiment, table, write_scene_pairs

from experiments.swap_steering import check_layers, layers_of, layers_text
from rekey.errors import InputError
from rekey.trials import read_trials

pytestmark = pytest.mark.xdist_group("swap_steering")          # one worker makes what its tests share

MODEL = "control:anchored"


@pytest.fixture(scope="module")
def steered(tmp_path_factory):
    out = tmp_path_factory.mktemp("steering")
    write_scene_pairs(out / "pairs", 4)
    run_experiment("swap_steering", "--pairs", out / "pairs", "--model", MODEL, "--out", out, "--doses", "0,8",
                   "--layers", "all", *FAST)
    return out


def test_every_dose_has_its_own_trials_of_probe_base_and_null_swap(steered):
    cells = {trial.cell for trial in read_trials(steered / "trials.jsonl")}
    for dose in (0.0, 8.0):
        own = {(cell.place, cell.image, cell.regime) for cell in cells if (cell.log_bias, cell.layers) == (dose, ())}
        assert own >= {("base", "b", "recompute"), ("reasoning", "b", "recompute"), ("reasoning", "a", "recompute"),
                       ("reasoning", "a", "none")}
    assert ("base", "a") not in {(cell.place, cell.image) for cell in cells if cell.log_bias}


def test_the_table_counts_the_lines_and_damage_is_against_no_dose(steered):
    rows = [row for row in table(steered) if row["pairs"] == "all"]
    trials = read_trials(steered / "trials.jsonl")
    for row, dose in zip(rows, (0.0, 8.0), strict=True):
        assert float(row["dose"]) == dose and row["null_identical"] == row["null_n"] == "4"
        for place, column in (("reasoning", "probe"), ("base", "base_b")):
            own = [trial for trial in trials
                   if (trial.cell.place, trial.cell.image, trial.cell.log_bias) == (place, "b", dose)]
            right = sum(trial.second.finish == "stop" and trial.second.text[-1] == trial.pair.answer_b for trial in own)
            assert len(own) == 4 and float(row[column]) == right / 4
    assert float(rows[0]["base_b"]) == 1 and float(rows[0]["damage"]) == 0
    assert float(rows[1]["damage"]) == pytest.approx(float(rows[1]["base_b"]) - float(rows[0]["base_b"]))
    assert float(rows[1]["damage"]) < 0                         # e^8 on every image token: nothing else is read


def test_the_figure_and_table_are_made_again_from_the_lines_alone(steered):
    before = (steered / "table.csv").read_bytes()
    run_experiment("swap_steering", "--out", steered, "--show", "--doses", "0,8")
    assert (steered / "table.csv").read_bytes() == before


@pytest.mark.parametrize(("family", "middle", "few"), [("qwen3_vl", (2,), (1, 2)), ("qwen3_5", (3,), (3,))])
def test_layers_are_the_models_own_and_have_attention(family, middle, few):
    vlm = tiny_vlm(family)
    assert layers_of(vlm, "all") == () and layers_of(vlm, "middle") == middle
    name = f"{few[0]}-{few[-1]}"
    assert layers_of(vlm, name) == few and layers_text(few) in (name, str(few[0]))
    with refused("has no such layers"):
        layers_of(vlm, "70-80")
    for bad in ("top", "1,2", "-3", "", "2-"):
        with pytest.raises(InputError, match="expected middle, all, or layers"):
            check_layers(bad)
