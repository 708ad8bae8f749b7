"""Tiny random models outside the probe engine, of the real classes with real processors, as checkpoint folders.

    folder = save_llava(tmp_path / "llava")                # LLaVA-1.5: CLIP, a center crop of 36 x 36, Llama
    folder = save_idefics(tmp_path / "idefics")            # Idefics3: the picture in tiles of 32 x 32, and whole

They say nothing true of any picture, but something else of every other one.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

GAIN = 1.5                      # standard deviation of a layer's output for inputs of unit variance
CONTEXT = 384
LLAVA_SIDE, LLAVA_PATCH = 36, 12
TILE, TILE_PATCH = 32, 8
LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %}USER: {% for part in message.content %}"
    "{% if part.type == 'image' %}<image>\n{% else %}{{ part.text }}{% endif %}{% endfor %} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}")
IDEFICS_TEMPLATE = (
    "<|begin_of_text|>{% for message in messages %}User:{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %} {{ part.text }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}")
INTERNVL_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<IMG_CONTEXT>\n{% else %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def save_llava(folder: Path, template: str = LLAVA_TEMPLATE) -> Path:
    """LLaVA-1.5 as llava-hf ships it: shortest side to 36, the middle 36 x 36 shown, 9 image tokens."""
    tokenizer = _tokenizer("<s>", "<image>")
    text = transformers.LlamaConfig(**_text(tokenizer), max_position_embeddings=CONTEXT)
    vision = transformers.CLIPVisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=3,
                                           num_attention_heads=2, image_size=LLAVA_SIDE, patch_size=LLAVA_PATCH,
                                           projection_dim=32)
    image_token = tokenizer.convert_tokens_to_ids("<image>")
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=image_token,
                                      vision_feature_layer=-2, vision_feature_select_strategy="default",
                                      image_seq_length=(LLAVA_SIDE // LLAVA_PATCH) ** 2)
    images = transformers.CLIPImageProcessor(size={"shortest_edge": LLAVA_SIDE},
                                             crop_size={"height": LLAVA_SIDE, "width": LLAVA_SIDE})
    processor = transformers.LlavaProcessor(images, tokenizer, patch_size=LLAVA_PATCH, chat_template=template,
                                            vision_feature_select_strategy="default", num_additional_image_tokens=1)
    return _saved(transformers.LlavaForConditionalGeneration, config, processor, folder)


def save_idefics(folder: Path) -> Path:
    """Idefics3: a picture is cut into tiles of 32 x 32, 4 image tokens each, with the whole one after them."""
    tokenizer = _tokenizer("<|begin_of_text|>", "<image>", "<fake_token_around_image>", "<global-img>",
                           "<end_of_utterance>",
                           *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)))
    text = transformers.LlamaConfig(**_text(tokenizer), max_position_embeddings=4096)
    vision = transformers.Idefics3VisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                               num_attention_heads=2, image_size=TILE, patch_size=TILE_PATCH)
    config = transformers.Idefics3Config(text_config=text, vision_config=vision, scale_factor=2,
                                         image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
                                         pad_token_id=tokenizer.pad_token_id)
    images = transformers.Idefics3ImageProcessor(size={"longest_edge": 4 * TILE}, max_image_size={"longest_edge": TILE})
    processor = transformers.Idefics3Processor(images, tokenizer, image_seq_len=(TILE // TILE_PATCH // 2) ** 2,
                                               chat_template=IDEFICS_TEMPLATE)
    return _saved(transformers.Idefics3ForConditionalGeneration, config, processor, folder)


def save_internvl(folder: Path) -> Path:
    """InternVL: as many tiles of 32 x 32 as the aspect asks for, 4 image tokens each, all in one row of pixels."""
    markers = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
               "video_token": "<video>"}
    tokenizer = _tokenizer("<|im_start|>", *markers.values(), **markers)
    text = transformers.LlamaConfig(**_text(tokenizer), max_position_embeddings=4096)
    vision = transformers.InternVLVisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                               num_attention_heads=2, image_size=[TILE, TILE],
                                               patch_size=[TILE_PATCH, TILE_PATCH])
    config = transformers.InternVLConfig(text_config=text, vision_config=vision, downsample_ratio=0.5,
                                         image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"))
    size = {"height": TILE, "width": TILE}
    images = transformers.GotOcr2ImageProcessor(size=size, crop_to_patches=True, max_patches=6)
    videos = transformers.InternVLVideoProcessor(size=size)
    processor = transformers.InternVLProcessor(images, tokenizer, videos, image_seq_length=4,
                                               chat_template=INTERNVL_TEMPLATE)
    return _saved(transformers.InternVLForConditionalGeneration, config, processor, folder)


def _text(tokenizer: PreTrainedTokenizerFast) -> dict:
    return dict(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=2, bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False)


def _tokenizer(opening: str, *special: str, **names: str) -> PreTrainedTokenizerFast:
    """Byte-level, so that every text encodes; puts `opening` in front unless told not to, as Llama's does."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(
        ["the color of the kite is red blue green left right what answer option letter"] * 3,
        trainers.BpeTrainer(vocab_size=320, special_tokens=[opening, "</s>", "<pad>", *special], show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made.post_processor = processors.TemplateProcessing(
        single=f"{opening} $A", special_tokens=[(opening, made.token_to_id(opening))])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=opening, eos_token="</s>", pad_token="<pad>",
                                   additional_special_tokens=list(special), extra_special_tokens=names)


@torch.no_grad()
def _saved(model_class: type, config: transformers.PreTrainedConfig, processor: transformers.ProcessorMixin,
           folder: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config)
    generator = torch.Generator().manual_seed(0)
    for name, weight in sorted(model.named_parameters()):
        if weight.ndim >= 2:
            scale = 1.0 if "embed" in name else GAIN / math.sqrt(weight[0].numel())
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    special = sorted(processor.tokenizer.added_tokens_decoder)
    model.get_output_embeddings().weight[special] *= 0.2            # special tokens are said now and then only
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
