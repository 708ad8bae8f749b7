"""Where a reasoning text turns back on itself, and where it says that it looks again (VisualSwap, Sec. 6).

    for found in find_reflections("It has 5 sides. Wait, let me check the figure again. It has 6."):
        found.text, found.visual                        # "Wait, let me check the figure again.", True

Wording is matched, nothing is judged: the patterns are what a prevalence counts, and what is called a reflection is
written out here.  English and Chinese.  A sentence is one where

- it is *visual*: its speaker means to look at the picture again, or does ("looking back at the image", "let me verify
  this against the figure", "on closer inspection").  Looking at it is not enough, "let me look at the image" opens many
  a first description; nor is looking again at the question or a calculation.
- it hesitates ("wait", "hold on", "actually,"), doubts ("is that right?", "I may have miscounted"), or does something
  again that needs no picture ("let me calculate again").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Reflection:
    """One sentence that turns back.  start, end: characters of the text.  visual: it looks at the picture again."""

    start: int
    end: int
    text: str
    visual: bool


def find_reflections(text: str) -> list[Reflection]:
    """The sentences of a text that turn back on what was said before, in order."""
    found = []
    doubts = False
    for start, end in sentences(text):
        sentence = text[start:end]
        own = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), sentence)         # what others are quoted with is theirs
        visual = looks_again(own, doubts)
        if visual or turns_back(own):
            found.append(Reflection(start, end, sentence, visual))
        doubts = bool(_DOUBTS.search(own))
    return found


def looks_again(sentence: str, doubted: bool = False) -> bool:
    """Whether a sentence says that the picture is looked at again.  doubted: the sentence before it doubts."""
    stops = doubted or bool(_STOPS.match(sentence))
    to_be_sure = bool(_TO_BE_SURE.search(sentence))
    return any(_looks_again(clause, stops, to_be_sure) or _looks_again_in_chinese(clause)
               for clause in _CLAUSE_END.split(sentence))


def turns_back(sentence: str) -> bool:
    """Whether a sentence hesitates, doubts, or does something again."""
    if any(pattern.search(sentence) for pattern in (_STOPS, _WAITS_INSIDE, _DOUBTS, _CHINESE_TURN)):
        return True
    for intent in _INTENT.finditer(sentence):
        meant = sentence[intent.end():intent.end() + _REACH]
        if _REDOES.match(meant) or _DOES.match(meant) and _AGAIN.search(meant):
            return True
    return False


# -------------------------------------------------------------------------------------- sentences

_STOP = re.compile(r"[.!?\u2026]+|[\u3002\uff01\uff1f]+|\n+")
_CLOSING = re.compile(r"[\"'\u201d\u2019)\]}*_\u300d\uff09]*")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|figs?|eqs?|eqn|approx|resp|no|nos|pp?|sec|dr|mrs?|ms|st|ca|etc|"
                           r"deg|min|max|avg)|\\left|\\right)\Z", re.IGNORECASE)
_NEVER_LAST = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|dr|mrs?|ms)|\\left|\\right)\Z", re.IGNORECASE)
_INTERJECTION = re.compile(r"\W*(?:(?:but|oh|no|okay|ok|so|wait|hmm+|h?mm+|hold on|hang on|a (?:minute|second|moment)|"
                           r"等等|等一下|等下|嗯+|不对|且慢)\W*){1,6}", re.IGNORECASE)
_LONGEST_ABBREVIATION, _LONGEST_INTERJECTION = 10, 30


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each sentence, without space around it.

    A dot ends none in a number, an abbreviation or a formula, nor does a line that goes on in the next; "Wait." belongs
    to what follows.
    """
    start = 0
    for stop in _STOP.finditer(text):
        if stop.start() < start:
            continue
        end = _CLOSING.match(text, stop.end()).end()
        if not _is_end(text, stop, end):
            continue
        if stop[0][0] != "\n" and end - start <= _LONGEST_INTERJECTION and _INTERJECTION.fullmatch(text, start, end):
            continue
        yield from _trimmed(text, start, end)
        start = end
    yield from _trimmed(text, start, len(text))


def _trimmed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    piece = text[start:end]
    if inner := piece.strip():
        begin = start + len(piece) - len(piece.lstrip())
        yield begin, begin + len(inner)


