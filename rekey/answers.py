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
from functools import cached_property, lru_cache
from typing import Literal

from rekey.cues import CONDITION, DOUBT, NEGATION, REFUSAL, REVISION, cues, verdicts
from rekey.errors import InputError
from rekey.thinking import answer_start

Parser = Literal["strict", "paper"]
PARSERS = ("strict", "paper")
Options = Mapping[str, str]


@dataclass(frozen=True)
class Reading:
    """What a text says, and how: label is None where it says nothing that can be counted.

    how: "declared" (the answer is C), "bare" (C), "leading" (C. It is white), "ticked" (C. white: yes), "bracketed"
    (so it is (C)), "text" (white); or why there is none: "nothing", "refusal", "contradiction", "unfinished",
    "unfinished thinking", "no such option".
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
# Texts are untrusted: every pattern here is linear, or bounded, in what it looks at.

_REACH = 300                    # characters after a cue in which its answer stands

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe0f\ufeff]")
_LATEX = re.compile(r"\\(?:text|mathbf|mathrm|textbf|textit|bf|rm)\s*\{([^{}]*)\}|\\(?=[()\[\]])")
_MARKS = re.compile(r"[*_`$]+|^[ \t]*[#>]+[ \t]*|<\|(?!begin_of_box)[a-z_]{1,30}\|>"
                    r"|</?(?!answer>)[a-z_]{2,20}>|(?-i:</?[bisu]>)|</answer>", re.MULTILINE | re.IGNORECASE)
_SENTENCE_ENDS = re.compile(        # begins with what it consumes, which is four times as fast
    r"[\s)\]](?:(?<=[.!?。][\s)\]])(?<!\n[A-Z]\.[\s)\]])[\s)\]]*|(?<=\n)\n*)")

_TICKED = re.compile(
    r"(?<![A-Za-z])([A-Z])(?=\s?[)\].:|])(?:(?!(?<![A-Za-z])[A-Z]\s?[)\].:|])[^\n(]){0,80}?"
    r"(?:[:|=→–—-]\s*(?i:yes|true|correct|match(?:es)?)\b|[✓✔✅☑])")
_FORCED = re.compile(r"\b(?:if|assuming)\b[^,.]{0,80}\b(?:forced|must|had to|have to|question)\b[^,]{0,200},",
                     re.IGNORECASE)
_CLAIM = re.compile(r"\s*(?:is|are|was|can|could|would|does|do|seems)(?:\b|n't)[^.\n]{0,40}", re.IGNORECASE)
_FINISHED = re.compile(r"(?<!\.\.)[.!?。)\]}>\"'”]$|(?:^|[^\w'])[A-Z]$")
_CONJUNCTION = re.compile(r"[\s)\]\"']*(?:,?\s*(?:/|,|&|\bor\b|\band\b|或|和))\s*(?:or\s+)?(?:possibly\s+|maybe\s+)?",
                          re.IGNORECASE)
_BRACKETED = re.compile(r"[(\[【]\s*([A-Za-z])\s*[)\]】]")
_ITEM = re.compile(r"(?<![A-Za-z])(?:[(\[]([A-Z])[)\]]|([A-Z])[).:](?=\s))")
_AFTER_LABEL = re.compile(r"\s*(?:(?:because|since|as|for|or|and)\b|\(|$)")
_LABEL = re.compile(r"[(\[{<【]+\s*[\"']?([A-Za-z])[\"']?\s*[)\]}>】]+"
                    r"|[(\[]?([A-Za-z])(?![A-Za-z0-9+]|['-]\w)([).:\]]*)")
_LONE = (r"(?<![A-Za-z0-9_'])(?:[B-HJ-Z]|[AI](?!\s+(?!(?:or|and|nor|is|but|because|[B-Z])\b)[A-Za-z_]))"
         r"(?![A-Za-z0-9_'])")
_OPENING = re.compile(
    r"(?:[^\w(\[{<【-]|-(?!\d))*(?:(?:the|my|is|it's|it is)\s+)?(?:(?:option|choice|letter|answer)\s+|选项\s*)?"
    r"[\"'“‘:]*\s*", re.IGNORECASE)
_ARTICLES = re.compile(r"[\s\"'“:.,()-]*(?:(?:the|a|an|likely|probably|clearly|definitely|most)\s+){0,4}"
                       r"[\"'“]?", re.IGNORECASE)


def read_answer(text: str, options: Options) -> Reading:
    """What a text answers, strictly, and by what sign."""
    if text in options:
        return Reading(text, "bare")
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text))
    start = answer_start(text)
    if start is None:
        return Reading(None, "unfinished thinking")
    if not (plain := _plain(text[start:])):
        return Reading(None, "nothing")
    return _Text(plain, _Options(options)).reading()


def _plain(text: str) -> str:
    """The text without emphasis, headings, tags, and blank lines."""
    if "\\" in text:
        for _ in range(2):                                      # \boxed{\mathbf{\text{B}}}
            text = _LATEX.sub(r"\1", text)
    text = _MARKS.sub("", text.replace("<br>", "\n").replace("’", "'"))
    return "\n".join(line for line in (" ".join(line.split()) for line in text.splitlines()) if line)


@lru_cache(4096)
def _plain_option(text: str) -> str:
    return _plain(unicodedata.normalize("NFKC", text)).casefold().strip(" .")


class _Options:
    """An item's options as a text may name them: case and markup aside."""

    def __init__(self, options: Options):
        self.texts = {label: _plain_option(text) for label, text in options.items()}
        self.label_of: dict[str, str | None] = {}               # by text; None where two options are the same
        for label, text in self.texts.items():
            self.label_of[text] = None if text in self.label_of else label
        self.next = dict(zip(options, list(options)[1:]))       # label -> the one after it in a list of options

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Any option's text as whole words, the longest first; red is not "red and black" where that is an option."""
        texts = sorted(filter(None, self.texts.values()), key=len, reverse=True)
        before, after = r"(?<!\w)(?<!\d[.,])", r"(?!\w)(?![.,]\d)"
        if any(" and " in text for text in texts):
            before, after = before + r"(?<!\band )", after + r"(?! and\b)"
        words = (before * (text[0] < "\u2e80") + re.escape(text) + after * (text[-1] < "\u2e80") for text in texts)
        return re.compile("|".join(words) or r"(?!)", re.IGNORECASE)        # Chinese has no spaces between words

    def named(self, text: str) -> list[str]:
        named = set(self.pattern.findall(text.casefold()))
        return [label for label, option in self.texts.items() if option in named]

    def without(self, text: str) -> str:
        """The text beside the options that it names: an option may itself be "no" or "not blue"."""
        return self.pattern.sub("_", text)

    def first(self, text: str) -> tuple[str | None, str]:
        """The option that a text opens with, and what follows it."""
        start = _ARTICLES.match(text).end()
        opening = text[start:].casefold()
        if exact := self.exactly(opening):
            return exact, ""
        likely = any(option and opening.startswith(option) for option in self.texts.values())   # the pattern costs more
        found = self.pattern.match(text, start) if likely else None
        named = self.named(found[0]) if found else None
        return (named[0], text[found.end():]) if named else (None, text)

    def exactly(self, text: str) -> str | None:
        """The option whose text this is, unless it is a label: an option may be "C++", or the letter E."""
        text = text.casefold().strip(" .!\"'")
        return self.label_of.get(text) if text and text.upper() not in self.texts else None


