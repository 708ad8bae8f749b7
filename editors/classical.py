"""The editor that needs no weights: repaint what is there, draw what is not (ReKey, Sec. 3.3).

    editor = ClassicalEditor()
    reason = editor.can(key)                 # None, or why not
    canvas = editor.edit(request)            # uint8, same shape as request.canvas

Existing objects are segmented and shifted in Lab, or overpainted with a two-tone pattern; added
objects are small ray-marched solids.  Runs on one CPU core at about 0.1 s per edit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rekey.colors import COLORS
from rekey.editing import EditRequest
from rekey.records import PATTERNS, VisualKey

# The modules that draw import OpenCV and the scene code; `can` and `describe` must not wait for them.


class ClassicalEditor:
    """Implements `rekey.editing.Editor` with numpy and OpenCV alone."""

    name = "classical"
    canvases_px = ()            # works on the crop at its native size
    max_attempts = 5
    best_of = 1
    attributes = ("color", "pattern")

    def check(self) -> None:
        """It works wherever the package does."""

    def expect(self, keys: Iterable[VisualKey]) -> None:
        """Nothing is shared between its edits but what `PhotoView.cache` holds."""

    def can(self, key: VisualKey) -> str | None:
        """None where the editor can draw this key, else the reason in a few words."""
        if key.material is not None:
            return "the classical editor cannot change materials"
        if key.color is None and key.pattern is None:
            return "the key names neither a color nor a pattern"
        if key.color is not None and key.color not in COLORS:
            return f"no paint for the color {key.color!r}"
        if key.pattern is not None and key.pattern not in PATTERNS:
            return f"no way to draw the pattern {key.pattern!r}"
        if key.mode == "add":
            from editors.solids import find_solid
            if find_solid(key.object) is None:
                return f"no solid for {key.object!r}"
        return None

    def edit(self, request: EditRequest) -> np.ndarray:
        """The canvas with the key drawn into its box; the same request gives the same bytes.

        Raises ValueError for a key that `can` refuses.
        """
        reason = self.can(request.key)
        if reason is not None:
            raise ValueError(f"{request.key.slot.image_id}/{request.key.slot.slot_id}: {reason}")
        if request.key.mode == "add":
            from editors.insert import insert_object
            return insert_object(request)
        from editors.recolor import paint_pattern, recolor_object
        return recolor_object(request) if request.key.pattern is None else paint_pattern(request)

    def describe(self) -> dict[str, Any]:
        """Plain JSON for `run.json`."""
        import cv2
        return {"name": self.name, "weights": None, "canvases_px": list(self.canvases_px),
                "max_attempts": self.max_attempts, "opencv": cv2.__version__, "numpy": np.__version__}
