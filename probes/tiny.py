"""Tiny random models of the real classes, with real processors: the whole probe engine on a CPU, offline.

Every family of `families.py` is built as transformers builds it, at a few hundred thousand parameters: the
same class, cache, positions, image patches and chat-template traps as a checkpoint of VisualSwap, and weights
drawn large enough that attention is sharp and every swap of image shows.  It says nothing true of any picture.

    model, processor = tiny_model("qwen3_vl", seed=0)
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    model.generate(**processor(text=[text], images=[image], return_tensors="pt"), max_new_tokens=8)

As in the released checkpoints, tokenizers pad on the right unless told otherwise.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import transformers
from torch import nn

from probes.families import FAMILIES, supported
from probes.tiny_text import build_tokenizer, chat_template, spoken_ids
from rekey.errors import InputError

MIN_IMAGE_TOKENS = 4
MERGE = 2
# Standard deviation of a layer's output for inputs of unit variance: attention scores then spread by about
# its square, so that softmax is far from uniform.
GAIN = 1.5
# Linear attention normalizes its queries and keys to unit length, which magnifies rounding where they are small:
# at GAIN, two orders of summation differ by 1e-3 after four layers, at this by 1e-6.
HYBRID_GAIN = 0.8
# Qwen3 normalizes queries and keys, which undoes GAIN in the scores; their norm weights are raised instead.
QK_NORM_SHIFT = 0.7


def tiny_model(
    family: str,
    seed: int = 0,
    layers: int = 4,
    *,
    thinking: bool | None = None,
    max_image_tokens: int = 64,
    dtype: torch.dtype = torch.float32,
    attn_implementation: str = "sdpa",
    **text_overrides: object,
) -> tuple[transformers.PreTrainedModel, transformers.ProcessorMixin]:
    """A random model of `family` (a key of FAMILIES) and the processor that feeds it.

    Equal arguments give equal weights, to the bit.  `thinking` picks the chat template that opens a think
    block and drops the reasoning of earlier turns (default: the families whose released template does).
    `text_overrides` replace entries of the text config, e.g. hidden_size, or use_sliding_window=True with
    sliding_window=8 for qwen2_5_vl.  Raises InputError for an unknown family.
    """
    processor = tiny_processor(family, thinking=thinking, max_image_tokens=max_image_tokens)
    config = _config(family, processor.tokenizer, layers, text_overrides)
    # A model draws its initial weights from the global generator; most are redrawn below, but not all
    # (the decay rates of linear attention), so the generator is set here and put back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForImageTextToText.from_config(
            config, attn_implementation=attn_implementation
        ).eval()
    _draw_weights(model, seed, HYBRID_GAIN if FAMILIES[family].hybrid else GAIN)
    _speak_words(model, processor.tokenizer)
    _cast(model, dtype)
    model.generation_config = transformers.GenerationConfig(
        do_sample=False,
        eos_token_id=processor.tokenizer.eos_token_id,
        pad_token_id=processor.tokenizer.pad_token_id,
    )
    return model, processor


def save_tiny(family: str, folder: str | Path, seed: int = 0, **options: object) -> Path:
    """Write a tiny model as a checkpoint folder that transformers loads offline (safetensors).

    `options` are those of `tiny_model`.  Returns the folder.
    """
    model, processor = tiny_model(family, seed, **options)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return Path(folder)


def tiny_processor(
    family: str, *, thinking: bool | None = None, max_image_tokens: int = 64
) -> transformers.ProcessorMixin:
    """The family's real processor over a small byte-level tokenizer and small images.

    An image becomes 4 to `max_image_tokens` tokens of 28 x 28 or 32 x 32 pixels.  Kimi never enlarges a small
    image (one token at least), and its limit counts patches before the sides are rounded up to whole tokens.
    Raises InputError for an unknown family.
    """
    if family not in FAMILIES:
        raise InputError(f"tiny model: unknown family {family!r}; supported: {supported()}")
    tokenizer = build_tokenizer(family)
    if thinking is None:
        thinking = FAMILIES[family].hybrid
    parts = dict(tokenizer=tokenizer, chat_template=chat_template(family, thinking))
    patch = _patch_size(family)
    limits = {
        "shortest_edge": MIN_IMAGE_TOKENS * (patch * MERGE) ** 2,
        "longest_edge": max_image_tokens * (patch * MERGE) ** 2,
    }
    pixels = dict(patch_size=patch, merge_size=MERGE)
    if family == "kimi_k25":
        pixels["max_patches"] = max_image_tokens * MERGE**2
        return transformers.Kimi_K25Processor(
            image_processor=transformers.Kimi_K25ImageProcessor(**pixels),
            video_processor=transformers.Kimi_K25VideoProcessor(**pixels),
            **parts,
        )
    if family == "ernie4_5_vl_moe":
        return transformers.Ernie4_5_VLMoeProcessor(
            image_processor=transformers.Ernie4_5_VLMoeImageProcessor(size=limits, **pixels),
            # Time stamps would be drawn with a font file that no package brings.
            video_processor=transformers.Ernie4_5_VLMoeVideoProcessor(
                size=limits, draw_on_frames=False, **pixels
            ),
            **parts,
        )
    images = transformers.Qwen2VLImageProcessor(size=limits, temporal_patch_size=2, **pixels)
    if family in ("qwen2_vl", "qwen2_5_vl"):
        videos = transformers.Qwen2VLVideoProcessor(size=limits, temporal_patch_size=2, **pixels)
        processor_class = (
            transformers.Qwen2VLProcessor if family == "qwen2_vl" else transformers.Qwen2_5_VLProcessor
        )
    else:
        images.image_mean = images.image_std = [0.5, 0.5, 0.5]
        videos = transformers.Qwen3VLVideoProcessor(size=limits, temporal_patch_size=2, **pixels)
        processor_class = transformers.Qwen3VLProcessor
    return processor_class(image_processor=images, video_processor=videos, **parts)


def _patch_size(family: str) -> int:
    return 16 if family.startswith("qwen3") else 14


def _config(family: str, tokenizer, layers: int, overrides: dict) -> transformers.PreTrainedConfig:
    """The config of the tiny model: the family's own class, with its text and vision parts made small."""
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": False,
        **_text_part(family, layers),
        **overrides,
    }
    if FAMILIES[family].positions == "mrope" and "rope_parameters" not in text:
        text["rope_parameters"] = _mrope(family, text)
    vision = _vision_part(family, text["hidden_size"], layers)
    whole = {"tie_word_embeddings": False, **_token_ids(family, tokenizer)}
    if family == "kimi_k25":
        whole["projection_hidden_size"] = vision["hidden_size"]
    return transformers.CONFIG_MAPPING[family](text_config=text, vision_config=vision, **whole)


