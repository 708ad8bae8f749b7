"""A vision-language model as annotator: what it is told, and asking it (ReKey, Sec. 4.4, RQ3).

    found = propose(LocalAnnotator(vlm), "photos/street.jpg", "street", question="What color is the kite?")
    found.slots, found.problems                       # rekey.records.Slot, and a line for all that is not one
    write_slots("proposed.jsonl", [as_image_slots(found, "direct_attributes")])

The model gets what a person gets: the image, the question that the image came with, and instructions after
Sec. 3.1 and Appendix B.  Reading its answer is in `probes.proposals`, so that stored responses can be read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probes.proposals import CONVENTIONS, Proposals, convention_of, parse_proposals, read_proposals
from rekey.errors import InputError
from rekey.images import image_size
from rekey.records import Generation, ImageSlots
from rekey.sampling import MIN_SEPARATION_PX
from rekey.slot_rows import MODES

if TYPE_CHECKING:
    from probes.vlm import LocalVLM

__all__ = ["COORDINATES_OF_FAMILY", "CONVENTIONS", "LocalAnnotator", "Proposals", "as_image_slots", "coordinates_of",
           "instructions", "parse_proposals", "propose", "read_proposals"]

N_SLOTS = 4                  # in 182 of the 191 released images
MAX_NEW_TOKENS = 4096

Answerer = Callable[[Any, str], "str | Generation"]

# By `model_type`.  A family without a documented unit is not here (Kimi-K2.5): its user says what it writes.
COORDINATES_OF_FAMILY: dict[str, str] = {
    "qwen2_vl": "per-1000",                # ms-swift, "Custom dataset", grounding (pull request 6178)
    "qwen2_5_vl": "seen-pixels",           # QwenLM cookbook spatial_understanding.ipynb; Qwen3-VL issue 830
    "qwen3_vl": "per-1000",                # QwenLM cookbook 2d_grounding.ipynb: "relative coordinates ... 0 to 1000"
    "qwen3_vl_moe": "per-1000",            # as Qwen3-VL
    "qwen3_5": "per-1000",                 # its maintainers in Qwen3.8-Flash-Next issue 4: still [0, 1000]
    "qwen3_5_moe": "per-1000",             # as Qwen3.5
    "ernie4_5_vl_moe": "per-1000",         # its maintainers in PaddlePaddle/ERNIE issue 1364: as Qwen3-VL
    "internvl": "per-1000",                # internvl.readthedocs.io, "Chat data format", grounding
    "glm4v": "per-1000",                   # the GLM-V grounding skill of zai-org/glm-skills
    "glm4v_moe": "per-1000",               # as GLM-4.1V
}


def coordinates_of(family: str) -> str:
    """The unit in which a family of models (its `model_type`) writes boxes; InputError where it is not documented."""
    if family in COORDINATES_OF_FAMILY:
        return COORDINATES_OF_FAMILY[family]
    raise InputError(f"model family {family}: it is not known in which unit it writes boxes; say which: coordinates is "
                     f"one of {', '.join(CONVENTIONS)}")


_INTRODUCTION = """\
This image is being prepared for a test of visual search. You mark slots in it: small places where a detail can be \
changed later, so that whoever is asked about the detail must search the whole image for it. You change nothing \
yourself; you say where and what.

Every slot has two boxes:
- the edit box, close around the pixels that may change;
- the context box, which holds the edit box and what is around it, about three times as long on each side.

Every slot is of one of two modes:
- "replace": an object of the image will get another color. Its edit box holds the whole object, with a few pixels \
around it and as little else as possible. Describe the object as "target", its color first, in words that fit nothing \
else in the image, such as "blue jacket on the cyclist". {targets}
- "add": a new object will be put into an empty place. Its edit box has the size that such an object has there. Name \
as "objects" two to five things that could be put there: one noun each, without a color.
"""
_RULES = (
    "Small: an edit box marks a compact detail, easily overlooked, never a large or eye-catching thing.{typical}",
    "Not where one looks first: prefer the periphery and cluttered parts of the image to its center, its main subject "
    "and its open areas.",
    "Plausible: an object to add must look natural in its place, standing, hanging, lying or floating as such things "
    "do, at the size that its distance demands.",
    "Absent: the image shows no object of the kind that is to be added, anywhere, so that there is exactly one after "
    "it was added.",
    "Apart: edit boxes do not overlap, and the centers of any two are at least {separation} pixels apart.",
)
_TYPICAL = " A typical edit box covers {area:,} square pixels, {share:.2%} of this image."
_FORM = """\
Answer with one JSON list and nothing else, each slot in one of these two forms:
  {{"mode": "replace", "edit": {order}, "context": {order}, "target": "..."}}
  {{"mode": "add", "edit": {order}, "context": {order}, "objects": ["...", "..."]}}
