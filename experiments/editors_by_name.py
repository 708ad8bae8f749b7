"""Editors by the name a user types."""

from __future__ import annotations

import functools
import importlib

from rekey.editing import Editor
from rekey.errors import InputError

EDITORS = {"classical": ("editors.classical", "ClassicalEditor")}


@functools.cache
def make_editor(name: str) -> Editor:
    """The editor called `name`, built once per process."""
    if name not in EDITORS:
        raise InputError(f"--editor {name}: no such editor; there is {', '.join(EDITORS)}")
    module, cls = EDITORS[name]
    return getattr(importlib.import_module(module), cls)()
