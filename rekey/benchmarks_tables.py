"""Benchmarks as tables of records: Parquet, JSON Lines or JSON.

    for row in read_table(Path("test-00000-of-00001.parquet"), images=None): ...

Known layouts, told apart by their columns (all may have `image` and `category`):

    text, label                         lmms-lab/vstar-bench, V*Bench's test_questions.jsonl
    question, choices (list), answer    answer: index from 0, or letter
    question, options, answer|label     options: list, or object by letter; `stem` for question
    question, answer[, A, B, ...]       VLMEvalKit's columns; without options: free-form answers
    corrected_question, corrected_options, correct_label      ReKey's relabeled V*Bench
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rekey.benchmark_rows import (
    NO_IMAGE,
    Draft,
    ImageFolder,
    ImageSource,
    Rejected,
    RowError,
    Rows,
    base64_source,
    bytes_source,
    plain_lines,
    shortened,
    split_options,
)
from rekey.benchmarks_vstar import vstar_id
from rekey.errors import InputError
from rekey.records import LETTERS
from rekey.store import read_jsonl

SUFFIXES = (".parquet", ".jsonl", ".json")
ROWS_AT_ONCE = 16
"""Parquet rows held in memory together; one may carry a photo of several megabytes."""
MAX_PATH_CHARS = 512
"""A longer `image` text is base64, not a path."""

RELABELED = "relabeled V*Bench"
TEXT_LABEL = "V*Bench rows (text, label)"
CHOICES = "rows with choices"
OPTIONS = "rows with options"
LAYOUTS = {
    RELABELED: ("corrected_question", "corrected_options", "correct_label"),
    TEXT_LABEL: ("text", "label"),
    CHOICES: ("question", "choices", "answer"),
    OPTIONS: ("question|stem", "options", "answer|label"),
    "rows of question and answer": ("question", "answer"),
}


def table_layout(path: Path) -> str:
    """The layout of a table, by its first record's columns."""
    columns = _columns(path)
    for layout, needed in LAYOUTS.items():
        if all(any(name in columns for name in choice.split("|")) for choice in needed):
            return layout
    expected = "; ".join(", ".join(needed) for needed in LAYOUTS.values())
    raise InputError(f"{path}: columns {', '.join(sorted(columns)[:15]) or '(none)'} are of no known layout; "
                     f"expected one of: {expected}")


def read_table(path: Path, images: Path | None, category_column: str = "category",
               with_images: bool = True) -> Rows:
    """Every row of a table, in file order; of a folder of Parquet shards, in name order."""
    layout = table_layout(path)
    folder = ImageFolder(path if path.is_dir() else path.parent, images)
    for number, row in enumerate(_records(path)):
        where = f"{path.name} row {number + 1}"
        item_id = ""
        try:
            if not isinstance(row, dict):
                raise RowError(f"a JSON {type(row).__name__}; expected an object")
            item_id = _item_id(layout, row, number)
            question, options, answer = _question(layout, row)
            image = _image(row, item_id, folder) if with_images else _named(row)
            category = row.get(category_column)
            yield Draft(where=where, item_id=item_id, question=question, options=options, answer=answer,
                        image=image, category=str(category) if category not in (None, "") else None,
                        answer_text=row.get("correct_answer_text") if layout == RELABELED else None,
                        answer_may_be_text=layout in (CHOICES, OPTIONS))
        except RowError as error:
            yield Rejected(where, item_id, str(error))


# ------------------------------------------------------------------------------- single fields

def _item_id(layout: str, row: dict[str, Any], number: int) -> str:
    given = next((str(row[name]) for name in ("item_id", "question_id", "index", "id")
                  if row.get(name) not in (None, "")), None)
    if given is None:
        return f"item_{number:04d}"
    vstar = layout in (RELABELED, TEXT_LABEL) or {"stem", "question_id"} <= row.keys()
    return vstar_id(given) if vstar and given.isdecimal() else given


