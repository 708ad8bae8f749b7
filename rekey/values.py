"""Answers of questions without options: what a text declares as its answer, and whether that is the key's.

    read_value("12 is too few. **Answer:** 3/4 of it").label       # "3/4 of it"
    same_value("\\frac{3}{4}", "0.75")                              # True
    same_value("red and white", "red")                             # False: a value is matched whole

VS-Bench (VisualSwap, Sec. 4) has such questions.  A text that declares nothing, refuses, contradicts itself, or was cut
off gives None, which grading calls "unparsed"; the last number of a text is never an answer for being the last.
"""

from __future__ import annotations

import re

from rekey.answers import Reading
from rekey.cues import CONDITION, NEGATION, REFUSAL, REVISION
from rekey.quantities import LONGEST, plain, quantity
from rekey.sameness import ROUGHLY, YES_OR_NO, same_value
from rekey.thinking import answer_start

__all__ = ["read_value", "same_value"]

READ_AT_MOST = 8_000
"""Characters from the end of a text that are read at all."""
MOST_WORDS = 12
"""Of an answer in words; a longer line is prose."""

_TAGS = re.compile(r"<\|[a-z_]{1,30}\|>|</?answer>|```\w*", re.IGNORECASE)
_BOX = re.compile(r"\\f?boxed\s*\{")
_BRACE = re.compile(r"(?<!\\)[{}]")
_TAGGED = (("<answer>", "</answer>"), ("<|begin_of_box|>", "<|end_of_box|>"))
_BETWEEN_BOXES = re.compile(r"[\s$,;]*(?:,|\bor\b|\band\b)[\s$]*(?:\w{1,2}\s*=\s*)?")
_HEADING = re.compile(r"^[ \t]*[#>]+[ \t]*", re.MULTILINE)
_EMPTY_LINE = re.compile(r"[\s$\\\[\]*_`:=-]*")
_CUE = re.compile(
    r"\b(?:answer|result)\b(?:\s+(?:here|to (?:the|this) (?:question|problem)))?"
    r"[\s*_]*(?:[:=→]|(?:is|was|would be|should be|must be|will be)\b\s*:?|\n)"
    r"|(?:答案|答)\s*(?:是|为|為|应为)?\s*[::]?", re.IGNORECASE)
_NO_DECLARATION = re.compile(
    r"(?:not|n't|based|obtained|given|found|calculated|determined|derived|shown|clear|either|unclear"
    r"|the (?:correct |right |final )?answer)\b",
    re.IGNORECASE)
_SENTENCE_ENDS = re.compile(r"(?<!\.[A-Za-z])(?<!\b(?:vs|no|ca|Dr|Mr|St))(?<=[.!?。])[\"'*)$]*\s+|\n+")
_EXPLANATION = re.compile(
    r"(?:\b(?:because|since|given that|based on|due to)\b|, ?(?:as|which|where|so|but|with|not)\b"
    r"|\s-{1,2}\s(?=[A-Za-z]{2})).*", re.IGNORECASE | re.DOTALL)
_CLOSING = re.compile(r"(?:I )?hope (?:this|that|it)\b|(?:please )?let me know\b|feel free\b|is there anything\b",
                      re.IGNORECASE)
_CONCLUSION = re.compile(r"(?:so|therefore|thus|hence|then|giving|which gives|overall|consequently|finally"
                         r"|in conclusion|we (?:get|have|find))\b[\s,:]*", re.IGNORECASE)
_SUBORDINATE = re.compile(r"(?:since|because|given|as|with|when|where|for|using|from)\b", re.IGNORECASE)
_HEDGE = re.compile(r"\b(?:might|may|could|perhaps|possibly|maybe|either|what|whether)\b")
_CLAUSES = re.compile(r",\s+|;\s*|\s+(?=(?:so|therefore|thus|hence)\b)|\s+and\s+(?=[^,;]{0,200}(?:=|\b(?:is|are)\b))",
                      re.IGNORECASE)
_LINKS = re.compile(r"=|≈|\b(?:(?P<equates>is|are|was|were|equals|be|gives?|get)|has|have|contains?|shows?|reads?)\b")


