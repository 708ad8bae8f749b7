"""The weights that diffusion editors can use, where they lie, and whether they fit; nothing is loaded or downloaded.

    base, net = locate("black-forest-labs/FLUX.1-dev"), locate("models/my-canny-net")
    check_pipeline(base.folder, ("transformer", "vae", "scheduler"))
    check_controlnet(base.folder, net.folder)

A model is named by a folder, by a hub id, or by "id@revision"; a hub id is looked up in the local cache only.  Of the
ids in WEIGHTS the revision is pinned, and what their license forbids is said before anybody downloads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rekey.errors import InputError
from rekey.weights import (
    DIFFUSERS,
    HUB_ID,
    MODEL_SUFFIXES,
    TRANSFORMERS,
    check_whole,
    files_hash,
    folder_hash,
    n_bytes,
    size_text,
    weight_files,
)

HUB = "https://huggingface.co"


@dataclass(frozen=True)
class License:
    """What a license comes to, in our words; what binds is its text at `url`."""

    name: str
    url: str
    allows: str
    forbids: str | None


@dataclass(frozen=True)
class Weights:
    """A repository of weights on the hub."""

    id: str
    revision: str | None
    """The commit that was current when this was written; None where we could not make sure which it is."""
    license: License
    n_bytes: int
    """Of the files that are used, about, in bfloat16."""
    gated: bool
    """Whether the hub gives it only to those who have accepted its license there."""
    note: str
    skip: str | None = None
    """Pattern of files beside the pipeline that are the same weights once more."""

    def download(self, revision: str | None = None) -> str:
        """The command that fetches it, where there is a network."""
        revision = revision or self.revision
        return (f"hf download {self.id}" + (f" --revision {revision}" if revision else "")
                + (f" --exclude '{self.skip}'" if self.skip else ""))


@dataclass(frozen=True)
class Located:
    """Weights on this machine.  revision: a commit of the hub, or of another folder a hash over its files."""

    folder: Path
    id: str
    revision: str | None


_FORBIDS = ("commercial or production use of the weights, surveillance, and pictures as training data for a competing "
            "model")
FLUX1_DEV_LICENSE = License(
    "FLUX.1 [dev] Non-Commercial", f"{HUB}/black-forest-labs/FLUX.1-dev/blob/main/LICENSE.md",
    "research, evaluation and private use; pictures may be used, also commercially, once filtered or reviewed for "
    "unlawful content", _FORBIDS)
FLUX_LICENSE = License(
    "FLUX Non-Commercial", f"{HUB}/black-forest-labs/FLUX.2-klein-9B/blob/main/LICENSE.md",
    "research, evaluation and private use; pictures may be used, also commercially, once filtered or reviewed for "
    "unlawful content, and marked as made by AI where the law asks for it", _FORBIDS)
APACHE = License("Apache-2.0", "https://www.apache.org/licenses/LICENSE-2.0",
                 "any use, also commercial, if copies carry the license and say what was changed", None)

_FLUX_FILES = "flux*.safetensors"
WEIGHTS = (
    Weights("black-forest-labs/FLUX.1-dev", "3de623fc3c33e44ffbe2bad470d0f45bccf2eb21", FLUX1_DEV_LICENSE,
            33_700_000_000, True, "the base of every Canny ControlNet here", _FLUX_FILES),
    Weights("black-forest-labs/FLUX.1-schnell", "741f7c3ce8b383c54771c7003378a50191e9efe9", APACHE,
            33_700_000_000, True, "4 steps; Canny ControlNets run on it but were made for FLUX.1-dev", _FLUX_FILES),
    Weights("Shakker-Labs/FLUX.1-dev-ControlNet-Union-Pro-2.0", "5d700aaad96c5ddcdf8a38ef9b22a82aac2c38e5",
            FLUX1_DEV_LICENSE, 4_280_000_000, False, "the default net; takes Canny edges without being told"),
    Weights("Shakker-Labs/FLUX.1-dev-ControlNet-Union-Pro", None,
            FLUX1_DEV_LICENSE, 6_600_000_000, False, "is told its mode (Canny: 0)"),
    Weights("InstantX/FLUX.1-dev-Controlnet-Canny", "e7cee4b2afa335bf8f913f2b044764b1a1b01881",
            FLUX1_DEV_LICENSE, 3_580_000_000, False, "Canny alone"),
    Weights("InstantX/FLUX.1-dev-Controlnet-Union", "4f32d6f2b220f8873d49bb8acc073e1df180c994",
            FLUX1_DEV_LICENSE, 6_600_000_000, False, "is told its mode (Canny: 0)"),
    Weights("XLabs-AI/flux-controlnet-canny-diffusers", None,
            FLUX1_DEV_LICENSE, 1_490_000_000, False, "the smallest; one for whole pictures"),
    Weights("black-forest-labs/FLUX.1-Canny-dev", None, FLUX1_DEV_LICENSE,
            33_700_000_000, True, "has the edges as input channels: no ControlNet", _FLUX_FILES),
    Weights("black-forest-labs/FLUX.1-Fill-dev", "358293da0354175698b67ec8299acf928313a78a", FLUX1_DEV_LICENSE,
            33_900_000_000, True, "has the hole as input channels: no ControlNet; for adding", _FLUX_FILES),
    Weights("black-forest-labs/FLUX.1-Kontext-dev", "24e9dedc4ef646698dc8eb4e18ae2cec3c9fea0d", FLUX1_DEV_LICENSE,
            33_700_000_000, True, "edits by instruction", _FLUX_FILES),
    Weights("black-forest-labs/FLUX.2-klein-4B", "e7b7dc27f91deacad38e78976d1f2b499d76a294", APACHE,
            16_000_000_000, False, "edits by instruction and reference, 4 steps", _FLUX_FILES),
    Weights("black-forest-labs/FLUX.2-klein-base-4B", "a3b4f4849157f664bdbc776fd7453c2783562f4d", APACHE,
            16_000_000_000, False, "the same before distillation: about 50 steps", _FLUX_FILES),
    Weights("black-forest-labs/FLUX.2-klein-9B", "92196c8e11f7b6cf2b7493e037d8c5345c559216", FLUX_LICENSE,
            34_700_000_000, True, "the larger one, 4 steps", _FLUX_FILES),
    Weights("Qwen/Qwen-Image-Edit", "ac7f9318f633fc4b5778c59367c8128225f1e3de", APACHE,
            57_700_000_000, False, "edits by instruction; inpainting was written for it, not for -2509 or -2511"),
)
CONTROLNETS = tuple(one.id for one in WEIGHTS if "controlnet" in one.id.lower())
"""For FLUX.1-dev; the first is the default."""


def known(name: str) -> Weights | None:
    """The entry of a hub id in WEIGHTS."""
    return next((one for one in WEIGHTS if one.id.casefold() == name.casefold()), None)


def license_of(name: str) -> str | None:
    """The name of the license of a hub id; None where we do not know it."""
    entry = known(name)
    return None if entry is None else entry.license.name


# ------------------------------------------------------------------------------------------------ where


def locate(name: str, revision: str | None = None) -> Located:
    """Where weights lie: a folder as it is, or a hub id in the local cache; InputError says how to get them.

    revision: a commit, branch or tag; None: the pinned one, else what the cache calls main.
    """
    if name and (folder := Path(name).expanduser()).is_dir():
        if revision is not None:
            raise InputError(f"{name}: a folder has no revisions, but {revision} is asked for; give one or the other")
        return _in_folder(folder)
    if Path(name).is_file():
        raise InputError(f"{name}: a file; expected a folder in the layout of diffusers; checkpoints in one file are "
                         "not read")
    name, _, named = name.partition("@")
    if not HUB_ID.fullmatch(name):
        raise InputError(f"{name or 'no name'}: no such folder; expected a folder in the layout of diffusers, or a hub "
                         f"id such as {WEIGHTS[0].id}")
    if revision and named and revision != named:
        raise InputError(f"{name}@{named}: revision {revision} is asked for too; give one of them")
    entry = known(name)
    wanted = revision or named or (entry.revision if entry else None)
    repository = _cache() / f"models--{name.replace('/', '--')}"
    commit = _commit(repository, wanted or "main")
    if commit is None:
        raise InputError(_not_here(name, entry, wanted, _cached(repository)))
    return Located(repository / "snapshots" / commit, name, commit)


def _in_folder(folder: Path) -> Located:
    """A folder, and what tells its state; a snapshot of the hub's cache keeps its id and commit."""
    folder = folder.absolute()
    cache = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cache.startswith("models--"):
        return Located(folder, cache.removeprefix("models--").replace("--", "/", 1), folder.name)
    if not (folder / "model_index.json").is_file():
        return Located(folder, folder.name, folder_hash(folder))
    # Files beside the components are copies in another layout, which may be there or not.
    used = [folder / "model_index.json", *(path for path in sorted(folder.glob("[!.]*/*"))
                                           if path.suffix in MODEL_SUFFIXES and path.is_file())]
    return Located(folder, folder.name, files_hash((path.relative_to(folder).as_posix(), path) for path in used))