All boxes are {order} {unit}."""


def instructions(size: tuple[int, int], coordinates: str, question: str | None = None, n_slots: int = N_SLOTS,
                 typical_area_px2: int | None = None) -> str:
    """What the annotator is told about an image of `size` (width, height), in our words after Sec. 3.1 and Appendix B.

    question: the original one; what it names are the targets.  typical_area_px2: say how large an edit box is, as
    docs/annotate.md does (3,535); without it the instructions name no number, as Sec. 3.1 names none.
    """
    width, height = size
    convention = convention_of(coordinates)
    if question is None:
        targets = "Choose one or two small objects that one easily overlooks."
        number = f"Mark {n_slots} slots: one or two of mode replace, the others of mode add."
    else:
        targets = f"The image belongs to the question \"{' '.join(question.split())}\", and the targets are what it " \
                  "asks about."
        number = (f"Mark {n_slots} slots: for every object that the question names one of mode replace, the others of "
                  "mode add.")
    typical = "" if typical_area_px2 is None else _TYPICAL.format(area=typical_area_px2,
                                                                   share=typical_area_px2 / (width * height))
    rules = "\n".join(f"{n}. {rule}" for n, rule in enumerate(_RULES, 1)).format(typical=typical,
                                                                              separation=MIN_SEPARATION_PX)
    unit = convention.words.format(width=width, height=height)
    form = _FORM.format(order=convention.order, unit=unit)
    return f"{_INTRODUCTION.format(targets=targets)}\n{number} Keep to these rules:\n{rules}\n\n{form}"


@dataclass(frozen=True)
class LocalAnnotator:
    """A loaded `LocalVLM` as something that answers (image, text)."""

    vlm: LocalVLM
    max_new_tokens: int = MAX_NEW_TOKENS
    thinking: bool | None = None

    @property
    def family(self) -> str:
        return self.vlm.family.name

    def __call__(self, image: Any, text: str) -> Generation:
        return self.vlm.generate([self.vlm.prompt(image, text, thinking=self.thinking)], self.max_new_tokens)[0]


def propose(vlm: Answerer, image: Any, image_id: str, question: str | None = None, coordinates: str | None = None,
            size: tuple[int, int] | None = None, n_slots: int = N_SLOTS,
            typical_area_px2: int | None = None) -> Proposals:
    """The slots that a model proposes for an image.

    vlm: anything that answers (image, text) with a text or a `Generation`.  coordinates: a key of CONVENTIONS; by
    default what is known of `vlm.family`.  size: (width, height); by default that of a file or of an array.
    "seen-pixels" needs a `Generation`, which says what size the model saw.
    """
    if coordinates is None:
        family = getattr(vlm, "family", None)
        if family is None:
            raise InputError(f"{image_id}: in which unit does this model write boxes?  Give coordinates, one of "
                             f"{', '.join(CONVENTIONS)}")
        coordinates = coordinates_of(family)
    if size is None:
        size = _size_of(image, image_id)
    said = vlm(image, instructions(size, coordinates, question, n_slots, typical_area_px2))
    if isinstance(said, str):
        return read_proposals(said, image_id, size, coordinates)
    if not isinstance(said, Generation):                # a server's failure is no empty proposal
        raise InputError(f"{image_id}: the model gave no answer but {said!r:.200}; ask again")
    seen_size = said.image_sizes[0][::-1] if said.image_sizes else None
    return read_proposals(said.text, image_id, size, coordinates, seen_size)


def _size_of(image: Any, image_id: str) -> tuple[int, int]:
    if isinstance(image, str | Path):
        return image_size(image)
    if isinstance(image, np.ndarray) and image.ndim == 3:
        return image.shape[1], image.shape[0]
    raise InputError(f"{image_id}: the image is a {type(image).__name__}; give its size (width, height), or a path, or "
                     "an array (height, width, 3)")


def as_image_slots(proposals: Proposals, category: str | None = None, question_id: str | None = None,
                   modes: tuple[str, ...] = MODES) -> ImageSlots:
    """The proposals as a line of an annotation file; modes=("add",) for the paper's benchmark of Fig. 4."""
    slots = tuple(slot for slot in proposals.slots if slot.mode in modes)
    return ImageSlots(proposals.image_id, slots, category, proposals.image_size, question_id)
