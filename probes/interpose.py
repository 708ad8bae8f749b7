"""One place that stands between transformers' attention layers and their kernels.

All supported models call `ALL_ATTENTION_FUNCTIONS[name](module, query, key, value, mask, ...)` for
every attention layer.  While a probe is open, that entry is shadowed *under its own name*: masks,
vision towers and cache rules depend on the name, so another name changes what is computed.  Modules
that no probe asked for pass straight through, in this model and in any other.

    with interposed(modules, observer):        # observer(call: AttentionCall, output) per call
        model(...)
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from probes.layout import GENERATED
from probes.mass import HIDDEN, KeyGroups
from rekey.errors import InputError


class Lineage:
    """Which recorded rows belong to one sequence: its own before token `end`, and its parent's before token `cut`.

    `end` is set where a sequence stopped before the batch that it was read with.
    """

    def __init__(self, parent: Lineage | None = None, cut: int = 0):
        self.parent, self.cut, self.end = parent, cut, math.inf


@dataclass(frozen=True)
class WatchedRow:
    """One row of a batch, as the probes know it.

    n_prompt: tokens before the first generated one.  images: (tokens, tokens in the region) of each.
    """

    lineage: Lineage
    n_prompt: int
    images: tuple[tuple[int, int], ...]


@dataclass(eq=False)
class Columns:
    """What the keys of a running forward are, for the probes that watch it.

    codes: (B, T or more) group codes (`probes.layout`), valid up to column `n`; keys still to come are GENERATED.
    lengths, n_new: per row, real tokens after this forward and those among them that are fed now.
    n_recorded: how many final query rows are worth recording.  room: columns that will still be fed.
    plain_mask: what a query sees follows from the codes alone: no padding, nothing later, nothing outside a window.
    grows: keys of attention layers are kept as they are and new ones are appended.
    closers: called when these columns are read no further, by whoever holds on to their keys.
    """

    codes: torch.Tensor
    n: int
    n_codes: int
    lengths: list[int]
    n_new: list[int]
    n_recorded: int
    rows: tuple[WatchedRow, ...]
    room: int = 0
    plain_mask: bool = True
    grows: bool = True
    kept: dict[torch.device, KeyGroups] = field(default_factory=dict)
    closers: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        while self.closers:
            self.closers.pop()()

    def groups(self, device: torch.device) -> KeyGroups:
        if device not in self.kept:
            self.kept[device] = KeyGroups(self.codes.to(device), self.n_codes, tail=GENERATED, room=self.room)
        return self.kept[device]

    def keys(self, n_keys: int) -> tuple[int, int]:
        """(stop, start) of a layer's keys: all columns, the last ones (sliding window), or more (static cache)."""
        return max(self.n, n_keys), max(0, self.n - n_keys)


COLUMNS: ContextVar[Columns | None] = ContextVar("columns of the running forward", default=None)


