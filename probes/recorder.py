"""What a recording block collects, and how it is put together again.

Every forward pass is a step.  In a step every watched layer leaves the softmax mass of the step's last query
rows on each group code, on the device it computes on; nothing waits for the device.  Reading the trace
joins the steps of each sequence, including those it shares with others it was forked from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from probes import mass_triton
from probes.interpose import COLUMNS, AttentionCall, Columns, Lineage, WatchedRow
from probes.layout import GENERATED, IMAGE, PADDING, QUESTION, SINK, TEMPLATE
from probes.mass import group_mass
from probes.trace import ImageAttention
from rekey.errors import InputError

FLUSH_BYTES = 256 * 2**20        # recorded masses move to the CPU in pieces of about this size
ROWS_TOGETHER = 32               # decoding steps whose masses are summed at once, which reads the keys once for all


@dataclass(eq=False)
class _Step:
    """What one forward pass left, by layer: masses (B, H, R, codes), or a kernel's partial sums of them
    (splits, B, H, R, codes).  `unsteered` are the masses that steered layers would have had."""

    rows: tuple[WatchedRow, ...]
    lengths: list[int]
    n_new: list[int]
    n_recorded: int
    masses: dict[int, torch.Tensor] = field(default_factory=dict)
    unsteered: dict[int, torch.Tensor] = field(default_factory=dict)

    def joins(self, other: _Step) -> bool:
        """Whether both can be joined along their query rows."""
        def form(masses: dict[int, torch.Tensor]) -> dict[int, tuple]:
            return {layer: (m.dim(), m.shape[0]) for layer, m in masses.items()}
        return (self.rows == other.rows and form(self.masses) == form(other.masses)
                and self.unsteered.keys() == other.unsteered.keys())


@dataclass(eq=False)
class _Part:
    """Consecutive steps of the same sequences, joined along their query rows: (L, B, H, rows, codes) on the CPU."""

    steps: list[_Step]
    masses: np.ndarray
    unsteered: np.ndarray

    @classmethod
    def of(cls, steps: list[_Step], layers: tuple[int, ...], per_head: bool) -> _Part:
        def joined(of_step: Callable[[_Step, int], torch.Tensor]) -> np.ndarray:
            found = []
            for layer in layers:
                mass = torch.cat([of_step(step, layer) for step in steps], -2)
                mass = mass_triton.merge_partials(mass) if mass.dim() == 5 else mass
                found.append((mass if per_head else mass.mean(1, keepdim=True)).cpu().numpy())
            return np.stack(found)

        masses = joined(lambda step, layer: step.masses[layer])
        if not steps[0].unsteered:
            return cls(steps, masses, masses)
        return cls(steps, masses, joined(lambda step, layer: step.unsteered.get(layer, step.masses[layer])))

    def tokens(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Of sequence `number`: which of its tokens each query row is, and whether the row is one to keep."""
        index = np.concatenate([step.lengths[number] - step.n_recorded + np.arange(step.n_recorded)
                                for step in self.steps])
        fed = np.concatenate([np.arange(step.n_recorded) >= step.n_recorded - step.n_new[number]
                              for step in self.steps])
        return index, fed & (index >= self.steps[0].rows[number].n_prompt - 1)


@dataclass(eq=False)
class _Waiting:
    """Consecutive decoding steps of one layer whose masses are still to be summed.

    A growing cache holds the keys of all earlier steps too, so those of the last one (`call`) serve all: reading
    them once takes a quarter of the time of doing so at each step.  No memory is held for it that the cache
    does not hold: at the next step both let go of these keys.
    """

    columns: Columns
    call: AttentionCall
    steps: list[_Step] = field(default_factory=list)
    queries: list[torch.Tensor] = field(default_factory=list)

    def takes(self, call: AttentionCall, columns: Columns) -> bool:
        return columns is self.columns and call.key.shape[2] == self.call.key.shape[2] + 1

    def add(self, call: AttentionCall, step: _Step) -> None:
        self.call = call
        self.steps.append(step)
        self.queries.append(call.query)

    def masses(self) -> torch.Tensor:
        """(..., rows, codes), as `_Step.masses`, of all steps that wait."""
        query, n_keys, mask = torch.cat(self.queries, 2), self.call.key.shape[2], self.call.mask
        if mask is not None:                     # the last step's; what all steps see follows from the padding
            mask = self.columns.groups(query.device).codes(n_keys) != PADDING
        return _mass(replace(self.call, query=query, mask=mask), self.columns, (n_keys, 0))


