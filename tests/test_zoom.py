"""The agent that may zoom: further turns with images, calls as models write them, and the loop around them.

No control model was trained to use a tool, so that the loop is run by scripts: a real tiny model whose `generate` says
what the test gives it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from probing import ALL, HYBRIDS, QUESTION, image, plain_generate, plain_logits, refused, tiny_vlm

from probes.decode import Sampling
from probes.layout import GENERATED, IMAGE, TEMPLATE
from probes.layout import QUESTION as QUESTION_CODE
from probes.prefix import prefill
from probes.prompts import TOOL_TAGS, build_prompt, check_text, render
from probes.vlm import load_vlm
from probes.zoom import ZoomTrace, ask_with_zoom, box_in_pixels, enlarged, tool_prompt
from probes.zoom_calls import CALL_FORM, TOOL_NAME, read_call
from rekey.geometry import Box
from rekey.images import pixel_sha256
from rekey.records import Generation, from_json, to_json
from rekey.scenes import draw_scene, render_scene

REPLIES = (["<tool_response>\n", image(1, 64, 96), "\nSee the picture.\n</tool_response>"],
           [image(2, 96, 64), image(3, 64, 64), "Check again."],
           "Now answer.")
SAID = ("I look closer", " the red one", "<think> hm </think> wait")


def plain_vlm(family):
    """A tiny model whose template prints every turn as it is, so that a conversation has one rendering."""
    return tiny_vlm(family, thinking=False) if family in HYBRIDS else tiny_vlm(family)


def conversation(vlm, n_turns=3):
    """Our prompt of a conversation with images in every turn, and what the model's own processor makes of it."""
    prompt = vlm.prompt(image(0), QUESTION)
    pictures = [image(0)]
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    for said, reply in zip(SAID[:n_turns], REPLIES):
        prompt = vlm.second_turn(prompt, vlm.encode(said), reply)
        parts = [reply] if isinstance(reply, str) else reply
        pictures += [part for part in parts if not isinstance(part, str)]
        messages += [{"role": "assistant", "content": said},
                     {"role": "user", "content": [{"type": "text", "text": part} if isinstance(part, str)
                                                  else {"type": "image"} for part in parts]}]
    inputs = dict(vlm.processor(text=[render(vlm.processor, messages)], return_tensors="pt",
                                images=[Image.fromarray(picture) for picture in pictures]))
    return prompt, inputs


# Further turns with images


@pytest.mark.parametrize("family", ALL)
def test_a_conversation_with_images_in_every_turn_has_the_processors_ids_and_pixels(family):
    vlm = plain_vlm(family)
    prompt, inputs = conversation(vlm)
    assert list(prompt.ids) == inputs["input_ids"][0].tolist()
    assert [list(encoded.grid) for encoded in prompt.images] == inputs["image_grid_thw"].tolist()
    assert torch.equal(torch.cat([encoded.pixels for encoded in prompt.images]), inputs["pixel_values"])


