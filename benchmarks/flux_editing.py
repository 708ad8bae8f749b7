"""How fast `flux-canny` edits, with how much memory, and how many edits certify: one run of ten minutes on one GPU.

    python -m benchmarks.flux_editing --base models/FLUX.1-dev --controlnet models/Union-Pro-2.0 --pictures
    python -m benchmarks.flux_editing --random full         # random weights of the real size: speed and memory alone
    python -m benchmarks.flux_editing --random tiny         # tries the script, on a CPU in under a minute

Written for one H200.  Every part looks at the clock first: what would not end within --minutes is left out, and is
listed.  --out gets lines.jsonl, a line as soon as it is measured, and table.md.  Seconds are of whole paintings:
encoding, all steps, decoding, and the pictures back on the CPU.  Beside them stands how long the arithmetic alone would
take at the peak of the tensor cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import transformers

from benchmarks import flux_edits
from benchmarks.flux_models import FULL, TINY, Arithmetic, Configs, RandomFluxPainter, arithmetic
from benchmarks.flux_tables import tables
from benchmarks.measuring import Clock, hardware, on_gpu, peak_mb, reset_peak
from editors.flux import FluxSettings
from editors.flux_painter import FluxPainter
from editors.painting import CELL_PX, Painting
from editors.settings import Schedule
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.store import Journal, write_atomic

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0}    # dense bfloat16 of the SXM cards, by their data sheets
FIRST_GUESS_SHARE = 0.25                        # of the peak, until something was measured
COMPILE_GUESS_S = 90.0
SHORT_CALL_S = 6.0                              # calls up to this are measured three times, longer ones once
CERTIFIED_SHARE = 0.35                          # of the minutes, for edits that are certified
EAGER, COMPILED = "eager", "compiled"


@dataclass(frozen=True)
class Case:
    """One measurement of speed: as many paintings at once, on one canvas."""

    canvas_px: int
    start: str
    batch: int
    mode: str

    def __str__(self) -> str:
        return f"{self.canvas_px} px, {self.start}, batch {self.batch}, {self.mode}"


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    canvases_px: tuple[int, int] = (512, 1024)
    batches: tuple[int, int, int] = (1, 4, 8)
    steps: int | None = None
    n_cpu_edits: int = 16
    n_certified: int | None = None

    def first(self, mode: str) -> list[Case]:
        """What a user will meet: the usual batches of 4 at 512 px and 1 at 1024 px, then others at 512 px."""
        (small, large), (one, usual, many) = self.canvases_px, self.batches
        return [Case(*case, mode) for case in (
            (small, "prepaint", usual), (large, "prepaint", one), (small, "source", usual), (large, "source", one),
            (small, "prepaint", many), (small, "source", many), (small, "prepaint", one), (small, "source", one))]

    def then(self, mode: str) -> list[Case]:
        """Larger batches at 1024 px, where one picture keeps a GPU busy already."""
        return [Case(self.canvases_px[1], start, batch, mode) for batch in self.batches[1:]
                for start in ("prepaint", "source")]


SMALL = Scale((64, 128), (1, 2, 3), steps=2, n_cpu_edits=4, n_certified=4)


class Bench:
    """One run: what is measured with, the time that is left, and what was found."""

    def __init__(self, options: argparse.Namespace, painter: FluxPainter, configs: Configs, scale: Scale):
        self.options, self.painter, self.configs, self.scale = options, painter, configs, scale
        self.settings = painter.settings
        self.ends = time.monotonic() + 60 * options.minutes
        self.lines: list[dict[str, Any]] = []
        self.rates: dict[str, float] = {}               # by mode: 10^12 operations a second, as last measured
        self.compiled_s: list[float] = []
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "lines.jsonl").unlink(missing_ok=True)
        self.journal = Journal(options.out / "lines.jsonl")

    @property
    def left_s(self) -> float:
        return self.ends - time.monotonic()

    def add(self, part: str, **found: Any) -> None:
        """Keep a finding, and bring the table up to date."""
        line = {"part": part, **found}
        self.lines.append(line)
        self.journal.append(line)
        write_atomic(self.options.out / "table.md", tables(self.lines))
        said = ", ".join(f"{name} {round(value, 3) if isinstance(value, float) else value}"
                         for name, value in found.items() if not isinstance(value, dict | list))
        print(f"[{max(0, self.left_s):4.0f} s left] {part}: {said}", flush=True)

    def has_time(self, what: str, needed_s: float) -> bool:
        if needed_s <= self.left_s:
            return True
        self.add("left out", what=what, reason=f"needs about {needed_s:.0f} s, {max(0, self.left_s):.0f} s are left")
        return False

    # --------------------------------------------------------------------------------------------- speed

    @cached_property
    def arithmetic(self) -> dict[int, Arithmetic]:
        return {canvas_px: arithmetic(self.configs, canvas_px, self.settings.text_tokens)
                for canvas_px in self.scale.canvases_px}

    @cached_property
    def peak_tflops(self) -> float | None:
        if self.painter.device.type != "cuda":
            return None
        name = torch.cuda.get_device_name(self.painter.device)
        return next((peak for chip, peak in PEAK_TFLOPS.items() if chip in name), None)

    def tf_per_edit(self, case: Case) -> float:
        return self.arithmetic[case.canvas_px].tf_per_edit(schedule_of(case, self.settings).steps)

    def needed_s(self, case: Case) -> float:
        """A guess, by what was measured before."""
        guess = (self.peak_tflops or 0.0) * FIRST_GUESS_SHARE
        rate = self.rates.get(case.mode) or max(self.rates.values(), default=guess)
        seconds = 1.3 * case.batch * self.tf_per_edit(case) / rate if rate else 0.0
        if case.mode == COMPILED and not self.is_warm(case):
            seconds += max(self.compiled_s, default=COMPILE_GUESS_S)
        return seconds

    def is_warm(self, case: Case) -> bool:
        shape = case.canvas_px, case.batch, case.mode
        return any((line["canvas_px"], line["batch"], line["mode"]) == shape
                   for line in self.lines if line["part"] == "speed")

    def measure(self, cases: Iterable[Case]) -> None:
        for case in cases:
            if not self.has_time(str(case), self.needed_s(case)):
                continue
            try:
                self.add("speed", **asdict(case), **self.timed(case))
            except InputError as error:                     # of the GPU's memory
                self.add("left out", what=str(case), reason=str(error))
                torch.cuda.empty_cache()
            except Exception as error:
                if case.mode == EAGER:
                    raise
                # A compiler that is missing or fails must not cost the rest of a run that cannot be repeated.
                self.add("left out", what="whatever else is compiled", reason=f"{case}: {type(error).__name__}: "
                                                                              f"{str(error).splitlines()[0]}")
                return

    def timed(self, case: Case) -> dict[str, Any]:
        """Seconds of the painter's calls."""
        self.painter.settings = replace(self.settings, canvases_px=(case.canvas_px,), batch_size=case.batch)
        paintings = noise_paintings(case, self.settings)
        one_step = [replace(painting, schedule=replace(painting.schedule, steps=1)) for painting in paintings]
        was_warm, first, clock = self.is_warm(case), Clock(), Clock()
        with stance(case.mode):
            first.time(lambda: self.painter.paint(one_step))
            if on_gpu():
                reset_peak()
            while not clock.wall or (len(clock.wall) < 3 and clock.wall[0] < SHORT_CALL_S
                                     and 2 * clock.wall[0] < self.left_s):
                clock.time(lambda: self.painter.paint(paintings))
        if case.mode == COMPILED and not was_warm:
            self.compiled_s.append(first.wall[0])
        tf, seconds = self.tf_per_edit(case), clock.median / case.batch
        self.rates[case.mode] = tf / seconds
        return {"steps": paintings[0].schedule.steps, "s_per_call": clock.seconds, "s_per_edit": seconds,
                "tf_per_edit": tf, "tflops": tf / seconds,
                "floor_s": tf / self.peak_tflops if self.peak_tflops else None,
                "share_of_peak": tf / seconds / self.peak_tflops if self.peak_tflops else None,
                "first_call_s": first.wall[0], "first_of_its_shape": not was_warm,
                "peak_gb": peak_mb() * 2 ** 20 / 1e9 if on_gpu() else None}

    # ----------------------------------------------------------------------------------------- the parts

    def cpu(self) -> None:
        """The real canvases also where the model is tiny: nothing of this depends on it."""
        if not flux_edits.demo_edits():
            self.add("left out", what="the CPU side", reason="no demo photograph is installed")
            return
        if not self.has_time("the CPU side", 1.5 * self.scale.n_cpu_edits):
            return
        settings = replace(self.settings, canvases_px=FluxSettings().canvases_px)
        seconds = flux_edits.cpu_seconds(settings, self.options.out, self.scale.n_cpu_edits)
        self.add("cpu", seconds=seconds, n_edits=self.scale.n_cpu_edits, n_cores=len(os.sched_getaffinity(0)))

    def load(self) -> None:
        texts = flux_edits.prompts(self.settings)
        started = time.perf_counter()
        self.painter.expect(texts)
        encoded = time.perf_counter()
        _ = self.painter.pipeline
        self.add("load", n_prompts=len(texts), encode_prompts_s=encoded - started,
                 load_s=time.perf_counter() - encoded,
                 held_gb=torch.cuda.memory_allocated() / 1e9 if on_gpu() else None)

    def certify(self) -> None:
        seconds = 60 * CERTIFIED_SHARE * self.options.minutes
        if not self.has_time("certified edits", seconds):
            return
        self.painter.settings = replace(self.settings, canvases_px=self.scale.canvases_px)
        folder = self.options.out if self.options.pictures else None
        for line in flux_edits.certified(self.painter, self.painter.settings, folder, seconds, self.scale.n_certified):
            self.add("certified", **line)

    def compile(self, cache: Path) -> None:
        self.painter.settings = replace(self.settings, compile_cache=cache)
        self.painter.compile(self.painter.pipeline)

    def compile_again(self) -> None:
        """As the next process would: with what the cache keeps."""
        case = self.scale.first(COMPILED)[0]
        if self.is_warm(case) and self.has_time("compiling again from the cache", max(self.compiled_s)):
            torch.compiler.reset()
            self.add("compiled again", canvas_px=case.canvas_px, batch=case.batch,
                     cold_s=self.compiled_s[0], first_call_s=self.timed(case)["first_call_s"])

    def run(self) -> None:
        self.add("setting", **self.setting())
        for canvas_px, found in self.arithmetic.items():
            self.add("arithmetic", canvas_px=canvas_px, text_tokens=self.settings.text_tokens, **asdict(found))
        self.cpu()
        self.load()
        self.measure(self.scale.first(EAGER))
        if self.options.random != "full":               # certifying noise would tell nothing; tiny: tries the code
            self.certify()
        if self.options.compiled:
            # Empty, so that the first call of each shape is a cold one.
            with tempfile.TemporaryDirectory(prefix="flux_editing_", ignore_cleanup_errors=True) as cache:
                self.compile(Path(cache))
                self.measure(self.scale.first(COMPILED))
                self.compile_again()
                self.measure(self.scale.then(COMPILED))
        self.measure(self.scale.then(EAGER))

    def setting(self) -> dict[str, Any]:
        weights = {name: {"id": one.id, "revision": one.revision} for name, one in self.painter.located().items()}
        return {"date": str(date.today()), "hardware": hardware(self.painter.device, torch.get_num_threads()),
                "device": self.painter.device.type, "random": self.options.random, "small": self.options.small,
                "weights": weights,
                "dtype": str(self.painter.dtype).removeprefix("torch."), "text_tokens": self.settings.text_tokens,
                "torch": torch.__version__, "cuda": torch.version.cuda, "diffusers": diffusers.__version__,
                "transformers": transformers.__version__, "python": platform.python_version(),
                "canvases_px": list(self.scale.canvases_px), "usual_batch": self.scale.batches[1]}


