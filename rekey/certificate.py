"""Measurements that prove an edit, made from pixels alone (no model judges anything).

    certificate = certify(before, after, raw, box, mask_margin_px, key)
    certificate.passed, certificate.failed_checks

Every renewed item carries one certificate per visual key.  It says that enough of the edit box
visibly changed, that the change carries the name the record asks for, that the name's area in
the box grew (so an untouched object, or a small patch, cannot pass), and that the editor drifted
or cut nothing at the border of the box.  Thresholds were set on classical edits of photographs
(see docs/certificates.md for the measured error rates).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rekey import colors, patterns
from rekey.geometry import Box
from rekey.records import Certificate, VisualKey
from rekey.references import parse_reference

CHANGED_DELTA_E = 8.0           # CIEDE2000, on images blurred by BLUR_PX, that counts as a visible change
BLUR_PX = 1.0
MIN_CHANGED = 0.08              # share of the box
MIN_AREA_GAIN = {"replace": 0.10, "add": 0.05}     # share of the box; a thin bicycle fills little of its box
NEW_DELTA_E = 15.0              # CIEDE2000 from which a pixel is gained although it had the name before
MIN_SHARE = 0.45                # of the changed pixels
MIN_SHARE_CENTROID = 0.30       # enough where the median changed pixel is nearest to the same name
RING_PX = (2, 7)                # ring outside the compositing mask
MAX_RING_DELTA_E = 2.0
CLIPPED_DELTA_E, MAX_CLIPPED = 10.0, 0.15
MIN_SHAPE_CORRELATION = 0.35    # another object of the same color stays below 0.34 in 95% of cases
MIN_OLD_SHARE = 0.25            # replace: of the changed pixels that carried the old color, or one near it, before
_MAX_NAMED_PX = 4096            # pixels that vote; more are thinned out evenly
_MAX_BOX_PX2 = 400_000          # larger boxes are measured at a reduced size

# Names that people, light and shade trade for each other: "blue" tags are purple, "white" cups gray.
NEAR_NAMES = {
    "red": "pink orange brown", "blue": "purple gray", "yellow": "orange brown green white",
    "green": "yellow gray brown blue", "black": "gray", "white": "gray", "orange": "red yellow brown pink",
    "purple": "blue pink", "pink": "red purple orange white", "brown": "red orange yellow gray black",
    "gray": "black white"}


@dataclass(frozen=True)
class Change:
    """What differs inside the box between two images of equal size."""

    delta_e: np.ndarray         # float32 (height, width) of the box (a whole fraction of a very large one)
    lab_before: np.ndarray      # float32 (height, width, 3), blurred
    lab_after: np.ndarray

    @property
    def changed(self) -> np.ndarray:
        return self.delta_e > CHANGED_DELTA_E


def measure_change(before: np.ndarray, after: np.ndarray, box: Box) -> Change:
    """CIEDE2000 per pixel of the box.  before, after: uint8 (height, width, 3), same shape."""
    step = math.ceil(math.sqrt(box.area_px2 / _MAX_BOX_PX2))
    lab_before, lab_after = (_blurred_lab(image, box, step) for image in (before, after))
    return Change(_delta_e(lab_before, lab_after), lab_before, lab_after)


def certify(before: np.ndarray, after: np.ndarray, raw: np.ndarray, box: Box, mask_margin_px: int,
            key: VisualKey, attempts: int = 1) -> Certificate:
    """Measure one edit.

    before, after, raw: uint8 (height, width, 3), the same window of the source, of the composited
    result, and of the editor's output before compositing.  box: the edit box in that window.
    mask_margin_px: how far the compositing mask reaches beyond the box.
    """
    change = measure_change(before, after, box)
    changed = change.changed
    failed = []
    changed_fraction = float(changed.mean())
    if changed_fraction < MIN_CHANGED:
        failed.append("changed area")

    if key.pattern is not None:
        reading = patterns.read_pattern(change.lab_after, changed)
        measured, share, gain = reading.name, reading.share, changed_fraction
        if measured != key.pattern:
            failed.append("pattern")
    else:
        measured, share, gain, certain = _read_color(change, key.color)
        if not certain:
            failed.append("color")
        if gain < MIN_AREA_GAIN[key.mode]:
            failed.append("area gain")

    ring_delta_e, clipped = _ring(before, raw, box, mask_margin_px)
    if ring_delta_e > MAX_RING_DELTA_E:
        failed.append("ring")
    if clipped > MAX_CLIPPED:
        failed.append("clipped")
    shape = old_share = None
    if key.mode == "replace":
        old_share = _old_share(change, parse_reference(key.object).colors)
        if old_share is not None and old_share < MIN_OLD_SHARE:
            failed.append("old color")
        shape = _shape_correlation(change, changed)
        if shape < MIN_SHAPE_CORRELATION and key.pattern is None:
            failed.append("shape")
    rounded = (round(x, 4) for x in (changed_fraction, share, gain, ring_delta_e, clipped))
    changed_fraction, share, gain, ring_delta_e, clipped = rounded
    return Certificate(key.slot.slot_id, not failed, tuple(failed), changed_fraction, measured, share, gain,
                       ring_delta_e, clipped, _rounded(shape), _rounded(old_share), attempts)


def _read_color(change: Change, wanted: str) -> tuple[str | None, float, float, bool]:
    """(measured name, share of the wanted name, its newly gained area, whether that is convincing)."""
    changed = change.changed
    if not changed.any():
        return None, 0.0, 0.0, False
    index = colors.COLORS.index(wanted)
    after_lab = _thinned(change.lab_after[changed])
    after = colors.name_shares(after_lab)
    before = colors.name_shares(_thinned(change.lab_before[changed]))
    shares = after.mean(0)
    # A gray bucket before a gray wall is new although the name was there: it plainly differs from the wall.
    new = (before.argmax(1) != index) | (_thinned(change.delta_e[changed]) > NEW_DELTA_E)
    gain = float(((after.argmax(1) == index) & new).mean() * changed.mean())
    measured = colors.COLORS[int(shares.argmax())]
    median_name = colors.name_shares(np.median(after_lab, axis=0)[None])[0].argmax()
    share = float(shares[index])
    certain = measured == wanted and (share >= MIN_SHARE
                                      or (share >= MIN_SHARE_CENTROID and median_name == index))
    return measured, share, gain, certain


def _old_share(change: Change, old: frozenset[str]) -> float | None:
    """Share of the changed pixels that had the target's old color before, or one near it; None if it is not known.

    Of two things in the box, the editor must have taken the one that the annotator named.
    """
    changed = change.changed
    if not old or not changed.any():
        return None
    wanted = old.union(*(NEAR_NAMES[name].split() for name in old))
    shares = colors.name_shares(_thinned(change.lab_before[changed])).mean(0)
    return float(sum(shares[colors.COLORS.index(name)] for name in wanted))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _ring(before: np.ndarray, raw: np.ndarray, box: Box, mask_margin_px: int) -> tuple[float, float]:
    """(median CIEDE2000, share above CLIPPED_DELTA_E) in a ring just outside the mask."""
    height, width = before.shape[:2]
    outer = box.grown(mask_margin_px + RING_PX[1]).clipped(width, height)
    inner = box.grown(mask_margin_px + RING_PX[0]).moved(-outer.left, -outer.top)
    ring = np.ones((outer.height, outer.width), bool)
    ring[inner.clipped(outer.width, outer.height).slices] = False
    if not ring.any():
        return 0.0, 0.0
    delta_e = _delta_e(_blurred_lab(before, outer)[ring], _blurred_lab(raw, outer)[ring])
    return float(np.median(delta_e)), float((delta_e > CLIPPED_DELTA_E).mean())


def _shape_correlation(change: Change, changed: np.ndarray) -> float:
    """Rank correlation of luminance gradients before and after, over the changed pixels.

    Ranks, since a black jacket painted white loses the contrast of its outline and its highlights but
    not the order of its edges: on classical edits the first percentile is 0.46 by ranks against 0.17
    by values, while another object of the same color stays below 0.34 (95th percentile).
    """
    if changed.sum() < 20 or min(changed.shape) < 2:        # no gradient across a line of pixels
        return 0.0
    before, after = (_ranks(_thinned(np.abs(np.stack(np.gradient(lab[..., 0]), -1))[changed]).ravel())
                     for lab in (change.lab_before, change.lab_after))
    if min(before.std(), after.std()) < 1e-6:
        return 0.0
    return float(np.corrcoef(before, after)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, equal values sharing theirs (flat black areas hold many equal gradients)."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[index]


def _blurred_lab(image: np.ndarray, box: Box, step: int = 1) -> np.ndarray:
    import cv2
    height, width = image.shape[:2]
    wide = box.grown(4).clipped(width, height)       # so that the blur sees beyond the box
    blurred = cv2.GaussianBlur(image[wide.slices], (0, 0), BLUR_PX)
    blurred = blurred[box.moved(-wide.left, -wide.top).slices]
    if step > 1:
        size = max(1, box.width // step), max(1, box.height // step)
        blurred = cv2.resize(blurred, size, interpolation=cv2.INTER_AREA)
    return colors.to_lab(blurred)


def _delta_e(lab_before: np.ndarray, lab_after: np.ndarray) -> np.ndarray:
    """CIEDE2000, float32 of the pixels' shape; exactly 0 where the two are equal."""
    from skimage.color import deltaE_ciede2000
    out = np.zeros(lab_before.shape[:-1], np.float32)
    differs = (lab_before != lab_after).any(-1)
    if differs.any():
        out[differs] = deltaE_ciede2000(lab_before[differs], lab_after[differs])
    return out


def _thinned(pixels: np.ndarray) -> np.ndarray:
    return pixels[:: -(-len(pixels) // _MAX_NAMED_PX)]
