"""Recorded attention equals eager attention's own weights, and recording changes nothing that a model says."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from functools import cache

import numpy as np
import probing
import pytest
import torch
from probing import (
    ALL,
    CROPPABLE,
    HYBRIDS,
    N_HEADS,
    N_LAYERS,
    QUESTION,
    EagerRun,
    codes_of,
    eager_mass,
    eager_text,
    eager_weights,
    flash_text,
    forget,
    image,
    n_attention_layers,
    plain_generate,
    processor_inputs,
    refused,
    tiny_vlm,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from probes.attention import recording_image_attention, rescore
from probes.decode import Sampling, decode
from probes.interpose import COLUMNS
from probes.layout import GENERATED, IMAGE, SINK, TEMPLATE
from probes.layout import QUESTION as QUESTION_CODE
from probes.prefix import extend, fork, prefill, prefixes, stack
from probes.steering import steering_image_attention
from probes.swap import swap
from probes.trace import ImageAttention
from rekey.errors import InputError
from rekey.geometry import Box

N = 12
STATIC = dict(cache_implementation="static", disable_compile=True)
ROWS = [([image(0)], QUESTION), ([image(1, 60, 200)], "Where?"),
        ([image(2, 64, 64), image(3, 90, 64)], "Left or right of it, above or below?")]


@dataclass(frozen=True)
class Run:
    """The same rows under recording, without it, and under eager attention by transformers alone."""

    prompts: list
    unwatched: list
    watched: list
    traces: list[ImageAttention]
    eager: EagerRun
    codes: torch.Tensor


@cache
def run(family: str, which: tuple[int, ...]) -> Run:
    vlm = tiny_vlm(family)
    rows = [ROWS[row] for row in which]
    prompts = [vlm.prompt([vlm.encode_image(picture, Box(0, 0, 60, 60)) for picture in images], question)
               for images, question in rows]
    unwatched = vlm.generate(prompts, N)
    with recording_image_attention(vlm) as trace:
        watched = vlm.generate(prompts, N)
    eager = eager_weights(vlm, processor_inputs(vlm, rows), N)
    return Run(prompts, unwatched, watched, trace.sequences(), eager, codes_of(prompts, N))


def every_family_and_batch(test):
    test = pytest.mark.parametrize("which", [(0,), (0, 1, 2)], ids=["alone", "padded batch of three"])(test)
    return pytest.mark.parametrize("family", ALL)(test)


def mass_of(found: Run, wanted: torch.Tensor) -> np.ndarray:
    return eager_mass(found.eager, wanted)


def assert_close(found: np.ndarray, expected: np.ndarray, limit: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < limit


@every_family_and_batch
def test_mass_on_the_image_equals_eager_attention_at_every_layer_head_and_step(family, which):
    found = run(family, which)
    assert [list(out.token_ids) for out in found.watched] == found.eager.ids, "the reference said the same"
    scores = np.stack([trace.scores for trace in found.traces])
    assert scores.shape == (len(which), n_attention_layers(tiny_vlm(family)), N_HEADS, N)
    assert_close(scores, mass_of(found, found.codes >= IMAGE))
    assert scores.std() > 0.02, "masses that are all alike would agree with anything"


@every_family_and_batch
def test_every_group_equals_eager_attention_and_the_groups_share_out_all_of_it(family, which):
    found = run(family, which)
    codes = found.codes
    groups = {"sink": codes == SINK, "template": codes == TEMPLATE, "question": codes == QUESTION_CODE,
              "generated": codes == GENERATED, "region": (codes > IMAGE) & ((codes - IMAGE) % 2 == 1)}
    for name, wanted in groups.items():
        assert_close(np.stack([getattr(trace, name) for trace in found.traces]), mass_of(found, wanted))
        assert mass_of(found, wanted).max() > 1e-3, f"no attention on {name}: nothing was compared"
    for row, trace in enumerate(found.traces):
        for number, on_image in enumerate(trace.images):
            wanted = (codes == IMAGE + 2 * number) | (codes == IMAGE + 2 * number + 1)
            assert_close(on_image, mass_of(found, wanted)[row])
        everything = trace.scores + trace.sink + trace.template + trace.question + trace.generated
        assert_close(everything, np.ones_like(everything), 1e-6)


@every_family_and_batch
def test_recording_changes_no_token(family, which):
    found = run(family, which)
    assert [out.token_ids for out in found.watched] == [out.token_ids for out in found.unwatched]


@pytest.mark.parametrize("family", ALL)
def test_recording_changes_no_bit_of_the_logits(family):
    vlm = tiny_vlm(family)
    prompts, words = [vlm.prompt(*row) for row in ROWS], vlm.encode(" wait, check")
    inputs = processor_inputs(vlm, ROWS)

    def logits() -> list[torch.Tensor]:
        state = prefill(vlm, prompts)
        forget(vlm)
        with torch.no_grad():
            return [state.logits, extend(vlm, state, [words] * 3).logits, vlm.model(**inputs).logits]

    before = logits()
    with recording_image_attention(vlm) as trace:
        during = logits()
    assert all(torch.equal(a, b) for a, b in zip(before, during)) and len(trace.sequences()) == 6
    assert all(torch.equal(a, b) for a, b in zip(before, logits()))


@every_family_and_batch
def test_finished_text_rescored_gives_what_decoding_it_recorded(family, which):
    vlm, found = tiny_vlm(family), run(family, which)
    for prompt, out, trace in zip(found.prompts, found.watched, found.traces):
        for chunk_tokens in (None, 7):
            again = rescore(vlm, prompt, out.token_ids, chunk_tokens=chunk_tokens)
            assert again.query_index.tolist() == trace.query_index.tolist()
            for group in ("scores", "images", "region", "sink", "template", "question", "generated"):
                assert_close(getattr(again, group), getattr(trace, group))


@pytest.mark.parametrize("family", ALL)
def test_a_transformers_generate_is_recorded_alike(family):
    vlm, found = tiny_vlm(family), run(family, (0, 1, 2))
    with recording_image_attention(vlm.model) as trace:
        out = plain_generate(vlm, processor_inputs(vlm, ROWS), N)
    assert out.sequences[:, -N:].tolist() == found.eager.ids
    assert_close(trace.scores, mass_of(found, found.codes >= IMAGE))
    for plain, ours in zip(trace.sequences(), found.traces):
        assert_close(plain.images, ours.images)
        assert_close(plain.sink, ours.sink)
        assert_close(plain.generated, ours.generated)
        assert_close(plain.question, ours.question + ours.template)     # ids alone do not tell the two apart
        assert not plain.template.any() and plain.n_image_tokens == ours.n_image_tokens


@pytest.mark.parametrize("family", CROPPABLE)
def test_a_static_cache_is_recorded_alike(family):
    vlm, found = tiny_vlm(family), run(family, (0, 1, 2))
    with recording_image_attention(vlm.model) as trace:
        out = plain_generate(vlm, processor_inputs(vlm, ROWS), N, **STATIC)
    assert out.sequences[:, -N:].tolist() == found.eager.ids
    assert_close(trace.scores, mass_of(found, found.codes >= IMAGE))


@pytest.mark.parametrize("family", CROPPABLE)
def test_one_row_without_padding_in_a_static_cache_is_recorded_from_its_first_step_on(family):
    """Without padding the first pass may come with no mask, and only the columns tell keys from empty room."""
    vlm, found = tiny_vlm(family), run(family, (0,))
    with recording_image_attention(vlm.model) as trace:
        out = plain_generate(vlm, processor_inputs(vlm, ROWS[:1]), N, **STATIC)
    assert out.sequences[:, -N:].tolist() == found.eager.ids
    assert_close(trace.scores, mass_of(found, found.codes >= IMAGE)[0])
    assert_close(trace.sequences()[0].generated, mass_of(found, found.codes == GENERATED)[0])


@pytest.mark.parametrize("family", ["qwen3_vl", "kimi_k25"])
def test_under_flash_attention_a_static_cache_with_padding_is_recorded_alike(family, monkeypatch):
    """FlashAttention-2 gets a mask shorter than a static cache's keys and reads no further than it."""
    monkeypatch.setattr(probing, "flash_stand_in", probing.up_to_the_mask(probing.flash_stand_in))
    vlm, found = tiny_vlm(family), run(family, (0, 1, 2))
    with flash_text(vlm) as calls, recording_image_attention(vlm.model) as trace:
        out = plain_generate(vlm, processor_inputs(vlm, ROWS), N, **STATIC)
    assert len(calls) == N * n_attention_layers(vlm) and all(calls), "every call had a mask"
    assert out.sequences[:, -N:].tolist() == found.eager.ids
    assert_close(trace.scores, mass_of(found, found.codes >= IMAGE))


