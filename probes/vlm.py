"""A local vision-language model you can ask.

One small interface over the families of `probes.families`: prompts as token ids, images with the size
the model really saw, batched greedy and sampled generation that is the model's own, and states
(`probes.prefix`) to cut, continue and read again under another image.

    vlm    = load_vlm("Qwen/Qwen3-VL-8B-Instruct")                     # or a folder, or tiny:qwen3_vl
    prompt = vlm.prompt("photo.jpg", "What color is the kite?\n(A) red\n(B) blue")
    answer = vlm.generate([prompt], max_new_tokens=512)[0]
    answer.text, answer.n_image_tokens, answer.image_size
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import DynamicCache, PreTrainedModel, ProcessorMixin
from transformers.cache_utils import DynamicLayer

from probes.decode import GREEDY, Sampling, decode
from probes.families import Family
from probes.layout import EncodedImage, Prompt
from probes.loading import TINY, choose_attention, load_parts
from probes.prefix import prefill
from probes.prompts import build_prompt
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.images import load_image, pixel_sha256
from rekey.records import Generation

ImageLike = str | Path | Image.Image | np.ndarray


@dataclass(frozen=True)
class PixelLimits:
    """How large an image may enter: the processor resizes it, keeping its aspect, to between these (pixels)."""

    min_pixels: int
    max_pixels: int


@dataclass(eq=False)
class LocalVLM:
    """A loaded model with its processor; what it was loaded as, and under which attention kernel and why."""

    name: str
    revision: str | None
    family: Family
    model: PreTrainedModel
    processor: ProcessorMixin
    limits: PixelLimits | None
    attention: str
    attention_reason: str

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def tokenizer(self):
        return self.processor.tokenizer

    @cached_property
    def croppable(self) -> bool:
        """Whether its cache can be cut back to an earlier token: all layers hold plain keys and values."""
        return all(type(layer) is DynamicLayer for layer in DynamicCache(config=self.model.config).layers)

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        ids = self.model.generation_config.eos_token_id
        ids = [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
        return tuple(sorted(ids or [self.tokenizer.eos_token_id]))

    @cached_property
    def pad_token_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self.stop_token_ids[0] if pad is None else pad

    @cached_property
    def vision_token_ids(self) -> tuple[int, ...]:
        """Ids that stand for images and videos or open and close them; never generated, never in a question."""
        config, names = self.model.config, ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
                                            "image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id")
        return tuple(sorted({getattr(config, name) for name in names if isinstance(getattr(config, name, None), int)}))

    @cached_property
    def never_generated(self) -> torch.Tensor:
        n_words = self.model.get_output_embeddings().weight.shape[0]
        return torch.tensor([token for token in self.vision_token_ids if token < n_words], device=self.device)

    @cached_property
    def default_sampling(self) -> Sampling:
        """The generation settings that the model ships with."""
        return Sampling.of_model(self.model.generation_config)

    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text, without anything added."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def encode_image(self, image: ImageLike, region: Box | Sequence[Box] | None = None) -> EncodedImage:
        """An image as the model will see it.  region: boxes of interest, in pixels of the image as given."""
        pixels = _pixels(image)
        height, width = pixels.shape[:2]
        processor = self.processor.image_processor
        factor = processor.patch_size * processor.merge_size
        name = str(image) if isinstance(image, str | Path) else f"the {width}x{height} image"
        if min(height, width) < factor:
            raise InputError(f"{name}: has too few pixels ({width}x{height}); one image token of {self.family.title} is {factor}x{factor}; "
                             "enlarge the image first, so that it is known what was enlarged")
        if max(height, width) > 200 * min(height, width):
            raise InputError(f"{name}: is {width}x{height}; expected an aspect ratio of at most 200; crop it first")
        options = {} if self.limits is None else {"size": {"shortest_edge": self.limits.min_pixels, "longest_edge": self.limits.max_pixels}}
        out = processor(images=[Image.fromarray(pixels)], return_tensors="pt", **options)
        grid = tuple(out["image_grid_thw"][0].tolist())
        seen = (grid[1] * processor.patch_size, grid[2] * processor.patch_size)
        encoded = EncodedImage(out["pixel_values"], grid, processor.merge_size, (height, width), seen, pixel_sha256(pixels))
        boxes = [region] if isinstance(region, Box) else list(region or ())
        return encoded.with_region(*boxes) if boxes else encoded

    def encode_pair(self, image_a: ImageLike, image_b: ImageLike, resize: bool = False) -> tuple[EncodedImage, EncodedImage]:
        """Two images that can stand in for each other: of equal size (VisualSwap, Sec. 3).

        resize: bring both to the size of the smaller one where they differ; else differing sizes are an error.
        """
        a, b = _pixels(image_a), _pixels(image_b)
        if a.shape != b.shape:
            if not resize:
                raise InputError(f"image pair: {a.shape[1]}x{a.shape[0]} and {b.shape[1]}x{b.shape[0]}; expected equal sizes, else the number of "
                                 "image tokens changes with the image; give images of one size, or resize=True to bring both to the smaller")
            small = min(a.shape, b.shape, key=lambda shape: shape[0] * shape[1])
            a, b = (np.asarray(Image.fromarray(p).resize((small[1], small[0]), Image.Resampling.LANCZOS)) for p in (a, b))
        return self.encode_image(a), self.encode_image(b)

    def prompt(self, images: ImageLike | EncodedImage | Sequence[ImageLike | EncodedImage], question: str, system: str | None = None,
               thinking: bool | None = None) -> Prompt:
        """The model's own chat prompt for one or more images (or none: []) followed by a question."""
        listed = list(images) if isinstance(images, list | tuple) else [images]
        encoded = [image if isinstance(image, EncodedImage) else self.encode_image(image) for image in listed]
        return build_prompt(self.processor, self.model.config.image_token_id, encoded, question, system, thinking)

    def generate(self, prompts: Sequence[Prompt], max_new_tokens: int, sampling: Sampling = GREEDY, seeds: Sequence[int] | None = None,
                 batch_size: int | None = None) -> list[Generation]:
        """Answer prompts in batches; a sampled answer depends on its own seed, not on its batch.

        In half precision the batch's padding does change rounding, and with it near ties between tokens.
        """
        return self.continue_from(prompts, [()] * len(prompts), max_new_tokens, sampling, seeds, batch_size)

    def continue_from(self, prompts: Sequence[Prompt], said: Sequence[Sequence[int]], max_new_tokens: int, sampling: Sampling = GREEDY,
                      seeds: Sequence[int] | None = None, batch_size: int | None = None) -> list[Generation]:
        """Answer prompts of which the model has already said the token ids `said`, one list per prompt.

        The generations hold only what is new.
        """
        rows = [prompt.then(ids) for prompt, ids in zip(prompts, said, strict=True)]
        size, found = batch_size or max(1, len(rows)), []
        for first in range(0, len(rows), size):
            batch = rows[first:first + size]
            began = time.perf_counter()
            decoded = decode(self, prefill(self, batch), max_new_tokens, sampling, None if seeds is None else seeds[first:first + size])
            elapsed = time.perf_counter() - began
            found += [Generation(text=self.decode(out.ids), token_ids=out.ids, n_prompt_tokens=len(row), n_image_tokens=row.n_image_tokens,
                                 image_sizes=tuple(image.seen for image in row.images), finish=out.finish, elapsed_s=elapsed, batch_size=len(batch))
                      for row, out in zip(batch, decoded)]
        return found

    def describe(self) -> dict:
        """What a run's stamp records of the model."""
        return {"name": self.name, "revision": self.revision, "class": type(self.model).__name__, "dtype": str(self.dtype).removeprefix("torch."),
                "attention": self.attention, "attention_reason": self.attention_reason, "processor": type(self.processor).__name__,
                "min_pixels": self.limits and self.limits.min_pixels, "max_pixels": self.limits and self.limits.max_pixels,
                "devices": sorted({str(parameter.device) for parameter in self.model.parameters()})}


