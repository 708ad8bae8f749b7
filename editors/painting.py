"""An edit as a diffusion model gets it, and the editors that let one paint (ReKey, Sec. 3.3).

    painting = editor.prepare(request)              # pictures, text and a seed: no model needed
    (picture,) = painter.paint([painting])          # the model; batches
    canvas = editor.finish(request, painting, picture)

What happens before and after the model is plain image work, so it can be done by other processes than the one that
holds the weights: an editor is given its painter, and does not care where that is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from editors.drift import without_drift
from editors.settings import DiffusionSettings, Schedule
from rekey.compositing import mask_margin_px
from rekey.editing import EditRequest
from rekey.geometry import Box
from rekey.records import VisualKey

CELL_PX = 8             # a latent cell; masks are sampled there, so a smaller hole can vanish
TOKEN_PX = 16           # two cells: what the transformer sees as one


@dataclass(frozen=True)
class Painting:
    """Everything that one picture depends on, besides the model."""

    start: np.ndarray
    """uint8 (height, width, 3): what is denoised, and kept outside the hole.  Edits are square."""
    hole: Box
    """What is to be repainted, in canvas pixels, on the borders of latent cells."""
    prompt: str
    seed: int
    schedule: Schedule
    control: np.ndarray | None = None
    """uint8, of the same shape: edges for a ControlNet."""
    reference: np.ndarray | None = None
    """uint8, of the same shape: the untouched canvas, for models that edit by reference."""

    @property
    def side(self) -> int:
        """Of the square canvas of an edit, in pixels."""
        return len(self.start)

    @property
    def group(self) -> tuple[tuple[int, ...], Schedule]:
        """Paintings of one group can share a batch."""
        return self.start.shape, self.schedule


class Painter(Protocol):
    """A model that paints.  Implementations: `editors.diffusion`, and `experiments.painting` across processes."""

    def check(self) -> None:
        """Raises InputError where it cannot work on this machine; loads no weights."""

    def expect(self, prompts: Iterable[str]) -> None:
        """Told once, before any painting, which prompts may come."""

    def paint(self, paintings: Sequence[Painting]) -> list[np.ndarray]:
        """float32 in [0, 1], of each start's shape, in order.  A picture does not depend on the others."""

    def describe(self) -> dict[str, Any]:
        """Plain JSON: weights and revisions, licenses, precision."""


class PaintingEditor(ABC):
    """Implements `rekey.editing.Editor` with a painter."""

    attributes = ("color", "pattern")       # no certificate measures a material

    def __init__(self, name: str, settings: DiffusionSettings, painter: Painter):
        self.name, self.settings, self.painter = name, settings, painter
        self.canvases_px = settings.canvases_px
        self.max_attempts, self.best_of = settings.max_attempts, settings.best_of

    @abstractmethod
    def prompt(self, key: VisualKey) -> str:
        """What the model is told of a key."""

    @abstractmethod
    def prepare(self, request: EditRequest) -> Painting:
        """The request as the model gets it."""

    def can(self, key: VisualKey) -> str | None:
        if key.material is not None:
            return "no certificate measures a material, so none is painted"
        if key.color is None and key.pattern is None:
            return "the key names neither a color nor a pattern"
        return None

    def check(self) -> None:
        self.painter.check()

    def expect(self, keys: Iterable[VisualKey]) -> None:
        self.painter.expect(sorted({self.prompt(key) for key in keys if self.can(key) is None}))

    def edit(self, request: EditRequest) -> np.ndarray:
        painting = self.prepare(request)
        (picture,) = self.painter.paint([painting])
        return self.finish(request, painting, picture)

    def finish(self, request: EditRequest, painting: Painting, picture: np.ndarray) -> np.ndarray:
        """What the model painted, with the drift of its colors taken out; float32 (side, side, 3) in [0, 255]."""
        return 255 * without_drift(request.canvas, picture, painting.hole)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, **self.settings.describe(), **self.painter.describe()}


def hole_of(request: EditRequest) -> Box:
    """The edit box and the compositing mask around it, grown to whole latent cells and by one cell at least."""
    side = request.canvas.shape[0]
    margin_px = max(CELL_PX, math.ceil(mask_margin_px(request.key.slot.edit) * request.scale))
    return in_cells(request.box.grown(margin_px), CELL_PX).clipped(side, side)


def in_cells(box: Box, cell_px: int) -> Box:
    """The smallest box of whole cells that holds this one."""
    return Box(box.left // cell_px * cell_px, box.top // cell_px * cell_px,
               -(-box.right // cell_px) * cell_px, -(-box.bottom // cell_px) * cell_px)