@pytest.mark.parametrize("family", ALL)
def test_three_samples_of_one_prompt_are_three_sequences(family):
    vlm = tiny_vlm(family)
    prompt = vlm.prompt(*ROWS[0])
    torch.manual_seed(0)
    with recording_image_attention(vlm.model) as trace:
        out = plain_generate(vlm, processor_inputs(vlm, ROWS[:1]), 5, do_sample=True, num_return_sequences=3,
                             eos_token_id=vlm.model.config.image_token_id)       # suppressed: no row ends early
    said = out.sequences[:, len(prompt):].tolist()
    assert len({tuple(ids) for ids in said}) == 3
    for ids, sequence in zip(said, trace.sequences(), strict=True):
        assert_close(sequence.scores, rescore(vlm, prompt, ids).scores)


@pytest.mark.parametrize("window", [8, 40, 200])
@pytest.mark.parametrize("cache", [{}, STATIC], ids=["dynamic", "static"])
def test_a_sliding_window_is_recorded_at_the_keys_it_still_holds(window, cache):
    vlm = tiny_vlm("qwen2_5_vl", use_sliding_window=True, sliding_window=window)
    inputs, prompts = processor_inputs(vlm, ROWS), [vlm.prompt(*row) for row in ROWS]
    with recording_image_attention(vlm.model) as trace:
        out = plain_generate(vlm, inputs, N, **cache)
    forget(vlm)
    with torch.no_grad():                      # one eager pass over the whole text, with the window as a mask only
        whole = dict(inputs, input_ids=out.sequences[:, :-1])
        n_more = N - 1
        for name, fill in (("attention_mask", 1), ("mm_token_type_ids", 0)):
            whole[name] = torch.nn.functional.pad(inputs[name], (0, n_more), value=fill)
        with eager_text(vlm.model):
            weights = torch.stack(vlm.model(**whole, use_cache=False, output_attentions=True).attentions)
    wanted = codes_of(prompts, n_more) >= IMAGE
    expected = (weights[..., -N:, :] * wanted[None, :, None, None]).sum(-1).transpose(0, 1).numpy()
    assert_close(trace.scores, expected)
    upper = trace.scores[:, 2:]
    assert (upper == 0).all() == (window == 8), "the short window has lost the image, the others have not"
    if not cache:
        with recording_image_attention(vlm) as ours:
            assert [list(row.token_ids) for row in vlm.generate(prompts, N)] == out.sequences[:, -N:].tolist()
        assert_close(ours.scores, expected)


