"""From one row of any benchmark to an item: options, answer, image, or the reason why not.

    item_options, answer = settle_answer(("red", "", "blue"), "C")     # ("red", "blue"), "B"

The readers of the single formats (`rekey.benchmarks_*`) turn rows into `Draft`s and rows that
cannot be used into `Rejected`; `rekey.benchmarks` turns drafts into items and files.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rekey.records import LETTERS, Certificate, Item, SamplingRecord, option_letter

NO_IMAGE = "no image"
MAX_STEM_BYTES = 120
"""File systems stop at 255 bytes, and extensions and counters come on top."""
MAX_ID_CHARS = 200
MAX_QUOTED_CHARS = 80


class RowError(ValueError):
    """Why one row cannot become an item; the other rows go on."""


def shortened(value: object) -> str:
    """A value as it is quoted in a message: on one line, and not by the page."""
    text = repr(value)
    return text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS - 3] + "..."


@dataclass(frozen=True)
class ImageSource:
    """Where the image of a row is."""

    key: str
    """Equal for rows that share one image."""
    read: Callable[[], bytes]
    """The bytes of the image file.  Raises RowError."""
    text: str
    """As the row names it; kept where only questions are imported."""
    file_name: str | None = None
    """Name to keep, without folder; None: named after the item."""


@dataclass(frozen=True)
class Draft:
    """A row as it was read, before options and answer are checked."""

    where: str
    """"mmstar.tsv line 12 (index 7)"."""
    item_id: str
    question: str
    options: tuple[str, ...]
    """By letter, with blanks for letters that are not used."""
    answer: str
    image: ImageSource | None
    category: str | None = None
    answer_text: str | None = None
    """The right option's text, where the row states it beside the letter."""
    answer_may_be_text: bool = False
    """Whether the format lets `answer` be an option's text in place of its letter."""
    source_answer: str | None = None
    record: SamplingRecord | None = None
    certificate: tuple[Certificate, ...] = ()
    image_sha256: str | None = None
    """The hash that the pixels must have, where it is known."""


@dataclass(frozen=True)
class Rejected:
    """A row that cannot become an item, and why."""

    where: str
    item_id: str
    reason: str


Rows = Iterator[Draft | Rejected]
PortableImage = Callable[[Item], tuple[str, bytes] | None]
"""For writers: (file name, bytes) of an item's image as any tool reads it; None without image."""


# ---------------------------------------------------------------------------- options, answer

_LETTER_ANSWER = re.compile(r"\(?([A-Za-z])\)?[.:]?")


def settle_answer(options: tuple[str, ...], answer: str,
                  may_be_text: bool = False) -> tuple[tuple[str, ...], str]:
    """The options that have text, and the letter of the right one; ((), answer) for free form.

    options: by letter, blanks included.  answer: a letter; with may_be_text, also the text of an
    option, unless that is a single letter, which could mean either.
    Raises RowError where the answer names no option, or two options say the same.
    """
    answer = answer.strip()
    texts = [option.strip() for option in options]
    kept = [index for index, text in enumerate(texts) if text]
    if not answer:
        raise RowError("no answer")
    if not kept:
        return (), answer
    if len(kept) == 1:
        raise RowError(f"only one option ({shortened(texts[kept[0]])})")
    if len(kept) > len(LETTERS):
        raise RowError(f"{len(kept)} options; at most {len(LETTERS)} have a letter")
    for index in kept:
        first = texts.index(texts[index])
        if first != index:
            raise RowError(f"options {_label(first)} and {_label(index)} are the same: "
                           f"{shortened(texts[index])}")
    letter = _LETTER_ANSWER.fullmatch(answer)
    right = ord(letter[1].upper()) - ord("A") if letter else -1
    if right not in kept:
        if answer not in texts or letter or not may_be_text:
            named = ", ".join(_label(index) for index in kept)
            hint = f" (it is the text of option {_label(texts.index(answer))})" if answer in texts else ""
            raise RowError(f"answer {shortened(answer)} has no option{hint}; expected one of {named}")
        right = texts.index(answer)
    return tuple(texts[index] for index in kept), option_letter(kept.index(right))


