"""Where swap pairs come from: procedural figures, drawn scenes, regenerated items (VisualSwap, Sec. 3).

    source = SceneSource(n=100, seed=1)
    drawn  = source.drafts()[12].draw()                     # the pair, and the pixels of both images

A source says what its pairs depend on (`describe`), and gives a draft for each, which any process can draw.  Of figures
and scenes, a pair depends on the seed and its number alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from rekey import store
from rekey.benchmarks import ITEMS, read_items
from rekey.compositing import mask_margin_px
from rekey.errors import InputError
from rekey.images import find_image, index_images, load_image
from rekey.pair_items import Found, PairPlan, State, pairs_of_items
from rekey.pairs import changed_box
from rekey.records import Item, SwapPair, to_json


@dataclass(frozen=True)
class Drawn:
    """A pair and its images; `pair` does not tell yet where these lie and differ."""

    pair: SwapPair
    a: np.ndarray
    """uint8 (height, width, 3)."""
    b: np.ndarray


class Draft(Protocol):
    """A pair to be drawn, in any process."""

    @property
    def pair_id(self) -> str: ...

    def draw(self) -> Drawn:
        """Raises InputError where there is no such pair."""


class Source(Protocol):
    name: str

    def describe(self) -> dict[str, Any]:
        """All that its pairs depend on."""

    def drafts(self) -> Sequence[Draft]: ...

    def notes(self) -> Sequence[str]:
        """What it does not give, and why."""


# ------------------------------------------------------------------------------------- figures

@dataclass(frozen=True)
class FigureDraft:
    """drawn_as: the number under which `rekey.figure_pairs` draws it."""

    seed: int
    number: int
    drawn_as: int
    kind: str | None
    form: str | None

    @property
    def pair_id(self) -> str:
        return f"figures-{self.seed}-{self.number:06d}"

    def draw(self) -> Drawn:
        from rekey.figure_pairs import draw_pair, render
        drawn = draw_pair(self.seed, self.drawn_as, self.kind, self.form)
        source = {"from": "figures", "seed": self.seed, "number": self.drawn_as, "kind": drawn.kind, "form": drawn.form,
                  "a": to_json(drawn.a), "b": to_json(drawn.b)}
        pair = SwapPair(self.pair_id, "", "", drawn.question, tuple(drawn.options), drawn.answer_a, drawn.answer_b,
                        source, drawn.kind)
        return Drawn(pair, render(drawn.kind, drawn.a), render(drawn.kind, drawn.b))


@dataclass(frozen=True)
class FigureSource:
    """Procedural figures.  kinds: of `rekey.figure_pairs`, by turns; all where none is named.  form: of question.

    Raises InputError for a kind or form that there is not.
    """

    n: int
    seed: int
    kinds: tuple[str, ...] = ()
    form: str | None = None
    name: str = "figures"

    def __post_init__(self) -> None:
        from rekey.figure_pairs import draw_pair
        for kind in self.kinds or (None,):
            draw_pair(self.seed, 0, kind, self.form)

    def describe(self) -> dict[str, Any]:
        return {"from": self.name, "n": self.n, "seed": self.seed, "kinds": list(self.kinds), "form": self.form}

    def drafts(self) -> list[FigureDraft]:
        kinds = self.kinds or (None,)
        # A number of its own for each kind, which takes its forms by turns.
        return [FigureDraft(self.seed, k, k // len(kinds), kinds[k % len(kinds)], self.form) for k in range(self.n)]

    def notes(self) -> list[str]:
        return []


# -------------------------------------------------------------------------------------- scenes

@dataclass(frozen=True)
class SceneDraft:
    seed: int
    number: int
    ask: Literal["color", "position"] | None

    @property
    def pair_id(self) -> str:
        return f"scenes-{self.seed}-{self.number:06d}"

    def draw(self) -> Drawn:
        from probes.pair_scenes import draw_scene_pair
        from rekey.scenes import render_scene
        drawn = draw_scene_pair(self.seed, self.number, self.ask)
        source = {"from": "scenes", "seed": self.seed, "number": self.number, "ask": self.ask,
                  "kind": drawn.question.kind, "shapes": list(drawn.question.shapes),
                  "a": to_json(drawn.a.objects), "b": to_json(drawn.b.objects)}
        pair = SwapPair(self.pair_id, "", "", drawn.question.text, drawn.question.options, drawn.letter("a"),
                        drawn.letter("b"), source, drawn.kind)
        return Drawn(pair, render_scene(drawn.a), render_scene(drawn.b))


@dataclass(frozen=True)
class SceneSource:
    """Drawn scenes.  ask: what the questions are about; color and position by turns where that is left open."""

    n: int
    seed: int
    ask: Literal["color", "position"] | None = None
    name: str = "scenes"

    def describe(self) -> dict[str, Any]:
        return {"from": self.name, "n": self.n, "seed": self.seed, "ask": self.ask}

    def drafts(self) -> list[SceneDraft]:
        return [SceneDraft(self.seed, k, self.ask) for k in range(self.n)]

    def notes(self) -> list[str]:
        return []


# --------------------------------------------------------------------------------------- items

@dataclass(frozen=True)
class ItemDraft:
    """path_a, path_b: of the images; the edited ones carry the hash that they must have."""

    plan: PairPlan
    path_a: Path
    path_b: Path

    @property
    def pair_id(self) -> str:
        return self.plan.pair_id

    def draw(self) -> Drawn:
        plan = self.plan
        a, b = _pixels(self.path_a, plan.a.item), _pixels(self.path_b, plan.b.item)
        files = f"{self.path_a} and {self.path_b}"
        if a.shape != b.shape:
            sizes = " and ".join(f"{pixels.shape[1]}x{pixels.shape[0]}" for pixels in (a, b))
            raise InputError(f"{files}: {sizes} pixels; expected one size; give the folder of the images that the "
                             "items were made from as --images")
        edit, changed = plan.key.slot.edit, changed_box(a, b)
        if changed is None:
            raise InputError(f"{files}: show the same pixels; expected another look of {plan.key.object}")
        if not edit.grown(mask_margin_px(edit)).contains(changed):
            raise InputError(f"{files}: differ in {changed}, beyond their slot {edit}; expected the image that was "
                             "edited; give its folder as --images")
        pair = SwapPair(self.pair_id, "", "", plan.question, plan.options, plan.answer(plan.a), plan.answer(plan.b),
                        plan.source(), plan.attribute)
        return Drawn(pair, a, b)


def _pixels(path: Path, item: Item | None) -> np.ndarray:
    image = load_image(path)
    if item is not None and image.sha256 != item.image_sha256:
        raise InputError(f"{path}: is not the image that {item.item_id} was made with (its pixels have another hash); "
                         "restore it, or make the instance again")
    return image.pixels


@dataclass(frozen=True)
class ItemSource:
    """Instances of `rekey generate`, and the folder of the images that they were made from.

    images: None leaves out the pairs of an edited image and its source.  Raises InputError where a folder holds no
    items of one seed, two hold items of the same, or a source image is missing.
    """

    renewed: tuple[Path, ...]
    images: Path | None = None
    name: str = "items"
    found: Found = field(init=False)
    _folders: dict[str, Path] = field(init=False)
    _sources: dict[str, Path] = field(init=False)

    def __post_init__(self) -> None:
        instances = _by_seed(self.renewed)
        found = pairs_of_items({seed: items for seed, (_, items) in instances.items()})
        plans = found.plans
        skipped = dict(found.skipped)
        if self.images is None:
            plans = tuple(plan for plan in found.plans if plan.b.item is not None)
            if len(plans) < len(found.plans):
                skipped["pairs with the source, whose folder is not given (--images)"] = len(found.plans) - len(plans)
        object.__setattr__(self, "found", Found(plans, skipped))
        object.__setattr__(self, "_folders", {f"seed{seed}": folder for seed, (folder, _) in instances.items()})
        object.__setattr__(self, "_sources", _source_images(self.images, plans))

    def describe(self) -> dict[str, Any]:
        return {"from": self.name,
                "instances_sha256": {name: store.sha256_file(folder / ITEMS) for name, folder in self._folders.items()},
                "sources_sha256": {image_id: store.sha256_file(path) for image_id, path in self._sources.items()}}

    def drafts(self) -> list[ItemDraft]:
        return [ItemDraft(plan, self._path(plan, plan.a), self._path(plan, plan.b)) for plan in self.found.plans]

    def notes(self) -> list[str]:
        return [f"{count} left out: {reason}" for reason, count in self.found.skipped.items()]

    def _path(self, plan: PairPlan, state: State) -> Path:
        return self._sources[plan.image_id] if state.item is None else self._folders[state.name] / state.item.image


def _by_seed(folders: Sequence[Path]) -> dict[int, tuple[Path, list[Item]]]:
    """The folder and the items of every seed."""
    found: dict[int, tuple[Path, list[Item]]] = {}
    problems = []
    for folder in (path.parent if path.is_file() else path for path in folders):
        items = read_items(folder)
        seeds = {item.record.seed for item in items if item.record is not None}
        if len(seeds) != 1:
            problems.append(f"--renewed {folder}: its items are of {len(seeds)} seeds; expected those of one; give "
                            "folders of `rekey generate`")
            continue
        (seed,) = seeds
        if seed in found:
            problems.append(f"--renewed {folder}: is of seed {seed}, as is {found[seed][0]}; expected one instance of "
                            "each seed")
        found.setdefault(seed, (folder, items))
    if problems:
        raise InputError(*problems)
    return found


def _source_images(folder: Path | None, plans: Sequence[PairPlan]) -> dict[str, Path]:
    """The file of every image that some pair needs unedited."""
    wanted = sorted({plan.image_id for plan in plans if plan.b.item is None})
    if folder is None or not wanted:
        return {}
    index = index_images(folder)
    paths, problems = {}, []
    for image_id in wanted:
        try:
            paths[image_id] = find_image(folder, image_id, index)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return paths