@pytest.mark.parametrize("family", ALL)
def test_a_conversation_with_images_is_read_at_the_models_own_positions(family):
    vlm = plain_vlm(family)
    prompt, inputs = conversation(vlm)
    expected = plain_logits(vlm, inputs)[0, -1]
    torch.testing.assert_close(prefill(vlm, [prompt]).logits[0], expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", HYBRIDS)
def test_templates_that_drop_reasoning_agree_on_the_users_turns_and_lose_nothing_here(family):
    vlm = tiny_vlm(family)
    said = vlm.encode("the star is red\n</think>\n\nred")
    prompt = vlm.prompt(image(0), QUESTION)
    longer = vlm.second_turn(prompt, said, REPLIES[0])
    text = render(vlm.processor, [{"role": "user", "content": "."}, {"role": "assistant", "content": "x"},
                                  {"role": "user", "content": [
                                      {"type": "text", "text": REPLIES[0][0]}, {"type": "image"},
                                      {"type": "text", "text": REPLIES[0][2]}]}])
    tail = vlm.processor(text=[text.partition("x")[2]], images=[Image.fromarray(REPLIES[0][1])])["input_ids"][0]
    assert longer.ids == (*prompt.ids, *said, *tail)


def test_groups_and_image_numbers_go_on_in_later_turns():
    vlm = tiny_vlm("qwen3_vl")
    view = vlm.encode_image(image(1, 128, 128), region=Box(32, 32, 96, 64))
    prompt = vlm.prompt(image(0), QUESTION)
    longer = vlm.second_turn(prompt, vlm.encode("look"), ["See ", view, " now."])
    assert longer.codes[:len(prompt)] == prompt.codes and longer.n_prompt == len(prompt)
    of_second = [code for code in longer.codes if code >= IMAGE + 2]
    assert [n for n, code in enumerate(of_second) if code == IMAGE + 3] == [5, 6] and len(of_second) == 16
    assert longer.images == (*prompt.images, view)

    def said_by(group):
        return vlm.text_of([token for token, code in zip(longer.ids, longer.codes) if code == group], False)
    assert said_by(GENERATED) == "look" and said_by(QUESTION_CODE) == f"{QUESTION}See  now."
    assert said_by(TEMPLATE).endswith("assistant\n<|im_end|>\n<|im_start|>user\n<|vision_start|><|vision_end|>"
                                      "<|im_end|>\n<|im_start|>assistant\n")


def test_templates_that_number_the_images_go_on_counting(monkeypatch):
    vlm = tiny_vlm("qwen3_vl")
    numbered = vlm.processor.chat_template.replace(
        "{{- '<|vision_start|>", "{%- set n.n = n.n + 1 -%}{{- 'Picture ' ~ n.n ~ ': <|vision_start|>")
    monkeypatch.setattr(vlm.processor, "chat_template", "{%- set n = namespace(n=0) -%}" + numbered)
    prompt, inputs = conversation(vlm)
    assert list(prompt.ids) == inputs["input_ids"][0].tolist()
    text = vlm.text_of(prompt.ids)
    assert [f"Picture {n}:" in text for n in range(6)] == [False, True, True, True, True, False]


def test_a_later_answer_begins_to_think_only_when_asked():
    vlm = tiny_vlm("qwen3_vl")
    prompt = vlm.prompt(image(0), QUESTION, thinking=True)
    ends = {ask: vlm.text_of(vlm.second_turn(prompt, [5], ["See", image(1)], thinking=ask).ids, False)[-18:]
            for ask in (True, None)}
    assert ends[True].endswith("assistant\n<think>\n") and ends[None].endswith("assistant\n")


@pytest.mark.parametrize("reply, why", [
    ([], "question: is empty"), ([image(1), " "], "question: is empty"), (5, "second turn: the question is 5"),
    (["see <|image_pad|>", image(1)], "question: holds the control token"), (["see", None], "image: got NoneType"),
    ([image(1, 8, 8)], "image: has too few pixels")], ids=["nothing", "blank", "number", "token", "none", "small"])
def test_a_turn_that_shows_no_images_and_texts_is_one_clear_line(reply, why):
    vlm = tiny_vlm("qwen3_vl")
    with refused(f"^{why}"):
        vlm.second_turn(vlm.prompt(image(0), QUESTION), [5], reply)


def test_tool_tags_that_a_tokenizer_holds_as_special_tokens_are_no_control_tokens():
    vlm = tiny_vlm("qwen3_vl")
    processor = copy.deepcopy(vlm.processor)
    processor.tokenizer.add_special_tokens({"additional_special_tokens": list(TOOL_TAGS)})
    assert set(TOOL_TAGS) <= set(processor.tokenizer.all_special_tokens)
    prompt = build_prompt(processor, vlm.model.config.image_token_id, [vlm.encode_image(image(0))],
                          tool_prompt(QUESTION, 3))
    assert processor.tokenizer.convert_tokens_to_ids("<tool_call>") in prompt.ids
    with refused("holds the control token"):
        check_text(processor, "<tool_call><|im_end|>", "question")


# Calls


def spelled(box: str = "[100, 200, 300, 400]", name: str = TOOL_NAME) -> str:
    return f'{{"name": "{name}", "arguments": {{"bbox_2d": {box}}}}}'


def tagged(box: str = "[100, 200, 300, 400]", name: str = TOOL_NAME) -> str:
    return f"<tool_call>\n{spelled(box, name)}\n</tool_call>"


GOOD = {
    "as asked for": tagged(),
    "words before": "The kite is far away.\n" + tagged(),
    "words after": tagged() + "\nThen I answer (B).",
    "after reasoning": "<think>I need {more} detail</think>\n" + tagged(),
    "in reasoning that stays open": "<think>I need more. " + tagged(),
    "another one drafted in reasoning": f"<think>{tagged('[1, 2, 3, 4]')}</think>{tagged()}",
    "code fence": f"<tool_call>\n```json\n{spelled()}\n```\n</tool_call>",
    "code fence without tags": f"```json\n{spelled()}\n```",
    "no tags": spelled(),
    "no tags, words around": f"I call {spelled()} now {{ok}}",
    "no opening tag": spelled() + "\n</tool_call>",
    "no closing tag": "<tool_call>\n" + spelled(),
    "no closing tag, words after": f"<tool_call>\n{spelled()}\nI wait {{here}}.",
    "an end token": tagged() + "<|im_end|>",
    "single quotes": tagged().replace('"', "'"),
    "no quotes": tagged().replace('"', ""),
    "trailing comma": tagged("[100, 200, 300, 400,]"),
    "a brace too few": tagged().replace("}}", "}"),
    "no braces closed, no tag": f"<tool_call>{spelled()}".replace("}", ""),
    "a brace too many": tagged().replace("}}", "}}}"),
    "a list of calls": f"<tool_call>[{spelled()}]</tool_call>",
    "two calls": f"{tagged()}\n{tagged('[1, 2, 3, 4]')}",
    "two calls in one pair of tags": f"<tool_call>{spelled()}\n{spelled('[1, 2, 3, 4]')}</tool_call>",
    "floats": tagged("[100.0, 2e2, 300.00, 400]"),
    "numbers in quotes": tagged('["100", "200", " 300", "400"]'),
    "a string": tagged('"[100, 200, 300, 400]"'),
    "a string without brackets": tagged('"100 200,300;400"'),
    "a box in a list": tagged("[[100, 200, 300, 400]]"),
    "two corners": tagged("[[100, 200], [300, 400]]"),
    "round brackets": tagged("(100, 200, 300, 400)"),
    "bbox": tagged().replace("bbox_2d", "bbox"),
    "label and index": tagged().replace("]}", '], "label": "the dog\'s hat", "img_idx": 0}'),
    "arguments first": f'<tool_call>{{"arguments": {{"bbox_2d": [100, 200, 300, 400]}}, "name": "{TOOL_NAME}"}}'
                       "</tool_call>",
    "arguments as a string": f'<tool_call>{{"name": "{TOOL_NAME}", "arguments": '
                             '"{\\"bbox_2d\\": [100, 200, 300, 400]}"}</tool_call>',
    "parameters": tagged().replace("arguments", "parameters"),
    "as a function": f'<tool_call>{{"type": "function", "function": {spelled()}}}</tool_call>',
    "the box alone": '<tool_call>{"bbox_2d": [100, 200, 300, 400]}</tool_call>',
    "as Python": f"<tool_call>{TOOL_NAME}(bbox_2d=[100, 200, 300, 400])</tool_call>",
    "as XML": f"<tool_call>\n<function={TOOL_NAME}>\n<parameter=bbox_2d>\n[100, 200, 300, 400]\n</parameter>\n"
              "</function>\n</tool_call>",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_call_is_read_however_a_model_spells_it(text):
    call = read_call(text)
    assert (call.box, call.error, call.swapped) == ((100, 200, 300, 400), None, False)


@pytest.mark.parametrize("call, rest", [
    (tagged(), " (B)"), (f"x {spelled()}", " (B)"), (f"<tool_call>{spelled()}", " (B)"),
    (f"{spelled()}\n</tool_call>", " (B)"), (tagged("[1, 2]"), " (B)"), ("<tool_call>zoom", "")])
def test_a_call_ends_where_its_tag_or_its_object_does(call, rest):
    assert read_call(call + rest).end == len(call)


@pytest.mark.parametrize("box", ["[300, 200, 100, 400]", "[100, 400, 300, 200]", "[300, 400, 100, 200]"])
def test_corners_in_another_order_are_put_in_order_and_noted(box):
    call = read_call(tagged(box))
    assert call.box == (100, 200, 300, 400) and call.swapped


BAD = {
    "another tool": (tagged(name="web_search"), "there is no such tool; the only one is image_zoom_in_tool"),
    "another tool, as XML": ("<tool_call><function=crop><parameter=bbox_2d>[1, 2, 3, 4]</parameter></tool_call>",
                             "no such tool"),
    "no JSON": ("<tool_call>zoom into the kite</tool_call>", "not readable as JSON"),
    "nothing": ("<tool_call></tool_call>", "not readable as JSON"),
    "an open tag": ("I call <tool_call>", "not readable as JSON"),
    "cut short": ('<tool_call>{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [1, 2,', "not readable as JSON"),
    "no box": (f'<tool_call>{{"name": "{TOOL_NAME}", "arguments": {{}}}}</tool_call>', "has no bbox_2d"),
    "an empty box": (tagged("[]"), "holds 0 values, not 4"),
    "three numbers": (tagged("[1, 2, 3]"), "holds 3 values, not 4"),
    "two boxes": (tagged("[[1, 2, 3, 4], [5, 6, 7, 8]]"), "holds 8 values, not 4"),
    "words": (tagged('["left", "top", "right", "bottom"]'), "not a number"),
    "the form itself": (CALL_FORM, "not a number"),
    "null": (tagged("[null, 2, 3, 4]"), "not a number"),
    "true": (tagged("[true, 2, 3, 4]"), "not a number"),
    "a number alone": (tagged("7"), "holds 1 values, not 4"),
    "an object": (tagged('{"x1": 1, "y1": 2}'), "holds 1 values, not 4"),
    "NaN": (tagged("[NaN, 2, 3, 4]"), "not finite"),
    "NaN in quotes": (tagged('["nan", 2, 3, 4]'), "not finite"),
    "infinity": (tagged("[1, 2, 1e999, 4]"), "not finite"),
    "400 digits": (tagged(f"[1, 2, {'9' * 400}, 4]"), "not finite"),
    "5000 digits": (tagged(f"[1, 2, {'9' * 5000}, 4]"), "more than 4000 characters"),
    "fractions": (tagged("[0.1, 0.2, 0.3, 0.4]"), "look like fractions"),
    "the whole picture in fractions": (tagged("[0, 0, 1, 1]"), "look like fractions"),
    "a deep nest": (tagged("[" * 1900 + "]" * 1900), "values, not 4|not readable|not a number"),
}


@pytest.mark.parametrize("text, why", BAD.values(), ids=BAD)
def test_a_bad_call_is_an_error_in_words_that_show_the_form(text, why):
    call = read_call(text)
    assert call.box is None
    assert re.search(why, call.error.partition("\n")[0])
    assert call.error.startswith("Error: ") and call.error.endswith(CALL_FORM)


@pytest.mark.parametrize("text", [
    "(B)", "", "The answer is (B) red.", "<think>I could call image_zoom_in_tool.</think> (B)",
    f"<think>Shall I? {tagged()} No.</think>The answer is B.", f"I do not need {TOOL_NAME}; it is \\boxed{{B}}.",
    '[{"bbox_2d": [1, 2, 3, 4], "label": "kite"}] so (A)', "{" * 50, "}}} (C)", '{"answer": "B"}'])
def test_a_text_without_a_call_is_an_answer(text):
    assert read_call(text) is None


# Boxes and cut-outs


@pytest.mark.parametrize("asked, expected", [
    ((0, 0, 1000, 1000), (0, 0, 2250, 1500)), ((100, 200, 300, 400), (225, 300, 675, 600)),
    ((100.1, 200.1, 299.9, 399.9), (225, 300, 675, 600)), ((-50, -1, 300, 400), (0, 0, 675, 600)),
    ((500, 500, 1e300, 2000), (1125, 750, 2250, 1500))])
def test_thousandths_become_pixels_of_the_picture_rounded_outwards(asked, expected):
    box, adjusted = box_in_pixels(asked, 2250, 1500, 32)
    assert box == Box(*expected)
    assert adjusted == (("cut",) if min(asked) < 0 or max(asked) > 1000 else ())


@pytest.mark.parametrize("asked, expected", [
    ((500, 500, 501, 501), (485, 235, 517, 267)), ((0, 0, 1, 1), (0, 0, 32, 32)),
    ((999, 999, 1000, 1000), (968, 468, 1000, 500)), ((0, 500, 1000, 501), (0, 235, 1000, 267)),
    ((500, 0, 502, 1000), (485, 0, 517, 500)), ((498, 0, 504, 1000), (485, 0, 517, 500))])
def test_a_box_below_one_image_token_is_grown_around_its_center_inside_the_picture(asked, expected):
    assert box_in_pixels(asked, 1000, 500, 32) == (Box(*expected), ("grown",))


@pytest.mark.parametrize("asked", [(5, 5, 5, 9), (5, 9, 8, 9), (1000, 0, 1200, 500), (-9, 0, 0, 500),
                                   (1e9, 1e9, 2e9, 2e9)])
def test_a_box_without_area_in_the_picture_is_none(asked):
    assert box_in_pixels(asked, 1000, 500, 32) is None


def test_every_box_lies_in_the_picture_holds_what_was_asked_for_and_can_be_shown():
    rng, vlm = np.random.default_rng(0), tiny_vlm("qwen3_vl")
    for _ in range(100):
        width, height = (int(rng.integers(32, 1200)) for _ in range(2))
        x, y = np.sort(rng.uniform(-100, 1100, 2)), np.sort(rng.uniform(-100, 1100, 2))
        found = box_in_pixels((x[0], y[0], x[1], y[1]), width, height, 32)
        x, y = np.clip(x, 0, 1000) * width / 1000, np.clip(y, 0, 1000) * height / 1000
        if found is None:
            assert x[0] == x[1] or y[0] == y[1]
            continue
        box, adjusted = found
        assert box.inside(width, height) and min(box.width, box.height) >= 32
        assert box.left <= x[0] + 1e-6 and x[1] <= box.right + 1e-6
        assert box.top <= y[0] + 1e-6 and y[1] <= box.bottom + 1e-6
        if "grown" not in adjusted:
            assert box.width < x[1] - x[0] + 2 and box.height < y[1] - y[0] + 2
        vlm.encode_image(enlarged(np.zeros((box.height, box.width, 3), np.uint8), 64 * 32 * 32))


@pytest.mark.parametrize("height, width, n_pixels", [
    (32, 6400, 409_600), (6400, 32, 409_600), (33, 6500, 400_000), (40, 7999, 600_000), (40, 8000, 871_200)])
def test_a_strip_that_the_processor_would_take_is_still_taken_when_enlarged(height, width, n_pixels):
    """The last one is 66 x 13200; in floating point its long side comes out above that, and rounds up to 13201."""
    large = enlarged(np.zeros((height, width, 3), np.uint8), n_pixels)
    assert n_pixels <= large.shape[0] * large.shape[1] < 1.05 * n_pixels
    assert tiny_vlm("qwen3_vl").encode_image(large).size == large.shape[:2]


def test_a_hair_of_a_wide_picture_is_grown_until_a_processor_takes_it():
    box, _ = box_in_pixels((0, 500, 1000, 500.1), 20_000, 3000, 32)
    assert box == Box(0, 1451, 20_000, 1551)


@pytest.mark.parametrize("height, width, n_pixels, expected", [
    (32, 32, 64 * 64, (64, 64)), (32, 64, 4 * 2048, (64, 128)), (64, 32, 4 * 2048, (128, 64)),
    (100, 60, 6000, (100, 60)), (100, 60, 10, (100, 60)), (50, 70, 5000, (60, 84))])
def test_small_cut_outs_are_enlarged_to_a_number_of_pixels_and_large_ones_left_alone(height, width, n_pixels, expected):
    pixels = image(5, height, width)
    large = enlarged(pixels, n_pixels)
    assert large.shape == (*expected, 3)
    assert (large is pixels) == (expected == (height, width))


# The loop


def scripted(*turns, family="qwen3_vl", vlm=None, finish="stop"):
    """A copy of a tiny model that says the given texts, one a turn ("length": a turn that was cut), and its prompts."""
    vlm = dataclasses.replace(vlm or tiny_vlm(family))
    waiting, heard = list(turns), []

    def generate(prompts, max_new_tokens, sampling, seeds=None, batch_size=None):
        [prompt], text = prompts, waiting.pop(0)
        heard.append((prompt, max_new_tokens, seeds))
        text, ended = text if isinstance(text, tuple) else (text, "stop")
        ids = (*vlm.encode(text), *vlm.stop_token_ids[:ended == "stop"])
        sizes = tuple(encoded.seen for encoded in prompt.images)
        return [Generation(text, ids, len(prompt), prompt.n_image_tokens, sizes, ended, elapsed_s=0.5)]
    vlm.generate = generate
    return vlm, heard


def scene_pixels():
    return render_scene(draw_scene("zoom", 1))


def thousandths(box: Box, side: int = 384) -> str:
    return str([1000 * edge / side for edge in box.as_list()])


def last_reply(vlm, heard) -> str:
    """What the tool said last, image tokens left out."""
    text = vlm.text_of([i for i, code in zip(heard[-1][0].ids, heard[-1][0].codes) if code < IMAGE], False)
    return text.rpartition("<tool_response>")[2].partition("</tool_response>")[0]


@pytest.mark.parametrize("family", ALL)
def test_the_cut_out_of_a_known_object_is_cut_from_the_original_pixels(family):
    scene = draw_scene("zoom", 1)
    thing = scene.objects[0]
    vlm, heard = scripted(tagged(thousandths(thing.box)), "(B)", family=family)
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION, min_view_tokens=1)
    view = trace.steps[0].view
    assert view.box == thing.box and view.adjusted == ()
    pixels = render_scene(scene)
    cut = pixels[thing.top:thing.top + thing.size_px, thing.left:thing.left + thing.size_px]
    assert view.sha256 == pixel_sha256(np.ascontiguousarray(cut)) and view.size == cut.shape[:2]
    seen = heard[1][0].images[1]
    assert torch.equal(seen.pixels, vlm.encode_image(np.ascontiguousarray(cut)).pixels)
    assert (view.seen, view.n_tokens) == (seen.seen, seen.n_tokens)
    assert heard[1][0].images[0].sha256 == pixel_sha256(pixels), "the picture stays the first image"
    assert trace.finish == "answered" and trace.text == "(B)"


def test_the_model_saw_less_than_the_cut_out_shows():
    """The scene has 384 pixels a side, and the model is shown 128: a cut from what it saw would be another."""
    vlm, heard = scripted(tagged("[250, 250, 500, 500]"), "(B)", vlm=load_vlm("tiny:qwen3_vl", max_pixels=16 * 1024))
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION)
    assert heard[0][0].images[0].seen == (128, 128)
    view = trace.steps[0].view
    assert view.box == Box(96, 96, 192, 192) and view.sha256 == pixel_sha256(
        np.ascontiguousarray(scene_pixels()[96:192, 96:192]))
    expected = Image.fromarray(scene_pixels()).crop((96, 96, 192, 192)).resize((128, 128), Image.Resampling.LANCZOS)
    assert view.size == view.seen == (128, 128) and view.n_tokens == 16
    assert heard[1][0].images[1].sha256 == pixel_sha256(np.asarray(expected))


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("box", ["[0, 0, 20, 20]", "[0, 0, 1000, 1000]", "[0, 400, 1000, 420]", "[300, 300, 600, 500]"])
def test_a_cut_out_of_any_size_stays_within_the_models_limits(family, box):
    vlm, heard = scripted(tagged(box), "(B)", family=family)
    view = ask_with_zoom(vlm, scene_pixels(), QUESTION).steps[0].view
    shown = heard[1][0].images[1]
    assert shown.size == view.size and view.n_tokens >= 24
    if family == "kimi_k25":                # its limit counts the patches that the image fills, before it is padded
        assert (shown.filled[0] // 14) * (shown.filled[1] // 14) <= 4 * 64
    else:
        assert view.n_tokens <= 64


def test_a_box_in_a_cut_out_is_given_and_cut_in_the_whole_picture():
    vlm, heard = scripted(tagged("[0, 0, 500, 500]"), tagged("[250, 250, 500, 500]"), "(B)")
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION)
    assert [step.view.box for step in trace.steps[:2]] == [Box(0, 0, 192, 192), Box(96, 96, 192, 192)]
    assert len(heard[2][0].images) == 3 and "the part [250, 250, 500, 500]" in last_reply(vlm, heard)


