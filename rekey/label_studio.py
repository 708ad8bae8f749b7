"""Slots marked in Label Studio: the labeling config, and reading its exports.

    print(LABEL_CONFIG)                                    # paste into Settings > Labeling Interface
    marked = import_label_studio("export.json")
    write_slots("slots.jsonl", marked.images.values())

An annotator draws an `edit_region` and a `context_region` around it, and fills in fields that belong
to the edit region (ReKey, Sec. 3.1; docs/annotate.md).  JSON and JSON_MIN exports are read; checked
against exports of Label Studio 1.23, some of them drawn by mouse in its labeling page.

Three facts about its coordinates.  They are percentages of the original image, per axis, so a rotated
rectangle must be turned into pixels before it is rotated about its top-left corner.  `image_rotation`
is how the image was shown while it was marked: rectangles are stored in the frame of the unrotated
image whatever its value, so it is not used.  And the original image is the one turned upright by its
EXIF orientation, which is the frame of `rekey.images` too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from rekey.errors import InputError
from rekey.geometry import Box
from rekey.label_studio_regions import Region, RegionError, regions_of_min_row, regions_of_result
from rekey.records import ImageSlots, Slot
from rekey.slot_rows import unsafe_id

LABEL_CONFIG = """\
<View style="display: flex; align-items: flex-start; gap: 16px">
  <View style="flex: 1; min-width: 0">
    <!-- "auto" and not the default "fit", which cuts the borders of the picture off (1.23) -->
    <Image name="image" value="$image" zoom="true" zoomControl="true" defaultZoom="auto"/>
  </View>
  <View style="flex: 0 0 248px">
    <Header value="Regions" size="6" style="font-size: 16px"/>
    <RectangleLabels name="box" toName="image" canRotate="false">
      <Label value="edit_region" background="#E8590C" hotkey="1"/>
      <Label value="context_region" background="#1971C2" hotkey="2"/>
    </RectangleLabels>
    <View visibleWhen="no-region-selected">
      <Header size="6" style="font-size: 14px; font-weight: 400"
              value="Press 1 and draw an edit_region: the pixels that may change. Press 2 and draw a
                     context_region around it. Then click the edit_region: its fields appear here."/>
    </View>
    <View visibleWhen="region-selected" whenTagName="box" whenLabelValue="edit_region">
      <Header value="Mode of this edit_region" size="6" style="font-size: 16px"/>
      <Choices name="mode" toName="image" perRegion="true" choice="single" showInline="true">
        <Choice value="replace" hint="recolor the object in the box"/>
        <Choice value="add" hint="put a new object into the box"/>
        <Choice value="either" hint="both are possible"/>
      </Choices>
      <Header value="Target: the object in the box, color first" size="6" style="font-size: 16px"/>
      <TextArea name="target" toName="image" perRegion="true" editable="true" rows="1"
                maxSubmissions="5" placeholder="blue plastic glove"/>
      <Header value="Candidates: objects to add, separated by commas" size="6" style="font-size: 16px"/>
      <TextArea name="candidates" toName="image" perRegion="true" editable="true" rows="1"
                placeholder="cat, dog, bucket"/>
    </View>
    <View visibleWhen="region-selected">
      <Header size="6" style="font-size: 14px; font-weight: 400"
              value="Click the selected region again before you draw: else 1 and 2 change its label."/>
    </View>
    <Header value="Question this image is for (optional)" size="6"
            style="font-size: 16px; margin-top: 20px"/>
    <Choices name="category" toName="image" choice="single" showInline="true">
      <Choice value="direct_attributes" hint="what color is it?"/>
      <Choice value="relative_position" hint="is it left or right of the other?"/>
    </Choices>
  </View>
