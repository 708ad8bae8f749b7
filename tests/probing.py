"""What the tests of the probe engine share: tiny models, mosaics, and references that transformers alone makes.

    vlm = tiny_vlm("qwen3_vl")                             # built once per process
    inputs = processor_inputs(vlm, [([image(0)], "What color?")])
    weights = eager_weights(vlm, inputs, 12).steps[0]      # (L, B, H, T) of the last row, by eager attention
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from probes.families import FAMILIES, family_of
from probes.layout import GENERATED, PADDING, Prompt
from probes.tiny import tiny_model
from probes.vlm import LocalVLM, load_vlm
from rekey.errors import InputError

ALL = tuple(FAMILIES)
QWEN = tuple(name for name in ALL if name.startswith("qwen"))
HYBRIDS = tuple(name for name, family in FAMILIES.items() if family.hybrid)
CROPPABLE = tuple(name for name in ALL if name not in HYBRIDS)
MROPE = tuple(name for name, family in FAMILIES.items() if family.positions == "mrope")

QUESTION = "What color is the kite?\n(A) red\n(B) blue"
N_LAYERS, N_HEADS = 4, 4


@cache
def tiny_vlm(family: str, **text_overrides) -> LocalVLM:
    """A tiny random model of a family, shared by all tests of a process: put back what you change on it."""
    torch.set_num_threads(1)
    if not text_overrides:
        return load_vlm(f"tiny:{family}", dtype="float32", device_map="cpu", attention="sdpa")
    model, processor = tiny_model(family, **text_overrides)
    return LocalVLM(name=f"tiny:{family}", revision=None, family=family_of(model.config), model=model,
                    processor=processor, limits=None, attention="sdpa", attention_reason="asked for")


def image(seed: int, height: int = 120, width: int = 160) -> np.ndarray:
    """A mosaic of random colors, uint8 (height, width, 3)."""
    tiles = np.random.default_rng(seed).integers(0, 256, (-(-height // 10), -(-width // 10), 3), dtype=np.uint8)
    return tiles.repeat(10, 0).repeat(10, 1)[:height, :width]


@contextmanager
def refused(pattern: str) -> Iterator[None]:
    """The block is refused with one line, in which the regular expression is found."""
    with pytest.raises(InputError, match=pattern) as error:
        yield
    assert "\n" not in str(error.value)


def n_attention_layers(vlm: LocalVLM) -> int:
    return 1 if vlm.family.hybrid else N_LAYERS


def processor_inputs(vlm: LocalVLM, rows: Sequence[tuple[Sequence[np.ndarray], str]]) -> dict[str, torch.Tensor]:
    """What the model's own processor makes of rows of (images, question), left-padded together."""
    texts = [vlm.processor.apply_chat_template(
        [{"role": "user", "content": [*({"type": "image"} for _ in images), {"type": "text", "text": question}]}],
        tokenize=False, add_generation_prompt=True) for images, question in rows]
    images = [image for row, _ in rows for image in row]
    return dict(vlm.processor(text=texts, images=images or None, padding=True, padding_side="left",
                              return_tensors="pt"))


def forget(vlm: LocalVLM) -> None:
    """Drop the positions that the model remembers of its last prompt, so that a plain call starts afresh."""
    if hasattr(vlm.model.model, "rope_deltas"):
        vlm.model.model.rope_deltas = None


def plain_generate(vlm: LocalVLM, inputs: dict, n: int, **options):
    """transformers' own generate, with the image and video tokens forbidden."""
    forget(vlm)
    return vlm.model.generate(**inputs, max_new_tokens=n, suppress_tokens=vlm.never_generated.tolist(),
                              return_dict_in_generate=True, **options)


def continued(inputs: dict, ids: Sequence[int]) -> dict:
    """Inputs of one row with text token ids after it."""
    new = torch.tensor([list(ids)], dtype=inputs["input_ids"].dtype)
    longer = dict(inputs, input_ids=torch.cat([inputs["input_ids"], new], 1))
    for name in ("attention_mask", "mm_token_type_ids", "moe_mm_token_type_ids"):
        if name in inputs:
            of_text = torch.full_like(new, int(name == "attention_mask")).to(inputs[name].dtype)
            longer[name] = torch.cat([inputs[name], of_text], 1)
    return longer


def first_tokens(inputs: dict, n: int) -> dict:
    """Inputs of one row, cut to its first `n` tokens."""
    per_token = inputs["input_ids"].shape
    return {name: value[:, :n] if value.shape == per_token else value for name, value in inputs.items()}


