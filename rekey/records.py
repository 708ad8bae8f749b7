"""The records that flow through the toolkit, and their JSON form.

One sampling record fixes both the edit and the label (ReKey, Sec. 3.2).  Records are frozen
dataclasses with plain fields; `to_json` and `from_json` turn any of them into a JSON object
and back.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

from rekey.geometry import Box

Mode = Literal["replace", "add"]
QuestionType = Literal["attribute", "position"]
Attribute = Literal["color", "pattern", "material"]
PATTERNS = ("plain", "striped", "dotted", "checked")


@dataclass(frozen=True)
class Slot:
    """A human-marked region where a visual key can be renewed (ReKey, Sec. 3.1)."""

    image_id: str
    slot_id: str
    mode: Literal["replace", "add", "either"]
    context: Box
    """What an editor sees around the edit."""
    edit: Box
    """The pixels that may change."""
    targets: tuple[str, ...] = ()
    """Existing objects, as the annotator named them: "blue jacket on the cyclist"."""
    candidates: tuple[str, ...] = ()
    """Objects that may be inserted: "bucket", "cat"."""
    clutter: float | None = None
    """Edge density around the slot, in [0, 1]; measured by `rekey slots measure`."""


@dataclass(frozen=True)
class ImageSlots:
    """All slots of one source image."""

    image_id: str
    slots: tuple[Slot, ...]
    category: str | None = None
    """`direct_attributes` or `relative_position`: the kind of the original question."""
    image_size: tuple[int, int] | None = None
    """(width, height) in pixels, where known."""
    question_id: str | None = None


@dataclass(frozen=True)
class VisualKey:
    """What a slot shows in one instance: the paper's (s, c)."""

    slot: Slot
    mode: Mode
    """What is done: equal to `slot.mode` unless that is "either"."""
    object: str
    """replace: the target as annotated, old color included; add: the inserted noun."""
    color: str | None
    """The painted color; None where the object keeps its own (pattern or material edits)."""
    pattern: str | None = None
    material: str | None = None

    def value(self, attribute: Attribute) -> str | None:
        return getattr(self, attribute)


@dataclass(frozen=True)
class SamplingRecord:
    """What one seed drew for one image.  Both the edit and the label follow from it."""

    image_id: str
    seed: int
    question_type: QuestionType
    attribute: Attribute
    keys: tuple[VisualKey, ...]
    """One key for an attribute question, two for a position question."""
    draw: int = 0
    """0 for the first draw of the seed; higher after failed edits or avoided items."""


@dataclass(frozen=True)
class Certificate:
    """Measurements, made without any model, that one key's edit is what the record says."""

    slot_id: str
    passed: bool
    failed_checks: tuple[str, ...]
    changed_fraction: float
    """Share of the edit box that visibly changed (CIEDE2000 above the threshold)."""
    measured: str | None
    """The color (or pattern) name that the changed pixels carry."""
    share: float
    """Share of the changed pixels that carry the wanted name."""
    area_gain: float
    """Area that carries the wanted name newly, as a share of the edit box."""
    ring_delta_e: float
    """Median CIEDE2000 in a thin ring outside the mask before compositing: a color drift."""
    clipped_fraction: float
    """Share of ring pixels that changed strongly: an object cut off by its box."""
    shape_correlation: float | None
    """replace: rank correlation of luminance gradients before and after."""
    old_share: float | None = None
    """replace: share of the changed pixels that had the target's old color before, or one near it."""
    attempts: int = 1


@dataclass(frozen=True)
class Item:
    """One question about one image, with its answer."""

    item_id: str
    image: str
    """Path of the image file, relative to the folder that holds the items file."""
    image_sha256: str
    """Hash of the decoded pixels (see `rekey.images`)."""
    question: str
    options: tuple[str, ...]
    """Empty for free-form answers."""
    answer: str
    """The right option's letter; the answer text itself where there are no options."""
    category: str | None = None
    source_answer: str | None = None
    """The answer that was right before the edit, for catching a model that recites it."""
    record: SamplingRecord | None = None
    certificate: tuple[Certificate, ...] = ()

    @property
    def answer_text(self) -> str:
        return self.options[option_index(self.answer)] if self.options else self.answer


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Generation:
    """What a model said to one prompt, with what it really saw.

    token_ids: the new tokens, an end token included.  n_prompt_tokens: all that was read before them.
    image_sizes: (height, width) of every image after the processor resized it.  finish: "stop" or "length".
    elapsed_s: wall time of the batch of `batch_size` prompts that it was part of (None in trials, where a resumed run
    must leave the same bytes).  filled: share of the image tokens that show the picture, less than 1 where a processor
    pads.  reasoning: what a server gives apart from the answer.
    trace: what an agent did on the way (see `probes.zoom`).
    Counts and sizes are None where a server does not tell them.
    """

    text: str
    token_ids: tuple[int, ...]
    n_prompt_tokens: int | None
    n_image_tokens: int | None
    image_sizes: tuple[tuple[int, int], ...] | None
    finish: str
    elapsed_s: float | None = None
    batch_size: int = 1
    filled: float = 1.0
    reasoning: str | None = None
    trace: dict[str, Any] | None = None


