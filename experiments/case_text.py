"""A trial in words: the conversation as the model read it, what it answered, and what that means (VisualSwap, Fig. 1).

    for turn in conversation(trial, first_texts(trials).get(trial.first)):
        turn.who, [(piece.kind, piece.text) for piece in turn.pieces]
    verdict(grade_trial(trial, texts)).sentence
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rekey.prompts import pair_prompt
from rekey.records import SwapPair
from rekey.reflections import find_reflections
from rekey.thinking import answer_start
from rekey.trials import Cell, GradedTrial, SwapTrial

Kind = Literal["question", "kept", "cut", "phrase", "said", "missing"]
REGIMES = {
    "recompute": "recompute: all text before is read again under the new image",
    "splice": "splice: only the image's own keys and values are exchanged; the text keeps what it took from the first",
    "none": "none: no image is exchanged",
}


@dataclass(frozen=True)
class Piece:
    """A run of text.  kind: "kept" of the first answer; "cut" from it; the "phrase" that was put in (or, of a natural
    reflection, said by the model itself); "said": what the model answered then; "missing": a note in its place."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Turn:
    who: Literal["user", "model"]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Verdict:
    """kind: a few words to sort by.  good: whether the answer is that of the image seen; None where none was read."""

    kind: str
    sentence: str
    good: bool | None


def conversation(trial: SwapTrial, first: str | None) -> list[Turn]:
    """All turns in order.  first: the text of the answer that is continued; None where it is not known."""
    pair, cell = trial.pair, trial.cell
    question = Turn("user", (Piece("question", pair_prompt(pair.question, pair.options,
                                                          trial.settings.get("prompt") or "cot")),))
    said = [Piece("said", trial.second.text)] if trial.second is not None else []
    if not cell.continues:
        return [question, Turn("model", tuple(said))]
    before = _first_answer(trial, first)
    if cell.place == "user turn":
        return [question, Turn("model", tuple(before)), Turn("user", (Piece("phrase", cell.phrase),)),
                Turn("model", tuple(said))]
    phrase = [Piece("phrase", cell.phrase)] if cell.phrase else []
    if cell.place == "new turn":
        return [question, Turn("model", tuple(before)), Turn("model", (*phrase, *said))]
    return [question, Turn("model", (*before, *phrase, *said))]


def _first_answer(trial: SwapTrial, first: str | None) -> list[Piece]:
    """What is kept of the first answer and what is cut away, in the order in which it was said."""
    if first is None:
        return [Piece("missing", "The first answer, which this trial continues, is not in this file of trials.")]
    cell = trial.cell
    if cell.history == "removed":
        pieces = [Piece("cut", first)]
    elif cell.history == "stripped":
        start = answer_start(first) or 0
        pieces = [Piece("cut", first[:start]), Piece("kept", first[start:].strip())]
    elif trial.skipped is not None or trial.error is not None and not trial.n_kept:
        pieces = [Piece("kept", first)]
    else:
        kept, cut = first[:trial.n_kept_chars], first[trial.n_kept_chars:]
        pieces = [*(_own_phrase(kept) if cell.place == "natural" else [Piece("kept", kept)]), Piece("cut", cut)]
        if not cut.strip():
            pieces.pop()
    return [piece for piece in pieces if piece.text]


def _own_phrase(kept: str) -> list[Piece]:
    """A reasoning that was cut behind the sentence in which it looks again by itself."""
    start = next((found.start for found in find_reflections(kept) if found.visual), len(kept))
    return [Piece("kept", kept[:start]), Piece("phrase", kept[start:])]


# ------------------------------------------------------------------------------------------ the answer

def answer_words(pair: SwapPair, answer: str | None) -> str:
    """An answer with its text: "(B) black", or the value where there are no options."""
    if answer is None:
        return "none that could be read"
    if not pair.options:
        return answer
    index = ord(answer) - ord("A")
    return f"({answer}) {pair.options[index]}" if 0 <= index < len(pair.options) else f"({answer}), which is no option"


def verdict(graded: GradedTrial) -> Verdict:
    cell = graded.trial.cell
    if graded.outcome == "error":
        return Verdict("failed", f"Failed: {graded.how}.", None)
    if graded.outcome == "truncated":
        return Verdict("cut off", "Cut off: it used all of its tokens before it answered.", None)
    if graded.outcome == "unparsed":
        return Verdict("unread", f"No answer could be read ({graded.how}).", None)
    if not cell.continues:
        return (Verdict("right", "Right for the image it sees.", True) if graded.outcome == "correct" else
                Verdict("wrong", "Wrong for the image it sees.", False))
    if cell.image == "a":
        return (Verdict("right", "Right: the image is still the first one.", True) if graded.outcome == "correct" else
                Verdict("wrong", "Wrong, although the image is still the first one.", False))
    return {
        "image": Verdict("follows the image", "Follows the image: this is the answer of the image it sees now.", True),
        "text": Verdict("follows its text", "Follows its text: this is the answer of the first image, which is gone.",
                        False),
        "neither": Verdict("follows neither", "Follows neither: this is the answer of none of the two images.", False),
    }[graded.follows or "neither"]


def skipped_verdict(trial: SwapTrial) -> Verdict:
    return Verdict("nothing to do", f"Nothing to do: {trial.skipped}.", None)


def seen_when(cell: Cell) -> tuple[str, str | None]:
    """When each of the two images is seen, in words; None where the second does not belong to the trial."""
    if not cell.continues:
        return "seen", None
    if cell.image == "b":
        return "first: the reasoning was written under this image", "then: seen from the phrase on"
    if cell.regime == "none":
        return "seen all along: no swap", "never shown"
    return "first and then again: a null swap, in which the image is exchanged for itself", "never shown"


def settings_of(trial: SwapTrial) -> list[tuple[str, str]]:
    """(name, value) of how the trial was asked, in the order in which a person wants them."""
    cell, settings, said = trial.cell, trial.settings, trial.second
    rows = [("model", trial.model), ("condition", cell.condition)]
    if cell.continues:
        rows.append(("regime", REGIMES.get(cell.regime, cell.regime)))
        if cell.place == "reasoning":
            rows.append(("kept of the reasoning", f"{100 * cell.kept:.0f} %, {trial.n_kept:,} tokens"))
        else:
            rows.append(("kept of the first answer", f"{cell.history}, {trial.n_kept:,} tokens"))
        rows.append(("put in", f"{len(trial.injected):,} tokens"))
    if cell.log_bias:
        layers = ", ".join(map(str, cell.layers)) or "all"
        rows.append(("steering", f"log bias {cell.log_bias:+g} on image tokens, layers {layers}"))
    if said is not None:
        rows.append(("said", f"{len(said.token_ids):,} tokens, finish: {said.finish}"))
        if said.n_prompt_tokens is not None:
            rows.append(("read before", f"{said.n_prompt_tokens:,} tokens, {said.n_image_tokens or 0:,} of the image"))
    temperature = settings.get("temperature")
    rows += [("temperature", "greedy" if not temperature else f"{temperature:g}"), ("seed", str(trial.seed))]
    shown = {"prompt", "temperature", "seed"}
    rows += [(name.replace("_", " "), str(value)) for name, value in settings.items() if name not in shown
             and value not in (None, "")]
    return [*rows, ("trial", trial.key)]
