"""Original against relabeled questions on the same images (ReKey, Fig. 1 and App. A).

    python -m experiments.relabel_gap --model NAME --original DIR --relabel DIR --out runs/relabel_gap
    python -m experiments.relabel_gap --out runs/relabel_gap --show

The images are the same, the questions are new ones of the same kind; a model that looks should do as well on either.
The gap may also be another difficulty: the published relabel set asks colors in 69 of 191 questions, the original in
104.  Test: McNemar, exact, two-sided, Holm over models.
"""

from __future__ import annotations

from pathlib import Path

from experiments.figures import bars
from experiments.study import ORIGINAL, RELABEL, Study, benchmarks, experiment, need
from experiments.tables import counts, drop_text, estimate, p_text
from rekey.audit import score
from rekey.sheets import column, read_sheets
from rekey.stats import exchange_test, holm


@experiment("relabel_gap")
@ORIGINAL
@RELABEL
def main(study: Study, original: Path | None, relabel: Path | None) -> None:
    asks = benchmarks(study, original, relabel)
    need(asks, "original", "relabel")
    files = study.ask(asks)
    sheets, notes = read_sheets([files["original"]], [files["relabel"]], [], study.parser)
    rows = [("model", "n", "original", "relabel", "gap", "gap_low", "gap_high", "only_original", "only_relabel", "p",
             "p_holm")]
    text = [("model", "n", "original", "relabel", "change [95%]", "only original / only relabel", "p, Holm",
             "unread / cut off / failed")]
    pairs = {name: (sheet, next(iter(sheet.renewed.values()))) for name, sheet in sheets.items()}
    tests = {name: exchange_test(column(sheet.original, sheet.images), column(new, sheet.images)[:, None])
             for name, (sheet, new) in pairs.items()}
    adjusted = dict(zip(tests, holm([test.p_two_sided for test in tests.values()])))
    drawn = {}
    for name, (sheet, new) in pairs.items():
        test, before, after = tests[name], score(sheet.original.values()), score(new.values())
        rows.append((name, test.n, before.accuracy.value, after.accuracy.value, test.drop, test.low, test.high,
                     test.only_original, test.only_renewed, test.p_two_sided, adjusted[name]))
        text.append((name, str(test.n), estimate(before.accuracy), estimate(after.accuracy), drop_text(test),
                     f"{test.only_original} / {test.only_renewed}", p_text(adjusted[name]),
                     f"{counts(before)}; {counts(after)}"))
        drawn[name] = {"original": before.accuracy, "relabel": after.accuracy}
    study.write(rows, text, bars(drawn), notes)


if __name__ == "__main__":
    main()
