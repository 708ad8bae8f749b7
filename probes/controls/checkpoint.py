"""What a stopped training goes on from: one safetensors file, replaced in one step.

    Checkpoint.write(out / CHECKPOINT, course, number=1, step=400, elapsed_s=300.0)
    Checkpoint.read(out / CHECKPOINT, recipe, seed)          # None where there is none
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from probes.controls.recipes import Recipe
from rekey import store
from rekey.errors import InputError

if TYPE_CHECKING:
    from probes.controls.training import Course

CHECKPOINT = "checkpoint.safetensors"


def _about(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except SafetensorError as error:
        raise InputError(f"{path}: is damaged ({error}); expected a checkpoint of this command; delete it to begin "
                         "anew") from None


@dataclass
class Checkpoint:
    """Parameters and the optimizer's moments after `step` steps of stage number `stage`, `elapsed_s` into it."""

    stage: int
    step: int
    elapsed_s: float
    tensors: dict[str, torch.Tensor]

    @classmethod
    def read(cls, path: Path, recipe: Recipe, seed: int) -> Checkpoint | None:
        if not path.exists():
            return None
        about = _about(path)
        if (about.get("recipe"), about.get("seed")) != (recipe.name, str(seed)):
            raise InputError(f"{path}: is of {about.get('recipe')} with seed {about.get('seed')}, expected "
                             f"{recipe.name} with seed {seed}; give another folder, or delete the file")
        with safe_open(path, "pt") as file:
            return cls(int(about["stage"]), int(about["step"]), float(about["elapsed_s"]),
                       {name: file.get_tensor(name) for name in file.keys()})

    @staticmethod
    def reached(path: Path) -> tuple[int, int]:
        """(number of the stage, step) of a checkpoint; before everything where there is none."""
        if not path.exists():
            return -1, 0
        about = _about(path)
        return int(about.get("stage", -1)), int(about.get("step", 0))

    @staticmethod
    def write(path: Path, course: Course, number: int, step: int, elapsed_s: float) -> None:
        tensors = {name: p.detach().clone() for name, p in course.trainee.named().items()}
        for name, parameter in course.parameters.items():
            state = course.optimizer.state[parameter]
            tensors |= {f"{moment}:{name}": state[moment].detach().clone() for moment in ("exp_avg", "exp_avg_sq")}
        about = {"recipe": course.recipe.name, "seed": course.seed, "stage": number, "step": step,
                 "elapsed_s": elapsed_s}
        store.write_atomic(path, save(tensors, {key: str(value) for key, value in about.items()}))

    @torch.no_grad()
    def restore(self, course: Course) -> None:
        for name, parameter in course.trainee.named().items():
            parameter.copy_(self.tensors[name])
        for name, parameter in course.parameters.items():
            course.optimizer.state[parameter] = {
                "step": torch.tensor(float(self.step)),
                "exp_avg": self.tensors[f"exp_avg:{name}"].clone(),
                "exp_avg_sq": self.tensors[f"exp_avg_sq:{name}"].clone()}
