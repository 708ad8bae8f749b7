"""Files that survive: append-only JSON lines, atomic writes, run manifests, shards.

    with Journal(folder / "journal.jsonl") as journal:
        done = {line["image_id"] for line in journal.lines}
        journal.append({"image_id": "vstar_0001", ...})

One line is one fact.  A process killed in the middle of a write leaves at most a torn last line,
which the next `Journal` cuts off; everything before it is kept.  There is one writer per file, so no
lock is needed (file locks are unreliable on the shared file systems of clusters).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from rekey.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"


def dumps(record: Any) -> str:
    """One line of JSON: compact, UTF-8 as it is, key order as given.  NaN, which JSON has not, is refused."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a whole file or nothing: readers never see half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        os.replace(temporary, path)
    except OSError as error:                        # about the file that was asked for, not about ours
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """One JSON document, indented for people."""
    write_atomic(path, json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """One JSON document.  Raises InputError where it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a JSON file ({error})") from None


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    write_atomic(path, "".join(dumps(record) + "\n" for record in records))


def read_jsonl(path: Path) -> list[Any]:
    """All records of a file, plain or gzipped.  Raises InputError naming the first line that is not JSON."""
    return [record for _, record in iter_jsonl(path)]


def iter_jsonl(path: Path, torn_tail: bool = False,
               bad_line: Callable[[InputError], None] | None = None) -> Iterator[tuple[int, Any]]:
    """(line number, record) of a file, plain or gzipped, one at a time.

    torn_tail: leave out a last line without its end, as a run that was killed or is still writing leaves it.
    bad_line: called for each line that is not JSON, which is left out; without it, the first one raises InputError.
    """
    try:
        with path.open("rb") as file:
            zipped = file.peek(2)[:2] == GZIP_MAGIC
            yield from _parsed(path, gzip.open(file) if zipped else file, torn_tail, bad_line or _raise)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; expected a file of JSON lines") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: is damaged ({error}); expected JSON lines, plain or gzipped") from None


def _raise(error: InputError) -> None:
    raise error from None


def _parsed(path: Path, lines: Iterable[bytes], torn_tail: bool,
            bad_line: Callable[[InputError], None]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        if torn_tail and not line.endswith(b"\n"):
            return
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            if text.strip():
                yield number, json.loads(text)
        except UnicodeDecodeError as error:
            bad_line(InputError(f"{path} line {number}: not UTF-8 text (byte {error.start} of the line); expected JSON "
                                "lines"))
        except json.JSONDecodeError as error:
            bad_line(InputError(f"{path} line {number}: not JSON ({error.msg} at column {error.colno}); expected one "
                                "JSON object per line"))
        except (ValueError, RecursionError) as error:           # a number of thousands of digits, brackets without end
            bad_line(InputError(f"{path} line {number}: cannot be read as JSON ({error}); expected one JSON object per "
                                "line"))


def read_journal(path: Path) -> list[Any]:
    """Lines of a journal that another process may be writing: a last line without its end is left out."""
    return [record for _, record in iter_jsonl(path, torn_tail=True)] if path.exists() else []


class Journal:
    """An append-only file of JSON lines with one writer."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_tail(path)
        self.lines: list[Any] = read_jsonl(path) if path.exists() else []
        self._file = path.open("ab")

    def append(self, record: Any) -> None:
        self._file.write((dumps(record) + "\n").encode())
        self._file.flush()
        self.lines.append(record)

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Drop the lines that are not wanted, on disk too."""
        kept = [line for line in self.lines if wanted(line)]
        if len(kept) != len(self.lines):
            self._file.close()
            write_jsonl(self.path, kept)
            self._file = self.path.open("ab")
            self.lines = kept

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut_torn_tail(path: Path) -> None:
    """Drop what follows the last newline, and a last line that is not JSON."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data[:data.rfind(b"\n") + 1]
    if whole:
        last_start = whole.rfind(b"\n", 0, len(whole) - 1) + 1
        try:
            json.loads(whole[last_start:])
        except ValueError:
            whole = whole[:last_start]
    if len(whole) != len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))


# ------------------------------------------------------------------------------------ shards

def parse_shard(text: str) -> tuple[int, int]:
    """(i, n) of "i/n", counting from 1."""
    try:
        i, n = (int(part) for part in text.split("/"))
    except ValueError:
        i = n = 0
    if not 1 <= i <= n:
        raise InputError(f"--shard {text}: expected i/n with 1 <= i <= n, such as 2/8")
    return i, n


def shard_of(records: list, shard: tuple[int, int] | None) -> list:
    """Every n-th record from the i-th on, so that shards are alike in what they hold."""
    return records if shard is None else records[shard[0] - 1::shard[1]]


def shard_name(stem: str, shard: tuple[int, int] | None, suffix: str = ".jsonl") -> str:
    return stem + ("" if shard is None else f"-{shard[0]:04d}-of-{shard[1]:04d}") + suffix


# ---------------------------------------------------------------------------------- manifests

def sha256_json(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_manifest(settings: dict[str, Any], started: float) -> dict[str, Any]:
    """What `run.json` says of a run: command, commit, versions, machine, times, settings."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "settings": settings,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(started)),
        "elapsed_s": round(time.time() - started, 3),
        "code": _revision(),
        "versions": {"python": platform.python_version()} | _versions(
            ("rekey", "numpy", "pillow", "scipy", "scikit-image", "opencv-python-headless", "torch",
             "transformers", "diffusers")),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "slurm": {k: v for k, v in sorted(os.environ.items())
                  if k in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT")},
    }


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return found


def _revision() -> dict[str, Any] | None:
    """Commit and whether the tree differs from it; None where the code is not in a git checkout."""
    here = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True,
                              timeout=10, check=True).stdout.strip()
    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != here:
            return None                 # installed inside somebody else's repository
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None
