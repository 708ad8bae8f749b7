"""Cut a slot's context to a canvas, paste the edit back, leave the rest bit-identical (ReKey, Sec. 3.3).

    crop   = cut(pixels, slot, editor.canvases_px)
    edited = editor.edit(... crop.canvas, crop.box ...)
    result = paste(pixels, crop, edited)

The released pipeline pastes the whole crop.  Here an edit enters through a soft mask around the edit
box: full inside the box, falling to zero over a few pixels outside it, and exactly zero beyond, where
every pixel stays as it was in the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rekey.geometry import MAX_MASK_MARGIN_PX, Box
from rekey.records import Slot


def mask_margin_px(edit: Box) -> int:
    """How far the soft mask reaches beyond the edit box: 12% of its short side, 4 to 12 px."""
    return max(4, min(MAX_MASK_MARGIN_PX, round(0.12 * min(edit.width, edit.height))))


def soft_mask(edit: Box, window: Box) -> np.ndarray:
    """float32 (height, width) over `window`: 1 in the box, a smooth fall to 0 outside it, then 0."""
    margin = mask_margin_px(edit)

    def ramp(low: int, high: int, start: int, stop: int) -> np.ndarray:
        at = np.arange(start, stop)
        outside = np.maximum(np.maximum(low - at, at - (high - 1)), 0)     # px beyond the box
        t = np.clip(1 - outside / (margin + 1), 0, 1)
        return (t * t * (3 - 2 * t)).astype(np.float32)

    return (ramp(edit.top, edit.bottom, window.top, window.bottom)[:, None]
            * ramp(edit.left, edit.right, window.left, window.right)[None])


@dataclass(frozen=True)
class Crop:
    """A context crop on an editor's canvas."""

    canvas: np.ndarray
    """uint8 (height, width, 3)."""
    box: Box
    """The edit box in canvas pixels."""
    window: Box
    """What the canvas shows of the image, in its pixels."""
    edit: Box
    """The edit box, in pixels of the image."""
    square: Box | None = None
    """What a square canvas covers: the window, and beyond the image its repeated border."""

    @property
    def scale(self) -> float:
        """Canvas pixels per pixel of the image."""
        return self.canvas.shape[1] / self.square.width if self.square else 1.0


def cut(pixels: np.ndarray, slot: Slot, canvases_px: Sequence[int] = ()) -> Crop:
    """The slot's context as a canvas.

    Without canvases the context box at its native size, grown where it does not hold the soft mask
    and the ring that certificates measure.  Otherwise a square, filled by growing the context into the
    scene, resampled with Lanczos to the smallest canvas that holds it, else to the largest.  The aspect
    is always kept; where the image is narrower than the square, its border is repeated.
    """
    height, width = pixels.shape[:2]
    needed = slot.edit.grown(mask_margin_px(slot.edit) + 8)
    window = Box(min(slot.context.left, needed.left), min(slot.context.top, needed.top),
                 max(slot.context.right, needed.right), max(slot.context.bottom, needed.bottom))
    window = window.clipped(width, height)
    if not canvases_px:
        return Crop(np.ascontiguousarray(pixels[window.slices]), slot.edit.moved(-window.left, -window.top),
                    window, slot.edit)
    from PIL import Image
    square = _squared(window, width, height)
    window = square.clipped(width, height)
    canvas_px = next((side for side in sorted(canvases_px) if side >= square.width), max(canvases_px))
    beyond = ((window.top - square.top, square.bottom - window.bottom),
              (window.left - square.left, square.right - window.right), (0, 0))
    shown = np.pad(pixels[window.slices], beyond, mode="edge")
    canvas = np.asarray(Image.fromarray(shown).resize((canvas_px, canvas_px), Image.LANCZOS))
    box = slot.edit.moved(-square.left, -square.top).scaled(canvas_px / square.width)
    return Crop(canvas, box.clipped(canvas_px, canvas_px), window, slot.edit, square)


def _squared(window: Box, width: int, height: int) -> Box:
    """A square that holds the window, inside the image as far as it fits."""
    side = max(window.width, window.height)

    def start(low: int, size: int, limit: int) -> int:
        low -= (side - size) // 2
        return (limit - side) // 2 if side > limit else min(max(0, low), limit - side)

    left, top = start(window.left, window.width, width), start(window.top, window.height, height)
    return Box(left, top, left + side, top + side)


def to_window(crop: Crop, edited: np.ndarray) -> np.ndarray:
    """The editor's canvas at the window's own size, uint8 (height, width, 3)."""
    if edited.shape != crop.canvas.shape or edited.dtype not in (np.uint8, np.float32):
        raise ValueError(f"the editor returned {edited.dtype} {edited.shape}, expected uint8 or float32 "
                         f"{crop.canvas.shape}")
    if crop.square is not None:
        edited = _resampled(edited, crop.square.width)
        edited = edited[crop.window.moved(-crop.square.left, -crop.square.top).slices]
    if edited.dtype != np.uint8:
        edited = np.rint(np.clip(edited, 0, 255)).astype(np.uint8)
    return np.ascontiguousarray(edited)


def _resampled(canvas: np.ndarray, side: int) -> np.ndarray:
    """A canvas at another size, in its own type."""
    from PIL import Image
    if canvas.dtype == np.uint8:
        return np.asarray(Image.fromarray(canvas).resize((side, side), Image.LANCZOS))
    channels = np.ascontiguousarray(np.moveaxis(canvas, -1, 0))         # PIL has no color pictures of floats
    return np.stack([np.asarray(Image.fromarray(one).resize((side, side), Image.LANCZOS)) for one in channels], -1)


def paste(pixels: np.ndarray, crop: Crop, edited: np.ndarray) -> np.ndarray:
    """Blend `edited` (window size) into `pixels` in place through the soft mask; returns `pixels`."""
    region = pixels[crop.window.slices]
    mask = soft_mask(crop.edit, crop.window)[..., None]
    inside = mask[..., 0] > 0
    blended = region[inside] + mask[inside] * (edited[inside].astype(np.float32) - region[inside])
    region[inside] = np.rint(blended).astype(np.uint8)
    return pixels