</View>
"""

CONTEXT_GROWTH = 3.0        # side of a default context box, in sides of the edit box
NEARLY_INSIDE = 0.8         # share of an edit box that a context box holds when it was meant for it


@dataclass
class Marked:
    """What an export holds: images that can be used, faults, and what to know about the rest."""

    images: dict[str, ImageSlots] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """One line each; the image that it names is not among `images`."""
    notes: list[str] = field(default_factory=list)
    """Choices made on the way: skipped tasks, default context boxes, an annotator out of several."""


def import_label_studio(path: str | Path, annotator: str | None = None,
                        image_key: str | None = None) -> Marked:
    """The slots in a JSON or JSON_MIN export.

    annotator: id or e-mail of whose work to take; by default the annotation that was updated last.
    image_key: the field of a task's data that holds the image; by default "image", or the only one.
    Raises InputError where the file is no export; faults of single tasks are listed in the result.
    """
    path = Path(path)
    marked = Marked()
    seen: dict[str, str] = {}
    for task in _tasks(path):
        place = f"{path.name} task {task.get('id', '?')}"
        try:
            image_id = _image_id(task, image_key)
            place += f" ({image_id})"
            _import_task(task, image_id, place, marked, seen, annotator)
        except RegionError as error:
            marked.problems += [f"{place}: {line}" for line in str(error).split("\n")]
    return marked


def _import_task(task: dict, image_id: str, place: str, marked: Marked, seen: dict[str, str],
                 annotator: str | None) -> None:
    work = _chosen_work(task, annotator)
    if isinstance(work, str):
        marked.notes.append(f"{place}: {work}; left out")
        return
    if image_id in seen:
        raise RegionError(f"found image {image_id} again (first in {seen[image_id]}), expected one task per "
                          "image; delete one of the tasks, or rename one of the images")
    seen[image_id] = place
    if work.n_others:
        marked.notes.append(f"{place}: {work.n_others + 1} annotations; took the one by annotator "
                            f"{work.annotator}, updated {work.updated}; choose another with --annotator")
    image, notes = _image_slots(image_id, work.regions, work.category)
    if "rows" in task and len(image.slots) > 1:
        notes.append("JSON_MIN keeps no link between texts and regions; they were matched by their order: "
                     "look at the preview, or export as JSON")
    marked.notes += [f"{place}: {note}" for note in notes]
    if image.slots:
        marked.images[image_id] = image
    else:
        marked.notes.append(f"{place}: no edit_region; left out")


# ------------------------------------------------------------------------------------ tasks

def _tasks(path: Path) -> list[dict[str, Any]]:
    """The tasks of an export; the rows that JSON_MIN has for several annotators are put together."""
    try:
        data = json.loads(path.read_bytes())
        json.dumps(data, ensure_ascii=False).encode()       # refuses halves of surrogate pairs
    except IsADirectoryError:
        raise InputError(f"{path}: found a folder, expected a Label Studio export; give the file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a Label Studio export "
                         "(.json)") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: found no JSON, expected a Label Studio export; export as JSON, "
                         "not as CSV or COCO") from None
    if isinstance(data, dict) and ("data" in data or "annotations" in data):
        data = [data]
    if not isinstance(data, list) or not all(isinstance(task, dict) for task in data):
        raise InputError(f"{path}: found no list of tasks, expected a Label Studio export; export as JSON")
    if not data:
        raise InputError(f"{path}: found an export without tasks, expected marked images; "
                         "mark an image, submit it and export again")
    tasks: list[dict[str, Any]] = []
    rows_of: dict[Any, dict[str, Any]] = {}
    for task in data:
        if "annotations" in task or "completions" in task or "data" in task:
            tasks.append(task)
            continue
        key = json.dumps(task.get("id"))
        if key not in rows_of or task.get("id") is None:
            rows_of[key] = {"id": task.get("id"), "data": task, "rows": []}
            tasks.append(rows_of[key])
        rows_of[key]["rows"].append(task)
    return tasks


@dataclass(frozen=True)
class _Work:
    """What one annotator did on one task."""

    regions: list[Region]
    category: str | None
    annotator: str
    updated: str
    n_others: int


def _chosen_work(task: dict, annotator: str | None) -> _Work | str:
    """The annotation to use, or why there is none."""
    if "rows" in task:
        entries = [row for row in task["rows"] if row.get("annotation_id") is not None or row.get("box")]
    else:
        entries = task.get("annotations", task.get("completions")) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise RegionError("found annotations that are not a list of objects; export again as JSON")
    if not entries:
        return "not annotated"
    entries = [e for e in entries if not (e.get("was_cancelled") or e.get("skipped"))]
    if not entries:
        return "skipped by its annotator"
    by_annotator = [e for e in entries if annotator is None or annotator in _annotator_names(e)]
    if not by_annotator:
        return f"not annotated by {annotator}"
    chosen = max(by_annotator, key=lambda e: (str(e.get("updated_at") or e.get("created_at") or ""),
                                              by_annotator.index(e)))
    if "rows" in task:
        regions, category = regions_of_min_row(chosen)
    else:
        regions, category = regions_of_result(chosen.get("result"))
    return _Work(regions, category, (_annotator_names(chosen) or ["unknown"])[-1],
                 str(chosen.get("updated_at") or "at an unknown time"), len(by_annotator) - 1)


def _annotator_names(entry: dict) -> list[str]:
    """Names by which `--annotator` may mean this one: the id, and the e-mail where it is exported."""
    who = entry.get("completed_by", entry.get("annotator"))
    if isinstance(who, dict):
        return [str(who[key]) for key in ("id", "email") if who.get(key) is not None]
    return [] if who is None else [str(who)]


def _image_id(task: dict, image_key: str | None) -> str:
    """The image's file name without extension, as it was before it was uploaded."""
    data = task.get("data")
    if not isinstance(data, dict):
        raise RegionError("found no data, expected the image of the task; export again as JSON")
    if image_key is None:
        keys = [key for key, value in data.items() if isinstance(value, str) and re.search(r"[./]", value)
                and not key.endswith("_at")]
        image_key = "image" if "image" in data or len(keys) != 1 else keys[0]
    address = data.get(image_key)
    if not isinstance(address, str) or not address.strip():
        raise RegionError(f"found no text {image_key!r} in the task's data, expected the image; name the "
                          f"field that holds it with --image-key (there are "
                          f"{', '.join(sorted(map(str, data)))})")
    name = image_name(address)
    stem = PurePosixPath(name).stem
    reason = unsafe_id(stem)
    if reason:
        raise RegionError(f"found image {address[:80]!r}, whose name {stem!r} has {reason}, expected a file "
                          "name; rename the image")
    return stem


