"""Which pattern a changed region shows: plain, striped, dotted or checked.  No model, only pixels.

    reading = read_pattern(change.lab_after, change.changed)
    reading.name, reading.share             # "striped", 0.93

The region is split into its two tones; the map of the tones is compared with plane waves.  Stripes
are one wave, a checkerboard two at right angles, dots (on a staggered or a square lattice) two or
three waves with a minority tone in round, separate pieces.  Certificates of pattern edits use it
(the attribute questions beyond color of ReKey, Sec. 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekey.records import PATTERNS

WORK_PX, MAX_WORK_PX = 72, 256      # shorter and longer side of the region while reading, at most
MIN_PIXELS = 60             # of the changed region, at its own size
MIN_CONTRAST = 16.0         # Lab distance of the two tones; less is shading or texture
MIN_SEPARATION = 1.6        # that distance over the spread within the tones
MIN_SCORE = 0.34            # of the best pattern; less is plain
CLOSING = 0.32              # gaps up to this share of the region's size belong to it (unpainted base tone)
_MIN_CYCLES, _MAX_CYCLES = 2.1, 8.0      # across the region; fewer is shading, more is texture
_N_ANGLES, _N_CYCLES = 36, 18
# What an ideal pattern yields: a square wave holds 8/pi^2 of its variance in its fundamental, ...
_IDEAL = {"striped": 0.81, "checked": 0.66, "dotted": 0.75}


@dataclass(frozen=True)
class PatternReading:
    """What a region shows, and how surely."""

    name: str | None
    """One of PATTERNS; None where too little changed to tell."""
    share: float
    """Confidence in [0, 1]: how much of the ideal pattern's structure is there (plain: is absent)."""
    contrast: float = 0.0
    """Lab distance between the two tones."""
    scores: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of striped, dotted, checked: each in [0, 1]."""


def read_pattern(lab_after: np.ndarray, changed: np.ndarray) -> PatternReading:
    """Classify what the changed region of an edit box shows.

    lab_after: float32 (h, w, 3), CIELAB of the box after the edit.  changed: bool (h, w).  Where an
    editor painted only the second tone (stripes on the object's own color), the gaps between the
    changed pieces count as part of the region.
    """
    if changed.sum() < MIN_PIXELS:
        return PatternReading(None, 0.0)
    lab, region = _working(lab_after, changed)
    tones, contrast, separation = _two_tones(lab, region)
    if contrast < MIN_CONTRAST or separation < MIN_SEPARATION:
        doubt = min(contrast / MIN_CONTRAST, separation / MIN_SEPARATION)
        return PatternReading("plain", round(1 - 0.5 * min(1.0, doubt), 4), round(contrast, 2))
    power = _wave_power(tones, region)
    dot_shape = _dot_shape(tones, region)
    stripes = _striped_score(power)
    lattice = _lattice_score(power)
    hexagon = _hexagon_score(power)
    minority = min((tones[region] > 0).mean(), (tones[region] < 0).mean())
    balance = float(np.clip((minority - 0.22) / 0.10, 0, 1))
    sparse = float(np.clip((0.50 - minority) / 0.06, 0, 1))
    square = float(np.clip(1.6 - hexagon / max(lattice, 1e-6), 0.3, 1))      # rather than a staggered lattice
    scores = (stripes,
              sparse * max(hexagon * min(1.0, 0.8 + dot_shape), lattice * dot_shape,
                           0.9 * dot_shape * min(1.0, 3 * max(hexagon, lattice))),
              lattice * balance * square * (1.0 - 0.8 * dot_shape))
    best = int(np.argmax(scores))
    scores = tuple(round(float(min(1.0, s)), 4) for s in scores)
    if scores[best] < MIN_SCORE:
        return PatternReading("plain", round(1 - scores[best], 4), round(contrast, 2), scores)
    return PatternReading(PATTERNS[1 + best], scores[best], round(contrast, 2), scores)


def _working(lab_after: np.ndarray, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The region with its gaps filled, cut out and brought to working size."""
    import cv2
    rows, columns = np.nonzero(changed)
    top, bottom = np.percentile(rows, (1, 99)).astype(int) + (0, 1)
    left, right = np.percentile(columns, (1, 99)).astype(int) + (0, 1)
    lab = np.ascontiguousarray(lab_after[top:bottom, left:right], np.float32)
    region = changed[top:bottom, left:right].astype(np.uint8)
    scale = min(1.0, WORK_PX / min(lab.shape[:2]), MAX_WORK_PX / max(lab.shape[:2]))
    if scale < 1:
        size = max(4, round(lab.shape[1] * scale)), max(4, round(lab.shape[0] * scale))
        lab = cv2.resize(lab, size, interpolation=cv2.INTER_AREA)
        region = cv2.resize(region, size, interpolation=cv2.INTER_NEAREST)
    reach = max(3, round(CLOSING * min(region.shape)))
    padded = cv2.copyMakeBorder(region, reach, reach, reach, reach, cv2.BORDER_CONSTANT, value=0)
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (reach, reach))
    closed = cv2.morphologyEx(padded, cv2.MORPH_CLOSE, kernel)[reach:-reach, reach:-reach]
    return lab, closed > 0


