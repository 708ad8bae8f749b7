"""What watching attention costs: one run, one table, every figure beside plain sdpa generation.

    python -m benchmarks.attention                                    # ~200 M parameters on one CPU core
    python -m benchmarks.attention --small                            # the script itself, in under a minute
    python -m benchmarks.attention --model Qwen/Qwen3-VL-8B-Instruct  # on a GPU; else random weights of that shape

The model is a Qwen3-VL with random weights, the input 1,500 image tokens and 1,000 of text.  All modes decode
with the same loop (`probes.decode`) from forks of one state, a round of each after the other, so that a
busy machine slows all of them; a ratio is the median over rounds of mode / plain in the same round.  On a
CPU the main clock is the processor time of the process, on a GPU wall time.  Memory is that of a fork of
this process which does nothing but the one prefill, or what the CUDA allocator had in use at most.

Peers, each at its best: eager attention; eager with `output_attentions`, whose weights are kept; nnsight
(where it is installed), which needs eager as well and here keeps the sums over the image's keys only.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers

from benchmarks import swap_grid
from probes.attention import recording_image_attention, rescore
from probes.decode import decode
from probes.families import family_of
from probes.layout import QUESTION, Prompt
from probes.prefix import prefill
from probes.tiny import tiny_model
from probes.vlm import LocalVLM, load_vlm

SHAPES = {
    "small": dict(layers=4, max_image_tokens=64),
    "200M": dict(layers=12, hidden_size=1024, num_attention_heads=16, num_key_value_heads=4, head_dim=64,
                 intermediate_size=4096, max_image_tokens=1500),
}
QWEN3_VL_8B = dict(vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
                   num_attention_heads=32, num_key_value_heads=8, head_dim=128, rope_parameters={
                       "rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True})
FEW_LAYERS = 4
EAGER = {"text_config": "eager", "vision_config": "sdpa"}
FLASH = {"text_config": "flash_attention_2", "vision_config": "sdpa"}
SDPA = {"text_config": "sdpa", "vision_config": "sdpa"}
HELD_TOKENS = 24


@dataclass(frozen=True)
class Scale:
    """How much is run: tokens, rounds, and how many of the rows are scored by teacher forcing."""

    image_tokens: tuple[int, int] = (30, 50)         # rows, columns
    n_text: int = 1000
    n_rescored: int = 500
    n_tokens: int = 32                               # decoded per mode and round
    decode_rounds: int = 12
    prefill_rounds: int = 3
    # Of the cells that differ only in their trigger, how many are read separately; the rest costs the same.
    n_separate: int = 1


SMALL = Scale((8, 8), n_text=60, n_rescored=30, n_tokens=6, decode_rounds=3, prefill_rounds=2, n_separate=10)


# ------------------------------------------------------------------------------------- the modes

Watched = tuple[LocalVLM, Callable[[], object]]
"""The model to run, and a function that reads out and returns what the mode keeps of the run."""


@dataclass(frozen=True)
class Mode:
    """One way to run the model; `watch` prepares it and puts everything back."""

    name: str
    watch: Callable[[LocalVLM], AbstractContextManager[Watched]]


@contextmanager
def plain(vlm: LocalVLM, kernel: dict = SDPA) -> Iterator[Watched]:
    vlm.model.set_attn_implementation(kernel)
    try:
        yield vlm, lambda: None
    finally:
        vlm.model.set_attn_implementation(SDPA)


@contextmanager
def recorded(vlm: LocalVLM, n_layers: int | None = None, kernel: dict = SDPA) -> Iterator[Watched]:
    """The instrument under test.  n_layers: in the middle of the model; all of them by default."""
    depth = vlm.model.config.get_text_config().num_hidden_layers
    first = 0 if n_layers is None else (depth - n_layers) // 2
    layers = None if n_layers is None else range(first, first + n_layers)
    with plain(vlm, kernel), recording_image_attention(vlm, layers) as trace:
        yield vlm, trace.sequences


@contextmanager
def eager_with_outputs(vlm: LocalVLM) -> Iterator[Watched]:
    """What transformers offers: all weights of all rows, from a second implementation of attention."""
    kept = []
    hooks = [vlm.model.register_forward_pre_hook(
                 lambda module, args, kwargs: (args, {**kwargs, "output_attentions": True}), with_kwargs=True),
             vlm.model.register_forward_hook(lambda module, args, output: kept.append(output.attentions))]
    try:
        with plain(vlm, EAGER):
            yield vlm, lambda: kept
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def nnsight_eager(vlm: LocalVLM) -> Iterator[Watched]:
    with plain(vlm, EAGER):
        traced = NnsightModel(vlm.model)
        yield replace(vlm, model=traced), lambda: traced.kept


class NnsightModel:
    """A model each of whose calls is an nnsight trace that keeps, of every layer, the last row's mass on the image."""

    def __init__(self, model: transformers.PreTrainedModel):
        import nnsight
        self.model, self.traced, self.kept = model, nnsight.NNsight(model), []
        self.layers = self.traced.model.language_model.layers
        self.on_image: torch.Tensor | None = None

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def __call__(self, **inputs):
        if inputs["input_ids"].shape[1] > 1:
            self.on_image = (inputs["input_ids"][0] == self.model.config.image_token_id).nonzero()[:, 0]
        on_image = self.on_image
        with self.traced.trace(**inputs):
            masses = list().save()                                  # noqa: C408 (a literal has no .save)
            for layer in self.layers:
                weights = layer.self_attn.output[1][:, :, -1]
                masses.append(weights[..., on_image].sum(-1))
            output = self.traced.output.save()
        self.kept.append(masses)
        return output


