"""Decoding from states: batched, greedy or sampled, with random numbers of its own for every row.

Greedy decoding of one prompt gives the tokens of the model's own `generate`, with the same sequence
of forward passes.  A sampled row depends on its own seed and not on the rows beside it.

    out = decode(vlm, prefill(vlm, prompts), max_new_tokens=512, sampling=Sampling(temperature=0.7), seeds=[0, 1])
    out[0].ids, out[0].finish
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from probes.interpose import Columns, Lineage
from probes.prefix import State, check_length, fork_cache, n_codes, run, select_rows, watched, with_logits
from rekey.errors import InputError

if TYPE_CHECKING:
    from probes.vlm import LocalVLM

# Settings of `generate` that change the text and that `Sampling` lacks, with the values that leave it alone.
OTHER_SETTINGS = {"num_beams": (1,), "typical_p": (1.0,), "epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,), "top_h": (),
                  "no_repeat_ngram_size": (0,), "bad_words_ids": (), "guidance_scale": (1.0,), "penalty_alpha": (0.0,)}
CHECK_EVERY_ON_GPU = 16      # tokens between looks at which rows have finished: each look waits for the device


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; temperature 0 is greedy.  Same meaning as transformers' generation settings."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        good = (0 <= self.temperature < math.inf, isinstance(self.top_k, int) and self.top_k >= 0, 0 < self.top_p <= 1,
                0 <= self.min_p < 1, 0 < self.repetition_penalty < math.inf)
        if not all(good):
            raise InputError(f"sampling: {self}; expected temperature >= 0, 0 < top_p <= 1, top_k >= 0 (0: all), "
                             "0 <= min_p < 1, repetition_penalty > 0")

    @classmethod
    def of_model(cls, generation_config: GenerationConfig) -> Sampling:
        """The settings a model ships with (VisualSwap: "default generation configurations for each model").

        What is left open is filled as `generate` fills it: temperature 1 and top_k 50 when sampling.
        """
        c = generation_config
        other = [name for name in OTHER_SETTINGS if getattr(c, name, None) not in (None, *OTHER_SETTINGS[name])]
        if other:
            raise InputError(f"generation settings: the model ships with {', '.join(other)}, which this decoder does "
                             "not have; give a Sampling of your own")
        penalty = c.repetition_penalty or 1.0
        if not c.do_sample:
            return cls(repetition_penalty=penalty)
        return cls(temperature=1.0 if c.temperature is None else c.temperature,
                   top_k=50 if c.top_k is None else c.top_k, top_p=c.top_p or 1.0, min_p=c.min_p or 0.0,
                   repetition_penalty=penalty)

    def processors(self) -> LogitsProcessorList:
        """transformers' own processors, in the order `generate` applies them."""
        chain = LogitsProcessorList()
        if self.repetition_penalty != 1.0:
            chain.append(RepetitionPenaltyLogitsProcessor(self.repetition_penalty))
        if self.temperature > 0:
            if self.temperature != 1.0:
                chain.append(TemperatureLogitsWarper(self.temperature))
            if self.top_k:
                chain.append(TopKLogitsWarper(self.top_k))
            if self.top_p < 1.0:
                chain.append(TopPLogitsWarper(self.top_p))
            if self.min_p:
                chain.append(MinPLogitsWarper(self.min_p))
        return chain


GREEDY = Sampling()


@dataclass(frozen=True)
class Decoded:
    """What one row said.  finish: "stop" (an end token, kept as the last id) or "length"."""

    ids: tuple[int, ...]
    finish: str


