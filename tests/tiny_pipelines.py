"""Tiny random pipelines of the classes that the instruction editors load, saved as the published ones are.

    folder = tiny_klein(tmp_path / "klein")                 # model_index.json, transformer/, vae/, ...
    folder = TINY["flux-kontext"](tmp_path / "kontext")

Their pictures are noise.  What they share with the real ones: classes, files, numbers of channels, schedulers, chat
templates, and every rounding, resizing and blending of the pipelines.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import torch
import transformers
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    FluxControlPipeline,
    FluxFillPipeline,
    FluxKontextPipeline,
    FluxTransformer2DModel,
    QwenImageEditPipeline,
    QwenImageTransformer2DModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers.convert_slow_tokenizer import bytes_to_unicode

from probes.tiny import tiny_model
from probes.tiny_text import build_tokenizer, chat_template

GAIN = 1.0              # of a layer with random weights: inputs of unit variance give outputs of this deviation
N_QWEN3_LAYERS = 27     # the prompt is read off after layers 9, 18 and 27
FLUX_SCHEDULER = {"shift": 3.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15,
                  "base_image_seq_len": 256, "max_image_seq_len": 4096}
QWEN_SCHEDULER = {"shift": 1.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 0.9,
                  "base_image_seq_len": 256, "max_image_seq_len": 8192, "shift_terminal": 0.02}


def tiny_klein(folder: Path, distilled: bool = True, seed: int = 0) -> Path:
    """FLUX.2-klein: 128 channels a token of 16 pixels, the prompt from three layers of a Qwen3."""
    tokenizer = build_tokenizer("qwen3_vl")
    tokenizer.chat_template = chat_template("qwen3_vl", thinking=True)
    text = transformers.Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=N_QWEN3_LAYERS,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id)
    pipeline = Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**FLUX_SCHEDULER),
        vae=_drawn(seed, AutoencoderKLFlux2, block_out_channels=(4,) * 4, layers_per_block=1, norm_num_groups=1,
                   latent_channels=32),
        text_encoder=_drawn(seed + 1, transformers.Qwen3ForCausalLM, text), tokenizer=tokenizer,
        transformer=_drawn(seed + 2, Flux2Transformer2DModel, in_channels=128, num_layers=1, num_single_layers=1,
                           attention_head_dim=16, num_attention_heads=2, joint_attention_dim=3 * text.hidden_size,
                           timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=False),
        is_distilled=distilled)
    return _saved(pipeline, folder)


def tiny_qwen_edit(folder: Path, seed: int = 0) -> Path:
    """Qwen-Image-Edit: a prompt is read together with the picture, by a Qwen2.5-VL."""
    text_encoder, parts = tiny_model("qwen2_5_vl", seed=seed, layers=2)
    processor = transformers.Qwen2VLProcessor(          # the older class, as in the published folder
        image_processor=parts.image_processor, tokenizer=parts.tokenizer, video_processor=parts.video_processor,
        chat_template=parts.chat_template)
    pipeline = QwenImageEditPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**QWEN_SCHEDULER),
        vae=_drawn(seed, AutoencoderKLQwenImage, base_dim=2, dim_mult=[1, 1, 1, 1], num_res_blocks=1),
        text_encoder=text_encoder, tokenizer=processor.tokenizer, processor=processor,
        transformer=_drawn(seed + 2, QwenImageTransformer2DModel, num_layers=1, attention_head_dim=16,
                           num_attention_heads=1, joint_attention_dim=64, axes_dims_rope=(4, 6, 6)))
    return _saved(pipeline, folder)


def tiny_kontext(folder: Path, seed: int = 0) -> Path:
    """FLUX.1-Kontext: FLUX.1, with the picture as further tokens."""
    return _flux1(FluxKontextPipeline, 64, folder, seed)


def tiny_canny_dev(folder: Path, seed: int = 0) -> Path:
    """FLUX.1-Canny-dev: FLUX.1, with 64 more input channels for the encoded edges."""
    return _flux1(FluxControlPipeline, 128, folder, seed)


def tiny_fill(folder: Path, seed: int = 0) -> Path:
    """FLUX.1-Fill-dev: FLUX.1, with 320 more input channels for the encoded surroundings and the hole."""
    return _flux1(FluxFillPipeline, 384, folder, seed)


TINY = {"flux2-klein": tiny_klein, "flux-kontext": tiny_kontext, "qwen-edit": tiny_qwen_edit,
        "flux-canny-dev": tiny_canny_dev, "flux-fill": tiny_fill}


def _flux1(pipeline_class: type, in_channels: int, folder: Path, seed: int) -> Path:
    clip, t5 = _clip_tokenizer(), _t5_tokenizer()
    clip_config = transformers.CLIPTextConfig(
        vocab_size=len(clip), hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=77, projection_dim=32, bos_token_id=clip.bos_token_id, eos_token_id=clip.eos_token_id,
        pad_token_id=clip.pad_token_id)
    t5_config = transformers.T5Config(
        vocab_size=len(t5), d_model=32, d_ff=37, d_kv=8, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=8, tie_word_embeddings=False)
    pipeline = pipeline_class(
        scheduler=FlowMatchEulerDiscreteScheduler(**FLUX_SCHEDULER),
        vae=_drawn(seed, AutoencoderKL, block_out_channels=(4,) * 4, layers_per_block=1, latent_channels=16,
                   norm_num_groups=1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1159,
                   scaling_factor=0.3611, down_block_types=("DownEncoderBlock2D",) * 4,
                   up_block_types=("UpDecoderBlock2D",) * 4),
        text_encoder=_drawn(seed + 1, transformers.CLIPTextModel, clip_config), tokenizer=clip,
        text_encoder_2=_drawn(seed + 2, transformers.T5EncoderModel, t5_config), tokenizer_2=t5,
        transformer=_drawn(seed + 3, FluxTransformer2DModel, in_channels=in_channels, out_channels=64, num_layers=1,
                           num_single_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32,
                           pooled_projection_dim=32, axes_dims_rope=(4, 4, 8), guidance_embeds=True))
    return _saved(pipeline, folder)


def _drawn(seed: int, model_class: type, *args: object, **config: object) -> nn.Module:
    """A model whose matrices are drawn so that its output depends on all of its input."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = model_class(*args, **config).eval()
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.normal_(std=GAIN / math.sqrt(weight[0].numel()))
    return model


def _saved(pipeline, folder: Path) -> Path:
    pipeline.save_pretrained(folder)
    return folder


@functools.cache
def _clip_tokenizer() -> transformers.PreTrainedTokenizerBase:
    """CLIP's, a token a byte."""
    symbols = [*bytes_to_unicode().values()]
    tokens = [*symbols, *(f"{symbol}</w>" for symbol in symbols), "<|startoftext|>", "<|endoftext|>"]
    return transformers.CLIPTokenizer(vocab={token: n for n, token in enumerate(tokens)}, merges=[],
                                      model_max_length=77)


@functools.cache
def _t5_tokenizer() -> transformers.PreTrainedTokenizerBase:
    """T5's class, a token a letter."""
    letters = [chr(code) for code in range(33, 127)]
    tokenizer = Tokenizer(models.Unigram([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0),
                                          *((letter, -5.0) for letter in letters)], unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.T5TokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>",
                                        unk_token="<unk>", extra_ids=0, model_max_length=512)