def _is_end(text: str, stop: re.Match[str], end: int) -> bool:
    """Whether a mark that was found ends a sentence; `end` is behind it and what closes with it."""
    before, mark = text[stop.start() - 1:stop.start()], stop[0]
    if mark[0] == "\n":
        wrapped = len(mark) == 1 and (before.isalpha() or before == ",")
        return not (wrapped and text[end:end + 1].islower())
    if mark[0] in "\u3002\uff01\uff1f":
        return True
    following = text[end:end + 1]
    if following and not following.isspace() and not _is_chinese(following):
        return False                                        # 3.5, f(x)!=0, a.b, x!$
    after = text[end:end + 2].strip()[:1]
    if mark[0] == "!" and after and after in "=+-*/<>":
        return False                                        # 5! = 120
    if mark != ".":
        return not ((len(mark) > 1 or mark == "\u2026") and after.islower())            # "Wait... let me"
    word = text[max(0, stop.start() - _LONGEST_ABBREVIATION):stop.start()]
    if _NEVER_LAST.search(word):
        return False
    return not (_ABBREVIATION.search(word) and (after.islower() or after.isdigit()))


def _is_chinese(character: str) -> bool:
    return "\u3400" <= character <= "\u9fff"


# ---------------------------------------------------------------------------------------- English

_REACH = 70                     # characters from a verb to its object
_QUOTED = re.compile(r"\"[^\"\n]{1,200}\"|\u201c[^\u201d\n]{1,200}\u201d|\u300c[^\u300d\n]{1,200}\u300d")
_CLAUSE_END = re.compile(r"[,;:\uff0c\uff1b\uff1a\u3001\u2014\u2013?!\u3002\uff1f\uff01]| - |\.\s")

_PICTURE = re.compile(
    r"\b(?:image|picture|figure|diagram|photo|photograph|graph|chart|plot|drawing|illustration|scene|screenshot|sketch|"
    r"map|video|frame|visual|legend|[xy]-axis|"
    r"(?:visual|original|given) (?:information|details?|evidence|content|input|data))s?\b"
    # The image of a point under a reflection, the graph of a function: these are not looked at.
    r"(?! of (?:the )?(?:points?|function|line|set|vertex|vertices|segment|triangle|[a-zA-Z]['(]|[A-Z]\b|[fgy]\b|"
    r"\$|\\))",
    re.IGNORECASE)
_TEXT = re.compile(
    r"\b(?:calculations?|computations?|arithmetic|math|question|problem|prompt|answers?|options?|choices?|equations?|"
    r"formulas?|reasoning|logic|steps?|definitions?|theorem|wording|statements?|conditions?|assumptions?|approach|work|"
    r"instructions?|proof|result|solution|code|hints?|list)\b", re.IGNORECASE)
_HELD_AGAINST = re.compile(r"\b(?:against|with|in|on|from|to)(?:\s+\w+){0,3}\s*\Z")

_AGAIN = re.compile(
    r"\b(?:again|once more|one more time|another time|a second time|(?:another|second|closer|fresh|better) "
    r"(?:look|glance|peek|view|inspection|examination)|more (?:closely|carefully|thoroughly)|look(?:ing)? closer|"
    r"closer at|back (?:at|to|over))\b", re.IGNORECASE)
_TO_BE_SURE = re.compile(
    r"\b(?:to (?:be (?:\w+ )?sure|make sure|(?:double-?check|verify|confirm)(?: (?:this|that|it))?\s*(?:[.,!]|\Z))|"
    r"before (?:I |we )?(?:answer|conclud|decid|respond|finali[sz]|giv)\w*)", re.IGNORECASE)
_INTENT = re.compile(
    r"\b(?:let me|let us|let's|let\u2019s|lemme|(?:I|we)(?:['\u2019]ll| will| should| need to| want to| have to| must| "
    r"can|['\u2019]d better| had better|['\u2019]d like to| would like to|['\u2019]m going to| am going to| ought to|"
    r" better)|(?:is|be) worth|(?:need|have|better|best|good|wise) to)"
    r"(?: (?:just|also|quickly|carefully|go and|try to|now|maybe|perhaps|really|at least)){0,2} ", re.IGNORECASE)
_OWN = re.compile(r"\b(?:I|we|let me|let us|let's|let\u2019s|lemme|worth|my)\b", re.IGNORECASE)
_OTHERS = re.compile(
    r"\b(?:you|user|they|he|she|someone|people|students?|reader|viewer|wants? (?:me|us)|asks? (?:me|us)|asked|told)\b",
    re.IGNORECASE)
_OPENS_CLAUSE = re.compile(
    r"\W*(?:(?:and|but|so|now|then|wait|hmm+|okay|ok|oh|no|yes|actually|upon|on|after|by|when|to|a|an|the|just|first|"
    r"taking|having|with|from|maybe|perhaps)\W+){0,4}\Z", re.IGNORECASE)