def test_what_was_done_to_a_box_is_recorded_and_told():
    vlm, heard = scripted(tagged("[1100, 990, 995, 1000]"), "(B)")
    view = ask_with_zoom(vlm, scene_pixels(), QUESTION).steps[0].view
    assert view.asked == (995, 990, 1100, 1000) and view.adjusted == ("swapped", "cut", "grown")
    assert view.box == Box(352, 352, 384, 384)
    assert last_reply(vlm, heard) == (
        "\n<|vision_start|><|vision_end|>\nThis is the part [917, 917, 1000, 1000] of the original picture. The box "
        "you asked for was adjusted: it reached beyond the picture and it was smaller than can be shown.\nUse the tool "
        "again (4 left), or give your final answer without a call.\n")


NO_AREA = {"outside": (tagged("[1100, 0, 1e300, 500]"), r"box \[1100, 0, 1e\+300, 500\] has no area inside the pic"),
           "a line": (tagged("[300, 300, 300, 400]"), "has no area inside the picture")}


@pytest.mark.parametrize("text, why", (BAD | NO_AREA).values(), ids=BAD | NO_AREA)
def test_a_bad_call_costs_a_step_is_told_and_the_loop_goes_on(text, why):
    vlm, heard = scripted(text, tagged(), "(B)")
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION, max_steps=2)
    assert [step.error is not None for step in trace.steps] == [True, False, False]
    assert (trace.n_errors, trace.n_views, trace.finish, trace.text) == (1, 1, "out of steps", "(B)")
    reply = vlm.text_of(heard[1][0].ids[len(heard[0][0]):], False)
    assert trace.steps[0].error in reply and "(1 left)" in reply
    assert re.search(why, trace.steps[0].error)


