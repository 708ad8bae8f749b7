"""A local vision-language model you can ask.

One small interface over the families of `probes.families`: prompts as token ids, images with the size
the model really saw, batched greedy and sampled generation that is the model's own, and states
(`probes.prefix`) to cut, continue and read again under another image.

    vlm    = load_vlm("Qwen/Qwen3-VL-8B-Instruct")                     # or a folder, or tiny:qwen3_vl
    prompt = vlm.prompt("photo.jpg", "What color is the kite?\n(A) red\n(B) blue")
    answer = vlm.generate([prompt], max_new_tokens=512)[0]
    answer.text, answer.n_image_tokens, answer.image_sizes
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import DynamicCache, PreTrainedModel, ProcessorMixin

from probes.decode import GREEDY, Sampling, decode_last, whole
from probes.encoding import ImageLike, PixelLimits, Prompter, image_pixels, pixel_limits
from probes.families import Family
from probes.layout import EncodedImage, Prompt
from probes.loading import CONTROL, TINY, choose_attention, choose_dtype, hub_commit, load_parts
from probes.prefix import check_prompts, check_text_ids, is_croppable, prefill
from probes.prompts import next_turn, with_turn
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.records import Generation


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
        return is_croppable(DynamicCache(config=self.model.config))

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        ids = self.model.generation_config.eos_token_id
        ids = [ids] if isinstance(ids, int) else list(ids or [])
        return tuple(sorted(ids or {self.tokenizer.eos_token_id} - {None}))

    @cached_property
    def pad_token_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return pad if pad is not None else next(iter(self.stop_token_ids), 0)

    @cached_property
    def vision_token_ids(self) -> tuple[int, ...]:
        """Ids that stand for images and videos or open and close them; never generated, never in a question."""
        names = (f"{what}{part}_token_id" for what in ("image", "video", "vision") for part in ("", "_start", "_end"))
        ids = {getattr(self.model.config, name, None) for name in names}
        return tuple(sorted(token for token in ids if isinstance(token, int)))

    @property
    def n_axes(self) -> int:
        """Rotary positions per token: time, height and width, or one."""
        return 3 if self.family.positions == "mrope" else 1

    @cached_property
    def n_words(self) -> int:
        """Size of the vocabulary, as the model has it."""
        return self.model.get_output_embeddings().weight.shape[0]

    @cached_property
    def max_tokens(self) -> int:
        """How long a prompt with its answer may be: what the model was made for."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize

    @cached_property
    def never_generated(self) -> torch.Tensor:
        return torch.tensor([token for token in self.vision_token_ids if token < self.n_words], device=self.device)

    @cached_property
    def default_sampling(self) -> Sampling:
        """The generation settings that the model ships with."""
        return Sampling.of_model(self.model.generation_config)

    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text, without anything added."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    @cached_property
    def prompter(self) -> Prompter:
        return Prompter(self.family, self.processor, self.limits, self.model.config.image_token_id)

    def encode_image(self, image: ImageLike, region: Box | Sequence[Box] | None = None) -> EncodedImage:
        """An image as the model will see it.  region: boxes of interest, in pixels of the image as given."""
        return self.prompter.encode_image(image, region)

    def encode_pair(self, image_a: ImageLike, image_b: ImageLike,
                    resize: bool = False) -> tuple[EncodedImage, EncodedImage]:
        """Two images that can stand in for each other: of equal size, as VS-Bench demands.

        resize: bring both to the size of the smaller one where they differ, whatever its aspect; else differing sizes
        are an error.
        """
        a, b = image_pixels(image_a), image_pixels(image_b)
        if a.shape != b.shape:
            if not resize:
                sizes = " and ".join(f"{p.shape[1]}x{p.shape[0]}" for p in (a, b))
                raise InputError(f"image pair: {sizes}; expected equal sizes, or the number of image tokens changes "
                                 "with the image; give images of one size, or resize=True to bring both to the smaller")
            height, width, _ = min(a.shape, b.shape, key=lambda shape: shape[0] * shape[1])
            a, b = (np.asarray(Image.fromarray(p).resize((width, height), Image.Resampling.LANCZOS)) for p in (a, b))
        return self.encode_image(a), self.encode_image(b)

    def prompt(self, images: ImageLike | EncodedImage | Sequence[ImageLike | EncodedImage], question: str,
               system: str | None = None, thinking: bool | None = None) -> Prompt:
        """The model's own chat prompt for one or more images (or none: []) followed by a question.

        thinking: for templates that can open or close a think block; None leaves their default.
        """
        return self.prompter.prompt(images, question, system, thinking)

    def second_turn(self, prompt: Prompt, said: Sequence[int],
                    question: str | Sequence[str | Path | Image.Image | np.ndarray | EncodedImage],
                    thinking: bool | None = None) -> Prompt:
        """The conversation in which the model answered `prompt` with the ids `said`, and the user speaks again.

        The answer stays as it is, reasoning included (multi-turn, VisualSwap Sec. 5.2).  question: text, or texts and
        images in the order in which the user shows them (a str is text; give a file as a Path).
        """
        if not isinstance(question, str | list | tuple):
            raise InputError(f"second turn: the question is {question!r:.40}; expected text, or a list of texts and "
                             "images")
        said = check_text_ids(self, said)
        while said and said[-1] in self.stop_token_ids:
            said.pop()
        parts = [question] if isinstance(question, str) else [
            part if isinstance(part, str | EncodedImage) else self.encode_image(part) for part in question]
        pieces = next_turn(self.processor, parts, len(prompt.images), thinking)
        images = [part for part in parts if isinstance(part, EncodedImage)]
        return with_turn(prompt.then(said), pieces, self.model.config.image_token_id, images)

    def generate(self, prompts: Sequence[Prompt], max_new_tokens: int, sampling: Sampling = GREEDY,
                 seeds: Sequence[int] | None = None, batch_size: int | None = None) -> list[Generation]:
        """Answer prompts, `batch_size` (all) at a time; a sampled answer depends on its own seed, not on its batch.

        In half precision the batch's padding does change rounding, and with it near ties between tokens.
        """
        nothing = [()] * len(prompts) if isinstance(prompts, list | tuple) else []
        return self.continue_from(prompts, nothing, max_new_tokens, sampling, seeds, batch_size)

    def continue_from(self, prompts: Sequence[Prompt], said: Sequence[Sequence[int]], max_new_tokens: int,
                      sampling: Sampling = GREEDY, seeds: Sequence[int] | None = None,
                      batch_size: int | None = None) -> list[Generation]:
        """Answer prompts of which the model has already said the token ids `said`, one list per prompt.

        The generations hold only what is new.
        """
        if not isinstance(prompts, list | tuple) or not hasattr(said, "__len__") or len(said) != len(prompts):
            raise InputError("generate: expected a list of prompts, and of what each has said already as many lists")
        if hasattr(seeds, "__len__") and len(seeds) != len(prompts):
            raise InputError(f"generate: {len(seeds)} seeds for {len(prompts)} prompt(s); give one per prompt")
        if batch_size is not None and whole(batch_size, "batch_size") < 1:
            raise InputError(f"generate: batch_size is {batch_size}; expected a whole number, at least 1")
        check_prompts(self, prompts)
        rows = [prompt.then(check_text_ids(self, ids)) for prompt, ids in zip(prompts, said)]
        size, found = batch_size or max(1, len(rows)), []
        for first in range(0, len(rows), size):
            batch = rows[first:first + size]
            began = time.perf_counter()
            decoded = decode_last(self, [prefill(self, batch)], max_new_tokens, sampling,
                                  None if seeds is None else seeds[first:first + size])
            elapsed_s = time.perf_counter() - began
            found += [Generation(text=self.text_of(out.ids), token_ids=out.ids, n_prompt_tokens=len(row),
                                 n_image_tokens=row.n_image_tokens, finish=out.finish, elapsed_s=elapsed_s,
                                 image_sizes=tuple(image.seen for image in row.images), batch_size=len(batch))
                      for row, out in zip(batch, decoded)]
        return found

    def describe(self) -> dict:
        """What a run's stamp records of the model."""
        return {"name": self.name, "revision": self.revision, "class": type(self.model).__name__,
                "dtype": str(self.dtype).removeprefix("torch."),
                "attention": self.attention, "attention_reason": self.attention_reason,
                "processor": type(self.processor).__name__,
                "min_pixels": self.limits and self.limits.min_pixels,
                "max_pixels": self.limits and self.limits.max_pixels,
                "devices": sorted({str(parameter.device) for parameter in self.model.parameters()})}


