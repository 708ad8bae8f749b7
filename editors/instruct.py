"""Editors that follow the paper's instruction: FLUX.2-klein and Qwen-Image-Edit (ReKey, Sec. 3.3, done locally).

    settings = KleinSettings(base="models/FLUX.2-klein-4B")
    editor = KleinEditor("flux2-klein", settings, KleinPainter(settings))
    canvas = editor.edit(request)

They see the crop and are told what to change, and only a hole in the crop is repainted.  The relatives of FLUX.1 are in
`editors.instruct_flux`.  With real weights nothing here was run: the defaults are what the models' publishers state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from diffusers import (
    DiffusionPipeline,
    Flux2KleinInpaintPipeline,
    Flux2KleinPipeline,
    QwenImageEditInpaintPipeline,
)
from diffusers.pipelines.flux2.pipeline_flux2_klein_inpaint import compute_empirical_mu

from editors.diffusion import DiffusionPainter, mask_of, pil, shift_of, sigmas_from
from editors.embeddings import Encoded
from editors.flux import START
from editors.models import Located, n_bytes_of
from editors.painting import TOKEN_PX, Painting, PaintingEditor, hole_of, in_cells
from editors.prepaint import prepainted
from editors.prompts import instruction
from editors.settings import DiffusionSettings, Schedule, at_least_one, in_range
from rekey.editing import EditRequest
from rekey.errors import InputError
from rekey.records import VisualKey

KLEIN = "black-forest-labs/FLUX.2-klein-4B"
QWEN_EDIT = "Qwen/Qwen-Image-Edit"
PREPAINT_SIGMA = START["prepaint"].sigma_start
QWEN_CANVAS_PX = 1024           # whatever the pictures are, the pipeline brings them to this
NO_PROMPT = " "                 # the negative prompt of Qwen-Image's examples


@dataclass(frozen=True)
class InstructSettings(DiffusionSettings):
    """What the editors here and in `editors.instruct_flux` share."""

    sigma_start: float | None = None
    """Share of noise at the first step.  None: all of it, and as in `flux-canny` where an edit begins prepainted."""
    steps: int = 28
    """Transformer calls."""
    guidance: float = 3.5
    """How closely the prompt is followed, on the scale of the model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, 1, "sigma_start")
        at_least_one(self, "steps")

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


def load_without(painter: DiffusionPainter, pipeline_class: type[DiffusionPipeline],
                 parts: Iterable[str]) -> DiffusionPipeline:
    """A pipeline from the painter's base, some of its parts left out, on the CPU."""
    folder = painter.located()["base"].folder
    return pipeline_class.from_pretrained(folder, dtype=painter.dtype, use_safetensors=True, local_files_only=True,
                                          **dict.fromkeys(parts))


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


def _too_long(text_tokens: int, missing: int, prompt: str) -> str:
    return f"text_tokens={text_tokens}: {missing} more are needed for the prompt {prompt!r}"


# ------------------------------------------------------------------------------------------ FLUX.2-klein


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


class KleinPainter(DiffusionPainter):
    """FLUX.2-klein, distilled or not."""

    settings: KleinSettings
    made_for = ("Flux2KleinPipeline", "Flux2KleinInpaintPipeline")
    text_components = ("text_encoder", "tokenizer")

    def load(self) -> DiffusionPipeline:
        return load_without(self, Flux2KleinInpaintPipeline, self.text_components).to(self.device)

    def expect(self, prompts: Iterable[str]) -> None:
        super().expect([*prompts, ""])          # what guidance leads away from, in models that are not distilled

    def encode(self, prompts: Sequence[str]) -> Encoded:
        pipeline = self.text_pipeline(lambda: load_without(self, Flux2KleinPipeline, self.components))
        for prompt in prompts:
            self._check_length(prompt, pipeline.tokenizer)
        embeds, _ = pipeline.encode_prompt(list(prompts), device=self.device,
                                           max_sequence_length=self.settings.text_tokens)
        return {"prompt_embeds": embeds}

    def _check_length(self, prompt: str, tokenizer: Any) -> None:
        """InputError where the pipeline would cut the prompt, which it does without a word."""
        said = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False,
                                             add_generation_prompt=True, enable_thinking=False)
        missing = len(tokenizer(said)["input_ids"]) - self.settings.text_tokens
        if missing > 0:
            raise InputError(_too_long(self.settings.text_tokens, missing, prompt))

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


# --------------------------------------------------------------------------------------- Qwen-Image-Edit


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


class QwenEditPainter(DiffusionPainter):
    """Qwen-Image-Edit.  It reads a prompt together with the picture, so nothing can be encoded beforehand."""

    settings: QwenEditSettings
    made_for = ("QwenImageEditPipeline", "QwenImageEditInpaintPipeline")
    text_components = ("text_encoder", "tokenizer", "processor")

    def n_bytes(self, found: dict[str, Located]) -> int:
        return n_bytes_of(found["base"].folder, self.components + self.text_components)

    def load(self) -> DiffusionPipeline:
        return load_without(self, QwenImageEditInpaintPipeline, ()).to(self.device)

    def expect(self, prompts: Iterable[str]) -> None:
        """Nothing to prepare."""

    def encode(self, prompts: Sequence[str]) -> Encoded:
        raise NotImplementedError("Qwen-Image-Edit encodes a prompt with its picture: see `text_of`")

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
            raise InputError(_too_long(self.settings.text_tokens, -missing, painting.prompt))
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
