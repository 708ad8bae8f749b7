"""`rekey generate`: a fresh, certified benchmark instance."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.cli import EXIT_SOME_FAILED
from experiments.options import SEED, SLOTS, WORKERS, command, read_ledger, sampling_options, what_is_left
from experiments.progress import Progress

MANY, WELL_FILLED = 50, 0.7         # edits, and the share of the places in batches below which much is painted in vain


@click.command()
@SLOTS
@click.option("--images", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Source images, named after their image_id.")
@SEED
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The instance's folder.")
@click.option("--editor", default="classical", show_default=True, metavar="NAME",
              help="What draws the edits; `rekey editors` lists them.")
@click.option("--set", "chosen", multiple=True, metavar="KEY=VALUE",
              help="A setting of the editor; `rekey editors NAME` lists them.  Repeatable.")
@sampling_options
@click.option("--shard", metavar="i/n", help="Do the i-th of n parts; `rekey merge` joins them.")
@WORKERS
def generate(slots_file, images, seed, out, editor, chosen, sampling, distractors, avoid, shard, workers) -> None:
    """Make a fresh instance: sample, edit, composite, certify, retry.

    \b
    rekey generate --slots slots.jsonl --images photos --seed 1 --out runs/seed1
    rekey generate --slots slots.jsonl --images photos --seed 2 --avoid runs/seed1 --out runs/seed2
    rekey generate --slots slots.jsonl --images photos --seed 1 --out runs/seed1 --shard 2/8
    rekey generate --slots slots.jsonl --images photos --seed 1 --out runs/flux \\
                   --editor flux-canny --set base=models/FLUX.1-dev --workers 16

    Stopped or killed, the same line goes on where it was.
    """
    from experiments.editors_by_name import choices_from, licenses_to_mind, make_editor
    from experiments.generate import GenerateJob
    from experiments.generate import generate as run
    from rekey.slots import read_slots
    from rekey.store import parse_shard
    job = GenerateJob(slots_file, images, out, seed, editor, sampling, distractors, avoid,
                      parse_shard(shard) if shard else None, workers, choices_from(chosen))
    minded = licenses_to_mind(make_editor(job.editor, job.choices))
    click.echo(f"Renewing the images of {slots_file} with seed {seed}, editor {editor}, {workers} processes, "
               f"into {out}")
    for line in minded:
        click.echo(line)
    with Progress("images") as progress:
        summary = run(job, progress)
    if not shard:
        used = avoid | read_ledger((out,))
        click.echo(what_is_left(list(read_slots(slots_file).values()), sampling, used))
    report(summary, out, shard)


def report(summary, out: Path, shard: str | None = None) -> None:
    """Say what came of a run and what to type next; ends the command with status 3 where items failed."""
    resumed = f" ({summary.n_resumed} images were done before)" if summary.n_resumed else ""
    click.echo(f"{summary.n_items} certified items{resumed}, {len(summary.failures)} images without one, "
               f"{summary.n_rejected} draws thrown away (see rejected.jsonl)")
    if summary.painted is not None:
        n_edits, fill = summary.painted["edits"], summary.painted["fill"]
        more = "; more --workers would fill them" if n_edits >= MANY and fill < WELL_FILLED else ""
        click.echo(f"{n_edits} edits painted in {summary.painted['batches']} batches, {fill:.0%} full{more}")
    for failure in summary.failures:
        click.echo(f"no item: {failure}", err=True)
    if shard:
        click.echo(f"When all shards are done:  {command('merge', out)}")
    elif summary.n_items:
        click.echo(f"Look at {out / 'contact_sheet.jpg'}, then:  "
                   f"{command('items', 'export', out, '--to', 'vlmevalkit', '--out', f'{out}.tsv')}")
    if summary.failures:
        click.get_current_context().exit(EXIT_SOME_FAILED)