def load_vlm(name: str, dtype: str = "auto", device_map: str | dict = "auto", attention: str = "auto", min_pixels: int | None = None,
             max_pixels: int | None = None, revision: str | None = None) -> LocalVLM:
    """Load a vision-language model by hub id or folder, or tiny:FAMILY for random weights.

    dtype: "auto" is bfloat16 on a GPU and float32 on a CPU.  attention: "auto", "sdpa" or "flash_attention_2".
    min_pixels, max_pixels: image sizes; by default what the checkpoint's processor says.
    """
    on_gpu = torch.cuda.is_available() and device_map != "cpu"
    if device_map == "auto" and not on_gpu:
        device_map = "cpu"
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in ("auto", *kinds):
        raise InputError(f"dtype {dtype!r}: expected auto, {', '.join(kinds)}")
    kind = kinds[dtype] if dtype != "auto" else torch.bfloat16 if on_gpu else torch.float32
    attention, reason = choose_attention(attention, torch.device("cuda" if on_gpu else "cpu"), kind)
    model, processor, family = load_parts(name, dtype=kind, device_map=device_map, attention=attention, revision=revision)
    if revision is None and not name.startswith(TINY):
        revision = getattr(model.config, "_commit_hash", None)
    return LocalVLM(name, revision, family, model, processor, _limits(processor, min_pixels, max_pixels), attention, reason)


def _limits(processor: ProcessorMixin, min_pixels: int | None, max_pixels: int | None) -> PixelLimits | None:
    size = processor.image_processor.size
    shipped = PixelLimits(size["shortest_edge"], size["longest_edge"]) if "shortest_edge" in size and size["shortest_edge"] else None
    if shipped is None:
        if min_pixels is not None or max_pixels is not None:
            raise InputError(f"min_pixels, max_pixels: {type(processor.image_processor).__name__} has no such limits; leave them out")
        return None
    limits = replace(shipped, **{k: v for k, v in (("min_pixels", min_pixels), ("max_pixels", max_pixels)) if v is not None})
    factor = processor.image_processor.patch_size * processor.image_processor.merge_size
    if not factor**2 <= limits.min_pixels <= limits.max_pixels:
        raise InputError(f"min_pixels {limits.min_pixels}, max_pixels {limits.max_pixels}: expected {factor**2} (one image token) <= min_pixels <= max_pixels")
    return limits


def _pixels(image: ImageLike) -> np.ndarray:
    """uint8 (height, width, 3) of a file (by the toolkit's one rule), a PIL image or an array."""
    if isinstance(image, str | Path):
        return load_image(image).pixels
    if isinstance(image, Image.Image):
        return np.asarray(image.convert("RGB"))
    if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3):
        raise InputError(f"image: got {type(image).__name__}; expected a path, a PIL image, or a uint8 array (height, width, 3)")
    return image
