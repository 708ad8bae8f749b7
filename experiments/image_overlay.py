"""Where on the image attention goes before, during and after the phrase (VisualSwap, Sec. 5.3).

    save(overlay(trace, load_image(path).pixels, changed=pair.changed), Path("overlay.png"))
    on_image(weights, trace.image)                          # (height, width): the token grid laid over the pixels

An image token is merge x merge patches of the image as the processor made it: resized, and for some models padded on
the right and below.  The grid is laid over the image as given, of which padding is no part.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.attention_figures import COLOR_MAP, DPI, INK, PAGE_IN, POINTS
from experiments.attention_series import Panel, map_of
from probes.trace_store import WINDOWS, SeenImage, TrialTrace
from rekey.geometry import Box

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

SINK_TIMES = 10.0
"""A sink draws this many times an even share of the image's attention, in every window."""
WASHED = 0.6
"""How much of the picture's own contrast is left under the weights."""
OPACITY = 0.6
OVERLAY_MAP = "YlOrBr"                          # from light to dark, as the picture under it is light
MAX_SIDE_PX = 640
MAX_PANEL_IN, GAP_IN, TITLE_IN, BAR_IN = 2.2, 0.06, 0.18, 0.48
TITLES = {"before": "before the phrase", "phrase": "the phrase", "after": "after the phrase"}


@dataclass(frozen=True, eq=False)
class WindowMaps:
    """(rows, columns) percent of all attention on each image token, by window; nan on sinks that were left out.

    n_sinks: how many those are, n_changed_sinks: how many of them lie in the changed part.
    """

    maps: dict[str, np.ndarray]
    n_sinks: int = 0
    n_changed_sinks: int = 0

    @property
    def change(self) -> np.ndarray | None:
        """After the phrase minus before it."""
        if not {"before", "after"} <= self.maps.keys():
            return None
        return self.maps["after"] - self.maps["before"]


def window_maps(trace: TrialTrace, panel: Panel, without_sinks: bool = False) -> WindowMaps:
    """Maps of some layers, mean over heads, for the windows that hold a token."""
    maps = {name: weights for name in WINDOWS if (weights := map_of(trace, name, panel.layers)) is not None}
    if not without_sinks or not maps:
        return WindowMaps(maps)
    sinks = image_sinks(maps.values())
    region = np.zeros(sinks.size, bool)
    region[list(trace.image.region)] = True
    return WindowMaps({name: np.where(sinks, np.nan, weights) for name, weights in maps.items()}, int(sinks.sum()),
                      int((sinks.ravel() & region).sum()))


def image_sinks(maps: Iterable[np.ndarray]) -> np.ndarray:
    """(rows, columns) which tokens draw more than SINK_TIMES an even share in every one of the maps.

    By position alone: what is there is not looked at, so that a changed part that draws all attention counts too.
    """
    return np.all([weights > SINK_TIMES * weights.mean() for weights in maps], axis=0)


# ------------------------------------------------------------------------------------------ geometry

def on_image(weights: np.ndarray, image: SeenImage, smooth: bool = False, size: tuple[int, int] | None = None,
             ) -> np.ndarray:
    """(height, width) of the weight at each pixel of the image as given, or of a picture of it of another `size`.

    weights: (rows, columns) of the token grid.  smooth: interpolated between the middles of tokens.
    """
    height, width = size or image.size
    rows, columns = (_token_at(n_pixels, filled, seen, n) for n_pixels, filled, seen, n in
                     zip((height, width), image.filled, image.seen, image.token_grid))
    if not smooth:
        return weights[np.ix_(np.minimum(rows.astype(int), weights.shape[0] - 1),
                              np.minimum(columns.astype(int), weights.shape[1] - 1))]
    from scipy.ndimage import map_coordinates
    return map_coordinates(weights.astype(float), np.meshgrid(rows - 0.5, columns - 0.5, indexing="ij"), order=1,
                           mode="nearest")


def _token_at(n_pixels: int, filled: int, seen: int, n_tokens: int) -> np.ndarray:
    """(n_pixels,) which token, as a fraction, lies under the middle of each pixel along one side."""
    return (np.arange(n_pixels) + 0.5) * (filled / n_pixels) * (n_tokens / seen)


# -------------------------------------------------------------------------------------------- figure

