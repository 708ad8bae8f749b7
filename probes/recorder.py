"""What a recording block collects.

Every forward pass is a step.  In a step every watched layer sums the softmax mass of the step's last query rows
over the group codes, on the device it computes on; nothing waits for the device.  Decoding steps are summed
together, up to 32 at a time, once a later step's keys hold those of all.  `probes.assembly` puts the steps of
each sequence together again when the trace is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from probes import mass_triton
from probes.assembly import Part, Step, sequences_of
from probes.interpose import COLUMNS, AttentionCall, Columns
from probes.layout import PADDING
from probes.mass import group_mass
from probes.trace import ImageAttention
from rekey.errors import InputError

FLUSH_BYTES = 256 * 2**20        # recorded masses move to the CPU in pieces of about this size
ROWS_TOGETHER = 32               # decoding steps whose masses are summed at once, which reads the keys once for all


@dataclass(eq=False)
class _Waiting:
    """Consecutive decoding steps of one layer whose masses are still to be summed.

    A growing cache holds the keys of all earlier steps too, so those of the last one (`call`) serve all: reading
    them once takes a quarter of the time of doing so at each step.  They are let go at the next step, and when
    the columns are closed.
    """

    columns: Columns
    call: AttentionCall
    steps: list[Step] = field(default_factory=list)
    queries: list[torch.Tensor] = field(default_factory=list)

    def takes(self, call: AttentionCall, columns: Columns) -> bool:
        return columns is self.columns and call.key.shape[2] == self.call.key.shape[2] + 1

    def add(self, call: AttentionCall, step: Step) -> None:
        # Of the call, what is summed from: its keys; whether there is padding is all that its mask says.
        self.call = replace(call, query=call.query[:, :, :0], value=call.value[:, :, :0])
        self.steps.append(step)
        self.queries.append(call.query)

    def masses(self) -> torch.Tensor:
        """(..., rows, codes), as `Step.masses`, of all steps that wait."""
        query, n_keys, mask = torch.cat(self.queries, 2), self.call.key.shape[2], self.call.mask
        if mask is not None:
            mask = self.columns.groups(query.device).codes(n_keys) != PADDING
        return _mass(replace(self.call, query=query, mask=mask), self.columns, (n_keys, 0))


class Trace:
    """What a recording block has seen; read it in the block or after it."""

    def __init__(self, layers: Sequence[int], n_layers: int, per_head: bool):
        self.layers, self.n_layers, self.per_head = tuple(layers), n_layers, per_head
        self._steps: list[Step] = []
        self._parts: list[Part] = []
        self._waiting: dict[int, _Waiting] = {}
        self._n_bytes = 0
        self._read: list[ImageAttention] | None = None

    @property
    def scores(self) -> np.ndarray:
        """(L, H, T) for one sequence; (B, L, H, T) for several, shorter ones filled with nan at the end."""
        found = [sequence.scores for sequence in self.sequences()]
        if not found:
            raise InputError("attention: the block saw no forward pass of the model; run the model inside the block")
        if len(found) == 1:
            return found[0]
        longest = max(scores.shape[-1] for scores in found)
        return np.stack([np.pad(scores, ((0, 0), (0, 0), (0, longest - scores.shape[-1])), constant_values=np.nan)
                         for scores in found])

    def sequences(self) -> list[ImageAttention]:
        """Every sequence that ended in the block, in the order in which they began, with all its recorded rows.

        Text that several sequences share (a common prefix that was read in the block) is part of each.
        """
        self._flush()
        if self._read is None:
            self._read = sequences_of(self._parts, self.layers, self.n_layers)
        return self._read

    def open_step(self, columns: Columns) -> None:
        """A forward pass begins."""
        if self._n_bytes > FLUSH_BYTES:
            self._flush()
        if any(waiting.columns is not columns for waiting in self._waiting.values()):
            self.sum_waiting()                   # other sequences, or fewer
        self._steps.append(Step(columns.rows, list(columns.lengths), list(columns.n_new), columns.n_recorded))

    def close_step(self) -> None:
        """A forward pass has ended as it should: every watched layer has been seen, or numbers would be missing."""
        step = self._steps[-1]
        if step.n_recorded and step.n_seen != len(self.layers):
            raise InputError(f"attention: {step.n_seen} of {len(self.layers)} watched layers ran under the kernel "
                             "that was set when the block was opened; set_attn_implementation belongs before the block")

    def record(self, call: AttentionCall, proceed: Callable[[], tuple]) -> tuple:
        """One layer attends: let it, then sum its attention over the groups of tokens."""
        output, columns = proceed(), COLUMNS.get()
        if columns is None or columns.n_recorded == 0:
            return output
        step = self._steps[-1]
        step.n_seen += 1
        if call.steered is None and _may_wait(call, columns):
            self._let_wait(call, columns, step)
            return output
        seen = call.within(columns.n)
        seen = replace(seen, query=call.query[:, :, -columns.n_recorded:])
        keys = columns.keys(seen.key.shape[2])
        if call.steered is None:
            step.masses[call.layer] = _mass(seen, columns, keys)
        else:
            plain = _torch_mass(seen, columns, keys)
            step.unsteered[call.layer] = plain
            step.masses[call.layer] = call.steered.put_into(plain)
        self._n_bytes += step.masses[call.layer].nbytes
        return output

    def _let_wait(self, call: AttentionCall, columns: Columns, step: Step) -> None:
        waiting = self._waiting.get(call.layer)
        if waiting is None or not waiting.takes(call, columns):
            self._sum(call.layer)
            waiting = self._waiting[call.layer] = _Waiting(columns, call)
            if self.sum_waiting not in columns.closers:
                columns.closers.append(self.sum_waiting)
        waiting.add(call, step)
        if len(waiting.steps) == ROWS_TOGETHER:
            self._sum(call.layer)

    def _sum(self, layer: int) -> None:
        """Sum the masses of the steps that wait in a layer."""
        waiting = self._waiting.pop(layer, None)
        if waiting is not None:
            masses = waiting.masses()
            self._n_bytes += masses.nbytes
            for step, mass in zip(waiting.steps, masses.split(1, -2)):
                step.masses[layer] = mass

    def sum_waiting(self) -> None:
        """Sum what waits in any layer, and let go of the keys."""
        for layer in list(self._waiting):
            self._sum(layer)

    def _flush(self) -> None:
        """Join runs of steps that fit together and move them to the CPU."""
        self.sum_waiting()
        run: list[Step] = []
        for step in [*self._steps, None]:
            if run and (step is None or not step.joins(run[0])):
                self._parts.append(Part.of(run, self.layers, self.per_head))
                self._read = None
                run = []
            if step is not None and len(step.masses) == len(self.layers):       # a pass may have ended in an exception
                run.append(step)
        self._steps, self._n_bytes = [], 0


def _may_wait(call: AttentionCall, columns: Columns) -> bool:
    """Whether the keys of a later step will hold this step's: one new token, and a cache that only grows."""
    return (call.query.shape[2] == 1 and columns.plain_mask and columns.grows and call.sliding_window is None
            and call.key.shape[2] == columns.n and not _makes_keys_anew(call.module))


