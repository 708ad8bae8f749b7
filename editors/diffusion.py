"""What all painters with weights share: loading, one generator per edit, batches of one shape, checks.

    painter = FluxPainter(settings)
    painter.check()                             # one clear line if it cannot work; loads nothing
    pictures = painter.paint(paintings)

Every batch has the same shape: a short one is filled up by repeating its last painting.  So there is one graph to
compile for a canvas, and the picture of an edit depends on its own seed and pixels, not on what it was painted with
(the kernels of another batch size round otherwise).
"""

from __future__ import annotations

import gc
import math
import os
import re
import tempfile
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline
from diffusers.utils import logging as diffusers_logging
from PIL import Image

from editors.embeddings import Embeddings, Encoded
from editors.models import Located, check_memory, check_pipeline, license_of, locate, n_bytes_of
from editors.painting import Painting
from editors.settings import ModelSettings
from rekey.errors import InputError
from rekey.geometry import Box

WORK_BYTES = 4 * 2 ** 30        # set aside for activations and the decoder, on top of the weights
ENCODE_BATCH = 8                # prompts encoded at once; always as many, since kernels of other sizes round otherwise


class DiffusionPainter(ABC):
    """A pipeline of diffusers behind the `Painter` protocol.  One at a time uses it; threads wait for each other."""

    components: tuple[str, ...] = ("scheduler", "transformer", "vae")
    """Folders of `base` that painting needs."""
    text_components: tuple[str, ...] = ()
    """Folders of `base` that encoding prompts needs."""
    made_for: tuple[str, ...] = ()
    """Classes of pipelines whose weights it can use; none: any."""
    many_shapes = False
    """Whether pictures come in more sizes than a graph can be compiled for."""

    def __init__(self, settings: ModelSettings):
        self.settings = settings
        self._lock = threading.Lock()
        self._pipeline: DiffusionPipeline | None = None

    # --------------------------------------------------------------------------- what a kind of model adds

    @abstractmethod
    def load(self) -> DiffusionPipeline:
        """The pipeline, on the device."""

    @abstractmethod
    def call(self, pipeline: DiffusionPipeline, batch: Sequence[Painting], text: Encoded,
             generators: list[torch.Generator]) -> np.ndarray:
        """One call of the pipeline: float32 (B, height, width, 3) in [0, 1]."""

    @abstractmethod
    def text_of(self, batch: Sequence[Painting]) -> Encoded:
        """What the model reads of each prompt: {name: (B, ...)}."""

    @abstractmethod
    def expect(self, prompts: Iterable[str]) -> None:
        """As `Painter.expect`."""

    # ------------------------------------------------------------------------------------------- protocol

    @property
    def device(self) -> torch.device:
        """Raises InputError for one that is not here."""
        wanted, n_gpus = self.settings.device, torch.cuda.device_count()
        if wanted == "auto":
            return torch.device("cuda" if n_gpus else "cpu")
        if not (match := re.fullmatch(r"cpu|cuda(?::(\d+))?", wanted)):
            raise InputError(f"device={wanted}: expected auto, cpu, cuda or cuda:N")
        if wanted != "cpu" and int(match[1] or 0) >= n_gpus:
            raise InputError(f"device={wanted}: {n_gpus or 'no'} GPU{'s are' if n_gpus > 1 else ' is'} seen here; give "
                             "another, or auto")
        return torch.device(wanted)

    @property
    def dtype(self) -> torch.dtype:
        """One for all parts: a part in another precision is an error in mid-run."""
        if self.settings.dtype != "auto":
            return getattr(torch, self.settings.dtype)
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @property
    def needed(self) -> tuple[str, ...]:
        """Folders of `base` that must be there before a run."""
        return self.components + self.text_components

    def located(self) -> dict[str, Located]:
        """Where each set of weights lies, by the setting that names it."""
        return {"base": locate(self.settings.base, self.settings.revision)}

    def check(self) -> None:
        found = self.located()
        check_pipeline(found["base"].folder, self.needed, self.made_for)
        for name in ("prompt_cache", "compile_cache"):
            check_folder(name, getattr(self.settings, name))
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            weights_bytes = self.n_bytes(found) * self.dtype.itemsize // torch.bfloat16.itemsize     # as published
            check_memory(weights_bytes + WORK_BYTES, free, total, ", ".join(one.id for one in found.values()))

    def n_bytes(self, found: dict[str, Located]) -> int:
        """Of the weights that are on the device at the same time."""
        base = found["base"].folder
        return max(n_bytes_of(base, self.components), n_bytes_of(base, self.text_components))

    def describe(self) -> dict[str, Any]:
        return {"weights": {name: {"id": one.id, "revision": one.revision, "license": license_of(one.id)}
                            for name, one in self.located().items()},
                "precision": str(self.dtype).removeprefix("torch.")}

    def paint(self, paintings: Sequence[Painting]) -> list[np.ndarray]:
        groups: dict[Any, list[int]] = {}
        for number, painting in enumerate(paintings):
            groups.setdefault(painting.group, []).append(number)
        pictures: dict[int, np.ndarray] = {}
        with self._lock:
            for ((canvas_px, *_), _), members in groups.items():
                size = self.settings.batch_at(canvas_px)
                for start in range(0, len(members), size):
                    numbers = members[start:start + size]
                    batch = [paintings[number] for number in numbers]
                    pictures |= zip(numbers, self._batch(batch + batch[-1:] * (size - len(batch))))
        return [pictures[number] for number in range(len(paintings))]

    # --------------------------------------------------------------------------------------------- the work

    @property
    def pipeline(self) -> DiffusionPipeline:
        """Loaded when first asked for."""
        if self._pipeline is None:
            self._pipeline = self._loaded(self.load)
            self._pipeline.set_progress_bar_config(disable=True)
            if self.settings.compile:
                self.compile(self._pipeline)
        return self._pipeline

    def _batch(self, batch: Sequence[Painting]) -> list[np.ndarray]:
        # On the CPU, one per edit: the same noise on every device, whatever else is in the batch.
        generators = [torch.Generator("cpu").manual_seed(painting.seed) for painting in batch]
        with _enough_memory(f"{len(batch)} edits at once on a canvas of {batch[0].side} px"), torch.inference_mode():
            text = {name: rows.to(self.device) for name, rows in self.text_of(batch).items()}
            pictures = list(self.call(self.pipeline, batch, text, generators))
        for painting, picture in zip(batch, pictures, strict=True):
            assert picture.shape == painting.start.shape, f"asked for {painting.start.shape}, painted {picture.shape}"
        return pictures

    def load_without(self, pipeline_class: type[DiffusionPipeline], parts: Iterable[str],
                     **given: Any) -> DiffusionPipeline:
        """A pipeline from `base` on the CPU, some of its parts left out and others given."""
        return pipeline_class.from_pretrained(self.located()["base"].folder, dtype=self.dtype, use_safetensors=True,
                                              local_files_only=True, **dict.fromkeys(parts), **given)

    def _loaded(self, load: Callable[[], DiffusionPipeline]) -> DiffusionPipeline:
        """What `load` gives; InputError names the weights that the libraries cannot read."""
        try:
            with _enough_memory("the weights"):
                return quietly(load)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            names = " with ".join(str(one.folder) for one in self.located().values())
            first = next(iter(str(error).strip().splitlines()), "")
            raise InputError(f"{names}: cannot be loaded ({type(error).__name__}: {first}); download it "
                             "again") from error

    def compile(self, pipeline: DiffusionPipeline) -> None:
        """Compile the transformer's blocks, one graph per canvas; the cache outlives the process."""
        if self.settings.compile_cache is not None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.settings.compile_cache)
        pipeline.transformer.compile_repeated_blocks(fullgraph=True, dynamic=self.many_shapes)


