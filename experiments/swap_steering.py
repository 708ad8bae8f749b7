"""Does it help to raise the attention on the image, and what does it cost?  A dose curve (VisualSwap, Sec. 7).

    python -m experiments.swap_steering --pairs DIR --model NAME --out runs/swap
    python -m experiments.swap_steering --pairs DIR --model NAME --out runs/swap --doses 0,1,2,3 --layers middle,all
    python -m experiments.swap_steering --out runs/swap --show

From the phrase on, a dose is added to the attention logits of all image tokens in some layers: their weights grow by a
factor of e^dose before each row is normalized.  The image is exchanged as in the probe.  If a model does not look
because too little of its attention is on the image, the answers by the image rise with the dose.  What the dose breaks
is measured beside it: the base accuracy on image b, seen alone and steered throughout.  One dose that helps says little
without either curve; read both, and the null swap, which is steered too.

Layers: "middle" is the paper's band, 0.5 to 0.6 of the depth; "all"; or such as 14-17, counted from 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from experiments.figures import line_panels
from experiments.options import Listed
from experiments.swap_cells import BASES, TRIGGER, controls_of
from experiments.swap_study import SwapStudy, swap_experiment
from experiments.swap_tables import (
    HOW,
    answers_of,
    change,
    follows_text,
    groups,
    null_check,
    null_note,
    right,
    share,
    share_cells,
    unread,
)
from experiments.tables import estimate, p_text
from probes.trace import MIDDLE, layers_near
from rekey.errors import InputError
from rekey.stats import Estimate
from rekey.trials import Cell, GradedTrial, read_trials

if TYPE_CHECKING:
    from probes.backends import ModelSpec
    from probes.vlm import LocalVLM

DOSES = (0.0, 0.5, 1.0, 2.0, 4.0)
Layers = tuple[int, ...]        # () are all
DOSE_NOTE = ("dose: added to the attention logits of image tokens, in the probe from the phrase on, in the base answer "
             "throughout; (x f): the factor f = e^dose by which their weights grow before a row is normalized.  change "
             "and damage: against dose 0 on the same pairs.")


@swap_experiment("swap_steering")
@click.option("--doses", type=Listed(float, 0, 20), default=DOSES, show_default=",".join(f"{d:g}" for d in DOSES),
              metavar="X,X,...", help="What is added to the logits; 0 is always among them.")
@click.option("--layers", default="middle", show_default=True, metavar="NAME,...",
              help="Which layers are steered: middle, all, or such as 14-17; several are so many curves.")
@click.option("--trigger", default=TRIGGER, show_default=True, metavar="TEXT", help="The phrase that it looks again.")
def main(study: SwapStudy, doses: tuple[float, ...], layers: str, trigger: str) -> None:
    doses = tuple(sorted({0.0, *doses}))
    names = tuple(dict.fromkeys(layers.split(",")))
    for name in names:
        check_layers(name)
    graded: dict[str, Sequence[GradedTrial]] = {}
    curves: dict[str, list[Layers]] = {}
    for one, chosen in studies(study, names):
        cells = [cell for of_layers in chosen for dose in doses for cell in steered(dose, of_layers, trigger)]
        for model, trials in one.run([*cells, *controls_of(cells)]).items():
            graded[model], curves[model] = trials, chosen
        study.n_failed, study.problems = one.n_failed, one.problems
    rows, text, drawn = tabulate(graded, curves, doses, trigger)
    figure = line_panels(drawn, [f"{dose:g}" for dose in doses], "dose: added to the logits of image tokens")
    study.write(rows, text, figure, [DOSE_NOTE, HOW, null_note(graded)])


def steered(dose: float, layers: Layers, trigger: str) -> tuple[Cell, Cell]:
    """The probe and the base answer under a dose."""
    how = {"log_bias": dose, "layers": layers} if dose else {}
    return Cell("reasoning", phrase=trigger, **how), replace(BASES[1], **how)


# ------------------------------------------------------------------------------------------ layers

def check_layers(name: str) -> None:
    if name not in ("middle", "all") and not re.fullmatch(r"\d+(-\d+)?", name):
        raise InputError(f"--layers: {name!r}; expected middle, all, or layers counted from 0, such as 14-17")


def studies(study: SwapStudy, names: Sequence[str]) -> Iterator[tuple[SwapStudy, list[Layers]]]:
    """The study of each model, with the layers that are steered in it: with --show those that were."""
    if not study.show:
        for model in study.models:
            one = replace(study, models=(model,), n_failed=study.n_failed, problems=study.problems)
            yield one, list(dict.fromkeys(layers_of(one.engine(model), name) for name in names))
        return
    wanted = {Path(model.name).name for model in study.models}
    for name, chosen in stored_layers(study).items():
        if not wanted or Path(name).name in wanted:
            yield replace(study, models=(stored_model(name),)), chosen


def stored_layers(study: SwapStudy) -> dict[str, list[Layers]]:
    """By model, the sets of layers that stored trials were steered in."""
    found: dict[str, list[Layers]] = {}
    for trial in read_trials(study.file):
        if trial.cell.log_bias:
            chosen = found.setdefault(trial.model, [])
            if trial.cell.layers not in chosen:
                chosen.append(trial.cell.layers)
    if not found:
        raise InputError(f"--show: {study.file} holds no steered trials; run the same line with --pairs and --model")
    return found


def stored_model(name: str) -> ModelSpec:
    from probes.backends import ModelSpec
    return ModelSpec(name)


def layers_of(vlm: LocalVLM, name: str) -> Layers:
    """The layers of a name; of models with attention in some layers alone, those."""
    from probes.attention import network_of
    from probes.interpose import text_attention_modules
    n_layers = vlm.model.config.get_text_config().num_hidden_layers
    attending = sorted(text_attention_modules(network_of(vlm)))
    if name == "all":
        return ()
    if name == "middle":
        return tuple(attending[n] for n in layers_near(MIDDLE, attending, n_layers))
    first, _, last = name.partition("-")
    chosen = tuple(layer for layer in attending if int(first) <= layer <= int(last or first))
    if not chosen:
        raise InputError(f"--layers {name}: {vlm.name} has no such layers with attention; expected some of "
                         f"{', '.join(map(str, attending))}")
    return chosen


def layers_text(layers: Layers) -> str:
    if not layers:
        return "all"
    whole = layers == tuple(range(layers[0], layers[-1] + 1))
    return f"{layers[0]}-{layers[-1]}" if whole and len(layers) > 1 else ",".join(map(str, layers))


# ------------------------------------------------------------------------------------------- table

def tabulate(graded: Mapping[str, Sequence[GradedTrial]], curves: Mapping[str, Sequence[Layers]],
             doses: Sequence[float], trigger: str) -> tuple[list[tuple], list[tuple[str, ...]],
                                                            dict[str, dict[str, dict[str, Estimate]]]]:
    """Rows for table.csv, rows for people, and the panels.  curves: by model, the layers of each."""
    rows: list[tuple] = [("model", "layers", "pairs", "dose", "factor", "n", "probe", "probe_low", "probe_high",
                          "change", "change_low", "change_high", "p_change", "follows_text", "follows_text_low",
                          "follows_text_high", "n_base", "base_b", "base_b_low", "base_b_high", "damage", "damage_low",
                          "damage_high", "p_damage", "null_identical", "null_n", "n_unparsed", "n_truncated",
                          "n_errors")]
    text: list[tuple[str, ...]] = [("model", "layers", "pairs", "dose", "n", "probe", "change [95 %]", "p",
                                    "follows text", "base", "damage [95 %]", "p", "null swap",
                                    "unread / cut off / failed")]
    drawn: dict[str, dict[str, dict[str, Estimate]]] = {"probe: by the image, %": {}, "probe: by the text, %": {},
                                                        "base: by the image, %": {}}
    for model, layers in ((model, layers) for model, several in curves.items() for layers in several):
        by_cell = answers_of(graded[model])
        name = model if len(curves[model]) == 1 else f"{model}, layers {layers_text(layers)}"
        for group in groups(by_cell, categories=False):
            plain_probe, plain_base = (group.of(by_cell.get(cell, {})) for cell in steered(0.0, layers, trigger))
            for dose in doses:
                cells = steered(dose, layers, trigger)
                probe, base = (group.of(by_cell.get(cell, {})) for cell in cells)
                check = null_check(one for one in graded[model] if one.trial.cell in controls_of(cells))
                gain, damage, counts = change(plain_probe, probe), change(plain_base, base), unread(probe, base)
                values = share(probe, right), share(probe, follows_text), share(base, right)
                rows.append((model, layers_text(layers), group.pairs, dose, math.exp(dose), values[0].n,
                             *share_cells(values[0]), *gain.cells(), *share_cells(values[1]), values[2].n,
                             *share_cells(values[2]), *damage.cells(), check.n_identical, check.n, counts.n_unparsed,
                             counts.n_truncated, counts.n_errors))
                if group.label:
                    compared = [cell for one in (gain, damage)
                                for cell in ((str(one), p_text(one.p)) if dose else ("", ""))]
                    text.append((model, layers_text(layers), group.label, f"{dose:g} (x {math.exp(dose):.3g})",
                                 str(values[0].n), estimate(values[0]), *compared[:2], estimate(values[1]),
                                 estimate(values[2]), *compared[2:], str(check), str(counts)))
                if group.whole:
                    for panel, value in zip(drawn.values(), values):
                        panel.setdefault(name, {})[f"{dose:g}"] = value
    return rows, text, drawn


if __name__ == "__main__":
    main()
