"""Regions of a Label Studio annotation, in pixels, with the fields that were filled in for them.

    regions, category = regions_of_result(annotation["result"])       # JSON
    regions, category = regions_of_min_row(row)                       # JSON_MIN

In JSON, what was typed for a region carries the region's id.  JSON_MIN drops the ids: there a text
belongs to a region by its coordinates where they are exported, and by its place in the list where
the numbers of texts and regions leave one reading only; everything else is refused.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rekey.geometry import Box

LABELS = ("edit_region", "context_region")
_FIELDS = ("mode", "target", "candidates")
_MODES = ("replace", "add", "either")


class RegionError(ValueError):
    """A fault in an annotation: one line each of what was found, expected, and what to do."""


@dataclass(frozen=True)
class Region:
    """A rectangle that an annotator drew."""

    key: str
    """The region's id; its position in the list where the export has no ids."""
    label: str
    box: Box
    image_size: tuple[int, int]
    mode: str | None = None
    targets: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()


def regions_of_result(result: Any) -> tuple[list[Region], str | None]:
    """Regions and image category of the `result` list of an annotation (JSON export)."""
    if not isinstance(result, list) or not all(isinstance(entry, dict) for entry in result):
        raise RegionError("found an annotation without a list of results; export again as JSON")
    regions: dict[str, Region] = {}
    fields: list[tuple[str, str, list[str]]] = []
    category = None
    problems: list[str] = []
    for entry in result:
        value = entry.get("value")
        if not isinstance(value, dict):
            continue                                            # relations between regions have none
        name = entry.get("from_name")
        try:
            if _label(value) is not None:
                region = _region(str(entry.get("id")), value, entry)
                regions[region.key] = region
            elif name == "category":
                category = (_texts(value) or [None])[0]
            elif name in _FIELDS:
                fields.append((str(entry.get("id")), name, _texts(value)))
            elif str(entry.get("type")).endswith("labels") and entry["type"] != "labels":
                raise RegionError(f"found a region of type {entry['type']} without a known label, expected "
                                  "a labeled rectangle; delete it or draw it again")
        except RegionError as error:
            problems.append(str(error))
    for key, name, texts in fields:
        if key in regions:          # else its region was deleted, or had a fault that is listed already
            try:
                regions[key] = _with_field(regions[key], name, texts)
            except RegionError as error:
                problems.append(str(error))
    if problems:
        raise RegionError("\n".join(problems))
    return list(regions.values()), category


def regions_of_min_row(row: dict[str, Any]) -> tuple[list[Region], str | None]:
    """Regions and image category of one row of a JSON_MIN export."""
    boxes = row.get("box") or []
    if not isinstance(boxes, list):
        raise RegionError('found "box" that is not a list; export again as JSON')
    regions = [_region(str(i), value, value) for i, value in enumerate(boxes)
               if isinstance(value, dict) and _label(value) is not None]
    edits = [i for i, region in enumerate(regions) if region.label == "edit_region"]
    for name in _FIELDS:
        loose: list[list[str]] = []
        for entry in _min_entries(row.get(name)):
            if isinstance(entry, dict) and "x" in entry:
                index = next((i for i in edits if _same_place(entry, boxes[int(regions[i].key)])), None)
                if index is None:
                    raise RegionError(f"found {name} {_texts(entry)} for a region that is not in the export; "
                                      "export again as JSON")
                regions[index] = _with_field(regions[index], name, _texts(entry))
            else:
                loose.append(_texts(entry) if isinstance(entry, dict) else [str(entry)])
        open_edits = [i for i in edits if len(edits) == 1 or _lacks(regions[i], name)]
        if loose and len(loose) != len(open_edits):
            raise RegionError(f"found {len(loose)} {name} for {len(open_edits)} edit regions, expected as "
                              "many: this JSON_MIN export does not say which belongs to which; export as "
                              "JSON")
        for index, texts in zip(open_edits, loose):
            regions[index] = _with_field(regions[index], name, texts)
    category = row.get("category")
    return regions, category if isinstance(category, str) else None