def test_control_tokens_in_a_bad_call_are_not_repeated_to_the_model():
    call = "<tool_call>{'name': '<|image_pad|>', 'arguments': {'bbox_2d': ['<|im_end|>']}}</tool_call>"
    vlm, heard = scripted(call, "(B)")
    # Spelled letter by letter, as a model would: the one token is never generated.
    trace = ask_with_zoom(without_image_tokens(vlm), scene_pixels(), QUESTION)
    assert trace.n_errors == 1 and len(heard[1][0].images) == 1


def without_image_tokens(vlm):
    """The same script, in which control tokens are written as the letters they are made of."""
    plain = vlm.generate

    def generate(*args, **options):
        [said] = plain(*args, **options)
        letters = [i for part in said.text.split("<|") for i in (*vlm.encode("<"), *vlm.encode("|" + part))][2:]
        return [dataclasses.replace(said, token_ids=tuple(letters))]
    vlm.generate = generate
    return vlm


def test_a_turn_with_a_call_and_an_answer_is_a_call_and_what_follows_the_call_is_not_read_on():
    first = f"Maybe (A). {tagged()}\n<tool_response>I see a blue kite</tool_response> The answer is (A)."
    vlm, heard = scripted(first, "(B)")
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION)
    assert (trace.text, trace.finish, trace.n_views) == ("(B)", "answered", 1)
    assert trace.steps[0].said.text == first, "all of it is recorded"
    before = len(heard[0][0])
    kept = heard[1][0].ids[before:before + trace.steps[0].n_kept]
    assert vlm.text_of(kept) == f"Maybe (A). {tagged()}" and kept == trace.steps[0].said.token_ids[:len(kept)]
    assert "blue kite" not in vlm.text_of(heard[1][0].ids)


