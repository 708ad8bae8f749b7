"""Load a local vision-language model, and say in one line why one cannot be loaded.

Only safetensors weights, only classes that transformers itself carries (no `trust_remote_code`), and no
network unless a hub id is named and the machine is online.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import accelerate
import torch
import transformers
from huggingface_hub import constants
from huggingface_hub.errors import StrictDataclassError
from packaging.version import Version
from safetensors import SafetensorError
from transformers import AutoConfig, AutoProcessor, PreTrainedConfig, PreTrainedModel, ProcessorMixin

from probes.controls.shelf import load_control
from probes.families import UNSUPPORTED, Family, family_of, supported
from probes.tiny import tiny_model
from rekey.errors import InputError

OLDEST_TRANSFORMERS = Version("5.24")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
TINY, CONTROL = "tiny:", "control:"


def load_parts(name: str, dtype: torch.dtype, device_map: str | dict, attention: str,
               revision: str | None) -> tuple[PreTrainedModel, ProcessorMixin, Family]:
    """Model, processor and family of `name`: a hub id, a folder, control:NAME (trained), or tiny:FAMILY (random)."""
    check_transformers()
    if name.startswith(TINY):
        model, processor = tiny_model(name.removeprefix(TINY), dtype=dtype, attn_implementation=attention)
        return _placed(model, device_map), processor, family_of(model.config)
    if name.startswith(CONTROL):
        model, processor = load_control(name.removeprefix(CONTROL), dtype, attention)
        return _placed(model, device_map), processor, family_of(model.config)
    try:
        family = family_of(_config(name, revision))
        _check_weights(Path(name))
        processor = AutoProcessor.from_pretrained(name, revision=revision)
        if not hasattr(processor, "image_processor") or not processor.tokenizer("a")["input_ids"]:
            raise InputError("its processor is not complete; expected tokenizer.json, and preprocessor_config.json or "
                             "processor_config.json, beside the weights; copy the whole model folder")
        model, report = getattr(transformers, family.model_class).from_pretrained(
            name, revision=revision, dtype=dtype, device_map=device_map, attn_implementation=attention,
            use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True)
        lost = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
        if lost:
            raise InputError(f"{len(lost)} weights are not in its files or have another shape ({', '.join(lost[:2])}"
                             f"{', ...' if len(lost) > 2 else ''}) and would be random; download it again")
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, SafetensorError,
            StrictDataclassError) as error:
        raise InputError(f"{name}: {_reason(name, error)}") from error
    return model.eval(), processor, family


def check_transformers() -> None:
    """Older versions name the cache argument otherwise and swallow ours without a word: the text is garbage."""
    if Version(transformers.__version__) < OLDEST_TRANSFORMERS:
        raise InputError(f"transformers {transformers.__version__}: too old; expected {OLDEST_TRANSFORMERS} or newer; "
                         "pip install -c constraints.txt -e '.[models]'")


def choose_attention(wanted: str, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """The attention kernel that will run, and why."""
    obstacles = [why for why, holds in (
        ("flash-attn is not installed", importlib.util.find_spec("flash_attn") is None),
        ("there is no CUDA device", device.type != "cuda"),
        (f"weights are {str(dtype).removeprefix('torch.')}, not half precision", dtype == torch.float32)) if holds]
    if wanted == "auto":
        return ("sdpa", "; ".join(obstacles)) if obstacles else ("flash_attention_2", "flash-attn is installed")
    if wanted == "flash_attention_2" and obstacles:
        raise InputError(f"attention flash_attention_2: {'; '.join(obstacles)}; install flash-attn on a CUDA machine "
                         "and load in bfloat16, or use sdpa")
    if wanted not in ("sdpa", "flash_attention_2"):
        raise InputError(f"attention {wanted!r}: expected auto, sdpa or flash_attention_2 (eager builds every T x T "
                         "matrix and answers differently in half precision)")
    return wanted, "asked for"


def _placed(model: PreTrainedModel, device_map: str | dict) -> PreTrainedModel:
    """A model that was built here, on its device or spread over several as from_pretrained would."""
    if isinstance(device_map, dict):
        return accelerate.dispatch_model(model, device_map).eval()
    return model.to("cuda" if device_map == "auto" else device_map).eval()


def _config(name: str, revision: str | None) -> PreTrainedConfig | SimpleNamespace:
    """The model's config, or only its type where transformers does not carry it."""
    folder = Path(name)
    if not (folder / "config.json").is_file() and (folder.is_dir() or not HUB_ID.fullmatch(name)):
        raise InputError("no such model (no config.json there); expected a folder with config.json and "
                         "*.safetensors, a hub id such as Qwen/Qwen3-VL-8B-Instruct, control:clean, or tiny:qwen3_vl")
    found, _ = PreTrainedConfig.get_config_dict(name, revision=revision)
    if found.get("model_type") in UNSUPPORTED:
        return SimpleNamespace(**found)
    return AutoConfig.from_pretrained(name, revision=revision)


def _check_weights(folder: Path) -> None:
    """Of a folder: every weight file that the index names is there, and they are safetensors."""
    if not folder.is_dir() or (folder / "model.safetensors").is_file():
        return
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        others = ", ".join(sorted(path.name for pattern in ("*.bin", "*.pt", "*.safetensors")
                                  for path in folder.glob(pattern)))
        raise InputError(f"no model.safetensors and no index of parts (found {others or 'no weights'}); expected "
                         "safetensors; download the model again, or convert it with save_pretrained")
    wanted = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    missing = [file for file in wanted if not (folder / file).is_file()]
    if missing:
        raise InputError(f"{len(missing)} of {len(wanted)} weight files are missing ({', '.join(missing[:3])}"
                         f"{', ...' if len(missing) > 3 else ''}); download them again")


def _reason(name: str, error: Exception) -> str:
    """One line for what transformers says in many."""
    text = str(error)
    if isinstance(error, OSError) and not Path(name).is_dir():
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub did not give it"
        return (f"not in the local cache, and {why}; run  hf download {name}  where there is a network, or give a "
                "folder")
    if "trust_remote_code" in text or "does not recognize this architecture" in text:
        return (f"its code is not part of transformers {transformers.__version__}, and code shipped with weights is "
                f"never run; supported: {supported()}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"cannot be loaded: {lines[0] if lines else type(error).__name__}"