@dataclass(eq=False)
class _Batch:
    """The rows that are still being decoded, in buffers with room for every token to come."""

    cache: DynamicCache
    columns: Columns
    mask: torch.Tensor | None     # (B, T + room), None without padding
    axes: torch.Tensor            # (n_axes, B, 1) positions of the first new token
    written: torch.Tensor         # (B, T + room) ids; the prompt's only where a penalty counts them
    uniform: torch.Tensor | None  # (B, room) in [0, 1)
    slots: list[int]              # which of the caller's rows each is

    def select(self, rows: list[int]) -> _Batch:
        index = torch.tensor(rows, device=self.written.device)
        select_rows(self.cache, index)
        old = self.columns
        columns = replace(old, codes=old.codes[index], lengths=[old.lengths[r] for r in rows], n_new=[1] * len(rows),
                          rows=tuple(old.rows[r] for r in rows), kept={}, closers=[])
        return _Batch(self.cache, columns, None if self.mask is None else self.mask[index], self.axes[:, index],
                      self.written[index], None if self.uniform is None else self.uniform[index],
                      [self.slots[r] for r in rows])


def decode(vlm: LocalVLM, state: State, max_new_tokens: int, sampling: Sampling = GREEDY,
           seeds: Sequence[int] | None = None, stop_ids: Sequence[int] | None = None) -> list[Decoded]:
    """Let every row of `state` go on for up to `max_new_tokens` tokens; the state itself stays as it is.

    seeds: one per row, needed when sampling.  stop_ids: end tokens; by default the model's own.  Image
    and video tokens are never generated: a later reading of the text would take them for images.
    """
    return decode_last(vlm, [state], max_new_tokens, sampling, seeds, stop_ids)


@torch.no_grad()
def decode_last(vlm: LocalVLM, states: list[State], max_new_tokens: int, sampling: Sampling = GREEDY,
                seeds: Sequence[int] | None = None, stop_ids: Sequence[int] | None = None) -> list[Decoded]:
    """`decode` of a state that nobody needs afterwards: taken out of `states`, so that its memory goes with it.

    A cache grows by copies; a caller who held the first one would keep the whole prompt's keys twice.
    """
    state = states.pop()
    _check(max_new_tokens, sampling, seeds, len(state.rows))
    for row in state.rows:
        check_length(vlm, len(row) + max_new_tokens)
    state = with_logits(vlm, state)
    rows, logits, n_old = state.rows, state.logits, state.n_columns
    batch = _start(vlm, state, max_new_tokens, sampling, seeds)
    del state
    lineage = [row.lineage for row in batch.columns.rows]
    stop_ids = set(vlm.stop_token_ids if stop_ids is None else stop_ids)
    said = _said(vlm, batch, logits, sampling.processors(), stop_ids, n_old, max_new_tokens)
    results = []
    for row, line in enumerate(lineage):
        ids = said[row].tolist()
        end = next((i + 1 for i, token in enumerate(ids) if token in stop_ids), None)
        results.append(Decoded(tuple(ids[:end]), "length" if end is None else "stop"))
        # Its row may have been read on with the batch; the last token it said was not to be read.
        line.end = len(rows[row]) + len(results[-1].ids) - 1
    return results


def _said(vlm: LocalVLM, batch: _Batch, logits: torch.Tensor, processors: LogitsProcessorList, stop_ids: set[int],
          n_old: int, max_new_tokens: int) -> dict[int, torch.Tensor]:
    """By row, the ids it said up to where it was found to have stopped, or more."""
    stops = torch.tensor(sorted(stop_ids), device=vlm.device)
    check_every = 1 if vlm.device.type == "cpu" else CHECK_EVERY_ON_GPU
    said: dict[int, torch.Tensor] = {}
    finished = torch.zeros(len(batch.slots), dtype=torch.bool, device=vlm.device)
    for step in range(max_new_tokens):
        token = _next_token(vlm, batch, logits, processors, n_old, step)
        batch.written[:, n_old + step] = token
        finished = finished | torch.isin(token, stops)
        at_end = step + 1 == max_new_tokens
        if at_end or (step + 1) % check_every == 0:
            done = [True] * len(batch.slots) if at_end else finished.tolist()
            staying = [row for row, is_done in enumerate(done) if not is_done]
            # Rows leave together, when half are done: every departure copies the cache of those that stay.
            if len(staying) <= len(done) // 2:
                batch.columns.close()
                leaving = set(range(len(done))).difference(staying)
                said |= {batch.slots[row]: batch.written[row, n_old:n_old + step + 1] for row in leaving}
                if not staying:
                    break
                batch, finished, token = batch.select(staying), finished[staying], token[staying]
        logits = _read_token(vlm, batch, token, n_old, step)
    return said


