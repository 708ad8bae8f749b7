"""The tiny models: real classes, real processors, the same weights every time, and pictures that matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from probes.families import FAMILIES, family_of
from probes.tiny import save_tiny, tiny_model, tiny_processor
from probes.tiny_text import WORDS, spoken_ids
from rekey.errors import InputError

QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What color is it?"}]}]
COMMON_INPUTS = {"input_ids", "attention_mask", "pixel_values", "image_grid_thw"}
LAYERS = 4


def picture(seed: int, width: int = 150, height: int = 120) -> Image.Image:
    """A mosaic of random colors, 10 pixels a tile."""
    tiles = np.random.default_rng(seed).integers(0, 256, (height // 10, width // 10, 3), dtype=np.uint8)
    return Image.fromarray(tiles).resize((width, height), Image.Resampling.NEAREST)


def ask(processor, image: Image.Image):
    text = processor.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    return processor(text=[text], images=[image], return_tensors="pt")


def logits(model, inputs) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).logits


@pytest.fixture(scope="module", params=FAMILIES)
def built(request):
    """(family, model, processor), each built once for the file."""
    family = FAMILIES[request.param]
    return family, *tiny_model(family.name)


@pytest.fixture(scope="module")
def saved(built, tmp_path_factory):
    """The folder that `save_tiny` wrote for the family."""
    return save_tiny(built[0].name, tmp_path_factory.mktemp(built[0].name))


def test_the_model_is_of_the_family_and_small(built):
    family, model, _ = built
    assert type(model).__name__ == family.model_class
    assert family_of(model.config) is family
    assert sum(weight.numel() for weight in model.parameters()) < 700_000


def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone(built):
    family, model, _ = built
    before = torch.get_rng_state()
    again, _ = tiny_model(family.name, seed=0)
    other, _ = tiny_model(family.name, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    weights, weights_again = model.state_dict(), again.state_dict()
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)
    name = "lm_head.weight"
    assert not torch.equal(weights[name], other.state_dict()[name])


def test_the_processor_gives_just_what_the_table_says_forward_needs(built):
    family, model, processor = built
    inputs = ask(processor, picture(0))
    assert set(inputs) == COMMON_INPUTS | set(family.extra_inputs)
    for name in family.extra_inputs:
        assert inputs[name].shape == inputs["input_ids"].shape


def test_no_extra_input_can_be_left_out_unnoticed(built):
    family, model, processor = built
    inputs = ask(processor, picture(0))
    whole = logits(model, inputs)
    for name in family.extra_inputs:
        model.model.rope_deltas = None
        rest = {key: value for key, value in inputs.items() if key != name}
        try:
            assert (logits(model, rest) - whole).abs().max() > 1e-2
        except ValueError as error:
            assert name in str(error)


@pytest.mark.parametrize("size", [(150, 120), (20, 20), (500, 300), (60, 400)])
def test_image_tokens_are_a_quarter_of_the_patches_between_their_markers(built, size):
    family, model, processor = built
    inputs = ask(processor, picture(0, *size))
    at = (inputs["input_ids"][0] == model.config.image_token_id).nonzero().flatten()
    assert len(at) == inputs["image_grid_thw"].prod().item() // 4
    assert len(inputs["pixel_values"]) == inputs["image_grid_thw"].prod().item()
    assert at.tolist() == list(range(at[0], at[-1] + 1))
    if family.name != "kimi_k25":  # Kimi never enlarges, and rounds up behind its limit
        assert 4 <= len(at) <= 64
    tokens = processor.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0, [at[0] - 1, at[-1] + 1]])
    assert tokens == {
        "kimi_k25": ["<|media_content|>", "<|media_end|>"],
        "ernie4_5_vl_moe": ["<|IMAGE_START|>", "<|IMAGE_END|>"],
    }.get(family.name, ["<|vision_start|>", "<|vision_end|>"])


def test_generation_runs_says_varied_words_and_depends_on_the_picture(built):
    _, model, processor = built
    texts = []
    for seed in (0, 1):
        inputs = ask(processor, picture(seed))
        out = model.generate(**inputs, max_new_tokens=24)[0, inputs["input_ids"].shape[1] :]
        assert len(out) == 24
        assert len(set(out.tolist())) >= 8
        texts.append(processor.tokenizer.decode(out))
        assert set(texts[-1].split()) <= set(WORDS)
    assert texts[0] != texts[1]


def test_attention_is_far_from_uniform_and_reaches_the_image(built):
    family, _, processor = built
    model, _ = tiny_model(family.name, attn_implementation="eager")
    inputs = ask(processor, picture(0))
    with torch.no_grad():
        layers = [layer for layer in model(**inputs, output_attentions=True).attentions if layer is not None]
    assert len(layers) == (1 if family.hybrid else LAYERS)
    on_image = inputs["input_ids"][0] == model.config.image_token_id
    for layer in layers:
        last_rows = layer[0, :, -8:]  # (H, 8, T)
        assert last_rows.amax(-1).mean() > 8 / last_rows.shape[-1]
        assert 0.1 < last_rows[..., on_image].sum(-1).mean() < 0.9


def test_text_attention_passes_the_interface_with_a_layer_index_and_vision_without(built):
    family, model, processor = built
    plain, seen = ALL_ATTENTION_FUNCTIONS["sdpa"], []

    def watch(module, *args, **kwargs):
        seen.append(getattr(module, "layer_idx", None))
        return plain(module, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = watch
    try:
        logits(model, ask(processor, picture(0)))
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]
    assert None in seen
    assert [layer for layer in seen if layer is not None] == ([3] if family.hybrid else [0, 1, 2, 3])


def test_a_saved_folder_loads_as_the_same_classes_with_the_same_results(built, saved):
    _, model, processor = built
    loaded_processor = transformers.AutoProcessor.from_pretrained(saved)
    loaded = transformers.AutoModelForImageTextToText.from_pretrained(saved)
    assert (saved / "model.safetensors").is_file()
    for part in ("tokenizer", "image_processor", "video_processor"):
        assert type(getattr(loaded_processor, part)) is type(getattr(processor, part))
    assert type(loaded_processor) is type(processor)
    assert type(loaded) is type(model)
    inputs, inputs_loaded = ask(processor, picture(0)), ask(loaded_processor, picture(0))
    assert set(inputs) == set(inputs_loaded)
    assert all(torch.equal(inputs[name], inputs_loaded[name]) for name in inputs)
    assert torch.equal(logits(model, inputs), logits(loaded, inputs_loaded))
    assert loaded.generation_config.eos_token_id == processor.tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_half_precision_is_what_loading_in_half_precision_gives(built, saved):
    family, _, _ = built
    loaded = transformers.AutoModelForImageTextToText.from_pretrained(saved, dtype=torch.bfloat16)
    cast, _ = tiny_model(family.name, dtype=torch.bfloat16)
    expected, found = loaded.state_dict(), cast.state_dict()
    assert {name: weight.dtype for name, weight in found.items()} == {
        name: weight.dtype for name, weight in expected.items()
    }
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert found["lm_head.weight"].dtype == torch.bfloat16


def test_every_text_encodes_and_common_words_are_one_token(built):
    tokenizer = built[2].tokenizer
    text = "Überprüfe 图 again: 3.5% of\t<b>it</b>\n🙂"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert len(set(spoken_ids(tokenizer))) == len(set(WORDS)) == len(WORDS)
    assert tokenizer.decode(tokenizer.encode("<think>\nlook</think>"), skip_special_tokens=True) == (
        "<think>\nlook</think>"
    )


TALK = [
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "<think>\nlet me see\n</think>\n\nleft "},
    {"role": "user", "content": " Again? "},
]


def render(thinking: bool, messages, **options) -> str:
    processor = tiny_processor("qwen3_vl", thinking=thinking)
    return processor.apply_chat_template(messages, tokenize=False, **options)


def test_a_plain_template_keeps_turns_as_they_are():
    talk = (
        "<|im_start|>user\nWhere?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nlet me see\n</think>\n\nleft <|im_end|>\n"
        "<|im_start|>user\n Again? <|im_end|>\n"
    )
    assert render(False, TALK) == talk
    assert render(False, TALK, add_generation_prompt=True) == talk + "<|im_start|>assistant\n"
    opened = render(False, TALK, add_generation_prompt=True, enable_thinking=True)
    assert opened == talk + "<|im_start|>assistant\n<think>\n"


def test_a_thinking_template_drops_earlier_reasoning_and_opens_a_block():
    talk = (
        "<|im_start|>user\nWhere?<|im_end|>\n"
        "<|im_start|>assistant\nleft<|im_end|>\n"
        "<|im_start|>user\n Again? <|im_end|>\n"
    )
    assert render(True, TALK) == talk
    assert render(True, TALK, add_generation_prompt=True) == talk + "<|im_start|>assistant\n<think>\n"
    closed = render(True, TALK, add_generation_prompt=True, enable_thinking=False)
    assert closed == talk + "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_a_thinking_template_closes_an_empty_block_before_an_answer_it_should_continue():
    unfinished = [*TALK[:1], {"role": "assistant", "content": "<think>\nlet me"}]
    assert render(True, unfinished, continue_final_message=True).endswith(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n<think>\nlet me"
    )
    assert render(False, unfinished, continue_final_message=True).endswith(
        "<|im_start|>assistant\n<think>\nlet me"
    )


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_only_the_hybrids_think_unless_asked(family):
    for thinking, opens in ((None, family.hybrid), (True, True), (False, False)):
        processor = tiny_processor(family.name, thinking=thinking)
        prompt = processor.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
        assert prompt.endswith("assistant\n<think>\n" if opens else "assistant\n")


def test_text_overrides_reach_the_config_and_a_sliding_window_slides_in_the_upper_half():
    model, processor = tiny_model("qwen2_5_vl", use_sliding_window=True, sliding_window=8)
    assert model.config.text_config.layer_types == ["full_attention"] * 2 + ["sliding_attention"] * 2
    inputs = ask(processor, picture(0))
    whole, _ = tiny_model("qwen2_5_vl")
    assert (logits(model, inputs) - logits(whole, inputs)).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [1, 6])
def test_other_depths_and_widths_build_and_run(family, layers):
    model, processor = tiny_model(family, layers=layers, hidden_size=128)
    assert model.config.text_config.num_hidden_layers == layers
    assert torch.isfinite(logits(model, ask(processor, picture(0)))).all()


def test_larger_images_can_be_asked_for():
    processor = tiny_processor("qwen3_vl", max_image_tokens=300)
    assert 250 < ask(processor, picture(0, 800, 600))["image_grid_thw"].prod().item() // 4 <= 300


def test_an_unknown_family_is_refused_in_one_line():
    supported = ", ".join(FAMILIES)
    for build in (tiny_model, tiny_processor):
        with pytest.raises(InputError) as error:
            build("llava")
        assert str(error.value) == f"tiny model: unknown family 'llava'; supported: {supported}"
