"""Task functions for lmms-eval: prompt, image and scoring of an exported benchmark.

`rekey items export --to lmms-eval` copies this file as `utils.py` beside the task's YAML, where
lmms-eval loads it by name (`!function utils.doc_to_text`).  It therefore imports only the standard
library: the machine that runs lmms-eval need not have `rekey`.
"""

from __future__ import annotations

import re
import string

LETTERS = string.ascii_uppercase
LETTER_SUFFIX = "\nAnswer with the option's letter from the given choices directly."
FREE_FORM_SUFFIX = "\nAnswer the question using a single word or phrase."


def doc_to_visual(doc):
    """The image of a row, as the list that lmms-eval expects."""
    return [doc["image"].convert("RGB")]


def doc_to_text(doc, lmms_eval_specific_kwargs=None):
    """Question, one option a line ("A. red"), and the request to answer by letter."""
    settings = lmms_eval_specific_kwargs or {}
    lines = [doc["question"], *(f"{LETTERS[i]}. {text}" for i, text in enumerate(doc["options"]))]
    if doc["options"]:
        suffix = settings.get("post_prompt", LETTER_SUFFIX)
    else:
        suffix = settings.get("free_form_post_prompt", FREE_FORM_SUFFIX)
    return settings.get("pre_prompt", "") + "\n".join(lines) + suffix


def doc_to_target(doc):
    """The right letter, or the answer text of a free-form question."""
    return doc["answer"]


def process_results(doc, results):
    """Scores of one row: `accuracy`, the same for its category, and `unparsed`.

    A reply without a recognizable answer counts as wrong and is reported under `unparsed`.
    """
    reply = results[0]
    if doc["options"]:
        letter = parse_letter(reply, doc["options"])
        correct, unparsed = letter == doc["answer"], letter is None
    else:
        correct, unparsed = _normal(_final_part(reply)) == _normal(doc["answer"]), not _final_part(reply)
    scores = {"accuracy": float(correct), "unparsed": float(unparsed)}
    if doc["category"]:
        scores[category_metric(doc["category"])] = float(correct)
    return scores


def category_metric(category):
    """The metric name of a category: "accuracy_direct_attributes"."""
    return "accuracy_" + re.sub(r"\W+", "_", category).strip("_")


def parse_letter(reply, options):
    """The option letter that a reply declares, or None.  The article "a" is never an answer."""
    text = re.sub(r"[*_`$]|\\boxed|\\text", "", _final_part(reply)).strip()
    allowed = LETTERS[:len(options)]
    if re.fullmatch(rf"[({{\[]?[{allowed}{allowed.lower()}][)}}\].:]*", text):
        return re.search("[A-Za-z]", text)[0].upper()
    cue = r"(?i:answer|option|choice)\s*(?i:is)?\s*:?\s*"
    declared = re.findall(rf"{cue}[({{\[]?([{allowed}])(?![A-Za-z])", text)
    if declared:
        return declared[-1]
    leading = re.match(rf"[({{\[]?([{allowed}])[)}}\].:](?:\s|$)", text)
    if leading:
        return leading[1]
    marked = re.findall(rf"\(([{allowed}])\)", text)
    if marked:
        return marked[-1]
    matches = [i for i, option in enumerate(options) if _normal(option) == _normal(text)]
    return LETTERS[matches[0]] if len(matches) == 1 else None


def _final_part(reply):
    """What follows the reasoning of a thinking model; nothing where the reasoning never ends."""
    if "<think>" in reply and "</think>" not in reply:
        return ""
    return reply.rpartition("</think>")[2].strip()


def _normal(text):
    return " ".join(text.casefold().strip(string.punctuation + string.whitespace).split())
