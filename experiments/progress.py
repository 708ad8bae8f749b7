"""Progress and tables for people at a terminal and for log files."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

LINE_EVERY_S = 15.0
MAX_LISTED = 10


def list_failures(failures: Sequence[str], then: str = "") -> None:
    """What failed, on stderr, the first few by name; then: what to do about it."""
    for failure in failures[:MAX_LISTED]:
        click.echo(f"failed: {failure}", err=True)
    more = f"... and {len(failures) - MAX_LISTED} more" if len(failures) > MAX_LISTED else ""
    if failures and (more or then):
        click.echo("; ".join(filter(None, (more, then))), err=True)


class Progress:
    """A bar on a terminal; elsewhere a plain line every few seconds, and at the end."""

    def __init__(self, unit: str):
        self.unit = unit
        self._bar = None
        self._started = self._last = time.monotonic()
        self._before: int | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, total: int) -> None:
        if sys.stderr.isatty():
            if self._bar is None:
                from tqdm import tqdm
                self._bar = tqdm(total=total, initial=done, unit=f" {self.unit}", dynamic_ncols=True)
            self._bar.update(done - self._bar.n)
            return
        now = time.monotonic()
        if self._before is None:
            self._before, self._started = done, now
        elif now - self._last >= LINE_EVERY_S or done == total:
            rate = (done - self._before) / max(now - self._started, 1e-9)
            left = f", about {(total - done) / rate:.0f} s left" if rate and done < total else ""
            click.echo(f"{done}/{total} {self.unit}, {rate:.2f}/s{left}", err=True)
            self._last = now


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) if n == 0 else cell.rjust(width)
                               for n, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)
