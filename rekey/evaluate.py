"""Ask a model the questions of a benchmark: one line of evidence per generation, graded later (ReKey, Sec. 4.1).

    settings  = Settings(prompt="direct")                  # temperature 0, 8192 tokens, original resolution
    questions = make_questions(read_items(folder), folder, settings)
    responses = ask(vlm, questions[:8], settings, run="...")

A model sees pixels and text, never an item, so that no label can reach it.  What one question fails of (a broken image,
a server that does not answer) becomes that question's error and nothing else's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rekey import store
from rekey.errors import InputError
from rekey.images import load_image
from rekey.prompts import PromptStyle, prompt_text
from rekey.records import Generation, Item, Response

MAX_NEW_TOKENS = 8192           # App. C
KEY_CHARS = 32
LINE_START = b'{"key":"'


@dataclass(frozen=True)
class Settings:
    """How questions are put, whatever the model (ReKey, App. C).

    thinking: on or off where the model has a switch; None leaves its default ("provider-default", Table 4).
    seed: of sampled answers, with temperature > 0; every question has its own random numbers.
    """

    prompt: PromptStyle = "direct"
    thinking: bool | None = None
    max_new_tokens: int = MAX_NEW_TOKENS
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Identity:
    """Which model answers: its name, and what else its answers depend on (backend, revision, dtype, pixel limits)."""

    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """Why there is no answer: an outcome of its own, never a wrong answer."""

    reason: str


class VLM(Protocol):
    """A model that answers questions about images: local, in an engine, or behind a server."""

    def describe(self) -> dict[str, Any]:
        """What the runs file says of it: class, kernel, devices, versions."""

    def answer(self, images: Sequence[np.ndarray], texts: Sequence[str], settings: Settings,
               seeds: Sequence[int] | None) -> list[Generation | Failure]:
        """One answer or failure per question.  images: uint8 (height, width, 3).  seeds: for temperature > 0."""


@dataclass(frozen=True)
class Question:
    """One item to ask: its file, the text for the model, and the key of the answer."""

    item: Item
    image: Path
    text: str
    key: str


def make_questions(items: Iterable[Item], folder: Path, identity: Identity, settings: Settings) -> list[Question]:
    """The questions of a benchmark in its own order.  folder: what the items' image paths are relative to."""
    made = []
    for item in items:
        text = prompt_text(item.question, item.options, settings.prompt)
        made.append(Question(item, folder / item.image, text, response_key(item, text, identity, settings)))
    return made


def response_key(item: Item, text: str, identity: Identity, settings: Settings) -> str:
    """A hash of the image's content, the text, the model and all settings, and of nothing else.

    The item's id is among it only so that equal questions about equal images each have a line.
    """
    return store.sha256_json({"item": item.item_id, "image": item.image_sha256, "text": text, "model": identity.name,
                              **all_settings(identity, settings)})[:KEY_CHARS]


def all_settings(identity: Identity, settings: Settings) -> dict[str, Any]:
    """What a response line says of how it came about; what is at its default (None) is left out."""
    settings = dataclasses.replace(settings, temperature=float(settings.temperature))       # 0 and 0.0 are one setting
    return {name: value for name, value in (dataclasses.asdict(settings) | identity.options).items()
            if value is not None}


def ask(vlm: VLM, questions: Sequence[Question], identity: Identity, settings: Settings,
        run: str) -> list[Response]:
    """Responses to a batch of questions, failures among them."""
    loaded: dict[int, np.ndarray] = {}
    found: dict[int, Generation | Failure] = {}
    for number, question in enumerate(questions):
        try:
            image = load_image(question.image)
        except InputError as error:
            found[number] = Failure(str(error))
            continue
        if image.sha256 != question.item.image_sha256:
            found[number] = Failure(f"{question.image}: is not the image that the item was made with (its pixels have "
                                    "another hash); restore it, or make the items again")
            continue
        loaded[number] = image.pixels
    if loaded:
        seeds = [_seed(questions[n], settings) for n in loaded] if settings.temperature > 0 else None
        answers = vlm.answer(list(loaded.values()), [questions[n].text for n in loaded], settings, seeds)
        found |= dict(zip(loaded, answers, strict=True))
    common = {"model": identity.name, "settings": all_settings(identity, settings), "run": run}
    return [_response(questions[n], found[n], loaded.get(n), common) for n in range(len(questions))]


