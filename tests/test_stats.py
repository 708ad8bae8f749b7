"""Tests and intervals against brute force, scipy, published counts, and simulation."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from rekey.stats import (
    Difficulty,
    binomial_sd,
    bootstrap_mean,
    drop_of_images,
    exchange_test,
    holm,
    mcnemar,
    mean_and_sd,
    power,
    proportion,
    simulated_p,
)


def drawn(seed: int, n: int, n_seeds: int, missing: float = 0.0):
    rng = np.random.default_rng(seed)
    chance = rng.beta(3, 1, n)
    original = (rng.random(n) < chance).astype(float)
    renewed = (rng.random((n, n_seeds)) < chance[:, None]).astype(float)
    renewed[rng.random(renewed.shape) < missing] = np.nan
    return original, renewed


# ------------------------------------------------------------------------------------ the main test

@pytest.mark.parametrize("seed", range(6))
def test_the_exact_test_is_what_counting_all_places_of_the_original_gives(seed):
    original, renewed = drawn(seed, 5, 2, missing=0.2)
    rows = [[o, *r[~np.isnan(r)]] for o, r in zip(original, renewed) if not np.isnan(r).all()]
    observed = sum(row[0] for row in rows)
    # Given an image's answers, every one of them is equally likely to be the original's.
    sums = [(sum(picks), math.prod(1 / len(row) for row in rows)) for picks in itertools.product(*rows)]
    assert exchange_test(original, renewed).p == pytest.approx(sum(w for total, w in sums if total >= observed))


@pytest.mark.parametrize("only_original, only_relabel, p", (
    (43, 12, 3.31e-5), (35, 14, 0.0038), (59, 23, 8.72e-5), (49, 14, 1.11e-5), (43, 10, 5.55e-6), (55, 20, 6.49e-5),
    (48, 26, 0.0141), (59, 41, 0.0886)))
def test_with_one_seed_it_is_mcnemars_exact_test(only_original, only_relabel, p):
    original = np.array([1.0] * only_original + [0.0] * only_relabel + [1.0] * 60)
    renewed = np.array([0.0] * only_original + [1.0] * only_relabel + [1.0] * 60)[:, None]
    test = exchange_test(original, renewed)
    assert (test.only_original, test.only_renewed) == (only_original, only_relabel)
    assert test.p_two_sided == pytest.approx(mcnemar(only_original, only_relabel), rel=1e-9)
    assert test.p_two_sided == pytest.approx(p, rel=0.01)                # ReKey's logs, original against relabel
    n = only_original + only_relabel
    assert test.p == pytest.approx(scipy_stats.binomtest(only_original, n, alternative="greater").pvalue)


def test_a_paired_t_test_is_another_test():
    assert mcnemar(7, 1) == pytest.approx(0.0703, abs=1e-4)
    assert mcnemar(7, 1, mid_p=True) == pytest.approx(0.0391, abs=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_the_interval_holds_the_drop_and_agrees_with_the_test(seed):
    original, renewed = drawn(seed, 40, 3, missing=0.1)
    original[:seed] = 1                         # from no drop to a large one
    test = exchange_test(original, renewed)
    assert test.low <= test.drop <= test.high
    assert (test.low > 0 or test.high < 0) == (test.p_two_sided <= 0.05)
    wide = exchange_test(original, renewed, level=0.99)
    assert wide.low < test.low and wide.high > test.high and wide.p == test.p


def test_the_interval_covers_what_is_true_of_these_images():
    rng = np.random.default_rng(3)
    chance = rng.beta(3, 1, 80)
    remembered = chance + 0.4 * (1 - chance)
    truth = float((remembered - chance).mean())
    covered = 0
    for _ in range(300):
        test = exchange_test((rng.random(80) < remembered).astype(float),
                             (rng.random((80, 3)) < chance[:, None]).astype(float))
        covered += test.low <= truth <= test.high
    assert covered / 300 >= 0.92


def test_false_alarms_keep_to_the_level_and_power_is_that_of_the_table():
    """Images of Beta(3, 1), n = 191; 3 standard deviations of 1,000 runs beside 3 points."""
    rng = np.random.default_rng(0)
    for n_seeds, found in ((1, 0.34), (3, 0.42), (10, 0.51)):
        assert (simulated_p(191, n_seeds, 0.0, rng, 1000) <= 0.05).mean() <= 0.05 + 3 * 0.0069
        assert abs(power(191, n_seeds, 0.05, rng, 1000).value - found) <= 0.03 + 3 * 0.0156


def test_pooling_the_pairs_of_several_seeds_would_raise_false_alarms():
    rng = np.random.default_rng(5)
    pooled = 0
    for _ in range(300):
        original, renewed = drawn(int(rng.integers(1 << 30)), 191, 3)
        b, c = ((original[:, None] == 1) & (renewed == 0)).sum(), ((original[:, None] == 0) & (renewed == 1)).sum()
        pooled += scipy_stats.binomtest(int(b), int(b + c), alternative="greater").pvalue <= 0.05
    assert pooled / 300 > 0.07          # 11.5% in 1,500 runs


def test_simulated_p_is_that_of_the_test():
    rng = np.random.default_rng(7)
    (p,) = simulated_p(50, 3, 0.1, rng, 1)
    rng = np.random.default_rng(7)
    chance = rng.beta(3, 1, (1, 50))
    right = rng.binomial(3, chance)[0]
    original = ((rng.random((1, 50)) < chance) | (rng.random((1, 50)) < 0.4))[0].astype(float)
    renewed = (np.arange(3) < right[:, None]).astype(float)
    assert p == pytest.approx(exchange_test(original, renewed).p)


def test_difficulty_is_found_again():
    rng = np.random.default_rng(8)
    chance = rng.beta(3, 1, 4000)
    found = Difficulty.of((rng.random((4000, 3)) < chance[:, None]).astype(float))
    assert found.a / (found.a + found.b) == pytest.approx(0.75, abs=0.02)
    assert found.a + found.b == pytest.approx(4, rel=0.15)
    one_seed = Difficulty.of((rng.random((200, 1)) < 0.6).astype(float))
    assert one_seed.a + one_seed.b == 4
    assert Difficulty.of(np.ones((5, 3))).a > 0 and Difficulty.of(np.full((5, 3), np.nan)).b > 0


# --------------------------------------------------------------------------------------- intervals

def test_bca_is_scipys():
    values = np.random.default_rng(1).choice([1, 2 / 3, 1 / 3, 0, -1 / 3, -1], 191, p=[.1, .1, .1, .5, .1, .1])
    ours = bootstrap_mean(values, np.random.default_rng(2), n_draws=20_000)
    theirs = scipy_stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa",
                                   rng=np.random.default_rng(3)).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.004) and ours.high == pytest.approx(theirs.high, abs=0.004)
    assert ours.value == pytest.approx(values.mean())


def test_bca_leans_to_the_side_of_the_long_tail_as_scipys_does():
    values = np.array([0.0] * 40 + [1.0] * 4 + [3.0] * 2)
    ours = bootstrap_mean(values, np.random.default_rng(0), n_draws=20_000)
    theirs = scipy_stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa",
                                   rng=np.random.default_rng(1)).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.025)


def test_the_drop_of_images_leaves_out_what_was_not_answered():
    original = np.array([1, 1, 0, np.nan, 1])
    renewed = np.array([[1, 0], [np.nan, 0], [0, 0], [1, 1], [np.nan, np.nan]])
    found = drop_of_images(original, renewed, np.random.default_rng(0))
    assert found.n == 3 and found.value == pytest.approx((0.5 + 1 + 0) / 3)
    assert exchange_test(original, renewed).drop == pytest.approx(found.value)


def test_wilson_is_the_textbooks():
    half = proportion(5, 10)
    assert (half.value, round(half.low, 4), round(half.high, 4)) == (0.5, 0.2366, 0.7634)
    none = proportion(0, 20)
    assert none.low == 0 and none.high == pytest.approx(0.1611, abs=1e-4)


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, None, 0.9]) == [1.0, None, 1.0] and holm([]) == []


def test_mean_and_sd_of_seeds():
    assert mean_and_sd([0.7, 0.8, 0.9]) == (pytest.approx(0.8), pytest.approx(0.1))
    assert mean_and_sd([0.7]) == (0.7, None) and mean_and_sd([]) == (None, None)
    assert binomial_sd(0.75, 191) == pytest.approx(0.0313, abs=1e-4) and binomial_sd(None, 5) is None


# -------------------------------------------------------------------------------------- degenerate

@pytest.mark.parametrize("original, renewed", (
    (np.zeros(0), np.zeros((0, 3))), (np.ones(5), np.ones((5, 3))), (np.zeros(5), np.zeros((5, 1))),
    (np.ones(5), np.zeros((5, 3))), (np.zeros(5), np.ones((5, 1))), (np.full(3, np.nan), np.ones((3, 2))),
    (np.ones(4), np.full((4, 2), np.nan)), (np.ones(1), np.zeros((1, 1))), (np.ones(2), np.zeros((2, 0)))))
def test_degenerate_data_give_numbers_or_nothing(original, renewed):
    with np.errstate(all="raise"):
        test = exchange_test(original, renewed)
        estimate = drop_of_images(original, renewed, np.random.default_rng(0), n_draws=200)
    text = json.dumps([vars(test), vars(estimate)], allow_nan=False)
    assert "NaN" not in text and (test.p is None) == (test.n == 0)
    assert test.p is None or 0 < test.p <= 1 and 0 < test.p_two_sided <= 1
    if test.n:
        assert test.low <= test.drop <= test.high


def test_no_p_is_zero():
    test = exchange_test(np.ones(3000), np.zeros((3000, 2)))
    assert 0 < test.p < 1e-300 and 0 < test.p_two_sided and 0 < mcnemar(3000, 0) < 1e-300


def test_nothing_counted_is_none():
    assert proportion(0, 0) == proportion(0, 0) and proportion(0, 0).value is None
    assert mcnemar(0, 0) == 1.0
    constant = bootstrap_mean(np.full(9, 0.25), np.random.default_rng(0))
    assert (constant.low, constant.value, constant.high) == (0.25, 0.25, 0.25)


def test_many_images_take_no_time():
    original, renewed = drawn(0, 12_500, 3)
    test = exchange_test(original, renewed)
    assert test.n == 12_500 and test.low < test.drop < test.high