def image_name(address: str) -> str:
    """The file name in a task's image address.

    "/data/upload/3/1a2b3c4d-cat.jpg" (the prefix is put there by the upload), and
    "/data/local-files/?d=photos%2Fcat.jpg", "s3://bucket/cat.jpg", "https://host/cat.jpg?key=1",
    "C:\\photos\\cat.jpg", "cat.jpg" all give "cat.jpg".
    """
    if address.startswith("data:"):
        raise RegionError("found an image inside the task (a data: address), expected a file; "
                          "upload the image or use local storage")
    parts = urlsplit(address) if re.match(r"https?://|/data/", address) else None
    if parts is None:                           # a path, or a bucket's key: nothing is encoded in it
        path = address
    elif "d" in (query := parse_qs(parts.query)) and parts.path.rstrip("/").endswith("local-files"):
        path = query["d"][0]                    # parse_qs has decoded it
    else:
        path = unquote(parts.path)
    name = path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    if "/data/upload/" in path or path.startswith("upload/"):
        name = re.sub(r"^[0-9a-f]{8}-", "", name)
    return name


# ------------------------------------------------------------------------------------ slots

def _image_slots(image_id: str, regions: list[Region], category: str | None) -> tuple[ImageSlots, list[str]]:
    """Slots from regions: each edit region with the smallest context region that holds it."""
    problems: list[str] = []
    notes: list[str] = []
    sizes = {region.image_size for region in regions}
    if len(sizes) > 1:
        problems.append(f"found regions drawn on images of {len(sizes)} sizes, expected one; mark the image "
                        "again")
    contexts = [region for region in regions if region.label == "context_region"]
    used: set[str] = set()
    slots = []
    for index, region in enumerate(r for r in regions if r.label == "edit_region"):
        slot_id = _slot_id(index)
        try:
            slot = _slot(image_id, slot_id, region)
        except RegionError as error:
            problems.append(f"slot {slot_id}, {error}")
            continue
        context, note = _context_of(region, contexts)
        used.add(context.key if context else "")
        if note:
            notes.append(f"slot {slot_id}: {note}")
        box = context.box if context else default_context(region.box, region.image_size)
        slots.append(dataclasses.replace(slot, context=_hull(box, region.box)))
    if problems:
        raise RegionError("\n".join(problems))
    notes += [f"context_region {region.box} holds no edit_region; left out"
              for region in contexts if region.key not in used]
    size = next(iter(sizes), None)
    return ImageSlots(image_id, tuple(slots), category, size), notes


