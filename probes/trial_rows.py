"""The rows of VisualSwap's trials: all that a model reads before it goes on (VisualSwap, Sec. 2, 5, App. H).

    case = Case.of(vlm, pair, folder, settings)             # the prompt under image a and under image b
    row  = row_of(vlm, case, Cell("reasoning", phrase=REFLECTIONS[2], kept=0.5), first.token_ids)
    row.prompt, row.t_phrase, row.t_after

Token ids only: the prompt, what is kept of the first answer, what is put in.  Nothing that a model said is tokenized
again, so no template can drop or close its reasoning on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probes.layout import GENERATED, TEMPLATE, EncodedImage, Prompt
from probes.prefix import check_text_ids
from probes.prompts import check_text, new_answer, with_turn
from rekey.errors import InputError
from rekey.evaluate import Settings
from rekey.prompts import pair_prompt
from rekey.records import SwapPair
from rekey.reflections import find_reflections
from rekey.thinking import answer_start, open_thought, thought_stop
from rekey.trials import Cell, Side

if TYPE_CHECKING:
    from probes.vlm import LocalVLM


class NothingToDo(Exception):
    """This trial does not exist for this pair: the reasoning holds no reflection, or the answer no thought to strip."""


@dataclass(frozen=True, eq=False)
class Case:
    """A pair as a model sees it: the same prompt under either image."""

    pair: SwapPair
    prompt_a: Prompt
    prompt_b: Prompt

    @classmethod
    def of(cls, vlm: LocalVLM, pair: SwapPair, folder: Path, settings: Settings) -> Case:
        """folder: what the pair's paths are relative to.  Raises InputError for images that cannot be exchanged."""
        images = vlm.encode_pair(folder / pair.image_a, folder / pair.image_b)
        for side, image in zip("ab", images):
            wanted = getattr(pair, f"sha256_{side}")
            if wanted and image.sha256 and image.sha256 != wanted:
                raise InputError(f"pair {pair.pair_id}: image_{side} is not the one that the pair was read with (its "
                                 "pixels have another hash); restore it, or make the pairs again")
        text = pair_prompt(pair.question, pair.options, settings.prompt)
        marked = [with_change(image, pair) for image in images]
        prompt_a = vlm.prompt(marked[0], text, thinking=settings.thinking)
        return cls(pair, prompt_a, prompt_a.with_images([marked[1]]))

    def prompt(self, side: Side) -> Prompt:
        return self.prompt_a if side == "a" else self.prompt_b


def with_change(image: EncodedImage, pair: SwapPair) -> EncodedImage:
    """The image with its changed tokens marked, where the pair tells them and they cover one at least."""
    if pair.changed is None:
        return image
    try:
        return image.with_region(pair.changed)
    except InputError:
        return image


@dataclass(frozen=True, eq=False)
class Row:
    """A trial before the model goes on: all that it reads.

    n_kept: tokens of the first answer that are left.  injected: ids between those and what the model says.
    """

    prompt: Prompt
    n_kept: int
    injected: tuple[int, ...]
    n_asked: int
    """Tokens of the prompt before the first answer."""

    @property
    def t_phrase(self) -> int:
        """Index of the first token that was put in (of the first one said where nothing was)."""
        return self.n_asked + self.n_kept

    @property
    def t_after(self) -> int:
        """Index of the first token that the model then says."""
        return len(self.prompt)


def without_stop(vlm: LocalVLM, ids: Sequence[int]) -> list[int]:
    """What was said, without end tokens."""
    said = list(ids)
    while said and said[-1] in vlm.stop_token_ids:
        said.pop()
    return said


