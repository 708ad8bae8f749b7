"""Work on many things in several processes, and stop when asked to.

    with stop_requested() as stop:
        for result in in_parallel(make, tasks, n_workers=2, stop=stop):
            ...                              # keep it; after a stop, only what was begun still comes

A stop (SIGTERM from Slurm, Ctrl-C) is heard by this process alone, which decides when to end; a parent that is
killed takes its workers along.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from rekey.errors import WorkerLost

Task, Result = TypeVar("Task"), TypeVar("Result")


def in_parallel(make: Callable[[Task], Result], tasks: Iterable[Task], n_workers: int,
                stop: threading.Event, modules: Sequence[str] = ()) -> Iterator[Result]:
    """`make` of every task, in the order in which they are finished; none is begun once `stop` is set.

    With one worker the work is done in this process.  What `make` raises comes last, after the results of what else was
    begun; WorkerLost where a process dies.  modules: what the workers will import, besides the one of `make`.
    """
    upcoming = iter(tasks)
    if n_workers == 1:
        import cv2
        cv2.setNumThreads(1)            # as in the workers: thread counts must not decide bits
        for task in upcoming:
            if stop.is_set():
                return
            yield make(task)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")           # one process per core is parallel enough
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        # Loaded once and shared by all workers: their memory and most of their start-up time.
        context.set_forkserver_preload([make.__module__, "experiments.preload", *modules])
        # Starting the tracker unblocks the signals, so it must not happen inside.
        multiprocessing.resource_tracker.ensure_running()
        with _signals_blocked():
            multiprocessing.forkserver.ensure_running()
    else:
        context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n_workers, context, initializer=_start_worker)
    try:
        yield from _as_finished(pool, make, upcoming, n_workers, stop)
    except BrokenProcessPool:
        raise WorkerLost(f"a worker process died; was there too little memory for {n_workers} --workers? What was "
                         "finished is kept: run the same line again, maybe with fewer") from None


def in_threads(make: Callable[[Task], Result], tasks: Iterable[Task], n_threads: int,
               stop: threading.Event) -> Iterator[Result]:
    """As `in_parallel`, for work that waits for others (a server) and needs no processes."""
    yield from _as_finished(ThreadPoolExecutor(n_threads), make, iter(tasks), n_threads, stop)


def _as_finished(pool: Executor, make: Callable[[Task], Result], upcoming: Iterator[Task], n_workers: int,
                 stop: threading.Event) -> Iterator[Result]:
    waiting: set[Future] = set()
    raised: BaseException | None = None
    try:
        while True:
            # No more than is being made: what waits in the pool's queue could not be called back.
            while (len(waiting) < n_workers and not stop.is_set() and raised is None
                   and (task := next(upcoming, None)) is not None):
                waiting.add(pool.submit(make, task))
            if not waiting:
                break
            ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                if future.exception() is None:
                    yield future.result()
                if raised is None or isinstance(future.exception(), BrokenProcessPool):
                    raised = future.exception() or raised
        if raised is not None:              # last: what others have made is not lost with it
            raise raised
    except BrokenProcessPool:
        _kill_workers()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _kill_workers() -> None:
    """End the processes of a broken pool, which waits for them: the pool's SIGTERM is blocked in them, and one that
    waits for its next task may wait for a lock that the dead one held."""
    for process in multiprocessing.active_children():
        process.kill()


def worker_number() -> int | None:
    """Which of the processes of `in_parallel` this is, from 0; None in the process that began them."""
    if multiprocessing.parent_process() is None:
        return None
    return int(re.search(r"\d+$", multiprocessing.current_process().name)[0]) - 1       # "ForkServerProcess-3"


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
def stop_requested(given: threading.Event | None = None) -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets, instead of ending the process in mid-write.

    given: somebody else's event; then that one, and the signals are theirs.
    """
    stop = given or threading.Event()
    if given is not None or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
