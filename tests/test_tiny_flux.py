"""The tiny Flux: real classes in real folders, the same bytes every time, and a VAE that sees."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from scipy.signal import convolve2d
from skimage import data

from editors import tiny_flux as module
from editors.clear_vae import CLEAR_CONFIG, SCALING_FACTOR, SHIFT_FACTOR, set_clear_weights
from editors.tiny_flux import NOUNS, PROMPTS, WORDS, TinyFlux, tiny_controlnet, tiny_flux
from rekey.colors import COLORS
from rekey.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
SIDE = 128
BLOCK = 4


@pytest.fixture(scope="module")
def flux(tmp_path_factory) -> TinyFlux:
    return tiny_flux(tmp_path_factory.mktemp("tiny") / "random")


@pytest.fixture(scope="module")
def clear(tmp_path_factory) -> TinyFlux:
    return tiny_flux(tmp_path_factory.mktemp("tiny") / "clear", vae="clear", transformer="still")


@pytest.fixture(scope="module")
def nets(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("nets")
    return {kind: tiny_controlnet(folder / kind, kind) for kind in ("union", "hint")}


def editing(base: Path, controlnet: Path) -> diffusers.FluxControlNetInpaintPipeline:
    net = diffusers.FluxControlNetModel.from_pretrained(controlnet, local_files_only=True)
    pipeline = diffusers.FluxControlNetInpaintPipeline.from_pretrained(base, controlnet=net, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def photo(side: int, crop: int = 512) -> np.ndarray:
    """float32 (side, side, 3) in [0, 255]: a square of the astronaut about her face, brought to size."""
    left = 0 if crop == 512 else 150
    image = Image.fromarray(data.astronaut()[:crop, left:left + crop])
    return np.asarray(image.resize((side, side), Image.Resampling.LANCZOS), np.float32)


def edit(pipeline, *, seed: int = 0, control_seed: int = 0, prompt: str = "a red bucket", **options) -> np.ndarray:
    """float32 (SIDE, SIDE, 3): the photo edited in two steps from pure noise."""
    lines = np.random.default_rng(control_seed).random((SIDE // 8, SIDE // 8)) > 0.8
    control = Image.fromarray(lines.repeat(8, 0).repeat(8, 1)).convert("RGB")
    options = {"image": Image.fromarray(photo(SIDE).astype(np.uint8)), "strength": 1.0, "num_inference_steps": 2,
               "max_sequence_length": 64, "guidance_scale": 3.5} | options
    images = pipeline(prompt, mask_image=Image.new("L", (SIDE, SIDE), 255), control_image=control, height=SIDE,
                      width=SIDE, generator=torch.Generator().manual_seed(seed), **options).images
    return np.asarray(images[0], np.float32)


def block_means(image: np.ndarray, side: int = BLOCK) -> np.ndarray:
    height, width, colors = image.shape
    return image.reshape(height // side, side, width // side, side, colors).mean((1, 3))


def fingerprints(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


# ------------------------------------------------------------------------------------ classes and folders

def test_the_base_loads_as_the_released_classes(flux):
    pipeline = diffusers.DiffusionPipeline.from_pretrained(flux.base, local_files_only=True)
    assert type(pipeline) is diffusers.FluxPipeline
    assert {name: type(part) for name, part in pipeline.components.items() if part is not None} == {
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler,
        "text_encoder": transformers.CLIPTextModel,
        "text_encoder_2": transformers.T5EncoderModel,
        "tokenizer": transformers.CLIPTokenizer,
        "tokenizer_2": transformers.T5TokenizerFast,
        "transformer": diffusers.FluxTransformer2DModel,
        "vae": diffusers.AutoencoderKL,
    }
    assert pipeline.vae_scale_factor == 8
    assert (pipeline.vae.config.scaling_factor, pipeline.vae.config.shift_factor) == (0.3611, 0.1159)


def test_the_folders_hold_the_files_of_the_released_repositories(flux):
    found = {str(path.relative_to(flux.base)) for path in flux.base.rglob("*") if path.is_file()}
    assert found == {
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "text_encoder_2/config.json",
        "text_encoder_2/model-00001-of-00002.safetensors",
        "text_encoder_2/model-00002-of-00002.safetensors",
        "text_encoder_2/model.safetensors.index.json",
        "tokenizer/merges.txt",
        "tokenizer/tokenizer_config.json",
        "tokenizer/vocab.json",
        "tokenizer_2/tokenizer.json",
        "tokenizer_2/tokenizer_config.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
        "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
        "transformer/diffusion_pytorch_model.safetensors.index.json",
        "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors",
    }
    assert {path.name for path in flux.controlnet.iterdir()} == {"config.json", "diffusion_pytorch_model.safetensors"}


def test_a_model_takes_less_than_two_megabytes(flux):
    assert sum(path.stat().st_size for path in flux.base.parent.rglob("*") if path.is_file()) < 2_000_000


def test_each_kind_of_net_has_the_marks_by_which_pipelines_tell_it(flux, nets):
    def config(folder: Path):
        return diffusers.FluxControlNetModel.from_pretrained(folder, local_files_only=True).config

    plain, union, hint = config(flux.controlnet), config(nets["union"]), config(nets["hint"])
    assert [c.num_mode for c in (plain, union, hint)] == [None, 10, None]
    assert [c.conditioning_embedding_channels for c in (plain, union, hint)] == [None, None, 16]
    assert [c.patch_size for c in (plain, union, hint)] == [1, 1, 2]
    assert [c.num_single_layers for c in (plain, union, hint)] == [0, 2, 0]


def test_numbers_of_layers_are_as_asked(tmp_path):
    flux = tiny_flux(tmp_path / "deep", layers=(3, 1), controlnet_layers=(2, 0))
    pipeline = editing(flux.base, flux.controlnet)
    assert (len(pipeline.transformer.transformer_blocks), len(pipeline.transformer.single_transformer_blocks)) == (3, 1)
    assert (len(pipeline.controlnet.controlnet_blocks), len(pipeline.controlnet.controlnet_single_blocks)) == (2, 0)


def test_a_base_without_guidance_is_like_schnell_and_edits(tmp_path):
    schnell = tiny_flux(tmp_path / "schnell", guidance=False)
    pipeline = editing(schnell.base, schnell.controlnet)
    assert not pipeline.transformer.config.guidance_embeds
    assert pipeline.scheduler.config.use_dynamic_shifting is False
    assert pipeline.scheduler.config.shift == 1.0
    assert edit(pipeline).std() > 1


# ------------------------------------------------------------------------------------ what changes the pixels

@pytest.mark.parametrize("kind", ["plain", "union", "hint"])
def test_prompt_control_and_seed_change_the_pixels_and_nothing_else_does(flux, nets, kind):
    pipeline = editing(flux.base, nets.get(kind, flux.controlnet))
    mode = {"control_mode": [0]} if kind == "union" else {}
    first = edit(pipeline, **mode)
    assert np.array_equal(first, edit(pipeline, **mode))
    for change in ({"prompt": "a blue dog"}, {"control_seed": 1}, {"controlnet_conditioning_scale": 0.5}, {"seed": 1}):
        assert np.abs(edit(pipeline, **mode | change) - first).max() >= 3, change


def test_a_union_net_needs_a_mode(flux, nets):
    pipeline = editing(flux.base, nets["union"])
    with pytest.raises(ValueError, match="controlnet_mode"):
        edit(pipeline)
    assert np.abs(edit(pipeline, control_mode=[0]) - edit(pipeline, control_mode=[3])).max() >= 1


# ------------------------------------------------------------------------------------ bytes

def test_equal_arguments_give_equal_bytes_in_another_process(flux, tmp_path):
    code = f"from editors.tiny_flux import tiny_flux; tiny_flux({str(tmp_path / 'again')!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True,
                   env=os.environ | {"PYTHONHASHSEED": "7"})
    assert fingerprints(tmp_path / "again") == fingerprints(flux.base.parent)


def test_another_seed_gives_other_weights_everywhere(flux, tmp_path):
    other = tiny_flux(tmp_path / "other", seed=1)
    before, after = fingerprints(flux.base.parent), fingerprints(other.base.parent)
    weights = {name for name in before if name.endswith(".safetensors")}
    assert len(weights) == 7
    assert {name for name in before if before[name] != after[name]} == weights | {"tiny_flux.json"}


def test_building_leaves_global_generators_alone(tmp_path):
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1])
    tiny_flux(tmp_path / "model", vae="clear")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    folder, seen, write = tmp_path / "model", [], module._write_controlnet

    def watched(*arguments, **options):
        seen.append(folder.exists())
        write(*arguments, **options)
        seen.append(folder.exists())
    monkeypatch.setattr(module, "_write_controlnet", watched)
    tiny_flux(folder)
    assert seen == [False, False]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

    def full_disk(*_, **__):
        raise OSError("no space left")
    monkeypatch.setattr(module, "_write_controlnet", full_disk)
    with pytest.raises(OSError, match="no space"):
        tiny_flux(tmp_path / "second")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_of_two_processes_that_build_one_folder_both_get_it(tmp_path, monkeypatch):
    folder, write = tmp_path / "model", module._write_controlnet

    def overtaken(*arguments, **options):
        monkeypatch.setattr(module, "_write_controlnet", write)
        tiny_flux(folder)                                       # another process finishes first
        write(*arguments, **options)
    monkeypatch.setattr(module, "_write_controlnet", overtaken)
    assert tiny_flux(folder).base.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_equal_model_is_kept_and_another_is_not_overwritten(flux):
    folder = flux.base.parent
    made = (flux.base / "model_index.json").stat().st_mtime_ns
    assert tiny_flux(folder) == flux
    assert (flux.base / "model_index.json").stat().st_mtime_ns == made
    with pytest.raises(InputError, match="other settings"):
        tiny_flux(folder, seed=5)


def test_an_empty_folder_is_filled_and_a_foreign_one_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    assert (tiny_controlnet(tmp_path / "empty") / "config.json").is_file()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not a tiny Flux"):
        tiny_flux(tmp_path / "foreign")
    assert (tmp_path / "foreign" / "thesis.tex").exists()


@pytest.mark.parametrize("options", [{"vae": "blurry"}, {"transformer": "big"}, {"controlnet": "depth"}])
def test_an_unknown_kind_is_refused_before_anything_is_written(tmp_path, options):
    with pytest.raises(InputError, match="expected one of"):
        tiny_flux(tmp_path / "model", **options)
    assert not any(tmp_path.iterdir())


# ------------------------------------------------------------------------------------ tokenizers

def test_the_words_of_the_prompts_are_one_token_each(flux):
    clip = transformers.CLIPTokenizer.from_pretrained(flux.base / "tokenizer", local_files_only=True)
    t5 = transformers.T5TokenizerFast.from_pretrained(flux.base / "tokenizer_2", local_files_only=True)
    assert set(COLORS) | set(NOUNS) <= set(WORDS)
    for word in WORDS:
        assert len(clip(word).input_ids) == 3, word             # with the tokens of begin and end
        assert len(t5(word).input_ids) == 2, word               # with the token of the end
    assert max(len(clip(prompt).input_ids) for prompt in PROMPTS) <= 20


def test_strange_text_is_spelled_and_never_unknown(flux):
    clip = transformers.CLIPTokenizer.from_pretrained(flux.base / "tokenizer", local_files_only=True)
    t5 = transformers.T5TokenizerFast.from_pretrained(flux.base / "tokenizer_2", local_files_only=True)
    text = "Zebra-striped kayak & 12 jugs (\"new\")"
    assert t5.unk_token_id not in t5(text).input_ids
    assert t5.decode(t5(text).input_ids, skip_special_tokens=True) == text
    # CLIP's unknown token is its end token, which must stand at the end alone.
    assert clip("Zebra-striped kayak été").input_ids.count(clip.eos_token_id) == 1


def test_padded_prompts_have_the_released_lengths(flux):
    pipeline = diffusers.DiffusionPipeline.from_pretrained(flux.base, local_files_only=True)
    embeds, pooled, _ = pipeline.encode_prompt("a red bucket", None)
    assert embeds.shape == (1, 512, module.TEXT_WIDTH)
    assert pooled.shape == (1, module.TEXT_WIDTH)


# ------------------------------------------------------------------------------------ the VAE that sees

@pytest.fixture(scope="module")
def clear_vae() -> diffusers.AutoencoderKL:
    vae = diffusers.AutoencoderKL(**CLEAR_CONFIG).eval()
    set_clear_weights(vae)
    return vae


def round_trip(vae, image: np.ndarray) -> np.ndarray:
    x = torch.from_numpy(image / 127.5 - 1).permute(2, 0, 1)[None].to(vae.dtype)
    with torch.no_grad():
        latents = vae.encode(x).latent_dist.sample(torch.Generator().manual_seed(0))
        y = vae.decode(latents).sample
    return (y[0].permute(1, 2, 0).float().numpy() + 1) * 127.5


@pytest.mark.parametrize("side, enlarged, most", [(128, 6, 2), (256, 6, 2), (512, 6, 1.5), (512, 3, 2.5),
                                                  (128, 1, 10), (256, 1, 7), (512, 1, 4.5)])
def test_a_photo_comes_back_as_its_block_means(clear_vae, side, enlarged, most):
    image = photo(side, crop=side // enlarged if enlarged > 1 else 512)
    inner = slice(3, -3)                                        # zeros are padded at the rim
    means = block_means(image)[inner, inner]
    error = block_means(round_trip(clear_vae, image))[inner, inner] - means
    print(f"{side} px, enlarged {enlarged}: mean absolute error {np.abs(error).mean():.2f} / 255")
    assert np.abs(error).mean() <= most
    assert abs(error.mean()) < 0.3
    if enlarged > 1:                                            # fine texture lost looks like contrast lost
        slope, offset = np.polyfit(means.ravel() - 127.5, error.ravel(), 1)
        assert abs(slope) < 0.02
        assert abs(offset) < 0.5


def test_flat_colors_come_back_exactly(clear_vae):
    for color in ((0, 0, 0), (255, 255, 255), (255, 0, 40), (128, 128, 128)):
        decoded = round_trip(clear_vae, np.full((64, 64, 3), color, np.float32))
        assert np.abs(decoded[16:-16, 16:-16] - color).max() < 0.1


def test_the_weights_do_what_the_docstring_says(clear_vae):
    image = photo(SIDE)
    decoded = round_trip(clear_vae, image)
    assert np.abs(decoded - block_means(decoded).repeat(BLOCK, 0).repeat(BLOCK, 1)).max() < 1e-2
    # Blocks to corners and back is [1, 2, 1] / 4 along each axis, then the sharpening of five taps.
    blur = np.outer([1, 2, 1], [1, 2, 1]) / 16
    sharpen = np.outer([3, -11, 24, -11, 3], [3, -11, 24, -11, 3]) / 64
    for color in range(3):
        means = block_means(image)[..., color]
        expected = convolve2d(convolve2d(means, blur, mode="valid"), sharpen, mode="valid")
        assert np.abs(block_means(decoded)[3:-3, 3:-3, color] - expected).max() < 0.2


def test_latents_of_a_photo_spread_as_the_pipelines_expect(clear_vae):
    x = torch.from_numpy(photo(256) / 127.5 - 1).permute(2, 0, 1)[None]
    with torch.no_grad():
        latents = (clear_vae.encode(x).latent_dist.mode() - SHIFT_FACTOR) * SCALING_FACTOR
    assert 0.7 < latents[:, :12].std() < 1.3
    assert latents[:, 12:].abs().max() < 1e-3


def test_half_precision_keeps_the_picture(clear_vae, clear):
    halved = diffusers.AutoencoderKL.from_pretrained(clear.base / "vae", torch_dtype=torch.bfloat16)
    image = photo(128, crop=42)
    assert np.abs(round_trip(halved, image) - round_trip(clear_vae, image)).mean() < 0.5


# ------------------------------------------------------------------------------------ the model that does nothing

def test_a_still_model_returns_the_start_at_low_noise(clear):
    pipeline = editing(clear.base, clear.controlnet)
    start = photo(SIDE, crop=24)
    image = Image.fromarray(start.astype(np.uint8))
    edited = edit(pipeline, image=image, num_inference_steps=28, strength=1 / 28)
    sigma = float(pipeline.scheduler.sigmas[-2])                # the last of 28 steps
    assert 0.04 < sigma < 0.06
    inner = slice(12, -12)
    start, edited = (block_means(picture[inner, inner]) - 127.5 for picture in (start, edited))
    assert np.abs(edited - start).mean() < 6
    assert abs(np.polyfit(start.ravel(), edited.ravel(), 1)[0] - (1 - sigma)) < 0.01
    assert abs((edited - (1 - sigma) * start).std() - 44 * sigma) < 0.5


def test_a_still_model_hears_no_prompt_and_sees_no_control(clear):
    pipeline = editing(clear.base, clear.controlnet)
    assert np.array_equal(edit(pipeline), edit(pipeline, prompt="a blue dog", control_seed=1))
    assert np.abs(edit(pipeline) - edit(pipeline, seed=1)).max() > 50


def test_a_still_model_keeps_the_names_of_colors_at_low_noise(clear):
    from rekey.colors import name_shares, to_lab
    pipeline = editing(clear.base, clear.controlnet)
    paint = {"red": (200, 20, 30), "green": (30, 140, 50), "blue": (20, 60, 190), "yellow": (240, 220, 40),
             "gray": (128, 128, 128), "black": (15, 15, 15), "white": (245, 245, 245), "purple": (120, 30, 150)}
    tiles = np.array(list(paint.values()), np.uint8).reshape(2, 4, 3).repeat(SIDE // 2, 0).repeat(SIDE // 4, 1)
    edited = edit(pipeline, image=Image.fromarray(tiles), num_inference_steps=28, strength=1 / 28).astype(np.uint8)
    for k, name in enumerate(paint):
        row, column = divmod(k, 4)
        tile = edited[row * 64 + 16:row * 64 + 48, column * 32 + 12:column * 32 + 20]
        named = name_shares(to_lab(tile)).argmax(1)
        assert (named == COLORS.index(name)).all(), name
