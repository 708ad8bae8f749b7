"""The VisualSwap protocol: what a model says when it looks again, and the image is another (VisualSwap, Sec. 2, 5).

    case  = Case.of(vlm, pair, folder, settings)
    cells = [Cell("reasoning", phrase=REFLECTIONS[1], kept=kept) for kept in (0, 0.25, 0.5, 0.75, 1)]
    for said in continue_cells(vlm, [(case, first.token_ids, cells)], settings).said:
        ...

Every trial is one row of token ids: the prompt, what is kept of the first answer, what is put in, and then what the
model says.  Rows of one pair share all that they have in common with the first answer: it is read once per image and
regime, and a cell costs only the tokens that are its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from probes.decode import Decoded, Sampling, decode_last
from probes.layout import GENERATED, TEMPLATE, EncodedImage, Prompt
from probes.prefix import State, check_text_ids, fork, prefill, prefixes, read_on, stack
from probes.prompts import new_answer, with_turn
from probes.steering import steering_image_attention
from probes.swap import check_regime, swap
from rekey.errors import InputError
from rekey.evaluate import Settings
from rekey.prompts import pair_prompt
from rekey.records import Generation, SwapPair
from rekey.reflections import find_reflections
from rekey.thinking import answer_start, thought_stop
from rekey.trials import Cell, Side, random_seed

if TYPE_CHECKING:
    from probes.vlm import LocalVLM

ROWS_AT_ONCE = 32


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


# -------------------------------------------------------------------------------- the rows of cells

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
        kept = _history(vlm, said, cell)
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
    before = vlm.text_of(kept[-8:])
    return vlm.encode(phrase if not before or before[-1].isspace() else f" {phrase}")


def _history(vlm: LocalVLM, said: Sequence[int], cell: Cell) -> list[int]:
    if cell.history == "kept":
        return list(said)
    if cell.history == "removed":
        return []
    text = vlm.text_of(said)
    start = answer_start(text)
    if start is None:
        raise NothingToDo("the first answer is a thought that does not end: nothing is left of it when it is stripped")
    if start == 0:
        raise NothingToDo("the first answer holds no thought to strip")
    return vlm.encode(text[start:].strip())


def _natural_cut(vlm: LocalVLM, said: Sequence[int]) -> int:
    """Tokens up to the end of the first sentence in which the reasoning says by itself that it looks again."""
    n_tokens = n_reasoning(vlm, said)
    found = [reflection for reflection in find_reflections(vlm.text_of(said[:n_tokens])) if reflection.visual]
    if not found:
        raise NothingToDo("the reasoning holds no reflection on the image of its own")
    return token_at(vlm, said, found[0].end)


# --------------------------------------------------------------------------------- running them

@dataclass(frozen=True, eq=False)
class Said:
    """What came of one cell: the row it read and what was said, or why there is nothing."""

    case: Case
    cell: Cell
    row: Row | None
    generation: Generation | None = None
    skipped: str | None = None
    error: str | None = None


@dataclass
class Work:
    """Tokens that were read before anything was said, and those that trials one by one would have taken, each from its
    question on: one that continues an answer reads the question under image a, then all of its own row."""

    read: int = 0
    one_by_one: int = 0

    def add(self, other: Work) -> None:
        self.read, self.one_by_one = self.read + other.read, self.one_by_one + other.one_by_one


@dataclass
class Outcome:
    said: list[Said]
    work: Work = field(default_factory=Work)


@dataclass(eq=False)
class _Todo:
    """A cell that waits for its state: the row, how much of it is shared, and where its result goes."""

    number: int
    case: Case
    cell: Cell
    row: Row
    n_new: int
    n_shared: int = 0
    state: State | None = None

    @property
    def alike(self) -> tuple:
        """What rows of one batch must have in common."""
        return self.cell.log_bias, self.cell.layers, self.n_new


Continuation = tuple[Case, Sequence[int], Sequence[Cell]]
"""A pair, the token ids of its first answer, and what is to be tried on it."""


def check_cells(vlm: LocalVLM, cells: Sequence[Cell]) -> None:
    """Raises InputError, before anything is asked, for cells that have no meaning for this model."""
    for regime in sorted({cell.regime for cell in cells if cell.continues}):
        check_regime(vlm, regime)


def sampling_of(vlm: LocalVLM, settings: Settings) -> Sampling:
    """The model's own generation settings at the given temperature (VisualSwap, Sec. 4; 0 is greedy)."""
    return replace(vlm.default_sampling, temperature=float(settings.temperature))


def continue_cells(vlm: LocalVLM, continuations: Sequence[Continuation], settings: Settings,
                   rows_at_once: int = ROWS_AT_ONCE,
                   wanted: Callable[[SwapPair, Cell], bool] = lambda pair, cell: True) -> Outcome:
    """What the model says in every cell of every pair, in order.

    rows_at_once: rows that are decoded together.  Each has random numbers of its own, whatever stands beside it.
    wanted: batches without a cell that is wanted are left out; what stands together does not depend on it.
    """
    said: dict[int, Said] = {}
    todo: list[_Todo] = []
    firsts: dict[int, Sequence[int]] = {}
    number = 0
    for case, first, cells in continuations:
        firsts[id(case)] = without_stop(vlm, first)
        for cell in cells:
            try:
                row = row_of(vlm, case, cell, first, settings.thinking)
                todo.append(_Todo(number, case, cell, row, _room(vlm, row, settings)))
            except NothingToDo as reason:
                said[number] = Said(case, cell, None, skipped=str(reason))
            except InputError as error:
                said[number] = Said(case, cell, None, error=str(error))
            number += 1
    batches = [batch for batch in _batches(todo, rows_at_once if vlm.croppable else 1)
               if any(wanted(item.case.pair, item.cell) for item in batch)]
    work = Work()
    for case, items in itertools.groupby((item for batch in batches for item in batch), lambda item: item.case):
        work.add(_share(vlm, case, firsts[id(case)], list(items)))
    sampling = sampling_of(vlm, settings)
    for batch in batches:
        for item, result in zip(batch, _decode(vlm, batch, settings, sampling)):
            said[item.number] = result
    return Outcome([said[n] for n in sorted(said)], work)