@pytest.mark.parametrize("family", HYBRIDS)
def test_hybrids_record_their_attention_layers_only(family):
    vlm = tiny_vlm(family)
    with recording_image_attention(vlm) as trace:
        vlm.generate([vlm.prompt(*ROWS[0])], 2)
    assert trace.layers == (3,) and trace.scores.shape == (1, N_HEADS, 2)
    with pytest.raises(InputError) as error, recording_image_attention(vlm, layers=[0, 3]):
        pass
    assert str(error.value) == (
        "layers [0, 3]: expected some of [3] (the others are linear attention, which has no weights on single tokens)")


def test_layers_are_counted_from_either_end():
    vlm, found = tiny_vlm("qwen3_vl"), run("qwen3_vl", (0,))
    for layers, positions in (([-1], [3]), ([2, 0], [0, 2]), ([1, -3], [1])):
        with recording_image_attention(vlm, layers=layers) as trace:
            vlm.generate(found.prompts, N)
        assert trace.layers == tuple(positions)
        assert np.array_equal(trace.scores, found.traces[0].scores[positions])


@pytest.mark.parametrize("layers", [[4], [-5, 1], []])
def test_a_layer_that_the_model_lacks_is_one_clear_line(layers):
    with pytest.raises(InputError) as error, recording_image_attention(tiny_vlm("qwen3_vl"), layers=layers):
        pass
    assert str(error.value) == f"layers {layers}: expected some of [0, 1, 2, 3] (a 4-layer model, counted from 0)"


