"""Attention traces as lines that can be laid over each other: one value a step, smoothed, aligned (VisualSwap, Fig. 2).

    groups = by_condition(traces)                                    # {"base": [...], "probe": [...]}
    line = mean_line(groups["probe"], Panel("layers 2 to 3", (2, 3)), "percent", "phrase", width=9)
    line.at, line.raw, line.smooth                                    # (N,) each

A line of several trials is their mean at each step where at least half of them have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from probes.trace_store import WINDOWS, TrialTrace
from rekey.errors import InputError
from rekey.trials import Cell

Measure = Literal["percent", "enrichment"]
Align = Literal["start", "phrase"]
UNITS = {"percent": "attention on the image,\n% of mass", "enrichment": "attention on the image,\ntimes its even share"}
N_PANELS = 4
MAX_WIDTH = 25
"""Of the running mean, in tokens; short traces are smoothed less."""
MIN_SHARE = 0.5
"""Of the trials, to go on with their mean."""


@dataclass(frozen=True)
class Panel:
    """Layers that are averaged, counted from 0 as in the model, and what they are called."""

    title: str
    layers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Line:
    """Values of one condition in one panel.

    at: (N,) tokens since the question, or from the phrase on.  raw, smooth: (N,) values.  phrase, after: where the
    phrase begins and where the model goes on, on the axis of `at`; None where there is none.  n: trials.  breaks:
    those of the two that are at one place in all trials, where `smooth` may jump.
    """

    at: np.ndarray
    raw: np.ndarray
    smooth: np.ndarray
    phrase: float | None
    after: float | None
    n: int
    breaks: tuple[float, ...] = ()

    def pieces(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(at, smooth) between jumps."""
        cuts = np.searchsorted(self.at, self.breaks)
        return list(zip(np.split(self.at, cuts), np.split(self.smooth, cuts)))

    def value_at(self, at: float) -> float:
        return float(np.interp(at, self.at, self.smooth))


# ----------------------------------------------------------------------------------------- what is drawn

def panels_of(trace: TrialTrace, layers: Sequence[int] = (), bands: Sequence[tuple[float, float]] = ()) -> list[Panel]:
    """One panel per layer and band asked for; of neither, the recorded layers in four parts.

    layers: negative ones count from the end.  bands: fractions of the depth.  Raises InputError for what is not there.
    """
    attention = trace.attention
    panels = []
    for wanted in layers:
        layer = wanted + attention.n_layers if wanted < 0 else wanted
        if layer not in attention.layers:
            raise InputError(f"layer {wanted}: is none of the recorded layers {list(attention.layers)} of "
                             f"{attention.n_layers}; give one of those, or record it with `rekey attend --layers`")
        panels.append(Panel(f"layer {layer}", (layer,)))
    for band in bands:
        panels.append(_panel([attention.layers[row] for row in attention.in_band(band)]))
    if panels:
        return panels
    parts = np.array_split(attention.layers, min(N_PANELS, len(attention.layers)))
    return [_panel(part.tolist()) for part in parts]


def _panel(layers: Sequence[int]) -> Panel:
    first, last = layers[0], layers[-1]
    if first == last:
        return Panel(f"layer {first}", tuple(layers))
    return Panel(f"layers {first} to {last}" + ("" if last - first + 1 == len(layers) else f", {len(layers)} of them"),
                 tuple(layers))


def by_condition(traces: Iterable[TrialTrace]) -> dict[str, list[TrialTrace]]:
    """Traces by what was done; where a condition was run in several ways, its name tells them apart.

    Of base trials those about image a, whose answer the others continue, unless there are none.
    """
    traces = list(traces)
    cells = [trace.cell for trace in traces]
    about_a = any(cell.place == "base" and cell.image == "a" for cell in cells)
    groups: dict[str, list[TrialTrace]] = {}
    for trace in sorted(traces, key=lambda trace: _order(trace.cell)):
        if not (about_a and trace.cell.place == "base" and trace.cell.image == "b"):
            groups.setdefault(cell_name(trace.cell, cells), []).append(trace)
    return groups


def _order(cell: Cell) -> tuple:
    places = ("base", "reasoning", "natural", "answer", "new turn", "user turn")
    return cell.continues and cell.image == "a", places.index(cell.place), cell.history, cell.kept, cell.regime


def cell_name(cell: Cell, others: Sequence[Cell]) -> str:
    """The condition, with its retention, regime and dose where others of that condition differ in them."""
    alike = [other for other in others if other.condition == cell.condition]

    def differ(field: str) -> bool:
        return len({getattr(other, field) for other in alike}) > 1
    name = cell.condition
    if differ("kept"):
        name += f", {100 * cell.kept:.0f} % kept"
    if differ("regime"):
        name += f", {cell.regime}"
    if differ("log_bias"):
        name += f", bias {cell.log_bias:+g}"
    return name


# ----------------------------------------------------------------------------------------------- lines

