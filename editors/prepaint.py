"""The classical edit as the start picture of a diffusion model, on the same canvas.

    start = prepainted(request)             # uint8 like request.canvas, or None: nothing to paint with
    rim   = drawn_outline(request)          # uint8 (height, width), 255 on the inserted object's rim, or None

The color then comes from pixels and not from how well a model follows a prompt: the model only makes them look
real.  Both are drawn on the crop at its own size, as `editors.classical` expects it, and enlarged like the canvas.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from editors.canny import outline
from editors.classical import ClassicalEditor
from rekey.compositing import Crop, cut, paste
from rekey.editing import EditRequest, PhotoView


def prepainted(request: EditRequest) -> np.ndarray | None:
    """The canvas with the classical editor's attempt in it, composited as any edit is."""
    editor = ClassicalEditor()
    if editor.can(request.key) is not None:
        return None
    crop, native = _at_native_size(request)
    photo = request.photo.pixels.copy()
    return _on_canvas(request, paste(photo, crop, editor.edit(native)))


def drawn_outline(request: EditRequest) -> np.ndarray | None:
    """The rim of the object that the classical editor would insert; None where it would insert none."""
    if request.key.mode != "add" or ClassicalEditor().can(request.key) is not None:
        return None
    from editors.insert import render_insertion
    crop, native = _at_native_size(request)
    coverage = np.zeros_like(request.photo.pixels)
    coverage[crop.window.slices] = np.rint(255 * render_insertion(native).alpha)[..., None]
    return outline(_on_canvas(request, coverage)[..., 0])


def _at_native_size(request: EditRequest) -> tuple[Crop, EditRequest]:
    crop = cut(request.photo.pixels, request.key.slot)
    photo = PhotoView(request.photo.pixels, crop.window, request.photo.cache)
    return crop, replace(request, canvas=crop.canvas, box=crop.box, photo=photo, scale=1.0)


def _on_canvas(request: EditRequest, photo: np.ndarray) -> np.ndarray:
    return cut(photo, request.key.slot, (request.canvas.shape[0],)).canvas