def _cache() -> Path:
    """The hub client's cache, by its own rules (HF_HUB_CACHE, HF_HOME)."""
    from huggingface_hub import constants
    return Path(constants.HF_HUB_CACHE)


def _commit(repository: Path, revision: str) -> str | None:
    """The commit in the cache that a branch, tag or commit means."""
    reference = repository / "refs" / revision
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    return commit if (repository / "snapshots" / commit).is_dir() else None


def _cached(repository: Path) -> list[str]:
    """The commits of a repository in the cache, what it calls main first."""
    snapshots = sorted(path.name for path in (repository / "snapshots").glob("*") if path.is_dir())
    main = _commit(repository, "main")
    return sorted(snapshots, key=lambda commit: commit != main)


def _not_here(name: str, entry: Weights | None, wanted: str | None, others: Sequence[str]) -> str:
    """What is missing, what its license forbids, and how to get it, in one line."""
    if entry is None:
        what = name
        terms, download = f"its license is not known here, read {HUB}/{name}", f"hf download {name}"
        if wanted:
            download += f" --revision {wanted}"
    else:
        what = f"{entry.id} ({size_text(entry.n_bytes)}{', gated' if entry.gated else ''})"
        terms = f"its license, {entry.license.name}, " + (
            f"forbids {entry.license.forbids}" if entry.license.forbids else f"allows {entry.license.allows}")
        download = entry.download(wanted)
    if others:
        return (f"{what}: revision {wanted or 'main'} is not in the local cache, but {others[0]} is; use that one as "
                f"{name}@{others[0]} , or run  {download}  where there is a network; {terms}")
    first = ""
    if entry is not None and entry.gated:
        first = f"accept it at {HUB}/{name} , log in with  hf auth login , then "
    elif entry is not None and entry.license.forbids:
        first = f"read it at {entry.license.url} , then "
    where = "not in the local cache" if entry is not None else "no such folder, and not in the local cache"
    return f"{what}: {where}; {terms}; {first}run  {download}  where there is a network, or give a folder"


