"""What watching attention costs: one run, one table, every figure beside plain sdpa generation.

    python -m benchmarks.attention                                    # ~200 M parameters on one CPU core
    python -m benchmarks.attention --small                            # tries the script, in under a minute
    python -m benchmarks.attention --model Qwen/Qwen3-VL-8B-Instruct  # on a GPU; else random weights of that shape

The model is a Qwen3-VL with random weights, the input 1,500 image tokens and 1,000 of text.  The modes
(`benchmarks.attention_modes`) decode from forks of one state, a round of each after the other; a ratio is the
median over rounds of mode / plain in the same round, or that of the least times.  Reading out what was recorded
is part of the time.  Memory is that of the one prefill in a process of its own, and what is held once some more
tokens were decoded: the cache, and whatever the mode keeps.  `benchmarks/RESULTS.md` holds tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers

from benchmarks import swap_grid
from benchmarks.attention_modes import Mode, bench_vlm, modes
from benchmarks.measuring import (
    Clock,
    Memory,
    Works,
    can_measure_memory,
    hardware,
    in_a_fork,
    in_use_mb,
    interleaved,
    peak_mb,
    reset_peak,
)
from probes.attention import rescore
from probes.decode import decode
from probes.layout import QUESTION, Prompt
from probes.prefix import prefill
from probes.vlm import LocalVLM

FEW_LAYERS = 4
HELD_TOKENS = 24


@dataclass(frozen=True)
class Scale:
    """How much is run: tokens, rounds, and how many of the rows are scored by teacher forcing.

    Peers cost a multiple, so their ratios need less precision: they take part in the first rounds only.
    n_separate: how many of the ten cells of one retention are read separately; all take the same time.
    """

    image_tokens: tuple[int, int] = (30, 50)         # rows, columns
    n_text: int = 1000
    n_rescored: int = 500
    n_tokens: int = 32                               # decoded per mode and round
    decode_rounds: int = 16
    prefill_rounds: int = 3
    peer_decode_rounds: int = 4
    peer_prefill_rounds: int = 1
    n_separate: int = 1


SMALL = Scale((8, 8), n_text=60, n_rescored=30, n_tokens=6, decode_rounds=3, prefill_rounds=2, peer_decode_rounds=2,
              n_separate=len(swap_grid.TRIGGERS))


def bench_row(vlm: LocalVLM, scale: Scale) -> Prompt:
    """A noise image and as much text as the scale says, none of which counts as generated yet."""
    processor = vlm.processor.image_processor
    height, width = (n * processor.patch_size * processor.merge_size for n in scale.image_tokens)
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    prompt = vlm.prompt(image, "What color is the kite?")
    words = vlm.encode(" a red kite is near the box and a blue bird sits on the left of it,")
    n_missing = max(1, scale.n_text - (len(prompt) - prompt.n_image_tokens))
    return prompt.then((words * (n_missing // len(words) + 1))[:n_missing], QUESTION)


# -------------------------------------------------------------------------------- what is measured

def decode_time(vlm: LocalVLM, row: Prompt, found: Sequence[Mode], scale: Scale) -> dict[str, Clock]:
    """Seconds of decoding `scale.n_tokens` by each mode, from forks of one state, reading out included."""
    state = prefill(vlm, [row])

    def run(mode: Mode, clock: Clock) -> None:
        with mode.watch(vlm) as (watched, finish):
            # The first of the tokens comes from the state's own logits.
            clock.time(lambda: (decode(watched, state, scale.n_tokens + 1, stop_ids=()), finish()))

    works: Works = {}
    for mode in found:
        run(mode, Clock())                           # to warm up
        works[mode.name] = partial(run, mode), scale.peer_decode_rounds if mode.is_peer else scale.decode_rounds
    return interleaved(works, "decode")


def prefill_time(vlm: LocalVLM, row: Prompt, found: Sequence[Mode], scale: Scale) -> dict[str, Clock]:
    """Seconds of reading `row` by each mode, and of scoring its last tokens."""
    def run(mode: Mode, clock: Clock) -> None:
        with mode.watch(vlm) as (watched, finish):
            clock.time(lambda: (prefill(watched, [row]), finish()))

    works: Works = {
        mode.name: (partial(run, mode), scale.peer_prefill_rounds if mode.is_peer else scale.prefill_rounds)
        for mode in found}
    works[rescoring(scale)] = lambda clock: clock.time(lambda: rescore_rows(vlm, row, scale)), scale.prefill_rounds
    return interleaved(works, "prefill")


def rescoring(scale: Scale) -> str:
    return f"rescore, {scale.n_rescored} rows, all layers"


def rescore_rows(vlm: LocalVLM, row: Prompt, scale: Scale) -> None:
    """Teacher forcing over all of `row`: n ids are n rows, and the last id is not read."""
    n_read = scale.n_rescored - 1
    attention = rescore(vlm, row.cut(len(row) - n_read), (*row.ids[-n_read:], row.ids[-1]))
    assert attention.scores.shape[-1] == scale.n_rescored


def memory(vlm: LocalVLM, row: Prompt, found: Sequence[Mode], scale: Scale, n_threads: int) -> dict[str, Memory]:
    """The memory of each mode, and of scoring; nothing where the platform cannot tell."""
    def run(mode: Mode) -> Memory:
        with mode.watch(vlm) as (watched, finish):
            start = reset_peak()
            state = prefill(watched, [row])
            kept = [finish()]
            peak = peak_mb()
            kept += [state, decode(watched, state, HELD_TOKENS + 1, stop_ids=()), finish()]
            return Memory(peak - start, in_use_mb() - start)

    def run_scoring() -> Memory:
        start = reset_peak()
        rescore_rows(vlm, row, scale)
        return Memory(peak_mb() - start, in_use_mb() - start)

    if not can_measure_memory():
        return {}
    works = {mode.name: partial(run, mode) for mode in found} | {rescoring(scale): run_scoring}
    used = {}
    for name, work in works.items():
        print(f"memory: {name}", flush=True)
        used[name] = in_a_fork(work, n_threads)
    return used


# -------------------------------------------------------------------------------------- the table

HEADER = ("mode", "decode ms/token", "ratio", "least", "ratio", "wall ratio", "prefill s", "ratio", "wall ratio",
          "peak MB", "ratio", "held MB")


@dataclass(frozen=True)
class Results:
    """All measurements of a run, by the name of the mode."""

    decode: dict[str, Clock]
    prefill: dict[str, Clock]
    memory: dict[str, Memory]
    grid: swap_grid.Grid
    scale: Scale
    base: str = "sdpa, plain"

    def lines(self) -> list[str]:
        """The table, as markdown."""
        rows = [HEADER, ("---",) + ("---:",) * (len(HEADER) - 1)]
        rows += [(name, *self._decode_cells(name), *self._prefill_cells(name), *self._memory_cells(name))
                 for name in self.prefill]
        one = self.prefill[self.base].median
        rows += [(name, *["-"] * 5, f"{seconds:.2f}", f"{seconds / one:.2f}", *["-"] * 4)
                 for name, seconds in self.grid.seconds.items()]
        return ["| " + " | ".join(row) + " |" for row in rows]

    def _decode_cells(self, name: str) -> list[str]:
        if name not in self.decode:
            return ["-"] * 5
        clock, base = self.decode[name], self.decode[self.base]
        ms = 1000 / self.scale.n_tokens
        return [f"{clock.median * ms:.1f}", f"{clock.ratio_to(base):.3f}", f"{clock.least * ms:.1f}",
                f"{clock.least / base.least:.3f}", f"{clock.wall_ratio_to(base):.3f}"]

    def _prefill_cells(self, name: str) -> list[str]:
        clock, base = self.prefill[name], self.prefill[self.base]
        return [f"{clock.median:.2f}", f"{clock.ratio_to(base):.2f}", f"{clock.wall_ratio_to(base):.2f}"]

    def _memory_cells(self, name: str) -> list[str]:
        if name not in self.memory:
            return ["-"] * 3
        used, base = self.memory[name], self.memory[self.base]
        return [f"{used.peak:,.0f}", f"{used.peak / base.peak:.2f}", f"{used.held:,.0f}"]

    def bars(self) -> list[str]:
        """What this toolkit promises on a CPU, and whether it holds."""
        few, every = f"sdpa, recorded, {FEW_LAYERS} layers", "sdpa, recorded, all layers"
        scoring = rescoring(self.scale)
        decode, prefill = self.decode[self.base], self.prefill[self.base]
        at_most = [(f"decode, {FEW_LAYERS} layers recorded", self.decode[few].ratio_to(decode), 1.05),
                   ("decode, all layers recorded", self.decode[every].ratio_to(decode), 1.12),
                   (f"{scoring}, to one prefill", self.prefill[scoring].ratio_to(prefill), 1.25)]
        if self.memory:
            ratio = self.memory[every].peak / self.memory[self.base].peak
            at_most.append(("prefill memory, all layers recorded", ratio, 1.05))
        cheaper = self.grid.times_cheaper
        return [f"- {what}: {found:.3f}, at most {bar} wanted: {'held' if found <= bar else 'MISSED'}"
                for what, found, bar in at_most] + [
                f"- grid, times cheaper than separate prefills: {cheaper:.1f}, at least 15 wanted: "
                f"{'held' if cheaper >= 15 else 'MISSED'}"]


def setting(vlm: LocalVLM, row: Prompt, n_threads: int) -> str:
    """The line above a table: when, on what, with what."""
    clock = "wall time" if vlm.device.type == "cuda" else "processor time"
    return (f"{date.today()}; {hardware(vlm.device, n_threads)}; torch {torch.__version__}, transformers "
            f"{transformers.__version__}; {vlm.name}, {str(vlm.dtype).removeprefix('torch.')}; {row.n_image_tokens} "
            f"image + {len(row) - row.n_image_tokens} text tokens; {clock}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tiny model and few tokens, to try the script")
    parser.add_argument("--model", help="a checkpoint by hub id or folder instead of random weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--rounds", type=int, help="rounds of decoding")
    parser.add_argument("--all-cells", action="store_true", help="read all 50 cells separately, not one per retention")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()       # the vision tower, still on sdpa, says that it gives no weights
    scale = SMALL if options.small else Scale()
    scale = replace(scale, decode_rounds=options.rounds or scale.decode_rounds)
    if options.all_cells:
        scale = replace(scale, n_separate=len(swap_grid.TRIGGERS))
    torch.set_num_threads(1)                         # a fork must find no thread but this one
    vlm = bench_vlm(options.model, torch.device(options.device), options.small)
    row = bench_row(vlm, scale)
    found, absent = modes(vlm, FEW_LAYERS)
    header = setting(vlm, row, options.threads)
    print(f"{header}\ncompares: {'; '.join(mode.name for mode in found)}", flush=True)
    used = memory(vlm, row, found, scale, options.threads)
    torch.set_num_threads(options.threads)
    results = Results(decode=decode_time(vlm, row, found, scale), prefill=prefill_time(vlm, row, found, scale),
                      memory=used, grid=swap_grid.measure(vlm, row, scale.n_rescored, scale.n_separate), scale=scale)
    promised = [] if options.small or vlm.device.type != "cpu" else results.bars()
    notes = [f"- {line}" for line in (results.grid.agreement, *absent)]
    text = "\n".join([header, "", *results.lines(), "", *promised, *notes]) + "\n"
    print("\n" + text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
