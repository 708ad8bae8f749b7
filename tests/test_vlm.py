"""Loading, images and generation through the one small interface; every refusal is one clear line."""

from __future__ import annotations

import shutil

import huggingface_hub.constants
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from probing import (
    ALL,
    QUESTION,
    image,
    refused,
    tiny_vlm,
)

from probes.decode import Sampling
from probes.tiny import save_tiny, tiny_processor
from probes.vlm import load_vlm
from rekey.errors import InputError
from rekey.geometry import Box

SUPPORTED = "qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe, ernie4_5_vl_moe, kimi_k25"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved checkpoint; copy it before changing it."""
    return save_tiny("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "model")


def refusal(name, **options) -> str:
    with pytest.raises(InputError) as error:
        load_vlm(str(name), **options)
    line = str(error.value)
    assert "\n" not in line
    return line


def test_a_saved_folder_answers_as_the_model_it_was_saved_from(folder):
    loaded, built = load_vlm(str(folder), dtype="float32", device_map="cpu"), tiny_vlm("qwen3_vl")
    answers = [vlm.generate([vlm.prompt(image(0), QUESTION)], 8)[0].token_ids for vlm in (loaded, built)]
    assert answers[0] == answers[1]
    assert loaded.family is built.family and loaded.limits == built.limits


def test_what_was_loaded_is_recorded(folder):
    stamp = load_vlm(str(folder), dtype="bfloat16", device_map="cpu", min_pixels=4096, max_pixels=8192).describe()
    reason = stamp.pop("attention_reason")
    assert stamp == {"name": str(folder), "revision": None, "class": "Qwen3VLForConditionalGeneration",
                     "dtype": "bfloat16", "attention": "sdpa", "processor": "Qwen3VLProcessor",
                     "min_pixels": 4096, "max_pixels": 8192,
                     "devices": ["cpu"]}
    assert "flash-attn is not installed" in reason or "there is no CUDA device" in reason


@pytest.mark.parametrize("family", ALL)
def test_every_family_loads_by_name_and_answers_with_the_facts_of_the_run(family):
    vlm = tiny_vlm(family)
    prompt = vlm.prompt([image(0), image(1, 64, 96)], QUESTION)
    answer = vlm.generate([prompt], 6)[0]
    assert answer.text == vlm.text_of(answer.token_ids) and len(answer.token_ids) <= 6
    assert answer.n_prompt_tokens == len(prompt) and answer.n_image_tokens == prompt.n_image_tokens > 2
    assert answer.image_sizes == tuple(encoded.seen for encoded in prompt.images)
    assert (answer.finish, answer.batch_size) == ("length", 1) and answer.elapsed_s > 0


# Refusals while loading


def test_a_text_only_model_is_one_clear_line(tmp_path):
    config = transformers.Qwen3Config(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                      num_attention_heads=1, num_key_value_heads=1, head_dim=16)
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    assert refusal(tmp_path) == (f"{tmp_path}: model type qwen3: not a vision-language model, its config has no vision "
                                 f"part; supported: {SUPPORTED}")


def test_a_missing_weight_file_is_one_clear_line(tmp_path):
    tiny_vlm("qwen3_vl").model.save_pretrained(tmp_path, max_shard_size="500KB")
    tiny_processor("qwen3_vl").save_pretrained(tmp_path)
    parts = sorted(path.name for path in tmp_path.glob("model-*.safetensors"))
    assert len(parts) > 2
    assert load_vlm(str(tmp_path), dtype="float32", device_map="cpu")
    (tmp_path / parts[1]).unlink()
    assert refusal(tmp_path) == (
        f"{tmp_path}: 1 of {len(parts)} weight files are missing ({parts[1]}); download them again")


def test_weights_that_are_only_pickled_are_one_clear_line(copied):
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    assert refusal(copied) == (f"{copied}: no model.safetensors and no index of parts (found pytorch_model.bin); "
                               "expected safetensors; download the model again, or convert it with save_pretrained")


def test_a_folder_without_weights_is_one_clear_line(copied):
    (copied / "model.safetensors").unlink()
    assert "(found no weights)" in refusal(copied)


def test_a_weight_file_cut_short_is_one_clear_line(copied):
    whole = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(whole[:len(whole) // 2])
    assert refusal(copied, device_map="cpu").startswith(f"{copied}: cannot be loaded: ")


def test_weights_that_would_be_random_are_refused(copied):
    from safetensors.torch import load_file, save_file
    weights = load_file(copied / "model.safetensors")
    del weights["model.language_model.layers.0.mlp.up_proj.weight"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    line = refusal(copied, device_map="cpu")
    assert "1 weights are not in its files or have another shape (model.language_model.layers.0.mlp.up_proj" in line


def test_a_hub_id_while_offline_is_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert refusal("nobody-of-that-name/no-such-vl-7b") == (
        "nobody-of-that-name/no-such-vl-7b: not in the local cache, and HF_HUB_OFFLINE is set; run  hf download "
        "nobody-of-that-name/no-such-vl-7b  where there is a network, or give a folder")


def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path):
    expected = ("no such model (no config.json there); expected a folder with config.json and *.safetensors, a hub id "
                "such as Qwen/Qwen3-VL-8B-Instruct, or tiny:qwen3_vl")
    for name in (tmp_path / "absent", tmp_path, "./absent", "a/b/c"):
        assert refusal(name) == f"{name}: {expected}"


def test_a_model_without_an_image_processor_is_one_clear_line(copied):
    for name in ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"):
        (copied / name).unlink(missing_ok=True)
    line = refusal(copied)
    assert line.startswith(f"{copied}: ")


@pytest.mark.parametrize("model_type, reason", [("kimi_vl", "needs the code shipped with its checkpoint"),
                                                ("llava", "not in the probe engine's table"),
                                                ("no_such_type", "its code is not part of transformers")])
def test_other_families_are_refused_with_the_reason(copied, model_type, reason):
    config = copied / "config.json"
    config.write_text(config.read_text().replace('"model_type": "qwen3_vl",', f'"model_type": "{model_type}",'))
    assert reason in refusal(copied)


def test_an_unknown_tiny_family_is_one_clear_line():
    assert "tiny model: unknown family 'gpt'; supported: " in refusal("tiny:gpt")


@pytest.mark.parametrize("attention", ["eager", "flex_attention"])
def test_generation_under_eager_attention_cannot_be_asked_for(attention):
    assert refusal("tiny:qwen3_vl", attention=attention) == (
        f"attention {attention!r}: expected auto, sdpa or flash_attention_2 (eager builds every T x T matrix and "
        "answers differently in half precision)")


def test_flash_attention_without_a_gpu_says_what_is_missing():
    line = refusal("tiny:qwen3_vl", attention="flash_attention_2", dtype="float32", device_map="cpu")
    assert line.startswith("attention flash_attention_2: ")
    assert "there is no CUDA device; weights are float32, not half precision" in line


def test_an_unknown_dtype_names_those_there_are():
    assert refusal("tiny:qwen3_vl", dtype="int4") == "dtype 'int4': expected auto, float32, bfloat16, float16"


@pytest.mark.parametrize("limits", [dict(min_pixels=100), dict(min_pixels=90000, max_pixels=80000)])
def test_pixel_limits_without_an_image_between_them_are_refused(limits):
    assert "expected 1024 (one image token) <= min_pixels <= max_pixels" in refusal("tiny:qwen3_vl", **limits)


def test_kimi_has_no_pixel_limits_to_set():
    assert refusal("tiny:kimi_k25", max_pixels=9999) == (
        "min_pixels, max_pixels: Kimi_K25ImageProcessor has no such limits; leave them out")


# Images


def test_pixel_limits_bound_what_the_model_sees():
    vlm = load_vlm("tiny:qwen3_vl", min_pixels=4 * 1024, max_pixels=6 * 1024)
    for size in ((40, 40), (500, 700), (64, 96)):
        encoded = vlm.encode_image(image(0, *size))
        assert 4 <= encoded.n_tokens <= 6
        assert encoded.seen == (32 * encoded.token_grid[0], 32 * encoded.token_grid[1]) and encoded.size == size
    assert len(load_vlm("tiny:qwen3_vl", max_pixels=16 * 1024).prompt(image(0, 500, 500), "x").images[0].pixels) == 64


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("size", [(10, 200), (27, 27), (200, 5), (1, 1)])
def test_an_image_with_too_few_pixels_is_one_clear_line(family, size):
    vlm = tiny_vlm(family)
    side = 32 if family.startswith("qwen3") else 28
    with pytest.raises(InputError) as error:
        vlm.encode_image(image(0, *size))
    assert str(error.value) == (
        f"image: has too few pixels, {size[1]}x{size[0]}; expected at least {side}x{side}, one image token of "
        f"{vlm.family.title}; enlarge it first, so that it is known what was enlarged")


def test_a_file_with_too_few_pixels_is_named(tmp_path):
    path = tmp_path / "small.png"
    Image.fromarray(image(0, 12, 12)).save(path)
    with refused(rf"^{path}: has too few pixels, 12x12; "):
        tiny_vlm("qwen3_vl").encode_image(path)


def test_a_strip_is_refused_before_the_processor_does():
    with refused(r"^image: is 6432x32; expected an aspect ratio of at most 200; crop it"):
        tiny_vlm("qwen3_vl").encode_image(image(0, 32, 6432))


@pytest.mark.parametrize("wrong", [np.zeros((64, 64), np.uint8), np.zeros((64, 64, 4), np.uint8),
                                   np.zeros((64, 64, 3)), None])
def test_an_image_of_another_form_is_one_clear_line(wrong):
    with refused(r"^image: got .*; expected a path, a PIL image, or a uint8 array \(height, width, 3\)$"):
        tiny_vlm("qwen3_vl").encode_image(wrong)


def test_one_box_or_several_make_the_region_and_a_box_of_no_token_is_refused():
    vlm = tiny_vlm("qwen3_vl")
    picture = image(0, 128, 128)
    assert vlm.encode_image(picture, Box(0, 0, 32, 32)).region == (0,)
    assert vlm.encode_image(picture, [Box(0, 0, 32, 32), Box(96, 96, 128, 128)]).region == (0, 15)
    assert vlm.encode_image(picture).region == ()
    with refused(r"^region \(40, 40, 44, 44\): covers no image token: in the 128x128 image one token is 32x32"):
        vlm.encode_image(picture, Box(40, 40, 44, 44))


@pytest.mark.parametrize("family", ALL)
def test_two_images_of_equal_size_give_equal_ids(family):
    vlm = tiny_vlm(family)
    a, b = vlm.encode_pair(image(0), image(1))
    assert vlm.prompt(a, QUESTION).ids == vlm.prompt(b, QUESTION).ids and a.grid == b.grid
    assert not torch.equal(a.pixels, b.pixels)


@pytest.mark.parametrize("family", ALL)
def test_unequal_images_are_brought_to_the_smaller_size_only_when_asked(family):
    vlm = tiny_vlm(family)
    with pytest.raises(InputError) as error:
        vlm.encode_pair(image(0, 120, 160), image(1, 64, 96))
    assert str(error.value).startswith("image pair: 160x120 and 96x64; expected equal sizes")
    for pair in ((image(0, 120, 160), image(1, 64, 96)), (image(1, 64, 96), image(0, 120, 160))):
        a, b = vlm.encode_pair(*pair, resize=True)
        assert a.size == b.size == (64, 96) and a.grid == b.grid


# Generation


def test_batches_of_any_size_say_the_same_and_keep_the_order():
    vlm = tiny_vlm("qwen3_vl")
    prompts = [vlm.prompt(image(seed, 64 + 32 * (seed % 2), 96), QUESTION if seed % 3 else "Where?")
               for seed in range(5)]
    for sampling in (Sampling(), Sampling(temperature=1.2)):
        texts = [[answer.token_ids for answer in vlm.generate(prompts, 5, sampling, range(5), size)]
                 for size in (1, 2, None)]
        assert texts[0] == texts[1] == texts[2] and len(set(texts[0])) == 5
    assert [answer.batch_size for answer in vlm.generate(prompts, 2, batch_size=2)] == [2, 2, 2, 2, 1]
    assert vlm.generate([], 8) == []


def test_what_was_said_is_continued_by_ids_and_only_the_rest_comes_back():
    vlm = tiny_vlm("qwen3_vl")
    prompts = [vlm.prompt(image(0), QUESTION), vlm.prompt(image(1, 64, 96), "Where?")]
    whole = [answer.token_ids for answer in vlm.generate(prompts, 16)]
    rest = vlm.continue_from(prompts, [whole[0][:5], whole[1][:9]], 7)
    assert [answer.token_ids for answer in rest] == [whole[0][5:12], whole[1][9:16]]
    assert rest[0].n_prompt_tokens == len(prompts[0]) + 5
    with refused(r"^generate: expected a list of prompts, and of what each has said already as many lists$"):
        vlm.continue_from(prompts, [[5]], 7)


def test_an_image_token_that_another_engine_said_is_one_clear_line():
    vlm = tiny_vlm("qwen3_vl")
    with refused("vision token"):
        vlm.continue_from([vlm.prompt(image(0), QUESTION)], [[5, vlm.model.config.image_token_id]], 4)


def test_a_question_without_an_image_is_answered_too():
    vlm = tiny_vlm("qwen3_vl")
    answer = vlm.generate([vlm.prompt([], QUESTION), vlm.prompt(image(0), QUESTION)], 6)[0]
    assert answer.n_image_tokens == 0 and answer.image_sizes == ()
    assert answer.token_ids == vlm.generate([vlm.prompt([], QUESTION)], 6)[0].token_ids


def test_no_seed_leaks_into_the_global_generators():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load_vlm("tiny:qwen3_vl", device_map="cpu")
    assert torch.equal(before, torch.get_rng_state())
