"""Local models that answer: the probe engine's families, any other model of transformers, and vLLM by a stand-in."""

from __future__ import annotations

import importlib.machinery
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from any_model import (
    CONTEXT,
    LLAVA_SIDE,
    LLAVA_TEMPLATE,
    TILE,
    save_idefics,
    save_internvl,
    save_llava,
)
from PIL import Image
from probing import ALL, QUESTION, image, plain_generate, processor_inputs, refused, tiny_vlm

from probes.answering import EngineVLM, GeneratingVLM
from probes.backends import ModelSpec
from probes.layout import Prompt
from probes.loading import weights_revision
from probes.tiny import save_tiny, tiny_processor
from rekey.evaluate import Failure, Settings
from rekey.geometry import Box
from rekey.records import Generation

FEW = Settings(max_new_tokens=6)
WHERE = "Where is the kite?\n(A) left\n(B) right"
OTHERS = {"llava": save_llava, "idefics": save_idefics, "internvl": save_internvl}


def said(answers) -> list[tuple[int, ...] | str]:
    return [answer.reason if isinstance(answer, Failure) else answer.token_ids for answer in answers]


def facts(answer: Generation) -> Generation:
    """An answer without what depends on when, and beside how many others, it was given."""
    return replace(answer, elapsed_s=0.0, batch_size=1)


# Families of the probe engine


@pytest.mark.parametrize("family", ALL)
def test_families_of_the_engine_say_what_transformers_alone_makes_them_say(family):
    vlm = tiny_vlm(family)
    pictures, texts = [image(0), image(1, 64, 96)], [QUESTION, WHERE]
    answers = EngineVLM(vlm).answer(pictures, texts, FEW, None)
    for answer, picture, text in zip(answers, pictures, texts):
        inputs = processor_inputs(vlm, [([picture], text)])
        n_read = inputs["input_ids"].shape[1]
        expected = plain_generate(vlm, inputs, 6).sequences[0, n_read:].tolist()
        assert list(answer.token_ids) == expected[:len(answer.token_ids)]
        assert len(answer.token_ids) == 6 or answer.token_ids[-1] in vlm.stop_token_ids
        assert answer.n_prompt_tokens == n_read
        assert answer.n_image_tokens == int((inputs["input_ids"] == vlm.model.config.image_token_id).sum())
        assert answer.text == vlm.text_of(answer.token_ids) and answer.finish in ("stop", "length")
        assert answer.image_sizes == (vlm.encode_image(picture).seen,)


def test_kimis_padding_is_no_part_of_the_picture():
    vlm = tiny_vlm("kimi_k25")
    answer = EngineVLM(vlm).answer([image(0, 60, 100)], [QUESTION], FEW, None)[0]
    assert answer.image_sizes == ((84, 112),) and answer.filled == 60 * 100 / (84 * 112)
    assert EngineVLM(tiny_vlm("qwen3_vl")).answer([image(0)], [QUESTION], FEW, None)[0].filled == 1.0


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("thinking", [True, False])
def test_a_thinking_switch_is_turned(family, thinking):
    vlm = tiny_vlm(family)
    plain, switched = (EngineVLM(vlm).answer([image(0)], [QUESTION], way, None)[0]
                       for way in (FEW, replace(FEW, thinking=thinking)))
    opens, closes = ("", "\n</think>\n\n") if vlm.family.hybrid else ("<think>\n", "")   # beyond the default
    assert switched.n_prompt_tokens - plain.n_prompt_tokens == len(vlm.encode(opens if thinking else closes))


@pytest.mark.parametrize("thinking, name", [(True, "on"), (False, "off")])
def test_a_thinking_switch_that_the_template_lacks_is_refused(thinking, name):
    processor = tiny_processor("qwen3_vl")
    processor.chat_template = processor.chat_template.replace("enable_thinking", "no_such_switch")
    vlm = EngineVLM(replace(tiny_vlm("qwen3_vl"), processor=processor))
    with refused(f"^--thinking {name}: the model's chat template has no such switch; leave it out"):
        vlm.answer([image(0)], [QUESTION], replace(FEW, thinking=thinking), None)
    assert isinstance(vlm.answer([image(0)], [QUESTION], FEW, None)[0], Generation)


