"""A tiny FLUX.1 of the real classes, in folders laid out like the real repositories.

The Flux editors load it from disk as they load the released weights, and whole edits run on a CPU in about a
second, offline.  It has no idea of any picture, except as far as it is asked to (`vae="clear"`).

    flux = tiny_flux(folder, vae="clear", transformer="still")
    pipeline = diffusers.DiffusionPipeline.from_pretrained(flux.base, local_files_only=True)
    controlnet = diffusers.FluxControlNetModel.from_pretrained(flux.controlnet, local_files_only=True)

`folder/base` is like black-forest-labs/FLUX.1-dev (model_index.json, scheduler, tokenizer, tokenizer_2,
text_encoder, text_encoder_2 and transformer in shards, vae), `folder/controlnet` like
Shakker-Labs/FLUX.1-dev-ControlNet-Union-Pro-2.0.  More nets for the same base come from `tiny_controlnet`.

With vae="clear" a picture survives encoding and decoding (`clear_vae.py`); with transformer="still" the model
predicts no change, so an edit started at noise level sigma ends as (1 - sigma) of the start image, in latents, plus
sigma of noise: about the start image with its contrast around mid-gray times 1 - sigma and noise of 44 sigma / 255.
At sigma 0.06 (the last of 28 steps at 256 pixels) flat patches of all eleven colors keep their names in every pixel,
at 0.17 in 99.9%, at 0.26 in 96%, at 0.40 in 76%.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from editors.clear_vae import CLEAR_CONFIG, set_clear_weights
from editors.diffusion import quietly
from rekey.colors import COLORS
from rekey.errors import InputError
from rekey.store import read_json, write_json

ControlNetKind = Literal["plain", "union", "hint"]
# plain is like Union-Pro-2.0 (6 double-stream and 0 single-stream blocks), union like Union-Pro (5 and 10, and a mode
# that the caller must name), hint like XLabs canny (2 and 0, and convolutions of its own for the control image).
CONTROLNET_LAYERS = {"plain": (1, 0), "union": (1, 2), "hint": (1, 0)}
CONTROLNET_CONFIG = {
    "plain": {},
    "union": {"num_mode": 10},
    "hint": {"conditioning_embedding_channels": 16, "patch_size": 2},
}
VAES = ("random", "clear")
TRANSFORMERS = ("random", "still")
RECORD_NAME = "tiny_flux.json"
RECIPE = 1                  # raised when this file would make other weights, so that old folders are not reused

Pair = tuple[str, str]
WORD_END = "</w>"
TEXT_WIDTH = 32
CLIP_LENGTH, T5_LENGTH = 77, 512
# Standard deviation of the output of a redrawn layer for inputs of unit variance.  As they are made, the text encoders
# give much the same for every text, and the parts that a ControlNet adds put out zeros or next to nothing.
GAIN = 1.7
LOUDER_TEXT = ("",)
LOUDER_FLOW = ("context_embedder", "text_embedder", ".attn.")
LOUDER_CONTROLNET = ("controlnet_", "input_hint_block", "context_embedder", ".attn.")
FLOW_CONFIG = {
    "in_channels": 64,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": TEXT_WIDTH,
    "pooled_projection_dim": TEXT_WIDTH,
    "axes_dims_rope": (4, 6, 6),
}
TRANSFORMER_SHARD_BYTES, T5_SHARD_BYTES = 200_000, 100_000          # for two files each

# Words that are one token for both tokenizers; every other text is spelled in pieces, never as an unknown token
# if it is ASCII.
NOUNS = tuple("""
backpack bag ball balloon bench bicycle bin boat bottle box bucket bus cap car cat chair clock coat cone cup dog door
flag flower glove hat helmet hydrant jacket kite lamp mug phone plate poster scarf scooter shirt shoe sign skateboard
stroller suitcase table tent towel toy truck umbrella van vase wheelchair
""".split())
_OTHER_WORDS = tuple("""
a an the of on in at with to and is it this that not into photo candid picture image small large medium bright matte
plain chocolate dark light entirely fully visible natural realistic material standing lying hanging ground grass
surface floor wall street water soft contact shadow change replace add color keep everything else same kick
""".split())
WORDS = (*COLORS, *NOUNS, *_OTHER_WORDS)
PROMPTS = tuple(f"A candid photo of a {color} {noun}. The {noun} is entirely {color}. Natural light."
                for color in COLORS for noun in NOUNS)


@dataclass(frozen=True)
class TinyFlux:
    """The two folders of a tiny model."""

    base: Path
    controlnet: Path


def tiny_flux(
    folder: str | Path,
    *,
    seed: int = 0,
    guidance: bool = True,
    vae: Literal["random", "clear"] = "random",
    transformer: Literal["random", "still"] = "random",
    layers: tuple[int, int] = (1, 1),
    controlnet: ControlNetKind = "plain",
    controlnet_layers: tuple[int, int] | None = None,
) -> TinyFlux:
    """Build `folder` with a base model and a ControlNet that fits it; an equal one that is there is kept.

    guidance: False for a base like FLUX.1-schnell, whose transformer takes no guidance and whose scheduler does not
    shift; the net takes guidance either way, as those trained on FLUX.1-dev.
    layers, controlnet_layers: numbers of double-stream and single-stream blocks (None: see CONTROLNET_LAYERS).
    Equal arguments give equal bytes.  The folder appears complete or not at all.  Raises InputError for an unknown
    kind and where the folder holds something else.
    """
    _check("vae", vae, VAES)
    _check("transformer", transformer, TRANSFORMERS)
    net = _controlnet_settings(controlnet, seed, controlnet_layers)
    base = _base_settings(seed, guidance, vae, transformer, layers)

    def write(target: Path) -> None:
        _write_base(target / "base", **base)
        _write_controlnet(target / "controlnet", **net)
    built = _built(Path(folder), {"base": base, "controlnet": net}, write)
    return TinyFlux(built / "base", built / "controlnet")


def tiny_controlnet(
    folder: str | Path,
    kind: ControlNetKind = "plain",
    *,
    seed: int = 0,
    layers: tuple[int, int] | None = None,
) -> Path:
    """Build `folder` as one more ControlNet for any tiny base.  As `tiny_flux` otherwise."""
    net = _controlnet_settings(kind, seed, layers)
    return _built(Path(folder), {"controlnet": net}, lambda target: _write_controlnet(target, **net))


# ------------------------------------------------------------------------------------ settings and folders

def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"tiny flux: unknown {name} {value!r}; expected one of {', '.join(known)}")


def _base_settings(seed: int, guidance: bool, vae: str, transformer: str, layers: tuple[int, int]) -> dict[str, Any]:
    return {"seed": seed, "guidance": guidance, "vae": vae, "transformer": transformer, "layers": list(layers)}


def _controlnet_settings(kind: str, seed: int, layers: tuple[int, int] | None) -> dict[str, Any]:
    _check("ControlNet", kind, tuple(CONTROLNET_LAYERS))
    return {"kind": kind, "seed": seed, "layers": list(layers or CONTROLNET_LAYERS[kind])}


def _built(folder: Path, settings: dict[str, Any], write: Callable[[Path], None]) -> Path:
    """`folder`, written beside its place and renamed, unless it already holds the same."""
    record = {
        "recipe": RECIPE,
        "versions": {name: metadata.version(name) for name in ("diffusers", "tokenizers", "torch", "transformers")},
        **settings,
    }
    if _holds(folder, record):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    try:
        quietly(lambda: write(temporary))
        write_json(temporary / RECORD_NAME, record)
        try:
            os.rename(temporary, folder)            # replaces an empty folder, fails on any other
        except OSError:
            if not _holds(folder, record):          # or else another process was faster
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _holds(folder: Path, record: dict[str, Any]) -> bool:
    """Whether `folder` is this model.  Raises InputError where it is anything else but empty."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not (folder / RECORD_NAME).is_file():
        raise InputError(f"{folder}: exists and is not a tiny Flux; give a new or an empty folder")
    if read_json(folder / RECORD_NAME) != record:
        raise InputError(f"{folder}: holds a tiny Flux of other settings or versions (see {RECORD_NAME}); delete it "
                         "or give another folder")
    return True


