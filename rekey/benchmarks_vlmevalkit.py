"""VLMEvalKit's TSV files, in and out.

    for row in read_tsv(Path("MMStar.tsv"), images=None): ...      # Draft or Rejected
    write_tsv(Path("renewed.tsv"), items, folder)

One row per question: `index, question, answer`, options in columns `A` to `Z`, and `image` (base64,
or the index of another row that has it) or `image_path`.  Cells are text and stay text: "None",
"007" and "1e5" are answers here, where pandas makes them NaN, 7 and 100000.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from rekey.benchmark_rows import (
    NO_IMAGE,
    Draft,
    ImageFolder,
    ImageSource,
    PortableImage,
    Rejected,
    RowError,
    Rows,
    base64_source,
    plain_lines,
)
from rekey.errors import InputError
from rekey.records import LETTERS, Certificate, Item, SamplingRecord, from_json, to_json
from rekey.store import dumps

REQUIRED = ("index", "question", "answer")
MAX_REFERENCE_CHARS = 64
"""A shorter `image` cell is the index of the row that holds the image (VLMEvalKit's rule)."""
READ_AS_MISSING = frozenset((
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>",
    "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"))
"""Texts that pandas, and so VLMEvalKit, reads as an empty cell however they are quoted."""


def read_tsv(path: Path, images: Path | None, category_column: str = "category",
             with_images: bool = True) -> Rows:
    """Every row of a TSV, in file order.

    images: folder to look for `image_path` in, beside the folder of the TSV.
    Raises InputError where the file is no such TSV at all.
    """
    shared = _shared_images(path) if with_images else {}
    folder = ImageFolder(path.parent, images)
    seen: dict[str, int] = {}
    for line, row in _rows(path):
        index = row["index"].strip() if isinstance(row, dict) else ""
        where = f"{path.name} line {line}" + (f" (index {' '.join(index.split())[:40]})" if index else "")
        try:
            if not isinstance(row, dict):
                raise RowError(row)
            if index in seen:
                raise RowError(f"index {index!r} was used in line {seen[index]}")
            seen[index] = line
            yield _draft(where, index, row, folder, shared, category_column, with_images)
        except RowError as error:
            yield Rejected(where, index, str(error))


def tsv_columns(path: Path) -> list[str]:
    """The header.  Raises InputError where it is not that of a benchmark TSV."""
    with _text(path) as lines:
        try:
            header = [name.strip() for name in next(csv.reader(lines, delimiter="\t"), [])]
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
        except csv.Error as error:
            raise InputError(f"{path}: not a TSV file ({error})") from None
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        found = ", ".join(name[:40] for name in header[:12]) or "nothing"
        raise InputError(f"{path}: no column {', '.join(map(repr, missing))} in the header (found: {found}); "
                         "expected a VLMEvalKit TSV: tab-separated, with index, question and answer")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: column {', '.join(map(repr, repeated))} appears more than once in the "
                         "header")
    return header


def write_tsv(path: Path, items: Iterable[Item], portable_image: PortableImage) -> list[str]:
    """Write items as a TSV and return warnings.

    portable_image: item -> (file name, bytes) of its image, or None for items without one.
    Further columns (item_id, source_answer, record, certificate) bring the same items back on
    import; VLMEvalKit carries them along.
    """
    items = list(items)
    letters = LETTERS[:max((len(item.options) for item in items), default=0)]
    written: dict[str, tuple[str, str]] = {}  # image path -> (row index that holds it, file name)
    swallowed = []
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["index", "image", "image_path", "question", *letters, "answer", "category",
                         "item_id", "source_answer", "record", "certificate"])
        for index, item in enumerate(items):
            if item.image in written:
                cell, name = written[item.image]
            elif (image := portable_image(item)) is not None:
                name, data = image
                cell = base64.b64encode(data).decode("ascii")
                written[item.image] = str(index), name
            else:
                cell, name = "", item.image
            unused = [""] * (len(letters) - len(item.options))
            writer.writerow([index, cell, name, plain_lines(item.question),
                             *map(plain_lines, item.options), *unused, item.answer, item.category or "",
                             item.item_id, item.source_answer or "",
                             dumps(to_json(item.record)) if item.record else "",
                             dumps(to_json(item.certificate)) if item.certificate else ""])
            if READ_AS_MISSING.intersection((*item.options, item.answer)):
                swallowed.append(item.item_id)
    warnings = []
    if swallowed:
        warnings.append(f"{len(swallowed)} items have an option or answer such as 'None' or 'NA', which "
                        f"VLMEvalKit reads as empty (first: {swallowed[0]}); score those with `rekey` or "
                        "reword them")
    if numeric := [letter for place, letter in enumerate(letters) if _all_numbers(items, place)]:
        warnings.append(f"column {', '.join(numeric)} holds nothing but numbers, which VLMEvalKit may show as "
                        "7.0 for 7 or 007")
    return warnings


