"""Images: what a person sees is what is loaded, and a bad file gives one line that names it."""

from __future__ import annotations

import hashlib
import io
import struct
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from rekey.errors import InputError
from rekey.image_modes import over_white
from rekey.images import (
    decode_image,
    find_image,
    image_size,
    index_images,
    load_image,
    pixel_sha256,
    save_png,
)


@pytest.fixture
def picture() -> np.ndarray:
    """uint8 (24, 16, 3): smooth, so that JPEG keeps it within a few levels, and not symmetric."""
    rows, columns = np.mgrid[0:24, 0:16]
    return np.stack([rows * 10, columns * 15, 255 - rows * 5 - columns * 4], axis=-1).astype(np.uint8)


def encoded(image: Image.Image, file_format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(width: int, height: int, depth: int, color_type: int, rows: list[bytes],
            before: bytes = b"", after: bytes = b"") -> bytes:
    """A PNG written by hand, for what Pillow cannot write."""
    header = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + before + png_chunk(b"IDAT", data)
            + after + png_chunk(b"IEND", b""))


def first_row(data: bytes) -> list[list[int]]:
    return decode_image(data, "test").pixels[0].tolist()


# ------------------------------------------------------------------------------- orientation

@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_every_exif_orientation_is_turned_upright_as_pillow_does(picture, tmp_path, orientation,
                                                                 file_format):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo"
    path.write_bytes(encoded(Image.fromarray(picture), file_format, exif=exif))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))
    loaded = load_image(path)
    assert np.array_equal(loaded.pixels, expected)
    assert image_size(path) == (loaded.width, loaded.height)
    assert expected.shape[:2] == ((16, 24) if orientation >= 5 else (24, 16))


def test_opencv_sees_the_same_upright_jpeg(picture, tmp_path):
    cv2 = pytest.importorskip("cv2")
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "photo.jpg"
    path.write_bytes(encoded(Image.fromarray(picture), "JPEG", exif=exif, quality=95))
    other = cv2.imread(str(path))[..., ::-1].astype(int)
    assert other.shape == (16, 24, 3)
    assert np.abs(other - load_image(path).pixels).max() <= 6  # two JPEG decoders


