"""Loading, images and generation through the one small interface; every refusal is one clear line."""

from __future__ import annotations

import json
import shutil
import weakref
from contextlib import nullcontext

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

from probes import loading
from probes.attention import recording_image_attention
from probes.decode import Sampling
from probes.prefix import prefill
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


def edited_config(folder, **text) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= text
    (folder / "config.json").write_text(json.dumps(config))


def test_a_folder_may_be_given_as_a_path(folder):
    assert load_vlm(folder, device_map="cpu").name == str(folder)
    assert refusal(folder / "absent").startswith(f"{folder / 'absent'}: no such model")
    with refused(rf"^{folder / 'absent'}: no such model"):
        load_vlm(folder / "absent")


def test_weights_of_another_shape_are_one_clear_line(copied):
    edited_config(copied, intermediate_size=96)
    line = refusal(copied, device_map="cpu")
    assert line.startswith(f"{copied}: ") and "weights are not in its files or have another shape" in line
    assert "mlp" in line and line.endswith("and would be random; download it again")


@pytest.mark.parametrize("wrong", [dict(num_hidden_layers="four"), dict(hidden_size=None), dict(rope_parameters=7)],
                         ids=str)
def test_a_config_with_a_value_of_a_wrong_type_is_one_clear_line(copied, wrong):
    edited_config(copied, **wrong)
    assert refusal(copied, device_map="cpu").startswith(f"{copied}: ")


def test_a_config_that_is_no_json_is_one_clear_line(copied):
    (copied / "config.json").write_text("{broken")
    assert refusal(copied, device_map="cpu").startswith(f"{copied}: ")


def test_a_processor_without_its_tokenizer_is_one_clear_line(copied):
    """transformers makes a tokenizer of special tokens only then, and every question would be no tokens at all."""
    (copied / "tokenizer.json").unlink()
    line = refusal(copied, device_map="cpu")
    assert line.startswith(f"{copied}: ") and "tokenizer" in line


@pytest.mark.parametrize("version", ["5.23.0", "5.23.1", "4.57.3", "5.24.0.dev0"])
def test_an_older_transformers_is_refused_before_anything_is_read(folder, version, monkeypatch):
    monkeypatch.setattr(loading.transformers, "__version__", version)
    assert refusal(folder) == (f"transformers {version}: too old; expected 5.24 or newer; pip install -c "
                               "constraints.txt -e '.[models]'")


@pytest.mark.parametrize("version", ["5.24.0", "5.100.0", "6.0"])
def test_a_newer_transformers_is_not_refused(version, monkeypatch):
    monkeypatch.setattr(loading.transformers, "__version__", version)
    loading.check_transformers()


def test_a_hub_id_while_offline_is_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert refusal("nobody-of-that-name/no-such-vl-7b") == (
        "nobody-of-that-name/no-such-vl-7b: not in the local cache, and HF_HUB_OFFLINE is set; run  hf download "
        "nobody-of-that-name/no-such-vl-7b  where there is a network, or give a folder")


def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path):
    expected = ("no such model (no config.json there); expected a folder with config.json and *.safetensors, a hub id "
                "such as Qwen/Qwen3-VL-8B-Instruct, control:clean, or tiny:qwen3_vl")
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


def test_what_was_said_may_be_an_array_or_a_tensor_of_ids():
    vlm = tiny_vlm("qwen3_vl")
    prompts, said = [vlm.prompt(image(0), QUESTION), vlm.prompt(image(1, 64, 96), "Where?")], [[5, 6, 7], [8, 9, 10]]
    expected = [answer.token_ids for answer in vlm.continue_from(prompts, said, 4)]
    for given in (np.array(said), torch.tensor(said), [np.array(ids) for ids in said]):
        assert [answer.token_ids for answer in vlm.continue_from(prompts, given, 4)] == expected


@pytest.mark.parametrize("said", ["x", [[1.5]], [["red"]], [[-1]], [[571]], [5], [None], np.array([[1.0]])], ids=str)
def test_what_was_said_but_is_no_token_ids_is_one_clear_line(said):
    vlm = tiny_vlm("qwen3_vl")
    with refused("^token ids: "):
        vlm.continue_from([vlm.prompt(image(0), QUESTION)], said, 4)


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, "2"], ids=str)
def test_a_batch_of_no_whole_number_of_prompts_is_one_clear_line(batch_size):
    vlm = tiny_vlm("qwen3_vl")
    with refused(f"^(generate: )?batch_size is {batch_size!r}; expected a whole number(, at least 1)?$"):
        vlm.generate([vlm.prompt(image(0), QUESTION)], 4, batch_size=batch_size)


def test_one_prompt_that_is_not_in_a_list_is_one_clear_line():
    vlm = tiny_vlm("qwen3_vl")
    with refused("^generate: expected a list of prompts"):
        vlm.generate(vlm.prompt(image(0), QUESTION), 4)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch_size", [None, 1])
def test_seeds_of_another_number_than_the_prompts_are_one_clear_line(sampling, batch_size):
    vlm = tiny_vlm("qwen3_vl")
    prompts = [vlm.prompt(image(seed), QUESTION) for seed in (0, 1)]
    for seeds in ([1], [1, 2, 3], []):
        with refused(rf"^generate: {len(seeds)} seeds for 2 prompt\(s\); give one per prompt$"):
            vlm.generate(prompts, 4, sampling, seeds, batch_size)


@pytest.mark.parametrize("recorded", [False, True])
def test_while_an_answer_is_decoded_the_prefills_own_keys_are_let_go(recorded, monkeypatch):
    """A cache grows by copies: whoever held the first one would hold the whole prompt twice."""
    vlm, held, alive = tiny_vlm("qwen3_vl"), [], []

    def watched_prefill(*args, **options):
        state = prefill(*args, **options)
        held[:] = [weakref.ref(state), *(weakref.ref(layer.keys) for layer in state.cache.layers)]
        return state

    monkeypatch.setattr("probes.vlm.prefill", watched_prefill)
    hook = vlm.model.register_forward_hook(lambda *_: alive.append(sum(found() is not None for found in held)))
    try:
        with recording_image_attention(vlm) if recorded else nullcontext():
            vlm.generate([vlm.prompt(image(0), QUESTION), vlm.prompt(image(1, 64, 96), "Where?")], 5)
    finally:
        hook.remove()
    assert len(held) == 5 and alive == [0] * 5, "the first is the prefill itself, when there is no state yet"


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
