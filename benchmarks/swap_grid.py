"""What sharing prefixes saves: 5 retentions x 10 triggers from one prefill, beside 50 prefills of their own.

    python -m benchmarks.attention          # its last rows

Every cell of VisualSwap's grid (Sec. 5) is the same prompt and reasoning, cut at one of five lengths, with one
of ten triggers behind: only the triggers are new.  Timed is everything up to the next token's logits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from probes.layout import Prompt
from probes.prefix import State, extend, prefill, prefixes, stack
from probes.vlm import LocalVLM

RETENTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
TRIGGERS = (" wait, let me look at the image again", " let me check the figure once more", " hold on, is that right?",
            " I should verify this against the picture", " looking at the image again, I see", " but what does the image show?",
            " let me look closer", " before I answer, back to the image", " hmm, let me examine the picture",
            " on second look, the image shows")
N_TRIGGER_TOKENS = 12


@dataclass(frozen=True)
class Grid:
    """Seconds by way of reading the grid, by the clock of the machine; and how well the ways agree."""

    seconds: dict[str, float]
    times_cheaper: float
    agreement: str


def measure(vlm: LocalVLM, row: Prompt, n_reasoning: int, n_separate: int) -> Grid:
    """Read the grid in three ways.

    row: its last `n_reasoning` tokens are taken for the reasoning that is cut.  n_separate: how many triggers of
    each retention are read separately; the time of the others is taken to be the same, for so is their length.
    """
    start = len(row) - n_reasoning
    cuts = [start + round(share * n_reasoning) for share in RETENTIONS]
    triggers = [trigger_ids(vlm, text) for text in TRIGGERS]
    forks_s, forked = timed(lambda: fork_cells(vlm, row, cuts, triggers))
    batched_s, batched = timed(lambda: batched_cells(vlm, row, cuts, triggers))
    print(f"grid: {len(cuts) * n_separate} separate prefills", flush=True)
    separate_s, separate = timed(lambda: separate_cells(vlm, row, cuts, triggers[:n_separate]))
    again_s, _ = timed(lambda: fork_cells(vlm, row, cuts, triggers))
    forks_s = statistics.mean((forks_s, again_s))
    n_cells, n_run = len(cuts) * len(triggers), len(separate)
    separate_s *= n_cells / n_run
    run = "" if n_run == n_cells else f" ({n_run} run, times {n_cells // n_run})"
    seconds = {f"grid, {n_cells} separate prefills{run}": separate_s,
               "grid, one prefill, forked and extended": forks_s,
               "grid, one prefill, one batch per retention": batched_s}
    return Grid(seconds, separate_s / min(forks_s, batched_s), agreement(separate, forked, batched))


def trigger_ids(vlm: LocalVLM, text: str) -> list[int]:
    """The trigger's ids, repeated or cut to one length, so that all cells of a retention cost the same."""
    ids = vlm.encode(text)
    return (ids * N_TRIGGER_TOKENS)[:N_TRIGGER_TOKENS]


Cells = dict[tuple[int, int], torch.Tensor]
"""Logits (vocabulary,) by cut and number of the trigger."""


def separate_cells(vlm: LocalVLM, row: Prompt, cuts: Sequence[int], triggers: Sequence[list[int]]) -> Cells:
    return {(cut, number): prefill(vlm, [row.cut(cut).then(trigger)]).logits[0]
            for cut in cuts for number, trigger in enumerate(triggers)}


def fork_cells(vlm: LocalVLM, row: Prompt, cuts: Sequence[int], triggers: Sequence[list[int]]) -> Cells:
    return {(cut, number): extend(vlm, state, [trigger]).logits[0]
            for cut, state in zip(cuts, prefixes(vlm, row, cuts)) for number, trigger in enumerate(triggers)}


def batched_cells(vlm: LocalVLM, row: Prompt, cuts: Sequence[int], triggers: Sequence[list[int]]) -> Cells:
    def rows_of(state: State) -> torch.Tensor:
        return extend(vlm, stack([state] * len(triggers)), triggers).logits

    return {(cut, number): logits for cut, state in zip(cuts, prefixes(vlm, row, cuts))
            for number, logits in enumerate(rows_of(state))}


def timed(work: Callable[[], Cells]) -> tuple[float, Cells]:
    """Seconds of wall time on a GPU and of processor time on a CPU, and what was computed."""
    on_gpu = torch.cuda.is_initialized()
    clock = time.perf_counter if on_gpu else time.process_time
    began = clock()
    cells = work()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - began, cells


def agreement(separate: Cells, *shared: Cells) -> str:
    """How the shared ways' logits compare to those of the separate prefills, cell by cell."""
    difference = max(float((cells[key] - logits).abs().max()) for cells in shared for key, logits in separate.items())
    same = sum(all(cells[key].argmax() == logits.argmax() for cells in shared) for key, logits in separate.items())
    spread = statistics.mean(float(logits.std()) for logits in separate.values())
    return (f"grid: next token equal in {same} of {len(separate)} cells, logits within {difference:.1e} of the separate "
            f"prefills (their standard deviation is {spread:.2g})")
