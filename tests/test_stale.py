"""The test of stale answers: its level, what it conditions on, its power, and its deals."""

import itertools

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchmarks.audit_tests import naive_stale_p
from rekey import stale
from rekey.stale import Pick, stale_test

COLORS = ("white", "red", "blue", "green", "black", "brown")
UNEVEN = np.array([8, 1, 2, 1, 3, 0.5])


def picks_of(rng, n, weights=UNEVEN, pull=1.0, old_weights=None):
    """Wrong answers whose pick depends on the colors; the old one draws `pull` times what its color does."""
    found = []
    for _ in range(n):
        options = rng.choice(len(COLORS), 3, replace=False)
        likely = np.ones(3) if old_weights is None else old_weights[options]
        old = rng.choice(options, p=likely / likely.sum())
        drawn = weights[options] * np.where(options == old, pull, 1.0)
        picked = rng.choice(options, p=drawn / drawn.sum())
        found.append(Pick(tuple(COLORS[n] for n in options), COLORS[old], COLORS[picked]))
    return found


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(stale, "N_CHAINS", 99)


@pytest.mark.parametrize("old_weights", (None, UNEVEN[::-1], UNEVEN))
def test_false_alarms_keep_to_the_level_when_some_colors_draw_more_than_others(quick, old_weights):
    """Old colors are drawn evenly, or mostly those that draw least, or most.  3 standard deviations of 250 runs."""
    rng = np.random.default_rng(1)
    p = np.array([stale_test(picks_of(rng, 30, old_weights=old_weights), 60, rng).p for _ in range(250)])
    for level in (0.05, 0.2):
        assert (p <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / 250)
    assert (p <= 0.2).mean() >= 0.1             # and it is no test that never finds anything


def test_counting_each_answer_for_all_of_its_options_would_raise_false_alarms(quick):
    """Where old colors are often those that draw: an answer to the old one is also none to the placebo beside it."""
    rng = np.random.default_rng(2)
    naive, ours = [], []
    for _ in range(120):
        picks = picks_of(rng, 60, old_weights=UNEVEN)
        naive.append(naive_stale_p(picks) <= 0.05)
        ours.append(stale_test(picks, 90, rng).p <= 0.05)
    assert np.mean(naive) > 0.15 > np.mean(ours) + 0.04


def test_an_old_color_that_draws_three_times_as_much_is_found(quick):
    rng = np.random.default_rng(3)
    found = [stale_test(picks_of(rng, 60, pull=4.0), 100, rng) for _ in range(40)]
    assert np.mean([one.p <= 0.05 for one in found]) >= 0.8
    assert np.mean([one.rate_of_wrong - one.expected for one in found]) > 0.1


def test_a_model_that_loves_white_has_no_stale_answers_for_it():
    """White is the old color of most items, and picked wherever it is offered; 1 of 3 options would cry wolf."""
    rng = np.random.default_rng(4)
    picks = []
    for n in range(120):
        others = [str(color) for color in rng.choice(COLORS[1:], 2, replace=False)]
        picks.append(Pick(("white", *others), "white" if n < 100 else others[0], "white"))
    found = stale_test(picks, 150, rng)
    assert (found.n_items, found.n_wrong, found.n_stale) == (150, 120, 100)
    assert found.p == 1.0 and found.expected == pytest.approx(100 / 120) == found.rate_of_wrong
    assert scipy_stats.binomtest(100, 120, 1 / 3, alternative="greater").pvalue < 1e-9


def deals(picks):
    """All ways to deal the picked colors to the items that offered them."""
    colors = sorted(pick.picked for pick in picks)
    return [deal for deal in sorted(set(itertools.permutations(colors)))
            if all(color in pick.options for color, pick in zip(deal, picks))]


TINY = (
    [Pick(("red", "blue", "white"), "red", "red"), Pick(("red", "blue", "white"), "blue", "white"),
     Pick(("red", "blue", "white"), "white", "blue")],
    [Pick(("red", "blue"), "red", "red"), Pick(("red", "blue", "white"), "white", "white"),
     Pick(("blue", "white"), "blue", "white"), Pick(("red", "blue", "white"), "red", "blue")],
    [Pick(("red", "blue", "green"), "red", "red"), Pick(("red", "green", "white"), "green", "green"),
     Pick(("red", "white", "green"), "red", "white"), Pick(("blue", "green", "red"), "blue", "red")])


@pytest.mark.parametrize("picks", TINY)
def test_the_deals_are_drawn_evenly(picks, monkeypatch):
    monkeypatch.setattr(stale, "N_CHAINS", 20_000)
    every = [sum(color == pick.old for color, pick in zip(deal, picks)) for deal in deals(picks)]
    drawn = stale._redealt(picks, np.random.default_rng(5))
    for n_stale in range(len(picks) + 1):
        share = every.count(n_stale) / len(every)
        assert (drawn == n_stale).mean() == pytest.approx(share, abs=4 * np.sqrt(0.25 / 20_000))
    observed = sum(pick.picked == pick.old for pick in picks)
    exact = sum(n >= observed for n in every) / len(every)
    test = stale_test(picks, 10, np.random.default_rng(6))
    assert test.p == pytest.approx(exact, abs=0.02)
    assert test.expected == pytest.approx(np.mean(every) / len(picks), abs=0.01)


def test_a_pick_that_no_other_item_offered_stays_where_it_is():
    picks = [Pick(("red", "blue"), "red", "red"), Pick(("green", "white"), "white", "white")]
    found = stale_test(picks, 2, np.random.default_rng(0))
    assert found.p == 1.0 and found.expected == 1.0


def test_without_wrong_answers_or_items_there_is_nothing_to_test():
    none = stale_test([], 7, np.random.default_rng(0))
    assert (none.n_items, none.n_wrong, none.rate) == (7, 0, 0)
    assert none.rate_of_wrong is none.expected is none.p is None
    assert stale_test([], 0, np.random.default_rng(0)).rate is None
    alone = stale_test([Pick(("red", "blue"), "red", "red")], 1, np.random.default_rng(0))
    assert (alone.rate, alone.p) == (1.0, 1.0)


def test_thousands_of_answers_take_a_moment_and_p_is_never_zero():
    rng = np.random.default_rng(7)
    found = stale_test(picks_of(rng, 5000, pull=3.0), 9000, rng)
    assert 0 < found.p <= 1 / 200
