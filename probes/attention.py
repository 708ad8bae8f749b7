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

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from probes.infer import known_columns
from probes.interpose import COLUMNS, interposed, text_attention_modules
from probes.layout import Prompt
from probes.prefix import check_text_ids, prefill
from probes.recorder import Trace
from probes.trace import ImageAttention
from rekey.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from probes.vlm import LocalVLM


@contextmanager
def recording_image_attention(model: LocalVLM | PreTrainedModel, layers: Iterable[int] | None = None,
                              per_head: bool = True) -> Iterator[Trace]:
    """Record, while the block is open, the attention of every text token that `model` reads.

    layers: indices from 0, negative ones from the end; by default all layers that attend.
    per_head: False keeps only the mean over heads, 1/H of the memory.
    Of a prompt only the last token is recorded; of what comes after it, every token.
    """
    network = network_of(model)
    modules = text_attention_modules(network)
    n_layers = network.config.get_text_config().num_hidden_layers
    chosen = chosen_layers(layers, modules, n_layers)
    trace = Trace(chosen, n_layers, per_head)
    with known_columns(network):
        hooks = [network.register_forward_pre_hook(lambda *_: trace.open_step(COLUMNS.get())),
                 network.register_forward_hook(lambda *_: trace.close_step())]
        try:
            with interposed([modules[layer] for layer in chosen], trace.record, first=True):
                yield trace
        finally:
            for hook in hooks:
                hook.remove()
            trace.sum_waiting()


def network_of(model: LocalVLM | PreTrainedModel) -> PreTrainedModel:
    return model.model if hasattr(model, "family") else model


def chosen_layers(layers: Iterable[int] | None, modules: dict[int, torch.nn.Module], n_layers: int) -> list[int]:
    """Layer indices as given, checked against the layers that have softmax attention."""
    if layers is None:
        return list(modules)
    given = indices(layers, "layers")
    chosen = sorted({layer + n_layers if layer < 0 else layer for layer in given})
    if not chosen or not set(chosen) <= modules.keys():
        why = "the others are linear attention, which has no weights on single tokens" if len(modules) < n_layers else \
            f"a {n_layers}-layer model, counted from 0"
        raise InputError(f"layers {given}: expected some of {list(modules)} ({why})")
    return chosen


def indices(given: Iterable[int], what: str) -> list[int]:
    try:
        return [operator.index(index) for index in given]
    except TypeError:
        raise InputError(f"{what}: got {given!r}; expected a list of whole numbers") from None


def rescore(vlm: LocalVLM, prompt: Prompt, ids: Sequence[int], layers: Iterable[int] | None = None,
            per_head: bool = True, chunk_tokens: int | None = None) -> ImageAttention:
    """The trace of finished text by teacher forcing: equal to what decoding it would have recorded.

    ids: the tokens that followed the prompt, by whatever engine they were generated.  n ids give n rows.
    chunk_tokens: read the text after the image in pieces of this size, for long text on little memory.
    """
    ids = check_text_ids(vlm, ids)
    if not ids:
        raise InputError("rescore: no token ids; give the ids that followed the prompt, at least one")
    with recording_image_attention(vlm, layers, per_head) as trace:
        prefill(vlm, [prompt.then(ids[:-1])], chunk_tokens)
    return trace.sequences()[0]


__all__ = ["Trace", "recording_image_attention", "rescore"]
