"""`rekey demo`: the main job on real photographs, on any machine, and a page to look at."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from experiments.cli import EXIT_SOME_FAILED
from experiments.options import WORKERS, command, read_ledger
from experiments.progress import Progress, aligned

SEEDS = (1, 2, 3)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo"), show_default=True,
              help="Folder for the three instances and the page.")
@WORKERS
def demo(out: Path, workers: int) -> None:
    """Renew the photographs that ship with scikit-image, matplotlib and scikit-learn, three times; ask a model.

    No downloads, no network, no GPU.  Each seed draws other edits on the same human-marked slots, and no
    later instance repeats a question of an earlier one.  Then small models, trained on drawn scenes and shipped
    with this package, are asked about a scene before and after its image is swapped; two that answer alike are told
    apart by whether they look again (VisualSwap), and two others by an audit: they score alike on a benchmark that one
    of them has memorized.

    \b
    rekey demo --out demo
    """
    from experiments.demo_page import write_demo_page
    from experiments.demo_photos import PACKAGED_PHOTOS, demo_photos, demo_slots_file
    from experiments.generate import GenerateJob, generate
    from experiments.workers import stop_requested
    from rekey.errors import Interrupted
    from rekey.sampling import SamplingOptions
    from rekey.slots import read_slots, write_slots

    photos = demo_photos()
    out.mkdir(parents=True, exist_ok=True)
    (out / "photos").mkdir(exist_ok=True)
    for path in photos.values():
        if not (out / "photos" / path.name).exists():
            shutil.copyfile(path, out / "photos" / path.name)
    slots = {k: v for k, v in read_slots(demo_slots_file()).items() if k in photos}
    slots_file = out / "slots.jsonl"
    write_slots(slots_file, slots.values())         # anew: packages with photos may have come or gone
    n_slots = sum(len(image.slots) for image in slots.values())
    missing = [photo for photo in PACKAGED_PHOTOS if photo.image_id not in photos]
    if missing:
        click.echo(f"without {', '.join(photo.image_id for photo in missing)}, which ship with "
                   f"{', '.join(sorted({photo.package for photo in missing}))} (pip install scikit-learn)")
    click.echo(f"{len(slots)} photographs, {n_slots} human-marked slots, seeds {', '.join(map(str, SEEDS))}")
    earlier: tuple[Path, ...] = ()
    n_failed = 0
    with stop_requested() as stop:
        for seed in SEEDS:
            job = GenerateJob(slots_file, out / "photos", out / f"seed{seed}", seed, sampling=SamplingOptions(),
                              distractors="lure", avoid=read_ledger(earlier), workers=workers)
            with Progress("images") as progress:
                summary = generate(job, progress, stop)
            click.echo(f"seed {seed}: {summary.n_items} certified items, {summary.n_rejected} draws thrown away, "
                       f"{len(summary.failures)} images without an item")
            earlier += (job.out,)
            n_failed += len(summary.failures)
            if stop.is_set() and seed != SEEDS[-1]:
                raise Interrupted(f"{len(earlier)} of {len(SEEDS)} instances done")
        told = swapped = report = None
        if _controls_are_here():
            told = _told(out / "scene")
            swapped = _swapped(out / "swap", stop)
            report = _audited(out / "audit", workers, stop)
    page = write_demo_page(out, slots, SEEDS, told, swapped, report)
    click.echo(f"\nOpen {page} in a browser; the contact sheets are {out}/seed*/contact_sheet.jpg")
    click.echo(f"Next:  {command('items', 'export', out / 'seed1', '--to', 'vlmevalkit', '--out', out / 'seed1.tsv')}")
    if n_failed:
        click.get_current_context().exit(EXIT_SOME_FAILED)


def _controls_are_here() -> bool:
    """Whether the control models can be asked; a line says so if not."""
    from importlib.util import find_spec
    if missing := [package for package in ("torch", "transformers", "peft") if find_spec(package) is None]:
        click.echo(f"without the control models, which need {', '.join(missing)} (pip install -e '.[models]')")
    return not missing


def _audited(folder: Path, workers: int, stop):
    """The audit of two control models, one of which has memorized the benchmark."""
    from experiments.audit_text import main_table
    from experiments.demo_audit import audit_controls
    report = audit_controls(folder, workers, stop, click.echo)
    click.echo("\nMemory or sight?\n" + aligned(main_table(report)))
    return report


def _swapped(folder: Path, stop):
    """The table of the swap experiments on two control models."""
    from experiments.demo_swap import N_PAIRS, swap_controls
    click.echo(f"Swapping the image under two models' reasoning, {N_PAIRS} pairs")
    table = swap_controls(folder, stop)
    click.echo("\nDo they look again?  Answers by the image that is seen in the end, in percent\n" + aligned(table))
    return table


def _told(folder: Path):
    """What the control models say of a scene."""
    from experiments.demo_scene import ask_controls
    told = ask_controls(folder)
    for said in told.continued:
        kind = {told.color_b: "the new image", told.color_a: "its own text"}.get(said.color, "neither")
        click.echo(f"{said.model}, image swapped after its reasoning: says {said.color}, as {kind} does")
    return told
