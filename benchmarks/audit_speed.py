"""How long an audit of many responses takes, and how much memory: `rekey audit` in a process of its own.

    python -m benchmarks.audit_speed                        # 50,000 lines: 8 models, original, relabel, 3 seeds
    python -m benchmarks.audit_speed --seeds 28             # as many lines in fewer images and more seeds

The responses are made up, in the form of `rekey evaluate`: items with records, token ids, and texts that are letters,
letters with a sentence, refusals, and reasoning of some 300 words.  Wanted: under 10 s and 500 MB.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from rekey.colors import COLORS
from rekey.records import LETTERS
from rekey.store import dumps

N_LINES, N_MODELS = 50_000, 8
MOST_S, MOST_MB = 10.0, 500.0
SHARES = {"letter": 0.65, "sentence": 0.15, "reasoning": 0.18, "refusal": 0.02}
THOUGHTS = (
    "Looking at the picture, I first search for the {noun} that the question names.",
    "There is a person near the left edge, and a row of parked cars behind a low wall.",
    "The {noun} stands close to the middle, partly hidden by a sign, and it is quite small.",
    "At first glance it could be {wrong}, but that is the light that falls on it from the side.",
    "Option {letter} says {right}, which fits what can be seen of the surface.",
    "The other options, such as {wrong}, do not fit: nothing of that color is on the object.",
    "Let me check once more whether another {noun} is in the scene, since the question speaks of one.",
    "Further back there is a bicycle, a bin, and a bench in the shade of a tree; none of them matters here.")
NOUNS = ("bag", "kite", "bench", "helmet", "bucket", "umbrella", "scarf", "box")


def responses(model: str, condition: str, seed: int | None, n_images: int,
              rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """The lines of one model on one benchmark."""
    for number in range(n_images):
        image_id, noun = f"photo_{number:05d}", NOUNS[number % len(NOUNS)]
        options = [COLORS[n] for n in rng.permutation(len(COLORS))[:4]]
        answer = int(rng.integers(4))
        said = answer if rng.random() < 0.8 else int(rng.integers(4))
        item: dict[str, Any] = {
            "item_id": image_id, "image": f"images/{image_id}.png", "image_sha256": rng.bytes(32).hex(),
            "question": f"What color is the {noun} in the image?", "options": options, "answer": LETTERS[answer],
            "category": "direct_attributes"}
        if seed is not None:
            left, top, width, height = (int(part) for part in rng.integers(20, 120, 4))
            slot = {"image_id": image_id, "slot_id": "A1", "mode": "replace", "context": [0, 0, 400, 400],
                    "edit": [left, top, left + width, top + height],
                    "targets": [f"{options[answer - 1]} {noun}"]}
            item |= {"item_id": f"{image_id}/seed{seed}", "source_answer": options[answer - 1], "record": {
                "image_id": image_id, "seed": seed, "question_type": "attribute", "attribute": "color",
                "keys": [{"slot": slot, "mode": "replace", "object": f"{options[answer - 1]} {noun}",
                          "color": options[answer]}]}}
        text = _text(options, said, noun, rng)
        asked = " ".join((item["question"], *(f"({letter}) {option}" for letter, option in zip(LETTERS, options)),
                          "Answer with the option's letter from the given choices directly."))
        yield {"key": rng.bytes(16).hex(), "item": item, "model": model,
               "settings": {"prompt": "direct", "max_new_tokens": 8192, "temperature": 0.0, "backend": "hf",
                            "revision": "a" * 40, "dtype": "bfloat16"},
               "asked": asked, "run": "0123456789ab", "image_size": [1500, 2250], "edit_tokens": 3.25,
               "generation": {"text": text, "token_ids": rng.integers(0, 150_000, len(text) // 4 + 2).tolist(),
                              "n_prompt_tokens": 3377, "n_image_tokens": 3290, "image_sizes": [[1504, 2240]],
                              "finish": "stop", "elapsed_s": 1.234}}


def _text(options: list[str], said: int, noun: str, rng: np.random.Generator) -> str:
    letter, kind = LETTERS[said], rng.choice(list(SHARES), p=list(SHARES.values()))
    if kind == "letter":
        return letter
    if kind == "sentence":
        return f"{letter}. The {noun} is {options[said]}."
    if kind == "refusal":
        return f"I cannot see a {noun} in the image, so its color cannot be determined."
    words = {"noun": noun, "letter": letter, "right": options[said], "wrong": options[said - 1]}
    thoughts = [THOUGHTS[n].format(**words) for n in rng.integers(len(THOUGHTS), size=20)]
    return "\n\n".join((" ".join(thoughts[:10]), " ".join(thoughts[10:]), f"**Answer: ({letter}) {options[said]}**"))


def write_files(folder: Path, n_seeds: int, n_lines: int) -> tuple[list[str], int, float]:
    """Words for `rekey audit`, lines written, and their mean size in bytes."""
    conditions = [("original", None), ("relabel", None), *((f"seed{seed}", seed) for seed in range(1, n_seeds + 1))]
    n_images = n_lines // (N_MODELS * len(conditions))
    words, n_written, size = [], 0, 0
    for number, (name, seed) in enumerate(conditions):
        path = folder / f"{name}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for model in range(N_MODELS):
                rng = np.random.default_rng([number, model])
                for line in responses(f"model-{model}", name, seed, n_images, rng):
                    size += file.write(dumps(line) + "\n")
                    n_written += 1
        words += [f"--{name}" if seed is None else "--renewed", str(path)]
    return words, n_written, size / n_written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="renewed benchmarks")
    parser.add_argument("--lines", type=int, default=N_LINES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words, n_lines, size = write_files(folder, options.seeds, options.lines)
        wall, before = [], resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(options.rounds):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-m", "experiments.cli", "audit", *words, "--out", str(folder / "audit")],
                           check=True, stdout=subprocess.DEVNULL)
            wall.append(time.perf_counter() - started)
        n_models = len(json.loads((folder / "audit" / "audit.json").read_text(encoding="utf-8"))["models"])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime) / options.rounds
    peak_mb = used.ru_maxrss / 2**(20 if sys.platform == "darwin" else 10)
    held = statistics.median(wall) < MOST_S and peak_mb < MOST_MB
    times = ", ".join(f"{seconds:.1f}" for seconds in wall)
    print(f"{date.today()}; {_hardware()}\n{n_lines:,} lines of {size:,.0f} bytes, {n_models} models, {options.seeds} "
          f"seeds, 10,000 bootstrap draws: {times} s ({cpu:.1f} s of processor time each), peak of the largest "
          f"process {peak_mb:.0f} MB; wanted under {MOST_S:.0f} s and {MOST_MB:.0f} MB: "
          f"{'held' if held else 'MISSED'}")
    raise SystemExit(not held)


def _hardware() -> str:
    # After the measurement: a child's peak is not less than this process's when it started it, and torch is large.
    import torch

    from benchmarks.measuring import hardware
    return hardware(torch.device("cpu"), 1)


if __name__ == "__main__":
    main()
