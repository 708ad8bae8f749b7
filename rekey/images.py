"""The one way an image enters: what a person sees is what is used, and it carries a hash.

Viewers, model processors and benchmark tools disagree about the same file: some ignore the EXIF
orientation, drop alpha to black, clip 16-bit data or skip the ICC profile.  Here every file is
decoded once, by one rule, into uint8 RGB pixels, and the hash of those pixels travels with the
item (ReKey, Sec. 3.3 needs pixels outside the edit to stay bit-identical to *these*).

    photo = load_image("photo.jpg")
    photo.pixels.shape, photo.sha256, photo.notes
    save_png("out/photo.png", photo.pixels)
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from rekey.errors import InputError
from rekey.image_modes import apply_orientation, rgb_pixels
from rekey.store import write_atomic

MAX_PIXELS = 100_000_000
"""Larger images are refused before decoding; a V*Bench photo has 3,400,000."""
MIN_SIDE_PX = 8
MAX_ASPECT = 200
"""Thinner images are placeholders or damage; Qwen-VL processors refuse the same aspect."""

# Pillow would also try Ghostscript for EPS and signature-less formats that match anything.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "AVIF", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000")
EXTENSIONS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp", ".dib",
              ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".jp2")
FORMATS_IN_WORDS = "JPEG, PNG, WebP, AVIF, GIF, BMP, TIFF, PPM or JPEG 2000"

_OWN_SIGNATURES = ((b"\x89PNG", "PNG"), (b"\xff\xd8\xff", "JPEG"), (b"GIF8", "GIF"), (b"BM", "BMP"),
                   (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"))
# What is found in place of an image most often, and what helps.
_FOREIGN_SIGNATURES = (
    (b"version https://git-lfs", "a Git LFS pointer; fetch the image itself with `git lfs pull`"),
    (b"<!doctype html", "a web page (often a failed download); download the image again"),
    (b"<html", "a web page (often a failed download); download the image again"),
    (b"<?xml", "an XML or SVG file; export it as PNG first"),
    (b"<svg", "an SVG file; export it as PNG first"),
    (b"%pdf", "a PDF file; export its page as PNG first"),
    (b"%!ps", "a PostScript file; export it as PNG first"),
    (b"8bps", "a Photoshop file; export it as PNG first"),
    (b"pk\x03\x04", "a zip archive; unpack it first"),
    (b"par1", "a Parquet file; import it with `rekey items import`"),
)


@dataclass(frozen=True, eq=False)
class LoadedImage:
    """Pixels as a person sees them, and how they came about."""

    pixels: np.ndarray
    """uint8 (height, width, 3) RGB, read-only."""
    sha256: str
    """`pixel_sha256` of the pixels."""
    format: str
    """As Pillow names it: "JPEG", "PNG"."""
    mode: str
    """Pillow's mode of the file: "RGB", "I;16", "CMYK"."""
    notes: tuple[str, ...]
    """Everything beyond a plain decode to RGB, in words; empty where any reader sees the same."""

    @property
    def height(self) -> int:
        return self.pixels.shape[0]

    @property
    def width(self) -> int:
        return self.pixels.shape[1]


def load_image(path: str | os.PathLike, max_pixels: int = MAX_PIXELS) -> LoadedImage:
    """The image in a file, as a person sees it.

    EXIF orientation is applied, colors are converted to sRGB, alpha is composited over white,
    deep data are scaled to 8 bits, and of several frames the first is taken.
    Raises InputError, naming the file, for anything that is not a whole image of sane size.
    """
    return decode_image(_read(Path(path)), str(path), max_pixels)


