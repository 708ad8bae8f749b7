"""Raise or lower the attention on the image while a model answers, without training.

Two forms, on chosen layers, heads and steps.  `log_bias` b adds b to the logits of image keys, so that a
head's mass S becomes e^b S / (1 - S + e^b S).  `gain` a adds a |logit|, the form of the PAI family
(logit + a |logit|).  Only the query rows that are steered are computed here, explicitly and in float32; all
others come from the kernel, FlashAttention-2 included, which knows no additive mask.
(VisualSwap, Sec. 6: elevating attention to image tokens from outside.)

    with steering_image_attention(vlm, log_bias=math.log(3), layers=range(18, 22), steps=range(0, 100)):
        vlm.generate([prompt], max_new_tokens=256)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from probes.attention import chosen_layers, network_of
from probes.infer import known_columns
from probes.interpose import COLUMNS, AttentionCall, Columns, interposed, text_attention_modules
from probes.layout import IMAGE
from rekey.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from probes.vlm import LocalVLM

ROWS_PER_BLOCK = 64


@dataclass(eq=False)
class _SteeredRows:
    """What steering did to the last R query rows of a call."""

    which: torch.Tensor          # (B, R) bool: the rows that were steered
    weights: torch.Tensor        # (B, H, R, T) float32 attention weights

    def masses(self, mass: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        """`mass` (B, H, rows, codes) with the steered rows exchanged; groups: (B, codes, T), 0 or 1."""
        n_rows = min(mass.shape[2], self.which.shape[1])
        steered = torch.einsum("bhrt,bct->bhrc", self.weights[:, :, -n_rows:], groups)
        mass = mass.clone()
        which = self.which[:, None, -n_rows:, None]
        mass[:, :, -n_rows:] = torch.where(which, steered, mass[:, :, -n_rows:])
        return mass


@contextmanager
def steering_image_attention(model: LocalVLM | PreTrainedModel, log_bias: float | None = None,
                             gain: float | None = None, layers: Iterable[int] | None = None,
                             heads: Iterable[int] | None = None,
                             steps: Container[int] | Callable[[int], bool] | None = None,
                             region: bool = False) -> Iterator[None]:
    """Steer the attention of `model` on image tokens while the block is open.

    log_bias or gain: exactly one of them.  layers, heads: indices from 0; all by default.
    steps: step t reads the t-th token of the answer and chooses the next; step 0 reads the last prompt token.
    All steps by default; a range, set or function chooses.  region: only image tokens inside the images' regions.
    """
    if (log_bias is None) == (gain is None):
        raise InputError(f"steering: log_bias is {log_bias} and gain is {gain}; give exactly one of them")
    network = network_of(model)
    modules = text_attention_modules(network)
    config = network.config.get_text_config()
    chosen = chosen_layers(layers, modules, config.num_hidden_layers)
    head_mask = torch.zeros(config.num_attention_heads, dtype=torch.bool)
    for head in range(config.num_attention_heads) if heads is None else heads:
        if not -config.num_attention_heads <= head < config.num_attention_heads:
            raise InputError(f"steering: head {head}: the model has {config.num_attention_heads}, counted from 0")
        head_mask[head] = True
    wanted = (lambda step: True) if steps is None else steps if callable(steps) else steps.__contains__

    def steer(call: AttentionCall, proceed: Callable[[], tuple]) -> tuple:
        output, columns = proceed(), COLUMNS.get()
        which = [] if columns is None else _steered_rows(columns, call.query.shape[2], wanted)
        if not any(map(any, which)):
            return output
        if call.steered is not None:
            raise InputError(f"steering: layer {call.layer} is steered by two blocks at once; close one of them")
        return _steered(call, output, columns, which)

    def _steered(call: AttentionCall, output: tuple, columns: Columns, which: list[list[bool]]) -> tuple:
        n_rows = max(len(row) - row.index(True) for row in which if any(row))
        flags = torch.tensor([row[-n_rows:] for row in which], device=call.query.device)
        stop, start = columns.keys(call.key.shape[2])
        codes = columns.groups(call.key.device).codes(stop, start)
        on_image = (codes >= IMAGE) if not region else (codes >= IMAGE) & ((codes - IMAGE) % 2 == 1)
        # (B, H, R, T) where the bias applies, never materialized beyond a block of rows.
        reach = (head_mask.to(codes.device)[None, :, None, None] & on_image[:, None, None, :])
        values = call.value.float()
        mixed, weights = output[0].clone(), []
        for first in range(0, n_rows, ROWS_PER_BLOCK):
            rows = slice(first, min(first + ROWS_PER_BLOCK, n_rows))
            logits = call.logits(n_rows, rows)
            steered = logits + (log_bias if gain is None else gain * logits.abs())
            here = reach & flags[:, None, rows, None]
            block = torch.where(here, steered, logits).add_(call.hidden(n_rows, rows)).softmax(-1)
            grouped = block.unflatten(1, (values.shape[1], -1))
            read = torch.einsum("bghrt,bgtd->brghd", grouped, values).flatten(2, 3).to(mixed.dtype)
            at = slice(mixed.shape[1] - n_rows + rows.start, mixed.shape[1] - n_rows + rows.stop)
            mixed[:, at] = torch.where(flags[:, rows, None, None], read, mixed[:, at])
            weights.append(block)
        call.steered = _SteeredRows(flags, torch.cat(weights, 2))
        return (mixed, *output[1:])

    with known_columns(network), interposed([modules[layer] for layer in chosen], steer):
        yield


def _steered_rows(columns: Columns, n_queries: int, wanted: Callable[[int], bool]) -> list[list[bool]]:
    """Which query rows of a forward pass are steered, per row of the batch."""
    result = []
    for row, length, n_new in zip(columns.rows, columns.lengths, columns.n_new):
        first = length - n_queries - (row.n_prompt - 1)          # step of the first query row
        result.append([i >= n_queries - n_new and first + i >= 0 and wanted(first + i) for i in range(n_queries)])
    return result