def test_a_model_without_a_chat_template_is_refused_and_not_asked_in_vain():
    vlm = EngineVLM(tiny_vlm("qwen3_vl"))
    bare = SimpleNamespace(chat_template=None, tokenizer=SimpleNamespace(chat_template=None))
    with refused("the model has no chat template"):
        EngineVLM(SimpleNamespace(processor=bare, max_tokens=vlm.vlm.max_tokens)).answer([image(0)], [QUESTION], FEW,
                                                                                       None)


def test_an_image_that_is_too_small_fails_alone():
    vlm = EngineVLM(tiny_vlm("qwen3_vl"))
    pictures = [image(0), image(1, 20, 90), image(2)]
    answers = vlm.answer(pictures, [QUESTION] * 3, FEW, None)
    assert isinstance(answers[1], Failure) and "has too few pixels, 90x20" in answers[1].reason
    assert said(answers)[::2] == said(vlm.answer(pictures[::2], [QUESTION] * 2, FEW, None))


@pytest.mark.parametrize("family, token", [("engine", "<|image_pad|>"), ("llava", "<image>"), ("llava", "</s>")])
def test_a_question_with_a_control_token_fails_alone(others, family, token):
    vlm = EngineVLM(tiny_vlm("qwen3_vl")) if family == "engine" else others[family]
    answers = vlm.answer([image(0)] * 2, [f"What is {token}?", QUESTION], FEW, None)
    assert isinstance(answers[0], Failure) and "control token" in answers[0].reason
    assert isinstance(answers[1], Generation)


@pytest.mark.parametrize("zoom_steps", [None, 2])
def test_a_zooming_model_too_fails_one_question_at_a_time(zoom_steps):
    vlm = ModelSpec("tiny:qwen3_vl", device_map="cpu", zoom_steps=zoom_steps).load()
    answers = vlm.answer([image(0), image(1, 20, 90)], [QUESTION] * 2, FEW, None)
    assert isinstance(answers[0], Generation) and "too few pixels" in answers[1].reason


def test_an_answer_ends_where_the_models_context_does_and_a_longer_prompt_fails_alone():
    wide = tiny_vlm("qwen3_vl")
    pictures, texts = [image(0, 64, 64), image(1, 64, 64)], ["Hm?", QUESTION + " " + "red " * 8]
    n_short, n_long = (len(wide.prompt(picture, text)) for picture, text in zip(pictures, texts))
    assert n_short + 6 < n_long
    narrow = EngineVLM(tiny_vlm("qwen3_vl", max_position_embeddings=n_long + 2))
    alone = [narrow.answer([picture], [text], FEW, None)[0] for picture, text in zip(pictures, texts)]
    assert [len(answer.token_ids) for answer in alone] == [6, 2]
    assert (alone[1].finish, alone[0].finish) == ("length", "length")
    together = narrow.answer(pictures, texts, FEW, None)
    assert [facts(answer) for answer in together] == [facts(answer) for answer in alone], "no neighbor takes its room"
    full = EngineVLM(tiny_vlm("qwen3_vl", max_position_embeddings=n_long))
    answers = full.answer(pictures, texts, FEW, None)
    assert answers[1] == Failure(f"the prompt has {n_long} tokens, the model takes {n_long} with the answer; shorten "
                                 "the question, or give a smaller --max-pixels")
    assert len(answers[0].token_ids) == 6


@pytest.mark.parametrize("family", ["engine", "llava"])
def test_a_batch_too_large_for_the_memory_is_asked_one_by_one(family, others, monkeypatch):
    vlm = EngineVLM(tiny_vlm("qwen3_vl")) if family == "engine" else others["llava"]
    owner, name = (vlm.vlm, "generate") if family == "engine" else (vlm, "_generate")
    generate, sizes = getattr(owner, name), []

    def up_to(n_rows: int):
        def with_little_memory(rows, *rest):
            sizes.append(len(rows))
            if len(rows) > n_rows:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nGPU 0 has ...")
            return generate(rows, *rest)
        monkeypatch.setattr(owner, name, with_little_memory)
    pictures = [image(0), image(1), image(2)]
    expected = [facts(answer) for answer in vlm.answer(pictures, [QUESTION] * 3, FEW, None)]
    up_to(1)
    assert [facts(answer) for answer in vlm.answer(pictures, [QUESTION] * 3, FEW, None)] == expected
    assert sizes == [3, 1, 1, 1]
    up_to(0)
    answers = vlm.answer(pictures, [QUESTION] * 3, FEW, None)
    assert answers == [Failure("out of memory with a batch of 1 (CUDA out of memory. Tried to allocate 2 GiB); give a "
                               "smaller --max-pixels, or more GPUs")] * 3


