"""Time and memory of several ways to do one thing, fairly: what the benchmarks share.

    clocks = interleaved({"plain": (run_plain, 16), "recorded": (run_recorded, 16)}, "decode")
    clocks["recorded"].ratio_to(clocks["plain"])            # median over rounds

On a CPU the clock that counts is the processor time of this process, since other processes come and go; on a
GPU it is wall time.  Memory is counted above what is in use when a measurement begins.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

M_MMAP_THRESHOLD = -3        # of malloc.h


def on_gpu() -> bool:
    return torch.cuda.is_initialized()


@dataclass
class Clock:
    """Seconds of the same work, one entry a round: wall time, and processor time of this process."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def time(self, work: Callable[[], object]) -> None:
        _synchronize()
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        _synchronize()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)

    @property
    def seconds(self) -> list[float]:
        """By the clock that counts here."""
        return self.wall if on_gpu() else self.cpu

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def least(self) -> float:
        return min(self.seconds)

    def ratio_to(self, other: Clock) -> float:
        """Median over rounds of this time over the other's in the same round."""
        return _median_ratio(self.seconds, other.seconds)

    def wall_ratio_to(self, other: Clock) -> float:
        return _median_ratio(self.wall, other.wall)


def _median_ratio(mine: list[float], others: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, others))         # one of them may sit later rounds out


def _synchronize() -> None:
    if on_gpu():
        torch.cuda.synchronize()


Works = dict[str, tuple[Callable[[Clock], None], int]]
"""By name: one round of some work, timed with the clock it is given, and in how many rounds it takes part."""


def interleaved(works: Works, what: str) -> dict[str, Clock]:
    """Clocks of all works, one of each per round, so that a busy machine slows all of them; each round begins
    with another.  Prints how they compare to the first of them."""
    clocks = {name: Clock() for name in works}
    names = list(works)
    last = max(n_rounds for _, n_rounds in works.values())
    for number in range(last):
        print(f"{what}: round {number + 1} of {last}", flush=True)
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            work, n_rounds = works[name]
            if number < n_rounds:
                work(clocks[name])
    for name, clock in clocks.items():
        print(f"  {name}: {clock.median:.3f} s, {clock.ratio_to(clocks[names[0]]):.3f} of the first")
    return clocks


@dataclass(frozen=True)
class Memory:
    """Megabytes above those in use before: the most at any time, and what is held in the end."""

    peak: float
    held: float


def can_measure_memory() -> bool:
    return on_gpu() or Path("/proc/self/clear_refs").exists()


def in_a_fork(work: Callable[[], Memory], n_threads: int) -> Memory:
    """`work` in a fork of this process, which finds the model loaded and the heap as every other fork finds it.

    On a GPU, where the allocator keeps exact count and forks are not possible, `work` in this process.  This
    process must not have started threads of torch before.
    """
    if on_gpu():
        return work()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def run() -> None:
        torch.set_num_threads(n_threads)
        # Tensors come from the system one by one: the peak is then what they need, not how the heap is cut up.
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
        results.put(work())

    process = context.Process(target=run)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"a memory measurement ended with status {process.exitcode}; its message is above")
    return results.get()


def reset_peak() -> float:
    """Forget the peak so far; returns the megabytes in use."""
    if on_gpu():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")
    return in_use_mb()


def peak_mb() -> float:
    if on_gpu():
        return torch.cuda.max_memory_allocated() / 2**20
    return _status_mb("VmHWM")


def in_use_mb() -> float:
    if on_gpu():
        return torch.cuda.memory_allocated() / 2**20
    ctypes.CDLL(None).malloc_trim(0)             # what was freed goes back to the system before it is counted
    return _status_mb("VmRSS")


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def hardware(device: torch.device, n_threads: int) -> str:
    """The chip by name, for the head of a table."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.machine())}, {n_threads} thread{'s' * (n_threads != 1)}"
