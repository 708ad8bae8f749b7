"""Figures of attention on the image: curves, heat maps, windows (VisualSwap, Fig. 2 and 3, Table 5).

    save(curves(by_condition(traces), width_in=COLUMN_IN), Path("curves.png"))
    save(heat_map(trace), Path("heat_map.png"))
    save(before_after({"probe": Windows(before, after)}), Path("windows.png"))

Made for print: at their own size no letter is smaller than 7 points, conditions differ in lightness and in the dashes
of their lines as well as in color, and color maps get lighter from end to end, so that all of it survives gray paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.attention_series import (
    UNITS,
    Align,
    Line,
    Measure,
    mean_line,
    panels_of,
    phrase_places,
    scaled,
    width_for,
)
from experiments.figures import plain
from experiments.token_text import PART, shown
from rekey.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probes.trace_store import TrialTrace

COLUMN_IN, PAGE_IN = 3.3, 6.9
DPI = 300
POINTS = 7
COLOR_MAP = "cividis"
INK = "#222222"
MAX_ROWS = 48
"""Layers of a heat map that are drawn apart; of deeper models neighbors are averaged."""
MAX_COLUMNS = 800
_STYLES = (("#10243e", "-"), ("#c8501e", (0, (5, 1.4))), ("#4db3a8", (0, (5, 1.2, 1, 1.2))), ("#7a4f9a", (0, (1, 1.1))),
           ("#8a8a8a", "-"), ("#c9a227", (0, (3, 1))))
_PLACES = {"base": 0, "probe": 1, "multi-turn": 2}


@dataclass(frozen=True)
class Windows:
    """Means of the windows before and after the phrase, with intervals; trials: (before, after) of each, or none."""

    before: Estimate
    after: Estimate
    trials: Sequence[tuple[float, float]] = ()


# ---------------------------------------------------------------------------------------------- curves

def curves(groups: Mapping[str, Sequence[TrialTrace]], layers: Sequence[int] = (),
           bands: Sequence[tuple[float, float]] = (), measure: Measure = "percent", align: Align | None = None,
           width_in: float = PAGE_IN) -> Figure:
    """Decoding length against attention on the image, one panel per layer or band, conditions overlaid.

    groups: traces by condition (`by_condition`).  align: see `mean_line`; of single trials "start" if not said.
    """
    every = [trace for traces in groups.values() for trace in traces]
    panels = panels_of(every[0], layers, bands)
    align = align or ("start" if all(len(traces) == 1 for traces in groups.values()) else "phrase")
    width = width_for(int(np.median([len(trace.attention.query_index) for trace in every])))
    places = phrase_places(every)
    across = 1 if width_in < 5 else len(panels) if len(panels) <= 3 else 2
    down = math.ceil(len(panels) / across)
    longest = max(map(len, [*groups, "phrase begins"])) + len(" (n=100)")
    per_line = max(1, min(4, int(width_in / (0.55 + 0.55 * POINTS / 72 * longest))))         # of the legend
    legend_in = 0.14 * math.ceil((len(groups) + 2) / per_line)
    figure = _figure(width_in, legend_in + 0.5 + down * (1.45 if down == 1 or across > 1 else 1.15))
    axes = figure.subplots(down, across, sharex=True, squeeze=False)
    named: dict[str, Line] = {}
    styles = _styles(groups)
    for axis, panel in zip(axes.flat, panels):
        for name, traces in groups.items():
            line = mean_line(traces, panel, measure, align, width, places)
            if line is not None:
                named.setdefault(name, line)
                _draw_line(axis, line, *styles[name])
        if measure == "enrichment":
            axis.axhline(1, color=INK, linewidth=0.6, linestyle=(0, (1, 2)))
        if align == "phrase":
            axis.axvline(0, color=INK, linewidth=0.6)
        axis.set_title(panel.title, fontsize=POINTS + 0.5, loc="left", pad=2)
        axis.set_ylim(0, None)
        _plain(axis)
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    # A column whose last panel is missing shows its axis under the one above.
    for column in range(across):
        axes[(len(panels) - 1 - column) // across, column].tick_params(labelbottom=True)
    thin = "each token" if all(line.n == 1 for line in named.values()) else "mean of trials"
    figure.supxlabel("decoding length, tokens" + (" from the phrase on" if align == "phrase" else "")
                     + (f"\nthin: {thin}; bold: its running mean over {width} tokens" if width > 1 else ""),
                     fontsize=POINTS)
    figure.supylabel(UNITS[measure] if down == 1 else UNITS[measure].replace("\n", " "), fontsize=POINTS)
    _curve_legend(figure, named, styles, per_line)
    return figure


def _draw_line(axis: Axes, line: Line, color: str, dashes) -> None:
    from matplotlib.patheffects import withStroke
    axis.plot(line.at, line.raw, color=color, linewidth=0.5, alpha=0.28)
    edge = withStroke(linewidth=2.2, foreground="white")        # keeps crossing lines apart in gray
    for at, smooth in line.pieces():
        axis.plot(at, smooth, color=color, linestyle=dashes, linewidth=1.3, path_effects=[edge])
    for at, filled in ((line.phrase, False), (line.after, True)):
        if at is not None and line.at[0] <= at <= line.at[-1]:
            axis.plot([at], [line.value_at(at)], "o", color=color, markersize=3.6, markeredgewidth=0.9,
                      markerfacecolor=color if filled else "white", zorder=4)


def _curve_legend(figure: Figure, named: Mapping[str, Line], styles: Mapping[str, tuple], per_line: int) -> None:
    from matplotlib.lines import Line2D
    several = any(line.n > 1 for line in named.values())
    handles = [Line2D([], [], color=styles[name][0], linestyle=styles[name][1], linewidth=1.3,
                      label=f"{name} (n={line.n})" if several else name) for name, line in named.items()]
    marks = {"marker": "o", "linestyle": "", "color": INK, "markersize": 3.6, "markeredgewidth": 0.9}
    if any(line.phrase is not None for line in named.values()):
        handles += [Line2D([], [], markerfacecolor="white", label="phrase begins", **marks),
                    Line2D([], [], label="model goes on", **marks)]
    figure.legend(handles=handles, loc="outside upper center", ncols=per_line, fontsize=POINTS,
                  frameon=False, handlelength=2.6, columnspacing=1.2, borderaxespad=0.1, labelspacing=0.3)


def _styles(names) -> dict[str, tuple]:
    """Color and dashes of each condition: the paper's three always have the same."""
    taken = {name: _PLACES[name] for name in names if name in _PLACES}
    free = [n for n in range(len(_STYLES)) if n not in taken.values()] or list(range(len(_STYLES)))
    others = [name for name in names if name not in taken]
    taken |= {name: free[n % len(free)] for n, name in enumerate(others)}
    return {name: _STYLES[place] for name, place in taken.items()}


