"""Original, relabeled and renewed scores of models (ReKey, Table 1; RQ1).

    python -m experiments.renewal --model NAME --original DIR --relabel DIR --renewed DIR --renewed DIR \\
        --out runs/renewal
    python -m experiments.renewal --out runs/renewal --show

Settings of Sec. 4.1: the benchmark's own prompt, original resolution, temperature 0, 8192 tokens.  The table is that of
`rekey audit`: beside the published columns the exact test over all seeds, intervals, and the sd that sampling alone
gives; DIR/audit holds the rest of the audit.
"""

from __future__ import annotations

from pathlib import Path

from experiments.audit import audit_figure, csv_rows, write_audit
from experiments.audit_text import main_table
from experiments.study import ORIGINAL, RELABEL, RENEWED, Study, audited, experiment


@experiment("renewal")
@ORIGINAL
@RELABEL
@RENEWED
def main(study: Study, original: Path | None, relabel: Path | None, renewed: tuple[Path, ...]) -> None:
    report = audited(study, original, renewed, relabel)
    write_audit(report, study.out / "audit")
    study.write(list(csv_rows(report)), main_table(report), audit_figure(report), report.notes)


if __name__ == "__main__":
    main()