def token_at(vlm: LocalVLM, ids: Sequence[int], char: int) -> int:
    """How many tokens it takes to say the first `char` characters of a text."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if len(vlm.text_of(ids[:middle])) < char:
            low = middle + 1
        else:
            high = middle
    return low


def n_reasoning(vlm: LocalVLM, said: Sequence[int]) -> int:
    """Tokens of R_a: the thought up to where it closes, or the whole answer of a model that has none."""
    text = vlm.text_of(said)
    return token_at(vlm, said, len(text[:thought_stop(text)].rstrip()))


def row_of(vlm: LocalVLM, case: Case, cell: Cell, first: Sequence[int], thinking: bool | None = None) -> Row:
    """All that the model reads in a cell, under the image that it sees in the end.

    first: token ids of its answer about image a (none for a base cell).  Raises NothingToDo where the cell has no
    meaning for this answer.
    """
    asked = case.prompt(cell.image)
    if cell.place == "base":
        return Row(asked, 0, (), len(asked))
    said = check_text_ids(vlm, without_stop(vlm, first))
    if cell.place == "user turn":
        closed = without_thought(vlm, asked)
        kept = _history(vlm, said, cell, opened=closed is not asked)
        asked = asked if cell.history == "kept" else closed
        prompt = vlm.second_turn(asked, kept, cell.phrase, thinking)
        return _row(prompt, asked, len(kept))
    if cell.place == "reasoning":
        kept = said[:round(cell.kept * n_reasoning(vlm, said))]
        return _row(asked.then([*kept, *_phrase(vlm, kept, cell.phrase)]), asked, len(kept))
    if cell.place == "natural":
        kept = said[:_natural_cut(vlm, said)]
        return _row(asked.then(kept), asked, len(kept))
    if cell.place == "answer":
        return _row(asked.then([*said, *_phrase(vlm, said, cell.phrase)]), asked, len(said))
    if cell.place == "new turn":
        check_text(vlm.processor, cell.phrase, "phrase")
        opening = [(new_answer(vlm.processor, len(asked.images), thinking), TEMPLATE),
                   (vlm.encode(cell.phrase), GENERATED)]
        return _row(with_turn(asked.then(said), opening, vlm.model.config.image_token_id), asked, len(said))
    raise InputError(f"cell: place is {cell.place!r}; expected base, reasoning, natural, answer, new turn or user turn")


def _row(prompt: Prompt, asked: Prompt, n_kept: int) -> Row:
    return Row(prompt, n_kept, prompt.ids[len(asked) + n_kept:], len(asked))


def _phrase(vlm: LocalVLM, kept: Sequence[int], phrase: str) -> list[int]:
    """The phrase's ids, behind a space where the text before it does not end in one."""
    if not phrase:
        return []
    check_text(vlm.processor, phrase, "phrase")
    before = vlm.text_of(kept[-8:])
    return vlm.encode(phrase if not before or before[-1].isspace() else f" {phrase}")


def _history(vlm: LocalVLM, said: Sequence[int], cell: Cell, opened: bool) -> list[int]:
    """What a second turn keeps of the first answer.  opened: whether the template opens the thought in the prompt."""
    if cell.history == "kept":
        return list(said)
    if cell.history == "removed":
        return []
    text = vlm.text_of(said)
    start = answer_start(text)
    if start is None or opened and thought_stop(text) is None:
        raise NothingToDo("the first answer is a thought that does not end: nothing is left of it when it is stripped")
    if start == 0:
        raise NothingToDo("the first answer holds no thought to strip")
    return vlm.encode(text[start:].strip())


def without_thought(vlm: LocalVLM, asked: Prompt) -> Prompt:
    """The prompt without the thought that its template may open for the answer: what is left of an answer without its
    thought would stand inside one that never ends, which no template renders."""
    n_before = 1 + max(n for n, code in enumerate(asked.codes) if code != TEMPLATE)
    ending = asked.ids[n_before:]

    def text_of(n_tokens: int) -> str:
        return vlm.text_of(ending[:n_tokens], skip_special_tokens=False)
    start = open_thought(text_of(len(ending)))
    if start is None:
        return asked
    return asked.cut(n_before + next(n for n in range(len(ending)) if len(text_of(n)) >= start))


def _natural_cut(vlm: LocalVLM, said: Sequence[int]) -> int:
    """Tokens up to the end of the first sentence in which the reasoning says by itself that it looks again."""
    n_tokens = n_reasoning(vlm, said)
    found = [reflection for reflection in find_reflections(vlm.text_of(said[:n_tokens])) if reflection.visual]
    if not found:
        raise NothingToDo("the reasoning holds no reflection on the image of its own")
    return token_at(vlm, said, found[0].end)
