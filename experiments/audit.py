"""Write an audit where people and programs read it.

    write_audit(audit(...), Path("runs/audit"))

    runs/audit/table.md      the tables and sentences below, for a paper's appendix
    runs/audit/table.csv     one row per model, condition and split, for a program
    runs/audit/flips.csv     one row per model and image whose items did not all come to the same
    runs/audit/audit.png     accuracies, and drops with both kinds of interval
    runs/audit/audit.json    everything
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.audit_text import as_markdown
from experiments.figures import COLORS, in_lines, plain, save
from experiments.tables import as_csv
from rekey import store
from rekey.audit import Audit, ModelAudit, Part, Score
from rekey.records import to_json
from rekey.stats import Estimate, ExchangeTest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THIS, LIKE = "#222222", "#8a8a8a"           # intervals for this benchmark, for images like these


def write_audit(audit: Audit, out: Path) -> None:
    """All files of an audit; the folder may hold those of an earlier one."""
    store.write_json(out / "audit.json", to_json(audit))
    store.write_atomic(out / "table.md", as_markdown(audit))
    store.write_atomic(out / "table.csv", as_csv(csv_rows(audit)))
    store.write_atomic(out / "flips.csv", as_csv(_flip_rows(audit)))
    save(audit_figure(audit), out / "audit.png")


_CSV_HEAD = ("model", "condition", "split", "part", "n", "n_right", "accuracy", "low", "high", "chance", "corrected",
             "unparsed", "truncated", "errors", "drop", "drop_low", "drop_high", "p", "p_holm")


def csv_rows(audit: Audit) -> Iterable[tuple]:
    yield _CSV_HEAD
    for model in audit.models:
        yield _csv_row(model, "original", model.original)
        if model.relabel:
            yield _csv_row(model, "relabel", model.relabel, drop=model.relabel_gap)
        for instance in model.instances:
            yield _csv_row(model, instance.name, instance.score)
        yield _csv_row(model, "renewed", model.renewed.score, drop=model.drop, p_holm=model.p_holm)
        for part in model.parts:
            yield _csv_row(model, "original", part.original, part)
            yield _csv_row(model, "renewed", part.renewed, part, part.drop)


def _csv_row(model: ModelAudit, condition: str, score: Score, part: Part | None = None,
             drop: ExchangeTest | None = None, p_holm: float | None = None) -> tuple:
    accuracy = score.accuracy
    if condition == "renewed":              # all seeds of an image hang together: no interval of a proportion
        accuracy = Estimate(accuracy.value, None, None, accuracy.n)
    tested = (drop.drop, drop.low, drop.high, drop.p) if drop else (None,) * 4
    return (model.name, condition, part.split if part else "all", part.name if part else "all", score.n, score.n_right,
            accuracy.value, accuracy.low, accuracy.high, score.chance, score.corrected.value, score.n_unparsed,
            score.n_truncated, score.n_errors, *tested, p_holm)


def _flip_rows(audit: Audit) -> Iterable[tuple]:
    yield ("model", "image_id", "original", "said", "answer", "renewed", "n_renewed_right", "n_stale")
    for model in audit.models:
        for flip in model.flips:
            yield (model.name, flip.image_id, flip.original, flip.said, flip.answer, " ".join(flip.renewed),
                   flip.n_renewed_right, flip.n_stale)


# -------------------------------------------------------------------------------------------- figure

def audit_figure(audit: Audit) -> Figure:
    """Left: accuracies; right: the change from original to renewed, on this benchmark and on images like these."""
    from matplotlib.figure import Figure
    models = audit.models[::-1]
    figure = Figure(figsize=(10, 1.6 + 0.62 * len(models)), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.15, 1))
    for row, model in enumerate(models):
        shown = [("original", model.original.accuracy)]
        if model.relabel:
            shown.append(("relabel", model.relabel.accuracy))
        shown.append(("renewed", model.renewed.images))
        for at, (name, value) in zip(_spread(len(shown)), shown):
            _dot(left, value, row + at, COLORS[name], name)
        drop = model.drop
        if drop.drop is not None:
            this = Estimate(-drop.drop, -drop.high, -drop.low, drop.n)
            like = model.drop_images
            _dot(right, this, row + 0.13, THIS, "this benchmark (exact)")
            _dot(right, Estimate(-like.value, -like.high, -like.low, like.n), row - 0.13, LIKE,
                 "images like these (bootstrap)")
    left.set_yticks(range(len(models)), [in_lines(model.name, 26) for model in models], fontsize=8)
    left.set_xlabel("accuracy, %", fontsize=8)
    right.set_xlabel("change from original to renewed, points", fontsize=8)
    right.axvline(0, color="#888888", linewidth=0.8, zorder=0)
    for axis in (left, right):
        axis.locator_params(axis="x", nbins=7)
        plain(axis, "x")
        if named := dict(zip(*axis.get_legend_handles_labels()[::-1])):         # one of each name
            axis.legend(named.values(), named.keys(), fontsize=7.5, frameon=False, loc="lower center",
                        bbox_to_anchor=(0.5, 1.0), ncols=3)
        axis.set_ylim(-0.5, len(models) - 0.5)
    return figure


def _spread(n: int) -> list[float]:
    return [0.22, 0.0, -0.22] if n == 3 else [0.13, -0.13]


def _dot(axis, value: Estimate, at: float, color: str, label: str) -> None:
    if value.value is None:
        return
    axis.plot([100 * value.low, 100 * value.high], [at, at], color=color, linewidth=1.6, solid_capstyle="butt")
    axis.plot([100 * value.value], [at], "o", color=color, markersize=5, label=label)