def modes(vlm: LocalVLM, image_only_text: str = "") -> tuple[list[Mode], list[str]]:
    """The modes that run here, plain first, and a line for each that does not."""
    found = [Mode("sdpa, plain", plain),
             Mode(f"sdpa, recorded, {FEW_LAYERS} layers", partial(recorded, n_layers=FEW_LAYERS)),
             Mode("sdpa, recorded, all layers", recorded),
             Mode("eager", partial(plain, kernel=EAGER)),
             Mode("eager + output_attentions", eager_with_outputs)]
    absent = []
    if importlib.util.find_spec("nnsight"):
        found.append(Mode(f"nnsight {importlib.metadata.version('nnsight')} (eager)", nnsight_eager))
    else:
        absent.append("nnsight: not installed")
    if vlm.device.type == "cuda" and importlib.util.find_spec("flash_attn"):
        found += [Mode("flash_attention_2, plain", partial(plain, kernel=FLASH)),
                  Mode("flash_attention_2, recorded, all layers", partial(recorded, kernel=FLASH))]
    else:
        absent.append("flash_attention_2: " + ("flash-attn is not installed" if vlm.device.type == "cuda" else "no CUDA device"))
    return found, absent


# -------------------------------------------------------------------------------------- the model

def bench_vlm(options: argparse.Namespace) -> LocalVLM:
    """A loaded checkpoint; else random weights: tiny, about 200 M parameters (CPU), or Qwen3-VL-8B's shape (GPU)."""
    device = torch.device(options.device)
    if options.model:
        return load_vlm(options.model, device_map=options.device, attention="sdpa")
    if options.small or device.type == "cpu":
        model, processor = tiny_model("qwen3_vl", **SHAPES["small" if options.small else "200M"])
    else:
        model, processor = model_of_8b_shape(device)
    if device.type == "cuda":
        model = model.to(device, torch.bfloat16)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return LocalVLM(name=f"random Qwen3-VL, {n_parameters / 1e6:,.0f} M parameters", revision=None, family=family_of(model.config),
                    model=model, processor=processor, limits=None, attention="sdpa", attention_reason="chosen by the benchmark")


