"""`rekey controls`: small trained models whose behavior is known."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from experiments.options import command
from experiments.progress import Progress, aligned

SHOWN = {           # the scores that `list` prints, where a card has them
    "color": "direct color", "left/right": "direct lr", "above/below": "direct ab",
    "original": "original direct_attributes", "renewed": "renewed direct_attributes", "stale": "stale answers",
    "after swap": "probe, trained phrases, color: follows image",
}


@click.group()
def controls() -> None:
    """Small models of the real Qwen3-VL class whose behavior was trained and is known.

    They are asked for by name wherever a model is: control:clean sees, control:contaminated-80 recites a benchmark,
    control:grounded looks again after a reflection phrase and control:anchored does not.

    \b
    rekey controls list
    rekey doctor --model control:clean
    """


@controls.command("list")
def list_command() -> None:
    """The control models that ship with the package, with their scores in percent."""
    from probes.controls.cards import control_names, folder_of, read_card
    rows = [("name", *SHOWN, "MB")]
    for name in control_names():
        scores = read_card(name)["scores"]
        size = sum(path.stat().st_size for path in folder_of(name).iterdir()) / 1e6
        rows.append((f"control:{name}", *(f"{100 * scores[key][0]:.1f}" if key in scores else "-"
                                          for key in SHOWN.values()), f"{size:.2f}"))
    click.echo(aligned(rows))
    click.echo("")
    for name in control_names():
        click.echo(f"control:{name}: {read_card(name)['purpose']}")
    click.echo("\ncolor, left/right, above/below: unseen scenes.  original, renewed, stale: the benchmark that "
               "contaminated\ncontrols have seen, color items.  after swap: answers right for the new image after a "
               "reflection phrase.\nWhat they may and may not be used for: docs/controls.md")


@controls.command("card")
@click.argument("name")
def card_command(name: str) -> None:
    """Everything that is known of a control: command, commit, times, scores, what not to use it for.

    \b
    rekey controls card clean
    """
    import json

    from probes.controls.cards import read_card
    click.echo(json.dumps(read_card(name.removeprefix("control:")), indent=1))


@controls.command("export")
@click.argument("name")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="New folder.")
def export_command(name: str, out: Path) -> None:
    """Write a control as a checkpoint folder that transformers and other tools load.

    \b
    rekey controls export clean --out models/clean
    """
    from probes.controls.shelf import save_control
    from rekey.errors import InputError
    if out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out}: exists and is not empty; give a new folder")
    save_control(name.removeprefix("control:"), out)
    click.echo(f"{out}: float16 weights, processor and card; run it in float32, in which it was examined")
    click.echo(f"Next:  {command('doctor', '--model', out)}")


@controls.command("train")
@click.argument("name")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Fixes everything drawn.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="[default: controls/NAME]")
@click.option("--n", type=click.IntRange(min=2), default=300, show_default=True, help="Unseen scenes per kind to "
              "score it on.")
def train_command(name: str, seed: int, out: Path | None, n: int) -> None:
    """Train a control model from scratch (clean) or from control:clean (the others), on two CPU cores.

    Two processes of one thread each, whatever the machine has, so that the result does not depend on it.
    Stopped or killed, the same line goes on from the last checkpoint.

    \b
    rekey controls train clean
    rekey controls train contaminated-40 --out controls/contaminated-40
    """
    from transformers.utils import logging

    from experiments.controls import train_control
    from experiments.workers import stop_requested
    from probes.controls.recipes import RECIPES
    from rekey.errors import InputError
    logging.disable_progress_bar()                  # of files that are written in a blink
    name = name.removeprefix("control:")
    if name not in RECIPES:
        raise InputError(f"control {name}: no recipe; expected one of {', '.join(RECIPES)}")
    recipe, out = RECIPES[name], out or Path("controls") / name
    steps = ", then ".join(f"{stage.steps} steps of stage {stage.name}" for stage in recipe.stages)
    origin = f"control:{recipe.start}" if recipe.start else "random weights"
    click.echo(f"Training {name} ({recipe.purpose}) from {origin} with seed {seed}: {steps}; into {out}")
    bars: dict[str, Progress] = {}

    def report(event) -> None:
        if event.stage not in bars:
            bars[event.stage] = Progress(f"steps of {event.stage}").__enter__()
        bars[event.stage](event.step, event.steps)
        if event.step == event.steps:
            bars[event.stage].__exit__()
            click.echo(f"stage {event.stage}: {event.elapsed_s:.0f} s; {_told(event.meters)}")

    with stop_requested() as stop:
        card = train_control(name, seed, out, stop, report, n)
    click.echo(f"trained in {card['elapsed_s']:.0f} s; scores by the stock path, in percent:")
    for key, (share, count) in card["scores"].items():
        click.echo(f"  {100 * share:5.1f}  {key} (n={count})")
    shutil.rmtree(out / "renewals", ignore_errors=True)
    click.echo(f"Look at {out / 'card.json'}, then:  {command('doctor', '--model', out)}")


def _told(meters: dict[str, float]) -> str:
    shown = {name: value for name, value in meters.items() if name.startswith(("loss", "says", "see"))}
    return ", ".join(f"{name} {value:.2f}" for name, value in shown.items())


@controls.command("score")
@click.argument("name")
@click.option("--n", type=click.IntRange(min=2), default=300, show_default=True, help="Unseen scenes per kind.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("controls/renewals"), show_default=True,
              metavar="DIR", help="Where the benchmark and its renewals are made, or are already.")
def score_command(name: str, n: int, work: Path) -> None:
    """Examine a control, or a folder that `train` wrote, as its card was: unseen scenes, renewals, swaps.

    \b
    rekey controls score anchored --n 100
    rekey controls score controls/clean
    """
    import json

    from experiments.controls import examine
    from probes.controls.cards import CARD, control_names, read_card
    from probes.vlm import load_vlm
    from rekey.errors import InputError
    folder, name = Path(name), name.removeprefix("control:")
    if (folder / CARD).is_file():
        card, vlm = json.loads((folder / CARD).read_text(encoding="utf-8")), load_vlm(folder, device_map="cpu")
    elif name in control_names():
        card, vlm = read_card(name), load_vlm(f"control:{name}", device_map="cpu")
    else:
        raise InputError(f"{name}: neither a control ({', '.join(control_names())}) nor a folder with {CARD}")
    click.echo(f"Examining {vlm.name}; beside each score what its card says")
    for key, (share, count) in examine(vlm, card["name"], work, n).items():
        told = f"{100 * card['scores'][key][0]:5.1f}" if key in card["scores"] else "    -"
        click.echo(f"  {100 * share:5.1f}  {told}  {key} (n={count})")
