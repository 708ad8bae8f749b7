"""Numbers and tables as text, the same in every report.

    estimate(score.accuracy)                # "75.7 [69.1, 81.2]", in percent
    markdown_table([("model", "n"), ("control:clean", "160")])
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence

from rekey.audit import Score
from rekey.stats import Estimate, ExchangeTest


def percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.1f}"


def points(share: float | None) -> str:
    return "n/a" if share is None else f"{round(100 * share, 1) + 0.0:+.1f}"           # + 0.0: no "-0.0"


def interval(low: float | None, high: float | None, text: Callable[[float | None], str] = percent) -> str:
    return "" if low is None else f" [{text(low)}, {text(high)}]"


def estimate(value: Estimate) -> str:
    """"75.7 [69.1, 81.2]", in percent."""
    return percent(value.value) + interval(value.low, value.high)


def drop_text(drop: ExchangeTest) -> str:
    """"-12.0 [-17.1, -6.9]": from original to renewed, in percentage points."""
    if drop.drop is None:
        return "n/a"
    return points(-drop.drop) + interval(-drop.high, -drop.low, points)


def p_text(p: float | None) -> str:
    if p is None:
        return "n/a"
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def counts(score: Score) -> str:
    """Answers that are no letter: unread / out of tokens / failed."""
    return f"{score.n_unparsed} / {score.n_truncated} / {score.n_errors}"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (head, ["---"] * len(head), *body))


def as_csv(rows: Iterable[Sequence]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow(["" if value is None else f"{value:.6g}" if isinstance(value, float) else value
                         for value in row])
    return out.getvalue()