def test_a_turn_that_ends_with_its_call_is_read_on_as_it_was_said():
    vlm, heard = scripted("Look. " + tagged() + " \n", "(B)")
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION)
    said = trace.steps[0].said.token_ids
    assert trace.steps[0].n_kept == len(said)
    assert heard[1][0].ids[len(heard[0][0]):][:len(said)] == said, "the end token closes the turn as the template does"


def test_of_two_calls_in_a_turn_the_first_is_made():
    vlm, heard = scripted(tagged("[0, 0, 500, 500]") + tagged("[500, 500, 1000, 1000]"), "(B)")
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION)
    assert trace.steps[0].view.box == Box(0, 0, 192, 192) and trace.n_views == 1
    assert "[500, 500, 1000, 1000]" not in vlm.text_of(heard[1][0].ids)


def test_reasoning_stays_in_the_conversation():
    vlm, heard = scripted(f"the star is red\n</think>\n\n{tagged()}", "</think>(B)", family="qwen3_5")
    ask_with_zoom(vlm, scene_pixels(), QUESTION)
    assert "the star is red" in vlm.text_of(heard[1][0].ids)


def test_after_the_last_step_the_answer_is_asked_for_without_the_tool():
    vlm, heard = scripted(*(tagged(f"[0, 0, {n}00, 500]") for n in (2, 3, 4)), "(B)")
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION, max_steps=3)
    assert (trace.finish, trace.text, len(trace.steps), trace.n_views) == ("out of steps", "(B)", 4, 3)
    assert "cannot be used any more" in last_reply(vlm, heard) and "Use the tool again" not in last_reply(vlm, heard)
    assert trace.answer.finish == "stop" and trace.answer.elapsed_s == 2.0