def _all_numbers(items: list[Item], place: int) -> bool:
    """Whether pandas makes numbers of the column of options at `place`."""
    texts = [item.options[place] for item in items if place < len(item.options)]
    try:
        return bool([float(text) for text in texts if text not in READ_AS_MISSING])
    except ValueError:
        return False


# ------------------------------------------------------------------------------------- reading

def _draft(where: str, index: str, row: dict[str, str], folder: ImageFolder, shared: dict[str, str],
           category_column: str, with_images: bool) -> Draft:
    question = row["question"]
    if not question.strip():
        raise RowError("no question")
    hint = row.get("hint", "").strip()
    if hint:
        question = f"Hint: {hint.removeprefix('Hint:').strip()}\n{question}"
    letters = [name for name in row if len(name) == 1 and name in LETTERS]
    last = max(map(LETTERS.index, letters), default=-1)
    options = tuple(row.get(letter, "") for letter in LETTERS[:last + 1])
    ours = "item_id" in row
    return Draft(
        where=where, item_id=row["item_id"] if ours else index, question=question, options=options,
        answer=row["answer"], category=_category(row, category_column),
        image=_image(index, row, folder, shared, keep_name=ours) if with_images else _named(row),
        source_answer=(row.get("source_answer") or None) if ours else None,
        record=_record(row.get("record")) if ours else None,
        certificate=_certificate(row.get("certificate")) if ours else ())


def _category(row: dict[str, str], column: str) -> str | None:
    names = (column, "l2-category", "l2_category") if column == "category" else (column,)
    return next((row[name] for name in names if row.get(name, "").strip()), None)


def _record(text: str | None) -> SamplingRecord | None:
    try:
        return from_json(SamplingRecord, json.loads(text)) if text else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RowError(f"column 'record' does not hold a sampling record ({error!r})") from None


def _certificate(text: str | None) -> tuple[Certificate, ...]:
    try:
        return from_json(tuple[Certificate, ...], json.loads(text)) if text else ()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RowError(f"column 'certificate' does not hold certificates ({error!r})") from None


def _named(row: dict[str, str]) -> ImageSource | None:
    text = row.get("image_path", "").strip()
    return ImageSource(text, bytes, text) if text else None


def _image(index: str, row: dict[str, str], folder: ImageFolder, shared: dict[str, str],
           keep_name: bool) -> ImageSource:
    path = _single(row.get("image_path", "").strip(), "image_path")
    name = Path(path).name if path and keep_name else None
    cell = _single(row.get("image", "").strip(), "image")
    if cell and len(cell) <= MAX_REFERENCE_CHARS:
        if cell not in shared:
            raise RowError(f"{NO_IMAGE}: the cell refers to row {cell!r}, which holds none")
        return base64_source(cell, shared[cell], name)
    if cell:
        return base64_source(index, cell, name)
    if path:
        return folder.source(path, name)
    raise RowError(f"{NO_IMAGE} in the row")


def _single(cell: str, column: str) -> str:
    """The only entry of a cell that may be written as a list."""
    if not cell.startswith("["):
        return cell
    try:
        entries = ast.literal_eval(cell)
    except (ValueError, SyntaxError):
        return cell
    if len(entries) != 1:
        raise RowError(f"{len(entries)} images in column {column!r}; an item has one")
    return str(entries[0])


def _shared_images(path: Path) -> dict[str, str]:
    """Base64 images of the rows that other rows refer to, by index."""
    wanted = {row["image"].strip() for _, row in _rows(path)
              if isinstance(row, dict) and 0 < len(row.get("image", "").strip()) <= MAX_REFERENCE_CHARS}
    if not wanted:
        return {}
    return {row["index"].strip(): row["image"].strip() for _, row in _rows(path)
            if isinstance(row, dict) and row["index"].strip() in wanted
            and len(row["image"].strip()) > MAX_REFERENCE_CHARS}


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """(first line number, cells by column), or (line, fault) for a row of another width."""
    header = tsv_columns(path)
    with _text(path) as lines:
        reader = csv.reader(lines, delimiter="\t", strict=True)
        line = 1
        try:
            while (cells := _next_row(reader)) is not None:
                start, line = line, reader.line_num + 1
                if start == 1 or not cells:
                    continue
                if len(cells) != len(header):
                    yield start, (f"{len(cells)} cells where the header has {len(header)}; a quote or a tab "
                                  "is amiss")
                else:
                    yield start, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise InputError(f"{path} line {line}: broken quoting in the row that starts here ({error}); "
                             'expected cells with quotes, tabs or line breaks to stand in "...", and quotes '
                             "in them to be doubled") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{path} after line {line}: not UTF-8 text ({error.reason}); save the file "
                             "as UTF-8") from None


def _next_row(reader) -> list[str] | None:
    """The next row, with csv's limit of 131,072 characters a cell lifted for base64 photos.

    The limit is a setting of the whole process, so it is lifted for one row at a time.
    """
    before = csv.field_size_limit(2 ** 31 - 1)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


@contextlib.contextmanager
def _text(path: Path) -> Iterator:
    try:
        file = path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    with file:
        yield file
