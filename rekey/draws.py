"""Random choices that are the same on every machine, Python and numpy version.

    draws = Draws("record", image_id, seed, 0)
    draws.choice(("red", "blue")), draws.below(10)

The numbers are the 64-bit words of SHA-256(parts, counter), so a published seed keeps its meaning:
library generators may change their streams between versions, a hash does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """An endless stream of choices, fixed by `parts` (strings and integers)."""

    def __init__(self, *parts: str | int):
        # Lengths go in, so that ("a", "bc") and ("ab", "c") are different streams.
        text = "".join(f"{len(str(part))}:{part}" for part in parts)
        self._state = hashlib.sha256(text.encode())
        self._words: list[int] = []
        self._block = 0

    def word(self) -> int:
        """The next integer in [0, 2**64)."""
        if not self._words:
            state = self._state.copy()
            state.update(b"/%d" % self._block)
            self._block += 1
            digest = state.digest()
            self._words = [int.from_bytes(digest[i:i + 8], "big") for i in (24, 16, 8, 0)]
        return self._words.pop()

    def below(self, n: int) -> int:
        """An integer in [0, n); the bias of n / 2**64 is far below anything measurable."""
        if n < 1:
            raise ValueError(f"cannot draw from {n} choices")
        return self.word() * n >> 64

    def uniform(self) -> float:
        """A float in [0, 1)."""
        return (self.word() >> 11) / (1 << 53)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def weighted(self, options: Sequence[T], weights: Sequence[float]) -> T:
        """One of `options`, with probability proportional to its weight (>= 0, not all 0)."""
        point = self.uniform() * sum(weights)
        for option, weight in zip(options, weights, strict=True):
            point -= weight
            if point < 0:
                return option
        return next(o for o, w in zip(reversed(options), reversed(weights), strict=True) if w > 0)

    def shuffled(self, options: Sequence[T]) -> list[T]:
        out = list(options)
        for i in range(len(out) - 1, 0, -1):
            j = self.below(i + 1)
            out[i], out[j] = out[j], out[i]
        return out

    def seed(self) -> int:
        """A 63-bit seed for an editor's own generator."""
        return self.word() >> 1
