"""Contact sheets of swap pairs: both images side by side, the changed part outlined, with question and answers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from rekey.geometry import Box
from rekey.images import load_image
from rekey.pairs import changed_box
from rekey.preview import contact_sheet, draw_outline
from rekey.records import SwapPair, option_letter
from rekey.store import write_atomic

CELL_PX = 380
COLUMNS = 2
OUTLINE, OUTLINE_PX, EDGE = "#e8590c", 2, "#ced4da"
WHOLE_PX = 2 * CELL_PX
"""Longer side up to which an image is shown whole; of a larger one, the surroundings of a small change."""
MIN_SHARE = 1 / 8               # of the longer side: what is not a small change
WINDOW = 5                      # times the change's longer side


def write_pair_sheet(path: Path, pairs: Sequence[SwapPair], folder: Path, title: str,
                     remarks: Sequence[str] = ()) -> None:
    """A JPEG of the pairs.  folder: their images lie relative to it.  remarks: a last line for each."""
    rows = [_row(pair, folder, remarks[n] if remarks else "") for n, pair in enumerate(pairs)]
    picture = io.BytesIO()
    # No chroma subsampling: small colored things must keep their color.
    contact_sheet(rows, COLUMNS, CELL_PX, title).save(picture, "JPEG", quality=90, subsampling=0)
    write_atomic(path, picture.getvalue())


def _row(pair: SwapPair, folder: Path, remark: str) -> tuple[Image.Image, Image.Image, str]:
    a, b = (load_image(folder / name).pixels for name in (pair.image_a, pair.image_b))
    changed = pair.changed or changed_box(a, b)
    height, width = a.shape[:2]
    window = _window(changed, width, height)
    options = "   ".join(f"({option_letter(n)}) {text}" for n, text in enumerate(pair.options))
    lines = [pair.pair_id if window.width == width and window.height == height
             else f"{pair.pair_id}   (part of the {width} x {height} image)",
             pair.question, options, f"left image: {_answer(pair, 'a')}     right image: {_answer(pair, 'b')}", remark]
    return _outlined(a, window, changed), _outlined(b, window, changed), "\n".join(filter(None, lines))


def _answer(pair: SwapPair, side: str) -> str:
    return f"({pair.answer(side)}) {pair.answer_text(side)}" if pair.options else pair.answer(side)


def _window(changed: Box, width: int, height: int) -> Box:
    """What is shown: all of the image, or of a large one a square around a small change."""
    longer = max(changed.width, changed.height)
    if max(width, height) <= WHOLE_PX or longer >= MIN_SHARE * max(width, height):
        return Box(0, 0, width, height)
    side = min(max(WINDOW * longer, CELL_PX), width, height)
    left, top = (int(min(max(0, center - side / 2), limit - side))
                 for center, limit in zip(changed.center, (width, height)))
    return Box(left, top, left + side, top + side)


def _outlined(pixels: np.ndarray, window: Box, changed: Box) -> Image.Image:
    """The window at the size at which the sheet shows it, so that the outline is as thin in every picture."""
    zoom = CELL_PX / max(window.width, window.height)
    size = max(1, round(window.width * zoom)), max(1, round(window.height * zoom))
    picture = Image.fromarray(np.ascontiguousarray(pixels[window.slices])).resize(
        size, Image.Resampling.LANCZOS if zoom < 1 else Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, size[0] - 1, size[1] - 1), outline=EDGE)          # figures are as white as the sheet
    draw_outline(draw, changed.moved(-window.left, -window.top).scaled(zoom), OUTLINE, OUTLINE_PX)
    return picture
