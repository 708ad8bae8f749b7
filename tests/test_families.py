"""The table of model families: complete, true of the installed transformers, and clear where it refuses."""

from __future__ import annotations

import dataclasses
import inspect
from types import SimpleNamespace

import pytest
import transformers

from probes.families import FAMILIES, REGIMES, UNSUPPORTED, family_of, family_table
from rekey.errors import InputError

COMMON_INPUTS = {"input_ids", "attention_mask", "pixel_values", "image_grid_thw"}
ALL_NAMES = "qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe, ernie4_5_vl_moe, kimi_k25"


def refusal(config: object) -> str:
    with pytest.raises(InputError) as error:
        family_of(config)
    return str(error.value)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_class_is_the_one_transformers_loads_for_the_model_type(family):
    model_class = getattr(transformers, family.model_class)
    assert model_class.config_class.model_type == family.name
    assert transformers.AutoModelForImageTextToText._model_mapping[model_class.config_class] is model_class


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_forward_names_every_extra_input_and_no_other_token_types(family):
    arguments = set(inspect.signature(getattr(transformers, family.model_class).forward).parameters)
    assert COMMON_INPUTS | set(family.extra_inputs) <= arguments
    assert {name for name in arguments if name.endswith("token_type_ids")} == set(family.extra_inputs)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_mrope_families_are_those_whose_model_computes_rope_indices(family):
    model_class = getattr(transformers, family.model_class)
    inner = transformers.AutoModel._model_mapping[model_class.config_class]
    assert hasattr(inner, "get_rope_index") == (family.positions == "mrope")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_hybrids_are_those_with_linear_attention_and_only_they_lack_splice(family):
    text = getattr(transformers, family.model_class).config_class().text_config
    layer_types = set(getattr(text, "layer_types", None) or ())
    assert ("linear_attention" in layer_types) == family.hybrid
    assert set(REGIMES) - set(family.regimes) == ({"splice"} if family.hybrid else set())


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_default_config_belongs_to_its_family(family):
    config = getattr(transformers, family.model_class).config_class()
    assert family_of(config) is family
    assert family_of(SimpleNamespace(model_type=family.name)) is family


def test_the_models_of_the_paper_are_in_the_table_or_refused_by_name():
    examples = {example for family in FAMILIES.values() for example in family.examples}
    for size in ("8B", "32B", "30B-A3B", "235B-A22B"):
        for variant in ("Instruct", "Thinking"):
            assert f"Qwen/Qwen3-VL-{size}-{variant}" in examples
    assert {"ydeng9/OpenVLThinker-7B", "TIGER-Lab/VL-Rethinker-7B"} <= set(FAMILIES["qwen2_5_vl"].examples)
    assert "kimi_vl" in UNSUPPORTED


def test_refused_model_types_are_unknown_to_transformers():
    assert not set(UNSUPPORTED) & set(FAMILIES)
    for model_type in UNSUPPORTED:
        assert model_type not in transformers.CONFIG_MAPPING


def test_the_record_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FAMILIES["qwen3_vl"].steering = False


def test_a_text_only_model_is_refused_in_one_line():
    assert refusal(transformers.Qwen3Config()) == (
        "model type qwen3: not a vision-language model, its config has no vision part; "
        f"supported: {ALL_NAMES}"
    )


def test_the_text_half_of_a_supported_family_is_refused_as_text_only():
    assert "model type qwen3_5_text: not a vision-language model" in refusal(transformers.Qwen3_5TextConfig())


def test_another_vision_language_model_is_refused_in_one_line():
    assert refusal(transformers.LlavaConfig()) == (
        f"model type llava: not in the probe engine's table; supported: {ALL_NAMES}"
    )


def test_kimi_vl_is_refused_with_its_successor_named():
    assert refusal(SimpleNamespace(model_type="kimi_vl")) == (
        "model type kimi_vl: not supported; Kimi-VL needs the code shipped with its checkpoint, "
        "which is never run here; use its successor Kimi-K2.5 (kimi_k25)"
    )


def test_what_is_no_config_is_refused_in_one_line():
    assert refusal({"model_type": "qwen3_vl"}) == (
        f"model config: expected a config with a model_type, found dict; supported: {ALL_NAMES}"
    )


def test_every_family_and_refusal_has_one_line_of_the_markdown_table():
    table = family_table()
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(FAMILIES)
    assert len({row.count(" | ") for row in rows}) == 1
    for family, row in zip(FAMILIES.values(), rows[2:]):
        assert row.startswith(f"| {family.title} | `{family.name}` | ")
        assert ("splice" in row.split(" | ")[4]) == ("splice" in family.regimes)
    assert [line.split("`")[1] for line in table.splitlines() if line.startswith("- ")] == list(UNSUPPORTED)
