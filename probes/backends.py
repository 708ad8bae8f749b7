"""Which model is asked, where it runs, and how it is loaded when it is needed.

    spec = ModelSpec("Qwen/Qwen3-VL-8B-Instruct")           # or backend="vllm", or backend="openai", base_url=...
    spec.identity()                                         # what its answers depend on; loads no weights
    vlm = spec.load()                                       # a `rekey.evaluate.VLM`

A spec is plain data, so that worker processes can load the model themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from rekey.errors import InputError
from rekey.evaluate import VLM, Failure, Identity, Settings
from rekey.records import Generation

BackendName = Literal["hf", "vllm", "openai"]
BACKENDS = ("hf", "vllm", "openai")
VLLM_BATCH = 64                 # questions a call: the engine fills its GPU by itself, and a killed run loses one call


@dataclass(frozen=True)
class ModelSpec:
    """A model by hub id, folder, control:NAME or tiny:FAMILY; behind a server, by the name it has there."""

    name: str
    backend: BackendName = "hf"
    revision: str | None = None
    dtype: str = "auto"
    device_map: str = "auto"
    attention: str = "auto"
    min_pixels: int | None = None
    max_pixels: int | None = None
    base_url: str | None = None
    """openai: where the server is, up to "/v1"."""
    processor: str | None = None
    """openai: the model's own files here, to tell what size and how many tokens it sees."""
    zoom_steps: int | None = None
    """hf, models of the probe engine: how often it may zoom into the picture before it answers (ReKey, Table 6)."""

    def check(self) -> None:
        """Raises InputError for options that this backend has no use for, instead of leaving them out in silence."""
        if self.zoom_steps is not None and self.backend != "hf":
            raise InputError(f"--zoom-steps: is for --backend hf, whose models can be shown cut-outs in later turns; "
                             f"found --backend {self.backend}")
        served = {"--base-url": self.base_url, "--processor": self.processor}
        local = {"--device": self.device_map != "auto", "--attention": self.attention != "auto"}
        loaded = {"--revision": self.revision, "--dtype": self.dtype != "auto", "--min-pixels": self.min_pixels,
                  "--max-pixels": self.max_pixels}
        unused = {"hf": served, "vllm": served | local, "openai": local | loaded}[self.backend]
        if given := [name for name, value in unused.items() if value]:
            hint = " (a server is given them when it is started)" if self.backend == "openai" else ""
            raise InputError(f"--backend {self.backend}: has no use for {', '.join(given)}; leave them out{hint}")
        if self.backend == "openai" and not self.base_url:
            raise InputError("--backend openai: needs --base-url, such as http://localhost:8000/v1")
        try:
            password = urlsplit(self.base_url or "").password
        except ValueError as error:
            raise InputError(f"--base-url {self.base_url}: {error}; expected such as "
                             "http://localhost:8000/v1") from None
        if password:
            raise InputError("--base-url: holds a password, which would stand in the run's files; leave it out and set "
                             "OPENAI_API_KEY")

    def identity(self) -> Identity:
        """The name is a folder's last part, so that a run may go on after the folder has moved."""
        options = {"backend": self.backend, "min_pixels": self.min_pixels, "max_pixels": self.max_pixels,
                   "zoom_steps": self.zoom_steps}
        if self.backend == "openai":
            return Identity(self.name, options)
        from probes.loading import TINY, choose_dtype, weights_revision
        on_gpu = _on_gpu(self.device_map)
        options |= {"revision": weights_revision(self.name, self.revision),
                    "dtype": str(choose_dtype(self.dtype, self.name, on_gpu)).removeprefix("torch.")}
        here = Path(self.name).is_dir() and not self.name.startswith(TINY)
        return Identity(Path(self.name).resolve().name if here else self.name, options)

    @property
    def family(self) -> str:
        """The `model_type` of its config; of a server, that of its processor's files."""
        from probes.loading import model_type
        if self.backend == "openai" and self.processor is None:
            raise InputError(f"{self.name}: which family is it?  Give the model's files as --processor")
        return model_type(self.processor or self.name, self.revision)

    def has_thinking_switch(self) -> bool:
        """Whether the model's chat template can turn thinking on and off; a server is taken to know."""
        if self.backend == "openai":
            return True
        from probes.loading import any_processor
        from probes.prompts import has_thinking_switch
        return has_thinking_switch(any_processor(self.name, self.revision))

    def on_gpu_of(self, worker: int) -> ModelSpec:
        """The same model for one of several processes, each with a GPU of its own as far as there are enough."""
        import torch
        n_gpus = torch.cuda.device_count()
        alone = self.device_map == "auto" and n_gpus > 1
        return replace(self, device_map=f"cuda:{worker % n_gpus}") if alone else self

    def load(self) -> VLM:
        if self.backend == "hf":
            from probes.answering import load_local
            return load_local(self.name, self.dtype, self.device_map, self.attention, self.min_pixels, self.max_pixels,
                              self.revision, self.zoom_steps)
        if self.backend == "vllm":
            from probes.vllm import load_engine
            return load_engine(self.name, self.dtype, self.min_pixels, self.max_pixels, self.revision)
        if self.backend == "openai":
            from probes.openai import ServedVLM
            return ServedVLM(self.name, self.base_url, self.processor)
        raise InputError(f"--backend {self.backend}: expected {', '.join(BACKENDS)}")


class LoadedWhenAsked:
    """A model that is loaded at its first question, once for all benchmarks that are put to it."""

    def __init__(self, spec: ModelSpec):
        self.spec = spec

    @cached_property
    def vlm(self) -> VLM:
        return self.spec.load()

    def describe(self) -> dict[str, Any]:
        return self.vlm.describe()

    def answer(self, images: Sequence[np.ndarray], texts: Sequence[str], settings: Settings,
               seeds: Sequence[int] | None) -> list[Generation | Failure]:
        return self.vlm.answer(images, texts, settings, seeds)


def _on_gpu(device_map: str) -> bool:
    import torch
    return torch.cuda.is_available() and device_map != "cpu"
