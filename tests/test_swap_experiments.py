"""The swap experiments on two controls, of which one looks and one does not: tables against a count of the lines."""

import functools
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats
from swapping import CONTROLS, FAST, Lines, run_experiment, table, write_scene_pairs

from experiments.probe import engine_of
from experiments.swap_cells import INSTRUCTION, TRIGGER
from experiments.swap_difficulty import equally_hard
from experiments.swap_retention import trend
from experiments.swap_tables import (
    Change,
    answers_of,
    change,
    groups,
    holm_by_group,
    mean_difference,
    null_check,
    right,
    share,
    unread,
    valid_pairs,
)
from experiments.swap_triggers import spread_of, spread_test
from probes.backends import ModelSpec
from probes.phrases import REFLECTIONS
from rekey.records import Generation, SwapPair
from rekey.stats import mcnemar
from rekey.trials import Cell, GradedTrial, SwapTrial

pytestmark = pytest.mark.xdist_group("swap_experiments")          # one worker makes what its tests share

N_PAIRS = 6
GROUNDED, ANCHORED = "control:grounded", "control:anchored"
PHRASES = (REFLECTIONS[2], REFLECTIONS[6])
EXPERIMENTS = {"swap_main": ("--regimes", "recompute,splice"), "swap_difficulty": (), "swap_multiturn": (),
               "swap_retention": ("--retention", "0,50,100"),
               "swap_triggers": [word for phrase in PHRASES for word in ("--phrase", phrase)]}


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """All experiments on the same trials, each in a folder of its own; `trials` holds the lines."""
    folder = tmp_path_factory.mktemp("studies")
    write_scene_pairs(folder / "pairs", N_PAIRS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.probe.engine_of", functools.cache(engine_of))        # five experiments, one loading
        for name, own in EXPERIMENTS.items():
            run_experiment(name, "--pairs", folder / "pairs", *CONTROLS, *FAST, *own, "--trials", folder / "trials",
                           "--out", folder / name)
    return folder


@pytest.fixture(scope="module")
def lines(studies):
    return Lines(studies / "trials" / "trials.jsonl")


def rows_of(studies, name, **wanted):
    return [row for row in table(studies / name) if all(row[key] == value for key, value in wanted.items())]


# ----------------------------------------------------------------------------- what the lines say

def test_the_main_table_counts_the_lines(studies, lines):
    for row in table(studies / "swap_main"):
        if row["pairs"] == "all":
            category = None if row["category"] == "all" else row["category"]
            probe = {"place": "reasoning", "phrase": TRIGGER, "regime": row["regime"]}
            assert int(row["n"]) == (N_PAIRS if category is None else N_PAIRS // 2)
            assert float(row["base_b"]) == pytest.approx(lines.share(row["model"], "b", category), abs=1e-5)
            assert float(row["probe"]) == pytest.approx(lines.share(row["model"], "b", category, **probe), abs=1e-5)
            assert float(row["follows_text"]) == pytest.approx(lines.share(row["model"], "a", category, **probe),
                                                               abs=1e-5)
            assert float(row["change"]) == pytest.approx(float(row["probe"]) - float(row["base_b"]), abs=1e-5)
    assert len(rows_of(studies, "swap_main")) == 2 * 2 * 3 * 2         # models, regimes, categories, all and valid


def test_valid_pairs_are_those_right_on_both_images_alone(studies, lines):
    for row in rows_of(studies, "swap_main", pairs="valid", category="all", regime="recompute"):
        valid = set.intersection(*({line["pair"]["pair_id"] for line in lines.of(row["model"], image=side)
                                    if line["second"]["text"].strip()[-1] == line["pair"][f"answer_{side}"]}
                                   for side in "ab"))
        assert int(row["n"]) == len(valid) and float(row["base_b"]) == 1


def test_null_swaps_are_counted_token_for_token(studies, lines):
    for row in rows_of(studies, "swap_main", pairs="all", category="all"):
        cell = {"place": "reasoning", "phrase": TRIGGER, "image": "a"}
        ids = [{line["pair"]["pair_id"]: line["second"]["token_ids"]
                for line in lines.of(row["model"], **cell, regime=regime)} for regime in ("none", row["regime"])]
        assert len(ids[0]) == N_PAIRS
        assert int(row["null_identical"]) == sum(ids[0][pair] == ids[1][pair] for pair in ids[0]) == N_PAIRS
    assert (studies / "swap_main" / "table.md").read_text().count("12 of 12 identical token for token") == 2


def test_the_multiturn_table_counts_the_lines(studies, lines):
    cells = {"base": {}, "probe": {"place": "reasoning", "phrase": TRIGGER},
             "multi-turn": {"place": "user turn", "phrase": INSTRUCTION},
             "multi-turn, stripped": {"place": "user turn", "phrase": INSTRUCTION, "history": "stripped"},
             "answer removed": {"place": "user turn", "phrase": INSTRUCTION, "history": "removed"},
             "role: the user says the phrase": {"place": "user turn", "phrase": TRIGGER},
             "position: the phrase after the answer": {"place": "answer", "phrase": TRIGGER}}
    for model in (GROUNDED, ANCHORED):
        rows = {(row["condition"], row["against"]): row
                for row in rows_of(studies, "swap_multiturn", model=model, category="all", pairs="all")}
        for (name, _), row in rows.items():
            if name in cells:
                assert float(row["accuracy"]) == pytest.approx(lines.share(model, "b", **cells[name]), abs=1e-5)
        recovery = rows["multi-turn", "probe"]
        assert float(recovery["change"]) == pytest.approx(
            lines.share(model, "b", **cells["multi-turn"]) - lines.share(model, "b", **cells["probe"]), abs=1e-5)
        assert len(rows) == 5 + 7
    text = (studies / "swap_multiturn" / "table.md").read_text()
    assert "earlier turns: reasoning is kept (as multi-turn here)" in text


def test_the_retention_table_counts_the_lines_and_the_tokens(studies, lines):
    for row in rows_of(studies, "swap_retention", pairs="all", category="all"):
        cell = {"place": "reasoning", "phrase": TRIGGER, "kept": float(row["kept"])}
        assert float(row["accuracy"]) == pytest.approx(lines.share(row["model"], "b", **cell), abs=1e-5)
        assert float(row["follows_text"]) == pytest.approx(lines.share(row["model"], "a", **cell), abs=1e-5)
        n_kept = [line.get("n_kept", 0) for line in lines.of(row["model"], **cell)]
        assert float(row["n_tokens_kept"]) == np.median(n_kept)


def test_the_triggers_table_counts_the_lines(studies, lines):
    for model in (GROUNDED, ANCHORED):
        rows = {row["phrase"]: row for row in rows_of(studies, "swap_triggers", model=model, pairs="all",
                                                      category="all")}
        shares = [lines.share(model, "b", place="reasoning", phrase=phrase) for phrase in PHRASES]
        assert [float(rows[phrase]["accuracy"]) for phrase in PHRASES] == pytest.approx(shares, abs=1e-5)
        together = rows["all phrases"]
        assert float(together["accuracy"]) == pytest.approx(np.mean(shares), abs=1e-5)
        assert float(together["sd"]) == pytest.approx(np.std(shares, ddof=1), abs=1e-5)


# ------------------------------------------------------------------------ what they tell of models

def test_who_looks_and_who_does_not_are_told_apart(studies):
    main = {row["model"]: row for row in rows_of(studies, "swap_main", pairs="all", category="all", regime="recompute")}
    assert float(main[GROUNDED]["probe"]) > 0.8 and float(main[ANCHORED]["follows_text"]) > 0.9
    assert float(main[ANCHORED]["p"]) < 0.05 < float(main[GROUNDED]["p"])
    multi = {row["model"]: row for row in rows_of(studies, "swap_multiturn", pairs="all", category="all",
                                                  condition="multi-turn", against="probe")}
    assert float(multi[GROUNDED]["accuracy"]) > 0.9 and float(multi[ANCHORED]["accuracy"]) < 0.1
    retention = {(row["model"], float(row["kept"])): row for row in rows_of(studies, "swap_retention", pairs="all",
                                                                            category="all")}
    assert float(retention[ANCHORED, 0]["accuracy"]) > 0.5 and float(retention[ANCHORED, 1]["accuracy"]) < 0.1
    assert float(retention[ANCHORED, 1]["slope"]) < -0.2 < float(retention[GROUNDED, 1]["slope"])


def test_six_pairs_are_too_few_to_call_images_equally_hard(studies):
    for row in rows_of(studies, "swap_difficulty"):
        assert float(row["gap_low"]) <= float(row["gap"]) <= float(row["gap_high"])
        assert row["equally_hard"] == "not known"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_show_draws_the_same_again_without_a_model(name, studies, tmp_path, monkeypatch):
    monkeypatch.setattr(ModelSpec, "identity", lambda self: pytest.fail("a model was looked at"))
    if name == "swap_multiturn":
        shutil.copy(studies / name / "templates.json", tmp_path)
    run_experiment(name, "--show", *EXPERIMENTS[name], "--trials", studies / "trials", "--out", tmp_path)
    for file in ("table.csv", "table.md", "figure.png"):
        assert (tmp_path / file).read_bytes() == (studies / name / file).read_bytes()


# ------------------------------------------------------------------------- statistics on small arrays

def graded(pair, cell, is_right, seed=0, follows=None, outcome=None, tokens=(1,), category=None):
    trial = SwapTrial("key", SwapPair(pair, "a", "b", "q", ("x", "y"), "A", "B", category=category), "model",
                      {"seed": seed}, cell, second=Generation("B", tokens, 1, 1, (), "stop"))
    outcome = outcome or ("correct" if is_right else "wrong")
    return GradedTrial(trial, "B" if is_right else "A", "", outcome, follows or ("image" if is_right else "text"))


BASE, PROBE = Cell("base", image="b"), Cell("reasoning", phrase="x")


def answers(cell, by_pair):
    """by_pair: pair -> outcomes per seed; None is an error."""
    return answers_of([graded(pair, cell, value, seed, outcome="error" if value is None else None)
                       for pair, values in by_pair.items() for seed, value in enumerate(values)])[cell]


def test_one_answer_a_pair_gives_mcnemars_p():
    before = answers(BASE, {str(n): [n < 9] for n in range(12)})
    after = answers(PROBE, {str(n): [n < 2 or n == 11] for n in range(12)})
    found = change(before, after)
    assert (found.value, found.n) == (pytest.approx(-6 / 12), 12)
    assert found.p == pytest.approx(mcnemar(7, 1)) == pytest.approx(scipy_stats.binomtest(1, 8).pvalue)
    assert found.low < -0.5 < found.high < 0


def test_errors_leave_the_denominator_and_their_pair_the_comparison():
    before = answers(BASE, {"p": [True], "q": [None], "r": [True]})
    after = answers(PROBE, {"p": [False], "q": [True], "r": [True]})
    assert (share(before, right).value, share(before, right).n) == (1.0, 2)
    assert change(before, after).n == 2 and change(before, after).value == -0.5
    assert str(unread(before, after)) == "0 / 0 / 1"


def test_seeds_are_averaged_within_their_pair():
    found = share(answers(PROBE, {"p": [True, True, False, False], "q": [True]}), right)
    assert (found.value, found.n) == (0.75, 2)                       # not 3 of 5
    before = answers(BASE, {"p": [True, True], "q": [True, False]})
    after = answers(PROBE, {"p": [False, None], "q": [False, False]})
    found = change(before, after)                                    # p: -1 of its one common seed; q: -1/2
    assert (found.value, found.n) == (-0.75, 2)
    assert found.p == pytest.approx(0.5)                             # sums -1 and -1: 2 of 4 sign patterns as far out


def test_a_difference_that_is_the_same_everywhere_has_an_interval_all_the_same():
    z = scipy_stats.norm.ppf(0.975)
    width = z * z / (10 + z * z)
    same, lost = mean_difference(np.zeros(10)), mean_difference(-np.ones(10))
    assert (same.low, same.high) == (pytest.approx(-width), pytest.approx(width))
    assert (lost.low, lost.high) == (-1, pytest.approx(-1 + 2 * width))
    # Tango's score statistic at that end, all of n pairs lost: n (1 - d) / (1 + d) = z^2 at d = 1 - 2 width.
    edge = 1 - 2 * width
    assert 10 * (1 - edge) / (1 + edge) == pytest.approx(z * z)


def test_groups_are_all_pairs_and_categories_with_their_valid_pairs():
    found = answers_of([graded(pair, Cell("base", image=side), value, category=pair[0])
                        for pair, values in {"c1": (1, 1), "c2": (1, 0), "d1": (1, 1)}.items()
                        for side, value in zip("ab", values)])
    assert valid_pairs(found) == {"c1", "d1"}
    shown = {(group.category, group.pairs): (group.ids, group.label) for group in groups(found)}
    assert shown == {("all", "all"): ({"c1", "c2", "d1"}, "all"), ("all", "valid"): ({"c1", "d1"}, "valid"),
                     ("c", "all"): ({"c1", "c2"}, "all"), ("c", "valid"): ({"c1"}, "valid"),
                     ("d", "all"): ({"d1"}, "all, valid"), ("d", "valid"): ({"d1"}, "")}


def test_a_null_swap_that_changes_a_token_is_no_null_swap():
    null = replace(PROBE, image="a")
    none = replace(null, regime="none")
    found = null_check([graded("p", none, True, tokens=(1, 2)), graded("p", null, True, tokens=(1, 3)),
                        graded("q", none, True), graded("q", null, True), graded("r", null, False)])
    assert (found.n, found.n_identical, found.n_changed, found.exact) == (2, 1, 0, False)


def test_holm_adjusts_within_each_family_alone():
    p = [0.01, 0.04, 0.03, 0.5]
    assert holm_by_group([("x", p[0]), (None, p[1]), ("x", p[2]), ("y", p[3])]) == [0.02, None, 0.03, 0.5]


def test_the_trend_is_the_slope_over_ranks_and_its_sign_flips():
    cells = [Cell("reasoning", kept=kept, phrase="x") for kept in (0, 0.5, 1)]
    by_pair = {"p": (1, 1, 0), "q": (1, 0, 0), "r": (1, 1, 0), "s": (0, 0, 1)}
    by_cell = {cell: answers(cell, {pair: [values[n]] for pair, values in by_pair.items()})
               for n, cell in enumerate(cells)}
    slope, p = trend(by_cell, cells)
    fitted = [np.polyfit(range(3), values, 1)[0] for values in by_pair.values()]
    assert slope == pytest.approx(np.mean(fitted))
    signs = np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1)
    assert p == pytest.approx(np.mean(np.abs(np.array(fitted) @ signs) >= abs(sum(fitted)) - 1e-9))


def test_the_spread_of_phrases_is_tested_against_every_exchange_within_pairs():
    values = np.array([[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]], float)
    orders = [np.array(list({(a, b, c) for a in row for b in row for c in row
                             if sorted((a, b, c)) == sorted(row)})) for row in values]
    spreads, weights = [], []
    for one in orders[0]:
        for two in orders[1]:
            for three in orders[2]:
                spreads.append((one + two + three + 1).var())
                weights.append(1)
    exact = np.average(np.array(spreads) >= values.sum(0).var() - 1e-9, weights=weights)
    assert spread_test(values, 20_000) == pytest.approx(exact, abs=0.01)
    assert spread_test(np.ones((5, 3))) == 1.0


def test_the_spread_expected_by_chance_is_that_of_exchanged_answers():
    rng = np.random.default_rng(0)
    values = (rng.random((12, 4)) < rng.random((12, 1))).astype(int)
    of_phrase = {str(n): answers(PROBE, {str(pair): [bool(values[pair, n])] for pair in range(12)}) for n in range(4)}
    found = spread_of(of_phrase)
    dealt = rng.permuted(np.broadcast_to(values, (20_000, 12, 4)), axis=2).mean(1)
    assert found.sd_same_pairs == pytest.approx(np.sqrt(dealt.var(1, ddof=1).mean()), rel=0.02)
    assert found.sd == pytest.approx(values.mean(0).std(ddof=1))
    p = values.mean()
    assert found.sd_one_sample == pytest.approx(np.sqrt(p * (1 - p) / 12)) and found.sd_one_sample > found.sd_same_pairs


@pytest.mark.parametrize(("low", "high", "verdict"), [(-0.04, 0.03, "yes"), (-0.06, 0.03, "not known"),
                                                      (-0.2, -0.06, "no"), (0.051, 0.2, "no")])
def test_equally_hard_is_where_the_whole_interval_is_small(low, high, verdict):
    assert equally_hard(Change((low + high) / 2, low, high, 0.9, 100), 0.05) == verdict
