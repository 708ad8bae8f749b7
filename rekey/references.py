"""How annotators name things: colors, object, owner and number of "blue jacket on the cyclist".

    parse_reference("blue jacket on the cyclist").object       # "jacket on the cyclist"
    parse_reference("orange-and-white lifebuoy").colors        # {"orange", "white"}
    kind("sedan") == kind("car")                               # one could be taken for the other

Questions are spelled from references without their colors (ReKey, Sec. 3.4), and sampling must know
which of two things could be meant.  The grammar is that of the released annotations: color words
(single, hyphenated, shaded, or joined by "and") before an object, then maybe a preposition and an owner.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from rekey.colors import COLORS

# What pool colors a word in an annotation may mean, the nearest first.  A renewed color is none of these.
COLOR_WORDS: dict[str, tuple[str, ...]] = {color: (color,) for color in COLORS} | {
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
    "aqua": ("blue", "green"), "mint": ("green",), "reddish": ("red",), "bluish": ("blue",), "yellowish": ("yellow",),
    "greenish": ("green",), "blackish": ("black",), "whitish": ("white",), "purplish": ("purple",),
    "pinkish": ("pink",), "brownish": ("brown",), "grayish": ("gray",), "greyish": ("gray",),
    "dark": ("black", "gray", "brown"),
    # No one color, so none that could be left out.
    "multi-colored": (), "multi-coloured": (), "two-tone": (), "colorful": (), "colourful": (), "multicolored": (),
    "multicoloured": (), "multicolor": (),
    "tricolor": (), "rainbow": (),
}
PATTERN_WORDS = {"striped": "striped", "stripy": "striped", "dotted": "dotted", "spotted": "dotted",
                 "polka-dot": "dotted", "polka": "dotted", "dot": "dotted", "checked": "checked",
                 "checkered": "checked", "plaid": "checked", "tartan": "checked", "plain": "plain"}
# Before a color word they belong to it ("sky blue"); elsewhere to the object ("light bulb").
_SHADES = frozenset(("light", "dark", "pale", "bright", "deep", "pastel", "neon", "sky", "baby", "royal", "hot",
                     "forest", "off", "jet", "lemon", "brick", "army", "sea", "cherry", "wine", "midnight"))
_PREPOSITIONS = ("on", "under", "in", "with", "near", "beside", "behind", "above", "below", "at", "of",
                 "next to", "in front of", "wearing", "holding", "riding", "carrying")
_IMPLIED = {"cyclist": "bicycle", "biker": "motorcycle", "motorcyclist": "motorcycle"}
_OWNER_STARTS = re.compile(r"\s(" + "|".join(sorted(_PREPOSITIONS, key=len, reverse=True))
                           + r")\s+(?:the |a |an )?")
_IRREGULAR = {"people": "person", "men": "man", "women": "woman", "children": "child", "mice": "mouse",
              "geese": "goose", "feet": "foot", "teeth": "tooth", "knives": "knife", "leaves": "leaf",
              "shelves": "shelf", "wolves": "wolf", "loaves": "loaf", "scarves": "scarf", "cookies": "cookie",
              "movies": "movie", "buses": "bus", "lenses": "lens", "gases": "gas", "canvases": "canvas", "skis": "ski",
              "taxis": "taxi", "ties": "tie", "pies": "pie", "shoes": "shoe", "canoes": "canoe"}
# Take "are" although they have no singular.
_ALWAYS_PLURAL = frozenset(("clothes", "pants", "shorts", "trousers", "jeans", "glasses", "sunglasses",
                            "goggles", "scissors", "tights", "leggings", "pajamas", "binoculars",
                            "headphones", "tongs", "pliers", "overalls", "briefs", "trunks"))
# End in s and take "is".
_SINGULAR_S = frozenset(("bus", "lens", "canvas", "gas", "chess", "atlas", "iris", "cactus", "tennis",
                         "compass", "octopus", "walrus", "virus", "campus", "circus"))

# Nouns that name one another's objects: "the car" is ambiguous beside a white sedan.
_KINDS = (
    ("bicycle", "bike"), ("car", "sedan", "suv", "taxi", "van", "jeep"), ("dog", "puppy", "retriever"),
    ("cat", "kitten"), ("bag", "handbag", "backpack", "purse"), ("lifebuoy", "float", "ring", "buoy"),
    ("cup", "mug"), ("boat", "speedboat", "kayak", "ship"), ("duck", "swan", "bird", "pigeon", "seagull"),
    ("hat", "cap", "beanie", "helmet"), ("poster", "painting", "picture"), ("phone", "smartphone"),
    ("statue", "sculpture"), ("bracelet", "wristband"), ("cart", "handcart", "trolley"),
    ("clothes", "shirt", "top", "jacket", "coat", "sweater", "blouse"), ("box", "carton"), ("bin", "can"),
    ("chair", "stool", "armchair"), ("motorcycle", "motorbike"),
    ("truck", "lorry"), ("flower", "blossom"), ("suitcase", "luggage"), ("mouse", "rat"),
    ("scooter", "moped"), ("bottle", "flask"), ("person", "man", "woman", "child"),
)
_KIND_OF = {word: words[0] for words in _KINDS for word in words}


@dataclass(frozen=True)
class Reference:
    """An annotated target taken apart: "blue jacket on the cyclist"."""

    colors: frozenset[str]
    """Pool colors that the color words may mean: {"blue"}."""
    color_words: tuple[str, ...]
    """The words themselves, as written: ("blue",)."""
    object: str
    """The reference without its colors: "jacket on the cyclist"."""
    name: str
    """The thing alone: "jacket"."""
    head: str
    """The noun that is named, in the singular where it has one: "jacket"."""
    owners: tuple[str, ...]
    """Head nouns of what follows the prepositions: ("cyclist",)."""
    pattern: str | None
    """"striped", "dotted", "checked" or "plain", where the annotator said so."""
    plural: bool

    @property
    def verb(self) -> str:
        return "are" if self.plural else "is"

    @property
    def named_colors(self) -> tuple[str, ...]:
        """The pool color nearest to each color word: ("gray",) for "silver"."""
        return tuple(dict.fromkeys(COLOR_WORDS[word.lower()][0] for word in self.color_words
                                   if COLOR_WORDS[word.lower()]))


@functools.cache
def parse_reference(reference: str) -> Reference:
    """Take a target's description apart: colors, object, head noun, owner, number."""
    item, link, owner = _split_owner(" ".join(reference.replace(",", " ").replace("&", " and ").split()))
    tokens, words = _without_colors(item.split())
    name = " ".join(tokens)
    lowered = [token.lower() for token in tokens]
    owners = [part.split()[-1].lower() for part in _OWNER_STARTS.split(owner)[::2] if part.split()]
    return Reference(
        colors=frozenset(color for word in words for color in COLOR_WORDS[word.lower()]),
        color_words=tuple(words), object=name + link + owner, name=name, head=singular(lowered[-1]) if lowered else "",
        owners=tuple(map(singular, owners)),
        pattern=next((PATTERN_WORDS[word] for word in lowered if word in PATTERN_WORDS), None),
        plural=is_plural(name))