@torch.no_grad()
def plain_logits(vlm: LocalVLM, inputs: dict) -> torch.Tensor:
    """(B, T, V) logits of one plain forward pass, without a cache and with positions of the model's own making."""
    forget(vlm)
    return vlm.model(**inputs, use_cache=False).logits.float()


def poison(vlm: LocalVLM) -> None:
    """Leave on the model object what another prompt with another image would leave there, and worse."""
    vlm.generate([vlm.prompt(image(77, 64, 200), "other")], 1)
    plain_generate(vlm, processor_inputs(vlm, [([image(78, 200, 64)], "another")]), 1)
    if hasattr(vlm.model.model, "rope_deltas"):
        vlm.model.model.rope_deltas = torch.full((1, 1), -99)


@contextmanager
def eager_text(model: PreTrainedModel) -> Iterator[None]:
    """The language model under eager attention; the vision tower stays as it is, so image features do too."""
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


@dataclass(frozen=True)
class EagerRun:
    """Generated ids (B, n) and, per step, the weights (L, B, H, T) with which the newest token attends."""

    ids: list[list[int]]
    steps: list[torch.Tensor]


def eager_weights(vlm: LocalVLM, inputs: dict, n: int, **options) -> EagerRun:
    """What eager attention and `output_attentions` say of a greedy generation."""
    with eager_text(vlm.model):
        out = plain_generate(vlm, inputs, n, output_attentions=True, **options)
    steps = [torch.stack([layer[:, :, -1] for layer in step if layer is not None]) for step in out.attentions]
    return EagerRun(out.sequences[:, inputs["input_ids"].shape[1]:].tolist(), steps)


def codes_of(prompts: Sequence[Prompt], n_new: int) -> torch.Tensor:
    """(B, T) group codes of left-padded prompts and `n_new` generated tokens."""
    width = max(map(len, prompts))
    return torch.tensor([[PADDING] * (width - len(p)) + list(p.codes) + [GENERATED] * n_new for p in prompts])


def eager_mass(run: EagerRun, wanted: torch.Tensor) -> np.ndarray:
    """(B, L, H, steps) sums of eager weights over the columns where `wanted` (B, T or more) is true."""
    sums = [(step * wanted[None, :, None, :step.shape[-1]]).sum(-1) for step in run.steps]
    return torch.stack(sums, -1).transpose(0, 1).numpy()


def flash_stand_in(module, query, key, value, attention_mask, scaling=None, sliding_window=None, is_causal=None,
                   **kwargs):
    """Exact causal attention that takes what FlashAttention-2 takes: no mask, or (B, T) with False at padding."""
    assert attention_mask is None or attention_mask.dim() == 2, "FlashAttention-2 takes no 4D mask"
    n_rows, n_keys = query.shape[2], key.shape[2]
    at = torch.arange(n_keys - n_rows, n_keys)[:, None]
    seen = torch.arange(n_keys) <= at
    if sliding_window is not None:
        seen &= torch.arange(n_keys) > at - sliding_window
    seen = seen[None, None]
    if attention_mask is not None:
        seen = seen & attention_mask[:, None, None, :].bool()
    repeats = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(repeats, 1).transpose(2, 3)
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
    return (weights @ value.repeat_interleave(repeats, 1)).transpose(1, 2).contiguous(), None


@contextmanager
def flash_text(vlm: LocalVLM) -> Iterator[list]:
    """The language model under the name flash_attention_2, with the stand-in as its kernel.

    Masks then come from transformers' own flash mask function.  Yields a list with one entry per kernel call:
    whether it had a mask.
    """
    config, calls = vlm.model.config.get_text_config(), []

    def kernel(module, query, key, value, attention_mask, **kwargs):
        calls.append(attention_mask is not None)
        return flash_stand_in(module, query, key, value, attention_mask, **kwargs)

    ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = kernel
    config._attn_implementation = "flash_attention_2"
    try:
        yield calls
    finally:
        config._attn_implementation = "sdpa"
        del ALL_ATTENTION_FUNCTIONS["flash_attention_2"]


def up_to_the_mask(kernel):
    """`kernel` for a static cache, as FlashAttention-2 unpads one: keys that the mask does not cover are not read."""
    def kernel_of_seen_keys(module, query, key, value, attention_mask, **kwargs):
        n_seen = key.shape[2] if attention_mask is None else attention_mask.shape[1]
        return kernel(module, query, key[:, :, :n_seen], value[:, :, :n_seen], attention_mask, **kwargs)
    return kernel_of_seen_keys
