"""States: what a model has read so far, kept so that reading it again is never needed.

A `State` is a batch of rows with their keys and values.  It is never changed: `extend`, `fork`,
`stack` and `select` give new states that share memory where the cache allows it, so fifty
continuations of one reasoning cost one prefill (VisualSwap, Sec. 5: retention x triggers).

    state  = prefill(vlm, [prompt])
    cell   = extend(vlm, fork(state, 312), [trigger_ids])     # cut at token 312, inject, go on
    batch  = stack([cell, other_cell])                        # rows of different lengths

Positions are explicit everywhere: the model's own `rope_deltas` belongs to whatever it ran last,
and continuing from it is silently wrong after another prompt.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from probes import interpose
from probes.interpose import COLUMNS, Columns, Lineage
from probes.layout import GENERATED, IMAGE, PADDING, Prompt, rope_positions
from rekey.errors import InputError

if TYPE_CHECKING:
    from probes.vlm import LocalVLM


@dataclass(frozen=True, eq=False)
class State:
    """Rows a model has read, with their keys and values.

    mask: (B, T) bool, False at left padding.  codes: (B, T) uint8 group codes.  following: (B,) rotary
    position of the next token.  logits: (B, vocabulary) float32 for the next token, None after a cut.
    """

    rows: tuple[Prompt, ...]
    cache: DynamicCache
    mask: torch.Tensor
    codes: torch.Tensor
    following: torch.Tensor
    logits: torch.Tensor | None
    lineage: tuple[Lineage, ...]
    padded: bool

    @property
    def n_columns(self) -> int:
        return self.codes.shape[1]

    @property
    def is_croppable(self) -> bool:
        return all(type(layer) is DynamicLayer for layer in self.cache.layers)


def prefill(vlm: LocalVLM, prompts: Sequence[Prompt], chunk_tokens: int | None = None) -> State:
    """Read prompts (left-padded together) and return their state.

    chunk_tokens: read the text after the last image in pieces of this many tokens, for prompts whose
    activations would not fit at once.
    """
    width = max(map(len, prompts))
    codes = np.full((len(prompts), width), PADDING, np.uint8)
    ids = np.full((len(prompts), width), vlm.pad_token_id, np.int64)
    axes = np.zeros((3 if vlm.family.positions == "mrope" else 1, len(prompts), width), np.int64)
    following = []
    for row, prompt in enumerate(prompts):
        start = width - len(prompt)
        codes[row, start:] = np.frombuffer(prompt.codes, np.uint8)
        ids[row, start:] = prompt.ids
        axes[:, row, start:], after = rope_positions(prompt.codes, prompt.images, vlm.family.positions)
        following.append(after)
    codes, ids, axes = (torch.from_numpy(array).to(vlm.device) for array in (codes, ids, axes))
    state = State(rows=tuple(prompts), cache=DynamicCache(config=vlm.model.config), mask=codes != PADDING, codes=codes,
                  following=torch.tensor(following, device=vlm.device), logits=None,
                  lineage=tuple(Lineage() for _ in prompts), padded=any(len(p) < width for p in prompts))
    # A watched prefill records the last prompt token and every generated one after it.
    n_rows = max(len(p) - p.n_prompt for p in prompts) + 1
    images = [image for prompt in prompts for image in prompt.images]
    first = width if chunk_tokens is None else max(width - min(len(p) - p.image_end for p in prompts), chunk_tokens)
    logits, done = None, 0
    for stop in [*range(first, width, chunk_tokens or width), width]:
        after = [max(0, stop - (width - len(p))) for p in prompts]
        before = [max(0, done - (width - len(p))) for p in prompts]
        logits = forward(vlm, state, ids[:, done:stop], axes[..., done:stop], stop, images if done == 0 else [], after,
                         [a - b for a, b in zip(after, before)], n_rows - (width - stop))
        done = stop
    return replace(state, logits=logits)


def extend(vlm: LocalVLM, state: State, ids: Sequence[Sequence[int]], group: int | Sequence[int] = GENERATED) -> State:
    """Feed text token ids, one list per row; lists of different lengths are allowed where all layers attend.

    group: what the tokens are (`probes.layout`), one for all or one per row.  Text that a model is made to have
    said counts as GENERATED.
    """
    if len(ids) != len(state.rows) or not all(ids):
        raise InputError(f"extend: got {[len(tokens) for tokens in ids]} token ids for a state of {len(state.rows)} row(s); expected "
                         "one list of at least one id per row")
    width = max(map(len, ids))
    if any(len(row) < width for row in ids) and not state.is_croppable:
        raise InputError(f"extend: {vlm.family.title} keeps a running state that padding would change; rows of equal length are expected, "
                         f"got {sorted({len(row) for row in ids})} tokens; extend one row at a time")
    stray = set(vlm.vision_token_ids) & {token for tokens in ids for token in tokens}
    if stray:
        raise InputError(f"extend: the ids hold the vision token(s) {sorted(stray)}; expected text; images enter with the prompt")
    kinds = [group] * len(ids) if isinstance(group, int) else list(group)
    fresh = np.full((len(ids), width), vlm.pad_token_id, np.int64)
    groups = np.full((len(ids), width), PADDING, np.uint8)
    offsets = np.zeros((len(ids), width), np.int64)
    for row, tokens in enumerate(ids):
        start = width - len(tokens)
        fresh[row, start:], groups[row, start:], offsets[row, start:] = tokens, kinds[row], np.arange(len(tokens))
    fresh, groups, offsets = (torch.from_numpy(array).to(vlm.device) for array in (fresh, groups, offsets))
    axes = (state.following[:, None] + offsets).expand(3 if vlm.family.positions == "mrope" else 1, -1, -1)
    lengths = torch.tensor([len(tokens) for tokens in ids], device=vlm.device)
    state = replace(
        state, rows=tuple(row.then(tokens, kind) for row, tokens, kind in zip(state.rows, ids, kinds)), cache=fork_cache(state.cache),
        mask=torch.cat([state.mask, groups != PADDING], 1), codes=torch.cat([state.codes, groups], 1),
        following=state.following + lengths, lineage=tuple(Lineage(old, len(row)) for old, row in
                                                           zip(state.lineage, state.rows)),
        padded=state.padded or any(len(row) < width for row in ids))
    logits = forward(vlm, state, fresh, axes, state.n_columns, [], [len(row) for row in state.rows],
                     [len(tokens) for tokens in ids], width)
    return replace(state, logits=logits)


def forward(vlm: LocalVLM, state: State, ids: torch.Tensor, axes: torch.Tensor, stop: int, images: list, lengths: list[int],
            n_new: list[int], n_rows: int) -> torch.Tensor:
    """Feed the columns of `ids` (B, Q), which end at column `stop`, into the state's cache, in place.

    axes: (3 or 1, B, Q) rotary positions.  lengths, n_new: real tokens per row after this, and among these columns.
    Returns the next token's logits (B, vocabulary) in float32.
    """
    columns = Columns(codes=state.codes, n=stop, n_codes=n_codes(state.rows), lengths=lengths, n_new=n_new,
                      n_rows=max(0, min(n_rows, ids.shape[1])), sequences=watched(state.rows, state.lineage))
    return run(vlm, state.cache, ids, axes, state.mask[:, :stop] if state.padded else None, columns, images)


def watched(rows: Sequence[Prompt], lineage: Sequence[Lineage]) -> tuple[interpose.Sequence, ...]:
    return tuple(interpose.Sequence(line, row.n_prompt, tuple((image.n_tokens, len(image.region)) for image in row.images))
                 for row, line in zip(rows, lineage))


def n_codes(rows: Sequence[Prompt]) -> int:
    return IMAGE + 2 * max(len(row.images) for row in rows)


@torch.no_grad()
def run(vlm: LocalVLM, cache: DynamicCache, ids: torch.Tensor, axes: torch.Tensor, mask: torch.Tensor | None,
        columns: Columns, images: list) -> torch.Tensor:
    """One forward pass with explicit positions; returns the last column's logits in float32."""
    inputs = {"input_ids": ids, "attention_mask": None if mask is None else mask.long(),
              "position_ids": axes if len(axes) == 3 else axes[0]}
    if images:
        inputs["pixel_values"] = torch.cat([image.pixels for image in images]).to(vlm.device, vlm.dtype)
        inputs["image_grid_thw"] = torch.tensor([image.grid for image in images], device=vlm.device)
    if "moe_mm_token_type_ids" in vlm.family.extra_inputs and ids.shape[1] > 1:
        # ERNIE routes image tokens, and those around them, to experts of their own.
        of_image = torch.isin(ids, torch.tensor(vlm.vision_token_ids, device=ids.device))
        inputs["moe_mm_token_type_ids"] = of_image.int()
    token = COLUMNS.set(columns)
    try:
        output = vlm.model(**inputs, cache=cache, use_cache=True, logits_to_keep=1)
    finally:
        COLUMNS.reset(token)
    return output.logits[:, -1].float()


