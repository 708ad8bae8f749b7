"""Cut a slot's context to a canvas, paste the edit back, leave the rest bit-identical (ReKey, Sec. 3.3).

    crop   = cut(pixels, slot, canvas_px=None)
    edited = editor.edit(... crop.canvas, crop.box ...)
    result = paste(pixels, crop, edited)

The released pipeline pastes the whole crop.  Here an edit enters through a soft mask around the edit
box: full inside the box, falling to zero over a few pixels outside it, and exactly zero beyond, where
every pixel stays as it was in the source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekey.geometry import Box
from rekey.records import Slot
from rekey.sampling import EDIT_MARGIN_PX


def mask_margin_px(edit: Box) -> int:
    """How far the soft mask reaches beyond the edit box: 12% of its short side, 4 to 12 px."""
    return max(4, min(EDIT_MARGIN_PX, round(0.12 * min(edit.width, edit.height))))


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
    """What the canvas shows, in pixels of the image."""
    edit: Box
    """The edit box, in pixels of the image."""


def cut(pixels: np.ndarray, slot: Slot, canvas_px: int | None) -> Crop:
    """The slot's context as a canvas.

    canvas_px None: the context box at its native size, grown where it does not hold the soft mask
    and the ring that certificates measure.  Otherwise a square of that side, filled by growing the
    context into the scene (never by padding or by changing the aspect), resampled with Lanczos.
    """
    height, width = pixels.shape[:2]
    needed = slot.edit.grown(mask_margin_px(slot.edit) + 8)
    window = Box(min(slot.context.left, needed.left), min(slot.context.top, needed.top),
                 max(slot.context.right, needed.right), max(slot.context.bottom, needed.bottom))
    window = window.clipped(width, height)
    if canvas_px is None:
        return Crop(np.ascontiguousarray(pixels[window.slices]), slot.edit.moved(-window.left, -window.top),
                    window, slot.edit)
    from PIL import Image
    window = _squared(window, width, height)
    canvas = np.asarray(Image.fromarray(pixels[window.slices]).resize((canvas_px, canvas_px), Image.LANCZOS))
    sx, sy = canvas_px / window.width, canvas_px / window.height
    box = slot.edit.moved(-window.left, -window.top)
    box = Box(int(box.left * sx), int(box.top * sy), -int(-box.right * sx // 1), -int(-box.bottom * sy // 1))
    return Crop(canvas, box.clipped(canvas_px, canvas_px), window, slot.edit)


def _squared(window: Box, width: int, height: int) -> Box:
    """The window grown to a square inside the image, as far as the image's short side allows."""
    side = min(max(window.width, window.height), width, height)
    side_x, side_y = max(side, window.width), max(side, window.height)
    left = min(max(0, window.left - (side_x - window.width) // 2), width - side_x)
    top = min(max(0, window.top - (side_y - window.height) // 2), height - side_y)
    return Box(left, top, left + side_x, top + side_y)


def to_window(crop: Crop, edited: np.ndarray) -> np.ndarray:
    """The editor's canvas at the window's own size, uint8 (height, width, 3)."""
    if edited.shape != crop.canvas.shape or edited.dtype != np.uint8:
        raise ValueError(f"the editor returned {edited.dtype} {edited.shape}, expected uint8 {crop.canvas.shape}")
    if edited.shape[:2] == (crop.window.height, crop.window.width):
        return edited
    from PIL import Image
    return np.asarray(Image.fromarray(edited).resize((crop.window.width, crop.window.height), Image.LANCZOS))


def paste(pixels: np.ndarray, crop: Crop, edited: np.ndarray) -> np.ndarray:
    """Blend `edited` (window size) into `pixels` in place through the soft mask; returns `pixels`."""
    region = pixels[crop.window.slices]
    mask = soft_mask(crop.edit, crop.window)[..., None]
    inside = mask[..., 0] > 0
    blended = region[inside] + mask[inside] * (edited[inside].astype(np.float32) - region[inside])
    region[inside] = np.rint(blended).astype(np.uint8)
    return pixels
