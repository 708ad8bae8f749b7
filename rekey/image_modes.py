"""From any of Pillow's pixel modes to uint8 RGB: depth, palettes, alpha, ICC profiles.

    pixels, notes = rgb_pixels(pil_image)      # (height, width, 3), what a viewer would show

Used by `rekey.images` alone; everything else takes images from there.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

ICC_TOLERANCE = 2
"""A profile that moves no color by more than this many levels is sRGB: it is not applied, so
that photos tagged as sRGB keep their exact bytes."""
_TIFF_BITS_PER_SAMPLE = 258
_TIFF_PHOTOMETRIC = 262
_WHITE_IS_ZERO = 0


def rgb_pixels(image: Image.Image, png_bit_depth: int | None) -> tuple[np.ndarray, list[str]]:
    """uint8 (height, width, 3) of a loaded image, and in words what was done beyond decoding.

    png_bit_depth: of the file, where it is a PNG.
    Not turned by EXIF orientation; see `apply_orientation`.
    """
    notes: list[str] = []
    profile = image.info.get("icc_profile")
    base, alpha = _split_alpha(image, png_bit_depth, notes)
    rgb = _to_srgb(base, profile, notes)
    pixels = np.asarray(rgb)
    if alpha is not None and alpha.min() < 255:
        pixels = over_white(pixels, alpha)
        notes.append("transparency composited over white")
    return pixels, notes


def over_white(rgb: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """uint8 (height, width, 3) with alpha (height, width) in 0..255, composited over white."""
    weight = alpha.astype(np.uint16)[..., None]
    mixed = rgb * weight + 255 * (255 - weight)  # at most 255 * 255: fits 16 bits
    return ((mixed.astype(np.uint32) + 127) // 255).astype(np.uint8)


def apply_orientation(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn (height, width, 3) pixels upright, for EXIF orientation 1 to 8."""
    if orientation == 2:
        return pixels[:, ::-1]
    if orientation == 3:
        return pixels[::-1, ::-1]
    if orientation == 4:
        return pixels[::-1]
    if orientation == 5:
        return pixels.transpose(1, 0, 2)
    if orientation == 6:
        return pixels[::-1].transpose(1, 0, 2)
    if orientation == 7:
        return pixels[::-1, ::-1].transpose(1, 0, 2)
    if orientation == 8:
        return pixels[:, ::-1].transpose(1, 0, 2)
    return pixels


# -------------------------------------------------------------------------------------- alpha

def _split_alpha(image: Image.Image, png_bit_depth: int | None,
                 notes: list[str]) -> tuple[Image.Image, np.ndarray | None]:
    """An image of mode L, RGB, CMYK or LAB, and its alpha (height, width) where it has one."""
    mode, key = image.mode, image.info.get("transparency")
    if mode.startswith("I") or mode == "F":
        gray = Image.fromarray(_deep_gray(image, notes))
        if not isinstance(key, int):
            return gray, None
        return gray, np.where(np.asarray(image) == key, 0, 255).astype(np.uint8)
    if mode in ("1", "L", "RGB") and key is not None:
        base = image.convert("L") if mode == "1" else image
        return base, _color_key_alpha(base, _eight_bit_key(key, png_bit_depth))
    if mode in ("P", "PA"):
        image = image.convert("RGBA")
    elif mode in ("RGBa", "La"):
        image = image.convert(mode.upper())
    if image.mode in ("RGBA", "LA"):
        alpha = np.asarray(image.getchannel("A"))
        return image.convert(image.mode[:-1]), alpha
    if image.mode in ("L", "RGB", "CMYK", "LAB"):
        return image, None
    return image.convert("L" if image.mode == "1" else "RGB"), None