class _Payload:
    """What stands where an answer is due: a label, an option's text, or neither."""

    def __init__(self, text: str, options: _Options):
        self.options = options
        self.rest = text[_OPENING.match(text).end():]

    def reading(self, how: str) -> Reading:
        if exact := self.options.exactly(self.rest):            # "C++" is an option's text before it is label C
            return Reading(exact, how)
        label, after, certain = self.label()
        named, beyond = self.options.first(after)
        if label and not certain and named != label and not _AFTER_LABEL.match(after):
            label = None                                        # the article "a", the pronoun "I"
        if label is None:
            named, beyond = self.options.first(self.rest)
            if named is None:
                return Reading(None, "refusal" if REFUSAL.search(self.rest) else "nothing")
            return Reading(None, "contradiction") if self._alternative(beyond, named, True) else Reading(named, how)
        if label not in self.options.texts:
            return Reading(None, "refusal" if REFUSAL.search(self.rest) else "no such option")
        if named not in (None, label) or self._alternative(beyond, label, False):
            return Reading(None, "contradiction")
        denied = (clause := _CLAIM.match(after)) and NEGATION.search(clause[0])
        return Reading(None, "nothing") if denied else Reading(label, how)

    def label(self) -> tuple[str | None, str, bool]:
        """(label, what follows it, whether it can be nothing but a label)."""
        found = _LABEL.match(self.rest)
        if not found:
            return None, self.rest, False
        after = self.rest[found.end():].lstrip(" \"'”")
        if found[1]:
            return found[1].upper(), after, True
        if found[2].islower() and not (found[3] or not after):
            return None, self.rest, False
        article = found[2] in "AI" and not found[3] and after[:1].isalpha()
        return found[2].upper(), after, not article

    def _alternative(self, beyond: str, label: str, texts: bool) -> bool:
        """Whether "or C" follows.  texts: or another option's text."""
        joined = _CONJUNCTION.match(beyond)
        if not joined:
            return False
        beyond = beyond[joined.end():]
        found = re.match(rf"(?:option\s+)?[(\[]?({_LONE})", beyond)
        other = found[1] if found else self.options.first(beyond)[0] if texts else None
        return other in self.options.texts and other != label


