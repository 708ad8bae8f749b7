"""Load a local vision-language model, and say in one line why one cannot be loaded.

Only safetensors weights, only classes that transformers itself carries (no `trust_remote_code`), and no
network unless a hub id is named and the machine is online.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import accelerate
import torch
import transformers
from huggingface_hub import constants
from huggingface_hub.errors import StrictDataclassError
from packaging.version import Version
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    ProcessorMixin,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.utils import CONFIG_NAME, cached_file, extract_commit_hash

from probes.controls.cards import BASE, SHELF, folder_of
from probes.controls.shelf import load_control
from probes.controls.text import control_processor
from probes.families import FAMILIES, UNSUPPORTED, Family, family_of, supported
from probes.tiny import tiny_model, tiny_processor
from rekey.errors import InputError
from rekey.weights import HUB_ID, TRANSFORMERS, folder_hash, weight_files

OLDEST_TRANSFORMERS = Version("5.24")
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
    with _one_line(name):
        family = family_of(_config(name, revision))
        model, processor = _from_files(name, getattr(transformers, family.model_class), dtype, device_map, attention,
                                       revision)
    return model, processor, family


def load_any(name: str, dtype: torch.dtype, device_map: str | dict, attention: str,
             revision: str | None) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Model and processor of any image-text-to-text model that transformers carries: to be asked, not probed."""
    check_transformers()
    with _one_line(name):
        model_type = _config(name, revision).model_type
        if model_type in UNSUPPORTED:
            raise InputError(f"model type {model_type}: not supported; {UNSUPPORTED[model_type]}")
        if model_type not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
            raise InputError(f"model type {model_type}: not among the image-text-to-text models of transformers "
                             f"{transformers.__version__}; expected one that answers in text about images")
        return _from_files(name, AutoModelForImageTextToText, dtype, device_map, attention, revision)


def load_processor(name: str, revision: str | None = None) -> tuple[ProcessorMixin, Family, int]:
    """Processor, family and image token id of a model of the probe engine; no weights."""
    check_transformers()
    if name.startswith((TINY, CONTROL)):
        family = model_type(name)
        processor = tiny_processor(family) if name.startswith(TINY) else control_processor()
        return processor, FAMILIES[family], processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    with _one_line(name):
        config = _config(name, revision)
        return _whole_processor(name, revision), family_of(config), config.image_token_id


def model_type(name: str, revision: str | None = None) -> str:
    """The family's name in transformers; no weights are read."""
    if name.startswith((TINY, CONTROL)):
        return name.removeprefix(TINY) if name.startswith(TINY) else "qwen3_vl"
    with _one_line(name):
        return _config(name, revision).model_type


def any_processor(name: str, revision: str | None = None) -> ProcessorMixin:
    """The processor of any model, of the probe engine or not; no weights."""
    if name.startswith((TINY, CONTROL)):
        return load_processor(name)[0]
    with _one_line(name):
        return _whole_processor(name, revision)


def in_probe_engine(name: str, revision: str | None = None) -> bool:
    """Whether a model belongs to a family that the probe engine runs itself."""
    if name.startswith((TINY, CONTROL)):
        return True
    with _one_line(name):
        return _config(name, revision).model_type in FAMILIES


def weights_revision(name: str, revision: str | None = None) -> str | None:
    """What tells one state of a model from another: a hub commit, or a hash over a folder's files.

    Of a weight file the hash takes its size and its first and last megabyte, which hold the table of tensors, so that a
    large model is hashed in a moment.
    """
    if name.startswith(TINY):
        return None
    with _one_line(name):
        if name.startswith(CONTROL):
            return folder_hash(SHELF / BASE, folder_of(name.removeprefix(CONTROL)))
        if Path(name).is_dir():
            return folder_hash(Path(name))
        return hub_commit(name, revision) or revision


def hub_commit(name: str, revision: str | None = None) -> str | None:
    """The commit of a hub model in the local cache, told by where its config lies; None for a folder."""
    if Path(name).is_dir():
        return None
    return extract_commit_hash(cached_file(name, CONFIG_NAME, revision=revision), None)


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """What goes wrong inside is one line that names the model."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, SafetensorError,
            StrictDataclassError) as error:
        raise InputError(f"{name}: {_reason(name, error)}") from error


def _from_files(name: str, model_class: type, dtype: torch.dtype, device_map: str | dict, attention: str,
                revision: str | None) -> tuple[PreTrainedModel, ProcessorMixin]:
    if Path(name).is_dir():
        weight_files(Path(name), (TRANSFORMERS,))
    processor = _whole_processor(name, revision)
    model, report = model_class.from_pretrained(
        name, revision=revision, dtype=dtype, device_map=device_map, attn_implementation=attention,
        use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True)
    lost = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lost:
        raise InputError(f"{len(lost)} weights are not in its files or have another shape ({', '.join(lost[:2])}"
                         f"{', ...' if len(lost) > 2 else ''}) and would be random; download it again")
    return model.eval(), processor


def choose_dtype(wanted: str, name: str, on_gpu: bool) -> torch.dtype:
    """The precision a model will run in: half on a GPU, but not of controls, whose letters change with rounding."""
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if wanted not in ("auto", *kinds):
        raise InputError(f"dtype {wanted!r}: expected auto, {', '.join(kinds)}")
    half = on_gpu and not name.startswith(CONTROL)
    return kinds[wanted] if wanted != "auto" else torch.bfloat16 if half else torch.float32


def check_transformers() -> None:
    """Older versions name the cache argument otherwise and swallow ours without a word: the text is garbage."""
    if Version(transformers.__version__) < OLDEST_TRANSFORMERS:
        raise InputError(f"transformers {transformers.__version__}: too old; expected {OLDEST_TRANSFORMERS} or newer; "
                         "pip install -c constraints.txt -e '.[models]'")


def _whole_processor(name: str, revision: str | None) -> ProcessorMixin:
    processor = AutoProcessor.from_pretrained(name, revision=revision)
    if not hasattr(processor, "image_processor") or not processor.tokenizer("a")["input_ids"]:
        raise InputError("its processor is not complete; expected tokenizer.json, and preprocessor_config.json or "
                         "processor_config.json, beside the weights; copy the whole model folder")
    return processor


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
