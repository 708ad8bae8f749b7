"""`rekey probe`: what it asks for, what it prints, and what it does with pairs that cannot be used."""

import re

import pytest
from click.testing import CliRunner
from swapping import FAST, Lines, write_scene_pairs

from experiments.cli import main
from experiments.cli_probe import layer_numbers, null_line, phrases, probe, steered, words
from experiments.swap_cells import TRIGGER, probe_cells
from experiments.swap_tables import NullCheck
from probes.phrases import REFLECTIONS
from rekey.errors import InputError
from rekey.store import read_jsonl, write_jsonl

pytestmark = pytest.mark.xdist_group("cli_probe")          # one worker makes what its tests share

N_PAIRS, MODEL = 4, "control:anchored"


def run(*options, exit_code=0):
    result = CliRunner().invoke(main, ["probe", *map(str, options)], catch_exceptions=False, prog_name="rekey")
    assert result.exit_code == exit_code, result.output
    return result


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_scene_pairs(folder, N_PAIRS)
    return folder


@pytest.fixture(scope="module")
def probed(pairs, tmp_path_factory):
    """The folder of trials, and what was printed."""
    out = tmp_path_factory.mktemp("probed")
    return out, run("--pairs", pairs, "--model", MODEL, "--out", out, *FAST, "--triggers", "1,3")


def test_it_says_what_it_will_do_and_what_to_type_next(probed, pairs):
    out, result = probed
    # base a and b; two probes, multi-turn and stripped, each with its null swap and without a swap
    assert f"Probing {MODEL}: {N_PAIRS} pairs x {2 + 4 * 3} cells, into {out / 'trials.jsonl'}" in result.output
    assert f"{N_PAIRS * 14} trials: 0 done before, {N_PAIRS * 14} now, 0 failed" in result.output
    assert "one by one the trials would have taken" in result.output
    assert f"rekey attend --trials {out} --model {MODEL} --out {out / 'traces'}" in result.output
    assert f"rekey plot {out}\n" in result.output


def test_the_table_counts_the_lines(probed):
    out, result = probed
    lines = Lines(out / "trials.jsonl")
    row = next(line for line in result.output.splitlines() if line.startswith("probe "))
    shown = [float(number) for number in re.findall(r"([\d.]+) \[", row)]
    texts = [lines.share(MODEL, "a", place="reasoning", phrase=phrase) for phrase in (REFLECTIONS[0], TRIGGER)]
    images = [lines.share(MODEL, "b", place="reasoning", phrase=phrase) for phrase in (REFLECTIONS[0], TRIGGER)]
    assert shown[:2] == pytest.approx([100 * sum(images) / 2, 100 * sum(texts) / 2], abs=0.05)
    assert f"  {N_PAIRS}  " in row                                  # pairs, though it holds two phrases


def test_null_swaps_are_counted_and_said_to_be_null_or_not(probed):
    _, result = probed
    assert f"exactly null, {4 * N_PAIRS} of {4 * N_PAIRS} the same as no swap" in result.output
    assert "\nnull swap, probe" not in result.output                # it would repeat the row of no swap
    assert "NOT exactly null, 3 of 4" in null_line("splice", NullCheck(4, 3, 1))


def test_the_same_line_again_asks_nothing(probed, pairs):
    out, _ = probed
    before = (out / "trials.jsonl").read_bytes()
    again = run("--pairs", pairs, "--model", MODEL, "--out", out, *FAST, "--triggers", "1,3")
    assert f"{N_PAIRS * 14} done before, 0 now" in again.output and (out / "trials.jsonl").read_bytes() == before


def test_bad_pairs_are_listed_and_the_rest_runs(pairs, tmp_path):
    lines = list(read_jsonl(pairs / "pairs.jsonl"))
    for name in ("0a.png", "0b.png"):
        (tmp_path / name).write_bytes((pairs / name).read_bytes())
    write_jsonl(tmp_path / "pairs.jsonl", [lines[0], lines[1]])
    options = ("--model", MODEL, "--out", tmp_path / "out", *FAST, "--conditions", "base")
    result = run("--pairs", tmp_path, *options, exit_code=3)
    assert "left out: " in result.stderr and "restore the file" in result.stderr
    assert "1 pairs x 2 cells" in result.stdout and "base, image b" in result.stdout
    write_jsonl(tmp_path / "pairs.jsonl", [lines[1]])
    assert "restore the file" in run("--pairs", tmp_path, *options, exit_code=2).stderr


@pytest.mark.parametrize(("options", "problem"), [
    (("--conditions", "base,prob"), "--conditions: 'prob'; expected some of base, probe"),
    (("--regime", "copy"), "--regime: 'copy'; expected some of recompute, splice, none"),
    (("--triggers", "0"), "expected numbers from 1 to 10"),
    (("--steer-layers", "2"), "give --steer a dose"),
    (("--instruction", " "), "--instruction: is empty"),
    (("--steer", "1", "--steer-layers", "5-2"), "such as 10-20,25"),
    (("--greedy", "--seeds", "0,1"), "several make no difference at temperature 0"),
    (("--temperature", "inf"), "--temperature: inf; expected a number"),
    (("--steer", "1", "--steer-layers", "0-9999999999"), "expected numbers and ranges from 0")])
def test_what_cannot_be_meant_is_refused_in_one_line(options, problem, pairs, tmp_path):
    result = run("--pairs", pairs, "--model", MODEL, "--out", tmp_path, *options, exit_code=2)
    assert problem in result.output and result.output.count("\n") == 1
    assert not (tmp_path / "trials.jsonl").exists()


def test_triggers_are_numbers_all_or_texts():
    assert phrases(["1, 3"]) == (REFLECTIONS[0], REFLECTIONS[2])
    assert phrases(["all"]) == REFLECTIONS
    assert phrases(["3", "Let me see."]) == (REFLECTIONS[2], "Let me see.")
    with pytest.raises(InputError, match="empty text"):
        phrases([" "])


def test_layers_are_numbers_and_ranges():
    assert layer_numbers("10-12, 3,11") == (3, 10, 11, 12) and layer_numbers(None) == ()


def test_names_are_taken_once_and_in_order():
    assert words("probe, base,probe", ("base", "probe"), "--conditions") == ("probe", "base")


def test_every_dose_is_a_run_of_all_cells_and_dose_zero_names_no_layers():
    cells = steered(probe_cells(), (0.0, 2.0), (1, 2))
    assert [(cell.log_bias, cell.layers) for cell in cells] == [(0.0, ()), (2.0, (1, 2))]


def test_every_option_says_its_default_or_that_it_is_needed():
    for option in probe.params:
        told = option.required or option.is_flag or option.show_default or "[default: " in option.help
        optional = option.name in ("pairs", "shard", "revision")
        assert option.help and (told or optional), option.name
