"""States: cutting, forking, extending and stacking change nothing but the cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from probing import (
    ALL,
    CROPPABLE,
    HYBRIDS,
    QUESTION,
    continued,
    first_tokens,
    image,
    plain_logits,
    poison,
    processor_inputs,
    refused,
    tiny_vlm,
)

from probes.decode import Sampling, decode
from probes.layout import GENERATED, IMAGE, PADDING, SINK, TEMPLATE
from probes.layout import QUESTION as QUESTION_CODE
from probes.prefix import extend, fork, prefill, prefixes, select, stack, with_logits
from rekey.errors import InputError

SAID = " it is red or blue so let me look again at the figure"
TRIGGER = " wait, check the image"
ROWS = [([image(0)], QUESTION), ([image(1, 60, 200)], "Where?"),
        ([image(2, 64, 64), image(3, 90, 64)], "Left or right of it, above or below?")]


def read(family: str):
    """A model, a prompt with text said after it, and the state that has read both."""
    vlm = tiny_vlm(family)
    prompt = vlm.prompt(image(0), QUESTION).then(vlm.encode(SAID))
    return vlm, prompt, prefill(vlm, [prompt])


def farthest(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item()


@pytest.mark.parametrize("family", ALL)
def test_a_padded_batch_reads_as_each_row_does_alone_in_a_plain_forward_pass(family):
    vlm = tiny_vlm(family)
    state = prefill(vlm, [vlm.prompt(*row) for row in ROWS])
    assert state.padded and state.n_columns == max(map(len, state.rows))
    for row, logits in zip(ROWS, state.logits):
        assert farthest(plain_logits(vlm, processor_inputs(vlm, [row]))[0, -1], logits) < 1e-4


@pytest.mark.parametrize("family", ALL)
def test_what_another_prompt_left_on_the_model_changes_nothing(family):
    vlm, prompt, state = read(family)
    trigger = vlm.encode(TRIGGER)
    before = prefill(vlm, [prompt]).logits, extend(vlm, state, [trigger]).logits, decode(vlm, state, 4)
    poison(vlm)
    after = prefill(vlm, [prompt]).logits, extend(vlm, state, [trigger]).logits, decode(vlm, state, 4)
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1]) and before[2] == after[2]


@pytest.mark.parametrize("family", ALL)
def test_text_injected_at_any_token_reads_as_the_whole_sequence_would(family):
    vlm, prompt, _ = read(family)
    inputs = continued(processor_inputs(vlm, [ROWS[0]]), vlm.encode(SAID))
    trigger = vlm.encode(TRIGGER)
    cuts = range(prompt.n_prompt, len(prompt) + 1, 4)
    poison(vlm)
    for cut, state in zip(cuts, prefixes(vlm, prompt, cuts)):
        whole = continued(first_tokens(inputs, cut), trigger)
        assert list(extend(vlm, state, [trigger]).rows[0].ids) == whole["input_ids"][0].tolist()
        assert farthest(extend(vlm, state, [trigger]).logits[0], plain_logits(vlm, whole)[0, -1]) < 1e-4


@pytest.mark.parametrize("family", ALL)
def test_prefixes_within_the_prompt_keep_its_groups_and_can_go_on(family):
    vlm, prompt, _ = read(family)
    cuts = [prompt.image_end, prompt.image_end + 1, prompt.n_prompt - 3, len(prompt)]
    for cut, state in zip(cuts, prefixes(vlm, prompt, cuts)):
        assert state.rows[0].codes == prompt.codes[:cut] == bytes(state.codes[0].tolist())
        if cut == prompt.image_end:
            continue                                       # no text token after the image to read once more
        again = with_logits(vlm, state)
        assert again.rows[0].codes == prompt.codes[:cut]
        assert farthest(again.logits, prefill(vlm, [prompt.cut(cut)]).logits) < 1e-4


@pytest.mark.parametrize("family", CROPPABLE)
def test_a_fork_reads_on_as_a_new_prefill_does(family):
    vlm, prompt, state = read(family)
    trigger = vlm.encode(TRIGGER)
    for cut in range(prompt.n_prompt, len(prompt) + 1, 4):
        forked = extend(vlm, fork(state, cut), [trigger])
        again = prefill(vlm, [prompt.cut(cut).then(trigger)])
        assert forked.rows[0].ids == again.rows[0].ids and forked.following.tolist() == again.following.tolist()
        assert farthest(forked.logits, again.logits) < 1e-4


@pytest.mark.parametrize("family", ALL)
def test_prefixes_come_in_the_order_asked_for_and_agree_with_a_prefill(family):
    vlm, prompt, _ = read(family)
    cuts = [len(prompt), prompt.n_prompt, len(prompt) - 5, prompt.n_prompt]
    states = prefixes(vlm, prompt, cuts)
    assert [len(state.rows[0]) for state in states] == cuts
    for state in states:
        assert farthest(with_logits(vlm, state).logits if state.is_croppable else state.logits,
                        prefill(vlm, list(state.rows)).logits) < 1e-4
    assert prefixes(vlm, prompt, []) == []


@pytest.mark.parametrize("family", ALL)
def test_a_state_is_the_same_after_it_was_continued_twice(family):
    vlm, prompt, state = read(family)
    first = decode(vlm, state, 5), extend(vlm, state, [vlm.encode(TRIGGER)]).logits
    decode(vlm, extend(vlm, fork(state), [vlm.encode(" no, it is green")]), 3)
    second = decode(vlm, state, 5), extend(vlm, state, [vlm.encode(TRIGGER)]).logits
    assert first[0] == second[0] and torch.equal(first[1], second[1])
    assert state.rows == (prompt,) and state.n_columns == len(prompt)


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_running_state_cannot_be_cut_back_and_says_what_to_do(family):
    vlm, prompt, state = read(family)
    with pytest.raises(InputError) as error:
        fork(state, len(prompt) - 1)
    assert str(error.value) == (
        "fork: this model's cache cannot be cut back (linear-attention layers keep one running state, sliding windows "
        "drop old keys); make the states with prefixes(vlm, prompt, cuts)")
    assert torch.equal(fork(state, len(prompt)).logits, state.logits)


def ragged_forks(vlm, prompt) -> list:
    """Four states of different lengths: other cuts, other text injected."""
    cuts = [prompt.n_prompt, prompt.n_prompt + 5, len(prompt) - 2, len(prompt)]
    trigger = vlm.encode(TRIGGER)
    return [extend(vlm, state, [trigger[:1 + number]]) for number, state in enumerate(prefixes(vlm, prompt, cuts))]


@pytest.mark.parametrize("family", ALL)
def test_a_stack_of_ragged_forks_goes_on_as_each_does_alone_greedy_and_sampled(family):
    vlm, prompt, _ = read(family)
    states = ragged_forks(vlm, prompt)
    assert len({state.n_columns for state in states}) > 2
    stacked = stack(states)
    assert farthest(stacked.logits, torch.cat([state.logits for state in states])) == 0
    for sampling in (Sampling(), Sampling(temperature=0.8, top_k=20, top_p=0.9)):
        together = decode(vlm, stacked, 5, sampling, [1, 2, 3, 4])
        alone = [decode(vlm, state, 5, sampling, [seed])[0] for seed, state in enumerate(states, 1)]
        assert together == alone and len({out.ids for out in alone}) > 1


@pytest.mark.parametrize("family", CROPPABLE)
def test_rows_take_texts_of_different_lengths_as_if_alone(family):
    vlm, prompt, _ = read(family)
    states = ragged_forks(vlm, prompt)
    texts = [vlm.encode(text) for text in (" wait", " no, it is green", " so", " check the left side again")]
    together = extend(vlm, stack(states), texts)
    for number, (state, text) in enumerate(zip(states, texts)):
        alone = extend(vlm, state, [text])
        assert together.rows[number].ids == alone.rows[0].ids
        assert together.following[number] == alone.following[0]
        assert farthest(together.logits[number], alone.logits[0]) < 1e-4
    once_more = decode(vlm, extend(vlm, together, [[text[0]] for text in texts]), 4)
    assert once_more == [decode(vlm, extend(vlm, extend(vlm, state, [text]), [text[:1]]), 4)[0]
                         for state, text in zip(states, texts)]


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_running_state_takes_no_ragged_texts_but_even_ones(family):
    vlm, prompt, _ = read(family)
    states = ragged_forks(vlm, prompt)[:2]
    trigger = vlm.encode(TRIGGER)
    with pytest.raises(InputError) as error:
        extend(vlm, stack(states), [trigger[:1], trigger[:3]])
    assert str(error.value) == (
        f"extend: got [1, 3] token ids; expected equal numbers, since {vlm.family.title} keeps a state that padding "
        "would change; extend rows one at a time")
    together = extend(vlm, stack(states), [trigger[:3]] * 2)
    for number, state in enumerate(states):
        assert farthest(together.logits[number], extend(vlm, state, [trigger[:3]]).logits[0]) < 1e-4


@pytest.mark.parametrize("family", ALL)
def test_selected_rows_go_on_as_they_would_have(family):
    vlm = tiny_vlm(family)
    state = prefill(vlm, [vlm.prompt(*row) for row in ROWS])
    all_rows = decode(vlm, state, 5)
    assert decode(vlm, select(state, [2, 0]), 5) == [all_rows[2], all_rows[0]]
    assert decode(vlm, select(state, [1, 1]), 5) == [all_rows[1]] * 2
    assert select(state, [2]).rows == (state.rows[2],)


@pytest.mark.parametrize("family, chunk_tokens", [*((family, 5) for family in ALL), ("qwen3_vl", 1), ("qwen3_5", 1),
                                                  ("ernie4_5_vl_moe", 1)])
def test_reading_in_chunks_gives_the_same_state(family, chunk_tokens):
    vlm, prompt, state = read(family)
    other = vlm.prompt(image(5, 64, 64), "Where?")
    chunked = prefill(vlm, [prompt, other], chunk_tokens)
    assert farthest(chunked.logits, prefill(vlm, [prompt, other]).logits) < 1e-4
    assert farthest(chunked.logits[0], state.logits[0]) < 1e-4
    assert decode(vlm, chunked, 3)[0] == decode(vlm, state, 3)[0]


@pytest.mark.parametrize("family", CROPPABLE)
def test_after_a_cut_the_logits_are_read_once_more(family):
    vlm, prompt, state = read(family)
    cut = fork(state, len(prompt) - 4)
    assert cut.logits is None
    again = with_logits(vlm, cut)
    assert again.n_columns == cut.n_columns and again.rows[0].codes == cut.rows[0].codes
    assert farthest(again.logits, prefill(vlm, [prompt.cut(len(prompt) - 4)]).logits) < 1e-4
    assert with_logits(vlm, state) is state


def test_the_last_prompt_token_keeps_its_group_when_its_logits_are_read_once_more():
    vlm, prompt, state = read("qwen3_vl")
    again = with_logits(vlm, fork(state, prompt.n_prompt))
    assert again.rows[0].codes == prompt.codes[:prompt.n_prompt] and again.rows[0].n_prompt == prompt.n_prompt


def test_forking_copies_no_keys():
    vlm, prompt, state = read("qwen3_vl")
    forked = fork(state, len(prompt) - 3)
    for old, new in zip(state.cache.layers, forked.cache.layers):
        assert new.keys.data_ptr() == old.keys.data_ptr() and new.keys.shape[2] == len(prompt) - 3
        assert old.keys.shape[2] == len(prompt)


def test_injected_text_can_be_template_and_does_not_move_the_end_of_the_prompt():
    vlm, prompt, state = read("qwen3_vl")
    longer = extend(vlm, state, [vlm.encode(TRIGGER)], TEMPLATE)
    assert set(longer.rows[0].codes[len(prompt):]) == {TEMPLATE} and longer.rows[0].n_prompt == prompt.n_prompt
    assert set(longer.codes[0, len(prompt):].tolist()) == {TEMPLATE}
    assert set(extend(vlm, state, [[5]]).rows[0].codes[len(prompt):]) == {GENERATED}


@pytest.mark.parametrize("ids, found", [([], r"\[\]"), ([[]], r"\[0\]"), ([[5], [6]], r"\[1, 1\]")])
def test_an_extension_needs_at_least_one_id_for_every_row(ids, found):
    vlm, _, state = read("qwen3_vl")
    line = rf"^extend: got {found} token ids for a state of 1 row\(s\); expected one list of at least one id per row$"
    with refused(line):
        extend(vlm, state, ids)


@pytest.mark.parametrize("family", ALL)
def test_a_vision_token_in_injected_text_is_refused(family):
    vlm, _, state = read(family)
    for token in vlm.vision_token_ids:
        with pytest.raises(InputError) as error:
            extend(vlm, state, [[5, token, 6]])
        assert str(error.value) == (
            f"token ids: the text after the prompt holds the vision token(s) [{token}]; expected text; images enter "
            "with the prompt")


def test_a_prefill_refuses_a_vision_token_that_was_said():
    vlm, prompt, _ = read("qwen3_vl")
    with refused("vision token"):
        prefill(vlm, [prompt.then([vlm.model.config.image_token_id])])


@pytest.mark.parametrize("group", [GENERATED, TEMPLATE, QUESTION_CODE])
def test_a_vision_token_is_refused_in_injected_text_of_every_group(group):
    vlm, _, state = read("qwen3_vl")
    with refused("^token ids: the text after the prompt holds the vision token"):
        extend(vlm, state, [[5, vlm.model.config.image_token_id]], group)


@pytest.mark.parametrize("group", [PADDING, SINK, IMAGE, IMAGE + 1, 99, -1, [TEMPLATE, TEMPLATE], [99], [], "text"],
                         ids=str)
def test_injected_text_is_of_no_group_that_is_not_text(group):
    vlm, _, state = read("qwen3_vl")
    with refused("^group .*: expected TEMPLATE, QUESTION or GENERATED of probes.layout$|^extend: . groups for 1 row"):
        extend(vlm, state, [[5, 6]], group)


def test_ids_in_an_array_or_a_tensor_are_read_as_those_in_a_list():
    vlm, prompt, state = read("qwen3_vl")
    trigger = vlm.encode(TRIGGER)
    expected = extend(vlm, state, [trigger])
    for ids in (np.array([trigger]), torch.tensor([trigger]), [np.array(trigger, np.uint16)], [tuple(trigger)]):
        longer = extend(vlm, state, ids)
        assert torch.equal(longer.logits, expected.logits) and longer.rows[0].ids == expected.rows[0].ids
        assert all(type(token) is int for token in longer.rows[0].ids[len(prompt):])


@pytest.mark.parametrize("ids", ["word", [1.5], [None], [-1], [571], [2**40], 5, np.array([0.5]), [[5]]], ids=str)
def test_injected_text_that_holds_no_token_ids_is_one_clear_line(ids):
    vlm, prompt, state = read("qwen3_vl")
    with refused("^token ids: "):
        extend(vlm, state, [ids])
    if not isinstance(ids, int):
        with refused("^token ids: "):
            prefill(vlm, [prompt.then(ids)])


def test_text_longer_than_the_model_was_made_for_is_refused_wherever_it_grows():
    vlm = tiny_vlm("qwen3_vl", max_position_embeddings=70)
    prompt = vlm.prompt(image(0), QUESTION)
    room = 70 - len(prompt)
    assert 1 < room < 10
    line = r"^length: 71 tokens; expected at most 70, what the model was made for; use smaller images"
    full = prefill(vlm, [prompt.then([5] * room)])
    with refused(line):
        prefill(vlm, [prompt.then([5] * (room + 1))])
    with refused(line):
        extend(vlm, full, [[5]])
    state = prefill(vlm, [prompt.cut(len(prompt) - 1), prompt])
    with refused(line):
        extend(vlm, state, [[5], [5] * (room + 1)])
    with refused(line):
        decode(vlm, state, room + 1)
    assert len(decode(vlm, state, room, stop_ids=())[1].ids) == room


@pytest.mark.parametrize("prompts", [[], [None], ["What?"]], ids=str)
def test_nothing_to_read_is_one_clear_line(prompts):
    with refused(r"^prefill: 0 prompts, |^prompts: got \[.*\]; expected a list of prompts, as vlm.prompt makes one$"):
        prefill(tiny_vlm("qwen3_vl"), prompts)


def test_nothing_to_stack_is_one_clear_line():
    with refused("^stack: no states; give at least one$"):
        stack([])


@pytest.mark.parametrize("n_tokens", [0, -1, 10**6])
def test_a_cut_outside_the_sequence_or_to_nothing_is_one_clear_line(n_tokens):
    vlm, prompt, state = read("qwen3_vl")
    for cut in (prompt.cut, lambda n: fork(state, n), lambda n: prefixes(vlm, prompt, [n])):
        with refused(rf"^cut at token {n_tokens}: a sequence of \d+ tokens whose last image ends at token \d+ can be"):
            cut(n_tokens)


def test_only_a_single_row_can_be_cut():
    vlm = tiny_vlm("qwen3_vl")
    state = prefill(vlm, [vlm.prompt(*row) for row in ROWS])
    with refused(r"^fork: a state of 3 rows cannot be cut; select one row first$"):
        fork(state, 40)


def test_a_row_of_a_padded_batch_is_cut_at_its_own_tokens():
    vlm = tiny_vlm("qwen3_vl")
    prompts = [vlm.prompt(*row).then(vlm.encode(SAID)) for row in ROWS]
    row = select(prefill(vlm, prompts), [1])
    cut = prompts[1].n_prompt + 3
    forked = extend(vlm, fork(row, cut), [vlm.encode(TRIGGER)])
    assert farthest(forked.logits, prefill(vlm, [prompts[1].cut(cut).then(vlm.encode(TRIGGER))]).logits) < 1e-4


def test_states_with_and_without_logits_do_not_stack():
    vlm, prompt, state = read("qwen3_vl")
    with refused(r"^stack: some of the states were cut and have no logits, others have; call with_logits"):
        stack([state, fork(state, len(prompt) - 1)])
    both = with_logits(vlm, stack([fork(state, len(prompt) - 1), fork(state, len(prompt) - 4)]))
    for number, cut in enumerate((1, 4)):
        expected = prefill(vlm, [prompt.cut(len(prompt) - cut)]).logits[0]
        assert farthest(both.logits[number], expected) < 1e-4


def test_sliding_caches_are_neither_cut_nor_stacked_unevenly():
    vlm = tiny_vlm("qwen2_5_vl", use_sliding_window=True, sliding_window=8)
    prompt = vlm.prompt(image(0), QUESTION).then(vlm.encode(SAID))
    state, shorter = prefill(vlm, [prompt]), prefill(vlm, [prompt.cut(prompt.n_prompt)])
    with refused(r"^fork: this model's cache cannot be cut back"):
        fork(state, prompt.n_prompt)
    with refused(r"^stack: sliding-window caches of different lengths cannot be stacked; prefill"):
        stack([state, shorter])
    for cut, made in zip((prompt.n_prompt, len(prompt)), prefixes(vlm, prompt, [prompt.n_prompt, len(prompt)])):
        assert farthest(made.logits, prefill(vlm, [prompt.cut(cut)]).logits) < 1e-4


@pytest.mark.parametrize("group", [TEMPLATE, QUESTION_CODE, GENERATED])
def test_an_image_token_among_text_is_refused_whatever_the_text_is(group):
    vlm, prompt, _ = read("qwen3_vl")
    stray = [5, vlm.model.config.image_token_id]
    for ids, line in ((stray, "holds the vision token"), ([10**6], "is not among the model's")):
        with refused(f"^token ids: .*{line}"):
            prefill(vlm, [prompt.then(ids, group)])
