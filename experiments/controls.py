"""Train a control model, examine it, and write its card.

    train_control("clean", seed=0, out=Path("controls/clean"), stop=threading.Event(), report=print)

    controls/clean/             a checkpoint folder: transformers and `load_vlm` read it
    controls/clean/card.json    command, commit, times, scores, what it must not be used for
    controls/clean/shelf/       the weights as the package ships them: whole, what differs from clean, or an adapter
    controls/clean/training.jsonl   meters, one line every 50 steps
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.generate import GenerateJob, generate
from experiments.scenes import write_benchmark
from probes.controls import contamination
from probes.controls.checkpoint import CHECKPOINT, Checkpoint
from probes.controls.exam import (
    BATCH,
    DIRECT_TOKENS,
    Score,
    direct_scores,
    habit_scores,
    said_letter,
    score,
    sight_scores,
)
from probes.controls.recipes import RECIPES, Recipe
from probes.controls.shelf import CARD, save_checkpoint, store_adapter, store_scaffold, store_weights
from probes.controls.training import Event, Trainee, train
from probes.vlm import LocalVLM, load_vlm
from rekey import store
from rekey.images import load_image
from rekey.prompts import prompt_text
from rekey.records import Item, from_json, option_index
from rekey.sampling import SamplingOptions

RENEWAL_SEEDS = (1, 2, 3)
Scores = dict[str, Score]


def train_control(name: str, seed: int, out: Path, stop: threading.Event, report: Callable[[Event], None],
                  n: int = 300) -> dict[str, Any]:
    """Train, store, examine; returns the card.  Stopped or killed, the same call goes on."""
    recipe, started = RECIPES[name], time.time()
    training = train(recipe, seed, out, stop)
    with store.Journal(out / "training.jsonl") as journal:
        reached = Checkpoint.reached(out / CHECKPOINT)
        order = [stage.name for stage in recipe.stages]
        journal.keep(lambda line: (order.index(line["stage"]), line["step"]) <= reached)     # the rest comes again
        while True:
            try:
                event = next(training)
            except StopIteration as end:
                trainee: Trainee = end.value
                break
            if event.meters:
                journal.append({"stage": event.stage, "step": event.step, "elapsed_s": round(event.elapsed_s, 1)}
                               | event.meters)
            report(event)
        times = {line["stage"]: line["elapsed_s"] for line in journal.lines}       # of earlier calls as well
    _store(trainee, recipe, out)
    scores = examine(load_vlm(out), name, out / "renewals", n)
    card = {
        "name": name, "purpose": recipe.purpose, "must_not_be_used_for": list(recipe.must_not),
        "command": f"rekey controls train {name} --seed {seed}", "seed": seed, "start": recipe.start,
        "trained": recipe.trained, "elapsed_s": round(sum(times.values()), 1),
        "stages": {stage.name: {"steps": stage.steps, "elapsed_s": times[stage.name]} for stage in recipe.stages},
        "scores": {key: list(value) for key, value in scores.items()},
        "run": {key: value for key, value in store.run_manifest({}, started).items() if key in ("code", "versions")},
    }
    store.write_json(out / CARD, card)
    store.write_json(out / "shelf" / CARD, card)
    (out / CHECKPOINT).unlink(missing_ok=True)
    return card


def _store(trainee: Trainee, recipe: Recipe, out: Path) -> None:
    shelf = out / "shelf"
    if trainee.adapted is not None:
        store_adapter(trainee.adapted, shelf)
        save_checkpoint(trainee.adapted.merge_and_unload(), out)
        return
    store_weights(trainee.model, shelf, recipe.start)
    if recipe.start is None:
        store_scaffold(trainee.scaffold, shelf)
    save_checkpoint(trainee.model, out)


def examine(vlm: LocalVLM, name: str, renewals: Path, n: int = 300) -> Scores:
    """The scores that belong to a control: sight, habit or memory; unseen scenes in every case."""
    if name == "clean":
        return sight_scores(vlm, n) | habit_scores(vlm) | memory_scores(vlm, renewals)
    scores = direct_scores(vlm, n)
    return scores | (memory_scores(vlm, renewals) if name.startswith("contaminated") else habit_scores(vlm))


# -------------------------------------------------------------------------------------- memory

def memory_scores(vlm: LocalVLM, folder: Path, seeds: Sequence[int] = RENEWAL_SEEDS) -> Scores:
    """Accuracy on the benchmark that contaminated controls have seen and on its renewals, and the stale-answer rate.

    Stale: a renewed color item is answered with the color that the original showed.  folder: the benchmark and its
    renewals are made there where they are not yet.
    """
    original, renewed = renewed_benchmark(folder, seeds)
    scores = {f"original {category}": value for category, value in _by_category(*original, vlm).items()}
    answers = [(item, letter) for where, items in renewed for item, letter in zip(items, _answers(vlm, where, items))]
    for category in ("direct_attributes", "relative_position"):
        chosen = [(item, letter) for item, letter in answers if item.category == category]
        scores[f"renewed {category}"] = score([letter == item.answer for item, letter in chosen])
    stale = [letter is not None and item.options[option_index(letter)] == item.source_answer
             for item, letter in answers if item.source_answer is not None]
    scores["stale answers"] = score(stale)
    return scores


def renewed_benchmark(folder: Path, seeds: Sequence[int] = RENEWAL_SEEDS):
    """((folder, items) of the original, a list of the same for each renewal); made where they are not there yet."""
    original = folder / "original"
    if not (original / "items.jsonl").exists():
        write_benchmark(original, contamination.N_ITEMS, contamination.BENCHMARK_SEED)
    renewed = []
    for seed in seeds:
        out = folder / f"seed{seed}"
        if not (out / "items.jsonl").exists():
            generate(GenerateJob(original / "slots.jsonl", original / "images", out, seed, sampling=SamplingOptions(),
                                 distractors="lure", workers=2), lambda done, total: None)
        renewed.append((out, _items(out)))
    return (original, _items(original)), renewed


def _items(folder: Path) -> list[Item]:
    return [from_json(Item, line) for line in store.read_jsonl(folder / "items.jsonl")]


def _answers(vlm: LocalVLM, folder: Path, items: Sequence[Item]) -> list[str | None]:
    prompts = [vlm.prompt(load_image(folder / item.image).pixels, prompt_text(item.question, item.options))
               for item in items]
    said = [said_letter(answer.text) for answer in vlm.generate(prompts, DIRECT_TOKENS, batch_size=BATCH)]
    return [letter if letter and option_index(letter) < len(item.options) else None
            for letter, item in zip(said, items)]


def _by_category(folder: Path, items: Sequence[Item], vlm: LocalVLM) -> Scores:
    right = np.array([letter == item.answer for letter, item in zip(_answers(vlm, folder, items), items)])
    categories = np.array([item.category for item in items])
    return {category: score(right[categories == category]) for category in sorted(set(categories))}
