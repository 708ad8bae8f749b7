"""`rekey merge`: shards of a generated instance become one."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.cli_generate import report


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def merge(folder: Path) -> None:
    """Join the shards in FOLDER into items.jsonl, as one run would have written it.

    \b
    rekey merge runs/seed1
    """
    from experiments.generate import merge as run
    report(run(folder), folder)
