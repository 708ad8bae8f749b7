"""Watch how much attention every layer pays to the image at every step, without eager attention.

The kernel that generates is never replaced: SDPA or FlashAttention-2 computes the output as always, and
from the same queries and keys the softmax mass on groups of tokens is summed on the side, in float32, for
the rows that matter.  No T x T matrix is built and the model's output stays the same to the bit
(VisualSwap, Sec. 5.3, needs these numbers at every layer for thousands of steps).

    with recording_image_attention(vlm) as trace:
        vlm.generate([prompt], max_new_tokens=256)        # or model.generate(**inputs) of a transformers model
    trace.scores                                          # (layers, heads, steps) mass on image tokens

    attention = rescore(vlm, prompt, token_ids)           # the same from finished text, by one forward pass
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from probes import interpose
from probes.infer import InferredColumns
from probes.interpose import COLUMNS, AttentionCall, Columns, Lineage, interposed, text_attention_modules
from probes.layout import GENERATED, IMAGE, QUESTION, SINK, TEMPLATE, Prompt
from probes.mass import group_mass
from probes.prefix import prefill
from probes.trace import ImageAttention
from rekey.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from probes.vlm import LocalVLM

FLUSH_BYTES = 256 * 2**20        # recorded masses move to the CPU in pieces of about this size


@contextmanager
def recording_image_attention(model: LocalVLM | PreTrainedModel, layers: Iterable[int] | None = None,
                              per_head: bool = True) -> Iterator[Trace]:
    """Record, while the block is open, the attention of every text token that `model` reads.

    layers: indices from 0, negative ones from the end; all layers that attend by default.
    per_head: False keeps the mean over heads only, 1/H of the memory.
    Of a prompt only the last token is recorded; of everything after it, every token.
    """
    network = getattr(model, "model", model) if hasattr(model, "family") else model
    modules = text_attention_modules(network)
    n_layers = network.config.get_text_config().num_hidden_layers
    chosen = chosen_layers(layers, modules, n_layers)
    trace = Trace(chosen, n_layers, per_head)
    inferred = InferredColumns(network.config)

    def before(_, args, kwargs) -> None:
        if COLUMNS.get() is None:
            inferred.enter(args, kwargs)
        trace.open_step(COLUMNS.get())

    hooks = [network.register_forward_pre_hook(before, with_kwargs=True),
             network.register_forward_hook(inferred.leave, always_call=True)]
    try:
        with interposed([modules[layer] for layer in chosen], trace.record, first=True):
            yield trace
    finally:
        for hook in hooks:
            hook.remove()


def chosen_layers(layers: Iterable[int] | None, modules: dict[int, torch.nn.Module], n_layers: int) -> list[int]:
    """Layer indices as given, checked against the layers that have softmax attention."""
    if layers is None:
        return list(modules)
    chosen = sorted({layer + n_layers if layer < 0 else layer for layer in layers})
    wrong = [layer for layer in chosen if layer not in modules]
    if wrong or not chosen:
        why = "linear-attention layers have no attention on single tokens" if len(modules) < n_layers else f"layers are 0 to {n_layers - 1}"
        raise InputError(f"layers {wrong}: not among the attention layers {list(modules)} of this {n_layers}-layer model ({why}); give some of those")
    return chosen


def rescore(vlm: LocalVLM, prompt: Prompt, ids: Sequence[int], layers: Iterable[int] | None = None, per_head: bool = True,
            chunk_tokens: int | None = None) -> ImageAttention:
    """The trace of finished text by teacher forcing: equal to what decoding it would have recorded.

    ids: the tokens that followed the prompt, by whatever engine they were generated.  n ids give n rows.
    chunk_tokens: read the text after the image in pieces of this size, for long text on little memory.
    """
    if not ids:
        raise InputError("rescore: no token ids; give the ids that followed the prompt, at least one")
    with recording_image_attention(vlm, layers, per_head) as trace:
        prefill(vlm, [prompt.then(ids[:-1])], chunk_tokens)
    return trace.sequences()[0]


@dataclass(eq=False)
class _Step:
    """What one forward pass left: by layer, (B, H, R, codes) masses of the last R rows of every sequence."""

    sequences: tuple[interpose.Sequence, ...]
    lengths: list[int]
    n_new: list[int]
    n_rows: int
    masses: dict[int, torch.Tensor] = field(default_factory=dict)
    unsteered: dict[int, torch.Tensor] = field(default_factory=dict)

    def joins(self, other: _Step) -> bool:
        return (self.sequences == other.sequences and self.masses.keys() == other.masses.keys()
                and self.unsteered.keys() == other.unsteered.keys())


@dataclass(eq=False)
class _Part:
    """Consecutive steps of the same sequences, joined along their rows and on the CPU."""

    steps: list[_Step]
    masses: np.ndarray                   # (L, B, H, rows, codes)
    unsteered: np.ndarray                # the same, before steering

    @classmethod
    def of(cls, steps: list[_Step], layers: tuple[int, ...]) -> _Part:
        def joined(of_step: Callable[[_Step, int], torch.Tensor]) -> np.ndarray:
            return np.stack([torch.cat([of_step(step, layer) for step in steps], 2).cpu().numpy() for layer in layers])
        masses = joined(lambda step, layer: step.masses[layer])
        steered = any(step.unsteered for step in steps)
        return cls(steps, masses, joined(lambda step, layer: step.unsteered.get(layer, step.masses[layer])) if steered else masses)

    def rows(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Of sequence `number`: which of its tokens each row is, and whether the row is one to keep."""
        index = np.concatenate([step.lengths[number] - step.n_rows + np.arange(step.n_rows) for step in self.steps])
        fed = np.concatenate([np.arange(step.n_rows) >= step.n_rows - step.n_new[number] for step in self.steps])
        return index, fed & (index >= self.steps[0].sequences[number].n_prompt - 1)


