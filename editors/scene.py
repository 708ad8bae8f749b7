"""What a drawn object must match in a photograph: light, cast, tone range, sharpness, grain.

Part of the weight-free editor (ReKey, Sec. 3.3: the edit should belong to its scene).  Statistics
of the whole photograph are measured once and kept in `PhotoView.cache`, on samples of it: a photo
of 2250 x 1500 costs about as much as one of 600 x 400, and no float copy of it is ever made.

    photo = photo_statistics(request.photo)
    surroundings = measure_surroundings(request.canvas, request.box)
    gains = photo.cast_gains(power=0.5)
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from editors.shading import LUMINANCE, to_linear
from rekey.editing import PhotoView
from rekey.geometry import Box

SAMPLE_PX = 120_000         # pixels of a photo that its cast and tone range are measured on
N_TILES, TILE_PX = 6, 64    # 6 x 6 native-scale tiles for its sharpness and grain
DETAIL_PX = 320             # side of the window around the box for the same
MAX_CAST = 0.14             # gains beyond 1 +- this are the colors of things, not of the light
MAX_GRAIN = 4.5 / 255
_HIGH_PASS_SIGMA, _HIGH_PASS_KEEPS = 1.2, 0.835     # and the share of white noise's variance that it leaves


@dataclass(frozen=True)
class PhotoStatistics:
    """Measured once per photograph."""

    gray: tuple[float, float, float]
    """Shades-of-gray estimate of the light's color, linear, mean 1."""
    darkest: float
    brightest: float
    """The photo's tone range in sRGB luma: faded blacks, dull whites."""
    edge_sigma_px: float | None
    """Blur of its sharpest edges; None where it has none."""
    grain: tuple[float, float, float]
    """Standard deviation of the noise per channel, sRGB in [0, 1]."""

    def cast_gains(self, power: float) -> np.ndarray:
        """Linear gains (3,) that give an object the photo's color cast; power 0 gives none."""
        gains = np.array(self.gray) ** power
        return np.clip(gains / gains.mean(), 1 - MAX_CAST, 1 + MAX_CAST).astype(np.float32)


@dataclass(frozen=True)
class Surroundings:
    """Measured around one edit box."""

    bright: float
    """90th percentile of linear luminance."""
    shadow_hardness: float
    """In [0.5, 1]: flat scenes have faint shadows."""
    ground: tuple[float, float, float]
    """Mean linear color of the strip below the box."""
    edge_sigma_px: float | None
    grain: tuple[float, float, float]
    water_below: bool
    """A smooth, bluish strip under the box."""
    sky_behind: bool
    """Bluish or bright, and almost without texture, around and below the box."""


def photo_statistics(photo: PhotoView) -> PhotoStatistics:
    """The photo's statistics, from its cache where they are there."""
    if "scene" not in photo.cache:
        photo.cache["scene"] = _measure_photo(photo.pixels)
    return photo.cache["scene"]


def _measure_photo(pixels: np.ndarray) -> PhotoStatistics:
    stride = max(1, int(np.sqrt(pixels.shape[0] * pixels.shape[1] / SAMPLE_PX)))
    sample = pixels[::stride, ::stride].reshape(-1, 3).astype(np.float32) / 255
    darkest, brightest = np.percentile(sample @ LUMINANCE, (0.5, 99.7))
    unclipped = to_linear(sample[sample.max(1) < 0.985])
    gray = (unclipped ** 6).mean(0) ** (1 / 6) if len(unclipped) else np.ones(3)
    gray = np.maximum(gray, 1e-3)

    sigmas, blocks = [], []
    for tile in _tiles(pixels):
        tile = tile.astype(np.float32) / 255
        sigmas.append(edge_sigma(tile @ LUMINANCE))
        blocks.append(_block_deviations(tile))
    sigmas = [s for s in sigmas if s is not None]
    return PhotoStatistics(
        gray=tuple((gray / gray.mean()).tolist()),
        darkest=float(np.clip(darkest, 0, 0.07)), brightest=float(np.clip(brightest, 0.88, 1)),
        edge_sigma_px=float(np.percentile(sigmas, 25)) if sigmas else None,
        grain=_grain(np.concatenate(blocks)))


def _tiles(pixels: np.ndarray) -> list[np.ndarray]:
    """Native-scale tiles spread evenly over a photo; the photo itself where it is small."""
    height, width = pixels.shape[:2]
    if height * width <= (N_TILES * TILE_PX) ** 2:
        return [pixels]
    tops = np.linspace(0, max(0, height - TILE_PX), N_TILES).astype(int)
    lefts = np.linspace(0, max(0, width - TILE_PX), N_TILES).astype(int)
    return [pixels[top:top + TILE_PX, left:left + TILE_PX] for top in tops for left in lefts]


