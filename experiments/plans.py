"""A run's folder belongs to one plan: all that the result depends on, written before anything else.

    claim(out, {"seed": 1, "n": 100}, "rekey pairs build")  # InputError where the folder holds another plan

A run that was killed finds its own plan there and goes on; with other settings it is told which differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rekey import store
from rekey.errors import InputError

PLAN = "plan.json"
LONGEST_VALUE = 60              # characters of a setting in a message


def claim(out: Path, plan: dict[str, Any], command: str) -> None:
    """Make the folder this plan's, or check that it is.  Shards may do so at the same moment.

    command: what makes such folders, for the message.
    """
    refuse_other_plans(out, plan, command)
    if not (out / PLAN).exists():
        store.write_json(out / PLAN, plan)
        refuse_other_plans(out, plan, command)


def refuse_other_plans(out: Path, plan: dict[str, Any], command: str) -> None:
    """Raises InputError where the folder holds anything but a run of this plan."""
    if not (out / PLAN).exists():
        taken = out.is_file() or out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir())
        if not taken:
            return
        if not (out / PLAN).exists():               # asked again: another shard may have come in between
            raise InputError(f"{out}: is not empty and holds no run of `{command}`; give a new folder as --out")
    differing = list(_differences(read_plan(out), plan))
    if differing:
        raise InputError(f"{out}: holds a run with other settings ({'; '.join(differing)}); give another --out, or the "
                         "settings it was started with")


def read_plan(out: Path) -> dict[str, Any]:
    """The plan of a folder.  Raises InputError where it is damaged."""
    plan = store.read_json(out / PLAN)
    if not isinstance(plan, dict) or not plan:
        raise InputError(f"{out / PLAN}: not the plan of a run; restore it, or start in a new folder")
    return plan


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """What differs between two plans, setting by setting."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in new | old:
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"{name or 'the plan'} was {_short(old)}, now {_short(new)}"


def _short(value: Any) -> str:
    text = store.dumps(value)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE - 3] + "..."