# ------------------------------------------------------------------------------------ base

def _write_base(
    folder: Path, *, seed: int, guidance: bool, vae: str, transformer: str, layers: tuple[int, int]
) -> None:
    import diffusers

    flow = _drawn(seed, lambda: diffusers.FluxTransformer2DModel(
        num_layers=layers[0], num_single_layers=layers[1], guidance_embeds=guidance, **FLOW_CONFIG), LOUDER_FLOW)
    if transformer == "still":
        nn.init.zeros_(flow.proj_out.weight)
        nn.init.zeros_(flow.proj_out.bias)
    flow.save_pretrained(folder / "transformer", max_shard_size=TRANSFORMER_SHARD_BYTES)

    autoencoder = _drawn(seed, lambda: diffusers.AutoencoderKL(**CLEAR_CONFIG))
    if vae == "clear":
        set_clear_weights(autoencoder)
    autoencoder.save_pretrained(folder / "vae")

    shift = {"shift": 3.0, "use_dynamic_shifting": True} if guidance else {"shift": 1.0, "use_dynamic_shifting": False}
    diffusers.FlowMatchEulerDiscreteScheduler(
        base_shift=0.5, max_shift=1.15, base_image_seq_len=256, max_image_seq_len=4096, **shift
    ).save_pretrained(folder / "scheduler")

    _write_clip(folder, seed)
    _write_t5(folder, seed)
    write_json(folder / "model_index.json", {
        "_class_name": "FluxPipeline",
        "_diffusers_version": metadata.version("diffusers"),
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    })


