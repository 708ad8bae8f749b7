"""Random choices that must never change between versions."""

import hashlib

import pytest

from rekey.draws import Draws


def test_words_are_those_of_sha256_over_parts_and_counter():
    state = hashlib.sha256(b"6:record3:7")
    blocks = [hashlib.sha256(b"6:record1:7" + b"/%d" % n).digest() for n in range(2)]
    expected = [int.from_bytes(block[i:i + 8], "big") for block in blocks for i in range(0, 32, 8)]
    draws = Draws("record", 7)
    assert [draws.word() for _ in range(8)] == expected
    assert state.digest() != blocks[0]


def test_a_published_seed_keeps_its_meaning():
    draws = Draws("record", "vstar_0001", 1, 0)
    assert [draws.below(11) for _ in range(8)] == PINNED
    assert Draws("a").shuffled("abcdef") == PINNED_SHUFFLE


PINNED = [7, 4, 7, 6, 8, 1, 0, 1]
PINNED_SHUFFLE = ["b", "e", "a", "f", "d", "c"]


def test_parts_are_kept_apart():
    assert Draws("a", "bc").word() != Draws("ab", "c").word()
    assert Draws("a", 1, 23).word() != Draws("a", 12, 3).word()


def test_choices_are_uniform_and_weights_are_kept():
    draws = Draws("uniformity")
    n = 11_000
    counts = [0] * 11
    for _ in range(n):
        counts[draws.below(11)] += 1
    chi2 = sum((c - n / 11) ** 2 / (n / 11) for c in counts)
    assert chi2 < 29.6                                   # 0.1% point of chi-square with 10 degrees
    picked = [draws.weighted("abc", (1, 0, 3)) for _ in range(8_000)]
    assert "b" not in picked
    assert abs(picked.count("c") / 8_000 - 0.75) < 0.02


def test_shuffles_reach_every_order_equally():
    draws = Draws("orders")
    orders = [tuple(draws.shuffled("abc")) for _ in range(6_000)]
    assert len(set(orders)) == 6
    assert all(abs(orders.count(order) - 1_000) < 130 for order in set(orders))


def test_nothing_can_be_drawn_from_nothing():
    with pytest.raises(ValueError, match="0 choices"):
        Draws("x").below(0)
