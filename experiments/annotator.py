"""Is human annotation necessary?  Slots proposed by a model, scored against human ones (ReKey, RQ3; Table 3).

    python -m experiments.annotator --model NAME --slots slots.jsonl --images photos --out runs/annotator
    python -m experiments.annotator --out runs/annotator --slots slots.jsonl --show

The model gets each image, the original question where `--questions` gives the original benchmark, and the
instructions that human annotators follow.  OUT/proposed.jsonl holds what it marked, in the form of human annotations:
`rekey generate --slots OUT/proposed.jsonl` makes the benchmark of Fig. 4, which is evaluated like any other (python -m
experiments.renewal).  Published: 33.6 percent of the proposed replace slots usable, added ones 3.2 times as large as
human ones (GPT-5.5, inspected by eye; here by measure, see `rekey.localization`).
"""

from __future__ import annotations

import os
from pathlib import Path

import click
import numpy as np

from experiments.figures import bars
from experiments.study import Ask, Study, experiment
from experiments.tables import estimate, interval
from probes.annotator import MAX_NEW_TOKENS, as_image_slots, coordinates_of, instructions
from probes.proposals import CONVENTIONS, Proposals, read_proposals
from rekey import store
from rekey.errors import InputError
from rekey.evaluate import read_lines
from rekey.images import find_image, image_size, index_images, load_image
from rekey.localization import AnnotatorStudy, SizeComparison, annotator_study
from rekey.records import ImageSlots, Item, to_json
from rekey.slots import read_slots, write_slots
from rekey.stats import Estimate

TYPICAL_AREA_PX2 = 3535         # of all human slots (Table 3; docs/annotate.md tells human annotators the same)


@experiment("annotator", max_new_tokens=MAX_NEW_TOKENS)
@click.option("--slots", "slots_file", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="Human annotations.")
@click.option("--images", type=click.Path(path_type=Path), metavar="DIR", help="The images, by their image_id.")
@click.option("--questions", type=click.Path(path_type=Path), metavar="DIR", help="The original benchmark.")
@click.option("--coordinates", type=click.Choice(tuple(CONVENTIONS)), help="In which unit the model writes boxes.  "
              "[default: what is known of its family]")
@click.option("--tell-size/--no-tell-size", default=True, show_default=True,
              help="Tell the model how large a typical edit box is, as human annotators are told.")
def main(study: Study, slots_file: Path, images: Path | None, questions: Path | None, coordinates: str | None,
         tell_size: bool) -> None:
    if len(study.models) > 1:
        raise InputError("--model: one model at a time; found " + ", ".join(model.name for model in study.models))
    human = read_slots(slots_file)
    items = study.out / "questions"
    if not study.show:
        unit = coordinates or coordinates_of(study.models[0].family)
        write_questions(items, human, images, questions, unit, tell_size)
    answers = study.ask({"proposals": Ask(items)})["proposals"]
    unit = store.read_json(items / "run.json")["coordinates"]
    proposals = read_all(answers, human, unit)
    write_slots(study.out / "proposed.jsonl", [as_image_slots(one, human[name].category, human[name].question_id)
                                               for name, one in proposals.items() if one.slots])
    store.write_json(study.out / "problems.json", {name: list(one.problems) for name, one in proposals.items()})
    found = annotator_study(human, {name: as_image_slots(one) for name, one in proposals.items()},
                            np.random.default_rng(0))
    store.write_json(study.out / "study.json", to_json(found))
    study.write(csv_rows(found), text_rows(found), bars(_drawn(found), "median edit area, px²", 1.0),
                _notes(found, proposals, study.out))


def write_questions(out: Path, human: dict[str, ImageSlots], images: Path | None, questions: Path | None,
                    coordinates: str, tell_size: bool) -> None:
    """The instructions as a benchmark of free-form questions, so that they are asked like any other."""
    if images is None:
        raise InputError("--images: is needed to ask; or give --show to draw what is stored")
    asked = {}
    if questions is not None:
        from rekey.benchmarks import read_items
        asked = {item.item_id: item.question for item in read_items(questions)}
    index, items = index_images(images), []
    for image_id in human:
        path = find_image(images, image_id, index)
        text = instructions(image_size(path), coordinates, asked.get(image_id),
                            typical_area_px2=TYPICAL_AREA_PX2 if tell_size else None)
        items.append(Item(image_id, os.path.relpath(path, out), load_image(path).sha256, text, (), ""))
    store.write_jsonl(out / "items.jsonl", map(to_json, items))
    store.write_json(out / "run.json", {"coordinates": coordinates, "tell_size": tell_size})