@pytest.mark.parametrize("family", ["engine", "llava"])
def test_sampled_answers_follow_from_their_seeds_alone(family, others):
    vlm = EngineVLM(tiny_vlm("qwen3_vl")) if family == "engine" else others["llava"]
    pictures, texts, warm = [image(0), image(1, 64, 96), image(2)], [QUESTION, WHERE, QUESTION], replace(FEW,
                                                                                                       temperature=1.5)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    together = said(vlm.answer(pictures, texts, warm, [11, 12, 13]))
    assert torch.equal(before, torch.get_rng_state()), "the generator of the process is nobody's to touch"
    torch.manual_seed(2)
    alone = [said(vlm.answer([picture], [text], warm, [seed]))[0]
             for picture, text, seed in zip(pictures, texts, (11, 12, 13))]
    assert together == alone
    assert all(a != b for a, b in zip(together, said(vlm.answer(pictures, texts, warm, [21, 22, 23]))))


def test_min_and_max_pixels_reach_the_engine_and_are_told():
    vlm = ModelSpec("tiny:qwen3_vl", device_map="cpu", min_pixels=4096, max_pixels=8192).load()
    answer = vlm.answer([image(0, 500, 700)], [QUESTION], FEW, None)[0]
    height, width = answer.image_sizes[0]
    assert 4096 <= height * width <= 8192 and answer.n_image_tokens == height * width // 1024
    described = vlm.describe()
    assert (described["min_pixels"], described["max_pixels"], described["devices"]) == (4096, 8192, ["cpu"])
    assert json.loads(json.dumps(described)) == described


# Any other model


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Checkpoint folders; copy one before changing it."""
    where = tmp_path_factory.mktemp("models")
    return {name: save(where / name) for name, save in OTHERS.items()}


@pytest.fixture(scope="module")
def others(folders) -> dict[str, GeneratingVLM]:
    torch.set_num_threads(1)
    return {name: ModelSpec(str(folder), device_map="cpu").load() for name, folder in folders.items()}


@pytest.fixture
def read(monkeypatch):
    """What the models' own `generate` was given, call by call."""
    calls, generate = [], transformers.GenerationMixin.generate

    def watched(model, *args, **inputs):
        calls.append(inputs)
        return generate(model, *args, **inputs)
    monkeypatch.setattr(transformers.GenerationMixin, "generate", watched)
    return calls


@pytest.mark.parametrize("name", OTHERS)
def test_a_batch_says_what_its_questions_say_alone(others, name):
    pictures, texts = [image(0, 24, 36), image(1, 100, 50), image(2, 40, 40)], [QUESTION, WHERE, "Hm?"]
    alone = [others[name].answer([picture], [text], FEW, None)[0] for picture, text in zip(pictures, texts)]
    together = others[name].answer(pictures, texts, FEW, None)
    assert [facts(answer) for answer in together] == [facts(answer) for answer in alone]
    assert len(set(said(together))) == 3
    assert [answer.batch_size for answer in together] == [3, 3, 3]


@pytest.mark.parametrize("name", OTHERS)
def test_greedy_answers_are_the_likeliest_token_again_and_again(others, name, read):
    """A second implementation: one whole forward pass a token, no cache, no `generate`."""
    vlm = others[name]
    answer = vlm.answer([image(3, 60, 90)], [QUESTION], FEW, None)[0]
    inputs = {key: value for key, value in read[0].items() if isinstance(value, torch.Tensor)}
    for token in answer.token_ids:
        with torch.no_grad():
            assert vlm.model(**inputs).logits[0, -1].argmax() == token
        inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([[token]])], 1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    assert answer.n_prompt_tokens + len(answer.token_ids) == inputs["input_ids"].shape[1]


@pytest.mark.parametrize("name", OTHERS)
def test_the_prompt_opens_once_and_holds_the_question(others, name, read):
    vlm = others[name]
    answer = vlm.answer([image(3)], [QUESTION], FEW, None)[0]
    ids, tokenizer = read[0]["input_ids"][0].tolist(), vlm.processor.tokenizer
    assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == (2 if name == "internvl" else 1)
    assert QUESTION in tokenizer.decode(ids, skip_special_tokens=True)      # ChatML opens every turn by the token
    assert ids.count(vlm.image_token_id) == answer.n_image_tokens


