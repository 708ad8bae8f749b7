"""Undo what a model did to the colors around an edit (a drift), before it is pasted into the photograph.

    edited = without_drift(canvas, edited, hole)

A diffusion model gives the whole canvas back a little lighter, duller or warmer; pasted, that is a seam.  The
surroundings show how much, since they should not have changed: the map that brings their mean and contrast back,
channel by channel in CIELAB, is applied to all of the edit.
"""

from __future__ import annotations

import warnings

import numpy as np
from skimage.color import lab2rgb, rgb2lab

from rekey.geometry import Box

RING_SHARE, MIN_RING_PX = 0.04, 8       # width of the ring around the hole: share of the canvas
MIN_RING_AREA_PX2 = 256                 # fewer pixels say nothing
NO_DRIFT = 0.2                          # CIELAB; smaller changes are rounding
LARGEST_GAIN = 1.25
CHANGED_DELTA_E = 10.0                  # from the median: a shadow or another thing, not a drift


def without_drift(canvas: np.ndarray, edited: np.ndarray, hole: Box) -> np.ndarray:
    """`edited` with the drift of the ring around the hole taken out; float32 (height, width, 3) in [0, 1].

    canvas: uint8, before.  edited: float32 in [0, 1] of the same shape, after.  hole: what the model was to repaint.
    """
    ring = _ring(canvas.shape[:2], hole)
    if ring.sum() < MIN_RING_AREA_PX2:
        return edited
    # Exactly, by skimage: OpenCV's table is off by a third of a unit, unevenly, which a gain would make visible.
    lab = rgb2lab(edited)
    before, after = rgb2lab(canvas[ring].astype(np.float32) / 255), lab[ring]      # (n, 3)
    off = after - before
    plain = np.linalg.norm(off - np.median(off, axis=0), axis=1) < CHANGED_DELTA_E
    if plain.sum() < MIN_RING_AREA_PX2:
        return edited
    before, after = before[plain], after[plain]
    mean_before, mean_after = before.mean(0), after.mean(0)
    gain = np.clip((before.std(0) + 1) / (after.std(0) + 1), 1 / LARGEST_GAIN, LARGEST_GAIN)
    if np.abs(mean_before - mean_after).max() < NO_DRIFT and np.abs(gain - 1).max() < 0.02:
        return edited
    matched = np.float32(mean_before) + (lab - np.float32(mean_after)) * np.float32(gain)
    matched[..., 0] = np.clip(matched[..., 0], 0, 100)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Conversion from CIE-LAB", UserWarning)     # colors that no screen shows
        return lab2rgb(matched)


def as_bytes(picture: np.ndarray) -> np.ndarray:
    """uint8 of a picture in [0, 1]."""
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)


def _ring(shape: tuple[int, int], hole: Box) -> np.ndarray:
    """bool (height, width): close around the hole."""
    height, width = shape
    ring = np.zeros(shape, bool)
    ring[hole.grown(max(MIN_RING_PX, round(RING_SHARE * max(shape)))).clipped(width, height).slices] = True
    ring[hole.clipped(width, height).slices] = False
    return ring