class Trace:
    """What a recording block has seen; read it in the block or after it."""

    def __init__(self, layers: Sequence[int], n_layers: int, per_head: bool):
        self.layers, self.n_layers, self.per_head = tuple(layers), n_layers, per_head
        self._steps: list[_Step] = []
        self._parts: list[_Part] = []
        self._waiting: dict[int, _Waiting] = {}
        self._n_bytes = 0

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
        seen = {row.lineage: row for part in self._parts for row in part.steps[0].rows}
        parents = {lineage.parent for lineage in seen}
        return [self._sequence(row) for lineage, row in seen.items() if lineage not in parents]

    def open_step(self, columns: Columns) -> None:
        """A forward pass begins."""
        if self._n_bytes > FLUSH_BYTES:
            self._flush()
        if any(waiting.columns is not columns for waiting in self._waiting.values()):
            self.sum_waiting()                   # other sequences, or fewer: their cache is not ours to hold
        self._steps.append(_Step(columns.rows, list(columns.lengths), list(columns.n_new), columns.n_recorded))

    def record(self, call: AttentionCall, proceed: Callable[[], tuple]) -> tuple:
        """One layer attends: let it, then sum its attention over the groups of tokens."""
        output, columns = proceed(), COLUMNS.get()
        if columns is None or columns.n_recorded == 0:
            return output
        step = self._steps[-1]
        if call.steered is None and _may_wait(call, columns):
            self._let_wait(call, columns, step)
            return output
        keys = columns.keys(call.key.shape[2])
        recorded = replace(call, query=call.query[:, :, -columns.n_recorded:])
        if call.steered is None:
            step.masses[call.layer] = _mass(recorded, columns, keys)
        else:
            plain = _torch_mass(recorded, columns, keys)
            step.unsteered[call.layer] = plain
            groups = columns.groups(call.key.device).membership(*keys)
            step.masses[call.layer] = call.steered.masses(plain, groups)
        self._n_bytes += step.masses[call.layer].nbytes
        return output

    def _let_wait(self, call: AttentionCall, columns: Columns, step: _Step) -> None:
        waiting = self._waiting.get(call.layer)
        if waiting is None or not waiting.takes(call, columns):
            self._sum(call.layer)
            waiting = self._waiting[call.layer] = _Waiting(columns, call)
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
        """Sum what waits in any layer, and let go of the caches."""
        for layer in list(self._waiting):
            self._sum(layer)

    def _flush(self) -> None:
        """Join runs of steps that fit together and move them to the CPU."""
        self.sum_waiting()
        run: list[_Step] = []
        for step in [*self._steps, None]:
            if run and (step is None or not step.joins(run[0])):
                self._parts.append(_Part.of(run, self.layers, self.per_head))
                run = []
            if step is not None and len(step.masses) == len(self.layers):       # a pass may have ended in an exception
                run.append(step)
        self._steps, self._n_bytes = [], 0

    def _sequence(self, row: WatchedRow) -> ImageAttention:
        """A sequence's own query rows and, before its cuts, those of the sequences it was forked from."""
        cuts: dict[Lineage, float] = {}
        lineage, cut = row.lineage, math.inf
        while lineage is not None:
            cuts[lineage] = min(cut, lineage.end)
            lineage, cut = lineage.parent, min(cut, lineage.cut)
        found = []
        for part in self._parts:
            for number, owner in enumerate(part.steps[0].rows):
                if owner.lineage in cuts:
                    index, keep = part.tokens(number)
                    keep &= index < cuts[owner.lineage]
                    found.append((index[keep], *(m[:, number][:, :, keep] for m in (part.masses, part.unsteered))))
        index = np.concatenate([f[0] for f in found])
        order = np.argsort(index)
        assert len(np.unique(index)) == len(index), "every token of a sequence is fed once"
        n_codes = IMAGE + 2 * len(row.images)
        masses, unsteered = (np.concatenate([f[which][..., :n_codes] for f in found], 2)[:, :, order]
                             for which in (1, 2))
        inside, outside = masses[..., IMAGE + 1::2], masses[..., IMAGE::2]
        images = np.moveaxis(inside + outside, -1, 0)                     # (n_images, L, H, T)
        is_steered = any(part.unsteered is not part.masses for part in self._parts)
        return ImageAttention(
            scores=images.sum(0), images=images, region=inside.sum(-1), sink=masses[..., SINK],
            template=masses[..., TEMPLATE], question=masses[..., QUESTION], generated=masses[..., GENERATED],
            layers=self.layers, n_layers=self.n_layers, query_index=index[order],
            n_image_tokens=sum(n for n, _ in row.images), n_region_tokens=sum(n for _, n in row.images),
            before_steering=unsteered[..., IMAGE:].sum(-1) if is_steered else None)


def _may_wait(call: AttentionCall, columns: Columns) -> bool:
    """Whether the keys of a later step will hold this step's: one new token, and a cache that only grows.

    Multi-head latent attention makes its keys anew at every step; to keep those would cost memory.
    """
    return (call.query.shape[2] == 1 and columns.plain_mask and columns.grows and call.sliding_window is None
            and call.key.shape[2] == columns.n and "kv_lora_rank" not in vars(call.module))


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
