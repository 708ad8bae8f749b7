"""Figures that several experiments draw the same way.

    bars({"Qwen3-VL-8B": {"original": score.accuracy, "renewed": other.accuracy}}).savefig("figure.png")
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rekey.stats import Estimate
from rekey.store import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"original": "#1f4e79", "relabel": "#7f7f7f", "renewed": "#c8501e", "attribute": "#2a7f62",
          "position": "#b58900", "direct": "#1f4e79", "cot": "#c8501e", "base": "#1f4e79", "zoom": "#c8501e",
          "human": "#1f4e79", "model": "#c8501e"}
_OTHERS = ("#1f4e79", "#c8501e", "#2a7f62", "#b58900", "#7f7f7f", "#6a4c93")
COLUMN_IN = 3.4                 # width of a column of a paper, in inches
_HATCHES = ("", "////", "....", "xxxx", "----", "++++")         # what colors alone do not tell apart in gray
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))


def save(figure: Figure, path: Path) -> None:
    """A PNG, whole or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomic(path, picture.getvalue())


def plain(axis: Axes, grid: str = "y") -> None:
    """The look of all figures: no frame, a light grid."""
    axis.tick_params(labelsize=8, length=0)
    axis.grid(axis=grid, color="#e6e6e6", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)


def color_of(name: str, index: int) -> str:
    return COLORS.get(name, _OTHERS[index % len(_OTHERS)])


def in_lines(name: str, width: int = 18) -> str:
    """A name broken into lines at spaces, after colons, slashes and hyphens, and within words that are too long."""
    lines = [""]
    for part in re.findall(rf"[^\s:/_-]{{0,{width - 1}}}[\s:/_-]?", name):
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(filter(None, (line.strip() for line in lines)))


def bars(groups: Mapping[str, Mapping[str, Estimate]], label: str = "accuracy, %", scale: float = 100.0) -> Figure:
    """One group of bars per entry, one bar per name in it, with intervals."""
    from matplotlib.figure import Figure
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    n_bars = max(1, len(names))
    figure = Figure(figsize=(1.2 + max(2.6, len(groups) * (0.5 + 0.3 * n_bars)), 3.4), dpi=150, layout="constrained")
    axis = figure.subplots()
    width = 0.8 / n_bars
    for index, name in enumerate(names):
        at = [row + (index - (n_bars - 1) / 2) * width for row, group in enumerate(groups.values())
              if group.get(name) is not None and group[name].value is not None]
        shown = [group[name] for group in groups.values() if group.get(name) is not None
                 and group[name].value is not None]
        axis.bar(at, [scale * value.value for value in shown], 0.92 * width, color=color_of(name, index), label=name,
                 hatch=_HATCHES[index % len(_HATCHES)], edgecolor="white", linewidth=0)
        for place, value in zip(at, shown):
            if value.low is not None:
                axis.plot([place, place], [scale * value.low, scale * value.high], color="#222222", linewidth=1)
    axis.set_xticks(range(len(groups)), [in_lines(name) for name in groups])
    axis.set_ylabel(label, fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, n_bars))
    plain(axis)
    return figure


def lines(series: Mapping[str, Mapping[str, Estimate]], classes: Sequence[str], label: str = "accuracy, %") -> Figure:
    """One line per entry over ordered classes, with intervals."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(1.6 + 1.1 * len(classes), 3.6), dpi=150, layout="constrained")
    axis = figure.subplots()
    _draw_lines(axis, series, classes, label)
    axis.legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(3, len(series)))
    return figure


def line_panels(panels: Mapping[str, Mapping[str, Mapping[str, Estimate]]], classes: Sequence[str],
                below: str) -> Figure:
    """Panels of lines one above the other, as wide as a column of a paper; the same entries in all.

    panels: by the label of the vertical axis.  below: the label of the horizontal one.
    """
    from matplotlib.figure import Figure
    n_names = max(map(len, panels.values()))
    figure = Figure(figsize=(COLUMN_IN, 0.6 + 1.7 * len(panels) + 0.09 * n_names), dpi=200, layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (label, series) in zip(axes, panels.items()):
        _draw_lines(axis, series, classes, label)
    axes[-1].set_xlabel(below, fontsize=8)
    axes[0].legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(2, n_names),
                   handlelength=3)
    return figure


def _draw_lines(axis: Axes, series: Mapping[str, Mapping[str, Estimate]], classes: Sequence[str], label: str) -> None:
    for index, (name, values) in enumerate(series.items()):
        offset = (index - (len(series) - 1) / 2) * 0.06
        at = [n + offset for n, one in enumerate(classes) if one in values and values[one].value is not None]
        shown = [values[one] for one in classes if one in values and values[one].value is not None]
        color = color_of(name, index)
        axis.plot(at, [100 * value.value for value in shown], color=color, linewidth=1.4, markersize=4, label=name,
                  marker=_MARKERS[index % len(_MARKERS)], linestyle=_DASHES[index % len(_DASHES)])
        for place, value in zip(at, shown):
            if value.low is not None:
                axis.plot([place, place], [100 * value.low, 100 * value.high], color=color, linewidth=1)
    axis.set_xticks(range(len(classes)), [in_lines(name, 14) for name in classes])
    axis.set_xlim(-0.4, len(classes) - 0.6)
    axis.set_ylim(-3, 103)
    axis.set_ylabel(label, fontsize=8)
    plain(axis)


def dots(series: Mapping[str, Mapping[str, Estimate]], classes: Sequence[str], label: str = "accuracy, %") -> Figure:
    """One row per class from top to bottom, one marker per entry in it, with intervals; as wide as a column."""
    from matplotlib.figure import Figure
    n_names = max(1, len(series))
    names = [in_lines(name, 30) for name in classes]
    height = sum(max(0.14 * (name.count("\n") + 1), 0.12 * n_names) + 0.09 for name in names)
    figure = Figure(figsize=(COLUMN_IN, 0.6 + 0.09 * n_names + height), dpi=200, layout="constrained")
    axis = figure.subplots()
    for index, (name, values) in enumerate(series.items()):
        offset = (index - (n_names - 1) / 2) * min(0.2, 0.7 / n_names)
        shown = {n + offset: values[one] for n, one in enumerate(classes)
                 if one in values and values[one].value is not None}
        color = color_of(name, index)
        axis.plot([100 * value.value for value in shown.values()], list(shown), linestyle="none", markersize=4,
                  color=color, marker=_MARKERS[index % len(_MARKERS)], label=name)
        for place, value in shown.items():
            if value.low is not None:
                axis.plot([100 * value.low, 100 * value.high], [place, place], color=color, linewidth=1,
                          linestyle=_DASHES[index % len(_DASHES)])
    axis.set_yticks(range(len(classes)), names)
    axis.set_ylim(len(classes) - 0.4, -0.6)
    axis.set_xlim(-3, 103)
    axis.set_xlabel(label, fontsize=8)
    figure.legend(*axis.get_legend_handles_labels(), fontsize=7, frameon=False, loc="outside upper center",
                  ncols=min(2, n_names))
    plain(axis, "both")
    axis.tick_params(labelsize=7)
    return figure