def test_a_call_after_the_last_step_is_not_made():
    vlm, heard = scripted(tagged(), tagged("[0, 0, 500, 500]"))
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION, max_steps=1)
    assert trace.finish == "out of steps" and [step.view is not None for step in trace.steps] == [True, False]
    assert "can be used once." in vlm.text_of(heard[0][0].ids)


@pytest.mark.parametrize("turns", [[("I see a", "length")], [tagged(), ("I see a", "length")],
                                   [tagged(), (tagged()[:60], "length")], [("<think> hm", "length")]])
def test_a_turn_that_is_cut_short_ends_out_of_tokens(turns):
    vlm, heard = scripted(*turns)
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION)
    assert trace.finish == "out of tokens" and trace.answer.finish == "length"
    assert len(heard) == len(trace.steps) == len(turns) and trace.n_errors == 0


def test_a_whole_call_in_a_turn_that_is_cut_short_is_made():
    vlm, _ = scripted((tagged() + " and so on and so", "length"), "(B)")
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION)
    assert (trace.finish, trace.text, trace.n_views) == ("answered", "(B)", 1)


def first_length(**options) -> int:
    vlm, heard = scripted("(B)")
    ask_with_zoom(vlm, scene_pixels(), QUESTION, **options)
    return len(heard[0][0])