def _question(layout: str, row: dict[str, Any]) -> tuple[str, tuple[str, ...], str]:
    if layout == TEXT_LABEL:
        question, options = split_options(plain_lines(_text(row, "text")))
        answer = _text(row, "label")
    elif layout == RELABELED:
        question, options = _text(row, "corrected_question"), _options(row.get("corrected_options"))
        answer = _text(row, "correct_label")
    else:
        question = _text(row, "question" if "question" in row else "stem")
        if layout == CHOICES:
            options = _options(row.get("choices"))
        elif layout == OPTIONS:
            options = _options(row.get("options"))
        else:
            options = _options({name: row[name] for name in LETTERS if name in row})
        value = row["label"] if layout == OPTIONS and "label" in row else row.get("answer")
        # `bool` is an `int` in Python, and "answer": true is no index.
        if options and isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value < len(options):
                raise RowError(f"answer {value} is no index into {len(options)} choices; expected 0 to "
                               f"{len(options) - 1}")
            value = LETTERS[value]
        if value is None:
            raise RowError("no answer")
        answer = str(value)
    if not question.strip():
        raise RowError("no question")
    return question, options, answer


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise RowError(f"{name} is {shortened(value)}; expected text")
    return value


def _options(value: Any) -> tuple[str, ...]:
    """Options by letter, from a list or from an object such as {"A": ..., "B": ...}."""
    if isinstance(value, dict):
        strange = [name for name in value if name not in LETTERS or len(name) != 1]
        if strange:
            raise RowError(f"options are named {', '.join(map(repr, strange))}; expected letters")
        filled = [LETTERS.index(name) for name, text in value.items() if text not in (None, "")]
        last = max(filled, default=-1)
        value = [value.get(letter) for letter in LETTERS[:last + 1]]
    if not isinstance(value, (list, tuple)):
        raise RowError(f"options are {shortened(value)}; expected a list")
    if len(value) > len(LETTERS):
        raise RowError(f"{len(value)} options; at most {len(LETTERS)} have a letter")
    return tuple("" if text is None else str(text) for text in value)


def _named(row: dict[str, Any]) -> ImageSource | None:
    image = row.get("image_path") or row.get("image")
    if isinstance(image, dict):
        image = image.get("path")
    if isinstance(image, str) and 0 < len(image) <= MAX_PATH_CHARS and not image.startswith("data:"):
        return ImageSource(image, bytes, image)
    return None


def _image(row: dict[str, Any], item_id: str, folder: ImageFolder) -> ImageSource:
    value = row.get("image") if row.get("image") not in (None, "") else row.get("image_path")
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise RowError(f"{len(value)} images; an item has one")
        value = value[0]
    if isinstance(value, dict):  # the `datasets` form: the bytes, or a path
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes) and value:
        return bytes_source(item_id, value)
    if isinstance(value, str) and value:
        if value.startswith("data:") or len(value) > MAX_PATH_CHARS:
            return base64_source(item_id, value)
        return folder.source(value)
    raise RowError(f"{NO_IMAGE} in the row")


# --------------------------------------------------------------------------------------- files

def _columns(path: Path) -> set[str]:
    if path.is_dir() or path.suffix == ".parquet":
        with _parquet(_shards(path)[0]) as file:
            return set(file.schema_arrow.names)
    first = next(iter(_records(path)), None)
    if first is None:
        raise InputError(f"{path}: holds no records")
    if not isinstance(first, dict):
        raise InputError(f"{path}: the first record is a JSON {type(first).__name__}; expected an object")
    return set(first)


def _records(path: Path) -> Iterable[Any]:
    if path.is_dir() or path.suffix == ".parquet":
        return _parquet_records(path)
    if path.suffix == ".jsonl":
        return read_jsonl(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(data, list):
        raise InputError(f"{path}: a JSON {type(data).__name__}; expected a list of objects")
    return data


def _shards(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet")) if path.is_dir() else [path]


def _parquet(path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: not readable as Parquet ({first_line}); download it again") from None


def _parquet_records(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    for shard in _shards(path):
        with _parquet(shard) as file:
            try:
                for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                    yield from batch.to_pylist()
            except (pa.ArrowException, OSError) as error:
                raise InputError(f"{shard}: damaged Parquet data ({str(error).splitlines()[0]}); "
                                 "download it again") from None