class CachingPainter(DiffusionPainter):
    """A painter whose model reads prompts without seeing the picture: they are encoded once, beforehand."""

    def __init__(self, settings: ModelSettings):
        super().__init__(settings)
        self._text_pipeline: DiffusionPipeline | None = None
        self._embeddings: Embeddings | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        # Prompts that are all in a cache need no text encoders; `text_pipeline` checks them when they are.
        return self.components if self.settings.prompt_cache is not None else super().needed

    @abstractmethod
    def encode(self, prompts: Sequence[str]) -> Encoded:
        """Prompts (at most ENCODE_BATCH of them) by the text encoders in `self.text_pipeline()`."""

    def text_of(self, batch: Sequence[Painting]) -> Encoded:
        """From the cache."""
        return self.embeddings.of([painting.prompt for painting in batch])

    def expect(self, prompts: Iterable[str]) -> None:
        with self._lock:
            self.embeddings.prepare(list(prompts))

    @property
    def embeddings(self) -> Embeddings:
        if self._embeddings is None:
            base = self.located()["base"]
            identity = f"{base.id}@{base.revision} {self.settings.text_tokens} {self.dtype}"
            self._embeddings = Embeddings(identity, self._encode_all, self.settings.prompt_cache)
        return self._embeddings

    def _encode_all(self, prompts: Sequence[str]) -> Iterator[tuple[list[str], Encoded]]:
        """Some prompts with their rows, as soon as they are encoded."""
        try:
            for start in range(0, len(prompts), ENCODE_BATCH):
                chunk = list(prompts[start:start + ENCODE_BATCH])
                filled = chunk + chunk[-1:] * (ENCODE_BATCH - len(chunk))
                with _enough_memory("the text encoders"), torch.inference_mode():
                    encoded = quietly(lambda filled=filled: self.encode(filled))
                yield chunk, {name: rows[:len(chunk)].cpu() for name, rows in encoded.items()}
        finally:
            self._text_pipeline = None
            free_memory()

    def text_pipeline(self, load: Callable[[], DiffusionPipeline]) -> DiffusionPipeline:
        """The text encoders, loaded for as long as prompts are being encoded."""
        if self._text_pipeline is None:
            check_pipeline(self.located()["base"].folder, self.text_components)
            self._text_pipeline = self._loaded(load).to(self.device)
        return self._text_pipeline


