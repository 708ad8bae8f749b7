"""Similarities of swap pairs, one stored line each, and the table of their means (VisualSwap, Table 1).

    lines = measure_pairs(pairs, folder, Path("out/similarity.jsonl"), metrics)
    means(lines)["color"]["ssim"]                           # an Estimate: mean, interval, n

A line is measured once: a run that was stopped goes on, and a metric whose weights came later is added.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.workers import stop_requested
from probes.similarity import METRICS, PAPER_MEANS, TITLES, Metric, measured
from rekey import store
from rekey.errors import InputError, Interrupted
from rekey.images import load_image
from rekey.records import SwapPair
from rekey.stats import Estimate, bootstrap_mean

BATCH = 32                      # pairs
DECIMALS = 5                    # of a stored value; more would tell one batch from another
ALL, NO_CATEGORY, PAPER = "all", "no category", "VS-Bench (paper)"
BOOTSTRAP_SEED = 0

Line = dict[str, Any]


def measure_pairs(pairs: Sequence[SwapPair], folder: Path, path: Path, metrics: Mapping[str, Metric],
                  progress: Callable[[int, int], None] = lambda done, total: None,
                  stop: threading.Event | None = None) -> list[Line]:
    """The line of every pair, in their order; what `path` holds already is not measured again.

    pairs: as `read_pairs` gives them, hashes filled in.  folder: their images lie relative to it.  Raises Interrupted
    after a stop (SIGTERM, SIGINT, or `stop`), with every finished batch on disk.
    """
    if stop is None:
        with stop_requested() as stop:
            return measure_pairs(pairs, folder, path, metrics, progress, stop)
    how = {key: text for metric in metrics.values() for key, text in metric.describe().items()}
    with store.Journal(path) as journal:
        lines = {line["pair_id"]: line for line in journal.lines if isinstance(line, dict) and "pair_id" in line}
        wanted = {pair.pair_id: pair for pair in pairs}
        lines = {name: line for name, line in lines.items() if name in wanted and _holds(line, wanted[name], how)}
        # Batches are cut from all pairs, whatever is done already, so that none depends on where a run stopped.
        batches = [pairs[start:start + BATCH] for start in range(0, len(pairs), BATCH)]
        progress(len(lines), len(pairs))
        for batch in batches:
            if all(pair.pair_id in lines for pair in batch):
                continue
            if stop.is_set():
                raise Interrupted(f"{len(lines)} of {len(pairs)} pairs measured")
            for line in _measured(batch, folder, metrics, how):
                journal.append(line)
                lines[line["pair_id"]] = line
            progress(len(lines), len(pairs))
    ordered = [lines[pair.pair_id] for pair in pairs]
    store.write_jsonl(path, ordered)
    return ordered


def _holds(line: Line, pair: SwapPair, how: Mapping[str, str]) -> bool:
    """Whether a stored line is of these images, and of every metric that can be computed now."""
    return (line.get("sha256_a"), line.get("sha256_b"), line.get("category")) == (
        pair.sha256_a, pair.sha256_b, pair.category) and how.items() <= line.get("how", {}).items()


def _measured(batch: Sequence[SwapPair], folder: Path, metrics: Mapping[str, Metric],
              how: Mapping[str, str]) -> list[Line]:
    a, b = ([load_image(folder / name).pixels for name in names]
            for names in ([pair.image_a for pair in batch], [pair.image_b for pair in batch]))
    return [{"pair_id": pair.pair_id, "category": pair.category, "sha256_a": pair.sha256_a, "sha256_b": pair.sha256_b,
             **{name: None if value is None else round(value, DECIMALS) for name, value in values.items()},
             "how": dict(how)} for pair, values in zip(batch, measured(a, b, metrics), strict=True)]


def read_similarity(path: Path) -> list[Line]:
    """Stored lines.  Raises InputError where there are none."""
    lines = store.read_journal(path)
    if not lines:
        raise InputError(f"{path}: no stored similarities there; run the same line without --show, with --pairs")
    for number, line in enumerate(lines, 1):
        if not (isinstance(line, dict) and isinstance(line.get("pair_id"), str)
                and all(isinstance(line.get(name), int | float | None) for name in METRICS)):
            raise InputError(f"{path} line {number}: is no line of similarities; remove it, and measure again")
    return lines


def values(lines: Sequence[Line], metric: str) -> np.ndarray:
    """(n,) of the lines that have one."""
    return np.array([line[metric] for line in lines if line.get(metric) is not None], float)


def by_category(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Lines by category, in alphabetical order; the last entry holds all of them, where there are several."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.get("category") or NO_CATEGORY, []).append(line)
    groups = dict(sorted(found.items()))
    return groups | {ALL: list(lines)} if len(groups) > 1 else groups


def means(lines: Sequence[Line]) -> dict[str, dict[str, Estimate]]:
    """Mean and bootstrap interval of every metric, by category."""
    return {name: {metric: _mean(values(group, metric)) for metric in METRICS}
            for name, group in by_category(lines).items()}


def _mean(found: np.ndarray) -> Estimate:
    if not len(found):
        return Estimate(None, None, None, 0)
    # To 3 decimals: the bootstrap counts distinct values, of which 10,000 pairs would otherwise have 10,000.
    rough = bootstrap_mean(np.round(found, 3), np.random.default_rng(BOOTSTRAP_SEED))
    shift = float(np.mean(found)) - rough.value
    return Estimate(rough.value + shift, rough.low + shift, rough.high + shift, rough.n)


def table(lines: Sequence[Line]) -> tuple[list[tuple], list[tuple[str, ...]]]:
    """(numbers for a CSV file, the same for people), head first; the last row is what the paper gives for VS-Bench."""
    rows: list[tuple] = [("category", "n", *(f"{metric}{end}" for metric in METRICS for end in ("", "_low", "_high")))]
    text = [("category", "n", *(f"{TITLES[metric]} [95%]" for metric in METRICS))]
    found = means(lines)
    for name, group in by_category(lines).items():
        estimates = [found[name][metric] for metric in METRICS]
        rows.append((name, len(group), *(edge for one in estimates for edge in (one.value, one.low, one.high))))
        text.append((name, str(len(group)), *(_cell(one, len(group)) for one in estimates)))
    text.append((PAPER, "800", *(f"{PAPER_MEANS[metric]:.2f}" for metric in METRICS)))
    return rows, text


def _cell(value: Estimate, n: int) -> str:
    if value.value is None:
        return "not computed"
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]" + (f", n={value.n}" if value.n < n else "")
