"""The models behind `editors.instruct`: FLUX.2-klein, Qwen-Image-Edit, and the relatives of FLUX.1.

    painter = KleinPainter(KleinSettings(base="models/FLUX.2-klein-4B"))
    pictures = painter.paint(paintings)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from diffusers import (
    DiffusionPipeline,
    Flux2KleinInpaintPipeline,
    Flux2KleinPipeline,
    FluxControlInpaintPipeline,
    FluxFillPipeline,
    FluxKontextInpaintPipeline,
    QwenImageEditInpaintPipeline,
)
from diffusers.pipelines.flux2.pipeline_flux2_klein_inpaint import compute_empirical_mu

from editors.diffusion import (
    CachingPainter,
    DiffusionPainter,
    check_length,
    mask_of,
    pil,
    shift_of,
    sigmas_from,
    too_long,
)
from editors.embeddings import Encoded
from editors.flux_painter import Flux1Painter
from editors.instruct import (
    CannyDevSettings,
    FillSettings,
    InstructSettings,
    KleinSettings,
    KontextSettings,
    QwenEditSettings,
)
from editors.models import Located, n_bytes_of
from editors.painting import TOKEN_PX, Painting

NO_PROMPT = " "                 # the negative prompt of Qwen-Image's examples


def inpainting(batch: Sequence[Painting]) -> dict[str, Any]:
    """What every pipeline for inpainting is given in the same way: pictures, masks, size, number of steps.

    Lists even for one picture, since FLUX.2's pipeline shrinks a single one of more than a megapixel.
    """
    side, schedule = batch[0].side, batch[0].schedule
    return {"image": [pil(painting.start) for painting in batch],
            "mask_image": [mask_of(side, painting.hole) for painting in batch],
            "height": side, "width": side,              # else some make it 1024, whatever the pictures are
            "strength": 1.0,                            # the sigmas say where it begins
            "output_type": "np",
            "num_inference_steps": schedule.steps}      # klein's shift depends on it, not on the number of sigmas


class KleinPainter(CachingPainter):
    """FLUX.2-klein, distilled or not."""

    settings: KleinSettings
    made_for = ("Flux2KleinPipeline", "Flux2KleinInpaintPipeline")
    text_components = ("text_encoder", "tokenizer")

    def load(self) -> DiffusionPipeline:
        return self.load_without(Flux2KleinInpaintPipeline, self.text_components).to(self.device)

    def expect(self, prompts: Iterable[str]) -> None:
        super().expect([*prompts, ""])          # what guidance leads away from, in models that are not distilled

    def encode(self, prompts: Sequence[str]) -> Encoded:
        pipeline = self.text_pipeline(lambda: self.load_without(Flux2KleinPipeline, self.components))
        check_length(prompts, lambda prompt: pipeline.tokenizer(pipeline.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True,
            enable_thinking=False)), self.settings.text_tokens)
        embeds, _ = pipeline.encode_prompt(list(prompts), device=self.device,
                                           max_sequence_length=self.settings.text_tokens)
        return {"prompt_embeds": embeds}

    def call(self, pipeline: DiffusionPipeline, batch: Sequence[Painting], text: Encoded,
             generators: list[torch.Generator]) -> np.ndarray:
        side, schedule = batch[0].side, batch[0].schedule
        if not pipeline.config.is_distilled and schedule.guidance > 1:
            # Without text encoders the pipeline cannot encode it.
            rows = self.embeddings.of([""] * len(batch))["prompt_embeds"]
            text = text | {"negative_prompt_embeds": rows.to(self.device)}
        if batch[0].reference is not None:
            text = text | {"image_reference": [pil(painting.reference) for painting in batch]}
        config = pipeline.scheduler.config
        shift = math.exp(compute_empirical_mu((side // TOKEN_PX) ** 2, schedule.steps))
        return pipeline(
            **inpainting(batch), sigmas=sigmas_from(schedule.sigma_start, schedule.steps, config, shift),
            guidance_scale=1.0 if pipeline.config.is_distilled else schedule.guidance, generator=generators,
            **text).images


class QwenEditPainter(DiffusionPainter):
    """Qwen-Image-Edit.  It reads a prompt together with the picture, so nothing can be encoded beforehand."""

    settings: QwenEditSettings
    made_for = ("QwenImageEditPipeline", "QwenImageEditInpaintPipeline")
    text_components = ("text_encoder", "tokenizer", "processor")

    def n_bytes(self, found: dict[str, Located]) -> int:
        return n_bytes_of(found["base"].folder, self.components + self.text_components)

    def load(self) -> DiffusionPipeline:
        return self.load_without(QwenImageEditInpaintPipeline, ()).to(self.device)

    def expect(self, prompts: Iterable[str]) -> None:
        """Nothing to prepare."""

    def text_of(self, batch: Sequence[Painting]) -> Encoded:
        """One at a time and then padded to one length, or a prompt would be rounded as the longest beside it asks."""
        rows = [self._read(painting) for painting in batch]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    def _read(self, painting: Painting) -> Encoded:
        def encoded(prompt: str) -> torch.Tensor:               # (1, tokens, channels)
            return self.pipeline.encode_prompt([prompt], image=[pil(painting.start)], device=self.device)[0]
        negative, positive = encoded(NO_PROMPT), encoded(painting.prompt)
        missing = negative.shape[1] + self.settings.text_tokens - positive.shape[1]
        if missing < 0:
            raise too_long(self.settings.text_tokens, -missing, painting.prompt)
        mask = torch.ones(positive.shape[:2], dtype=torch.long, device=self.device)
        return {"prompt_embeds": torch.nn.functional.pad(positive, (0, 0, 0, missing)),
                "prompt_embeds_mask": torch.nn.functional.pad(mask, (0, missing)),
                "negative_prompt_embeds": negative,
                "negative_prompt_embeds_mask": torch.ones(negative.shape[:2], dtype=torch.long, device=self.device)}

    def call(self, pipeline: DiffusionPipeline, batch: Sequence[Painting], text: Encoded,
             generators: list[torch.Generator]) -> np.ndarray:
        side, schedule = batch[0].side, batch[0].schedule
        config = pipeline.scheduler.config
        return pipeline(
            **inpainting(batch),
            sigmas=sigmas_from(schedule.sigma_start, schedule.steps, config, shift_of(config, (side // TOKEN_PX) ** 2)),
            true_cfg_scale=schedule.guidance,           # without a negative prompt it would be left out, unsaid
            generator=generators, **text).images


class _Flux1Relative(Flux1Painter):
    """A relative of FLUX.1 whose pipeline is called like its inpainting."""

    settings: InstructSettings
    pipeline_class: type[DiffusionPipeline]
    without: tuple[str, ...] = ()
    """Components that FLUX.1's weights do not have and that it is not to look for."""

    def load(self) -> DiffusionPipeline:
        return self.load_without(self.pipeline_class, self.text_components + self.without).to(self.device)

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


