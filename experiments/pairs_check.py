"""Which pairs are less alike than they should be, and what a check of pairs leaves in its folder (VisualSwap, Sec. 3).

    limits = Limits(ssim=0.8)
    report = write_check(out, pairs, folder, lines, limits)

    out/similarity.jsonl    one line a pair, as measured (see `experiments.pair_similarity`)
    out/similarity.csv      the same for spreadsheets, with what each pair falls short of
    out/table.md            means by category, beside the paper's
    out/least_alike.jpg     the least alike pairs, for looking
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.pair_sheet import write_pair_sheet
from experiments.pair_similarity import Line, table
from experiments.tables import as_csv, markdown_table
from probes.similarity import METRICS, TITLES
from rekey import store
from rekey.records import SwapPair

CSV, TABLE, SHEET = "similarity.csv", "table.md", "least_alike.jpg"
SHEET_PAIRS = 20
SIGN = {"clip": 1, "ssim": 1, "lpips": -1}          # +1: more is more alike


@dataclass(frozen=True)
class Limits:
    """What a pair should reach: twice to three times as far from sameness as the paper's means (0.95, 0.86, 0.14)."""

    clip: float = 0.85
    ssim: float = 0.70
    lpips: float = 0.30

    def missed(self, line: Line) -> list[str]:
        """What a pair falls short of, in words: "SSIM 0.612 below 0.7"."""
        found = []
        for metric in METRICS:
            value, limit = line.get(metric), getattr(self, metric)
            if value is not None and SIGN[metric] * (value - limit) < 0:
                found.append(f"{TITLES[metric]} {value:.3f} {'below' if SIGN[metric] > 0 else 'above'} {limit:g}")
        return found


@dataclass(frozen=True)
class Report:
    """text: the table, head first.  flagged: a line for each pair that is less alike than the limits ask."""

    text: list[tuple[str, ...]]
    flagged: list[str]


def write_check(out: Path, pairs: Sequence[SwapPair], folder: Path, lines: Sequence[Line], limits: Limits) -> Report:
    """lines: of the pairs, in their order.  folder: their images lie relative to it."""
    missed = [limits.missed(line) for line in lines]
    store.write_atomic(out / CSV, as_csv([("pair_id", "category", *METRICS, "less_alike"), *(
        (line["pair_id"], line["category"], *(line.get(metric) for metric in METRICS), "; ".join(words))
        for line, words in zip(lines, missed))]))
    _, text = table(lines)
    store.write_atomic(out / TABLE, markdown_table(text))
    shown = least_alike(lines)[:SHEET_PAIRS]
    remarks = ["   ".join(f"{TITLES[metric]} {lines[n][metric]:.3f}" for metric in METRICS
                          if lines[n].get(metric) is not None) for n in shown]
    write_pair_sheet(out / SHEET, [pairs[n] for n in shown], folder, f"The least alike of {len(pairs)} pairs", remarks)
    return Report(text, [f"{line['pair_id']}: {', '.join(words)}" for line, words in zip(lines, missed) if words])


def least_alike(lines: Sequence[Line]) -> list[int]:
    """Places of the lines, the least alike pair first, by the mean of its ranks among all under each metric."""
    ranks = np.zeros(len(lines))
    for metric in METRICS:
        found = np.array([np.nan if line.get(metric) is None else SIGN[metric] * line[metric] for line in lines])
        if not np.isnan(found).all():
            ranks += np.searchsorted(np.sort(found[~np.isnan(found)]), np.nan_to_num(found, nan=np.inf))
    return np.argsort(ranks, kind="stable").tolist()