# ------------------------------------------------------------------------------------------- what is there


def check_pipeline(folder: Path, components: Sequence[str], made_for: Sequence[str] = ()) -> None:
    """The folder holds a pipeline with these components, all files of each; InputError has a line for each fault.

    made_for: pipeline classes that model_index.json may name; none given: any.
    """
    index = _index(folder)
    if made_for and index.get("_class_name") not in made_for:
        raise InputError(f"{folder}: weights for {index.get('_class_name')}; expected weights for "
                         f"{' or '.join(made_for)}")
    faults = [f"{folder}: {name}: {fault}" for name in components for fault in _faults(folder / name, index.get(name))]
    if faults:
        raise InputError(*faults)


def n_bytes_of(folder: Path, components: Iterable[str] = (".",)) -> int:
    """Bytes of the weights of some components; "." is the folder itself.  Tokenizers and the like have none."""
    return sum(n_bytes(weight_files(folder / name)) for name in components if _needed(name) is None)


_CONFIGURED_BY = {"scheduler": (("scheduler_config.json",),),
                  "processor": (("preprocessor_config.json",), ("processor_config.json",)),
                  "tokenizer": (("tokenizer_config.json", "tokenizer.json"), ("tokenizer_config.json", "*.model"),
                                ("tokenizer_config.json", "vocab.json", "merges.txt"))}