@dataclass(eq=False)
class AttentionCall:
    """One layer's call: query (B, H, Q, D), key and value (B, G, T, D), mask in the kernel's own form."""

    module: nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    kwargs: dict
    kernel: Callable
    steered: Any = None           # what a steering handler did to some rows (`probes.steering`)

    @property
    def layer(self) -> int:
        return self.module.layer_idx

    @property
    def scaling(self) -> float:
        scaling = self.kwargs.get("scaling")
        return self.query.shape[-1] ** -0.5 if scaling is None else scaling

    @property
    def sliding_window(self) -> int | None:
        return vars(self.module).get("sliding_window")       # a module takes its time to say that it lacks one

    def within(self, n_columns: int) -> AttentionCall:
        """The call without the empty room at the end of a static cache, which only a 4D mask hides."""
        if self.key.shape[2] <= n_columns or self.mask is not None and self.mask.dim() == 4:
            return self
        return replace(self, key=self.key[:, :, :n_columns], value=self.value[:, :, :n_columns],
                       mask=None if self.mask is None else self.mask[:, :n_columns])

    def batch(self, rows: slice) -> AttentionCall:
        """Some rows of the batch."""
        mask = self.mask if self.mask is None or self.mask.shape[0] == 1 else self.mask[rows]
        return replace(self, query=self.query[rows], key=self.key[rows], value=self.value[rows], mask=mask)

    def hidden(self, n_rows: int, rows: slice) -> torch.Tensor:
        """(B or 1, 1 or H, R, T) float32 to add to logits of `rows` among the last `n_rows` queries: very negative
        where a key cannot be seen."""
        n_keys = self.key.shape[2]
        if self.mask is not None and self.mask.dim() == 4:
            mask = self.mask[:, :, -n_rows:, :n_keys][:, :, rows]
            return torch.where(mask, 0.0, HIDDEN) if mask.dtype == torch.bool else mask.float().clamp_min(HIDDEN)
        at = torch.arange(n_keys - n_rows, n_keys, device=self.key.device)[rows, None]
        key = torch.arange(n_keys, device=self.key.device)
        seen = key <= at
        if self.sliding_window is not None:
            seen &= key > at - self.sliding_window
        if self.mask is not None:
            seen = seen & self.mask[:, None, None, :n_keys].bool()
        return torch.where(seen, 0.0, HIDDEN).expand(1 if seen.dim() < 4 else -1, 1, -1, -1)

    def run(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the kernel itself returns: output (B, Q, H, D) and no weights."""
        return self.kernel(self.module, self.query, self.key, self.value, self.mask, **self.kwargs)


class _Shadow:
    """The shadow of one entry of the attention interface; installed while any module is watched."""

    def __init__(self, name: str):
        self.name = name
        self.handlers: dict[nn.Module, list[Callable]] = {}
        self.kernel: Callable | None = None
        self.was_local: Callable | None = None

    def install(self) -> None:
        local = ALL_ATTENTION_FUNCTIONS._local_mapping
        self.was_local = local.get(self.name)
        self.kernel = ALL_ATTENTION_FUNCTIONS[self.name]
        ALL_ATTENTION_FUNCTIONS[self.name] = self

    def remove(self) -> None:
        if self.was_local is not None:
            ALL_ATTENTION_FUNCTIONS[self.name] = self.was_local
        else:
            del ALL_ATTENTION_FUNCTIONS[self.name]

    def __call__(self, module, query, key, value, attention_mask, **kwargs):
        handlers = self.handlers.get(module)
        if not handlers:
            return self.kernel(module, query, key, value, attention_mask, **kwargs)
        call = AttentionCall(module, query, key, value, attention_mask, kwargs, self.kernel)
        return _through(call, handlers)


def _through(call: AttentionCall, handlers: list[Callable]):
    """The first handler gets the call and what comes after it; the last one runs the kernel."""
    if not handlers:
        return call.run()
    return handlers[0](call, lambda: _through(call, handlers[1:]))


_SHADOWS: dict[str, _Shadow] = {}
_LOCK = threading.RLock()

Handler = Callable[[AttentionCall, Callable[[], tuple]], tuple]


@contextmanager
def interposed(modules: Iterable[nn.Module], handler: Handler, first: bool = False) -> Iterator[None]:
    """`handler(call, proceed)` is called for every attention call of `modules` while the block is open.

    It returns what the layer gets: `proceed()` for the kernel's own output.  first: before the handlers
    that are there already (outermost), else after them.
    """
    modules = list(modules)
    name = attention_kernel(modules)
    with _LOCK:
        shadow = _SHADOWS.setdefault(name, _Shadow(name))
        if not shadow.handlers:
            shadow.install()
        for module in modules:
            handlers = shadow.handlers.setdefault(module, [])
            handlers.insert(0 if first else len(handlers), handler)
    try:
        yield
    finally:
        with _LOCK:
            for module in modules:
                shadow.handlers[module].remove(handler)
                if not shadow.handlers[module]:
                    del shadow.handlers[module]
            if not shadow.handlers:
                shadow.remove()
                del _SHADOWS[name]


def attention_kernel(modules: list[nn.Module]) -> str:
    """The attention implementation that these modules run; "eager" and unknown ones are refused."""
    names = {module.config._attn_implementation for module in modules}
    if len(names) != 1:
        raise InputError(f"attention: these layers run under {sorted(map(str, names))}; expected one kernel for all; "
                         "call model.set_attn_implementation(\"sdpa\")")
    name = names.pop()
    if name in (None, "eager") or name not in ALL_ATTENTION_FUNCTIONS:
        raise InputError(f"attention: the model runs under {name!r}, which builds every T x T matrix and answers "
                         "differently in half precision; expected sdpa or flash_attention_2; call "
                         "model.set_attn_implementation(\"sdpa\")")
    return name


def text_attention_modules(model: nn.Module) -> dict[int, nn.Module]:
    """Layer index -> attention module of the language model, found by role and not by path.

    Vision attention has no `layer_idx`; linear-attention layers have one but no key/value heads.
    """
    found = {module.layer_idx: module for module in model.modules()
             if isinstance(getattr(module, "layer_idx", None), int) and hasattr(module, "num_key_value_groups")
             and hasattr(module, "scaling")}
    if not found:
        raise InputError(f"{type(model).__name__}: no attention layer with a layer_idx found; expected a transformers "
                         "vision-language model; its parts are "
                         f"{', '.join(name for name, _ in model.named_children())}")
    return dict(sorted(found.items()))