def check_answer_text(options: tuple[str, ...], answer: str, answer_text: str | None) -> None:
    """Raises RowError where a row's answer letter and its answer text contradict each other."""
    if answer_text and options:
        right = options[LETTERS.index(answer)]
        if _comparable(right) != _comparable(answer_text):
            raise RowError(f"answer {answer} is {shortened(right)}, but the row's answer text is "
                           f"{shortened(answer_text.strip())}")


def _comparable(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _label(index: int) -> str:
    return LETTERS[index] if index < len(LETTERS) else str(index + 1)


_OPTION_SUFFIX = re.compile(
    r"\s*(please\s+)?answer with the option'?s letter[^.\n]*\.?\s*$", re.IGNORECASE)


def split_options(text: str) -> tuple[str, tuple[str, ...]]:
    """Question and options of "Question? (A) red (B) blue" and its prompt suffix.

    The markers must come in alphabetical order, so "(B)" inside the question or "(see A)" inside
    an option does not split it.  No marker "(A)": no options.
    """
    text = _OPTION_SUFFIX.sub("", text)
    starts = []
    position = 0
    for letter in LETTERS:
        found = text.find(f"({letter})", position)
        if found < 0:
            break
        starts.append(found)
        position = found + 3
    if len(starts) < 2:
        return text.strip(), ()
    ends = [*starts[1:], len(text)]
    options = tuple(text[start + 3:end].strip() for start, end in zip(starts, ends, strict=True))
    return text[:starts[0]].strip(), options


# -------------------------------------------------------------------------------------- images

class ImageFolder:
    """Finds the files that rows name by path: as given, below --images, beside the table."""

    def __init__(self, beside: Path, images: Path | None):
        self._roots = [root for root in (images, beside) if root is not None]
        self._images = images

    def source(self, text: str, file_name: str | None = None) -> ImageSource:
        """The image file that a row names `text`.  Raises RowError where there is none."""
        for root in self._roots:
            if _is_file(root / text):  # an absolute `text` stands alone
                break
        else:
            root, flat = self._images, Path(text).name
            if root is None or not _is_file(root / flat):
                raise RowError(f"{NO_IMAGE} file {shortened(text)} in {' or '.join(map(str, self._roots))}")
            text = flat
        path = root / text
        return ImageSource(str(path), path.read_bytes, text, file_name)


def base64_source(key: str, text: str, file_name: str | None = None) -> ImageSource:
    """An image that stands in the row as base64, with or without a "data:image/..." head."""

    def read() -> bytes:
        try:
            return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text)
        except (binascii.Error, ValueError) as error:
            raise RowError(f"the image is not base64 ({error})") from None

    return ImageSource(key, read, "", file_name)


def bytes_source(key: str, data: bytes, name: str = "") -> ImageSource:
    return ImageSource(key, lambda: data, name)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a null byte: no file can have it
        return False


# ------------------------------------------------------------------------------- text and names

def plain_lines(text: str) -> str:
    """Text with every line end as a single newline, as the models' tokenizers expect."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


class FileNames:
    """Hands out file names, each once; some file systems do not tell "A.png" from "a.png"."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def free_name(self, wanted: str, extension: str, folder: str = "", dots: bool = True) -> str:
        """A name near `wanted` that no other file in `folder` has, with `extension` added."""
        stem = file_stem(wanted, dots)
        name, count = stem, 1
        while f"{folder}/{name}".lower() in self._taken:
            count += 1
            name = f"{stem}-{count}"
        self._taken.add(f"{folder}/{name}".lower())
        return name + extension


def file_stem(text: str, dots: bool = True) -> str:
    """A text as the stem of a file name: letters, digits, "-", "_" and, with `dots`, "."."""
    allowed = "-_." if dots else "-_"
    stem = "".join(char if char.isalnum() or char in allowed else "_" for char in text).lstrip(".")
    return stem.encode()[:MAX_STEM_BYTES].decode(errors="ignore") or "_"
