"""The control models' architecture: the real Qwen3-VL class at 1.3 million parameters, and how it is trained fast.

    model = new_control()                             # Qwen3VLForConditionalGeneration, untrained
    with fast_training():                             # same mathematics, fewer and larger kernels
        loss, logits, targets, vision = forward(model, batch)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch.nn import functional as F
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl

from probes.controls.batches import NO_LABEL, Batch, grids, vocabulary
from probes.controls.text import GRID, MERGE, PATCH, control_processor

HIDDEN, LAYERS, HEADS, HEAD_DIM = 128, 5, 4, 32
VISION_HIDDEN = 64
# Attention starts sharper than at random, and two heads of each layer start out matching like with like: copying is
# what these models need most.
QK_NORM, TIED_HEADS = 1.6, 2
POSITION_CODE = 0.2


def control_config() -> Qwen3VLConfig:
    """The configuration of every control model."""
    tokenizer = control_processor().tokenizer
    words = tokenizer.convert_tokens_to_ids
    third = HEAD_DIM // 2 // 3
    text = dict(
        vocab_size=len(tokenizer), hidden_size=HIDDEN, intermediate_size=2 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=HEAD_DIM, max_position_embeddings=2048,
        tie_word_embeddings=True, initializer_range=0.04, pad_token_id=vocabulary().pad,
        eos_token_id=vocabulary().end, bos_token_id=None,
        rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_interleaved=True,
                             mrope_section=[HEAD_DIM // 2 - 2 * third, third, third]))
    vision = dict(
        depth=3, hidden_size=VISION_HIDDEN, intermediate_size=3 * VISION_HIDDEN, num_heads=2, patch_size=PATCH,
        spatial_merge_size=MERGE, temporal_patch_size=2, out_hidden_size=HIDDEN, num_position_embeddings=GRID * GRID,
        deepstack_visual_indexes=[1], initializer_range=0.04)
    return Qwen3VLConfig(
        text_config=text, vision_config=vision, image_token_id=words("<|image_pad|>"),
        video_token_id=words("<|video_pad|>"), vision_start_token_id=words("<|vision_start|>"),
        vision_end_token_id=words("<|vision_end|>"), tie_word_embeddings=True)


def blank_control(attn_implementation: str = "sdpa") -> Qwen3VLForConditionalGeneration:
    """The class with this configuration and weights drawn from torch's generator."""
    model = Qwen3VLForConditionalGeneration._from_config(control_config(), attn_implementation=attn_implementation)
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id, settings.do_sample = vocabulary().end, vocabulary().pad, False
    return model


@torch.no_grad()
def new_control() -> Qwen3VLForConditionalGeneration:
    """An untrained control model, drawn from torch's generator."""
    model = blank_control()
    tied = TIED_HEADS * HEAD_DIM
    for layer in model.model.language_model.layers:
        attention = layer.self_attn
        attention.q_norm.weight.fill_(QK_NORM)
        attention.k_norm.weight.fill_(QK_NORM)
        attention.k_proj.weight[:tied] = attention.q_proj.weight[:tied]
        attention.o_proj.weight[:, :tied] = attention.v_proj.weight[:tied].T
    # Places start out as smooth functions of x and y, so that near patches are alike from the first step on.
    down, across = torch.meshgrid(*[torch.linspace(-1, 1, GRID)] * 2, indexing="ij")
    code = [across, down]
    for k in (0.5, 1, 2):
        code += [wave(math.pi * k * axis) for axis in (across, down) for wave in (torch.sin, torch.cos)]
    model.model.visual.pos_embed.weight[:, :len(code)] += POSITION_CODE * torch.stack([c.flatten() for c in code], 1)
    return model


def forward(model: Qwen3VLForConditionalGeneration, batch: Batch):
    """(mean loss over labels, their logits (N, vocabulary), the labels (N,), the vision tower's output)."""
    out = model.model(input_ids=batch.ids, position_ids=batch.positions(), pixel_values=batch.pixels,
                      image_grid_thw=grids(len(batch.rows)), use_cache=False,
                      mm_token_type_ids=(batch.ids == vocabulary().image).int())
    labeled = batch.labels[:, 1:] != NO_LABEL
    logits = model.lm_head(out.last_hidden_state[:, :-1][labeled])
    targets = batch.labels[:, 1:][labeled]
    return F.cross_entropy(logits, targets), logits, targets, out.image_outputs


def see(model: Qwen3VLForConditionalGeneration, pixels: torch.Tensor, n_images: int) -> torch.Tensor:
    """(B * TOKEN_GRID**2, HIDDEN): the merged visual tokens of a batch of images."""
    seen = model.model.visual(pixels, grid_thw=grids(n_images)).pooler_output
    return torch.cat(list(seen)) if isinstance(seen, tuple | list) else seen


@contextlib.contextmanager
def fast_training() -> Iterator[None]:
    """While open, the vision tower attends to all images of a batch at once (they have one size).

    The stock code attends image by image.
    """
    stock = qwen3_vl.Qwen3VLVisionAttention.forward

    def batched(self, hidden_states, cu_seqlens, position_embeddings=None, **kwargs):
        n_patches = GRID * GRID
        n_images = hidden_states.shape[0] // n_patches
        q, k, v = (self.qkv(hidden_states).reshape(n_images, n_patches, 3, self.num_heads, -1)
                   .permute(2, 0, 3, 1, 4).unbind(0))                       # each (B, heads, patches, width)
        cos, sin = (table[:n_patches] for table in position_embeddings)
        q, k = (x * cos + qwen3_vl.rotate_half(x) * sin for x in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, scale=self.scaling)
        return self.proj(out.transpose(1, 2).reshape(hidden_states.shape[0], -1))

    qwen3_vl.Qwen3VLVisionAttention.forward = batched
    try:
        yield
    finally:
        qwen3_vl.Qwen3VLVisionAttention.forward = stock
