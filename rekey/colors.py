"""The color pool, color words in references, and the name of a measured color.

    parse_reference("blue jacket on the cyclist").object       # "jacket on the cyclist"
    parse_reference("orange-and-white lifebuoy").colors        # {"orange", "white"}
    name_shares(lab)                                           # (n, 11) votes for the pool's names

The pool is that of ReKey (Sec. 3.2 and the released code).  Measured colors are named by a vote
of the nearest entries of the xkcd color survey (CC0; 949 named colors, of which those whose last
word is a pool name are used), so no hand-set prototype decides.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import numpy as np

COLORS = ("red", "blue", "yellow", "green", "black", "white",
          "orange", "purple", "pink", "brown", "gray")

CONFUSABLE = frozenset(map(frozenset, (
    ("red", "pink"), ("red", "orange"), ("red", "brown"), ("yellow", "orange"), ("yellow", "brown"),
    ("orange", "brown"), ("purple", "pink"), ("purple", "blue"), ("black", "gray"), ("white", "gray"))))
"""Pairs whose border people draw differently; never offered together except as answer and lure."""

# What pool colors a word in an annotation may mean.  A renewed color is never one of these.
_WORDS: dict[str, tuple[str, ...]] = {color: (color,) for color in COLORS} | {
    "grey": ("gray",), "golden": ("yellow", "orange", "brown"), "gold": ("yellow", "orange", "brown"),
    "silver": ("gray", "white"), "silvery": ("gray", "white"), "navy": ("blue",), "azure": ("blue",),
    "beige": ("brown", "white"), "tan": ("brown",), "khaki": ("brown", "yellow", "green"),
    "cream": ("white", "yellow"), "ivory": ("white",), "maroon": ("red", "brown"),
    "burgundy": ("red", "purple"), "crimson": ("red",), "scarlet": ("red",), "violet": ("purple",),
    "lavender": ("purple",), "lilac": ("purple",), "magenta": ("pink", "purple"),
    "turquoise": ("blue", "green"), "teal": ("blue", "green"), "cyan": ("blue", "green"),
    "rose": ("pink", "red"), "salmon": ("pink", "orange"), "peach": ("pink", "orange"),
    "bronze": ("brown",), "copper": ("brown", "orange"), "olive": ("green",), "lime": ("green",),
    "indigo": ("blue", "purple"), "charcoal": ("black", "gray"), "blond": ("yellow",),
    "blonde": ("yellow",), "ginger": ("orange",), "mustard": ("yellow",), "coral": ("orange", "pink"),
    "colorful": (), "colourful": (), "multicolored": (), "multicoloured": (), "multicolor": (),
    "tricolor": (), "rainbow": (),
}
_SHADES = frozenset(("light", "dark", "pale", "bright", "deep", "pastel", "neon"))
# Here the color word is part of the noun: "golden retriever" asks about a retriever's color no less,
# but "what color is the retriever" would ask about another animal.
_COMPOUNDS = frozenset(("golden retriever", "orange juice", "red panda", "black hole", "white board",
                        "green house", "gold medal", "silver medal", "rose bush", "olive tree"))
PATTERN_WORDS = {"striped": "striped", "stripy": "striped", "dotted": "dotted", "spotted": "dotted",
             "polka-dot": "dotted", "checked": "checked", "checkered": "checked", "plaid": "checked",
             "tartan": "checked", "plain": "plain"}
_PREPOSITIONS = ("on", "under", "in", "with", "near", "beside", "behind", "above", "below", "at", "of",
                 "next to", "in front of")

# Nouns that take "are" although English has no singular for them, or that end in s without being plural.
_ALWAYS_PLURAL = frozenset(("clothes", "pants", "shorts", "trousers", "jeans", "glasses", "sunglasses",
                            "goggles", "scissors", "tights", "leggings", "pajamas", "binoculars",
                            "headphones", "people", "children", "men", "women", "feet", "teeth", "mice",
                            "geese", "tongs", "pliers", "overalls", "briefs", "swimming trunks"))
_SINGULAR_S = frozenset(("bus", "lens", "canvas", "gas", "glass", "dress", "chess", "atlas", "iris",
                         "cactus", "tennis", "compass", "mattress", "octopus", "walrus", "virus", "hippopotamus",
                         "cutlass", "hourglass", "grass", "cross", "moss", "boss", "campus", "circus"))


@dataclass(frozen=True)
class Reference:
    """An annotated target taken apart: "blue jacket on the cyclist"."""

    colors: frozenset[str]
    """Pool colors that the color words may mean: {"blue"}."""
    color_words: tuple[str, ...]
    """The words themselves, as written: ("blue",)."""
    object: str
    """The reference without its colors: "jacket on the cyclist"."""
    head: str
    """The noun that is named, in the singular where it has one: "jacket"."""
    owner: str | None
    """Head noun of what follows the preposition: "cyclist"."""
    pattern: str | None
    """"striped", "dotted", "checked" or "plain", where the annotator said so."""
    plural: bool

    @property
    def verb(self) -> str:
        return "are" if self.plural else "is"


def _color_parts(token: str) -> list[str] | None:
    """The color words of one token ("orange-and-white"), or None if it is not all color words."""
    parts = [p for p in re.split(r"[-/]", token.lower()) if p != "and"]
    return parts if parts and all(p in _WORDS or p in _SHADES for p in parts) else None


@functools.cache
def parse_reference(reference: str) -> Reference:
    """Take a target's description apart: colors, object, head noun, owner, number.

    The grammar is that of the released annotations: color words (single, hyphenated, shaded, or
    joined by "and"), then an object, then maybe a preposition and an owner.
    """
    tokens = reference.split()
    colors: set[str] = set()
    words: list[str] = []
    start = 0
    while start < len(tokens) - 1:                   # the last word is always part of the object
        if " ".join(tokens[start:start + 2]).lower() in _COMPOUNDS:
            colors.update(_WORDS[tokens[start].lower()])   # stays in the object, yet is its old color
            break
        parts = _color_parts(tokens[start])
        joining = tokens[start].lower() == "and" and words and _color_parts(tokens[start + 1])
        if parts is None and not joining:
            break
        for part in parts or ():
            if part in _WORDS:
                words.append(part)
                colors.update(_WORDS[part])
        start += 1
    rest = " ".join(tokens[start:])
    item, _, owner_part = _split_owner(rest)
    head_word = item.split()[-1].lower() if item else ""
    pattern = next((PATTERN_WORDS[w] for w in item.lower().split() if w in PATTERN_WORDS), None)
    return Reference(frozenset(colors), tuple(words), rest, _singular(head_word),
                     _singular(owner_part.split()[-1].lower()) if owner_part else None,
                     pattern, is_plural(item))


def _split_owner(phrase: str) -> tuple[str, str, str]:
    """("jacket", "on", "cyclist") of "jacket on the cyclist"."""
    match = re.search(r"\s(" + "|".join(sorted(_PREPOSITIONS, key=len, reverse=True)) + r")\s+(?:the |a |an )?",
                      phrase)
    if not match:
        return phrase, "", ""
    owner = phrase[match.end():]
    owner = re.split(r"\s(?:riding|wearing|holding|" + "|".join(_PREPOSITIONS) + r")\s", owner)[0]
    return phrase[:match.start()], match.group(1), owner


def is_plural(noun_phrase: str) -> bool:
    """Whether "are" goes with the phrase ("slippers", "shorts"), judged by its last word."""
    word = noun_phrase.split()[-1].lower() if noun_phrase.split() else ""
    if word in _ALWAYS_PLURAL:
        return True
    return word.endswith("s") and not word.endswith(("ss", "us", "is")) and word not in _SINGULAR_S


def _singular(word: str) -> str:
    if word in _ALWAYS_PLURAL or not is_plural(word):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses", "zes")):
        return word[:-2]
    return word[:-1]


# ------------------------------------------------------------------------ measured colors

ACHROMATIC_CHROMA = 7.0     # below this CIELAB chroma a pixel is black, gray or white by lightness
BLACK_BELOW_L, WHITE_FROM_L, DARK_L = 28.0, 82.0, 12.0
_NEIGHBORS = 7
_LIGHTNESS_WEIGHT = 0.8     # hue decides a name more than lightness does


def to_lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB (D65), float32 (..., 3), of uint8 or [0, 1] float sRGB of shape (height, width, 3)."""
    import cv2
    scaled = rgb.astype(np.float32) / 255 if rgb.dtype == np.uint8 else rgb.astype(np.float32)
    return cv2.cvtColor(np.ascontiguousarray(scaled), cv2.COLOR_RGB2LAB)


