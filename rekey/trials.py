"""Trials of an image swap: what was done, what was said, and by which image the answer goes (VisualSwap, Sec. 2).

    for graded in grade_trials(Path("runs/trials.jsonl")):
        graded.trial.cell.condition, graded.outcome, graded.follows

One line is one trial, with token ids, so that its attention can be traced later and its answer graded again.  The
reasoning that a swap continues is stored once, in the line of its base trial: others hold that line's key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rekey import store
from rekey.answers import PARSERS, Parser
from rekey.cues import NEGATION, REFUSAL
from rekey.errors import InputError
from rekey.evaluate import KEY_CHARS, Identity, Settings, all_settings, check_appendable, response_files
from rekey.grading import OUT_OF_TOKENS, is_answer, read_said
from rekey.prompts import pair_prompt
from rekey.quantities import quantity
from rekey.records import Generation, Outcome, SwapPair, from_json, to_json

Side = Literal["a", "b"]
Place = Literal["base", "reasoning", "natural", "answer", "new turn", "user turn"]
History = Literal["kept", "stripped", "removed"]
Follows = Literal["image", "text", "neither"]
PLACES = ("base", "reasoning", "natural", "answer", "new turn", "user turn")
_STANDS = re.compile(
    r"\b(?:no|not|never|\w{1,8}n't) (?:doubts?|changed?|mistakes?|mistaken|errors?|wrong)\b|\bunchanged\b"
    r"|不变|没有?(?:改变|变化|错)|无误", re.IGNORECASE)
_TAKES_BACK = re.compile(
    rf"{NEGATION.pattern}|{REFUSAL.pattern}|\b(?:mistak\w+|errors?|mis(?:read|counted|judged|saw|took)|"
    r"un(?:clear|sure|certain)|differ\w*|else|sorry|apologi[sz]e|changed?)\b|错|误|改", re.IGNORECASE)
LONGEST_NAME = 300              # characters of what a trial's line keeps of a pair's source
_NAMES = {"base": "base", "reasoning": "probe", "natural": "natural", "answer": "after the answer",
          "new turn": "new turn", "user turn": "multi-turn"}


@dataclass(frozen=True)
class Cell:
    """What is done in one trial of a pair.

    place: where the model is made to look again.  "base": nowhere, one image is asked about.  "reasoning": a phrase
    stands in its own reasoning, of which the share `kept` is left (Stage 2, the probe).  "natural": after a phrase that
    it said by itself.  "answer": a phrase behind its whole answer.  "new turn": a phrase that opens a second answer,
    which nobody asked for.  "user turn": the user speaks (multi-turn).
    image: which one is seen from there on.  regime: what is exchanged (`probes.swap`); "none" leaves image a, and with
    another regime image a is exchanged for itself: the null swap, which must make no difference.
    phrase: what is said, by the model or the user; "" where nothing is.
    history: of the first answer, in a user's turn: all is kept; its thought is stripped, as the templates of thinking
    models do; or all of it is removed.
    log_bias: added to the logits of image keys from the phrase on, in `layers` (all where there are none).
    """

    place: Place
    image: Side = "b"
    regime: str = "recompute"
    kept: float = 1.0
    phrase: str = ""
    history: History = "kept"
    log_bias: float = 0.0
    layers: tuple[int, ...] = ()

    @property
    def condition(self) -> str:
        """As tables name it: "base", "probe", "null swap, probe", "multi-turn", "multi-turn, stripped", ..."""
        name = _NAMES[self.place] + (f", {self.history}" if self.history != "kept" else "")
        if self.place == "base" or self.image == "b":
            return name
        return f"no swap, {name}" if self.regime == "none" else f"null swap, {name}"

    @property
    def continues(self) -> bool:
        """Whether it goes on from a first answer about image a."""
        return self.place != "base"


@dataclass(frozen=True)
class SwapTrial:
    """One trial: a line of a trials file.

    key: a hash of all that it depends on.  pair: without the parameters it was drawn from.  settings: how it was
    asked, and by what model (`rekey.evaluate.all_settings`).  first: key of the base trial whose answer is continued;
    n_kept: how many of that answer's tokens were kept, n_kept_chars: of its text.  injected: token ids between what was
    kept and what the model then said.  second: what it said.  skipped: why there is nothing to do here (no reflection
    in the reasoning, no thought to strip).  error: why there is no answer; asked again on resume.
    """

    key: str
    pair: SwapPair
    model: str
    settings: dict[str, Any]
    cell: Cell
    first: str | None = None
    n_kept: int = 0
    n_kept_chars: int = 0
    injected: tuple[int, ...] = ()
    second: Generation | None = None
    skipped: str | None = None
    error: str | None = None

    @property
    def seed(self) -> int:
        return self.settings.get("seed") or 0


def bare(pair: SwapPair) -> SwapPair:
    """A pair as a trial holds it: of what it was drawn from only what names it."""
    if not isinstance(pair.source, dict):
        return pair if _is_name(pair.source) else replace(pair, source=None)
    return replace(pair, source={name: value for name, value in pair.source.items() if _is_name(value)})


def _is_name(value: Any) -> bool:
    return not isinstance(value, dict | list) and len(str(value)) <= LONGEST_NAME


def trial_key(pair: SwapPair, cell: Cell, identity: Identity, settings: Settings) -> str:
    """A hash of the images' contents, the text, the model, all settings, and what is done."""
    text = pair_prompt(pair.question, pair.options, settings.prompt)
    return store.sha256_json({"pair": pair.pair_id, "images": [pair.sha256_a, pair.sha256_b], "text": text,
                              "model": identity.name, "cell": to_json(cell),
                              **all_settings(identity, settings)})[:KEY_CHARS]