def overlay(trace: TrialTrace, pixels: np.ndarray, panel: Panel, pixels_before: np.ndarray | None = None,
            changed: Box | None = None, without_sinks: bool = False, smooth: bool = False,
            width_in: float = PAGE_IN) -> Figure:
    """The image, and over it the weights before, during and after the phrase, in one scale; and what changed.

    pixels: uint8 (height, width, 3) of the image seen in the end (`trace.image`).  pixels_before: of the one under
    which the rows before were read, where that is another.  changed: outlined, in pixels of the image.
    """
    found = window_maps(trace, panel, without_sinks)
    pictures = {"before": pixels if pixels_before is None else pixels_before, "phrase": pixels, "after": pixels}
    shown = [name for name in WINDOWS if name in found.maps]
    height, width = pixels.shape[:2]
    figure, axes, bars = _page(1 + len(shown) + (found.change is not None), height / width, width_in,
                               _caption(trace, panel, found, without_sinks))
    # Large images are drawn from every n-th pixel, in the coordinates of all.
    step = max(1, -(-max(height, width) // MAX_SIDE_PX))
    extent = (0, width, height, 0)
    _picture(axes[0], pixels[::step, ::step], "the image seen" + (" last" if pixels_before is not None else ""), extent)
    high = max((float(np.nanmax(found.maps[name])) for name in shown), default=0.0) or 1.0
    heat = {"cmap": OVERLAY_MAP, "vmin": 0, "vmax": high, "alpha": OPACITY, "extent": extent,
            "interpolation": "nearest"}
    for axis, name in zip(axes[1:], shown):
        under = _washed(pictures[name][::step, ::step])
        _picture(axis, under, TITLES[name] if trace.cell.continues else "while it answers", extent)
        laid = axis.imshow(on_image(found.maps[name], trace.image, smooth, under.shape[:2]), **heat)
        _bar(figure, laid, bars[0], "attention on one image token, %")
    if found.change is not None:
        axis = axes[1 + len(shown)]
        limit = float(np.nanmax(np.abs(found.change))) or 1.0
        axis.set_title("after minus before", fontsize=POINTS, pad=3)
        change = on_image(found.change, trace.image, smooth, pixels[::step, ::step].shape[:2])
        laid = axis.imshow(change, extent=extent, interpolation="nearest", cmap=COLOR_MAP, vmin=-limit, vmax=limit)
        _bar(figure, laid, bars[1], "change, points")
    if changed is not None:
        for axis in axes:
            _outline(axis, changed)
    return figure


def _page(n_panels: int, aspect: float, width_in: float, caption: str) -> tuple[Figure, list[Axes], list[Axes]]:
    """A figure with places for so many pictures (height / width: aspect) in one size, and for two color bars.

    On a page the pictures stand side by side; in a column two by two, the bars beside the last.
    """
    from matplotlib.figure import Figure
    across = min(n_panels, 5) if width_in > 5 else 2
    down = -(-n_panels // across)
    panel_in = min((width_in - GAP_IN) / across - GAP_IN, MAX_PANEL_IN, 2.2 * MAX_PANEL_IN / aspect)
    tall_in = panel_in * aspect
    lines = textwrap.wrap(caption, int(width_in * 72 / (0.56 * POINTS)))
    beside = width_in <= 5 and n_panels % 2 == 1 and tall_in > 1.0
    top_in = 0.08 + 0.14 * len(lines)
    height_in = top_in + down * (tall_in + TITLE_IN) + (0.05 if beside else BAR_IN)
    figure = Figure(figsize=(width_in, height_in), dpi=DPI)

    def place(left_in: float, top_in: float, wide_in: float, tall_in: float) -> Axes:
        return figure.add_axes((left_in / width_in, 1 - (top_in + tall_in) / height_in, wide_in / width_in,
                                tall_in / height_in))
    figure.text(GAP_IN / width_in, 1 - 0.05 / height_in, "\n".join(lines), fontsize=POINTS, va="top", parse_math=False)
    axes = []
    for n in range(n_panels):
        row, column = divmod(n, across)
        axes.append(place(GAP_IN + column * (panel_in + GAP_IN), top_in + row * (tall_in + TITLE_IN) + TITLE_IN,
                          panel_in, tall_in))
        axes[-1].set_axis_off()
    below_in = top_in + down * (tall_in + TITLE_IN) + 0.08
    step_in = panel_in + GAP_IN
    if beside:
        at_in = top_in + (down - 1) * (tall_in + TITLE_IN) + TITLE_IN
        bars = [place(2 * GAP_IN + step_in, at_in + offset_in, panel_in - 2 * GAP_IN, 0.09) for offset_in in (0.1, 0.6)]
    elif width_in <= 5:
        bars = [place(2 * GAP_IN + n * step_in, below_in, panel_in - 2 * GAP_IN, 0.09) for n in (0, 1)]
    else:
        last = max(1, n_panels - 2)
        bars = [place(GAP_IN + step_in, below_in, last * step_in - GAP_IN, 0.09),
                place(GAP_IN + (n_panels - 1) * step_in, below_in, panel_in, 0.09)]
    for bar in bars:
        bar.set_visible(False)
    return figure, axes, bars


def _caption(trace: TrialTrace, panel: Panel, found: WindowMaps, without_sinks: bool) -> str:
    parts = [f"{trace.pair_id}, {trace.condition}, {panel.title}"]
    if without_sinks:
        where = f", {found.n_changed_sinks} of them in the changed part" if found.n_changed_sinks else ""
        sinks = "1 sink" if found.n_sinks == 1 else f"{found.n_sinks} sinks"
        parts.append(f"left blank: {sinks}, over {SINK_TIMES:g} times an even share in all windows{where}")
    return "; ".join(parts)


def _picture(axis: Axes, pixels: np.ndarray, title: str, extent: tuple[int, int, int, int]) -> None:
    axis.set_title(title, fontsize=POINTS, pad=3)
    axis.imshow(pixels, extent=extent, interpolation="antialiased")


def _bar(figure: Figure, drawn: AxesImage, place: Axes, label: str) -> None:
    from matplotlib.ticker import MaxNLocator
    place.set_visible(True)
    place.clear()
    bar = figure.colorbar(drawn, cax=place, orientation="horizontal")
    bar.locator = MaxNLocator(4 if place.get_position().width < 0.5 else 8, steps=(1, 2, 2.5, 5, 10))
    bar.set_label(label, fontsize=POINTS, labelpad=2)
    place.tick_params(labelsize=POINTS, length=2)


def _outline(axis: Axes, box: Box) -> None:
    """A dashed line around the box, over a white one."""
    from matplotlib.patches import Rectangle
    for color, width, dashes in (("white", 2.2, "-"), (INK, 1.0, (0, (3, 1.5)))):
        axis.add_patch(Rectangle((box.left, box.top), box.width, box.height, fill=False, edgecolor=color,
                                 linewidth=width, linestyle=dashes))


def _washed(pixels: np.ndarray) -> np.ndarray:
    """The picture in pale gray, so that only the weights have color, and dark means attention in gray print too."""
    gray = pixels @ np.array([0.299, 0.587, 0.114])
    return np.repeat((255 - WASHED * (255 - gray)).astype(np.uint8)[..., None], 3, -1)