def schedule_of(case: Case, settings: FluxSettings) -> Schedule:
    return settings.schedule("prepaint" if case.start == "prepaint" else "replace")


def stance(mode: str) -> contextlib.AbstractContextManager:
    """What is compiled already can still be run eagerly."""
    return torch.compiler.set_stance("force_eager") if mode == EAGER else contextlib.nullcontext()


def noise_paintings(case: Case, settings: FluxSettings) -> Sequence[Painting]:
    rng, side = np.random.default_rng(0), case.canvas_px
    hole = Box(*(round(share * side / CELL_PX) * CELL_PX for share in (0.25, 0.25, 0.75, 0.75)))
    return [Painting(rng.integers(0, 256, (side, side, 3), np.uint8), hole, f"Thing {number}.", number,
                     schedule_of(case, settings),
                     np.repeat((rng.random((side, side, 1)) > 0.93) * np.uint8(255), 3, -1))
            for number in range(case.batch)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    weights = parser.add_mutually_exclusive_group(required=True)
    weights.add_argument("--base", help="FLUX.1-dev: a folder in the layout of diffusers, or a hub id")
    weights.add_argument("--random", choices=("full", "tiny"), help="random weights of the real size, or tiny")
    parser.add_argument("--controlnet", help="with --base: a folder or hub id; the default is Union-Pro-2.0")
    parser.add_argument("--minutes", type=float, default=9.0, help="of the whole run; what does not fit is left out")
    parser.add_argument("--out", type=Path, default=Path("runs/flux_editing"), help="folder of lines.jsonl, table.md")
    parser.add_argument("--pictures", action="store_true", help="sheets of the edits that were tried, before and after")
    parser.add_argument("--small", action="store_true", help="small canvases and few steps, to try the script")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available(),
                        help="also measure with torch.compile; default: on a GPU")
    options = parser.parse_args()
    if options.random and options.controlnet:
        parser.error("--controlnet goes with --base; --random makes one")
    options.small |= options.random == "tiny"
    scale = SMALL if options.small else Scale()
    settings = FluxSettings(device=options.device, steps=scale.steps)
    if options.random:
        configs = TINY if options.random == "tiny" else FULL
        painter: FluxPainter = RandomFluxPainter(settings, configs)
        if configs is FULL and painter.device.type == "cpu":
            parser.error("--random full: 28 GB of random weights are for a GPU, not for this CPU; try --random tiny")
    else:
        settings = replace(settings, base=options.base, controlnet=options.controlnet or settings.controlnet)
        painter = FluxPainter(settings)
        painter.check()
        configs = Configs.of_folders(*(one.folder for one in painter.located().values()))
    diffusers.logging.set_verbosity_error()
    transformers.logging.set_verbosity_error()
    bench = Bench(options, painter, configs, scale)
    bench.run()
    print("\n" + tables(bench.lines))
    print(f"written to {options.out / 'table.md'} and {options.out / 'lines.jsonl'}")


if __name__ == "__main__":
    main()
