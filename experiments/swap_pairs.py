"""How alike the two images of swap pairs are: CLIP similarity, SSIM and LPIPS by category (VisualSwap, Table 1).

    python -m experiments.swap_pairs --pairs pairs --out runs/swap_pairs
    python -m experiments.swap_pairs --out runs/swap_pairs --show

Means with bootstrap intervals, and the paper's own means for its 800 pairs beside them.  Expect drawn pairs to be more
alike than the paper's, which an editor painted anew: a figure's twin differs in one detail and no other pixel.
One core measures SSIM of some 40 pairs a second (384 x 384 px); CLIP and LPIPS take a GPU where there is one, and are
"not computed" where their weights are not on this machine.

Writes similarity.jsonl (one line a pair; a run that was stopped goes on), table.md, table.csv, figure.png, run.json.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from experiments.cli import EXIT_SOME_FAILED
from experiments.figures import in_lines, plain
from experiments.pair_similarity import Line, by_category, means, measure_pairs, read_similarity, table, values
from experiments.probe import usable_pairs
from experiments.progress import Progress
from experiments.study import Command, write_results
from probes.similarity import CLIP, METRICS, PAPER_MEANS, TITLES, load_metrics
from rekey.errors import InputError
from rekey.pairs import pairs_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIMILARITY = "similarity.jsonl"
LABELS = {"clip": "CLIP similarity", "ssim": "SSIM", "lpips": "LPIPS (less is more alike)"}
GOLDEN = 0.618034               # spreads whole numbers evenly
MOST_DOTS = 400                 # of one category; more would be a smear


@click.command("swap_pairs", cls=Command, help=__doc__.replace("\n\n    ", "\n\n\b\n    "),
               context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--pairs", "file", type=click.Path(path_type=Path), metavar="DIR|FILE", help="The pairs to measure.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The experiment's folder.")
@click.option("--show", is_flag=True, help="Measure nothing; table and figure anew from the stored lines.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first N pairs only.")
@click.option("--clip", default=CLIP, show_default=True, metavar="NAME",
              help="The CLIP model: a folder, or a hub id in the local cache.")
@click.option("--device", default="auto", show_default=True, help="For CLIP and LPIPS: cpu, cuda, cuda:1, ...")
@click.pass_context
def main(ctx: click.Context, file: Path | None, out: Path, show: bool, limit: int | None, clip: str,
         device: str) -> None:
    started = time.time()
    problems: list[str] = []
    if show:
        lines = read_similarity(out / SIMILARITY)[:limit]
    elif file is None:
        raise InputError("--pairs: give the pairs to measure, or --show to draw what is stored")
    else:
        lines, problems = _measure(file, out, limit, clip, device)
    rows, text = table(lines)
    notes = [f"{TITLES[name]}: not computed" for name in METRICS if not len(values(lines, name))]
    how = sorted({line["how"][name] for line in lines for name in line.get("how", {})})
    settings = {"pairs": file and str(file), "limit": limit, "show": show, "how": how, "not_computed": notes,
                "cannot_be_used": problems}
    write_results(out, rows, text, figure(lines), [f"Measured by: {'; '.join(how)}"], settings, started)
    if problems:
        ctx.exit(EXIT_SOME_FAILED)


def _measure(file: Path, out: Path, limit: int | None, clip: str, device: str) -> tuple[list[Line], list[str]]:
    """The lines of the pairs, and what is wrong with those that cannot be used."""
    path = pairs_file(file)
    click.echo(f"Reading the pairs of {path}")
    with Progress("pairs read") as progress:
        good, problems = usable_pairs(path, limit, progress)
    for problem in problems:
        click.echo(f"cannot be used: {problem}", err=True)
    metrics, missing = load_metrics(clip, device)
    click.echo(f"Measuring {', '.join(TITLES[name] for name in metrics)} of {len(good)} pairs into {out}")
    for name, reason in missing.items():
        click.echo(f"{TITLES[name]}: not computed; {reason}", err=True)
    with Progress("pairs measured") as progress:
        return measure_pairs(good, path.parent, out / SIMILARITY, metrics, progress), problems


def figure(lines: list[Line]) -> Figure:
    """Every pair as a dot, by category and metric, with the mean of the category and the paper's mean of its own pairs.

    Legible in gray and at the width of a page of two columns.
    """
    from matplotlib.figure import Figure
    groups = by_category(lines)
    drawn = Figure(figsize=(6.8, 1.25 + 0.42 * len(groups)), dpi=200, layout="constrained")
    axes = drawn.subplots(1, len(METRICS), sharey=True)
    estimates = means(lines)
    for metric, axis in zip(METRICS, axes):
        found = {name: values(group, metric) for name, group in groups.items()}
        axis.set_xlabel(LABELS[metric], fontsize=8)
        plain(axis, "x")
        if not any(len(numbers) for numbers in found.values()):
            axis.text(0.5, 0.5, "not computed", ha="center", va="center", fontsize=8, transform=axis.transAxes)
            axis.set_xticks([])
            continue
        axis.axvline(PAPER_MEANS[metric], color="#000000", linewidth=0.9, linestyle=(0, (4, 3)))
        for row, (name, numbers) in enumerate(found.items()):
            _dots(axis, row, numbers)
            mean = estimates[name][metric]
            if mean.value is not None:
                axis.plot([mean.low, mean.high], [row, row], color="#000000", linewidth=1.6, solid_capstyle="butt")
                axis.plot(mean.value, row, "D", color="#000000", markeredgecolor="#ffffff", markersize=5)
    axes[0].set_yticks(range(len(groups)), [f"{in_lines(name)}\nn = {len(group)}" for name, group in groups.items()])
    axes[0].set_ylim(len(groups) - 0.4, -0.6)
    drawn.supxlabel("dot: a pair     diamond: mean with 95% interval     dashed: mean of VS-Bench (paper)", fontsize=7)
    return drawn


def _dots(axis: Axes, row: int, numbers: np.ndarray) -> None:
    """Spread over the height of the row by their order, so that the same values give the same picture."""
    shown = numbers[::-(-len(numbers) // MOST_DOTS) or 1]
    height = row + 0.5 * ((np.arange(len(shown)) * GOLDEN) % 1) - 0.25
    axis.plot(shown, height, "o", color="#8a8a8a", markersize=2, alpha=0.6, markeredgewidth=0)


if __name__ == "__main__":
    main()
