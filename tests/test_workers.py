"""Many things in several processes, and stopping."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from experiments.workers import in_parallel
from rekey.errors import WorkerLost


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


def kill_the_other(n: int) -> None:
    """The second task ends the process that has nothing to do any more, and has itself much to do."""
    if n == 0:
        return
    while True:
        time.sleep(1)
        fork_server = os.getppid()
        siblings = Path(f"/proc/{fork_server}/task/{fork_server}/children").read_text().split()
        if others := [int(pid) for pid in siblings if int(pid) != os.getpid()]:
            os.kill(others[0], signal.SIGKILL)
            time.sleep(600)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find a worker")
def test_a_worker_that_dies_while_idle_does_not_hang_the_others():
    """It may hold the lock of the queue that they take their tasks from."""
    began = time.monotonic()
    with pytest.raises(WorkerLost, match="a worker process died"):
        list(in_parallel(kill_the_other, range(2), 2, threading.Event()))
    assert time.monotonic() - began < 120
