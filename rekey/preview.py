"""Pictures for a person to judge: slots on their image, and before/after pairs of edits.

    preview_slots(photo.pixels, image_slots).save("vstar_0000.png")
    contact_sheet([(before, after, "A1: blue glove -> red")], columns=4).save("sheet.png")

Drawn with Pillow and its bundled font only, so that it looks the same on every machine.  The font
has Latin, Greek and Cyrillic letters; others (Chinese, for one) appear as boxes.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rekey.geometry import Box
from rekey.records import ImageSlots, Slot

BACKGROUND, INK, FAINT, ALARM = "#ffffff", "#16181d", "#5c6370", "#c92a2a"
MODE_COLORS = {"replace": "#f76707", "add": "#2f9e44", "either": "#ae3ec9"}
CONTEXT_COLOR = "#1c7ed6"
MODE_WORDS = {"replace": "replace: recolor the object", "add": "add: put an object here",
              "either": "either: recolor or add"}

SHEET_WIDTH_PX = 1600
OVERVIEW_HEIGHT_PX = 900
TILE_COLUMNS = 3
TILE_HEIGHT_PX = 380
GAP_PX = 20
_MAX_ZOOM = 16              # beyond it a crop is a few large squares, and still judged as one


# --------------------------------------------------------------------------------- previews

def preview_slots(pixels: np.ndarray, image: ImageSlots,
                  remarks: Mapping[str | None, Sequence[str]] | None = None) -> Image.Image:
    """The image with its numbered slots, then every slot enlarged with what it is for.

    pixels: uint8 (height, width, 3).  remarks: lines to show in red under a slot (by slot id), or
    under the title (None): the warnings of `check_slots`.
    Returns an RGB picture SHEET_WIDTH_PX wide; boxes that reach outside the image are clipped.
    """
    remarks = remarks or {}
    photo = Image.fromarray(np.ascontiguousarray(pixels))
    parts = [_title(photo, image, remarks.get(None, ())), _overview(photo, image)]
    tile_width = (SHEET_WIDTH_PX - GAP_PX * (TILE_COLUMNS - 1)) // TILE_COLUMNS
    tiles = [_slot_tile(photo, slot, number, tile_width, remarks.get(slot.slot_id, ()))
             for number, slot in enumerate(image.slots, start=1)]
    for start in range(0, len(tiles), TILE_COLUMNS):
        parts.append(_beside(tiles[start:start + TILE_COLUMNS], GAP_PX))
    return _framed(_stacked(parts, GAP_PX))


def _title(photo: Image.Image, image: ImageSlots, remarks: Sequence[str]) -> Image.Image:
    facts = [f"{photo.width} x {photo.height} px", image.category or "no category",
             f"{len(image.slots)} slot{'s' * (len(image.slots) != 1)}",
             "thin blue: context box, what an editor sees", "thick: edit box, what may change"]
    return _text_block([(image.image_id, 30, INK), ("   ".join(facts), 20, FAINT)]
                       + [(remark, 18, ALARM) for remark in remarks], SHEET_WIDTH_PX)


def _overview(photo: Image.Image, image: ImageSlots) -> Image.Image:
    """The whole image, reduced, with numbered edit boxes in thin context boxes."""
    scale = min(SHEET_WIDTH_PX / photo.width, OVERVIEW_HEIGHT_PX / photo.height)
    size = max(1, round(photo.width * scale)), max(1, round(photo.height * scale))
    picture = photo.resize(size, Image.Resampling.LANCZOS)
    draw = ImageDraw.Draw(picture)
    for slot in image.slots:
        draw_outline(draw, slot.context.scaled(scale), CONTEXT_COLOR, 2)
    for slot in image.slots:
        draw_outline(draw, slot.edit.scaled(scale), MODE_COLORS[slot.mode], 3)
    taken = [slot.edit.scaled(scale) for slot in image.slots]
    for number, slot in enumerate(image.slots, start=1):
        taken.append(_tag(draw, f"{number}  {slot.slot_id}", slot, scale, size, taken))
    sheet = Image.new("RGB", (SHEET_WIDTH_PX, size[1]), BACKGROUND)
    sheet.paste(picture, ((SHEET_WIDTH_PX - size[0]) // 2, 0))
    return sheet


def draw_outline(draw: ImageDraw.ImageDraw, box: Box, color: str, width_px: int) -> None:
    """A colored line around the box, between thin dark lines that keep it visible on any ground.

    It lies wholly outside the box: every pixel that may change stays to be judged.
    """
    lines = ((width_px + 2, width_px + 2, "#000000"), (width_px + 1, width_px, color))
    for margin, line, line_color in lines:
        grown = box.grown(margin)
        draw.rectangle((grown.left, grown.top, grown.right - 1, grown.bottom - 1),
                       outline=line_color, width=line)


def _tag(draw: ImageDraw.ImageDraw, text: str, slot: Slot, scale: float, size: tuple[int, int],
         taken: list[Box]) -> Box:
    """Draw the slot's name beside its edit box, where it hides no edit box and no other name if possible."""
    font = _font(20)
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    width, height = round(right - left) + 12, round(bottom - top) + 10
    edit, context = slot.edit.scaled(scale).grown(7), slot.context.scaled(scale).grown(4)
    corners = [(context.left, context.top - height), (context.left, context.bottom),
               (context.right - width, context.top - height), (context.right - width, context.bottom),
               (edit.left, edit.top - height), (edit.left, edit.bottom), (edit.right, edit.top),
               (edit.left - width, edit.top)]
    places = [Box(x, y, x + width, y + height) for x, y in corners]
    free = [p for p in places if p.inside(*size) and not any(p.intersects(other) for other in taken)]
    shift = places[0]
    place = free[0] if free else shift.moved(max(0, -shift.left) - max(0, shift.right - size[0]),
                                             max(0, -shift.top) - max(0, shift.bottom - size[1]))
    draw.rectangle((place.left, place.top, place.right - 1, place.bottom - 1), fill=MODE_COLORS[slot.mode])
    draw.text((place.left + 6 - left, place.top + 5 - top), text, font=font, fill="#ffffff")
    return place


