"""Prompts as a model reads them, encoded once, so that the text encoders need not stay loaded.

    embeddings = Embeddings(identity, encode, folder=None)
    embeddings.prepare(prompts)                 # encodes what is missing, all at once
    rows = embeddings.of(batch)                 # {"prompt_embeds": (B, T, C), ...} on the CPU

FLUX.1's T5 is a third of its memory and is needed for a second: a benchmark has some hundred prompts, of a
megabyte each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from rekey.store import write_atomic

Encoded = dict[str, torch.Tensor]
Encode = Callable[[Sequence[str]], Iterable[tuple[list[str], Encoded]]]


class Embeddings:
    """A cache of encoded prompts, in memory and, where a folder is given, on disk.

    identity: what tells one way of encoding from another (weights and revision, length, precision).
    encode: prompts -> some of them at a time with {name: (n, ...)}, kept as they come; it loads what it needs, and
    lets go of it in the end.
    """

    def __init__(self, identity: str, encode: Encode, folder: Path | None = None):
        self.identity, self.encode, self.folder = identity, encode, folder
        self._known: dict[str, Encoded] = {}

    def prepare(self, prompts: Sequence[str]) -> None:
        """Make sure that these prompts are encoded."""
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._known]
        missing = [prompt for prompt in missing if not self._read(prompt)]
        if not missing:
            return
        for chunk, encoded in self.encode(missing):
            for number, prompt in enumerate(chunk):
                # A copy: a slice would keep the whole batch's memory.
                self._known[prompt] = {name: rows[number].clone() for name, rows in encoded.items()}
                if self.folder is not None:
                    write_atomic(self._path(prompt), safetensors.torch.save(self._known[prompt]))

    def of(self, prompts: Sequence[str]) -> Encoded:
        """The encoded prompts, stacked."""
        self.prepare(prompts)
        found = [self._known[prompt] for prompt in prompts]
        return {name: torch.stack([one[name] for one in found]) for name in found[0]}

    def _path(self, prompt: str) -> Path:
        return self.folder / f"{hashlib.sha256(f'{self.identity}|{prompt}'.encode()).hexdigest()[:32]}.safetensors"

    def _read(self, prompt: str) -> bool:
        if self.folder is None or not self._path(prompt).exists():
            return False
        try:
            self._known[prompt] = safetensors.torch.load_file(self._path(prompt))
        except SafetensorError:                     # of another program, or half copied: made anew
            return False
        return True
