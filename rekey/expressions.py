"""Whether two formulas are equal, by the library math_verify, which is never handed what could hang it.

    same_expression("\\sqrt{12}", "2\\sqrt{3}")         # True
    number_of("25\\pi")                                 # 78.5398..., as a fraction good to 30 digits
    same_expression("9^{9^{9}}", "1")                   # False: not looked at

math_verify's own time limit is a signal, which threads do not have, and a limit in seconds would let a grade depend on
the machine.  What limits it here is the form of a formula, and behind that a budget of function calls.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from rekey.errors import InputError

LONGEST = 150
GOOD_TO = Fraction(1, 10**25)
"""Relative error of a formula's value, generously."""
MOST_CALLS = 3_000_000
"""Of Python functions, in one comparison; ordinary ones take up to a million while sympy's caches are cold."""

_COMMAND = re.compile(r"\\([A-Za-z]+)")
_ALLOWED = frozenset(
    "frac sqrt pi sin cos tan cot sec csc arcsin arccos arctan log ln cdot times pm le ge leq geq lt gt alpha beta "
    "gamma delta epsilon theta lambda mu rho sigma tau phi varphi omega Delta".split())
_FUNCTIONS = re.compile(r"(?<![\\A-Za-z])(sin|cos|tan|log|ln)(?![A-Za-z])")
_SYMBOLS = (("π", r"\pi "), ("×", r"\cdot "), ("≤", r"\le "), ("≥", r"\ge "), ("**", "^"), ("*", r"\cdot "),
            ("±", r"\pm "))
_POWER = re.compile(r"\^\s*(?:\{([^{}^]*)\}|(-?\w))")
_NO_FORMULA = re.compile(
    r"[^\W\d_]{3}|[A-Za-z]\d|[^\x20-\x7e]|[!:;'\"@#$%&?~]|\d{16}|[-+*/]{3}|[A-Za-z]\s+[A-Za-z]"
    r"|\d-\d+-\d|\d/\s*\d+\s*/|\d \d")
_LOGARITHM = re.compile("log|ln")
_OPERATOR = re.compile(r"[-+*/^=<>|\\π]|\d\s*[A-Za-z(]|[)]\s*\(")


class _TooMuch(BaseException):
    """Not an Exception: the libraries catch those."""


def same_expression(said: str, gold: str) -> bool:
    """Whether two formulas are equal for every value of their variables.  Takes the spelling of quantities.plain."""
    if not (_is_formula(said) and _is_formula(gold)):
        return False
    if _LOGARITHM.search(said + " " + gold):        # sympy makes n log m a log m^n, in one step that nothing interrupts
        one, two = number_of(said), number_of(gold)
        return one is not None and two is not None and abs(one - two) <= GOOD_TO * max(1, abs(two))
    return bool(_limited(_compare, said, gold))


def number_of(text: str) -> Fraction | None:
    """The value of a formula without variables, good to 30 digits; None for anything else."""
    return _limited(_evaluate, text) if _is_formula(text) else None


def _is_formula(text: str) -> bool:
    """Whether a text can be a formula, and one of a size that is safe to compute with.

    Words are none (a product of letters does not know their order: red would be der), nor are labels (B2), dates and
    lists.  Towers of powers, long numbers, high powers of sums, and every command that computes are refused.
    """
    if len(text) > LONGEST or not _OPERATOR.search(text) or not {*_COMMAND.findall(text)} <= _ALLOWED:
        return False
    text = _latex(text)
    letters = _COMMAND.sub("+", text).replace("_", "")
    if _NO_FORMULA.search(letters):
        return False
    powers = ["".join(found) for found in _POWER.findall(text)]
    numbers = [int(number) for power in powers for number in re.findall(r"\d+", power)]
    variables = len({*re.findall(r"[A-Za-z]", letters)})
    # What is multiplied out has at most degree 8 in 4 variables, and an equation is solved at most in degree 4.
    highest = 1000 if not variables else 4 if re.search("[=<>]", text) else 8 if "(" in text or "{" in text else 100
    return len(powers) == text.count("^") and math.prod(number or 1 for number in numbers) <= highest \
        and variables <= 4 and text.count("(") + text.count("{") <= 16 and len(_COMMAND.findall(text)) <= 16


def _latex(text: str) -> str:
    for symbol, command in _SYMBOLS:
        text = text.replace(symbol, command)
    return _FUNCTIONS.sub(r"\\\1", text)


def _compare(said: str, gold: str) -> bool:
    verify, parse = _library()
    one, two = parse(gold), parse(said)
    return bool(one and two) and verify(one, two, timeout_seconds=None)


def _evaluate(text: str) -> Fraction | None:
    _, parse = _library()
    found = parse(text)
    if len(found) != 1 or not getattr(found[0], "is_number", False):
        return None
    value = found[0].evalf(30)
    return Fraction(str(value)) if value.is_Float and value.is_finite or value.is_Integer else None


@functools.cache
def _library() -> tuple[Callable[..., bool], Callable[[str], list[Any]]]:
    """(verify, parse), imported late: it takes most of a second.

    Its removal of units is off, since it also removes variables (4ab would be 4).
    """
    try:
        from latex2sympy2_extended import NormalizationConfig
        from math_verify import LatexExtractionConfig, parse, verify
    except ImportError as error:
        raise InputError("answers with formulas need the package math-verify: pip install math-verify") from error
    logging.getLogger("math_verify").setLevel(logging.ERROR)          # else it warns of the time limit we do not use
    settings = [LatexExtractionConfig(normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"))]

    def parsed(text: str) -> list[Any]:
        return parse(f"${_latex(text)}$", settings, fallback_mode="no_fallback", parsing_timeout=None)

    return verify, parsed


def _limited(compute: Callable[..., Any], *texts: str) -> Any:
    """What a computation gives, or None where it fails or takes too many calls."""
    _library()
    try:
        with _call_budget(MOST_CALLS):
            return compute(*texts)
    except (_TooMuch, Exception):
        return None


@contextlib.contextmanager
def _call_budget(most: int) -> Iterator[None]:
    """Ends what runs inside after that many function calls; in this thread only."""
    left, before = most, sys.gettrace()

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise _TooMuch

    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)
