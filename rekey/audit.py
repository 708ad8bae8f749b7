"""Is a score memory or sight?  Original items against relabeled and renewed ones, with what the numbers can bear.

    report = audit([Path("original.jsonl")], [Path("seed1.jsonl"), Path("seed2.jsonl")])
    for model in report.models:
        model.drop.drop, model.drop.p, model.p_holm

Two things are estimated and never mixed: the drop on this benchmark, whose images are fixed (`ExchangeTest`, exact),
and the drop on images like these (bootstrap over images).  Answers that failed for technical reasons leave the
denominator; unread and cut-off ones stay in it as not correct; both are counted beside every number (ReKey, Sec. 4.2).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from rekey.answers import Parser
from rekey.grading import Graded
from rekey.planning import TARGET, Plan, plan
from rekey.sequential import Look, looks
from rekey.sheets import UNCERTAIN, Answers, Sheet, column, read_sheets
from rekey.stale import Pick, StaleTest, stale_test
from rekey.stats import (
    LEVEL,
    N_DRAWS,
    Estimate,
    ExchangeTest,
    binomial_sd,
    bootstrap_mean,
    drop_of_images,
    exchange_test,
    holm,
    mean_and_sd,
    proportion,
)

ALPHA = 1 - LEVEL
AREAS_PX2 = (1000, 2000, 4000, 8000)        # edges of the difficulty classes, in pixels of the original image
AREA_CLASSES = (f"below {AREAS_PX2[0]:,} px²", *(f"{low:,} to {high - 1:,} px²" for low, high in pairwise(AREAS_PX2)),
                f"from {AREAS_PX2[-1]:,} px²")


@dataclass(frozen=True)
class Score:
    """Accuracy on one set of items.  corrected: (accuracy - chance) / (1 - chance), of the items' own mean chance.

    n: answers that count.  unparsed and truncated are among them, as not correct; errors are not.
    """

    accuracy: Estimate
    chance: float | None
    corrected: Estimate
    n_right: int
    n_unparsed: int
    n_truncated: int
    n_errors: int

    @property
    def n(self) -> int:
        return self.accuracy.n


@dataclass(frozen=True)
class Instance:
    """One renewed benchmark."""

    name: str
    score: Score


@dataclass(frozen=True)
class Renewed:
    """All renewed instances: mean and sd (n - 1) of their accuracies; the sd that sampling alone gives one of them.

    images: the mean over images of their share of right answers, with its interval for images like these.
    """

    mean: float | None
    sd: float | None
    binomial_sd: float | None
    images: Estimate
    score: Score


@dataclass(frozen=True)
class Part:
    """A split of the renewed items, and the original items of the same images.  Intervals of a part are exploratory."""

    split: str
    name: str
    n_images: int
    original: Score
    renewed: Score
    drop: ExchangeTest


@dataclass(frozen=True)
class Sensitivity:
    """The test's p, had all unread, cut-off and failed answers been wrong, or right.

    worst, best: the largest and smallest p that any right and wrong ones among them could give.
    """

    n_uncertain: int
    all_wrong: float | None
    all_right: float | None
    worst: float | None
    best: float | None


@dataclass(frozen=True)
class Flip:
    """One image: what the original and each renewed item came to.  `said` are option texts."""

    image_id: str
    original: str
    said: str | None
    answer: str
    renewed: tuple[str, ...]
    n_renewed_right: int
    n_stale: int


@dataclass(frozen=True)
class ModelAudit:
    """Everything about one model under one way of asking."""

    name: str
    original: Score
    relabel: Score | None
    relabel_gap: ExchangeTest | None
    instances: tuple[Instance, ...]
    renewed: Renewed
    drop: ExchangeTest
    p_holm: float | None
    drop_images: Estimate
    sensitivity: Sensitivity
    parts: tuple[Part, ...]
    stale: StaleTest | None
    plan: Plan | None
    looks: tuple[Look, ...]
    flips: tuple[Flip, ...]


@dataclass(frozen=True)
class Audit:
    """An audit of one or several models."""

    parser: str
    models: tuple[ModelAudit, ...]
    notes: tuple[str, ...]


def audit(original: Sequence[Path], renewed: Sequence[Path], relabel: Sequence[Path] = (), parser: Parser = "strict",
          n_planned_looks: int | None = None, target_drop: float = TARGET, seed: int = 0,
          n_draws: int = N_DRAWS) -> Audit:
    """Audit every model that answered the original and at least one renewed benchmark.

    Paths are files of responses (see `rekey evaluate`), with their shards.  n_planned_looks: how many seeds there will
    ever be; None for a benchmark that is renewed without end.  target_drop: for which images and seeds are planned.
    seed: of the bootstrap and of the stale test's draws.
    """
    sheets, notes = read_sheets(original, renewed, relabel, parser)
    models = [_audit_one(name, sheet, np.random.default_rng(seed), n_planned_looks, target_drop, n_draws)
              for name, sheet in sheets.items()]                # each as if it were the only one
    adjusted = holm([model.drop.p for model in models])
    return Audit(parser, tuple(replace(model, p_holm=p) for model, p in zip(models, adjusted)), tuple(notes))


# ------------------------------------------------------------------------------------- one model

def _audit_one(name: str, sheet: Sheet, rng: np.random.Generator, n_planned_looks: int | None, target_drop: float,
               n_draws: int) -> ModelAudit:
    images = sheet.images
    original, renewed = column(sheet.original, images), sheet.matrix(images)
    everything = list(sheet.all_renewed())
    instances = tuple(Instance(seed, score(answers.values())) for seed, answers in sheet.renewed.items())
    mean, sd = mean_and_sd([instance.score.accuracy.value for instance in instances])
    typical_n = round(np.mean([instance.score.n for instance in instances]))
    shares = [np.nanmean(row) for row in renewed if not np.isnan(row).all()]
    whole = score(everything)
    drop = exchange_test(original, renewed)
    gap = None
    if sheet.relabel:
        gap = exchange_test(original, column(sheet.relabel, images)[:, None])
    return ModelAudit(
        name=name, original=score(sheet.original.values()),
        relabel=score(sheet.relabel.values()) if sheet.relabel else None, relabel_gap=gap, instances=instances,
        renewed=Renewed(mean, sd, binomial_sd(mean, typical_n), bootstrap_mean(np.array(shares), rng, n_draws=n_draws),
                        whole),
        drop=drop, p_holm=None, drop_images=drop_of_images(original, renewed, rng, n_draws=n_draws),
        sensitivity=_sensitivity(sheet, images), parts=_parts(sheet, images), stale=_stale(everything, rng),
        plan=plan(original, renewed, target_drop), looks=looks(original, renewed, n_planned_looks),
        flips=_flips(sheet, images))


def score(answers: Iterable[Graded]) -> Score:
    """Accuracy with its Wilson interval, raw and corrected for chance, and the counts that belong beside it."""
    answers = list(answers)
    counted = [graded for graded in answers if graded.outcome != "error"]
    n_right = sum(graded.outcome == "correct" for graded in counted)
    accuracy = proportion(n_right, len(counted))
    chance = float(np.mean([graded.chance for graded in counted])) if counted else None
    outcomes = [graded.outcome for graded in answers]
    return Score(accuracy, chance, corrected_for(accuracy, chance), n_right, outcomes.count("unparsed"),
                 outcomes.count("truncated"), outcomes.count("error"))


def corrected_for(accuracy: Estimate, chance: float | None) -> Estimate:
    """0 for a blind guesser, 1 for no mistake.  The chances are fixed, so the interval moves along."""
    if chance is None or chance >= 1 or accuracy.value is None:
        return Estimate(None, None, None, accuracy.n)
    return Estimate(*((value - chance) / (1 - chance) for value in (accuracy.value, accuracy.low, accuracy.high)),
                    accuracy.n)


def _sensitivity(sheet: Sheet, images: Sequence[str]) -> Sensitivity:
    def p(of_original: float, of_renewed: float) -> float | None:
        return exchange_test(column(sheet.original, images, of_original), sheet.matrix(images, of_renewed)).p

    n = sum(graded.outcome in UNCERTAIN for graded in (*sheet.original.values(), *sheet.all_renewed()))
    return Sensitivity(n, p(0, 0), p(1, 1), p(0, 1), p(1, 0))


# ----------------------------------------------------------------------------------------- parts

def area_class(area_px2: int) -> str:
    """Which class of edit areas, "2,000 to 3,999 px²", a slot belongs to."""
    return AREA_CLASSES[bisect.bisect_right(AREAS_PX2, area_px2)]


def _parts(sheet: Sheet, images: Sequence[str]) -> tuple[Part, ...]:
    """Kind of question, mode of the edit, area of the edit."""
    splits = {"question": lambda graded: graded.kind, "edit": lambda graded: graded.mode,
              "edit area": lambda graded: None if graded.area_px2 is None else area_class(graded.area_px2)}
    parts = []
    for split, name_of in splits.items():
        renewed: dict[str, dict[str, Answers]] = {}             # by name of the part, then by seed
        for seed, answers in sheet.renewed.items():
            for image, graded in answers.items():
                if (name := name_of(graded)) is not None:
                    renewed.setdefault(name, {}).setdefault(seed, {})[image] = graded
        others = set(renewed) if split == "question" else set()
        for name in sorted(renewed, key=lambda name: (name in AREA_CLASSES and AREA_CLASSES.index(name), name)):
            chosen = {image for answers in renewed[name].values() for image in answers}
            original = {image: graded for image, graded in sheet.original.items()
                        if image in chosen and graded.kind not in others - {name}}
            part = Sheet(original, {}, renewed[name])
            parts.append(Part(split, name, len(chosen), score(original.values()), score(part.all_renewed()),
                              exchange_test(column(original, images), part.matrix(images))))
    return tuple(parts)


# ------------------------------------------------------------------------- stale answers, item by item

def _stale(answers: Iterable[Graded], rng: np.random.Generator) -> StaleTest | None:
    """Over attribute items that offer the old color; None where there are none (no lures)."""
    lured = [graded for graded in answers if graded.source_answer in graded.options and graded.outcome != "error"
             and graded.options[_index(graded.answer)] != graded.source_answer]
    if not lured:
        return None
    picks = [Pick(tuple(option for option in graded.options if option != graded.options[_index(graded.answer)]),
                  graded.source_answer, graded.said_text) for graded in lured
             if graded.outcome == "wrong" and graded.said_text is not None]
    return stale_test(picks, len(lured), rng)


def _index(letter: str) -> int:
    return ord(letter) - ord("A")


def _flips(sheet: Sheet, images: Sequence[str]) -> tuple[Flip, ...]:
    """Images whose original and renewed items did not all come to the same, those that look most like memory first."""
    found = []
    for image in images:
        graded = sheet.original.get(image)
        again = [answers.get(image) for answers in sheet.renewed.values()]
        outcomes = {one.outcome == "correct" for one in (graded, *again) if one is not None and one.outcome != "error"}
        if graded is None or len(outcomes) < 2:
            continue
        stale = sum(one is not None and one.source_answer is not None and one.said_text == one.source_answer
                    for one in again)
        found.append(Flip(image, graded.outcome, graded.said_text,
                          graded.options[_index(graded.answer)] if graded.options else graded.answer,
                          tuple("-" if one is None else one.outcome for one in again),
                          sum(one is not None and one.outcome == "correct" for one in again), stale))
    return tuple(sorted(found, key=lambda flip: (flip.original != "correct", flip.n_renewed_right, flip.image_id)))
