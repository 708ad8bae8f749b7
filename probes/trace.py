"""Recorded attention and its normalizations (VisualSwap, Sec. 5.3).

Everything is a raw sum of softmax mass per layer, head and step; nothing is averaged before it is
stored.  Row t belongs to the token that was *fed* at step t: n generated tokens give n rows, from the
last prompt token to the last but one that was generated.

    attention.scores                     # (L, H, T) mass on image tokens
    attention.percent(band=(0.5, 0.58))  # (T,) mean over heads and middle layers, x 100
    attention.before_after(n=100)        # means in the windows around t_swap
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rekey.errors import InputError

MIDDLE = (0.5, 0.6)              # the middle layers, as fractions of the depth: 18-21 of 36 (VisualSwap, Sec. 5.3)


def layers_near(band: tuple[float, float], layers: Sequence[int], n_layers: int) -> tuple[int, ...]:
    """Positions in `layers` of those between two fractions of the depth; where there are none, as in a small model, of
    the one nearest to their middle."""
    low, high = band[0] * n_layers, band[1] * n_layers
    found = tuple(n for n, layer in enumerate(layers) if low <= layer < high)
    # A layer's middle is half a layer on: of 5, layer 2 is the middle one.
    return found or (min(range(len(layers)), key=lambda n: abs(layers[n] + 0.5 - (low + high) / 2)),)


@dataclass(frozen=True, eq=False)
class ImageAttention:
    """Attention of one sequence: (L, H, T) float32 arrays of softmax mass in [0, 1].

    scores: on all image tokens; images: (n_images, L, H, T), on each image; region: on the image tokens inside
    the boxes of interest.  sink: on the first token.  question: on the question's text (on all prompt text but the
    first token where the prompt was not built here).  template: on the rest of the prompt.  generated: on what came
    after the prompt, injected text included.  sink + template + question + generated + scores = 1.
    layers: (L,) layer indices, counted from 0.  query_index: (T,) which token of the sequence attends.
    context_len: (T,) tokens it can see, itself included.  n_image_tokens, n_region_tokens: |V|.
    n_layers: of the model.
    before_steering: as `scores`, had the steered layers not been steered; None without steering.
    t_swap: index of the first token after the intervention, where the caller knows one.
    """

    scores: np.ndarray
    images: np.ndarray
    region: np.ndarray
    sink: np.ndarray
    template: np.ndarray
    question: np.ndarray
    generated: np.ndarray
    layers: tuple[int, ...]
    query_index: np.ndarray
    n_image_tokens: int
    n_region_tokens: int
    n_layers: int
    before_steering: np.ndarray | None = None
    t_swap: int | None = None

    @property
    def context_len(self) -> np.ndarray:
        return self.query_index + 1

    def in_band(self, band: tuple[float, float]) -> list[int]:
        """Positions in `layers` of those between two fractions of the model's depth (18-21 of 36 is 0.5 to 0.6)."""
        low, high = band[0] * self.n_layers, band[1] * self.n_layers
        found = [i for i, layer in enumerate(self.layers) if low <= layer < high]
        if not found:
            raise InputError(f"layer band {band}: holds none of the recorded layers {list(self.layers)} of "
                             f"{self.n_layers}; give a wider band, as fractions of the depth, or record more layers")
        return found

    def mean(self, band: tuple[float, float] = (0.0, 1.0)) -> np.ndarray:
        """(T,) mass on the image, averaged over heads and the layers of a band."""
        return self.scores[self.in_band(band)].mean((0, 1))

    def percent(self, band: tuple[float, float] = (0.0, 1.0)) -> np.ndarray:
        """(T,) percent of the attention: the paper's scale, whose reported changes exceed 1 and so are no raw mass."""
        return 100 * self.mean(band)

    def per_token(self, band: tuple[float, float] = (0.0, 1.0)) -> np.ndarray:
        """(T,) mean weight of one image token."""
        return self.mean(band) / self.n_image_tokens

    def enrichment(self, band: tuple[float, float] = (0.0, 1.0)) -> np.ndarray:
        """(T,) mass over the share of the context that is image; 1 when attention is spread evenly.

        The raw mass falls as text grows even for a model that looks as much as before; this does not.
        """
        return self.mean(band) * self.context_len / self.n_image_tokens

    def before_after(self, n: int = 100, band: tuple[float, float] = (0.0, 1.0)) -> tuple[float, float]:
        """Mean percent over the n tokens before and after the intervention (Table 5); nan where a window is empty."""
        if self.t_swap is None:
            raise InputError("before_after: t_swap is not set; give the index of the first token after the "
                             "intervention with dataclasses.replace(attention, t_swap=...)")
        percent, index = self.percent(band), self.query_index
        before = percent[(index >= self.t_swap - n) & (index < self.t_swap)]
        after = percent[(index >= self.t_swap) & (index < self.t_swap + n)]
        return tuple(float(window.mean()) if window.size else float("nan") for window in (before, after))
