"""Figures of attention: what is drawn is what was recorded, in the right place, legible in print and in gray."""

from dataclasses import replace

import numpy as np
import pytest
from traces import fake_trace

from experiments import attention_figures
from experiments.attention_figures import COLUMN_IN, PAGE_IN, POINTS, Windows, before_after, curves, heat_map
from experiments.attention_series import (
    Panel,
    by_condition,
    mean_line,
    panels_of,
    phrase_places,
    running_mean,
    smoothed,
    values,
)
from experiments.image_overlay import image_sinks, on_image, overlay, window_maps
from probes.layout import EncodedImage
from probes.trace_store import SeenImage
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.stats import Estimate

ALL = Panel("all", (0, 1, 2, 3))


def with_series(trace, series):
    """The trace with the same masses in all layers and heads."""
    scores = np.broadcast_to(np.asarray(series, np.float32), trace.attention.scores.shape)
    return replace(trace, attention=replace(trace.attention, scores=scores, images=scores[None]))


def all_figures():
    probe, base, turn = (fake_trace(name, n_after=12, token_grid=(6, 9)) for name in ("probe", "base", "multi-turn"))
    picture = np.full((96, 144, 3), 200, np.uint8)
    bars = Windows(Estimate(9, 8, 10, 40), Estimate(12, 11, 13.5, 40), [(8, 9), (10, 15)])
    long = {f"null swap, multi-turn, {name}": [probe, fake_trace("probe", "p1", n_before=90)] for name in "ab"}
    yield curves(long, layers=[2], width_in=COLUMN_IN)
    yield heat_map(fake_trace("probe", n_before=300, n_after=200), width_in=COLUMN_IN)
    yield before_after({"probe": bars, "multi-turn": Windows(bars.before, bars.after)}, width_in=COLUMN_IN)
    for width_in in (COLUMN_IN, PAGE_IN):
        yield curves(by_condition([base, probe, turn]), width_in=width_in)
        yield overlay(probe, picture, panels_of(probe)[0], changed=Box(10, 10, 40, 40), without_sinks=True,
                      width_in=width_in)


@pytest.fixture(scope="module")
def figures():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    made = list(all_figures())
    for figure in made:
        figure.set_dpi(100)
        FigureCanvasAgg(figure).draw()
    return made


def test_no_letter_is_smaller_than_seven_points(figures):
    from matplotlib.text import Text
    for figure in figures:
        sizes = {text.get_text(): text.get_fontsize() for text in figure.findobj(Text) if text.get_text().strip()}
        assert len(sizes) > 5
        assert {text: size for text, size in sizes.items() if size < POINTS} == {}


def test_nothing_is_cut_off_at_the_edge_of_the_paper(figures):
    for figure in figures:
        pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
        assert pixels.min() < 50
        for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
            assert edge.min() > 200, figure.get_size_inches()


def test_conditions_differ_in_gray_and_in_dashes():
    from matplotlib.colors import to_rgb
    styles = attention_figures._styles(["base", "probe", "multi-turn", "null swap, probe"])
    gray = sorted(float(np.dot(to_rgb(color), (0.299, 0.587, 0.114))) for color, _ in list(styles.values())[:3])
    assert min(np.diff(gray)) > 0.12
    assert len({str(dashes) for _, dashes in styles.values()}) == 4


def test_color_maps_get_lighter_or_darker_from_end_to_end():
    import matplotlib

    from experiments.image_overlay import OVERLAY_MAP
    for name in (attention_figures.COLOR_MAP, OVERLAY_MAP):
        gray = matplotlib.colormaps[name](np.linspace(0, 1, 64))[:, :3] @ (0.299, 0.587, 0.114)
        assert (np.diff(gray) > 0).all() or (np.diff(gray) < 0).all()


# ----------------------------------------------------------------------------------------------- lines