def test_exif_behind_the_pixels_of_a_png_counts_for_size_and_pixels(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 8
    path = tmp_path / "late.png"
    block = exif.tobytes().removeprefix(b"Exif\0\0")
    path.write_bytes(raw_png(10, 20, 8, 0, [bytes(10)] * 20, after=png_chunk(b"eXIf", block)))
    assert load_image(path).pixels.shape == (10, 20, 3)
    assert image_size(path) == (20, 10)


def test_a_broken_exif_block_does_not_cost_the_image(picture):
    data = encoded(Image.fromarray(picture), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xffgarbage")
    assert decode_image(data, "test").pixels.shape == picture.shape


# --------------------------------------------------------------------------- depth and modes

def test_16_bit_gray_is_scaled_and_not_clipped():
    values = [0, 128, 129, 300, 32767, 32896, 65279, 65535] + [1000] * 4
    data = raw_png(12, 8, 16, 0, [struct.pack(">12H", *values)] * 8)
    # By hand: round(value / 257).
    assert [pixel[0] for pixel in first_row(data)][:8] == [0, 0, 1, 1, 127, 128, 254, 255]


@pytest.mark.parametrize(("byte_order", "photometric"), [
    ("<", "minisblack"), (">", "minisblack"), ("<", "miniswhite")])  # Pillow does not read the fourth
def test_16_bit_tiff_reads_in_both_byte_orders_and_polarities(byte_order, photometric):
    tifffile = pytest.importorskip("tifffile")
    buffer = io.BytesIO()
    values = np.tile(np.array([0, 257, 65535] * 3, np.uint16), (9, 1))
    tifffile.imwrite(buffer, values, byteorder=byte_order, photometric=photometric)
    gray = [pixel[0] for pixel in first_row(buffer.getvalue())][:3]
    assert gray == ([0, 1, 255] if photometric == "minisblack" else [255, 254, 0])


def test_16_bit_rgb_png_reads_within_one_level():
    row = struct.pack(">24H", *([0, 300, 30000, 65535, 65408, 129] * 4))
    expected = np.array([[0, 300, 30000], [65535, 65408, 129]] * 4) / 257
    assert np.abs(np.array(first_row(raw_png(8, 8, 16, 2, [row] * 8))) - expected).max() <= 1


@pytest.mark.parametrize(("values", "expected"), [
    ([0.0, 0.5, 1.0], [0, 128, 255]),          # 0..1
    ([0.0, 7.0, 255.0], [0, 7, 255]),          # 0..255
    ([0.0, 257.0, 65535.0], [0, 1, 255]),      # 0..65535
    ([-1.0, 0.0, 1.0], [0, 128, 255]),         # stretched
    ([float("nan"), 0.5, 1.0], [0, 128, 255]),
])
def test_float_images_are_scaled_by_the_usual_range_that_holds_them(values, expected):
    image = Image.fromarray(np.tile(np.array(values * 3, np.float32), (9, 1)))
    loaded = decode_image(encoded(image, "TIFF"), "test")
    assert loaded.mode == "F"
    assert loaded.pixels[0, :3, 0].tolist() == expected
    assert any("scaled from" in note for note in loaded.notes)


@pytest.mark.parametrize(("values", "expected"), [
    ([0, 7, 255], [0, 7, 255]), ([0, 257, 65535], [0, 1, 255]), ([-10, 0, 10], [0, 128, 255]),
    ([0, 1 << 30, 1 << 31 - 1], [0, 255, 255]),
])
def test_32_bit_integers_are_scaled_by_the_usual_range_that_holds_them(values, expected):
    image = Image.fromarray(np.tile(np.array(values * 3, np.int32), (9, 1)))
    loaded = decode_image(encoded(image, "TIFF"), "test")
    assert loaded.mode == "I"
    assert loaded.pixels[0, :3, 0].tolist() == expected


def test_a_dark_16_bit_pgm_stays_dark():
    data = b"P5 8 8 65535\n" + struct.pack(">8H", *([0, 100, 200, 255] * 2)) * 8
    assert [pixel[0] for pixel in first_row(data)][:4] == [0, 0, 1, 1]


def test_a_12_bit_tiff_fills_the_range():
    row = bytes([0x00, 0x08, 0x00, 0xFF, 0xF0, 0x10] * 2)  # 0, 2048, 4095, 16 of 4095, 12 bits each
    tags = [(256, 8), (257, 8), (258, 12), (259, 1), (262, 1), (273, 122), (277, 1), (278, 8), (279, 96)]
    assert 8 + 2 + 12 * len(tags) + 4 == 122  # where the pixels begin
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    data = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + row * 8
    assert [pixel[0] for pixel in first_row(data)][:4] == [0, 128, 255, 1]


def test_one_bit_gray_and_palette_images_show_their_colors():
    bilevel = Image.new("1", (8, 8))
    bilevel.putpixel((1, 0), 1)
    assert first_row(encoded(bilevel, "PNG"))[:2] == [[0, 0, 0], [255, 255, 255]]
    assert first_row(encoded(Image.new("L", (8, 8), 77), "PNG"))[0] == [77, 77, 77]
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 10, 200, 30])
    assert first_row(encoded(palette, "PNG"))[0] == [10, 200, 30]


def test_the_first_frame_of_an_animation_is_taken():
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue", "lime")]
    for file_format in ("GIF", "PNG", "WEBP"):
        data = encoded(frames[0], file_format, save_all=True, append_images=frames[1:], lossless=True)
        loaded = decode_image(data, "test")
        assert loaded.pixels[0, 0].tolist() == [255, 0, 0], file_format
        assert "first of several frames" in loaded.notes


# -------------------------------------------------------------------------------------- alpha

def test_alpha_is_composited_over_white_with_rounding():
    rgb = np.full((1, 256, 3), 40, np.uint8)
    alpha = np.arange(256, dtype=np.uint8)[None]
    share = alpha / 255.0
    exact = 40 * share + 255 * (1 - share)
    assert np.array_equal(over_white(rgb, alpha)[..., 0], np.floor(exact + 0.5))


def test_transparent_pixels_are_white_in_every_mode_that_has_alpha():
    rgba = Image.new("RGBA", (8, 8), (200, 0, 0, 255))
    rgba.putpixel((1, 0), (0, 0, 0, 0))
    gray = Image.new("LA", (8, 8), (200, 255))
    gray.putpixel((1, 0), (0, 0))
    for file_format, image in (("PNG", rgba), ("WEBP", rgba), ("TIFF", rgba), ("PNG", gray)):
        options = {"lossless": True} if file_format == "WEBP" else {}
        loaded = decode_image(encoded(image, file_format, **options), "test")
        red = [200, 200, 200] if image is gray else [200, 0, 0]
        assert loaded.pixels[0, :2].tolist() == [red, [255, 255, 255]], (file_format, image.mode)
        assert "transparency composited over white" in loaded.notes


