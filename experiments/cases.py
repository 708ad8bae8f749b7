"""One HTML file per trial that a person can read, and an index of them (VisualSwap, Fig. 1 and 4).

    cases = pick(cases_of(trials), 40)                                      # some of every condition and verdict
    index, *files = write_cases(Path("cases"), cases, folder, traces={key: lambda: read_trace(path)})

Every file holds all that it shows: the question, both images with what differs outlined, the conversation with what was
kept, cut away and put in, the answers, and where there is a trace, attention token by token and over the image.  What
models say is text to be shown, never markup.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from experiments.attention_series import Panel, panels_of, values
from experiments.case_text import (
    Verdict,
    answer_words,
    conversation,
    seen_when,
    settings_of,
    skipped_verdict,
    verdict,
)
from probes.trace import MIDDLE
from rekey import store
from rekey.answers import Parser
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.images import load_image
from rekey.pairs import changed_box
from rekey.records import SwapPair, option_letter
from rekey.trials import GradedTrial, SwapTrial, first_texts, grade_trial

if TYPE_CHECKING:
    from probes.trace_store import TrialTrace

INDEX = "index.html"
MAX_SIDE_PX = 900
MAX_PNG_BYTES = 80_000
"""Of the depth: the layers whose attention is shown (VisualSwap, Table 5)."""
LEVELS = 20                             # of shade
HEAD_CHARS, TAIL_CHARS = 700, 1100      # of a long text, what is shown unfolded
STRIP_TOKENS = 400                      # of a long strip, on the side of the phrase
TraceOf = Mapping[str, Callable[[], "TrialTrace"]]


@dataclass(frozen=True)
class Case:
    """A trial with its grade (None where it was skipped) and the text of the answer that it continues."""

    trial: SwapTrial
    graded: GradedTrial | None
    first: GradedTrial | None
    first_text: str | None

    @property
    def verdict(self) -> Verdict:
        return skipped_verdict(self.trial) if self.graded is None else verdict(self.graded)

    @property
    def file(self) -> str:
        name = f"{self.trial.pair.pair_id}_{self.trial.cell.condition}"
        return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)[:80].strip('._')}_{self.trial.key[:10]}.html"


def cases_of(trials: Sequence[SwapTrial], parser: Parser = "strict") -> list[Case]:
    texts = first_texts(trials)
    graded = {trial.key: grade_trial(trial, texts, parser) for trial in trials if trial.skipped is None}
    return [Case(trial, graded.get(trial.key), graded.get(trial.first or ""), texts.get(trial.first or ""))
            for trial in trials]


def pick(cases: Sequence[Case], n: int) -> list[Case]:
    """n of them in their order, by turns from each model, condition and verdict, so that every kind is among them."""
    kinds: dict[str, dict[tuple, list[int]]] = {}               # by model
    for at, case in enumerate(cases):
        cell = case.trial.cell
        kind = cell.condition, cell.kept, case.verdict.kind
        kinds.setdefault(case.trial.model, {}).setdefault(kind, []).append(at)
    turns = {at: (turn, number) for of_model in kinds.values() for number, members in enumerate(of_model.values())
             for turn, at in enumerate(members)}
    return [cases[at] for at in sorted(sorted(turns, key=lambda at: (turns[at], at))[:n])]


def write_cases(out: Path, cases: Sequence[Case], folder: Path | None, traces: TraceOf | None = None,
                band: tuple[float, float] = MIDDLE, progress: Callable[[int, int], None] = lambda done, total: None,
                ) -> list[Path]:
    """A file for each case, and out/index.html; the paths of all.

    folder: what the images' paths are relative to; without it pages have none.  traces: by key, how to read one.
    """
    pages = _pages()
    written = []
    for n, case in enumerate(cases):
        trace = traces[case.trial.key]() if traces and case.trial.key in traces else None
        text = pages.get_template("case.html").render(
            **page_of(case, folder, trace, band), index=INDEX, levels=LEVELS,
            previous=cases[n - 1].file if n else None, following=cases[n + 1].file if n + 1 < len(cases) else None)
        written.append(_write(out / case.file, text))
        progress(n + 1, len(cases))
    rows = [{"file": case.file, "pair": case.trial.pair, "trial": case.trial, "verdict": case.verdict,
             "said": "" if case.graded is None else answer_words(case.trial.pair, case.graded.said),
             "traced": bool(traces) and case.trial.key in traces} for case in cases]
    text = pages.get_template("case_index.html").render(
        rows=rows, models=_in_order(row["trial"].model for row in rows),
        conditions=_in_order(row["trial"].cell.condition for row in rows),
        verdicts=_in_order(row["verdict"].kind for row in rows))
    return [_write(out / INDEX, text), *written]


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _pages():
    import jinja2
    loader = jinja2.FunctionLoader(
        lambda name: resources.files("experiments").joinpath(name).read_text(encoding="utf-8"))
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def _write(path: Path, text: str) -> Path:
    # Half of a character pair, which models can say, is no UTF-8.
    store.write_atomic(path, text.encode("utf-8", "replace"))
    return path


# --------------------------------------------------------------------------------------- one page

def page_of(case: Case, folder: Path | None, trace: TrialTrace | None = None,
            band: tuple[float, float] = MIDDLE) -> dict[str, Any]:
    """What the template shows of a trial."""
    trial = case.trial
    pair, graded = trial.pair, case.graded
    pictures = Pictures(pair, folder)
    when = seen_when(trial.cell)
    images = [{"title": f"image {side}", "when": words, **pictures.shown(side), "dim": words == "never shown"}
              for side, words in zip("ab" if trial.cell.continues else trial.cell.image, when) if words]
    options = [{"letter": option_letter(n), "text": text, "for_a": option_letter(n) == pair.answer_a,
                "for_b": option_letter(n) == pair.answer_b,
                "said": graded is not None and graded.said == option_letter(n)} for n, text in enumerate(pair.options)]
    turns = [{"who": turn.who, "pieces": [{"kind": piece.kind, "parts": folded(piece.text), "n": len(piece.text)}
                                          for piece in turn.pieces]}
             for turn in conversation(trial, case.first_text)]
    answers = [("right for image a", answer_words(pair, pair.answer_a)),
               ("right for image b", answer_words(pair, pair.answer_b))]
    if case.first is not None:
        answers.append(("said first, about image a", answer_words(pair, case.first.said)))
    if graded is not None:
        answers.append(("said" + (" in the end" if trial.cell.continues else ""), answer_words(pair, graded.said)))
    attention = None if trace is None else {"strip": strip(trace, shown_layers(trace, band)),
                                            "overlay": _overlay(trace, shown_layers(trace, band), pictures)}
    return {"trial": trial, "pair": pair, "verdict": case.verdict, "images": images, "options": options, "turns": turns,
            "answers": answers, "settings": settings_of(trial), "attention": attention, "no_images": pictures.missing}


def folded(text: str) -> tuple[str, str, str]:
    """Beginning, middle and end of a long text, the middle to be folded away; "" twice for one that is short."""
    if len(text) <= 1.5 * (HEAD_CHARS + TAIL_CHARS):
        return text, "", ""
    head, tail = HEAD_CHARS, len(text) - TAIL_CHARS
    head += max(0, text[head:head + 80].find(" "))
    tail += max(0, text[tail:tail + 80].find(" "))
    return text[:head], text[head:tail], text[tail:]


class Pictures:
    """The two images of a pair, read when they are asked for.  missing: why there are none, in words."""

    def __init__(self, pair: SwapPair, folder: Path | None):
        self.pair, self.folder = pair, folder
        self.missing: str | None = None if folder else "the pairs file was not found"
        self._pixels: dict[str, np.ndarray] = {}

    def pixels(self, side: str) -> np.ndarray | None:
        if self.folder is not None and side not in self._pixels:
            try:
                self._pixels[side] = load_image(self.folder / getattr(self.pair, f"image_{side}")).pixels
            except InputError as error:
                self.missing = str(error)
        return self._pixels.get(side)

    def named(self, path: str) -> np.ndarray | None:
        """Of the image that a trace names."""
        return self.pixels("b" if path == self.pair.image_b else "a")

    @property
    def changed(self) -> Box | None:
        if self.pair.changed is not None:
            return self.pair.changed
        a, b = self.pixels("a"), self.pixels("b")
        return changed_box(a, b) if a is not None and b is not None and a.shape == b.shape else None

    def shown(self, side: str) -> dict[str, Any]:
        """The picture as a data URL, its size, and the changed box in percent of it."""
        pixels = self.pixels(side)
        if pixels is None:
            return {"url": None, "size": "", "box": None}
        height, width = pixels.shape[:2]
        box = self.changed
        percent = box and {"left": 100 * box.left / width, "top": 100 * box.top / height,
                           "width": 100 * box.width / width, "height": 100 * box.height / height}
        return {"url": data_url(pixels), "size": f"{width} x {height}", "box": percent}


def data_url(pixels: np.ndarray) -> str:
    """At most MAX_SIDE_PX a side; as it is where that is small enough, else without losing small colors."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    kind = "png"
    if buffer.tell() > MAX_PNG_BYTES:
        buffer, kind = io.BytesIO(), "jpeg"
        picture.save(buffer, "JPEG", quality=92, subsampling=0)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