class KontextPainter(_Flux1Relative):
    """FLUX.1-Kontext.  The picture that is denoised is also its reference."""

    settings: KontextSettings
    made_for = ("FluxKontextPipeline", "FluxKontextInpaintPipeline")
    pipeline_class = FluxKontextInpaintPipeline
    without = ("image_encoder", "feature_extractor")

    def also(self, batch: Sequence[Painting]) -> dict[str, Any]:
        # Else it works at one of its own sizes of about a megapixel, and gives that back.  The area only stops a note.
        return {"_auto_resize": False, "max_area": batch[0].side ** 2}


class CannyDevPainter(_Flux1Relative):
    """FLUX.1-Canny-dev, a FLUX.1 with the encoded edges as further input channels."""

    settings: CannyDevSettings
    made_for = ("FluxControlPipeline", "FluxControlInpaintPipeline")
    pipeline_class = FluxControlInpaintPipeline

    def also(self, batch: Sequence[Painting]) -> dict[str, Any]:
        return {"control_image": [pil(painting.control) for painting in batch]}


class FillPainter(_Flux1Relative):
    """FLUX.1-Fill-dev, a FLUX.1 with the hole and its surroundings as further input channels.

    Nothing is blended back, so the surroundings come out changed: compositing leaves them out.
    """

    settings: FillSettings
    made_for = ("FluxFillPipeline",)
    pipeline_class = FluxFillPipeline