@dataclass(frozen=True)
class Response:
    """What a model said to one item, or why it said nothing: a line of evidence, graded later.

    key: a hash of all that the generation depends on (see `rekey.evaluate.response_key`).  item: without certificates.
    asked: the text put to the model.  settings: how (see `rekey.evaluate`).  run: which line of the runs file tells the
    machine, versions and kernel.  image_size: (height, width) of the file.  edit_tokens: how many image tokens the
    smallest edit region covers in what the model saw; None without a record of edits, or where the count is not known.
    """

    key: str
    item: Item
    model: str
    settings: dict[str, Any]
    asked: str
    run: str
    image_size: tuple[int, int] | None = None
    edit_tokens: float | None = None
    generation: Generation | None = None
    error: str | None = None


Outcome = Literal["correct", "wrong", "unparsed", "truncated", "error"]


@dataclass(frozen=True)
class SwapPair:
    """Two images of one size, and a question that may be asked of both and has other answers (VisualSwap, Sec. 2).

    image_a, image_b: paths of the files, relative to the folder that holds the pairs file.  options: texts, empty for
    free-form answers.  answer_a, answer_b: the right option's letter, or the answer text where there are no options.
    source: where the pair comes from, and for pairs made here all that was drawn.  category: what tables group by.
    changed: the box, in pixels, outside of which the images are equal.  sha256_a, sha256_b: of the decoded pixels.
    """

    pair_id: str
    image_a: str
    image_b: str
    question: str
    options: tuple[str, ...]
    answer_a: str
    answer_b: str
    source: Any = None
    category: str | None = None
    changed: Box | None = None
    sha256_a: str | None = None
    sha256_b: str | None = None

    def answer(self, side: Literal["a", "b"]) -> str:
        return self.answer_a if side == "a" else self.answer_b

    def answer_text(self, side: Literal["a", "b"]) -> str:
        answer = self.answer(side)
        return self.options[option_index(answer)] if self.options else answer


def option_letter(index: int) -> str:
    return LETTERS[index]


def option_index(letter: str) -> int:
    return LETTERS.index(letter)


# ------------------------------------------------------------------------------- JSON form

def to_json(record: Any) -> Any:
    """Plain JSON data for a record: dataclasses become objects, tuples lists, boxes [l, t, r, b].

    Fields that hold their default are left out, so that a new field does not change old files.
    """
    if isinstance(record, Box):
        return record.as_list()
    if dataclasses.is_dataclass(record):
        return {f.name: to_json(value) for f in dataclasses.fields(record)
                if (value := getattr(record, f.name)) != f.default or f.default is dataclasses.MISSING}
    if isinstance(record, (tuple, list)):
        return [to_json(part) for part in record]
    return record


@functools.cache
def _fields(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def from_json(kind: Any, data: Any) -> Any:
    """The record of type `kind` that `to_json` turned into `data`; unknown fields are ignored.

    Raises KeyError or TypeError for data that is not of that form.
    """
    origin = typing.get_origin(kind)
    if kind is Box:
        return Box(*data)
    if dataclasses.is_dataclass(kind):
        hints = _fields(kind)
        return kind(**{name: from_json(hints[name], value)
                       for name, value in data.items() if name in hints})
    if origin is tuple:
        parts = typing.get_args(kind)
        if parts[-1] is Ellipsis:
            if parts[0] in (int, str):                  # thousands of token ids
                return tuple(data)
            return tuple(from_json(parts[0], part) for part in data)
        return tuple(from_json(part, value) for part, value in zip(parts, data, strict=True))
    if origin in (typing.Union, types.UnionType):
        if data is None:
            return None
        return from_json(next(k for k in typing.get_args(kind) if k is not type(None)), data)
    return data
