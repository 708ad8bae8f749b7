"""FLUX.1-dev and -schnell as painters: the pipelines of diffusers behind `editors.painting.Painter`.

    painter = FluxPainter(FluxSettings(base="models/FLUX.1-dev", controlnet="models/Union-Pro-2.0"))
    painter.check()                             # one clear line if it cannot work; loads nothing
    pictures = painter.paint(paintings)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from diffusers import (
    DiffusionPipeline,
    FluxControlNetInpaintPipeline,
    FluxControlNetModel,
    FluxInpaintPipeline,
    FluxPipeline,
)

from editors.diffusion import CachingPainter, check_length, mask_of, pil, shift_of, sigmas_from
from editors.embeddings import Encoded
from editors.flux import FluxSettings
from editors.models import Located, check_controlnet, check_flux_base, locate, n_bytes_of
from editors.painting import TOKEN_PX, Painting
from rekey.errors import InputError

CANNY_MODE = 0                  # of union nets that are told what their control picture is


class Flux1Painter(CachingPainter):
    """FLUX.1 and its relatives: prompts are read by T5, and in one vector by CLIP."""

    text_components = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    cuts_prompts = False
    """Whether the end of a prompt that is too long may be left out."""

    def encode(self, prompts: Sequence[str]) -> Encoded:
        pipeline = self.text_pipeline(lambda: self.load_without(FluxPipeline, self.components))
        if not self.cuts_prompts:
            check_length(prompts, pipeline.tokenizer_2, self.settings.text_tokens)
        embeds, pooled, _ = pipeline.encode_prompt(
            prompts, None, device=self.device, max_sequence_length=self.settings.text_tokens)
        return {"prompt_embeds": embeds, "pooled_prompt_embeds": pooled}


class FluxPainter(Flux1Painter):
    """FLUX.1-dev or -schnell with a Canny ControlNet, or without one."""

    settings: FluxSettings
    controlled_class: type[DiffusionPipeline] = FluxControlNetInpaintPipeline
    """What runs with a ControlNet."""

    def located(self) -> dict[str, Located]:
        wanted = {"base": (self.settings.base, self.settings.revision)}
        if self.settings.controlnet is not None:
            wanted["controlnet"] = (self.settings.controlnet, self.settings.controlnet_revision)
        found, problems = {}, []
        for name, (weights, revision) in wanted.items():
            try:
                found[name] = locate(weights, revision)
            except InputError as error:                 # both are said, or one is fetched in vain
                problems.extend(error.problems)
        if problems:
            raise InputError(*problems)
        return found

    def check(self) -> None:
        found = self.located()
        if "controlnet" in found:
            check_controlnet(found["base"].folder, found["controlnet"].folder)
        else:
            check_flux_base(found["base"].folder)
        super().check()

    def n_bytes(self, found: dict[str, Located]) -> int:
        base = found["base"].folder
        painting = n_bytes_of(base, self.components)
        if "controlnet" in found:
            painting += n_bytes_of(found["controlnet"].folder, (".",))
        return max(painting, n_bytes_of(base, self.text_components))

    def load(self) -> DiffusionPipeline:
        found = self.located()
        if "controlnet" not in found:
            absent = (*self.text_components, "image_encoder", "feature_extractor")
            return self.load_without(FluxInpaintPipeline, absent).to(self.device)
        net = FluxControlNetModel.from_pretrained(found["controlnet"].folder, dtype=self.dtype, use_safetensors=True,
                                                  local_files_only=True)
        return self.load_without(self.controlled_class, self.text_components, controlnet=net).to(self.device)

    def call(self, pipeline: DiffusionPipeline, batch: Sequence[Painting], text: Encoded,
             generators: list[torch.Generator]) -> np.ndarray:
        side, schedule = batch[0].side, batch[0].schedule
        config = pipeline.scheduler.config
        controlled = {}
        if self.settings.controlnet is not None:
            controlled = {"control_image": [pil(painting.control) for painting in batch],
                          "controlnet_conditioning_scale": schedule.control_scale,
                          "control_guidance_end": schedule.control_end}
            if pipeline.controlnet.config.num_mode:                 # one per picture: a single one is not repeated
                controlled["control_mode"] = [CANNY_MODE] * len(batch)
        return pipeline(
            image=[pil(painting.start) for painting in batch],
            mask_image=[mask_of(side, painting.hole) for painting in batch],
            height=side, width=side,                                # else 1024, whatever the pictures are
            strength=1.0,                                           # the sigmas say where it begins
            sigmas=sigmas_from(schedule.sigma_start, schedule.steps, config,
                               shift_of(config, (side // TOKEN_PX) ** 2)),
            num_inference_steps=schedule.steps, guidance_scale=schedule.guidance, generator=generators,
            output_type="np",
            **controlled, **text).images

    def compile(self, pipeline: DiffusionPipeline) -> None:
        super().compile(pipeline)
        if self.settings.controlnet is not None:
            # Its class lists no repeated blocks, but they are the transformer's: the same graphs serve both.
            for block in pipeline.controlnet.modules():
                if type(block).__name__ in pipeline.transformer._repeated_blocks:
                    block.compile(fullgraph=True, dynamic=self.many_shapes)
