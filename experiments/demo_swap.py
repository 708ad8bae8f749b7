"""The demo's VisualSwap: two models answer alike and differ in whether they look again (VisualSwap, Sec. 4 and 5).

    table = swap_controls(Path("demo/swap"))

    demo/swap/pairs/                        16 pairs of drawn scenes
    demo/swap/trials/trials.jsonl           what was tried on both models, a line each
    demo/swap/main, multiturn, retention/   table.md, table.csv, figure.png of the three experiments
    demo/swap/cases/                        some trials to read, with what they attended to

The commands a user would type do the same: rekey pairs build; python -m experiments.swap_main, ... with one --trials;
rekey attend; rekey plot.
"""

from __future__ import annotations

import contextlib
import csv
import io
import threading
from pathlib import Path

import click

from experiments import swap_main, swap_multiturn, swap_retention
from experiments.attend import AttendJob, attend
from experiments.pair_sources import SceneSource
from experiments.pairs_build import build_pairs
from experiments.plot import PlotJob, plot
from probes.backends import ModelSpec
from rekey.errors import Interrupted

N_PAIRS, N_TRACED, SEED = 16, 2, 1
N_CASES = 12
MODELS = ("control:grounded", "control:anchored")
MAX_NEW_TOKENS = 64
EXPERIMENTS = {"main": swap_main.main, "multiturn": swap_multiturn.main, "retention": swap_retention.main}


def swap_controls(folder: Path, stop: threading.Event) -> list[tuple[str, ...]]:
    """Run the three experiments; what is there already is not asked again.  Returns a table that sums them up."""
    pairs = folder / "pairs"
    build_pairs(SceneSource(N_PAIRS, SEED, None), pairs, 1)
    for name, experiment in EXPERIMENTS.items():
        if stop.is_set():
            raise Interrupted("some of the swap experiments done")
        run_quietly(experiment, pairs, folder / name, folder / "trials")
    for name in MODELS:
        attend(AttendJob(folder / "trials", ModelSpec(name), folder / "trials" / "traces",
                         ("base", "probe", "multi-turn"), limit=N_TRACED))
    plot(PlotJob(folder / "trials", folder, limit=N_TRACED, n_cases=N_CASES, figures=False))
    return summary(folder)


def run_quietly(experiment: click.Command, pairs: Path, out: Path, trials: Path) -> None:
    models = [part for name in MODELS for part in ("--model", name)]
    arguments = ["--pairs", str(pairs), *models, "--out", str(out), "--trials", str(trials), "--max-new-tokens",
                 str(MAX_NEW_TOKENS), "--pairs-at-once", str(N_PAIRS), "--rows-at-once", "128"]
    with contextlib.redirect_stdout(io.StringIO()):
        status = experiment.main(arguments, standalone_mode=False)
    if status:
        raise click.exceptions.Exit(status)


def summary(folder: Path) -> list[tuple[str, ...]]:
    """One row a model: the share of answers by the image that is seen in the end, in percent."""
    main, multiturn, retention = (_rows(folder / name / "table.csv") for name in EXPERIMENTS)
    kept = sorted({float(row["kept"]) for row in retention})
    text = [("model", "image b alone", "probe", "user asks", *(f"{100 * share:g} % kept" for share in kept),
             "null swap = no swap")]
    for model in MODELS:
        (base,) = _of(main, model=model)
        (asked,) = _of(multiturn, model=model, condition="multi-turn", against="probe")
        by_share = {float(row["kept"]): row for row in _of(retention, model=model)}
        text.append((model, _percent(base["base_b"]), _percent(base["probe"]), _percent(asked["accuracy"]),
                     *(_percent(by_share[share]["accuracy"]) for share in kept),
                     f"{base['null_identical']} of {base['null_n']}"))
    return text


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _of(rows: list[dict[str, str]], **wanted: str) -> list[dict[str, str]]:
    """Rows of all pairs with these values."""
    wanted |= {"category": "all", "pairs": "all"}
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _percent(share: str) -> str:
    return f"{100 * float(share):.0f}"