@pytest.mark.parametrize("layers", [2, "all", [1.0], [None]], ids=str)
def test_layers_that_are_no_list_of_numbers_are_one_clear_line(layers):
    with refused("^layers: got .*; expected a list of whole numbers$"), \
            recording_image_attention(tiny_vlm("qwen3_vl"), layers=layers):
        pass


def test_the_mean_over_heads_can_be_kept_alone():
    vlm, found = tiny_vlm("qwen3_vl"), run("qwen3_vl", (0, 1, 2))
    with recording_image_attention(vlm, per_head=False) as trace:
        vlm.generate(found.prompts, N)
    assert trace.scores.shape == (3, N_LAYERS, 1, N)
    assert_close(trace.scores[:, :, 0], np.stack([one.scores.mean(1) for one in found.traces]), 1e-6)


def traces_left() -> tuple:
    return dict(ALL_ATTENTION_FUNCTIONS._local_mapping), COLUMNS.get()


def hooks_of(model) -> int:
    return sum(len(getattr(module, name)) for module in model.modules()
               for name in ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called"))


def test_everything_is_restored_when_the_block_ends():
    vlm = tiny_vlm("qwen3_vl")
    before, hooks = traces_left(), hooks_of(vlm.model)
    with recording_image_attention(vlm):
        assert traces_left() != before and hooks_of(vlm.model) > hooks
        vlm.generate([vlm.prompt(*ROWS[0])], 2)
    assert traces_left() == before and hooks_of(vlm.model) == hooks


def test_an_exception_in_the_block_restores_everything():
    vlm = tiny_vlm("qwen3_vl")
    before, hooks = traces_left(), hooks_of(vlm.model)
    with pytest.raises(KeyboardInterrupt), recording_image_attention(vlm):
        vlm.generate([vlm.prompt(*ROWS[0])], 2)
        raise KeyboardInterrupt
    assert traces_left() == before and hooks_of(vlm.model) == hooks


@pytest.mark.parametrize("plain", [False, True], ids=["ours", "transformers' generate"])
def test_an_exception_within_a_forward_pass_restores_everything_and_costs_only_that_pass(plain):
    vlm = tiny_vlm("qwen3_vl")
    before, hooks, found = traces_left(), hooks_of(vlm.model), run("qwen3_vl", (0,))
    inputs = processor_inputs(vlm, ROWS[:1])

    def generate():
        return plain_generate(vlm, inputs, N) if plain else vlm.generate(found.prompts, N)

    def fail(*_):
        raise RuntimeError("out of memory")

    with recording_image_attention(vlm) as trace:
        broken = vlm.model.model.language_model.layers[2].register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            generate()
        broken.remove()
        assert COLUMNS.get() is None
        generate()
    assert_close(trace.scores, found.traces[0].scores)
    assert traces_left() == before and hooks_of(vlm.model) == hooks


def test_a_function_that_a_user_registered_is_put_back():
    vlm, calls = tiny_vlm("qwen3_vl"), []
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def users_own(*args, **kwargs):
        calls.append(1)
        return plain(*args, **kwargs)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = users_own
    try:
        with recording_image_attention(vlm):
            vlm.generate([vlm.prompt(*ROWS[0])], 2)
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is users_own and calls
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


@pytest.mark.parametrize("plain", [False, True], ids=["ours", "transformers' generate"])
def test_nested_blocks_on_one_model_record_the_same_and_end_in_any_order(plain):
    vlm, found = tiny_vlm("qwen3_vl"), run("qwen3_vl", (0,))
    inputs = processor_inputs(vlm, ROWS[:1])

    def generate():
        return plain_generate(vlm, inputs, N) if plain else vlm.generate(found.prompts, N)

    with recording_image_attention(vlm) as outer:
        with recording_image_attention(vlm, layers=[1, 3]) as inner:
            generate()
        generate()
    assert [len(outer.sequences()), len(inner.sequences())] == [2, 1]
    assert_close(inner.scores, found.traces[0].scores[[1, 3]])
    assert_close(outer.scores, np.stack([found.traces[0].scores] * 2))


def test_of_two_models_only_the_watched_one_is_recorded():
    watched, other = tiny_vlm("qwen3_vl"), tiny_vlm("qwen2_vl")
    found, others = run("qwen3_vl", (0,)), run("qwen2_vl", (0,))
    with recording_image_attention(watched) as trace:
        said = [out.token_ids for out in other.generate(others.prompts, N)]
        assert said == [out.token_ids for out in others.unwatched]
        assert trace.sequences() == []
        watched.generate(found.prompts, N)
        other.generate(others.prompts, 3)
    assert_close(trace.scores, found.traces[0].scores, 1e-9)


def test_two_models_can_be_watched_at_once():
    pair = [tiny_vlm("qwen3_vl"), tiny_vlm("qwen2_vl")]
    found = [run("qwen3_vl", (0,)), run("qwen2_vl", (0,))]
    with recording_image_attention(pair[0]) as first, recording_image_attention(pair[1]) as second:
        for vlm, one in zip(pair, found):
            vlm.generate(one.prompts, N)
    assert_close(first.scores, found[0].traces[0].scores, 1e-9)
    assert_close(second.scores, found[1].traces[0].scores, 1e-9)


def test_text_shared_by_forks_is_part_of_each_trace():
    vlm = tiny_vlm("qwen3_vl")
    said = vlm.encode(" it is red or blue so let me look")
    prompt = vlm.prompt(*ROWS[0])
    triggers = [vlm.encode(" wait, check"), vlm.encode(" no"), vlm.encode(" again the left")]
    cuts = [len(prompt) + 2, len(prompt) + 5, len(prompt) + len(said)]
    with recording_image_attention(vlm) as trace:
        states = [extend(vlm, state, [ids]) for state, ids in zip(prefixes(vlm, prompt.then(said), cuts), triggers)]
        outs = decode(vlm, stack(states), 6)
    cells = trace.sequences()[-3:]
    for cell, cut, trigger, out in zip(cells, cuts, triggers, outs):
        ids = [*said[:cut - len(prompt)], *trigger, *out.ids]
        assert cell.query_index.tolist() == list(range(len(prompt) - 1, len(prompt) + len(ids) - 1))
        assert_close(cell.scores, rescore(vlm, prompt, ids).scores)
        assert_close(cell.generated, rescore(vlm, prompt, ids).generated)


def test_texts_of_different_lengths_read_together_are_traced_apart():
    vlm = tiny_vlm("qwen3_vl")
    prompts = [vlm.prompt(*row) for row in ROWS]
    texts = [vlm.encode(text) for text in (" wait, check the left side", " no", " so it is red")]
    with recording_image_attention(vlm) as trace:
        outs = decode(vlm, extend(vlm, prefill(vlm, prompts), texts), 4)
    for prompt, text, out, sequence in zip(prompts, texts, outs, trace.sequences(), strict=True):
        expected = rescore(vlm, prompt, [*text, *out.ids])
        assert sequence.query_index.tolist() == expected.query_index.tolist()
        assert_close(sequence.scores, expected.scores)


def test_two_continuations_of_one_state_are_two_sequences_and_the_state_is_none_of_its_own():
    vlm = tiny_vlm("qwen3_vl")
    prompt = vlm.prompt(*ROWS[0])
    with recording_image_attention(vlm) as trace:
        state = prefill(vlm, [prompt])
        outs = [decode(vlm, state, 5, Sampling(temperature=1.5), [seed])[0] for seed in (0, 1)]
    assert len(trace.sequences()) == 2
    for sequence, out in zip(trace.sequences(), outs):
        assert_close(sequence.scores, rescore(vlm, prompt, out.ids).scores)


@pytest.mark.parametrize("regime", ["recompute", "splice"])
def test_after_a_swap_the_trace_is_that_of_the_new_image(regime):
    vlm = tiny_vlm("qwen3_vl")
    said, other = vlm.encode(" it is red or blue"), vlm.encode_image(image(9))
    prompt = vlm.prompt(*ROWS[0])
    state = prefill(vlm, [prompt.then(said)])
    with recording_image_attention(vlm) as trace:
        out = decode(vlm, swap(vlm, state, [other], regime), 6)[0]
    after = trace.sequences()[-1]
    n = len(prompt) + len(said)
    assert after.query_index[-6:].tolist() == list(range(n - 1, n + 5))
    expected = rescore(vlm, prompt.with_images([other]), [*said, *out.ids])
    assert (np.abs(after.scores[..., -6:] - expected.scores[..., -6:]).max() < 1e-5) == (regime == "recompute")


def test_only_what_is_read_in_the_block_is_recorded():
    vlm = tiny_vlm("qwen3_vl")
    said = vlm.encode(" it is red or blue")
    prompt = vlm.prompt(*ROWS[0])
    state = fork(prefill(vlm, [prompt.then(said)]), len(prompt) + 3)
    with recording_image_attention(vlm) as trace:
        extend(vlm, state, [said[3:]])
    expected = rescore(vlm, prompt, [*said, 5])
    assert trace.sequences()[0].query_index.tolist() == list(range(len(prompt) + 3, len(prompt) + len(said)))
    assert_close(trace.scores, expected.scores[..., 4:])


def test_a_block_in_which_nothing_ran_says_so():
    with recording_image_attention(tiny_vlm("qwen3_vl")) as trace:
        pass
    with refused(r"^attention: the .*block saw no forward pass of the model; run the model inside the block$"):
        trace.scores  # noqa: B018


def test_a_cache_that_was_filled_before_the_block_is_refused():
    vlm, inputs = tiny_vlm("qwen3_vl"), processor_inputs(tiny_vlm("qwen3_vl"), ROWS[:1])
    forget(vlm)
    with torch.no_grad():
        cache = vlm.model(**inputs, use_cache=True).cache
        line = r"^attention: the cache holds 64 tokens that were not read in this block"
        with recording_image_attention(vlm), refused(line):
            vlm.model(input_ids=torch.tensor([[5]]), cache=cache, position_ids=torch.full((3, 1, 1), 60))
    assert COLUMNS.get() is None


def test_embeddings_without_ids_are_refused():
    vlm = tiny_vlm("qwen3_vl")
    embeds = vlm.model.get_input_embeddings()(torch.tensor([[5, 6, 7]]))
    line = r"^attention: the model was called with inputs_embeds only"
    with torch.no_grad(), recording_image_attention(vlm), refused(line):
        vlm.model(inputs_embeds=embeds, position_ids=torch.arange(3).expand(3, 1, 3))


@pytest.mark.parametrize("opened", [recording_image_attention, lambda vlm: steering_image_attention(vlm, log_bias=1.0)],
                         ids=["recording", "steering"])
def test_a_model_set_to_eager_is_refused(opened):
    vlm = tiny_vlm("qwen3_vl")
    vlm.model.set_attn_implementation("eager")
    try:
        with pytest.raises(InputError) as error, opened(vlm):
            pass
    finally:
        vlm.model.set_attn_implementation("sdpa")
    assert str(error.value) == (
        "attention: the model runs under 'eager', which builds every T x T matrix and answers differently in half "
        "precision; expected sdpa or flash_attention_2; call model.set_attn_implementation(\"sdpa\")")


@pytest.mark.parametrize("opened", [
    recording_image_attention,
    lambda vlm: steering_image_attention(vlm, log_bias=1.0)],
    ids=["recording", "steering"])
def test_a_model_set_to_eager_within_a_block_is_refused_at_its_first_forward_pass(opened):
    vlm = tiny_vlm("qwen3_vl")
    prompt = vlm.prompt(*ROWS[0])
    try:
        with opened(vlm):
            prefill(vlm, [prompt])
            vlm.model.set_attn_implementation("eager")
            with refused("set_attn_implementation"):
                prefill(vlm, [prompt])
    finally:
        vlm.model.set_attn_implementation("sdpa")
    assert COLUMNS.get() is None


def test_text_can_be_rescored_from_an_array_or_a_tensor_of_ids():
    vlm = tiny_vlm("qwen3_vl")
    prompt, said = vlm.prompt(*ROWS[0]), vlm.encode(" it is red or blue")
    expected = rescore(vlm, prompt, said).scores
    for ids in (np.array(said), np.array(said, np.int32), torch.tensor(said), tuple(said)):
        assert np.array_equal(rescore(vlm, prompt, ids).scores, expected)


@pytest.mark.parametrize("ids, line", [
    ("red", "got 'red'; expected a list of whole numbers"), ([1.0, 2.0], "got .*; expected a list of whole numbers"),
    (np.array([1.0]), "got .*; expected a list of whole numbers"), (7, "got 7; expected a list of whole numbers"),
    (None, "got None; expected a list"), (torch.tensor([[5, 6]]), "got .*; expected a list of whole numbers"),
    ([5, -1], "-1 is not among the model's 571"), ([571], "571 is not among the model's 571"),
    ([10**30], "10+ is not among the model's 571")], ids=str)
def test_what_are_no_token_ids_is_one_clear_line(ids, line):
    vlm = tiny_vlm("qwen3_vl")
    assert vlm.n_words == 571
    with refused(f"^token ids: {line}"):
        rescore(vlm, vlm.prompt(*ROWS[0]), ids)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_when_an_answer_is_given_an_open_block_holds_no_keys_of_it(family):
    vlm = tiny_vlm(family)
    prompts = [vlm.prompt(*row) for row in ROWS]
    keys, caches = [], []

    def watch(module, args, kwargs, output):
        cache = kwargs["cache"]
        caches.append(weakref.ref(cache))
        layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
        keys.extend(weakref.ref(layer.keys) for layer in layers)

    hook = vlm.model.register_forward_hook(watch, with_kwargs=True)
    try:
        with recording_image_attention(vlm) as trace:
            vlm.generate(prompts, 5)
            gc.collect()
            assert len(keys) == 5 * n_attention_layers(vlm)
            assert not any(reference() is not None for reference in (*keys, *caches))
    finally:
        hook.remove()
    assert len(trace.sequences()) == 3


def test_rescoring_nothing_is_refused():
    vlm = tiny_vlm("qwen3_vl")
    with refused(r"^rescore: no token ids; give the ids that followed the prompt, at least one$"):
        rescore(vlm, vlm.prompt(*ROWS[0]), [])


def test_rescoring_text_with_an_image_token_is_one_clear_line():
    vlm = tiny_vlm("qwen3_vl")
    with refused("vision token"):
        rescore(vlm, vlm.prompt(*ROWS[0]), [5, vlm.model.config.image_token_id, 6])


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "qwen3_5", "ernie4_5_vl_moe", "kimi_k25"])
def test_under_flash_attention_the_masses_and_tokens_are_those_of_sdpa(family):
    vlm, found = tiny_vlm(family), run(family, (0, 1, 2))
    with flash_text(vlm) as calls, recording_image_attention(vlm) as trace:
        out = vlm.generate(found.prompts, N)
        state = prefill(vlm, found.prompts[:1])
        extend(vlm, state, [out[0].token_ids[:-1]])                        # several rows at once, without a mask
    assert any(calls) and not all(calls), "the kernel ran with padding masks and without"
    assert [row.token_ids for row in out] == [row.token_ids for row in found.unwatched]
    traces = trace.sequences()
    for flash, sdpa in zip(traces, found.traces):
        assert_close(flash.scores, sdpa.scores)
        assert_close(flash.question, sdpa.question)
    assert_close(traces[3].scores, found.traces[0].scores)


