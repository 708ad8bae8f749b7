"""Puts the recorded steps of each sequence together again.

Rows of a batch come and go, states are forked and cut; what was recorded is a list of forward passes.  A
sequence is a lineage: its own query rows, and before its cuts those of the sequences it was forked from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from probes import mass_triton
from probes.interpose import Lineage, WatchedRow
from probes.layout import GENERATED, IMAGE, QUESTION, SINK, TEMPLATE
from probes.trace import ImageAttention


@dataclass(eq=False)
class Step:
    """What one forward pass left, by layer: masses (B, H, R, codes), or a kernel's partial sums of them
    (splits, B, H, R, codes).  `unsteered` are the masses that steered layers would have had; n_seen: layers
    that have attended."""

    rows: tuple[WatchedRow, ...]
    lengths: list[int]
    n_new: list[int]
    n_recorded: int
    n_seen: int = 0
    masses: dict[int, torch.Tensor] = field(default_factory=dict)
    unsteered: dict[int, torch.Tensor] = field(default_factory=dict)

    def joins(self, other: Step) -> bool:
        """Whether both can be joined along their query rows."""
        def form(masses: dict[int, torch.Tensor]) -> dict[int, tuple]:
            return {layer: (m.dim(), m.shape[0]) for layer, m in masses.items()}
        return (self.rows == other.rows and form(self.masses) == form(other.masses)
                and self.unsteered.keys() == other.unsteered.keys())


@dataclass(eq=False)
class Part:
    """Consecutive steps of the same sequences, joined along their query rows: (L, B, H, rows, codes) on the CPU.

    unsteered: the same before steering, None where nothing was steered.
    """

    steps: list[Step]
    masses: np.ndarray
    unsteered: np.ndarray | None

    @classmethod
    def of(cls, steps: list[Step], layers: tuple[int, ...], per_head: bool) -> Part:
        def joined(of_step: Callable[[Step, int], torch.Tensor]) -> np.ndarray:
            found = []
            for layer in layers:
                mass = torch.cat([of_step(step, layer) for step in steps], -2)
                mass = mass_triton.merge_partials(mass) if mass.dim() == 5 else mass
                found.append((mass if per_head else mass.mean(1, keepdim=True)).cpu().numpy())
            return np.stack(found)

        masses = joined(lambda step, layer: step.masses[layer])
        unsteered = None
        if steps[0].unsteered:
            unsteered = joined(lambda step, layer: step.unsteered.get(layer, step.masses[layer]))
        for step in steps:                       # they are kept for what they say of their rows
            step.masses, step.unsteered = {}, {}
        return cls(steps, masses, unsteered)

    def tokens(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Of sequence `number`: which of its tokens each query row is, and whether the row is one to keep."""
        index = np.concatenate([step.lengths[number] - step.n_recorded + np.arange(step.n_recorded)
                                for step in self.steps])
        fed = np.concatenate([np.arange(step.n_recorded) >= step.n_recorded - step.n_new[number]
                              for step in self.steps])
        return index, fed & (index >= self.steps[0].rows[number].n_prompt - 1)


def sequences_of(parts: list[Part], layers: tuple[int, ...], n_layers: int) -> list[ImageAttention]:
    """The attention of every sequence that no other recorded one was forked from, in the order of their first rows."""
    seen = {row.lineage: row for part in parts for row in part.steps[0].rows}
    ancestors = set()
    for lineage in seen:
        while (lineage := lineage.parent) is not None:
            ancestors.add(lineage)
    return [_attention(parts, row, layers, n_layers) for lineage, row in seen.items() if lineage not in ancestors]


def _attention(parts: list[Part], row: WatchedRow, layers: tuple[int, ...], n_layers: int) -> ImageAttention:
    cuts: dict[Lineage, float] = {}
    lineage, cut = row.lineage, math.inf
    while lineage is not None:
        cuts[lineage] = min(cut, lineage.end)
        lineage, cut = lineage.parent, min(cut, lineage.cut)
    found = []
    for part in parts:
        for number, owner in enumerate(part.steps[0].rows):
            if owner.lineage in cuts:
                index, keep = part.tokens(number)
                found.append((part, number, index, np.flatnonzero(keep & (index < cuts[owner.lineage]))))
    index = np.concatenate([index[kept] for _, _, index, kept in found])
    order = np.argsort(index)
    assert len(np.unique(index)) == len(index), "every token of a sequence is fed once"

    def gathered(codes: list[int] | slice, before_steering: bool = False) -> np.ndarray:
        """(L, H, T) mass on some codes."""
        pieces = []
        for part, number, _, kept in found:
            of_part = part.unsteered if before_steering and part.unsteered is not None else part.masses
            pieces.append(of_part[:, number][:, :, kept][..., codes].sum(-1))
        return np.concatenate(pieces, 2)[:, :, order]

    images = [gathered([IMAGE + 2 * k, IMAGE + 2 * k + 1]) for k in range(len(row.images))]
    shape = (len(layers), parts[0].masses.shape[2], len(index))
    return ImageAttention(
        scores=sum(images, np.zeros(shape, np.float32)), images=np.array(images, np.float32).reshape(-1, *shape),
        region=gathered(slice(IMAGE + 1, None, 2)), sink=gathered([SINK]), template=gathered([TEMPLATE]),
        question=gathered([QUESTION]), generated=gathered([GENERATED]), layers=layers, n_layers=n_layers,
        query_index=index[order], n_image_tokens=sum(n for n, _ in row.images),
        n_region_tokens=sum(n for _, n in row.images),
        before_steering=gathered(slice(IMAGE, None), True) if any(p.unsteered is not None for p in parts) else None)