# ------------------------------------------------------------------------------------------- heat maps

def heat_map(trace: TrialTrace, measure: Measure = "percent", width_in: float = PAGE_IN) -> Figure:
    """Layers against steps: all of the trace, and the tokens around the phrase with their texts."""
    attention = trace.attention
    index = attention.query_index
    rows, names = _few_rows(scaled(trace, attention.scores.mean(1), measure), attention.layers)
    start, stop = _around_phrase(trace, int(width_in * (72 / (POINTS + 2.5)) * 0.86))
    labels = shown(trace.texts[start:stop])
    parts = [(start, stop)] if stop - start == len(index) else [(0, len(index)), (start, stop)]
    label_in = max(map(len, labels.texts)) * 0.6 * POINTS / 72
    figure = _figure(width_in, 0.55 + 1.35 * len(parts) + label_in)
    axes = figure.subplots(len(parts), 1, squeeze=False)[:, 0]
    low, high, ends = _color_range(rows)
    for axis, (first, last) in zip(axes, parts):
        left, right = index[first] - trace.n_asked, index[last - 1] - trace.n_asked
        picture = axis.imshow(_few_columns(rows[:, first:last]), aspect="auto", origin="lower", cmap=COLOR_MAP,
                              vmin=low, vmax=high, interpolation="nearest",
                              extent=(left - 0.5, right + 0.5, -0.5, len(rows) - 0.5))
        axis.set_yticks(*_few_ticks(names))
        axis.set_ylabel("layer", fontsize=POINTS)
        axis.tick_params(labelsize=POINTS, length=2)
        _mark_parts(axis, trace)
    axes[0].set_xlabel("decoding length, tokens", fontsize=POINTS)
    axes[-1].set_xticks(index[start:stop] - trace.n_asked, labels.texts, fontfamily=labels.families, fontsize=POINTS,
                        rotation=90)
    note = f"\n{PART} stands for a part of a character" if PART in labels.texts else ""
    axes[-1].set_xlabel("the token that is read" + (", around the phrase" if len(parts) > 1 else "") + note,
                        fontsize=POINTS)
    bar = figure.colorbar(picture, ax=list(axes), extend=ends, pad=0.01, aspect=15 * len(parts))
    bar.set_label(UNITS[measure], fontsize=POINTS)
    bar.ax.tick_params(labelsize=POINTS, length=2)
    return figure


def _color_range(values: np.ndarray) -> tuple[float, float, str]:
    """Ends of the color scale, and whether some values lie beyond (as a color bar says it): single peaks are cut off,
    and it starts at 0 unless that leaves half of it unused."""
    high = float(values.max())
    usual = float(np.percentile(values, 99.5))
    low = float(values.min())
    cut = high > 1.15 * usual
    return low if low > 0.5 * usual else 0.0, usual if cut else high, "max" if cut else "neither"


