"""Editors by the name a user types, and what each needs; `rekey editors` shows this.

    editor = make_editor("flux-canny", (("base", "models/FLUX.1-dev"), ("steps", "20")))
    licenses_to_mind(editor)                # a line for each set of weights whose license forbids something

Naming an editor imports nothing: modules and classes are strings, so that what needs no torch does not wait for it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rekey.editing import Editor
from rekey.errors import InputError

if TYPE_CHECKING:
    from editors.painting import Painter
    from editors.settings import DiffusionSettings

NEEDED = ("torch", "diffusers", "transformers", "safetensors")      # by the editors of diffusion
Choices = tuple[tuple[str, str], ...]           # what `--set KEY=VALUE` said, in order


@dataclass(frozen=True)
class EditorEntry:
    """An editor as data.  Classes are named "module:class"; only those of diffusion have settings and a painter."""

    about: str
    editor: str
    settings: str | None = None
    painter: str | None = None
    usual: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the defaults of their class."""
    builder: str | None = None
    """Function of a folder that builds weights in it; its result has the settings `builds` as attributes."""
    builds: tuple[str, ...] = ()

    @property
    def weights(self) -> tuple[tuple[str, str], ...]:
        """(setting, hub id) of all weights it uses unless others are chosen."""
        return tuple((name, self.usual[name]) for name in ("base", "controlnet")
                     if self.usual.get(name) is not None and name not in self.builds)


_FLUX = {"settings": "editors.flux:FluxSettings", "editor": "editors.flux:FluxEditor",
         "painter": "editors.flux_painter:FluxPainter"}


def _instruct(about: str, editor: str, kind: str, base: str) -> EditorEntry:
    """An editor of `editors.instruct`."""
    return EditorEntry(about, f"editors.instruct:{editor}", f"editors.instruct:{kind}Settings",
                       f"editors.instruct_painters:{kind}Painter", {"base": base})


EDITORS = {
    "classical": EditorEntry(
        "Repaints what is there, draws what is not; a tenth of a second per edit, on one CPU core.",
        "editors.classical:ClassicalEditor"),
    "flux-canny": EditorEntry(
        "FLUX.1-dev with a Canny ControlNet makes the classical edit look real.", **_FLUX,
        usual={"base": "black-forest-labs/FLUX.1-dev",
               "controlnet": "Shakker-Labs/FLUX.1-dev-ControlNet-Union-Pro-2.0"}),
    "flux-schnell": EditorEntry(
        "FLUX.1-schnell, without a ControlNet and in 4 steps: fast, and free for any use.", **_FLUX,
        usual={"base": "black-forest-labs/FLUX.1-schnell", "controlnet": None, "steps": 4}),
    "flux-canny-dev": _instruct("FLUX.1-Canny-dev: edges are its input, so it needs no ControlNet.",
                                "CannyDevEditor", "CannyDev", "black-forest-labs/FLUX.1-Canny-dev"),
    "flux-fill": _instruct("FLUX.1-Fill-dev fills the hole and never sees what was there: for adding objects.",
                           "FillEditor", "Fill", "black-forest-labs/FLUX.1-Fill-dev"),
    "flux-kontext": _instruct("FLUX.1-Kontext-dev follows the paper's instruction.",
                              "InstructEditor", "Kontext", "black-forest-labs/FLUX.1-Kontext-dev"),
    "flux2-klein": _instruct("FLUX.2-klein-4B follows the paper's instruction in 4 steps: small, and free for any use.",
                             "KleinEditor", "Klein", "black-forest-labs/FLUX.2-klein-4B"),
    "qwen-edit": _instruct("Qwen-Image-Edit follows the paper's instruction: large, slow, and free for any use.",
                           "InstructEditor", "QwenEdit", "Qwen/Qwen-Image-Edit"),
    "tiny-flux": EditorEntry(
        "The code of flux-canny with tiny random weights: for tests and dry runs; its edits fail their certificates.",
        **_FLUX, builder="editors.tiny_flux:tiny_flux", builds=("base", "controlnet"),
        usual={"base": "random", "controlnet": "random", "canvases_px": (128, 256), "text_tokens": 64, "steps": 2,
               "max_attempts": 1, "dtype": "float32"}),
}


def entry_of(name: str) -> EditorEntry:
    """What is known of the editor called so; InputError lists those there are."""
    if name not in EDITORS:
        raise InputError(f"--editor {name}: no such editor; there is {', '.join(EDITORS)}")
    return EDITORS[name]


def make_editor(name: str, choices: Choices = (), painter: Painter | None = None) -> Editor:
    """The editor called `name`, with settings as chosen; built once per process, without loading weights.

    painter: what paints, in place of a model in this process.
    Raises InputError for an unknown name or setting, and where packages that it needs are not installed.
    """
    return _made(name, choices, painter)


@functools.cache                    # by position: with defaults left out, the same editor would be made twice
def _made(name: str, choices: Choices, painter: Painter | None) -> Editor:
    entry = entry_of(name)
    if entry.settings is None:
        if choices:
            raise InputError(f"--set {choices[0][0]}=...: the {name} editor has no settings")
        return _found(entry.editor)()
    settings = editor_settings(name, choices)
    if painter is None:
        if entry.builder is not None:
            settings = _with_built(entry, settings, {key for key, _ in choices})
        painter = _found(entry.painter)(settings)
    return _found(entry.editor)(name, settings, painter)


def editor_settings(name: str, choices: Choices = ()) -> DiffusionSettings:
    """The settings of an editor of diffusion; InputError says which choice is wrong and what it may be."""
    from editors.settings import with_choices
    entry = entry_of(name)
    twice = sorted({key for n, (key, _) in enumerate(choices) if key in dict(choices[:n])})
    if twice:
        raise InputError(f"--set {twice[0]}=...: given twice; give it once")
    lacking = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if lacking:
        raise InputError(f"--editor {name}: {' and '.join(lacking)} not installed; in the repository:  "
                         "pip install -c constraints.txt -e '.[models]'")
    return with_choices(_found(entry.settings)(**entry.usual), dict(choices))


def choices_from(words: Iterable[str]) -> Choices:
    """What `--set` was given, as pairs."""
    words = tuple(words)
    for word in words:
        if "=" not in word.strip("="):
            raise InputError(f"--set {word}: expected KEY=VALUE, such as steps=20")
    return tuple((key.strip(), value) for key, _, value in (word.partition("=") for word in words))


def modules_of(name: str) -> tuple[str, ...]:
    """What a process imports that edits and leaves the painting to another."""
    entry = entry_of(name)
    return tuple(dict.fromkeys(found.partition(":")[0] for found in (entry.editor, entry.settings) if found))


def licenses_to_mind(editor: Editor) -> list[str]:
    """A line for each set of weights whose license forbids something."""
    from editors.models import known
    lines = []
    for one in (editor.describe()["weights"] or {}).values():
        entry = known(one["id"])
        if entry is not None and entry.license.forbids is not None:
            lines.append(f"{entry.id}: {entry.license.name} license; it forbids {entry.license.forbids}")
    return lines


def _found(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _with_built(entry: EditorEntry, settings: DiffusionSettings, chosen: set[str]) -> DiffusionSettings:
    """The settings with weights made for this process, except where others were chosen."""
    wanted = [name for name in entry.builds if name not in chosen]
    if not wanted:
        return settings
    built = _found(entry.builder)(Path(_folder_of_process().name) / "weights")
    return dataclasses.replace(settings, **{name: str(getattr(built, name)) for name in wanted})


@functools.cache
def _folder_of_process() -> tempfile.TemporaryDirectory:
    """A folder that goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="rekey-")