@pytest.mark.parametrize("window", [8, 40])
def test_under_flash_attention_a_sliding_window_is_that_of_sdpa(window):
    vlm = tiny_vlm("qwen2_5_vl", use_sliding_window=True, sliding_window=window)
    prompts = [vlm.prompt(*row) for row in ROWS]
    with recording_image_attention(vlm) as sdpa:
        expected = vlm.generate(prompts, N)
    with flash_text(vlm) as calls, recording_image_attention(vlm) as flash:
        assert [row.token_ids for row in vlm.generate(prompts, N)] == [row.token_ids for row in expected]
    assert calls
    assert_close(flash.scores, sdpa.scores)


@cache
def half(family: str):
    return tiny_vlm(family, dtype=torch.bfloat16)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl_moe", "qwen3_5", "kimi_k25"])
def test_in_bfloat16_recording_changes_no_token_and_no_bit(family):
    vlm = half(family)
    prompts = [vlm.prompt(*row) for row in ROWS]
    unwatched, state = vlm.generate(prompts, 8), prefill(vlm, prompts)
    with recording_image_attention(vlm):
        assert [row.token_ids for row in vlm.generate(prompts, 8)] == [row.token_ids for row in unwatched]
        assert torch.equal(prefill(vlm, prompts).logits, state.logits)
    assert vlm.dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl_moe", "qwen3_5", "kimi_k25"])