def rows_of(trace: TrialTrace, layers: Sequence[int]) -> list[int]:
    """Positions of layers among those recorded.  Raises InputError for a trace that holds others."""
    recorded = trace.attention.layers
    if not set(layers) <= set(recorded):
        raise InputError(f"trace {trace.key} ({trace.pair_id}, {trace.condition}): holds layers {list(recorded)}, "
                         f"expected {list(layers)} as in the first one; trace all trials with the same --layers")
    return [recorded.index(layer) for layer in layers]


def values(trace: TrialTrace, layers: Sequence[int], measure: Measure = "percent") -> np.ndarray:
    """(T,) of one trial: mean over heads and layers, in the units of `UNITS`."""
    mass = trace.attention.scores[rows_of(trace, layers)].mean((0, 1))
    return scaled(trace, mass, measure)


def scaled(trace: TrialTrace, mass: np.ndarray, measure: Measure) -> np.ndarray:
    """(..., T) masses in the units of a measure."""
    if measure == "percent":
        return 100 * mass
    return mass * trace.attention.context_len / trace.attention.n_image_tokens


def parts(trace: TrialTrace) -> list[np.ndarray]:
    """(T,) rows before the phrase (the question's last token among them), of the phrase, and after it; all of a base
    trial's are one part."""
    index = trace.attention.query_index
    if not trace.cell.continues:
        return [np.ones(len(index), bool)]
    before, after = index < trace.t_phrase, index >= trace.t_after
    return [before, ~before & ~after, after]


def running_mean(of: np.ndarray, width: int) -> np.ndarray:
    """(N,) mean of `width` (odd) values around each, of fewer at the ends."""
    total = np.concatenate([[0.0], np.cumsum(of, dtype=float)])
    at = np.arange(len(of))
    low, high = np.maximum(at - width // 2, 0), np.minimum(at + width // 2 + 1, len(of))
    return (total[high] - total[low]) / (high - low)


def smoothed(trace: TrialTrace, series: np.ndarray, width: int) -> np.ndarray:
    """(T,) running mean that does not reach over the ends of the phrase, where a jump is to be seen."""
    out = np.empty(len(series))
    for part in parts(trace):
        out[part] = running_mean(series[part], width)
    return out


def width_for(n_steps: int) -> int:
    """Odd: a twentieth of the trace, up to MAX_WIDTH."""
    return min(MAX_WIDTH, 2 * (n_steps // 40) + 1)


def phrase_places(traces: Iterable[TrialTrace]) -> dict[tuple, int]:
    """For every pair, model and seed, how many tokens of the first answer the phrase follows: the probe's, if any."""
    places: dict[tuple, int] = {}
    for trace in sorted(traces, key=lambda trace: (trace.cell.place != "reasoning", -trace.cell.kept)):
        if trace.cell.continues:
            places.setdefault(_case(trace), trace.t_phrase - trace.n_asked)
    return places


def _case(trace: TrialTrace) -> tuple:
    return trace.model, trace.pair_id, trace.seed


def mean_line(traces: Sequence[TrialTrace], panel: Panel, measure: Measure, align: Align, width: int,
              places: Mapping[tuple, int] | None = None) -> Line | None:
    """The mean over trials, step by step.

    align: "phrase" puts every phrase at 0; a base trial, which has none, is laid where it stands in the probe of the
    same pair (`places`, see `phrase_places`), and left out where there is no such probe.
    """
    places = places or {}
    at, raw, smooth, phrases, afters = [], [], [], [], []
    for trace in traces:
        start = trace.n_asked
        if align == "phrase":
            if not trace.cell.continues and _case(trace) not in places:
                continue
            start += places[_case(trace)] if not trace.cell.continues else trace.t_phrase - trace.n_asked
        series = values(trace, panel.layers, measure)
        at.append(trace.attention.query_index - start)
        raw.append(series)
        smooth.append(smoothed(trace, series, width))
        if trace.cell.continues:
            phrases.append(trace.t_phrase - start)
            afters.append(trace.t_after - start)
    if not at:
        return None
    low, high = min(x[0] for x in at), max(x[-1] for x in at)
    steps = np.arange(low, high + 1)
    counts = np.zeros(len(steps))
    sums = np.zeros((2, len(steps)))
    for where, *both in zip(at, raw, smooth):
        counts[where - low] += 1
        for total, series in zip(sums, both):
            total[where - low] += series
    enough = counts >= max(1, MIN_SHARE * len(at))
    means = sums[:, enough] / counts[enough]
    marks = [float(np.mean(place)) if place else None for place in (phrases, afters)]
    breaks = [place[0] for place in (phrases, afters) if len(set(place)) == 1]
    return Line(steps[enough], means[0], means[1], *marks, len(at), tuple(dict.fromkeys(breaks)))


def map_of(trace: TrialTrace, window: str, layers: Sequence[int]) -> np.ndarray | None:
    """(rows, columns) percent of all attention on each image token in a window; None where it holds no token."""
    assert window in WINDOWS, window
    if window not in trace.maps:
        return None
    return 100 * trace.maps[window][rows_of(trace, layers)].mean(0)
