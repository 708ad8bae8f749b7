"""`rekey slots`: check, preview, import and measure annotations (ReKey, Sec. 3.1).

    rekey slots check slots.jsonl --images photos
    rekey slots preview slots.jsonl --images photos --out previews
    rekey slots import export.json --out slots.jsonl
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import click

from experiments.cli import EXIT_INPUT, EXIT_SOME_FAILED
from experiments.progress import Progress
from rekey.errors import InputError
from rekey.records import ImageSlots

FilePath = click.Path(path_type=Path)


@click.group("slots")
def slots() -> None:
    """Annotations: check them, look at them, import them from Label Studio.

    \b
    Example:
      rekey slots check slots.jsonl --images photos
    """


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


@slots.command()
@click.argument("file", type=FilePath)
@click.option("--images", type=FilePath, help="Folder of the images: boxes are checked against their sizes.")
@click.option("--sizes", type=FilePath, help='JSON file {"image id": [width, height]} in place of --images.')
@click.pass_context
def check(context: click.Context, file: Path, images: Path | None, sizes: Path | None) -> None:
    """List everything that is wrong or doubtful in an annotation FILE.

    Errors make the file unusable (exit status 2).  Warnings are for a person to look at.

    \b
    Example:
      rekey slots check slots.jsonl --images photos
    """
    from rekey.slot_parsing import parse_slots
    from rekey.slots import check_slots
    if images is not None and sizes is not None:
        raise InputError("found both --images and --sizes, expected one of them; leave one out")
    if images is not None and not images.is_dir():
        raise InputError(f"{images}: no such folder of images; correct --images")
    source = images or sizes
    click.echo(f"Checking {file}" + (f" against {source}" if source else ""))
    findings = check_slots(file, source)
    for finding in findings:
        click.echo(f"{finding.level}: {finding}")
    parsed = parse_slots(file)
    n_errors = sum(finding.level == "error" for finding in findings)
    click.echo(f"{_counted(n_errors, 'error')}, {_counted(len(findings) - n_errors, 'warning')}; "
               f"{_counted(len(parsed.images), 'image')} and "
               f"{_counted(sum(len(image.slots) for image in parsed.images.values()), 'slot')} are readable")
    unbounded = sum(image.image_size is None for image in parsed.images.values())
    if source is None and unbounded:
        click.echo(f"The image size of {_counted(unbounded, 'image')} is not known, so that boxes were not "
                   "checked against it: give --images or --sizes")
    if n_errors:
        click.echo(f"Next: correct {file} and run this command again")
        context.exit(EXIT_INPUT)
    click.echo(f"Next: rekey slots preview {file} --images {images or 'IMAGES'} --out previews")


@slots.command()
@click.argument("file", type=FilePath)
@click.option("--images", type=FilePath, required=True, help="Folder of the images.")
@click.option("--out", type=FilePath, required=True, help="Folder for the pictures and an index.html.")
@click.option("--image", "wanted", multiple=True, metavar="ID", help="Only this image; may be repeated.")
@click.pass_context
def preview(context: click.Context, file: Path, images: Path, out: Path, wanted: tuple[str, ...]) -> None:
    """Draw every image of an annotation FILE with its slots, for a person to judge.

    \b
    Example:
      rekey slots preview slots.jsonl --images photos --out previews
    """
    from rekey.images import find_image, load_image
    from rekey.preview import preview_slots
    from rekey.slots import check_slots, read_slots
    by_id = read_slots(file)
    unknown = sorted(set(wanted) - set(by_id))
    if unknown:
        raise InputError(f"found --image {', '.join(unknown)}, expected an image_id of {file}; correct it")
    if not images.is_dir():
        raise InputError(f"{images}: no such folder of images; correct --images")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: found a file, expected a folder; choose another --out")
    chosen = [image for image in by_id.values() if not wanted or image.image_id in wanted]
    remarks: dict[str, dict[str | None, list[str]]] = {}
    for finding in check_slots(file):
        if finding.image_id is not None:
            remarks.setdefault(finding.image_id, {}).setdefault(finding.slot_id, []).append(finding.text)
    click.echo(f"Drawing {_counted(len(chosen), 'image')} of {file} into {out}")
    out.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    drawn: list[str] = []
    with Progress("images") as progress:
        for number, image in enumerate(chosen, start=1):
            try:
                pixels = load_image(find_image(images, image.image_id)).pixels
                picture = preview_slots(pixels, image, remarks.get(image.image_id))
                picture.save(out / f"{image.image_id}.jpg", quality=88, subsampling=0)
                drawn.append(image.image_id)
            except InputError as error:
                failed.extend(error.problems)
            progress(number, len(chosen))
    (out / "index.html").write_text(_index_page(file.name, drawn), encoding="utf-8")
    for problem in failed:
        click.echo(f"failed: {problem}")
    click.echo(f"{_counted(len(drawn), 'image')} drawn, {len(failed)} failed")
    click.echo(f"Next: open {out / 'index.html'} in a browser")
    if failed:
        context.exit(EXIT_SOME_FAILED)


def _index_page(title: str, image_ids: list[str]) -> str:
    """A page that shows the pictures below each other, loaded as they are scrolled to."""
    from urllib.parse import quote
    pictures = "\n".join(
        f'<p><img loading="lazy" src="{quote(i)}.jpg" alt="{escape(i, quote=True)}"></p>' for i in image_ids)
    return (f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>\n'
            "<style>body{margin:0 auto;max-width:1640px;font-family:sans-serif}"
            "img{width:100%;min-height:20em;border-bottom:2px solid #999}</style>\n"
            f"<h1>{escape(title)}</h1>\n{pictures}\n</html>\n")


@slots.command("import")
@click.argument("export", type=FilePath)
@click.option("--out", type=FilePath, required=True, help="Annotation file to write (JSON lines).")
@click.option("--annotator", help="Id or e-mail of the annotator to take; default: whose work is latest.")
@click.option("--image-key", help='Field of the task data that holds the image; default: "image".')
@click.option("--skip-bad", is_flag=True, help="Leave out tasks with problems in place of stopping.")
@click.option("--force", is_flag=True, help="Replace the file at --out.")
@click.pass_context
def import_(context: click.Context, export: Path, out: Path, annotator: str | None, image_key: str | None,
            skip_bad: bool, force: bool) -> None:
    """Turn a Label Studio EXPORT (JSON or JSON_MIN) into an annotation file.

    Problems of all tasks are listed together; nothing is written unless they are mended or left out
    with --skip-bad (exit status 3).

    \b
    Example:
      rekey slots import project-1.json --out slots.jsonl
    """
    from rekey.label_studio import import_label_studio
    from rekey.slots import write_slots
    if out.exists() and not force:
        raise InputError(f"{out}: exists already; choose another --out, or replace it with --force")
    click.echo(f"Reading {export}")
    marked = import_label_studio(export, annotator, image_key)
    for note in marked.notes:
        click.echo(f"note: {note}")
    if marked.problems and not skip_bad:
        raise InputError(*marked.problems)
    for problem in marked.problems:
        click.echo(f"left out: {problem}")
    if not marked.images:
        raise InputError(f"{export}: found no marked image, expected at least one edit_region; nothing was "
                         "written")
    write_slots(out, marked.images.values())
    n_slots = sum(len(image.slots) for image in marked.images.values())
    click.echo(f"{_counted(len(marked.images), 'image')} with {_counted(n_slots, 'slot')} written to {out}")
    click.echo(f"Next: rekey slots check {out} --images IMAGES")
    if marked.problems:
        context.exit(EXIT_SOME_FAILED)


@slots.command("label-config")
def label_config() -> None:
    """Print the labeling interface for Label Studio.

    \b
    Example:
      rekey slots label-config > rekey.xml
    """
    from rekey.label_studio import LABEL_CONFIG
    click.echo(LABEL_CONFIG, nl=False)


@slots.command()
@click.argument("file", type=FilePath)
@click.option("--images", type=FilePath, required=True, help="Folder of the images.")
@click.option("--out", type=FilePath, required=True, help="Annotation file to write; may be FILE itself.")
def measure(file: Path, images: Path, out: Path) -> None:
    """Add each image's size and each slot's clutter to an annotation FILE.

    `rekey generate --difficulty` uses both.  Clutter is the density of edges in the context box, from
    0 to 1.  All else in the file is kept as it is.

    \b
    Example:
      rekey slots measure slots.jsonl --images photos --out slots.measured.jsonl
    """
    from rekey.slot_parsing import parse_slots
    from rekey.slots import read_slots
    from rekey.store import write_jsonl
    by_id = read_slots(file)
    click.echo(f"Measuring {_counted(len(by_id), 'image')} of {file}")
    problems: list[str] = []
    rows = []
    with Progress("images") as progress:
        for number, row in enumerate(parse_slots(file).rows, start=1):
            try:
                rows.append(_measured(row, by_id[row["image_id"]], images))
            except InputError as error:
                problems.extend(error.problems)
            progress(number, len(by_id))
    if problems:
        raise InputError(*problems)
    write_jsonl(out, rows)
    clutter = sorted(slot["clutter"] for row in rows for slot in row["slots"])
    if clutter:
        click.echo(f"Clutter of {_counted(len(clutter), 'slot')}: {clutter[0]:.2f} to {clutter[-1]:.2f}, "
                   f"median {clutter[len(clutter) // 2]:.2f}")
    click.echo(f"Written to {out}")
    click.echo(f"Next: rekey sample --slots {out} --seed 1 --difficulty medium --out seed1.jsonl")


def _measured(row: dict, image: ImageSlots, folder: Path) -> dict:
    from rekey.clutter import measured_row
    from rekey.images import find_image, load_image
    pixels = load_image(find_image(folder, image.image_id)).pixels
    height, width = pixels.shape[:2]
    outside = [slot.slot_id for slot in image.slots if not slot.context.inside(width, height)]
    if outside:
        raise InputError(f"{image.image_id}: found slots {', '.join(outside)} that reach outside the image "
                         f"of {width} x {height} pixels, expected boxes inside; run `rekey slots check` "
                         "with --images")
    return measured_row(row, image, pixels)