def test_in_bfloat16_the_mass_is_a_float32_softmax_over_the_kernels_own_queries_and_keys(family):
    vlm = half(family)
    prompts, seen = [vlm.prompt(*row) for row in ROWS], []
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def watch(module, query, key, value, mask, **kwargs):
        if getattr(module, "layer_idx", None) == 3:
            last = query[:, :, -1:].float()
            scores = last @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).float().transpose(2, 3)
            seen.append((query.dtype, scores[:, :, 0] * kwargs["scaling"]))
        return plain(module, query, key, value, mask, **kwargs)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = watch
    try:
        with recording_image_attention(vlm, layers=[3]) as trace:
            vlm.generate(prompts, 4)
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]
    codes = codes_of(prompts, 4)
    for step, (dtype, scores) in enumerate(seen):
        assert dtype == torch.bfloat16
        now = codes[:, None, :scores.shape[-1]]
        weights = scores.masked_fill(now == 0, -torch.inf).softmax(-1)
        assert_close(trace.scores[:, 0, :, step], (weights * (now >= IMAGE)).sum(-1).numpy())
    assert len(seen) == 4


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_in_bfloat16_a_batch_gives_other_logits_than_its_rows_alone_but_near_ones(family):
    # What is not identical in half precision: padding changes the order of sums, and with it near ties.
    vlm = half(family)
    prompts = [vlm.prompt(*row) for row in ROWS]
    together = prefill(vlm, prompts).logits
    alone = torch.cat([prefill(vlm, [prompt]).logits for prompt in prompts])
    assert not torch.equal(together, alone)
    assert (together - alone).abs().max() < 0.25 * alone.std()
    exact = torch.cat([prefill(tiny_vlm(family), [prompt]).logits for prompt in prompts])
    assert (together - exact).abs().max() > 1e-3, "and it is not what float32 says"