def test_transparent_palette_entries_are_white():
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 10, 200, 30])
    palette.putpixel((1, 0), 0)
    for file_format in ("PNG", "GIF"):
        row = first_row(encoded(palette, file_format, transparency=0))
        assert row[:2] == [[10, 200, 30], [255, 255, 255]], file_format
    half = encoded(palette, "PNG", transparency=bytes([51, 255]))  # 20% black over white
    assert first_row(half)[1] == [204, 204, 204]


@pytest.mark.parametrize(("depth", "color_type", "row", "key", "expected"), [
    (8, 2, bytes([1, 2, 3, 9, 9, 9] * 4), (1, 2, 3), [[255, 255, 255], [9, 9, 9]]),
    (8, 0, bytes([0, 7] * 4), (0,), [[255, 255, 255], [7, 7, 7]]),
    (1, 0, bytes([0b01010101]), (0,), [[255, 255, 255], [255, 255, 255]]),
    (2, 0, bytes([0b00011011] * 2), (1,), [[0, 0, 0], [255, 255, 255], [170, 170, 170]]),
    (4, 0, bytes([0x05] * 4), (5,), [[0, 0, 0], [255, 255, 255]]),
    (16, 0, struct.pack(">8H", *([300, 514] * 4)), (300,), [[255, 255, 255], [2, 2, 2]]),
    (16, 2, struct.pack(">24H", *([0, 300, 30000, 514, 514, 514] * 4)), (0, 300, 30000),
     [[255, 255, 255], [2, 2, 2]]),
])
def test_the_transparent_color_of_a_png_is_white_at_every_depth(depth, color_type, row, key, expected):
    transparency = png_chunk(b"tRNS", struct.pack(f">{len(key)}H", *key))
    data = raw_png(8, 8, depth, color_type, [row] * 8, before=transparency)
    assert first_row(data)[:len(expected)] == expected


def test_an_opaque_alpha_channel_changes_nothing(picture):
    plain = decode_image(encoded(Image.fromarray(picture), "PNG"), "test")
    opaque = decode_image(encoded(Image.fromarray(picture).convert("RGBA"), "PNG"), "test")
    assert opaque.sha256 == plain.sha256 and opaque.notes == ()


# ------------------------------------------------------------------------------ color spaces

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def icc_profile(space: bytes, tags: dict[bytes, bytes], pcs: bytes, device: bytes) -> bytes:
    """An ICC v2 profile assembled by hand."""
    tags = {**tags, b"desc": b"desc" + bytes(4) + struct.pack(">I", 5) + b"test\0" + bytes(78)}
    offset, table, body = 128 + 4 + 12 * len(tags), b"", b""
    for name, data in tags.items():
        data += bytes(-len(data) % 4)
        table += struct.pack(">4sII", name, offset + len(body), len(data))
        body += data
    total = offset + len(body)
    header = struct.pack(">I4sI4s4s4s12s4s", total, b"\0\0\0\0", 0x02400000, device, space, pcs,
                         bytes(12), b"acsp")
    header = header.ljust(68, b"\0") + struct.pack(">3I", 0xF6D6, 0x10000, 0xD32D)
    return header.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body


def cmyk_profile() -> bytes:
    """A CMYK profile: cyan ink looks mid-gray (Lab 50, 0, 0), black black, the others do nothing."""
    identity = bytes(range(256))
    grid = b"".join(bytes([0 if corner & 1 else 128 if corner & 8 else 255, 128, 128])
                    for corner in range(16))  # corners in the order C M Y K, K fastest
    table = (b"mft1" + bytes(4) + bytes([4, 3, 2, 0])
             + b"".join(struct.pack(">i", 65536 if i in (0, 4, 8) else 0) for i in range(9))
             + identity * 4 + grid + identity * 3)
    white = b"XYZ " + bytes(4) + struct.pack(">3I", 0xF6D6, 0x10000, 0xD32D)
    return icc_profile(b"CMYK", {b"A2B0": table, b"wtpt": white}, b"Lab ", b"prtr")