def read_value(text: str) -> Reading:
    """What a text gives as its answer, as text (label), and how; label is None where it gives none.

    how: "declared" (in a box, or "the answer is 5"), "bare" (5), "leading" (Yes, there is one), "said" (so x = 5.).
    """
    start = answer_start(text)
    if start is None:
        return Reading(None, "unfinished thinking")
    text = re.sub(r"[^\S\n]+", " ", text[start:][-READ_AT_MOST:].replace("：", ":"))
    boxed = _boxed(text)
    if boxed is not None:
        return _payload(boxed, boxed=True) if boxed else Reading(None, "unfinished")
    text = _HEADING.sub("", _TAGS.sub("", text)).strip()
    lines = [line.strip() for line in text.splitlines() if not _EMPTY_LINE.fullmatch(line)]
    if not lines:
        return Reading(None, "nothing")
    at, declared = _declared(text)
    edge = _edge(lines)
    if declared is None:
        return edge or _said(text, lines)
    if edge is None or edge.how == "leading":
        return declared
    if declared.how == "refusal":                              # what the text ends on outweighs a refusal before it
        return edge
    if declared.label is None or same_value(edge.label or "", declared.label):
        return declared
    last = _bare(lines[-1])
    revised = last is not None and REVISION.search(text, at, text.rfind(lines[-1]))
    return last if revised else Reading(None, "contradiction")


def _boxed(text: str) -> str | None:
    """What the last box or answer tag holds (boxes joined by "and": all); "" where it was cut off, None without one."""
    found = list(_BOX.finditer(text))
    last_box = found[-1].start() if found else -1
    folded = text.lower() if len(text.lower()) == len(text) else text
    tag_at, begin, end = max((folded.rfind(begin), begin, end) for begin, end in _TAGGED)
    if tag_at > last_box:
        after = text[tag_at + len(begin):]
        inner = after[:stop] if (stop := folded[tag_at + len(begin):].find(end)) >= 0 else after
        nested = _boxed(inner)
        return inner.strip() or None if nested is None else nested
    contents: list[str] = []
    following = len(text)
    for box in reversed(found[-20:]):
        inner = _braced(text, box.end())
        if inner is None:
            return "" if not contents else ", ".join(contents)
        if contents and not _BETWEEN_BOXES.fullmatch(text, box.end() + len(inner) + 1, following):
            break
        if inner.strip():
            contents.insert(0, inner.strip())
            following = box.start()
    return ", ".join(contents) or None


