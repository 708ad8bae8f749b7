"""Decoding is the model's own: greedy as its generate, sampled with random numbers of each row's own."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from probing import (
    ALL,
    QUESTION,
    image,
    plain_generate,
    processor_inputs,
    refused,
    tiny_vlm,
)
from scipy import stats
from transformers import GenerationConfig

from probes.attention import recording_image_attention
from probes.decode import Sampling, decode
from probes.prefix import prefill, select

ROWS = [([image(0)], QUESTION), ([image(1, 60, 200)], "Where?"),
        ([image(2, 64, 64), image(3, 90, 64)], "Left or right of it, above or below?")]
LOOSE = Sampling(temperature=1.3)


def batch_of(family: str):
    vlm = tiny_vlm(family)
    return vlm, prefill(vlm, [vlm.prompt(*row) for row in ROWS])


@pytest.mark.parametrize("family", ALL)
def test_greedy_text_is_what_the_models_own_generate_says(family):
    vlm, state = batch_of(family)
    expected = []
    for rows in (ROWS[:1], ROWS):
        inputs = processor_inputs(vlm, rows)
        out = plain_generate(vlm, inputs, 16)
        expected.append(out.sequences[:, inputs["input_ids"].shape[1]:].tolist())
    assert [list(out.ids) for out in decode(vlm, prefill(vlm, list(state.rows[:1])), 16)] == expected[0]
    assert [list(out.ids) for out in decode(vlm, state, 16)] == expected[1]
    assert len({tuple(ids) for ids in expected[1]}) > 1 and all(len(set(ids)) > 2 for ids in expected[1])


@pytest.mark.parametrize("family", ALL)
def test_a_repetition_penalty_is_that_of_generate_and_changes_the_text(family):
    vlm, state = batch_of(family)
    inputs = processor_inputs(vlm, ROWS)
    out = plain_generate(vlm, inputs, 10, repetition_penalty=1.7)
    penalized = [list(row.ids) for row in decode(vlm, state, 10, Sampling(repetition_penalty=1.7))]
    assert penalized == out.sequences[:, inputs["input_ids"].shape[1]:].tolist()
    assert penalized != [list(row.ids) for row in decode(vlm, state, 10)]


@pytest.mark.parametrize("family", ALL)
def test_a_sampled_row_depends_on_its_seed_and_not_on_its_neighbors(family):
    vlm, state = batch_of(family)
    together = decode(vlm, state, 6, LOOSE, seeds=[7, 8, 9])
    turned = decode(vlm, select(state, [2, 0, 1]), 6, LOOSE, seeds=[9, 7, 8])
    assert turned == [together[2], together[0], together[1]]
    for row, seed in enumerate((7, 8, 9)):
        assert decode(vlm, select(state, [row]), 6, LOOSE, seeds=[seed]) == [together[row]]
    others = decode(vlm, state, 6, LOOSE, seeds=[17, 18, 19])
    assert all(other != out for other, out in zip(others, together))


def first_tokens_of(sampling: Sampling, n: int = 1500) -> tuple[np.ndarray, torch.Tensor]:
    """How often each token comes first over `n` seeds, and the logits they were drawn from."""
    vlm, state = batch_of("qwen3_vl")
    found = decode(vlm, select(state, [0] * n), 1, sampling, seeds=range(n))
    logits = state.logits[0].index_fill(0, vlm.never_generated, float("-inf"))
    return np.bincount([out.ids[0] for out in found], minlength=len(logits)), logits


def chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """p of the counts under the probabilities; tokens expected fewer than five times are taken together."""
    expected = probabilities / probabilities.sum() * counts.sum()
    rare = expected < 5
    observed, expected = (np.append(a[~rare], a[rare].sum()) for a in (counts, expected))
    keep = expected > 0
    return stats.chisquare(observed[keep], expected[keep]).pvalue


def test_first_tokens_come_as_often_as_softmax_says_and_the_test_tells_temperatures_apart():
    counts, logits = first_tokens_of(Sampling(temperature=0.6))
    assert chi_square_p(counts, (logits / 0.6).double().softmax(0).numpy()) > 1e-3
    assert chi_square_p(counts, (logits / 0.75).double().softmax(0).numpy()) < 1e-3


@pytest.mark.parametrize("n_kept", [5, 1])
def test_top_k_draws_from_the_k_likeliest_and_from_all_of_them(n_kept):
    counts, logits = first_tokens_of(Sampling(temperature=1.0, top_k=n_kept), 400)
    kept = logits.topk(n_kept).indices.tolist()
    assert set(np.flatnonzero(counts)) == set(kept)
    probabilities = np.zeros(len(counts))
    probabilities[kept] = logits.double().softmax(0).numpy()[kept]
    assert n_kept == 1 or chi_square_p(counts, probabilities) > 1e-3


def test_top_p_never_leaves_the_smallest_set_that_holds_p():
    counts, logits = first_tokens_of(Sampling(temperature=0.6, top_p=0.7), 800)
    probabilities, order = (logits / 0.6).double().softmax(0).sort(descending=True)
    n_kept = int((probabilities.cumsum(0) < 0.7).sum()) + 1
    kept = set(order[:n_kept].tolist())
    assert set(np.flatnonzero(counts)) <= kept
    inside = np.where(np.isin(np.arange(len(counts)), list(kept)), (logits / 0.6).double().softmax(0).numpy(), 0.0)
    assert chi_square_p(counts, inside) > 1e-3


def test_min_p_keeps_what_is_at_least_that_share_of_the_likeliest():
    counts, logits = first_tokens_of(Sampling(temperature=0.6, min_p=0.3), 400)
    probabilities = (logits / 0.6).softmax(0)
    kept = torch.nonzero(probabilities >= 0.3 * probabilities.max()).flatten().tolist()
    assert set(np.flatnonzero(counts)) <= set(kept) and len(kept) < 30


def test_every_step_draws_a_number_of_its_own():
    # With one number for all steps, equal logits would give equal tokens: the words of a row would go together.
    vlm, state = batch_of("qwen3_vl")
    out = decode(vlm, select(state, [0] * 40), 6, Sampling(temperature=50.0), seeds=range(40))
    assert len({row.ids for row in out}) == 40
    assert all(len(set(row.ids)) > 2 for row in out)


@pytest.mark.parametrize("family, sampling", [("qwen2_vl", Sampling()), ("qwen3_5", Sampling()), ("kimi_k25", LOOSE)])
def test_rows_that_stop_at_different_tokens_say_what_they_say_alone(family, sampling):
    vlm, state = batch_of(family)
    state, seeds = select(state, [0, 1, 2, 0, 1]), [1, 2, 3, 4, 5]
    free = decode(vlm, state, 20, sampling, seeds, stop_ids=())
    stop_ids = [free[0].ids[3], free[1].ids[7], free[2].ids[12]]
    together = decode(vlm, state, 20, sampling, seeds, stop_ids)
    assert len({len(out.ids) for out in together}) > 1
    for row, (out, whole) in enumerate(zip(together, free)):
        end = next((i + 1 for i, token in enumerate(whole.ids) if token in stop_ids), None)
        assert out.ids == whole.ids[:end] and out.finish == ("length" if end is None else "stop")
        assert decode(vlm, select(state, [row]), 20, sampling, seeds[row:row + 1], stop_ids) == [out]


def test_without_an_end_token_a_row_ends_at_its_length():
    vlm, state = batch_of("qwen3_vl")
    assert [(len(out.ids), out.finish) for out in decode(vlm, state, 7, stop_ids=())] == [(7, "length")] * 3
    assert vlm.stop_token_ids == (vlm.tokenizer.convert_tokens_to_ids("<|im_end|>"),)


@pytest.mark.parametrize("family", ALL)
def test_a_model_that_would_say_nothing_but_image_tokens_says_words(family):
    vlm, _ = batch_of(family)

    def shout(_, __, logits):
        return logits.index_add(-1, torch.tensor(vlm.vision_token_ids), torch.full(
            (*logits.shape[:-1], len(vlm.vision_token_ids)), 50.0))

    hook = vlm.model.get_output_embeddings().register_forward_hook(shout)
    try:
        state = prefill(vlm, [vlm.prompt(*row) for row in ROWS])
        assert set(state.logits.argmax(-1).tolist()) <= set(vlm.vision_token_ids)
        said = decode(vlm, state, 4) + decode(vlm, state, 4, LOOSE, [1, 2, 3])
    finally:
        hook.remove()
    assert not {token for out in said for token in out.ids} & set(vlm.vision_token_ids)


def test_a_trace_of_a_batch_ends_where_each_row_stopped():
    vlm, state = batch_of("qwen3_vl")
    free = decode(vlm, state, 12, stop_ids=())
    stop_ids = [free[0].ids[2], free[1].ids[7]]
    with recording_image_attention(vlm) as trace:
        found = decode(vlm, prefill(vlm, list(state.rows)), 12, stop_ids=stop_ids)
    assert len({len(out.ids) for out in found}) > 1
    assert [sequence.scores.shape[-1] for sequence in trace.sequences()] == [len(out.ids) for out in found]


def test_the_settings_a_model_ships_with_are_read_off_its_generation_config():
    shipped = SimpleNamespace(do_sample=True, temperature=0.7, top_k=20, top_p=0.8, min_p=None, repetition_penalty=1.05)
    assert Sampling.of_model(shipped) == Sampling(0.7, 20, 0.8, 0.0, 1.05)
    shipped.do_sample = False
    assert Sampling.of_model(shipped).temperature == 0
    assert tiny_vlm("qwen3_vl").default_sampling == Sampling()


@pytest.mark.parametrize("given, n_kept", [
    (dict(), 50), (dict(top_k=7), 7), (dict(top_k=0), None), (dict(temperature=0.5, repetition_penalty=1.4), 50),
    (dict(top_k=0, top_p=0.4), None), (dict(min_p=0.2), None)], ids=str)
def test_what_a_model_ships_with_leaves_the_tokens_and_odds_that_generate_leaves(given, n_kept):
    """transformers' own processed scores of the first token, -inf where it cannot come, are the yardstick."""
    vlm, inputs = tiny_vlm("qwen3_vl"), processor_inputs(tiny_vlm("qwen3_vl"), ROWS[:1])
    config = deepcopy(vlm.model.generation_config)
    config.update(do_sample=True, **given)
    out = plain_generate(vlm, inputs, 1, generation_config=config, output_scores=True, output_logits=True)
    logits = out.logits[0].index_fill(1, vlm.never_generated, float("-inf"))
    ours = Sampling.of_model(config).processors()(inputs["input_ids"], logits)
    expected = out.scores[0]
    finite = expected.isfinite()
    n_finite = int(finite.sum())
    assert torch.equal(ours.isfinite(), finite) and n_kept in (None, n_finite)
    assert (ours[finite] - expected[finite]).abs().max() < 1e-5
    assert 1 < n_finite < len(logits[0]) - len(vlm.never_generated) or given == dict(top_k=0)


