"""Models that may zoom into the picture against the same models without the tool (ReKey, Table 6; Sec. 4.2).

    python -m experiments.agentic --model NAME --original DIR --relabel DIR --renewed DIR --renewed DIR \\
        --out runs/agentic
    python -m experiments.agentic --out runs/agentic --show

A ReAct loop with one crop-and-zoom tool (`probes.zoom`), on models of the probe engine.  Base: single pass with the
benchmark's own prompt, as in Table 1.  Every step, box and cut-out is in the stored lines.
"""

from __future__ import annotations

from pathlib import Path

import click

from experiments.figures import bars
from experiments.paired import compare
from experiments.study import CONDITIONS, ORIGINAL, RELABEL, RENEWED, Study, benchmarks, experiment, of_name
from probes.zoom_calls import MAX_STEPS
from rekey.evaluate import read_lines

WAYS = ("base", "zoom")


@experiment("agentic")
@ORIGINAL
@RELABEL
@RENEWED
@click.option("--zoom-steps", type=click.IntRange(min=1), default=MAX_STEPS, show_default=True,
              help="How often a model may zoom.")
def main(study: Study, original: Path | None, relabel: Path | None, renewed: tuple[Path, ...], zoom_steps: int) -> None:
    ways = {"base": {"prompt": "direct"}, "zoom": {"prompt": "cot", "zoom_steps": zoom_steps}}
    files = study.ask(benchmarks(study, original, relabel, renewed, ways))
    conditions = {name: tuple(of_name(files, f"{name}-{way}") for way in WAYS) for name in CONDITIONS}
    rows, text, drawn = compare(study, conditions, WAYS)
    study.write(rows, text, bars(drawn), [_use_of_tool(study, conditions)])


def _use_of_tool(study: Study, conditions: dict) -> str:
    """How often the tool was used at all: without it, the comparison is one of prompts."""
    files = [path for _, zoomed in conditions.values() for path in zoomed]
    n_lines = n_used = n_views = n_errors = 0
    for path in files:
        for line in read_lines(path):
            steps = (line.get("generation") or {}).get("trace", {}).get("steps", [])
            n_lines += 1
            n_used += any("box" in step for step in steps)
            n_views += sum("box" in step for step in steps)
            n_errors += sum("error" in step for step in steps)
    return (f"the tool was used in {n_used} of {n_lines} questions, {n_views} views in all; {n_errors} calls could not "
            "be carried out")


if __name__ == "__main__":
    main()
