"""What a model answered: from a text to one of the item's options, or to none.

    options = {"A": "red", "B": "blue", "C": "white"}
    parse_answer("Answer: **(C)** white", options)                      # "C"
    parse_answer("I can't see a dog.", options)                         # None
    parse_answer("B. It is a red bag", options, parser="paper")         # "A": the article

`strict` reads what was declared, in the item's own options; a text that declares nothing, refuses, or contradicts
itself gives None, which grading calls "unparsed".  `paper` is the rule that the published ReKey numbers rest on (their
code, not the words of App. C): the last lone letter a to d of either case, so that the article "a" is option A.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rekey.errors import InputError

Parser = Literal["strict", "paper"]
PARSERS = ("strict", "paper")
Options = Mapping[str, str]


@dataclass(frozen=True)
class Reading:
    """What a text says, and how: label is None where it says nothing that can be counted.

    how: "declared" (the answer is C), "bare" (C), "leading" (C. It is white), "bracketed" (so it is (C)), "text"
    (white); or why there is none: "nothing", "refusal", "contradiction", "unfinished", "unfinished thinking", "no
    such option".
    """

    label: str | None
    how: str


def parse_answer(text: str, options: Options, parser: Parser = "strict", cot: bool = False) -> str | None:
    """The label of the option that a text answers with, or None.  cot: `paper` has a rule of its own for reasoning."""
    if parser == "strict":
        return read_answer(text, options).label
    if parser == "paper":
        return paper_letter(text, cot)
    raise InputError(f"parser {parser!r}: expected {' or '.join(PARSERS)}")


# ------------------------------------------------------------------------------------- the paper's rule

_LONE_LETTER = re.compile(r"(?<![A-Za-z])[A-Da-d](?![A-Za-z])")
_CUED_LETTER = re.compile(r"answer\s*[:\uff1a]\s*\(?([a-d])", re.IGNORECASE)


def paper_letter(text: str, cot: bool = False) -> str | None:
    """The last lone letter A to D of either case; under cot, first what follows the last "answer:"."""
    if cot and (cued := _CUED_LETTER.findall(text)):
        return cued[-1].upper()
    found = _LONE_LETTER.findall(text)
    return found[-1].upper() if found else None


# ------------------------------------------------------------------------------------- the strict rule

_THINKING_ENDS = re.compile(r"</think(?:ing)?>|◁/think▷|\[/THINK\]")
_THINKING_BEGINS = re.compile(r"<think(?:ing)?>|◁think▷|\[THINK\]")
_BOXES = re.compile(
    r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}|<answer>(.*?)</answer>|<\|begin_of_box\|>(.*?)<\|end_of_box\|>",
    re.IGNORECASE | re.DOTALL)
_LATEX = re.compile(r"\\(?:text|mathbf|mathrm|textbf|bf|rm)\s*\{([^{}]*)\}")
_MARKS = re.compile(r"[*_`$]+|^[ \t]*[#>]+[ \t]*|<\|[a-z_]+\|>|</?answer>", re.MULTILINE)
_SENTENCE_ENDS = re.compile(r"(?<=[.!?。])[\s)\]]+|\n+")

_IS = (r"(?:is|was|be|would be|should be|must be|will be|seems to be|appears to be|could be|has to be)\b"
       r"(?:\s+(?:most )?(?:likely|probably|therefore|thus|clearly))?")
_CUE = re.compile(
    r"\b(?:answer|choice|option|response|selection)\b(?:\s+(?:letter|choice|option|is as follows))?"
    rf"(?:\s+(?:here|to (?:the|this) question|from the given choices))?\s*(?:[:=→]|\s{_IS}\s*:?)"
    r"|\bI(?:'ll| will| would|'d| must|'d have to| would have to|'m going to)?"
    r"\s+(?:choose|select|pick|go with|answer)\b:?"
    r"|答案\s*(?:是|为|為|应为|选|選)?\s*:?|(?:选择|選擇|选|選)\s*:?", re.IGNORECASE)
_VERDICT = re.compile(r"\s*(?:\w+\s+){0,2}?(?:is|seems|appears to be|would be|must be)\s+(?:\w+\s+){0,2}?"
                      r"(?:correct|right|best|answer)\b", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|no|isn't|wasn't|aren't|doesn't|cannot|can't|rather than|instead of|incorrect|wrong|"
    r"rule out|ruled out|eliminate|unlikely)\b|不是|不", re.IGNORECASE)
_REVISION = re.compile(
    r"\b(?:wait|actually|however|but|correction|reconsider|on second thought|therefore|thus|hence|so|final|finally|"
    r"instead|in conclusion|looking again)\b", re.IGNORECASE)
_REFUSAL = re.compile(
    r"\bnone of (?:the|these)\b|\bnone\b(?=\W*$)|\bno (?:correct|valid|suitable) (?:answer|option)|\bindeterminate\b"
    r"|\b(?:in|not )(?:sufficient|enough) (?:information|detail)"
    r"|(?:\bcannot|\bcan not|n't|\bunable to|\bnot (?:possible|able) to|\bimpossible to)\s+(?:be\s+)?(?:\w+\s+){0,2}?"
    r"(?:determin|answer|identif|tell|see|say|provid|choos|select|verif|confirm|locat|find|discern|visible|make out)"
    r"|\b(?:is|are) (?:no|not)\b[^.]*\bvisible|无法|不能确定|看不到", re.IGNORECASE)
_CONDITION = re.compile(r"\b(?:if|whether|unless|suppose|assuming|assume)\b", re.IGNORECASE)
_FINISHED = re.compile(r"(?<!\.\.)[.!?。)\]\"'”]$|(?:^|\W)[A-Z]$")
_ALTERNATIVE = re.compile(r"\s*(?:/|,|&|\bor\b|\band\b|或|和)\s*(?:option\s+)?[(\[]?([A-Z])(?![A-Za-z'’])")
_BRACKETED = re.compile(r"[(\[]\s*([A-Za-z])\s*[)\]]")
_OPENING = re.compile(r"^[\s\"'“”‘’:,\-–—]*(?:(?:the|my|is)\s+)?(?:(?:option|choice|letter|answer)\s+)?[\"'“‘]?",
                      re.IGNORECASE)
_ARTICLES = re.compile(r"^(?:(?:the|a|an|likely|probably|clearly|definitely|most)\s+)*", re.IGNORECASE)


def read_answer(text: str, options: Options) -> Reading:
    """What a text answers, strictly."""
    text = unicodedata.normalize("NFKC", text)
    if ends := list(_THINKING_ENDS.finditer(text)):
        text = text[ends[-1].end():]
    elif _THINKING_BEGINS.search(text):
        return Reading(None, "unfinished thinking")
    if boxes := list(filter(None, map("".join, _BOXES.findall(text)))):
        return _Payload(_plain(boxes[-1]), options).reading("declared")
    plain = _plain(text)
    return _Text(plain, options).reading() if plain else Reading(None, "nothing")


def _plain(text: str) -> str:
    """The text without emphasis, headings, and tags."""
    return _MARKS.sub("", _LATEX.sub(r"\1", text)).replace("’", "'").strip()


class _Payload:
    """What stands where an answer is due: a label, an option's text, or neither."""

    def __init__(self, text: str, options: Options):
        self.options = options
        self.rest = text[_OPENING.match(text).end():].strip()

    def reading(self, how: str) -> Reading:
        label, after, certain = self.label()
        named = self._text(after) if label else None
        if label and not certain:                       # "A" or "a", then a word: a label, or the article
            if named != label and not re.match(r"\s*(?:because|since|as|for|\(|$)", after):
                label = None
        if label is None:
            named = self._text(self.rest)
            return Reading(named, how) if named else Reading(
                None, "refusal" if _REFUSAL.search(self.rest) else "nothing")
        if label not in self.options:
            return Reading(None, "no such option")
        other = _ALTERNATIVE.match(after)
        if other and other[1] != label and other[1] in self.options or named not in (None, label):
            return Reading(None, "contradiction")
        return Reading(label, how)

    def label(self) -> tuple[str | None, str, bool]:
        """(label, what follows it, whether it can be nothing but a label)."""
        found = re.match(r"[(\[]\s*([A-Za-z])\s*[)\]]|([A-Za-z])(?![A-Za-z'])([).:,\]]*)", self.rest)
        if not found:
            return None, self.rest, False
        after = self.rest[found.end():].lstrip(" \"'”")
        if found[1]:
            return found[1].upper(), after, True
        if found[2].islower() and not (found[3] or not after):
            return None, self.rest, False
        return found[2].upper(), after, bool(found[3]) or not after or found[2] != "A" or not after[0].isalpha()

    def _text(self, text: str) -> str | None:
        """The option whose text comes first, the longest of those that fit."""
        text = text[_ARTICLES.match(text).end():].lstrip(" \"'“:.-)").casefold()
        fits = [label for label, option in self.options.items() if _starts_with(text, _folded(option))]
        return max(fits, key=lambda label: len(self.options[label]), default=None)


