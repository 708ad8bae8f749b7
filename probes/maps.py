"""Where on the image attention goes: the weight on every image token, for windows of rows (VisualSwap, Sec. 5.3).

    windows = {"before": (212, 312), "after": (320, 420)}              # token index ranges
    with mapping_image_attention(vlm, prompt, windows) as maps:
        prefill(vlm, [prompt.then(said[:-1])])
    maps.arrays()["after"]                                             # (layers, rows, columns) of image tokens

Means over heads and over the rows of a window; the sum over a map is the mean mass that the recorder gives for the same
rows (`probes.attention`), which this leaves as it is.  Rows are taken a few at a time, in float32: no weight matrix of
all rows and keys is kept.  Under steering the weights are the steered ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from probes.attention import chosen_layers
from probes.interpose import COLUMNS, AttentionCall, Columns, interposed, text_attention_modules
from probes.layout import IMAGE, Prompt
from rekey.errors import InputError

if TYPE_CHECKING:
    from probes.vlm import LocalVLM

LOGITS_PER_BLOCK = 1 << 25       # logits that are held at once, 128 MB


class ImageMaps:
    """What a mapping block has seen.

    prompt: the sequence that is read, or its beginning with its one image.  windows: by name, ranges of token indices.
    """

    def __init__(self, prompt: Prompt, windows: Mapping[str, tuple[int, int]], layers: Iterable[int]):
        if len(prompt.images) != 1:
            raise InputError(f"image maps: the sequence has {len(prompt.images)} images; expected one")
        codes = np.frombuffer(prompt.codes, np.uint8)
        self.token_grid, self.layers = prompt.images[0].token_grid, tuple(layers)
        self.windows = dict(windows)
        self._image = torch.from_numpy(np.flatnonzero(codes >= IMAGE))                              # (V,) token indices
        self._codes = torch.from_numpy(codes[codes >= IMAGE].astype(np.int64))                      # (V,)
        self._sums: dict[tuple[str, int], torch.Tensor] = {}
        self._rows: dict[tuple[str, int], int] = {}

    def arrays(self) -> dict[str, np.ndarray]:
        """(L, rows, columns) float32 of every window of which a row was read."""
        found = {}
        for name in self.windows:
            n_rows = {self._rows.get((name, layer), 0) for layer in self.layers}
            assert len(n_rows) == 1, "every layer sees every row"
            if n := n_rows.pop():
                maps = [self._sums[name, layer].cpu().numpy() / n for layer in self.layers]
                found[name] = np.stack(maps).reshape(-1, *self.token_grid)
        return found

    def record(self, call: AttentionCall, proceed: Callable[[], tuple]) -> tuple:
        """One layer attends: let it, then add the weights of the rows that stand in a window."""
        output, columns = proceed(), COLUMNS.get()
        if columns is None or columns.n_recorded == 0:
            return output
        if len(columns.rows) != 1:
            raise InputError(f"image maps: {len(columns.rows)} rows are read together; read one at a time")
        call = call.within(columns.n)
        n_queries = call.query.shape[2]
        first = columns.lengths[0] - n_queries                                  # token index of the first query row
        for name, (low, high) in self.windows.items():
            start, stop = max(0, low - first), min(n_queries, high - first)
            if start < stop:
                self._add((name, call.layer), call, columns, start, stop)
        return output

    def _add(self, key: tuple[str, int], call: AttentionCall, columns: Columns, start: int, stop: int) -> None:
        n_queries, n_heads, n_keys = call.query.shape[2], call.query.shape[1], call.key.shape[2]
        image = self._image.to(call.key.device) - columns.keys(n_keys)[1]       # a sliding window drops the first keys
        codes, there = self._codes.to(call.key.device), image >= 0
        keys = call.key[0].float()                                                                  # (G, T, D)
        total = torch.zeros(len(image), device=keys.device)
        at_once = max(1, LOGITS_PER_BLOCK // (n_heads * n_keys))
        for row in range(start, stop, at_once):
            rows = slice(row, min(row + at_once, stop))
            query = call.query[0, :, rows].float().unflatten(0, (keys.shape[0], -1)) * call.scaling
            logits = torch.einsum("ghrd,gtd->ghrt", query, keys).flatten(0, 1)                      # (H, R, T)
            weights = (logits + call.hidden(n_queries, rows)[0]).softmax(-1)
            weights = weights[..., image.clamp(min=0)] * there                                      # (H, R, V)
            if call.steered is not None:
                weights = weights * _steered_share(call, weights, codes, rows, n_queries)
            total += weights.mean(0).sum(0)
        self._sums[key] = self._sums.get(key, 0) + total
        self._rows[key] = self._rows.get(key, 0) + stop - start


def _steered_share(call: AttentionCall, weights: torch.Tensor, codes: torch.Tensor, rows: slice,
                   n_queries: int) -> torch.Tensor:
    """(H, R, V) by how much steering changed the weight of each image token: the same for all tokens of a code, since a
    bias on their logits multiplies them alike.

    weights: (H, R, V) as they would be without it.
    """
    steered, factor = call.steered, torch.ones_like(weights)
    ahead = n_queries - steered.which.shape[1]                                  # rows before the first steered one
    at = torch.arange(rows.start, rows.stop, device=weights.device) - ahead
    which = steered.which[0, at.clamp(min=0)] & (at >= 0)                                           # (R,)
    masses = steered.masses[0][:, at.clamp(min=0)]                                                  # (H, R, codes)
    for code in codes.unique():
        tokens = codes == code
        plain = weights[..., tokens].sum(-1)
        change = torch.where(which & (plain > 0), masses[..., code] / plain, 1.0)
        factor[..., tokens] = change[..., None]
    return factor


@contextmanager
def mapping_image_attention(vlm: LocalVLM, prompt: Prompt, windows: Mapping[str, tuple[int, int]],
                            layers: Iterable[int] | None = None) -> Iterator[ImageMaps]:
    """Map, while the block is open, the attention of single rows that begin with `prompt`.

    windows: by name, [start, stop) token indices; rows of the prompt itself may be among them.  layers: as in
    `probes.attention`.  `steering_image_attention` with a log_bias may be open or opened inside, also for a region; its
    other form, gain, changes tokens differently and is not followed.
    """
    modules = text_attention_modules(vlm.model)
    chosen = chosen_layers(layers, modules, vlm.model.config.get_text_config().num_hidden_layers)
    maps = ImageMaps(prompt, windows, chosen)
    with interposed([modules[layer] for layer in chosen], maps.record, first=True):
        yield maps


__all__ = ["ImageMaps", "mapping_image_attention"]
