"""The ways of watching attention that `benchmarks.attention` compares, and the model that it watches.

Each is a context manager over a loaded model that yields the model to run and a function that reads out what
was kept.  All of them decode with the same loop (`probes.decode`).  Peers are taken at their best: eager
attention; eager with `output_attentions`, whose weights are kept; nnsight (where it is installed), which
needs eager as well and here keeps no more than the last row's sum over the image's keys.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
import transformers

from probes.attention import recording_image_attention
from probes.families import family_of
from probes.tiny import tiny_model
from probes.vlm import LocalVLM, load_vlm

# The vision tower stays as it is: nobody asks for its weights.
SDPA, EAGER, FLASH = ({"text_config": kernel, "vision_config": "sdpa"}
                      for kernel in ("sdpa", "eager", "flash_attention_2"))

Watched = tuple[LocalVLM, Callable[[], object]]
"""The model to run, and a function that reads out and returns what the mode keeps of the run."""


@dataclass(frozen=True)
class Mode:
    """One way to run the model; `watch` prepares it and puts everything back."""

    name: str
    watch: Callable[[LocalVLM], AbstractContextManager[Watched]]
    is_peer: bool = False


@contextmanager
def plain(vlm: LocalVLM, kernel: dict = SDPA) -> Iterator[Watched]:
    vlm.model.set_attn_implementation(kernel)
    try:
        yield vlm, lambda: None
    finally:
        vlm.model.set_attn_implementation(SDPA)


@contextmanager
def recorded(vlm: LocalVLM, n_layers: int | None = None, kernel: dict = SDPA) -> Iterator[Watched]:
    """The instrument under test.  n_layers: in the middle of the model; all of them by default."""
    layers = None
    if n_layers is not None:
        first = (vlm.model.config.get_text_config().num_hidden_layers - n_layers) // 2
        layers = range(first, first + n_layers)
    with plain(vlm, kernel), recording_image_attention(vlm, layers) as trace:
        yield vlm, trace.sequences


@contextmanager
def eager_with_outputs(vlm: LocalVLM) -> Iterator[Watched]:
    """What transformers offers: all weights of all rows, from its plainest implementation of attention."""
    kept = []
    hooks = [vlm.model.register_forward_pre_hook(
                 lambda module, args, kwargs: (args, {**kwargs, "output_attentions": True}), with_kwargs=True),
             vlm.model.register_forward_hook(lambda module, args, output: kept.append(output.attentions))]
    try:
        with plain(vlm, EAGER):
            yield vlm, lambda: kept
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def nnsight_eager(vlm: LocalVLM) -> Iterator[Watched]:
    """One nnsight trace per forward pass, as its documentation reads attention."""
    with plain(vlm, EAGER):
        traced = NnsightModel(vlm.model)
        yield replace(vlm, model=traced), lambda: traced.kept


class NnsightModel:
    """A model that is traced by nnsight at every call; kept is the last row's mass on the image in every layer."""

    def __init__(self, model: transformers.PreTrainedModel):
        import nnsight
        self.model, self.traced, self.kept = model, nnsight.NNsight(model), []
        self.layers = self.traced.model.language_model.layers
        self.on_image: torch.Tensor | None = None

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def __call__(self, **inputs):
        if "pixel_values" in inputs:
            self.on_image = (inputs["input_ids"][0] == self.model.config.image_token_id).nonzero()[:, 0]
        on_image = self.on_image
        with self.traced.trace(**inputs):
            masses = list().save()               # nnsight gives lists this method inside a trace
            for layer in self.layers:
                weights = layer.self_attn.output[1][:, :, -1]
                masses.append(weights.sum(-1) if on_image is None else weights[..., on_image].sum(-1))
            output = self.traced.output.save()
        self.kept.append(masses)
        return output


def modes(vlm: LocalVLM, n_layers: int) -> tuple[list[Mode], list[str]]:
    """The modes that run here, plain first, and a line for each that does not."""
    found = [Mode("sdpa, plain", plain),
             Mode(f"sdpa, recorded, {n_layers} layers", partial(recorded, n_layers=n_layers)),
             Mode("sdpa, recorded, all layers", recorded),
             Mode("eager", partial(plain, kernel=EAGER), is_peer=True),
             Mode("eager + output_attentions", eager_with_outputs, is_peer=True)]
    absent = []
    if importlib.util.find_spec("nnsight"):
        name = f"nnsight {importlib.metadata.version('nnsight')} (eager)"
        found.append(Mode(name, nnsight_eager, is_peer=True))
    else:
        absent.append("nnsight: not installed")
    if vlm.device.type != "cuda":
        absent.append("flash_attention_2: no CUDA device")
    elif not importlib.util.find_spec("flash_attn"):
        absent.append("flash_attention_2: flash-attn is not installed")
    else:
        found += [Mode("flash_attention_2, plain", partial(plain, kernel=FLASH)),
                  Mode("flash_attention_2, recorded, all layers", partial(recorded, kernel=FLASH))]
    return found, absent


# -------------------------------------------------------------------------------------- the model

CPU_SHAPE = dict(layers=12, hidden_size=1024, num_attention_heads=16, num_key_value_heads=4, head_dim=64,
                 intermediate_size=4096, max_image_tokens=1500)
QWEN3_VL_8B = dict(vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
                   num_attention_heads=32, num_key_value_heads=8, head_dim=128)
QWEN3_VL_8B_ROPE = dict(rope_type="default", rope_theta=5e6, mrope_section=[24, 20, 20], mrope_interleaved=True)


def bench_vlm(name: str | None, device: torch.device, small: bool) -> LocalVLM:
    """A checkpoint by name; else random weights: tiny, some 200 M parameters (CPU) or Qwen3-VL-8B's shape (GPU)."""
    if name is not None:
        return load_vlm(name, device_map=str(device), attention="sdpa")
    if device.type == "cpu":
        model, processor = tiny_model("qwen3_vl", **({} if small else CPU_SHAPE))
    elif small:
        model, processor = tiny_model("qwen3_vl", dtype=torch.bfloat16)
        model = model.to(device)
    else:
        model, processor = model_of_8b_shape(device)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return LocalVLM(name=f"random Qwen3-VL of {n_parameters / 1e6:,.1f} M parameters", revision=None,
                    family=family_of(model.config), model=model, processor=processor, limits=None, attention="sdpa",
                    attention_reason="chosen by the benchmark")


def model_of_8b_shape(device: torch.device) -> tuple[transformers.PreTrainedModel, transformers.ProcessorMixin]:
    """Qwen3-VL-8B's shape with random weights, built on the device, and a processor with a small tokenizer."""
    tiny, processor = tiny_model("qwen3_vl", max_image_tokens=16384)
    config, tokenizer = tiny.config, processor.tokenizer
    config.text_config = transformers.Qwen3VLTextConfig(
        **QWEN3_VL_8B, rope_parameters=QWEN3_VL_8B_ROPE, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id)
    config.vision_config = transformers.Qwen3VLVisionConfig(out_hidden_size=QWEN3_VL_8B["hidden_size"])
    with torch.device(device):
        model = type(tiny)._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.generation_config = tiny.generation_config
    return model.eval(), processor