def test_a_template_that_writes_the_opening_token_itself_is_left_with_one(tmp_path, others, read):
    writes = ModelSpec(str(save_llava(tmp_path / "llava", "<s>" + LLAVA_TEMPLATE)), device_map="cpu").load()
    answers = [vlm.answer([image(3)], [QUESTION], FEW, None) for vlm in (writes, others["llava"])]
    assert torch.equal(read[0]["input_ids"], read[1]["input_ids"]) and said(answers[0]) == said(answers[1])


def on_square(picture: np.ndarray, mean: list[float]) -> np.ndarray:
    """LLaVA's "pad": the picture in the middle of a square of the mean color."""
    height, width = picture.shape[:2]
    side = max(height, width)
    square = np.tile((np.array(mean) * 255).astype(np.uint8), (side, side, 1))
    top, left = (side - height) // 2, (side - width) // 2
    square[top:top + height, left:left + width] = picture
    return square


@pytest.mark.parametrize("height, width", [(24, 36), (36, 10), (36, 36)])
def test_llava_sees_the_whole_picture_on_the_mean_color(others, read, height, width):
    picture, processor = image(5, height, width), others["llava"].processor.image_processor
    answer = others["llava"].answer([picture], [QUESTION], FEW, None)[0]
    mean, std = np.array(processor.image_mean), np.array(processor.image_std)
    expected = ((on_square(picture, mean) / 255 - mean) / std).transpose(2, 0, 1)
    assert np.abs(read[0]["pixel_values"][0].numpy() - expected).max() < 1e-5       # 36 a side: nothing to resize
    assert answer.filled == height * width / 36 ** 2
    assert (answer.n_image_tokens, answer.image_sizes) == (9, ((LLAVA_SIDE, LLAVA_SIDE),))
    assert others["llava"].describe()["padded_to_square"]


def test_the_edge_of_a_wide_picture_is_not_cropped(others, read):
    picture, processor = np.zeros((72, 144, 3), np.uint8), others["llava"].processor.image_processor
    picture[:, :8] = picture[:, -8:] = 255
    others["llava"].answer([picture], [QUESTION], FEW, None)
    mean, std = np.array(processor.image_mean), np.array(processor.image_std)
    small = Image.fromarray(on_square(picture, mean)).resize((LLAVA_SIDE, LLAVA_SIDE), Image.Resampling.BICUBIC)
    expected = ((np.asarray(small) / 255 - mean) / std).transpose(2, 0, 1)
    seen = read[0]["pixel_values"][0].numpy()
    assert np.abs(seen - expected).max() < 0.03         # a gray level or two: PIL rounds between the two passes
    white = (1 - mean) / std
    assert np.abs(seen[:, 10:26, [0, -1]] - white[:, None, None]).max() < 0.2


def test_tiles_are_told_question_by_question(others, read):
    pictures = [image(0, 64, 128), image(1, 64, 64)]
    for name, n_tiles in (("idefics", (4 * 2 + 1, 4 * 4 + 1)), ("internvl", (2 + 1, 4 + 1))):
        answers = others[name].answer(pictures, [QUESTION] * 2, FEW, None)
        assert [answer.image_sizes for answer in answers] == [((TILE, TILE),) * n for n in n_tiles]
        assert [answer.n_image_tokens for answer in answers] == [4 * n for n in n_tiles]
        assert [answer.filled for answer in answers] == [1.0, 1.0]
        assert not others[name].describe()["padded_to_square"]


def edited(folder: Path, where: Path, file: str, **values) -> Path:
    copied = shutil.copytree(folder, where)
    content = json.loads((copied / file).read_text())
    (copied / file).write_text(json.dumps(content | values))
    return copied


def test_settings_that_a_checkpoint_ships_do_not_change_the_answer(folders, others, tmp_path):
    shipped = edited(folders["llava"], tmp_path / "llava", "generation_config.json", do_sample=True, temperature=0.2,
                     top_k=3, repetition_penalty=1.9, num_beams=3, no_repeat_ngram_size=2)
    found, plain = (vlm.answer([image(0), image(1)], [QUESTION, WHERE], Settings(max_new_tokens=20), None)
                    for vlm in (ModelSpec(str(shipped), device_map="cpu").load(), others["llava"]))
    assert said(found) == said(plain)