class Trace:
    """What a recording block has seen.  Rows are collected on the device and read out when asked for."""

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
            raise InputError("attention: the recording block saw no forward pass of the model; run the model inside the block")
        if len(found) == 1:
            return found[0]
        width = max(scores.shape[-1] for scores in found)
        return np.stack([np.pad(s, ((0, 0), (0, 0), (0, width - s.shape[-1])), constant_values=np.nan) for s in found])

    def sequences(self) -> list[ImageAttention]:
        """Every sequence that ended in the block, in the order in which they began, with all its recorded rows.

        Text that several sequences share (a common prefix read in the block) is part of each.
        """
        self._flush()
        seen = {sequence.lineage: sequence for part in self._parts for sequence in part.steps[0].sequences}
        parents = {lineage.parent for lineage in seen}
        return [self._sequence(sequence) for lineage, sequence in seen.items() if lineage not in parents]

    def _sequence(self, sequence: interpose.Sequence) -> ImageAttention:
        """Rows of a sequence's own steps and, before its cuts, of those it was forked from."""
        cuts: dict[Lineage, float] = {}
        line, cut = sequence.lineage, float("inf")
        while line is not None:
            cuts[line] = cut
            line, cut = line.parent, min(cut, line.cut)
        found = []
        for part in self._parts:
            for number, owner in enumerate(part.steps[0].sequences):
                if owner.lineage in cuts:
                    index, keep = part.rows(number)
                    keep &= index < cuts[owner.lineage]
                    found.append((index[keep], part.masses[:, number][:, :, keep], part.unsteered[:, number][:, :, keep]))
        index = np.concatenate([f[0] for f in found])
        order = np.argsort(index)
        assert len(np.unique(index)) == len(index), "every token of a sequence is fed once"
        n_codes = IMAGE + 2 * len(sequence.images)
        masses, unsteered = (np.concatenate([f[i][..., :n_codes] for f in found], 2)[:, :, order] for i in (1, 2))
        images = np.stack([masses[..., IMAGE + 2 * k] + masses[..., IMAGE + 2 * k + 1] for k in range(len(sequence.images))]) \
            if sequence.images else np.zeros((0, *masses.shape[:3]), np.float32)
        return ImageAttention(
            scores=images.sum(0), images=images, region=masses[..., IMAGE + 1::2].sum(-1), sink=masses[..., SINK],
            template=masses[..., TEMPLATE], question=masses[..., QUESTION], generated=masses[..., GENERATED], layers=self.layers,
            query_index=index[order], n_image_tokens=sum(n for n, _ in sequence.images),
            n_region_tokens=sum(n for _, n in sequence.images), n_layers=self.n_layers,
            before_steering=None if all(p.unsteered is p.masses for p in self._parts) else unsteered[..., IMAGE:].sum(-1))

    def open_step(self, columns: Columns) -> None:
        """A forward pass begins."""
        if self._waiting_bytes > FLUSH_BYTES:
            self._flush()
        self._steps.append(_Step(columns.sequences, list(columns.lengths), list(columns.n_new), columns.n_rows))

    def record(self, call: AttentionCall, proceed: Callable[[], tuple]) -> tuple:
        """One layer attends: let it, then sum its attention over the groups of tokens."""
        output, columns = proceed(), COLUMNS.get()
        if columns is None or columns.n_rows == 0:
            return output
        step, n_rows = self._steps[-1], columns.n_rows
        stop, start = columns.keys(call.key.shape[2])
        groups = columns.groups(call.key.device).membership(stop, start)
        mask = call.mask if call.mask is None or call.mask.dim() == 2 else call.mask[:, :, -n_rows:, :call.key.shape[2]]
        mass = group_mass(call.query[:, :, -n_rows:], call.key, groups, columns.n_codes, call.scaling, mask,
                          sliding_window=call.sliding_window)
        if call.steered is not None:
            step.unsteered[call.layer] = self._kept(mass)
            mass = call.steered.masses(mass, groups)
        step.masses[call.layer] = self._kept(mass)
        self._waiting_bytes += step.masses[call.layer].nbytes
        return output

    def _kept(self, mass: torch.Tensor) -> torch.Tensor:
        return mass if self.per_head else mass.mean(1, keepdim=True)

    def _flush(self) -> None:
        """Join runs of like steps and move them to the CPU."""
        run: list[_Step] = []
        for step in [*self._steps, None]:
            if run and (step is None or not step.joins(run[0])):
                self._parts.append(_Part.of(run, self.layers))
                run = []
            if step is not None and len(step.masses) == len(self.layers):      # not where an exception ended the pass
                run.append(step)
        self._steps, self._waiting_bytes = [], 0
