"""V*Bench as its authors publish it: folders of images, each with a JSON file beside it.

    for row in read_vstar_folder(Path("vstar_bench")): ...         # Draft or Rejected
    write_vstar_folder(Path("renewed"), items, portable_image)

In `direct_attributes/sa_4690.json` the right option is always the first.  Asked in that order the
benchmark measures a preference for "A", so options are shuffled by a hash of item and text, the same
way on every machine.  Where the folder has the authors' later `test_questions.jsonl`, its order,
letters and question numbers are used, and items are named `vstar_0000` as in ReKey's annotations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from rekey.benchmark_rows import (
    Draft,
    FileNames,
    ImageSource,
    PortableImage,
    Rejected,
    RowError,
    Rows,
    file_stem,
    plain_lines,
    shortened,
    split_options,
)
from rekey.errors import InputError
from rekey.images import is_image_name
from rekey.prompts import DIRECT
from rekey.records import Item, option_index, option_letter
from rekey.store import dumps, read_jsonl, write_jsonl

QUESTIONS_FILE = "test_questions.jsonl"
SUFFIX = DIRECT


def vstar_id(question_id: object) -> str:
    """`vstar_0007` for question 7: the image id of ReKey's annotations."""
    return f"vstar_{int(str(question_id)):04d}"


def shuffled(options: tuple[str, ...], item_id: str) -> tuple[str, ...]:
    """Options in an order fixed by the item and their texts, whatever order they come in."""
    return tuple(sorted(options, key=lambda text: hashlib.sha256(f"{item_id}\n{text}".encode()).digest()))


def is_vstar_folder(folder: Path) -> bool:
    return any(_pairs(folder))


def read_vstar_folder(folder: Path) -> Rows:
    """Every JSON file below `folder`, by category and name.  Category: the name of its folder."""
    numbered = _numbered_questions(folder)
    for annotation in _pairs(folder):
        image_path = _image_beside(annotation)
        relative = annotation.relative_to(folder)
        category = annotation.parent.name
        try:
            if image_path is None:
                raise RowError(f"no image beside it; expected {annotation.stem}.jpg")
            data = _json_object(annotation)
            item_id = str(data.get("item_id") or f"{category}/{annotation.stem}")
            question, options, answer = _question(data, item_id)
            row = numbered.get(image_path.relative_to(folder).as_posix())
            if row is not None:
                question, options = split_options(plain_lines(str(row["text"])))
                answer = str(row["label"])
                if "item_id" not in data:
                    item_id = vstar_id(row["question_id"])
            # Named after the item, so that a `vstar_0000` is found by the annotations' image id.
            source = ImageSource(str(image_path), image_path.read_bytes, str(relative))
            yield Draft(where=str(relative), item_id=item_id, question=question, options=options,
                        answer=answer, image=source, category=category,
                        answer_text=(data.get("options") or [None])[0])
        except RowError as error:
            yield Rejected(str(relative), f"{category}/{annotation.stem}", str(error))


def write_vstar_folder(folder: Path, items: Iterable[Item], portable_image: PortableImage) -> list[Rejected]:
    """Write `<category>/<name>.<png or jpg>` and `.json` files, and return the items left out.

    Boxes are (x, y, width, height) of the edited regions where an item has a sampling record.
    """
    rejected, questions, names = [], [], FileNames()
    for item in items:
        image = portable_image(item)
        if image is None or not item.options:
            fault = "has no image" if image is None else "has no options; the layout is multiple choice"
            rejected.append(Rejected(item.item_id, item.item_id, fault))
            continue
        # Without dots: the authors' script cuts names at the first one.
        category = file_stem(item.category or "items", dots=False)
        name = names.free_name(item.item_id, Path(image[0]).suffix, category, dots=False)
        target = folder / category / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(image[1])
        right = option_index(item.answer)
        keys = item.record.keys if item.record else ()
        boxes = [key.slot.edit for key in keys]
        annotation = {
            "target_object": [key.object for key in keys],
            "bbox": [[box.left, box.top, box.width, box.height] for box in boxes],
            "question": item.question,
            "options": [item.options[right], *item.options[:right], *item.options[right + 1:]],
            "item_id": item.item_id,
        }
        target.with_suffix(".json").write_text(dumps(annotation) + "\n", encoding="utf-8")
        marked = " ".join(f"({option_letter(i)}) {text}" for i, text in enumerate(item.options))
        questions.append({"image": f"{category}/{target.name}", "text": f"{item.question} {marked} {SUFFIX}",
                          "category": category, "label": item.answer, "question_id": len(questions)})
    write_jsonl(folder / QUESTIONS_FILE, questions)
    return rejected


def _pairs(folder: Path) -> list[Path]:
    """Annotation files: JSON in `folder` or a folder in it, named as an image beside it or not."""
    found = [path for pattern in ("*.json", "*/*.json") for path in folder.glob(pattern)
             if not path.name.startswith(".")]
    return sorted(path for path in found if _image_beside(path) or _looks_like_annotation(path))


def _looks_like_annotation(path: Path) -> bool:
    try:
        return {"question", "options"} <= json.loads(path.read_bytes()).keys()
    except (ValueError, AttributeError, OSError):
        return False


def _image_beside(annotation: Path) -> Path | None:
    # Not with_suffix on the path's text, nor split("."): folders and names may hold dots.
    beside = sorted(path for path in annotation.parent.glob(_escaped(annotation.stem) + ".*")
                    if path.stem == annotation.stem and is_image_name(path.name))
    return beside[0] if beside else None


def _escaped(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


def _json_object(path: Path) -> dict:
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        raise RowError(f"not readable as JSON ({error})") from None
    if not isinstance(data, dict):
        raise RowError(f"a JSON {type(data).__name__}; expected an object with question and options")
    return data


def _question(data: dict, item_id: str) -> tuple[str, tuple[str, ...], str]:
    question, options = data.get("question"), data.get("options") or []
    if not isinstance(question, str) or not question.strip():
        raise RowError("no question")
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise RowError(f"options are {shortened(options)}; expected a list of texts, the right one first")
    if not options:
        if not isinstance(data.get("answer"), str):
            raise RowError("neither options nor an answer")
        return question, (), data["answer"]
    order = shuffled(tuple(options), item_id)
    return question, order, option_letter(order.index(options[0]))


def _numbered_questions(folder: Path) -> dict[str, dict]:
    """Rows of test_questions.jsonl by their image path."""
    path = folder / QUESTIONS_FILE
    if not path.is_file():
        return {}
    rows = {}
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            vstar_id(row["question_id"])
            rows[row["image"]] = {name: row[name] for name in ("text", "label", "question_id")}
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path} line {number}: expected image, text, label and a whole "
                             "question_id") from None
    return rows