def test_an_answer_ends_with_the_end_token_that_the_checkpoint_ships(folders, others, tmp_path):
    pictures, texts = [image(0), image(1)], [QUESTION, WHERE]
    plain = others["llava"].answer(pictures, texts, FEW, None)
    end = plain[0].token_ids[3]
    assert end not in plain[0].token_ids[:3] + plain[1].token_ids
    ends = edited(folders["llava"], tmp_path / "llava", "generation_config.json", eos_token_id=[2, end])
    answers = ModelSpec(str(ends), device_map="cpu").load().answer(pictures, texts, FEW, None)
    assert said(answers) == [plain[0].token_ids[:4], plain[1].token_ids]        # no padding after the end
    assert [answer.finish for answer in answers] == ["stop", "length"]


def test_llava_too_keeps_to_its_context(others):
    vlm = others["llava"]
    n_empty = vlm.answer([image(0)], ["x"], FEW, None)[0].n_prompt_tokens - 1
    texts = ["x" * (CONTEXT - n_empty - 3), "x" * (CONTEXT - n_empty), "x"]          # a token a letter
    answers = vlm.answer([image(0)] * 3, texts, Settings(max_new_tokens=9), None)
    assert [len(answers[0].token_ids), answers[0].finish, len(answers[2].token_ids)] == [3, "length", 9]
    assert answers[1].reason.startswith(f"the prompt has {CONTEXT} tokens, the model takes {CONTEXT} with the answer")


def test_a_thinking_switch_that_llava_lacks_is_refused(others):
    with refused("^--thinking on: the model's chat template has no such switch"):
        others["llava"].answer([image(0)], [QUESTION], replace(FEW, thinking=True), None)


def test_what_a_processor_cannot_read_fails_alone(others, monkeypatch):
    vlm, encoded = others["idefics"], others["idefics"]._encoded

    def picky(pictures, prompts):
        if min(pictures[0].size) < 2:
            raise ValueError("the image is too thin\nand more of that")
        return encoded(pictures, prompts)
    monkeypatch.setattr(vlm, "_encoded", picky)
    answers = vlm.answer([image(0), image(1, 1, 50)], [QUESTION] * 2, FEW, None)
    assert isinstance(answers[0], Generation)
    assert answers[1] == Failure("Idefics3Processor cannot read an image of 50x1 (the image is too thin)")


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("size", [(1, 1), (1, 40), (3, 900)], ids=str)
def test_the_oddest_picture_is_an_answer_or_a_failure_of_its_own(others, name, size):
    odd, plain = others[name].answer([image(0, *size), image(1)], [QUESTION] * 2, FEW, None)
    assert isinstance(odd, Generation | Failure) and isinstance(plain, Generation)


def test_image_tokens_are_not_counted_where_it_is_not_known_which_they_are(others, monkeypatch):
    monkeypatch.setattr(others["llava"], "image_token_id", None)
    assert others["llava"].answer([image(0)], [QUESTION], FEW, None)[0].n_image_tokens is None


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "mps:x"])
def test_a_device_that_is_not_there_is_one_clear_line(folders, device):
    with refused(f"^device_map '{device}': expected auto, cpu, cuda or cuda:N"):
        ModelSpec(str(folders["llava"]), device_map=device).load()


def test_pixel_limits_are_refused_where_they_would_do_nothing(folders):
    with refused("min_pixels and max_pixels are for families of the probe engine"):
        ModelSpec(str(folders["llava"]), device_map="cpu", max_pixels=9216).load()


def test_a_text_only_model_is_one_clear_line(tmp_path):
    config = transformers.Qwen3Config(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                      num_attention_heads=1, num_key_value_heads=1, head_dim=16)
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    with refused(rf"^{tmp_path}: model type qwen3: not among the image-text-to-text models of transformers "):
        ModelSpec(str(tmp_path), device_map="cpu").load()


@pytest.mark.parametrize("model_type, reason", [("kimi_vl", "needs the code shipped with its checkpoint"),
                                                ("no_such_type", "its code is not part of transformers")])
def test_a_model_that_transformers_does_not_carry_is_one_clear_line(folders, tmp_path, model_type, reason):
    folder = edited(folders["llava"], tmp_path / "m", "config.json", model_type=model_type)
    with refused(rf"^{folder}: .*{reason}"):
        ModelSpec(str(folder), device_map="cpu").load()


# Which state of a model it is