def random_seed(pair: SwapPair, cell: Cell, settings: Settings) -> int:
    """Of a trial's random numbers: the same for all images, regimes and doses, so that only those make a difference."""
    return int(store.sha256_json([pair.pair_id, settings.seed or 0, cell.place, cell.kept, cell.phrase,
                                  cell.history])[:8], 16)


# -------------------------------------------------------------------------------------- the lines

def read_trials(path: Path) -> list[SwapTrial]:
    """All trials of a file and its shards, one per key: the answer, or else the last error."""
    files = response_files(path)
    if not files:
        raise InputError(f"{path}: no such file; expected the trials that `rekey probe` wrote")
    found: dict[str, SwapTrial] = {}
    for file in files:
        for number, line in store.iter_jsonl(file, torn_tail=True):
            try:
                trial = from_json(SwapTrial, line)
                usable = isinstance(trial.pair, SwapPair) and trial.cell.place in PLACES
            except (KeyError, TypeError, ValueError, AttributeError):
                usable = False
            if not usable:
                raise InputError(f"{file} line {number}: is no trial; expected a line that `rekey probe` wrote; "
                                 "without that line its trial is run again")
            if trial.error is None or trial.key not in found:
                found[trial.key] = trial
    return list(found.values())


def check_trials_file(file: Path) -> None:
    """Raises InputError for a file that a run cannot go on with."""
    check_appendable(file, "trials", "rekey probe")


def done_keys(path: Path) -> set[str]:
    """Keys of trials that need not be run again, in a file and its shards."""
    return {line["key"] for file in response_files(path) for _, line in store.iter_jsonl(file, torn_tail=True)
            if isinstance(line, dict) and "key" in line and "error" not in line}


# ----------------------------------------------------------------------------------------- grades

@dataclass(frozen=True)
class GradedTrial:
    """A trial with what its answer counts as.

    outcome: by the image that was seen in the end.  follows: which answer was given: that image's ("image"), the one
    that the first image and so the text it continues would give ("text"), or neither; None where none could be read.
    """

    trial: SwapTrial
    said: str | None
    how: str
    outcome: Outcome
    follows: Follows | None


def grade_trials(path: Path, parser: Parser = "strict") -> list[GradedTrial]:
    """The graded trials of a file and its shards; those that were skipped are left out."""
    return grade_all(read_trials(path), parser)


def grade_all(trials: Sequence[SwapTrial], parser: Parser = "strict") -> list[GradedTrial]:
    if parser not in PARSERS:
        raise InputError(f"parser {parser!r}: expected {' or '.join(PARSERS)}")
    texts = first_texts(trials)
    return [grade_trial(trial, texts, parser) for trial in trials if trial.skipped is None]


def first_texts(trials: Iterable[SwapTrial]) -> dict[str, str]:
    """By key, what was said about image a alone."""
    return {trial.key: trial.second.text for trial in trials
            if not trial.cell.continues and trial.cell.image == "a" and trial.second is not None}


def grade_trial(trial: SwapTrial, texts: dict[str, str], parser: Parser = "strict") -> GradedTrial:
    """texts: as `first_texts` gives them.  An answer that says nothing new leaves the one before it standing, unless it
    takes that back or doubts it."""
    pair, cell = trial.pair, trial.cell
    if trial.second is None:
        return GradedTrial(trial, None, trial.error or "no answer", "error", None)
    cot = trial.settings.get("prompt") == "cot"
    text, finish = trial.second.text, trial.second.finish
    said, how = read_said(text, finish, pair.options, parser, cot)
    if how == "leading" and _asks_for_a_number(pair):
        # "Yes, it is 12": the number is the answer, and without one nothing new is said.
        rest = said.partition(",")[2]
        said, how = read_said(rest, finish, (), parser, cot) if re.search(r"\d", rest) else (None, "nothing")
    if said is None and how == "nothing" and cell.history == "kept" and not takes_back(text):
        # In a line of its own: an answer of one letter, "A", would run into the phrase.
        whole = f"{kept_text(trial, texts)}\n{cell.phrase}{text}"
        said, how = read_said(whole, finish, pair.options, parser, cot)
    if said is None:
        return GradedTrial(trial, None, how, "truncated" if how == OUT_OF_TOKENS else "unparsed", None)
    if is_answer(said, pair.answer(cell.image), pair.options):
        return GradedTrial(trial, said, how, "correct", "image")
    text = cell.continues and is_answer(said, pair.answer_a, pair.options)
    return GradedTrial(trial, said, how, "wrong", "text" if text else "neither")


def takes_back(text: str) -> bool:
    """Whether a text that names no answer of its own may have left the one before it: "No, I was mistaken"."""
    return bool(_TAKES_BACK.search(_STANDS.sub("", text)))


def _asks_for_a_number(pair: SwapPair) -> bool:
    return not pair.options and all(quantity(answer) is not None for answer in (pair.answer_a, pair.answer_b))


def kept_text(trial: SwapTrial, texts: dict[str, str]) -> str:
    """The part of the first answer that a trial continues."""
    return texts.get(trial.first or "", "")[:trial.n_kept_chars]

