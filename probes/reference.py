"""What transformers itself says: the yardstick of the self-check (`probes.selfcheck`).

Nothing here uses the prompts, states, positions or the tap of this package.  Inputs are the processor's, positions
are those the model works out, attention weights are eager's, or a softmax in float64 that shares no line with
the tap.

    logits = own_logits(vlm, [pixels], question, said, n_rows=8)
    logits, weights = eager_run(vlm, [pixels], question, said, n_rows=8)
    with interposed(modules, masses := SoftmaxMasses([prompt.ids], image_token_id)):
        decode(vlm, prefill(vlm, [prompt]), 8)
    masses.array()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import pad

from probes.interpose import AttentionCall, text_attention_modules

if TYPE_CHECKING:
    from probes.vlm import LocalVLM


def drawing(height: int, width: int, number: int) -> np.ndarray:
    """A shaded ground with three rectangles on it, uint8 (height, width, 3), different for every number."""
    down, across = np.mgrid[:height, :width]
    ground = (255 * down // height, 255 * across // width, np.full_like(down, 60 * number % 256))
    pixels = np.stack(ground, -1).astype(np.uint8)
    for index, color in enumerate(((220, 30, 40), (30, 160, 60), (40, 60, 210))):
        top = height * (1 + 2 * (index + number) % 5) // 7
        left = width * (1 + (3 * index + 2 * number) % 5) // 7
        turn = number % 3
        pixels[top:top + height // 5, left:left + width // 6] = color[turn:] + color[:turn]
    return pixels


def own_inputs(vlm: LocalVLM, images: Sequence[np.ndarray], question: str,
               said: Sequence[int] = ()) -> dict[str, torch.Tensor]:
    """The inputs of `forward` and `generate` as the processor makes them, with the token ids `said` after them."""
    content = [*({"type": "image"} for _ in images), {"type": "text", "text": question}]
    text = vlm.processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False,
                                             add_generation_prompt=True)
    options = {}
    if vlm.limits is not None:
        options["images_kwargs"] = {"size": {"shortest_edge": vlm.limits.min_pixels,
                                             "longest_edge": vlm.limits.max_pixels}}
    pictures = [Image.fromarray(pixels) for pixels in images]
    inputs = dict(vlm.processor(text=[text], images=pictures, return_tensors="pt", **options))
    n_prompt = inputs["input_ids"].shape[1]
    for name, value in inputs.items():
        if value.shape == (1, n_prompt):            # one entry a token; the kind of a text token is 0
            tail = list(said) if name == "input_ids" else [int(name == "attention_mask")] * len(said)
            inputs[name] = torch.cat([value, torch.tensor([tail], dtype=value.dtype)], 1)
    inputs["pixel_values"] = inputs["pixel_values"].to(vlm.dtype)
    return {name: value.to(vlm.device) for name, value in inputs.items()}


@torch.no_grad()
def own_logits(vlm: LocalVLM, images: Sequence[np.ndarray], question: str, said: Sequence[int],
               n_rows: int) -> torch.Tensor:
    """(n_rows, vocabulary) last logits by one forward pass from nothing, positions left to the model."""
    inputs = own_inputs(vlm, images, question, said)
    return vlm.model(**inputs, use_cache=False, logits_to_keep=n_rows).logits[0].float()


def eager_run(vlm: LocalVLM, images: Sequence[np.ndarray], question: str, said: Sequence[int],
              n_rows: int) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """`own_logits` under eager text attention and, by layer, the weights (H, n_rows, T) of those query rows.

    The vision tower keeps its kernel: its rounding would change what every layer reads.
    """
    weights: dict[int, torch.Tensor] = {}

    def keep(module: torch.nn.Module, _: tuple, output: tuple) -> None:
        weights[module.layer_idx] = output[1][0, :, -n_rows:].float().cpu()

    hooks = [module.register_forward_hook(keep) for module in text_attention_modules(vlm.model).values()]
    try:
        with attention_set_to(vlm, {"text_config": "eager"}):
            return own_logits(vlm, images, question, said, n_rows), weights
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def attention_set_to(vlm: LocalVLM, kernels: str | dict[str, str]) -> Iterator[None]:
    """Other attention kernels for the model, or for its parts by name, while the block is open."""
    config = vlm.model.config
    before = {"": config._attn_implementation}
    before |= {part: getattr(config, part)._attn_implementation for part in config.sub_configs}
    try:
        vlm.model.set_attn_implementation(kernels)
        yield
    finally:
        vlm.model.set_attn_implementation(before)


class SoftmaxMasses:
    """Image mass of the last query row of every call, in float64, from the very queries and keys the kernel gets.

    An attention handler (`probes.interpose`) for the prefill of left-padded rows `ids` and the single tokens fed
    after it.  Heads are repeated, the mask is made from lengths, image columns are found by their token id.
    """

    def __init__(self, ids: Sequence[Sequence[int]], image_token_id: int):
        width = max(map(len, ids))
        self.n_padding = torch.tensor([width - len(row) for row in ids])
        self.on_image = torch.tensor([[False] * (width - len(row)) + [token == image_token_id for token in row]
                                      for row in ids])
        self.by_layer: dict[int, list[torch.Tensor]] = {}

    def __call__(self, call: AttentionCall, proceed: Callable[[], tuple]) -> tuple:
        steps = self.by_layer.setdefault(call.layer, [])
        n_fed = self.on_image.shape[1] + len(steps)
        column = torch.arange(n_fed - call.key.shape[2], n_fed)       # a sliding cache has dropped the first ones
        visible = column >= self.n_padding[:, None]                   # (B, T)
        if call.sliding_window is not None:
            visible &= column >= n_fed - call.sliding_window
        keys = call.key.double().repeat_interleave(call.query.shape[1] // call.key.shape[1], 1)
        scores = torch.einsum("bhd,bhtd->bht", call.query[:, :, -1].double(), keys).cpu() * call.scaling
        weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
        on_image = pad(self.on_image, (0, len(steps)))[:, column]
        steps.append((weights * on_image[:, None]).sum(-1))
        return proceed()

    def array(self) -> np.ndarray:
        """(B, L, H, steps) in [0, 1]"""
        return torch.stack([torch.stack(steps, -1) for _, steps in sorted(self.by_layer.items())], 1).numpy()
