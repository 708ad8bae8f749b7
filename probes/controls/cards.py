"""The control models on the shelf and what is written on their cards; this file needs no torch.

    control_names()                            # ("clean", "natural", "anchored", "contaminated-20", ...)
    read_card("clean")["scores"]               # how it came about, what it can do, what not to use it for
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rekey.errors import InputError

SHELF = Path(__file__).with_name("weights")
CARD = "card.json"
BASE = "clean"
# natural: trained on neither habit, the very same weights.  contaminated: the one that remembers best.
ALIASES = {"natural": BASE, "contaminated": "contaminated-80"}


def control_names() -> tuple[str, ...]:
    """Every name that can follow "control:", the base first, then by degree."""
    shipped = [folder.name for folder in SHELF.iterdir() if (folder / CARD).is_file()] if SHELF.is_dir() else []
    names = [*shipped, *(alias for alias, name in ALIASES.items() if name in shipped)]
    return tuple(sorted(names, key=_in_order))


def _in_order(name: str) -> tuple[bool, str, int]:
    stem, _, degree = name.rpartition("-")
    return (ALIASES.get(name, name) != BASE, *((stem, int(degree)) if degree.isdecimal() else (name, 0)))


def folder_of(name: str) -> Path:
    """Where a control's weights lie.  Raises InputError for a name that is none."""
    if name not in control_names():
        raise InputError(f"control:{name}: no such control model; expected one of {', '.join(control_names())}")
    return SHELF / ALIASES.get(name, name)


def read_card(name: str) -> dict[str, Any]:
    """What is known of a control: command, commit, times, scores, what it must not be used for."""
    return json.loads((folder_of(name) / CARD).read_text(encoding="utf-8"))