# -------------------------------------------------------------------------------------- attention

def shown_layers(trace: TrialTrace, band: tuple[float, float]) -> Panel:
    """The recorded layers of a band, or all of them where it holds none."""
    try:
        return panels_of(trace, bands=[band])[0]
    except InputError:
        return Panel("all recorded layers", trace.attention.layers)


def strip(trace: TrialTrace, panel: Panel) -> dict[str, Any]:
    """Every token with a shade for its attention on the image; parts of one character are one token, with their mean.

    Long parts are folded away from the phrase, and the scale is that of what is left to see.
    """
    percent = values(trace, panel.layers)
    index = trace.attention.query_index
    tokens: list[dict[str, Any]] = []
    waiting: list[float] = []
    for position, text, value in zip(index.tolist(), trace.texts, percent.tolist()):
        if position < trace.n_asked:             # the question's last token
            continue
        waiting.append(value)
        if text or position == index[-1]:
            tokens.append({"at": position, "text": text.replace("\n", "↵\n"), "value": sum(waiting) / len(waiting)})
            waiting.clear()
    parts = _strip_parts(trace, tokens)
    seen = [token["value"] for _, part in parts for token in part[1]]
    top = float(np.percentile(seen, 99)) if seen else 1.0
    for token in tokens:
        token["level"] = round(LEVELS * min(token["value"] / (top or 1.0), 1))
    return {"layers": panel.title, "top": top, "reread": trace.reread, "parts": [
        {"name": name, "hidden": hidden, "tokens": visible, "hidden_last": hidden_last}
        for name, (hidden, visible, hidden_last) in parts if hidden or visible]}


