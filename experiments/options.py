"""Command-line options that several commands share, and what they turn into."""

from __future__ import annotations

import functools
import math
import os
import shlex
from collections.abc import Callable, Iterable, Set
from pathlib import Path

import click

from rekey.errors import InputError
from rekey.plausible import Plausible
from rekey.records import ImageSlots, SamplingRecord, from_json
from rekey.sampling import Pool, SamplingOptions, identity
from rekey.store import read_jsonl


def command(*words: object) -> str:
    """A `rekey` line to type next, quoted for the shell."""
    return shlex.join(("rekey", *map(str, words)))


def n_cores() -> int:
    """Cores this process may use: under Slurm and in containers fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Listed(click.ParamType):
    """Numbers between commas, each in a range and none twice: "0,25,50"."""

    name = "numbers"

    def __init__(self, kind: Callable[[str], float] = int, low: float = 0, high: float = math.inf):
        self.kind, self.low, self.high = kind, low, high

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(self.kind(word) for word in str(value).split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(self.low <= number <= self.high for number in numbers):
            upper = "" if self.high == math.inf else f" to {self.high:g}"
            self.fail(f"{value!r}: expected numbers from {self.low:g}{upper} with commas between them", param, ctx)
        return tuple(dict.fromkeys(numbers))


SLOTS = click.option("--slots", "slots_file", required=True, type=click.Path(path_type=Path), metavar="FILE",
                     help="Annotations: one JSON object per image.")
SEED = click.option("--seed", type=click.IntRange(min=0), required=True, help="Fixes every choice.")
WORKERS = click.option("--workers", type=click.IntRange(min=1), default=n_cores, show_default="number of cores",
                       help="Processes to use.")

_SAMPLING = (
    click.option("--question-type", type=click.Choice(("auto", "attribute", "position")), default="auto",
                 show_default=True, help="auto: as the original question of the image."),
    click.option("--attribute", type=click.Choice(("color", "pattern", "material")), default="color",
                 show_default=True, help="What attribute questions ask about."),
    click.option("--difficulty", type=click.Choice(("easy", "medium", "hard", "like-source")),
                 help="Draw slots by how hard they are to find.  [default: any]"),
    click.option("--plausible", metavar="builtin|FILE", default="off", show_default=True,
                 help="Keep to attribute values that are plausible for an object."),
    click.option("--distractors", type=click.Choice(("paper", "lure")), default="paper", show_default=True,
                 help="lure: the old color is always one of the wrong options."),
    click.option("--avoid", multiple=True, type=click.Path(path_type=Path), metavar="DIR|FILE",
                 help="An earlier instance (folder, items.jsonl or `rekey sample` output) whose items must "
                      "not come again.  Repeatable."),
)


def sampling_options(function: Callable) -> Callable:
    """Adds the sampling options; the command gets `sampling`, `distractors` and `avoid`."""

    @functools.wraps(function)
    def wrapped(question_type, attribute, difficulty, plausible, avoid, **rest):
        table = None if plausible == "off" else Plausible.load(plausible)
        return function(sampling=SamplingOptions(question_type, attribute, difficulty, table),
                        avoid=read_ledger(avoid), **rest)

    for option in reversed(_SAMPLING):
        wrapped = option(wrapped)
    return wrapped


def what_is_left(images: Iterable[ImageSlots], sampling: SamplingOptions, used: Set[str]) -> str:
    """A sentence on how many questions the images can still give once those in `used` are out."""
    pools = [Pool(image, sampling).identities() for image in images]
    left = {image.image_id: len(pool - used) for image, pool in zip(images, pools, strict=True) if pool}
    if not left:
        return "no image can give a question"
    scarce = min(left, key=left.get)
    return (f"{sum(left.values()):,} of {sum(map(len, pools)):,} questions are left for later instances; "
            f"{scarce} has the fewest, {left[scarce]:,}")


def read_ledger(paths: tuple[Path, ...]) -> frozenset[str]:
    """Identities of all items in earlier instances (see `rekey.sampling.identity`)."""
    found = set()
    for path in paths:
        file = path / "items.jsonl" if path.is_dir() else path
        if not file.exists():
            raise InputError(f"--avoid {path}: no items.jsonl there; give the folder of a finished instance "
                             "(merge its shards first) or a file of items")
        for number, line in enumerate(read_jsonl(file), 1):
            try:
                found.add(identity(from_json(SamplingRecord, line["record"])))
            except (KeyError, TypeError, ValueError, AttributeError):
                raise InputError(f"--avoid {file} line {number}: no sampling record; expected items made by "
                                 "`rekey generate` or `rekey sample`") from None
    return frozenset(found)
