"""`rekey editors`: what can draw the edits, under which license, with which settings, and whether it can here.

    rekey editors
    rekey editors flux-canny --set base=models/FLUX.1-dev
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from experiments.options import command
from rekey.errors import InputError

if TYPE_CHECKING:
    from editors.models import Weights
    from editors.settings import DiffusionSettings
    from experiments.editors_by_name import EditorEntry

WIDTH = 100
COLUMNS = (14, 48, 14, 7, 4)            # name, weights, license, size, here
GAP = 2


@click.command()
@click.argument("name", required=False)
@click.option("--set", "chosen", multiple=True, metavar="KEY=VALUE", help="A setting of the editor.  Repeatable.")
def editors(name, chosen) -> None:
    """List what can draw the edits; or, of one editor, its weights, licenses and settings, and whether it can run here.

    \b
    rekey editors
    rekey editors flux-canny
    rekey editors flux-canny --set base=models/FLUX.1-dev --set steps=20

    Exit status 2, with a line for each reason, where the editor could not run here.
    """
    from experiments.editors_by_name import choices_from, entry_of
    if name is None:
        if chosen:
            raise InputError(f"--set {chosen[0]}: of which editor?  give its name, as in  "
                             f"{command('editors', 'flux-canny', '--set', chosen[0])}")
        _print_table()
        return
    _print_one(name, entry_of(name), choices_from(chosen))


# -------------------------------------------------------------------------------------------- all of them

def _print_table() -> None:
    from editors.models import known, size_text
    from experiments.editors_by_name import EDITORS
    click.echo(_row("name", "weights", "license", "size", "here") + f"\n{'-' * (sum(COLUMNS) + GAP * 4)}")
    for name, entry in EDITORS.items():
        first = name
        for _, hub_id in entry.weights:
            weights = known(hub_id)
            license_text = "any use" if weights.license.forbids is None else "non-commercial"
            click.echo(_row(first, hub_id, license_text, size_text(weights.n_bytes), _here(hub_id)))
            first = ""
        if not entry.weights:
            click.echo(_row(name, "random, made when asked for" if entry.builds else "none", "any use", "", "yes"))
    click.echo("\nNext:  rekey editors NAME       (its settings and license; whether it can run here)\n"
               "       rekey generate --editor NAME --set KEY=VALUE ...")


def _here(hub_id: str) -> str:
    from editors.models import locate
    try:
        locate(hub_id)
    except InputError:
        return "no"
    return "yes"


def _row(*cells: str) -> str:
    """Cells in the columns of the table; sizes to the right."""
    padded = [cell.rjust(width) if n == 3 else cell.ljust(width) for n, (cell, width) in enumerate(zip(cells, COLUMNS))]
    return (" " * GAP).join(padded).rstrip()


# ------------------------------------------------------------------------------------------------ one of them

def _print_one(name: str, entry: EditorEntry, choices: tuple[tuple[str, str], ...]) -> None:
    from experiments.editors_by_name import editor_settings, make_editor
    click.echo(textwrap.fill(f"{name}: {entry.about}", WIDTH) + "\n")
    if entry.settings is not None:
        settings = editor_settings(name, choices)
        _print_weights(entry, settings)
        _print_settings(settings)
    editor = make_editor(name, choices)
    editor.check()
    if entry.settings is None:
        click.echo("weights   none\nsettings  none\n")
    words = [word for key, value in choices for word in ("--set", f"{key}={value}")]
    click.echo("It can run here.\nNext:  " + command("generate", "--editor", name, *words) + " ...")


def _print_weights(entry: EditorEntry, settings: DiffusionSettings) -> None:
    click.echo("Weights")
    told: set[str] = set()
    for setting in ("base", "controlnet"):
        used = getattr(settings, setting, None)
        if used is None:
            continue
        if setting in entry.builds and used == entry.usual[setting]:
            click.echo(f"  {setting}: random, made when asked for")
            continue
        revision = getattr(settings, "revision" if setting == "base" else f"{setting}_revision", None)
        click.echo(f"  {setting}: {used}")
        for line in _about_weights(used, revision, told):
            # What is to be typed stays one line.
            click.echo(f"      {line}" if line.startswith("hf ") else textwrap.fill(
                line, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 8, break_on_hyphens=False))
    click.echo("")


def _about_weights(used: str, revision: str | None, told: set[str]) -> Iterable[str]:
    """What the license comes to, and where the weights lie or how to get them.  told: licenses explained so far."""
    from editors.models import HUB, known, locate, size_text
    try:
        located = locate(used, revision)
    except InputError:
        located = None
    weights: Weights | None = known(located.id if located else used.partition("@")[0])
    if weights is not None:
        gated = ", given to those who accept its license on the hub" if weights.gated else ""
        yield f"{size_text(weights.n_bytes)}{gated}; {weights.note}"
        terms = weights.license
        yield f"license: {terms.name}, " + ("as above" if terms.name in told else terms.url)
        if terms.name not in told:
            yield f"allows: {terms.allows}"
            if terms.forbids is not None:
                yield f"forbids: {terms.forbids}"
        told.add(terms.name)
    else:
        yield "license: not known here; read what came with it"
    if located is not None:
        yield f"here: {located.folder}" + (f" (revision {located.revision})" if located.revision else "")
        return
    if weights is not None and weights.gated:
        yield f"not here; accept its license at {HUB}/{weights.id} , log in with  hf auth login , then:"
    else:
        yield "not here; where there is a network:"
    yield weights.download(revision) if weights else f"hf download {used}"


def _print_settings(settings: DiffusionSettings) -> None:
    """Each setting with its value and what it means."""
    meanings, hints = _meanings(type(settings)), typing.get_type_hints(type(settings))
    click.echo("Settings (--set KEY=VALUE)")
    for entry in dataclasses.fields(settings):
        click.echo(f"  {entry.name}={_shown(getattr(settings, entry.name))}")
        words = [meanings.get(entry.name, ""), _values(hints[entry.name])]
        if text := "  ".join(word for word in words if word):
            click.echo(textwrap.fill(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6))
    click.echo("")


def _shown(value: Any) -> str:
    """A value as it would be typed."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _values(kind: Any) -> str:
    """What may be given, where the name of the setting does not say it."""
    if typing.get_origin(kind) is typing.Literal:
        return f"[{' | '.join(typing.get_args(kind))}]"
    return "[true | false]" if kind is bool else ""


def _meanings(settings: type) -> dict[str, str]:
    """The string below each field of a dataclass and of those it comes from."""
    found: dict[str, str] = {}
    for cls in reversed([cls for cls in settings.__mro__ if dataclasses.is_dataclass(cls)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
        for line, after in zip(body, body[1:]):
            if isinstance(line, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[line.target.id] = " ".join(ast.literal_eval(after.value).split())
    return found
