"""The object inside a loose human box, without a model (used by ReKey's editing step, Sec. 3.3).

    mask = segment_object(canvas, box, hint_colors=frozenset({"red"}))      # float32, 1 on the object
    alpha, object_rgb = refine_alpha(canvas, mask, box)                     # soft rim, at full size

GrabCut alone fails where an object fills its box or continues beyond it: the background model
then learns the object.  So colors are clustered first, each cluster is judged by how much of the
middle of the box it holds against the surroundings (and by the color that the annotator wrote
down), doubtful regions by where they lie, and only then GrabCut draws the border.  Nothing here is
random and no result depends on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from rekey import colors
from rekey.geometry import Box

WORK_PX = 112               # longer side of the box while segmenting
MAX_UPSCALE = 2.0
CONTEXT = 0.35              # surroundings seen on each side, as a share of the box's shorter side
MIN_CONTEXT_PX = 8
MAX_OUTSIDE_PX = 3          # painted beyond the box, fading out: compositing keeps a few pixels more
MIN_OBJECT = 0.12           # share of the box; a smaller mask is taken for a failure
N_CLUSTERS = 9
SAME_TONE = 22.0            # clusters this close in shading-free chroma belong to one material
SAME_LAB = 17.0             # likewise in plain Lab, which is safer for dark clusters
POOLED_LAB = 9.0            # clusters this close share their evidence of being inside or outside
NEUTRAL, NEUTRAL_STEP = 0.35, 9.0       # how gray two clusters must be to be told apart by lightness, and how far apart
SURE = 0.7                  # a cluster at least this likely is the object's
CARRIES = 0.5               # sure clusters with this share of the middle need no doubtful ones
DOUBTFUL = 0.65             # below, each region of a cluster is judged by where it lies
PERIPHERAL = 0.2            # mean center weight; a corner of the box has less, the middle of a side 0.14
CROSSES = 0.5               # pixels at which a region enters the box, per square root of its area
NECK = 0.14                 # parts joined by less than this share of the object's size can come off
SPECK, SHADE_HOLE = 0.03, 0.25      # largest holes filled, as a share of the mask
SAME_HUE = 0.35             # rad
GRABCUT_ITERATIONS = 2
_TONE_AT_L = 50.0           # lightness to which chroma is scaled when shading is taken out
_LIGHTNESS_WEIGHT = 0.6     # shading varies lightness within one object
_SQUARE = np.ones((3, 3), np.uint8)
# What light and shadow make of a color's name.
_SHADED_AS = {
    "red": ("brown", "pink", "orange"), "blue": ("purple", "gray"), "yellow": ("orange", "brown", "green"),
    "green": ("gray",), "black": ("gray",), "white": ("gray",), "gray": ("white", "black"),
    "orange": ("brown", "red", "yellow", "pink"), "brown": ("orange", "black", "red"),
    "purple": ("blue", "pink"), "pink": ("red", "purple"),
}


@dataclass(frozen=True)
class _Work:
    """The box with its surroundings at working size."""

    rgb: np.ndarray         # uint8 (h, w, 3)
    lab: np.ndarray         # float32 (h, w, 3)
    inside: np.ndarray      # bool (h, w): in the box
    center: np.ndarray      # float32 (h, w): weight of a pixel as a sample of the object, 0 outside


def segment_object(canvas: np.ndarray, box: Box, hint_colors: frozenset[str] = frozenset(),
                   strength: int = 0, solid: bool = False) -> np.ndarray:
    """Which pixels of the box belong to the object that it was drawn around.

    canvas: uint8 (height, width, 3).  hint_colors: pool names of the object's present color, where
    known; they help and never decide alone.  strength: 0 trusts the color groups; each step up
    admits more of them, for an editor whose first try painted too little.  solid: marks of another
    color within the object (print, logos) belong to it.
    Returns float32 (height, width), 0 outside the box, values in [0, 1].
    """
    height, width = canvas.shape[:2]
    box = box.clipped(width, height)
    context = max(MIN_CONTEXT_PX, round(CONTEXT * min(box.width, box.height)))
    window = box.grown(context).clipped(width, height)
    work = _work(canvas, box, window)
    labels, centers = _clusters(work.lab)
    material, likely = _object_clusters(work, labels, centers, hint_colors, strength)
    of_material = _without_surroundings(work, labels, material, likely)
    cut = _cut(work, labels, of_material, likely)
    # Of another material (skin beside a jacket): out.  Of a color that only the box holds: in.
    sure = (likely > 0.6)[labels]
    mask = _tidy((of_material & ((cut > 0) | sure) & work.inside).astype(np.uint8), work)
    if mask[work.inside].mean() < MIN_OBJECT:
        # Nothing coherent: take everything in the box that has the object's colors at all.
        mask = _tidy((material[labels] & work.inside).astype(np.uint8), work)
    if mask[work.inside].mean() < MIN_OBJECT / 2:
        mask = _ellipse(work)
    if solid:
        mask = _filled(mask, work)
    full = cv2.resize(mask.astype(np.float32), (window.width, window.height), interpolation=cv2.INTER_LINEAR)
    out = np.zeros((height, width), np.float32)
    out[box.slices] = full[box.moved(-window.left, -window.top).slices]
    return out


def refine_alpha(canvas: np.ndarray, mask: np.ndarray, box: Box) -> tuple[np.ndarray, np.ndarray]:
    """Soft edge of a mask from the photograph itself.

    Near the border a pixel's color is taken as a mixture of the object's and the background's
    local mean; its share of the object is the alpha.  Without this, pixels that hold some of the old
    color stay as a rim.
    canvas: uint8 (h, w, 3); mask: float32 (h, w) of the same window; box: within that window.
    Returns (alpha float32 (h, w), object color uint8 (h, w, 3)): the photograph with the background
    taken out of the rim's pixels.
    """
    hard = (mask > 0.5).astype(np.uint8)
    reach = _band_px(box)
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1))
    sure_object = cv2.erode(hard, kernel, borderType=cv2.BORDER_REPLICATE)
    if sure_object.sum() < 0.25 * hard.sum():                          # a thin object has no inside
        sure_object = hard
    sure_background = 1 - cv2.dilate(hard, kernel)
    alpha = sure_object.astype(np.float32)
    # Only the rim is computed: a box may hold millions of pixels.
    rim = (sure_object == 0) & (sure_background == 0)
    size = 6 * reach + 1
    object_mean, object_n = _local_mean(canvas, sure_object, size, rim)
    background_mean, background_n = _local_mean(canvas, sure_background, size, rim)
    image = canvas[rim].astype(np.float32)                             # (n, 3), as all that follows
    axis = object_mean - background_mean
    contrast = (axis ** 2).sum(-1)
    mixed = ((image - background_mean) * axis).sum(-1) / (contrast + 1e-3)
    edge = hard.astype(np.float32)
    geometric, near = (cv2.GaussianBlur(edge, (0, 0), sigma * reach)[rim] for sigma in (0.4, 0.6))
    # Where object and background look alike the colors tell nothing; the mask's own edge serves.
    trust = np.clip((np.sqrt(contrast) - 18) / 30, 0, 1) * (object_n > 0.01) * (background_n > 0.01)
    # A third color (cream between brown and sky), 40 to 70 RGB steps off their line, is no mixture of them.
    off_axis = np.linalg.norm(image - background_mean - mixed[:, None] * axis, axis=-1)
    trust = trust * np.clip((70 - off_axis) / 30, 0, 1)
    # A pixel of the object's color far from the mask is another thing.
    by_color = np.clip(1.12 * mixed - 0.04, 0, 1) * np.clip(4 * near, 0, 1)
    alpha[rim] = trust * by_color + (1 - trust) * geometric
    # The outline may overshoot by two pixels, so only deeper ones are the object whatever their color;
    # around print within the object there is no background to paint by mistake.
    inner = cv2.erode(_without_holes(hard), np.ones((5, 5), np.uint8), borderType=cv2.BORDER_REPLICATE)
    inner = cv2.blur(inner.astype(np.float32), (3, 3), borderType=cv2.BORDER_REPLICATE)
    inner *= cv2.erode(hard, _SQUARE, borderType=cv2.BORDER_REPLICATE)
    alpha = np.maximum(alpha, inner) * _box_window(alpha.shape, box)

    share = np.maximum(alpha[rim], 0.25)[:, None]
    unmixed = (image - (1 - share) * background_mean) / share
    unmixed = np.clip(unmixed, np.minimum(image, object_mean), np.maximum(image, object_mean))
    unmixed = np.where(((share[:, 0] < 0.999) & (trust > 0))[:, None], unmixed, image)
    object_rgb = canvas.copy()
    object_rgb[rim] = np.clip(unmixed + 0.5, 0, 255).astype(np.uint8)
    return alpha, object_rgb


def _band_px(box: Box) -> int:
    """Half width of the rim in which alpha is estimated: grows with the reduction of large boxes."""
    return int(np.clip(round(max(box.width, box.height) / WORK_PX) + 2, 3, 8))


def _local_mean(canvas: np.ndarray, where: np.ndarray, size: int,
                at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean color (n, 3) of the `where` pixels in a square window, their share of it (n,)) at n pixels."""
    count = cv2.boxFilter(where, cv2.CV_32F, (size, size), normalize=False)[at]
    total = cv2.boxFilter(canvas * where[..., None], cv2.CV_32F, (size, size), normalize=False)[at]
    return total / np.maximum(count, 1e-6)[:, None], count / size ** 2


