"""Which recorded rows belong to which sequence: every token once, however states were forked, cut, swapped and read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from probing import CROPPABLE, QUESTION, image, tiny_vlm

from probes.attention import recording_image_attention, rescore
from probes.decode import decode
from probes.prefix import extend, fork, prefill, select, stack, with_logits
from probes.swap import swap
from probes.trace import ImageAttention

SAID = " it is red or blue so let me look"
GROUPS = ("scores", "images", "region", "sink", "template", "question", "generated")


def texts(family: str = "qwen3_vl"):
    """A model, a prompt, the ids it has said, and another image of the same size."""
    vlm = tiny_vlm(family)
    return vlm, vlm.prompt(image(0), QUESTION), vlm.encode(SAID), vlm.encode_image(image(9))


def farthest(a: ImageAttention, b: ImageAttention, rows: slice = slice(None)) -> float:
    return max(np.abs(getattr(a, name)[..., rows] - getattr(b, name)[..., rows]).max() for name in GROUPS)


@pytest.mark.parametrize("family", CROPPABLE)
def test_a_spliced_sequence_is_one_that_keeps_its_rows_from_before_the_swap(family):
    vlm, prompt, said, other = texts(family)
    n = len(prompt) + len(said)
    with recording_image_attention(vlm) as trace:
        state = prefill(vlm, [prompt.then(said)])
        out = decode(vlm, swap(vlm, state, [other], "splice"), 5, stop_ids=())[0]
    found, = trace.sequences()
    assert found.query_index.tolist() == list(range(len(prompt) - 1, n + 4))
    under_old = rescore(vlm, prompt, [*said, *out.ids])
    before = slice(0, len(said))                       # of those, the last is read once more after the swap
    assert farthest(found, under_old, before) < 1e-5 < 1e-3 < farthest(found, under_old, slice(len(said), None))
    old, new = replace(found, t_swap=n).before_after(n=4)
    assert np.isclose(old, 100 * found.scores[..., -8:-4].mean())
    assert np.isclose(new, 100 * found.scores[..., -4:].mean()) and abs(old - new) > 1e-3


def test_of_text_that_was_read_before_the_block_a_splice_leaves_only_what_was_read_in_it():
    vlm, prompt, said, other = texts()
    n = len(prompt) + len(said)
    state = prefill(vlm, [prompt.then(said)])
    with recording_image_attention(vlm) as trace:
        decode(vlm, swap(vlm, state, [other], "splice"), 5, stop_ids=())
    assert [found.query_index.tolist() for found in trace.sequences()] == [list(range(n - 1, n + 4))]


def test_two_splices_of_one_text_keep_one_copy_of_every_row():
    vlm, prompt, said, other = texts()
    with recording_image_attention(vlm) as trace:
        state = swap(vlm, prefill(vlm, [prompt.then(said)]), [other], "splice")
        out = decode(vlm, swap(vlm, state, list(prompt.images), "splice"), 5, stop_ids=())[0]
    found, = trace.sequences()
    assert farthest(found, rescore(vlm, prompt, [*said, *out.ids])) < 1e-5, "back to the old image: as if never swapped"


def test_a_recomputed_text_is_a_sequence_of_its_own_beside_the_old_one():
    vlm, prompt, said, other = texts()
    with recording_image_attention(vlm) as trace:
        state = prefill(vlm, [prompt.then(said)])
        out = decode(vlm, swap(vlm, state, [other], "recompute"), 5, stop_ids=())[0]
    old, new = trace.sequences()
    assert farthest(old, rescore(vlm, prompt, [*said, 5])) < 1e-5
    assert farthest(new, rescore(vlm, prompt.with_images([other]), [*said, *out.ids])) < 1e-5


def through_forks_that_read_nothing(vlm, state, n: int):
    return fork(fork(state, n + 6), n + 3)


@pytest.mark.parametrize("cut", [lambda vlm, state, n: fork(state, n + 3), through_forks_that_read_nothing,
                                 lambda vlm, state, n: with_logits(vlm, fork(state, n + 3)),
                                 lambda vlm, state, n: stack([select(fork(state, n + 3), [0])])],
                         ids=["once", "twice", "with its logits", "selected"])
def test_a_text_that_was_cut_and_goes_on_is_one_sequence(cut):
    vlm, prompt, said, _ = texts()
    with recording_image_attention(vlm) as trace:
        out = decode(vlm, cut(vlm, prefill(vlm, [prompt.then(said)]), len(prompt)), 5, stop_ids=())[0]
    found, = trace.sequences()
    expected = rescore(vlm, prompt, [*said[:3], *out.ids])
    assert found.query_index.tolist() == expected.query_index.tolist() and farthest(found, expected) < 1e-5


def test_a_cut_within_the_prompt_starts_at_its_own_last_prompt_token():
    vlm, prompt, said, _ = texts()
    with recording_image_attention(vlm) as trace:
        out = decode(vlm, fork(prefill(vlm, [prompt.then(said)]), len(prompt) - 2), 5, stop_ids=())[0]
    found, = trace.sequences()
    assert farthest(found, rescore(vlm, prompt.cut(len(prompt) - 2), out.ids)) < 1e-5


def test_rows_selected_thrice_from_one_state_are_three_sequences_that_share_its_rows():
    vlm, prompt, said, _ = texts()
    tails = [vlm.encode(text) for text in (" wait, check", " no", " again the left")]
    with recording_image_attention(vlm) as trace:
        extend(vlm, select(prefill(vlm, [prompt.then(said)]), [0, 0, 0]), tails)
    for found, tail in zip(trace.sequences(), tails, strict=True):
        assert farthest(found, rescore(vlm, prompt, [*said, *tail, 5])) < 1e-5


def test_a_trace_read_twice_gives_the_same_objects_and_reading_it_midway_changes_nothing():
    vlm, prompt, said, _ = texts()

    def run(trace=None) -> None:
        state = prefill(vlm, [prompt.then(said)])
        if trace is not None:
            midway, = trace.sequences()
            assert midway is trace.sequences()[0] and midway.scores.shape[-1] == len(said) + 1
        longer = extend(vlm, fork(state, len(prompt) + 4), [vlm.encode(" wait, check")])
        if trace is not None:
            assert [found.scores.shape[-1] for found in trace.sequences()] == [len(vlm.encode(" wait, check")) + 5]
        decode(vlm, longer, 6, stop_ids=())

    with recording_image_attention(vlm) as unread:
        run()
    with recording_image_attention(vlm) as read:
        run(read)
        first = read.sequences()
    assert all(a is b for a, b in zip(first, read.sequences(), strict=True)), "nothing was recorded in between"
    for found, expected in zip(read.sequences(), unread.sequences(), strict=True):
        assert found.query_index.tolist() == expected.query_index.tolist() and farthest(found, expected) < 1e-6
