"""Tokens as they can be shown in a figure: spaces visible, CJK and emoji in a font that has them (VisualSwap, Fig. 3).

    labels = shown([" the", "\\n", "猫", "$x_1$"])               # "·the", "↵", "猫", ...
    axis.set_xticks(at, labels.texts, fontfamily=labels.families)

A character that no installed font has is shown by its code, "[U+732B]": never as an empty box.
"""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from collections.abc import Iterable, Sequence

BASE_FAMILY = "DejaVu Sans"                     # comes with matplotlib
SPACE, LINE_END, TAB, RETURN = "·", "↵", "⇥", "⏎"
PART = "⋯"
"""Stands for a token that completes no character."""
MAX_CHARS = 14
REGULAR = 400                                   # a font's weight
MAX_CODES = 2
_PREFERRED = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei",
              "Microsoft YaHei", "PingFang SC", "Hiragino Sans GB", "Arial Unicode MS", "Noto Emoji", "Symbola",
              "Segoe UI Emoji", "Segoe UI Symbol", "Noto Sans Symbols 2", "Noto Sans Symbols", "Unifont")
"""Where several fonts have a character; all others follow by name."""
_WIDE = ("W", "F")


@dataclasses.dataclass(frozen=True)
class Shown:
    """Labels ready for matplotlib ("$" escaped), and the fonts to look for their characters in, in that order."""

    texts: tuple[str, ...]
    families: tuple[str, ...]


def shown(tokens: Iterable[str], max_chars: int = MAX_CHARS) -> Shown:
    """Labels of tokens.  max_chars: longer ones are cut, wide characters counting twice."""
    texts = [cut(visible(token), max_chars) for token in tokens]
    family_of = families_for("".join(texts))
    found = dict.fromkeys((BASE_FAMILY, *filter(None, family_of.values())))
    return Shown(tuple(_escaped(_with_codes(text, family_of)) for text in texts), tuple(found))


def visible(token: str) -> str:
    """A token with its spaces and line ends visible, and without what only joins or varies emoji."""
    if not token:
        return PART
    text = "".join(map(_visible, token))
    return "".join(char for char in text if not _joins(char)) or text


def _visible(char: str) -> str:
    if char in "\t\r":
        return TAB if char == "\t" else RETURN
    if char == "\n" or unicodedata.category(char) in ("Zl", "Zp"):
        return LINE_END
    return SPACE if unicodedata.category(char) == "Zs" else char


def _joins(char: str) -> bool:
    """Whether it shows nothing of its own: zero width joiners, variation selectors, direction marks."""
    return unicodedata.category(char) == "Cf" or "\ufe00" <= char <= "\ufe0f"


def cut(text: str, max_chars: int = MAX_CHARS) -> str:
    width = 0
    for n, char in enumerate(text):
        width += 2 if unicodedata.east_asian_width(char) in _WIDE else 1
        if width > max_chars:
            return text[:n] + "…"
    return text


def _with_codes(text: str, family_of: dict[str, str | None]) -> str:
    """The text with codes in place of characters that no font has; a run of them in one pair of brackets."""
    parts: list[str] = []
    missing: list[str] = []
    for char in text:
        if family_of[char] is None:
            missing.append(char)
            continue
        parts += _codes(missing)
        parts.append(char)
        missing.clear()
    return "".join([*parts, *_codes(missing)])


def _codes(chars: Sequence[str]) -> list[str]:
    if not chars:
        return []
    listed = " ".join(f"{ord(char):04X}" for char in chars[:MAX_CODES])
    return [f"[U+{listed}{'…' if len(chars) > MAX_CODES else ''}]"]


def _escaped(text: str) -> str:
    return text.replace("$", r"\$")              # two of them would be read as mathematics


# ------------------------------------------------------------------------------------------ fonts

def families_for(text: str) -> dict[str, str | None]:
    """For every character, an installed font family that can draw it; None where there is none."""
    family_of: dict[str, str | None] = {char: None for char in sorted(set(text))}
    waiting = set(family_of)
    for family in (BASE_FAMILY, *(_others() if waiting - _drawn_by(BASE_FAMILY, frozenset(waiting)) else ())):
        drawn = _drawn_by(family, frozenset(waiting))
        family_of |= dict.fromkeys(drawn, family)
        waiting -= drawn
        if not waiting:
            break
    return family_of


@functools.cache
def _others() -> tuple[str, ...]:
    """Names of all installed families but the base."""
    from matplotlib import font_manager
    manager = font_manager.fontManager
    # matplotlib lists the fonts of a machine once and keeps the list for later: one installed since is not in it.
    listed = {entry.fname for entry in manager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - listed):
        try:
            manager.addfont(path)
        except (RuntimeError, OSError):          # a kind of font that it cannot read
            continue
    names = {entry.name for entry in manager.ttflist} - {BASE_FAMILY}
    # Its last resort draws boxes with the block's name.
    names = {name for name in names if not name.startswith(("Last Resort", "."))}
    first = [name for name in _PREFERRED if name in names]
    return (*first, *sorted(names.difference(first)))


@functools.lru_cache(maxsize=4096)
def _drawn_by(family: str, chars: frozenset[str]) -> frozenset[str]:
    """Those of the characters that the family's regular face has and can draw as an outline."""
    font = _face(family)
    if font is None:
        return frozenset()
    return frozenset(char for char in chars if ord(char) in _charmap(family) and _has_ink(font, char))


def _has_ink(font, char: str) -> bool:
    """Whether it leaves a mark: color fonts hold pictures where others hold outlines, and would leave a gap."""
    try:
        glyph = font.load_char(ord(char))
    except (RuntimeError, ValueError):
        return False
    return glyph.width > 0


@functools.cache
def _charmap(family: str) -> frozenset[int]:
    font = _face(family)
    return frozenset(font.get_charmap() if font is not None else ())


@functools.cache
def _face(family: str):
    """The face that matplotlib takes for a family in regular weight; None where it cannot be drawn at any size."""
    from matplotlib import font_manager
    _make_regular(font_manager.fontManager, family)
    try:
        path = font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False)
        font = font_manager.get_font(path)
    except (ValueError, RuntimeError, OSError):
        return None
    return font if getattr(font, "scalable", True) else None


def _make_regular(manager, family: str) -> None:
    """List a family that has other weights alone as regular too, or matplotlib would tell of it at every label."""
    upright = [entry for entry in manager.ttflist if entry.name == family and entry.style == "normal"]
    if upright and not any(_weight(entry) == REGULAR for entry in upright):
        closest = min(upright, key=lambda entry: abs(_weight(entry) - REGULAR))
        manager.ttflist.append(dataclasses.replace(closest, weight=REGULAR))


def _weight(entry) -> int:
    from matplotlib.font_manager import weight_dict
    return weight_dict.get(entry.weight, REGULAR) if isinstance(entry.weight, str) else entry.weight
