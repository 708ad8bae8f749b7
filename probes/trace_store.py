"""Attention traces of stored trials, one file each (VisualSwap, Sec. 5.3).

    path = write_trace(folder, trace)                    # folder/<key>.npz: arrays and a header, no pickle
    for trace in iter_traces(folder):
        trace.condition, trace.follows, trace.attention.percent(band=(0.5, 0.6)), trace.window("after", n=100)

A row of a trace belongs to the token that is *fed*; it chooses the token after it.  Tokens are counted from the start
of the sequence: `attention.query_index[r]` is the token that row r feeds, `texts[r]` its text.
"""

from __future__ import annotations

import json
import os
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probes.trace import ImageAttention
from rekey import store
from rekey.errors import InputError
from rekey.records import from_json, to_json
from rekey.trials import Cell, Follows

VERSION = 1
WINDOWS = ("before", "phrase", "after")
N_WINDOW = 100                   # tokens, Table 5
UNREADABLE = "\N{REPLACEMENT CHARACTER}"
MAX_PENDING = 4                  # a character is at most four bytes, so four tokens that end none never will

_PER_STEP = ("scores", "images", "region", "sink", "template", "question", "generated", "before_steering")


@dataclass(frozen=True)
class SeenImage:
    """The image that a trial sees in the end.

    path: relative to the folder of the pairs.  size, seen, filled: (height, width) as given, as the processor made it,
    and the part of that which shows the picture (`probes.layout.EncodedImage`).  token_grid: (rows, columns).
    region: indices of the tokens that the two images of the pair differ in, where the pair tells.
    """

    path: str
    sha256: str
    size: tuple[int, int]
    seen: tuple[int, int]
    filled: tuple[int, int]
    token_grid: tuple[int, int]
    region: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class TrialTrace:
    """The attention of one trial, from the last token of the question to the last but one that was said.

    key, model, pair_id, cell, seed: of the trial (`rekey.trials`).  follows: what its answer goes by, strictly graded.
    n_asked, t_phrase, t_after: index of the first token of the answer, the first that was put in, and the first that
    the model then said; all three are one in a base trial.  texts: (T,) text of the token that each row feeds: "" for
    one that ends no character, and the one that completes it has it whole.  windows: token index ranges.
    maps: by window, (L, rows, columns) mean weight on each image token, over heads and the window's rows; only of
    windows that hold a row.  image_before: the image under which the rows before the phrase were read: with "recompute"
    what was written about image a is read again under the other one, and only its base trial has it as generated.
    made_with: what the trace depends on besides the trial (layers, heads, window).
    """

    key: str
    model: str
    pair_id: str
    cell: Cell
    follows: Follows | None
    attention: ImageAttention
    n_asked: int
    t_phrase: int
    t_after: int
    texts: tuple[str, ...]
    windows: dict[str, tuple[int, int]]
    maps: dict[str, np.ndarray]
    image: SeenImage
    image_before: str
    seed: int = 0
    made_with: dict[str, Any] = field(default_factory=dict)

    @property
    def condition(self) -> str:
        return self.cell.condition

    @property
    def reread(self) -> bool:
        """Whether the rows before the phrase are of another reading than the one in which they were generated."""
        return self.cell.continues and self.cell.image == "b" and self.cell.regime == "recompute"

    def rows(self, window: tuple[int, int]) -> np.ndarray:
        """(T,) which rows feed a token of an index range."""
        return (self.attention.query_index >= window[0]) & (self.attention.query_index < window[1])

    def window(self, name: str, n: int = N_WINDOW) -> np.ndarray:
        """(T,) which rows are in a window, of at most n tokens on either side of what was put in."""
        return self.rows(windows_of(self.n_asked, self.t_phrase, self.t_after, self.n_tokens, n)[name])

    @property
    def n_tokens(self) -> int:
        """Tokens that were fed, the prompt's included."""
        return int(self.attention.query_index[-1]) + 1


def windows_of(n_asked: int, t_phrase: int, t_after: int, n_tokens: int,
               n: int = N_WINDOW) -> dict[str, tuple[int, int]]:
    """Token index ranges: up to n tokens of the answer before the phrase, the phrase, and up to n after it."""
    return {"before": (max(n_asked, t_phrase - n), t_phrase), "phrase": (t_phrase, t_after),
            "after": (t_after, max(t_after, min(t_after + n, n_tokens)))}