_RETURNS = re.compile(
    r"\b(?:re-?(?:check|examin|inspect|verif|count|measur|evaluat|assess|analy[sz]|look|view|observ|stud|scan|read)"
    r"(?:e|es|ed|ing|y|ies|ied|ying|ation|s)?|double[- ]?check(?:ing|ed)?|cross-?check(?:ing|ed)?|revisit(?:ing|ed)?|"
    r"(?:go|going|went|come|coming|turn|turning|refer|referring|get|getting) back|return(?:ing|ed)? to)\b",
    re.IGNORECASE)
_VERIFIES = re.compile(r"(?:verify|confirm|validate|compare|make sure|check (?:this|that|it|my)\b|zoom in)",
                       re.IGNORECASE)
_LOOKS = re.compile(
    r"\b(?:look(?:ed|ing)?|peek(?:ed|ing)?|glanc(?:e|ed|ing)|zoom(?:ed|ing)?|check(?:ed|ing)?|examin(?:e|ed|ing|ation)|"
    r"inspect(?:ed|ing|ion)?|stud(?:y|ied|ying)|scan(?:ned|ning)?|view(?:ed|ing)?|observ(?:e|ed|ing)|"
    r"review(?:ed|ing)?|count(?:ed|ing)?|measur(?:e|ed|ing)|read(?:ing)?|focus(?:ed|ing)?|analy[sz](?:e|ed|ing)|"
    r"verif(?:y|ied|ying)|confirm(?:ed|ing)?|consult(?:ed|ing)?|compar(?:e|ed|ing)|see)\b",
    re.IGNORECASE)
_TAKES_A_LOOK = re.compile(r"(?:take|have) (?:a |an |another |one )?(?:\w+ ){0,2}(?:look|glance|peek)\b", re.IGNORECASE)
_BEFORE_A_LOOK = re.compile(r"\b(?:closer|second|another|fresh|careful|more|quick|better|further|back) ?\Z",
                            re.IGNORECASE)
_BARE_LOOK = re.compile(r"\b(?:look(?:ing|ed)?|peek(?:ed|ing)?|glanc(?:e|ed|ing)|zoom(?:ed|ing)?|"
                        r"closer (?:inspection|examination))\b(?! (?:for|like|up|into|similar|as|so|the same))",
                        re.IGNORECASE)


def _looks_again(clause: str, stops: bool, to_be_sure: bool) -> bool:
    """stops: the sentence opens with "wait"; to_be_sure: it says why one looks."""
    if _OTHERS.search(clause):
        return False
    again = bool(_AGAIN.search(clause))
    for verb in _RETURNS.finditer(clause):
        if _by_speaker(clause, verb.start()) and _at_picture(clause, verb.end()):
            return True
    for intent in _INTENT.finditer(clause):
        if (meant := _VERIFIES.match(clause, intent.end())) and _at_picture(clause, meant.end()):
            return True
        meant = _LOOKS.match(clause, intent.end()) or _TAKES_A_LOOK.match(clause, intent.end())
        if meant and (again or stops or to_be_sure) and _at_picture(clause, meant.end()):
            return True
    if not (again or stops):
        return False
    for verb in _LOOKS.finditer(clause):
        if verb[0].lower() != "see" and _by_speaker(clause, verb.start()) and _at_picture(clause, verb.end()):
            return True
    return again and any(_by_speaker(clause, verb.start())
                         and not _TEXT.search(clause, verb.end(), verb.end() + _REACH)
                         for verb in _BARE_LOOK.finditer(clause))


def _by_speaker(clause: str, at: int) -> bool:
    """Whether the verb at a place of a clause is the speaker's: behind "I" or "let me", or it opens the clause."""
    before = clause[max(0, at - _REACH):at]
    return bool(_OWN.search(before) or _OPENS_CLAUSE.match(_BEFORE_A_LOOK.sub("", before)))


def _at_picture(clause: str, verb_end: int) -> bool:
    """Whether what a verb is about is the picture, or something held against it."""
    picture = _PICTURE.search(clause, verb_end, verb_end + _REACH)
    if not picture:
        return False
    between = clause[verb_end:picture.start()]
    return not _TEXT.search(between) or bool(_HELD_AGAINST.search(between))


_STOPS = re.compile(
    r"\A\W*(?:(?:but|oh|no|so|and|hmm+|okay|ok)\W+){0,3}(?:wait\b(?=\W*\Z|[^\w\s]|\s+(?:a (?:minute|second|moment)|no|"
    r"but|is|maybe|let|I|actually|that|this|if|what|did|how|so|are|the)\b)|hold on\b|hang on\b|on second thoughts?\b|"
    r"actually\W*,|(?:scratch|strike) that\b|not so fast\b|one moment\b)", re.IGNORECASE)