def quietly(load: Callable[[], Any]) -> Any:
    """`load()` without progress bars, and without what diffusers and transformers say of their own code."""
    from transformers.utils import logging as transformers_logging
    before = diffusers_logging.is_progress_bar_enabled()
    levels = [(one, one.get_verbosity()) for one in (diffusers_logging, transformers_logging)]
    for one, _ in levels:
        one.set_verbosity_error()
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="diffusers")
            return load()
    finally:
        for one, level in levels:
            one.set_verbosity(level)
        if before:
            diffusers_logging.enable_progress_bar()
            transformers_logging.enable_progress_bar()


def check_length(prompts: Iterable[str], tokenizer: Callable[[str], Any], text_tokens: int) -> None:
    """Raises InputError for a prompt that would be cut."""
    for prompt in prompts:
        if (missing := len(tokenizer(prompt)["input_ids"]) - text_tokens) > 0:
            raise too_long(text_tokens, missing, prompt)


def too_long(text_tokens: int, missing: int, prompt: str) -> InputError:
    return InputError(f"text_tokens={text_tokens}: {missing} more are needed for the prompt {prompt!r}")


@contextmanager
def _enough_memory(what: str) -> Iterator[None]:
    """Out of memory is one line that says what did not fit."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"out of GPU memory with {what} ({reason}); give a smaller --set batch_size and a new --out, "
                         "since another batch size is another run, or use a GPU with more memory") from None


def check_folder(setting: str, folder: Path | None) -> None:
    """Raises InputError where a folder that is to be kept cannot be written."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{setting}={folder}: cannot be written ({error.strerror}); give another folder") from None


def free_memory() -> None:
    """Give what is no longer used back to the device."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def sigmas_from(sigma_start: float, steps: int, scheduler_config: Any, shift: float) -> list[float]:
    """Sigmas to hand to a FlowMatch scheduler so that, after its own shift, the first one is `sigma_start`.

    The schedule is the scheduler's usual one, compressed to end where it always does.  Shifts depend on the canvas, so
    a `strength` would begin at another noise level on each.  shift: what it will apply, see `shift_of`.
    """
    def unshifted(sigma: float) -> float:
        return sigma / (shift - (shift - 1) * sigma)
    if not (terminal := scheduler_config.get("shift_terminal")):
        first = unshifted(sigma_start)
        return [first * (steps - n) / steps for n in range(steps)]
    # It will also stretch the distances from 1, until the last sigma is the terminal one; here it is undone.
    if not terminal < sigma_start or steps < 2:
        raise InputError(f"sigma_start={sigma_start}, steps={steps}: this model's schedule ends at {terminal}; "
                         "expected a start above that, and 2 steps or more")
    last = 1 / steps
    stretch = (1 - terminal) * (1 + (shift - 1) * last) / (1 - last)
    first = unshifted(1 - (1 - sigma_start) / stretch)
    return [first + (last - first) * n / (steps - 1) for n in range(steps)]


def shift_of(scheduler_config: Any, n_tokens: int) -> float:
    """By how much a FlowMatch scheduler favors noise: its sigma of t is shift t / (1 + (shift - 1) t).

    FLUX's grows with the picture: the logarithm is linear in the number of image tokens.
    """
    def of(name: str, default: float) -> float:
        return scheduler_config.get(name, default)
    if not of("use_dynamic_shifting", False):
        return of("shift", 1.0)
    low, high = of("base_image_seq_len", 256), of("max_image_seq_len", 4096)
    slope = (of("max_shift", 1.15) - of("base_shift", 0.5)) / (high - low)
    return math.exp(of("base_shift", 0.5) + slope * (n_tokens - low))


def pil(pixels: np.ndarray) -> Image.Image:
    """As PIL: pipelines scale these to [-1, 1], and a tensor in [0, 1] not."""
    return Image.fromarray(np.ascontiguousarray(pixels))


def mask_of(side: int, hole: Box) -> Image.Image:
    """White where the model is to paint."""
    mask = np.zeros((side, side), np.uint8)
    mask[hole.slices] = 255
    return Image.fromarray(mask)
