"""Question, options and answer, all spelled from a sampling record (ReKey, Sec. 3.4).

    question = build_question(record)            # no image and no model in the signature
    question.text, question.options, question.answer

The signature is the paper's claim: the label cannot depend on pixels, nor on anyone's judgment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rekey.draws import Draws
from rekey.records import Attribute, SamplingRecord, VisualKey, option_letter
from rekey.references import PATTERN_WORDS, Reference, a, parse_reference, the
from rekey.sampling import VALUES, asked_axis

Distractors = Literal["paper", "lure"]
N_OPTIONS = 4


@dataclass(frozen=True)
class Question:
    text: str
    options: tuple[str, ...]
    answer: str
    """Letter of the right option."""
    category: str
    source_answer: str | None
    """What the slot showed before the edit, where the annotation names it."""


def build_question(record: SamplingRecord, distractors: Distractors = "paper") -> Question:
    """The question about a record, with its options in random order.

    distractors: "paper" draws the wrong options from the pool without the answer and the old value
    (patterns excepted: there are only four); "lure" makes the old value one of the wrong options, so
    that a model that recites its memory can be caught doing it.  The other wrong options are drawn
    evenly, so that the options say nothing about the answer.  "left" and "right" are shuffled as well.
    """
    draws = Draws("options", record.image_id, record.seed, record.draw)
    if record.question_type == "position":
        return _position_question(record, draws)
    (key,) = record.keys
    answer = key.value(record.attribute)
    lure = _old_value(key, record, draws)
    wrong = _distractors(key, record, answer, lure if distractors == "lure" else None, draws)
    options = tuple(draws.shuffled([answer, *wrong]))
    return Question(attribute_text(key, record.attribute), options, option_letter(options.index(answer)),
                    "direct_attributes", lure)


def attribute_text(key: VisualKey, attribute: Attribute) -> str:
    """What is asked about the object of a key: true of any value that it may have, and telling none."""
    reference = parse_reference(key.object)
    name = the(_asked_object(reference, attribute))
    if attribute == "color":
        return f"What color {reference.verb} {name}?"
    if attribute == "pattern":
        return f"What pattern {'do' if reference.plural else 'does'} {name} have?"
    return f"What material {reference.verb} {name} made of?"


def _asked_object(reference: Reference, attribute: Attribute) -> str:
    """The object without words that give its old look away ("striped train", "plastic stool")."""
    if attribute == "color":
        return reference.object                      # parse_reference took the colors off
    telling = PATTERN_WORDS if attribute == "pattern" else VALUES[attribute]
    words = reference.object.split()
    return " ".join(w for n, w in enumerate(words) if w.lower() not in telling or n == len(words) - 1)


def annotated_values(key: VisualKey, attribute: Attribute) -> frozenset[str]:
    """What the slot may have shown before any edit, by the annotator's words: {"gray", "white"} of a "silver" car.

    Empty where the words say nothing of it, or where an object was added.
    """
    if key.mode == "add":
        return frozenset()
    reference = parse_reference(key.object)
    if attribute == "color":
        return reference.colors
    if attribute == "pattern":
        return frozenset((reference.pattern,) if reference.pattern else ())
    return frozenset(VALUES["material"]) & set(reference.object.lower().split())


def _old_value(key: VisualKey, record: SamplingRecord, draws: Draws) -> str | None:
    """What the slot showed before, as a value of the pool; of two old colors ("red-and-white") one."""
    if key.mode == "add":
        return None
    reference = parse_reference(key.object)
    if record.attribute == "color":
        return draws.choice(reference.named_colors) if reference.named_colors else None
    if record.attribute == "pattern":
        return reference.pattern or "plain"
    return next((m for m in VALUES["material"] if m in reference.object.lower().split()), None)


def _distractors(key: VisualKey, record: SamplingRecord, answer: str, lure: str | None, draws: Draws) -> list[str]:
    old = set()
    if key.mode == "replace" and record.attribute != "pattern":
        reference = parse_reference(key.object)
        old = reference.colors if record.attribute == "color" else set(reference.object.lower().split())
    pool = draws.shuffled([v for v in VALUES[record.attribute] if v not in (answer, lure) and v not in old])
    return ([lure] if lure else []) + pool[:N_OPTIONS - 1 - bool(lure)]


def _position_question(record: SamplingRecord, draws: Draws) -> Question:
    first, second = record.keys
    verb = parse_reference(first.object).verb.capitalize()
    phrases = [the(_phrase(key, record)) for key in record.keys]
    (x1, y1), (x2, y2) = first.slot.edit.center, second.slot.edit.center
    if asked_axis(first.slot, second.slot) == "horizontal":
        text = f"{verb} {phrases[0]} to the left or right of {phrases[1]}?"
        answer, wrong = ("left", "right") if x1 < x2 else ("right", "left")
    else:
        text = f"{verb} {phrases[0]} above or below {phrases[1]}?"
        answer, wrong = ("above", "below") if y1 < y2 else ("below", "above")
    options = tuple(draws.shuffled([answer, wrong]))
    return Question(text, options, option_letter(options.index(answer)), "relative_position", None)


def _phrase(key: VisualKey, record: SamplingRecord) -> str:
    """How a position question names a key (Appendix B).

    A recolored object is told from others of its kind by its new color; an added one is the only one
    of its kind, and its color would be a cue.
    """
    reference = parse_reference(key.object)
    if key.mode == "add":
        return reference.object
    return f"{key.value(record.attribute)} {_asked_object(reference, record.attribute)}"


def instruction(key: VisualKey) -> str:
    """The edit in the paper's words (Sec. 3.3), for logs, captions and instruction-following editors."""
    reference = parse_reference(key.object)
    look = " ".join(v for v in (key.pattern, key.color, key.material) if v)
    if key.mode == "add":
        return f"Add {a(f'{look} {reference.object}')} in the marked area."
    attribute = "pattern" if key.pattern else "material" if key.material else "color"
    return f"Change ONLY the {attribute} of {the(key.object)} to {look}."
