"""The attention of a stored trial, by reading once more what was said in it (VisualSwap, Sec. 5.3).

    case = Case.of(vlm, trial.pair, folder, settings_of(trial))
    trace = trace_trial(vlm, case, trial, first_ids, follows="text")           # a probes.trace_store.TrialTrace

Nothing is generated: a trial's line holds all token ids, and one reading of them gives what decoding would have
recorded.  It is read as it was decoded: under one image where all was (recompute, none), the rows before the swap under
image a and those after it from the exchanged state (splice), and steered from where it was steered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from probes.attention import chosen_layers, recording_image_attention
from probes.interpose import text_attention_modules
from probes.layout import Prompt
from probes.maps import mapping_image_attention
from probes.prefix import prefill, read_on
from probes.protocol import n_shared
from probes.steering import steering_image_attention
from probes.swap import swap
from probes.trace import ImageAttention
from probes.trace_store import N_WINDOW, SeenImage, TrialTrace, token_texts, windows_of
from probes.trial_rows import Case, NothingToDo, Row, row_of, without_stop
from rekey.errors import InputError
from rekey.evaluate import Settings
from rekey.trials import Cell, Follows, SwapTrial

if TYPE_CHECKING:
    from probes.vlm import LocalVLM


@dataclass(frozen=True)
class Tracing:
    """What is kept of a trial.  layers: indices, all by default.  per_head: False keeps the mean over heads.  window:
    tokens on either side of the phrase that maps are taken over."""

    layers: tuple[int, ...] | None = None
    per_head: bool = True
    window: int = N_WINDOW

    def check(self, vlm: LocalVLM) -> None:
        """Raises InputError for layers that the model does not have."""
        chosen_layers(self.layers, text_attention_modules(vlm.model), vlm.model.config.get_text_config()
                      .num_hidden_layers)

    def made_with(self, dtype: str) -> dict[str, Any]:
        """As a trace's header says it."""
        return {"layers": None if self.layers is None else list(self.layers), "per_head": self.per_head,
                "window": self.window, "dtype": dtype}


def settings_of(trial: SwapTrial) -> Settings:
    """How the trial's question was put."""
    names = {field.name for field in dataclasses.fields(Settings)}
    return Settings(**{name: value for name, value in trial.settings.items() if name in names})


def trace_trial(vlm: LocalVLM, case: Case, trial: SwapTrial, first: Sequence[int], follows: Follows | None = None,
                tracing: Tracing | None = None) -> TrialTrace:
    """first: token ids of the first answer (those of the trial named by `trial.first`; none for a base trial).

    Raises InputError where the trial cannot be made again from its line: other images, another processor.
    """
    tracing = tracing or Tracing()
    row = checked_row(vlm, case, trial, first)
    said = trial.second.token_ids
    whole = row.prompt.then(said[:-1])
    windows = windows_of(row.n_asked, row.t_phrase, row.t_after, len(whole), tracing.window)
    # Of text before the first generated token, only the last is recorded: a user's turn where the answer was removed.
    windows = {name: (max(low, min(stop, whole.n_prompt - 1)), stop) for name, (low, stop) in windows.items()}
    with recording_image_attention(vlm, tracing.layers, tracing.per_head) as recorded, \
            mapping_image_attention(vlm, row.prompt, windows, tracing.layers) as maps:
        _read(vlm, case, trial.cell, row, whole, first)
    (attention,) = recorded.sequences()
    attention = replace(_from_token(attention, row.n_asked - 1), t_swap=row.t_phrase)
    ids = [whole.ids[token] for token in attention.query_index]
    (image,) = row.prompt.images
    side_before = "a" if trial.cell.continues and trial.cell.regime in ("splice", "none") else trial.cell.image
    paths = {"a": trial.pair.image_a, "b": trial.pair.image_b}
    return TrialTrace(
        key=trial.key, model=trial.model, pair_id=trial.pair.pair_id, cell=trial.cell, follows=follows,
        attention=attention, n_asked=row.n_asked, t_phrase=row.t_phrase, t_after=row.t_after,
        texts=token_texts(ids, lambda some: vlm.text_of(some, skip_special_tokens=False)), windows=windows,
        maps=maps.arrays(), image_before=paths[side_before], seed=trial.seed,
        image=SeenImage(paths[trial.cell.image], image.sha256, image.size, image.seen, image.filled, image.token_grid,
                        image.region),
        made_with=tracing.made_with(str(vlm.dtype).removeprefix("torch.")))


def checked_row(vlm: LocalVLM, case: Case, trial: SwapTrial, first: Sequence[int]) -> Row:
    """All that the model read in a trial, made again; raises InputError where that is not what the line tells."""
    name = f"pair {trial.pair.pair_id}, {trial.cell.condition}"
    if trial.second is None or not trial.second.token_ids:
        raise InputError(f"{name}: its line holds no token ids of an answer; run the trial again")
    try:
        row = row_of(vlm, case, trial.cell, first, settings_of(trial).thinking)
    except NothingToDo as reason:
        raise InputError(f"{name}: cannot be made again ({reason}); was it made by another version?") from None
    found = {"tokens before the answer": (len(row.prompt), trial.second.n_prompt_tokens),
             "tokens that are kept": (row.n_kept, trial.n_kept),
             "ids that were put in": (list(row.injected), list(trial.injected))}
    for what, (here, there) in found.items():
        if here != there:
            raise InputError(f"{name}: has {_short(here)} {what} when it is made again, and {_short(there)} in its "
                             "line; expected the same: trace with the model files, pixel limits and pairs it was made "
                             "with, or run it again")
    return row


def _short(value: Any) -> str:
    return str(value) if not isinstance(value, list) else f"{value[:4]}{'...' if len(value) > 4 else ''}"


def _read(vlm: LocalVLM, case: Case, cell: Cell, row: Row, whole: Prompt, first: Sequence[int]) -> None:
    """Read the whole row as it was decoded: `probes.protocol` reads what a cell shares with the first answer, exchanges
    the image, and steers what is the cell's own."""
    spliced = cell.continues and cell.regime == "splice"
    if not spliced and not cell.log_bias:
        prefill(vlm, [whole])
        return
    shared = row.prompt.cut(n_shared(case.prompt(cell.image).then(without_stop(vlm, first)), row, cell))
    if spliced:
        state = swap(vlm, prefill(vlm, [shared.with_images(case.prompt_a.images)]), shared.images, cell.regime)
    else:
        state = prefill(vlm, [shared])
    with ExitStack() as steered:
        if cell.log_bias:
            steered.enter_context(steering_image_attention(vlm, log_bias=cell.log_bias, layers=cell.layers or None))
        read_on(vlm, state, [whole])


def _from_token(attention: ImageAttention, token: int) -> ImageAttention:
    """Without the rows before a token: a steered reading begins one earlier."""
    rows = attention.query_index >= token
    arrays = {field.name: value[..., rows] for field in dataclasses.fields(attention)
              if isinstance(value := getattr(attention, field.name), np.ndarray)}
    return replace(attention, **arrays)