@functools.cache
def _survey():
    """(k-d tree over weighted Lab, name index per entry, weight per name) of the xkcd survey."""
    from matplotlib.colors import XKCD_COLORS, to_rgb
    from scipy.spatial import cKDTree
    entries = [(name.split(":")[1].split()[-1].replace("grey", "gray"), to_rgb(value))
               for name, value in sorted(XKCD_COLORS.items())]
    entries = [(COLORS.index(name), rgb) for name, rgb in entries if name in COLORS]
    names = np.array([name for name, _ in entries])
    lab = to_lab(np.array([[rgb for _, rgb in entries]], np.float32))[0]
    # A name with many survey entries must not win by their number alone.
    weight = 1 / np.sqrt(np.bincount(names, minlength=len(COLORS)))
    return cKDTree(lab * (_LIGHTNESS_WEIGHT, 1, 1)), names, weight


def name_shares(lab: np.ndarray) -> np.ndarray:
    """Votes for each pool name: float32 (n, 11), rows sum to 1, for CIELAB pixels (n, 3)."""
    tree, names, weight = _survey()
    lab = np.asarray(lab, np.float32).reshape(-1, 3)
    distance, index = tree.query(lab * np.array((_LIGHTNESS_WEIGHT, 1, 1), np.float32), k=_NEIGHBORS)
    names, vote = names[index], weight[names[index]] / (3 + distance)            # (n, 7)
    shares = np.zeros((len(lab), len(COLORS)), np.float32)
    for c in range(len(COLORS)):
        shares[:, c] = (vote * (names == c)).sum(1)
    lightness, chroma = lab[:, 0], np.hypot(lab[:, 1], lab[:, 2])
    achromatic = chroma < ACHROMATIC_CHROMA
    for name, where in (("black", achromatic & (lightness < BLACK_BELOW_L) | (lightness < DARK_L)),
                        ("gray", achromatic & (lightness >= BLACK_BELOW_L) & (lightness < WHITE_FROM_L)),
                        ("white", achromatic & (lightness >= WHITE_FROM_L))):
        shares[where] = 0
        shares[where, COLORS.index(name)] = 1
    return shares / (shares.sum(1, keepdims=True) + 1e-9)
