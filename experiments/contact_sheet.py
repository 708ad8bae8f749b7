"""Contact sheets of an instance: every edit before and after, with its question."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image

from rekey.preview import contact_sheet
from rekey.records import Item, from_json, option_letter
from rekey.store import write_atomic

PAIRS_PER_SHEET = 48
COLUMNS = 3


def write_contact_sheets(out: Path, items: list[dict[str, Any]]) -> list[Path]:
    """Write `contact_sheet.jpg` (and `_2`, `_3`, ... where one does not hold all) from `out/pairs`."""
    rows = [row for item in items for row in _rows(out, from_json(Item, item))]
    paths = []
    for n, start in enumerate(range(0, max(len(rows), 1), PAIRS_PER_SHEET), 1):
        path = out / ("contact_sheet.jpg" if n == 1 else f"contact_sheet_{n}.jpg")
        title = f"{out.name}: {len(items)} items, {len(rows)} edits" + (f", sheet {n}" if len(rows) > PAIRS_PER_SHEET else "")
        sheet = contact_sheet(rows[start:start + PAIRS_PER_SHEET], COLUMNS, title=title)
        # No chroma subsampling: small colored things must keep their color.
        buffer = io.BytesIO()
        sheet.save(buffer, "JPEG", quality=90, subsampling=0)
        write_atomic(path, buffer.getvalue())
        paths.append(path)
    return paths


def _rows(out: Path, item: Item) -> list[tuple[Image.Image, Image.Image, str]]:
    with Image.open(out / "pairs" / Path(item.image).name) as picture:
        pairs = picture.convert("RGB")
    side = pairs.width // 2
    options = "   ".join(f"({option_letter(n)}) {text}" for n, text in enumerate(item.options))
    rows = []
    for n, certificate in enumerate(item.certificate):
        top = n * side
        measured = (f"{certificate.slot_id}: measured {certificate.measured} {certificate.share:.0%}, "
                    f"attempt {certificate.attempts}")
        rows.append((pairs.crop((0, top, side, top + side)), pairs.crop((side, top, 2 * side, top + side)),
                     f"{item.item_id}\n{item.question}\n{options}\nanswer: {item.answer_text}\n{measured}"))
    return rows
