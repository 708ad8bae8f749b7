"""Charts: bars, grouped bars, lines and pies painted from their parameters.

    chart = {**style, "chart": "bar", "title": "Loaves sold", "categories": ["Mon", "Tue"], "axis": {...},
             "series": [{"name": "", "values": [20, 35], "colors": ["#4472c4", "#4472c4"]}], "plot": [70, 50, 500, 340]}
    paint(chart).pixels()

A bar ends on the pixel of its value in `plot` (left, top, right, bottom; the axis runs over its height).
"""

from __future__ import annotations

from typing import Any

from rekey.figure_canvas import Canvas, Lettering, Point, lettering, polar, text_size

Chart = dict[str, Any]
_SMALL = 0.84                 # of the style's letters: ticks, categories, printed values


def plot_box(chart: Chart) -> list[int]:
    """Where the axes of a chart lie: [left, top, right, bottom] in pixels, room left for all letters around it."""
    letters = lettering(chart)
    small = letters.sized(_SMALL)
    top = 20 + letters.size_px * 2
    if len(chart["series"]) > 1:
        top += round(letters.size_px * 1.7)
    left = round(24 + letters.size_px * 1.3 + text_size(str(chart["axis"]["max"]), small)[0])
    return [left, top, chart["width"] - 22, chart["height"] - 20 - round(small.size_px * 1.4)]


def letters_fit(chart: Chart) -> bool:
    """Whether title, categories and printed values have the room they need."""
    left, _, right, _ = chart["plot"]
    slot = (right - left) / len(chart["categories"])
    small = lettering(chart).sized(_SMALL)
    title, _ = text_size(chart["title"], lettering(chart).faced("bold"))
    return (title * 1.12 < chart["width"] - 30
            and all(text_size(text, small)[0] + 5 < slot for text in chart["categories"]))


def paint(chart: Chart) -> Canvas:
    """The picture of a chart."""
    canvas = Canvas(chart["width"], chart["height"], chart["background"])
    canvas.text((chart["width"] / 2, 14 + chart["font_px"] * 0.7), chart["title"], lettering(chart).faced("bold"),
                chart["ink"])
    if chart["chart"] == "pie":
        _paint_pie(canvas, chart)
        return canvas
    _paint_grid(canvas, chart)
    if chart["chart"] == "line":
        _paint_lines(canvas, chart)
    else:
        _paint_bars(canvas, chart)
    _paint_axes(canvas, chart)
    if len(chart["series"]) > 1:
        _paint_legend(canvas, chart)
    return canvas


def value_y(chart: Chart, value: float) -> float:
    """The height in the picture, in pixels from its top, that stands for a value."""
    _, top, _, bottom = chart["plot"]
    return bottom - (bottom - top) * value / chart["axis"]["max"]


def category_x(chart: Chart, index: int) -> float:
    left, _, right, _ = chart["plot"]
    return left + (right - left) * (index + 0.5) / len(chart["categories"])


def _paint_grid(canvas: Canvas, chart: Chart) -> None:
    left, _, right, _ = chart["plot"]
    axis, small = chart["axis"], lettering(chart).sized(_SMALL)
    for count, value in enumerate(range(0, axis["max"] + 1, axis["step"])):
        y = value_y(chart, value)
        canvas.line([(left, y), (right, y)], chart["grid"], 1.2)
        if count % axis["label_every"] == 0:
            canvas.text((left - 7, y), str(value), small, chart["ink"], "rm")


def _paint_axes(canvas: Canvas, chart: Chart) -> None:
    left, top, right, bottom = chart["plot"]
    letters = lettering(chart)
    canvas.line([(left, top), (left, bottom), (right, bottom)], chart["ink"], 1.6)
    for index, category in enumerate(chart["categories"]):
        canvas.text((category_x(chart, index), bottom + letters.size_px * 0.85), category, letters.sized(_SMALL),
                    chart["ink"])
    canvas.text((12 + letters.size_px / 2, (top + bottom) / 2), chart["y_title"], letters.sized(0.9), chart["ink"],
                upright=True)


