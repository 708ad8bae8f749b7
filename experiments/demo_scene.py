"""The demo's second part: a small trained model is asked about a scene, before and after the image is swapped.

    told = ask_controls(Path("demo/scene"))          # what the page shows: texts, and two figures as PNG files

A scene is renewed by the same editor as the photographs.  control:clean answers a question about it; then the
reasoning is kept, the image exchanged, and a reflection phrase put into the model's mouth (VisualSwap, Sec. 2).
control:grounded and control:anchored, who were trained to look again and not to, show what either would look like.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from rekey.images import LoadedImage, pixel_sha256
from rekey.prompts import prompt_text
from rekey.records import Item
from rekey.scenes import AskedScene, asked_scene, render_scene

SCENE_SEED, RENEWAL_SEED = "demo 3", 1
REFLECTION = "Wait, let me look at the image once more."
MAX_NEW_TOKENS = 64
MODELS = ("control:natural", "control:grounded", "control:anchored")
HEAT, ACCENT = "magma", "#c23c00"


@dataclass(frozen=True)
class Continued:
    """What one model said after the phrase, under the other image."""

    model: str
    text: str
    letter: str
    color: str


@dataclass(frozen=True)
class Told:
    """Everything the page shows of the scene."""

    image_a: Path
    image_b: Path
    figure: Path
    question: str
    options: tuple[str, ...]
    color_a: str
    color_b: str
    answers: tuple[str, str]
    """What control:clean says about each image."""
    kept: str
    """The reasoning about the first image that is kept after the swap."""
    reflection: str
    continued: tuple[Continued, ...]


def renewed_scene() -> tuple[AskedScene, np.ndarray, np.ndarray, Item]:
    """A scene, its pixels, its pixels renewed by the classical editor, and the renewed item."""
    from editors.classical import ClassicalEditor
    from rekey.regenerate import regenerate
    from rekey.sampling import Pool
    one = asked_scene("scene", SCENE_SEED, kind="color")
    pixels = render_scene(one.scene)
    outcome = regenerate(LoadedImage(pixels, pixel_sha256(pixels), "PNG", "RGB", ()), Pool(one.slots), RENEWAL_SEED,
                         ClassicalEditor(), distractors="lure")
    assert outcome.item is not None, outcome.failure
    return one, pixels, outcome.pixels, outcome.item


def ask_controls(folder: Path) -> Told:
    """Ask, swap, ask on; writes the two pictures and a figure into `folder`."""
    from probes.attention import rescore
    from probes.controls.exam import said_letter
    from probes.vlm import load_vlm
    folder.mkdir(parents=True, exist_ok=True)
    one, pixels_a, pixels_b, item = renewed_scene()
    for name, pixels in (("a", pixels_a), ("b", pixels_b)):
        Image.fromarray(pixels).save(folder / f"scene_{name}.png")
    question = prompt_text(item.question, item.options, "cot")
    continued, answers, kept = [], (), ""
    for name in MODELS:
        vlm = load_vlm(name, device_map="cpu")
        prompts = [vlm.prompt(vlm.encode_image(pixels, region=one.slots.slots[0].edit), question)
                   for pixels in (pixels_a, pixels_b)]
        first = vlm.generate(prompts, MAX_NEW_TOKENS)
        reasoning = first[0].text.partition(" So the answer")[0]
        said = [*vlm.encode(reasoning), *vlm.encode(f" {REFLECTION}")]
        again = vlm.continue_from([prompts[1]], [said], MAX_NEW_TOKENS)[0]
        letter = said_letter(again.text) or "-"
        color = item.options["ABCD".index(letter)] if letter in "ABCD"[:len(item.options)] else "-"
        continued.append(Continued(name, again.text, letter, color))
        if name == MODELS[0]:
            answers, kept = tuple(answer.text for answer in first), reasoning
            ids = [first[0].token_ids, (*said, *again.token_ids)]
            traces = [rescore(vlm, prompt, tokens) for prompt, tokens in zip(prompts, ids)]
            words = [[vlm.text_of([token], skip_special_tokens=False) for token in tokens] for tokens in ids]
            _draw(folder / "attention.png", traces, words, len(said))
    old = one.scene.find(*one.asked).color
    return Told(folder / "scene_a.png", folder / "scene_b.png", folder / "attention.png", item.question, item.options,
                old, item.answer_text, answers, kept, REFLECTION, tuple(continued))


def _draw(path: Path, traces, words: list[list[str]], t_swap: int) -> None:
    """Mass on the image by layer and token decided: the first answer, and the one continued under the other image."""
    from matplotlib.figure import Figure
    widths = [len(tokens) for tokens in words]
    figure = Figure(figsize=(0.19 * max(widths) + 1.6, 5.6), dpi=150, layout="constrained")
    axes = figure.subplots(2, 1)
    titles = ("about the first image", "kept, with the phrase, under the second image")
    for axis, trace, tokens, title in zip(axes, traces, words, titles):
        mass = trace.scores.mean(1)                                         # (L, H, T) -> (L, T)
        shown = axis.imshow(mass, aspect="auto", cmap=HEAT, vmin=0, vmax=0.6, interpolation="nearest")
        axis.set_xticks(range(len(tokens)), [_shown(token) for token in tokens], rotation=90, fontsize=7.5)
        axis.set_yticks(range(mass.shape[0]), [str(layer) for layer in trace.layers], fontsize=8)
        axis.set_ylabel("layer", fontsize=8)
        axis.set_title(f"control:clean, {title}", fontsize=9, loc="left")
        axis.set_xlim(-0.5, max(widths) - 0.5)
        axis.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes[1].axvline(t_swap - 0.5, color="white", linewidth=1.6)
    axes[1].annotate("from here on it speaks", (t_swap - 0.2, -0.75), fontsize=7.5, annotation_clip=False)
    figure.colorbar(shown, ax=axes, label="attention mass on the image, mean over heads", shrink=0.7, pad=0.01)
    figure.savefig(path)


def _shown(token: str) -> str:
    return token.strip().replace("<|im_end|>", "end") or "\\n"