def changed(folder: Path, where: Path, how: str) -> Path:
    copied = shutil.copytree(folder, where)
    weights = copied / "model.safetensors"
    if how == "the last byte":
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
    elif how == "a byte more":
        weights.write_bytes(weights.read_bytes() + b"\0")
    elif how == "config":
        (copied / "config.json").write_text((copied / "config.json").read_text() + "\n")
    elif how == "template":
        (copied / "chat_template.jinja").write_text("another")
    elif how == "times":
        for path in copied.iterdir():
            path.touch()
    elif how == "a log":
        (copied / "training.log").write_text("loss 1.0")
    return copied


@pytest.mark.parametrize("how", ["the last byte", "a byte more", "config", "template"])
def test_another_weight_config_or_template_is_another_revision(folders, tmp_path, how):
    assert weights_revision(str(changed(folders["llava"], tmp_path / "m", how))) != weights_revision(
        str(folders["llava"]))


@pytest.mark.parametrize("place", [0, 2 ** 20 - 1, 3 * 2 ** 20, 4 * 2 ** 20 - 1])
def test_a_byte_in_the_first_or_last_megabyte_of_a_large_weight_file_is_another_revision(tmp_path, place):
    data = bytearray(4 * 2 ** 20)
    revisions = []
    for value in (0, 1):
        data[place] = value
        (tmp_path / "model.safetensors").write_bytes(data)
        revisions.append(weights_revision(str(tmp_path)))
    assert revisions[0] != revisions[1]


@pytest.mark.parametrize("how", ["nothing", "times", "a log"])
def test_a_folder_that_has_moved_is_the_same_revision(folders, tmp_path, how):
    moved = changed(folders["llava"], tmp_path / "elsewhere", how)
    assert weights_revision(str(moved)) == weights_revision(str(folders["llava"]))
    here = Path(shutil.copytree(moved, tmp_path / "again" / "llava"))
    assert ModelSpec(str(here)).identity() == ModelSpec(str(folders["llava"])).identity()
    assert ModelSpec(f"{here}/").identity().name == "llava"


def test_controls_differ_by_their_weights_and_tiny_models_have_none():
    found = [weights_revision(f"control:{name}") for name in ("clean", "contaminated-80", "grounded")]
    assert len(set(found)) == 3 and all(len(revision) == 16 for revision in found)
    assert weights_revision("tiny:qwen3_vl") is None
    assert ModelSpec("tiny:qwen3_vl").identity().options["revision"] is None


def test_a_hub_model_is_known_by_its_commit(folders, tmp_path, monkeypatch):
    """A cache as the hub's client leaves it; no network."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "hub" / "models--someone--llava-tiny"
    shutil.copytree(folders["llava"], cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert weights_revision("someone/llava-tiny") == commit
    identity = ModelSpec("someone/llava-tiny").identity()
    assert (identity.name, identity.options["revision"]) == ("someone/llava-tiny", commit)
    with refused("^someone/other: not in the local cache, and HF_HUB_OFFLINE is set"):
        weights_revision("someone/other")


def test_identity_tells_precision_and_limits_but_not_the_machine():
    plain, limited = ModelSpec("tiny:qwen3_vl"), ModelSpec("tiny:qwen3_vl", max_pixels=9216, dtype="bfloat16")
    assert plain.identity().options["dtype"] in ("float32", "bfloat16")         # by whether there is a GPU
    assert limited.identity().options | {"revision": None} == {
        "backend": "hf", "revision": None, "dtype": "bfloat16", "min_pixels": None, "max_pixels": 9216,
        "zoom_steps": None}
    assert replace(plain, device_map="cpu", attention="sdpa").identity().options["dtype"] == "float32"


# vLLM


def without_images(prompt: Prompt, image_token: int) -> list[int]:
    """A prompt's ids with neighboring image tokens made one, told from the ids alone."""
    ids = prompt.ids
    return [token for n, token in enumerate(ids) if token != image_token or n == 0 or ids[n - 1] != image_token]