def test_a_cut_out_that_leaves_no_room_is_not_shown_and_the_answer_is_asked_for():
    n_first, said = first_length(), tagged()
    n_said = len(tiny_vlm("qwen3_vl").encode(said)) + 1
    vlm, heard = scripted(said, "(B)")
    # Room for the tool's words (some 150 tokens of this small vocabulary) and 50 new tokens, not for 64 image tokens.
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION, max_new_tokens=50, max_total_tokens=n_first + n_said + 240)
    assert (trace.finish, trace.text, trace.n_views) == ("out of tokens", "(B)", 0)
    assert "no room left for another image" in last_reply(vlm, heard) and "any more" in last_reply(vlm, heard)
    assert len(heard[1][0].images) == 1 and trace.answer.finish == "stop"


def test_without_room_for_an_answer_the_conversation_stops_and_counts_as_cut_short():
    vlm, heard = scripted(tagged())
    n_said = len(vlm.encode(tagged())) + 1
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION, max_total_tokens=first_length() + n_said + 20)
    assert (trace.finish, len(heard), trace.n_errors) == ("out of tokens", 1, 1)
    assert trace.answer.finish == "length" and trace.text == tagged()


def test_every_turn_may_say_what_is_left_of_the_conversation():
    vlm, heard = scripted(tagged(), "(B)")
    limit = first_length() + 1000
    ask_with_zoom(vlm, scene_pixels(), QUESTION, max_new_tokens=900, max_total_tokens=limit)
    assert [n for _, n, _ in heard] == [900, limit - len(heard[1][0])] and heard[1][1] < 900
    ask_with_zoom(scripted("(B)")[0], scene_pixels(), QUESTION, max_total_tokens=10 ** 9)


def test_sampled_turns_draw_from_seeds_of_their_own():
    def seeds(seed):
        vlm, heard = scripted(tagged(), tagged(), "(B)")
        ask_with_zoom(vlm, scene_pixels(), QUESTION, sampling=Sampling(temperature=1.0), seed=seed)
        return [seeds for _, _, seeds in heard]
    found = seeds(3)
    assert found == seeds(3) and len({seed for [seed] in found + seeds(4)}) == 6
    vlm, heard = scripted("(B)")
    ask_with_zoom(vlm, scene_pixels(), QUESTION)
    assert heard[0][2] is None


def test_thinking_is_asked_for_in_every_turn():
    vlm, heard = scripted(tagged(), "(B)")
    ask_with_zoom(vlm, scene_pixels(), QUESTION, thinking=True)
    assert all(vlm.text_of(prompt.ids, False).endswith("assistant\n<think>\n") for prompt, _, _ in heard)


