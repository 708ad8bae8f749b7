"""The words that tell an answer: cues ("the answer is", "I choose"), verdicts ("C is correct"), refusals, negations.

    for cue in cues(text):                      # re.Match; what is declared stands behind it
    for verdict in verdicts(text):              # one of its groups is the label

Texts are untrusted: every pattern is linear, or bounded, in what it looks at.  The patterns are slow to try at every
letter of a long text, so they are tried where a word stands without which there can be no match.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence

MOST = 50                       # the last ones count; a text with more of them runs in a loop

# What takes a statement back, changes one's mind, refuses, or makes it depend.
NEGATION = re.compile(r"\b(?:not|never|neither|nor|no|\w{1,8}n't|cannot|rather than|instead of|incorrect|wrong|"
                      r"ruled? out|eliminated?|unlikely|excluded?)\b|不", re.IGNORECASE)
DOUBT = re.compile(r"\b(?:wait|actually|reconsider|on second thought|looking again)\b", re.IGNORECASE)
REVISION = re.compile(rf"{DOUBT.pattern}|\b(?:however|but|correction|therefore|thus|hence|so|final|finally|instead|"
                      r"in conclusion)\b", re.IGNORECASE)
REFUSAL = re.compile(
    r"\bnone of (?:the|these)\b|\bnone\b(?=\W*$)|\bno (?:correct|valid|suitable) (?:answer|option)|\bindeterminate\b"
    r"|\b(?:in|not )(?:sufficient|enough) (?:information|detail)|\bN/A\b"
    r"|(?:\bcannot|\bcan not|n't|\bunable to|\bnot (?:possible|able) to|\bimpossible to)\s+(?:be\s+)?"
    r"(?:\w{1,20}\s+){0,2}?"
    r"(?:determin|answer|identif|tell|see|say|provid|choos|select|verif|confirm|locat|find|discern|visible|make out)"
    r"|\b(?:is|are) (?:no|not)\b[^.\n]{0,80}\bvisible|无法|不能确定|看不到", re.IGNORECASE)
CONDITION = re.compile(r"\b(?:if|whether|unless|suppose|assuming|assume)\b", re.IGNORECASE)

_IS = (r"(?:is|was|be|would be|should be|must be|will be|seems to be|appears to be|could be|has to be)\b"
       r"(?:\s+(?:most )?(?:likely|probably|therefore|thus|clearly))?")
_CUE = re.compile(
    r"\b(?:answer|ans|choice|option|response|selection|decision|guess|correction)\b['\"]?"
    r"(?:\s+(?:letter|choice|option|is as follows))?"
    rf"(?:\s+(?:here|to (?:the|this) question|from the given choices))?"
    rf"\s*(?:[:=→]|[-–—](?!\w)|\n(?=\W*[A-Z]\b)|\s(?:(?:must|should) \w+ be|{_IS})\s*:?)"
    r"|\b(?:so|thus|hence|therefore|leaving|leaves|it's|it is)\b,?(?:\s+only)?\s+(?=[(\[]?[A-Z](?:[)\]]|\s*(?:[.!]|$)))"
    r"|\bI(?:'ll| will| would|'d| must|'d have to| would have to|'m going to)?"
    r"\s+(?:choose|select|pick|go with|answer|guess|say|lean towards?)\b:?"
    r"|\\boxed\s*\{|<answer>|<\|begin_of_box\|>"
    r"|(?:答案|正确选项)\s*(?:是|为|為|应为|选|選)?\s*:?|(?:选择|選擇|选|選)\s*:?", re.IGNORECASE | re.MULTILINE)
_VERB = (r"\s*(?:is|seems|appears to be|would be|must be)\s+(?:\w{1,20}\s+){0,2}?"
         r"(?:correct|right(?!\s+(?:of|side|next|behind|beside))|best|(?:answer|match)\b)")
_VERDICT = re.compile(
    rf"(?:\b(?:option|choice)\s+[(\[]?|[(\[])([A-Z])\b[)\]]?[:,]?\s*(?:\w{{1,20}}[\s,]+){{0,3}}?{_VERB}"
    rf"|\b([A-Z])\b{_VERB}|([A-Z])\s*是?正确", re.IGNORECASE)
# Of the text in small letters: what any cue begins with, and what every verdict holds.
_CUE_BEGINS = ("ans", "choice", "option", "response", "selection", "decision", "guess", "correction", "so", "thus",
               "hence", "therefore", "leav", "it's", "it is", "i'", "i ", "i\n", "\\boxed", "<answer", "<|begin",
               "答案", "正确选项", "选", "選")
_VERDICT_HOLDS = re.compile(r"(?:is|seems|be)\s+(?:\w{1,20}\s+){0,2}?(?:correct|right|best|answer|match)|正确")


def cues(text: str) -> Sequence[re.Match[str]]:
    """Words behind which an answer is due; the last of them."""
    found: deque[re.Match[str]] = deque(maxlen=MOST)
    small, end = _lower(text), 0
    for begin in sorted(place for word in _CUE_BEGINS for place in _places(word, small)):
        if begin >= end and (cue := _CUE.match(text, begin)):
            found.append(cue)
            end = cue.end()
    return found


def _places(word: str, text: str) -> Iterator[int]:
    """Where a word stands."""
    place = text.find(word)
    while place >= 0:
        yield place
        place = text.find(word, place + 1)


def verdicts(text: str) -> Sequence[re.Match[str]]:
    """Claims that an option is right; the last of them."""
    return deque(_VERDICT.finditer(text), maxlen=MOST) if _VERDICT_HOLDS.search(_lower(text)) else ()


def _lower(text: str) -> str:
    """As many characters as the text: the small form of one capital, the dotted I, is two."""
    return text.replace("\u0130", "I").lower()
