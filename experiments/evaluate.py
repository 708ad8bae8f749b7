"""Put a benchmark to a model: resumable, on several GPUs or with several requests at once.

    summary = evaluate(EvaluateJob(items=folder, model=ModelSpec("control:clean"), out=Path("runs/responses.jsonl")))

    runs/responses.jsonl        one line per generation, appended as they come; failures too, which a resume asks again
    runs/responses.runs.jsonl   one line per run: command, commit, versions, machine; then model and kernel

Several models, benchmarks and settings may share a file: a line is known by the hash of what it depends on.  Batches
are cut from the whole benchmark, so that what stands beside a question does not depend on where a run stopped.
"""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.workers import in_parallel, in_threads, stop_requested, worker_number
from probes.backends import ModelSpec
from rekey import store
from rekey.benchmarks import read_items
from rekey.errors import InputError, Interrupted
from rekey.evaluate import (
    VLM,
    Identity,
    Question,
    Settings,
    answered_keys,
    ask,
    check_appendable,
    make_questions,
    runs_file,
)
from rekey.records import Item, Response, to_json

MAX_LISTED = 20


@dataclass(frozen=True)
class EvaluateJob:
    """One benchmark, one model, one way to ask; all paths."""

    items: Path
    model: ModelSpec
    out: Path
    settings: Settings = field(default_factory=Settings)
    batch_size: int = 1
    workers: int = 1
    """hf: processes, each with a model, on GPUs in turn.  openai: requests at once."""
    shard: tuple[int, int] | None = None
    limit: int | None = None
    """Only the first so many items: a trial."""


@dataclass(frozen=True)
class Summary:
    """What came of a run."""

    n_questions: int
    n_resumed: int
    failures: tuple[str, ...]
    n_truncated: int
    below_one_token: tuple[str, ...]
    """Items of which an edit region is smaller than one image token, as the model saw it."""


def evaluate(job: EvaluateJob, progress: Callable[[int, int], None] = lambda done, total: None,
             stop: threading.Event | None = None, vlm: VLM | None = None) -> Summary:
    """Ask what has no answer yet in `job.out` and its shards.

    vlm: a model that is loaded already (of `job.model`); then there is one worker.
    Raises InputError before anything is asked where the input is bad, Interrupted after a stop, with every answer kept.
    """
    with stop_requested(stop) as stop:
        return _evaluate(job, progress, stop, vlm)


def _evaluate(job: EvaluateJob, progress: Callable[[int, int], None], stop: threading.Event,
              vlm: VLM | None) -> Summary:
    identity = job.model.identity()
    questions = make_questions(*read_benchmark(job.items, job.limit), identity, job.settings)
    batches = [questions[n:n + job.batch_size] for n in range(0, len(questions), job.batch_size)]
    mine = store.shard_of(batches, job.shard)
    n_mine = sum(map(len, mine))
    path = job.out.with_name(store.shard_name(job.out.stem, job.shard, job.out.suffix))
    answered = answered_keys(job.out)       # whatever shard has asked it
    check_appendable(path)
    todo = [batch for batch in mine if any(question.key not in answered for question in batch)]
    n_before = n_mine - sum(question.key not in answered for batch in todo for question in batch)
    responses: list[Response] = []
    progress(n_before, n_mine)
    with store.Journal(path) as journal:
        for batch in _answers(job, identity, path, todo, stop, vlm):
            for response in batch:
                if response.key not in answered:
                    journal.append(to_json(response))
                    responses.append(response)
            progress(n_before + len(responses), n_mine)
    if n_before + len(responses) < n_mine:
        raise Interrupted(f"{n_before + len(responses)} of {n_mine} questions asked")
    return _summary(n_mine, n_before, responses)


