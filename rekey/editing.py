"""What an editor is: pixels of a canvas in, pixels of the same canvas out.

An editor never composites, never certifies and never sees the question.  Cropping, pasting
back and measuring are done by `rekey.compositing`, `rekey.certificate` and `rekey.regenerate`
for every editor alike, so no editor can touch a pixel outside the mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rekey.geometry import Box
from rekey.records import Attribute, VisualKey


@dataclass(frozen=True)
class PhotoView:
    """The whole photograph that a canvas was cut from, for statistics that need all of it."""

    pixels: np.ndarray
    """uint8 (height, width, 3): the source photograph.  Read-only."""
    window: Box
    """Where the canvas lies in the photograph, in its pixels."""
    cache: dict[str, Any] = field(default_factory=dict, compare=False)
    """Shared by all edits of one photograph: compute a statistic once, keep it here by name."""


@dataclass(frozen=True)
class EditRequest:
    """One localized edit (ReKey, Sec. 3.3)."""

    canvas: np.ndarray
    """uint8 (height, width, 3): the context crop, at native scale or on one of `Editor.canvases_px`."""
    box: Box
    """The edit box, in canvas pixels."""
    key: VisualKey
    seed: int
    """Differs between keys and attempts; the only source of randomness an editor may use."""
    attempt: int
    """0 for the first try.  After a failed certificate it grows: be plainer about the color."""
    photo: PhotoView
    scale: float = 1.0
    """Canvas pixels per pixel of the photograph."""


class Editor(Protocol):
    """Changes the inside of a box.  Implementations live in the `editors` package."""

    name: str
    canvases_px: tuple[int, ...]
    """Sides of the square canvases the editor works on, ascending; none: the crop at its native size."""
    max_attempts: int
    best_of: int
    """Candidates per attempt, of which the best certified one is kept."""
    attributes: tuple[Attribute, ...]
    """What it can change."""

    def check(self) -> None:
        """Raises InputError where it cannot work on this machine; called before anything is written."""

    def expect(self, keys: Iterable[VisualKey]) -> None:
        """Told once, before any edit, what may be asked for: work that many edits share can be done at once."""

    def can(self, key: VisualKey) -> str | None:
        """None where the editor can draw this key, else the reason in a few words."""

    def edit(self, request: EditRequest) -> np.ndarray:
        """A canvas of the same shape: uint8, or float32 in [0, 255], to be rounded when it is resampled.

        Only the box and a few pixels around it will be used.
        """

    def describe(self) -> dict[str, Any]:
        """Plain JSON for `run.json`: model ids, revisions, settings."""
