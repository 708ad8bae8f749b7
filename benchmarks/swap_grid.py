"""What sharing prefixes saves: 5 retentions x 10 triggers from one prefill, beside 50 prefills of their own.

    python -m benchmarks.attention          # its last rows

Every cell of VisualSwap's grid (Sec. 5) is one prompt and reasoning, cut at one of five lengths, with one of
ten triggers behind: only the triggers are new.  Timed is everything up to the next token's logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from benchmarks.measuring import Clock
from probes.layout import Prompt
from probes.prefix import extend, prefill, prefixes, stack
from probes.vlm import LocalVLM

RETENTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
TRIGGERS = (" wait, let me look at the image again", " let me check the figure once more", " hold on, is that right?",
            " I should verify this against the picture", " looking at the image again, I see", " let me look closer",
            " but what does the image show?", " before I answer, back to the image", " hmm, let me examine the picture",
            " on second look, the image shows")
N_TRIGGER_TOKENS = 12


@dataclass(frozen=True)
class Grid:
    """Seconds of each way to read the grid; how much the best saves; how well the ways agree."""

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
    n_cells, n_run = len(cuts) * len(triggers), len(cuts) * n_separate
    print(f"grid: {n_cells} cells, {n_run} of them read separately as well", flush=True)
    forks, batches, separately = Clock(), Clock(), Clock()
    # The shared ways before and after the long one, in case the machine slows down or speeds up.
    timed(forks, lambda: forked_cells(vlm, row, cuts, triggers))
    timed(batches, lambda: batched_cells(vlm, row, cuts, triggers))
    separate = timed(separately, lambda: separate_cells(vlm, row, cuts, triggers[:n_separate]))
    batched = timed(batches, lambda: batched_cells(vlm, row, cuts, triggers))
    forked = timed(forks, lambda: forked_cells(vlm, row, cuts, triggers))
    separate_s = separately.median * n_cells / n_run
    scaled = "" if n_run == n_cells else f" ({n_run} run, times {n_cells // n_run})"
    seconds = {f"grid, {n_cells} separate prefills{scaled}": separate_s,
               "grid, one prefill, forked and extended": forks.median,
               "grid, one prefill, one batch per retention": batches.median}
    return Grid(seconds, separate_s / min(forks.median, batches.median), agreement(separate, forked, batched))


def trigger_ids(vlm: LocalVLM, text: str) -> list[int]:
    """The trigger's ids, repeated or cut to one length, so that all cells of a retention cost the same."""
    return (vlm.encode(text) * N_TRIGGER_TOKENS)[:N_TRIGGER_TOKENS]


Cells = dict[tuple[int, int], torch.Tensor]
"""Logits (vocabulary,) by cut and number of the trigger."""


def separate_cells(vlm: LocalVLM, row: Prompt, cuts: Sequence[int], triggers: Sequence[list[int]]) -> Cells:
    return {(cut, number): prefill(vlm, [row.cut(cut).then(trigger)]).logits[0]
            for cut in cuts for number, trigger in enumerate(triggers)}


def forked_cells(vlm: LocalVLM, row: Prompt, cuts: Sequence[int], triggers: Sequence[list[int]]) -> Cells:
    return {(cut, number): extend(vlm, state, [trigger]).logits[0]
            for cut, state in zip(cuts, prefixes(vlm, row, cuts)) for number, trigger in enumerate(triggers)}


def batched_cells(vlm: LocalVLM, row: Prompt, cuts: Sequence[int], triggers: Sequence[list[int]]) -> Cells:
    cells: Cells = {}
    for cut, state in zip(cuts, prefixes(vlm, row, cuts)):
        logits = extend(vlm, stack([state] * len(triggers)), triggers).logits
        cells |= {(cut, number): logits[number] for number in range(len(triggers))}
    return cells


def timed(clock: Clock, work: Callable[[], Cells]) -> Cells:
    """The cells, with the time they took added to the clock."""
    found: list[Cells] = []
    clock.time(lambda: found.append(work()))
    return found[0]


def agreement(separate: Cells, *shared: Cells) -> str:
    """How the shared ways' logits compare to those of the separate prefills, cell by cell."""
    difference = max(float((cells[key] - logits).abs().max()) for cells in shared for key, logits in separate.items())
    same = sum(all(cells[key].argmax() == logits.argmax() for cells in shared) for key, logits in separate.items())
    spread = float(torch.stack(list(separate.values())).std(1).mean())
    return (f"grid: next token equal in {same} of {len(separate)} cells, logits within {difference:.1e} of those of "
            f"separate prefills (standard deviation {spread:.2g})")
