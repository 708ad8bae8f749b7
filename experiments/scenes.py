"""Write a benchmark of procedural scenes in the toolkit's own formats.

    items = write_benchmark(Path("scenes"), n=100, seed=1)

    scenes/images/*.png     the pictures
    scenes/items.jsonl      one question each: the original benchmark
    scenes/slots.jsonl      what the questions are about, for `rekey generate`
    scenes/run.json         command, seed, versions
"""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from rekey import store
from rekey.errors import InputError
from rekey.images import pixel_sha256
from rekey.records import Item, to_json
from rekey.scenes import EASY, SceneStyle, render_scene, scene_benchmark
from rekey.slots import write_slots


def write_benchmark(out: Path, n: int, seed: int, style: SceneStyle = EASY,
                    progress: Callable[[int, int], None] = lambda done, total: None,
                    relabel: bool = False) -> list[Item]:
    """Write the scenes of a seed; equal arguments give equal files.  relabel: with other questions.

    Raises InputError where the folder holds anything but the same benchmark.
    """
    started = time.time()
    settings = {"n": n, "seed": seed, "style": {name: list(span) for name, span in dataclasses.asdict(style).items()},
                **({"relabel": True} if relabel else {})}
    if out.exists() and any(out.iterdir()):
        found = store.read_json(out / "run.json").get("settings") if (out / "run.json").exists() else None
        if found != settings:
            raise InputError(f"{out}: holds {f'scenes of other settings ({found})' if found else 'other files'}; give "
                             "a new folder, or delete it")
    asked = scene_benchmark(n, seed, style, relabel)
    items = []
    for done, one in enumerate(asked, 1):
        pixels = render_scene(one.scene)
        image = f"images/{one.slots.image_id}.png"
        encoded = io.BytesIO()
        Image.fromarray(pixels).save(encoded, "PNG")
        store.write_atomic(out / image, encoded.getvalue())
        question = one.question
        items.append(Item(one.slots.image_id, image, pixel_sha256(pixels), question.text, question.options,
                          question.answer, question.category))
        progress(done, n)
    write_slots(out / "slots.jsonl", [one.slots for one in asked])
    store.write_jsonl(out / "items.jsonl", map(to_json, items))
    store.write_json(out / "run.json", store.run_manifest(settings, started))
    return items
