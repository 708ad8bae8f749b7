"""A whole photograph drawn anew from a caption and its own edges (multi-modal semantic perturbation).

    painter = WholeImagePainter(WholeImageSettings(base="models/FLUX.1-dev", controlnet="models/flux-canny"))
    painter.expect(captions)                                    # encodes all, then lets go of the text encoders
    (picture,) = painter.draw([Drawing(photo, caption, seed)])

The released script runs XLabs' x-flux: 25 steps from noise, guidance 4, Canny edges at 0.8, and from the sixth step on
true classifier-free guidance of 3.5 against an empty prompt.  diffusers has no such start, so the steps before it are
a call of their own, which also saves their second pass through the transformer.  One thing is not as in x-flux: the
negative pass gets the ControlNet's output for the caption, and not one for the empty prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from diffusers import DiffusionPipeline, FluxControlNetPipeline
from PIL import Image

from editors.canny import as_rgb, canny_edges
from editors.diffusion import pil, shift_of
from editors.drift import as_bytes
from editors.embeddings import Encoded
from editors.flux import FLUX_DEV
from editors.flux_painter import CANNY_MODE, FluxPainter
from editors.painting import TOKEN_PX, Painting
from editors.settings import STRONGEST_GUIDANCE, ModelSettings, Schedule, at_least_one, in_range
from rekey.errors import InputError
from rekey.geometry import Box

XLABS_CANNY = "XLabs-AI/flux-controlnet-canny-diffusers"
# As in the released script of the paper.
STEPS, GUIDANCE, CONTROL_SCALE = 25, 4.0, 0.8
TRUE_CFG, TRUE_CFG_FROM, NEGATIVE = 3.5, 5, ""
SHIFT_TOKENS, SHIFTS = (256, 4096), (0.5, 1.15)     # x-flux: logarithms of its shift at so many tokens
MAX_PIXELS = 2 * 1024 ** 2                          # FLUX.1 was made for 0.1 to 2 megapixels


@dataclass(frozen=True)
class WholeImageSettings(ModelSettings):
    """Settings of a `WholeImagePainter`; by default the released script's."""

    base: str = FLUX_DEV
    controlnet: str = XLABS_CANNY
    """Hub id or folder of a FluxControlNetModel."""
    controlnet_revision: str | None = None
    text_tokens: int = 512
    """Dense captions are long; of a longer one the end is cut off."""
    steps: int = STEPS
    guidance: float = GUIDANCE
    control_scale: float = CONTROL_SCALE
    true_cfg: float = TRUE_CFG
    """Strength of the guidance against an empty prompt; 1: none."""
    true_cfg_from: int = TRUE_CFG_FROM
    """Steps before it sets in."""
    shift: Literal["published", "model"] = "published"
    """Noise levels of the steps.  published: x-flux's, which takes a picture for 1/64 of its size, so that less of
    the time is spent in strong noise; model: as FLUX.1 was made for."""
    max_pixels: int = MAX_PIXELS
    """Larger pictures are drawn smaller, in the same shape."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "steps")
        in_range(self, 2, "control_scale")
        in_range(self, STRONGEST_GUIDANCE, "guidance")
        if not 1 <= self.true_cfg <= STRONGEST_GUIDANCE:
            raise InputError(f"true_cfg={self.true_cfg}: expected a number of 1 (none) or more")
        if self.true_cfg_from < 0:
            raise InputError(f"true_cfg_from={self.true_cfg_from}: expected the number of steps before it, 0 or more")
        if self.max_pixels < TOKEN_PX ** 2:
            raise InputError(f"max_pixels={self.max_pixels}: expected {TOKEN_PX ** 2} or more")

    @property
    def n_plain_steps(self) -> int:
        """Steps without true guidance, which are the first ones."""
        return self.steps if self.true_cfg == 1 else min(self.true_cfg_from, self.steps)

    def drawn_size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) at which a picture is drawn: whole tokens, rounded down as in the released script."""
        factor = min(1.0, math.sqrt(self.max_pixels / (height * width)))
        height, width = (max(1, int(side * factor) // TOKEN_PX) * TOKEN_PX for side in (height, width))
        return height, width


@dataclass(frozen=True)
class Drawing:
    """One picture to be drawn."""

    picture: np.ndarray
    """uint8 (height, width, 3): the original, whose edges are kept."""
    caption: str
    seed: int


class WholeImagePainter(FluxPainter):
    """FLUX.1 with a Canny ControlNet, drawing whole pictures; any net that `flux-canny` takes."""

    settings: WholeImageSettings
    controlled_class = FluxControlNetPipeline
    many_shapes = True
    cuts_prompts = True

    def draw(self, drawings: Sequence[Drawing]) -> list[np.ndarray]:
        """uint8 (height, width, 3) for each, in order, of `settings.drawn_size`.

        A picture depends on its own drawing alone.  Those of one size share batches.
        """
        self.expect(drawing.caption for drawing in drawings)
        return [as_bytes(picture) for picture in self.paint([self.prepare(drawing) for drawing in drawings])]

    def prepare(self, drawing: Drawing) -> Painting:
        """A drawing as the model gets it; needs no model."""
        shape, kind = drawing.picture.shape, drawing.picture.dtype
        if kind != np.uint8 or len(shape) != 3 or shape[2] != 3:
            raise InputError(f"a picture of {kind} {shape}: expected uint8 (height, width, 3)")
        height, width = self.settings.drawn_size(*shape[:2])
        picture = np.asarray(pil(drawing.picture).resize((width, height), Image.Resampling.LANCZOS))
        schedule = Schedule(1.0, self.settings.steps, self.settings.guidance, self.settings.control_scale)
        return Painting(picture, Box(0, 0, width, height), drawing.caption, drawing.seed, schedule,
                        as_rgb(canny_edges(picture)))

    def expect(self, prompts: Iterable[str]) -> None:
        super().expect([*prompts, NEGATIVE])

    def describe(self) -> dict[str, Any]:
        said = self.settings.describe()
        for name in ("controlnet", "controlnet_revision"):              # said with what is loaded
            said.pop(name)
        return {**said, **super().describe()}

    def call(self, pipeline: DiffusionPipeline, batch: Sequence[Painting], text: Encoded,
             generators: list[torch.Generator]) -> np.ndarray:
        height, width = batch[0].start.shape[:2]
        schedule, n_plain = batch[0].schedule, self.settings.n_plain_steps
        sigmas = sigmas_for(self.settings, pipeline.scheduler.config, height * width // TOKEN_PX ** 2)
        given = {"control_image": [pil(painting.control) for painting in batch], "height": height, "width": width,
                 "controlnet_conditioning_scale": schedule.control_scale, "guidance_scale": schedule.guidance, **text,
                 # One for all pictures here, unlike in the inpainting pipeline.
                 "control_mode": CANNY_MODE if pipeline.controlnet.config.num_mode else None}
        if n_plain == len(sigmas):
            return pipeline(sigmas=sigmas, generator=generators, output_type="np", **given).images
        latents = None
        if n_plain > 0:
            latents = pipeline(sigmas=sigmas, generator=generators, output_type="latent",
                               callback_on_step_end=_stop_after(n_plain), **given).images
            # Encoding the edges draws from the generator, and before all else: with the same seed, the same edges.
            generators = [torch.Generator(one.device).manual_seed(one.initial_seed()) for one in generators]
        negative = {f"negative_{name}": rows.to(self.device) for name, rows in
                    self.embeddings.of([NEGATIVE] * len(batch)).items()}
        return pipeline(sigmas=sigmas[n_plain:], generator=generators, latents=latents, output_type="np",
                        true_cfg_scale=self.settings.true_cfg, **negative, **given).images


def _stop_after(n_steps: int):
    """A callback that ends a call of a pipeline after so many steps; what it returns is noisy still."""
    def callback(pipeline: DiffusionPipeline, step: int, _: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        pipeline._interrupt = step + 1 >= n_steps                       # the documented way
        return tensors
    return callback


def sigmas_for(settings: WholeImageSettings, scheduler_config: Any, n_tokens: int) -> list[float]:
    """Sigmas to hand to a FlowMatch scheduler, which then shifts them by its own rule."""
    even = [(settings.steps - n) / settings.steps for n in range(settings.steps)]
    if settings.shift == "model":
        return even
    # Shifts multiply: this one leads from the model's to the published.
    shift = published_shift(n_tokens) / shift_of(scheduler_config, n_tokens)
    return [shift * sigma / (1 + (shift - 1) * sigma) for sigma in even]


def published_shift(n_tokens: int) -> float:
    """x-flux's.  It hands (width / 8) (height / 8) / 256 to its rule, where FLUX.1 has the number of tokens."""
    slope = (SHIFTS[1] - SHIFTS[0]) / (SHIFT_TOKENS[1] - SHIFT_TOKENS[0])
    return math.exp(SHIFTS[0] + slope * (n_tokens // 64 - SHIFT_TOKENS[0]))