def _split_owner(phrase: str) -> tuple[str, str, str]:
    """("blue jacket", " on the ", "cyclist") of "blue jacket on the cyclist"."""
    match = _OWNER_STARTS.search(phrase)
    if not match:
        return phrase, "", ""
    return phrase[:match.start()], match.group(), phrase[match.end():]


def _without_colors(tokens: list[str]) -> tuple[list[str], list[str]]:
    """(tokens that are no color, color words found).  The last token is always part of the object."""
    kept, words = [], []
    title_case = all(token[:1].isupper() for token in tokens)
    for n, token in enumerate(tokens[:-1]):
        following = tokens[n + 1]
        if token[:1].isupper() and following[:1].isupper() and not title_case:      # "Red Bull can"
            kept.append(token)
        elif token.lower() in _SHADES and n + 2 < len(tokens) and _color_parts(following):
            continue
        elif parts := _color_parts(token):
            words.extend(part for part in parts if part.lower() in COLOR_WORDS)
        elif not (token.lower() == "and" and words and _color_parts(following)):
            kept.append(token)
    return kept + tokens[-1:], words


def _color_parts(token: str) -> list[str] | None:
    """The color words of one token ("orange-and-white", "off-white"), or None if it holds anything else."""
    if token.lower() in COLOR_WORDS:
        return [token]
    parts = [part for part in re.split(r"[-/]", token) if part.lower() != "and" and part.lower() not in _SHADES]
    return parts if parts and all(part.lower() in COLOR_WORDS for part in parts) else None


def the(name: str) -> str:
    """The name with its article: "the jacket on the cyclist", but "Mickey Mouse"."""
    words = name.split()
    proper = len(words) > 1 and all(word[:1].isupper() for word in words)
    return name if proper else f"the {name}"


def a(phrase: str) -> str:
    """The phrase with its indefinite article: "an orange cat"."""
    return f"{'an' if phrase[:1].lower() in 'aeiou' else 'a'} {phrase}"


def is_plural(noun_phrase: str) -> bool:
    """Whether "are" goes with the phrase ("slippers", "shorts"), judged by its last word."""
    word = noun_phrase.split()[-1].lower() if noun_phrase.split() else ""
    if word in _ALWAYS_PLURAL or word in _IRREGULAR:
        return True
    return word.endswith("s") and not word.endswith(("ss", "us", "is")) and word not in _SINGULAR_S


def singular(word: str) -> str:
    """The singular of a lower-case noun; nouns that have none stay as they are."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word in _ALWAYS_PLURAL or not is_plural(word):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses", "zes")):
        return word[:-2]
    return word[:-1]


def scene_nouns(reference: Reference) -> tuple[str, ...]:
    """Everything that a reference says is in the scene, in the singular: a cyclist comes with a bicycle."""
    named = (reference.head, *reference.owners)
    return named + tuple(_IMPLIED[noun] for noun in named if noun in _IMPLIED)


def kind(noun: str) -> str:
    """A name shared by nouns that could be taken for each other; `noun` is a singular head noun."""
    return _KIND_OF.get(noun, noun)


def could_mean(name: str, target: str) -> bool:
    """Whether "the {name}" could be said of `target`, both given as references.

    A bare noun could mean anything of its kind ("car": a police car, a sedan); a longer name whatever
    has all of its words.
    """
    asked, other = parse_reference(name), parse_reference(target)
    if kind(asked.head) != kind(other.head):
        return False

    def words(reference: Reference) -> set[str]:
        rest = {singular(word) for word in reference.object.lower().split()} - {reference.head}
        return rest | {kind(reference.head)}

    return len(words(asked)) == 1 or words(asked) <= words(other)
