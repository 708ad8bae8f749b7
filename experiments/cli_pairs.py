"""`rekey pairs`: two images, one question, two answers; build them, check them, measure how alike they are."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.cli import EXIT_SOME_FAILED
from experiments.options import WORKERS, command
from experiments.progress import Progress, aligned
from rekey.errors import InputError

CLIP = "openai/clip-vit-large-patch14"         # as in `probes.similarity`, which --help does not load
SHOWN = 20                      # of a list on the terminal
DRAWN = ("figures", "scenes")
ONLY_FOR = {"n": DRAWN, "seed": DRAWN, "kinds": ("figures",), "form": ("figures",), "ask": ("scenes",),
            "renewed": ("items",), "images": ("items",)}


@click.group()
def pairs() -> None:
    """Swap pairs: two images of one size, one question, two answers.

    \b
    rekey pairs build --from figures --n 200 --seed 1 --out pairs
    rekey pairs check pairs
    """


@pairs.command("build")
@click.option("--from", "origin", required=True, type=click.Choice((*DRAWN, "items")), help="What the pairs show.")
@click.option("--n", type=click.IntRange(min=1), help="figures, scenes: number of pairs.  [default: 100]")
@click.option("--seed", type=click.IntRange(min=0), help="figures, scenes: fixes every choice.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="figures: only these, by turns.  Repeatable.")
@click.option("--form", metavar="FORM", help="figures: only this form of question.")
@click.option("--ask", type=click.Choice(("color", "position")), help="scenes: only these questions.")
@click.option("--renewed", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
              help="items: an instance of `rekey generate`.  Repeatable: one of each seed.")
@click.option("--images", type=click.Path(path_type=Path), metavar="DIR",
              help="items: the images that the instances were made from.  Without them, seeds are only paired with "
              "each other.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The pairs' folder.")
@WORKERS
@click.pass_context
def build(ctx: click.Context, origin: str, out: Path, workers: int, **given) -> None:
    """Make a folder of pairs whose answers follow from what was drawn, never from a look at pixels.

    \b
    rekey pairs build --from figures --n 200 --seed 1 --out pairs
    rekey pairs build --from scenes --ask color --n 200 --seed 1 --out scene_pairs
    rekey pairs build --from items --renewed runs/seed1 --renewed runs/seed2 --images photos --out photo_pairs

    Stopped or killed, the same line goes on where it was.
    """
    from experiments.pairs_build import SHEET, build_pairs
    source = _source(origin, given)
    notes = source.notes()
    click.echo(f"Building {len(source.drafts())} pairs from {origin} into {out}")
    for note in notes:
        click.echo(f"  {note}")
    with Progress("pairs") as progress:
        summary = build_pairs(source, out, workers, progress)
    resumed = f" ({summary.n_resumed} were made before)" if summary.n_resumed else ""
    listed = ", ".join(f"{count} {category}" for category, count in summary.by_category.items())
    click.echo(f"{summary.n_pairs} pairs{resumed}: {listed or 'none'}")
    _list("not made", summary.failures)
    click.echo(f"Look at {out / SHEET}, then:  {command('pairs', 'check', out)}")
    if summary.failures:
        ctx.exit(EXIT_SOME_FAILED)


def _source(origin: str, given: dict):
    from experiments.pair_sources import FigureSource, ItemSource, SceneSource
    foreign = [f"--{name.removesuffix('s') if name == 'kinds' else name}" for name, value in given.items()
               if value not in (None, ()) and origin not in ONLY_FOR[name]]
    if foreign:
        raise InputError(f"{', '.join(foreign)}: not for pairs from {origin}; leave it out")
    if origin == "items":
        if not given["renewed"]:
            raise InputError("--renewed: name at least one instance of `rekey generate`")
        return ItemSource(given["renewed"], given["images"])
    if given["seed"] is None:
        raise InputError(f"--seed: is needed for pairs from {origin}; give a number")
    n = given["n"] or 100
    if origin == "scenes":
        return SceneSource(n, given["seed"], given["ask"])
    return FigureSource(n, given["seed"], given["kinds"], given["form"])


def _list(what: str, lines) -> None:
    for line in lines[:SHOWN]:
        click.echo(f"{what}: {line}", err=True)
    if len(lines) > SHOWN:
        click.echo(f"... and {len(lines) - SHOWN} more", err=True)


@pairs.command("check")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE_OR_FOLDER")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help="Where the similarities go.  [default: check/ beside the pairs]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Look at the first N lines only.")
@click.option("--similarity/--no-similarity", default=True, show_default=True, help="Measure how alike the images are.")
@click.option("--clip", default=CLIP, show_default=True, metavar="NAME",
              help="The CLIP model: a folder, or a hub id in the local cache.")
@click.option("--device", default="auto", show_default=True, help="For CLIP and LPIPS: cpu, cuda, cuda:1, ...")
@click.option("--min-clip", type=float, default=0.85, show_default=True, help="Flag pairs with less.")
@click.option("--min-ssim", type=float, default=0.70, show_default=True, help="Flag pairs with less.")
@click.option("--max-lpips", type=float, default=0.30, show_default=True, help="Flag pairs with more.")
@click.pass_context
def check(ctx: click.Context, file: Path, out: Path | None, limit: int | None, similarity: bool, clip: str,
          device: str, min_clip: float, min_ssim: float, max_lpips: float) -> None:
    """List the pairs that cannot be used, and measure how alike the images of the others are.

    Exit status 3 where some pairs cannot be used, 2 where none can.  A pair that is less alike than the limits ask is
    listed and stays usable.  A metric whose weights are not on this machine is not computed; nothing is downloaded.

    \b
    rekey pairs check pairs
    rekey pairs check my_pairs.jsonl --no-similarity
    rekey pairs check pairs --clip models/clip-vit-large-patch14 --min-ssim 0.8
    """
    from experiments.probe import usable_pairs
    from rekey.pairs import pairs_file
    path = pairs_file(file)
    click.echo(f"Checking the pairs of {path}")
    with Progress("pairs read") as progress:
        good, problems = usable_pairs(path, limit, progress)
    for problem in problems:
        click.echo(f"cannot be used: {problem}", err=True)
    click.echo(f"{len(good)} pairs can be used, {len(problems)} cannot")
    if similarity:
        from experiments.pairs_check import Limits
        _measure(path, out or path.parent / "check", good, clip, device, Limits(min_clip, min_ssim, max_lpips))
    click.echo(f"Next:  {command('probe', '--pairs', file, '--model', 'control:grounded', '--out', 'runs/swap')}")
    if problems:
        ctx.exit(EXIT_SOME_FAILED)


def _measure(path: Path, out: Path, good, clip: str, device: str, limits) -> None:
    from experiments.pair_similarity import measure_pairs
    from experiments.pairs_check import CSV, SHEET, write_check
    from probes.similarity import TITLES, load_metrics
    metrics, missing = load_metrics(clip, device)
    click.echo(f"\nMeasuring {', '.join(TITLES[name] for name in metrics)} into {out}")
    for name, reason in missing.items():
        click.echo(f"{TITLES[name]}: not computed; {reason}", err=True)
    with Progress("pairs measured") as progress:
        lines = measure_pairs(good, path.parent, out / "similarity.jsonl", metrics, progress)
    report = write_check(out, good, path.parent, lines, limits)
    click.echo("\n" + aligned(report.text))
    if report.flagged:
        click.echo(f"\n{len(report.flagged)} of {len(good)} pairs are less alike than the limits ask:")
        _list("less alike", report.flagged)
    click.echo(f"\nLook at {out / SHEET}; all values are in {out / CSV}")
