"""How hard renewed items are: accuracy by the area of the edit, and by what was done (ReKey, RQ2; Sec. 4.3).

    python -m experiments.difficulty --model NAME --original DIR --renewed DIR --renewed DIR --out runs/difficulty
    python -m experiments.difficulty --out runs/difficulty --show

The paper argues by the median area alone (Table 3) and by one calibration model, LLaVA-1.5-13B (Table 2), which
`--model llava-hf/llava-1.5-13b-hf` asks as well.  In its own logs area decides much: 51 percent below 1,000 px2, 90
from 8,000 px2 on (eight models, attribute questions).  Areas are in pixels of the original image.
"""

from __future__ import annotations

from pathlib import Path

from experiments.figures import lines
from experiments.study import ORIGINAL, RENEWED, Study, audited, experiment
from experiments.tables import counts, drop_text, percent
from rekey.audit import AREA_CLASSES
from rekey.stats import Estimate


@experiment("difficulty")
@ORIGINAL
@RENEWED
def main(study: Study, original: Path | None, renewed: tuple[Path, ...]) -> None:
    report = audited(study, original, renewed)
    rows = [("model", "split", "part", "images", "answers", "original", "renewed", "drop", "drop_low", "drop_high")]
    text = [("model", "part", "images", "original", "renewed", "change [95%]", "unread / cut off / failed")]
    drawn = {}
    for model in report.models:
        for part in model.parts:
            if part.split == "question":
                continue
            drop = part.drop
            rows.append((model.name, part.split, part.name, part.n_images, part.renewed.n, part.original.accuracy.value,
                         part.renewed.accuracy.value, drop.drop, drop.low, drop.high))
            text.append((model.name, f"{part.split}: {part.name}", str(part.n_images),
                         percent(part.original.accuracy.value), percent(part.renewed.accuracy.value), drop_text(drop),
                         counts(part.renewed)))
        drawn[model.name] = {part.name: Estimate(part.renewed.accuracy.value, None, None, part.renewed.n)
                             for part in model.parts if part.split == "edit area"}
    study.write(rows, text, lines(drawn, AREA_CLASSES, "renewed accuracy, %"), report.notes)


if __name__ == "__main__":
    main()
