"""The demo's last part: two models with equal benchmark scores, one of which has memorized the benchmark, are audited.

    report = audit_controls(Path("demo/audit"), workers=2, stop=stop)

    demo/audit/original, relabel, seed1 ...     drawn scenes, other questions about them, and their renewals
    demo/audit/responses/                       what the models answered, a line each
    demo/audit/report/                          table.md, table.csv, flips.csv, audit.png, audit.json

control:clean has never seen these scenes; control:contaminated was trained on 160 scenes of this seed until it knew
them by heart.  The commands a user would type do the same: rekey scenes, generate, evaluate, audit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from experiments.audit import write_audit
from experiments.evaluate import EvaluateJob, evaluate
from experiments.generate import GenerateJob, generate
from experiments.scenes import write_benchmark
from probes.backends import LoadedWhenAsked, ModelSpec
from probes.controls.contamination import BENCHMARK_SEED
from rekey.audit import Audit, audit
from rekey.evaluate import Settings

N_SCENES = 48
SEEDS = (1, 2, 3)
MODELS = ("control:clean", "control:contaminated")
BATCH, MAX_NEW_TOKENS = 16, 8


def audit_controls(folder: Path, workers: int, stop: threading.Event, say: Callable[[str], None]) -> Audit:
    """Draw, renew, ask, audit; what is there already is not made again."""
    benchmarks = {"original": folder / "original", "relabel": folder / "relabel"}
    for name, out in benchmarks.items():
        if not (out / "items.jsonl").exists():
            write_benchmark(out, N_SCENES, BENCHMARK_SEED, relabel=name == "relabel")
    original = benchmarks["original"]
    for seed in SEEDS:
        benchmarks[f"seed{seed}"] = out = folder / f"seed{seed}"
        generate(GenerateJob(original / "slots.jsonl", original / "images", out, seed, distractors="lure",
                             workers=workers), stop=stop)
    files = {name: folder / "responses" / f"{name}.jsonl" for name in benchmarks}
    for name in MODELS:
        model = ModelSpec(name, device_map="cpu")
        vlm = LoadedWhenAsked(model)
        n_asked = 0
        for benchmark, items in benchmarks.items():
            settings = Settings(max_new_tokens=MAX_NEW_TOKENS)
            summary = evaluate(EvaluateJob(items, model, files[benchmark], settings, BATCH), stop=stop, vlm=vlm)
            n_asked += summary.n_questions
        say(f"{name} answered {n_asked} questions")
    report = audit([files["original"]], [files[f"seed{seed}"] for seed in SEEDS], [files["relabel"]])
    write_audit(report, folder / "report")
    return report
