"""Which attribute values are plausible for an object: a filter on the sampler, off by default.

    Plausible.load("builtin").values("cat", "cat", "color")      # {"black", "white", ...}

The paper paints any color on any object, purple dogs included (Appendix A).  With the filter on,
an object that the table knows takes only the values listed for it; others keep the whole pool.
The file format is that of attribute tables derived from VAW: {object: {attribute: [values]}}.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rekey.colors import COLORS
from rekey.errors import InputError

ATTRIBUTES = ("color", "pattern", "material")
MAX_LISTED = 20


@dataclass(frozen=True)
class Plausible:
    """A table object -> attribute -> values, by head noun or by full name."""

    table: dict[str, dict[str, frozenset[str]]]
    source: str

    def values(self, noun: str, head: str, attribute: str) -> frozenset[str] | None:
        """Values for the object, looked up by its full name, then by its head noun; None: any."""
        for name in (noun.lower(), head):
            if name in self.table and attribute in self.table[name]:
                return self.table[name][attribute]
        return None

    def digest(self) -> str:
        """A hash of the table, for plans and manifests."""
        rows = {noun: {attribute: sorted(v) for attribute, v in row.items()} for noun, row in self.table.items()}
        return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()

    @classmethod
    def load(cls, source: str | Path) -> Plausible:
        """"builtin" for the table that ships with the package, else the path of a JSON file."""
        if source == "builtin":
            text = resources.files("rekey").joinpath("plausible.json").read_text(encoding="utf-8")
        else:
            try:
                text = Path(source).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{source}: cannot be read ({error}); give a JSON file of object -> attribute -> "
                                 'values, or "builtin"') from None
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise InputError(f"{source}: not a JSON file ({error})") from None
        if problems := list(_problems(rows)):
            raise InputError(*(f"{source}: {problem}" for problem in problems[:MAX_LISTED]))
        table = {noun.lower(): {attribute: frozenset(values) for attribute, values in row.items()}
                 for noun, row in rows.items()}
        return cls(table, str(source))


def _problems(rows: object) -> Iterator[str]:
    """Everything that keeps parsed JSON from being a table of plausible values."""
    if not isinstance(rows, dict):
        yield 'not a table of plausible values; expected {"cat": {"color": ["black", "white"]}}'
        return
    if rows and not any(isinstance(row, dict) for row in rows.values()):
        yield 'not a table of plausible values; expected {"cat": {"color": ["black", "white"]}}'
        return
    for noun, row in rows.items():
        if not isinstance(row, dict):
            yield f'{noun}: found {row!r}, expected an object such as {{"color": ["black", "white"]}}'
            continue
        for attribute, values in row.items():
            if attribute not in ATTRIBUTES:
                yield f"{noun}: found attribute {attribute!r}, expected one of {', '.join(ATTRIBUTES)}"
            elif not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                yield f"{noun}: found {values!r} as {attribute}, expected a list of names"
            elif attribute == "color" and (unknown := sorted(set(values) - set(COLORS))):
                yield f"{noun}: found color {', '.join(unknown)}, expected some of {', '.join(COLORS)}"