def linear_gray_profile() -> bytes:
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, 256)  # gamma 1.0
    white = b"XYZ " + bytes(4) + struct.pack(">3I", 0xF6D6, 0x10000, 0xD32D)
    return icc_profile(b"GRAY", {b"kTRC": curve, b"wtpt": white}, b"XYZ ", b"mntr")


def test_an_icc_profile_with_swapped_primaries_shows_red_as_blue():
    swapped = (SRGB.replace(b"rXYZ", b"????", 1).replace(b"bXYZ", b"rXYZ", 1)
               .replace(b"????", b"bXYZ", 1))
    for mode in ("RGB", "RGBA", "P"):
        image = Image.new("RGB", (8, 8), (204, 102, 0)).convert(mode)  # in the web palette
        loaded = decode_image(encoded(image, "PNG", icc_profile=swapped), "test")
        assert np.abs(loaded.pixels[0, 0].astype(int) - [0, 102, 204]).max() <= 2, mode
        assert "colors converted from ICC profile" in loaded.notes[0]


def test_a_photo_tagged_as_srgb_keeps_its_exact_bytes(picture):
    tagged = decode_image(encoded(Image.fromarray(picture), "PNG", icc_profile=SRGB), "test")
    assert np.array_equal(tagged.pixels, picture) and tagged.notes == ()


def test_a_linear_gray_profile_brightens_the_midtones():
    image = Image.new("L", (8, 8), 55)
    data = encoded(image, "PNG", icc_profile=linear_gray_profile())
    linear = 55 / 255
    expected = 255 * (1.055 * linear ** (1 / 2.4) - 0.055)  # the sRGB curve: 127.4
    assert abs(first_row(data)[0][0] - expected) <= 1.5


@pytest.mark.parametrize("profile", [b"not a profile", SRGB[:200], b"", cmyk_profile()])
def test_a_broken_or_foreign_profile_falls_back_to_srgb_with_a_note(picture, profile):
    loaded = decode_image(encoded(Image.fromarray(picture), "PNG", icc_profile=profile), "test")
    assert np.array_equal(loaded.pixels, picture)
    assert all("ICC profile not usable" in note for note in loaded.notes)
    assert bool(loaded.notes) == bool(profile)


def test_cmyk_jpegs_with_and_without_marker_and_profile():
    cyan = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    adobe = encoded(cyan, "JPEG", quality=95)  # Pillow writes the Adobe marker, inverted
    assert b"Adobe" in adobe[:64]
    assert np.abs(np.array(first_row(adobe)[0]) - [0, 255, 255]).max() <= 3
    # Files without the marker are inverted too, by the convention of Pillow and of the browsers.
    marker = adobe.index(b"\xff\xee")
    plain = adobe[:marker] + adobe[marker + 2 + struct.unpack(">H", adobe[marker + 2:marker + 4])[0]:]
    assert b"Adobe" not in plain
    assert first_row(plain)[0] == first_row(adobe)[0]
    with_profile = encoded(cyan, "JPEG", quality=95, icc_profile=cmyk_profile())
    gray = 119  # sRGB of Lab (50, 0, 0)
    assert np.abs(np.array(first_row(with_profile)[0]) - gray).max() <= 4


def test_a_ycck_jpeg_shows_its_inks():
    cv2 = pytest.importorskip("cv2")
    inks, black = (200, 100, 50), 30
    luma_chroma = Image.new("RGB", (1, 1), inks).convert("YCbCr").getpixel((0, 0))
    # Pillow stores 255 - value; the transform byte of the marker then declares Y, Cb, Cr, K.
    samples = tuple(255 - value for value in luma_chroma) + (black,)
    data = bytearray(encoded(Image.new("CMYK", (16, 16), samples), "JPEG", quality=98))
    transform = data.index(b"Adobe") + 11
    assert data[transform] == 0
    data[transform] = 2
    by_hand = np.array([(255 - ink) * (255 - black) / 255 for ink in inks])
    assert np.abs(np.array(first_row(bytes(data))[0]) - by_hand).max() <= 4
    other = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert np.abs(other[0, 0, ::-1] - by_hand).max() <= 5


def test_cmyk_tiff_and_opencv_agree_on_inks():
    cv2 = pytest.importorskip("cv2")
    inks = Image.merge("CMYK", [Image.new("L", (16, 16), ink) for ink in (30, 90, 180, 40)])
    ours = np.array(first_row(encoded(inks, "TIFF"))[0])
    by_hand = np.array([(255 - ink) * (255 - 40) / 255 for ink in (30, 90, 180)])
    assert np.abs(ours - by_hand).max() <= 1
    jpeg = np.frombuffer(encoded(inks, "JPEG", quality=98), np.uint8)
    assert np.abs(cv2.imdecode(jpeg, cv2.IMREAD_COLOR)[0, 0, ::-1] - by_hand).max() <= 5