def _slot_tile(photo: Image.Image, slot: Slot, number: int, width: int,
               remarks: Sequence[str]) -> Image.Image:
    """The context box, enlarged, with the edit box drawn, above what the slot is for."""
    window = slot.context.clipped(photo.width, photo.height)
    if window.width <= 0 or window.height <= 0:
        window = Box(0, 0, photo.width, photo.height)
    zoom = min(width / window.width, TILE_HEIGHT_PX / window.height, _MAX_ZOOM)
    size = max(1, round(window.width * zoom)), max(1, round(window.height * zoom))
    crop = photo.crop((window.left, window.top, window.right, window.bottom)).resize(
        size, Image.Resampling.LANCZOS if zoom < 1 else Image.Resampling.BICUBIC)
    draw_outline(ImageDraw.Draw(crop), slot.edit.moved(-window.left, -window.top).scaled(zoom),
             MODE_COLORS[slot.mode], 3)
    picture = Image.new("RGB", (width, TILE_HEIGHT_PX), "#e9ecef")
    picture.paste(crop, ((width - size[0]) // 2, (TILE_HEIGHT_PX - size[1]) // 2))
    lines = [(f"{number}  {slot.slot_id}    {MODE_WORDS[slot.mode]}", 22, MODE_COLORS[slot.mode])]
    if slot.targets:
        lines.append((f"target: {'; '.join(slot.targets)}", 20, INK))
    if slot.candidates:
        lines.append((f"candidates: {', '.join(slot.candidates)}", 20, INK))
    clutter = "" if slot.clutter is None else f", clutter {slot.clutter:.2f}"
    lines.append((f"edit {slot.edit.width} x {slot.edit.height} px, context {slot.context.width} x "
                  f"{slot.context.height} px{clutter}, shown at {zoom:.0%}", 16, FAINT))
    lines += [(remark, 16, ALARM) for remark in remarks]
    return _stacked([picture, _text_block(lines, width)], 8)


# ------------------------------------------------------------------------------ contact sheet

Picture = Image.Image | np.ndarray


def contact_sheet(rows: Sequence[tuple[Picture, Picture, str]], columns: int = 4, cell_px: int = 220,
                  title: str | None = None) -> Image.Image:
    """Before/after pairs in a grid, each above its caption.

    rows: (before, after, caption), pictures as uint8 arrays (height, width, 3) or Pillow images.
    columns: pairs per line.  cell_px: side of the square that each picture is fitted into; pictures
    smaller than it are enlarged, so that a small edit can be judged.  Captions are wrapped.
    """
    if columns < 1 or cell_px < 16:
        raise ValueError(f"a contact sheet needs at least 1 column of 16 px, got {columns} of {cell_px} px")
    pair_width = 2 * cell_px + 4
    width = columns * pair_width + (columns - 1) * GAP_PX
    parts = [_text_block([(title, 28, INK)], width)] if title else []
    tiles = [_stacked([_beside([_fitted(before, cell_px), _fitted(after, cell_px)], 4),
                       _text_block([(caption, 16, INK)], pair_width)], 6)
             for before, after, caption in rows]
    if not tiles:
        parts.append(_text_block([("nothing to show", 20, FAINT)], width))
    for start in range(0, len(tiles), columns):
        parts.append(_beside(tiles[start:start + columns], GAP_PX))
    return _framed(_stacked(parts, GAP_PX))


def _fitted(picture: Picture, side_px: int) -> Image.Image:
    """The picture at the largest size that fits a square, centered on gray."""
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(np.ascontiguousarray(picture))
    zoom = min(side_px / picture.width, side_px / picture.height)
    size = max(1, round(picture.width * zoom)), max(1, round(picture.height * zoom))
    cell = Image.new("RGB", (side_px, side_px), "#e9ecef")
    resample = Image.Resampling.LANCZOS if zoom < 1 else Image.Resampling.BICUBIC
    cell.paste(picture.convert("RGB").resize(size, resample),
               ((side_px - size[0]) // 2, (side_px - size[1]) // 2))
    return cell


# ------------------------------------------------------------------------------------ layout

@functools.cache
def _font(size_px: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size_px)


def wrapped(text: str, font: ImageFont.FreeTypeFont, width_px: int) -> list[str]:
    """The text in lines of at most `width_px`, broken at spaces, and inside words that are longer."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            candidate = f"{line} {word}" if line else word
            if font.getlength(candidate) <= width_px:
                line = candidate
                continue
            if line:
                lines.append(line)
            while font.getlength(word) > width_px and len(word) > 1:
                fits = max(1, bisect.bisect_right(range(1, len(word)), width_px,
                                                  key=lambda n, word=word: font.getlength(word[:n])))
                lines.append(word[:fits])
                word = word[fits:]
            line = word
        lines.append(line)
    return lines


def _text_block(paragraphs: Sequence[tuple[str, int, str]], width_px: int) -> Image.Image:
    """Paragraphs of (text, font size in pixels, color), wrapped, on a strip of the given width."""
    lines = [(line, size, color) for text, size, color in paragraphs
             for line in wrapped(text, _font(size), width_px)]
    block = Image.new("RGB", (width_px, max(1, sum(round(size * 1.35) for _, size, _ in lines))), BACKGROUND)
    draw = ImageDraw.Draw(block)
    y = 0
    for line, size, color in lines:
        draw.text((0, y), line, font=_font(size), fill=color)
        y += round(size * 1.35)
    return block


def _stacked(parts: Sequence[Image.Image], gap_px: int) -> Image.Image:
    height = sum(part.height for part in parts) + gap_px * (len(parts) - 1)
    sheet = Image.new("RGB", (max(part.width for part in parts), height), BACKGROUND)
    y = 0
    for part in parts:
        sheet.paste(part, (0, y))
        y += part.height + gap_px
    return sheet


def _beside(parts: Sequence[Image.Image], gap_px: int) -> Image.Image:
    width = sum(part.width for part in parts) + gap_px * (len(parts) - 1)
    sheet = Image.new("RGB", (width, max(part.height for part in parts)), BACKGROUND)
    x = 0
    for part in parts:
        sheet.paste(part, (x, 0))
        x += part.width + gap_px
    return sheet


def _framed(picture: Image.Image) -> Image.Image:
    sheet = Image.new("RGB", (picture.width + 2 * GAP_PX, picture.height + 2 * GAP_PX), BACKGROUND)
    sheet.paste(picture, (GAP_PX, GAP_PX))
    return sheet
