"""How a model's own processor turns images and questions into a prompt; needs none of its weights.

    prompter = load_prompter("Qwen/Qwen3-VL-8B-Instruct")      # processor, chat template and config alone
    prompt   = prompter.prompt("photo.jpg", "What color is the kite?\n(A) red\n(B) blue")
    prompt.n_image_tokens, prompt.images[0].seen

Every backend makes its prompts here, so that transformers and vLLM read the same ids and the same pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image
from transformers import BaseImageProcessor, ProcessorMixin
from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize

from probes.families import Family
from probes.layout import EncodedImage, Prompt
from probes.loading import load_processor
from probes.prompts import build_prompt
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.image_modes import apply_orientation, rgb_pixels
from rekey.images import MAX_ASPECT, load_image, pixel_sha256

ORIENTATION = ExifTags.Base.Orientation
ImageLike = str | Path | Image.Image | np.ndarray


@dataclass(frozen=True)
class PixelLimits:
    """How large an image may enter: the processor resizes it, keeping its aspect, to between these (pixels)."""

    min_pixels: int
    max_pixels: int


@dataclass(frozen=True, eq=False)
class Prompter:
    """A processor with what it needs to know of its model."""

    family: Family
    processor: ProcessorMixin
    limits: PixelLimits | None
    image_token_id: int

    def encode_image(self, image: ImageLike, region: Box | Sequence[Box] | None = None) -> EncodedImage:
        """An image as the model will see it.  region: boxes of interest, in pixels of the image as given."""
        pixels = image_pixels(image)
        height, width = pixels.shape[:2]
        processor = self.processor.image_processor
        side = processor.patch_size * processor.merge_size
        name = str(image) if isinstance(image, str | Path) else "image"
        if min(height, width) < side:
            raise InputError(f"{name}: has too few pixels, {width}x{height}; expected at least {side}x{side}, one "
                             f"image token of {self.family.title}; enlarge it first, so that it is known what was "
                             "enlarged")
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise InputError(f"{name}: is {width}x{height}; expected an aspect ratio of at most {MAX_ASPECT}; crop it")
        size = self.limits and {"shortest_edge": self.limits.min_pixels, "longest_edge": self.limits.max_pixels}
        out = processor(images=[Image.fromarray(pixels)], return_tensors="pt", **({"size": size} if size else {}))
        grid = tuple(out["image_grid_thw"][0].tolist())
        seen = (grid[1] * processor.patch_size, grid[2] * processor.patch_size)
        encoded = EncodedImage(pixels=out["pixel_values"], grid=grid, merge=processor.merge_size, size=(height, width),
                               seen=seen, filled=_filled(processor, height, width) or seen,
                               sha256=pixel_sha256(pixels))
        if region is None:
            return encoded
        return encoded.with_region(*([region] if isinstance(region, Box) else region))

    def prompt(self, images: ImageLike | EncodedImage | Sequence[ImageLike | EncodedImage], question: str,
               system: str | None = None, thinking: bool | None = None) -> Prompt:
        """The model's own chat prompt for one or more images (or none: []) followed by a question.

        thinking: for templates that can open or close a think block; None leaves their default.
        """
        listed = images if isinstance(images, list | tuple) else [images]
        encoded = [image if isinstance(image, EncodedImage) else self.encode_image(image) for image in listed]
        if not isinstance(question, str) or not isinstance(system, str | None):
            raise InputError(f"prompt: the question is {question!r:.40}, the system text {system!r:.40}; expected text")
        return build_prompt(self.processor, self.image_token_id, encoded, question, system, thinking)


def load_prompter(name: str, min_pixels: int | None = None, max_pixels: int | None = None,
                  revision: str | None = None) -> Prompter:
    """The prompter of a model by name (see `load_vlm`), without its weights."""
    processor, family, image_token_id = load_processor(name, revision)
    return Prompter(family, processor, pixel_limits(processor, min_pixels, max_pixels), image_token_id)


def pixel_limits(processor: ProcessorMixin, min_pixels: int | None, max_pixels: int | None) -> PixelLimits | None:
    """The processor's limits with the user's put in; None where the processor has no such limits."""
    kind, size = processor.image_processor, processor.image_processor.size
    if not size.get("shortest_edge") or not size.get("longest_edge"):
        if min_pixels is not None or max_pixels is not None:
            raise InputError(f"min_pixels, max_pixels: {type(kind).__name__} has no such limits; leave them out")
        return None
    low = size["shortest_edge"] if min_pixels is None else min_pixels
    high = size["longest_edge"] if max_pixels is None else max_pixels
    token = (kind.patch_size * kind.merge_size) ** 2
    if not token <= low <= high:
        raise InputError(f"min_pixels {low}, max_pixels {high}: expected {token} (one image token) <= min_pixels <= "
                         "max_pixels")
    return PixelLimits(low, high)


def _filled(processor: BaseImageProcessor, height: int, width: int) -> tuple[int, int] | None:
    """(height, width) that the image fills of what the model sees, where the processor pads (Kimi); else None."""
    if not hasattr(processor, "max_patches"):
        return None
    return navit_resize(height, width, processor.patch_size, processor.merge_size, processor.max_patches,
                        processor.size["max_height"])[0]


def image_pixels(image: ImageLike) -> np.ndarray:
    """uint8 (height, width, 3) of a file, a PIL image (both by the toolkit's one rule) or an array."""
    if isinstance(image, str | Path):
        return load_image(image).pixels
    if isinstance(image, Image.Image):
        return np.ascontiguousarray(apply_orientation(rgb_pixels(image, None)[0], image.getexif().get(ORIENTATION, 1)))
    if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3):
        raise InputError(f"image: got {type(image).__name__}; expected a path, a PIL image, or a uint8 array (height, "
                         "width, 3)")
    return image
