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
    edits = [(item, n) for item in (from_json(Item, line) for line in items) for n in range(len(item.certificate))]
    paths = []
    for page, start in enumerate(range(0, max(len(edits), 1), PAIRS_PER_SHEET), 1):
        path = out / ("contact_sheet.jpg" if page == 1 else f"contact_sheet_{page}.jpg")
        title = f"{len(items)} items, {len(edits)} edits"
        if edits:
            title = f"seed {edits[0][0].record.seed}: {title}"
        if len(edits) > PAIRS_PER_SHEET:
            title += f", sheet {page}"
        # Pictures are opened page by page: an instance has hundreds.
        sheet = contact_sheet([_row(out, *edit) for edit in edits[start:start + PAIRS_PER_SHEET]], COLUMNS, title=title)
        buffer = io.BytesIO()
        # No chroma subsampling: small colored things must keep their color.
        sheet.save(buffer, "JPEG", quality=90, subsampling=0)
        write_atomic(path, buffer.getvalue())
        paths.append(path)
    return paths


def _row(out: Path, item: Item, n: int) -> tuple[Image.Image, Image.Image, str]:
    """(before, after, caption) of the n-th edit of an item."""
    with Image.open(out / "pairs" / Path(item.image).name) as pairs:
        side = pairs.width // 2
        before, after = (pairs.crop((left, n * side, left + side, n * side + side)) for left in (0, side))
    options = "   ".join(f"({option_letter(i)}) {text}" for i, text in enumerate(item.options))
    certificate = item.certificate[n]
    measured = (f"{certificate.slot_id}: measured {certificate.measured} {certificate.share:.0%}, "
                f"attempt {certificate.attempts}")
    return before, after, f"{item.item_id}\n{item.question}\n{options}\nanswer: {item.answer_text}\n{measured}"