def _braced(text: str, start: int) -> str | None:
    """What stands before the brace that closes the one before start; None where none does."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start:brace.start()]
    return None


def _payload(text: str, how: str = "declared", boxed: bool = False) -> Reading:
    """What stands where an answer is due; outside a box without the explanation behind it, and not if it is prose."""
    value = (text if boxed else _EXPLANATION.sub("", text.strip())).strip(" \n*_").rstrip(".,。!").strip()
    shown = plain(value)
    if not shown or shown in ("...", "[]", "answer", "your answer"):
        return Reading(None, "nothing")
    if shown.casefold() != "none" and REFUSAL.search(value):
        return Reading(None, "refusal")
    if not boxed and len(shown.split()) > MOST_WORDS and quantity(shown) is None and not re.search(r"[\\=^{]", value):
        return Reading(None, "nothing")
    return Reading(value, how)


def _declared(text: str) -> tuple[int, Reading | None]:
    """What the last cue declares, and where; another answer before it is a contradiction, unless taken back."""
    found: list[tuple[int, Reading]] = []
    for cue in list(_CUE.finditer(text))[-20:]:
        before, after = text[max(0, cue.start() - 200):cue.start()], text[cue.end():].lstrip(" \t*_:")
        if cue[0].endswith("\n") and not _EMPTY_LINE.fullmatch(before.rpartition("\n")[2]):
            continue                                              # a line that only ends in "answer"
        clause = _SENTENCE_ENDS.split(before)[-1]
        if _NO_DECLARATION.match(after) or CONDITION.search(clause) or NEGATION.search(clause[-12:]):
            continue
        line = next((line for line in after.splitlines() if not _EMPTY_LINE.fullmatch(line)), "")
        sentence = _SENTENCE_ENDS.split(line.strip())[0]
        reading = _payload(sentence)
        if reading.how != "nothing" and not sentence.endswith("?"):
            found.append((cue.start(), reading))
    if not found:
        return 0, None
    last_at, last = found[-1]
    for at, reading in found[:-1]:
        if reading.label and last.label and not same_value(reading.label, last.label) \
                and not REVISION.search(text, at + 1, last_at + 1):
            return last_at, Reading(None, "contradiction")
    return last_at, last


def _edge(lines: list[str]) -> Reading | None:
    """The value that the text is, or that its first or last line is."""
    if len(lines) == 1:
        return _bare(lines[0]) or (_leading(lines[0]) if len(lines[0].split()) > MOST_WORDS else None)
    first, last = _bare(lines[0]) or _leading(lines[0]), _bare(lines[-1])
    if last is None and lines[-2].endswith(":") and len(lines[-1].split()) <= 4:
        last = _payload(lines[-1], "bare")
    if first and last and not same_value(last.label or "", first.label or ""):
        return last if any(map(REVISION.search, lines[1:-1])) else Reading(None, "contradiction")
    return last or first


def _bare(line: str) -> Reading | None:
    """A line that is a number, a yes, or a formula, and nothing else."""
    if len(line) > 2 * LONGEST:
        return None
    shown = plain(line)
    if quantity(shown) is not None or YES_OR_NO.fullmatch(shown) or _whole_formula(line):
        return Reading(line.rstrip(".。").strip(), "bare")
    return None


def _whole_formula(line: str) -> bool:
    return len(line) <= LONGEST and bool(re.fullmatch(r"(?:\$[^$]+\$|\\[(\[].+\\[)\]])[.。]?", line))


def _leading(line: str) -> Reading | None:
    found = YES_OR_NO.match(plain(line[:LONGEST]))
    return Reading(found[1], "leading") if found else None


def _said(text: str, lines: list[str]) -> Reading:
    """By a short text that is its answer, or by a last sentence that ends in a value of its own."""
    sentences = [part.strip() for part in _SENTENCE_ENDS.split(text) if not _EMPTY_LINE.fullmatch(part)]
    while len(sentences) > 1 and _CLOSING.match(sentences[-1]):
        sentences.pop()
    last = sentences[-1]
    if REFUSAL.search(text) and plain(text).casefold() != "none":
        return Reading(None, "refusal")
    if last.endswith(("?", "...", ":", ",")):
        return Reading(None, "unfinished" if len(sentences) > 1 or not last.endswith("?") else "nothing")
    if found := _leading(text):
        return Reading(last.rstrip(".。!"), "leading") if len(sentences) == 1 else found
    if len(sentences) == 1 and len(last.split()) <= MOST_WORDS and not _LINKS.search(last):
        return _payload(last, "bare")
    if len(sentences) > 2 and last[-1].isalnum() and last != lines[-1]:
        return Reading(None, "unfinished")
    return _conclusion(last, alone=len(sentences) == 1)


def _conclusion(sentence: str, alone: bool) -> Reading:
    """The value that a sentence ends in ("so the area is 24 cm²"); None if its clauses end in several."""
    main = sentence.rpartition(", ")[2] if _SUBORDINATE.match(sentence) else sentence
    clauses = [clause for clause in _CLAUSES.split(main) if clause.strip()]
    if not clauses:
        return Reading(None, "nothing")
    final = clauses[-1]
    concluded = _CONCLUSION.match(final) or len(clauses) > 1 and _CONCLUSION.fullmatch(clauses[-2] + " ")
    value = _linked(final, bool(alone or concluded))
    if value is None or _HEDGE.search(final) or CONDITION.search(sentence) or NEGATION.search(final):
        return Reading(None, "nothing")
    others = [] if concluded else [_linked(clause, alone) for clause in clauses[:-1]]
    if any(other is not None and not same_value(other, value) for other in others):
        return Reading(None, "contradiction")
    worded = quantity(value) is None and not _whole_formula(value)
    short = len(sentence.split()) <= MOST_WORDS
    if not worded and not (alone and short and len(clauses) == 1):
        return Reading(value, "said")
    opening = _CONCLUSION.match(sentence)
    if short and (alone or opening) and not _NO_DECLARATION.match(value):      # the key may be a sentence, too
        return Reading(sentence[opening.end() if opening else 0:].rstrip(".。!"), "said")
    return Reading(None, "nothing")


def _linked(clause: str, answers: bool) -> str | None:
    """What stands behind the last "=" or "is" of a clause; behind "has" and the like only if the clause answers."""
    links = list(_LINKS.finditer(clause))
    value = clause[links[-1].end():].strip() if links else ""
    if links and not answers and links[-1]["equates"] is None and links[-1][0] not in "=≈":
        return None
    value = value[ROUGHLY.match(value).end():].strip().rstrip(".。!").strip()
    return value or None
