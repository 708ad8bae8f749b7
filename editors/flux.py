"""FLUX.1 with a Canny ControlNet, inpainting a slot: local diffusion in place of a paid image editor (ReKey, Sec. 3.3).

    settings = FluxSettings(base="models/FLUX.1-dev", controlnet="models/Union-Pro-2.0")
    editor = FluxEditor("flux-canny", settings, FluxPainter(settings))
    canvas = editor.edit(request)

Two ways to begin.  `prepaint`: the classical edit is the start picture, its edges the control, and the model makes it
look real from a moderate noise level; the color comes from pixels.  `source`: the model repaints the slot from noise
by caption and edges alone.  What the pipeline of diffusers does not do (compositing, one generator per edit, a hole
of whole cells, ...) is done here and in `editors.diffusion`.  The models themselves are in `editors.flux_painter`: an
editor needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from editors.canny import as_rgb, canny_edges, clear
from editors.painting import TOKEN_PX, Painting, PaintingEditor, hole_of
from editors.prepaint import drawn_outline, prepainted
from editors.prompts import caption
from editors.settings import STRONGEST_GUIDANCE, DiffusionSettings, Schedule, at_least_one, in_range
from rekey.editing import EditRequest
from rekey.records import VisualKey

FLUX_DEV = "black-forest-labs/FLUX.1-dev"
UNION_PRO_2 = "Shakker-Labs/FLUX.1-dev-ControlNet-Union-Pro-2.0"


@dataclass(frozen=True)
class FluxSettings(DiffusionSettings):
    """Settings of `flux-canny`.  Where None is given, START says what is usual for how an edit begins."""

    base: str = FLUX_DEV
    controlnet: str | None = UNION_PRO_2
    """Hub id or folder of a FluxControlNetModel; none: inpainting without one."""
    controlnet_revision: str | None = None
    """Commit of `controlnet`."""
    start: Literal["prepaint", "source"] = "prepaint"
    """What is denoised: the classical edit, or the source.  An edit that cannot be prepainted begins at the source."""
    outline: Literal["none", "drawn"] = "none"
    """Edges of an object that is added from the source: none, or the rim of the classical editor's drawing."""
    sigma_start: float | None = None
    """Share of noise at the first step.  none: 0.72 for a prepainted start, 1 for the source."""
    steps: int | None = None
    """Transformer calls.  none: 16 for a prepainted start, 28 for the source."""
    guidance: float = 3.5
    """How closely the caption is followed; the model was distilled to take it as an input."""
    control_scale: float | None = None
    """Weight of the edges.  none: 0.6 prepainted, 0.65 to replace; to add 0.4, or 0.6 with a drawn outline."""
    control_end: float | None = None
    """Share of the steps after which the edges have no say.  none: 0.8; to add from the source 0.5, outlined 0.6."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, 1, "sigma_start", "control_end")
        in_range(self, 2, "control_scale")
        in_range(self, STRONGEST_GUIDANCE, "guidance")
        if self.steps is not None:
            at_least_one(self, "steps")

    def schedule(self, start: str) -> Schedule:
        """How an edit that begins so is denoised.  start: a key of START."""
        usual = START[start]
        control_scale = 0.0 if self.controlnet is None else _or(self.control_scale, usual.control_scale)
        return Schedule(_or(self.sigma_start, usual.sigma_start), _or(self.steps, usual.steps), self.guidance,
                        control_scale, _or(self.control_end, usual.control_end))

    def schedules(self) -> dict[str, Schedule]:
        return {start: self.schedule(start) for start in START if self.start == "prepaint" or start != "prepaint"}

    def describe(self) -> dict[str, Any]:
        said = super().describe()
        for name in ("controlnet", "controlnet_revision"):              # the painter says these
            said.pop(name)
        return said


# Chosen from what the nets' publishers and users report, not tuned on pictures: with real weights nothing was run.
START = {
    "prepaint": Schedule(0.72, 16, 3.5, 0.6, 0.8),
    "replace": Schedule(1.0, 28, 3.5, 0.65, 0.8),
    "add": Schedule(1.0, 28, 3.5, 0.4, 0.5),            # nothing but a cleared map to hold on to
    "add outlined": Schedule(1.0, 28, 3.5, 0.6, 0.6),
}


def _or(chosen: Any, usual: Any) -> Any:
    return usual if chosen is None else chosen


class FluxEditor(PaintingEditor):
    """`flux-canny` and its relatives."""

    settings: FluxSettings

    def prompt(self, key: VisualKey) -> str:
        return caption(key)

    def prepare(self, request: EditRequest) -> Painting:
        hole = hole_of(request)
        picture = prepainted(request) if self.settings.start == "prepaint" else None
        start = "prepaint" if picture is not None else request.key.mode
        edges = canny_edges(request.canvas if picture is None else picture, request.scale)
        if start == "add":
            # A token more than the hole, or what is left of the old texture is drawn again.
            clear(edges, hole.grown(TOKEN_PX))
            if self.settings.outline == "drawn" and (rim := drawn_outline(request)) is not None:
                edges, start = np.maximum(edges, rim), "add outlined"
        control = None if self.settings.controlnet is None else as_rgb(edges)
        return Painting(request.canvas if picture is None else picture, hole, self.prompt(request.key), request.seed,
                        self.settings.schedule(start), control)
