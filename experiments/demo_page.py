"""One HTML file that shows what the demo made: each photograph, its slots, and three renewals."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from experiments.audit_text import main_table, sentences
from experiments.demo_scene import Told
from rekey.audit import Audit
from rekey.images import find_image, load_image
from rekey.preview import draw_outline
from rekey.qa import instruction
from rekey.records import ImageSlots, Item, from_json, option_letter
from rekey.store import read_jsonl

PHOTO_WIDTH_PX = 560


def write_demo_page(out: Path, slots: dict[str, ImageSlots], seeds: tuple[int, ...], told: Told | None = None,
                    swapped: Sequence[Sequence[str]] | None = None, report: Audit | None = None) -> Path:
    """Write `out/index.html`, with all pictures inside it, and return its path.

    told, swapped, report: what the control models said of a scene, the table of their swap experiments, and their
    audit; left out where there is no torch.
    """
    import jinja2
    by_seed = {seed: {item.image: item for item in
                      (from_json(Item, line) for line in read_jsonl(out / f"seed{seed}" / "items.jsonl"))}
               for seed in seeds}
    photos = []
    for image in slots.values():
        pixels = load_image(find_image(out / "photos", image.image_id)).pixels
        renewals = [_renewal(out / f"seed{seed}", seed, items[f"images/{image.image_id}.png"])
                    for seed, items in by_seed.items() if f"images/{image.image_id}.png" in items]
        photos.append({"image_id": image.image_id, "picture": _inline(_with_boxes(pixels, image)),
                       "size": f"{pixels.shape[1]} x {pixels.shape[0]}", "n_slots": len(image.slots),
                       "renewals": renewals})
    template = resources.files("experiments").joinpath("demo.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = out / "index.html"
    page.write_text(environment.from_string(template).render(
        photos=photos, seeds=seeds, n_items=sum(len(items) for items in by_seed.values()),
        told=told, pictures=_pictures(told), swapped=None if swapped is None else _swapped(out, swapped),
        audit=None if report is None else _audit(out, report)), encoding="utf-8")
    return page


def _swapped(out: Path, table: Sequence[Sequence[str]]) -> dict:
    """What the page shows of the swap experiments."""
    folder = out / "swap"
    return {"table": table, "n_pairs": len(read_jsonl(folder / "pairs" / "pairs.jsonl")),
            "figures": {name: _data_url(folder / name / "figure.png") for name in ("retention", "multiturn")}}


def _data_url(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _audit(out: Path, report: Audit) -> dict:
    """What the page shows of an audit."""
    return {"table": main_table(report), "figure": _data_url(out / "audit" / "report" / "audit.png"),
            "models": [(model.name, sentences(model)) for model in report.models]}


def _pictures(told: Told | None) -> dict[str, str]:
    if told is None:
        return {}
    return {name: _data_url(path)
            for name, path in (("a", told.image_a), ("b", told.image_b), ("attention", told.figure))}


def _renewal(folder: Path, seed: int, item: Item) -> dict:
    with Image.open(folder / "pairs" / Path(item.image).name) as pairs:
        picture = _inline(np.asarray(pairs.convert("RGB")))
    return {
        "seed": seed, "picture": picture, "question": item.question, "source": item.source_answer,
        "options": [{"letter": option_letter(n), "text": text, "right": option_letter(n) == item.answer,
                     "lure": text == item.source_answer} for n, text in enumerate(item.options)],
        "edits": [instruction(key) for key in item.record.keys],
        "certificates": item.certificate, "image": f"{folder.name}/{item.image}",
    }


def _with_boxes(pixels: np.ndarray, image: ImageSlots) -> np.ndarray:
    picture = Image.fromarray(pixels)
    scale = PHOTO_WIDTH_PX / picture.width
    picture = picture.resize((PHOTO_WIDTH_PX, round(picture.height * scale)), Image.LANCZOS)
    draw = ImageDraw.Draw(picture)
    for slot in image.slots:
        draw_outline(draw, slot.edit.scaled(scale), "#ff7a1a" if slot.mode == "replace" else "#3b9bff", 2)
    return np.asarray(picture)


def _inline(pixels: np.ndarray) -> str:
    """A data URL; JPEG without chroma subsampling, so that small colors stay what they are."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=92, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