def read_all(answers: Path, human: dict[str, ImageSlots], coordinates: str) -> dict[str, Proposals]:
    """What is proposed for each image, from the stored lines."""
    found = {}
    for line in read_lines(answers):
        name, said = line["item"]["item_id"], line.get("generation")
        if said is None or name not in human:
            continue
        height, width = line["image_size"]
        seen = said["image_sizes"][0][::-1] if said.get("image_sizes") else None
        found[name] = read_proposals(said["text"], name, (width, height), coordinates, seen)
    return {name: found[name] for name in human if name in found}


# ------------------------------------------------------------------------------------------- tables

def _sizes(study: AnnotatorStudy) -> dict[str, SizeComparison]:
    return {"replace": study.replace_size, "add": study.add_size}


def _shares(study: AnnotatorStudy) -> dict[str, tuple[Estimate | None, Estimate | None]]:
    """Rows of shares: of the replace slots, of the add slots."""
    return {"usable": (study.usable, study.add_usable), "human targets found": (study.found, None),
            "center in its target": (study.pointed, None), "words fit its target": (study.named, None),
            "touches a human target": (None, study.add.touching)}


def csv_rows(study: AnnotatorStudy) -> list[tuple]:
    rows: list[tuple] = [("quantity", "mode", "value", "low", "high", "n")]
    for mode, sizes in _sizes(study).items():
        rows += [("human_median_px2", mode, sizes.human_median_px2, None, None, sizes.n_human),
                 ("proposed_median_px2", mode, sizes.proposed_median_px2, None, None, sizes.n_proposed),
                 ("size_ratio", mode, *_parts(sizes.ratio))]
    for name, pair in _shares(study).items():
        rows += [(name.replace(" ", "_"), mode, *_parts(value)) for mode, value in zip(("replace", "add"), pair)
                 if value is not None]
    return [*rows, ("median_iou", "replace", study.median_iou, None, None, study.usable.n),
            ("median_coverage", "replace", study.median_coverage, None, None, study.usable.n)]


def _parts(value: Estimate) -> tuple[float | None, float | None, float | None, int]:
    return value.value, value.low, value.high, value.n


def text_rows(study: AnnotatorStudy) -> list[tuple[str, ...]]:
    """Table 3, and what else was measured."""
    sizes = _sizes(study).values()
    rows = [("", "replace", "add"),
            ("human size (px²)", *(_area(one.human_median_px2, one.n_human) for one in sizes)),
            ("model size (px²)", *(_area(one.proposed_median_px2, one.n_proposed) for one in sizes)),
            ("size ratio [95%]", *(_ratio(one.ratio) for one in sizes))]
    rows += [(f"{name}, % [95%]", *("-" if value is None else estimate(value) for value in pair))
             for name, pair in _shares(study).items()]
    return rows


def _area(area: float | None, n: int) -> str:
    return "n/a" if area is None else f"{area:,.0f} (n={n})"


def _ratio(ratio: Estimate) -> str:
    def times(value: float | None) -> str:
        return "n/a" if value is None else f"{value:.2f}"
    return times(ratio.value) + interval(ratio.low, ratio.high, times)


def _notes(study: AnnotatorStudy, proposals: dict[str, Proposals], out: Path) -> list[str]:
    n = {name: sum(getattr(one, name) for one in proposals.values())
         for name in ("n_proposed", "n_reversed", "n_clamped", "n_impossible")}
    notes = [f"{study.n_images} images, {study.n_empty} without a usable proposal; {n['n_proposed']} slots proposed, "
             f"{sum(len(one.problems) for one in proposals.values())} problems (OUT/problems.json), "
             f"{n['n_reversed']} boxes with exchanged corners, {n['n_clamped']} beyond the image"]
    if n["n_impossible"]:
        notes.append(f"warning: {n['n_impossible']} slots have numbers that the declared unit cannot give; if they are "
                     "many, the model writes boxes in another unit: see --coordinates")
    return [*notes, f"the benchmark of Fig. 4: rekey generate --slots {out / 'proposed.jsonl'} --images DIR --seed 1 "
            "--out DIR"]


def _drawn(study: AnnotatorStudy) -> dict[str, dict[str, Estimate]]:
    return {mode: {"human": Estimate(one.human_median_px2, None, None, one.n_human),
                   "model": Estimate(one.proposed_median_px2, None, None, one.n_proposed)}
            for mode, one in _sizes(study).items()}


if __name__ == "__main__":
    main()
