"""What all swap experiments do: ask what is missing, stop and go on, list what cannot be used, show without asking."""

import functools
import threading
from contextlib import contextmanager

import click
import pytest
from swapping import run_experiment, table, write_scene_pairs

import experiments.probe
from experiments.options import Listed
from experiments.probe import engine_of
from experiments.swap_cells import probe_cells
from experiments.swap_study import SwapStudy
from probes.backends import ModelSpec
from probes.protocol import Case
from rekey.errors import InputError
from rekey.evaluate import Settings
from rekey.store import read_jsonl, write_jsonl

N_PAIRS = 4
MODEL = ("--model", "control:grounded")
EXPERIMENT = "swap_difficulty"              # two trials a pair, the least there is
FAST = ("--prompt", "direct", "--max-new-tokens", "4")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_scene_pairs(folder, N_PAIRS)
    return folder


@pytest.fixture(autouse=True, scope="module")
def loaded_once():
    """One loading for all tests here; `engines` counts what a study asks for."""
    cached = functools.cache(engine_of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.probe, "engine_of", cached)
        yield


def run(out, *options, pairs=None, exit_code=0):
    given = ("--pairs", pairs) if pairs else ()
    return run_experiment(EXPERIMENT, *given, *options, *(FAST if pairs else ()), "--out", out, exit_code=exit_code)


def lines(out):
    return list(read_jsonl(out / "trials.jsonl"))