@pytest.mark.parametrize("options, line", [
    ({"num_beams": 3}, r"^attention: the cache holds \d+ tokens .* or its rows were exchanged \(beam search\)"),
    ({"prefill_chunk_size": 16}, "^attention: an image is read in a later pass than the first"),
    ({"use_cache": False}, "^attention: everything is read again at every token")], ids=["beams", "chunks", "no cache"])
def test_a_generate_whose_rows_cannot_be_followed_is_refused(options, line):
    vlm = tiny_vlm("qwen3_vl")
    inputs = processor_inputs(vlm, ROWS[:1])
    with recording_image_attention(vlm), refused(line):
        plain_generate(vlm, inputs, 8, **options)


def test_padding_on_the_right_is_refused():
    vlm = tiny_vlm("qwen3_vl")
    texts = ["red", "red blue green"]
    inputs = vlm.tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    with torch.no_grad(), recording_image_attention(vlm), refused("^attention: a row ends in padding;"):
        vlm.model(**inputs)


def test_a_steered_pass_with_gradients_is_recorded_too():
    vlm = tiny_vlm("qwen3_vl")
    inputs = processor_inputs(vlm, ROWS[:1])
    masses = []
    for grad in (True, False):
        with torch.set_grad_enabled(grad), steering_image_attention(vlm, log_bias=1.0), \
                recording_image_attention(vlm) as trace:
            forget(vlm)
            vlm.model(**inputs)
        masses.append(trace.scores)
    assert np.abs(masses[0] - masses[1]).max() < 1e-6
