"""One fresh instance of one image: sample, edit, composite, certify, retry (ReKey, Sec. 3).

    outcome = regenerate(source, pool, seed=7, editor=ClassicalEditor())
    outcome.item, outcome.pixels          # or outcome.failure, with every rejected draw

A failed certificate leads to another attempt of the same edit, then to another draw of the record,
then to a failure that is listed.  It never leads to an item.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rekey.certificate import MAX_RING_DELTA_E, certify
from rekey.compositing import Crop, cut, mask_margin_px, paste, soft_mask, to_window
from rekey.draws import Draws
from rekey.editing import Editor, EditRequest, PhotoView
from rekey.geometry import Box
from rekey.images import LoadedImage, pixel_sha256
from rekey.qa import Distractors, build_question, instruction
from rekey.records import Certificate, Item, SamplingRecord, VisualKey, to_json
from rekey.sampling import NoItem, Pool, identity

MAX_RECORDS = 12          # draws of the record before an image is given up


@dataclass(frozen=True)
class KeyEdit:
    """The best attempt at one visual key."""

    crop: Crop
    edited: np.ndarray
    """uint8 (height, width, 3) of `crop.window`, before compositing."""
    certificate: Certificate


@dataclass(frozen=True)
class Outcome:
    """What came of one image: an item with its pixels, or a failure."""

    image_id: str
    item: Item | None = None
    pixels: np.ndarray | None = None
    """uint8 (height, width, 3) of the renewed image."""
    rejected: tuple[dict[str, Any], ...] = ()
    """Plain JSON, one entry per draw that did not become an item: instruction and reason."""
    failure: str | None = None
    edits: tuple[KeyEdit, ...] = field(default=(), repr=False)


def edit_key(source: np.ndarray, key: VisualKey, editor: Editor, seed_parts: tuple[str | int, ...],
             photo_cache: dict[str, Any] | None = None) -> KeyEdit:
    """Edit one key until it certifies, or until the editor's attempts are used up.

    source: uint8 (height, width, 3).  seed_parts: what the edit's randomness depends on, besides the
    slot, the attempt and the candidate.  Of an attempt's candidates the best counts; where all attempts fail, the best
    of all is returned.
    """
    crop = cut(source, key.slot, editor.canvases_px)
    before = source[crop.window.slices]
    box = crop.edit.moved(-crop.window.left, -crop.window.top)
    photo = PhotoView(source, crop.window, {} if photo_cache is None else photo_cache)

    def candidate(attempt: int, number: int) -> KeyEdit:
        parts = ("edit", *seed_parts, key.slot.slot_id, attempt, *(("candidate", number) if number else ()))
        request = EditRequest(crop.canvas, crop.box, key, Draws(*parts).seed(), attempt, photo, crop.scale)
        edited = to_window(crop, editor.edit(request))
        after = before.copy()
        paste(after, Crop(crop.canvas, box, Box(0, 0, crop.window.width, crop.window.height), box), edited)
        return KeyEdit(crop, edited, certify(before, after, edited, box, mask_margin_px(crop.edit), key, attempt + 1))

    found: list[KeyEdit] = []
    for attempt in range(editor.max_attempts):
        best = min((candidate(attempt, number) for number in range(editor.best_of)), key=_shortcomings)
        if best.certificate.passed:
            return best
        found.append(best)
    return min(found, key=_shortcomings)


def _shortcomings(edit: KeyEdit) -> tuple[int, float]:
    """Order of candidates, the best first: failed checks; then the share of the wanted name against the drift."""
    certificate = edit.certificate
    return len(certificate.failed_checks), certificate.ring_delta_e / MAX_RING_DELTA_E - certificate.share


def regenerate(source: LoadedImage, pool: Pool, seed: int, editor: Editor, *,
               distractors: Distractors = "paper", avoid: frozenset[str] = frozenset(),
               image_name: str | None = None) -> Outcome:
    """A certified item for one image and seed, or the reasons why there is none.

    image_name: the path that the item will carry, relative to its folder.
    """
    image_id = pool.image.image_id
    cache: dict[str, Any] = {}
    rejected: list[dict[str, Any]] = []
    tried: set[tuple[VisualKey, ...]] = set()
    refused: set[VisualKey] = set()
    failed: set[str] = set()
    draw = n_failed = 0

    def usable(record: SamplingRecord) -> bool:
        return record.keys not in tried and not any(key in refused for key in record.keys)

    while n_failed < MAX_RECORDS:
        try:
            record = _next_record(pool, seed, avoid, failed, draw, usable)
        except NoItem as reason:
            last = f"; last: {rejected[-1]['reason']}" if rejected else ""
            return Outcome(image_id, rejected=tuple(rejected), failure=f"{reason}{last}")
        draw = record.draw + 1
        tried.add(record.keys)
        unable = {key: why for key in record.keys if (why := editor.can(key))}
        if unable:                          # costs nothing, so it does not count; it is not asked again
            refused.update(unable)
            reason, edits = "; ".join(f"{key.slot.slot_id}: {why}" for key, why in unable.items()), []
        else:
            reason, edits = _edit_record(source.pixels, record, editor, cache)
            failed.add(identity(record))
            n_failed += 1
        if reason is not None:
            rejected.append({"draw": record.draw, "edits": [instruction(key) for key in record.keys], "reason": reason,
                             "certificate": [to_json(edit.certificate) for edit in edits]})
            continue
        pixels = source.pixels.copy()
        for edit in edits:
            paste(pixels, edit.crop, edit.edited)
        question = build_question(record, distractors)
        item = Item(item_id=f"{image_id}/seed{seed}", image=image_name or f"images/{image_id}.png",
                    image_sha256=pixel_sha256(pixels), question=question.text, options=question.options,
                    answer=question.answer, category=question.category, source_answer=question.source_answer,
                    record=record, certificate=tuple(edit.certificate for edit in edits))
        return Outcome(image_id, item, pixels, tuple(rejected), edits=tuple(edits))
    return Outcome(image_id, rejected=tuple(rejected),
                   failure=f"none of {n_failed} draws could be certified; last: {rejected[-1]['reason']}")


def _next_record(pool: Pool, seed: int, avoid: Set[str], failed: Set[str], draw: int,
                 usable: Callable[[SamplingRecord], bool]) -> SamplingRecord:
    """Another question first; only then a failed one in other unnamed colors."""
    try:
        return pool.sample(seed, avoid | failed, draw, usable)
    except NoItem:
        return pool.sample(seed, avoid, draw, usable)


def _edit_record(source: np.ndarray, record: SamplingRecord, editor: Editor,
                 cache: dict[str, Any]) -> tuple[str | None, list[KeyEdit]]:
    """(reason for rejecting the record or None, the edits made so far)."""
    edits = []
    for key in record.keys:
        # Each slot is edited on the source, as in the paper; edits of one record never touch.
        edits.append(edit_key(source, key, editor, (record.image_id, record.seed, record.draw), cache))
        certificate = edits[-1].certificate
        if not certificate.passed:
            return f"{key.slot.slot_id}: failed {', '.join(certificate.failed_checks)}", edits
    return None, edits


def unchanged_outside(source: np.ndarray, renewed: np.ndarray, edits: tuple[KeyEdit, ...]) -> bool:
    """Whether every pixel outside the edits' soft masks is bit-identical to the source."""
    if source.shape != renewed.shape:
        return False
    same = source == renewed                    # (height, width, 3)
    for edit in edits:
        window = edit.crop.window
        same[window.slices] |= (soft_mask(edit.crop.edit, window) > 0)[..., None]
    return bool(same.all())
