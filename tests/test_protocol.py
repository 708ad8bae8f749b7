"""The VisualSwap protocol on tiny models: every trial says what plain generation from the same ids would, at the cost
of reading once what trials share."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
from probing import CROPPABLE, QUESTION, image, tiny_vlm

from probes.decode import decode
from probes.interpose import COLUMNS
from probes.prefix import extend, prefill
from probes.prompts import render
from probes.protocol import continue_cells, sampling_of
from probes.swap import swap
from probes.trial_rows import Case, NothingToDo, row_of
from rekey.evaluate import Settings
from rekey.records import SwapPair
from rekey.trials import Cell, random_seed

FAMILIES = ("qwen3_vl", "qwen2_5_vl", "qwen3_5", "kimi_k25")
THOUGHT = "it is red . so let me look at the image again . it is red"
SAID = f"<think>\n{THOUGHT}\n</think>\n\nA"
PHRASE, ASKED = "Wait, let me check the figure again.", "Check the picture again."
GREEDY = Settings(prompt="cot", temperature=0.0, max_new_tokens=6, seed=0)
SAMPLED = replace(GREEDY, temperature=1.0)
PLACES = (Cell("base"), Cell("base", image="a"), Cell("reasoning", phrase=PHRASE),
          Cell("reasoning", phrase=PHRASE, kept=0.0), Cell("reasoning", phrase=PHRASE, kept=0.4),
          Cell("reasoning", "a", "none", phrase=PHRASE), Cell("natural"), Cell("answer", phrase=PHRASE),
          Cell("new turn", phrase=PHRASE), Cell("user turn", phrase=ASKED),
          Cell("user turn", phrase=ASKED, history="stripped"), Cell("user turn", phrase=ASKED, history="removed"),
          Cell("user turn", "a", "none", phrase=ASKED))


def case_of(vlm, number: int = 0) -> Case:
    prompt = vlm.prompt(image(number), QUESTION)
    pair = SwapPair(f"p{number}", "a.png", "b.png", "What color is the kite?", ("red", "blue"), "A", "B")
    return Case(pair, prompt, prompt.with_images([vlm.encode_image(image(number + 50))]))


def first_of(vlm, text: str = SAID) -> list[int]:
    return [*vlm.encode(text), vlm.stop_token_ids[0]]


def ids_of(outcome) -> list[tuple[int, ...]]:
    return [said.generation.token_ids for said in outcome.said]


@contextmanager
def tokens_fed(vlm):
    """A list of the real tokens of each forward pass that is no step of decoding."""
    fed: list[int] = []

    def hook(module, args, kwargs):
        if not COLUMNS.get().room:
            ids, mask = kwargs["input_ids"], kwargs["attention_mask"]
            fed.append(ids.numel() if mask is None else int(mask[:, -ids.shape[1]:].sum()))
    handle = vlm.model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield fed
    finally:
        handle.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trial_of_every_place_says_what_plain_generation_from_its_ids_says(family):
    vlm = tiny_vlm(family)
    case, first = case_of(vlm), first_of(vlm)
    for settings in (GREEDY, SAMPLED) if family == "qwen3_vl" else (SAMPLED,):
        found = continue_cells(vlm, [(case, first, PLACES)], settings).said
        assert [said.cell for said in found] == list(PLACES)
        for said in found:
            seeds = [random_seed(case.pair, said.cell, settings)] if settings.temperature else None
            asked, rest, n_asked = case.prompt(said.cell.image), said.row.prompt, said.row.n_asked
            assert said.cell.history != "kept" or n_asked == len(asked)
            assert rest.ids[:n_asked] == asked.ids[:n_asked] and rest.images == asked.images
            (plain,) = vlm.continue_from([rest], [()], 6, sampling_of(vlm, settings), seeds)
            assert said.generation.token_ids == plain.token_ids, said.cell


@pytest.mark.parametrize("family", ("qwen3_vl", "kimi_k25"))
def test_a_spliced_trial_is_a_swap_by_hand(family):
    vlm = tiny_vlm(family)
    case, first = case_of(vlm), first_of(vlm)
    cells = [Cell("reasoning", regime="splice", phrase=PHRASE, kept=kept) for kept in (0.3, 1.0)]
    for said in continue_cells(vlm, [(case, first, cells)], GREEDY).said:
        row = said.row
        read = prefill(vlm, [case.prompt_a.then(first[:row.n_kept])])
        state = extend(vlm, swap(vlm, read, list(case.prompt_b.images), "splice"), [row.injected])
        assert decode(vlm, state, 6)[0].ids == said.generation.token_ids


@pytest.mark.parametrize("family", ("qwen3_vl", "qwen3_5"))
def test_a_null_swap_says_the_very_tokens_of_no_swap(family):
    vlm = tiny_vlm(family)
    case, first = case_of(vlm), first_of(vlm)
    changed = []
    for settings in (GREEDY, SAMPLED):
        for place in ({"place": "reasoning", "phrase": PHRASE, "kept": 0.5}, {"place": "user turn", "phrase": ASKED},
                      {"place": "natural"}):
            regimes = ("none", "recompute", *(("splice",) if vlm.croppable else ()))
            cells = [Cell(image="a", regime=regime, **place) for regime in regimes]
            swapped = replace(cells[1], image="b")
            *null, other = ids_of(continue_cells(vlm, [(case, first, [*cells, swapped])], settings))
            assert len(set(null)) == 1
            changed.append(null[0] != other)
    assert any(changed)


def test_answers_do_not_depend_on_what_is_decoded_beside_them():
    vlm = tiny_vlm("qwen3_vl")
    steered = Cell("reasoning", phrase=PHRASE, log_bias=3.0, layers=(3,))
    cells = [PLACES[0], PLACES[2], steered, *PLACES[3:7]]
    pairs = [(case_of(vlm, number), first_of(vlm, SAID.replace("red", "blue " * number)), cells) for number in (0, 1)]
    together = ids_of(continue_cells(vlm, pairs, SAMPLED))
    assert ids_of(continue_cells(vlm, pairs, SAMPLED, rows_at_once=3)) == together
    alone = [ids_of(continue_cells(vlm, [(case, first, [cell])], SAMPLED))[0] for case, first, _ in pairs
             for cell in cells]
    assert alone == together
    # Same seed, same text: what differs is the steering.
    assert together[2] != together[1] == ids_of(continue_cells(vlm, [(*pairs[0][:2], [cells[1]])], SAMPLED))[0]


def test_what_is_kept_is_a_share_of_the_reasonings_tokens_and_ends_before_the_thought_closes():
    vlm = tiny_vlm("qwen3_vl")
    case, first = case_of(vlm), first_of(vlm)
    thought = vlm.encode(f"<think>\n{THOUGHT}")
    for kept, expected in ((0.0, 0), (0.5, round(len(thought) / 2)), (1.0, len(thought))):
        row = row_of(vlm, case, Cell("reasoning", phrase=PHRASE, kept=kept), first)
        assert row.n_kept == expected and list(row.prompt.ids[row.n_asked:row.t_phrase]) == first[:expected]
        assert row.t_after == row.t_phrase + len(row.injected) == len(row.prompt)
        assert vlm.text_of(row.injected) == (PHRASE if kept == 0 else f" {PHRASE}")
    whole = row_of(vlm, case, Cell("reasoning", phrase=PHRASE), first_of(vlm, THOUGHT))         # no thought is marked
    assert whole.n_kept == len(vlm.encode(THOUGHT))
    after_space = row_of(vlm, case, Cell("answer", phrase=PHRASE), vlm.encode("it is red .\n"))
    assert vlm.text_of(after_space.injected) == PHRASE


def test_a_users_turn_keeps_strips_or_removes_the_first_answer_and_says_so_where_it_cannot():
    vlm = tiny_vlm("qwen3_vl")
    case, first = case_of(vlm), first_of(vlm)
    said = {history: row_of(vlm, case, Cell("user turn", phrase=ASKED, history=history), first)
            for history in ("kept", "stripped", "removed")}
    answers = {history: vlm.text_of(row.prompt.ids[row.n_asked:row.t_phrase]) for history, row in said.items()}
    assert answers == {"kept": SAID, "stripped": "A", "removed": ""}
    assert len({row.injected for row in said.values()}) == 1 and ASKED in vlm.text_of(said["kept"].injected)
    for text, cell in ((THOUGHT, Cell("user turn", phrase=ASKED, history="stripped")),
                       (f"<think>\n{THOUGHT}", Cell("user turn", phrase=ASKED, history="stripped")),
                       ("it is red", Cell("natural"))):
        with pytest.raises(NothingToDo):
            row_of(vlm, case, cell, first_of(vlm, text))
        (one,) = continue_cells(vlm, [(case, first_of(vlm, text), [cell])], GREEDY).said
        assert one.skipped and one.generation is None and one.error is None


def test_a_thought_that_the_prompt_opened_and_that_ran_out_of_tokens_is_said_not_to_end():
    vlm = tiny_vlm("qwen3_5")
    with pytest.raises(NothingToDo, match="does not end"):
        row_of(vlm, case_of(vlm), Cell("user turn", phrase=ASKED, history="stripped"), first_of(vlm, THOUGHT))


@pytest.mark.parametrize("history, left", [("stripped", "A"), ("removed", "")])
def test_what_is_left_of_an_answer_stands_as_the_template_renders_it_and_not_in_a_thought_that_it_opened(history, left):
    vlm = tiny_vlm("qwen3_5")                                   # whose prompts end in an opened thought
    row = row_of(vlm, case_of(vlm), Cell("user turn", phrase=ASKED, history=history),
                 first_of(vlm, f"{THOUGHT}\n</think>\n\nA"))
    rendered = render(vlm.processor, [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": left},
                                      {"role": "user", "content": ASKED}])
    read = vlm.text_of(row.prompt.ids, skip_special_tokens=False)
    assert read.rpartition(QUESTION)[2] == rendered.rpartition(QUESTION)[2]
    assert vlm.text_of(row.prompt.ids[row.n_asked:row.t_phrase]) == left


@pytest.mark.parametrize("place", ["reasoning", "answer", "new turn", "user turn"])
def test_a_phrase_that_holds_an_image_token_is_refused_and_never_read_as_an_image(place):
    vlm = tiny_vlm("qwen3_vl")
    (one,) = continue_cells(vlm, [(case_of(vlm), first_of(vlm), [Cell(place, phrase="<|image_pad|>")])], GREEDY).said
    assert "control token(s) <|image_pad|>" in one.error


def test_a_natural_reflection_is_swapped_at_as_the_same_words_are_when_they_are_put_in():
    vlm = tiny_vlm("qwen3_vl")
    case, before = case_of(vlm), "it is red ."
    injected = row_of(vlm, case, Cell("reasoning", phrase=PHRASE), first_of(vlm, before))
    first = [*injected.prompt.ids[injected.n_asked:], *vlm.encode(" it is blue . so let me check the image again .")]
    natural = row_of(vlm, case, Cell("natural"), first)
    assert natural.prompt.ids == injected.prompt.ids and natural.injected == ()
    probe, own = (ids_of(continue_cells(vlm, [(case, said, [cell])], GREEDY))[0] for said, cell in (
        (first_of(vlm, before), Cell("reasoning", phrase=PHRASE)), (first, Cell("natural"))))
    assert probe == own


@pytest.mark.parametrize("family", ("qwen3_vl", "qwen3_5"))
def test_the_work_that_is_reported_is_what_the_model_is_fed(family):
    vlm = tiny_vlm(family)
    case, first = case_of(vlm), first_of(vlm)
    cells = [Cell("reasoning", phrase=phrase, kept=kept) for kept in (0, 0.5, 1) for phrase in (PHRASE, ASKED)]
    regimes = ("recompute", "splice", "none") if family in CROPPABLE else ("recompute", "none")
    cells = [replace(cell, regime=regime, image="a" if regime == "none" else "b") for regime in regimes
             for cell in cells]
    with tokens_fed(vlm) as fed:
        work = continue_cells(vlm, [(case, first, cells)], GREEDY).work
    assert sum(fed) == work.read
    rows = [row_of(vlm, case, cell, first).prompt for cell in cells]
    with tokens_fed(vlm) as fed:                # each alone: the first answer is asked for, then continued
        for row in rows:
            vlm.generate([case.prompt_a], 1)
            vlm.generate([row], 1)
    assert sum(fed) == work.one_by_one
    own = sum(len(row) - len(case.prompt_a) for row in rows)
    # Of the prompt nothing is read but once for each regime; for splice the new image's besides.
    n_asked = len(case.prompt_a)
    assert work.read <= len(regimes) * (n_asked + len(first)) + own + n_asked * ("splice" in regimes)
