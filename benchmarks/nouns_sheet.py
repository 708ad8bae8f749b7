"""A picture of every noun that the classical editor can insert.

    python -m benchmarks.nouns_sheet docs/nouns.jpg

Each noun is inserted into a plain gray canvas through the editor itself, in a color of its own, with its name below.
"""

from __future__ import annotations

import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from editors.insert import insert_object
from editors.solids import SOLIDS
from rekey.colors import COLORS
from rekey.editing import EditRequest, PhotoView
from rekey.geometry import Box
from rekey.records import Slot, VisualKey

COLUMNS, CELL_PX, LABEL_PX = 12, 104, 18


def main(path: str) -> None:
    rows = -(-len(SOLIDS) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * CELL_PX, rows * (CELL_PX + LABEL_PX)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    rng = np.random.default_rng(0)
    for n, name in enumerate(sorted(SOLIDS)):
        canvas = np.clip(168 + rng.normal(0, 2, (CELL_PX, CELL_PX, 3)), 0, 255).astype(np.uint8)
        box = Box(12, 12, CELL_PX - 12, CELL_PX - 12)
        slot = Slot("sheet", name, "add", box, box, (), (name,))
        color = [c for c in COLORS if c != "gray"][n % 10]
        request = EditRequest(canvas, box, VisualKey(slot, "add", name, color), n, 0,
                              PhotoView(canvas, Box(0, 0, CELL_PX, CELL_PX)))
        left, top = n % COLUMNS * CELL_PX, n // COLUMNS * (CELL_PX + LABEL_PX)
        sheet.paste(Image.fromarray(insert_object(request)), (left, top))
        draw.text((left + CELL_PX / 2, top + CELL_PX + 2), name, fill="#333333", font=font, anchor="ma")
    sheet.save(path, quality=90, subsampling=0)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nouns.jpg")
