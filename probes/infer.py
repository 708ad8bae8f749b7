"""What the keys are when a plain transformers call is watched: read off its own `input_ids`.

States made by `probes.prefix` say what their tokens are.  A user's own `model.generate(**inputs)` does
not, so the groups are followed from forward to forward: the first pass of a sequence holds the prompt,
what comes later is generated.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Token

import torch
from torch import nn
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionLayer

from probes.interpose import COLUMNS, Columns, Lineage, WatchedRow
from probes.layout import IMAGE, MAX_IMAGES, PADDING, QUESTION, SINK
from probes.mass import LOWEST_VISIBLE_BIAS
from rekey.errors import InputError

ROOM = 1024


@contextmanager
def known_columns(network: nn.Module) -> Iterator[None]:
    """While open, every forward pass of `network` has its columns set: by a State, or else inferred here."""
    inferred = InferredColumns(network.config)

    def before(_, args: tuple, kwargs: dict) -> None:
        if COLUMNS.get() is None:
            inferred.enter(args, kwargs)

    def after(*_) -> None:
        inferred.leave()

    hooks = [network.register_forward_pre_hook(before, with_kwargs=True),
             network.register_forward_hook(after, always_call=True)]
    try:
        # A compiled model (transformers compiles for a static cache on CUDA) would bake one step into its graph.
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class InferredColumns:
    """Follows the sequences of one model through the forward passes of a block."""

    def __init__(self, config):
        self.image_token_id = config.image_token_id
        self.columns: Columns | None = None
        self.cache = None
        self.keys: Callable[[], torch.Tensor | None] = lambda: None         # of one layer, as the last pass left them
        self.token: Token | None = None

    def enter(self, args: tuple, kwargs: dict) -> None:
        """Before a forward pass: set the columns from its arguments."""
        ids = kwargs.get("input_ids", args[0] if args else None)
        mask = kwargs.get("attention_mask")
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if ids is None:
            raise InputError("attention: the model was called with inputs_embeds only, which do not tell image tokens "
                             "from text; pass input_ids")
        n_past = 0 if cache is None else int(cache.get_seq_length())
        if n_past == 0:
            if kwargs.get("use_cache") is False and self.columns is not None and ids.shape[1] == self.columns.n + 1:
                raise InputError("attention: everything is read again at every token (use_cache=False); generate "
                                 "with the cache, or rescore the finished text")
            self.columns = self._first(ids, mask)
        elif self._continues(cache, n_past, len(ids)):
            if (ids == self.image_token_id).any():
                raise InputError("attention: an image is read in a later pass than the first; expected the whole "
                                 "prompt at once (no prefill_chunk_size), or a State (probes.prefix)")
            self._next(self.columns, ids.shape[1])
        else:
            raise InputError(f"attention: the cache holds {n_past} tokens that were not read in this block, or its "
                             "rows were exchanged (beam search); open the block before the prompt is read and "
                             "generate without beams, or continue from a State (probes.prefix)")
        self.columns.plain_mask = mask is None or not isinstance(mask, dict) and mask.dim() == 2
        # Static caches have room behind, quantized ones change old keys.
        self.columns.grows = cache is not None and all(
            type(layer) is DynamicLayer or isinstance(layer, LinearAttentionLayer) for layer in cache.layers)
        self.cache = cache
        self.token = COLUMNS.set(self.columns)

    def _continues(self, cache, n_past: int, n_rows: int) -> bool:
        return (self.columns is not None and cache is self.cache and self.columns.n == n_past
                and n_rows == len(self.columns.rows) and _some_keys(cache) is self.keys())

    def leave(self, *_) -> None:
        """After a forward pass, or an exception in it."""
        if self.token is not None:
            COLUMNS.reset(self.token)
            self.token = None
            keys = _some_keys(self.cache)
            self.keys = (lambda: None) if keys is None else weakref.ref(keys)

    def _first(self, ids: torch.Tensor, mask: torch.Tensor | dict | None) -> Columns:
        real = _real_tokens(ids, mask)
        if not real[:, -1].all():
            raise InputError("attention: a row ends in padding; expected padding on the left "
                             "(padding_side=\"left\"), so that the last column is the last token of every row")
        of_image = (ids == self.image_token_id) & real
        number = (of_image & ~pad(of_image, (1, 0))[:, :-1]).cumsum(1) - 1
        if number.max() >= MAX_IMAGES:
            raise InputError(f"attention: more than {MAX_IMAGES} images in one prompt; expected at most that many")
        codes = torch.where(of_image, IMAGE + 2 * number, torch.where(real, QUESTION, PADDING))
        sink = real & (real.cumsum(1) == 1) & ~of_image
        codes = torch.where(sink, SINK, codes).to(torch.uint8)
        rows = []
        for row in codes.cpu():
            counts = row.bincount(minlength=IMAGE)[IMAGE::2].tolist()
            rows.append(WatchedRow(Lineage(), int((row != PADDING).sum()), tuple((n, 0) for n in counts)))
        lengths = [row.n_prompt for row in rows]
        return Columns(codes=codes, n=ids.shape[1], n_codes=IMAGE + 2 * max(len(row.images) for row in rows),
                       lengths=lengths, n_new=list(lengths), n_recorded=1, rows=tuple(rows), room=ROOM)

    @staticmethod
    def _next(columns: Columns, n_new: int) -> None:
        columns.n += n_new
        columns.lengths = [length + n_new for length in columns.lengths]
        columns.n_new, columns.n_recorded = [n_new] * len(columns.rows), n_new


def _some_keys(cache: Cache | None) -> torch.Tensor | None:
    """The keys of the first layer that has some: another tensor once rows were exchanged or cut behind our back."""
    layers = cache.layers if cache is not None else []
    return next((layer.keys for layer in layers if getattr(layer, "keys", None) is not None), None)


def _real_tokens(ids: torch.Tensor, mask: torch.Tensor | dict | None) -> torch.Tensor:
    """(B, T) bool, False at padding, from a mask of a first pass in any form that transformers uses.

    With a static cache `generate` makes the 4D masks itself, for some models one for each kind of layer.
    """
    if isinstance(mask, dict):
        mask = mask.get("full_attention", next(iter(mask.values())))
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if mask.dim() == 2:
        return mask[:, -ids.shape[1]:].bool()
    seen = mask if mask.dtype == torch.bool else mask > LOWEST_VISIBLE_BIAS
    return seen[:, 0, :, :ids.shape[1]].any(1).expand(len(ids), -1)