def whole(number: int, what: str) -> int:
    """A whole number of any integer type."""
    try:
        return operator.index(number)
    except TypeError:
        raise InputError(f"{what} is {number!r}; expected a whole number") from None


def _check(max_new_tokens: int, sampling: Sampling, seeds: Sequence[int] | None, n_rows: int) -> None:
    if whole(max_new_tokens, "max_new_tokens") < 1:
        raise InputError(f"decode: max_new_tokens is {max_new_tokens}; expected a whole number, at least 1")
    if not isinstance(sampling, Sampling):
        raise InputError(f"decode: sampling is {sampling!r}; expected a Sampling")
    if seeds is not None and not isinstance(seeds, str) and hasattr(seeds, "__len__"):
        for seed in seeds:
            whole(seed, "seed")
    elif seeds is not None:
        raise InputError(f"decode: seeds are {seeds!r}; expected a list of whole numbers")
    if (sampling.temperature > 0 or seeds is not None) and (seeds is None or len(seeds) != n_rows):
        raise InputError(f"decode: sampling needs one seed per row; got {seeds} for {n_rows} row(s)")


def _start(vlm: LocalVLM, state: State, room: int, sampling: Sampling, seeds: Sequence[int] | None) -> _Batch:
    n_rows, device = len(state.rows), vlm.device
    written = torch.full((n_rows, state.n_columns + room), vlm.pad_token_id, device=device)
    if sampling.repetition_penalty != 1.0:
        # `generate` counts every token of the prompt as said, image tokens too.
        for number, row in enumerate(state.rows):
            written[number, :state.n_columns][state.mask[number]] = torch.tensor(row.ids, device=device)
    uniform = None
    if sampling.temperature > 0:
        uniform = torch.stack([torch.rand(room, generator=torch.Generator().manual_seed(int(seed)), dtype=torch.float64)
                               for seed in seeds]).to(device)
    lineage = [Lineage(line, len(row)) for line, row in zip(state.lineage, state.rows)]
    columns = Columns(codes=state.codes, n=state.n_columns, n_codes=n_codes(state.rows),
                      lengths=[len(row) for row in state.rows], n_new=[1] * n_rows, n_recorded=1,
                      rows=watched(state.rows, lineage), room=room)
    return _Batch(fork_cache(state.cache), columns, pad(state.mask, (0, room), value=True) if state.padded else None,
                  state.following[:, None].expand(vlm.n_axes, -1, -1), written, uniform, list(range(n_rows)))


def _next_token(vlm: LocalVLM, batch: _Batch, logits: torch.Tensor, processors: LogitsProcessorList, n_old: int,
                step: int) -> torch.Tensor:
    logits = logits.index_fill(1, vlm.never_generated.to(logits.device), float("-inf"))
    scores = processors(batch.written[:, :n_old + step], logits)
    if batch.uniform is None:
        return scores.argmax(-1)
    # Inverse of the cumulative distribution at the row's own random number: torch.multinomial would draw
    # from one generator for all rows, so that a row's text would depend on its neighbors.
    below = scores.double().softmax(-1).cumsum(-1)
    u = batch.uniform[:, step, None] * below[:, -1:]
    return torch.searchsorted(below, u, right=True).squeeze(1).clamp(max=scores.shape[1] - 1)


def _read_token(vlm: LocalVLM, batch: _Batch, token: torch.Tensor, n_old: int, step: int) -> torch.Tensor:
    """Read the new token of every row; returns the logits that follow it."""
    n = n_old + step + 1
    columns = batch.columns
    columns.n, columns.lengths = n, [length + 1 for length in columns.lengths]
    mask = None if batch.mask is None else batch.mask[:, :n]
    return run(vlm, batch.cache, token[:, None], batch.axes + step, mask, columns)
