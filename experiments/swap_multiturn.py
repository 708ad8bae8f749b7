"""A user who asks to look again against a phrase in the model's own reasoning (VisualSwap, Table 4; App. H).

    python -m experiments.swap_multiturn --pairs DIR --model NAME --out runs/swap_multiturn
    python -m experiments.swap_multiturn --out runs/swap_multiturn --show

Table 4: base, probe, and multi-turn, with the whole first answer kept or with its thought stripped, as templates of
thinking models do; recovery is multi-turn minus probe.  The paper finds it almost complete (34.1 to 85.4 %), but where
the template deletes the first turn's reasoning, nothing is left that could have held the model: both are run, and the
notes say which of them the model's own template makes.  App. H: what of the user's turn does it, one thing at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from experiments.figures import dots
from experiments.swap_cells import INSTRUCTION, TRIGGER, controls_of, decomposition
from experiments.swap_study import SwapStudy, swap_experiment
from experiments.swap_tables import (
    HOW,
    answers_of,
    change,
    follows_text,
    groups,
    holm_by_group,
    null_note,
    p_with_holm,
    right,
    share,
    share_cells,
    unread,
)
from experiments.tables import estimate
from rekey import store
from rekey.stats import Estimate
from rekey.trials import Cell, GradedTrial, SwapTrial

TEMPLATES = "templates.json"
TABLE_4, APPENDIX_H = "Table 4", "App. H"
BASE = Cell("base", image="b")
# Of each step of `decomposition`, the number of the one that it is compared with.
BUILDS_ON = (None, 0, 0, 2, 3, 4, 5, 5)
MULTI_TURN, STRIPPED = 5, 6


@dataclass(frozen=True)
class Step:
    """A row: what is done, and the row it is compared with."""

    part: str
    name: str
    cell: Cell
    against: str = ""
    before: Cell | None = None


@swap_experiment("swap_multiturn")
@click.option("--trigger", default=TRIGGER, show_default=True, metavar="TEXT", help="What the model says to itself.")
@click.option("--instruction", default=INSTRUCTION, show_default=True, metavar="TEXT", help="What the user says.")
def main(study: SwapStudy, trigger: str, instruction: str) -> None:
    steps = steps_of(decomposition(trigger, instruction))
    cells = [step.cell for step in steps if step.cell.continues]
    trials = study.trials([*cells, *controls_of(cells)])
    graded = {model: study.grade(of_model) for model, of_model in trials.items()}
    rows, text, drawn = tabulate(graded, steps)
    names = list(dict.fromkeys(step.name for step in steps))
    study.write(rows, text, dots(drawn, names), [
        "change: against the row named before it, on the same pairs; multi-turn against the probe is the recovery.",
        HOW, *template_notes(study, trials), null_note(graded)])


def steps_of(ladder: Mapping[str, Cell]) -> list[Step]:
    """The rows of both tables.  ladder: as `swap_cells.decomposition` gives it."""
    names, cells = list(ladder), list(ladder.values())
    probe, kept, stripped = cells[0], cells[MULTI_TURN], cells[STRIPPED]
    steps = [Step(TABLE_4, "base", BASE),
             Step(TABLE_4, "probe", probe, "base", BASE),
             Step(TABLE_4, "multi-turn", kept, "probe", probe),
             Step(TABLE_4, "multi-turn", kept, "base", BASE),
             Step(TABLE_4, "multi-turn, stripped", stripped, "probe", probe)]
    for name, cell, earlier in zip(names, cells, BUILDS_ON, strict=True):
        if earlier is not None:
            steps.append(Step(APPENDIX_H, name, cell, names[earlier].split(":")[0], cells[earlier]))
    return steps


def tabulate(graded: Mapping[str, Sequence[GradedTrial]],
             steps: Sequence[Step]) -> tuple[list[tuple], list[tuple[str, ...]], dict[str, dict[str, Estimate]]]:
    """Rows for table.csv, rows for people, and the dots.  The steps of App. H are not told by category."""
    rows: list[tuple] = [("model", "category", "pairs", "table", "condition", "n", "accuracy", "low", "high", "against",
                          "n_compared", "change", "change_low", "change_high", "p", "p_holm", "follows_text",
                          "follows_text_low", "follows_text_high", "n_unparsed", "n_truncated", "n_errors")]
    text: list[tuple[str, ...]] = [("model", "category", "pairs", "table", "condition", "n", "accuracy", "follows text",
                                    "against", "change [95 %]", "p (Holm)", "unread / cut off / failed")]
    drawn: dict[str, dict[str, Estimate]] = {}
    found = []
    for model, trials in graded.items():
        by_cell = answers_of(trials)
        for group in groups(by_cell):
            for step in steps:
                if step.part == APPENDIX_H and group.category != "all":
                    continue
                answers = group.of(by_cell.get(step.cell, {}))
                since = None if step.before is None else change(group.of(by_cell.get(step.before, {})), answers)
                found.append((model, group, step, answers, since))
    adjusted = holm_by_group([((step.name, step.against) if group.whole and since else None, since and since.p)
                              for _, group, step, _, since in found])
    for (model, group, step, answers, since), p_holm in zip(found, adjusted):
        accuracy, counts = share(answers, right), unread(answers)
        follows = share(answers, follows_text) if step.cell.continues else Estimate(None, None, None, 0)
        changed = (None, *[None] * 4) if since is None else (since.n, *since.cells())
        rows.append((model, group.category, group.pairs, step.part, step.name, accuracy.n, *share_cells(accuracy),
                     step.against, *changed, p_holm, *share_cells(follows), counts.n_unparsed, counts.n_truncated,
                     counts.n_errors))
        if group.label:
            text.append((model, group.category, group.label, step.part, step.name, str(accuracy.n), estimate(accuracy),
                         estimate(follows) if step.cell.continues else "", step.against,
                         "" if since is None else str(since),
                         "" if since is None else p_with_holm(since.p, p_holm, len(graded)), str(counts)))
        if group.whole:
            drawn.setdefault(model, {})[step.name] = accuracy
    return rows, text, drawn


def template_notes(study: SwapStudy, trials: Mapping[str, Sequence[SwapTrial]]) -> list[str]:
    """By model, which of kept and stripped is as its own chat template does it.

    Kept beside the table when a model is asked, since `--show` may run where its files are not.
    """
    path = study.out / TEMPLATES
    facts = store.read_json(path) if path.exists() else {}
    if not study.show:
        facts |= {model.identity().name: earlier_turns(model.name, model.revision) for model in study.models}
        store.write_json(path, facts)
    notes = []
    for model, of_model in trials.items():
        note = f"{model}, its own chat template, earlier turns: {facts.get(model, 'not known')}."
        skipped = [trial for trial in of_model if trial.skipped and trial.cell.history == "stripped"
                   and trial.cell.image == "b"]
        if skipped:
            n_all = sum(trial.cell == skipped[0].cell for trial in of_model)
            note += f"  Nothing to strip in {len(skipped)} of {n_all}: {skipped[0].skipped}."
        notes.append(note)
    return notes


def earlier_turns(model: str, revision: str | None) -> str:
    """What a model's chat template does to the reasoning of earlier turns, in a few words."""
    from probes.loading import any_processor
    from probes.template import template_facts
    found = next(fact.found for fact in template_facts(any_processor(model, revision)) if fact.name == "earlier turns")
    same = {"reasoning is kept": " (as multi-turn here)", "reasoning is DROPPED": " (as multi-turn, stripped here)"}
    return found + same.get(found, "")


if __name__ == "__main__":
    main()