def _few_rows(values: np.ndarray, layers: Sequence[int]) -> tuple[np.ndarray, list[str]]:
    groups = np.array_split(np.arange(len(layers)), min(len(layers), MAX_ROWS))
    return (np.stack([values[group].mean(0) for group in groups]),
            [str(layers[group[0]]) for group in groups])


def _few_columns(values: np.ndarray) -> np.ndarray:
    """Means of neighboring steps where there are more than can be printed side by side."""
    bounds = np.linspace(0, values.shape[1], min(values.shape[1], MAX_COLUMNS) + 1).astype(int)
    return np.add.reduceat(values, bounds[:-1], 1) / np.diff(bounds)


def _few_ticks(names: Sequence[str]) -> tuple[list[int], list[str]]:
    step = max(1, math.ceil(len(names) / 8))
    return list(range(0, len(names), step)), list(names[::step])


def _around_phrase(trace: TrialTrace, n: int) -> tuple[int, int]:
    """Rows of up to n tokens around what was put in (from the start of a base trial)."""
    index = trace.attention.query_index
    n_rows = len(index)
    phrase, after = np.searchsorted(index, [trace.t_phrase, trace.t_after])
    room = max(0, n - (after - phrase))
    start = max(0, min(phrase - room // 2, n_rows - n))
    return int(start), int(min(n_rows, start + n))


def _mark_parts(axis: Axes, trace: TrialTrace) -> None:
    """Lines where the phrase begins and where the model goes on, and the parts' names above."""
    if not trace.cell.continues:
        return
    left, right = axis.get_xlim()
    phrase, after = (at - trace.n_asked - 0.5 for at in (trace.t_phrase, trace.t_after))
    for name, first, last in (("before", left, phrase), ("phrase", phrase, after), ("after", after, right)):
        first, last = max(first, left), min(last, right)
        if last <= first:
            continue
        if first > left:
            axis.axvline(first, color="white", linewidth=1.6)
            axis.axvline(first, color=INK, linewidth=0.9, linestyle=(0, (2, 1)))
        wide_in = (last - first) / (right - left) * axis.figure.get_size_inches()[0]
        if name == "phrase" or wide_in > 0.6:
            axis.annotate(name, ((first + last) / 2, 1), xycoords=("data", "axes fraction"), xytext=(0, 2),
                          textcoords="offset points", ha="center", va="bottom", fontsize=POINTS)


# --------------------------------------------------------------------------------------------- windows

def before_after(windows: Mapping[str, Windows], measure: Measure = "percent", n_tokens: int = 100,
                 width_in: float = COLUMN_IN) -> Figure:
    """Means over up to n_tokens before and after the phrase, joined, with intervals (Table 5)."""
    figure = _figure(width_in, 0.75 + 0.42 * len(windows))
    axis = figure.subplots()
    styles = _styles(windows)
    for row, (name, both) in enumerate(windows.items()):
        color = styles[name][0]
        for one in both.trials:
            axis.plot(one, (row - 0.13, row + 0.13), color=color, linewidth=0.4, alpha=0.25)
        ends = [(both.before, row - 0.13, "white"), (both.after, row + 0.13, color)]
        if None not in (both.before.value, both.after.value):
            axis.plot([both.before.value, both.after.value], [row - 0.13, row + 0.13], color=color, linewidth=0.9)
        for estimate, at, face in ends:
            if estimate.value is None:
                continue
            if estimate.low is not None:
                axis.plot([estimate.low, estimate.high], [at, at], color=color, linewidth=1.2)
            axis.plot([estimate.value], [at], "o", color=color, markerfacecolor=face, markersize=4.2, zorder=4)
    labels = [f"{name}\nn={both.after.n}" for name, both in windows.items()]
    axis.set_yticks(range(len(windows)), labels)
    axis.set_ylim(len(windows) - 0.5, -0.5)
    axis.set_xlabel(UNITS[measure].replace("\n", " "), fontsize=POINTS)
    from matplotlib.lines import Line2D
    marks = {"marker": "o", "linestyle": "", "color": INK, "markersize": 4.2}
    figure.legend(handles=[Line2D([], [], markerfacecolor="white", label=f"{n_tokens} tokens before", **marks),
                           Line2D([], [], label=f"{n_tokens} tokens after", **marks)],
                  loc="outside upper center", ncols=2, fontsize=POINTS, frameon=False, borderaxespad=0.1)
    _plain(axis, "x")
    return figure


# ------------------------------------------------------------------------------------------------ look

def _figure(width_in: float, height_in: float) -> Figure:
    from matplotlib.figure import Figure
    return Figure(figsize=(width_in, height_in), dpi=DPI, layout="constrained")


def _plain(axis: Axes, grid: str = "y") -> None:
    plain(axis, grid)
    axis.tick_params(labelsize=POINTS)