def test_the_running_mean_is_that_of_a_plain_loop():
    series = np.random.default_rng(0).random(23)
    for width in (1, 5, 9, 51):
        wanted = [series[max(0, k - width // 2):k + width // 2 + 1].mean() for k in range(23)]
        np.testing.assert_allclose(running_mean(series, width), wanted)


def test_smoothing_does_not_reach_over_the_ends_of_the_phrase():
    trace = fake_trace("probe")
    index = trace.attention.query_index
    steps = np.where(index < trace.t_phrase, 1.0, np.where(index < trace.t_after, 5.0, 2.0))
    np.testing.assert_allclose(smoothed(trace, steps, 9), steps)


def test_values_are_those_of_the_trace():
    trace = fake_trace("probe")
    np.testing.assert_allclose(values(trace, ALL.layers), trace.attention.percent(), rtol=1e-5)
    np.testing.assert_allclose(values(trace, ALL.layers, "enrichment"), trace.attention.enrichment(), rtol=1e-5)
    np.testing.assert_allclose(values(trace, (2,)), 100 * trace.attention.scores[2].mean(0), rtol=1e-5)


def test_a_mean_line_is_counted_by_hand_and_ends_where_most_trials_have_ended():
    one = fake_trace("probe", "p0", n_before=2, n_phrase=1, n_after=3)          # rows -1 ... 4: 6 of them
    two = fake_trace("probe", "p1", n_before=3, n_phrase=1, n_after=1)          # rows -1 ... 3
    three = fake_trace("probe", "p2", n_before=3, n_phrase=1, n_after=1)
    one = with_series(one, [.1, .2, .3, .4, .5, .6])
    two, three = with_series(two, [.5, .5, .5, .5, .1]), with_series(three, [.5, .5, .5, .5, .3])
    line = mean_line([one, two, three], ALL, "percent", "phrase", 1)
    # one begins 3 tokens before its phrase, the others 4; after the phrase's token only one goes on.
    assert line.at.tolist() == [-4, -3, -2, -1, 0]
    np.testing.assert_allclose(line.raw, [50, 110 / 3, 120 / 3, 130 / 3, 80 / 3], rtol=1e-5)
    assert (line.phrase, line.after, line.n) == (0, 1, 3)
    from_start = mean_line([one], ALL, "percent", "start", 1)
    assert (from_start.at[0], from_start.phrase, from_start.after) == (-1, 2, 3)


def test_a_base_trial_is_laid_where_the_phrase_stands_in_its_pair():
    base, probe = fake_trace("base", n_after=40), fake_trace("probe", n_before=17)
    line = mean_line([base], ALL, "percent", "phrase", 1, phrase_places([base, probe]))
    assert line.at[0] == -18, "the question's last token, then the 17 that the probe kept"
    assert line.phrase is None
    assert mean_line([fake_trace("base", "another")], ALL, "percent", "phrase", 1, phrase_places([probe])) is None


def test_conditions_are_named_apart_and_base_is_about_image_a():
    probe, base = fake_trace("probe"), fake_trace("base")
    half = replace(probe, cell=replace(probe.cell, kept=0.5))
    about_b = replace(base, cell=replace(base.cell, image="b"))
    groups = by_condition([fake_trace("null swap, probe"), half, probe, about_b, base])
    assert list(groups) == ["base", "probe, 50 % kept", "probe, 100 % kept", "null swap, probe"]
    assert groups["base"] == [base]
    assert list(by_condition([about_b, probe])) == ["base", "probe"]


def test_panels_are_the_layers_asked_for():
    trace = fake_trace("probe")
    assert panels_of(trace, layers=[1, -1]) == [Panel("layer 1", (1,)), Panel("layer 3", (3,))]
    assert panels_of(trace, bands=[(0.5, 1)]) == [Panel("layers 2 to 3", (2, 3))]
    with pytest.raises(InputError, match="layer 9: is none of the recorded layers"):
        panels_of(trace, layers=[9])
    with pytest.raises(InputError, match="trace all trials with the same --layers"):
        curves({"probe": [trace], "base": [fake_trace("base", n_layers=2)]}, layers=[3])


def test_curves_mark_the_phrase_and_where_the_model_goes_on():
    figure = curves({"probe": [fake_trace("probe", n_before=30, n_phrase=6)]}, layers=[2])
    marked = {line.get_xdata()[0]: line.get_markerfacecolor() for line in figure.axes[0].lines
              if line.get_marker() == "o"}
    assert list(marked) == [30, 36]
    assert marked[30] == "white" != marked[36]


def test_a_heat_map_shows_every_layer_and_step_under_the_tokens_that_are_read():
    trace = fake_trace("probe", n_before=10, n_phrase=4, n_after=8)
    figure = heat_map(trace)
    (axis,) = [axis for axis in figure.axes if axis.images]
    np.testing.assert_allclose(axis.images[0].get_array(), 100 * trace.attention.scores.mean(1), rtol=1e-5)
    labels = dict(zip(axis.get_xticks(), (text.get_text() for text in axis.get_xticklabels())))
    row = int(np.searchsorted(trace.attention.query_index, trace.t_phrase))
    assert labels[10] == trace.texts[row].replace(" ", "·")
    assert axis.images[0].get_extent()[:2] == [-1.5, 20.5]


# ----------------------------------------------------------------------------------------- over the image

CASES = {                                # size, seen, filled, patch grid
    "odd size": ((101, 67), (112, 56), (112, 56), (8, 4)),
    "reduced": ((270, 481), (112, 196), (112, 196), (8, 14)),
    "padded": ((90, 200), (112, 224), (84, 196), (8, 16)),
}


@pytest.mark.parametrize("name", CASES)
def test_every_token_lands_on_the_pixels_that_it_covers(name):
    size, seen, filled, (down, across) = CASES[name]
    grid = down // 2, across // 2
    image = SeenImage("b.png", "0", size, seen, filled, grid)
    encoded = EncodedImage(None, (1, down, across), 2, size, seen, filled)
    numbered = on_image(np.arange(grid[0] * grid[1]).reshape(grid), image)
    assert numbered.shape == size
    for token in np.unique(numbered):
        at = np.argwhere(numbered == token)
        (top, left), (bottom, right) = at.min(0), at.max(0) + 1
        assert len(at) == (bottom - top) * (right - left), "one token, one rectangle"
        try:
            assert encoded.tokens_in(Box(int(left), int(top), int(right), int(bottom))) == (token,)
        except InputError:                       # most of it is padding
            assert name == "padded" and (bottom == size[0] or right == size[1])
    n_padding = grid[0] * grid[1] - len(np.unique(numbered))
    assert n_padding == {"odd size": 0, "reduced": 0, "padded": 11}[name]
    hot = np.zeros(grid)
    hot[1, 1] = 1
    smooth = on_image(hot, image, smooth=True)
    assert numbered[np.unravel_index(smooth.argmax(), size)] == grid[1] + 1


def test_a_smaller_picture_of_the_image_gets_the_same_map():
    image = SeenImage("b.png", "0", (384, 576), (128, 192), (128, 192), (4, 6))
    weights = np.arange(24.0).reshape(4, 6)
    np.testing.assert_array_equal(on_image(weights, image, size=(192, 288)), on_image(weights, image)[::2, ::2])


def test_overlays_share_one_scale_and_say_how_many_sinks_were_left_out():
    trace = fake_trace("probe", token_grid=(6, 9))
    maps = {name: weights.copy() for name, weights in trace.maps.items()}
    for weights in maps.values():
        weights[:, 5, 8] = 3 * weights.sum((1, 2))
    maps["after"][:, 0, 1] = 3 * maps["after"].sum((1, 2))              # in one window alone: no sink
    trace = replace(trace, maps=maps)
    found = window_maps(trace, ALL, without_sinks=True)
    assert (found.n_sinks, found.n_changed_sinks) == (1, 0)
    assert np.isnan(found.maps["before"]).sum() == 1 and np.isnan(found.maps["before"][5, 8])
    assert image_sinks(list(maps.values())[0].mean(0)[None])[5, 8]
    np.testing.assert_allclose(found.change[0, 0], 100 * (maps["after"] - maps["before"])[:, 0, 0].mean(), rtol=1e-4)
    figure = overlay(trace, np.zeros((192, 288, 3), np.uint8), ALL, changed=Box(0, 0, 20, 20), without_sinks=True)
    heat = [axis.images[1] for axis in figure.axes if len(axis.images) == 2]
    assert len(heat) == 3 and len({image.get_clim() for image in heat}) == 1
    assert "left blank: 1 sink, over 10 times" in " ".join(figure.texts[0].get_text().split())