def read_benchmark(items: Path, limit: int | None = None) -> tuple[list[Item], Path]:
    """The items of a benchmark and the folder that their images are in; every image must be there."""
    folder, found = items if items.is_dir() else items.parent, read_items(items)[:limit]
    if not found:
        raise InputError(f"{items}: holds no items; expected the folder of a benchmark (`rekey items import`, "
                         "`rekey generate`)")
    missing = [f"{item.item_id}: no image {folder / item.image}; restore the file, or make the benchmark again"
               for item in found if not (folder / item.image).is_file()]
    if missing:
        raise InputError(*missing[:MAX_LISTED],
                         *([f"... and {len(missing) - MAX_LISTED} more"] if len(missing) > MAX_LISTED else []))
    return found, folder


# ----------------------------------------------------------------------------------- asking

@dataclass(frozen=True)
class _Batch:
    questions: tuple[Question, ...]
    model: ModelSpec
    identity: Identity
    settings: Settings
    run: str


Answered = tuple[list[Response], dict[str, Any]]        # responses, and what the model is like where it ran


def _answers(job: EvaluateJob, identity: Identity, path: Path, todo: list[list[Question]], stop: threading.Event,
             vlm: VLM | None) -> Iterator[list[Response]]:
    """Responses of the batches as they come; what model gave them is noted before the first of them."""
    if not todo:
        return
    run = uuid.uuid4().hex[:12]
    settings = {"items": str(job.items), "batch_size": job.batch_size, "workers": job.workers,
                "shard": job.shard and "{}/{}".format(*job.shard), **to_json(job.settings), **to_json(job.model)}
    batches = [_Batch(tuple(batch), job.model, identity, job.settings, run) for batch in todo]
    with store.Journal(runs_file(path)) as runs:
        runs.append({"run": run} | store.run_manifest(settings, time.time()))
        known: list[dict[str, Any]] = []
        for responses, description in _made(job, batches, stop, vlm):
            if description not in known:
                known.append(description)
                runs.append({"run": run, "model": description})
            yield responses


def _made(job: EvaluateJob, batches: list[_Batch], stop: threading.Event, vlm: VLM | None) -> Iterator[Answered]:
    if vlm is None and job.model.backend == "hf" and job.workers > 1 and len(batches) > 1:
        return in_parallel(_ask_in_worker, batches, min(job.workers, len(batches)), stop)
    loaded = vlm or job.model.load()
    if job.model.backend == "openai":
        return in_threads(lambda batch: _ask(loaded, batch), batches, job.workers, stop)
    return in_parallel(lambda batch: _ask(loaded, batch), batches, 1, stop)


def _ask(vlm: VLM, batch: _Batch) -> Answered:
    return ask(vlm, batch.questions, batch.identity, batch.settings, batch.run), vlm.describe()


def _ask_in_worker(batch: _Batch) -> Answered:
    return _ask(_loaded_once(batch.model), batch)


@functools.cache
def _loaded_once(model: ModelSpec) -> VLM:
    """In a worker process: the model, on a GPU of its own where there are several."""
    return model.on_gpu_of(worker_number() or 0).load()


def _summary(n_questions: int, n_resumed: int, responses: list[Response]) -> Summary:
    answers = [response for response in responses if response.generation is not None]
    return Summary(n_questions, n_resumed,
                   tuple(f"{response.item.item_id}: {response.error}" for response in responses if response.error),
                   sum(response.generation.finish == "length" for response in answers),
                   tuple(response.item.item_id for response in answers
                         if response.edit_tokens is not None and response.edit_tokens < 1))


def report_lines(summary: Summary) -> list[str]:
    """What a person should know of a run, a line each."""
    lines = [f"{summary.n_questions} questions: {summary.n_resumed} answered before, "
             f"{summary.n_questions - summary.n_resumed - len(summary.failures)} now, {len(summary.failures)} failed, "
             f"{summary.n_truncated} ran out of tokens"]
    if small := summary.below_one_token:
        lines.append(f"warning: in {len(small)} items an edit region is smaller than one image token, as the model saw "
                     f"the image ({', '.join(small[:5])}{', ...' if len(small) > 5 else ''}): what is asked about may "
                     "be invisible; raise --max-pixels")
    return lines