_CONFIGURED_BY["feature_extractor"] = _CONFIGURED_BY["processor"]


def _needed(component: str) -> tuple[tuple[str, ...], ...] | None:
    """Sets of files of which a component without weights needs one; None for those with weights."""
    return _CONFIGURED_BY.get(component.removesuffix("_2"))


def _faults(part: Path, entry: Any) -> list[str]:
    """What is wrong with a component's folder.  entry: its line in model_index.json, [library, class]."""
    if not isinstance(entry, list) or len(entry) != 2 or entry[0] is None:
        return ["model_index.json leaves it out: these weights are of another kind, or were saved without it"]
    if not part.is_dir():
        return ["its folder is missing; download it again"]
    if (needed := _needed(part.name)) is not None:
        if any(all(any(part.glob(name)) for name in names) for names in needed):
            return _unreadable(part)
        return [f"its files are missing; expected {' or '.join(' + '.join(names) for names in needed)}; download it "
                "again"]
    faults = _unreadable(part) if (part / "config.json").is_file() else ["no config.json; download it again"]
    stems = {"transformers": (TRANSFORMERS,), "diffusers": (DIFFUSERS,)}.get(entry[0], (TRANSFORMERS, DIFFUSERS))
    try:
        check_whole(weight_files(part, stems))
    except InputError as error:
        faults.extend(error.problems)
    return faults


def _unreadable(part: Path) -> list[str]:
    """The JSON files of a component that are none."""
    faults = []
    for path in sorted(part.glob("*.json")):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            faults.append(f"{path.name}: not JSON; download it again")
    return faults


def _index(folder: Path) -> dict[str, Any]:
    """model_index.json of a pipeline."""
    if (folder / "model_index.json").is_file():
        return _read(folder / "model_index.json")
    if (folder / "config.json").is_file():
        what = f"it holds one model, {_read(folder / 'config.json').get('_class_name', 'of another library')}"
    else:
        single = sorted(path.name for path in folder.glob("*.safetensors"))
        what = f"it holds {single[0]}, a checkpoint in one file" if single else "it holds no model"
    raise InputError(f"{folder}: no model_index.json: {what}; expected a pipeline in the layout of diffusers, with a "
                     "folder for each component")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path}: {'not a JSON object' if path.is_file() else 'not there'}; download it again")
    return found


# ---------------------------------------------------------------------------------------------- what fits

_DEFAULTS = {"in_channels": 64, "num_attention_heads": 24, "attention_head_dim": 128, "joint_attention_dim": 4096,
             "pooled_projection_dim": 768}
_OTHER_BASES = {128: "FLUX.1 Canny or Depth, which has the control picture as input channels and takes no ControlNet",
                384: "FLUX.1 Fill, which has the hole as input channels and takes no ControlNet",
                "Flux2Transformer2DModel": "FLUX.2, which the ControlNets of FLUX.1 do not fit",
                "SD3Transformer2DModel": "Stable Diffusion 3", "QwenImageTransformer2DModel": "Qwen-Image"}
