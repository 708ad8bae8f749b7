"""The families of vision-language models that the probes support and what differs between them, as data.

VisualSwap (experiments, "Models") needs a model whose image can be swapped while it writes: the same ids
under other pixels, keys and values that can be replaced, attention that can be watched.  Which of that a
family offers is written here once; the code that loads, swaps and records asks this table, not class names.

    family = family_of(model.config)              # InputError in one line for anything else
    if "splice" in family.regimes: ...
    print(family_table())                         # the table of the documentation
"""

from __future__ import annotations

from dataclasses import dataclass

from rekey.errors import InputError

REGIMES = ("recompute", "splice", "none")


@dataclass(frozen=True)
class Family:
    """What the probes must know about one family of models.

    name          the `model_type` of its config
    title         the name people use
    model_class   the transformers class
    positions     "mrope" (time, height, width; three rows) or "1d" (a token's index)
    hybrid        some layers are linear attention: no keys, no attention to record, no cutting of the cache
    extra_inputs  what a plain call of the model needs from the processor besides input_ids, attention_mask,
                  pixel_values and image_grid_thw; each is (batch, tokens).  The probes give positions themselves
                  and have no use for mm_token_type_ids
    regimes       the swap regimes that have a meaning for it
    steering      a bias on the image keys reaches the attention of its layers
    examples      checkpoints on the Hugging Face hub
    note          the one thing to know before using it
    """

    name: str
    title: str
    model_class: str
    positions: str
    hybrid: bool
    extra_inputs: tuple[str, ...]
    regimes: tuple[str, ...]
    steering: bool
    examples: tuple[str, ...]
    note: str


_MROPE_INPUTS = ("mm_token_type_ids",)
_HYBRID_REGIMES = ("recompute", "none")

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="qwen2_vl",
            title="Qwen2-VL",
            model_class="Qwen2VLForConditionalGeneration",
            positions="mrope",
            hybrid=False,
            extra_inputs=_MROPE_INPUTS,
            regimes=REGIMES,
            steering=True,
            examples=("Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen2-VL-7B-Instruct"),
            note="Without mm_token_type_ids, generate() falls back to 1-D positions and says nothing.",
        ),
        Family(
            name="qwen2_5_vl",
            title="Qwen2.5-VL",
            model_class="Qwen2_5_VLForConditionalGeneration",
            positions="mrope",
            hybrid=False,
            extra_inputs=_MROPE_INPUTS,
            regimes=REGIMES,
            steering=True,
            examples=(
                "Qwen/Qwen2.5-VL-7B-Instruct",
                "ydeng9/OpenVLThinker-7B",
                "TIGER-Lab/VL-Rethinker-7B",
            ),
            note="Without mm_token_type_ids, even forward() falls back to 1-D positions and says nothing.",
        ),
        Family(
            name="qwen3_vl",
            title="Qwen3-VL",
            model_class="Qwen3VLForConditionalGeneration",
            positions="mrope",
            hybrid=False,
            extra_inputs=_MROPE_INPUTS,
            regimes=REGIMES,
            steering=True,
            examples=(
                "Qwen/Qwen3-VL-8B-Instruct",
                "Qwen/Qwen3-VL-8B-Thinking",
                "Qwen/Qwen3-VL-32B-Instruct",
                "Qwen/Qwen3-VL-32B-Thinking",
            ),
            note="Image features also enter the first layers (DeepStack): image keys differ from layer 1 on.",
        ),
        Family(
            name="qwen3_vl_moe",
            title="Qwen3-VL-MoE",
            model_class="Qwen3VLMoeForConditionalGeneration",
            positions="mrope",
            hybrid=False,
            extra_inputs=_MROPE_INPUTS,
            regimes=REGIMES,
            steering=True,
            examples=(
                "Qwen/Qwen3-VL-30B-A3B-Instruct",
                "Qwen/Qwen3-VL-30B-A3B-Thinking",
                "Qwen/Qwen3-VL-235B-A22B-Instruct",
                "Qwen/Qwen3-VL-235B-A22B-Thinking",
            ),
            note="As Qwen3-VL, with a mixture of experts in the text layers.",
        ),
        Family(
            name="qwen3_5",
            title="Qwen3.5",
            model_class="Qwen3_5ForConditionalGeneration",
            positions="mrope",
            hybrid=True,
            extra_inputs=_MROPE_INPUTS,
            regimes=_HYBRID_REGIMES,
            steering=True,
            examples=("Qwen/Qwen3.5-27B",),
            note="Three of four layers keep a running state in which the first image stays: no splice.",
        ),
        Family(
            name="qwen3_5_moe",
            title="Qwen3.5-MoE",
            model_class="Qwen3_5MoeForConditionalGeneration",
            positions="mrope",
            hybrid=True,
            extra_inputs=_MROPE_INPUTS,
            regimes=_HYBRID_REGIMES,
            steering=True,
            examples=("Qwen/Qwen3.5-35B-A3B",),
            note="As Qwen3.5, with a mixture of experts in every layer.",
        ),
        Family(
            name="ernie4_5_vl_moe",
            title="ERNIE-4.5-VL",
            model_class="Ernie4_5_VLMoeForConditionalGeneration",
            positions="mrope",
            hybrid=False,
            extra_inputs=("mm_token_type_ids", "moe_mm_token_type_ids"),
            regimes=REGIMES,
            steering=True,
            examples=("baidu/ERNIE-4.5-VL-28B-A3B-PT", "baidu/ERNIE-4.5-VL-28B-A3B-Thinking"),
            note="Without moe_mm_token_type_ids, image tokens go to the text experts and nothing is said.",
        ),
        Family(
            name="kimi_k25",
            title="Kimi-K2.5",
            model_class="Kimi_K25ForConditionalGeneration",
            positions="1d",
            hybrid=False,
            extra_inputs=(),
            regimes=REGIMES,
            steering=True,
            examples=("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.6"),
            note="Its cache holds latents, not keys and values; cast pixel_values to the model's dtype.",
        ),
    )
}