@pytest.fixture(scope="module")
def whole(pairs, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    run(out, *MODEL, "--pairs-at-once", 2, pairs=pairs)
    return out


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(pairs, whole, tmp_path, monkeypatch):
    stop = threading.Event()

    @contextmanager
    def stopping(given):
        yield given or stop

    real = experiments.probe.run_group

    def group_then_stop(vlm, group):
        stop.set()
        return real(vlm, group)

    with monkeypatch.context() as patch:
        patch.setattr(experiments.probe, "stop_requested", stopping)
        patch.setattr(experiments.probe, "run_group", group_then_stop)
        output = run(tmp_path, *MODEL, "--pairs-at-once", 2, pairs=pairs, exit_code=75).output
    assert "4 of 8 trials done" in output and len(lines(tmp_path)) == 4 and not (tmp_path / "table.csv").exists()
    run(tmp_path, *MODEL, "--pairs-at-once", 2, pairs=pairs)
    for file in ("trials.jsonl", "table.csv", "table.md", "figure.png"):
        assert (tmp_path / file).read_bytes() == (whole / file).read_bytes()


def test_asking_again_asks_nothing(pairs, whole, monkeypatch):
    before = (whole / "trials.jsonl").read_bytes()
    monkeypatch.setattr(experiments.probe, "engine_of", lambda model: pytest.fail("a model was loaded"))
    run(whole, *MODEL, "--pairs-at-once", 2, pairs=pairs)
    assert (whole / "trials.jsonl").read_bytes() == before


def test_limit_takes_the_first_pairs_and_the_rest_may_follow(pairs, tmp_path):
    run(tmp_path, *MODEL, "--limit", 2, pairs=pairs)
    assert {line["pair"]["pair_id"] for line in lines(tmp_path)} == {"p0", "p1"}
    assert table(tmp_path)[0]["n"] == "2"
    run(tmp_path, *MODEL, pairs=pairs)
    assert len(lines(tmp_path)) == 2 * N_PAIRS and table(tmp_path)[0]["n"] == str(N_PAIRS)
    run(tmp_path, "--show", "--limit", 3)
    assert table(tmp_path)[0]["n"] == "3"


def test_bad_pairs_are_listed_with_what_to_do_and_the_rest_runs(pairs, tmp_path):
    good = list(read_jsonl(pairs / "pairs.jsonl"))
    bad = [good[1] | {"answer_b": good[1]["answer_a"]}, good[2] | {"image_b": "gone.png"}]
    for name in "ab":
        for n in (0, 1, 2):
            (tmp_path / f"{n}{name}.png").write_bytes((pairs / f"{n}{name}.png").read_bytes())
    write_jsonl(tmp_path / "pairs.jsonl", [good[0], *bad])
    result = run(tmp_path / "out", *MODEL, pairs=tmp_path, exit_code=3)
    assert "left out: " in result.stderr and "both answers are" in result.stderr
    assert "gone.png; restore the file" in result.stderr and "2 pairs were left out" in result.stderr
    assert table(tmp_path / "out")[0]["n"] == "1"
    run(tmp_path / "out", "--show")


def test_trials_that_failed_are_counted_and_asked_again(pairs, tmp_path, monkeypatch):
    real = Case.of

    def refuses_one(vlm, pair, folder, settings):
        if pair.pair_id == "p1":
            raise InputError("pair p1: the disk is on fire")
        return real(vlm, pair, folder, settings)

    with monkeypatch.context() as patch:
        patch.setattr(Case, "of", refuses_one)
        result = run(tmp_path, *MODEL, pairs=pairs, exit_code=3)
    assert "the disk is on fire" in result.stderr and "2 trials failed" in result.stderr
    row = table(tmp_path)[0]
    assert (row["n"], row["n_errors"]) == (str(N_PAIRS - 1), "2")
    run(tmp_path, *MODEL, pairs=pairs)
    assert (table(tmp_path)[0]["n"], table(tmp_path)[0]["n_errors"]) == (str(N_PAIRS), "0")


def test_two_ways_of_asking_are_not_mixed(pairs, whole):
    result = run(whole, *MODEL, "--greedy", pairs=pairs, exit_code=2)
    assert "temperature 0.1 (now 0.0)" in result.output and "another --out" in result.output


def test_show_says_which_cells_are_not_there(whole, tmp_path):
    result = run_experiment("swap_main", "--show", "--trials", whole, "--out", tmp_path, exit_code=2)
    assert "no trials of control:grounded for probe" in result.output and "null swap, probe" in result.output
    assert "base" not in result.output.partition(" for ")[2]
    assert "no such file" in run(tmp_path, "--show", exit_code=2).output
    assert "no trials of other" in run(whole, "--show", "--model", "other", exit_code=2).output


def test_show_takes_no_pairs_that_were_made_anew_for_the_old_ones(whole, tmp_path):
    stored = lines(whole)
    anew = [line | {"key": f"new {line['key']}", "pair": line["pair"] | {"sha256_a": "0" * 64}} for line in stored[:2]]
    write_jsonl(tmp_path / "trials.jsonl", [*stored, *anew])
    assert "pairs of one id with several images" in run(tmp_path, "--show", exit_code=2).output


def test_pairs_and_a_model_are_needed_unless_stored_lines_are_shown(pairs, tmp_path):
    assert "--pairs: is needed" in run(tmp_path, *MODEL, exit_code=2).output
    assert "--model: is needed" in run(tmp_path, pairs=pairs, exit_code=2).output


def test_seeds_are_runs_of_the_same_pairs(pairs, tmp_path):
    run(tmp_path, *MODEL, "--seeds", "0,1", "--temperature", 30, pairs=pairs)
    assert [line["settings"]["seed"] for line in lines(tmp_path)].count(1) == 2 * N_PAIRS
    assert table(tmp_path)[0]["n"] == str(N_PAIRS)                  # pairs, not answers
    said = {seed: [line["second"]["token_ids"] for line in lines(tmp_path) if line["settings"]["seed"] == seed]
            for seed in (0, 1)}
    assert said[0] != said[1]
    run(tmp_path, "--show", "--seeds", "1")
    assert run(tmp_path, *MODEL, "--seeds", "0,1", "--greedy", pairs=pairs, exit_code=2)


def test_a_model_is_loaded_once_for_all_that_a_study_asks(pairs, tmp_path, monkeypatch):
    loaded = []
    real = experiments.probe.engine_of
    monkeypatch.setattr(experiments.probe, "engine_of", lambda model: (loaded.append(model), real(model))[1])
    spec = ModelSpec("control:grounded")
    study = SwapStudy(tmp_path, pairs, (spec,), Settings("direct", None, 4, 0.1), (0,), limit=2)
    graded = study.run(())["control:grounded"]
    assert {one.trial.cell.condition for one in graded} == {"base"} and len(graded) == 4
    cell = probe_cells()[0]
    assert [one.trial.cell for one in study.run([cell])["control:grounded"]].count(cell) == 2
    study.engine(spec)
    assert loaded == [spec]


@pytest.mark.parametrize(("given", "expected"), [("0,25,100", (0, 25, 100)), ("5,5", (5,)), ("-1", None), ("101", None),
                                                 ("", None), ("a", None), ("nan", None)])
def test_numbers_between_commas_are_checked(given, expected):
    kind = Listed(float, 0, 100)
    if expected is None:
        with pytest.raises(click.BadParameter, match="expected numbers from 0 to 100"):
            kind.convert(given, None, None)
    else:
        assert kind.convert(given, None, None) == expected
