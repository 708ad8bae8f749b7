"""Renewed accuracy of attribute and position questions, and the gap between them (ReKey, Fig. 6).

    python -m experiments.categories --model NAME --original DIR --renewed DIR --renewed DIR --out runs/categories
    python -m experiments.categories --out runs/categories --show

The two have other chances of a blind guess (25 and 50 percent), so the table also tells accuracy over chance.
"""

from __future__ import annotations

from pathlib import Path

from experiments.figures import bars
from experiments.study import ORIGINAL, RENEWED, Study, audited, experiment
from experiments.tables import counts, drop_text, percent, points
from rekey.stats import Estimate

KINDS = ("attribute", "position")


@experiment("categories")
@ORIGINAL
@RENEWED
def main(study: Study, original: Path | None, renewed: tuple[Path, ...]) -> None:
    report = audited(study, original, renewed)
    rows = [("model", "kind", "images", "original", "renewed", "renewed_corrected", "drop", "drop_low", "drop_high")]
    text = [("model", "kind", "images", "original", "renewed", "renewed over chance", "change [95%]",
             "unread / cut off / failed")]
    drawn = {}
    for model in report.models:
        parts = {part.name: part for part in model.parts if part.split == "question"}
        for kind, part in parts.items():
            before, after, drop = part.original, part.renewed, part.drop
            rows.append((model.name, kind, part.n_images, before.accuracy.value, after.accuracy.value,
                         after.corrected.value, drop.drop, drop.low, drop.high))
            text.append((model.name, kind, str(part.n_images), percent(before.accuracy.value),
                         percent(after.accuracy.value), percent(after.corrected.value), drop_text(drop), counts(after)))
        # All seeds of an image hang together, so that these bars have no interval of a proportion.
        drawn[model.name] = {kind: Estimate(part.renewed.accuracy.value, None, None, part.renewed.n)
                             for kind, part in parts.items()}
        if all(kind in parts and parts[kind].renewed.n for kind in KINDS):
            gap = parts["position"].renewed.accuracy.value - parts["attribute"].renewed.accuracy.value
            text.append((model.name, "gap", "", "", points(gap), "", "", ""))
            rows.append((model.name, "gap", None, None, gap, None, None, None, None))
    study.write(rows, text, bars(drawn), report.notes)


if __name__ == "__main__":
    main()