def load_vlm(name: str | Path, dtype: str = "auto", device_map: str | dict = "auto", attention: str = "auto",
             min_pixels: int | None = None, max_pixels: int | None = None, revision: str | None = None) -> LocalVLM:
    """Load a vision-language model by hub id or folder, control:NAME (small, trained) or tiny:FAMILY (random weights).

    dtype: "auto" is bfloat16 on a GPU and float32 on a CPU and for control models; or "float32", "bfloat16", "float16".
    device_map: as in transformers ("auto" spreads over all GPUs).  attention: "auto", "sdpa", "flash_attention_2".
    min_pixels, max_pixels: image area; by default what the checkpoint's processor says.
    """
    device_map = checked_device(device_map if isinstance(device_map, dict) else str(device_map))
    places = device_map.values() if isinstance(device_map, dict) else [device_map]
    on_gpu = torch.cuda.is_available() and not all(str(place) == "cpu" for place in places)
    name = str(name)
    kind = choose_dtype(dtype, name, on_gpu)
    attention, reason = choose_attention(attention, torch.device("cuda" if on_gpu else "cpu"), kind)
    model, processor, family = load_parts(name, kind, device_map, attention, revision)
    if revision is None and not name.startswith((TINY, CONTROL)):
        revision = hub_commit(name)
    limits = pixel_limits(processor, min_pixels, max_pixels)
    return LocalVLM(name, revision, family, model, processor, limits, attention, reason)


def checked_device(device_map: str | dict) -> str | dict:
    """A device map that can be followed here; "auto" without a GPU is the CPU."""
    n_gpus = torch.cuda.device_count()
    if device_map == "auto":
        return "auto" if n_gpus else "cpu"
    if isinstance(device_map, str):
        kind, _, index = device_map.partition(":")
        if not (device_map == "cpu" or kind == "cuda" and (index or "0").isdecimal() and int(index or 0) < n_gpus):
            raise InputError(f"device_map {device_map!r}: expected auto, cpu, cuda or cuda:N; this machine has "
                             f"{n_gpus} CUDA device(s) that torch can use")
    return device_map
