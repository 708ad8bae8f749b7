"""Direct answers against step-by-step answers, thinking off (ReKey, Table 5; App. C).

    python -m experiments.cot --model NAME --original DIR --relabel DIR --renewed DIR --renewed DIR --out runs/cot
    python -m experiments.cot --out runs/cot --show

Models that have a switch for thinking are asked with it off, so that all reasoning is in the visible text; the others
as they are.  The paper reads a sign into changes of 0.5 to 3.1 points on 573 items, and its logs hold a fourth model
with the opposite sign under its parser: hence the test and the interval.
"""

from __future__ import annotations

from pathlib import Path

from experiments.figures import bars
from experiments.paired import compare
from experiments.study import CONDITIONS, ORIGINAL, RELABEL, RENEWED, Study, benchmarks, experiment, of_name

WAYS = {"direct": {"prompt": "direct", "no_thinking": True}, "cot": {"prompt": "cot", "no_thinking": True}}


@experiment("cot")
@ORIGINAL
@RELABEL
@RENEWED
def main(study: Study, original: Path | None, relabel: Path | None, renewed: tuple[Path, ...]) -> None:
    files = study.ask(benchmarks(study, original, relabel, renewed, WAYS))
    conditions = {name: tuple(of_name(files, f"{name}-{way}") for way in WAYS) for name in CONDITIONS}
    rows, text, drawn = compare(study, conditions, tuple(WAYS))
    study.write(rows, text, bars(drawn))


if __name__ == "__main__":
    main()
