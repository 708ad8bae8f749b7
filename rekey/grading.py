"""Grade stored responses: any parser, at any time, without a model.

    for graded in grade(Path("runs/seed1.jsonl"), parser="strict"):
        graded.item_id, graded.outcome, graded.said, graded.answer

An answer that cannot be read is "unparsed", a full token budget "truncated": neither becomes a letter, and both stay in
the denominator.  "error" is a failure of the infrastructure and never counts as wrong.
"""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

from rekey.answers import PARSERS, Parser, parse_answer, read_answer
from rekey.errors import InputError
from rekey.evaluate import read_lines, response_files
from rekey.records import LETTERS, Outcome
from rekey.values import read_value, same_value

OUT_OF_TOKENS = "out of tokens"
FORK_FROM_BYTES = 20_000_000        # below, starting processes costs more than it saves
KINDS = {"direct_attributes": "attribute", "relative_position": "position"}


@dataclass(frozen=True, slots=True)
class Graded:
    """One response, graded.

    system: model and settings as one text, equal for lines that may be compared.  image_id: of the source image.
    seed: of a renewed item.  kind: "attribute", "position", or the benchmark's own category.  mode: what was done to
    the image, "replace", "add" or both; area_px2: its smallest edit region.  said: the label, or the value, that was
    read, None where there is none; how: how it was read, or why not.  chance: of a blind guess.  source_answer:
    what was right before the edit.
    """

    key: str
    model: str
    system: str
    item_id: str
    image_id: str
    seed: int | None
    kind: str | None
    mode: str | None
    area_px2: int | None
    options: tuple[str, ...]
    answer: str
    said: str | None
    how: str
    outcome: Outcome
    source_answer: str | None

    @property
    def chance(self) -> float:
        return 1 / len(self.options) if self.options else 0.0

    @property
    def said_text(self) -> str | None:
        """The option's text that was said, or the value."""
        if self.said is None or not self.options:
            return self.said
        index = LETTERS.find(self.said)
        return self.options[index] if 0 <= index < len(self.options) else None


def grade(path: Path, parser: Parser = "strict") -> Iterator[Graded]:
    """The graded responses of a file and its shards, one per item, model and settings."""
    if parser not in PARSERS:
        raise InputError(f"parser {parser!r}: expected {' or '.join(PARSERS)}")
    for line in read_lines(path):
        try:
            yield grade_line(line, parser)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            found = f"no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{path}: the line of {line['model']}, item {line['item']['item_id']!r}, cannot be graded "
                             f"({found}); expected a line that `rekey evaluate` wrote") from None


def grade_files(paths: Iterable[Path], parser: Parser = "strict") -> dict[Path, list[Graded]]:
    """What `grade` gives of each file; of many megabytes at once on all cores.

    Only a process with one thread may be forked, which one that has loaded torch is not.
    """
    paths = list(dict.fromkeys(paths))
    forkable = hasattr(os, "sched_getaffinity") and threading.active_count() == 1 and "torch" not in sys.modules
    n_cores = len(os.sched_getaffinity(0)) if forkable else 1
    size = sum(file.stat().st_size for path in paths for file in response_files(path))
    if size < FORK_FROM_BYTES or min(n_cores, len(paths)) < 2:
        return {path: list(grade(path, parser)) for path in paths}
    largest_first = sorted(paths, key=lambda path: -sum(file.stat().st_size for file in response_files(path)))
    with ProcessPoolExecutor(min(n_cores, len(paths)), multiprocessing.get_context("fork")) as pool:
        return dict(zip(largest_first, pool.map(_graded, largest_first, repeat(parser))))


def _graded(path: Path, parser: Parser) -> list[Graded]:
    return list(grade(path, parser))


def grade_line(line: dict[str, Any], parser: Parser) -> Graded:
    """One line as `rekey evaluate` writes it."""
    item = line["item"]
    record, options, answer = item.get("record"), _options(item), item["answer"]
    said, how, outcome = _outcome(line, options, answer, parser)
    modes, areas = [], []
    for key in record["keys"] if record else ():
        modes.append(key["mode"])
        left, top, right, bottom = key["slot"]["edit"]
        areas.append((right - left) * (bottom - top))
    return Graded(
        key=line["key"], model=line["model"],
        system=_system(line["model"], repr(line["settings"])),
        item_id=item["item_id"], image_id=record["image_id"] if record else item["item_id"],
        seed=record["seed"] if record else None,
        kind=record["question_type"] if record else KINDS.get(item.get("category"), item.get("category")),
        mode="+".join(sorted(set(modes))) or None, area_px2=min(areas, default=None), options=options,
        answer=answer, said=said, how=how, outcome=outcome, source_answer=item.get("source_answer"))


def _options(item: dict[str, Any]) -> tuple[str, ...]:
    """The options of an item whose answer is one of them, or that has none."""
    options, answer = item["options"], item["answer"]
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise ValueError(f"options {options!r}, not a list of texts")
    if not isinstance(answer, str) or options and answer not in tuple(LETTERS[:len(options)]):
        raise ValueError(f"answer {answer!r}, not the letter of one of {len(options)} options")
    return tuple(options)


@lru_cache(256)
def _system(model: str, settings: str) -> str:
    """settings: as `repr` gives them."""
    same = {name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in ast.literal_eval(settings).items()}          # a temperature of 0.0 is one of 0
    return json.dumps([model, same], sort_keys=True, ensure_ascii=False)


def system_names(systems: Iterable[str]) -> dict[str, str]:
    """A name for each `Graded.system`: the model's, with the settings in which its ways of being asked differ."""
    read = {system: json.loads(system) for system in systems}
    names = {}
    for system, (model, settings) in read.items():
        others = [other for name, other in read.values() if name == model]
        differing = sorted({key for other in others for key in {**settings, **other}
                            if settings.get(key) != other.get(key)})
        names[system] = model + "".join(f", {key} {settings.get(key, 'default')}" for key in differing)
    return names


def _outcome(line: dict[str, Any], options: tuple[str, ...], answer: str,
             parser: Parser) -> tuple[str | None, str, Outcome]:
    """What was said, how it was read, and what it counts as."""
    if "error" in line:
        return None, line["error"], "error"
    generation = line["generation"]
    said, how = read_said(generation["text"], generation.get("finish"), options, parser,
                          line["settings"].get("prompt") == "cot")
    if said is None:
        return None, how, "truncated" if how == OUT_OF_TOKENS else "unparsed"
    return said, how, "correct" if is_answer(said, answer, options) else "wrong"


def read_said(text: str, finish: str | None, options: Sequence[str], parser: Parser = "strict",
              cot: bool = False) -> tuple[str | None, str]:
    """The label, or the value, that a text answers with, and how it was read; None and why not."""
    labels = dict(zip(LETTERS, options))
    if parser == "paper" and options:
        return parse_answer(text, labels, "paper", cot), "last letter"
    if finish == "length":
        return None, OUT_OF_TOKENS
    reading = read_answer(text, labels) if options else read_value(text)
    return reading.label, reading.how


def is_answer(said: str, answer: str, options: Sequence[str]) -> bool:
    """Whether what was read is the answer: the same letter, or without options the same value."""
    return said == answer if options else same_value(said, answer)
