"""Many things in several processes, and stopping."""

import threading

import pytest

from experiments.workers import in_parallel


def square(n: int) -> int:
    return n * n


@pytest.mark.parametrize("n_workers", [1, 2])
def test_everything_is_made_once(n_workers):
    made = list(in_parallel(square, range(9), n_workers, threading.Event()))
    assert sorted(made) == [n * n for n in range(9)]


@pytest.mark.parametrize("n_workers", [1, 2])
def test_after_a_stop_only_what_was_begun_still_comes(n_workers):
    stop, taken = threading.Event(), []

    def tasks():
        for n in range(50):
            taken.append(n)
            yield n
    made = []
    for result in in_parallel(square, tasks(), n_workers, stop):
        made.append(result)
        if len(made) == 5:
            stop.set()
    assert 5 <= len(made) <= 5 + n_workers
    assert sorted(made) == [n * n for n in taken[:len(made)]]      # nothing that was begun is lost
    assert len(taken) <= len(made) + 1
