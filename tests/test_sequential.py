"""Looks after every seed: their covariance, their levels, and how often they are found by luck."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from rekey.errors import InputError
from rekey.sequential import MAX_LOOKS, SPENDING, false_alarms, levels, looks
from rekey.stats import Difficulty, exchange_test, p_of_counts


def correlation(n_looks):
    """Of the tests after 1, 2, ... seeds: the root of the smaller over the larger information s / (s + 1)."""
    information = np.arange(1, n_looks + 1) / np.arange(2, n_looks + 2)
    return np.sqrt(np.minimum.outer(information, information) / np.maximum.outer(information, information))


def crossing(found):
    """The chance that a normal statistic crosses at any look, by scipy's multivariate normal."""
    bounds = scipy_stats.norm.isf(found)
    inside = scipy_stats.multivariate_normal(np.zeros(len(found)), correlation(len(found)), allow_singular=True)
    return 1 - inside.cdf(bounds, rng=np.random.default_rng(0)) if len(found) > 1 else found[0]


def test_the_covariance_of_the_looks_is_that_of_a_brownian_motion():
    """U_s: what the original has more than the mean of all s + 1; over 60,000 draws of 5 images."""
    rng = np.random.default_rng(0)
    chance, n_runs, n_seeds = np.array([0.2, 0.5, 0.7, 0.9, 0.95]), 60_000, 5
    answers = rng.random((n_runs, n_seeds + 1, 5)) < chance[:, None].T
    u = np.stack([(answers[:, 0] - answers[:, :s + 1].mean(1)).sum(1) for s in range(1, n_seeds + 1)])
    spread = (chance * (1 - chance)).sum()
    s = np.arange(1, n_seeds + 1)
    information = s / (s + 1)
    assert np.cov(u) / spread == pytest.approx(np.minimum.outer(information, information), abs=0.02)


@pytest.mark.parametrize("spending", SPENDING)
@pytest.mark.parametrize("n_planned", (None, 3, 5))
def test_levels_spend_what_they_may_and_no_more(spending, n_planned):
    found = levels(3, n_planned, spending)
    last = 1.0 if n_planned is None else n_planned / (n_planned + 1)
    for n_looks in (1, 2, 3):
        spent = SPENDING[spending](n_looks / (n_looks + 1) / last, 0.05)
        assert crossing(found[:n_looks]) == pytest.approx(spent, abs=2e-4)
    assert crossing(found) <= 0.05 + 2e-4


def test_all_planned_looks_together_spend_the_level():
    for spending in SPENDING:
        assert crossing(levels(4, 4, spending)) == pytest.approx(0.05, abs=3e-4)
        assert levels(1, 1, spending) == [pytest.approx(0.05)]


def test_looks_without_end_keep_something_for_later():
    """By simulation of the Brownian motion, not of our grid; 3 standard deviations of 40,000 paths."""
    rng = np.random.default_rng(1)
    s = np.arange(1, 61)
    information = s / (s + 1)
    steps = np.sqrt(np.diff(information, prepend=0))
    paths = np.cumsum(rng.standard_normal((40_000, 60)) * steps, 1) / np.sqrt(information)
    crossed = (paths >= scipy_stats.norm.isf(levels(60))).any(1).mean()
    spent = SPENDING["pocock"](60 / 61, 0.05)
    assert crossed == pytest.approx(spent, abs=3 * np.sqrt(0.05 * 0.95 / 40_000)) and spent < 0.05
    assert levels(60)[:3] == pytest.approx(levels(3), abs=1e-12)            # an early look knows of no later one


def test_a_hundred_looks_are_all_positive_levels():
    found = levels(MAX_LOOKS)
    assert len(found) == 100 and all(0 < level < 0.05 for level in found)
    assert all(level < 0.05 for level in levels(MAX_LOOKS, MAX_LOOKS, "obrien-fleming"))


def test_obrien_fleming_is_strict_first_and_lenient_last():
    found, even = levels(5, 5, "obrien-fleming"), levels(5, 5)
    assert found[0] < even[0] and found[-1] > even[-1] and found == sorted(found)


@pytest.mark.parametrize("n_looks, n_planned", ((3, None), (4, 4)))
def test_false_alarms_with_exact_p_keep_to_the_level(n_looks, n_planned):
    """3 standard deviations of 400 runs."""
    found = false_alarms(100, n_looks, np.random.default_rng(2), n_planned, n_runs=400)
    assert found.n == 400 and found.value <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert false_alarms(100, n_looks, np.random.default_rng(2), n_planned, n_runs=60, drop=0.2).value > 0.9


def test_looking_at_the_full_level_every_time_would_raise_false_alarms():
    rng = np.random.default_rng(3)
    n_found, n_runs = 0, 1000
    for _ in range(n_runs):
        chance = rng.beta(3, 1, 191)
        answers = (rng.random((191, 11)) < chance[:, None]).astype(int)
        n_found += any(p_of_counts(answers[:, 0], answers[:, :s + 1].sum(1), s) <= 0.05 for s in range(1, 11))
    assert n_found / n_runs > 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_runs)


def test_a_look_is_the_exact_test_of_the_seeds_so_far():
    rng = np.random.default_rng(4)
    chance = Difficulty(3, 1)
    m = rng.beta(chance.a, chance.b, 80)
    original, renewed = np.ones(80), (rng.random((80, 4)) < m[:, None]).astype(float)
    renewed[rng.random(renewed.shape) < 0.1] = np.nan
    found = looks(original, renewed)
    assert [look.n_seeds for look in found] == [1, 2, 3, 4] and [look.level for look in found] == levels(4)
    for look in found:
        test = exchange_test(original, renewed[:, :look.n_seeds])
        assert (look.p, look.drop, look.found) == (test.p, test.drop, test.p <= look.level)
    assert found[-1].found


def test_a_seed_without_answers_is_a_look_without_a_finding():
    found = looks(np.ones(3), np.array([[np.nan, 0], [np.nan, 0], [np.nan, 0]]))
    assert (found[0].p, found[0].drop, found[0].found) == (None, None, False) and found[1].p == pytest.approx(1 / 8)


@pytest.mark.parametrize("words, message", (
    ({"n_looks": 0}, "looks: 0 seeds"), ({"n_looks": 3, "n_planned": 2}, "looks: 3 seeds, 2 planned"),
    ({"n_looks": 101}, "expected 1 to 100"), ({"n_looks": 3, "n_planned": 500}, "expected 1 to 100"),
    ({"n_looks": 1, "n_planned": 0}, "looks: 1 seeds, 0 planned"),
    ({"n_looks": 2, "spending": "linear"}, "spending 'linear': expected pocock, obrien-fleming"),
    ({"n_looks": 2, "alpha": 0.0}, "alpha 0.0: expected"), ({"n_looks": 2, "alpha": 1.0}, "alpha 1.0: expected")))
def test_bad_arguments_are_one_clear_line(words, message):
    with pytest.raises(InputError, match=message):
        levels(**words)
