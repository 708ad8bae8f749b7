"""The `hf` backend: questions put to a model that transformers runs on this machine.

    vlm = load_local("Qwen/Qwen3-VL-8B-Instruct")          # any image-text-to-text model: LLaVA, InternVL, Gemma, ...
    vlm.answer([pixels], ["What color is the kite?\n(A) red\n(B) blue"], Settings(), None)

Families of the probe engine run in it (`probes.vlm`), so that an answer and an attention trace come from one prompt.
All others run through transformers' own `generate`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedModel, ProcessorMixin, set_seed

from probes.decode import Sampling
from probes.layout import Prompt
from probes.loading import choose_attention, choose_dtype, in_probe_engine, load_any
from probes.prompts import check_text, render
from probes.vlm import LocalVLM, load_vlm
from rekey.errors import InputError
from rekey.evaluate import VLM, Failure, Settings
from rekey.records import Generation


def load_local(name: str, dtype: str = "auto", device_map: str | dict = "auto", attention: str = "auto",
               min_pixels: int | None = None, max_pixels: int | None = None, revision: str | None = None) -> VLM:
    """A local model ready to be asked (arguments as those of `load_vlm`)."""
    if in_probe_engine(name, revision):
        return EngineVLM(load_vlm(name, dtype, device_map, attention, min_pixels, max_pixels, revision))
    if min_pixels is not None or max_pixels is not None:
        raise InputError(f"{name}: min_pixels and max_pixels are for families of the probe engine; leave them out, the "
                         "processor of this model has its own sizes")
    on_gpu = torch.cuda.is_available() and device_map != "cpu"
    kind = choose_dtype(dtype, name, on_gpu)
    attention, reason = choose_attention(attention, torch.device("cuda" if on_gpu else "cpu"), kind)
    place = "auto" if on_gpu and device_map == "auto" else "cpu" if device_map == "auto" else device_map
    model, processor = load_any(name, kind, place, attention, revision)
    return GeneratingVLM(name, model, processor, attention, reason)


class EngineVLM:
    """A model of the probe engine behind the `VLM` protocol."""

    def __init__(self, vlm: LocalVLM):
        self.vlm = vlm

    def describe(self) -> dict[str, Any]:
        return self.vlm.describe()

    def answer(self, images: Sequence[np.ndarray], texts: Sequence[str], settings: Settings,
               seeds: Sequence[int] | None) -> list[Generation | Failure]:
        check_thinking(self.vlm.processor, settings.thinking)

        def prompt(n: int) -> Prompt:
            prompt = self.vlm.prompt(images[n], texts[n], thinking=settings.thinking)
            if len(prompt) >= self.vlm.max_tokens:
                raise InputError(f"the prompt has {len(prompt)} tokens, the model was made for {self.vlm.max_tokens} "
                                 "in all; give a smaller --max-pixels")
            return prompt

        def generate(prompts: Sequence[Prompt], numbers: Sequence[int]) -> list[Generation]:
            room = self.vlm.max_tokens - max(map(len, prompts))
            found = self.vlm.generate(prompts, min(settings.max_new_tokens, room),
                                      Sampling(temperature=settings.temperature),
                                      None if seeds is None else [seeds[n] for n in numbers])
            return [replace(answer, filled=row.images[0].share_filled) for answer, row in zip(found, prompts)]

        return _each(len(images), prompt, generate)


def _each(n: int, prepare: Callable[[int], Any],
          generate: Callable[[Sequence[Any], Sequence[int]], list[Generation]]) -> list[Generation | Failure]:
    """Answers to n questions: what cannot be prepared fails alone, a batch too large for the memory is split."""
    found: dict[int, Generation | Failure] = {}
    ready: dict[int, Any] = {}
    for number in range(n):
        try:
            ready[number] = prepare(number)
        except InputError as error:
            found[number] = Failure(str(error))

    def run(numbers: list[int]) -> None:
        try:
            found.update(zip(numbers, generate([ready[n] for n in numbers], numbers), strict=True))
            return
        except torch.OutOfMemoryError as error:
            reason = f"out of memory with a batch of {len(numbers)} ({str(error).splitlines()[0]})"
        torch.cuda.empty_cache()
        if len(numbers) == 1:
            found[numbers[0]] = Failure(reason + "; give a smaller --max-pixels, or more GPUs")
            return
        for number in numbers:
            run([number])

    if ready:
        run(list(ready))
    return [found[number] for number in range(n)]


def check_thinking(processor: ProcessorMixin, thinking: bool | None) -> None:
    """A switch that the model does not have must not be taken for one that was turned."""
    if thinking is None:
        return
    messages = [{"role": "user", "content": [{"type": "text", "text": "."}]}]
    on, off = (render(processor, messages, thinking=value) for value in (True, False))
    if on == off:
        raise InputError(f"--thinking {'on' if thinking else 'off'}: the model's chat template has no such switch; "
                         "leave it out (of models in two versions, choose the instruct or the thinking checkpoint)")


class GeneratingVLM:
    """Any image-text-to-text model, through transformers' own processor and `generate`."""

    def __init__(self, name: str, model: PreTrainedModel, processor: ProcessorMixin, attention: str, reason: str):
        self.name, self.model, self.processor = name, model, processor
        self.attention, self.reason = attention, reason
        self.image_token_id = getattr(model.config, "image_token_id", getattr(model.config, "image_token_index", None))
        image_processor = processor.image_processor
        # Such a processor shows the middle of a picture only; its edges are part of the question (LLaVA-1.5).
        self.pads = bool(getattr(image_processor, "do_center_crop", False)) and not getattr(image_processor, "do_pad",
                                                                                            False)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "class": type(self.model).__name__,
                "dtype": str(self.model.dtype).removeprefix("torch."), "attention": self.attention,
                "attention_reason": self.reason, "processor": type(self.processor).__name__,
                "padded_to_square": self.pads,
                "devices": sorted({str(parameter.device) for parameter in self.model.parameters()})}

    def answer(self, images: Sequence[np.ndarray], texts: Sequence[str], settings: Settings,
               seeds: Sequence[int] | None) -> list[Generation | Failure]:
        check_thinking(self.processor, settings.thinking)

        def prepare(n: int) -> tuple[Image.Image, str, float]:
            check_text(self.processor, texts[n], "question")
            content = [{"type": "image"}, {"type": "text", "text": texts[n]}]
            prompt = render(self.processor, [{"role": "user", "content": content}], thinking=settings.thinking)
            picture, filled = Image.fromarray(images[n]), 1.0
            if self.pads:
                picture, filled = padded_to_square(picture, self.processor.image_processor.image_mean)
            return picture, prompt, filled

        def generate(rows: Sequence[tuple[Image.Image, str, float]], numbers: Sequence[int]) -> list[Generation]:
            if seeds is None:
                return self._generate(rows, settings)
            found = []                                  # one generator per call of `generate`: drawn one by one
            for row, number in zip(rows, numbers):
                set_seed(seeds[number])
                found += self._generate([row], settings)
            return found

        return _each(len(images), prepare, generate)

    @torch.inference_mode()
    def _generate(self, rows: Sequence[tuple[Image.Image, str, float]], settings: Settings) -> list[Generation]:
        began = time.perf_counter()
        pictures, prompts, filled = zip(*rows)
        inputs = self.processor(images=[[picture] for picture in pictures], text=list(prompts), padding=True,
                                padding_side="left", return_tensors="pt", add_special_tokens=self._bare(prompts[0]))
        inputs = inputs.to(self.model.device, dtype=self.model.dtype)        # of these only the pixels are floats
        sampling = {"do_sample": True, "temperature": settings.temperature, "top_k": 0, "top_p": 1.0}
        greedy = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
        out = self.model.generate(**inputs, max_new_tokens=settings.max_new_tokens, pad_token_id=self._pad,
                                  **(sampling if settings.temperature > 0 else greedy))
        n_read, elapsed_s = inputs["input_ids"].shape[1], time.perf_counter() - began
        found = []
        read = zip(inputs["input_ids"], inputs["attention_mask"], filled)
        for said, (ids, mask, share) in zip(out[:, n_read:].tolist(), read):
            new, finish = self._ended(said)
            found.append(Generation(
                text=self.processor.tokenizer.decode(new, skip_special_tokens=True), token_ids=tuple(new),
                n_prompt_tokens=int(mask.sum()), n_image_tokens=int((ids == self.image_token_id).sum()),
                image_sizes=self._seen(inputs), finish=finish, elapsed_s=elapsed_s, batch_size=len(rows), filled=share))
        return found

    def _bare(self, prompt: str) -> bool:
        """Whether the rendered prompt still lacks the token that opens a text."""
        first = self.processor.tokenizer.bos_token
        return not (first and prompt.startswith(first))

    @property
    def _stops(self) -> set[int]:
        ids = self.model.generation_config.eos_token_id
        ids = [ids] if isinstance(ids, int) else list(ids or [])
        return set(ids) or {self.processor.tokenizer.eos_token_id}

    @property
    def _pad(self) -> int:
        pad = self.processor.tokenizer.pad_token_id
        return pad if pad is not None else min(self._stops)

    def _ended(self, row: list[int]) -> tuple[list[int], str]:
        """New ids up to the first end token, it included, and how they ended."""
        end = next((n for n, token in enumerate(row) if token in self._stops), None)
        return (row, "length") if end is None else (row[:end + 1], "stop")

    @staticmethod
    def _seen(inputs: Any) -> tuple[tuple[int, int], ...] | None:
        """(height, width) of what one image became: one picture, or the tiles it was cut into."""
        pixels = inputs.get("pixel_values")
        if pixels is None or pixels.dim() < 4:              # patches in a row: no height or width to read off
            return None
        size = tuple(pixels.shape[-2:])
        return (size,) * (pixels.shape[1] if pixels.dim() == 5 else 1)


def padded_to_square(picture: Image.Image, mean: Sequence[float]) -> tuple[Image.Image, float]:
    """The picture on a square of the processor's mean color, as LLaVA-1.5 was trained, and its share of the square."""
    side = max(picture.size)
    square = Image.new("RGB", (side, side), tuple(int(255 * value) for value in mean))
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return square, picture.width * picture.height / side ** 2
