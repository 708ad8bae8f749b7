"""Grade stored responses by one parser, and show where the other one reads something else.

    report = regrade_files([Path("runs/seed1.jsonl")], "paper")
    report.lines                            # one graded line per response
    report.changes                          # those that the other parser reads differently
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.progress import aligned
from experiments.tables import estimate
from rekey.answers import PARSERS, Parser
from rekey.errors import InputError
from rekey.grading import Graded, grade, system_names
from rekey.stats import proportion

MAX_LISTED = 20
OUTCOMES = ("correct", "wrong", "unparsed", "truncated", "error")


@dataclass(frozen=True)
class Change:
    """A response that the two parsers read differently."""

    item_id: str
    model: str
    answer: str
    said: str | None
    said_by_other: str | None


@dataclass(frozen=True)
class Regraded:
    parser: Parser
    other: Parser
    lines: tuple[dict[str, Any], ...]
    changes: tuple[Change, ...]


def regrade_files(paths: Sequence[Path], parser: Parser) -> Regraded:
    """All responses of the files; nothing in them is changed."""
    other = next(name for name in PARSERS if name != parser)
    lines, changes = [], []
    for path in dict.fromkeys(paths):
        by_other = {graded.key: graded for graded in grade(path, other)}
        for graded in grade(path, parser):
            again = by_other[graded.key]
            lines.append(_line(graded, path, again))
            if graded.said != again.said:
                changes.append(Change(graded.item_id, graded.model, graded.answer, graded.said, again.said))
    if not lines:
        raise InputError(f"{', '.join(map(str, paths))}: no responses; expected the --out file of `rekey evaluate`")
    names = system_names(dict.fromkeys(line["system"] for line in lines))
    return Regraded(parser, other, tuple(line | {"system": names[line["system"]]} for line in lines), tuple(changes))


def _line(graded: Graded, path: Path, again: Graded) -> dict[str, Any]:
    return {"file": str(path), "key": graded.key, "model": graded.model, "system": graded.system,
            "item_id": graded.item_id, "seed": graded.seed, "answer": graded.answer,
            "said": graded.said, "how": graded.how, "outcome": graded.outcome, "said_by_other": again.said}


def as_text(report: Regraded) -> str:
    """Outcomes by file, model and way of asking, and the changes."""
    rows = [("file, model", "n", f"accuracy, {report.parser} [95%]", *OUTCOMES[2:])]
    groups: dict[tuple[str, str], Counter] = {}
    for line in report.lines:
        groups.setdefault((line["file"], line["system"]), Counter())[line["outcome"]] += 1
    for (file, name), found in groups.items():
        n = found.total() - found["error"]
        rows.append((f"{file}, {name}", str(n), estimate(proportion(found["correct"], n)),
                     *(str(found[outcome]) for outcome in OUTCOMES[2:])))
    text = [aligned(rows), "", f"{len(report.changes)} of {len(report.lines)} responses are read differently by the "
            f"{report.other} parser"]
    text += [f"  {change.model}, {change.item_id}: answer {change.answer}, {report.parser} {change.said or 'nothing'}, "
             f"{report.other} {change.said_by_other or 'nothing'}" for change in report.changes[:MAX_LISTED]]
    if len(report.changes) > MAX_LISTED:
        text.append(f"  ... and {len(report.changes) - MAX_LISTED} more")
    return "\n".join(text)
