"""Raise or lower the attention on the image while a model answers, without training.

Two forms, on chosen layers, heads and steps.  `log_bias` b adds b to the logits of image keys, so that a
head's mass S becomes e^b S / (1 - S + e^b S).  `gain` a adds a |logit|, the form of the PAI family
(logit + a |logit|).  Only the query rows that are steered are computed here, explicitly and in float32; all
others come from the kernel, FlashAttention-2 included, which knows no additive mask.
(VisualSwap, its training-free intervention: attention to image tokens raised from outside.)

    with steering_image_attention(vlm, log_bias=math.log(3), layers=range(18, 22), steps=range(0, 100)):
        vlm.generate([prompt], max_new_tokens=256)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from probes.attention import chosen_layers, indices, network_of
from probes.infer import known_columns
from probes.interpose import COLUMNS, AttentionCall, Columns, interposed, text_attention_modules
from probes.layout import IMAGE
from rekey.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from probes.vlm import LocalVLM

LOGITS_PER_BLOCK = 1 << 25       # logits that are held at once, 128 MB


@dataclass(eq=False)
class _SteeredRows:
    """What steering did to the last R query rows of a call: (B, R) which of them, (B, H, R, codes) their masses."""

    which: torch.Tensor
    masses: torch.Tensor

    def put_into(self, plain: torch.Tensor) -> torch.Tensor:
        """`plain` (B, H, rows, codes) with the masses of the steered rows exchanged."""
        n_rows = min(plain.shape[2], self.which.shape[1])
        mass, last = plain.clone(), slice(plain.shape[2] - n_rows, None)
        which = self.which[:, None, -n_rows:, None]
        mass[:, :, last] = torch.where(which, self.masses[:, :, -n_rows:], mass[:, :, last])
        return mass


@contextmanager
def steering_image_attention(model: LocalVLM | PreTrainedModel, log_bias: float | None = None,
                             gain: float | None = None, layers: Iterable[int] | None = None,
                             heads: Iterable[int] | None = None,
                             steps: Iterable[int] | Callable[[int], bool] | None = None,
                             region: bool = False) -> Iterator[None]:
    """Steer the attention of `model` on image tokens while the block is open.

    log_bias or gain: exactly one of them.  layers, heads: indices from 0; all by default.
    steps: step t reads the t-th token of the answer and chooses the next; step 0 reads the last prompt token.
    All steps by default; a range, set or function chooses.  region: only image tokens inside the images' regions.
    """
    if (log_bias is None) == (gain is None):
        raise InputError(f"steering: log_bias is {log_bias} and gain is {gain}; give exactly one of them")
    if not isinstance(strength := gain if log_bias is None else log_bias, int | float) or not math.isfinite(strength):
        raise InputError(f"steering: log_bias or gain is {strength!r}; expected a finite number")
    network = network_of(model)
    modules = text_attention_modules(network)
    config = network.config.get_text_config()
    chosen = chosen_layers(layers, modules, config.num_hidden_layers)
    head_mask = torch.zeros(config.num_attention_heads, dtype=torch.bool)
    chosen_heads = range(config.num_attention_heads) if heads is None else indices(heads, "heads")
    if not chosen_heads or not all(-len(head_mask) <= head < len(head_mask) for head in chosen_heads):
        raise InputError(f"heads {list(chosen_heads)}: expected some of the model's {len(head_mask)}, counted from 0")
    head_mask[list(chosen_heads)] = True
    plan = _Plan(head_mask, _chooser(steps))

    def steer(call: AttentionCall, proceed: Callable[[], tuple]) -> tuple:
        output, columns = proceed(), COLUMNS.get()
        plan.n_calls += 1
        which = None if columns is None else plan.rows(columns, call.query)
        if which is None:
            return output
        if call.steered is not None:
            raise InputError(f"steering: layer {call.layer} is steered by two blocks at once; close one of them")
        mixed, call.steered = _steered(call.within(columns.n), output[0], columns, which, plan.heads(call.key.device),
                                       log_bias, gain, region)
        return (mixed, *output[1:])

    def opened(*_) -> None:
        plan.n_calls = 0

    def closed(*_) -> None:
        if plan.n_calls != len(chosen):
            raise InputError(f"steering: {plan.n_calls} of {len(chosen)} layers ran under the kernel that was set "
                             "when the block was opened; set_attn_implementation belongs before the block")

    with known_columns(network):
        hooks = [network.register_forward_pre_hook(opened), network.register_forward_hook(closed)]
        try:
            with interposed([modules[layer] for layer in chosen], steer):
                yield
        finally:
            for hook in hooks:
                hook.remove()


def _steered(call: AttentionCall, output: torch.Tensor, columns: Columns, which: torch.Tensor, heads: torch.Tensor,
             log_bias: float | None, gain: float | None, region: bool) -> tuple[torch.Tensor, _SteeredRows]:
    """The output (B, Q, H, D) with the steered rows computed anew, and the masses of those.

    which: (B, R) bool, of the last R query rows; heads: (H,) bool.  A few rows at a time: no Q x T matrix is kept.
    """
    n_batch, n_rows = which.shape
    n_keys, n_heads = call.key.shape[2], call.query.shape[1]
    groups = columns.groups(call.key.device)
    codes, member = (f(*columns.keys(n_keys)) for f in (groups.codes, groups.membership))
    on_image = codes >= IMAGE
    if region:
        on_image &= (codes - IMAGE) % 2 == 1
    output = output.clone()
    masses = torch.zeros(n_batch, n_heads, n_rows, columns.n_codes, device=output.device)
    at_once = max(1, LOGITS_PER_BLOCK // (n_heads * n_keys))
    n_together, block = max(1, at_once // n_rows), min(n_rows, at_once)
    for first in range(0, n_batch, n_together):
        batch = slice(first, first + n_together)
        part = call.batch(batch)
        keys, values = part.key.float(), part.value.float()
        query = part.query[:, :, -n_rows:].float().unflatten(1, (keys.shape[1], -1)) * part.scaling
        for start in range(0, n_rows, block):
            rows = slice(start, min(start + block, n_rows))
            logits = torch.einsum("bghrd,bgtd->bghrt", query[:, :, :, rows], keys).flatten(1, 2)
            raised = logits + (log_bias if gain is None else gain * logits.abs())
            here = heads[:, None, None] & on_image[batch, None, None, :] & which[batch, None, rows, None]
            weights = torch.where(here, raised, logits).add_(part.hidden(n_rows, rows)).softmax(-1)
            masses[batch, :, rows] = torch.einsum("bhrt,bct->bhrc", weights, member[batch])
            read = torch.einsum("bghrt,bgtd->brghd", weights.unflatten(1, (keys.shape[1], -1)), values).flatten(2, 3)
            at = slice(output.shape[1] - n_rows + rows.start, output.shape[1] - n_rows + rows.stop)
            output[batch, at] = torch.where(which[batch, rows, None, None], read.to(output.dtype), output[batch, at])
    return output, _SteeredRows(which, masses.detach())


class _Plan:
    """Which query rows are steered: worked out once per forward pass, on each device once."""

    def __init__(self, head_mask: torch.Tensor, wanted: Callable[[int], bool]):
        self.wanted, self.n_calls = wanted, 0
        self.head_mask = {torch.device("cpu"): head_mask}
        self.of: tuple[Columns, int] | None = None
        self.flags: dict[torch.device, torch.Tensor] = {}

    def heads(self, device: torch.device) -> torch.Tensor:
        if device not in self.head_mask:
            self.head_mask[device] = self.head_mask[torch.device("cpu")].to(device)
        return self.head_mask[device]

    def rows(self, columns: Columns, query: torch.Tensor) -> torch.Tensor | None:
        """(B, R) bool of the last R query rows, from the first steered one on; None where none is."""
        if self.of != (columns, columns.n):
            which = _steered_rows(columns, query.shape[2], self.wanted)
            n_rows = max((len(row) - row.index(True) for row in which if any(row)), default=0)
            self.of = columns, columns.n
            self.flags = {torch.device("cpu"): torch.tensor([row[-n_rows:] for row in which])} if n_rows else {}
        if not self.flags:
            return None
        if query.device not in self.flags:
            self.flags[query.device] = self.flags[torch.device("cpu")].to(query.device)
        return self.flags[query.device]


def _chooser(steps: Iterable[int] | Callable[[int], bool] | None) -> Callable[[int], bool]:
    if steps is None:
        return lambda step: True
    if callable(steps):
        return steps
    return (steps if isinstance(steps, range) else set(indices(steps, "steps"))).__contains__


def _steered_rows(columns: Columns, n_queries: int, wanted: Callable[[int], bool]) -> list[list[bool]]:
    """Which query rows of a forward pass are steered, per row of the batch."""
    result = []
    for row, length, n_new in zip(columns.rows, columns.lengths, columns.n_new):
        first = length - n_queries - (row.n_prompt - 1)          # step of the first query row
        result.append([i >= n_queries - n_new and first + i >= 0 and wanted(first + i) for i in range(n_queries)])
    return result
