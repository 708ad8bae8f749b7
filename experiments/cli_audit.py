"""`rekey audit` and `rekey regrade`: what stored responses say."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.options import command
from rekey.answers import PARSERS
from rekey.errors import InputError

FILES = click.Path(path_type=Path)
PARSER = click.option("--parser", type=click.Choice(PARSERS), default="strict", show_default=True,
                      help="How answers are read; paper: the rule of the published ReKey numbers.")


@click.command()
@click.option("--original", required=True, multiple=True, type=FILES, metavar="FILE",
              help="Responses to the original benchmark.  Repeatable: one file per model, say.")
@click.option("--renewed", required=True, multiple=True, type=FILES, metavar="FILE",
              help="Responses to renewed benchmarks.  Repeatable: seeds, models.")
@click.option("--relabel", multiple=True, type=FILES, metavar="FILE",
              help="Responses to new questions on the original images.  Repeatable.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where the report goes.")
@PARSER
@click.option("--looks", type=click.IntRange(min=1), metavar="N", help="How many seeds there will ever be, where one "
              "looks after each.  [default: without end]")
@click.option("--drop", type=click.FloatRange(0, 100, min_open=True), default=5.0, show_default=True, metavar="POINTS",
              help="The drop for which it is told how many images or seeds find it.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of bootstrap and simulations.")
def audit(original, renewed, relabel, out, parser, looks, drop, seed) -> None:
    """Is the score memory or sight?  Original against renewed items, with tests, intervals and power.

    \b
    rekey audit --original runs/original.jsonl --renewed runs/seed1.jsonl --renewed runs/seed2.jsonl --out runs/audit

    Every model in the files is audited that answered both under the same settings.
    """
    from experiments.audit import write_audit
    from experiments.audit_text import as_text
    from rekey.audit import audit as run
    report = run(original, renewed, relabel, parser, looks, drop / 100, seed)
    write_audit(report, out)
    click.echo(as_text(report))
    click.echo(f"\nRead {out / 'table.md'}, look at {out / 'audit.png'}; item by item: {out / 'flips.csv'}")


@click.command()
@click.argument("responses", nargs=-1, required=True, type=FILES, metavar="FILE...")
@PARSER
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write one graded line per response.")
def regrade(responses, parser, out) -> None:
    """Grade stored responses again, by either parser; no model is asked.

    \b
    rekey regrade runs/seed1.jsonl --parser paper
    rekey regrade runs/seed1.jsonl runs/seed2.jsonl --out runs/graded.jsonl
    """
    from experiments.regrade import as_text, regrade_files
    from rekey.evaluate import response_files
    from rekey.store import write_jsonl
    evidence = {file.resolve() for path in responses for file in response_files(path)}
    if out is not None and out.resolve() in evidence:
        raise InputError(f"--out {out}: holds responses, which are never written over; give another path")
    report = regrade_files(responses, parser)
    if out is not None:
        write_jsonl(out, report.lines)
    click.echo(as_text(report))
    click.echo(f"{out} holds every response with what was read in it" if out is not None else
               f"Next:  {command('regrade', *responses, '--parser', parser, '--out', 'graded.jsonl')}")
