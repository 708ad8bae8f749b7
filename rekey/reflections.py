"""Where a text says by itself that it looks again (VisualSwap: reflections in natural generation).

    for found in find_reflections("It has 5 sides. Wait, let me check the figure again. It has 6."):
        found.text, found.visual                        # "Wait, let me check the figure again.", True

A reflection is a sentence; it is visual where it names the picture or says that something is looked at.  Wording is
matched, nothing is judged: the patterns are what a prevalence counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SENTENCE = re.compile(r"[^\n.!?。!?]*(?:[.!?。!?]+(?=\s|$|[^\w\s.])|\n|$|\.(?=\w))")
_PICTURE = (r"(?:image|picture|figure|diagram|photo(?:graph)?|graph|chart|plot|drawing|illustration|scene|screenshot|"
            r"visual (?:information|details?|evidence|content)|图(?:片|像|中|形|表)?|圖(?:片|像|中|形|表)?)")
_LOOK = (r"(?:look|check|examin|inspect|re-?examin|re-?check|re-?inspect|re-?look|re-?read|double-?check|verif|confirm|"
         r"review|revisit|study|zoom|scan|see|go back|return|count|measure|observ)\w*")
_AGAIN = (r"(?:again|once more|one more time|another (?:look|time)|second look|closer|more closely|more carefully|"
          r"carefully|back (?:to|at)|before (?:I |answering|concluding)|to be sure|double|re-?(?:check|examine|inspect|"
          r"look|read|visit)|verify|confirm|再|重新|仔细)")
_TURN = r"(?:\bwait\b|\bhold on\b|\bhmm+\b|\bactually\b|\bon second thought\b|\blet me\b|\blet's\b|等等|等一下|让我)"
_SELF = (r"(?:\blet me\b|\blet's\b|\bI (?:should|need to|want to|will|have to|must)\b|\bI'll\b|\bworth\b|"
         r"让我|我(?:再|需要|应该))")

_LOOKS_AGAIN = re.compile(rf"(?=.*\b{_LOOK}|.*(?:看|检查|确认|观察))(?=.*{_AGAIN})", re.IGNORECASE)
_SELF_OR_TURN = re.compile(rf"{_SELF}|{_TURN}", re.IGNORECASE)
_NAMES_PICTURE = re.compile(rf"\b{_PICTURE}|图|圖", re.IGNORECASE)
_HESITATES = re.compile(r"^\W*(?:(?:wait|hold on|hmm+|actually|no, wait|on second thought)\b|等等|等一下)",
                        re.IGNORECASE)


@dataclass(frozen=True)
class Reflection:
    """One sentence that turns back.  start, end: characters of the text.  visual: it looks at the picture."""

    start: int
    end: int
    text: str
    visual: bool


def find_reflections(text: str) -> list[Reflection]:
    """The sentences of a text that turn back on what was said before, in order."""
    found = []
    for match in _SENTENCE.finditer(text):
        sentence = match[0].strip()
        if not sentence:
            continue
        looks = bool(_LOOKS_AGAIN.search(sentence) and _SELF_OR_TURN.search(sentence))
        if looks or _HESITATES.search(sentence):
            start = match.start() + len(match[0]) - len(match[0].lstrip())
            visual = looks and bool(_NAMES_PICTURE.search(sentence))
            found.append(Reflection(start, start + len(sentence), sentence, visual))
    return found
