"""`rekey sample`: questions and labels without pixels, since neither needs any."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.cli import EXIT_SOME_FAILED
from experiments.options import SEED, SLOTS, command, sampling_options, what_is_left
from rekey.qa import build_question
from rekey.records import to_json
from rekey.sampling import NoItem, Pool, PoolSize, identity
from rekey.slots import read_slots
from rekey.store import dumps, write_atomic


@click.command()
@SLOTS
@SEED
@sampling_options
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write here instead of to the terminal.")
def sample(slots_file, seed, sampling, distractors, avoid, out) -> None:
    """Draw the sampling records of a seed: one item per line, with no image.

    \b
    rekey sample --slots slots.jsonl --seed 7 --out seed7.jsonl
    rekey sample --slots slots.jsonl --seed 8 --avoid seed7.jsonl | head
    """
    click.echo(f"Drawing records of {slots_file} with seed {seed}" + (f" into {out}" if out else ""), err=True)
    lines, failures, used, size = [], [], set(avoid), PoolSize(0, 0, 0, 0)
    images = list(read_slots(slots_file).values())
    for image in images:
        pool = Pool(image, sampling)
        size += pool.size()
        try:
            record = pool.sample(seed, avoid)
        except NoItem as reason:
            failures.append(f"{image.image_id}: {reason}")
            continue
        used.add(identity(record))
        question = build_question(record, distractors)
        lines.append(dumps({"item_id": f"{image.image_id}/seed{seed}", "question": question.text,
                            "options": question.options, "answer": question.answer, "category": question.category,
                            "source_answer": question.source_answer, "record": to_json(record)}) + "\n")
    if out:
        write_atomic(out, "".join(lines))
    else:
        click.get_binary_stream("stdout").write("".join(lines).encode())
    for failure in failures:
        click.echo(f"no item: {failure}", err=True)
    click.echo(f"{len(lines)} items, {len(failures)} images without one.  Pool: {size.attribute:,} attribute and "
               f"{size.position:,} position items (by the paper's formula {size.attribute_formula:,} and "
               f"{size.position_formula:,})", err=True)
    click.echo(what_is_left(images, sampling, used), err=True)
    following = command("generate", "--slots", slots_file, "--images", "DIR", "--seed", seed, "--out", "DIR")
    click.echo(f"Next:  {following}", err=True)
    if failures:
        click.get_current_context().exit(EXIT_SOME_FAILED)