_OTHER_NETS = {"ControlNetModel": "a ControlNet for Stable Diffusion 1, 2 or XL",
               "ControlNetUnionModel": "a ControlNet for Stable Diffusion XL",
               "SD3ControlNetModel": "a ControlNet for Stable Diffusion 3",
               "QwenImageControlNetModel": "a ControlNet for Qwen-Image",
               "FluxTransformer2DModel": "a whole transformer, not a ControlNet"}


def check_flux_base(folder: Path) -> dict[str, Any]:
    """The transformer's config of a FLUX.1 that takes a ControlNet; InputError says what it is instead."""
    index = _index(folder)
    expected = f"expected a FLUX.1 that paints from text, such as {WEIGHTS[0].id}"
    if "transformer" not in index or "Kontext" in index.get("_class_name", ""):
        raise InputError(f"{folder}: weights for {index.get('_class_name')}; {expected}")
    config = _read(folder / "transformer" / "config.json")
    kind, channels = config.get("_class_name"), config.get("in_channels", _DEFAULTS["in_channels"])
    if kind != "FluxTransformer2DModel":
        raise InputError(f"{folder}: its transformer is a {kind}: {_OTHER_BASES.get(kind, 'not FLUX.1')}; {expected}")
    if channels in _OTHER_BASES:
        raise InputError(f"{folder}: its transformer has {channels} input channels: it is {_OTHER_BASES[channels]}; "
                         f"{expected}")
    return config


def check_controlnet(base_folder: Path, controlnet_folder: Path) -> None:
    """The ControlNet is one for FLUX.1, is whole, and fits the base; InputError says which nets do."""
    base, net = check_flux_base(base_folder), controlnet_folder
    fitting = f"nets that fit FLUX.1-dev: {', '.join(CONTROLNETS)}"
    if not (net / "config.json").is_file():
        single = sorted(path.name for path in net.glob("*.safetensors"))
        what = (f"{single[0]} is a checkpoint in one file, as XLabs-AI/flux-controlnet-canny-v3, which diffusers does "
                "not read" if single else "it holds no ControlNet")
        raise InputError(f"{net}: no config.json: {what}; {fitting}")
    config = _read(net / "config.json")
    kind = config.get("_class_name")
    if kind != "FluxControlNetModel":
        raise InputError(f"{net}: {kind}: {_OTHER_NETS.get(kind, 'no ControlNet for FLUX.1')}; {fitting}")
    has, wants = _shape(config), _shape(base)
    differing = [f"{name} {has[name]} (the base has {wants[name]})" for name in has if has[name] != wants[name]]
    if differing:
        raise InputError(f"{net}: made for another base than {base_folder}: {', '.join(differing)}; {fitting}")
    try:
        check_whole(weight_files(net, (DIFFUSERS,)))
    except InputError as error:
        raise InputError(*(f"{net}: {problem}" for problem in error.problems)) from None


def _shape(config: dict[str, Any]) -> dict[str, int]:
    """What base and net must have in common."""
    of = _DEFAULTS | config
    return {name: of[name] for name in _DEFAULTS}


MEMORY_HINTS = ("use a GPU with more memory", f"use the editor flux2-klein ({size_text(16_000_000_000)})")


def check_memory(needed_bytes: int, free_bytes: int, total_bytes: int, what: str,
                 hints: Sequence[str] = MEMORY_HINTS) -> None:
    """The GPU has room; InputError has the figures and what to do."""
    if needed_bytes <= free_bytes:
        return
    needed, free, total = map(size_text, (needed_bytes, free_bytes, total_bytes))
    if needed_bytes > total_bytes:
        raise InputError(f"{what}: needs {needed} of GPU memory, and this GPU has {total} in all; "
                         f"{', or '.join(hints)}")
    raise InputError(f"{what}: needs {needed} of GPU memory, and {free} of {total} are free; end what holds the rest "
                     f"(nvidia-smi lists it), or {', or '.join(hints)}")
