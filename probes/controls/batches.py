"""Lessons as tensors: token ids, labels, pixels, positions, and where the training aids look.

    batch = Batch.of(lessons, rng_pixels)
    batch.ids, batch.labels, batch.pixels            # (B, S), (B, S), (B * 144, 384)

Ids are those of the stock prompt (tests compare them with `LocalVLM.prompt`), and pixels are made by the stock
processor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from probes.controls.talk import Lesson, Turn
from probes.controls.text import GRID, N_IMAGE_TOKENS, TOKEN_GRID, control_processor
from rekey.colors import COLORS
from rekey.records import option_index
from rekey.scenes import SHAPES, Scene, render_scene

NO_LABEL = -100


@functools.cache
def encode(text: str) -> tuple[int, ...]:
    return tuple(control_processor().tokenizer(text, add_special_tokens=False)["input_ids"])


def one_token(text: str) -> int:
    (token,) = encode(text)
    return token


@dataclass(frozen=True)
class Vocabulary:
    """Ids that training and its aids look for."""

    image: int
    end: int
    pad: int
    shapes: tuple[int, ...]
    """" square", in the order of SHAPES."""
    colors: tuple[int, ...]
    values: tuple[int, ...]
    """What an option can say: colors, then left, right, above, below."""
    letters: frozenset[int]
    bracketed: frozenset[int]
    """"(A" and its like: what an option starts with."""


@functools.cache
def vocabulary() -> Vocabulary:
    words = control_processor().tokenizer.convert_tokens_to_ids
    colors = tuple(one_token(f" {color}") for color in COLORS)
    relations = tuple(one_token(f" {word}") for word in ("left", "right", "above", "below"))
    return Vocabulary(
        image=words("<|image_pad|>"), end=words("<|im_end|>"), pad=words("<|endoftext|>"),
        shapes=tuple(one_token(f" {shape}") for shape in SHAPES), colors=colors, values=colors + relations,
        letters=frozenset(one_token(space + letter) for letter in "ABCD" for space in ("", " ")),
        bracketed=frozenset(one_token(f"({letter}") for letter in "ABCD"))


@functools.cache
def opening() -> tuple[int, ...]:
    """What every conversation starts with, the image's tokens included."""
    return (*encode("<|im_start|>user\n<|vision_start|>"), *(vocabulary().image,) * N_IMAGE_TOKENS,
            *encode("<|vision_end|>"))


@functools.cache
def image_start() -> int:
    """Index of the first image token in every conversation."""
    return opening().index(vocabulary().image)


@dataclass(frozen=True)
class LetterAid:
    """For one answer by letter: tokens of the options' values, the right one's index, and where the letter is said.

    at: positions that predict the letter.  source: the last shape word of the question, where the letter comes at
    once, else None.
    """

    values: tuple[int, ...]
    right: int
    at: tuple[int, ...]
    source: int | None


@dataclass(frozen=True)
class Row:
    """One conversation: ids, labels, and what the aids need to know of it."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    """Positions of the first and second shape word of each question about two objects."""
    letters: tuple[LetterAid, ...]
    copies: tuple[tuple[int, int], ...]
    """Where the model is about to name an object of the question, and where the question names it."""


def to_row(lesson: Lesson) -> Row:
    """The conversation of a lesson as ids and labels."""
    words = vocabulary()
    ids: list[int] = []
    labels: list[int] = []
    pairs, letters, copies = [], [], []
    asked: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    for number, turn in enumerate(lesson.turns):
        head = opening() if number == 0 else encode("<|im_start|>user\n")
        start, user = len(ids) + len(head), encode(turn.user)
        shapes = tuple(start + n for n, token in enumerate(user) if token in words.shapes)
        if len(shapes) == 2:
            pairs.append(shapes)
        values = tuple(start + n + 2 for n, token in enumerate(user) if token in words.bracketed)
        if values:
            asked = (values, shapes)
        said = (*head, *user, *encode("<|im_end|>\n<|im_start|>assistant\n"))
        ids += said
        labels += [NO_LABEL] * len(said)
        answer = len(ids)
        for piece in turn.said:
            tokens = encode(piece.text)
            ids += tokens
            labels += tokens if piece.trained else [NO_LABEL] * len(tokens)
        if turn.letter is not None:
            letters.append(_letter_aid(turn, asked, ids, labels, answer))
        named = {ids[position]: position for position in asked[1]}
        copies += [(n - 1, named[ids[n]]) for n in range(answer, len(ids)) if labels[n] in named]
        ids += [words.end, *encode("\n")]
        labels += [words.end, NO_LABEL]
    return Row(tuple(ids), tuple(labels), tuple(pairs), tuple(letters), tuple(copies))


def _letter_aid(turn: Turn, asked: tuple[tuple[int, ...], tuple[int, ...]], ids: list[int], labels: list[int],
                answer: int) -> LetterAid:
    values, shapes = asked
    at = tuple(n - 1 for n in range(answer, len(ids)) if ids[n] in vocabulary().letters and labels[n] != NO_LABEL)
    return LetterAid(values, option_index(turn.letter), at, shapes[-1] if turn.direct else None)


def pixel_values(scenes: Sequence[Scene]) -> torch.Tensor:
    """(B * GRID * GRID, 3 * 2 * PATCH * PATCH) float32, by the stock image processor."""
    pixels = torch.from_numpy(np.stack([render_scene(scene) for scene in scenes])).permute(0, 3, 1, 2)
    return control_processor().image_processor(images=pixels, return_tensors="pt")["pixel_values"]


def grids(n_images: int) -> torch.Tensor:
    """(B, 3) `image_grid_thw`."""
    return torch.tensor([[1, GRID, GRID]]).expand(n_images, 3)


@dataclass(frozen=True)
class Batch:
    """Lessons padded on the right; under causal attention padding after the last label changes nothing."""

    scenes: tuple[Scene, ...]
    rows: tuple[Row, ...]
    ids: torch.Tensor           # (B, S)
    labels: torch.Tensor        # (B, S)
    pixels: torch.Tensor        # (B * GRID * GRID, ...)

    @classmethod
    def of(cls, lessons: Sequence[Lesson]) -> Batch:
        rows = tuple(map(to_row, lessons))
        longest = max(len(row.ids) for row in rows)
        ids = torch.full((len(rows), longest), vocabulary().pad)
        labels = torch.full((len(rows), longest), NO_LABEL)
        for n, row in enumerate(rows):
            ids[n, :len(row.ids)] = torch.tensor(row.ids)
            labels[n, :len(row.labels)] = torch.tensor(row.labels)
        scenes = tuple(lesson.scene for lesson in lessons)
        return cls(scenes, rows, ids, labels, pixel_values(scenes))

    def positions(self) -> torch.Tensor:
        """(3, B, S) time, height and width: one image of TOKEN_GRID x TOKEN_GRID tokens at a fixed place."""
        n_rows, length = self.ids.shape
        start, stop = image_start(), image_start() + N_IMAGE_TOKENS
        axes = torch.arange(length).repeat(3, 1)
        down, across = torch.meshgrid(torch.arange(TOKEN_GRID), torch.arange(TOKEN_GRID), indexing="ij")
        axes[:, start:stop] = start + torch.stack([torch.zeros_like(down), down, across]).flatten(1)
        axes[:, stop:] = start + TOKEN_GRID + torch.arange(length - stop)
        return axes[:, None].expand(3, n_rows, length)