def test_lab_tiff_is_converted():
    image = Image.new("LAB", (8, 8), (128, 128, 128))  # L = 50, a = b = 0 with an offset
    assert np.abs(np.array(first_row(encoded(image, "TIFF"))[0]) - 119).max() <= 3


# --------------------------------------------------------------------------------------- hash

def test_the_hash_is_the_documented_one_and_knows_the_size():
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert pixel_sha256(pixels) == hashlib.sha256(b"2 3\n" + bytes(range(18))).hexdigest()
    assert pixel_sha256(pixels) != pixel_sha256(pixels.reshape(3, 2, 3))


def test_the_hash_depends_on_pixels_and_not_on_the_file_format(picture):
    image = Image.fromarray(picture)
    hashes = {decode_image(encoded(image, f), "test").sha256 for f in ("PNG", "BMP", "TIFF", "PPM")}
    assert hashes == {pixel_sha256(picture)}


def test_loaded_pixels_cannot_be_written(picture):
    loaded = decode_image(encoded(Image.fromarray(picture), "PNG"), "test")
    with pytest.raises(ValueError, match="read-only"):
        loaded.pixels[0, 0] = 0


# ---------------------------------------------------------------------------------- bad files

def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    jpeg, png = encoded(picture, "JPEG"), encoded(picture, "PNG")
    contents = {
        "empty.jpg": (b"", "is empty (0 bytes)"),
        "text.jpg": (b"hello, world\n" * 20, "not a readable image"),
        "page.jpg": (b"\n<!DOCTYPE html><html></html>", "a web page"),
        "pointer.jpg": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        "vector.png": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG file"),
        "phone.jpg": (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
        "half.jpg": (jpeg[:len(jpeg) // 2], "damaged or cut off"),
        "last_bytes_lost.jpg": (jpeg[:-40], "damaged or cut off"),
        "half.png": (png[:len(png) // 2], "damaged or cut off"),
        "header_only.png": (png[:30], "damaged PNG header"),
        "flipped.png": (png[:60] + bytes([png[60] ^ 255]) + png[61:], "damaged"),
        "half.webp": (encoded(picture, "WEBP")[:300], "damaged"),
        "half.avif": (encoded(picture, "AVIF")[:300], "damaged"),
        "thin.png": (encoded(Image.new("RGB", (400, 7)), "PNG"), "at least 8 on each side"),
        "dot.png": (encoded(Image.new("RGB", (1, 1)), "PNG"), "at least 8 on each side"),
        "ribbon.png": (encoded(Image.new("RGB", (2000, 9)), "PNG"), "at most 200 times"),
        "large.png": (raw_png(20_000, 6_000, 8, 0, [b""]), "20000 x 6000 = 120,000,000 pixels"),
        "bomb.png": (raw_png(60_000, 60_000, 8, 0, [b""]), "at most 100,000,000 pixels"),
    }
    files = {"missing.jpg": (folder / "missing.jpg", "no such file"), "folder": (folder, "a folder")}
    for name, (data, message) in contents.items():
        (folder / name).write_bytes(data)
        files[name] = (folder / name, message)
    return files


def test_every_bad_file_gives_one_line_that_names_it(tmp_path):
    for path, message in bad_files(tmp_path).values():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(InputError) as caught:
                load_image(path)
        text = str(caught.value)
        assert text.startswith(f"{path}: ") and message in text and "\n" not in text, text


def test_the_header_alone_shows_missing_thin_and_huge_files(tmp_path):
    files = bad_files(tmp_path)
    for name in ("missing.jpg", "folder", "empty.jpg", "text.jpg", "thin.png", "ribbon.png",
                 "large.png", "bomb.png"):
        path, message = files[name]
        with pytest.raises(InputError) as caught:
            image_size(path)
        assert message in str(caught.value)


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path):
    path, _ = bad_files(tmp_path)["large.png"]
    started = time.perf_counter()
    with pytest.raises(InputError, match="too large"):
        load_image(path)
    assert time.perf_counter() - started < 1


def test_the_size_limit_can_be_raised_above_pillows_warning(tmp_path):
    data = encoded(Image.new("L", (10_000, 9_000)), "PNG", compress_level=1)  # 90 megapixels
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError):
            decode_image(data, "test", max_pixels=1000)
        path = tmp_path / "large.png"
        path.write_bytes(data)
        assert image_size(path) == (10_000, 9_000)


# ------------------------------------------------------------------------------ finding files

def test_one_image_is_found_by_name_whatever_its_extension_or_subfolder(tmp_path):
    for name in ("vstar_0001.JPG", "vstar_0001.txt", "vstar_0010.png", "a.b.png", "._vstar_0001.jpg",
                 "direct_attributes/sa_1.jpg", ".cache/sa_1.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_image(tmp_path, "vstar_0001").name == "vstar_0001.JPG"
    assert find_image(tmp_path, "a.b").name == "a.b.png"
    assert find_image(tmp_path, "sa_1") == tmp_path / "direct_attributes" / "sa_1.jpg"
    assert sorted(index_images(tmp_path)) == ["a.b", "sa_1", "vstar_0001", "vstar_0010"]


def test_no_image_or_several_are_an_error_that_lists_them(tmp_path):
    (tmp_path / "x.jpg").touch()
    (tmp_path / "x.png").touch()
    with pytest.raises(InputError, match=r"2 images of that name .*x\.jpg, x\.png"):
        find_image(tmp_path, "x")
    with pytest.raises(InputError, match="no image of that name"):
        find_image(tmp_path, "y")
    with pytest.raises(InputError, match="expected a file name"):
        find_image(tmp_path, "../x")
    with pytest.raises(InputError, match="no such folder"):
        find_image(tmp_path / "nowhere", "x")


# ------------------------------------------------------------------------------------- saving

@pytest.mark.parametrize("shape", [(8, 8), (9, 13), (8, 1), (1, 8), (64, 48)])
def test_a_saved_png_reads_back_identically_in_pillow_and_opencv(tmp_path, shape):
    cv2 = pytest.importorskip("cv2")
    pixels = np.random.default_rng(1).integers(0, 256, (*shape, 3), np.uint8)
    path = tmp_path / "new" / "a.png"
    save_png(path, pixels)
    assert np.array_equal(np.asarray(Image.open(path)), pixels)
    assert np.array_equal(cv2.imread(str(path))[..., ::-1], pixels)
    assert [file.name for file in path.parent.iterdir()] == ["a.png"]


def test_saving_gives_the_same_bytes_for_any_memory_layout(tmp_path, picture):
    save_png(tmp_path / "a.png", picture)
    save_png(tmp_path / "b.png", np.asfortranarray(picture))
    mirrored_twice = picture[:, ::-1].copy()[:, ::-1]
    save_png(tmp_path / "c.png", mirrored_twice)
    assert len({(tmp_path / f"{name}.png").read_bytes() for name in "abc"}) == 1


def test_a_failed_save_leaves_the_old_file_and_no_partial_one(tmp_path, picture, monkeypatch):
    path = tmp_path / "a.png"
    save_png(path, picture)
    before = path.read_bytes()

    def full_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("rekey.store.os.replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_png(path, picture + 1)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_only_uint8_rgb_can_be_saved(tmp_path):
    for wrong in (np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3)), np.zeros((8, 8, 4), np.uint8)):
        with pytest.raises(ValueError, match="expected uint8 pixels"):
            save_png(tmp_path / "a.png", wrong)


def test_a_photo_is_saved_faster_and_smaller_than_by_pillow(tmp_path):
    small = np.random.default_rng(2).integers(0, 256, (30, 45, 3), np.uint8)
    photo = np.asarray(Image.fromarray(small).resize((1125, 750), Image.Resampling.BICUBIC))
    noise = np.random.default_rng(3).normal(0, 3, photo.shape)
    photo = (photo + noise).clip(0, 255).astype(np.uint8)

    def seconds(save) -> float:
        times = []
        for _ in range(3):
            started = time.process_time()
            save()
            times.append(time.process_time() - started)
        return min(times)

    ours = seconds(lambda: save_png(tmp_path / "ours.png", photo))
    pillow = seconds(lambda: Image.fromarray(photo).save(tmp_path / "pillow.png", compress_level=1))
    assert ours < pillow
    assert (tmp_path / "ours.png").stat().st_size < (tmp_path / "pillow.png").stat().st_size