def _box_window(shape: tuple[int, int], box: Box) -> np.ndarray:
    """1 in the box, fading to 0 within MAX_OUTSIDE_PX outside of it."""
    rows, columns = (np.arange(n, dtype=np.float32) for n in shape)

    def ramp(x: np.ndarray, low: int, high: int) -> np.ndarray:
        outside = np.maximum(np.maximum(low - x, x - (high - 1)), 0)
        return np.clip(1 - outside / (MAX_OUTSIDE_PX + 1), 0, 1)

    return ramp(rows, box.top, box.bottom)[:, None] * ramp(columns, box.left, box.right)[None]


# --------------------------------------------------------------------------- the steps

def _work(canvas: np.ndarray, box: Box, window: Box) -> _Work:
    scale = min(MAX_UPSCALE, WORK_PX / max(box.width, box.height))
    crop = np.ascontiguousarray(canvas[window.slices])
    size = max(8, round(window.width * scale)), max(8, round(window.height * scale))
    rgb = cv2.resize(crop, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    scale_x, scale_y = size[0] / window.width, size[1] / window.height
    inner = box.moved(-window.left, -window.top)
    left, top = round(inner.left * scale_x), round(inner.top * scale_y)
    right, bottom = max(left + 2, round(inner.right * scale_x)), max(top + 2, round(inner.bottom * scale_y))
    rows, columns = np.mgrid[:size[1], :size[0]].astype(np.float32)
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    x = (columns - (left + right - 1) / 2) / ((right - left) / 2)
    y = (rows - (top + bottom - 1) / 2) / ((bottom - top) / 2)
    center = np.exp(-0.5 * (x ** 2 + y ** 2) / 0.5 ** 2) * inside
    return _Work(rgb, colors.to_lab(cv2.bilateralFilter(rgb, 5, 20, 2)), inside, center.astype(np.float32))


def _clusters(lab: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(label per pixel, cluster centers in Lab): k-means from evenly ranked starts, so not random."""
    points = lab.reshape(-1, 3) * np.array((_LIGHTNESS_WEIGHT, 1, 1), np.float32)
    sample = points[:: max(1, len(points) // 4000)]
    seeds = [sample[np.argmin(((sample - np.median(sample, 0)) ** 2).sum(1))]]
    distance = ((sample - seeds[0]) ** 2).sum(1)
    for _ in range(N_CLUSTERS - 1):
        # Farthest-point seeding, tamed: the 97th percentile is no outlier.
        seeds.append(sample[np.argsort(distance, kind="stable")[int(0.97 * (len(sample) - 1))]])
        distance = np.minimum(distance, ((sample - seeds[-1]) ** 2).sum(1))
    centers = np.array(seeds)
    for _ in range(8):
        nearest = _nearest(sample, centers)
        for k in range(N_CLUSTERS):
            if (nearest == k).any():
                centers[k] = sample[nearest == k].mean(0)
    labels = _nearest(points, centers).reshape(lab.shape[:2])
    return labels, centers / np.array((_LIGHTNESS_WEIGHT, 1, 1), np.float32)


def _nearest(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    return ((centers ** 2).sum(1)[None] - 2 * points @ centers.T).argmin(1)


def _object_clusters(work: _Work, labels: np.ndarray, centers: np.ndarray, hint_colors: frozenset[str],
                     strength: int) -> tuple[np.ndarray, np.ndarray]:
    """(bool per cluster: of the object's material, float per cluster: how likely it is the object)."""
    n = len(centers)
    in_center = np.bincount(labels.ravel(), work.center.ravel(), n)
    outside = np.bincount(labels.ravel(), (~work.inside).ravel().astype(np.float64), n)
    in_center, outside = in_center / in_center.sum(), outside / max(1.0, outside.sum())
    # Shading splits a surface into clusters, some of them only at a side of the box: near ones are pooled.
    delta = np.linalg.norm((centers[:, None] - centers[None]) * (0.6, 1, 1), axis=-1)          # (n, n)
    alike = np.exp(-(delta / POOLED_LAB) ** 2)
    likely = (alike @ in_center + 0.002) / (alike @ (in_center + outside) + 0.004)
    alone = likely                                  # without the annotator's word
    if hint_colors:
        names = np.array([max(c in hint_colors, 0.6 * any(c in _SHADED_AS[h] for h in hint_colors))
                          for c in colors.COLORS])
        hinted = colors.name_shares(centers) @ names
        fits, fits_outside = (in_center * hinted).sum(), (outside * hinted).sum()
        if fits > 0.04 and fits_outside < fits:         # else the word fits nothing here, or the surroundings as well
            likely = likely * (0.4 + 1.0 * hinted)
    main = int((in_center * likely ** 1.5).argmax())
    # Shading scales (a, b) with L + 16, so this ratio is what stays of a material's color.
    tone = centers[:, 1:] * (_TONE_AT_L + 16) / (np.maximum(centers[:, :1], 6) + 16)
    difference = tone[:, None] - tone[None]
    lightness = np.abs(centers[:, None, 0] - centers[None, :, 0])
    # Neutral things differ by lightness alone, so there it counts for more.
    neutral = np.exp(-np.linalg.norm(tone, axis=1) / 10)
    per_lightness = 0.12 + 0.25 * np.minimum(neutral[:, None], neutral[None])
    toned = np.linalg.norm(difference, axis=-1) + per_lightness * lightness
    # Be generous to what is found in the box alone.
    reach = (1 + 0.2 * strength) * (1 + np.clip((likely - 0.75) / 0.25, 0, 1))
    close = (toned < SAME_TONE * reach) | (delta < SAME_LAB * reach)     # column k may join row's material
    near = close[main]
    # Petals shade from red to cream in steps: go on from what is surely the object's, twice.
    for _ in range(2):
        near = near | (close[near & (likely > SURE)].any(0) & (likely > 0.5))
    # A neighbor in color that lives mostly outside of the box is background, however similar.
    threshold = (0.28, 0.24, 0.2, 0.16, 0.12)[min(strength, 4)]
    # Where sure clusters carry the object, doubtful ones (the face below the hair) are not needed.
    if strength == 0 and in_center[near & (likely > SURE)].sum() > CARRIES:
        threshold = 0.4
    near &= likely > threshold
    # Gray shades into darker and lighter gray, but a wall one step lighter than a gray thing is another thing.
    a_step = (np.minimum(neutral[main], neutral) > NEUTRAL) & (lightness[main] > NEUTRAL_STEP)
    if strength < 2:
        near &= ~(a_step & (alone < 0.5))
    near[main] = True
    return near, likely


def _without_surroundings(work: _Work, labels: np.ndarray, material: np.ndarray,
                          likely: np.ndarray) -> np.ndarray:
    """bool (h, w): pixels of the material, less the regions that come in from outside of the box.

    A doubtful cluster may be a shade of the object in one place and a wall of its hue in another,
    so each connected region answers for itself.
    """
    of_material = material[labels]
    doubtful = of_material & (likely < DOUBTFUL)[labels]
    thick = cv2.morphologyEx(doubtful.astype(np.uint8), cv2.MORPH_OPEN, _SQUARE)      # no thin bridges
    n, regions = cv2.connectedComponents(thick & work.inside, connectivity=4)
    area, centrality = _area_and_centrality(regions, n, work)
    continues = cv2.dilate((doubtful & ~work.inside).astype(np.uint8), _SQUARE) > 0
    entry = np.bincount(regions.ravel(), (continues & work.inside).ravel(), n)
    foreign = (centrality < PERIPHERAL) & (entry > CROSSES * np.sqrt(area))
    foreign[0] = False
    if not foreign.any():
        return of_material
    around = cv2.dilate(foreign[regions].astype(np.uint8), _SQUARE) > 0               # undoes the opening
    return of_material & ~(doubtful & (around | ~work.inside))


def _area_and_centrality(labels: np.ndarray, n: int, work: _Work) -> tuple[np.ndarray, np.ndarray]:
    """(pixels, mean center weight) of each of n components."""
    area = np.maximum(1, np.bincount(labels.ravel(), minlength=n))
    return area, np.bincount(labels.ravel(), work.center.ravel(), n) / area


def _cut(work: _Work, labels: np.ndarray, of_material: np.ndarray, likely: np.ndarray) -> np.ndarray:
    """GrabCut from a map of sure and probable pixels."""
    core = of_material & (work.center > 0.55)
    seeds = np.where(work.inside, cv2.GC_PR_BGD, cv2.GC_BGD).astype(np.uint8)
    seeds[work.inside & ((likely[labels] > 0.5) | of_material)] = cv2.GC_PR_FGD
    seeds[core] = cv2.GC_FGD
    # The object goes on outside of the box: its own color there must not teach the background.
    seeds[~work.inside & of_material] = cv2.GC_PR_FGD
    is_object = (seeds == cv2.GC_FGD) | (seeds == cv2.GC_PR_FGD)
    if is_object.sum() < 20 or (~is_object).sum() < 20:
        return (is_object & work.inside).astype(np.uint8)
    cv2.setRNGSeed(0)                                  # GrabCut starts its mixtures with k-means
    models = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.grabCut(work.rgb, seeds, None, *models, GRABCUT_ITERATIONS, cv2.GC_INIT_WITH_MASK)
    return (((seeds == cv2.GC_FGD) | (seeds == cv2.GC_PR_FGD)) & work.inside).astype(np.uint8)


def _tidy(mask: np.ndarray, work: _Work) -> np.ndarray:
    """Close small gaps, keep the components that matter, fill holes, take off what hangs on."""
    closed = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, _SQUARE)
    opened = cv2.morphologyEx(closed, cv2.MORPH_OPEN, np.ones((2, 2), np.uint8))
    if opened.sum() > 0.6 * closed.sum():              # else it is a thin object, which opening would eat
        closed = opened
    n, labels, stats, _ = cv2.connectedComponentsWithStats(closed, connectivity=8)
    if n > 1:
        weight = np.bincount(labels.ravel(), work.center.ravel(), n)[1:]
        area = stats[1:, cv2.CC_STAT_AREA]
        best = (weight + 0.2 * area).argmax()
        keep = (area > 0.08 * area[best]) & (weight > 0.03 * weight[best])
        keep[best] = True
        closed = np.concatenate(([False], keep))[labels].astype(np.uint8)
    return _without_tongues(closed | _holes(closed, work), work)


def _at_border(work: _Work, px: int) -> np.ndarray:
    """bool (h, w): the outermost pixels of the box."""
    within = cv2.erode(work.inside.astype(np.uint8), _SQUARE, iterations=px,
                       borderType=cv2.BORDER_CONSTANT, borderValue=0)
    return work.inside & (within == 0)


def _holes(mask: np.ndarray, work: _Work) -> np.ndarray:
    """uint8 (h, w): what the mask encloses and should hold: specks, and deep shade of its own hue."""
    holes = ((mask == 0) & work.inside).astype(np.uint8)
    n, labels, stats, _ = cv2.connectedComponentsWithStats(holes, connectivity=4)
    area = stats[:, cv2.CC_STAT_AREA]
    enclosed = np.ones(n, bool)
    enclosed[0] = False
    # What reaches the border of the box is a strip of background, not a hole.
    enclosed[np.unique(labels[_at_border(work, 1)])] = False
    fill = enclosed & (area < SPECK * mask.sum())
    for k in np.flatnonzero(enclosed & ~fill & (area < SHADE_HOLE * mask.sum())):
        hole = labels == k
        rim = (cv2.dilate(hole.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0) & (mask > 0)
        fill[k] = _is_shade(np.median(work.lab[hole], axis=0), np.median(work.lab[rim], axis=0))
    return fill[labels].astype(np.uint8)


def _is_shade(lab: np.ndarray, of: np.ndarray) -> bool:
    """Whether a Lab color is another one in less light: no lighter, and of one hue."""
    turn = np.arctan2(lab[2], lab[1]) - np.arctan2(of[2], of[1])
    turn = abs((turn + np.pi) % (2 * np.pi) - np.pi)
    return bool(lab[0] < of[0] + 3 and np.hypot(lab[1], lab[2]) > 8 and turn < SAME_HUE)


def _without_tongues(mask: np.ndarray, work: _Work) -> np.ndarray:
    """The mask less what hangs on it by a neck and runs out of the box: a shelf, the thing beside."""
    size = max(3, round(NECK * np.sqrt(mask.sum()))) | 1
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (size, size))
    bodies = cv2.morphologyEx(mask, cv2.MORPH_OPEN, kernel)
    n, labels = cv2.connectedComponents(bodies, connectivity=8)
    weight = np.bincount(labels.ravel(), work.center.ravel(), n)
    weight[0] = 0
    body = ((weight >= 0.3 * weight.max()) & (weight > 0))[labels].astype(np.uint8)
    if body.sum() < 0.5 * mask.sum():                  # a thin object is all neck
        return mask
    n, labels = cv2.connectedComponents(mask & ~cv2.dilate(body, _SQUARE), connectivity=4)
    area, centrality = _area_and_centrality(labels, n, work)
    touching = np.bincount(labels.ravel(), _at_border(work, 2).ravel(), n)    # opening moved the mask by one
    tongue = (touching > 0.3 * np.sqrt(area)) & (centrality < 1.5 * PERIPHERAL)
    tongue &= area < 0.3 * mask.sum()
    tongue[0] = False
    return mask & ~tongue[labels].astype(np.uint8)


def _filled(mask: np.ndarray, work: _Work) -> np.ndarray:
    """The mask without its holes and narrow bays."""
    reach = max(3, round(0.12 * np.sqrt(mask.sum()))) | 1
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (reach, reach))
    closed = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, kernel)
    return _without_holes(closed) & work.inside.astype(np.uint8)


def _without_holes(mask: np.ndarray) -> np.ndarray:
    """uint8 (h, w): the mask and all that it encloses."""
    outside = cv2.copyMakeBorder(1 - mask, 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=1)
    _, labels = cv2.connectedComponents(outside, connectivity=4)
    return (labels != labels[0, 0])[1:-1, 1:-1].astype(np.uint8)


def _ellipse(work: _Work) -> np.ndarray:
    return (work.center > np.exp(-0.5 / 0.5 ** 2 * 0.8 ** 2)).astype(np.uint8)
