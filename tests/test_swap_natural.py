"""Swaps at reflections of the model's own: a known case is counted by hand, and a model without any has no numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from swapping import FAST, run_experiment, table, write_scene_pairs

from experiments.probe import FIRST, ProbeJob, engine_of, probe, trials_file
from probes.backends import ModelSpec
from probes.phrases import REFLECTIONS
from probes.protocol import continue_cells
from probes.trial_rows import Case
from rekey import store
from rekey.evaluate import Settings
from rekey.records import to_json
from rekey.trials import Cell, read_trials

MODEL = "control:grounded"
SETTINGS = Settings(prompt="cot", temperature=0.1, max_new_tokens=40)
REFLECTING = (0, 2)             # of four pairs
PROBE = Cell("reasoning", phrase=REFLECTIONS[1])


@pytest.fixture(scope="module")
def reflecting(tmp_path_factory):
    """A folder in which two of four first answers go on behind a phrase of their own, and what was injected there."""
    out = tmp_path_factory.mktemp("natural")
    pairs = write_scene_pairs(out / "pairs", 4)
    vlm = engine_of(ModelSpec(MODEL))
    probe(ProbeJob(out / "pairs", ModelSpec(MODEL), out, (FIRST,), SETTINGS, rows_at_once=200), vlm=vlm)
    trials = read_trials(trials_file(out))
    injected = {}
    for number in REFLECTING:
        first = trials[number].second
        case = Case.of(vlm, pairs[number], out / "pairs", SETTINGS)
        greedy = replace(SETTINGS, temperature=0.0)
        own, swapped = continue_cells(vlm, [(case, first.token_ids, [replace(PROBE, image="a", regime="none"), PROBE])],
                                      greedy).said
        ids = (*own.row.prompt.ids[own.row.n_asked:], *own.generation.token_ids)
        trials[number] = replace(trials[number], second=replace(first, token_ids=ids, text=vlm.text_of(ids)))
        injected[pairs[number].pair_id] = swapped.generation.token_ids
    store.write_jsonl(trials_file(out), map(to_json, trials))
    run_experiment("swap_natural", "--pairs", out / "pairs", "--model", MODEL, "--out", out, *FAST)
    return out, injected


def of(rows: list[dict], what: str, pairs: str = "all") -> dict:
    (row,) = (row for row in rows if row["what"] == what and row["pairs"] == pairs)
    return row


def test_a_natural_swap_says_what_the_same_phrase_says_when_it_is_put_in(reflecting):
    out, injected = reflecting
    natural = {trial.pair.pair_id: trial for trial in read_trials(trials_file(out)) if trial.cell == Cell("natural")}
    assert {pair: trial.second.token_ids for pair, trial in natural.items() if trial.second} == injected
    assert [bool(trial.skipped) for trial in natural.values()] == [False, True, False, True]


def test_the_table_counts_answers_sentences_and_tokens(reflecting):
    out, injected = reflecting
    rows, trials = table(out), read_trials(trials_file(out))
    assert float(of(rows, "answers with a visual reflection")["value"]) == 2 / 4
    kept = [trial.n_kept for trial in trials if trial.cell.place == "reasoning" and trial.cell.image == "b"]
    assert float(of(rows, "visual reflections per 1,000 tokens")["value"]) == pytest.approx(2000 / sum(kept), rel=1e-5)
    natural = [trial for trial in trials if trial.cell == Cell("natural") and trial.second]
    right = sum(trial.second.text[-1] == trial.pair.answer_b for trial in natural)
    assert float(of(rows, "accuracy there, natural")["value"]) == right / 2
    assert int(of(rows, "accuracy there, probe")["n"]) == int(of(rows, "accuracy there, base")["n"]) == 2
    sentences = (out / "reflections.csv").read_text().splitlines()
    assert len(sentences) == 3 and all(REFLECTIONS[1] in line for line in sentences[1:])
    assert "2 of 2 identical" in (out / "table.md").read_text()
    before = (out / "table.csv").read_bytes()
    run_experiment("swap_natural", "--out", out, "--show")
    assert (out / "table.csv").read_bytes() == before


def test_a_model_that_never_says_it_has_a_prevalence_and_no_accuracy(tmp_path):
    write_scene_pairs(tmp_path / "pairs", 2)
    result = run_experiment("swap_natural", "--pairs", tmp_path / "pairs", "--model", MODEL, "--out", tmp_path, *FAST)
    assert "0 of 2 answers say by themselves" in result.output
    rows = table(tmp_path)
    assert float(of(rows, "answers with a visual reflection")["value"]) == 0
    assert of(rows, "accuracy there, natural")["value"] == "" and of(rows, "accuracy there, natural")["n"] == "0"
    assert (tmp_path / "figure.png").stat().st_size > 1000