def _strip_parts(trace: TrialTrace, tokens: list[dict[str, Any]]):
    """(name, (folded tokens, tokens to be seen, whether the folded ones come last))."""
    if not trace.cell.continues:
        return [("answer", (tokens[STRIP_TOKENS:], tokens[:STRIP_TOKENS], True))]
    before = [token for token in tokens if token["at"] < trace.t_phrase]
    phrase = [token for token in tokens if trace.t_phrase <= token["at"] < trace.t_after]
    after = [token for token in tokens if token["at"] >= trace.t_after]
    return [("before", (before[:-STRIP_TOKENS], before[-STRIP_TOKENS:], False)), ("phrase", ([], phrase, False)),
            ("after", (after[STRIP_TOKENS:], after[:STRIP_TOKENS], True))]


def _overlay(trace: TrialTrace, panel: Panel, pictures: Pictures) -> str | None:
    """The figure as a data URL; None without the image or a window."""
    from experiments.image_overlay import overlay
    pixels = pictures.named(trace.image.path)
    if pixels is None or not trace.maps:
        return None
    other = pictures.named(trace.image_before) if trace.image_before != trace.image.path else None
    buffer = io.BytesIO()
    overlay(trace, pixels, panel, other, pictures.changed).savefig(buffer, format="png", dpi=160)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
