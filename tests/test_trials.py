"""Trials: what a key and random numbers depend on, by which image an answer goes, and files that were damaged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rekey import store
from rekey.errors import InputError
from rekey.evaluate import Identity, Settings, all_settings
from rekey.records import Generation, SwapPair, to_json
from rekey.trials import (
    Cell,
    SwapTrial,
    bare,
    done_keys,
    first_texts,
    grade_all,
    grade_trials,
    kept_text,
    random_seed,
    read_trials,
    trial_key,
)

PAIR = SwapPair("p", "a.png", "b.png", "What color is the kite?", ("red", "blue", "green"), "A", "B",
                source={"from": "test", "seed": 3, "drawn": {"many": "numbers"}}, sha256_a="1" * 64, sha256_b="2" * 64)
NUMBERS = replace(PAIR, question="How many kites?", options=(), answer_a="4", answer_b="7")
MODEL = Identity("m", {"backend": "hf", "revision": "abc", "dtype": "float32"})
SETTINGS = Settings(prompt="cot", temperature=0.1, max_new_tokens=64, seed=0)
PROBE = Cell("reasoning", phrase="Wait, let me look again.")


def key(pair: SwapPair = PAIR, cell: Cell = PROBE, identity: Identity = MODEL, settings: Settings = SETTINGS) -> str:
    return trial_key(pair, cell, identity, settings)


def trial(cell: Cell, text: str | None, finish: str = "stop", pair: SwapPair = PAIR, first: str | None = None,
          n_kept_chars: int = 0, **more) -> SwapTrial:
    said = None if text is None else Generation(text=text, token_ids=(1, 2), n_prompt_tokens=9, n_image_tokens=4,
                                                finish=finish, image_sizes=((8, 8),))
    return SwapTrial(key(pair, cell), bare(pair), MODEL.name, all_settings(MODEL, SETTINGS), cell, first=first,
                     n_kept=n_kept_chars // 4, n_kept_chars=n_kept_chars, second=said, **more)


FIRST = trial(Cell("base", image="a"), "The kite is red. So the answer is A.\n</think>\n\nA")


def graded(*args, **more):
    return grade_all([FIRST, trial(*args, first=FIRST.key, **more)])[1]


# ------------------------------------------------------------------------------- keys and seeds

def test_a_key_changes_with_all_that_an_answer_depends_on():
    changed = [key(replace(PAIR, sha256_a="3" * 64)), key(replace(PAIR, sha256_b="3" * 64)),
               key(replace(PAIR, question="What color is the kit?")), key(replace(PAIR, options=("red", "blue"))),
               key(identity=replace(MODEL, name="n")), key(identity=replace(MODEL, options={"backend": "hf"})),
               key(settings=replace(SETTINGS, seed=1)), key(settings=replace(SETTINGS, temperature=0.2)),
               key(settings=replace(SETTINGS, prompt="direct")), key(settings=replace(SETTINGS, thinking=True)),
               key(settings=replace(SETTINGS, max_new_tokens=65)),
               *(key(cell=replace(PROBE, **part)) for part in (
                   {"place": "answer"}, {"image": "a"}, {"regime": "splice"}, {"kept": 0.5}, {"phrase": "Wait."},
                   {"history": "stripped"}, {"log_bias": 1.0}, {"layers": (1,)}))]
    assert len({key(), *changed}) == 1 + len(changed)


def test_a_key_does_not_change_with_where_files_lie_what_is_right_or_how_a_number_is_written():
    same = [key(replace(PAIR, image_a="moved/a.png", source=None, category="kites", answer_b="C", changed=None)),
            key(cell=replace(PROBE, kept=1)), key(settings=replace(SETTINGS, temperature=1 / 10))]
    assert {key(settings=replace(SETTINGS, temperature=0)) == key(settings=replace(SETTINGS, temperature=0.0)),
            *(one == key() for one in same)} == {True}


def test_random_numbers_are_those_of_the_pair_and_the_words_whatever_the_image_regime_and_dose():
    same = [replace(PROBE, image="a"), replace(PROBE, image="a", regime="none"), replace(PROBE, regime="splice"),
            replace(PROBE, log_bias=2.0, layers=(1, 2))]
    assert {random_seed(PAIR, cell, SETTINGS) for cell in same} == {random_seed(PAIR, PROBE, SETTINGS)}
    others = [random_seed(PAIR, replace(PROBE, kept=0.5), SETTINGS),
              random_seed(PAIR, PROBE, replace(SETTINGS, seed=1)),
              random_seed(PAIR, replace(PROBE, phrase="Wait."), SETTINGS),
              random_seed(PAIR, replace(PROBE, place="answer"), SETTINGS),
              random_seed(replace(PAIR, pair_id="q"), PROBE, SETTINGS)]
    assert len({random_seed(PAIR, PROBE, SETTINGS), *others}) == 6


def test_a_line_holds_of_a_pairs_source_only_what_names_it():
    assert bare(PAIR).source == {"from": "test", "seed": 3} and bare(replace(PAIR, source="drawn")).source == "drawn"
    for long in (["drawn"] * 9, "x" * 1000):
        assert bare(replace(PAIR, source=long)).source is None


# ---------------------------------------------------------------------------------------- grades

@pytest.mark.parametrize(("text", "finish", "outcome", "follows"), [
    ("It is blue. So the answer is B.\n</think>\n\nB", "stop", "correct", "image"),
    ("So the answer is A.\n</think>\n\nA", "stop", "wrong", "text"),
    ("So the answer is C.\n</think>\n\nC", "stop", "wrong", "neither"),
    ("I cannot tell.", "stop", "unparsed", None),
    ("So the answer is B, but let me", "length", "truncated", None)])
def test_an_answer_follows_the_image_the_text_or_neither_or_is_not_read(text, finish, outcome, follows):
    found = graded(PROBE, text, finish)
    assert (found.outcome, found.follows) == (outcome, follows)


def test_under_the_first_image_no_answer_follows_the_text_alone():
    kept = graded(replace(PROBE, image="a", regime="none"), "So the answer is A.\n</think>\n\nA")
    assert (kept.outcome, kept.follows) == ("correct", "image")
    alone = graded(Cell("base", image="b"), "A")
    assert (alone.outcome, alone.follows) == ("wrong", "neither")


def test_an_answer_that_says_nothing_new_leaves_the_one_before_it_standing_as_far_as_it_was_kept():
    n_chars = len(FIRST.second.text)
    after, asked = replace(PROBE, place="answer"), Cell("user turn", phrase="Check.")
    assert graded(after, "", n_kept_chars=n_chars).follows == "text"
    assert graded(PROBE, "", n_kept_chars=len("The kite is")).outcome == "unparsed"      # of which nothing was kept
    assert graded(asked, " Yes, my answer is still correct.", n_kept_chars=n_chars).follows == "text"
    assert graded(asked, " I was mistaken.", n_kept_chars=n_chars).follows is None
    for history in ("stripped", "removed"):
        assert graded(replace(asked, history=history), " Yes.", n_kept_chars=1).outcome == "unparsed"
    texts = first_texts([FIRST])
    assert kept_text(trial(after, "", first=FIRST.key, n_kept_chars=12), texts) == FIRST.second.text[:12]


@pytest.mark.parametrize("text, outcome", [
    (" Yes, that confirms it.", "wrong"), (" That has not changed.", "wrong"), ("，确认无误。", "wrong"),
    (" Actually that was wrong.", "unparsed"), (" No. It is not red.", "unparsed"), (" It is not A.", "unparsed"),
    (" The image shows something else.", "unparsed"), (" I am not sure.", "unparsed"), (" 我看错了。", "unparsed")])
def test_an_answer_that_is_taken_back_does_not_stand(text, outcome):
    assert graded(PROBE, text, n_kept_chars=len("The kite is red. So the answer is A.")).outcome == outcome


@pytest.mark.parametrize("text, follows", [
    (" Yes, it is 4.", "text"), (" Yes, that is right.", "text"), (" No, it is 7.", "image"), (" No, 5.", "neither"),
    (" No, I was mistaken.", None)])
def test_a_yes_or_no_before_a_number_is_not_the_number(text, follows):
    first = trial(Cell("base", image="a"), "I count. The answer is 4.\n\n4", pair=NUMBERS)
    again = trial(PROBE, text, pair=NUMBERS, first=first.key, n_kept_chars=len("I count. The answer is 4."))
    assert grade_all([first, again])[1].follows == follows


def test_numbers_are_graded_by_value():
    first = trial(Cell("base", image="a"), "There are 4.\n\n4", pair=NUMBERS)
    said = {text: grade_all([first, trial(PROBE, text, pair=NUMBERS, first=first.key)])[1].follows
            for text in ("The answer is 7.0", "The answer is 4", "The answer is 5")}
    assert list(said.values()) == ["image", "text", "neither"]


# ---------------------------------------------------------------------------------------- files

def test_a_failure_is_run_again_and_a_skipped_trial_is_not(tmp_path):
    file = tmp_path / "trials.jsonl"
    failed = trial(PROBE, None, error="out of memory")
    skipped = trial(Cell("natural"), None, skipped="no reflection")
    store.write_jsonl(file, map(to_json, (FIRST, failed, skipped)))
    assert done_keys(file) == {FIRST.key, skipped.key}
    assert [one.outcome for one in grade_trials(file)] == ["correct", "error"]
    with store.Journal(file) as journal:
        journal.append(to_json(replace(failed, error=None, second=FIRST.second)))
    assert [one.outcome for one in grade_trials(file)] == ["correct", "wrong"] and len(read_trials(file)) == 3


def test_trials_are_read_back_from_a_file_and_its_shards(tmp_path):
    store.write_jsonl(tmp_path / "trials.jsonl", [to_json(FIRST)])
    probe = trial(replace(PROBE, log_bias=2.0, layers=(1, 2)), "B", first=FIRST.key)
    store.write_jsonl(tmp_path / "trials-0002-of-0002.jsonl", [to_json(probe)])
    assert read_trials(tmp_path / "trials.jsonl") == [FIRST, probe]


@pytest.mark.parametrize("line", [
    '{"key": "x"}', "[1]", '"text"', '{"key":"x","pair":{},"model":"m","settings":{},"cell":{"place":"base"}}',
    store.dumps(to_json(FIRST) | {"cell": {"place": "elsewhere"}}), store.dumps(to_json(FIRST) | {"cell": 3}), "{torn"])
def test_a_damaged_line_is_named_in_one_line(tmp_path, line):
    file = tmp_path / "trials.jsonl"
    file.write_text(store.dumps(to_json(FIRST)) + "\n" + line + "\n")
    with pytest.raises(InputError, match=r"^[^\n]*trials\.jsonl line 2[^\n]*$"):
        read_trials(file)


def test_a_missing_file_and_an_unknown_parser_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file.*rekey probe"):
        read_trials(tmp_path / "trials.jsonl")
    with pytest.raises(InputError, match="parser 'lenient'"):
        grade_all([FIRST], "lenient")
