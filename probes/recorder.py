"""What a recording block collects, and how it is put together again.

Every forward pass is a step.  In a step every watched layer leaves the softmax mass of the step's last query
rows on each group code, on the device it computes on; nothing waits for the device.  Reading the trace
joins the steps of each sequence, including those it shares with others it was forked from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from probes import mass_triton
from probes.interpose import COLUMNS, AttentionCall, Columns, Lineage, WatchedRow
from probes.layout import GENERATED, IMAGE, QUESTION, SINK, TEMPLATE
from probes.mass import group_mass
from probes.trace import ImageAttention
from rekey.errors import InputError

FLUSH_BYTES = 256 * 2**20        # recorded masses move to the CPU in pieces of about this size


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


class Trace:
    """What a recording block has seen; read it in the block or after it."""

    def __init__(self, layers: Sequence[int], n_layers: int, per_head: bool):
        self.layers, self.n_layers, self.per_head = tuple(layers), n_layers, per_head
        self._steps: list[_Step] = []
        self._parts: list[_Part] = []
        self._waiting_bytes = 0

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
        if self._waiting_bytes > FLUSH_BYTES:
            self._flush()
        self._steps.append(_Step(columns.rows, list(columns.lengths), list(columns.n_new), columns.n_recorded))

    def record(self, call: AttentionCall, proceed: Callable[[], tuple]) -> tuple:
        """One layer attends: let it, then sum its attention over the groups of tokens."""
        output, columns = proceed(), COLUMNS.get()
        if columns is None or columns.n_recorded == 0:
            return output
        step = self._steps[-1]
        if call.steered is None:
            step.masses[call.layer] = _mass(call, columns)
        else:
            plain = _torch_mass(call, columns)
            step.unsteered[call.layer] = plain
            step.masses[call.layer] = call.steered.masses(plain, _membership(call, columns))
        self._waiting_bytes += step.masses[call.layer].nbytes
        return output

    def _flush(self) -> None:
        """Join runs of steps that fit together and move them to the CPU."""
        run: list[_Step] = []
        for step in [*self._steps, None]:
            if run and (step is None or not step.joins(run[0])):
                self._parts.append(_Part.of(run, self.layers, self.per_head))
                run = []
            if step is not None and len(step.masses) == len(self.layers):       # a pass may have ended in an exception
                run.append(step)
        self._steps, self._waiting_bytes = [], 0

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


def _mass(call: AttentionCall, columns: Columns) -> torch.Tensor:
    """Masses of the recorded rows, or on CUDA the partial sums that one kernel launch leaves."""
    query, n_keys = call.query[:, :, -columns.n_recorded:], call.key.shape[2]
    if not (mass_triton.available(query) and columns.plain_mask and n_keys <= columns.n):
        return _torch_mass(call, columns)
    # The number of splits follows from the room, so that the partial sums of all steps join.
    splits = mass_triton.n_splits_for(query, call.key, columns.codes.shape[1] + columns.room)
    slot = torch.empty(splits, *query.shape[:3], columns.n_codes, dtype=torch.float32, device=query.device)
    codes = columns.groups(query.device).codes(*columns.keys(n_keys))
    mass_triton.write_partial_mass(query, call.key, codes, call.scaling, slot, sliding_window=call.sliding_window)
    return slot


def _torch_mass(call: AttentionCall, columns: Columns) -> torch.Tensor:
    n_rows, mask = columns.n_recorded, call.mask
    if mask is not None and mask.dim() == 4:
        mask = mask[:, :, -n_rows:, :call.key.shape[2]]
    return group_mass(call.query[:, :, -n_rows:], call.key, _membership(call, columns), columns.n_codes, call.scaling,
                      mask, sliding_window=call.sliding_window)


def _membership(call: AttentionCall, columns: Columns) -> torch.Tensor:
    return columns.groups(call.key.device).membership(*columns.keys(call.key.shape[2]))