def _room(vlm: LocalVLM, row: Row, settings: Settings) -> int:
    room = vlm.max_tokens - len(row.prompt)
    if room < 1:
        raise InputError(f"the model reads {len(row.prompt)} tokens, as many as it was made for, and none is left to "
                         "answer; give fewer --max-new-tokens or a smaller --max-pixels")
    return min(settings.max_new_tokens, room)


def _batches(todo: Sequence[_Todo], size: int) -> Iterator[list[_Todo]]:
    """Runs of cells that may be decoded together, in order."""
    batch: list[_Todo] = []
    for item in todo:
        if batch and (len(batch) == size or item.alike != batch[0].alike):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _share(vlm: LocalVLM, case: Case, said: Sequence[int], todo: Sequence[_Todo]) -> Work:
    """Give every cell of a pair the state of what it shares with the first answer, at the cost of reading that once
    for each image and regime."""
    alone = sum(len(item.row.prompt) + len(case.prompt_a) * item.cell.continues for item in todo)
    work = Work(one_by_one=alone)
    ways: dict[tuple[str, Side], list[_Todo]] = {}
    for item in todo:
        ways.setdefault((item.cell.regime if item.cell.continues else "recompute", item.cell.image), []).append(item)
    for (regime, side), items in ways.items():
        whole = case.prompt(side).then(said)
        for item in items:
            # One token at least is left to read, which gives the logits.
            item.n_shared = min(_n_common(whole, item.row.prompt), len(item.row.prompt) - 1)
        cuts = [item.n_shared for item in items]
        work.read += max(cuts) + sum(len(item.row.prompt) - item.n_shared for item in items)
        if regime == "splice":
            work.read += whole.image_end
        for item, state in zip(items, _states(vlm, case.prompt_a.then(said), whole.images, regime, cuts)):
            item.state = replace(state, logits=None)         # read anew, with what is the cell's own
    return work


def _states(vlm: LocalVLM, read: Prompt, images: Sequence[EncodedImage], regime: str,
            cuts: Sequence[int]) -> list[State]:
    """States of a text that was written under image a and goes on under another, after each number of tokens."""
    if regime == "splice":
        state = swap(vlm, prefill(vlm, [read.cut(max(cuts))]), images, regime)
        return [fork(state, n_tokens) for n_tokens in cuts]
    return prefixes(vlm, read if regime == "none" else read.with_images(images), cuts)


def _n_common(one: Prompt, other: Prompt) -> int:
    """Tokens at the start that are the same, group codes included."""
    n = next((n for n, pair in enumerate(zip(one.ids, other.ids)) if pair[0] != pair[1]),
             min(len(one), len(other)))
    while one.codes[:n] != other.codes[:n]:
        n -= 1
    return n


def _decode(vlm: LocalVLM, batch: list[_Todo], settings: Settings, sampling: Sampling) -> list[Said]:
    """Read what is a cell's own and let it go on; a batch too large for the memory is halved."""
    try:
        decoded = _continue(vlm, batch, settings, sampling)
    except torch.OutOfMemoryError as error:
        reason = f"out of memory with {len(batch)} rows at once ({str(error).splitlines()[0]})"
    else:
        for item in batch:
            item.state = None
        return [Said(item.case, item.cell, item.row, generation_of(vlm, item.row, out, len(batch)))
                for item, out in zip(batch, decoded)]
    torch.cuda.empty_cache()
    if len(batch) == 1:
        return [Said(batch[0].case, batch[0].cell, batch[0].row,
                     error=reason + "; give a smaller --max-pixels, or more GPUs")]
    half = len(batch) // 2
    return [said for part in (batch[:half], batch[half:]) for said in _decode(vlm, part, settings, sampling)]


def _continue(vlm: LocalVLM, batch: Sequence[_Todo], settings: Settings, sampling: Sampling) -> list[Decoded]:
    cell = batch[0].cell
    seeds = [random_seed(item.case.pair, item.cell, settings) for item in batch] if sampling.temperature > 0 else None
    with ExitStack() as steered:
        if cell.log_bias:
            steered.enter_context(steering_image_attention(vlm, log_bias=cell.log_bias, layers=cell.layers or None))
        states = [read_on(vlm, stack([item.state for item in batch]), [item.row.prompt for item in batch])]
        return decode_last(vlm, states, batch[0].n_new, sampling, seeds)


def generation_of(vlm: LocalVLM, row: Row, out: Decoded, batch_size: int) -> Generation:
    """As a trial's line holds it: without times, which a run that was resumed could not repeat."""
    (image, *_) = row.prompt.images
    return Generation(text=vlm.text_of(out.ids), token_ids=out.ids, n_prompt_tokens=len(row.prompt),
                      n_image_tokens=row.prompt.n_image_tokens, finish=out.finish,
                      image_sizes=tuple(image.seen for image in row.prompt.images), batch_size=batch_size,
                      filled=image.share_filled)