def test_a_penalty_is_kept_where_a_model_ships_with_greedy_decoding():
    shipped = GenerationConfig(do_sample=False, temperature=0.3, repetition_penalty=1.2)
    assert Sampling.of_model(shipped) == Sampling(repetition_penalty=1.2)


@pytest.mark.parametrize("other", [dict(typical_p=0.9), dict(num_beams=4), dict(no_repeat_ngram_size=3),
                                   dict(epsilon_cutoff=3e-4), dict(bad_words_ids=[[5]])], ids=str)
def test_a_shipped_setting_that_this_decoder_lacks_is_refused_by_name(other):
    name, = other
    with refused(f"^generation settings: the model ships with {name}, which this decoder does not have; give a"):
        Sampling.of_model(GenerationConfig(do_sample=True, **other))


@pytest.mark.parametrize("wrong", [dict(temperature=-1), dict(top_p=0), dict(top_p=1.1), dict(top_k=-1), dict(min_p=1),
                                   dict(repetition_penalty=0)])
def test_settings_without_a_meaning_are_refused(wrong):
    with refused(r"^sampling: .*expected temperature >= 0, 0 < top_p <= 1"):
        Sampling(**wrong)


def test_sampling_without_a_seed_for_every_row_is_refused():
    vlm, state = batch_of("qwen3_vl")
    for seeds in (None, [1], [1, 2, 3, 4]):
        with refused(r"^decode: sampling needs one seed per row; got .* for 3 row\(s\)$"):
            decode(vlm, state, 4, LOOSE, seeds)


@pytest.mark.parametrize("n", [0, -1, 2.5, "3", None], ids=str)
def test_no_tokens_or_parts_of_them_cannot_be_asked_for(n):
    vlm, state = batch_of("qwen3_vl")
    with refused(rf"^(decode: )?max_new_tokens is {n!r}; expected a whole number(, at least 1)?$"):
        decode(vlm, state, n)


def test_seeds_that_are_no_whole_numbers_are_refused():
    vlm, state = batch_of("qwen3_vl")
    with refused(r"^seed is 1.5; expected a whole number$"):
        decode(vlm, state, 4, LOOSE, [1.5, 2, 3])


def test_the_global_generator_is_neither_read_nor_moved():
    vlm, state = batch_of("qwen3_vl")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = decode(vlm, state, 8, LOOSE, [1, 2, 3])
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert decode(vlm, state, 8, LOOSE, [1, 2, 3]) == first


def test_seeds_spread_over_texts():
    vlm, state = batch_of("qwen3_vl")
    texts = Counter(out.ids for out in decode(vlm, select(state, [0] * 30), 8, LOOSE, range(30)))
    assert len(texts) == 30
