"""The `hf` backend: questions put to a model that transformers runs on this machine.

    vlm = load_local("Qwen/Qwen3-VL-8B-Instruct")          # any image-text-to-text model: LLaVA, InternVL, Gemma, ...
    vlm.answer([pixels], ["What color is the kite?\n(A) red\n(B) blue"], Settings(), None)

Families of the probe engine run in it (`probes.vlm`), so that an answer and an attention trace come from one prompt.
All others run through transformers' own `generate`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import BatchFeature, GenerationConfig, PreTrainedModel, ProcessorMixin

from probes.decode import Sampling
from probes.layout import Prompt
from probes.loading import choose_attention, choose_dtype, in_probe_engine, load_any
from probes.prompts import check_text, has_thinking_switch, render
from probes.vlm import LocalVLM, checked_device, load_vlm
from probes.zoom import ZoomTrace, ask_with_zoom
from rekey.errors import InputError
from rekey.evaluate import VLM, Failure, Settings
from rekey.records import Generation


def load_local(name: str, dtype: str = "auto", device_map: str | dict = "auto", attention: str = "auto",
               min_pixels: int | None = None, max_pixels: int | None = None, revision: str | None = None,
               zoom_steps: int | None = None) -> VLM:
    """A local model ready to be asked (arguments as those of `load_vlm`).  zoom_steps: how often it may zoom."""
    if in_probe_engine(name, revision):
        vlm = load_vlm(name, dtype, device_map, attention, min_pixels, max_pixels, revision)
        return EngineVLM(vlm) if zoom_steps is None else ZoomingVLM(vlm, zoom_steps)
    if zoom_steps is not None:
        raise InputError(f"{name}: only models of the probe engine can be shown cut-outs in later turns; leave "
                         "--zoom-steps out")
    if min_pixels is not None or max_pixels is not None:
        raise InputError(f"{name}: min_pixels and max_pixels are for families of the probe engine; leave them out, the "
                         "processor of this model has its own sizes")
    on_gpu = torch.cuda.is_available() and device_map != "cpu"
    kind = choose_dtype(dtype, name, on_gpu)
    attention, reason = choose_attention(attention, torch.device("cuda" if on_gpu else "cpu"), kind)
    model, processor = load_any(name, kind, checked_device(device_map), attention, revision)
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
            return self.vlm.prompt(images[n], texts[n], thinking=settings.thinking)

        def n_new(prompt: Prompt) -> int:
            return room(len(prompt), settings.max_new_tokens, self.vlm.max_tokens)

        def generate(prompts: Sequence[Prompt], numbers: Sequence[int]) -> list[Generation]:
            found = self.vlm.generate(prompts, n_new(prompts[0]), Sampling(temperature=settings.temperature),
                                      None if seeds is None else [seeds[n] for n in numbers])
            return [replace(answer, filled=row.images[0].share_filled) for answer, row in zip(found, prompts)]

        return _each(len(images), prompt, generate, n_new)


class ZoomingVLM:
    """A model of the probe engine with the crop-and-zoom tool (`probes.zoom`); a line tells every step."""

    def __init__(self, vlm: LocalVLM, steps: int):
        self.vlm, self.steps = vlm, steps

    def describe(self) -> dict[str, Any]:
        return self.vlm.describe() | {"zoom_steps": self.steps}

    def answer(self, images: Sequence[np.ndarray], texts: Sequence[str], settings: Settings,
               seeds: Sequence[int] | None) -> list[Generation | Failure]:
        check_thinking(self.vlm.processor, settings.thinking)

        def readable(n: int) -> None:           # what the model cannot be shown fails alone
            self.vlm.prompt(images[n], texts[n], thinking=settings.thinking)

        def ask(_: Sequence[None], numbers: Sequence[int]) -> list[Generation]:
            sampling = Sampling(temperature=settings.temperature)
            traces = [ask_with_zoom(self.vlm, images[n], texts[n], self.steps, settings.max_new_tokens,
                                    sampling=sampling, seed=None if seeds is None else seeds[n],
                                    thinking=settings.thinking) for n in numbers]
            return [replace(trace.answer, trace=_told(trace), batch_size=1,
                            filled=trace.steps[0].said.n_image_tokens / trace.answer.n_image_tokens)
                    for trace in traces]

        return _each(len(images), readable, ask)


def _told(trace: ZoomTrace) -> dict[str, Any]:
    """What a response line keeps of the way to an answer."""
    return {"finish": trace.finish, "n_new_tokens": trace.n_new_tokens, "n_read_tokens": trace.n_read_tokens,
            "steps": [{"text": step.said.text, **({"box": step.view.box.as_list(), "adjusted": list(step.view.adjusted),
                                                   "n_tokens": step.view.n_tokens} if step.view else {}),
                       **({"error": step.error} if step.error else {})} for step in trace.steps]}


def _each(n: int, prepare: Callable[[int], Any],
          generate: Callable[[Sequence[Any], Sequence[int]], list[Generation]],
          kind: Callable[[Any], Hashable] = lambda row: None) -> list[Generation | Failure]:
    """Answers to n questions: what cannot be prepared fails alone, a batch too large for the memory is split.

    kind: what rows of one batch must have in common, as the room they leave for an answer, which must not depend on
    what a question happens to be asked beside.
    """
    found: dict[int, Generation | Failure] = {}
    ready: dict[int, Any] = {}
    batches: dict[Hashable, list[int]] = {}
    for number in range(n):
        try:
            ready[number] = prepare(number)
            batches.setdefault(kind(ready[number]), []).append(number)
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

    for numbers in batches.values():
        run(numbers)
    return [found[number] for number in range(n)]


def room(n_prompt_tokens: int, max_new_tokens: int, max_tokens: int) -> int:
    """How many tokens may follow a prompt.  max_tokens: of prompt and answer, by what the model was made for."""
    if n_prompt_tokens >= max_tokens:
        raise InputError(f"the prompt has {n_prompt_tokens} tokens, the model takes {max_tokens} with the answer; "
                         "shorten the question, or give a smaller --max-pixels")
    return min(max_new_tokens, max_tokens - n_prompt_tokens)


def check_thinking(processor: ProcessorMixin, thinking: bool | None) -> None:
    """A switch that the model does not have must not be taken for one that was turned.

    Raises InputError as well for a model without a chat template, which can be asked nothing.
    """
    if thinking is None:
        render(processor, [{"role": "user", "content": [{"type": "text", "text": "."}]}])
        return
    if has_thinking_switch(processor):
        return
    raise InputError(f"--thinking {'on' if thinking else 'off'}: the model's chat template has no such switch; leave "
                     "it out (of models in two versions, choose the instruct or the thinking checkpoint)")


@dataclass(frozen=True, eq=False)
class _Row:
    """A question as a processor takes it, and what it makes of it alone."""

    picture: Image.Image
    prompt: str
    inputs: BatchFeature
    filled: float

    def __len__(self) -> int:
        return self.inputs["input_ids"].shape[1]


class GeneratingVLM:
    """Any image-text-to-text model, through transformers' own processor and `generate`."""

    def __init__(self, name: str, model: PreTrainedModel, processor: ProcessorMixin, attention: str, reason: str):
        self.name, self.model, self.processor = name, model, processor
        self.attention, self.reason = attention, reason
        self.image_token_id = getattr(model.config, "image_token_id", getattr(model.config, "image_token_index", None))
        self.max_tokens = getattr(model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize
        image_processor = processor.image_processor
        # Such a processor shows the middle of a picture only; its edges are part of the question (LLaVA-1.5).
        self.pads = bool(getattr(image_processor, "do_center_crop", False)) and not getattr(image_processor, "do_pad",
                                                                                            False)
        shipped, tokenizer = model.generation_config, processor.tokenizer
        stops = shipped.eos_token_id if shipped.eos_token_id is not None else tokenizer.eos_token_id
        self.stops = [stops] if isinstance(stops, int) else list(stops or [])
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.stops, default=0)
        # Of what a checkpoint ships only the end tokens: its penalties and beams are not what `Settings` says.
        model.generation_config = GenerationConfig(bos_token_id=shipped.bos_token_id, eos_token_id=self.stops or None,
                                                   pad_token_id=pad)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "class": type(self.model).__name__,
                "dtype": str(self.model.dtype).removeprefix("torch."), "attention": self.attention,
                "attention_reason": self.reason, "processor": type(self.processor).__name__,
                "padded_to_square": self.pads,
                "devices": sorted({str(parameter.device) for parameter in self.model.parameters()})}

    def answer(self, images: Sequence[np.ndarray], texts: Sequence[str], settings: Settings,
               seeds: Sequence[int] | None) -> list[Generation | Failure]:
        check_thinking(self.processor, settings.thinking)

        def prepare(n: int) -> _Row:
            check_text(self.processor, texts[n], "question")
            content = [{"type": "image"}, {"type": "text", "text": texts[n]}]
            prompt = render(self.processor, [{"role": "user", "content": content}], thinking=settings.thinking)
            picture, filled = Image.fromarray(images[n]), 1.0
            if self.pads:
                picture, filled = padded_to_square(picture, self.processor.image_processor.image_mean)
            try:
                return _Row(picture, prompt, self._encoded([picture], [prompt]), filled)
            except (ValueError, RuntimeError) as error:         # too small for it, too long a strip
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise InputError(f"{type(self.processor).__name__} cannot read an image of {picture.width}x"
                                 f"{picture.height} ({reason})") from None

        def n_new(row: _Row) -> int:
            return room(len(row), settings.max_new_tokens, self.max_tokens)

        def generate(rows: Sequence[_Row], numbers: Sequence[int]) -> list[Generation]:
            if seeds is None:
                return self._generate(rows, n_new(rows[0]), {"do_sample": False})
            sampling = {"do_sample": True, "temperature": settings.temperature, "top_k": 0, "top_p": 1.0}
            found = []                                  # one generator per call of `generate`: drawn one by one
            for row, number in zip(rows, numbers):
                with torch.random.fork_rng():
                    torch.manual_seed(seeds[number])
                    found += self._generate([row], n_new(row), sampling)
            return found

        return _each(len(images), prepare, generate, n_new)

    def _encoded(self, pictures: Sequence[Image.Image], prompts: Sequence[str]) -> BatchFeature:
        opening = self.processor.tokenizer.bos_token            # some templates write it, others leave it to this
        return self.processor(images=[[picture] for picture in pictures], text=list(prompts), padding=True,
                              padding_side="left", return_tensors="pt",
                              add_special_tokens=not (opening and prompts[0].startswith(opening)))

    @torch.inference_mode()
    def _generate(self, rows: Sequence[_Row], n_new: int, sampling: dict[str, Any]) -> list[Generation]:
        began = time.perf_counter()
        alone = len(rows) == 1
        inputs = rows[0].inputs if alone else self._encoded([row.picture for row in rows], [row.prompt for row in rows])
        inputs = inputs.to(self.model.device, dtype=self.model.dtype)        # of these only the pixels are floats
        out = self.model.generate(**inputs, max_new_tokens=n_new, **sampling)
        n_read, elapsed_s = inputs["input_ids"].shape[1], time.perf_counter() - began
        found = []
        for row, said in zip(rows, out[:, n_read:].tolist()):
            new, finish = self._ended(said)
            found.append(Generation(
                text=self.processor.tokenizer.decode(new, skip_special_tokens=True), token_ids=tuple(new),
                n_prompt_tokens=len(row), n_image_tokens=self._n_image_tokens(row.inputs),
                image_sizes=self._seen(row.inputs), finish=finish, elapsed_s=elapsed_s, batch_size=len(rows),
                filled=row.filled))
        return found

    def _ended(self, said: list[int]) -> tuple[list[int], str]:
        """New ids up to the first end token, it included, and how they ended."""
        end = next((n for n, token in enumerate(said) if token in self.stops), None)
        return (said, "length") if end is None else (said[:end + 1], "stop")

    def _n_image_tokens(self, inputs: BatchFeature) -> int | None:
        if self.image_token_id is None:
            return None
        return int((inputs["input_ids"] == self.image_token_id).sum())

    @staticmethod
    def _seen(inputs: BatchFeature) -> tuple[tuple[int, int], ...] | None:
        """(height, width) of what one image became: one picture, or the tiles it was cut into."""
        pixels = inputs.get("pixel_values")
        if pixels is None or pixels.dim() < 4:              # patches in a row: no height or width to read off
            return None
        return (tuple(pixels.shape[-2:]),) * pixels.shape[:-3].numel()


def padded_to_square(picture: Image.Image, mean: Sequence[float]) -> tuple[Image.Image, float]:
    """The picture on a square of the processor's mean color, as LLaVA-1.5 was trained, and its share of the square."""
    side = max(picture.size)
    square = Image.new("RGB", (side, side), tuple(int(255 * value) for value in mean))
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return square, picture.width * picture.height / side ** 2
