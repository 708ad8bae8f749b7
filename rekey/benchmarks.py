"""Benchmarks in and out: V*Bench in its public layouts, VLMEvalKit, lmms-eval, and our own folder.

    report = import_items(Path("MMStar.tsv"), Path("mmstar"))
    items  = read_items(Path("mmstar"))
    export_items(Path("mmstar"), Path("mmstar.tsv"), to="vlmevalkit")

Our own folder, which every other command reads, holds

    items.jsonl      one `Item` a line
    images/          the image files, byte for byte as they came
    rejected.jsonl   rows that could not become items, with the reason; absent where there are none
    run.json         where it came from

A folder appears whole or not at all: it is written beside its place and renamed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rekey.benchmark_rows import (
    MAX_ID_CHARS,
    NO_IMAGE,
    Draft,
    FileNames,
    ImageFolder,
    ImageSource,
    PortableImage,
    Rejected,
    RowError,
    Rows,
    check_answer_text,
    file_stem,
    plain_lines,
    settle_answer,
    shortened,
)
from rekey.benchmarks_lmms import write_lmms_folder
from rekey.benchmarks_tables import SUFFIXES, read_table, table_layout
from rekey.benchmarks_vlmevalkit import read_tsv, tsv_columns, write_tsv
from rekey.benchmarks_vstar import is_vstar_folder, read_vstar_folder, write_vstar_folder
from rekey.errors import InputError
from rekey.images import decode_image, load_image, png_bytes
from rekey.records import LETTERS, Item, from_json, to_json
from rekey.store import dumps, read_jsonl, run_manifest, write_jsonl

ITEMS, REJECTED, IMAGES = "items.jsonl", "rejected.jsonl", "images"
TARGETS = ("vlmevalkit", "lmms-eval", "vstar")
OWN = "our own items folder"
VSTAR = "V*Bench folders (image + JSON, right option first)"
TSV = "VLMEvalKit TSV"
_EXTENSION = {"JPEG": ".jpg", "MPO": ".jpg", "JPEG2000": ".jp2", "PPM": ".ppm", "TIFF": ".tif"}
_PORTABLE_FORMATS, _PORTABLE_MODES = ("JPEG", "PNG"), ("RGB", "L")


@dataclass(frozen=True)
class ImportReport:
    """What an import found."""

    format: str
    items: tuple[Item, ...]
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True)
class ExportReport:
    """What an export left out, and what its reader should know."""

    n_items: int
    rejected: tuple[Rejected, ...]
    warnings: tuple[str, ...]


# ----------------------------------------------------------------------------------- our folder

def read_items(folder: Path) -> list[Item]:
    """The items of a folder.  Raises InputError naming every line that is no item."""
    path = folder / ITEMS if folder.is_dir() else folder
    items, problems = [], []
    for number, data in enumerate(read_jsonl(path), 1):
        try:
            item = from_json(Item, data)
            _check_item(item, data)
            items.append(item)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"{path} line {number}: not an item ({error}); expected item_id, image, "
                            "image_sha256, question, options and answer")
    repeated = [item_id for item_id, count in Counter(item.item_id for item in items).items() if count > 1]
    problems += [f"{path}: item id {item_id!r} appears more than once" for item_id in repeated[:10]]
    if problems:
        raise InputError(*problems)
    return items


def _check_item(item: Item, data: dict) -> None:
    for name in ("item_id", "image", "image_sha256", "question", "answer"):
        if not isinstance(getattr(item, name), str):
            raise ValueError(f"{name} is {getattr(item, name)!r}, no text")
    if not isinstance(data["options"], list) or not all(isinstance(text, str) for text in item.options):
        raise ValueError(f"options are {data['options']!r}, no list of texts")
    if item.options and item.answer not in LETTERS[:len(item.options)]:
        raise ValueError(f"answer {item.answer!r} is no letter of its {len(item.options)} options")


# -------------------------------------------------------------------------------------- import

def detect_format(source: Path) -> str:
    """The format of a file or folder, in words.  Raises InputError where it is none we read."""
    if not source.exists():
        raise InputError(f"{source}: no such file or folder")
    if source.name == ITEMS or (source / ITEMS).is_file():
        return OWN
    if source.is_dir():
        if is_vstar_folder(source):
            return VSTAR
        if any(source.rglob("*.parquet")):
            return table_layout(source)
        raise InputError(f"{source}: the folder holds neither items.jsonl, nor images with JSON files beside "
                         "them (V*Bench), nor Parquet files")
    if source.suffix.lower() == ".tsv":
        tsv_columns(source)
        return TSV
    if source.suffix.lower() in SUFFIXES:
        return table_layout(source)
    raise InputError(f"{source}: unknown kind of file {source.suffix or '(no extension)'!r}; expected .tsv, "
                     f"{', '.join(SUFFIXES)} or a folder")


def import_items(source: Path, out: Path, images: Path | None = None, with_images: bool = True,
                 category_column: str = "category",
                 progress: Callable[[Rows], Iterable[Draft | Rejected]] = iter) -> ImportReport:
    """Turn a benchmark in any known format into an items folder at `out`, which must not exist yet.

    images: folder for image paths named in a table, where they are not beside it.
    with_images=False: questions only; `Item.image` is the text of the table, `image_sha256` empty.
    Rows that cannot become items are listed in the report and in rejected.jsonl.  Where no row
    can, InputError is raised and nothing is written.
    """
    started = time.time()
    kind = detect_format(source)
    if images is not None and not images.is_dir():
        raise InputError(f"--images {images}: no such folder")
    if kind == OWN:
        rows = _own_rows(source, with_images)
    elif kind == VSTAR:
        rows = read_vstar_folder(source)
    elif kind == TSV:
        rows = read_tsv(source, images, category_column, with_images)
    else:
        rows = read_table(source, images, category_column, with_images)
    with staged(out) as folder:
        folder.mkdir()
        items, rejected = _settle(progress(rows), _ImageStore(folder, with_images))
        if not items:
            raise _nothing_usable(source, rejected)
        write_jsonl(folder / ITEMS, map(to_json, items))
        if rejected:
            write_jsonl(folder / REJECTED, ({"where": row.where, "item_id": row.item_id, "reason": row.reason}
                                            for row in rejected))
        settings = {"source": str(source), "format": kind, "with_images": with_images, "n_items": len(items),
                    "n_rejected": len(rejected)}
        (folder / "run.json").write_text(dumps(run_manifest(settings, started)) + "\n", encoding="utf-8")
    return ImportReport(kind, tuple(items), tuple(rejected))


def _settle(rows: Iterable[Draft | Rejected], store: _ImageStore) -> tuple[list[Item], list[Rejected]]:
    """Items with their images in `store`, and the rows that cannot become one."""
    items, rejected, where_of = [], [], {}
    for row in rows:
        if isinstance(row, Rejected):
            rejected.append(row)
            continue
        try:
            if not 0 < len(row.item_id) <= MAX_ID_CHARS:
                raise RowError(f"item id {shortened(row.item_id)} has {len(row.item_id)} characters; expected "
                               f"1 to {MAX_ID_CHARS}")
            if row.item_id in where_of:
                raise RowError(f"item id {row.item_id!r} was used by {where_of[row.item_id]}")
            given = tuple(map(plain_lines, row.options))
            options, answer = settle_answer(given, plain_lines(row.answer), row.answer_may_be_text)
            check_answer_text(options, answer, row.answer_text)
            image, sha256 = store.add(row)
        except RowError as error:
            rejected.append(Rejected(row.where, row.item_id, str(error)))
            continue
        where_of[row.item_id] = row.where
        items.append(Item(row.item_id, image, sha256, plain_lines(row.question), options, answer,
                          (row.category or "").strip() or None, row.source_answer, row.record,
                          row.certificate))
    return items, rejected


class _ImageStore:
    """Image files of one items folder: each written once, under a name of its own."""

    def __init__(self, folder: Path, with_images: bool):
        self._folder = folder
        self._with_images = with_images
        self._stored: dict[str, tuple[str, str]] = {}  # ImageSource.key -> (path, hash)
        self._names = FileNames()

    def add(self, row: Draft) -> tuple[str, str]:
        """(path relative to the folder, pixel hash) of the image of a row."""
        if not self._with_images:
            return (row.image.text if row.image else ""), ""
        if row.image is None:
            raise RowError(f"{NO_IMAGE} in the row")
        if row.image.key not in self._stored:
            self._stored[row.image.key] = self._write(row)
        path, sha256 = self._stored[row.image.key]
        _check_hash(row, sha256)
        return path, sha256

    def _write(self, row: Draft) -> tuple[str, str]:
        assert row.image is not None
        data = row.image.read()
        try:
            loaded = decode_image(data, "its image")
        except InputError as error:
            raise RowError(str(error)) from None
        _check_hash(row, loaded.sha256)
        extension = _EXTENSION.get(loaded.format, f".{loaded.format.lower()}")
        wanted = row.item_id
        if row.image.file_name:
            wanted, extension = Path(row.image.file_name).stem, Path(row.image.file_name).suffix
        name = self._names.free_name(wanted, extension)
        target = self._folder / IMAGES / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)
        return f"{IMAGES}/{name}", loaded.sha256


def _check_hash(row: Draft, sha256: str) -> None:
    if row.image_sha256 not in (None, sha256):
        raise RowError("the pixels of the image are not those that the item was made with (other hash)")


def _own_rows(source: Path, with_images: bool) -> Rows:
    folder = source if source.is_dir() else source.parent
    finder = ImageFolder(folder, None)
    for number, item in enumerate(read_items(source), 1):
        where = f"{ITEMS} line {number}"
        try:
            image = ImageSource(item.image, bytes, item.image)
            if with_images:
                if not item.image_sha256:
                    raise RowError(f"{NO_IMAGE}: imported as a question only")
                image = finder.source(item.image, Path(item.image).name)
            yield Draft(where=where, item_id=item.item_id, question=item.question, options=item.options,
                        answer=item.answer, image=image, category=item.category,
                        source_answer=item.source_answer, record=item.record,
                        certificate=item.certificate, image_sha256=item.image_sha256)
        except RowError as error:
            yield Rejected(where, item.item_id, str(error))


def _nothing_usable(source: Path, rejected: list[Rejected]) -> InputError:
    if not rejected:
        return InputError(f"{source}: holds no rows; nothing was written")
    first = rejected[0]
    if all(row.reason.startswith(NO_IMAGE) for row in rejected):
        return InputError(f"{source}: none of the {len(rejected)} rows has its image here (first: "
                          f"{first.where}: {first.reason}); give the folder of the image files with "
                          "--images, or import the questions alone with --no-images; nothing was written")
    reasons = Counter(row.reason for row in rejected).most_common(3)
    listed = "; ".join(f"{count} x {reason}" for reason, count in reasons)
    return InputError(f"{source}: none of the {len(rejected)} rows can be used (first: {first.where}; "
                      f"{listed}); nothing was written")


# -------------------------------------------------------------------------------------- export

def export_items(source: Path, out: Path, to: str, task: str | None = None) -> ExportReport:
    """Write an items folder in another tool's format to `out`, which must not exist yet.

    to: "vlmevalkit" (one TSV file), "lmms-eval" (a task folder; `task` names it, by default after
    `out`) or "vstar" (folders of image + JSON).  Images that need EXIF, ICC or alpha handling are
    written as PNGs of their upright sRGB pixels, since those tools read files naively.
    """
    if to not in TARGETS:
        raise InputError(f"--to {to}: expected one of {', '.join(TARGETS)}")
    if to == "vlmevalkit" and out.suffix != ".tsv":
        raise InputError(f"--out {out}: expected a file name that ends in .tsv; VLMEvalKit finds data by it")
    items = read_items(source)
    if not items:
        raise InputError(f"{source}: holds no items")
    folder = source if source.is_dir() else source.parent
    portable_image = _portable_images(folder)
    rejected: list[Rejected] = []
    warnings: list[str] = []
    with staged(out) as partial:
        if to == "vlmevalkit":
            warnings = write_tsv(partial, items, portable_image)
        else:
            partial.mkdir()
            if to == "lmms-eval":
                rejected = write_lmms_folder(partial, items, portable_image, task or _task_name(out))
            else:
                rejected = write_vstar_folder(partial, items, portable_image)
        if len(rejected) == len(items):
            raise InputError(f"{source}: none of the {len(items)} items fits {to} (first: "
                             f"{rejected[0].item_id}: {rejected[0].reason}); nothing was written")
    return ExportReport(len(items) - len(rejected), tuple(rejected), tuple(warnings))


def _portable_images(folder: Path) -> PortableImage:
    def portable_image(item: Item) -> tuple[str, bytes] | None:
        if not item.image_sha256:
            return None
        path = folder / item.image
        loaded = load_image(path)
        if loaded.sha256 != item.image_sha256:
            raise InputError(f"{path}: its pixels are not those that item {item.item_id!r} was made with; "
                             "make the folder again")
        plain = loaded.format in _PORTABLE_FORMATS and loaded.mode in _PORTABLE_MODES and not loaded.notes
        return (path.name, path.read_bytes()) if plain else (f"{path.stem}.png", png_bytes(loaded.pixels))

    return portable_image


def _task_name(out: Path) -> str:
    plain = "".join(char if char.isascii() and char != "-" else "_" for char in out.name)
    return file_stem(plain, dots=False).strip("_").lower() or "rekey_items"


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A path beside `out` that takes its place when the block ends well, and goes away otherwise."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out}: exists already; give another name or remove it first")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        yield partial
        if out.exists():
            out.rmdir()
        os.replace(partial, out)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