_WAITS_INSIDE = re.compile(r"(?:[,;:.\u2014\u2013(-]\s?|\b(?:but|no|oh|hmm+),? )wait[,.!\u2026]", re.IGNORECASE)
_DOUBTS = re.compile(
    r"\b(?:(?:is|was|are|does|do) (?:that|this|it|these|my \w+|the answer)(?: (?:really|actually|all|even|seem|look))? "
    r"(?:right|correct|true|accurate|make sense|possible)\b[^?]{0,40}\?|"
    r"(?:am I|are we) (?:\w+ )?(?:sure|certain|missing)|"
    r"did I (?:mis|make|count|read|get|miss|forget|overlook|see|mix)|(?:could|might|may) (?:I|we) (?:have|be) |"
    r"(?:I|we) (?:may|might|could|must) (?:have|be) (?:mis\w+|wrong|mistaken|made|over\w+|counted|confus\w+|mixed)|"
    r"(?:I|we) (?:made|was making|were making) an? (?:\w+ )?(?:mistake|error)|"
    r"(?:I|we) (?:was|were|am|are) (?:wrong|mistaken)|"
    r"(?:I|we) (?:misread|miscounted|misjudged|overlooked|misinterpreted)|"
    r"that(?:'s|\u2019s| is) (?:not (?:right|correct)|wrong|incorrect)|"
    r"(?:that|this) (?:doesn't|doesn\u2019t|does not|can't|can\u2019t|cannot) (?:seem|be|make|look|add) "
    r"(?:right|correct|sense|up))", re.IGNORECASE)
_REDOES = re.compile(
    r"(?:re-?(?:check|examin|calculat|comput|consider|think|read|evaluat|assess|do|trace|verif|count|measur|visit|work|"
    r"phras|analy[sz])\w*|double[- ]?check|cross-?check|verify|confirm|make sure|start over|go back|"
    r"check (?:this|that|it|my)\b)", re.IGNORECASE)
_DOES = re.compile(r"(?:check|calculate|compute|count|think|read|go|look|work|try|add|do|run|measure|solve|see|review|"
                   r"examine|inspect|take|walk|sum|list)\b", re.IGNORECASE)

# ---------------------------------------------------------------------------------------- Chinese

_CHINESE_PICTURE = r"(?:(?<![试企意力妄])[图圖](?!书)|画面|照片|影像)"
_CHINESE_AGAIN = re.compile(r"再(?:次|仔细|好好|认真|来|去)*(?:看|检查|核对|确认|观察|查看|审视|对照|验证|瞧|数|比对)|"
                            r"重新(?:\w{0,2})(?:看|检查|核对|确认|观察|查看|审视|对照|验证|审题|数|分析)|"
                            r"回(?:头|过头|去|到|看|顾)|复查|复核|double")
_CHINESE_CHECK = re.compile(r"(?:让我|我(?:们)?(?:需要|应该|得|要|来|想|必须)?)\w{0,4}(?:核对|确认|验证|对照|检查)")
_CHINESE_SIGHT = re.compile(_CHINESE_PICTURE)
_CHINESE_LOOK = re.compile(r"(?:看|瞧|观察)")
_CHINESE_TEXT = re.compile(r"题|问题|选项|计算|步骤|答案|公式|推理|条件|过程|式子|方程")
_CHINESE_TURN = re.compile(
    r"^\W*(?:等等|等一下|等下|稍等|且慢|慢着|不对|不,|不,等|哦不|其实不)(?=\W|\Z|[让我这那图再好应])|"
    r"(?:再|重新)(?:次|仔细|好好|认真|来|去)*(?:算|计算|检查|想|考虑|思考|核对|验证|读|审视|审题|确认|数|看|推|分析|梳理)|"
    r"(?:对|正确|是这样|没错|真的|确定)吗|(?:我|我们)(?:可能|也许|好像|是不是)\w{0,3}(?:错|漏|误)|"
    r"(?:让我|我(?:需要|应该|得|要|来))\w{0,3}(?:核对|复查|复核|验证|确认)")


def _looks_again_in_chinese(clause: str) -> bool:
    again = _CHINESE_AGAIN.search(clause)
    picture = bool(_CHINESE_SIGHT.search(clause))
    if again and picture:
        return True
    if again and _CHINESE_LOOK.search(clause, again.start(), again.end()):
        return not _CHINESE_TEXT.search(clause)
    return picture and bool(_CHINESE_CHECK.search(clause))
