"""Train a control model on two CPU cores: two processes of one thread each, resumable, the same every time.

    for event in train(RECIPES["clean"], seed=0, out=Path("controls/clean"), stop=threading.Event()):
        print(event.stage, event.step, event.meters)
    # then out/ holds the trained weights (see probes.controls.shelf)

A checkpoint is written every `CHECKPOINT_EVERY` steps; the same call goes on from it and ends in the same weights.
"""

from __future__ import annotations

import math
import multiprocessing
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed
from torch import nn
from transformers import Qwen3VLForConditionalGeneration

from probes.controls.aids import Meters, Scaffold, Watch
from probes.controls.batches import Batch, pixel_values, vocabulary
from probes.controls.checkpoint import CHECKPOINT, Checkpoint
from probes.controls.model import fast_training, forward, new_control, see
from probes.controls.recipes import N_WORKERS, Recipe, Stage
from probes.controls.shelf import load_weights, scaffold_state
from rekey.errors import InputError, Interrupted, WorkerLost

WARM_UP_STEPS, FINAL_RATE = 100, 0.05
REPORT_EVERY, CHECKPOINT_EVERY, ASK_EVERY = 50, 200, 10
LORA_TARGETS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


@dataclass(frozen=True)
class Event:
    """Where training is: after `step` of a stage's `steps`, with means since the last report."""

    stage: str
    step: int
    steps: int
    elapsed_s: float
    meters: Meters = field(default_factory=dict)


@dataclass
class Trainee:
    """A model in training, with its scaffold; `adapted` is PEFT's view of it where adapters are trained."""

    model: Qwen3VLForConditionalGeneration
    scaffold: Scaffold
    adapted: nn.Module | None = None

    def named(self) -> dict[str, nn.Parameter]:
        return {f"{part}.{name}": parameter for part, module in (("model", self.model), ("scaffold", self.scaffold))
                for name, parameter in module.named_parameters()}