def _slot_id(index: int) -> str:
    """A1, B1, ..., Z1, A2, ...: as in the released annotations."""
    return f"{chr(ord('A') + index % 26)}{index // 26 + 1}"


def _slot(image_id: str, slot_id: str, region: Region) -> Slot:
    """The slot of an edit region; its context box is the edit box for now."""
    mode = region.mode
    if mode is None:
        modes = {(True, False): "replace", (False, True): "add", (True, True): "either"}
        mode = modes.get((bool(region.targets), bool(region.candidates)))
        if mode is None:
            raise RegionError(f"edit_region {region.box}: found no mode, target or candidates, expected at "
                              "least one; select the region and fill in its fields")
    needs = (("replace", region.targets, "target"), ("add", region.candidates, "candidates"))
    for needed, names, what in needs:
        if mode == needed and not names:
            raise RegionError(f"edit_region {region.box}: found mode {mode} without {what}, expected a text; "
                              "select the region and fill it in")
    if mode == "either" and not (region.targets and region.candidates):
        raise RegionError(f"edit_region {region.box}: found mode either with only one of target and "
                          "candidates, expected both; select the region and fill them in")
    return Slot(image_id, slot_id, mode, region.box, region.box, region.targets, region.candidates)


def _context_of(edit: Region, contexts: list[Region]) -> tuple[Region | None, str | None]:
    """The smallest context region around an edit region, and what was done where there is none."""
    around = [c for c in contexts if c.box.contains(edit.box)]
    if around:
        return min(around, key=lambda c: c.box.area_px2), None
    held = [(_overlap_px2(c.box, edit.box) / edit.box.area_px2, -c.box.area_px2, i)
            for i, c in enumerate(contexts)]
    share, _, best = max(held, default=(0.0, 0, -1))
    if share >= NEARLY_INSIDE:
        return contexts[best], (f"the edit_region reaches a little outside its context_region "
                                f"{contexts[best].box}; the context was enlarged")
    return None, "no context_region around the edit_region; took three times its size"


def default_context(edit: Box, image_size: tuple[int, int]) -> Box:
    """The edit box grown to about three times its longer side, within the image."""
    margin_px = math.ceil((CONTEXT_GROWTH - 1) / 2 * max(edit.width, edit.height))
    return edit.grown(margin_px).clipped(*image_size)


def _overlap_px2(a: Box, b: Box) -> int:
    width = min(a.right, b.right) - max(a.left, b.left)
    height = min(a.bottom, b.bottom) - max(a.top, b.top)
    return max(0, width) * max(0, height)


def _hull(a: Box, b: Box) -> Box:
    return Box(min(a.left, b.left), min(a.top, b.top), max(a.right, b.right), max(a.bottom, b.bottom))
