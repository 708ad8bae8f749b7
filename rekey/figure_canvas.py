"""A small anti-aliased drawing surface for procedural figures, and the styles they are drawn in.

    canvas = Canvas(480, 360, "#ffffff")
    canvas.line([(40, 40), (440, 320)], "#1f3a5f", 2)
    canvas.text((240, 340), "x = 4", Lettering("sans", 16), "#000000"); pixels = canvas.pixels()

Lines and areas are painted `SUPERSAMPLING` times too large and averaged; letters are set afterwards at their final
size, so that they are hinted.  Coordinates are pixels from the top left corner; angles are degrees, counterclockwise as
seen.  Layout never asks the font how wide a text is (`text_size` estimates it): font libraries differ by fractions of
a pixel, and a pair's parameters must not.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rekey.draws import Draws

Point = tuple[float, float]
SUPERSAMPLING = 4
FONT_FILES = {
    "sans": ("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSans-Bold"),
    "serif": ("DejaVuSerif", "DejaVuSerif-Italic", "DejaVuSerif-Bold"),
    "times": ("STIXGeneral", "STIXGeneralItalic", "STIXGeneralBol"),
}
# Times is small for its size.
_FONT_SCALE = {"sans": 1.0, "serif": 1.0, "times": 1.2}
_FACES = ("regular", "italic", "bold")
# Background, ink, accent (what is asked for, curves), tint (filled areas), grid lines.
THEMES = (
    ("#ffffff", "#1a1a1a", "#c0272d", "#f4f4f4", "#d9d9d9"),
    ("#ffffff", "#1f3a5f", "#d35400", "#e8f0fa", "#d3dce6"),
    ("#fdfaf3", "#2b2b2b", "#1e7b4f", "#fbeccb", "#e3dccb"),
    ("#ffffff", "#333333", "#7b2d8b", "#f3e9f7", "#dcdcdc"),
    ("#f6f9fb", "#22313f", "#0b6fb8", "#e0eaf2", "#cfd9e1"),
    ("#1f2b30", "#f2f2ec", "#ffd166", "#2d3f47", "#40545d"),
)
SERIES_COLORS = (
    ("#4472c4", "#ed7d31", "#70ad47", "#ffc000", "#7e57a8", "#5bb5c9"),
    ("#1b6ca8", "#e2703a", "#3c9d77", "#c94c6e", "#8d6cab", "#c9a227"),
    ("#386641", "#bc4749", "#577590", "#f2a65a", "#7a5195", "#6a994e"),
    ("#264653", "#2a9d8f", "#e9c46a", "#f4a261", "#e76f51", "#8ab17d"),
)


@dataclass(frozen=True)
class Lettering:
    """How a text is set: a family of `FONT_FILES`, a size in pixels, and a face of it."""

    family: str
    size_px: int
    face: str = "regular"

    def sized(self, factor: float) -> Lettering:
        return Lettering(self.family, max(9, round(self.size_px * factor)), self.face)

    def faced(self, face: str) -> Lettering:
        return Lettering(self.family, self.size_px, face)


def draw_style(draws: Draws, sizes: Sequence[tuple[int, int]], dark: bool = True) -> dict[str, Any]:
    """Size, colors, line width and lettering of one figure, as plain data.  sizes: (width, height) to choose from.

    dark: whether the chalk-on-board theme may come.
    """
    width, height = draws.choice(sizes)
    background, ink, accent, tint, grid = draws.choice(THEMES if dark else THEMES[:-1])
    return {"width": width, "height": height, "background": background, "ink": ink, "accent": accent, "tint": tint,
            "grid": grid, "line_px": draws.choice((1.5, 1.8, 2.2, 2.6)), "font": draws.choice(sorted(FONT_FILES)),
            "font_px": draws.choice((16, 17, 18, 19))}


def lettering(style: dict[str, Any]) -> Lettering:
    return Lettering(style["font"], style["font_px"])


def text_size(text: str, letters: Lettering) -> tuple[float, float]:
    """Estimated width and height of a line of text, in pixels, the same on every machine."""
    em = letters.size_px
    wide, narrow = sum(c in "MWmw@%" for c in text), sum(c in " .,:;ilIjft|'!()°" for c in text)
    return em * (0.62 * len(text) + 0.24 * wide - 0.24 * narrow), em * 0.78


def polar(center: Point, radius: float, degrees: float) -> Point:
    """The point at a distance and direction; directions are counterclockwise from the right, as seen."""
    return (center[0] + radius * math.cos(math.radians(degrees)), center[1] - radius * math.sin(math.radians(degrees)))


def direction(start: Point, end: Point) -> float:
    """The direction from one point to another, in degrees in [0, 360)."""
    return math.degrees(math.atan2(start[1] - end[1], end[0] - start[0])) % 360


@functools.cache
def _font(family: str, face: str, size_px: int) -> ImageFont.FreeTypeFont:
    # find_spec, not import: the fonts lie beside matplotlib, whose import takes longer than a hundred figures.
    spec = importlib.util.find_spec("matplotlib")
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
    name = FONT_FILES[family][_FACES.index(face)]
    return ImageFont.truetype(str(folder / f"{name}.ttf"), round(size_px * _FONT_SCALE[family]),
                              layout_engine=ImageFont.Layout.BASIC)


@dataclass(frozen=True)
class _Text:
    at: Point
    text: str
    letters: Lettering
    color: str
    anchor: str
    halo: str | None
    upright: bool


class Canvas:
    """A picture under construction.  `texts` and their boxes can be asked for, so that tests find collisions."""

    def __init__(self, width: int, height: int, background: str):
        self.width, self.height, self.background = width, height, background
        self._image = Image.new("RGB", (width * SUPERSAMPLING, height * SUPERSAMPLING), background)
        self._draw = ImageDraw.Draw(self._image)
        self._texts: list[_Text] = []

    def line(self, points: Sequence[Point], color: str, width_px: float, dash_px: float = 0) -> None:
        """A line through points, with round joints and ends; dashes of that length where it is not 0."""
        if dash_px:
            for start, end in _dashes(points, dash_px):
                self.line([start, end], color, width_px)
            return
        half = width_px / 2
        for (x0, y0), (x1, y1) in zip(points, points[1:]):
            if x0 == x1 or y0 == y1:          # grid lines: a rectangle is painted many times faster
                across, down = (half, 0) if x0 == x1 else (0, half)
                (left, right), (top, bottom) = sorted((x0, x1)), sorted((y0, y1))
                self.rectangle(left - across, top - down, right + across, bottom + down, color)
            elif length := math.hypot(x1 - x0, y1 - y0):
                across, down = -half * (y1 - y0) / length, half * (x1 - x0) / length
                self.polygon([(x0 + across, y0 + down), (x1 + across, y1 + down), (x1 - across, y1 - down),
                              (x0 - across, y0 - down)], color)
        if width_px > 1:
            for point in points:
                self.circle(point, half, color)

    def polygon(self, points: Sequence[Point], fill: str | None, outline: str | None = None,
                width_px: float = 0) -> None:
        if fill:
            self._draw.polygon([(x * SUPERSAMPLING, y * SUPERSAMPLING) for x, y in points], fill=fill)
        if outline:
            self.line([*points, points[0]], outline, width_px)

    def patterned(self, points: Sequence[Point], fill: str, color: str, pattern: str, spacing_px: float) -> None:
        """A filled polygon with stripes or dots of a color in it: pattern is "striped" or "dotted"."""
        scaled = [(x * SUPERSAMPLING, y * SUPERSAMPLING) for x, y in points]
        left, top = (math.floor(min(point[axis] for point in scaled)) for axis in (0, 1))
        width, height = (math.ceil(max(point[axis] for point in scaled)) + 1 - start
                         for axis, start in ((0, left), (1, top)))
        mask = Image.new("1", (width, height))
        ImageDraw.Draw(mask).polygon([(x - left, y - top) for x, y in scaled], fill=1)
        tile = Image.new("RGB", (width, height), fill)
        draw, spacing = ImageDraw.Draw(tile), spacing_px * SUPERSAMPLING
        if pattern == "striped":
            for i in range(1 - math.ceil(height / spacing), math.ceil(width / spacing)):
                draw.line([(i * spacing, 0), (i * spacing + height, height)], fill=color, width=round(spacing * 0.42))
        else:
            radius = spacing * 0.27
            for row in range(math.ceil(height / spacing) + 1):
                for column in range(math.ceil(width / spacing) + 1):
                    x, y = (column + row % 2 / 2) * spacing, row * spacing * 0.87
                    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
        self._image.paste(tile, (left, top), mask)

    def rectangle(self, left: float, top: float, right: float, bottom: float, fill: str) -> None:
        """A filled rectangle, right and bottom exclusive."""
        box = [round(side * SUPERSAMPLING) for side in (left, top, right, bottom)]
        if box[0] >= box[2] or box[1] >= box[3]:
            return
        self._draw.rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=fill)

    def circle(self, center: Point, radius: float, fill: str | None, outline: str | None = None,
               width_px: float = 0) -> None:
        if outline:
            half = width_px / 2
            self._ellipse(center, radius + half, None, outline, width_px)
            radius -= half
        if fill:
            self._ellipse(center, radius, fill, None, 0)

    def _ellipse(self, center: Point, radius: float, fill: str | None, outline: str | None, width_px: float) -> None:
        x, y, r = (SUPERSAMPLING * value for value in (*center, radius))
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=fill, outline=outline,
                           width=max(1, round(width_px * SUPERSAMPLING)))

    def arc(self, center: Point, radius: float, start: float, sweep: float, color: str, width_px: float) -> None:
        """A part of a circle from direction `start` over `sweep` degrees, counterclockwise."""
        n = max(2, round(sweep / 4))
        self.line([polar(center, radius, start + sweep * i / n) for i in range(n + 1)], color, width_px)

    def sector(self, center: Point, radius: float, start: float, sweep: float, fill: str) -> None:
        n = max(2, round(sweep / 2))
        self.polygon([center, *(polar(center, radius, start + sweep * i / n) for i in range(n + 1))], fill)

    def arrow_head(self, tip: Point, towards: float, size_px: float, color: str) -> None:
        self.polygon([tip, polar(tip, size_px, towards + 158), polar(tip, size_px, towards - 158)], color)

    def text(self, at: Point, text: str, letters: Lettering, color: str, anchor: str = "mm", halo: bool = False,
             upright: bool = False) -> None:
        """A line of text.  anchor: Pillow's; halo: a rim in the background's color; upright: from bottom to top."""
        self._texts.append(_Text(at, text, letters, color, anchor, self.background if halo else None, upright))

    def text_boxes(self) -> list[tuple[str, tuple[float, float, float, float]]]:
        """Each text with its (left, top, right, bottom) in pixels."""
        return [(text.text, _text_box(text)) for text in self._texts]

    def ground(self) -> np.ndarray:
        """What lies under the letters: uint8 (height, width, 3)."""
        return np.asarray(self._image.reduce(SUPERSAMPLING))

    def pixels(self) -> np.ndarray:
        """The finished picture: uint8 (height, width, 3)."""
        image = self._image.reduce(SUPERSAMPLING)
        draw = ImageDraw.Draw(image)
        for text in self._texts:
            font = _font(text.letters.family, text.letters.face, text.letters.size_px)
            if text.upright:
                left, top, right, bottom = (round(side) for side in _text_box(text))
                mask = Image.new("L", (bottom - top, right - left), 0)
                middle = mask.width / 2, mask.height / 2
                ImageDraw.Draw(mask).text(middle, text.text, font=font, fill=255, anchor="mm")
                image.paste(text.color, (left, top), mask.transpose(Image.Transpose.ROTATE_90))
            else:
                draw.text(text.at, text.text, font=font, fill=text.color, anchor=text.anchor,
                          stroke_width=2 if text.halo else 0, stroke_fill=text.halo)
        return np.array(image)


def _text_box(text: _Text) -> tuple[float, float, float, float]:
    font = _font(text.letters.family, text.letters.face, text.letters.size_px)
    box = font.getbbox(text.text, anchor=text.anchor)
    if text.upright:
        box = (box[1] - 1, box[0] - 1, box[3] + 1, box[2] + 1)
    x, y = text.at
    return x + box[0], y + box[1], x + box[2], y + box[3]


def _dashes(points: Sequence[Point], dash_px: float) -> list[tuple[Point, Point]]:
    """Pieces of each stretch, so that it begins and ends with one."""
    pieces = []
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        n = max(1, round(math.hypot(x1 - x0, y1 - y0) / dash_px / 2)) * 2 + 1
        for i in range(0, n, 2):
            pieces.append(((x0 + (x1 - x0) * i / n, y0 + (y1 - y0) * i / n),
                           (x0 + (x1 - x0) * (i + 1) / n, y0 + (y1 - y0) * (i + 1) / n)))
    return pieces
