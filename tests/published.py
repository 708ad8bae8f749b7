"""The published logs as files of responses in the form of `rekey evaluate`, for audits with published numbers.

    files = write_responses(data_pack, tmp_path)                    # all eight models
    audit([files["original"]], files["renewed"], [files["relabel"]], parser="paper")

Renewed items carry records with the slots they edited, from the annotations; the one item whose slots are not known
(seed 3, image 141) carries a record without any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rekey import store
from rekey.records import Generation, ImageSlots, Item, Response, SamplingRecord, VisualKey, to_json
from rekey.slots import read_slots

SEEDS = (1, 2, 3)
SETTINGS = {"prompt": "direct", "max_new_tokens": 8192, "temperature": 0.0, "backend": "openai"}


def rows(data_pack: Path, name: str) -> list[dict[str, Any]]:
    return store.read_jsonl(data_pack / "rekey" / "logs" / f"{name}.jsonl.gz")


def edited_slots(data_pack: Path) -> dict[tuple[int, int], list[tuple[str, tuple[int, int, int, int]]]]:
    """(seed, item) -> (operation, edit box) of each slot, read without our loader; nothing where it is not known."""
    images = store.read_jsonl(data_pack / "rekey" / "annotations" / "dynamic_vstar_slots_latest.jsonl")
    slots = {int(image["question_id"]): {slot["slot_id"]: slot for slot in image["slots"]} for image in images}
    return {(row["seed"], row["item"]): [(edit["operation"], tuple(slots[row["item"]][edit["slot_id"]]["edit_region"]
                                                                   ["xyxy"])) for edit in row["edits"]]
            for row in rows(data_pack, "bench_slots") if row["matches_published"]}


def responses(data_pack: Path) -> Iterator[tuple[str, int | None, Response]]:
    """Condition, seed, and line of every response of Table 1."""
    images = {int(image.question_id): image for image in read_slots(
        data_pack / "rekey" / "annotations" / "dynamic_vstar_slots_latest.jsonl").values()}
    edits = {(row["seed"], row["item"]): row["edits"] if row["matches_published"] else ()
             for row in rows(data_pack, "bench_slots")}
    items: dict[tuple, Item] = {}
    for row in rows(data_pack, "items"):
        at = row["condition"], row["seed"], row["item"]
        image_id = f"vstar_{row['item']:04d}"
        record = None
        if row["condition"] == "rekey":
            record = record_of(images[row["item"]], row["seed"], row["category"], edits[at[1:]])
        items[at] = Item(f"{image_id}/seed{row['seed']}" if record else image_id, f"images/{image_id}.png", "0" * 64,
                         row["question"], tuple(row["options"].values()), row["gold"], row["category"], record=record)
    for row in rows(data_pack, "table1_standard"):
        item = items[row["condition"], row["seed"], row["item"]]
        key = hashlib.sha256(f"{row['model']}/{row['condition']}/{item.item_id}".encode()).hexdigest()[:32]
        yield row["condition"], row["seed"], Response(
            key, item, row["model"], SETTINGS, item.question, "published",
            generation=Generation(row["response"], (), None, None, None, "stop", 0.0))


def record_of(image: ImageSlots, seed: int, category: str, edits: list[dict[str, Any]]) -> SamplingRecord:
    slots = {slot.slot_id: slot for slot in image.slots}
    keys = tuple(VisualKey(slots[edit["slot_id"]], edit["operation"], edit["object"] or edit["target_ref"],
                           edit["painted_color"]) for edit in edits)
    kind = "attribute" if category == "direct_attributes" else "position"
    return SamplingRecord(image.image_id, seed, kind, "color", keys)


def write_responses(data_pack: Path, folder: Path, models: tuple[str, ...] = (),
                    category: str | None = None) -> dict[str, Any]:
    """Files "original" and "relabel", and a list "renewed".  models, category (of renewed items): all by default."""
    lines: dict[str, list] = {}
    for condition, seed, response in responses(data_pack):
        if (not models or response.model in models) and (
                condition != "rekey" or category in (None, response.item.category)):
            lines.setdefault(condition if seed is None else f"seed{seed}", []).append(to_json(response))
    for name, some in lines.items():
        store.write_jsonl(folder / f"{name}.jsonl", some)
    return {"original": folder / "original.jsonl", "relabel": folder / "relabel.jsonl",
            "renewed": [folder / f"seed{seed}.jsonl" for seed in SEEDS]}