def _seed(question: Question, settings: Settings) -> int:
    """Random numbers of a question's own, whatever else is asked beside it."""
    return int(store.sha256_json([question.key, settings.seed or 0])[:8], 16)


def _response(question: Question, answer: Generation | Failure, pixels: np.ndarray | None,
              common: dict[str, Any]) -> Response:
    item = dataclasses.replace(question.item, certificate=())       # they are in the items file
    size = None if pixels is None else pixels.shape[:2]
    if isinstance(answer, Failure):
        return Response(question.key, item, **common, asked=question.text, image_size=size, error=answer.reason)
    return Response(question.key, item, **common, asked=question.text, image_size=size,
                    edit_tokens=edit_tokens(item, size, answer), generation=answer)


def edit_tokens(item: Item, size: tuple[int, int], generation: Generation) -> float | None:
    """Image tokens that the smallest of an item's edit regions covers, by area.  size: (height, width) of the file."""
    if item.record is None or not generation.n_image_tokens:
        return None
    smallest = min(key.slot.edit.area_px2 for key in item.record.keys)
    return round(smallest / (size[0] * size[1]) * generation.n_image_tokens * generation.filled, 2)


# ---------------------------------------------------------------------------------------- the lines

def response_files(path: Path) -> list[Path]:
    """A file of responses with those that shards wrote beside it ("responses-0002-of-0008.jsonl")."""
    shards = re.compile(re.escape(path.stem) + r"-\d{4,}-of-\d{4,}" + re.escape(path.suffix))
    beside = sorted(file for file in path.parent.glob("*") if shards.fullmatch(file.name))
    return [file for file in [path] if file.exists()] + beside


def runs_file(path: Path) -> Path:
    """Beside a file of responses: one line per run that wrote to it, with command, versions, machine, model."""
    return path.with_name(f"{path.stem}.runs{path.suffix}")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of responses and its shards, one per key: the answer, or else the last error."""
    files = response_files(path)
    if not files:
        raise InputError(f"{path}: no such file; expected the --out file of `rekey evaluate`")
    answered: set[str] = set()
    failed: dict[str, dict[str, Any]] = {}
    for line in (line for file in files for line in _checked(file)):
        if "error" in line:
            failed[line["key"]] = line
        elif line["key"] not in answered:
            answered.add(line["key"])
            yield line
    yield from (line for key, line in failed.items() if key not in answered)


def _checked(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in store.iter_jsonl(file, torn_tail=True):
        if not isinstance(line, dict) or missing_part(line):
            found = f"has no {missing_part(line)}" if isinstance(line, dict) else "is not an object"
            raise InputError(f"{file} line {number}: {found}; expected a line that `rekey evaluate` wrote")
        yield line


def missing_part(line: dict[str, Any]) -> str | None:
    """What a line lacks to be a response."""
    for name, kind in (("key", str), ("item", dict), ("model", str), ("settings", dict)):
        if not isinstance(line.get(name), kind):
            return name
    if "error" not in line and not isinstance(line.get("generation"), dict):
        return "generation and no error"
    return next((f"item.{name}" for name in ("item_id", "question", "options", "answer") if name not in line["item"]),
                None)


def check_appendable(file: Path, kind: str = "responses", maker: str = "rekey evaluate") -> None:
    """Raises InputError for a file that a run cannot go on with; what it holds is left as it is.

    An unended first line is cut off as that of a killed run only if it begins like one of ours.
    """
    if not file.exists():
        return
    with file.open("rb") as content:
        first = content.readline()
    if first.startswith(store.GZIP_MAGIC):
        raise InputError(f"{file}: is gzipped, and lines are appended as plain text; gunzip it first, or give another "
                         "--out")
    if not first.endswith(b"\n") and not LINE_START.startswith(first[:len(LINE_START)]):
        raise InputError(f"{file}: is no file of {kind}; expected what an earlier `{maker}` wrote there, or a new file")


def answered_keys(path: Path) -> set[str]:
    """Keys that need not be asked again."""
    return {line["key"] for file in response_files(path) for line in _checked(file) if "error" not in line}

