"""What every token of a sequence is, and where it sits: ids, groups, images, M-RoPE positions.

A `Prompt` is a row of token ids with, for each of them, the group it belongs to (sink, template,
question, generated, or the k-th image) and the encoded images themselves.  It grows by
`prompt.then(ids)` and never re-tokenizes what is already there, so that the same ids can be read
under another image (VisualSwap, Sec. 2) and cut at any token.

    longer = prompt.then(reasoning_ids)                   # what the model said
    other  = longer.with_images([image_b])                # same ids, other pixels; refuses another grid
    axes, following = rope_positions(other.codes, other.images, "mrope")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rekey.errors import InputError
from rekey.geometry import Box

PADDING, SINK, TEMPLATE, QUESTION, GENERATED, IMAGE = range(6)
"""Group codes of tokens.  Image k has two: IMAGE + 2k outside its region, IMAGE + 2k + 1 inside."""
MAX_IMAGES = 125                 # group codes are bytes


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """One image as the model sees it.

    pixels: what the processor calls `pixel_values`, (n_patches, ...).  grid: (t, h, w) in patches.
    size, seen: (height, width) of the image as given and after the processor resized it.
    filled: the part of `seen` that the image fills, where a processor pads instead of stretching (Kimi).
    region: indices of the image's own tokens that cover the boxes of interest (an edit, say).
    """

    pixels: torch.Tensor
    grid: tuple[int, int, int]
    merge: int
    size: tuple[int, int]
    seen: tuple[int, int]
    filled: tuple[int, int]
    sha256: str = ""
    region: tuple[int, ...] = ()

    @property
    def token_grid(self) -> tuple[int, int]:
        """Rows and columns of image tokens (a token is merge x merge patches)."""
        return self.grid[1] // self.merge, self.grid[2] // self.merge

    @property
    def n_tokens(self) -> int:
        rows, columns = self.token_grid
        return self.grid[0] * rows * columns

    @property
    def share_filled(self) -> float:
        """What share of its tokens shows the picture: less than 1 where a processor pads."""
        return self.filled[0] * self.filled[1] / (self.seen[0] * self.seen[1])

    def tokens_in(self, *boxes: Box) -> tuple[int, ...]:
        """Indices of the image tokens of which at least half lies in one of `boxes` (pixels as given)."""
        rows, columns = self.token_grid
        # A token's side in pixels of the image as given.
        down, across = (seen / n * size / filled for seen, n, size, filled in
                        zip(self.seen, self.token_grid, self.size, self.filled))
        top, left = np.arange(rows) * down, np.arange(columns) * across
        inside = np.zeros((rows, columns), bool)
        for box in boxes:
            tall = np.minimum(box.bottom, top + down) - np.maximum(box.top, top)
            wide = np.minimum(box.right, left + across) - np.maximum(box.left, left)
            covered = np.outer(tall.clip(0), wide.clip(0)) >= 0.5 * down * across
            if not covered.any():
                raise InputError(
                    f"region {(box.left, box.top, box.right, box.bottom)}: covers no image token: in the "
                    f"{self.size[1]}x{self.size[0]} image one token is {across:.0f}x{down:.0f} px and none has half "
                    "of it inside; give a larger box, or raise max_pixels so that tokens cover less")
            inside |= covered
        return tuple(np.flatnonzero(inside).tolist())

    def with_region(self, *boxes: Box) -> EncodedImage:
        return replace(self, region=self.tokens_in(*boxes))

    def codes(self, index: int) -> bytes:
        """Group codes of its tokens when it is image number `index` of the sequence."""
        if index >= MAX_IMAGES:
            raise InputError(f"images: more than {MAX_IMAGES} in one prompt; expected at most that many")
        codes = np.full(self.n_tokens, IMAGE + 2 * index, np.uint8)
        codes[list(self.region)] += 1
        return codes.tobytes()


@dataclass(frozen=True, eq=False)
class Prompt:
    """Token ids, the group of each, and the images among them, in order.

    `codes` has one byte per id (see the constants above).  The images' tokens are in `ids` already,
    one id per token.
    """

    ids: tuple[int, ...]
    codes: bytes
    images: tuple[EncodedImage, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.codes), "one group code per token id"
        n_found = int((np.frombuffer(self.codes, np.uint8) >= IMAGE).sum())
        assert n_found == self.n_image_tokens, "the ids hold as many image tokens as the images have"

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_image_tokens(self) -> int:
        return sum(image.n_tokens for image in self.images)

    @property
    def image_end(self) -> int:
        """The column after the last image token; 0 without images."""
        return next((i + 1 for i in reversed(range(len(self.codes))) if self.codes[i] >= IMAGE), 0)

    @property
    def n_prompt(self) -> int:
        """Tokens before the first generated one."""
        first = self.codes.find(GENERATED)
        return len(self.codes) if first < 0 else first

    def then(self, ids: Sequence[int], group: int = GENERATED) -> Prompt:
        """The sequence with text `ids` after it.  group: TEMPLATE, QUESTION or GENERATED."""
        if group not in (TEMPLATE, QUESTION, GENERATED):
            raise InputError(f"group {group!r}: expected TEMPLATE, QUESTION or GENERATED of probes.layout")
        return Prompt((*self.ids, *ids), self.codes + bytes([group]) * len(ids), self.images)

    def cut(self, n_tokens: int) -> Prompt:
        """Its first `n_tokens`; a cut inside an image is refused."""
        if not max(1, self.image_end) <= n_tokens <= len(self):
            raise InputError(f"cut at token {n_tokens}: a sequence of {len(self)} tokens whose last image ends at "
                             f"token {self.image_end} can be cut between those two (and keeps at least one token)")
        return Prompt(self.ids[:n_tokens], self.codes[:n_tokens], self.images)

    def with_images(self, images: Sequence[EncodedImage]) -> Prompt:
        """The same ids under other images of the same grids (VS-Bench: identical resolution)."""
        check_same_grids(self.images, images)
        codes = bytearray(self.codes)
        for index, image in enumerate(images):
            start = min(i for i, code in enumerate(codes) if code in (IMAGE + 2 * index, IMAGE + 2 * index + 1))
            codes[start:start + image.n_tokens] = image.codes(index)
        return Prompt(self.ids, bytes(codes), tuple(images))


def check_same_grids(images: Sequence[EncodedImage], others: Sequence[EncodedImage]) -> None:
    """Images can be exchanged under the same ids only where their grids agree, not just their token counts:
    12 x 8 and 8 x 12 patches have equal counts and other positions."""
    if len(images) != len(others):
        raise InputError(f"image swap: the sequence has {len(images)} image(s), {len(others)} given; "
                         "give one for each")
    for number, (image, other) in enumerate(zip(images, others), 1):
        if image.grid != other.grid:
            was, now = (f"{i.size[1]}x{i.size[0]} (patch grid {i.grid[1]}x{i.grid[2]}, {i.n_tokens} tokens)"
                        for i in (image, other))
            raise InputError(f"image swap: image {number} is {was}, its replacement {now}; expected equal sizes: give "
                             "images of one size, or encode them with encode_pair(..., resize=True)")


def rope_positions(codes: bytes, images: Sequence[EncodedImage], kind: str, first: int = 0,
                   ) -> tuple[np.ndarray, int]:
    """Rotary positions of a run of tokens and the position that follows it.

    kind "mrope": (3, T), axes time, height, width; text advances all three by one, an image lies
    on its token grid and is followed by the larger of its two sides (Qwen2-VL, Sec. 2.1).  kind "1d": (1, T).
    `images` are those whose tokens are in `codes`, in order.
    """
    if kind == "1d":
        return np.arange(first, first + len(codes))[None], first + len(codes)
    axes = np.empty((3, len(codes)), np.int64)
    at, waiting = 0, list(images)
    while at < len(codes):
        if codes[at] >= IMAGE:
            image = waiting.pop(0)
            times, (rows, columns) = image.grid[0], image.token_grid
            grid = np.stack(np.meshgrid(np.arange(times), np.arange(rows), np.arange(columns), indexing="ij"))
            axes[:, at:at + image.n_tokens] = first + grid.reshape(3, -1)
            at, first = at + image.n_tokens, first + max(rows, columns)
        else:
            stop = at
            while stop < len(codes) and codes[stop] < IMAGE:
                stop += 1
            axes[:, at:stop] = first + np.arange(stop - at)
            at, first = stop, first + stop - at
    assert not waiting, "every image's tokens are in the run"
    return axes, first