def _paint_bars(canvas: Canvas, chart: Chart) -> None:
    left, _, right, bottom = chart["plot"]
    n_series = len(chart["series"])
    width = chart["bar_share"] * (right - left) / len(chart["categories"]) / n_series
    for place, series in enumerate(chart["series"]):
        for index, (value, color) in enumerate(zip(series["values"], series["colors"])):
            middle = category_x(chart, index) + (place - (n_series - 1) / 2) * width
            half = width / 2 - (1 if n_series > 1 else 0)
            canvas.rectangle(middle - half, value_y(chart, value), middle + half, bottom, color)
            if chart["printed"]:
                canvas.text((middle, value_y(chart, value) - 4), str(value), lettering(chart).sized(_SMALL),
                            chart["ink"], "mb", halo=True)
    if chart["threshold"] is not None:
        y = value_y(chart, chart["threshold"])
        canvas.line([(left, y), (right, y)], chart["background"], 4.5)
        canvas.line([(left, y), (right, y)], chart["ink"], 2.2, dash_px=9)


def _paint_lines(canvas: Canvas, chart: Chart) -> None:
    for series in chart["series"]:
        points = [(category_x(chart, i), value_y(chart, value)) for i, value in enumerate(series["values"])]
        color = series["colors"][0]
        canvas.line(points, color, chart["line_px"] + 0.6)
        for point in points:
            canvas.circle(point, 5, color if chart["filled"] else chart["background"], color, 2)


def _paint_legend(canvas: Canvas, chart: Chart) -> None:
    small = lettering(chart).sized(0.9)
    swatch, gap = small.size_px * 0.9, small.size_px * 1.6
    widths = [swatch + 7 + text_size(series["name"], small)[0] for series in chart["series"]]
    x = (chart["width"] - sum(widths) - gap * (len(widths) - 1)) / 2
    y = 15 + chart["font_px"] * 2.2
    for series, width in zip(chart["series"], widths):
        canvas.rectangle(x, y - swatch / 2, x + swatch, y + swatch / 2, series["colors"][0])
        canvas.text((x + swatch + 7, y), series["name"], small, chart["ink"], "lm")
        x += width + gap


# ----------------------------------------------------------------------------------- pies

def _paint_pie(canvas: Canvas, chart: Chart) -> None:
    series, letters = chart["series"][0], lettering(chart)
    center, radius = pie_circle(chart)
    start = float(chart["start"])
    for value, color in zip(series["values"], series["colors"]):
        canvas.sector(center, radius, start, value * 3.6, color)
        start += value * 3.6
    for category, value, color, shown in zip(chart["categories"], series["values"], series["colors"], chart["shown"]):
        canvas.line([center, polar(center, radius, start)], chart["background"], 2)
        middle = start + value * 1.8
        canvas.text(polar(center, radius * 0.66, middle), f"{value}%" if shown else "?", letters.faced("bold"),
                    _on(color))
        _paint_sector_name(canvas, chart, category, polar(center, radius + 9, middle), letters.sized(0.9), middle)
        start += value * 3.6


def pie_circle(chart: Chart) -> tuple[Point, float]:
    """Center and radius of a pie, in pixels."""
    top = 26 + chart["font_px"] * 2.7
    radius = (chart["height"] - 16 - chart["font_px"] * 1.4 - top) / 2
    return (chart["width"] / 2, top + radius), radius


def _paint_sector_name(canvas: Canvas, chart: Chart, name: str, at: Point, letters: Lettering, towards: float) -> None:
    turn = towards % 360
    side = "m" if 75 < turn < 105 or 255 < turn < 285 else "r" if 90 < turn < 270 else "l"
    level = "b" if 75 < turn < 105 else "t" if 255 < turn < 285 else "m"
    canvas.text(at, name, letters, chart["ink"], side + level)


def _on(color: str) -> str:
    """Black or white, whichever is read better on a color."""
    red, green, blue = (int(color[i:i + 2], 16) for i in (1, 3, 5))
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 150 else "#1a1a1a"