class _Text:
    """A text without reasoning or markup, read for what it declares, then for what it merely says."""

    def __init__(self, text: str, options: _Options):
        self.text, self.options, self.labels = text, options, set(options.texts)
        self.lines = text.split("\n")
        self.last_line_at = len(text) - len(self.lines[-1])
        self.finished = bool(_FINISHED.search(text, max(0, len(text) - 3))) or len(self.sentences) < 2

    @cached_property
    def sentences(self) -> list[str]:
        return [part.strip() for part in _SENTENCE_ENDS.split(self.text) if part.strip()]

    def reading(self) -> Reading:
        (declared_at, declared), edges = self._declared(), self._edges()
        if edges is None or edges.label is None:
            return declared or self._ticked() or edges or self._bracketed() or self._said()
        if declared is None or declared.how == "refusal":      # what the text ends on outweighs a refusal before it
            return edges
        if declared.label in (edges.label, None):
            return declared
        revised = REVISION.search(self.text, declared_at, self.last_line_at)
        return edges if revised and edges == self._edge(self.lines[-1]) else Reading(None, "contradiction")

    def _declared(self) -> tuple[int, Reading | None]:
        """Where, and by what cue ("the answer is C", "I choose C") or a verdict ("C is correct"); the last one counts.

        Another one before it is a contradiction, unless the text says that it changes its mind, or comes to its answer
        in a last line of its own.
        """
        found: list[tuple[int, Reading]] = []
        for cue in cues(self.text):
            before, after = self.text[max(0, cue.start() - 12):cue.start()], self.text[cue.end():cue.end() + _REACH]
            reading = _Payload(after.lstrip().split("\n")[0], self.options).reading("declared")
            clause = before[before.rfind(".") + 1:]
            withdrawn = re.match(r"\s*not\b", after) or CONDITION.search(clause) or NEGATION.search(
                clause[clause.rfind(",") + 1:])
            if reading.how != "nothing" and not withdrawn:
                found.append((cue.start(), reading))
        for verdict in verdicts(self.text):
            label = verdict[1] or verdict[2] or verdict[3]
            if label in self.labels and not NEGATION.search(verdict[0]):
                found.append((verdict.start(), Reading(label, "declared")))
        if not found:
            return 0, None
        found.sort(key=lambda pair: pair[0])
        last_at, last = found[-1]
        if not self.finished and (self._goes_on(last_at) or DOUBT.search(self.text, last_at)):
            return last_at, Reading(None, "unfinished")
        for at, reading in found[:-1]:
            concluded = last_at >= self.last_line_at and self.text.count("\n", at, last_at) > 1
            revised = (word := REVISION.search(self.text, at + 1)) and word.start() <= last_at
            if reading.label not in (last.label, None) and not concluded and not revised:
                return last_at, Reading(None, "contradiction")
        return last_at, last

    def _goes_on(self, at: int) -> bool:
        """Whether sentences follow what stands at a place that is not in the first line."""
        return len(self.sentences) > 2 and "\n" in self.text[:at] and at < self.text.rfind(self.sentences[-2])

    def _edges(self) -> Reading | None:
        """By a label that opens the text, or that the last line is or opens with; not by an item of a list."""
        first, last = self._edge(self.lines[0]), self._edge(self.lines[-1])
        if len(self.lines) > 1:
            if self._listed(self._edge(self.lines[-2]), last):
                last = None
            if self._listed(first, self._edge(self.lines[1])):
                first = None
        readings = [reading for reading in (first, last) if reading]
        if len({reading.label for reading in readings}) > 1:
            return Reading(None, "contradiction")
        return readings[0] if readings else self._last_clause() or self._opening()

    def _listed(self, reading: Reading | None, following: Reading | None) -> bool:
        """Whether two lines are options one after the other."""
        return bool(reading and following and reading.how == following.how != "bare"
                    and following.label == self.options.next.get(reading.label, ""))

    def _edge(self, line: str) -> Reading | None:
        """By a line that is a label or an option's text, or opens with a label."""
        if exact := self.options.exactly(line):
            return Reading(exact, "text")
        payload = _Payload(line[:_REACH], self.options)
        label, after, certain = payload.label()
        if not label or not certain:
            return None
        if not after:
            return payload.reading("bare")
        if not re.match(r"[(\[{<【]?\s*[A-Za-z]\s*[)\].:,}>】]", payload.rest):
            return None
        others = set(map("".join, _ITEM.findall(line[:_REACH]))) & self.labels - {label}
        if self.options.next.get(label) in others or others and self.options.first(after)[0] != label:
            return None                         # a list on one line, or a sentence about several options
        reading = payload.reading("leading")
        return reading if reading.how != "nothing" else None

    def _last_clause(self) -> Reading | None:
        """By a clause at the end that is a label, or a label and its option's text, and nothing else."""
        *before, clause = re.split(r"(?<!\d)[.!?:]\s+", self.lines[-1].rstrip(" ."))
        if not before or not re.match(r"[(\[]|[B-HJ-Z]\b|[AI]\W", clause):
            return None                         # an A at the end may be the article, where the text breaks off
        reading, (label, after, _) = self._edge(clause), _Payload(clause, self.options).label()
        return reading if reading and (not after or self.options.exactly(after) == label) else None

    def _opening(self) -> Reading | None:
        """By an option's text that opens the text, where no other is named: "No, there is none"."""
        opening = self.options.exactly(re.split(r"[,.;:!\n]", self.text, maxsplit=1)[0])
        if not opening or self.options.named(self.text) != [opening]:
            return None
        return None if REFUSAL.search(self.options.without(self.text)) else Reading(opening, "text")

    def _ticked(self) -> Reading | None:
        """By the one option that a list of options says yes to."""
        labels = set(_TICKED.findall(self.text)) & self.labels
        several = Reading(None, "contradiction") if labels else None
        return Reading(labels.pop(), "ticked") if len(labels) == 1 else several

    def _bracketed(self) -> Reading | None:
        """By the one bracketed label of the last sentence that has any."""
        if not self.finished:                   # a line that is an option and nothing else still counts
            alone = {found[1] for line in self.lines if (found := re.match(r"\(([A-Z])\)(?: (.*))?$", line))
                     and found[1] in self.labels and (not found[2] or self.options.exactly(found[2]) == found[1])}
            return Reading(alone.pop(), "bracketed") if len(alone) == 1 else None
        items = [sentence for sentence in self.sentences if re.match(r"\W{0,3}[(\[][A-Z][)\]] \w", sentence)]
        listed = set(items) if len(items) > 1 else set()
        for sentence in (sentence for sentence in reversed(self.sentences) if sentence not in listed):
            labels = {label.upper() for label in _BRACKETED.findall(sentence)} & self.labels
            if labels:
                if len(labels) > 1 or NEGATION.search(sentence):
                    return Reading(None, "contradiction" if len(labels) > 1 else "nothing")
                return Reading(labels.pop(), "bracketed")
        return None

    def _said(self) -> Reading:
        """By a lone capital or by exactly one option's text in the last sentence."""
        last = self.sentences[-1]
        if forced := _FORCED.search(last):                      # "there is none; if I had to choose, it would be red"
            last = last[forced.end():]
        named, beside = set(self.options.named(last)), self.options.without(last)
        letters = set(re.findall(_LONE, beside)) & self.labels
        if not (forced and (named or letters)) and REFUSAL.search(self.options.without(self.text)):
            return Reading(None, "refusal")
        if not self.finished:
            return Reading(None, "unfinished")
        article = letters <= {"A", "I"} and letters != named    # then a letter does not outweigh a text
        if len(letters) > 1 or article and len(named) + len(letters) > 1:
            return Reading(None, "contradiction")
        if not (letters or named) or NEGATION.search(beside) or CONDITION.search(beside):
            return Reading(None, "nothing")
        return Reading(letters.pop(), "bare") if letters else Reading(named.pop(), "text")


def options_named(text: str, options: Options) -> list[str]:
    """Labels whose text stands in a text as whole words; a longer option covers the shorter ones within it."""
    return _Options(options).named(text)
