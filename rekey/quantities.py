"""Numbers with units, as models and answer keys write them.

    quantity("$1{,}234.5\\text{ cm}^2$")                # value 2469/2, unit "cm^2", and the 0.1 that it is rounded to
    quantity("two and a half") is None                  # what it does not know stays text
    same_number(quantity("3.14159"), quantity("3.14"))  # True: the second one is the key, and has two decimals

VS-Bench (VisualSwap, Sec. 4) keeps the free-form questions of MathVista, MathVerse and MathVision, whose answers are
numbers, with or without units.  Values are exact fractions: nothing here computes with floats.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

LONGEST = 200
"""Characters of a text that may still be a number or an expression; anything longer is prose."""


class Quantity(NamedTuple):
    """A number, the unit it stands in ("" for none, "%" for percent), and the step of its last decimal.

    step is None for what is exact: integers, fractions, number words.
    """

    value: Fraction
    unit: str = ""
    step: Fraction | None = None


# ------------------------------------------------------------------------------------- one spelling

_COMMANDS = tuple((re.compile(pattern), to) for pattern, to in (
    (r"\\[dtc]frac(?![a-z])", r"\\frac"), (r"\\(?:left|right|displaystyle|limits|big|Big)(?![a-z])", ""),
    (r"\{,\}|\\!", lambda found: "," if found[0] == "{,}" else ""), (r"\\[,;:> ]|\\q?quad(?![a-z])|~", " "),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?:s|\b)", "°"), (r"\\%", "%"), (r"\\([{}#&_])", r"\1"), (r"\\pi(?![a-z])", "π"),
    (r"\\infty(?![a-z])", "∞"), (r"\\(?:approx|simeq|sim)(?:eq)?(?![a-z])", "≈"), (r"\\angle(?![a-z])", "∠"),
    (r"\\leq?(?:slant)?(?![a-z])", "≤"), (r"\\geq?(?:slant)?(?![a-z])", "≥"), (r"\\(?:cdot|times)(?![a-z])", "×"),
    (r"\\(?:omega|Omega)(?![a-z])", lambda found: "Ω" if "O" in found[0] else found[0]),
    (r"\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}", r" \1/\2"), (r"\\frac\s*(\d)\s*(\d)", r" \1/\2"),
))
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathbf|mathrm|mathit|mathsf|operatorname|mbox|boxed|fbox|bf|rm)"
                      r"\s*\{([^{}]*)\}")
_DOLLARS = re.compile(r"\$(?!\s)([^$\n]*(?:[^$\s]|\\[^$\n]*))\$(?!\d)")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻]+")
_ALIKE = str.maketrans({"−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "⁄": "/", "÷": "/", "∕": "/", "º": "°",
                        "˚": "°", "’": "'", "‘": "'", "“": '"', "”": '"', "µ": "μ", "⋅": "×", "∙": "×", "，": ","})
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_SQUARE_ROOT = re.compile(r"(?:√|\\?(?<![A-Za-z])sqrt)\s*(?:\(([^()]*)\)|(\d+|[A-Za-z])(?!\w))")
_EMPHASIS = re.compile(r"(?<![\w)])(?:\*\*|__)(?=\S)|(?<=\S)(?:\*\*|__)(?!\w)|`")
_ITALIC = re.compile(r"(?<![\w*])\*(\S[^*\n]*)\*(?![\w*])")


def plain(text: str) -> str:
    """A text in one spelling: without LaTeX wrappers, emphasis, quotation marks and a full stop at its end.

    Fractions and exponents of one character (½, cm²) are spelled out before Unicode's own normalization would melt
    them into the digits before them: 2½ is not 21/2, 10⁵ is not 105.
    """
    if not text.isascii():
        text = _VULGAR.sub(lambda found: f" {unicodedata.normalize('NFKC', found[0])}", text)
        text = _RAISED.sub(lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}", text.translate(_ALIKE))
        text = unicodedata.normalize("NFKC", text).translate(_ALIKE)
    if "$" in text:
        text = text.replace(r"\$", "\ue000").replace("$$", " ")
        text = _DOLLARS.sub(r"\1", text).replace("\ue000", "$")
    if "\\" in text or "{,}" in text or "~" in text:
        text = re.sub(r"\\[()\[\]]", " ", text)
        for _ in range(3):
            text = _WRAPPED.sub(r"\1", text)
        for pattern, to in _COMMANDS:
            text = pattern.sub(to, text)
    if "pi" in text:
        text = _PI.sub("π", text)
    if "sqrt" in text or "√" in text:
        text = _SQUARE_ROOT.sub(lambda found: rf"\sqrt{{{found[1] or found[2]}}}", text)
    if "*" in text or "__" in text or "`" in text:
        text = _ITALIC.sub(r"\1", _EMPHASIS.sub("", text))
    return " ".join(text.split()).strip(" \"'.,;:!。")


# ------------------------------------------------------------------------------------- units

_SPELLINGS = """
cm centimeter centimetre|m meter metre|mm millimeter millimetre|km kilometer kilometre|in inch inches|ft foot feet
yd yard|mi mile|g gram gramme|kg kilogram kilogramme kilo|mg milligram|lb pound|oz ounce|t ton tonne|s sec second
min minute|h hr hour|d day|wk week|mo month|yr year|° degree deg|rad radian|°C ℃ celsius|°F ℉ fahrenheit|K kelvin
l liter litre|ml milliliter millilitre|N newton|J joule|kJ kilojoule|W watt|kW kilowatt|V volt|A amp ampere
Ω ohm|Hz hertz|Pa pascal|mol mole|% percent pct|$ dollar usd|€ euro eur|£ gbp|¥ yen yuan rmb|₹ rupee inr|₩ won
¢ cent|mph|kph kmh|rpm
"""
_UNITS = {name: names.split()[0] for names in _SPELLINGS.replace("\n", "|").split("|") for name in names.split()}
_ONE_SPELLING = (("per cent", "%"), ("°celsius", "°C"), ("°fahrenheit", "°F"), ("mph", "mi/h"), ("kph", "km/h"))
_UNIT_PART = re.compile(r"(?P<name>[A-Za-zμΩ]+|°\s*[CFcf]?(?![A-Za-z])|[%$€£¥₹₩¢])\s*"
                        r"(?:\^?\s*\{?\s*(?P<power>-?[1-4])\}?)?\s*(?P<join>/|×|-|\bper\b|)\s*")
_PREFIXED = re.compile(r"[kMGmμn](?:W|V|A|Hz|J|N|Pa|Ω|s|m|g|mol)")
_WHERE = re.compile(r"\s+(?:(?:in|on|at|within|visible|shown|present)\s+(?!per\b|least\b|most\b)[A-Za-z][A-Za-z ]*"
                    r"|here|there|visible|shown|present)$")
_MEASURED_ALONG = frozenset("old long tall wide high deep thick away apart ahead total".split())
_NOT_A_UNIT = frozenset(
    "or more less fewer greater than least most and to past of out times but not if half halves quarter quarters third "
    "thirds hundred thousand million o clock until till plus minus over by versus vs x y z".split())


def unit(text: str) -> str | None:
    """A unit in one spelling: "square centimeters" and "cm2" are "cm^2", "apples" is "apple"; None for no unit at all.

    Any noun counts as a unit, in up to four words; where things are does not ("dogs in the picture").  Letters that
    could be variables (2x, 3ab) are no unit.
    """
    spaced, text = text[:1].isspace(), _WHERE.sub("", text).strip(" .")
    if not text:
        return ""
    if text in _UNITS:
        return _UNITS[text]
    text, parts, at, power, over = text.replace("·", "×"), [], 0, 1, False
    while at < len(text) and len(parts) < 4:
        found = _UNIT_PART.match(text, at)
        if not found:
            return None
        name, at = found["name"], found.end()
        folded = name.casefold()
        if folded in _NOT_A_UNIT:
            return None
        if folded in ("square", "sq", "cubic", "cu"):
            power = 2 if folded[0] == "s" else 3
            continue
        if folded in ("squared", "cubed") and parts:
            parts[-1] += "^2" if folded == "squared" else "^3"
            continue
        if folded in _MEASURED_ALONG and parts:
            continue
        known = _known(name)
        if known is None and (len(name) < 3 or not (spaced or parts or over)):
            return None
        power = int(found["power"] or power)
        shown = (known or folded.removesuffix("s")) + (f"^{power}" if power != 1 else "")
        parts.append(("/" if over else "") + shown)
        power, over = 1, found["join"] in ("/", "per")
    if at < len(text) or over:
        return None
    joined = " ".join(parts).replace(" /", "/").replace("° °", "°")
    for spelling, one in _ONE_SPELLING:
        joined = one if joined == spelling else joined
    return "" if joined.removesuffix("^2").removesuffix("^3") in ("unit", "") else joined


def split_unit(formula: str) -> tuple[str, str]:
    """A formula and the unit behind it: "12\\sqrt{3} cm" is ("12\\sqrt{3}", "cm")."""
    found = re.fullmatch(r"(.*[\dπ})])(\s+[A-Za-zΩ%][\w/^{} ]*|\s*°|\s*%|[A-Za-z]{2,}(?:\^?\{?\d\}?)?)", formula)
    measure = unit(found[2]) if found else None
    return (found[1], measure) if found and measure else (formula, "")


def _known(name: str) -> str | None:
    """A unit of the table, or one with a prefix, where mW is not MW; centimeters and CM are cm."""
    folded = name.casefold()
    for spelling in (name, folded, folded.removesuffix("s")):
        if spelling in _UNITS:
            return _UNITS[spelling]
        if spelling is name and _PREFIXED.fullmatch(name):
            return name
    return None


# ------------------------------------------------------------------------------------- numbers

_PLAIN = re.compile(r"[-+]?\d{1,18}(?:\.\d{1,18})?")
_NUMBER = re.compile(r"""
    (?P<sign>[-+]?) \s* (?P<currency>[$€£¥₹₩]?) \s* (?P<inner>-?)
    (?: (?:(?P<whole>\d{1,18})\s+)? (?P<top>\d{1,18})\s*/\s*(?P<bottom>\d{1,18}) (?![\d./])
      | (?P<point>[1-9]\d{0,2}(?:\.\d{3})+,\d+ | (?:0,\d+ | \d+,(?:\d{1,2}|\d{4,})) (?![\d,.]))
      | (?P<digits>(?:[1-9]\d{0,2}(?P<group>[, ])\d{3}(?:(?P=group)\d{3})*|\d+)(?![\d]) (?:\.\d*)? | \.\d+)
    ) (?:[eE](?P<exponent>[-+]?\d{1,3})(?!\w))? (?P<rest>.*)""", re.VERBOSE | re.DOTALL)
_POWER_OF_TEN = re.compile(r"(?:(?<=\d)\s*[×*xX]\s*|^)10\s*(?:\^|\*\*)\s*"
                           r"(?:\{\s*([-+]?\d{1,3})\s*\}|([-+]?\d{1,3}))(?![\d^{])")
_STEPS = tuple(Fraction(1, 10**places) for places in range(LONGEST + 1))
_SMALL = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
          "seventeen eighteen nineteen").split()
_WORDS = {word: number for number, word in enumerate(_SMALL)} | {"none": 0} | {
    word: 10 * number for number, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALE = re.compile(rf"\s*({'|'.join(_SCALES)})\b(?:\s*of\b)?", re.IGNORECASE)
_SHARE = re.compile(r"(?:(an?|one|two|three|four|five)[ -])?(half|halves|thirds?|quarters?|fourths?|fifths?)(?= of|$)")
_FIRST_WORD = re.compile(rf"(?:an?|minus|negative|half|{'|'.join([*_WORDS, *_SCALES])})\b", re.IGNORECASE)
_SHARES = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5}


def quantity(text: str) -> Quantity | None:
    """The number that a text is, with its unit; None where it is anything else.

    Read: 1,234.5 and 1 234.5; 0,5 and 1.234,5 (a comma that cannot separate thousands); 3/4, 1 1/2, ½; 6.02×10^23;
    $5, 50%, 24 cm²; two hundred and five, three quarters; 2.5 million; 3 dogs.
    """
    return plain_quantity(text if _PLAIN.fullmatch(text) else plain(text))


def plain_quantity(text: str) -> Quantity | None:
    """`quantity` of what `plain` gave."""
    if _PLAIN.fullmatch(text):
        return _read(text, "")
    if not text or len(text) > LONGEST:
        return None
    if "10" in text:
        text = _POWER_OF_TEN.sub(lambda power: f"{'' if power.start() else 1}e{power[1] or power[2]}", text)
    found = _NUMBER.match(text)
    if not found:
        return _in_words(text.casefold()) if _FIRST_WORD.match(text) else None
    digits, comma, rest = found["digits"], found["point"], found["rest"]
    if comma:
        digits = comma.replace(".", "").replace(",", ".")
    scale = _SCALE.match(rest)
    measure = unit(rest[scale.end():] if scale else rest)
    if measure is None or measure and found["currency"] or found["bottom"] and int(found["bottom"]) == 0:
        return None
    measure = measure or found["currency"]
    if digits:
        read = _read(digits.replace(",", "").replace(" ", ""), measure, int(found["exponent"] or 0))
    else:
        read = Quantity(int(found["whole"] or 0) + Fraction(int(found["top"]), int(found["bottom"])), measure)
    factor = (-1 if "-" in (found["sign"], found["inner"]) else 1) * (_SCALES[scale[1].casefold()] if scale else 1)
    return read._replace(value=factor * read.value, step=read.step and abs(factor) * read.step)


def _read(digits: str, measure: str, exponent: int = 0) -> Quantity:
    whole, _, decimals = digits.partition(".")
    if not decimals and not exponent:
        return Quantity(Fraction(int(whole)), measure)
    step = Fraction(1, 10 ** len(decimals)) * Fraction(10) ** exponent if exponent else _STEPS[len(decimals)]
    return Quantity(int(whole + decimals) * step, measure, step if decimals else None)


def _in_words(text: str) -> Quantity | None:
    """Numbers in words, with what they count: "twenty-one dogs", "minus five", "three quarters"."""
    if share := _SHARE.fullmatch(text.removesuffix(" of it").removesuffix(" of them")):
        if share[1] or share[2] == "half":
            many = _WORDS.get(share[1] or "", 1)
            return Quantity(Fraction(many, _SHARES[share[2].removesuffix("s")]))
    sign = -1 if text.startswith(("minus ", "negative ")) else 1
    words = [word for word in re.findall(r"[^\W\d_]+|\S", text) if word != "-"][sign < 0:]
    if words[:1] == ["a"] and words[1:] and words[1] in _SCALES:
        del words[0]
    total = part = used = 0
    for word in words:
        if word in _WORDS:
            part += _WORDS[word]
        elif word in _SCALES:
            part = (part or 1) * _SCALES[word]
            if _SCALES[word] > 100:
                total, part = total + part, 0
        elif not (word == "and" and used and words[used - 1] in _SCALES and words[used + 1:used + 2]
                  and words[used + 1] in _WORDS):
            break
        used += 1
    measure = unit(" " + " ".join(words[used:])) if used and words[used:] else ""
    return Quantity(Fraction(sign * (total + part)), measure) if used and measure is not None else None


def same_number(said: Quantity, gold: Quantity) -> bool:
    """Whether two quantities are the same, the second being the key.

    Units that both have must agree; none is converted, but a percentage also equals its share (50% and 0.5), and a bare
    number of at least 1 may be the figure of a percentage (50 and 50%).
    """
    if said.unit == gold.unit or not (said.unit and gold.unit):
        if "%" not in (said.unit, gold.unit) or said.unit == gold.unit:
            return _rounds_to(said, gold)
        bare = gold if said.unit == "%" else said
        return _rounds_to(_share(said), _share(gold)) or abs(bare.value) >= 1 and _rounds_to(said, gold)
    return False


def _share(number: Quantity) -> Quantity:
    if number.unit != "%":
        return number
    return Quantity(number.value / 100, "", number.step and number.step / 100)


def _rounds_to(said: Quantity, gold: Quantity) -> bool:
    """Equal; or within half a step of the last decimal that the key has; or, to a key that no decimal writes exactly
    (1/3), the right rounding to two decimals or more."""
    if said.value == gold.value:
        return True
    gap = abs(said.value - gold.value)
    if gold.step is not None:
        return gap <= gold.step / 2
    return said.step is not None and said.step <= Fraction(1, 100) and 10**20 % gold.value.denominator != 0 \
        and abs(said.value) >= 10 * said.step and gap <= said.step / 2
