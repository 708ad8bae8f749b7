"""Whether two free-form answers are the same.

    same_value("\\frac{3}{4}", "0.75")                              # True
    same_value("3.14159", "3.14"), same_value("12.4", "12")         # (True, False): the second one is the key
    same_value("red and white", "red")                             # False: a value is matched whole

VS-Bench (VisualSwap, Sec. 4) has such answers.  Numbers and their units are read by `quantities`, formulas compared by
`expressions`; here are lists, times, ratios, statements ("x = 5"), and words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from rekey.expressions import GOOD_TO, number_of, same_expression
from rekey.quantities import LONGEST, Quantity, plain, plain_quantity, quantity, same_number, split_unit

YES_OR_NO = re.compile(r"(yes|no|true|false)\s*(?:[,;:!]|\.(?!\s*\d)|\s-+\s|$)", re.IGNORECASE)
ROUGHLY = re.compile(r"(?:(?:equal to|approximately|about|around|roughly|exactly|only|just|nearly|precisely|≈|~|:|"
                     r"a total of|estimated to be)\s*)*", re.IGNORECASE)
LONGEST_WORDS = 5000
"""Characters of an answer that are compared."""
MOST_ELEMENTS = 12
DEEPEST = 3
"""Lists within lists."""

_STATEMENT = re.compile(
    r"(?P<subject>(?:[^\s=≈]+\s+){0,8}?[^\s=≈]*)\s*(?P<link>=|≈|\b(?:is|are|was|were|equals|has|have|contains?)\b)"
    r"\s*(?P<value>[^=≈]+(?:[=≈][^=≈]+)*)", re.IGNORECASE)
_NO_SUBJECT = re.compile(r"\b(?:that|which|who|whether|if|when|what|why|how|or|not|no|never|nor)\b|n't", re.IGNORECASE)
_BRACKETS = {"(": ")]", "[": ")]", "{": "}"}
_SEPARATOR = re.compile(r"[,;]|\s(?:and|or|&)\s", re.IGNORECASE)
_SPACED = re.compile(r"(?P<open>[(\[{])|(?P<close>[)\]}])|[,;]\s+(?:and |or )?|;|\s+(?:and|or|&)\s+", re.IGNORECASE)
_UNSPACED = re.compile(r"(?P<open>[(\[{])|(?P<close>[)\]}])|,")
_NAME = re.compile(r"^[A-Za-z]\w?\s*=\s*")
_ARTICLE = re.compile(r"\b(?:a|an|the)\s+(?!and\b|or\b|is\b)(?=\w{2})")
_TIME = re.compile(r"(\d{1,2}:\d\d(?::\d\d)?)\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
_RATIO = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(?::|\bto\b)\s*(\d{1,9}(?:\.\d{1,9})?)")
_RANGE = re.compile(r"(-?[\d.,]{1,20})\s*(?:%|°)?\s*(?:-|\bto\b)\s*([\d.,]{1,20}.{0,30})")


def same_value(said: str, gold: str) -> bool:
    """Whether an answer is the key's, the whole of it.

    Numbers: equal; where the key is a rounded decimal, equal to half a step of its last decimal; where the key is a
    fraction or root that no decimal writes exactly, a right rounding to two decimals or more.  Units that both have
    must agree; one that only one has does not matter (see `quantities.same_number` for percentages).  Lists: element by
    element, in order unless one is in braces or says "or".  Formulas: equal for all values.  Words: the same but for
    case, articles, punctuation.  "x = 5" and "the bag is red" also stand for what they end in.
    """
    if said.strip() == gold.strip():
        return bool(gold.strip())
    said, gold = said[:LONGEST_WORDS], gold[:LONGEST_WORDS]
    one, two = quantity(said), quantity(gold)
    if one is not None and two is not None and (same_number(one, two) or "," not in said + gold):
        return same_number(one, two)
    if one is None or two is None:
        said, gold = plain(said), plain(gold)
    return bool(said and gold) and any(_same(meant, gold) for meant in _meanings(said, gold))


def _meanings(said: str, gold: str) -> Iterator[str]:
    """The answer itself, and, where it is a statement, what it states."""
    yield said
    if found := YES_OR_NO.match(said):
        yield found[1]
    if rough := ROUGHLY.match(said).end():
        said = said[rough:].strip()
        yield said
    found = _STATEMENT.fullmatch(said) if len(said) <= LONGEST else None
    if found and not _NO_SUBJECT.search(found["subject"]) and (found["link"] not in "=≈" or "=" not in gold):
        for value in found["value"].rpartition("=")[2].split("≈"):      # exact and rounded: both are said
            value = value.strip()
            yield value[ROUGHLY.match(value).end():]


def _same(said: str, gold: str, depth: int = 0) -> bool:
    one, two = plain_quantity(said), plain_quantity(gold)
    if one is not None and two is not None:
        return same_number(one, two) or "," in said and "," in gold and _same_lists(said, gold, depth)
    if max(len(said), len(gold)) <= LONGEST:
        if (pair := _times(said, gold)) or (pair := _ratios(said, gold)) or (pair := _ranges(said, gold)):
            return pair[0] == pair[1]
    if _same_lists(said, gold, depth):
        return True
    if one is None and two is None and _folded(said) == _folded(gold):
        return bool(_folded(gold))
    if "=" in gold and "=" not in said and (found := re.fullmatch(r"[A-Za-z]\w?\s*=\s*([^=]+)", gold)):
        return _same(said, found[1], depth)
    return _same_formula(said, gold, one, two)


def _same_formula(said: str, gold: str, one: Quantity | None, two: Quantity | None) -> bool:
    """Two formulas, or a formula and a number; their units as in `quantities.same_number`."""
    if _RANGE.fullmatch(said) or _RANGE.fullmatch(gold):       # 10-20 is no subtraction
        return False
    if one is None and two is None:
        (said, unit), (gold, other) = split_unit(said), split_unit(gold)
        return (unit == other or not (unit and other)) and same_expression(said, gold)
    numbers = [number or _computed(text) for number, text in ((one, said), (two, gold))]
    if None in numbers:
        return False
    said_number, key = numbers
    if abs(said_number.value - key.value) <= GOOD_TO * max(1, abs(key.value)):
        said_number = said_number._replace(value=key.value)
    return same_number(said_number, key)


def _computed(text: str) -> Quantity | None:
    formula, unit = split_unit(text)
    value = number_of(formula)
    return None if value is None else Quantity(value, unit)


def _times(said: str, gold: str) -> tuple[object, object] | None:
    """Two clock times; a.m. or p.m. that only one has does not matter."""
    one, two = _TIME.fullmatch(said), _TIME.fullmatch(gold)
    if not (one and two):
        return None
    half = one[2] and two[2]
    return ((one[1].lstrip("0"), (one[2] or "").lower() if half else ""),
            (two[1].lstrip("0"), (two[2] or "").lower() if half else ""))


def _ratios(said: str, gold: str) -> tuple[object, object] | None:
    """Two ratios in lowest terms, or a ratio and a fraction."""
    found = [_RATIO.fullmatch(text) for text in (said, gold)]
    if not any(found):
        return None
    values = []
    for text, ratio in zip((said, gold), found):
        parts = [plain_quantity(part) for part in (ratio.groups() if ratio else [text] if "/" in text else [""])]
        if None in parts or ratio and parts[1].value == 0:
            return None
        values.append(parts[0].value / parts[1].value if ratio else parts[0].value)
    return values[0], values[1]


def _ranges(said: str, gold: str) -> tuple[object, object] | None:
    """Two ranges, "10-20" and "10 to 20"."""
    one, two = _RANGE.fullmatch(said), _RANGE.fullmatch(gold)
    if not (one and two):
        return None
    ends = [[plain_quantity(end) for end in found.groups()] for found in (one, two)]
    return None if None in ends[0] + ends[1] else (ends[0], ends[1])


def _same_lists(said: str, gold: str, depth: int) -> bool:
    """Element by element; in any order where one of the two is in braces or joined by "or"."""
    if depth >= DEEPEST or max(len(said), len(gold)) > LONGEST:
        return False
    (one, parts), (two, keys) = _parts(said), _parts(gold)
    bracketed = bool(one.strip("|") and two.strip("|"))
    if bracketed and one != two or len(parts) != len(keys) or not 2 - bracketed <= len(keys) <= MOST_ELEMENTS:
        return False
    if not {"{}", "|"} & {one, two}:
        return all(_same(part, key, depth + 1) for part, key in zip(parts, keys))
    for part in parts:
        match = next((key for key in keys if _same(part, key, depth + 1)), None)
        if match is None:
            return False
        keys.remove(match)
    return True


def _parts(text: str) -> tuple[str, list[str]]:
    """A list's brackets ("" for none, "|" for alternatives), and its elements without the names in "x = 2, y = 3"."""
    kind = ""
    if len(text) > 2 and text[-1] in _BRACKETS.get(text[0], "") and _closes_at_end(text):
        kind, text = text[0] + text[-1], text[1:-1]
    if not kind and not _SEPARATOR.search(text):
        return "", [text]
    # Where a comma has a space or a word does the separating, other commas are of numbers: "1,234, 5".
    spaced = re.search(r"[,;]\s|;|\s(?:and|or|&)\s", text, re.IGNORECASE)
    parts, start, level = [], 0, 0
    for found in (_SPACED if spaced else _UNSPACED).finditer(text):
        level += 1 if found["open"] else -1 if found["close"] else 0
        if not (found["open"] or found["close"]) and level == 0:
            parts.append(text[start:found.start()])
            start = found.end()
            kind = kind or ("|" if found[0].strip(" ,;").casefold() == "or" else "")
    parts = [_NAME.sub("", part.strip()) for part in (*parts, text[start:])]
    return kind, parts if all(parts) else [text]


def _closes_at_end(text: str) -> bool:
    level = 0
    for at, char in enumerate(text):
        level += (char in "([{") - (char in ")]}")
        if level == 0:
            return at == len(text) - 1
    return False


def _folded(text: str) -> str:
    """Words in lower case without articles and punctuation; what numbers and formulas are made of stays."""
    text = _ARTICLE.sub("", unicodedata.normalize("NFKC", text).casefold())
    text = re.sub(r"(?<=\b\w)\.(?=\w\b|$)|[\"“”`]", "", text)
    text = re.sub(r"(?<=[^\W\d_])-(?=[^\W\d_])|[,;.!?:]+(?=\s|$)", " ", text)
    return re.sub(r" ?([=+*/^<>()\[\]{}|]) ?", r"\1", " ".join(text.split()))