def _makes_keys_anew(module: torch.nn.Module) -> bool:
    """Multi-head latent attention caches latents and makes keys of them at every step: holding some costs memory."""
    return "kv_lora_rank" in vars(module)


def _mass(call: AttentionCall, columns: Columns, keys: tuple[int, int]) -> torch.Tensor:
    """Masses of all queries of the call, or on CUDA the partial sums that one kernel launch leaves.

    keys: (stop, start) of the columns that the call's keys are.
    """
    query = call.query
    if not (mass_triton.available(query) and columns.plain_mask and call.key.shape[2] <= columns.n):
        return _torch_mass(call, columns, keys)
    # The number of splits follows from the room, so that the partial sums of all steps join.
    splits = mass_triton.n_splits_for(query, call.key, columns.codes.shape[1] + columns.room)
    slot = torch.empty(splits, *query.shape[:3], columns.n_codes, dtype=torch.float32, device=query.device)
    codes = columns.groups(query.device).codes(*keys)
    mass_triton.write_partial_mass(query, call.key, codes, call.scaling, slot, sliding_window=call.sliding_window)
    return slot


def _torch_mass(call: AttentionCall, columns: Columns, keys: tuple[int, int]) -> torch.Tensor:
    mask, n_rows = call.mask, call.query.shape[2]
    if mask is not None and mask.dim() == 4:
        mask = mask[:, :, -n_rows:, :call.key.shape[2]]
    return group_mass(call.query, call.key, columns.groups(call.key.device).membership(*keys), columns.n_codes,
                      call.scaling, mask, sliding_window=call.sliding_window)
