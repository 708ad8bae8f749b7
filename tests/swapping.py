"""What the tests of the swap experiments share: a few pairs of drawn scenes, and a count made from the lines alone.

    write_scene_pairs(tmp_path, 6)                          # color and position pairs, which the controls can answer
    Lines(tmp_path / "trials.jsonl").share("control:anchored", "b", place="reasoning")
"""

from __future__ import annotations

import csv
import importlib
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from probes.pair_scenes import draw_scene_pair
from rekey.images import save_png
from rekey.pairs import write_pairs
from rekey.records import SwapPair
from rekey.scenes import render_scene
from rekey.store import read_jsonl

FAST = ("--max-new-tokens", "40", "--rows-at-once", "200")
CONTROLS = ("--model", "control:grounded", "--model", "control:anchored")


def write_scene_pairs(folder: Path, n: int, seed: int = 3) -> list[SwapPair]:
    """The pairs and their images in a folder; the first half is about color, the second about position."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = []
    for number in range(n):
        asked = "color" if number < n // 2 else "position"
        drawn = draw_scene_pair(seed, number, asked)
        for side in "ab":
            save_png(folder / f"{number}{side}.png", render_scene(getattr(drawn, side)))
        pairs.append(SwapPair(f"p{number}", f"{number}a.png", f"{number}b.png", drawn.question.text,
                              drawn.question.options, drawn.letter("a"), drawn.letter("b"), category=asked))
    write_pairs(folder / "pairs.jsonl", pairs)
    return pairs


def run_experiment(name: str, *options: object, exit_code: int = 0) -> Result:
    module = importlib.import_module(f"experiments.{name}")
    result = CliRunner().invoke(module.main, [str(option) for option in options], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def table(out: Path) -> list[dict[str, str]]:
    with (out / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Lines:
    """Trials as plain JSON; the controls end every answer in its letter: the last character is what was said."""

    def __init__(self, path: Path):
        self.lines = list(read_jsonl(path))

    def of(self, model: str, category: str | None = None, **cell: object) -> list[dict]:
        """Lines whose cell is just this one; what is not named is at its default."""
        wanted = {"place": "base", "image": "b", "regime": "recompute", "kept": 1.0, "phrase": "", "history": "kept",
                  "log_bias": 0.0} | cell
        default = {"image": "b", "regime": "recompute", "kept": 1.0, "phrase": "", "history": "kept", "log_bias": 0.0}
        return [line for line in self.lines
                if line["model"] == model and (category is None or line["pair"]["category"] == category)
                and all((default | line["cell"])[name] == value for name, value in wanted.items())]

    def share(self, model: str, says: str, category: str | None = None, **cell: object) -> float:
        """Share of the lines whose last letter is answer_a or answer_b."""
        lines = self.of(model, category, **cell)
        return float(np.mean([line["second"]["text"].strip()[-1] == line["pair"][f"answer_{says}"] for line in lines]))
