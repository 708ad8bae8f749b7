"""Sampling record -> what a diffusion model is told (ReKey, Sec. 3.3): no prompt is written by hand.

    caption(key)            # "A candid photo of a plain white jacket on the cyclist.  ..."
    instruction(key)        # "Change ONLY the color of the blue jacket on the cyclist to white."

FLUX.1 follows descriptions of the finished picture and not orders; editing models follow the paper's instruction.
"""

from __future__ import annotations

from rekey.qa import instruction
from rekey.records import VisualKey
from rekey.references import PATTERN_WORDS, a, parse_reference

__all__ = ["caption", "instruction"]

# Said to the model only, never in a question: "gray" alone gives bluish and "brown" reddish things.
SAID_COLORS = {"gray": "medium gray", "pink": "bright pink", "brown": "chocolate brown", "white": "plain white",
               "black": "matte black"}
PLACES = {"standing": "standing there", "wall": "on the wall", "air": "in the air", "water": "at the water"}


def caption(key: VisualKey) -> str:
    """The finished crop in words: the thing with its new look, its old colors and patterns left out."""
    reference = parse_reference(key.object)
    color = SAID_COLORS.get(key.color, key.color) if key.color else " ".join(reference.color_words)
    name, owner = reference.name, reference.object[len(reference.name):]
    if key.pattern is not None:
        name = " ".join(word for word in name.split() if word.lower() not in PATTERN_WORDS) or name
    look = " ".join(word for word in (color, key.pattern, key.material) if word)
    thing = f"{look} {name}".strip()
    counted = thing if reference.plural else a(thing)
    if key.mode == "add":
        place, shadow = _place(key.object)
        return f"A candid photo of {counted}{place}, fully visible. Realistic, natural light{shadow}."
    return (f"A candid photo of {counted}{owner}. The {name} {reference.verb} entirely {look}. "
            "Natural light, realistic material.")


def _place(noun: str) -> tuple[str, str]:
    """Where a thing of its kind belongs, as far as that is known, and the shadow it throws there."""
    from editors.solids import find_solid
    solid = find_solid(noun)
    if solid is None:
        return "", ""
    return f" {PLACES[solid.placement]}", ", soft contact shadow" if solid.placement == "standing" else ""
