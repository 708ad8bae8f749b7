"""Editors that follow the paper's instruction, and relatives of FLUX.1 that need no ControlNet (ReKey, Sec. 3.3).

    settings = KleinSettings(base="models/FLUX.2-klein-4B")
    editor = KleinEditor("flux2-klein", settings, KleinPainter(settings))
    canvas = editor.edit(request)

FLUX.2-klein, Kontext and Qwen-Image-Edit see the crop and are told what to change.  Canny-dev and Fill are told what
the finished picture shows: the one keeps to edges, as a ControlNet would, the other fills the hole from what is around
it and never sees what was there.  Of all of them only a hole in the crop is kept.  The models are in
`editors.instruct_painters`.  With real weights nothing here was run: the defaults are what the publishers state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from editors.canny import as_rgb, canny_edges, clear
from editors.flux import START
from editors.painting import TOKEN_PX, Painting, PaintingEditor, hole_of, in_cells
from editors.prepaint import drawn_outline, prepainted
from editors.prompts import caption, instruction
from editors.settings import STRONGEST_GUIDANCE, DiffusionSettings, Schedule, at_least_one, in_range
from rekey.editing import EditRequest
from rekey.errors import InputError
from rekey.records import VisualKey

KLEIN = "black-forest-labs/FLUX.2-klein-4B"
KONTEXT = "black-forest-labs/FLUX.1-Kontext-dev"
CANNY_DEV = "black-forest-labs/FLUX.1-Canny-dev"
FILL = "black-forest-labs/FLUX.1-Fill-dev"
QWEN_EDIT = "Qwen/Qwen-Image-Edit"
PREPAINT_SIGMA = START["prepaint"].sigma_start
QWEN_CANVAS_PX = 1024           # whatever the pictures are, the pipeline brings them to this


@dataclass(frozen=True)
class InstructSettings(DiffusionSettings):
    """What the editors here share."""

    sigma_start: float | None = None
    """Share of noise at the first step.  none: all of it, or 0.72 where an edit begins prepainted."""
    steps: int = 28
    """Transformer calls."""
    guidance: float = 3.5
    """How closely the prompt is followed, on the scale of the model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, 1, "sigma_start")
        at_least_one(self, "steps")
        in_range(self, STRONGEST_GUIDANCE, "guidance")

    def schedule(self, is_prepainted: bool) -> Schedule:
        """How an edit that begins so is denoised."""
        usual = PREPAINT_SIGMA if is_prepainted else 1.0
        return Schedule(usual if self.sigma_start is None else self.sigma_start, self.steps, self.guidance)

    def schedules(self) -> dict[str, Schedule]:
        return {"source": self.schedule(False)}


@dataclass(frozen=True)
class StartSettings(InstructSettings):
    """For editors that can also begin with the classical edit."""

    start: Literal["source", "prepaint"] = "source"
    """What is denoised: the source, or the classical edit.  An edit that cannot be prepainted begins at the source."""

    def schedules(self) -> dict[str, Schedule]:
        return super().schedules() | ({"prepaint": self.schedule(True)} if self.start == "prepaint" else {})


class InstructEditor(PaintingEditor):
    """Told the paper's instruction; denoises the source."""

    settings: InstructSettings

    def prompt(self, key: VisualKey) -> str:
        return instruction(key)

    def prepare(self, request: EditRequest) -> Painting:
        return Painting(request.canvas, hole_of(request), self.prompt(request.key), request.seed,
                        self.settings.schedule(False))


@dataclass(frozen=True)
class KleinSettings(StartSettings):
    """Settings of `flux2-klein`.  The models before distillation (klein-base) want steps=50, guidance=4."""

    base: str = KLEIN
    text_tokens: int = 512
    """Length that prompts are padded to; the padding is seen by the model, which was trained with this much."""
    steps: int = 4
    guidance: float = 1.0
    """How closely the prompt is followed; the distilled models, which klein-4B is, are not guided."""


class KleinEditor(InstructEditor):
    """`flux2-klein`.  The picture that is denoised is always its reference; prepainted, it is shown the source too."""

    settings: KleinSettings

    def prepare(self, request: EditRequest) -> Painting:
        side = request.canvas.shape[0]
        # Its mask has one value a token: half a token in the hole would be half repainted.
        hole = in_cells(hole_of(request), TOKEN_PX).clipped(side, side)
        tries = self.settings.start == "prepaint"
        picture = prepainted(request) if tries else None
        return Painting(request.canvas if picture is None else picture, hole, self.prompt(request.key), request.seed,
                        self.settings.schedule(picture is not None), reference=request.canvas if tries else None)


@dataclass(frozen=True)
class QwenEditSettings(InstructSettings):
    """Settings of `qwen-edit`."""

    base: str = QWEN_EDIT
    canvases_px: tuple[int, ...] = (QWEN_CANVAS_PX,)
    batch_size: int = 2
    text_tokens: int = 128
    """Longest instruction; prompts are padded to it, and the padding is hidden from the model."""
    steps: int = 50
    guidance: float = 4.0
    """How much closer to the prompt than without one; above 1 every step is done twice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.canvases_px != (QWEN_CANVAS_PX,):
            raise InputError(f"canvases_px={','.join(map(str, self.canvases_px))}: Qwen-Image-Edit's pipeline works at "
                             f"{QWEN_CANVAS_PX} only, and gives everything back at that size; leave it at "
                             f"{QWEN_CANVAS_PX}")
        if self.steps < 2:
            raise InputError(f"steps={self.steps}: Qwen-Image's schedule has an end of its own; expected 2 or more")


@dataclass(frozen=True)
class KontextSettings(InstructSettings):
    """Settings of `flux-kontext`.  It was trained at about 1024 x 1024: canvases_px=1024 may well be better."""

    base: str = KONTEXT
    guidance: float = 2.5


@dataclass(frozen=True)
class CannyDevSettings(StartSettings):
    """Settings of `flux-canny-dev`."""

    base: str = CANNY_DEV
    steps: int = 50
    guidance: float = 30.0


@dataclass(frozen=True)
class FillSettings(InstructSettings):
    """Settings of `flux-fill`."""

    base: str = FILL
    steps: int = 50
    guidance: float = 30.0


class FillEditor(InstructEditor):
    """`flux-fill`: told what the finished picture shows."""

    def prompt(self, key: VisualKey) -> str:
        return caption(key)


class CannyDevEditor(FillEditor):
    """`flux-canny-dev`: told what the finished picture shows, and where its edges are."""

    settings: CannyDevSettings

    def prepare(self, request: EditRequest) -> Painting:
        hole = hole_of(request)
        picture = prepainted(request) if self.settings.start == "prepaint" else None
        edges = canny_edges(request.canvas if picture is None else picture, request.scale)
        if picture is None and request.key.mode == "add":
            clear(edges, hole.grown(TOKEN_PX))
            # Edges cannot be given less weight here: where none are drawn, nothing will stand.
            if (rim := drawn_outline(request)) is not None:
                edges = np.maximum(edges, rim)
        return Painting(request.canvas if picture is None else picture, hole, self.prompt(request.key), request.seed,
                        self.settings.schedule(picture is not None), as_rgb(edges))