def _min_entries(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _lacks(region: Region, name: str) -> bool:
    """Whether a field of this name may be this region's."""
    if name == "mode":
        return region.mode is None
    if name == "target":
        return not region.targets and region.mode in (None, "replace", "either")
    return not region.candidates and region.mode in (None, "add", "either")


def _same_place(a: dict, b: dict) -> bool:
    return all(a.get(key) == b.get(key) for key in ("x", "y", "width", "height"))


def _label(value: dict) -> str | None:
    """The label of a rectangle, or None for anything else (a text, a choice, another shape)."""
    names = value.get("rectanglelabels") or value.get("labels")
    if not names or "width" not in value:
        return None
    name = names[0] if isinstance(names, list) else names
    if name not in LABELS:
        raise RegionError(f"found label {name!r}, expected edit_region or context_region; use the config "
                          "that `rekey slots label-config` prints")
    return name


def _texts(value: dict) -> list[str]:
    found = value.get("choices") or value.get("text") or []
    return [str(text) for text in (found if isinstance(found, list) else [found])]


def _with_field(region: Region, name: str, texts: list[str]) -> Region:
    if region.label != "edit_region":
        raise RegionError(f"{region.label} {region.box}: found {name} {', '.join(texts)}, expected it at an "
                          "edit_region; move the text to the edit_region")
    if name == "mode":
        if len(texts) != 1 or texts[0] not in _MODES:
            raise RegionError(f"edit_region {region.box}: found mode {', '.join(texts)}, expected replace, "
                              "add or either; choose one")
        return dataclasses.replace(region, mode=texts[0])
    separators = r"[;\n]" if name == "target" else r"[,;\n]"
    parts = [" ".join(part.split()) for text in texts for part in re.split(separators, text)]
    names = tuple(dict.fromkeys(part for part in parts if part))
    unprintable = [part for part in names if not part.isprintable()]
    if unprintable:
        raise RegionError(f"edit_region {region.box}: found {name} {unprintable[0]!r}, expected letters; "
                          "type it again")
    wordless = [part for part in names if not any(character.isalpha() for character in part)]
    if wordless:        # 1 and 2 choose a label, unless the cursor still stands in the field
        raise RegionError(f"edit_region {region.box}: found {name} {wordless[0]!r}, expected words; delete "
                          "this entry (a key that was meant for the picture?)")
    if name == "target":
        return dataclasses.replace(region, targets=region.targets + names)
    return dataclasses.replace(region, candidates=region.candidates + names)


def _region(key: str, value: dict, entry: dict) -> Region:
    """A rectangle in pixels; `entry` holds the size of the image it was drawn on."""
    label = _label(value)
    size = entry.get("original_width"), entry.get("original_height")
    if not all(type(n) is int and 0 < n < 1e6 for n in size):
        raise RegionError(f"found {label} without original_width and original_height, expected the size "
                          "of the image; open the task in Label Studio, submit it again and export")
    numbers = [value.get(name) for name in ("x", "y", "width", "height")]
    rotation = value.get("rotation") or 0
    if not all(type(n) in (int, float) and abs(n) < 1e9 for n in (*numbers, rotation)):
        raise RegionError(f"found {label} at x, y, width, height = {numbers}, expected percentages; draw "
                          "it again")
    corners = list(_corners_px(*numbers, rotation, *size))
    xs, ys = [x for x, _ in corners], [y for _, y in corners]
    box = Box(round(min(xs)), round(min(ys)), round(max(xs)), round(max(ys))).clipped(*size)
    if box.width <= 0 or box.height <= 0:
        raise RegionError(f"found {label} that is empty or outside the image ({box}), expected at least a "
                          "pixel; delete it (it may be a stray click) or draw it again")
    return Region(key, label, box, size)


def _corners_px(x: float, y: float, width: float, height: float, rotation_deg: float,
                image_width: int, image_height: int) -> Iterator[tuple[float, float]]:
    """The four corners of a rectangle that is given in percent and rotated about its top-left corner."""
    left, top = x / 100 * image_width, y / 100 * image_height
    cos, sin = math.cos(math.radians(rotation_deg)), math.sin(math.radians(rotation_deg))
    for right in (0.0, width / 100 * image_width):
        for down in (0.0, height / 100 * image_height):
            yield left + right * cos - down * sin, top + right * sin + down * cos