def fork(state: State, n_tokens: int | None = None) -> State:
    """The state of a single row as it was after its first `n_tokens`; all rows, uncut, without a number."""
    if n_tokens is None:
        return replace(state, cache=fork_cache(state.cache))
    if len(state.rows) != 1:
        raise InputError(f"fork: a state of {len(state.rows)} rows cannot be cut; select one row first")
    row = state.rows[0].cut(n_tokens)
    if n_tokens == len(state.rows[0]):
        return replace(state, cache=fork_cache(state.cache))
    if not state.is_croppable:
        raise InputError("fork: this model's cache cannot be cut back (linear-attention layers keep one running state, sliding "
                         "windows drop old keys); make the states in order of their cuts with prefixes(vlm, prompt, cuts)")
    keep = state.n_columns - (len(state.rows[0]) - n_tokens)
    return replace(state, rows=(row,), cache=fork_cache(state.cache, keep), mask=state.mask[:, :keep], codes=state.codes[:, :keep],
                   following=state.following - (len(state.rows[0]) - n_tokens), logits=None,
                   lineage=(Lineage(state.lineage[0], n_tokens),))


def prefixes(vlm: LocalVLM, prompt: Prompt, cuts: Sequence[int]) -> list[State]:
    """The states of one sequence after each number of tokens in `cuts`, at the cost of reading it once."""
    ordered = sorted(set(cuts))
    if not ordered:
        return []
    prompt.cut(ordered[0]), prompt.cut(ordered[-1])
    states: dict[int, State] = {}
    state = prefill(vlm, [prompt.cut(ordered[-1])] if vlm.croppable else [prompt.cut(ordered[0])])
    for n_tokens in ordered:
        if vlm.croppable:
            states[n_tokens] = fork(state, n_tokens)
        else:
            new = prompt.ids[len(state.rows[0]):n_tokens]
            states[n_tokens] = state = extend(vlm, state, [new]) if new else state
    return [states[n_tokens] for n_tokens in cuts]


