"""How hard a slot is to find, and drawing slots by that.

    slot_difficulty(slot, image_size)           # in [0, 1], 1 is hardest

The paper has no difficulty control and names slot location, object size and scene clutter as the
axes to add (Limitations).  In its published responses to single-slot attribute items (8 models,
2,720 responses) accuracy falls from 92% to 51% along this score; a logistic fit gives the log of
the edit area -2.2 +- 0.16, the distance from the center 0.4 +- 0.23 (docs/difficulty.md).  So area
weighs most, and the other two only order slots of like size.
"""

from __future__ import annotations

import math
from typing import Literal

from rekey.records import ImageSlots, Slot

Difficulty = Literal["easy", "medium", "hard", "like-source"]

EASY_AREA_PX2, HARD_AREA_PX2 = 20_000, 500      # area score 0 and 1
WEIGHTS = {"area": 0.8, "eccentricity": 0.1, "clutter": 0.1}
HARD_FROM, EASY_BELOW = 0.6, 0.4
SOURCE_WIDTH = 0.08                             # like-source: slots this near to the source's score


def slot_difficulty(slot: Slot, image_size: tuple[int, int] | None) -> float:
    """A score in [0, 1] from edit area, distance from the image center, and clutter.

    Terms that are not known (no image size, no measured clutter) are left out and the others keep
    their proportions; `rekey slots measure` writes both into the annotation file.
    """
    area = math.log(EASY_AREA_PX2 / max(1, slot.edit.area_px2)) / math.log(EASY_AREA_PX2 / HARD_AREA_PX2)
    terms = {"area": min(1.0, max(0.0, area))}
    if image_size is not None:
        width, height = image_size
        x, y = slot.edit.center
        terms["eccentricity"] = min(1.0, math.hypot(x / width - 0.5, y / height - 0.5) / math.hypot(0.5, 0.5))
    if slot.clutter is not None:
        terms["clutter"] = slot.clutter
    total = sum(WEIGHTS[name] for name in terms)
    return sum(WEIGHTS[name] * value for name, value in terms.items()) / total


def band(score: float) -> Literal["easy", "medium", "hard"]:
    return "hard" if score >= HARD_FROM else "easy" if score < EASY_BELOW else "medium"


class DifficultyWeights:
    """Relative probability of a slot, or of a pair of slots by their mean score, in one image.

    All 1 without a difficulty; 0 outside the wanted band.  like-source: the replace slots mark what
    the original question asked about (Sec. 4.3), so slots are drawn by closeness to their mean score.
    """

    def __init__(self, image: ImageSlots, difficulty: Difficulty | None):
        self.difficulty = difficulty
        self.scores = {slot.slot_id: slot_difficulty(slot, image.image_size) for slot in image.slots}
        source = [self.scores[slot.slot_id] for slot in image.slots if slot.mode == "replace"]
        self.source = sum(source) / len(source) if source else None

    def __call__(self, *slots: Slot) -> float:
        score = sum(self.scores[slot.slot_id] for slot in slots) / len(slots)
        if self.difficulty is None:
            return 1.0
        if self.difficulty != "like-source":
            return float(band(score) == self.difficulty)
        if self.source is None:
            return 1.0
        return math.exp(-0.5 * ((score - self.source) / SOURCE_WIDTH) ** 2)
