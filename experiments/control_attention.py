"""What attention tells about models whose behavior is known (VisualSwap, Sec. 5.3, on the control models).

    python -m experiments.control_attention --out runs/control_attention

One CPU, about a minute.  For every control, reasoning about one image is continued under another after a reflection
phrase.  Grounded controls then answer by the image and anchored ones by their own text, so a score of attention that
measures looking must tell the two apart.  Each score is given with its AUC between their trials: 1.0 or 0.0
separates them, 0.5 does not; the null column splits the grounded trials alone in two halves.

Writes trials.jsonl (one line per trial: masses by layer and head) and table.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from rekey import store

MODELS = ("control:natural", "control:grounded", "control:anchored")
N_PAIRS, SEED = 60, 3
PIECES = ("reasoning", "phrase", "after")
TOKEN_PX = 64                    # side of an image token, in pixels of the scene


@dataclass(frozen=True)
class Trial:
    """One continued reasoning: masses are (layers, heads) means over the tokens of a piece, or at one token."""

    model: str
    follows: str
    """"image", "text" or "neither": whose answer was given."""
    image_mass: dict[str, np.ndarray]
    """Mass on all image tokens, by piece."""
    deciding_image: np.ndarray
    """Mass on the image where the value is about to be said."""
    deciding_object: np.ndarray
    """Mass on the image tokens of the object asked about, there."""
    deciding_stated: np.ndarray
    """Mass on the value that the reasoning stated, there."""


def run_trial(vlm, pair, phrase: str) -> Trial | None:
    """The trial of one color pair, or None where the first answer was not right."""
    import torch

    from probes.controls.exam import REASONING_TOKENS, said_letter
    from probes.reference import eager_run
    from rekey.prompts import prompt_text
    from rekey.scenes import render_scene
    question = prompt_text(pair.question.text, pair.question.options, "cot")
    pixels_a, pixels_b = render_scene(pair.a), render_scene(pair.b)
    prompt = vlm.prompt(pixels_a, question)
    first = vlm.generate([prompt], REASONING_TOKENS)[0]
    if said_letter(first.text) != pair.question.letter(pair.a):
        return None
    reasoning = vlm.encode(first.text.partition(" So the answer")[0])
    trigger = vlm.encode(f" {phrase}")
    prompt_b = vlm.prompt(pixels_b, question)
    again = vlm.continue_from([prompt_b], [reasoning + trigger], REASONING_TOKENS)[0]
    letter = said_letter(again.text)
    follows = {pair.question.letter(pair.b): "image", pair.question.letter(pair.a): "text"}.get(letter, "neither")
    said = [*reasoning, *trigger, *again.token_ids]
    _, by_layer = eager_run(vlm, [pixels_b], question, said[:-1], n_rows=len(said))
    weights = torch.stack([by_layer[layer] for layer in sorted(by_layer)]).numpy()       # (L, H, T, S)
    (image,) = prompt_b.images
    start = prompt_b.image_end - image.n_tokens
    on_image = weights[..., start:prompt_b.image_end].sum(-1)                               # (L, H, T)
    bounds = np.cumsum([0, len(reasoning), len(trigger), len(again.token_ids)])
    pieces = {name: on_image[..., low:high].mean(-1) for name, low, high in zip(PIECES, bounds, bounds[1:])}
    values = {vlm.encode(f" {option}")[0] for option in pair.question.options}
    deciding = next((k for k in range(bounds[2], len(said)) if said[k] in values), None)
    stated = next((k for k in range(len(reasoning)) if said[k] in values), None)
    if deciding is None or stated is None:
        return None
    (box,) = [o.box for o in pair.b.objects if o.shape == pair.question.shapes[0]]
    held = [start + token for token in image.tokens_in(box.grown(TOKEN_PX // 2))]
    row = weights[:, :, deciding]                                                         # (L, H, S)
    return Trial(vlm.name, follows, pieces, on_image[..., deciding], row[..., held].sum(-1),
                 row[..., len(prompt_b) + stated])


def auc(first: Sequence[float], second: Sequence[float]) -> float:
    """Probability that a case of `first` scores higher than one of `second`, ties counting half."""
    difference = np.subtract.outer(np.asarray(first), np.asarray(second))
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def table(trials: Sequence[Trial]) -> str:
    """Markdown: behavior, mean image mass by layer and piece, and how well each score tells the habits apart."""
    by_model = {name: [t for t in trials if t.model == name] for name in MODELS}
    lines = ["| control | trials | answers by the image | answers by its text |", "|---|---|---|---|"]
    for name, found in by_model.items():
        shares = [100 * np.mean([t.follows == what for t in found]) for what in ("image", "text")]
        lines.append(f"| `{name}` | {len(found)} | {shares[0]:.0f} % | {shares[1]:.0f} % |")
    n_layers, n_heads = trials[0].deciding_image.shape
    lines += ["", "Mean mass on the image over all heads and tokens, by layer:", "",
              "| control | piece | " + " | ".join(f"layer {k}" for k in range(n_layers)) + " |",
              "|---" * (n_layers + 2) + "|"]
    for name, found in by_model.items():
        for piece in PIECES:
            means = np.mean([t.image_mass[piece].mean(1) for t in found], axis=0)
            lines.append(f"| `{name}` | {piece} | " + " | ".join(f"{m:.3f}" for m in means) + " |")
    grounded, anchored = by_model["control:grounded"], by_model["control:anchored"]
    halves = grounded[::2], grounded[1::2]
    lines += ["", "| score | AUC grounded over anchored | null | mean grounded | mean anchored | mean natural |",
              "|---|---|---|---|---|---|"]

    def add(title: str, of) -> None:
        values = {name: [of(t) for t in found] for name, found in by_model.items()}
        null = auc([of(t) for t in halves[0]], [of(t) for t in halves[1]])
        lines.append(f"| {title} | {auc(values[MODELS[1]], values[MODELS[2]]):.2f} | {null:.2f} | "
                     + " | ".join(f"{np.mean(values[name]):.3f}" for name in (MODELS[1], MODELS[2], MODELS[0])) + " |")

    add("image mass after the phrase, mean of all layers and heads", lambda t: t.image_mass["after"].mean())
    add("image mass after the phrase minus before, mean of all", lambda t: (t.image_mass["after"]
                                                                            - t.image_mass["reasoning"]).mean())
    for layer in range(n_layers):
        add(f"image mass after the phrase, layer {layer}", lambda t, k=layer: t.image_mass["after"][k].mean())
    add("image mass at the deciding token, mean of all", lambda t: t.deciding_image.mean())
    for what, attribute in (("the image", "deciding_image"), ("the object asked about", "deciding_object"),
                            ("the value it had stated", "deciding_stated")):
        scored = []
        for layer in range(n_layers):
            for head in range(n_heads):
                pick = [[getattr(t, attribute)[layer, head] for t in found] for found in (grounded, anchored)]
                scored.append((auc(*pick), layer, head))
        for value, layer, head in (max(scored), min(scored)):
            add(f"mass on {what} at the deciding token, layer {layer} head {head} "
                f"({'highest' if value == max(scored)[0] else 'lowest'} AUC of {len(scored)} heads)",
                lambda t, a=attribute, k=layer, h=head: getattr(t, a)[k, h])
    return "\n".join(lines) + "\n"


def measure(n_pairs: int = N_PAIRS, seed: int = SEED) -> list[Trial]:
    """Trials of all three controls over the same color pairs."""
    from probes.controls.exam import unseen_pairs
    from probes.phrases import HELD_OUT, REFLECTIONS
    from probes.vlm import load_vlm
    pairs = unseen_pairs(n_pairs, seed)[:n_pairs]                 # the first half is about color
    phrases = [phrase for phrase in REFLECTIONS if phrase not in HELD_OUT]
    trials = []
    for name in MODELS:
        vlm = load_vlm(name, device_map="cpu")
        found = [run_trial(vlm, pair, phrases[n % len(phrases)]) for n, pair in enumerate(pairs)]
        trials += [trial for trial in found if trial is not None]
    return trials


def as_line(trial: Trial) -> dict:
    def plain(values: np.ndarray) -> list:
        return np.round(values, 5).tolist()
    return {"model": trial.model, "follows": trial.follows,
            "image_mass": {piece: plain(values) for piece, values in trial.image_mass.items()},
            "deciding_image": plain(trial.deciding_image), "deciding_object": plain(trial.deciding_object),
            "deciding_stated": plain(trial.deciding_stated)}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/control_attention"), show_default=True)
@click.option("--pairs", "n_pairs", type=click.IntRange(min=2), default=N_PAIRS, show_default=True)
def main(out: Path, n_pairs: int) -> None:
    """Measure what attention tells on the control models."""
    trials = measure(n_pairs)
    store.write_jsonl(out / "trials.jsonl", map(as_line, trials))
    text = table(trials)
    store.write_atomic(out / "table.md", text)
    click.echo(text)


if __name__ == "__main__":
    main()