class StandInEngine:
    """vLLM's `LLM` as documented, over transformers: widens one id per image by what the model's own processor says.

    https://docs.vllm.ai/en/latest/features/multimodal_inputs.html: `multi_modal_data` beside `prompt_token_ids`, in
    which one token stands for an image; `mm_processor_kwargs` go to the processor; `RequestOutput.prompt_token_ids`
    are the widened ones.
    """

    max_model_len = 32768
    resize = 1.0                    # another resize of images, as of another version

    def __init__(self, model, revision, dtype, trust_remote_code, limit_mm_per_prompt, mm_processor_kwargs):
        assert trust_remote_code is False and revision is None and limit_mm_per_prompt["image"] == 1
        self.model = transformers.AutoModelForImageTextToText.from_pretrained(model, dtype=getattr(torch, dtype))
        self.processor = transformers.AutoProcessor.from_pretrained(model)
        self.kwargs, self.calls = mm_processor_kwargs, []
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=self.max_model_len,
                                                                       dtype=getattr(torch, dtype)))

    def generate(self, prompts, sampling_params, use_tqdm=True):
        assert isinstance(prompts, list) and len(prompts) == len(sampling_params)
        self.calls.append((prompts, sampling_params))
        return [self._answer(prompt, params) for prompt, params in zip(prompts, sampling_params)]

    def _answer(self, prompt, params):
        assert set(prompt) == {"prompt_token_ids", "multi_modal_data"} and set(prompt["multi_modal_data"]) == {"image"}
        picture = prompt["multi_modal_data"]["image"]
        assert isinstance(picture, Image.Image) and picture.mode == "RGB"
        picture = picture.resize((round(picture.width * self.resize), round(picture.height * self.resize)))
        made = self.processor.image_processor(images=[picture], return_tensors="pt", **self.kwargs)
        n_tokens = int(made["image_grid_thw"].prod()) // self.processor.image_processor.merge_size ** 2
        image_token = self.model.config.image_token_id
        assert prompt["prompt_token_ids"].count(image_token) == 1
        ids = [wide for token in prompt["prompt_token_ids"]
               for wide in [token] * (n_tokens if token == image_token else 1)]
        if len(ids) + 1 > self.max_model_len:
            raise ValueError("The decoder prompt is longer than the maximum model length")      # fails the whole call
        row = torch.tensor([ids])
        self.model.model.rope_deltas = None
        out = self.model.generate(input_ids=row, attention_mask=torch.ones_like(row), do_sample=False,
                                  mm_token_type_ids=(row == image_token).int(), max_new_tokens=params.max_tokens,
                                  **made)[0, len(ids):].tolist()
        finish = "stop" if out[-1] == self.processor.tokenizer.eos_token_id else "length"
        text = self.processor.tokenizer.decode(out, skip_special_tokens=True)
        return SimpleNamespace(prompt_token_ids=ids, outputs=[SimpleNamespace(text=text, token_ids=out,
                                                                              finish_reason=finish)])


@pytest.fixture
def vllm(monkeypatch):
    module = ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    module.__version__ = "0.20.0"
    module.LLM = type("LLM", (StandInEngine,), {})
    module.SamplingParams = lambda temperature, seed, max_tokens: SimpleNamespace(temperature=temperature, seed=seed,
                                                                                 max_tokens=max_tokens)
    monkeypatch.setitem(sys.modules, "vllm", module)
    return module


@pytest.fixture(scope="module")
def engine_folders(tmp_path_factory) -> dict[str, str]:
    where = tmp_path_factory.mktemp("engine")
    return {family: str(save_tiny(family, where / family)) for family in ("qwen3_vl", "qwen2_5_vl", "kimi_k25")}


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("max_pixels", [None, 12 * 32 * 32])
def test_vllm_answers_as_hf_does_from_the_same_ids_and_pixels(vllm, engine_folders, family, max_pixels):
    pictures, texts = [image(0, 200, 300), image(1, 64, 96)], [QUESTION, WHERE]
    spec = ModelSpec(engine_folders[family], "vllm", dtype="float32", max_pixels=max_pixels)
    served, local = spec.load(), replace(spec, backend="hf", device_map="cpu").load()
    answers = served.answer(pictures, texts, FEW, None)
    assert [facts(answer) for answer in answers] == [facts(answer) for answer in local.answer(pictures, texts, FEW,
                                                                                              None)]
    assert [answer.batch_size for answer in answers] == [2, 2]
    prompts = [local.vlm.prompt(picture, text) for picture, text in zip(pictures, texts)]
    asked, params = served.engine.calls[0]
    assert [prompt["prompt_token_ids"] for prompt in asked] == [
        without_images(prompt, local.vlm.model.config.image_token_id) for prompt in prompts]
    assert [np.array_equal(np.asarray(prompt["multi_modal_data"]["image"]), picture)
            for prompt, picture in zip(asked, pictures)] == [True, True]
    assert [(p.temperature, p.seed, p.max_tokens) for p in params] == [(0.0, None, 6)] * 2
    described = served.describe()
    assert (described["engine"], described["dtype"]) == ("vllm 0.20.0", "float32")
    assert json.loads(json.dumps(described)) == described