def new_trainee(recipe: Recipe, seed: int) -> Trainee:
    """The model before its first step: drawn anew, or the shipped weights it starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if recipe.start is None:
            return Trainee(new_control(), Scaffold())
        scaffold, model = Scaffold(), load_weights(recipe.start)
        scaffold.load_state_dict(scaffold_state())
        if recipe.trained != "lora":
            return Trainee(model, scaffold)
        from peft import LoraConfig, get_peft_model
        config = LoraConfig(r=recipe.lora_rank, lora_alpha=2 * recipe.lora_rank, lora_dropout=0.0,
                            target_modules=LORA_TARGETS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)      # PEFT calls transformers by names of old
            adapted = get_peft_model(model, config)
        return Trainee(adapted.get_base_model(), scaffold, adapted)


def train(recipe: Recipe, seed: int, out: Path, stop: threading.Event,
          n_workers: int = N_WORKERS) -> Iterator[Event]:
    """Train in this process and `n_workers` - 1 others; the trained Trainee is the generator's return value.

    Raises Interrupted once `stop` is set, after writing a checkpoint, and WorkerLost where a process dies.
    """
    out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as meeting_place:
        meeting = str(Path(meeting_place) / "workers")
        others = [context.Process(target=_work_along, args=(recipe.name, seed, out, worker, n_workers, meeting),
                                  daemon=True) for worker in range(1, n_workers)]
        for process in others:
            process.start()
        try:
            torch.set_num_threads(1)
            _join(meeting, 0, n_workers)
            trainee = yield from _train(recipe, seed, out, 0, n_workers, stop)
            for process in others:
                process.join()
            return trainee
        except RuntimeError as error:
            if all(process.is_alive() for process in others):
                raise
            raise WorkerLost(f"a training process died ({error}); the last checkpoint is kept: run the same line "
                             "again") from error
        finally:
            torch.set_num_threads(threads)
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            for process in others:
                process.terminate()


def _join(meeting: str, worker: int, n_workers: int) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=worker, world_size=n_workers)


def _work_along(recipe_name: str, seed: int, out: Path, worker: int, n_workers: int, meeting: str) -> None:
    import signal

    from probes.controls.recipes import RECIPES
    for signum in (signal.SIGTERM, signal.SIGINT):          # the first process decides when to stop
        signal.signal(signum, signal.SIG_IGN)
    torch.set_num_threads(1)
    _join(meeting, worker, n_workers)
    try:
        for _ in _train(RECIPES[recipe_name], seed, out, worker, n_workers, threading.Event()):
            pass
    except (Interrupted, InputError):           # which the first process meets, too, and tells
        pass


def _train(recipe: Recipe, seed: int, out: Path, worker: int, n_workers: int,
           stop: threading.Event) -> Iterator[Event]:
    trainee = new_trainee(recipe, seed)
    checkpoint = Checkpoint.read(out / CHECKPOINT, recipe, seed)
    for number, stage in enumerate(recipe.stages):
        if checkpoint is not None and checkpoint.stage > number:
            continue
        course = Course(recipe, stage, trainee, seed, worker, n_workers)
        first, elapsed_s = 0, 0.0
        if checkpoint is not None:
            first, elapsed_s = checkpoint.step, checkpoint.elapsed_s
            checkpoint.restore(course)
            checkpoint = None
        yield from course.run(first, elapsed_s, number, out / CHECKPOINT, stop)
    return trainee


class Course:
    """One stage of one worker."""

    def __init__(self, recipe: Recipe, stage: Stage, trainee: Trainee, seed: int, worker: int, n_workers: int):
        self.recipe, self.stage, self.trainee, self.seed = recipe, stage, trainee, seed
        self.worker, self.n_workers = worker, n_workers
        self.parameters = _trained(recipe, stage, trainee)
        self.optimizer = torch.optim.AdamW(_groups(stage, self.parameters), lr=stage.learning_rate,
                                           betas=(0.9, 0.98), eps=1e-8)

    def run(self, first: int, elapsed_s: float, number: int, checkpoint: Path,
            stop: threading.Event) -> Iterator[Event]:
        """Steps from `first` on, `elapsed_s` after the stage began."""
        stage, meters, began = self.stage, _Means(), time.perf_counter() - elapsed_s
        self.trainee.model.train()
        with fast_training():
            for step in range(first, stage.steps):
                meters.add(self.step(step))
                done = step + 1
                stopping = self._agree(stop.is_set()) if done % ASK_EVERY == 0 else False
                if self.worker == 0 and (stopping or done % CHECKPOINT_EVERY == 0 or done == stage.steps):
                    Checkpoint.write(checkpoint, self, number, done, time.perf_counter() - began)
                if stopping:
                    raise Interrupted(f"stage {stage.name}, {done} of {stage.steps} steps done")
                if done % REPORT_EVERY == 0 or done == stage.steps:
                    yield Event(stage.name, done, stage.steps, time.perf_counter() - began, meters.take())
                elif done % ASK_EVERY == 0:
                    yield Event(stage.name, done, stage.steps, time.perf_counter() - began)

    def _agree(self, wish: bool) -> bool:
        """Whether the first process wishes it."""
        flag = torch.tensor([float(wish)])
        if self.n_workers > 1:
            torch.distributed.broadcast(flag, 0)
        return bool(flag)

    def step(self, step: int) -> Meters:
        share = step / self.stage.steps
        warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
        rate = warm_up * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * share)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.stage.learning_rate * rate
        lessons = self.stage.lessons(self.seed, step, self.worker)
        loss, meters = (self._see(lessons) if self.stage.vision_only else self._talk(lessons, share))
        self.optimizer.zero_grad()
        loss.backward()
        self._average_gradients()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), 1.0)
        self.optimizer.step()
        return meters

    def _see(self, scenes) -> tuple[torch.Tensor, Meters]:
        tokens = see(self.trainee.model, pixel_values(scenes), len(scenes))
        return self.trainee.scaffold.vision_loss(self.trainee.model, tokens, tuple(scenes))

    def _talk(self, lessons, share: float) -> tuple[torch.Tensor, Meters]:
        model, scaffold, stage = self.trainee.model, self.trainee.scaffold, self.stage
        batch = Batch.of(lessons)
        fading, ended = stage.aids_end
        aided = 1.0 if share < fading else max(0.0, (ended - share) / max(ended - fading, 1e-9))
        if aided == 0 or stage.aids == 0:
            loss, logits, targets, _ = forward(model, batch)
            return loss, {"loss": float(loss.detach())} | _read(logits, targets)
        with Watch(model) as watch:
            loss, logits, targets, vision = forward(model, batch)
            aids, meters = scaffold.text_loss(model, watch, batch, stage.aids_on_path)
        meters |= {"loss": float(loss.detach())} | _read(logits, targets)
        loss = loss + aided * stage.aids * aids
        if stage.vision_aids:
            seen, more = scaffold.vision_loss(model, torch.cat(list(vision.pooler_output)), batch.scenes)
            loss, meters = loss + aided * stage.vision_aids * seen, meters | more
        return loss, meters

    def _average_gradients(self) -> None:
        parameters = list(self.parameters.values())
        for parameter in parameters:            # what this batch did not touch, another worker's may have
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.n_workers == 1:
            return
        flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
        torch.distributed.all_reduce(flat)
        flat /= self.n_workers
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters])):
            parameter.grad = part.view_as(parameter).clone()


def _trained(recipe: Recipe, stage: Stage, trainee: Trainee) -> dict[str, nn.Parameter]:
    """The parameters that a stage trains, by name."""
    def wanted(name: str) -> bool:
        if name.startswith("scaffold."):
            return True
        if stage.vision_only:
            return name.startswith("model.model.visual.") or ".embed_tokens." in name
        if recipe.trained == "lora":
            return ".lora_" in name
        return recipe.trained == "all" or ".language_model." in name and ".embed_tokens." not in name

    chosen = {}
    for name, parameter in trainee.named().items():
        parameter.requires_grad_(wanted(name))
        if wanted(name):
            chosen[name] = parameter
    return chosen


def _groups(stage: Stage, parameters: dict[str, nn.Parameter]) -> list[dict]:
    """Matrices decay, embeddings, norms and the scaffold do not; in the vision stage everything does."""
    def decays(name: str, parameter: nn.Parameter) -> bool:
        return stage.vision_only or (parameter.ndim >= 2 and "embed" not in name and not name.startswith("scaffold"))

    with_decay = [p for name, p in parameters.items() if decays(name, p)]
    without = [p for name, p in parameters.items() if not decays(name, p)]
    return [group for group in (dict(params=with_decay, weight_decay=stage.weight_decay),
                                dict(params=without, weight_decay=0.0)) if group["params"]]


def _read(logits: torch.Tensor, targets: torch.Tensor) -> Meters:
    """Share of right tokens among colors, relations and letters."""
    words = vocabulary()
    right = (logits.argmax(-1) == targets).float()
    groups = {"says color": words.colors, "says relation": words.values[len(words.colors):],
              "says letter": sorted(words.letters)}
    meters = {}
    for name, ids in groups.items():
        among = torch.isin(targets, torch.tensor(ids))
        if among.any():
            meters[name] = float(right[among].mean())
    return meters


class _Means:
    """Means of meters since they were last taken."""

    def __init__(self):
        self._values: dict[str, list[float]] = {}

    def add(self, meters: Meters) -> None:
        for name, value in meters.items():
            self._values.setdefault(name, []).append(value)

    def take(self) -> Meters:
        means = {name: round(sum(values) / len(values), 4) for name, values in sorted(self._values.items())}
        self._values = {}
        return means


def run_to_end(training: Iterator[Event]) -> Trainee:
    """The trainee of a training whose events nobody needs."""
    while True:
        try:
            next(training)
        except StopIteration as end:
            return end.value


