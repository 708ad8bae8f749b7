"""The color pool, and the name of a measured color.

    name_shares(lab)                    # (n, 11) votes for the pool's names

The pool is that of ReKey (Sec. 3.2 and the released code).  Measured colors are named by a vote
of the nearest entries of the xkcd color survey (CC0; 949 named colors, of which those whose last
word is a pool name are used), so no hand-set prototype decides.
"""

from __future__ import annotations

import functools

import numpy as np

COLORS = ("red", "blue", "yellow", "green", "black", "white",
          "orange", "purple", "pink", "brown", "gray")

ACHROMATIC_CHROMA = 7.0     # below this CIELAB chroma a pixel is black, gray or white by lightness
BLACK_BELOW_L, WHITE_FROM_L, DARK_L = 28.0, 82.0, 12.0
_NEIGHBORS = 7
_LIGHTNESS_WEIGHT = 0.8     # hue decides a name more than lightness does


def to_lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB (D65), float32 (..., 3), of uint8 or [0, 1] float sRGB of shape (height, width, 3)."""
    import cv2
    scaled = rgb.astype(np.float32) / 255 if rgb.dtype == np.uint8 else rgb.astype(np.float32)
    return cv2.cvtColor(np.ascontiguousarray(scaled), cv2.COLOR_RGB2LAB)


@functools.cache
def _survey():
    """(k-d tree over weighted Lab, name index per entry, weight per name) of the xkcd survey."""
    from matplotlib.colors import XKCD_COLORS, to_rgb
    from scipy.spatial import cKDTree
    entries = [(name.split(":")[1].split()[-1].replace("grey", "gray"), to_rgb(value))
               for name, value in sorted(XKCD_COLORS.items())]
    entries = [(COLORS.index(name), rgb) for name, rgb in entries if name in COLORS]
    names = np.array([name for name, _ in entries])
    lab = to_lab(np.array([[rgb for _, rgb in entries]], np.float32))[0]
    # A name with many survey entries must not win by their number alone.
    weight = 1 / np.sqrt(np.bincount(names, minlength=len(COLORS)))
    return cKDTree(lab * (_LIGHTNESS_WEIGHT, 1, 1)), names, weight


def name_shares(lab: np.ndarray) -> np.ndarray:
    """Votes for each pool name: float32 (n, 11), rows sum to 1, for CIELAB pixels (n, 3)."""
    tree, names, weight = _survey()
    lab = np.asarray(lab, np.float32).reshape(-1, 3)
    distance, index = tree.query(lab * np.array((_LIGHTNESS_WEIGHT, 1, 1), np.float32), k=_NEIGHBORS)
    names, vote = names[index], weight[names[index]] / (3 + distance)            # (n, 7)
    shares = np.zeros((len(lab), len(COLORS)), np.float32)
    for c in range(len(COLORS)):
        shares[:, c] = (vote * (names == c)).sum(1)
    lightness, chroma = lab[:, 0], np.hypot(lab[:, 1], lab[:, 2])
    achromatic = chroma < ACHROMATIC_CHROMA
    for name, where in (("black", achromatic & (lightness < BLACK_BELOW_L) | (lightness < DARK_L)),
                        ("gray", achromatic & (lightness >= BLACK_BELOW_L) & (lightness < WHITE_FROM_L)),
                        ("white", achromatic & (lightness >= WHITE_FROM_L))):
        shares[where] = 0
        shares[where, COLORS.index(name)] = 1
    return shares / (shares.sum(1, keepdims=True) + 1e-9)
