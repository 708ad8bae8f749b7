"""Response lines as `rekey evaluate` writes them, made by hand.

    write(tmp_path / "original.jsonl", [answered("a", "B"), answered("b", None)])       # "B" is right by default
    write(tmp_path / "seed1.jsonl", [renewed("a", 1, "A"), renewed("b", 1, "B")])
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

OPTIONS = ("red", "blue", "white", "green")
SETTINGS = {"prompt": "direct", "max_new_tokens": 8192, "temperature": 0.0, "backend": "hf"}


def answered(item_id: str, text: str | None, answer: str = "B", options: Sequence[str] = OPTIONS,
             model: str = "m", finish: str = "stop", error: str | None = None, record: dict | None = None,
             category: str | None = "direct_attributes", source: str | None = None, version: str = "",
             **settings: Any) -> dict[str, Any]:
    """A line.  text: None where the request failed.  version: of the image.  settings: beside the usual ones."""
    item = {"item_id": item_id, "image": f"images/{item_id}.png", "image_sha256": version or "0" * 8,
            "question": "What color is the bag?", "options": list(options), "answer": answer}
    item |= {name: value for name, value in (("category", category), ("source_answer", source), ("record", record))
             if value is not None}
    settings = SETTINGS | settings
    key = hashlib.sha256(json.dumps([item, model, settings], sort_keys=True).encode()).hexdigest()[:32]
    line = {"key": key, "item": item, "model": model, "settings": settings, "asked": item["question"], "run": "r1"}
    if text is None:
        return line | {"error": error or "connection refused"}
    return line | {"generation": {"text": text, "token_ids": [1, 2], "n_prompt_tokens": 9, "n_image_tokens": 4,
                                  "image_sizes": [[64, 64]], "finish": finish, "elapsed_s": 0.1}}


def renewed(image_id: str, seed: int, text: str | None, question_type: str = "attribute",
            edits: Sequence[tuple[str, tuple[int, int, int, int]]] = (("replace", (0, 0, 30, 40)),),
            **others: Any) -> dict[str, Any]:
    """A line about a renewed item.  edits: (mode, box) of each slot."""
    keys = [{"slot": {"image_id": image_id, "slot_id": f"S{n}", "mode": mode, "context": [0, 0, 100, 100],
                      "edit": list(box)}, "mode": mode, "object": "bag", "color": "blue"}
            for n, (mode, box) in enumerate(edits)]
    record = {"image_id": image_id, "seed": seed, "question_type": question_type, "attribute": "color", "keys": keys}
    category = {"attribute": "direct_attributes", "position": "relative_position"}[question_type]
    return answered(f"{image_id}/seed{seed}", text, record=record, category=category, **others)


def write(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path