def decode_image(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> LoadedImage:
    """`load_image` for bytes in memory; `name` stands for the file in messages."""
    with _opened(io.BytesIO(data), name, max_pixels) as image:
        mode, file_format = image.mode, image.format or "unknown"
        try:
            image.load()
        except Image.DecompressionBombError as error:
            raise _too_large(name, str(error), max_pixels) from error
        except Exception as error:  # Pillow's decoders raise a dozen types for broken data
            raise InputError(f"{name}: the {file_format} data are damaged or cut off "
                             f"({_one_line(error)}); copy or download the file again") from error
        notes = []
        if getattr(image, "is_animated", False):
            notes.append("first of several frames")
        orientation = _orientation(image.getexif)
        try:
            png_bit_depth = data[24] if file_format == "PNG" else None
            pixels, mode_notes = rgb_pixels(image, png_bit_depth)
        except (OSError, ValueError) as error:
            raise InputError(f"{name}: cannot convert {file_format} mode {mode} to RGB "
                             f"({_one_line(error)}); save it as an RGB PNG first") from error
    notes.extend(mode_notes)
    if orientation != 1:
        pixels = apply_orientation(pixels, orientation)
        notes.append(f"turned upright (EXIF orientation {orientation})")
    pixels = np.ascontiguousarray(pixels)
    pixels.setflags(write=False)
    return LoadedImage(pixels, pixel_sha256(pixels), file_format, mode, tuple(notes))


def pixel_sha256(pixels: np.ndarray) -> str:
    """SHA-256 over the ASCII line "height width\\n" and then the RGB bytes, row by row.

    pixels: uint8 (height, width, 3).  The size is hashed too, since the same bytes in another
    shape are another image.
    """
    _check_pixels(pixels)
    height, width = pixels.shape[:2]
    digest = hashlib.sha256(f"{height} {width}\n".encode("ascii"))
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


def image_size(path: str | os.PathLike, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """(width, height) in pixels as `load_image` would return them, from the header alone."""
    path = Path(path)
    _check_file(path)
    with path.open("rb") as file, _opened(file, str(path), max_pixels) as image:
        width, height = image.size
        if image.format == "TIFF":  # Pillow already names the upright size
            return width, height
        if image.format == "PNG" and "exif" not in image.info and not _png_metadata_follows(file):
            # Spares the decoding that PngImageFile.getexif would do to look behind the pixels.
            orientation = _orientation(lambda: Image.Image.getexif(image))
        else:
            orientation = _orientation(image.getexif)
    return (height, width) if orientation >= 5 else (width, height)


# ------------------------------------------------------------------------------ finding files

def index_images(folder: str | os.PathLike) -> dict[str, list[Path]]:
    """All image files below `folder` by their name without extension, each list sorted."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of images")
    found: dict[str, list[Path]] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if is_image_name(name):
                found.setdefault(Path(name).stem, []).append(Path(parent, name))
    return found


def find_image(folder: str | os.PathLike, image_id: str, index: dict[str, list[Path]] | None = None) -> Path:
    """The one image file named `image_id` plus a known extension.

    Files directly in `folder` win over those in subfolders (V*Bench keeps its images in two).
    index: `index_images(folder)`, where many are looked up.  Zero or several files are an InputError.
    """
    folder = Path(folder)
    if not image_id or "/" in image_id or "\\" in image_id or image_id.startswith("."):
        raise InputError(f"image id {image_id!r}: expected a file name without its extension")
    found = (index_images(folder) if index is None else index).get(image_id, [])
    matches = [path for path in found if path.parent == folder] or found
    if not matches:
        raise InputError(f"{image_id}: no image of that name in {folder}; expected {image_id}.jpg, "
                         f".png or another of {' '.join(EXTENSIONS)}")
    if len(matches) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in matches)
        raise InputError(f"{image_id}: {len(matches)} images of that name in {folder} ({names}); "
                         "expected one; move the others away")
    return matches[0]


def is_image_name(name: str) -> bool:
    """Whether a file name has the extension of an image that `load_image` reads."""
    # macOS leaves "._photo.jpg" beside "photo.jpg" on foreign disks; it is not an image.
    return not name.startswith(".") and Path(name).suffix.lower() in EXTENSIONS


# ------------------------------------------------------------------------------------- saving

def save_png(path: str | os.PathLike, pixels: np.ndarray) -> None:
    """Write uint8 (height, width, 3) pixels as a PNG that appears whole or not at all."""
    write_atomic(Path(path), png_bytes(pixels))


def png_bytes(pixels: np.ndarray) -> bytes:
    """The PNG file of uint8 (height, width, 3) pixels.

    The same pixels give the same bytes.  One "left neighbor" filter and run-length Huffman
    coding replace the per-row filter search of Pillow and OpenCV: a 2250 x 1500 photo takes
    0.14 to 0.18 s in place of 0.4 s (Pillow, level 1), and the file is a tenth smaller.
    """
    _check_pixels(pixels)
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, 3 * width)
    filtered = np.empty((height, 1 + 3 * width), np.uint8)
    filtered[:, 0] = 1  # PNG filter type Sub: each byte minus the one 3 bytes to its left
    filtered[:, 1:4] = rows[:, :3]
    np.subtract(rows[:, 3:], rows[:, :-3], out=filtered[:, 4:])
    compressor = zlib.compressobj(1, zlib.DEFLATED, 15, 9, zlib.Z_RLE)
    compressed = compressor.compress(filtered.data) + compressor.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + _png_chunk(b"IHDR", header) + _png_chunk(b"IDAT", compressed)
            + _png_chunk(b"IEND", b""))


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _check_pixels(pixels: np.ndarray) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
        raise ValueError(f"expected uint8 pixels (height, width, 3), got {pixels.dtype} {pixels.shape}")


# ------------------------------------------------------------------------------------ opening

def _check_file(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path}: a folder, expected an image file")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty (0 bytes); copy or download it again")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: no permission to read the file")


def _read(path: Path) -> bytes:
    _check_file(path)
    return path.read_bytes()


@contextlib.contextmanager
def _opened(file: BinaryIO, name: str, max_pixels: int) -> Iterator[Image.Image]:
    """The image behind a header whose size has been checked; its pixels are not decoded yet."""
    Image.init()
    with warnings.catch_warnings():
        # Pillow warns of large images and of broken EXIF: the first is checked below by our own
        # limit, the second costs only the orientation.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", module=r"PIL\.")
        try:
            image = Image.open(file, formats=[f for f in FORMATS if f in Image.OPEN])
        except Image.DecompressionBombError as error:
            raise _too_large(name, str(error), max_pixels) from error
        except UnidentifiedImageError as error:
            raise InputError(f"{name}: {_what_is_it(file)}") from error
        except Exception as error:  # as for decoding: damaged headers raise anything
            raise InputError(f"{name}: damaged image header ({_one_line(error)}); "
                             "copy or download the file again") from error
        with image:
            width, height = image.size
            if width * height > max_pixels:
                raise _too_large(name, f"{width} x {height} = {width * height:,} pixels", max_pixels)
            if min(width, height) < MIN_SIDE_PX:
                raise InputError(f"{name}: {width} x {height} pixels; expected at least "
                                 f"{MIN_SIDE_PX} on each side")
            if max(width, height) > MAX_ASPECT * min(width, height):
                raise InputError(f"{name}: {width} x {height} pixels; expected the long side to be "
                                 f"at most {MAX_ASPECT} times the short one")
            yield image


def _too_large(name: str, found: str, max_pixels: int) -> InputError:
    return InputError(f"{name}: too large ({found}); at most {max_pixels:,} pixels are decoded; "
                      "make a smaller copy")


def _what_is_it(file: BinaryIO) -> str:
    file.seek(0)
    head = file.read(64)
    for signature, file_format in (*_OWN_SIGNATURES, (head[:4] + b"ftypavif", "AVIF")):
        if head.startswith(signature):
            return f"damaged {file_format} header; copy or download the file again"
    if head[4:8] == b"ftyp":
        return f"a HEIC or video file; expected {FORMATS_IN_WORDS}; convert it first"
    for signature, description in _FOREIGN_SIGNATURES:
        if head.lstrip().lower().startswith(signature):
            return f"not an image but {description}"
    return f"not a readable image; expected {FORMATS_IN_WORDS}"


def _orientation(getexif) -> int:
    """EXIF orientation, 1 to 8; 1 where there is none or the EXIF block is broken."""
    try:
        value = getexif().get(0x0112, 1)
    except Exception:  # a broken EXIF block must not cost the image
        return 1
    return value if value in range(1, 9) else 1


def _png_metadata_follows(file: BinaryIO) -> bool:
    """Whether a PNG keeps EXIF or text behind its pixels, where Pillow finds it after decoding."""
    file.seek(8)
    pixels_seen = False
    while len(head := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        pixels_seen = pixels_seen or kind == b"IDAT"
        if pixels_seen and kind in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"):
            return True
        file.seek(length + 4, os.SEEK_CUR)
    return False


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
