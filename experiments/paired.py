"""Two ways of asking the same items, compared: a table and a figure for any such pair (ReKey, Tables 5 and 6).

    rows, text, drawn = compare(study, {"original": (direct, cot), "renewed": ...}, ("direct", "cot"))

Every item is asked both ways, so items are paired; all items of an image stay together.  Test: sign flips over images,
exact, two-sided (McNemar where there is one item an image); interval: bootstrap over images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.study import Study
from experiments.tables import counts, estimate, interval, p_text, percent, points
from rekey.audit import Score, score
from rekey.errors import InputError
from rekey.grading import Graded, grade
from rekey.stats import Estimate, bootstrap_mean, mean_and_sd, sign_flip_test

Files = Sequence[Path]                      # one per seed
Answers = dict[tuple[int, str], Graded]     # by number of the file, and image


def compare(study: Study, conditions: Mapping[str, tuple[Files, Files]],
            ways: tuple[str, str]) -> tuple[list[tuple], list[tuple[str, ...]], dict[str, dict[str, Estimate]]]:
    """Rows for table.csv, rows for people, and what `figures.bars` draws.  conditions: the files of either way."""
    rows: list[tuple[Any, ...]] = [("model", "condition", "n_items", ways[0], ways[1], "change", "low", "high", "p")]
    text: list[tuple[str, ...]] = [("model", "condition", "items", *ways, "change [95%]", "p",
                                    "unread / cut off / failed")]
    drawn: dict[str, dict[str, Estimate]] = {}
    rng = np.random.default_rng(0)
    for condition, (first, second) in conditions.items():
        before, after = read_answers(study, first), read_answers(study, second)
        for model in sorted(before.keys() & after.keys()):
            one = score(before[model].values()), score(after[model].values())
            by_image = _differences(before[model], after[model])
            sums = np.array([sum(values) for values in by_image.values()], float)
            change = bootstrap_mean(np.array([np.mean(values) for values in by_image.values()]), rng)
            p = sign_flip_test(sums) if len(sums) else None
            n_items = sum(map(len, by_image.values()))
            means = [seeds_mean(answers[model]) for answers in (before, after)]
            rows.append((model, condition, n_items, means[0][0], means[1][0], change.value, change.low, change.high, p))
            text.append((model, condition, str(n_items), *map(_shown, means, one),
                         points(change.value) + interval(change.low, change.high, points), p_text(p),
                         "; ".join(map(counts, one))))
            drawn[f"{model}, {condition}"] = {way: Estimate(mean[0], None, None, value.n)
                                              for way, mean, value in zip(ways, means, one)}
    return rows, text, drawn


def read_answers(study: Study, files: Files) -> dict[str, Answers]:
    """Answers of each model, by its name alone, since the two ways differ in their settings."""
    found: dict[str, Answers] = {}
    system: dict[str, str] = {}
    for number, path in enumerate(files):
        for graded in grade(path, study.parser):
            if system.setdefault(graded.model, graded.system) != graded.system:
                raise InputError(f"{path}: holds answers of {graded.model} under several settings, which must not be "
                                 "mixed; give another --out")
            found.setdefault(graded.model, {})[number, graded.image_id] = graded
    return found


def _differences(before: Answers, after: Answers) -> dict[str, list[int]]:
    """By image, second way minus first way, of every item that has an answer both ways."""
    found: dict[str, list[int]] = {}
    for key in sorted(before.keys() & after.keys()):
        if "error" not in (before[key].outcome, after[key].outcome):
            found.setdefault(key[1], []).append((after[key].outcome == "correct") - (before[key].outcome == "correct"))
    return found


def seeds_mean(answers: Answers) -> tuple[float | None, float | None]:
    """Mean and sd (n - 1) of the accuracies of the files."""
    by_file: dict[int, list[bool]] = {}
    for (number, _), graded in answers.items():
        if graded.outcome != "error":
            by_file.setdefault(number, []).append(graded.outcome == "correct")
    return mean_and_sd([sum(right) / len(right) for right in by_file.values()])


def _shown(mean: tuple[float | None, float | None], one: Score) -> str:
    """One benchmark with its interval, several with their sd."""
    return estimate(one.accuracy) if mean[1] is None else f"{percent(mean[0])} ± {percent(mean[1])}"
