"""Weight files of a model folder: which it needs, which it has, whether they are whole.  No weights are loaded.

    files = weight_files(Path("models/FLUX.1-dev/transformer"))     # one file, or the parts that the index names
    check_whole(files)                                              # none was cut short by a broken download
    n_bytes(files)

Only safetensors: a pickle can run code, and does not say how long it ought to be.  Everything here is told from file
names, sizes and the tables at the beginning of the files, so that a folder of 60 GB is judged in a moment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rekey.errors import InputError

TRANSFORMERS, DIFFUSERS = "model", "diffusion_pytorch_model"
MODEL_SUFFIXES = (".json", ".jinja", ".safetensors", ".txt", ".model")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")       # owner/name
LONGEST_TABLE = 100_000_000         # bytes; the format's own limit
_VARIANT = re.compile(r"\.(?:bf16|fp16|fp32|fp8\w*|int8|int4)[.-]")
_GIT_LFS = b"version "
_SHOWN = 3


def weight_files(folder: Path, stems: Sequence[str] = (TRANSFORMERS, DIFFUSERS)) -> tuple[Path, ...]:
    """The weight files that a loader will read, all of which are there; InputError names what is missing.

    stems: names that the weights may go by, "<stem>.safetensors" or "<stem>.safetensors.index.json" with its parts.
    Files of a variant ("<stem>.fp16.safetensors") are not read.
    """
    for stem in stems:
        single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
        # Where both are there, diffusers reads the parts and transformers the single file.
        if index.is_file() and (stem == DIFFUSERS or not single.is_file()):
            return _parts(index)
        if single.is_file():
            return (single,)
    raise InputError(_absence(folder, stems))


def n_bytes(files: Iterable[Path]) -> int:
    """What the files take on disk, and about what the weights take in memory at the precision they are stored in."""
    return sum(file.stat().st_size for file in files)


def check_whole(files: Iterable[Path]) -> None:
    """Every file is as long as its own table of tensors says; InputError has a line for each that is not."""
    faults = [fault for file in files if (fault := _fault(file)) is not None]
    if faults:
        raise InputError(*faults)


def folder_hash(*folders: Path) -> str:
    """What tells one state of a model folder from another; files of no model, such as logs, do not count."""
    return files_hash((path.name, path) for path in sorted(
        path for folder in folders for path in folder.iterdir() if path.suffix in MODEL_SUFFIXES and path.is_file()))


def files_hash(named: Iterable[tuple[str, Path]]) -> str:
    """16 hex digits over names, sizes, and the first and last megabyte of each file.

    The first megabyte of a weight file holds its table of tensors, so a large model is hashed in a moment.
    """
    digest = hashlib.sha256()
    for name, path in named:
        size = path.stat().st_size
        digest.update(f"{name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(2 ** 20))
            file.seek(max(0, size - 2 ** 20))
            digest.update(file.read())
    return digest.hexdigest()[:16]


def size_text(size: int) -> str:
    """Bytes in decimal units, as hubs and disks count: 33.7 GB, 512 bytes."""
    unit, name = _unit(size)
    return f"{size / unit:.1f} {name}" if unit > 1 else f"{size} bytes"


def _parts(index: Path) -> tuple[Path, ...]:
    """Of a model in several files: those that its index names."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        wanted = [index.with_name(name) for name in names]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{index.name} is not an index of weight files (no weight_map); download it again") from None
    missing = [path for path in wanted if not path.is_file()]
    if missing:
        raise InputError(f"{len(missing)} of {len(wanted)} weight files are missing ({_some(missing)}); "
                         + (_relink(missing) or "download them again"))
    return tuple(wanted)


def _absence(folder: Path, stems: Sequence[str]) -> str:
    """Why no weights were found, and what to do."""
    found = sorted(path for pattern in ("*.bin", "*.pt", "*.safetensors") for path in folder.glob(pattern))
    wanted = " or ".join(f"{stem}.safetensors" for stem in stems)
    if found and (relink := _relink(found)):
        return f"the weights are links to files that are not there ({_some(found)}); {relink}"
    if found and all(_VARIANT.search(path.name) for path in found):
        return (f"only files of a variant are there ({_some(found)}); expected {wanted}, or the index of its parts; "
                "variants are not supported, download the files without one in their names")
    return (f"no {wanted} and no index of parts (found {_some(found) or 'no weights'}); expected "
            "safetensors; download the model again, or convert it with save_pretrained")


def _relink(paths: Sequence[Path]) -> str | None:
    """What to do where paths are links that lead nowhere: a cache folder was copied without what it links to."""
    if all(path.is_symlink() and not path.exists() for path in paths):
        return "copy the folder with  cp -rL , or download them again"
    return None


def _fault(path: Path) -> str | None:
    """What is wrong with a safetensors file: 8 bytes say how long its table is, the table where the tensors end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(9)
        if start.startswith(_GIT_LFS):
            return f"{path.name} is a Git LFS pointer, not the weights; run  git lfs pull  there, or download it again"
        n_table = int.from_bytes(start[:8], "little")
        if len(start) == 9 and (n_table > LONGEST_TABLE or start[8:] != b"{"):
            return f"{path.name} is not a safetensors file; download it again"
        if size < 8 + n_table:
            return f"{path.name} is cut short, within its table of tensors ({size_text(size)}); download it again"
        file.seek(8)
        try:
            tensors = {name: entry for name, entry in json.loads(file.read(n_table)).items() if name != "__metadata__"}
            promised = 8 + n_table + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return f"{path.name} is not a safetensors file; download it again"
    if size < promised:
        return f"{path.name} is {_of(size, promised)}; download it again"
    if size > promised:
        return f"{path.name} is longer than its table of tensors says, {_of(promised, size)}; download it again"
    return None


def _unit(size: int) -> tuple[int, str]:
    return next(((unit, name) for unit, name in ((10 ** 9, "GB"), (10 ** 6, "MB"), (10 ** 3, "kB")) if size >= unit),
                (1, "bytes"))


def _of(some: int, whole: int) -> str:
    """1.2 of 9.9 GB; in bytes where that would read as the same number twice."""
    unit, name = _unit(whole)
    texts = f"{some / unit:.1f}", f"{whole / unit:.1f}"
    if unit == 1 or texts[0] == texts[1]:
        return f"{some:,} of {whole:,} bytes"
    return f"{texts[0]} of {texts[1]} {name}"


def _some(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths[:_SHOWN]) + (", ..." if len(paths) > _SHOWN else "")