def _two_tones(lab: np.ndarray, region: np.ndarray) -> tuple[np.ndarray, float, float]:
    """(map of -1, 0 outside, +1; Lab distance of the tones; that over their spread)."""
    import cv2
    weight = region.astype(np.float32)
    sigma = 0.35 * np.sqrt(region.sum())
    smooth = cv2.GaussianBlur(lab * weight[..., None], (0, 0), sigma)
    smooth /= cv2.GaussianBlur(weight, (0, 0), sigma)[..., None] + 1e-6
    points = (lab - smooth)[region]
    centered = points - points.mean(0)
    axis = np.linalg.eigh(centered.T @ centered)[1][:, -1]
    position = centered @ axis
    low, high = np.percentile(position, (12, 88))
    for _ in range(8):
        upper = position > (low + high) / 2
        if not upper.any() or upper.all():
            break
        low, high = position[~upper].mean(), position[upper].mean()
    upper = position > (low + high) / 2
    tones = np.zeros(region.shape, np.float32)
    tones[region] = np.where(upper, 1, -1)
    if upper.all() or not upper.any():
        return tones, 0.0, 0.0
    # Medians: pixels on the border of two tones are mixtures of both.
    distance = float(np.median(position[upper]) - np.median(position[~upper]))
    spread = 1.48 * np.mean([np.median(np.abs(p - np.median(p))) for p in (position[upper], position[~upper])])
    return tones, distance, distance / (1.0 + float(spread))


def _wave_power(tones: np.ndarray, region: np.ndarray) -> np.ndarray:
    """Share of the tone map's variance in each plane wave: (n_angles, n_cycles), angles in [0, pi)."""
    height, width = tones.shape
    extent = min(height, width, 1.3 * np.sqrt(region.sum()))
    cycles = np.geomspace(_MIN_CYCLES, _MAX_CYCLES, _N_CYCLES)
    angles = np.arange(_N_ANGLES) * np.pi / _N_ANGLES
    frequency = cycles[None] / extent                                                  # per pixel
    fx = (np.cos(angles)[:, None] * frequency).ravel()
    fy = (np.sin(angles)[:, None] * frequency).ravel()
    signal = np.where(region, tones - tones[region].mean(), 0)
    along_y = np.exp(-2j * np.pi * fy[:, None] * np.arange(height)[None]) @ signal      # (n, width)
    total = (along_y * np.exp(-2j * np.pi * fx[:, None] * np.arange(width)[None])).sum(1)
    power = 2 * np.abs(total) ** 2 / (region.sum() * (signal ** 2).sum() + 1e-9)
    return power.reshape(_N_ANGLES, _N_CYCLES)


def _striped_score(power: np.ndarray) -> float:
    """One wave, and little in other directions."""
    angle, _ = np.unravel_index(power.argmax(), power.shape)
    best = power.max()
    apart = np.abs((np.arange(_N_ANGLES) - angle + _N_ANGLES // 2) % _N_ANGLES - _N_ANGLES // 2)
    others = power[apart * 180 / _N_ANGLES > 30].max()
    return float(best / _IDEAL["striped"] * np.clip(1.5 - 1.5 * others / best, 0, 1))


def _combined(power: np.ndarray, offsets: tuple[int, ...]) -> float:
    """The best set of equally long waves, `offsets` (in angle steps) apart: n times its weakest member."""
    from scipy.ndimage import maximum_filter
    near = maximum_filter(power, size=(3, 3), mode=("wrap", "nearest"))
    weakest = np.min([np.roll(near, -offset, axis=0) for offset in offsets], axis=0)
    return float(len(offsets) * weakest.max())


def _lattice_score(power: np.ndarray) -> float:
    return _combined(power, (0, _N_ANGLES // 2)) / _IDEAL["checked"]


def _hexagon_score(power: np.ndarray) -> float:
    return _combined(power, (0, _N_ANGLES // 3, 2 * _N_ANGLES // 3)) / _IDEAL["dotted"]


def _dot_shape(tones: np.ndarray, region: np.ndarray) -> float:
    """Share of the minority tone that lies in round pieces of one size, in [0, 1]."""
    import cv2
    minority = tones > 0 if (tones[region] > 0).mean() <= 0.5 else tones < 0
    share = (minority & region).sum() / region.sum()
    if not 0.08 < share < 0.47:
        return 0.0
    n, labels, stats, _ = cv2.connectedComponentsWithStats(minority.astype(np.uint8), connectivity=4)
    inner = cv2.erode(region.astype(np.uint8), np.ones((3, 3), np.uint8),
                      borderType=cv2.BORDER_CONSTANT, borderValue=0)
    round_area, inner_area, sizes = 0.0, 0.0, []
    for k in range(1, n):
        left, top, width, height, area = stats[k]
        part = labels[top:top + height, left:left + width] == k
        cut_by_border = (part & (inner[top:top + height, left:left + width] == 0)).any()
        if area < 6 or cut_by_border:
            continue
        inner_area += area
        contour = cv2.findContours(part.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0][0]
        radius = cv2.minEnclosingCircle(contour)[1] + 0.5
        if area / (np.pi * radius ** 2) > 0.70:          # a square fills 0.64 of its circle
            round_area += area
            sizes.append(area)
    if not sizes:
        return 0.0
    alike = np.mean(np.abs(np.log(np.array(sizes) / np.median(sizes))) < 0.5)
    # Most of the minority tone lies in whole dots (the rest is cut by the border).
    whole = np.clip(inner_area / (0.30 * (minority & region).sum()), 0, 1)
    return float(round_area / inner_area * alike * whole * min(1.0, len(sizes) / 4))