# Models of VisualSwap whose checkpoints bring their own code, which is never run (no trust_remote_code).
UNSUPPORTED: dict[str, str] = {
    "kimi_vl": (
        "Kimi-VL needs the code shipped with its checkpoint, which is never run here; "
        "use its successor Kimi-K2.5 (kimi_k25)"
    ),
    "ernie4_5_moe_vl": (
        "this ERNIE-4.5-VL checkpoint needs the code shipped with it, which is never run here; "
        "use one converted to ernie4_5_vl_moe, such as revision refs/pr/11 of baidu/ERNIE-4.5-VL-28B-A3B-PT"
    ),
}


def supported() -> str:
    """The names of the supported families, for a line of help."""
    return ", ".join(FAMILIES)


def family_of(config: object) -> Family:
    """The family that a model's config belongs to.

    `config` is a transformers config or any object with a `model_type`.  Raises InputError with one line
    for a model without a vision part, for a vision-language model outside the table, and for anything that is
    no config.
    """
    model_type = getattr(config, "model_type", None)
    if not model_type:
        raise InputError(
            f"model config: expected a config with a model_type, found {type(config).__name__}; "
            f"supported: {supported()}"
        )
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    if model_type in UNSUPPORTED:
        raise InputError(f"model type {model_type}: not supported; {UNSUPPORTED[model_type]}")
    if getattr(config, "vision_config", None) is None:
        raise InputError(
            f"model type {model_type}: not a vision-language model, its config has no vision part; "
            f"supported: {supported()}"
        )
    raise InputError(f"model type {model_type}: not in the probe engine's table; supported: {supported()}")


def family_table() -> str:
    """The families, then the models that are not supported and why, as Markdown ending in a newline."""
    header = ("family", "model_type", "positions", "layers with attention", "swap regimes", "steering")
    header += ("checkpoints", "note")
    rows = [header, ("---",) * len(header)]
    for family in FAMILIES.values():
        rows.append(
            (
                family.title,
                f"`{family.name}`",
                {"mrope": "M-RoPE", "1d": "1-D"}[family.positions],
                "some (hybrid)" if family.hybrid else "all",
                ", ".join(family.regimes),
                "yes" if family.steering else "no",
                ", ".join(f"`{name}`" for name in family.examples),
                family.note,
            )
        )
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    refusals = "".join(f"- `{model_type}`: {reason}.\n" for model_type, reason in UNSUPPORTED.items())
    return f"{table}\nNot supported:\n\n{refusals}"
