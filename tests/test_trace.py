"""Normalizations of recorded attention, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from probing import refused

from probes.trace import MIDDLE, ImageAttention, layers_near
from rekey.errors import InputError


def attention(scores: np.ndarray, **changes) -> ImageAttention:
    """A trace of `scores` (L, H, T) whose first row is token 9, with 5 image tokens and 4 layers in the model."""
    zero = np.zeros_like(scores)
    n_layers, _, n_steps = scores.shape
    values = dict(scores=scores, images=scores[None], region=zero, sink=zero, template=zero, question=zero,
                  generated=1 - scores, layers=tuple(range(n_layers)), query_index=9 + np.arange(n_steps),
                  n_image_tokens=5, n_region_tokens=0, n_layers=n_layers)
    return ImageAttention(**(values | changes))


RAMP = np.array([[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]],
                 [[0.0, 0.0], [0.2, 0.4]], [[1.0, 1.0], [0.0, 0.5]]], np.float32)         # (4, 2, 2)


def test_the_mean_is_over_layers_and_heads_and_a_percent_is_a_hundredth():
    one = attention(RAMP)
    assert one.mean() == pytest.approx([2.8 / 8, 3.9 / 8])
    assert one.percent() == pytest.approx([35.0, 48.75])


def test_a_band_holds_layers_by_their_share_of_the_models_depth():
    one = attention(RAMP)
    assert one.in_band((0.5, 0.75)) == [2] and one.in_band((0.0, 0.5)) == [0, 1]
    assert one.mean((0.5, 1.0)) == pytest.approx([1.2 / 4, 1.9 / 4])


def test_the_papers_band_of_36_layers_is_layers_18_to_21():
    scores = np.zeros((36, 1, 1), np.float32)
    one = attention(scores)
    assert [one.layers[i] for i in one.in_band((0.5, 0.6))] == [18, 19, 20, 21]


def test_a_band_counts_layers_of_the_model_where_only_some_were_recorded():
    some = attention(RAMP[[1, 3]], layers=(15, 31), n_layers=32)
    assert some.in_band((0.45, 0.5)) == [0] and some.in_band((0.9, 1.0)) == [1]
    with pytest.raises(InputError) as error:
        some.in_band((0.5, 0.6))
    assert str(error.value).startswith("layer band (0.5, 0.6): holds none of the recorded layers [15, 31] of 32;")


def test_enrichment_is_one_where_attention_is_spread_evenly():
    context = np.array([10, 11])
    even = np.broadcast_to(5 / context, (4, 2, 2)).astype(np.float32)
    one = attention(even)
    assert one.context_len.tolist() == [10, 11]
    assert one.enrichment() == pytest.approx([1.0, 1.0])
    assert one.per_token() == pytest.approx([0.1, 1 / 11])
    assert attention(2 * even).enrichment() == pytest.approx([2.0, 2.0])


def test_windows_before_and_after_the_intervention_do_not_share_its_first_token():
    scores = np.arange(10, dtype=np.float32)[None, None] / 100
    one = replace(attention(scores), t_swap=13)                      # rows are tokens 9 to 18; token 13 is row 4
    assert one.before_after(2) == pytest.approx((2.5, 4.5))
    assert one.before_after(100) == pytest.approx((1.5, 6.5))


def test_an_empty_window_is_nan_and_no_intervention_is_an_error():
    one = attention(np.full((1, 1, 3), 0.5, np.float32))
    before, after = replace(one, t_swap=9).before_after(2)
    assert np.isnan(before) and after == 50
    assert np.isnan(replace(one, t_swap=12).before_after(2)[1])
    with refused(r"^before_after: t_swap is not set; give the index of the first token after"):
        one.before_after()


@pytest.mark.parametrize("layers, n_layers, near", [
    (range(36), 36, (18, 19, 20, 21)), (range(94), 94, tuple(range(47, 57))), (range(5), 5, (2,)),
    ((3, 7, 11, 15, 19, 23, 27, 31), 32, (4,))])
def test_the_middle_band_is_the_papers_or_the_layer_nearest_to_it(layers, n_layers, near):
    """Positions among the layers given: Qwen3.5 attends in one layer of four."""
    assert layers_near(MIDDLE, layers, n_layers) == near
