"""`rekey items`: benchmarks of other tools in, ours out to them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from experiments.cli import EXIT_SOME_FAILED
from rekey.benchmark_rows import Rejected
from rekey.benchmarks import REJECTED, TARGETS, detect_format, export_items, import_items

SHOWN = 10


@click.group()
def items() -> None:
    """Import and export benchmarks: V*Bench, VLMEvalKit, lmms-eval.

    \b
    rekey items import VStarBench.tsv --out vstar
    rekey items export vstar --to lmms-eval --out vstar_lmms
    """


@items.command("import")
@click.argument("source", type=click.Path(path_type=Path), metavar="FILE_OR_FOLDER")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="New folder: items.jsonl, images/, and rejected.jsonl where rows could not be used.")
@click.option("--images", type=click.Path(path_type=Path), metavar="DIR",
              help="Where the image files are that a table names by path.  [default: beside the table]")
@click.option("--no-images", is_flag=True, help="Import the questions alone; image paths stay text.")
@click.option("--category-column", default="category", show_default=True, metavar="NAME",
              help="Column that becomes the category, such as l2_category.")
def import_command(source: Path, out: Path, images: Path | None, no_images: bool,
                   category_column: str) -> None:
    """Turn a benchmark into an items folder.  The format is detected.

    Read are V*Bench as folders of images with JSON files, or as Parquet; rows with choices, options or
    columns A, B, ... as Parquet, JSON or JSON Lines; VLMEvalKit's TSV; an items folder of ours.

    \b
    rekey items import vstar_bench --out vstar
    rekey items import MMStar.tsv --out mmstar --category-column l2_category
    rekey items import RealWorldQA_local.tsv --out questions --no-images
    """
    click.echo(f"{source}: {detect_format(source)}")
    click.echo(f"writing {out}" + ("; questions only, no images" if no_images else ""))
    report = import_items(source, out, images, not no_images, category_column, _progress)
    by_category = Counter(item.category or "no category" for item in report.items)
    listed = ", ".join(f"{count} {name}" for name, count in by_category.most_common(SHOWN))
    more = f" and {len(by_category) - SHOWN} more categories" if len(by_category) > SHOWN else ""
    free_form = sum(not item.options for item in report.items)
    free = f"; {free_form} free-form" if free_form else ""
    click.echo(f"{len(report.items)} items ({listed}{more}){free}")
    _list_rejected(report.rejected, f"all of them are in {out / REJECTED}")
    click.echo(f"Next:  rekey items export {out} --to vlmevalkit --out {out.name}.tsv")
    if report.rejected:
        click.get_current_context().exit(EXIT_SOME_FAILED)


@items.command("export")
@click.argument("source", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--to", required=True, type=click.Choice(TARGETS), help="The tool that will read it.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE_OR_DIR",
              help="New file (vlmevalkit: NAME.tsv) or new folder (lmms-eval, vstar).")
@click.option("--task", metavar="NAME", help="Name of the lmms-eval task.  [default: after --out]")
def export_command(source: Path, to: str, out: Path, task: str | None) -> None:
    """Write an items folder for another tool.

    \b
    rekey items export runs/seed1 --to vlmevalkit --out ReKeySeed1.tsv
    rekey items export runs/seed1 --to lmms-eval --out rekey_seed1
    rekey items export runs/seed1 --to vstar --out rekey_seed1_folders
    """
    click.echo(f"{source}: writing {out} for {to}")
    report = export_items(source, out, to, task)
    click.echo(f"{report.n_items} items written")
    for warning in report.warnings:
        click.echo(f"warning: {warning}", err=True)
    _list_rejected(report.rejected, "they are not in the export")
    if to == "vlmevalkit":
        click.echo(f"Next:  copy {out} to $LMUData and run VLMEvalKit with --data {out.stem}   (it keeps images by "
                   "that name: give every instance its own)")
    elif to == "lmms-eval":
        name = next(out.glob("*.yaml")).stem
        click.echo(f"Next:  lmms-eval --include_path {out} --tasks {name} --model ...")
    else:
        click.echo(f"Next:  rekey items import {out} --out ...   (or the V*Bench scripts)")
    if report.rejected:
        click.get_current_context().exit(EXIT_SOME_FAILED)


def _list_rejected(rejected: Sequence[Rejected], ending: str) -> None:
    if not rejected:
        return
    click.echo(f"{len(rejected)} rejected; {ending}", err=True)
    for row in rejected[:SHOWN]:
        click.echo(f"  {row.where}: {row.reason}", err=True)
    if len(rejected) > SHOWN:
        click.echo(f"  ... and {len(rejected) - SHOWN} more", err=True)


def _progress(rows: Iterable) -> Iterable:
    if not sys.stderr.isatty():
        return rows
    from tqdm import tqdm

    return tqdm(rows, unit=" rows", leave=False)
