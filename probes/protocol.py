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

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import torch

from probes.decode import Decoded, Sampling, decode_last
from probes.layout import EncodedImage, Prompt
from probes.prefix import State, fork, prefill, prefixes, read_on, stack
from probes.steering import steering_image_attention
from probes.swap import check_regime, swap
from probes.trial_rows import Case, NothingToDo, Row, row_of, without_stop
from rekey.errors import InputError
from rekey.evaluate import Settings
from rekey.records import Generation, SwapPair
from rekey.trials import Cell, random_seed

if TYPE_CHECKING:
    from probes.vlm import LocalVLM

ROWS_AT_ONCE = 32
T = TypeVar("T")


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
    """A cell that waits: the row, how much it may say, the state of what it shares, and where its result goes."""

    number: int
    case: Case
    cell: Cell
    row: Row
    n_new: int
    state: State | None = None
    done: bool = False

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
    firsts: dict[str, Sequence[int]] = {}
    number = 0
    for case, first, cells in continuations:
        firsts[case.pair.pair_id] = without_stop(vlm, first)
        for cell in cells:
            try:
                row = row_of(vlm, case, cell, first, settings.thinking)
                todo.append(_Todo(number, case, cell, row, _room(vlm, row, settings)))
            except NothingToDo as reason:
                said[number] = Said(case, cell, None, skipped=str(reason))
            except InputError as error:
                said[number] = Said(case, cell, None, error=str(error))
            number += 1
    # Cells that are steered alike go together, whatever pair they belong to.
    todo = [item for _, alike in _grouped(todo, lambda item: item.alike) for item in alike]
    batches = []
    for batch in _batches(todo, rows_at_once if vlm.croppable else 1):
        if any(wanted(item.case.pair, item.cell) for item in batch):
            batches.append(batch)
        else:
            for item in batch:
                item.done = True
    decoder = _Decoder(vlm, settings, sampling_of(vlm, settings), firsts, todo)
    for batch in batches:
        for item, result in zip(batch, decoder.decode(batch)):
            said[item.number] = result
    return Outcome([said[n] for n in sorted(said)], decoder.work)


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[tuple[Hashable, list[T]]]:
    """Items by key, keys in the order in which they come."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.items())


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


@dataclass(eq=False)
class _Decoder:
    """Decodes batches of cells; gives each the state of what it shares with its pair's first answer.

    A pair's states are made when the first of its cells is decoded and go with the last, so that the memory follows
    from the rows of a batch.  firsts: by pair, the ids of its first answer.  planned: all cells; those that are not
    wanted are done from the start.
    """

    vlm: LocalVLM
    settings: Settings
    sampling: Sampling
    firsts: dict[str, Sequence[int]]
    planned: list[_Todo]
    work: Work = field(default_factory=Work)

    def __post_init__(self) -> None:
        self.work.one_by_one = sum(len(item.row.prompt) + len(item.case.prompt_a) * item.cell.continues
                                   for item in self.planned if not item.done)

    def decode(self, batch: list[_Todo]) -> list[Said]:
        """Read what is a cell's own and let it go on; a batch too large for the memory is halved."""
        try:
            decoded = self._continue(batch)
        except torch.OutOfMemoryError as error:
            reason = f"out of memory with {len(batch)} rows at once ({str(error).splitlines()[0]})"
        else:
            for item in batch:
                item.done = True
            return [Said(item.case, item.cell, item.row, generation_of(self.vlm, item.row, out, len(batch)))
                    for item, out in zip(batch, decoded)]
        for item in self.planned:
            item.state = None
        torch.cuda.empty_cache()
        if len(batch) == 1:
            return [Said(batch[0].case, batch[0].cell, batch[0].row,
                         error=reason + "; give a smaller --max-pixels, or more GPUs")]
        half = len(batch) // 2
        return [said for part in (batch[:half], batch[half:]) for said in self.decode(part)]

    def _continue(self, batch: Sequence[_Todo]) -> list[Decoded]:
        self._share(batch)
        cell, seeds = batch[0].cell, None
        if self.sampling.temperature > 0:
            seeds = [random_seed(item.case.pair, item.cell, self.settings) for item in batch]
        with ExitStack() as steered:
            if cell.log_bias:
                steered.enter_context(steering_image_attention(self.vlm, log_bias=cell.log_bias,
                                                               layers=cell.layers or None))
            states = [read_on(self.vlm, stack([item.state for item in batch]), [item.row.prompt for item in batch])]
            for item in batch:
                item.state = None
            return decode_last(self.vlm, states, batch[0].n_new, self.sampling, seeds)

    def _share(self, batch: Sequence[_Todo]) -> None:
        """States for the pairs of a batch, for what is still to come of them as well, at the cost of reading a first
        answer once for each image and regime."""
        pairs = {item.case.pair.pair_id for item in batch if item.state is None}
        planned = [item for item in self.planned if item.case.pair.pair_id in pairs and item.alike == batch[0].alike]
        for (pair_id, regime, side), items in _grouped(planned, lambda item: (
                item.case.pair.pair_id, item.cell.regime if item.cell.continues else "recompute", item.cell.image)):
            if all(item.done for item in items):
                continue
            case, said = items[0].case, self.firsts[pair_id]
            whole = case.prompt(side).then(said)
            # What is done is cut for as well: how much is read at once decides the last bits, and must not depend on
            # where a run stopped.
            cuts = [n_shared(whole, item.row, item.cell) for item in items]
            states = _states(self.vlm, case.prompt_a.then(said), whole.images, regime, cuts)
            self.work.read += max(cuts)
            for item, state, cut in zip(items, states, cuts):
                if not item.done:
                    item.state = replace(state, logits=None)        # read anew, with what is the cell's own
                    self.work.read += len(item.row.prompt) - cut
            if regime == "splice":
                self.work.read += whole.image_end


def _states(vlm: LocalVLM, read: Prompt, images: Sequence[EncodedImage], regime: str,
            cuts: Sequence[int]) -> list[State]:
    """States of a text that was written under image a and goes on under another, after each number of tokens."""
    if regime == "splice":
        state = swap(vlm, prefill(vlm, [read.cut(max(cuts))]), images, regime)
        return [fork(state, n_tokens) for n_tokens in cuts]
    return prefixes(vlm, read if regime == "none" else read.with_images(images), cuts)


def n_shared(first: Prompt, row: Row, cell: Cell) -> int:
    """Tokens at the start of a row that are read with the first answer, ids and group codes being the same.

    One token at least is left, which gives the logits; where attention is steered, all from the phrase on.
    """
    limit = min(len(first), len(row.prompt) - 1, row.t_phrase if cell.log_bias else len(row.prompt))
    return next((n for n in range(limit) if (first.ids[n], first.codes[n]) != (row.prompt.ids[n], row.prompt.codes[n])),
                limit)


def generation_of(vlm: LocalVLM, row: Row, out: Decoded, batch_size: int) -> Generation:
    """As a trial's line holds it: without times, which a run that was resumed could not repeat."""
    (image, *_) = row.prompt.images
    return Generation(text=vlm.text_of(out.ids), token_ids=out.ids, n_prompt_tokens=len(row.prompt),
                      n_image_tokens=row.prompt.n_image_tokens, finish=out.finish,
                      image_sizes=tuple(image.seen for image in row.prompt.images), batch_size=batch_size,
                      filled=image.share_filled)
