"""Work on many things in several processes, and stop when asked to.

    with stop_requested() as stop, contextlib.closing(in_parallel(make, tasks, n_workers=2)) as results:
        for result in results:
            ...                              # keep it
            if stop.is_set():
                break                        # what is being made is finished, the rest is dropped

A stop (SIGTERM from Slurm, Ctrl-C) is heard by this process alone, which decides when to end; a parent that is
killed takes its workers along.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from rekey.errors import WorkerLost

Task, Result = TypeVar("Task"), TypeVar("Result")


def in_parallel(make: Callable[[Task], Result], tasks: Sequence[Task], n_workers: int) -> Iterator[Result]:
    """`make` of every task, in the order in which they are finished.

    With one worker (or one task) the work is done in this process.  Raises WorkerLost where a process
    dies; closing the iterator waits for what is being made and drops the rest.
    """
    if n_workers == 1 or len(tasks) < 2:
        import cv2
        cv2.setNumThreads(1)            # as in the workers: thread counts must not decide bits
        yield from map(make, tasks)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")           # one process per core is parallel enough
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        # Loaded once and shared by all workers: their memory and most of their start-up time.
        context.set_forkserver_preload([make.__module__, "experiments.preload"])
        with _signals_blocked():
            multiprocessing.forkserver.ensure_running()
    else:
        context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(n_workers, len(tasks)), context, initializer=_start_worker)
    try:
        waiting: set[Future] = set()
        upcoming = iter(tasks)
        while True:
            # A short queue: a stop request waits only for what is already being made.
            for task in upcoming:
                waiting.add(pool.submit(make, task))
                if len(waiting) > n_workers:
                    break
            if not waiting:
                return
            ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                yield future.result()
    except BrokenProcessPool:
        raise WorkerLost(f"a worker process died; was there too little memory for {n_workers} --workers? What was "
                         "finished is kept: run the same line again, maybe with fewer") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    import cv2
    cv2.setNumThreads(1)

    def exit_with_parent() -> None:
        multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
        os._exit(1)
    threading.Thread(target=exit_with_parent, daemon=True).start()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Processes started in here, and theirs, never get SIGTERM or SIGINT, which go to the whole group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets, instead of ending the process in mid-write."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