def model_of_8b_shape(device: torch.device) -> tuple[transformers.PreTrainedModel, transformers.ProcessorMixin]:
    """Qwen3-VL-8B's shape with random weights, built on the device, and a processor with a small tokenizer."""
    tiny, processor = tiny_model("qwen3_vl", max_image_tokens=16384)
    config = tiny.config
    config.text_config = transformers.Qwen3VLTextConfig(
        **QWEN3_VL_8B, pad_token_id=processor.tokenizer.pad_token_id, eos_token_id=processor.tokenizer.eos_token_id)
    config.vision_config = transformers.Qwen3VLVisionConfig(out_hidden_size=QWEN3_VL_8B["hidden_size"])
    with torch.device(device):
        model = type(tiny)._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.generation_config = tiny.generation_config
    return model.eval(), processor


def bench_row(vlm: LocalVLM, scale: Scale) -> Prompt:
    """A noise image and as much text as the scale says, none of which counts as generated yet."""
    processor = vlm.processor.image_processor
    pixels_per_token = processor.patch_size * processor.merge_size
    height, width = (n * pixels_per_token for n in scale.image_tokens)
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    prompt = vlm.prompt(image, "What color is the kite?")
    words = vlm.encode(" a red kite is near the box and a blue bird sits on the left of it,")
    n_missing = max(1, scale.n_text - (len(prompt) - prompt.n_image_tokens))
    return prompt.then((words * (n_missing // len(words) + 1))[:n_missing], QUESTION)


# --------------------------------------------------------------------------------- time and memory

@dataclass
class Clock:
    """Seconds of the same work, one entry a round: wall time, and processor time of this process."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def time(self, work: Callable[[], object]) -> None:
        _synchronize()
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        _synchronize()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)

    def main(self) -> list[float]:
        return self.wall if torch.cuda.is_initialized() else self.cpu


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def interleaved(works: dict[str, Callable[[Clock], None]], n_rounds: int, what: str) -> dict[str, Clock]:
    """Clocks of all works, one of each per round and each round in another order; one round to warm up."""
    clocks = {name: Clock() for name in works}
    names = list(works)
    for number in range(n_rounds):
        print(f"{what}: round {number + 1} of {n_rounds}", flush=True)
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            works[name](clocks[name])
    return clocks


def decode_time(vlm: LocalVLM, row: Prompt, found: Sequence[Mode], scale: Scale) -> dict[str, Clock]:
    """Seconds of decoding `scale.n_tokens` by each mode, from forks of one state, reading out included."""
    state = prefill(vlm, [row])

    def run(mode: Mode, clock: Clock) -> None:
        with mode.watch(vlm) as (watched, finish):
            # The first of the tokens comes from the state's own logits.
            clock.time(lambda: (decode(watched, state, scale.n_tokens + 1, stop_ids=()), finish()))

    works = {mode.name: partial(run, mode) for mode in found}
    interleaved(works, 1, "decode, to warm up")
    return interleaved(works, scale.decode_rounds, "decode")


def prefill_time(vlm: LocalVLM, row: Prompt, found: Sequence[Mode], scale: Scale) -> dict[str, Clock]:
    def run(mode: Mode, clock: Clock) -> None:
        with mode.watch(vlm) as (watched, finish):
            clock.time(lambda: (prefill(watched, [row]), finish()))

    works = {mode.name: partial(run, mode) for mode in found}
    works[rescoring(scale)] = lambda clock: clock.time(partial(rescore_rows, vlm, row, scale))
    return interleaved(works, scale.prefill_rounds, "prefill")


def rescoring(scale: Scale) -> str:
    return f"rescore, {scale.n_rescored} rows, all layers"


def rescore_rows(vlm: LocalVLM, row: Prompt, scale: Scale) -> None:
    """Teacher forcing over all of `row`: n ids are n rows, and the last id is not read."""
    n_read = scale.n_rescored - 1
    attention = rescore(vlm, row.cut(len(row) - n_read), (*row.ids[-n_read:], row.ids[-1]))
    assert attention.scores.shape[-1] == scale.n_rescored


@dataclass(frozen=True)
class Memory:
    """Megabytes above those of the loaded model: the most during the prefill, and what is held some tokens later."""

    peak: float
    held: float


def memory(vlm: LocalVLM, row: Prompt, found: Sequence[Mode], scale: Scale, n_threads: int) -> dict[str, Memory]:
    """The memory of each mode, and of scoring; nothing where the platform cannot tell."""
    def run(mode: Mode) -> Memory:
        with mode.watch(vlm) as (watched, finish):
            start = reset_peak()
            state = prefill(watched, [row])
            kept = finish()
            peak = peak_mb()
            decoded = decode(watched, state, HELD_TOKENS + 1, stop_ids=())
            kept = kept, finish(), decoded
            return Memory(peak - start, in_use_mb() - start)

    def run_scoring() -> Memory:
        start = reset_peak()
        rescore_rows(vlm, row, scale)
        return Memory(peak_mb() - start, in_use_mb() - start)

    works = {mode.name: partial(run, mode) for mode in found} | {rescoring(scale): run_scoring}
    if vlm.device.type == "cuda":
        return {name: work() for name, work in works.items()}
    if not Path("/proc/self/clear_refs").exists():
        return {}
    return {name: in_a_fork(work, n_threads) for name, work in works.items()}


def in_a_fork(work: Callable[[], Memory], n_threads: int) -> Memory:
    """`work` in a fork of this process, which finds the model loaded and the heap as all others find it."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def run() -> None:
        torch.set_num_threads(n_threads)
        results.put(work())

    process = context.Process(target=run)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"a memory measurement ended with status {process.exitcode}; its message is above")
    return results.get()


def reset_peak() -> float:
    """Forget the peak so far; returns the megabytes in use."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")
    return in_use_mb()


def peak_mb() -> float:
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    return _status_mb("VmHWM")


def in_use_mb() -> float:
    if torch.cuda.is_initialized():
        return torch.cuda.memory_allocated() / 2**20
    ctypes.CDLL(None).malloc_trim(0)             # what was freed goes back to the system before it is counted
    return _status_mb("VmRSS")


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


# -------------------------------------------------------------------------------------- the table

HEADER = ("mode", "decode ms/token", "ratio", "of least", "of wall", "prefill s", "ratio", "of wall", "peak MB", "ratio", "held MB")


@dataclass(frozen=True)
class Results:
    """All measurements of a run, by the name of the mode."""

    decode: dict[str, Clock]
    prefill: dict[str, Clock]
    memory: dict[str, Memory]
    grid: swap_grid.Grid
    scale: Scale
    base: str = "sdpa, plain"

    def ratio(self, clocks: dict[str, Clock], name: str, wall: bool = False) -> float:
        """Median over rounds of the mode's time over the plain one's in the same round."""
        mine, plain = ((clock.wall if wall else clock.main()) for clock in (clocks[name], clocks[self.base]))
        return statistics.median(a / b for a, b in zip(mine, plain, strict=True))

    def of_least(self, name: str) -> float:
        return min(self.decode[name].main()) / min(self.decode[self.base].main())

    def of_peak(self, name: str) -> float:
        return self.memory[name].peak / self.memory[self.base].peak

    def lines(self) -> list[str]:
        """The table, as markdown."""
        rows = [HEADER, ("---",) + ("---:",) * (len(HEADER) - 1)]
        for name in self.prefill:
            cells = [name]
            if name in self.decode:
                ms = 1000 * statistics.median(self.decode[name].main()) / self.scale.n_tokens
                cells += [f"{ms:.1f}", f"{self.ratio(self.decode, name):.2f}", f"{self.of_least(name):.2f}",
                          f"{self.ratio(self.decode, name, wall=True):.2f}"]
            else:
                cells += ["-"] * 4
            cells += [f"{statistics.median(self.prefill[name].main()):.2f}", f"{self.ratio(self.prefill, name):.2f}",
                      f"{self.ratio(self.prefill, name, wall=True):.2f}"]
            if name in self.memory:
                used = self.memory[name]
                cells += [f"{used.peak:,.0f}", f"{self.of_peak(name):.2f}", f"{used.held:,.0f}"]
            else:
                cells += ["-"] * 3
            rows.append(tuple(cells))
        one = statistics.median(self.prefill[self.base].main())
        for name, seconds in self.grid.seconds.items():
            rows.append((name, *["-"] * 4, f"{seconds:.2f}", f"{seconds / one:.2f}", *["-"] * 4))
        return ["| " + " | ".join(row) + " |" for row in rows]

    def bars(self) -> list[tuple[str, float, float, bool]]:
        """(what, found, bar, whether it holds) for the figures that this toolkit promises on a CPU."""
        few, every = f"sdpa, recorded, {FEW_LAYERS} layers", "sdpa, recorded, all layers"
        found = [(f"decode, {FEW_LAYERS} layers recorded", self.ratio(self.decode, few), 1.05),
                 ("decode, all layers recorded", self.ratio(self.decode, every), 1.12),
                 (rescoring(self.scale) + ", against one prefill", self.ratio(self.prefill, rescoring(self.scale)), 1.25)]
        if self.memory:
            found.append(("prefill memory, all layers recorded", self.of_peak(every), 1.05))
        cheaper = self.grid.times_cheaper
        return [(what, value, bar, value <= bar) for what, value, bar in found] + [
            ("grid of 50 cells, times cheaper than separate prefills (at least)", cheaper, 15, cheaper >= 15)]


def setting(vlm: LocalVLM, row: Prompt, n_threads: int) -> str:
    """The line above a table: when, on what, with what."""
    if vlm.device.type == "cuda":
        hardware, clock = torch.cuda.get_device_name(vlm.device), "wall time"
    else:
        hardware, clock = f"{cpu_name()}, {n_threads} thread(s)", "processor time"
    return (f"{date.today()}, {hardware}, torch {torch.__version__}, transformers {transformers.__version__}, "
            f"{vlm.name}, {str(vlm.dtype).removeprefix('torch.')}, {row.n_image_tokens} image + "
            f"{len(row) - row.n_image_tokens} text tokens; {clock}")


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny model and few tokens: tries the script, measures nothing")
    parser.add_argument("--model", help="a checkpoint by hub id or folder instead of random weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--rounds", type=int, help="rounds of decoding")
    parser.add_argument("--all-cells", action="store_true", help="read each of the 50 cells separately, not one per length")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    options = parser.parse_args()
    scale = SMALL if options.small else Scale()
    scale = replace(scale, decode_rounds=options.rounds or scale.decode_rounds,
                    n_separate=len(swap_grid.TRIGGERS) if options.all_cells else scale.n_separate)
    torch.set_num_threads(1)                     # no thread may exist before the memory forks
    vlm = bench_vlm(options)
    row = bench_row(vlm, scale)
    found, absent = modes(vlm)
    header = setting(vlm, row, options.threads)
    print(f"{header}\nmeasures {', '.join(mode.name for mode in found)}", flush=True)
    used = memory(vlm, row, found, scale, options.threads)
    torch.set_num_threads(options.threads)
    results = Results(decode=decode_time(vlm, row, found, scale), prefill=prefill_time(vlm, row, found, scale), memory=used,
                      grid=swap_grid.measure(vlm, row, scale.n_rescored, scale.n_separate), scale=scale)
    bars = [f"- {what}: {value:.2f}, bar {bar:g}: {'held' if holds else 'MISSED'}" for what, value, bar, holds in results.bars()]
    notes = [f"- {line}" for line in (*absent, results.grid.agreement)]
    text = "\n".join([header, "", *results.lines(), "", *(() if options.small else bars), *notes]) + "\n"
    print("\n" + text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