def test_vllm_draws_every_answer_by_its_own_seed(vllm, engine_folders):
    served = ModelSpec(engine_folders["qwen3_vl"], "vllm", dtype="float32").load()
    served.answer([image(0), image(1)], [QUESTION, WHERE], replace(FEW, temperature=0.7), [5, 6])
    assert [(p.temperature, p.seed) for p in served.engine.calls[0][1]] == [(0.7, 5), (0.7, 6)]


def test_another_resize_in_vllm_is_a_failure_and_no_answer(vllm, engine_folders):
    vllm.LLM.resize = 0.5
    served = ModelSpec(engine_folders["qwen3_vl"], "vllm", dtype="float32").load()
    n_read = len(served.prompter.prompt(image(0, 200, 300), QUESTION))
    answers = served.answer([image(0, 200, 300), image(1, 64, 64)], [QUESTION] * 2, FEW, None)
    assert answers[0].reason.startswith("vLLM read ") and answers[0].reason.endswith(
        f" prompt tokens, transformers reads {n_read}: they resize the image or widen it differently; compare their "
        "versions, or use --backend hf")
    assert isinstance(answers[1], Generation), "4 tokens either way"


def test_what_vllm_would_refuse_fails_alone(vllm, engine_folders):
    local = tiny_vlm("qwen3_vl")
    vllm.LLM.max_model_len = len(local.prompt(image(0, 200, 300), QUESTION))
    served = ModelSpec(engine_folders["qwen3_vl"], "vllm", dtype="float32").load()
    answers = served.answer([image(0, 200, 300), image(1, 64, 64), image(2, 9, 9)], [QUESTION] * 3, FEW, None)
    assert answers[0].reason.startswith(f"the prompt has {vllm.LLM.max_model_len} tokens, the model takes ")
    assert isinstance(answers[1], Generation) and "too few pixels" in answers[2].reason
    assert len(served.engine.calls) == 1 and len(served.engine.calls[0][0]) == 1
    assert [type(answer) for answer in served.answer([image(2, 9, 9)], [QUESTION], FEW, None)] == [Failure]


def test_half_precision_is_not_chosen_behind_our_back(vllm, engine_folders, monkeypatch):
    """vLLM's own "auto" makes float16 of a float32 checkpoint, and a line would say otherwise."""
    for on_gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=on_gpu: found)
        spec = ModelSpec(engine_folders["qwen3_vl"], "vllm")
        assert spec.load().describe()["dtype"] == spec.identity().options["dtype"] == ("bfloat16" if on_gpu else
                                                                                       "float32")


def test_without_vllm_there_is_one_clear_line(engine_folders, monkeypatch):
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr("probes.vllm.find_spec", lambda name: None)
    with refused(r"^--backend vllm: vLLM is not installed here; pip install -e '\.\[vllm\]' on a Linux machine"):
        ModelSpec(engine_folders["qwen3_vl"], "vllm").load()


def test_models_that_vllm_cannot_run_are_one_clear_line(vllm, engine_folders, folders):
    for name, reason in (("control:clean", "has no folder that vLLM can load"),
                         ("tiny:qwen3_vl", "has no folder that vLLM can load"),
                         (engine_folders["kimi_k25"], "whose images vLLM does not prepare as transformers does"),
                         (str(folders["llava"]), "not in the probe engine's table")):
        with refused(reason):
            ModelSpec(name, "vllm").load()


def test_one_id_stands_for_each_of_two_images():
    from probes.vllm import one_id_per_image
    vlm = tiny_vlm("qwen3_vl")
    image_token = vlm.model.config.image_token_id
    inside = vlm.encode_image(image(0, 128, 128), Box(0, 0, 64, 64))            # two group codes, one image
    prompt = vlm.prompt([inside, image(1, 64, 96)], QUESTION)
    assert one_id_per_image(prompt) == without_images(prompt, image_token)
    assert one_id_per_image(prompt).count(image_token) == 2
    assert one_id_per_image(vlm.prompt([], QUESTION)) == list(vlm.prompt([], QUESTION).ids)