def with_logits(vlm: LocalVLM, state: State) -> State:
    """The state with logits: after a cut, the last token of every row is read once more."""
    if state.logits is not None:
        return state
    keep = state.n_columns - 1
    shorter = replace(state, rows=tuple(row.cut(len(row) - 1) for row in state.rows), cache=fork_cache(state.cache, keep),
                      mask=state.mask[:, :keep], codes=state.codes[:, :keep], following=state.following - 1,
                      lineage=tuple(Lineage(line, len(row) - 1) for line, row in zip(state.lineage, state.rows)))
    return extend(vlm, shorter, [row.ids[-1:] for row in state.rows], [row.codes[-1] for row in state.rows])


def stack(states: Sequence[State]) -> State:
    """One state with the rows of all, left-padded to the longest."""
    if len(states) == 1:
        return states[0]
    if any(state.logits is None for state in states) and any(state.logits is not None for state in states):
        raise InputError("stack: some states were cut and have no logits, others have; call with_logits on those first")
    width = max(state.n_columns for state in states)
    missing = [width - state.n_columns for state in states]
    cache = copy.copy(states[0].cache)
    cache.layers = [_stacked_layer([state.cache.layers[i] for state in states], missing) for i in range(len(cache.layers))]
    return State(
        rows=tuple(row for state in states for row in state.rows), cache=cache,
        mask=torch.cat([pad(s.mask, (n, 0)) for s, n in zip(states, missing)]),
        codes=torch.cat([pad(s.codes, (n, 0)) for s, n in zip(states, missing)]),
        following=torch.cat([state.following for state in states]),
        logits=None if states[0].logits is None else torch.cat([state.logits for state in states]),
        lineage=tuple(line for state in states for line in state.lineage),
        padded=any(missing) or any(state.padded for state in states))


def select(state: State, rows: Sequence[int]) -> State:
    """The state of some of its rows (padding that all of them share is kept)."""
    index = torch.tensor(list(rows), device=state.codes.device)
    cache = fork_cache(state.cache)
    select_rows(cache, index)
    return State(rows=tuple(state.rows[row] for row in rows), cache=cache, mask=state.mask[index], codes=state.codes[index],
                 following=state.following[index], logits=None if state.logits is None else state.logits[index],
                 lineage=tuple(state.lineage[row] for row in rows), padded=state.padded)


def select_rows(cache: DynamicCache, index: torch.Tensor) -> None:
    """Keep some rows of a cache, in place."""
    for layer in cache.layers:
        layer.reorder_cache(index)


def fork_cache(cache: DynamicCache, n_columns: int | None = None) -> DynamicCache:
    """A cache that can be written without changing `cache`.

    Attention layers append by concatenation and never write in place, so they share storage; linear-attention
    layers write their state in place and are cloned.
    """
    new = copy.copy(cache)
    new.layers = [copy.deepcopy(layer) if isinstance(layer, LinearAttentionLayer) else copy.copy(layer)
                  for layer in cache.layers]
    if n_columns is not None:
        for layer in new.layers:
            assert type(layer) is DynamicLayer, "only plain attention layers are cut"
            layer.keys, layer.values = layer.keys[..., :n_columns, :], layer.values[..., :n_columns, :]
    return new


def _stacked_layer(layers: list, missing: list[int]):
    first = layers[0]
    if isinstance(first, DynamicSlidingWindowLayer) and any(missing):
        raise InputError("stack: sliding-window caches of different lengths cannot be stacked; prefill the prompts together")
    if isinstance(first, LinearAttentionLayer):
        new = copy.deepcopy(first)
        for states in ("conv_states", "recurrent_states"):
            setattr(new, states, {i: torch.cat([getattr(layer, states)[i] for layer in layers])
                                  for i in getattr(first, states)})
        return new
    new = copy.copy(first)
    new.keys = torch.cat([pad(layer.keys, (0, 0, n, 0)) for layer, n in zip(layers, missing)])
    new.values = torch.cat([pad(layer.values, (0, 0, n, 0)) for layer, n in zip(layers, missing)])
    return new
