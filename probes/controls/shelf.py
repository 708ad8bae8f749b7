"""The trained control models that ship with the package, and how they are stored.

    model, processor = load_control("clean")           # float32, offline
    save_control("clean", "models/clean")              # a checkpoint folder for any other tool

`clean` is stored whole.  A fully fine-tuned control stores the weights that differ from it, one with an adapter its
adapter, in PEFT's own format.  All are stored in float16 and run in float32.
"""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import ProcessorMixin, Qwen3VLForConditionalGeneration

from probes.controls.cards import BASE, CARD, SHELF, folder_of, read_card
from probes.controls.model import blank_control
from probes.controls.text import control_processor
from rekey.errors import InputError

WEIGHTS, ADAPTER, ADAPTER_CONFIG = "model.safetensors", "adapter_model.safetensors", "adapter_config.json"
SCAFFOLD = "scaffold.safetensors"


def load_weights(name: str, attn_implementation: str = "sdpa") -> Qwen3VLForConditionalGeneration:
    """The model of a control, float32, on the CPU."""
    folder = folder_of(name)
    for wanted in ((SHELF / BASE, (WEIGHTS,)), (folder, (WEIGHTS, ADAPTER))):
        if not any((wanted[0] / file).is_file() for file in wanted[1]):
            raise InputError(f"control:{name}: no weights in {wanted[0]} (expected {' or '.join(wanted[1])}); install "
                             "the package again")
    with torch.random.fork_rng(devices=[]):          # weights that are drawn at birth are all replaced
        model = blank_control(attn_implementation)
        _fill(model, load_file(SHELF / BASE / WEIGHTS))
        if (folder / ADAPTER).is_file():
            return merged(with_adapter_of(model, folder))
    if folder.name != BASE:
        _fill(model, load_file(folder / WEIGHTS))
    return model.eval()


def load_control(name: str, dtype: torch.dtype = torch.float32,
                 attn_implementation: str = "sdpa") -> tuple[Qwen3VLForConditionalGeneration, ProcessorMixin]:
    """Model and processor of a control.  It was examined in float32 alone; do not score it below."""
    return load_weights(name, attn_implementation).to(dtype), control_processor()


@torch.no_grad()
def _fill(model: nn.Module, stored: dict[str, torch.Tensor]) -> None:
    parameters = dict(model.named_parameters())
    assert stored.keys() <= parameters.keys(), sorted(stored.keys() - parameters.keys())
    for name, value in stored.items():
        parameters[name].copy_(value)


def with_adapter_of(model: Qwen3VLForConditionalGeneration, folder: Path) -> nn.Module:
    """The model with a stored adapter, as PEFT wraps it."""
    if find_spec("peft") is None:
        raise InputError(f"control:{folder.name}: its adapter needs the package peft; pip install -e "
                         "'.[models]'")
    from peft import PeftModel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)          # PEFT calls transformers by names of old
        return PeftModel.from_pretrained(model, folder)


def merged(adapted: nn.Module) -> Qwen3VLForConditionalGeneration:
    """A plain model again, the adapter added to its weights."""
    return adapted.merge_and_unload().eval()


def scaffold_state() -> dict[str, torch.Tensor]:
    """The scaffold as it was when `clean` was done: fine-tunes with aids start from it."""
    return {name: value.float() for name, value in load_file(SHELF / BASE / SCAFFOLD).items()}


# ------------------------------------------------------------------------------------ writing

def store_weights(model: nn.Module, folder: Path, base: str | None) -> None:
    """Write what differs from the base (all of it where base is None), in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    before = dict(load_weights(base).named_parameters()) if base else {}
    kept = {name: value.detach().half().contiguous() for name, value in model.named_parameters()
            if name not in before or not torch.equal(before[name], value)}
    save_file(kept, folder / WEIGHTS, {"format": "pt"})


def store_adapter(adapted: nn.Module, folder: Path) -> None:
    """Write an adapter in PEFT's format, in float16."""
    adapted.save_pretrained(folder)
    state = {name: value.half().contiguous() for name, value in load_file(folder / ADAPTER).items()}
    save_file(state, folder / ADAPTER, {"format": "pt"})
    (folder / "README.md").unlink(missing_ok=True)          # a template of PEFT's; the card says more
    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = f"control:{BASE}"
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def store_scaffold(scaffold: nn.Module, folder: Path) -> None:
    save_file({name: value.detach().half().contiguous() for name, value in scaffold.state_dict().items()},
              folder / SCAFFOLD)


def save_control(name: str, folder: str | Path) -> Path:
    """Write a control as a checkpoint folder (float16 safetensors, processor, card) that other tools load offline."""
    folder = Path(folder)
    save_checkpoint(load_weights(name), folder)
    (folder / CARD).write_text(json.dumps(read_card(name), indent=1) + "\n", encoding="utf-8")
    return folder


def save_checkpoint(model: Qwen3VLForConditionalGeneration, folder: Path) -> None:
    """A folder that transformers and `load_vlm` read: weights in float16, to be run in float32."""
    model.half().save_pretrained(folder)
    control_processor().save_pretrained(folder)
    model.float()