def _drawn(seed: int, build: Callable[[], nn.Module], louder: tuple[str, ...] = ()) -> nn.Module:
    """A module with the initial weights of its class, those parts redrawn whose name has one of `louder` in it.

    Both draw from the global generator, which is put back.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build().eval()
        for name, part in module.named_modules():
            if not any(mark in name for mark in louder):
                continue
            if isinstance(part, nn.Linear | nn.Conv2d):
                nn.init.normal_(part.weight, std=GAIN * part.weight[0].numel() ** -0.5)
            elif isinstance(part, nn.Embedding):
                nn.init.normal_(part.weight, std=GAIN)
    return module


def _write_clip(folder: Path, seed: int) -> None:
    """CLIP's tokenizer, from vocab.json and merges.txt as in the released folder, and its text encoder."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    vocabulary, merges = _clip_pieces()
    tokenizer = folder / "tokenizer"
    CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=CLIP_LENGTH).save_pretrained(tokenizer)
    (tokenizer / "tokenizer.json").unlink()
    (tokenizer / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tokenizer / "merges.txt").write_text(
        "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""]), encoding="utf-8")

    begin, end = (vocabulary[token] for token in ("<|startoftext|>", "<|endoftext|>"))
    config = CLIPTextConfig(
        vocab_size=len(vocabulary), hidden_size=TEXT_WIDTH, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=CLIP_LENGTH, projection_dim=TEXT_WIDTH,
        bos_token_id=begin, eos_token_id=end, pad_token_id=end)
    _drawn(seed, lambda: CLIPTextModel(config), LOUDER_TEXT).save_pretrained(folder / "text_encoder")


def _clip_pieces() -> tuple[dict[str, int], list[Pair]]:
    """Vocabulary and merges: all 256 bytes, alone and at the end of a word, and what joins WORDS into one piece each.

    The trainer of the tokenizers library is no help: its merges differ from run to run.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    ranks: dict[Pair, int] = {}
    for word in WORDS:
        pieces = _merged([*word[:-1], word[-1] + WORD_END], ranks)
        while len(pieces) > 1:
            # Ranked behind all others, so that earlier words are joined as before.
            ranks[pieces[0], pieces[1]] = len(ranks)
            pieces = _merged(pieces, ranks)
    alphabet = sorted(ByteLevel.alphabet())
    names = [*alphabet, *(letter + WORD_END for letter in alphabet), *(first + second for first, second in ranks)]
    names = [*dict.fromkeys(names), "<|startoftext|>", "<|endoftext|>"]
    return {name: index for index, name in enumerate(names)}, list(ranks)


def _merged(pieces: list[str], ranks: dict[Pair, int]) -> list[str]:
    """Byte-pair encoding of one word: join the pair of lowest rank, everywhere, until none is known."""
    while known := [pair for pair in zip(pieces, pieces[1:]) if pair in ranks]:
        best = min(known, key=ranks.__getitem__)
        joined: list[str] = []
        for piece in pieces:
            if joined and (joined[-1], piece) == best:
                joined[-1] += piece
            else:
                joined.append(piece)
        pieces = joined
    return pieces


def _write_t5(folder: Path, seed: int) -> None:
    """T5's tokenizer, whole WORDS and single ASCII characters, and its encoder."""
    from transformers import T5Config, T5EncoderModel, T5TokenizerFast

    words = [*WORDS, *(word.capitalize() for word in WORDS)]
    characters = [chr(code) for code in range(33, 127)]
    whole, spelled, special = -4.0, -10.0, 0.0                  # log probabilities: fewer pieces are likelier
    pieces = {piece: special for piece in ("<pad>", "</s>", "<unk>")} | {"▁": whole}
    pieces |= {character: spelled for character in characters} | {f"▁{word}": whole for word in dict.fromkeys(words)}
    tokenizer = T5TokenizerFast(vocab=list(pieces.items()), extra_ids=0, model_max_length=T5_LENGTH)
    tokenizer.save_pretrained(folder / "tokenizer_2")

    config = T5Config(
        vocab_size=len(pieces), d_model=TEXT_WIDTH, d_ff=64, d_kv=8, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", relative_attention_num_buckets=8, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, tie_word_embeddings=False)
    encoder = _drawn(seed, lambda: T5EncoderModel(config), LOUDER_TEXT)
    encoder.save_pretrained(folder / "text_encoder_2", max_shard_size=T5_SHARD_BYTES)


# ------------------------------------------------------------------------------------ ControlNet

def _write_controlnet(folder: Path, *, kind: str, seed: int, layers: tuple[int, int]) -> None:
    import diffusers

    net = _drawn(seed, lambda: diffusers.FluxControlNetModel(
        num_layers=layers[0], num_single_layers=layers[1], guidance_embeds=True,
        **FLOW_CONFIG | CONTROLNET_CONFIG[kind]), LOUDER_CONTROLNET)
    net.save_pretrained(folder)