def measure_surroundings(canvas: np.ndarray, box: Box) -> Surroundings:
    """Light, sharpness and grain of the canvas within one box size of the box."""
    height, width = canvas.shape[:2]
    reach = max(box.width, box.height)
    window = box.grown(reach).clipped(width, height)
    stride = max(1, max(window.width, window.height) // 200)
    linear = to_linear(canvas[window.slices][::stride, ::stride].astype(np.float32) / 255)
    luminance = linear @ LUMINANCE
    dark, bright, brightest = np.percentile(luminance, (5, 90, 95))
    strip = linear[-max(4, reach // (3 * stride)):].reshape(-1, 3).mean(0)

    center_x, center_y = (int(c) for c in box.center)
    half = min(reach + min(box.width, box.height) // 2 + 8, DETAIL_PX // 2)
    near = Box(center_x - half, center_y - half, center_x + half, center_y + half).clipped(width, height)
    detail = canvas[near.slices].astype(np.float32) / 255
    water, sky = _water_and_sky(canvas, box)
    return Surroundings(
        bright=float(bright), shadow_hardness=float(np.clip((brightest - dark) / 0.5, 0.5, 1)),
        ground=tuple(strip.tolist()), edge_sigma_px=edge_sigma(detail @ LUMINANCE),
        grain=_grain(_block_deviations(detail)), water_below=water, sky_behind=sky)


def _water_and_sky(canvas: np.ndarray, box: Box) -> tuple[bool, bool]:
    """Plain tests that fail toward "ground": blue minus red, and texture after removing shading."""
    height, width = canvas.shape[:2]
    third = max(2, box.height // 3)
    below = Box(box.left, box.bottom - third, box.right, box.bottom + third).clipped(width, height)
    strip = canvas[below.slices].astype(np.float32) / 255
    red, green, blue = strip.reshape(-1, 3).mean(0)
    luma = strip @ LUMINANCE
    texture = float((luma - cv2.GaussianBlur(luma, (0, 0), 3)).std())
    bluish = blue - red > 0.04 and blue > green - 0.03
    return bool(bluish and texture < 0.045), bool((bluish or luma.mean() > 0.85) and texture < 0.012)


def edge_sigma(luma: np.ndarray, where: np.ndarray | None = None, quantile: float = 0.15) -> float | None:
    """Blur of an image's sharp edges in pixels: step height over sqrt(2 pi) x gradient.

    Biased for very sharp edges (true 0.3, 0.5, 0.7, 1.0, 1.5 px measure 0.57, 0.69, 0.86, 1.11,
    1.57), so compare two measurements rather than trust one.  None without at least 8 edge pixels.
    """
    gradient = np.zeros_like(luma)
    across, down = luma[2:-2, 3:-1] - luma[2:-2, 1:-3], luma[3:-1, 2:-2] - luma[1:-3, 2:-2]
    gradient[2:-2, 2:-2] = np.hypot(across, down) / 2
    if where is not None:
        gradient *= where
    if not gradient.any():
        return None
    steep = max(float(np.percentile(gradient[gradient > 0], 98)), 0.02)
    ridge = (gradient >= steep) & (gradient >= 0.999 * cv2.dilate(gradient, np.ones((3, 3), np.uint8)))
    if ridge.sum() < 8:
        return None
    around = np.ones((9, 9), np.uint8)
    step = cv2.dilate(luma, around) - cv2.erode(luma, around)
    return float(np.quantile(step[ridge] / (np.sqrt(2 * np.pi) * gradient[ridge]), quantile))


def _block_deviations(image: np.ndarray) -> np.ndarray:
    """High-pass standard deviation (n, 3) of the 8 x 8 blocks that are not clipped."""
    height, width = image.shape[0] // 8 * 8, image.shape[1] // 8 * 8
    fine = image - cv2.GaussianBlur(image, (0, 0), _HIGH_PASS_SIGMA)

    def blocks(a: np.ndarray) -> np.ndarray:
        return a[:height, :width].reshape(height // 8, 8, width // 8, 8, 3).swapaxes(1, 2).reshape(-1, 64, 3)

    mean = blocks(image).mean(1)
    usable = (mean.max(1) < 0.97) & (mean.min(1) > 0.03)
    return blocks(fine)[usable].std(1)


def _grain(deviations: np.ndarray) -> tuple[float, float, float]:
    """Noise per channel: that of the flattest blocks, since texture only adds to it."""
    if len(deviations) < 6:
        return (0.004, 0.004, 0.004)
    return tuple((np.percentile(deviations, 10, axis=0) / np.sqrt(_HIGH_PASS_KEEPS)).tolist())