def test_the_trace_adds_up_and_survives_json():
    vlm, heard = scripted(tagged(), tagged("[1, 2]"), "(B)")
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION)
    assert trace.n_new_tokens == sum(len(step.said.token_ids) for step in trace.steps)
    assert trace.n_read_tokens == sum(len(prompt) for prompt, _, _ in heard) and trace.elapsed_s == 1.5
    assert trace.answer.n_image_tokens == 128 and trace.answer.image_sizes == ((256, 256), trace.steps[0].view.seen)
    assert from_json(ZoomTrace, json.loads(json.dumps(to_json(trace), allow_nan=False))) == trace


def test_a_file_is_asked_about_like_its_pixels(tmp_path):
    Image.fromarray(scene_pixels()).save(tmp_path / "scene.png")
    views = [ask_with_zoom(scripted(tagged(), "(B)")[0], picture, QUESTION).steps[0].view
             for picture in (tmp_path / "scene.png", scene_pixels(), Image.fromarray(scene_pixels()))]
    assert views[0] == views[1] == views[2]


@pytest.mark.parametrize("options, why", [
    (dict(max_steps=0), "zoom: max_steps is 0; expected a whole number, at least 1"),
    (dict(max_steps=1.5), "max_steps is 1.5; expected a whole number"),
    (dict(max_steps=125), "zoom: max_steps is 125; expected fewer than 125"),
    (dict(max_new_tokens=0), "zoom: max_new_tokens is 0"), (dict(min_view_tokens=0), "zoom: min_view_tokens is 0"),
    (dict(question=" "), "zoom: the question is ' '; expected text"), (dict(question=7), "zoom: the question is 7"),
    (dict(question="see <|image_pad|>"), "question: holds the control token"),
    (dict(image=np.zeros((8, 8, 3), np.uint8)), "image: has too few pixels"),
    (dict(image=[image(0)]), "image: got list"), (dict(seed="x"), "seed is 'x'; expected a whole number"),
    (dict(max_total_tokens=50), r"zoom: the picture and the question have \d+ tokens; expected fewer than 50"),
    (dict(max_total_tokens="x"), "max_total_tokens is 'x'")], ids=str)
def test_what_cannot_be_asked_is_one_clear_line(options, why):
    vlm, heard = scripted("(B)")
    with refused(f"^{why}"):
        ask_with_zoom(vlm, **{"image": scene_pixels(), "question": QUESTION, **options})
    assert heard == []


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "ernie4_5_vl_moe", "kimi_k25"])
def test_a_real_model_reads_the_conversation_as_transformers_does(family):
    """Two scripted calls, then the model's own words: those of transformers' generate on the processor's inputs."""
    vlm = dataclasses.replace(tiny_vlm(family))
    script, heard = scripted(tagged(), tagged("[0, 0, 400, 300]"), vlm=vlm)
    plain = vlm.generate

    def generate(prompts, *args):
        return script.generate(prompts, *args) if len(heard) < 2 else plain(prompts, *args)
    vlm.generate = generate
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION, max_new_tokens=12)
    pictures = [Image.fromarray(scene_pixels())]
    content = [{"type": "image"}, {"type": "text", "text": tool_prompt(QUESTION, 5)}]
    messages = [{"role": "user", "content": content}]
    for step, left in zip(trace.steps[:2], (4, 3)):
        box = step.view.box
        cut = pictures[0].crop(box.as_list())
        pictures.append(cut.resize(step.view.size[::-1], Image.Resampling.LANCZOS))
        edges = [round(edge * 1000 / 384) for edge in box.as_list()]
        words = (f"\nThis is the part {edges} of the original picture.\nUse the tool again ({left} left), or give your "
                 "final answer without a call.\n</tool_response>")
        messages += [{"role": "assistant", "content": step.said.text},
                     {"role": "user", "content": [{"type": "text", "text": "<tool_response>\n"}, {"type": "image"},
                                                  {"type": "text", "text": words}]}]
    inputs = dict(vlm.processor(text=[render(vlm.processor, messages)], images=pictures, return_tensors="pt"))
    out = plain_generate(vlm, inputs, 12)
    assert trace.steps[2].said.token_ids == tuple(out.sequences[0, inputs["input_ids"].shape[1]:].tolist())
    assert trace.steps[2].said.n_prompt_tokens == inputs["input_ids"].shape[1]


def test_a_model_that_calls_nothing_answers_at_once():
    vlm = tiny_vlm("qwen3_vl")
    trace = ask_with_zoom(vlm, scene_pixels(), QUESTION, max_new_tokens=6)
    alone = vlm.generate([vlm.prompt(scene_pixels(), tool_prompt(QUESTION, 5))], 6)[0]
    assert len(trace.steps) == 1 and trace.steps[0].said.token_ids == alone.token_ids
    assert trace.finish == {"length": "out of tokens", "stop": "answered"}[alone.finish]
