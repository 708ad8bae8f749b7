"""Load a local vision-language model, and say in one line why one cannot be loaded.

Only safetensors weights, only classes that transformers itself carries (no `trust_remote_code`), and no
network unless a hub id is named and the machine is online.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from transformers import AutoConfig, AutoProcessor, PreTrainedConfig

from probes.families import UNSUPPORTED, family_of
from probes.tiny import tiny_model
from rekey.errors import InputError

TINY = "tiny:"


def load_parts(name: str, *, dtype: torch.dtype, device_map: str | dict, attention: str, revision: str | None):
    """Model, processor and family of `name`: a hub id, a folder, or tiny:FAMILY (random weights)."""
    if name.startswith(TINY):
        model, processor = tiny_model(name.removeprefix(TINY))
        model = model.to(dtype)
        model.set_attn_implementation(attention)
        if isinstance(device_map, str) and device_map != "auto":
            model = model.to(device_map)
        return model.eval(), processor, family_of(model.config)
    config = _config(name, revision)
    try:
        family = family_of(config)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    _check_weights(name)
    try:
        processor = AutoProcessor.from_pretrained(name, revision=revision)
        if not hasattr(processor, "image_processor"):
            raise InputError(f"{name}: has a tokenizer but no image processor; expected preprocessor_config.json or processor_config.json "
                             "beside the weights; copy the whole model folder")
        model = getattr(transformers, family.model_class).from_pretrained(
            name, revision=revision, dtype=dtype, device_map=device_map, attn_implementation=attention, use_safetensors=True)
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(_why_not(name, error)) from None
    return model.eval(), processor, family


def choose_attention(wanted: str, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """The attention kernel that will run, and why."""
    have_flash = importlib.util.find_spec("flash_attn") is not None
    reasons = [why for why, holds in (("flash-attn is not installed", not have_flash), ("there is no CUDA device", device.type != "cuda"),
                                      (f"weights are {str(dtype).removeprefix('torch.')}, not half precision",
                                       dtype not in (torch.float16, torch.bfloat16))) if holds]
    if wanted == "flash_attention_2":
        if reasons:
            raise InputError(f"attention flash_attention_2: {'; '.join(reasons)}; install with pip install -e '.[flash]' on a CUDA machine and load "
                             "in bfloat16, or use attention=\"sdpa\"")
        return wanted, "asked for"
    if wanted == "sdpa":
        return wanted, "asked for"
    if wanted != "auto":
        raise InputError(f"attention {wanted!r}: not one that generation may run under; expected auto, sdpa or flash_attention_2 (eager builds every "
                         "T x T matrix and answers differently in half precision)")
    return ("sdpa", reasons[0]) if reasons else ("flash_attention_2", "flash-attn is installed")


def _config(name: str, revision: str | None):
    folder = Path(name)
    looks_local = folder.is_dir() or name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_local and not (folder / "config.json").is_file():
        raise InputError(f"{name}: no model folder (no config.json there); expected a folder with config.json and *.safetensors, a hub id such as "
                         "Qwen/Qwen3-VL-8B-Instruct, or tiny:qwen3_vl")
    try:
        found, _ = PreTrainedConfig.get_config_dict(name, revision=revision)
        if found.get("model_type") in UNSUPPORTED:
            family_of(SimpleNamespace(**found))
        return AutoConfig.from_pretrained(name, revision=revision)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (OSError, ValueError, KeyError) as error:
        raise InputError(_why_not(name, error)) from None


def _check_weights(name: str) -> None:
    """Of a folder: every weight file that the index names is there, and they are safetensors."""
    folder = Path(name)
    if not folder.is_dir():
        return
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        wanted = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    elif (folder / "model.safetensors").is_file():
        return
    else:
        others = sorted(path.name for path in folder.glob("*.bin")) + sorted(path.name for path in folder.glob("*.safetensors"))
        raise InputError(f"{name}: no model.safetensors and no index of one (found {', '.join(others) or 'no weights'}); expected safetensors; "
                         "download again, or convert with save_pretrained")
    missing = [file for file in wanted if not (folder / file).is_file()]
    if missing:
        raise InputError(f"{name}: {len(missing)} of {len(wanted)} weight files are missing ({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}); "
                         "download them again")


def _why_not(name: str, error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("0", "")
    if isinstance(error, OSError) and not Path(name).is_dir():
        state = "HF_HUB_OFFLINE is set" if offline else "the hub did not answer or has no such model"
        return (f"{name}: not in the local cache and {state}; expected a downloaded model: run  hf download {name}  where there is a network, or give a folder")
    if "trust_remote_code" in str(error) or "does not recognize this architecture" in str(error):
        return f"{name}: its code is not part of transformers {transformers.__version__}, and remote code is never run; use a model of docs/models.md"
    return f"{name}: cannot be loaded: {first}"
