"""Prompts as token ids: those of the models' own processors, with the question marked and control tokens refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from probing import (
    ALL,
    QUESTION,
    image,
    processor_inputs,
    refused,
    tiny_vlm,
)

from probes.layout import GENERATED, IMAGE, SINK
from probes.layout import QUESTION as QUESTION_CODE
from probes.prompts import build_prompt, render, tokenized
from rekey.errors import InputError
from rekey.geometry import Box

PICTURES = {"none": [], "one": [(120, 160)], "three": [(60, 200), (200, 60), (96, 96)]}


def question_of(vlm, prompt) -> str:
    return vlm.text_of([token for token, code in zip(prompt.ids, prompt.codes) if code == QUESTION_CODE])


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("sizes", PICTURES.values(), ids=PICTURES)
def test_ids_and_pixels_are_those_of_the_processor(family, sizes):
    vlm = tiny_vlm(family)
    pictures = [image(seed, *size) for seed, size in enumerate(sizes)]
    inputs = processor_inputs(vlm, [(pictures, QUESTION)])
    prompt = vlm.prompt(pictures, QUESTION)
    assert list(prompt.ids) == inputs["input_ids"][0].tolist()
    on_image = [code >= IMAGE for code in prompt.codes]
    assert on_image == (inputs["input_ids"][0] == vlm.model.config.image_token_id).tolist()
    assert prompt.n_image_tokens == sum(on_image) == sum(code.n_tokens for code in prompt.images)
    if pictures:
        assert torch.equal(torch.cat([encoded.pixels for encoded in prompt.images]), inputs["pixel_values"])
        assert [list(encoded.grid) for encoded in prompt.images] == inputs["image_grid_thw"].tolist()


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("question", [QUESTION, "Where?", "Is 图 left of it?\n\n(A) yes\n(B) no 🙂", "  red? \n"])
def test_the_question_span_decodes_to_the_question(family, question):
    vlm = tiny_vlm(family)
    prompt = vlm.prompt(image(0), question)
    assert question_of(vlm, prompt).strip() == question.strip()


@pytest.mark.parametrize("question", ["assistant", "user", "a", "."])
def test_the_question_is_found_although_the_template_holds_the_same_letters(question):
    vlm = tiny_vlm("qwen3_vl")
    prompt = vlm.prompt(image(0), question)
    assert question_of(vlm, prompt) == question
    assert prompt.codes.index(QUESTION_CODE) == prompt.image_end + 1, "the question follows the image's end marker"


def test_groups_are_a_sink_then_template_images_and_question_and_nothing_generated():
    vlm = tiny_vlm("qwen3_vl")
    prompt = vlm.prompt([image(0, 64, 64), image(1, 64, 96)], "Where?")
    assert prompt.codes[0] == SINK and prompt.codes.count(SINK) == 1
    assert (prompt.codes.count(IMAGE), prompt.codes.count(IMAGE + 2)) == (4, 6)
    assert GENERATED not in prompt.codes and prompt.n_prompt == len(prompt)
    before = vlm.text_of(prompt.ids[:prompt.codes.index(IMAGE)], skip_special_tokens=False)
    assert before == "<|im_start|>user\n<|vision_start|>"


def test_the_region_reaches_the_codes():
    vlm = tiny_vlm("qwen3_vl")
    picture = vlm.encode_image(image(0, 128, 128), region=Box(32, 32, 96, 64))
    prompt = vlm.prompt(picture, QUESTION)
    inside = [i for i, code in enumerate(code for code in prompt.codes if code >= IMAGE) if code == IMAGE + 1]
    assert inside == [5, 6]                                          # 4 x 4 tokens of 32 pixels: row 1, columns 1 and 2


def test_a_system_text_comes_first_and_is_no_question():
    vlm = tiny_vlm("qwen3_vl")
    prompt = vlm.prompt(image(0), QUESTION, system="look at the figure")
    text = vlm.text_of(prompt.ids[:prompt.codes.index(IMAGE)], skip_special_tokens=False)
    assert text == "<|im_start|>system\nlook at the figure<|im_end|>\n<|im_start|>user\n<|vision_start|>"
    assert question_of(vlm, prompt) == QUESTION


def test_thinking_opens_a_block_only_when_asked():
    vlm = tiny_vlm("qwen3_vl")
    ends = {ask: vlm.text_of(vlm.prompt(image(0), QUESTION, thinking=ask).ids, skip_special_tokens=False)[-22:]
            for ask in (None, True, False)}
    assert ends[True].endswith("assistant\n<think>\n")
    assert ends[None] == ends[False] and ends[None].endswith("assistant\n")


@pytest.mark.parametrize("family", ALL)
def test_a_stray_image_token_in_the_question_is_one_clear_line(family):
    vlm = tiny_vlm(family)
    stray = vlm.tokenizer.decode([vlm.model.config.image_token_id])
    with pytest.raises(InputError) as error:
        vlm.prompt(image(0), f"What is {stray} here?")
    assert str(error.value) == (
        f"question: holds the control token(s) {stray}; expected plain text; remove them (the prompt places images "
        "itself)")


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("where", ["question", "system text"])
def test_no_control_token_of_the_family_enters_by_text(family, where):
    vlm = tiny_vlm(family)
    for token in (*vlm.vision_token_ids, *vlm.stop_token_ids):
        text = f"see {vlm.tokenizer.decode([token])} there"
        with refused(f"^{where}: holds the control token"):
            vlm.prompt(image(0), *((text,) if where == "question" else (QUESTION, text)))


def test_an_empty_question_is_refused():
    with refused(r"^question: is empty; expected text$"):
        tiny_vlm("qwen3_vl").prompt(image(0), " \n")


def test_a_model_without_a_chat_template_is_one_clear_line(monkeypatch):
    vlm = tiny_vlm("qwen3_vl")
    monkeypatch.setattr(vlm.processor, "chat_template", None)
    monkeypatch.setattr(vlm.processor.tokenizer, "chat_template", None)
    with pytest.raises(InputError) as error:
        vlm.prompt(image(0), QUESTION)
    assert str(error.value) == (
        "Qwen3VLProcessor: the model has no chat template; expected chat_template.jinja beside the tokenizer; "
        "use the instruct or thinking checkpoint, not the base one")


def test_a_template_that_places_too_few_or_too_many_images_is_refused():
    vlm = tiny_vlm("qwen3_vl")
    place, one = "<|image_pad|>", vlm.encode_image(image(0))
    token = vlm.model.config.image_token_id
    with refused(r"^prompt: the chat template left 1 of 1 image\(s\) out;"):
        tokenized(vlm.processor, token, [one], "Where?", 0, 6)
    with refused(r"^prompt: the chat template makes more than 1 image places;"):
        tokenized(vlm.processor, token, [one], f"{place}{place}Where?", 0, 6)


def test_a_question_is_never_tokenized_apart_from_the_template():
    # " red" is one token and "red" another: joining pieces that were tokenized apart would give other ids.
    vlm = tiny_vlm("qwen3_vl")
    prompt = build_prompt(vlm.processor, vlm.model.config.image_token_id, [vlm.encode_image(image(0))], "red")
    whole = vlm.text_of(prompt.ids, skip_special_tokens=False)
    rebuilt = vlm.tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert rebuilt == list(prompt.ids)


@pytest.mark.parametrize("kind", ["array", "pil", "file"])
def test_an_image_is_the_same_however_it_is_given(kind, tmp_path):
    vlm, pixels = tiny_vlm("qwen2_vl"), image(3)
    given = {"array": pixels, "pil": Image.fromarray(pixels), "file": tmp_path / "a.png"}[kind]
    if kind == "file":
        Image.fromarray(pixels).save(given)
    found, expected = vlm.encode_image(given), vlm.encode_image(np.array(pixels))
    assert torch.equal(found.pixels, expected.pixels) and found.sha256 == expected.sha256
    assert found.size == (120, 160)


def pictures() -> dict[str, tuple[Image.Image, str]]:
    """PIL images of every kind that has to be brought to RGB or turned, and the file format that keeps the kind."""
    pixels = image(3)
    transparent = np.dstack([pixels, np.tile(np.linspace(0, 255, 160).astype(np.uint8), (120, 1))])
    deep = np.linspace(0, 65535, 120 * 160).reshape(120, 160).astype(np.uint16)
    clear = Image.fromarray(pixels).convert("P")
    clear.info["transparency"] = 3
    return {"RGBA": (Image.fromarray(transparent), "png"), "LA": (Image.fromarray(transparent).convert("LA"), "png"),
            "I;16": (Image.fromarray(deep), "png"), "P": (Image.fromarray(pixels).convert("P"), "png"),
            "P with a transparent color": (clear, "png"), "1": (Image.fromarray(pixels).convert("1"), "png"),
            "L": (Image.fromarray(pixels).convert("L"), "png"),
            "CMYK": (Image.fromarray(pixels).convert("CMYK"), "tiff")}


@pytest.mark.parametrize("kind", pictures())
def test_an_image_in_memory_is_seen_as_the_same_image_in_a_file(kind, tmp_path):
    vlm, (picture, suffix) = tiny_vlm("qwen2_vl"), pictures()[kind]
    picture.save(tmp_path / f"a.{suffix}")
    expected = vlm.encode_image(tmp_path / f"a.{suffix}")
    with Image.open(tmp_path / f"a.{suffix}") as opened:
        assert opened.mode == kind[:4].split()[0]
        from_file = vlm.encode_image(opened)
    for found in (vlm.encode_image(picture), from_file):
        assert torch.equal(found.pixels, expected.pixels) and found.sha256 == expected.sha256
    assert expected.pixels.std() > 0.05


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_photo_taken_on_its_side_is_turned_upright_however_it_is_given(orientation, tmp_path):
    vlm, picture = tiny_vlm("qwen2_vl"), Image.fromarray(image(3))
    exif = picture.getexif()
    exif[274] = orientation
    picture.save(tmp_path / "a.png", exif=exif)
    expected = vlm.encode_image(tmp_path / "a.png")
    assert expected.size == ((120, 160) if orientation < 5 else (160, 120))
    upright = vlm.encode_image(np.array(ImageOps.exif_transpose(Image.open(tmp_path / "a.png"))))
    for found in (vlm.encode_image(Image.open(tmp_path / "a.png")), upright):
        assert torch.equal(found.pixels, expected.pixels) and found.sha256 == expected.sha256


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("ended", (True, False), ids=("with its end token", "cut short"))
def test_a_second_turn_is_what_the_template_makes_of_the_conversation(family, ended):
    vlm = tiny_vlm(family)
    prompt, said = vlm.prompt(image(0), QUESTION), vlm.encode(" the red one")
    longer = vlm.second_turn(prompt, [*said, *vlm.stop_token_ids[:ended]], "Check the figure again.")
    text = render(vlm.processor, [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": " the red one"},
        {"role": "user", "content": [{"type": "text", "text": "Check the figure again."}]}])
    # Templates trim or wrap answers as they like; ours must agree from the user's next words on.
    inputs = vlm.processor(text=[text], images=[Image.fromarray(image(0))], return_tensors="pt")["input_ids"][0]
    tail = len(longer) - len(prompt) - len(said)
    assert list(longer.ids[-tail:]) == inputs[-tail:].tolist()
    assert longer.ids[:len(prompt) + len(said)] == (*prompt.ids, *said)
    asked = vlm.text_of([token for token, code in zip(longer.ids, longer.codes) if code == QUESTION_CODE])
    assert asked == QUESTION + "Check the figure again."
    assert longer.codes.count(GENERATED) == len(said)


def test_a_second_turn_keeps_the_reasoning_that_templates_drop():
    vlm = tiny_vlm("qwen3_5")
    said = vlm.encode("<think>\nthe star is red\n</think>\n\nred")
    longer = vlm.second_turn(vlm.prompt(image(0), QUESTION), said, "Look again.")
    assert "the star is red" in vlm.text_of(longer.ids)


def test_a_second_turn_without_words_is_refused():
    vlm = tiny_vlm("qwen3_vl")
    with refused("question: is empty"):
        vlm.second_turn(vlm.prompt(image(0), QUESTION), vlm.encode("red"), " ")
