"""`rekey scenes`: a benchmark of procedural scenes, with questions and slots, to renew like photographs."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.options import SEED, command
from experiments.progress import Progress


@click.command()
@click.option("--n", type=click.IntRange(min=1), default=100, show_default=True, help="Number of scenes.")
@SEED
@click.option("--hard", is_flag=True, help="More, smaller objects and more clutter.")
@click.option("--relabel", is_flag=True, help="Ask something else about the same scenes.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="New folder: images/, items.jsonl (the original benchmark) and slots.jsonl.")
def scenes(n: int, seed: int, hard: bool, relabel: bool, out: Path) -> None:
    """Draw cluttered scenes with one question each, and the slots of what the questions are about.

    \b
    rekey scenes --n 100 --seed 1 --out scenes
    rekey generate --slots scenes/slots.jsonl --images scenes/images --seed 1 --distractors lure --out renewed
    """
    from experiments.scenes import write_benchmark
    from rekey.scenes import EASY, HARD
    click.echo(f"Drawing {n} scenes of seed {seed} into {out}")
    with Progress("scenes") as progress:
        items = write_benchmark(out, n, seed, HARD if hard else EASY, progress, relabel)
    n_position = sum(item.category == "relative_position" for item in items)
    click.echo(f"{len(items)} items: {len(items) - n_position} about color, {n_position} about position")
    click.echo("Next:  " + command("generate", "--slots", out / "slots.jsonl", "--images", out / "images", "--seed", 1,
                                   "--distractors", "lure", "--out", f"{out}_seed1"))
