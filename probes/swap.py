"""Change the image under text that was already written (VisualSwap, Sec. 2), in three regimes.

`recompute`: all tokens are read again under the new image, so the keys and values of the text are those it
would have had; this is the paper's probe.  `splice`: only the image's own keys and values are exchanged; the
text keeps what it had read off the old image.  `none`: nothing is exchanged, the control.

    a = prefill(vlm, [prompt.then(reasoning)])
    b = swap(vlm, a, [image_b], "splice")
    out = decode(vlm, extend(vlm, fork(b, n), [trigger]), 256)

The three are different experiments: with another image, splice differs from recompute as much as either
does from none.  Images of other grids are refused, for their tokens would have other positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from probes.families import REGIMES
from probes.interpose import Lineage
from probes.layout import IMAGE, EncodedImage, check_same_grids
from probes.prefix import State, fork, fork_cache, prefill
from rekey.errors import InputError

if TYPE_CHECKING:
    from probes.vlm import LocalVLM


def swap(vlm: LocalVLM, state: State, images: Sequence[EncodedImage], regime: str,
         chunk_tokens: int | None = None) -> State:
    """The state of one row as if, from here on, its images were `images`; the given state stays as it is.

    images: one for each image of the row; pass the old one where it stays.  In a trace, rows before the swap are
    those of the old image for splice and none, and are read again under the new one for recompute.
    """
    check_regime(vlm, regime)
    if len(state.rows) != 1:
        raise InputError(f"swap: a state of {len(state.rows)} rows; swap rows one at a time, then stack them")
    if not state.rows[0].images:
        raise InputError("swap: the sequence has no image; give a prompt with one")
    check_same_grids(state.rows[0].images, images)
    if regime == "none":
        return fork(state)
    if regime == "recompute":
        return prefill(vlm, [state.rows[0].with_images(images)], chunk_tokens)
    return _spliced(vlm, state, images)


def check_regime(vlm: LocalVLM, regime: str) -> None:
    """Refuse, with the reason, a regime that has no meaning for this model."""
    if regime not in REGIMES:
        raise InputError(f"regime {regime!r}: expected one of {', '.join(REGIMES)}")
    if regime not in vlm.family.regimes:
        raise InputError(f"regime {regime}: has no meaning for {vlm.family.title}: most of its layers keep one running "
                         "state in which the old image stays, and only the few attention layers have image keys to "
                         "exchange; use recompute")
    if regime == "splice" and not vlm.croppable:
        raise InputError("regime splice: this checkpoint uses sliding-window attention, whose cache drops the image's "
                         "keys; use recompute")


def _spliced(vlm: LocalVLM, state: State, images: Sequence[EncodedImage]) -> State:
    """Exchange keys and values at image columns.  Reading up to the end of the image is enough: they depend on
    nothing after it, and carry what DeepStack adds."""
    row = state.rows[0].with_images(images)
    source = prefill(vlm, [row.cut(row.image_end)], recorded=False)
    offset = state.n_columns - len(row)                       # padding on the left
    at = torch.tensor([i for i, code in enumerate(row.codes) if code >= IMAGE], device=state.codes.device)
    cache = fork_cache(state.cache)
    for layer, fresh in zip(cache.layers, source.cache.layers):
        where = at.to(layer.keys.device)
        layer.keys = layer.keys.index_copy(2, where + offset, fresh.keys.index_select(2, where))
        layer.values = layer.values.index_copy(2, where + offset, fresh.values.index_select(2, where))
    codes = state.codes.clone()
    codes[0, offset:] = torch.frombuffer(bytearray(row.codes), dtype=torch.uint8).to(codes.device)
    # The text's own last output was computed under the old image: its logits are read anew.
    return replace(state, rows=(row,), cache=cache, codes=codes, logits=None,
                   lineage=(Lineage(state.lineage[0], len(row)),))
