"""How cluttered the surroundings of a slot are: the density of edges in its context box.

    edge_density(photo.pixels, slot.context)        # in [0, 1]: 0 an empty sky, about 0.5 a hedge

Edge density is the plainest of the clutter measures that predict search times (Mack & Oliva 2004;
compared in Rosenholtz, Li & Nakano, "Measuring visual clutter", Journal of Vision 2007).  It serves
the scene-clutter axis that the paper names as missing (ReKey, Limitations).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rekey.geometry import Box
from rekey.records import ImageSlots

BLUR_SIGMA_PX = 1.0         # as in Rosenholtz et al.: below the noise, above the grain
EDGE_LEVELS_PER_PX = 8.0    # a slope of brightness that reads as an edge; sensor noise stays under it


def edge_density(pixels: np.ndarray, box: Box) -> float:
    """Share of the box's pixels that lie on a brightness edge, in [0, 1].

    pixels: uint8 (height, width, 3).  A pixel is on an edge where brightness (0 to 255), smoothed
    with a Gaussian of BLUR_SIGMA_PX, changes by more than EDGE_LEVELS_PER_PX per pixel.  Measured at
    native resolution: the same scene, photographed larger, has softer and so fewer edges.
    """
    import cv2
    crop = np.ascontiguousarray(pixels[box.clipped(pixels.shape[1], pixels.shape[0]).slices])
    if crop.size == 0:
        raise ValueError(f"box {box} lies outside the image of {pixels.shape[1]} x {pixels.shape[0]} pixels")
    brightness = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY).astype(np.float32)
    smooth = cv2.GaussianBlur(brightness, (0, 0), BLUR_SIGMA_PX)
    # The Sobel kernel sums to 8 times the slope.
    slope = np.hypot(cv2.Sobel(smooth, cv2.CV_32F, 1, 0), cv2.Sobel(smooth, cv2.CV_32F, 0, 1)) / 8
    return float((slope > EDGE_LEVELS_PER_PX).mean())


def measured_row(row: dict[str, Any], image: ImageSlots, pixels: np.ndarray) -> dict[str, Any]:
    """The image's line of an annotation file with `image_size` and `clutter` set, all else as written.

    row: the JSON object that `image` was read from, so that their slots are in the same order.
    """
    slots = [entry | {"clutter": round(edge_density(pixels, slot.context), 4)}
             for entry, slot in zip(row["slots"], image.slots, strict=True)]
    return row | {"image_size": [pixels.shape[1], pixels.shape[0]], "slots": slots}
