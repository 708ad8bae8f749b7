"""`rekey plot`: figures and case files of stored trials and traces; no model is asked."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.cli import EXIT_INPUT
from experiments.options import Listed
from experiments.progress import Progress
from rekey.answers import PARSERS

N_CASES = 40                     # as in `experiments.plot`, which --help does not load
MAX_LISTED = 12


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where it goes.  [default: FOLDER/plots]")
@click.option("--layers", type=Listed(int, -1000), default=(), metavar="N,N,...",
              help="A panel of the curves for each; negative ones from the end.  [default: the depth in four parts]")
@click.option("--band", "bands", type=(click.FloatRange(0, 1), click.FloatRange(0, 1)), multiple=True,
              metavar="FROM TO", help="A panel for the layers between two fractions of the depth, as 0.5 0.6; the "
              "first is also that of overlays and case files.  Repeatable.")
@click.option("--conditions", multiple=True, metavar="NAME", help="Only these, as tables name them: base, probe, "
              "multi-turn, \"null swap, probe\", ...  Repeatable.  [default: figures those three, case files all]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N pairs.")
@click.option("--cases", "n_cases", type=click.IntRange(min=0), default=N_CASES, show_default=True, metavar="N",
              help="Case files: by turns of every model, condition and verdict.")
@click.option("--figures/--no-figures", default=True, show_default=True, help="Or case files alone.")
@click.option("--pairs", type=click.Path(path_type=Path), metavar="FILE|DIR",
              help="The pairs, if they have moved since the trials were run.")
@click.option("--without-sinks", is_flag=True, help="Overlays: leave out tokens that draw many times their share all "
              "the time, and say how many.")
@click.option("--parser", type=click.Choice(PARSERS), default="strict", show_default=True, help="How answers are read.")
def plot(folder, out, layers, bands, conditions, limit, n_cases, figures, pairs, without_sinks, parser) -> None:
    """Figures and readable case files of a folder of trials, with what there is.

    \b
    rekey plot runs/probe
    rekey plot runs/probe --band 0.5 0.6 --conditions probe --conditions multi-turn --cases 100
    rekey plot runs/probe/traces --layers 18,19,20,21 --without-sinks --out figures

    Trials come from `rekey probe`, traces from `rekey attend`; traces are looked for in the folder and right below it.
    """
    from experiments.plot import PlotJob
    from experiments.plot import plot as run
    job = PlotJob(folder, out, layers, bands, conditions, limit, n_cases, pairs, without_sinks, parser, figures)
    click.echo(f"Drawing what {folder} holds into {job.destination}")
    with Progress("case files") as progress:
        drawn = run(job, progress)
    pictures = [path for path in drawn.files if path.suffix == ".png"]
    pages = [path for path in drawn.files if path.suffix == ".html"]
    for path in pictures[:MAX_LISTED]:
        click.echo(f"  {path}")
    if len(pictures) > MAX_LISTED:
        click.echo(f"  ... and {len(pictures) - MAX_LISTED} more figures")
    if pages:
        click.echo(f"  {pages[0]} and {len(pages) - 1} case files")
    for line in drawn.missing:
        click.echo(f"note: {line}", err=True)
    if not drawn.files:
        click.echo("rekey: nothing was drawn", err=True)
        click.get_current_context().exit(EXIT_INPUT)
    click.echo(f"Open {pages[0]} in a browser" if pages else f"Look at {pictures[0]}")