def token_texts(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> tuple[str, ...]:
    """The text that each token adds to a sequence: "" where a character is not complete, and then all of it.

    decode: ids -> text, special tokens kept.  Characters that are split over tokens (CJK, emoji) are never cut.
    """
    found: list[str] = []
    known = start = 0                    # ids[known:start] are the context, ids[start:] wait for their character
    n_shown = 0
    for stop in range(1, len(ids) + 1):
        before = decode(ids[known:start])
        text = decode(ids[known:stop])
        added = text[len(before):] if text.startswith(before) else decode(ids[start:stop])
        whole = added.rstrip(UNREADABLE)
        if len(whole) == len(added) or stop - start > MAX_PENDING:
            found.append(added[n_shown:])
            known, start, n_shown = start, stop, 0
        else:
            found.append(whole[n_shown:])
            n_shown = max(n_shown, len(whole))
    return tuple(found)


# ------------------------------------------------------------------------------------------ files

def trace_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.npz"


def write_trace(folder: Path, trace: TrialTrace) -> Path:
    """folder/<key>.npz, whole or not at all.  Equal traces make equal bytes."""
    attention = trace.attention
    header = {"version": VERSION, "key": trace.key, "model": trace.model, "pair_id": trace.pair_id,
              "cell": to_json(trace.cell), "condition": trace.condition, "follows": trace.follows, "seed": trace.seed,
              "n_asked": trace.n_asked, "t_phrase": trace.t_phrase, "t_after": trace.t_after,
              "windows": {name: list(window) for name, window in trace.windows.items()},
              "image": to_json(trace.image), "image_before": trace.image_before, "made_with": trace.made_with,
              "layers": list(attention.layers), "n_layers": attention.n_layers,
              "n_image_tokens": attention.n_image_tokens, "n_region_tokens": attention.n_region_tokens,
              "t_swap": attention.t_swap, "n_images": len(attention.images)}
    arrays = {name: np.asarray(getattr(attention, name), np.float32) for name in _PER_STEP
              if getattr(attention, name) is not None}
    if len(attention.images) == 1:       # it is `scores` once more, a seventh of the file
        del arrays["images"]
    if not attention.n_region_tokens:
        del arrays["region"]
    arrays |= {f"map_{name}": np.asarray(weights, np.float32) for name, weights in trace.maps.items()}
    arrays["query_index"] = np.asarray(attention.query_index, np.int64)
    texts = json.dumps(trace.texts, ensure_ascii=False)
    folder.mkdir(parents=True, exist_ok=True)
    path = trace_path(folder, trace.key)
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, header=_bytes_of(store.dumps(header)), texts=_bytes_of(texts), **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def read_header(path: Path) -> dict[str, Any]:
    """What a trace is of, without its arrays.  Raises InputError for a file that is no trace."""
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: is no attention trace ({error}); remove it and run `rekey attend` again") from None
    if header.get("version") != VERSION:
        raise InputError(f"{path}: is a trace of format {header.get('version')}, expected {VERSION}; remove it and run "
                         "`rekey attend` again")
    return header


def read_trace(path: Path) -> TrialTrace:
    header = read_header(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: is damaged ({error}); remove it and run `rekey attend` again") from None
    scores = arrays["scores"]
    arrays.setdefault("images", scores[None])
    arrays.setdefault("region", np.zeros_like(scores))
    attention = ImageAttention(
        **{name: arrays[name] for name in _PER_STEP if name in arrays}, layers=tuple(header["layers"]),
        query_index=arrays["query_index"], n_image_tokens=header["n_image_tokens"],
        n_region_tokens=header["n_region_tokens"], n_layers=header["n_layers"], t_swap=header["t_swap"])
    return TrialTrace(
        key=header["key"], model=header["model"], pair_id=header["pair_id"], cell=from_json(Cell, header["cell"]),
        follows=header["follows"], attention=attention, n_asked=header["n_asked"], t_phrase=header["t_phrase"],
        t_after=header["t_after"], texts=tuple(json.loads(arrays["texts"].tobytes())),
        windows={name: tuple(window) for name, window in header["windows"].items()},
        maps={name: arrays[f"map_{name}"] for name in WINDOWS if f"map_{name}" in arrays},
        image=from_json(SeenImage, header["image"]), image_before=header["image_before"], seed=header["seed"],
        made_with=header["made_with"])


def trace_files(folder: Path) -> list[Path]:
    """The traces of a folder.  Raises InputError where there are none."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise InputError(f"{folder}: holds no attention traces; make them with `rekey attend --out {folder}`")
    return files


def iter_traces(folder: Path) -> Iterator[TrialTrace]:
    """The traces of a folder, one in memory at a time, by key."""
    for path in trace_files(folder):
        yield read_trace(path)


def _bytes_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)
