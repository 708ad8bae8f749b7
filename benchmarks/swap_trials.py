"""What a grid of swap trials reads: pairs x 5 retentions x 10 triggers, shared prefixes beside trials one by one.

    python -m benchmarks.swap_trials --pairs 200 --work /tmp/swap_trials

Three things in one run, on a control model and its scenes (VisualSwap, Sec. 5, all 50 cells of every pair):

1. Tokens fed to the model before anything is said, counted by a hook on it, in `experiments.probe` and cell by cell.
2. Operations and processor time of the same reading on a few pairs, in turns.
3. The grid, stopped at several points and started again: the file must hold the same bytes as without a stop.

"One by one" counts two ways: each trial takes its question under image a and its own row ("from the question on"), or
somebody has kept R_a and each trial takes its own row alone ("rows alone").  How much is saved follows from what is not
a cell's own, so a row with longer prompts and reasoning (tiny random weights) stands beside the control's.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measuring import Clock, hardware
from experiments.pair_sources import SceneSource
from experiments.pairs_build import build_pairs
from experiments.probe import FIRST, ProbeJob, engine_of, probe, trials_file
from experiments.swap_cells import RETENTIONS, probe_cells
from experiments.tables import markdown_table
from probes.backends import ModelSpec
from probes.interpose import COLUMNS
from probes.phrases import REFLECTIONS
from probes.prefix import prefill
from probes.protocol import Continuation, continue_cells
from probes.trial_rows import Case, row_of
from probes.vlm import LocalVLM, load_vlm
from rekey.errors import Interrupted
from rekey.evaluate import Settings
from rekey.pairs import read_pairs
from rekey.records import SwapPair
from rekey.trials import read_trials

MODEL = "control:grounded"
SETTINGS = Settings(prompt="cot", temperature=0.1, max_new_tokens=48, seed=0)
READING = Settings(prompt="cot", temperature=0.0, max_new_tokens=1)       # one token comes of reading alone
CELLS = probe_cells(RETENTIONS, REFLECTIONS)
N_MEASURED, N_ROUNDS = 2, 3
STOPS = (0.12, 0.35, 0.61, 0.9)
LONG_IMAGE, LONG_REASONING = (480, 640), 600


@dataclass
class Fed:
    """Real tokens (padding is none) that a model was fed, before and while it said something."""

    reading: int = 0
    saying: int = 0


@contextmanager
def counting(vlm: LocalVLM) -> Iterator[Fed]:
    fed = Fed()

    def hook(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        ids, mask = kwargs["input_ids"], kwargs["attention_mask"]
        n = ids.numel() if mask is None else int(mask[:, -ids.shape[1]:].sum())
        if COLUMNS.get().room:                  # only decoding knows how much is still to come
            fed.saying += n
        else:
            fed.reading += n

    handle = vlm.model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield fed
    finally:
        handle.remove()


def one_by_one(vlm: LocalVLM, continuations: Sequence[Continuation], from_question: bool) -> None:
    """Every cell read by itself.  from_question: its first answer is asked for anew."""
    for case, first, cells in continuations:
        for cell in cells:
            if from_question:
                prefill(vlm, [case.prompt_a])
            prefill(vlm, [row_of(vlm, case, cell, first).prompt])


# ------------------------------------------------------------------------------------- 1, 2: reading

def with_first_answers(vlm: LocalVLM, cases: Sequence[Case]) -> list[Continuation]:
    said = continue_cells(vlm, [(case, (), [FIRST]) for case in cases], SETTINGS).said
    return [(one.case, one.generation.token_ids, CELLS) for one in said]


def long_case(vlm: LocalVLM) -> list[Continuation]:
    """One pair with a larger image and a reasoning of random words."""
    rng = np.random.default_rng(0)
    images = [vlm.encode_image(rng.integers(0, 256, (*LONG_IMAGE, 3), dtype=np.uint8)) for _ in range(2)]
    prompt = vlm.prompt(images[0], "What is the value of the third bar?\n(A) 10\n(B) 12\n(C) 14\n(D) 16")
    said = vlm.encode(" ".join("abcdefgh"[n] for n in rng.integers(0, 8, LONG_REASONING)))[:LONG_REASONING]
    pair = SwapPair("long", "a", "b", "?", ("10", "12"), "A", "B")
    return [(Case(pair, prompt, prompt.with_images([images[1]])), said, CELLS)]


def reading_row(name: str, vlm: LocalVLM, continuations: Sequence[Continuation], n_rounds: int) -> tuple[str, ...]:
    """Tokens, operations and processor time of reading the grid in three ways."""
    ways = {"shared": lambda: continue_cells(vlm, continuations, READING),
            "from the question on": lambda: one_by_one(vlm, continuations, True),
            "rows alone": lambda: one_by_one(vlm, continuations, False)}
    fed, flops, clocks = {}, {}, {way: Clock() for way in ways}
    for way, work in ways.items():
        with counting(vlm) as counted, FlopCounterMode(display=False) as counter:
            work()
        fed[way], flops[way] = counted.reading, counter.get_total_flops()
    for _ in range(n_rounds):
        for way, work in ways.items():
            clocks[way].time(work)
    case, first, _ = continuations[0]
    cells = [name, f"{len(case.prompt_a)} + {len(first)}", str(len(continuations))]
    for way in ("from the question on", "rows alone"):
        cells += [f"{fed[way] / fed['shared']:.1f}", f"{flops[way] / flops['shared']:.1f}",
                  f"{clocks[way].ratio_to(clocks['shared']):.1f}"]
    return tuple(cells)


# --------------------------------------------------------------------------------- 3: the whole grid

def whole_grid(vlm: LocalVLM, pairs: Path, out: Path) -> tuple[tuple[str, ...], bool]:
    """A row on the grid run at once, and whether one that was stopped in between left the same bytes."""
    job = ProbeJob(pairs, ModelSpec(MODEL), out / "whole", CELLS, SETTINGS)
    clock = Clock()
    with counting(vlm) as fed:
        summaries = []
        clock.time(lambda: summaries.append(probe(job, vlm=vlm)))
    (summary,) = summaries
    n_rows_alone = sum(trial.second.n_prompt_tokens for trial in read_trials(trials_file(job.out)))
    agrees = "as counted" if fed.reading == summary.n_read else f"{fed.reading:,} by the hook"
    row = (str(summary.n_trials), f"{summary.n_read:,} ({agrees})", f"{summary.n_one_by_one:,}",
           f"{summary.n_one_by_one / summary.n_read:.1f}", f"{n_rows_alone / summary.n_read:.1f}", f"{fed.saying:,}",
           f"{clock.cpu[0]:.0f} s")
    stopped = ProbeJob(pairs, ModelSpec(MODEL), out / "stopped", CELLS, SETTINGS)
    for share in (*STOPS, 1.1):
        stop = threading.Event()

        def progress(done: int, total: int, share: float = share, stop: threading.Event = stop) -> None:
            if done >= share * total:
                stop.set()

        try:
            probe(stopped, progress, stop, vlm)
        except Interrupted as interrupted:
            print(f"stopped: {interrupted}", flush=True)
            with trials_file(stopped.out).open("ab") as file:       # as a kill in mid-write leaves it
                file.write(b'{"key":"torn')
    files = [trials_file(one.out).read_bytes() for one in (job, stopped)]
    return row, files[0] == files[1]


@click.command(help=__doc__.replace("\n\n    ", "\n\n\b\n    "))
@click.option("--pairs", "n_pairs", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--work", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Emptied first.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=N_ROUNDS, show_default=True)
def main(n_pairs: int, work: Path, threads: int, rounds: int) -> None:
    torch.set_num_threads(threads)
    shutil.rmtree(work, ignore_errors=True)
    build_pairs(SceneSource(n_pairs, 1), work / "pairs")
    vlm = engine_of(ModelSpec(MODEL))
    pairs, _ = read_pairs(work / "pairs", N_MEASURED)
    cases = [Case.of(vlm, pair, work / "pairs", SETTINGS) for pair in pairs]
    print(hardware(vlm.device, threads) + "\n")
    head = ("model", "tokens of prompt + first answer", "pairs", "tokens, times as many", "operations", "CPU time",
            "tokens, rows alone", "operations", "CPU time")
    print(markdown_table([head, reading_row(MODEL, vlm, with_first_answers(vlm, cases), rounds),
                          reading_row("tiny:qwen3_vl", tiny := load_vlm("tiny:qwen3_vl", device_map="cpu"),
                                      long_case(tiny), rounds)]), flush=True)
    row, same = whole_grid(vlm, work / "pairs", work)
    print(markdown_table([("trials", "tokens read", "one by one, from the question on", "times as many",
                           "rows alone, times as many", "tokens said", "CPU time"), row]), flush=True)
    print(f"stopped {len(STOPS)} times, its last line torn, and started again: "
          + ("the same bytes" if same else "OTHER BYTES"))


if __name__ == "__main__":
    main()

