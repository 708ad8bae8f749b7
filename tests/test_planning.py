"""What an audit can find, against simulation."""

import numpy as np
import pytest

from rekey.planning import MOST_IMAGES, SEEDS, approximate_power, plan
from rekey.stats import TYPICAL, Difficulty, power


@pytest.mark.parametrize("difficulty", (TYPICAL, Difficulty(2, 2)))
@pytest.mark.parametrize("n, n_seeds, drop", (
    (191, 1, 0.05), (191, 3, 0.1), (191, 10, 0.05), (500, 3, 0.05), (80, 2, 0.15)))
def test_the_normal_form_is_within_three_points_of_the_exact_test(difficulty, n, n_seeds, drop):
    """And 3 standard deviations of 800 runs."""
    exact = power(n, n_seeds, drop, np.random.default_rng(0), 800, difficulty=difficulty).value
    near = approximate_power(n, n_seeds, drop, difficulty)
    assert abs(near - exact) <= 0.03 + 3 * np.sqrt(exact * (1 - exact) / 800)


def test_power_rises_with_images_seeds_and_drop():
    for sizes in ([approximate_power(n, 3, 0.05, TYPICAL) for n in (20, 50, 100, 500, 2000)],
                  [approximate_power(191, seeds, 0.05, TYPICAL) for seeds in SEEDS],
                  [approximate_power(191, 3, drop, TYPICAL) for drop in (0.01, 0.03, 0.05, 0.1, 0.2)]):
        assert sizes == sorted(set(sizes)) and 0 < sizes[0] and sizes[-1] <= 1


def test_without_a_drop_there_is_no_more_power_than_the_level():
    assert all(approximate_power(n, seeds, 0.0, TYPICAL) <= 0.05 for n in (50, 191, 2000) for seeds in (1, 3, 10))


def answers(n, n_seeds, mean=0.75, seed=0):
    rng = np.random.default_rng(seed)
    chance = rng.beta(4 * mean, 4 * (1 - mean), n)
    return np.ones(n), (rng.random((n, n_seeds)) < chance[:, None]).astype(float)


def test_the_plan_of_an_audit_like_the_published_one():
    original, renewed = answers(191, 3)
    found, difficulty = plan(original, renewed), Difficulty.of(renewed)
    assert (found.n_images, found.n_seeds, list(found.power)) == (191, 3, ["5 pp", "10 pp"])
    assert found.power["5 pp"] == approximate_power(191, 3, 0.05, difficulty)
    assert found.power["5 pp"] == pytest.approx(0.42, abs=0.06)
    assert found.power["10 pp"] == pytest.approx(0.93, abs=0.05)
    assert approximate_power(191, 3, found.smallest_drop, difficulty) >= 0.8
    assert approximate_power(191, 3, found.smallest_drop - 0.005, difficulty) < 0.8
    assert approximate_power(found.images_needed, 3, 0.05, difficulty) >= 0.8
    assert approximate_power(round(0.9 * found.images_needed), 3, 0.05, difficulty) < 0.8
    assert found.seeds_needed is None                       # the luck of the one original instance stays


def test_a_large_benchmark_needs_no_more():
    found = plan(*answers(4000, 3))
    assert found.seeds_needed == 1 and found.images_needed < 1000 and found.smallest_drop <= 0.03


def test_images_without_an_answer_to_both_do_not_count():
    original, renewed = answers(100, 2)
    original[:10], renewed[10:30] = np.nan, np.nan
    assert plan(original, renewed).n_images == 70
    assert plan(np.full(5, np.nan), np.ones((5, 2))) is None and plan(np.zeros(0), np.zeros((0, 2))) is None


def test_a_benchmark_without_room_for_a_drop_has_no_power():
    found = plan(np.ones(50), np.ones((50, 3)))
    assert (found.power, found.smallest_drop, found.images_needed, found.seeds_needed) == ({}, None, None, None)
    assert list(plan(*answers(191, 3, mean=0.93)).power) == ["5 pp"]


@pytest.mark.parametrize("n, n_seeds, mean", ((1, 1, 0.75), (2, 3, 0.5), (191, 3, 0.02), (3000, 50, 0.5), (5, 1, 0.9)))
def test_any_size_gives_shares_and_counts_within_bounds(n, n_seeds, mean):
    with np.errstate(all="raise", under="ignore"):
        found = plan(*answers(n, n_seeds, mean))
    assert all(0 <= share <= 1 for share in found.power.values())
    assert found.images_needed is None or 10 <= found.images_needed <= MOST_IMAGES
    assert found.seeds_needed is None or found.seeds_needed in SEEDS


def test_a_plan_is_for_the_drop_that_is_asked_for():
    five, three = (plan(*answers(191, 3, mean=0.75), target=target) for target in (0.05, 0.03))
    assert three.images_needed > 2 * five.images_needed and three.target == 0.03
    assert list(three.power) == ["3 pp", "5 pp", "10 pp"] and three.power["5 pp"] == five.power["5 pp"]
    difficulty = Difficulty.of(answers(191, 3, mean=0.75)[1])
    assert approximate_power(three.images_needed, 3, 0.03, difficulty) >= 0.8
    assert approximate_power(int(0.9 * three.images_needed), 3, 0.03, difficulty) < 0.8