def _eight_bit_key(key: int | tuple[int, ...], depth: int | None) -> tuple[int, ...]:
    """The transparent color of a PNG, on the 8-bit scale of the decoded pixels.

    The file states it at its own depth; Pillow scales the pixels but not the key.
    """
    values = key if isinstance(key, tuple) else (key,)
    if depth == 16:
        return tuple(value >> 8 for value in values)
    if depth in (2, 4):
        return tuple(value * 255 // (2 ** depth - 1) for value in values)
    return values


def _color_key_alpha(image: Image.Image, key: tuple[int, ...]) -> np.ndarray:
    pixels = np.asarray(image)
    pixels = pixels.reshape(*pixels.shape[:2], -1)  # (height, width, 1 or 3)
    return np.where((pixels == np.array(key)).all(axis=2), 0, 255).astype(np.uint8)


# -------------------------------------------------------------------------------------- depth

def _deep_gray(image: Image.Image, notes: list[str]) -> np.ndarray:
    """uint8 (height, width) of a gray image with more than 8 bits, scaled as a viewer would.

    16 and 12 bits: by the mode's range.  32-bit integers and floats carry no range, so the
    smallest usual one that holds all values is taken (0..1 for floats, 0..255, 0..65535), else
    the values are stretched from the least to the greatest.
    """
    values = np.asarray(image).astype(np.float64)
    if not np.isfinite(values).all():
        values = np.nan_to_num(values, nan=0.0, posinf=np.finfo(np.float32).max,
                               neginf=np.finfo(np.float32).min)
        notes.append("values that are no finite numbers replaced")
    low, high, what = 0.0, 65535.0, "16-bit"
    if image.mode.startswith("I;"):
        bits = _tiff_tag(image, _TIFF_BITS_PER_SAMPLE)
        if bits == 12:
            high, what = 4095.0, "12-bit"
    elif image.format == "PPM" and image.mode == "I":
        pass  # Pillow has scaled any PGM with more than 8 bits to 0..65535
    else:
        ranges = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        least, greatest = float(values.min()), float(values.max())
        what = "floating-point" if image.mode == "F" else "32-bit"
        high = next((top for top in ranges if least >= 0 and greatest <= top), greatest)
        if greatest > high or least < 0 or greatest > ranges[-1]:
            low = least
    notes.append(f"{what} gray scaled from {low:g}..{high:g} to 8 bits")
    scaled = (values - low) * (255.0 / (high - low or 1.0))
    if _tiff_tag(image, _TIFF_PHOTOMETRIC) == _WHITE_IS_ZERO:
        scaled = 255.0 - scaled  # Pillow inverts 8-bit data of this kind, but not 16-bit
    return np.floor(scaled + 0.5).clip(0, 255).astype(np.uint8)


def _tiff_tag(image: Image.Image, tag: int) -> int | None:
    if image.format != "TIFF":
        return None
    value = image.tag_v2.get(tag)
    return value[0] if isinstance(value, tuple) else value


# ------------------------------------------------------------------------------------- colors

def _to_srgb(image: Image.Image, profile: bytes | None, notes: list[str]) -> Image.Image:
    """An RGB image; `profile` is the file's ICC profile, applied (perceptual intent) where usable."""
    if image.mode == "LAB":
        from PIL import ImageCms

        notes.append("colors converted from Lab")
        return ImageCms.profileToProfile(image, ImageCms.createProfile("LAB"),
                                         ImageCms.createProfile("sRGB"), outputMode="RGB")
    plain = image.convert("RGB")
    if not profile:
        return plain
    from PIL import ImageCms

    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        name = " ".join(ImageCms.getProfileDescription(source).split())
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"),
                                            image.mode, "RGB")
        if _is_identity(transform, image.mode):
            return plain
        converted = ImageCms.applyTransform(image, transform)
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        notes.append(f"ICC profile not usable, colors taken as sRGB ({reason})")
        return plain
    notes.append(f"colors converted from ICC profile {name!r}")
    return converted


def _is_identity(transform, mode: str) -> bool:
    """Whether a transform to sRGB leaves a lattice of colors (gray: all levels) where it is."""
    from PIL import ImageCms

    if mode == "L":
        probe = np.arange(256, dtype=np.uint8)[None]
    elif mode == "RGB":
        levels = np.linspace(0, 255, 17).astype(np.uint8)
        probe = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(17, 289, 3)
    else:
        return False
    before = Image.fromarray(probe)
    after = ImageCms.applyTransform(before, transform)
    moved = np.asarray(after).astype(int) - np.asarray(before.convert("RGB"))
    return int(np.abs(moved).max()) <= ICC_TOLERANCE
