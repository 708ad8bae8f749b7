"""Decoding length against attention on the image, conditions overlaid, with intervals (VisualSwap, Fig. 2 and 3).

    figure({"control:grounded": [Series("probe", "p0", at, percent, 10), ...]},
           {"control:grounded": "layer 3 of 5"}, window=100)

One panel per model.  Trials are laid over each other where the phrase begins; a line goes on as long as half of the
pairs do.  At the width of a paper's column no letter is smaller than 7 points, and conditions differ in lightness and
dashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.figures import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, POINTS, DPI = 3.3, 7, 300
# In the order of drawing: base, which mostly lies on the probe, is seen on top of it.
STYLES = {"multi-turn": ("#e07b39", (0, (4, 1.5))), "probe": ("#10243e", "-"), "base": ("#9c9c9c", (0, (1, 1)))}
MIN_SHARE, MIN_PAIRS = 0.5, 3
Z = 1.96


@dataclass(frozen=True, eq=False)
class Series:
    """One trial.  at: (T,) tokens from the phrase on.  percent: (T,) of the attention.  n_phrase: its tokens."""

    condition: str
    pair_id: str
    at: np.ndarray
    percent: np.ndarray
    n_phrase: int


@dataclass(frozen=True, eq=False)
class Line:
    """The mean over pairs with its interval, where enough pairs have a token; n: pairs."""

    at: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: int


def line_of(series: Sequence[Series], window: int) -> Line:
    """Seeds of a pair are averaged first; the interval is that of a normal mean over pairs."""
    after = max((one.n_phrase for one in series), default=0) + window
    at = np.arange(-window, after)
    by_pair: dict[str, list[np.ndarray]] = {}
    for one in series:
        row = np.full(len(at), np.nan)
        inside = (one.at >= at[0]) & (one.at <= at[-1])
        row[one.at[inside] - at[0]] = one.percent[inside]
        by_pair.setdefault(one.pair_id, []).append(row)
    values = np.stack([_mean(np.stack(rows)) for rows in by_pair.values()])                         # (n, steps)
    counts = np.isfinite(values).sum(0)
    there = counts >= max(min(MIN_PAIRS, len(values)), MIN_SHARE * len(values))
    values, counts = values[:, there], counts[there]
    mean = _mean(values)
    spread = np.sqrt(np.nansum((values - mean) ** 2, 0) / np.maximum(counts - 1, 1) / counts)
    return Line(at[there], mean, mean - Z * spread, mean + Z * spread, len(by_pair))


def _mean(rows: np.ndarray) -> np.ndarray:
    """(N,) over the rows that have a number; nan where none has."""
    counts = np.isfinite(rows).sum(0)
    return np.where(counts, np.nansum(rows, 0) / np.maximum(counts, 1), np.nan)


def figure(by_model: Mapping[str, Sequence[Series]], layers: Mapping[str, str], window: int) -> Figure:
    """layers: by model, which ones the percentages are of.  window: tokens on either side of the phrase."""
    from matplotlib.figure import Figure
    drawn = Figure(figsize=(WIDTH_IN, 0.65 + 1.25 * len(by_model)), dpi=DPI, layout="constrained")
    axes = drawn.subplots(len(by_model), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (model, series) in zip(axes, by_model.items()):
        for name, style in STYLES.items():
            mine = [one for one in series if one.condition == name]
            if mine:
                _draw(axis, line_of(mine, window), name, style, mine[0].n_phrase if name != "base" else None)
        axis.axvline(0, color="#222222", linewidth=0.6)
        n = len({one.pair_id for one in series})
        axis.set_title(f"{model}, {layers[model]}, n = {n}", fontsize=POINTS, loc="left", pad=2)
        axis.set_ylim(0, None)
        plain(axis)
        axis.tick_params(labelsize=POINTS)
    axes[-1].set_xlabel("tokens from where the phrase begins", fontsize=POINTS)
    drawn.supylabel("attention on the image, % of all", fontsize=POINTS)
    _legend(drawn, axes[0])
    return drawn


def _draw(axis: Axes, line: Line, name: str, style: tuple, n_phrase: int | None) -> None:
    color, dashes = style
    axis.fill_between(line.at, line.low, line.high, color=color, alpha=0.18, linewidth=0)
    if name != "base":
        axis.plot(line.at, line.mean, color="white", linewidth=1.8)    # keeps crossing lines apart in gray
    axis.plot(line.at, line.mean, color=color, linestyle=dashes, linewidth=1.2, label=name)
    if n_phrase is not None and len(line.at) and line.at[0] <= n_phrase <= line.at[-1]:
        axis.plot([n_phrase], np.interp([n_phrase], line.at, line.mean), "o", color=color, markersize=3.4,
                  markeredgecolor="white", markeredgewidth=0.6, zorder=4)


def _legend(drawn: Figure, axis: Axes) -> None:
    from matplotlib.lines import Line2D
    handles, _ = axis.get_legend_handles_labels()
    handles.append(Line2D([], [], marker="o", linestyle="", color="#222222", markersize=3.4, label="model goes on"))
    drawn.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=POINTS, frameon=False,
                 handlelength=2.2, columnspacing=0.9, handletextpad=0.4, borderaxespad=0.1)
