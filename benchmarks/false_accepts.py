"""What the certificate lets through that it should not (demo photos, all slots x 11 colors).

    python -m benchmarks.false_accepts                       # about 2 minutes on one core

Every slot is edited in every color, and the certificate is then asked about something else: another color,
the untouched photograph, a small patch of the right color, the right color in the wrong place, the whole
box tinted lightly, an edit whose surroundings drifted.  Prints the share of each that passes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import cv2
import numpy as np

from benchmarks.certified_edits import keys_of
from editors.classical import ClassicalEditor
from experiments.demo_photos import demo_photos, demo_slots_file
from rekey.certificate import certify
from rekey.colors import COLORS
from rekey.compositing import mask_margin_px, paste
from rekey.geometry import Box
from rekey.images import load_image
from rekey.records import VisualKey
from rekey.regenerate import edit_key
from rekey.slots import read_slots

PAINT = {"red": (190, 30, 40), "blue": (40, 85, 200), "yellow": (240, 215, 40), "green": (40, 135, 60),
         "black": (20, 20, 22), "white": (245, 245, 243), "orange": (240, 130, 30), "purple": (115, 50, 160),
         "pink": (245, 150, 185), "brown": (105, 65, 35), "gray": (128, 128, 128)}


def main() -> None:
    editor, asked, passed = ClassicalEditor(), Counter(), Counter()

    def ask(kind: str, before, after, raw, box, key) -> None:
        asked[kind] += 1
        passed[kind] += certify(before, after, raw, box, mask_margin_px(box), key).passed

    photos = demo_photos()
    for image_id, image in read_slots(demo_slots_file()).items():
        if image_id not in photos:
            continue
        source, cache = load_image(photos[image_id]).pixels, {}
        for slot in image.slots:
            for key in keys_of(slot):
                edit = edit_key(source, key, editor, ("false accepts", image_id), cache)
                window, box = edit.crop.window, slot.edit.moved(-edit.crop.window.left, -edit.crop.window.top)
                before = source[window.slices]
                after = before.copy()
                paste(after, replace(edit.crop, window=Box(0, 0, window.width, window.height), edit=box), edit.edited)
                ask("untouched photograph", before, before, before, box, key)
                patch = before.copy()
                small = _inner(box, 0.05)
                patch[small.slices] = PAINT[key.color]
                ask("patch of 5% in the right color", before, patch, patch, box, key)
                tinted = np.rint(0.9 * before + 0.1 * np.array(PAINT[key.color])).astype(np.uint8)
                ask("box tinted by 10%", before, _inside(before, tinted, box), before, box, key)
                if edit.certificate.passed:
                    drift = cv2.convertScaleAbs(edit.edited, alpha=1.0, beta=14)
                    ask("edit with drifted surroundings", before, after, drift, box, key)
                    for other in COLORS:
                        if other != key.color:
                            ask(f"wrong color ({key.mode})", before, after, edit.edited, box, _named(key, other))
                    for step in (slot.edit.width + 2, -slot.edit.width - 2):
                        beside = slot.edit.moved(step, 0)
                        if beside.inside(source.shape[1], source.shape[0]):
                            moved = source.copy()
                            moved[beside.slices] = after[box.slices]
                            ask("right edit, beside the box", source, moved, source, slot.edit, key)
                            break
    print(f"{'asked about':36}{'asked':>7}{'passed':>9}")
    for kind in sorted(asked):
        print(f"{kind:36}{asked[kind]:7}{passed[kind]:6} ({passed[kind] / asked[kind]:.2%})")


def _inner(box: Box, share: float) -> Box:
    """A box of `share` of the area, in the middle."""
    w, h = round(box.width * share**0.5), round(box.height * share**0.5)
    x, y = (int(c) for c in box.center)
    return Box(x - w // 2, y - h // 2, x - w // 2 + w, y - h // 2 + h)


def _inside(before: np.ndarray, other: np.ndarray, box: Box) -> np.ndarray:
    out = before.copy()
    out[box.slices] = other[box.slices]
    return out


def _named(key: VisualKey, color: str) -> VisualKey:
    return replace(key, color=color)


if __name__ == "__main__":
    main()