class _Text:
    """A text without reasoning or markup, read for what it declares, then for what it merely says."""

    def __init__(self, text: str, options: Options):
        self.text, self.options = text, options
        self.lines = [line.strip() for line in text.splitlines() if line.strip()]
        self.sentences = [part.strip() for part in _SENTENCE_ENDS.split(text) if part.strip()]
        self.finished = len(self.sentences) < 2 or bool(_FINISHED.search(text))

    def reading(self) -> Reading:
        (declared_at, declared), edges = self._declared(), self._edges()
        if edges is None or edges.label is None:
            return declared or edges or self._bracketed() or self._said()
        if declared is None or declared.how == "refusal":      # what the text ends on outweighs a refusal before it
            return edges
        if declared.label in (edges.label, None):
            return declared
        revised = _REVISION.search(self.text, declared_at, self.text.rfind(self.lines[-1]))
        return edges if revised and edges == self._edge(self.lines[-1]) else Reading(None, "contradiction")

    def _declared(self) -> tuple[int, Reading | None]:
        """Where, and by what cue ("the answer is C", "I choose C") or a verdict ("C is correct"); the last one counts.

        Another one before it is a contradiction, unless the text says that it changes its mind, or comes to its answer
        in a last line of its own.
        """
        found: list[tuple[int, Reading]] = []
        for cue in _CUE.finditer(self.text):
            before, after = self.text[:cue.start()], self.text[cue.end():]
            reading = _Payload(after.lstrip().split("\n")[0], self.options).reading("declared")
            clause = before[before.rfind(".") + 1:][-12:]
            withdrawn = re.match(r"\s*not\b", after) or _NEGATION.search(clause) or _CONDITION.search(clause)
            if reading.how != "nothing" and not withdrawn:
                found.append((cue.start(), reading))
        for mention in re.finditer(r"(?:\boption\s+)?[(\[]?\b([A-Z])\b[)\]]?", self.text):
            verdict = _VERDICT.match(self.text, mention.end())
            if mention[1] in self.options and verdict and not _NEGATION.search(verdict[0]):
                found.append((mention.start(), Reading(mention[1], "declared")))
        if not found:
            return 0, None
        found.sort(key=lambda pair: pair[0])
        last_at, last = found[-1]
        if not self.finished and len(self.sentences) > 2 and "\n" in self.text[:last_at] \
                and last_at < self.text.rfind(self.sentences[-2]):
            return last_at, Reading(None, "unfinished")
        for at, reading in found[:-1]:
            between = self.text[at + 1:last_at]
            concluded = last_at >= self.text.rfind(self.lines[-1]) and between.count("\n") > 1 + between.count("\n\n")
            if reading.label not in (last.label, None) and not concluded and not _REVISION.search(
                    self.text, at + 1, last_at + 1):
                return last_at, Reading(None, "contradiction")
        return last_at, last

    def _edges(self) -> Reading | None:
        """By a label that opens the text, or that the last line is or opens with."""
        readings = [reading for line in dict.fromkeys((self.lines[0], self.lines[-1])) if (reading := self._edge(line))]
        if not readings:
            return self._last_letter()
        if len({reading.label for reading in readings}) > 1:
            return Reading(None, "contradiction")
        return readings[0]

    def _edge(self, line: str) -> Reading | None:
        payload = _Payload(line, self.options)
        label, after, certain = payload.label()
        marked = re.match(r"[(\[]?\s*[A-Za-z]\s*[)\].:,\]]", line) or not after
        return payload.reading("bare" if not after else "leading") if label and certain and marked else None

    def _last_letter(self) -> Reading | None:
        """By a sentence at the end that is a label and nothing else."""
        found = re.search(r"(?:[.!?:]|\n)\s*[(\[]?([A-Z])[)\]]?\.?$", self.text)
        if not found:
            return None
        return Reading(found[1], "bare") if found[1] in self.options else Reading(None, "no such option")

    def _bracketed(self) -> Reading | None:
        """By the one bracketed label of the last sentence that has any."""
        if not self.finished:                   # a line that is an option and nothing else still counts
            alone = {reading.label for line in self.lines if (reading := self._edge(line)) and (
                line in (f"({reading.label})", f"({reading.label}) {self.options.get(reading.label)}"))}
            return Reading(alone.pop(), "bracketed") if len(alone) == 1 else None
        for sentence in reversed(self.sentences):
            labels = {label.upper() for label in _BRACKETED.findall(sentence)} & set(self.options)
            if labels:
                if len(labels) > 1 or _NEGATION.search(sentence):
                    return Reading(None, "contradiction" if len(labels) > 1 else "nothing")
                return Reading(labels.pop(), "bracketed")
        return None

    def _said(self) -> Reading:
        """By a lone capital or by exactly one option's text in the last sentence."""
        last = self.sentences[-1]
        if _REFUSAL.search(self.text):
            return Reading(None, "refusal")
        if not self.finished:
            return Reading(None, "unfinished")
        doubtful = _NEGATION.search(last) or _CONDITION.search(last)
        letters = set(re.findall(r"(?<![\w'])([B-HJ-Z]|A(?=\W*$|[^\w\s]))(?![\w'])", last)) & set(self.options)
        if len(letters) == 1 and not doubtful:
            return Reading(letters.pop(), "bare")
        named = options_named(last, self.options)
        if len(named) == 1 and not letters and not doubtful:
            return Reading(named[0], "text")
        return Reading(None, "contradiction" if len(named) > 1 or len(letters) > 1 else "nothing")


def options_named(text: str, options: Options) -> list[str]:
    """Labels whose text stands in a text as whole words; a longer option covers the shorter ones within it."""
    text, spans = text.casefold(), {}
    for label, option in options.items():
        if folded := _folded(option):
            spans[label] = [found.span() for found in re.finditer(rf"(?<!\w){re.escape(folded)}(?!\w)", text)]
    every = [span for group in spans.values() for span in group]

    def covered(span: tuple[int, int]) -> bool:
        return any(other != span and other[0] <= span[0] and span[1] <= other[1] for other in every)

    return [label for label, group in spans.items() if any(not covered(span) for span in group)]


def _folded(option: str) -> str:
    return unicodedata.normalize("NFKC", option).casefold().strip(" .")


def _starts_with(text: str, option: str) -> bool:
    return bool(option) and text.startswith(option) and not text[len(option):len(option) + 1].isalnum()
