"""How long drawing records and questions takes, and how long `rekey --help`.

    python -m benchmarks.planning slots.jsonl [--seeds 100]

Prints seconds for all images of the annotation file and all seeds, and for the help text as a ratio to a bare
Python start.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from rekey.qa import build_question
from rekey.sampling import NoItem, Pool
from rekey.slots import read_slots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("slots", type=Path)
    parser.add_argument("--seeds", type=int, default=100)
    options = parser.parse_args()
    started = time.perf_counter()
    images = list(read_slots(options.slots).values())
    read_s = time.perf_counter() - started
    started = time.perf_counter()
    pools = [Pool(image) for image in images]
    n_records = n_without = 0
    for seed in range(options.seeds):
        for pool in pools:
            try:
                build_question(pool.sample(seed))
                n_records += 1
            except NoItem:
                n_without += 1
    plan_s = time.perf_counter() - started
    print(f"{len(images)} images x {options.seeds} seeds: {n_records} records with questions ({n_without} without) in "
          f"{plan_s:.2f} s, {1e6 * plan_s / max(1, n_records):.0f} us each; reading the file {read_s:.2f} s")
    bare, helped = (best_of(5, [sys.executable, "-c", code]) for code in
                    ("pass", "from experiments.cli import main; main(['--help'])"))
    print(f"rekey --help {helped:.3f} s, bare Python {bare:.3f} s, ratio {helped / bare:.1f}")


def best_of(n: int, command: list[str]) -> float:
    times = []
    for _ in range(n):
        started = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    main()
