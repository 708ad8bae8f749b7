"""Token labels: what is visible, what is drawn, and in which font."""

import logging
import warnings

import pytest

from experiments import token_text
from experiments.token_text import BASE_FAMILY, PART, families_for, shown

fonttools = pytest.importorskip("fontTools.ttLib")
NOWHERE = "\U00105678"                   # for private use: no font has it
ODD = (" the", "\n", "猫", "你好世界", "$x_1$", "\\$a$b$", "^2_", "😀", "👩‍👩‍👧", "❤️", "", "한국어", "नमस्ते", "\x07",
       "\u200b", "\r\n", "\u2009", "\t", NOWHERE, "a" * 40, "\ufffd", "العربية", "e\u0301")


def drawn(labels, points=20):
    """The labels in a picture, (height, width) of darkness; fails on any warning."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    figure = Figure(figsize=(8, 1.2), dpi=100, layout="constrained")
    axis = figure.subplots()
    axis.set_xlim(-0.5, len(labels.texts) - 0.5)
    axis.set_xticks(range(len(labels.texts)), labels.texts, fontfamily=labels.families, fontsize=points)
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        canvas.draw()
    return 255 - np.asarray(canvas.buffer_rgba())[..., 0].astype(int), figure, axis


def test_spaces_line_ends_and_parts_of_characters_are_visible():
    assert shown([" the", "a\n\nb", "\t", "\u3000x", "", "\r\n"]).texts == ("·the", "a↵↵b", "⇥", "·x", PART, "⏎↵")


def test_long_tokens_are_cut_and_wide_characters_count_twice(monkeypatch):
    monkeypatch.setattr(token_text, "families_for", lambda text: dict.fromkeys(text, BASE_FAMILY))
    labels = shown(["abcdef", "abcdefg", "猫猫猫", "猫猫猫猫"], max_chars=6)
    assert labels.texts == ("abcdef", "abcdef…", "猫猫猫", "猫猫猫…")


def test_joiners_and_variation_selectors_are_not_drawn():
    assert token_text.visible("👩‍👧") == "👩👧"
    assert token_text.visible("❤️") == "❤"
    assert shown(["\u200b"]).texts == ("[U+200B]",), "a token of nothing else is told by its code"


def test_what_no_font_has_is_told_by_its_code(monkeypatch):
    assert shown([f"a{NOWHERE}b"]).texts == ("a[U+105678]b",)
    monkeypatch.setattr(token_text, "_others", lambda: ())           # a machine with matplotlib's own fonts alone
    labels = shown(["猫", "x你好世界y", "é"])
    assert labels.texts == ("[U+732B]", "x[U+4F60 597D…]y", "é")
    assert labels.families == (BASE_FAMILY,)


def test_every_character_of_a_label_is_in_one_of_its_fonts():
    from matplotlib import font_manager
    labels = shown(ODD)
    held = set()
    for family in labels.families:
        path = str(font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False))
        held |= set(fonttools.TTFont(path, fontNumber=0).getBestCmap())
    assert {char for text in labels.texts for char in text if ord(char) not in held} == set()


def test_odd_labels_are_drawn_without_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        drawn(shown(ODD), points=17)       # matplotlib tells of a font once at each size
    assert caplog.records == []


@pytest.mark.parametrize("token", ("$x_1$", "a$b$c^2", "\\$a$b$", "$$"))
def test_dollars_are_letters_and_open_no_mathematics(token):
    from matplotlib.text import Text
    (label,) = shown([token]).texts
    _, figure, axis = drawn(shown([token]))
    as_is = Text(0, 0, token, parse_math=False, fontsize=20, figure=figure)
    renderer = figure.canvas.get_renderer()
    got, wanted = axis.get_xticklabels()[0].get_window_extent(renderer), as_is.get_window_extent(renderer)
    assert (got.width, got.height) == (wanted.width, wanted.height)


@pytest.mark.parametrize("pair", ("猫狗", "😀😢"))
def test_cjk_and_emoji_are_drawn_as_themselves(pair):
    if None in families_for(pair).values():
        pytest.skip(f"no installed font has {pair}: install fonts-wqy-zenhei and fonts-symbola, say")
    first, second = (drawn(shown([char]))[0] for char in pair)
    assert shown(pair).texts == tuple(pair)
    assert first.sum() > 0 and (first != second).mean() > 0.001, "two characters, two shapes: not one empty box twice"
