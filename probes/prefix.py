"""States: what a model has read so far, kept so that reading it again is never needed.

A `State` is a batch of rows with their keys and values.  It is never changed: `extend`, `fork`,
`stack` and `select` give new states that share memory where the cache allows it, so fifty
continuations of one reasoning cost one prefill (VisualSwap: retention x triggers).

    state  = prefill(vlm, [prompt])
    cell   = extend(vlm, fork(state, 312), [trigger_ids])     # cut at token 312, inject, go on
    batch  = stack([cell, other_cell])                        # rows of different lengths

Positions are explicit everywhere: the model's own `rope_deltas` belongs to whatever it ran last,
and continuing from it is silently wrong after another prompt.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from probes.interpose import COLUMNS, Columns, Lineage, WatchedRow
from probes.layout import GENERATED, IMAGE, PADDING, SINK, TEMPLATE, Prompt, rope_positions
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
        return is_croppable(self.cache)


def prefill(vlm: LocalVLM, prompts: Sequence[Prompt], chunk_tokens: int | None = None, recorded: bool = True) -> State:
    """Read prompts (left-padded together) and return their state.

    chunk_tokens: read the text after the last image in pieces of this many tokens, for prompts whose
    activations would not fit at once.  recorded: False hides the reading from a recording block.
    """
    check_prompts(vlm, prompts)
    if not prompts or chunk_tokens is not None and chunk_tokens < 1:
        raise InputError(f"prefill: {len(prompts)} prompts, chunk_tokens {chunk_tokens}; expected at least one of each")
    width = max(map(len, prompts))
    starts = [width - len(prompt) for prompt in prompts]
    codes = np.full((len(prompts), width), PADDING, np.uint8)
    ids = np.full((len(prompts), width), vlm.pad_token_id, np.int64)
    axes = np.zeros((vlm.n_axes, len(prompts), width), np.int64)
    following = np.zeros(len(prompts), np.int64)
    for row, (prompt, start) in enumerate(zip(prompts, starts)):
        codes[row, start:] = np.frombuffer(prompt.codes, np.uint8)
        ids[row, start:] = prompt.ids
        axes[:, row, start:], following[row] = rope_positions(prompt.codes, prompt.images, vlm.family.positions)
    codes, ids, axes, following = (torch.from_numpy(a).to(vlm.device) for a in (codes, ids, axes, following))
    state = State(rows=tuple(prompts), cache=DynamicCache(config=vlm.model.config), mask=codes != PADDING, codes=codes,
                  following=following, logits=None, lineage=tuple(Lineage() for _ in prompts), padded=any(starts))
    # A watched prefill records the last prompt token and every one after it.
    n_recorded = max(len(prompt) - prompt.n_prompt for prompt in prompts) + 1 if recorded else 0
    first = width
    if chunk_tokens is not None:
        first = max(chunk_tokens, *(start + prompt.image_end for prompt, start in zip(prompts, starts)))
    images = [image for prompt in prompts for image in prompt.images]
    logits, done = None, 0
    for stop in [*range(first, width, chunk_tokens or width), width]:
        logits = _feed(vlm, state, ids[:, done:stop], axes[..., done:stop], stop, images if done == 0 else [],
                       lengths=[max(0, stop - start) for start in starts],
                       n_new=[max(0, stop - max(start, done)) for start in starts],
                       n_recorded=n_recorded - (width - stop))
        done = stop
    return replace(state, logits=logits)


def extend(vlm: LocalVLM, state: State, ids: Sequence[Sequence[int]], group: int | Sequence[int] = GENERATED) -> State:
    """Feed text token ids, one list per row; lists of different lengths are allowed where all layers attend.

    group: what the tokens are (`probes.layout`), one for all or one per row.  Text that a model is made to have
    said counts as GENERATED.
    """
    ids = [check_text_ids(vlm, tokens) for tokens in ids]
    n_new = [len(tokens) for tokens in ids]
    if len(ids) != len(state.rows) or not all(n_new):
        raise InputError(f"extend: got {n_new} token ids for a state of {len(state.rows)} row(s); expected one list of "
                         "at least one id per row")
    if min(n_new) < max(n_new) and not state.is_croppable:
        raise InputError(f"extend: got {n_new} token ids; expected equal numbers, since {vlm.family.title} keeps a "
                         "state that padding would change; extend rows one at a time")
    kinds = list(group) if isinstance(group, list | tuple) else [group] * len(ids)
    if len(kinds) != len(ids):
        raise InputError(f"extend: {len(kinds)} groups for {len(ids)} row(s); give one for all or one per row")
    longer = [row.then(tokens, kind) for row, tokens, kind in zip(state.rows, ids, kinds)]
    return read_on(vlm, state, longer)


def check_prompts(vlm: LocalVLM, prompts: Sequence[Prompt]) -> None:
    """A list of prompts whose text is text and that are no longer than the model was made for."""
    if not isinstance(prompts, list | tuple) or not all(isinstance(row, Prompt) and len(row) for row in prompts):
        raise InputError(f"prompts: got {prompts!r:.60}; expected a list of prompts, as vlm.prompt makes one")
    around = set(vlm.vision_token_ids) - {vlm.model.config.image_token_id}       # what opens and closes an image
    for prompt in prompts:
        check_text_ids(vlm, [token for token, code in zip(prompt.ids, prompt.codes)
                             if code < IMAGE and not (code in (SINK, TEMPLATE) and token in around)])
        check_length(vlm, len(prompt))


def check_text_ids(vlm: LocalVLM, ids: Iterable[int]) -> list[int]:
    """Token ids as a list of int; an image token among them would be taken for an image."""
    try:
        found = [operator.index(token) for token in ids]
    except TypeError:
        raise InputError(f"token ids: got {ids!r:.40}; expected a list of whole numbers, as vlm.encode makes "
                         "one") from None
    wrong = [token for token in found if not 0 <= token < vlm.n_words]
    if wrong:
        raise InputError(f"token ids: {wrong[0]} is not among the model's {vlm.n_words}; use the ids of its own "
                         "tokenizer")
    stray = sorted(set(found).intersection(vlm.vision_token_ids))
    if stray:
        raise InputError(f"token ids: the text after the prompt holds the vision token(s) {stray}; expected text; "
                         "images enter with the prompt")
    return found


def check_length(vlm: LocalVLM, n_tokens: int) -> None:
    if n_tokens > vlm.max_tokens:
        raise InputError(f"length: {n_tokens} tokens; expected at most {vlm.max_tokens}, what the model was made for; "
                         "use smaller images (max_pixels), less text, or fewer new tokens")


def read_on(vlm: LocalVLM, state: State, longer: Sequence[Prompt]) -> State:
    """Feed what `longer`, one per row of the state and each beginning with it, hold beyond: text of whatever group."""
    n_new = [len(row) - len(old) for row, old in zip(longer, state.rows, strict=True)]
    if not min(n_new) > 0 or any(row.ids[:len(old)] != old.ids for row, old in zip(longer, state.rows)):
        raise InputError(f"read_on: rows of {[len(row) for row in longer]} tokens for a state of "
                         f"{[len(old) for old in state.rows]}; expected each to go on from its row of the state")
    for row in longer:
        check_length(vlm, len(row))
    width = max(n_new)
    ids = np.full((len(longer), width), vlm.pad_token_id, np.int64)
    codes = np.full((len(longer), width), PADDING, np.uint8)
    offsets = np.zeros((len(longer), width), np.int64)
    for number, (row, n) in enumerate(zip(longer, n_new)):
        ids[number, width - n:], offsets[number, width - n:] = row.ids[-n:], np.arange(n)
        codes[number, width - n:] = np.frombuffer(row.codes[-n:], np.uint8)
    ids, codes, offsets = (torch.from_numpy(a).to(vlm.device) for a in (ids, codes, offsets))
    axes = (state.following[:, None] + offsets).expand(vlm.n_axes, -1, -1)
    state = replace(
        state, rows=tuple(longer), cache=fork_cache(state.cache), mask=torch.cat([state.mask, codes != PADDING], 1),
        codes=torch.cat([state.codes, codes], 1), following=state.following + torch.tensor(n_new, device=vlm.device),
        lineage=tuple(Lineage(line, len(row)) for line, row in zip(state.lineage, state.rows)),
        padded=state.padded or min(n_new) < width)
    logits = _feed(vlm, state, ids, axes, state.n_columns, [], lengths=[len(row) for row in longer], n_new=n_new,
                   n_recorded=width)
    return replace(state, logits=logits)


def _feed(vlm: LocalVLM, state: State, ids: torch.Tensor, axes: torch.Tensor, stop: int, images: list,
          lengths: list[int], n_new: list[int], n_recorded: int) -> torch.Tensor:
    """Feed the columns of `ids` (B, Q), which end at column `stop`, into the state's cache, in place.

    axes: (n_axes, B, Q) rotary positions.  lengths, n_new: real tokens per row after this, and in these columns.
    Returns the next token's logits (B, vocabulary) in float32.
    """
    columns = Columns(codes=state.codes, n=stop, n_codes=n_codes(state.rows), lengths=lengths, n_new=n_new,
                      n_recorded=max(0, min(n_recorded, ids.shape[1])), rows=watched(state.rows, state.lineage))
    mask = state.mask[:, :stop] if state.padded else None
    inputs = {}
    if images:
        inputs["pixel_values"] = torch.cat([image.pixels for image in images]).to(vlm.device, vlm.dtype)
        inputs["image_grid_thw"] = torch.tensor([image.grid for image in images], device=vlm.device)
    if "moe_mm_token_type_ids" in vlm.family.extra_inputs:
        # ERNIE routes image tokens, and those around them, to experts of their own.
        of_image = torch.isin(ids, torch.tensor(vlm.vision_token_ids, device=ids.device))
        inputs["moe_mm_token_type_ids"] = of_image.int()
    return run(vlm, state.cache, ids, axes, mask, columns, **inputs)


def watched(rows: Sequence[Prompt], lineage: Sequence[Lineage]) -> tuple[WatchedRow, ...]:
    return tuple(WatchedRow(line, row.n_prompt, tuple((image.n_tokens, len(image.region)) for image in row.images))
                 for row, line in zip(rows, lineage))


def n_codes(rows: Sequence[Prompt]) -> int:
    return IMAGE + 2 * max(len(row.images) for row in rows)


@torch.no_grad()
def run(vlm: LocalVLM, cache: DynamicCache, ids: torch.Tensor, axes: torch.Tensor, mask: torch.Tensor | None,
        columns: Columns, **inputs: torch.Tensor) -> torch.Tensor:
    """One forward pass with explicit positions; returns the last column's logits in float32.

    inputs: what goes with images; text that is generated needs none.
    """
    token = COLUMNS.set(columns)
    try:
        output = vlm.model(input_ids=ids, attention_mask=None if mask is None else mask.long(),
                           position_ids=axes[0] if vlm.n_axes == 1 else axes, cache=cache, use_cache=True,
                           logits_to_keep=1, **inputs)
    finally:
        COLUMNS.reset(token)
    return output.logits[:, -1].float()


def fork(state: State, n_tokens: int | None = None) -> State:
    """A state that can go its own way; with a number, the state of a single row after its first `n_tokens`."""
    if n_tokens is None:
        return replace(state, cache=fork_cache(state.cache))
    if len(state.rows) != 1:
        raise InputError(f"fork: a state of {len(state.rows)} rows cannot be cut; select one row first")
    row = state.rows[0].cut(n_tokens)
    n_removed = len(state.rows[0]) - n_tokens
    if n_removed == 0:
        return replace(state, cache=fork_cache(state.cache))
    if not state.is_croppable:
        raise InputError("fork: this model's cache cannot be cut back (linear-attention layers keep one running state, "
                         "sliding windows drop old keys); make the states with prefixes(vlm, prompt, cuts)")
    return _cut(state, (row,), n_removed)


def _cut(state: State, rows: tuple[Prompt, ...], n_columns: int) -> State:
    """The state without its last columns, which are real in every row."""
    keep = state.n_columns - n_columns
    return replace(state, rows=rows, cache=fork_cache(state.cache, keep), mask=state.mask[:, :keep],
                   codes=state.codes[:, :keep], following=state.following - n_columns, logits=None,
                   lineage=tuple(Lineage(line, len(row)) for line, row in zip(state.lineage, rows)))


def prefixes(vlm: LocalVLM, prompt: Prompt, cuts: Sequence[int]) -> list[State]:
    """The states of one sequence after each number of tokens in `cuts`, at the cost of reading it once."""
    ordered = sorted(set(cuts))
    parts = {n_tokens: prompt.cut(n_tokens) for n_tokens in ordered}
    states: dict[int, State] = {}
    if vlm.croppable and ordered:
        whole = prefill(vlm, [parts[ordered[-1]]])
        states = {n_tokens: fork(whole, n_tokens) for n_tokens in ordered}
    else:
        state = None
        for n_tokens, part in parts.items():
            state = prefill(vlm, [part]) if state is None else read_on(vlm, state, [part])
            states[n_tokens] = state
    return [states[n_tokens] for n_tokens in cuts]


def with_logits(vlm: LocalVLM, state: State) -> State:
    """The state with logits: after a cut, the last token of every row is read once more."""
    if state.logits is not None:
        return state
    shorter = _cut(state, tuple(row.cut(len(row) - 1) for row in state.rows), 1)
    return read_on(vlm, shorter, state.rows)


def stack(states: Sequence[State]) -> State:
    """One state with the rows of all, left-padded to the longest."""
    if not states:
        raise InputError("stack: no states; give at least one")
    if len(states) == 1:
        return states[0]
    has_logits = {state.logits is not None for state in states}
    if len(has_logits) > 1:
        raise InputError("stack: some of the states were cut and have no logits, others have; call with_logits on "
                         "those first")
    width = max(state.n_columns for state in states)
    missing = [width - state.n_columns for state in states]
    cache = copy.copy(states[0].cache)
    cache.layers = [_stacked_layer(layers, missing) for layers in zip(*(state.cache.layers for state in states))]
    return State(
        rows=tuple(row for state in states for row in state.rows), cache=cache,
        mask=torch.cat([pad(state.mask, (n, 0)) for state, n in zip(states, missing)]),
        codes=torch.cat([pad(state.codes, (n, 0)) for state, n in zip(states, missing)]),
        following=torch.cat([state.following for state in states]),
        logits=torch.cat([state.logits for state in states]) if True in has_logits else None,
        lineage=tuple(line for state in states for line in state.lineage),
        padded=any(missing) or any(state.padded for state in states))


def select(state: State, rows: Sequence[int]) -> State:
    """The state of some of its rows."""
    index = torch.tensor(list(rows), device=state.codes.device)
    cache = fork_cache(state.cache)
    select_rows(cache, index)
    return replace(state, rows=tuple(state.rows[row] for row in rows), cache=cache, mask=state.mask[index],
                   codes=state.codes[index], following=state.following[index],
                   logits=None if state.logits is None else state.logits[index],
                   lineage=tuple(state.lineage[row] for row in rows))


def select_rows(cache: DynamicCache, index: torch.Tensor) -> None:
    """Keep some rows of a cache, in place."""
    for layer in cache.layers:
        layer.reorder_cache(index)


def is_croppable(cache: DynamicCache) -> bool:
    """Whether all layers hold plain keys and values, so that the cache can be cut back to an earlier token."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)


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


def _stacked_layer(layers: Sequence, missing: list[int]):
    first = layers[0]
    if isinstance(first, DynamicSlidingWindowLayer) and any(missing):
        raise InputError("stack: sliding-window caches of different lengths cannot be stacked; prefill the prompts "
                         "together")
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
