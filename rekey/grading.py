"""Grade stored responses: any parser, at any time, without a model.

    for graded in grade(Path("runs/seed1.jsonl"), parser="strict"):
        graded.item_id, graded.outcome, graded.said, graded.answer

An answer that cannot be read is "unparsed", a full token budget "truncated": neither becomes a letter, and both stay in
the denominator.  "error" is a failure of the infrastructure and never counts as wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rekey.answers import PARSERS, Parser, parse_answer, read_answer
from rekey.errors import InputError
from rekey.evaluate import read_lines
from rekey.records import LETTERS, Outcome
from rekey.values import read_value, same_value

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
            raise InputError(f"{path}: the line of {line['model']}, item {line['item'].get('item_id')!r}, cannot be "
                             f"graded ({error}); expected a line that `rekey evaluate` wrote") from None


def grade_line(line: dict[str, Any], parser: Parser) -> Graded:
    """One line as `rekey evaluate` writes it."""
    item = line["item"]
    record = item.get("record")
    options = tuple(item["options"])
    said, how, outcome = _outcome(line, options, item["answer"], parser)
    modes, areas = [], []
    for key in record["keys"] if record else ():
        modes.append(key["mode"])
        left, top, right, bottom = key["slot"]["edit"]
        areas.append((right - left) * (bottom - top))
    return Graded(
        key=line["key"], model=line["model"],
        system=json.dumps([line["model"], line["settings"]], sort_keys=True, ensure_ascii=False),
        item_id=item["item_id"], image_id=record["image_id"] if record else item["item_id"],
        seed=record["seed"] if record else None,
        kind=record["question_type"] if record else KINDS.get(item.get("category"), item.get("category")),
        mode="+".join(sorted(set(modes))) or None, area_px2=min(areas, default=None), options=options,
        answer=item["answer"], said=said, how=how, outcome=outcome, source_answer=item.get("source_answer"))


def _outcome(line: dict[str, Any], options: tuple[str, ...], answer: str,
             parser: Parser) -> tuple[str | None, str, Outcome]:
    """What was said, how it was read, and what it counts as."""
    if "error" in line:
        return None, line["error"], "error"
    generation = line["generation"]
    text, labels = generation["text"], dict(zip(LETTERS, options))
    if parser == "paper" and options:
        said = parse_answer(text, labels, "paper", line["settings"].get("prompt") == "cot")
        return said, "last letter", "unparsed" if said is None else "correct" if said == answer else "wrong"
    if generation.get("finish") == "length":
        return None, "out of tokens", "truncated"
    reading = read_answer(text, labels) if options else read_value(text)
    if reading.label is None:
        return None, reading.how, "unparsed"
    right = reading.label == answer if options else same_value(reading.label, answer)
    return reading.label, reading.how, "correct" if right else "wrong"