def _text_part(family: str, layers: int) -> dict:
    """What the family's text config has that the others lack."""
    if family == "kimi_k25":
        return {
            "model_type": "deepseek_v3",
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "num_mtp_layers": 0,
            "bos_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        }
    if family == "ernie4_5_vl_moe":
        return {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_intermediate_size": [64, 32],
        }
    if family in ("qwen2_vl", "qwen2_5_vl"):
        return {"max_window_layers": layers // 2}  # use_sliding_window=True then slides in the upper half
    part: dict = {}
    if family in ("qwen3_vl", "qwen3_vl_moe"):
        part["head_dim"] = 16
    if family in ("qwen3_5", "qwen3_5_moe"):
        # A quarter of each head is rotated, and M-RoPE needs one frequency an axis: 64 is the smallest head.
        part |= {
            "head_dim": 64,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "layer_types": [
                "full_attention" if layer % 4 == 3 or layer == layers - 1 else "linear_attention"
                for layer in range(layers)
            ],
        }
    if family.endswith("_moe"):
        part |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    if family == "qwen3_5_moe":
        part["shared_expert_intermediate_size"] = 64
    return part


def _mrope(family: str, text: dict) -> dict:
    """Rotary parameters whose three sections (time, height, width) fill the rotated part of a head."""
    head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    if family in ("qwen3_5", "qwen3_5_moe"):
        rope["partial_rotary_factor"] = 0.25
    pairs = int(head_dim * rope.get("partial_rotary_factor", 1.0)) // 2
    side = 3 * pairs // 8
    sections = [pairs - 2 * side, side, side]
    if family == "ernie4_5_vl_moe":
        sections.reverse()  # ERNIE counts height, width, time
    rope["mrope_section"] = sections
    if family.startswith("qwen3"):
        rope["mrope_interleaved"] = True
    return rope


def _vision_part(family: str, hidden_size: int, layers: int) -> dict:
    """A vision tower of four blocks, 32 wide, whose output fits a text model of `hidden_size`."""
    patch = _patch_size(family)
    if family == "kimi_k25":
        return {
            "num_hidden_layers": 4,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 2,
            "patch_size": patch,
            "pos_emb_height": 8,
            "pos_emb_width": 8,
        }
    part = {"depth": 4, "num_heads": 2, "patch_size": patch}
    if family == "qwen2_vl":
        return part | {"embed_dim": 32, "hidden_size": hidden_size, "mlp_ratio": 2}
    part |= {"hidden_size": 32, "intermediate_size": 64}
    if family == "ernie4_5_vl_moe":
        return part
    part["out_hidden_size"] = hidden_size
    if family == "qwen2_5_vl":
        return part | {"fullatt_block_indexes": [3], "window_size": 112}
    part["num_position_embeddings"] = 64
    if family in ("qwen3_vl", "qwen3_vl_moe"):
        # Features of vision block i are added after text layer i, so there must be a layer for each.
        part["deepstack_visual_indexes"] = list(range(min(3, layers)))
    return part


def _token_ids(family: str, tokenizer) -> dict[str, int]:
    """The ids by which the config names the tokens around and in place of an image."""
    if family == "ernie4_5_vl_moe":
        names = ("image_token", "image_start_token", "image_end_token")
        names += ("video_token", "video_start_token", "video_end_token")
    else:
        names = ("image_token", "video_token", "vision_start_token", "vision_end_token")
    return {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in names}


@torch.no_grad()
def _draw_weights(model: nn.Module, seed: int, gain: float) -> None:
    """Redraw all matrices so that each layer changes its input by about `gain`, in float32."""
    generator = torch.Generator().manual_seed(seed)

    def normal(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator)

    for module_name, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding) or name == "position_embeddings":
                weight.copy_(normal(weight))
            elif module_name.endswith(("q_norm", "k_norm")):
                weight.add_(QK_NORM_SHIFT)
            elif name.endswith("bias") and not name.endswith("score_correction_bias"):
                if weight.ndim == 1:
                    weight.copy_(normal(weight) * 0.1)
            elif weight.ndim >= 2:
                # Experts are stacked matrices (expert, out, in); convolutions are (out, in, *kernel).
                fan_in = weight.shape[-1] if weight.ndim == 3 else weight[0].numel()
                weight.copy_(normal(weight) * (gain / math.sqrt(fan_in)))


@torch.no_grad()
def _speak_words(model: transformers.PreTrainedModel, tokenizer) -> None:
    """Let greedy text be whole words, which can be read: special tokens get logit 0, fragments a fifth."""
    loudness = torch.full((len(tokenizer), 1), 0.2)
    loudness[spoken_ids(tokenizer)] = 1.0
    loudness[sorted(tokenizer.added_tokens_decoder)] = 0.0
    model.get_output_embeddings().weight.mul_(loudness)


def _cast(model: transformers.PreTrainedModel, dtype: torch.dtype) -> None:
    """Cast as `from_pretrained(dtype=...)` does: routers stay in float32 where the class asks for it."""
    if dtype == torch.float32:
        return
    kept = tuple(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    saved = model.state_dict().keys()  # frequencies and other tables are computed, not saved: always float32
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in saved and tensor.is_floating_point() and not any(part in name for part in kept):
            tensor.data = tensor.data.to(dtype)
