"""The relatives of FLUX.1: Kontext, which follows instructions, Canny-dev and Fill (ReKey, Sec. 3.3, done locally).

    settings = KontextSettings(base="models/FLUX.1-Kontext-dev")
    editor = InstructEditor("flux-kontext", settings, KontextPainter(settings))
    canvas = editor.edit(request)

Kontext is told the paper's instruction.  Canny-dev and Fill are told what the finished picture shows: the one keeps to
edges, as a ControlNet would, the other fills the hole from what is around it and never sees what was there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import (
    DiffusionPipeline,
    FluxControlInpaintPipeline,
    FluxFillPipeline,
    FluxKontextInpaintPipeline,
)

from editors.canny import as_rgb, canny_edges, clear
from editors.diffusion import pil, shift_of, sigmas_from
from editors.embeddings import Encoded
from editors.flux import Flux1Painter
from editors.instruct import InstructEditor, InstructSettings, StartSettings, inpainting, load_without
from editors.painting import TOKEN_PX, Painting, hole_of
from editors.prepaint import drawn_outline, prepainted
from editors.prompts import caption
from rekey.editing import EditRequest
from rekey.records import VisualKey

KONTEXT = "black-forest-labs/FLUX.1-Kontext-dev"
CANNY_DEV = "black-forest-labs/FLUX.1-Canny-dev"
FILL = "black-forest-labs/FLUX.1-Fill-dev"


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


class _Painter(Flux1Painter):
    """A relative of FLUX.1 whose pipeline is called like its inpainting."""

    settings: InstructSettings
    pipeline_class: type[DiffusionPipeline]
    without: tuple[str, ...] = ()
    """Components that FLUX.1's weights do not have and that it is not to look for."""

    def load(self) -> DiffusionPipeline:
        return load_without(self, self.pipeline_class, self.text_components + self.without).to(self.device)

    def call(self, pipeline: DiffusionPipeline, batch: Sequence[Painting], text: Encoded,
             generators: list[torch.Generator]) -> np.ndarray:
        side, schedule = batch[0].side, batch[0].schedule
        config = pipeline.scheduler.config
        shift = shift_of(config, (side // TOKEN_PX) ** 2)
        return pipeline(
            **inpainting(batch), sigmas=sigmas_from(schedule.sigma_start, schedule.steps, config, shift),
            guidance_scale=schedule.guidance, generator=generators, **self.also(batch), **text).images

    def also(self, batch: Sequence[Painting]) -> dict[str, Any]:
        """What this pipeline is given besides."""
        return {}


class KontextPainter(_Painter):
    """FLUX.1-Kontext.  The picture that is denoised is also its reference."""

    settings: KontextSettings
    made_for = ("FluxKontextPipeline", "FluxKontextInpaintPipeline")
    pipeline_class = FluxKontextInpaintPipeline
    without = ("image_encoder", "feature_extractor")

    def also(self, batch: Sequence[Painting]) -> dict[str, Any]:
        # Else it works at one of its own sizes of about a megapixel, and gives that back.  The area only stops a note.
        return {"_auto_resize": False, "max_area": batch[0].side ** 2}


class CannyDevPainter(_Painter):
    """FLUX.1-Canny-dev, a FLUX.1 with the encoded edges as further input channels."""

    settings: CannyDevSettings
    made_for = ("FluxControlPipeline", "FluxControlInpaintPipeline")
    pipeline_class = FluxControlInpaintPipeline

    def also(self, batch: Sequence[Painting]) -> dict[str, Any]:
        return {"control_image": [pil(painting.control) for painting in batch]}


class FillPainter(_Painter):
    """FLUX.1-Fill-dev, a FLUX.1 with the hole and its surroundings as further input channels.

    Nothing is blended back, so the surroundings come out changed: compositing leaves them out.
    """

    settings: FillSettings
    made_for = ("FluxFillPipeline",)
    pipeline_class = FluxFillPipeline
