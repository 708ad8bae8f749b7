"""Questions put to a model: what a key depends on, what is kept, what fails alone, and what goes on after a kill."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asking import (
    COLORS,
    HEIGHT,
    WIDTH,
    StandIn,
    StandInVLM,
    command,
    environment,
    group_of,
    outcomes,
    run_command,
    save_items,
    with_edit,
    write_items,
)
from click.testing import CliRunner
from PIL import Image

import probes.backends
from experiments.cli import main
from experiments.evaluate import EvaluateJob, evaluate, report_lines
from experiments.scenes import write_benchmark
from probes.backends import ModelSpec
from rekey import store
from rekey.errors import InputError, Interrupted
from rekey.evaluate import (
    Failure,
    Identity,
    Settings,
    answered_keys,
    ask,
    edit_tokens,
    make_questions,
    read_lines,
    response_key,
    runs_file,
)
from rekey.geometry import Box
from rekey.records import Generation, Item, Response, from_json, to_json

MODEL = Identity("m", {"backend": "hf", "revision": "abc", "dtype": "float32", "min_pixels": None, "max_pixels": None})


@pytest.fixture
def items(tmp_path) -> Path:
    """Twelve questions about pictures of noise."""
    write_items(tmp_path / "items", 12)
    return tmp_path / "items"


@pytest.fixture
def rekey(monkeypatch):
    """The command line, in this process, with a model that loads nothing."""
    monkeypatch.setattr(probes.backends, "ModelSpec", StandIn)

    def run(items: Path, out: Path, *more: object):
        return CliRunner().invoke(main, ["evaluate", "--items", str(items), "--model", "stand-in", "--out", str(out),
                                         *map(str, more)], catch_exceptions=False)
    return run


def job(items: Path, out: Path, **options) -> EvaluateJob:
    return EvaluateJob(items, StandIn("stand-in"), out, **options)


def n_lines(*paths: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in paths)


# The key


def key(item: Item | None = None, text: str = "What?", identity: Identity = MODEL, **settings) -> str:
    item = item or Item("i", "a.png", "00ff", "What?", COLORS, "A")
    return response_key(item, text, identity, Settings(**settings))


@pytest.mark.parametrize("other", [
    dict(item=Item("i", "a.png", "00fe", "What?", COLORS, "A")), dict(item=Item("j", "a.png", "00ff", "What?", COLORS,
                                                                              "A")),
    dict(text="What ?"), dict(identity=replace(MODEL, name="n")),
    dict(identity=replace(MODEL, options=MODEL.options | {"revision": "abd"})),
    dict(identity=replace(MODEL, options=MODEL.options | {"backend": "vllm"})),
    dict(identity=replace(MODEL, options=MODEL.options | {"dtype": "bfloat16"})),
    dict(identity=replace(MODEL, options=MODEL.options | {"max_pixels": 9216})), dict(prompt="cot"),
    dict(thinking=False), dict(thinking=True), dict(max_new_tokens=8191), dict(temperature=0.1), dict(seed=1),
], ids=str)
def test_an_answer_under_anything_else_has_another_key(other):
    assert key(**other) != key()


def test_a_key_tells_nothing_of_the_right_answer_and_not_where_the_files_are():
    item = Item("i", "a.png", "00ff", "What?", COLORS, "A")
    for same in (replace(item, answer="B"), replace(item, image="elsewhere/b.jpg"), replace(item, category="x"),
                 replace(item, source_answer="red"), with_edit(item, Box(0, 0, 2, 2))):
        assert key(same) == key(item)
    assert key(temperature=0) == key(temperature=0.0)


def test_a_key_is_the_hash_of_a_text_that_stays_as_it_is():
    """A key made in another way would ask every stored question again."""
    text = ('{"backend": "hf", "dtype": "float32", "image": "00ff", "item": "i", "max_new_tokens": 8192, "model": "m", '
            '"prompt": "direct", "revision": "abc", "temperature": 0.0, "text": "What?"}')
    assert key() == hashlib.sha256(text.encode()).hexdigest()[:32]


def test_keys_do_not_depend_on_batches_workers_shards_or_the_folder(items, tmp_path):
    shutil.copytree(items, tmp_path / "moved")
    ways = {"one": {}, "batch": dict(batch_size=5), "workers": dict(workers=2), "moved": dict(items=tmp_path / "moved")}
    for name, way in ways.items():
        evaluate(EvaluateJob(**(dict(items=items, model=StandIn("m"), out=tmp_path / name / "r.jsonl") | way)))
    for number in (1, 2, 3):
        evaluate(EvaluateJob(items, StandIn("m"), tmp_path / "shards" / "r.jsonl", shard=(number, 3)))
    keys = {name: {line["key"] for line in outcomes(tmp_path / name / "r.jsonl")} for name in (*ways, "shards")}
    assert all(len(found) == 12 and found == keys["one"] for found in keys.values())


# What a model gets


def test_a_model_gets_pixels_and_text_and_nothing_of_the_answer(items, tmp_path):
    vlm, seen = StandInVLM(), []
    evaluate(job(items, tmp_path / "r.jsonl", batch_size=5), vlm=vlm)
    for images, texts, settings, seeds in vlm.seen:
        assert seeds is None and settings == Settings()
        assert all(type(text) is str for text in texts) and all(type(pixels) is np.ndarray for pixels in images)
        seen += zip(images, texts)
    assert len(seen) == 12
    for number, (pixels, text) in enumerate(seen):
        assert np.array_equal(pixels, np.asarray(Image.open(items / f"images/{number:04d}.png")))
        assert text == (f"What color is kite {number}?\n(A) red\n(B) green\n(C) blue\n(D) black\n"
                        "Answer with the option's letter from the given choices directly.")
    wrong = [replace(from_json(Item, line), answer="A") for line in store.read_jsonl(items / "items.jsonl")]
    save_items(items, wrong)
    again = StandInVLM()
    evaluate(job(items, tmp_path / "again.jsonl", batch_size=5), vlm=again)
    assert [call[1:] for call in again.seen] == [call[1:] for call in vlm.seen]


def test_sampled_answers_have_a_seed_of_their_own_whatever_stands_beside(items, tmp_path):
    seeds = {}
    for name, batch_size, seed in (("one", 1, 3), ("five", 5, 3), ("other", 5, 4)):
        vlm = StandInVLM()
        evaluate(job(items, tmp_path / f"{name}.jsonl", batch_size=batch_size,
                     settings=Settings(temperature=0.7, seed=seed)), vlm=vlm)
        seeds[name] = [seed for call in vlm.seen for seed in call[3]]
    assert seeds["one"] == seeds["five"] and len(set(seeds["one"])) == 12
    assert not set(seeds["one"]) & set(seeds["other"])


def test_a_line_says_what_was_asked_how_and_what_came_back(items, tmp_path):
    evaluate(job(items, tmp_path / "r.jsonl", settings=Settings("cot", False, 100)))
    line = store.read_jsonl(tmp_path / "r.jsonl")[0]
    assert line["settings"] == {"prompt": "cot", "thinking": False, "max_new_tokens": 100, "temperature": 0.0,
                                "backend": "hf"}
    assert line["asked"].endswith("(D) black\nThink step by step, then answer with the option's letter from the given "
                                  "choices.")
    assert (line["model"], line["image_size"], line["item"]["item_id"]) == ("stand-in", [HEIGHT, WIDTH], "noise_0000")
    response = from_json(Response, line)
    assert response.generation == Generation(response.generation.text, (1, 2), 20, 6, ((16, 24),), "stop", 0.01)
    assert to_json(response) == line
    manifest, model = store.read_jsonl(runs_file(tmp_path / "r.jsonl"))
    assert manifest["run"] == model["run"] == line["run"]
    assert manifest["settings"]["items"] == str(items) and model["model"]["name"] == "stand-in"


# Edits and tokens


@pytest.mark.parametrize("boxes, filled, expected", [
    ([Box(0, 0, 100, 50)], 1.0, 9.0),              # 5000 of 400 x 200 pixels, of 144 tokens
    ([Box(0, 0, 100, 50), Box(300, 100, 310, 120)], 1.0, 0.36),         # the smaller one: 200 pixels
    ([Box(0, 0, 100, 50)], 0.5, 4.5),              # half of the tokens show padding
], ids=["one", "the smaller", "padded"])
def test_the_tokens_of_an_edit_are_counted_by_area(boxes, filled, expected):
    item = with_edit(Item("i", "a.png", "00", "What?", COLORS, "A"), *boxes)
    said = Generation("A", (), 200, 144, ((384, 384),), "stop", 0.1, filled=filled)
    assert edit_tokens(item, (200, 400), said) == expected


def test_without_edits_or_a_count_of_tokens_there_is_no_number():
    item, said = Item("i", "a.png", "00", "What?", COLORS, "A"), Generation("A", (), 20, 144, None, "stop", 0.1)
    assert edit_tokens(item, (200, 400), said) is None
    assert edit_tokens(with_edit(item, Box(0, 0, 9, 9)), (200, 400), replace(said, n_image_tokens=None)) is None


def test_edits_below_one_token_are_warned_of(items, tmp_path):
    made = [from_json(Item, line) for line in store.read_jsonl(items / "items.jsonl")]
    save_items(items, [with_edit(made[0], Box(0, 0, 4, 4)),         # 16 of 96 pixels and 6 tokens: one token
                       with_edit(made[1], Box(0, 0, 3, 5)), *made[2:]])
    summary = evaluate(job(items, tmp_path / "r.jsonl"))
    assert summary.below_one_token == ("noise_0001",)
    assert report_lines(summary)[1].startswith("warning: in 1 items an edit region is smaller than one image token")
    lines = {line["item"]["item_id"]: line.get("edit_tokens") for line in outcomes(tmp_path / "r.jsonl")}
    assert (lines["noise_0000"], lines["noise_0001"], lines["noise_0002"]) == (1.0, 0.94, None)


# What fails


def broken(items: Path, number: int, how: str) -> None:
    path = items / f"images/{number:04d}.png"
    if how == "cut off":
        path.write_bytes(path.read_bytes()[:60])
    elif how == "another picture":
        Image.new("RGB", (WIDTH, HEIGHT)).save(path)
    else:
        path.unlink()


@pytest.mark.parametrize("how, reason", [("cut off", "damaged or cut off"), ("another picture", "another hash")])
@pytest.mark.parametrize("batch_size", [1, 12])
def test_a_picture_that_is_not_the_items_fails_alone_and_is_asked_when_it_is_back(items, tmp_path, rekey, how, reason,
                                                                                  batch_size):
    out, whole = tmp_path / "r.jsonl", (items / "images/0004.png").read_bytes()
    broken(items, 4, how)
    result = rekey(items, out, "--batch-size", batch_size)
    assert result.exit_code == 3
    assert "12 questions: 0 answered before, 11 now, 1 failed" in result.output
    assert "failed: noise_0004: " in result.output and reason in result.output
    errors = [line for line in read_lines(out) if "error" in line]
    assert [line["item"]["item_id"] for line in errors] == ["noise_0004"] and reason in errors[0]["error"]
    assert "generation" not in errors[0] and errors[0]["asked"].startswith("What color is kite 4?")
    (items / "images/0004.png").write_bytes(whole)
    result = rekey(items, out, "--batch-size", batch_size)
    assert result.exit_code == 0 and "11 answered before, 1 now, 0 failed" in result.output
    evaluate(job(items, tmp_path / "undisturbed.jsonl", batch_size=batch_size))
    assert outcomes(out) == outcomes(tmp_path / "undisturbed.jsonl")
    assert n_lines(out) == 13                       # the error stays as evidence, and is superseded


def test_missing_pictures_are_listed_before_a_model_is_loaded(items, tmp_path, rekey, monkeypatch):
    monkeypatch.setattr(StandIn, "load", lambda self: pytest.fail("loaded"))
    for number in (2, 7):
        broken(items, number, "missing")
    result = rekey(items, tmp_path / "r.jsonl")
    assert result.exit_code == 2
    assert [line.split(":")[1] for line in result.output.splitlines() if "no image" in line] == [" noise_0002",
                                                                                                  " noise_0007"]
    assert not (tmp_path / "r.jsonl").exists()


def test_a_question_that_the_model_fails_leaves_the_others_answers(items, tmp_path):
    class Picky(StandInVLM):
        def answer(self, images, texts, settings, seeds):
            found = super().answer(images, texts, settings, seeds)
            return [Failure("too small") if "kite 3?" in text else answer for text, answer in zip(texts, found)]
    for batch_size in (1, 4, 12):
        out = tmp_path / f"{batch_size}.jsonl"
        summary = evaluate(job(items, out, batch_size=batch_size), vlm=Picky())
        assert summary.failures == ("noise_0003: too small",)
        assert Counter("error" in line for line in read_lines(out)) == {False: 11, True: 1}
        right = {line["item"]["item_id"]: line["item"]["answer"] for line in read_lines(out) if "error" not in line}
        assert right == {line["item"]["item_id"]: line["generation"]["text"][1] for line in read_lines(out)
                         if "error" not in line}
        retried = StandInVLM()
        assert evaluate(job(items, out, batch_size=batch_size), vlm=retried).n_resumed == 11
        assert sum(len(call[0]) for call in retried.seen) == batch_size      # its batch, as it was
        assert not [line for line in read_lines(out) if "error" in line] and n_lines(out) == 13


def test_of_errors_the_last_one_stays_until_there_is_an_answer(items, tmp_path):
    class Failing(StandInVLM):
        def __init__(self, reason):
            super().__init__()
            self.reason = reason

        def answer(self, images, *_):
            return [Failure(self.reason)] * len(images)
    for reason in ("first", "second"):
        evaluate(job(items, tmp_path / "r.jsonl"), vlm=Failing(reason))
    assert [line["error"] for line in read_lines(tmp_path / "r.jsonl")] == ["second"] * 12
    assert answered_keys(tmp_path / "r.jsonl") == set()


def test_answers_and_questions_of_unequal_number_are_a_bug_and_no_shift(items):
    class Short(StandInVLM):
        def answer(self, images, *rest):
            return super().answer(images[1:], *rest)
    read = [from_json(Item, line) for line in store.read_jsonl(items / "items.jsonl")]
    with pytest.raises(ValueError):
        ask(Short(), make_questions(read, items, MODEL, Settings()), MODEL, Settings(), "run")


# Files


def test_several_models_and_settings_share_a_file(items, tmp_path):
    out = tmp_path / "r.jsonl"
    for model in ("a", "b"):
        for settings in (Settings(), Settings("cot")):
            made = EvaluateJob(items, StandIn(model), out, settings)
            assert evaluate(made).n_resumed == 0 and evaluate(made).n_resumed == 12
    assert Counter((line["model"], line["settings"]["prompt"]) for line in read_lines(out)) == {
        (model, prompt): 12 for model in ("a", "b") for prompt in ("direct", "cot")}


def test_a_finished_run_loads_no_model_and_changes_nothing(items, tmp_path, rekey, monkeypatch):
    out = tmp_path / "r.jsonl"
    assert rekey(items, out).exit_code == 0
    before = out.read_bytes()
    monkeypatch.setattr(StandIn, "load", lambda self: pytest.fail("loaded"))
    result = rekey(items, out)
    assert result.exit_code == 0 and "12 answered before, 0 now" in result.output
    assert out.read_bytes() == before and n_lines(runs_file(out)) == 2


def test_lines_are_read_from_all_shards_and_once_each(items, tmp_path):
    out = tmp_path / "r.jsonl"
    evaluate(job(items, out))
    whole, lines = outcomes(out), out.read_bytes().splitlines(keepends=True)
    (tmp_path / "r-0001-of-0002.jsonl").write_bytes(b"".join(lines[:7]))
    (tmp_path / "r-0002-of-0002.jsonl").write_bytes(b"".join(lines[5:]))         # two lines in both
    (tmp_path / "r-0002-of-0002.jsonl.bak").write_bytes(b"not ours")
    (tmp_path / "r-2.jsonl").write_bytes(b"nor this")
    assert outcomes(out) == whole
    out.write_bytes(lines[0] * 3)
    assert outcomes(out) == whole
    out.unlink()
    assert outcomes(out) == whole and len(answered_keys(out)) == 12


@pytest.mark.parametrize("n_cut", [1, 2, 40, 300])
def test_a_torn_last_line_is_left_out_and_asked_again(items, tmp_path, n_cut):
    out = tmp_path / "r.jsonl"
    evaluate(job(items, out))
    whole, data = outcomes(out), out.read_bytes()
    out.write_bytes(data[:-n_cut])
    assert len(list(read_lines(out))) == 11
    assert evaluate(job(items, out)).n_resumed == 11
    assert outcomes(out) == whole and n_lines(out) == 12


def test_gzipped_responses_are_read(items, tmp_path):
    evaluate(job(items, tmp_path / "r.jsonl"))
    (tmp_path / "packed.jsonl").write_bytes(gzip.compress((tmp_path / "r.jsonl").read_bytes()))
    assert outcomes(tmp_path / "packed.jsonl") == outcomes(tmp_path / "r.jsonl")


def test_a_gzipped_file_is_not_written_to(items, tmp_path, rekey):
    evaluate(job(items, tmp_path / "r.jsonl", limit=5))
    packed = gzip.compress((tmp_path / "r.jsonl").read_bytes())
    (tmp_path / "packed.jsonl").write_bytes(packed)
    result = rekey(items, tmp_path / "packed.jsonl")
    assert result.exit_code == 2 and "packed.jsonl: is gzipped" in result.output
    assert (tmp_path / "packed.jsonl").read_bytes() == packed


LINE = {"key": "k", "item": {"item_id": "i", "question": "q", "options": [], "answer": "A"}, "model": "m",
        "settings": {}, "error": "e"}


@pytest.mark.parametrize("content, found", [
    ("hello\n", "line 1: not JSON"), ("3\n", "line 1: is not an object"), ("[]\n", "line 1: is not an object"),
    (json.dumps(LINE) + '\n{"item_id":"i"}\n', "line 2: has no key"),
    (json.dumps(LINE | {"item": {"item_id": "i"}}) + "\n", "line 1: has no item.question"),
    (json.dumps({name: value for name, value in LINE.items() if name != "error"}) + "\n",
     "line 1: has no generation and no error"),
    (json.dumps({name: value for name, value in LINE.items() if name != "error"} | {"generation": "A"}) + "\n",
     "line 1: has no generation and no error"),
    (json.dumps(LINE | {"item": None}) + "\n", "line 1: has no item"),
    (json.dumps(LINE | {"item": 3}) + "\n", "line 1: has no item"),
    (json.dumps(LINE | {"key": ["k"]}) + "\n", "line 1: has no key"),
    ("no line end", "is no file of responses"), ('{"a": 1}', "is no file of responses"),
    ("\x89PNG\r\n\x1a\n", "line 1: not"), ("\0\0\0\0", "is no file of responses"),
], ids=repr)
def test_a_file_that_holds_something_else_is_refused_and_left_alone(items, tmp_path, rekey, content, found):
    out = tmp_path / "precious.txt"
    out.write_text(content, newline="")
    before = out.read_bytes()
    result = rekey(items, out)
    assert result.exit_code == 2 and f"{out}" in result.output and found in result.output
    assert "rekey evaluate" in result.output or "not JSON" in result.output or "not UTF-8" in result.output
    assert out.read_bytes() == before and not runs_file(out).exists()


def test_a_file_cut_off_in_its_first_line_is_gone_on_with(items, tmp_path):
    out = tmp_path / "r.jsonl"
    evaluate(job(items, out))
    whole, data = outcomes(out), out.read_bytes()
    for n_left in (0, 1, 5, 8, 100):
        out.write_bytes(data[:n_left])
        assert evaluate(job(items, out)).n_resumed == 0
        assert outcomes(out) == whole


def test_where_there_is_no_file_the_line_says_what_to_give(tmp_path):
    with pytest.raises(InputError, match=r"r.jsonl: no such file; expected the --out file of `rekey evaluate`"):
        list(read_lines(tmp_path / "r.jsonl"))


def test_out_may_be_in_folders_that_are_not_there_yet_but_no_folder_itself(items, tmp_path, rekey):
    assert rekey(items, tmp_path / "a" / "b" / "r.jsonl").exit_code == 0
    assert len(outcomes(tmp_path / "a" / "b" / "r.jsonl")) == 12
    result = rekey(items, tmp_path / "a")
    assert result.exit_code == 2 and f"{tmp_path / 'a'}: is a folder" in result.output
    result = rekey(items, items / "items.jsonl" / "r.jsonl")            # a file where a folder should be
    assert result.exit_code == 2 and len(result.output.splitlines()) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_one_line(items, tmp_path, rekey):
    (tmp_path / "locked").mkdir(mode=0o555)
    result = rekey(items, tmp_path / "locked" / "r.jsonl")
    assert result.exit_code == 1 and "rekey: Permission denied: " in result.output


@pytest.mark.parametrize("code, said", [(errno.EROFS, "Read-only file system"), (errno.EACCES, "Permission denied")])
def test_a_file_system_that_takes_no_writes_is_one_line(items, tmp_path, rekey, monkeypatch, code, said):
    def refuse(path, **_):
        raise OSError(code, os.strerror(code), str(path))
    monkeypatch.setattr(Path, "mkdir", refuse)
    result = rekey(items, tmp_path / "locked" / "r.jsonl")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith(f"rekey: {said}: {tmp_path / 'locked'}; make room (or get access)")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(items, tmp_path, rekey, monkeypatch, workers):
    out, append = tmp_path / "r.jsonl", store.Journal.append

    def until_full(journal, record):
        if journal.path == out and len(journal.lines) == 7:
            with out.open("ab") as file:
                file.write(store.dumps(record).encode()[:50])           # what still had room
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(journal, record)
    monkeypatch.setattr(store.Journal, "append", until_full)
    result = rekey(items, out, "--workers", workers)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == ("rekey: No space left on device: while writing; make room (or get "
                                              "access) and run the same line again")
    monkeypatch.setattr(store.Journal, "append", append)
    assert len(list(read_lines(out))) == 7
    result = rekey(items, out)
    assert result.exit_code == 0 and "7 answered before, 5 now" in result.output
    evaluate(job(items, tmp_path / "undisturbed.jsonl"))
    assert outcomes(out) == outcomes(tmp_path / "undisturbed.jsonl")


def test_an_empty_benchmark_is_one_line(tmp_path, rekey):
    save_items(tmp_path, [])
    result = rekey(tmp_path, tmp_path / "r.jsonl")
    assert result.exit_code == 2 and "holds no items" in result.output


@pytest.mark.parametrize("arguments, said", [
    (["--base-url", "http://x/v1"], "--backend hf: has no use for --base-url; leave them out"),
    (["--backend", "openai"], "--backend openai: needs --base-url, such as http://localhost:8000/v1"),
    (["--backend", "openai", "--base-url", "http://x/v1", "--dtype", "float16", "--device", "cpu"],
     "--backend openai: has no use for --device, --dtype; leave them out (a server is given them when it is started)"),
    (["--backend", "vllm", "--attention", "sdpa"], "--backend vllm: has no use for --attention; leave them out"),
    (["--shard", "3/2"], "--shard 3/2: expected i/n with 1 <= i <= n, such as 2/8"),
    (["--items", "nowhere"], "nowhere"),
])
def test_options_that_cannot_be_followed_are_refused_in_one_line(items, tmp_path, rekey, arguments, said):
    result = rekey(items, tmp_path / "r.jsonl", *arguments)
    errors = [line for line in result.output.splitlines() if line.startswith("rekey: ")]
    assert result.exit_code == 2 and len(errors) == 1 and said in errors[0]
    assert not (tmp_path / "r.jsonl").exists()


# Stops, kills, shards


def test_parts_done_with_three_shards_and_with_two_make_a_whole(items, tmp_path, rekey):
    out = tmp_path / "r.jsonl"
    assert rekey(items, out, "--shard", "2/3").exit_code == 0
    assert rekey(items, out, "--shard", "1/2", "--batch-size", 2).exit_code == 0
    assert len(outcomes(out)) == 4 + 6 - 2          # every third question; every other pair of questions
    asked = StandInVLM()
    assert evaluate(job(items, out), vlm=asked).n_resumed == 8
    assert sum(len(call[0]) for call in asked.seen) == 4
    evaluate(job(items, tmp_path / "undisturbed.jsonl"))
    assert [line | {"generation": None} for line in outcomes(out)] == [
        line | {"generation": None} for line in outcomes(tmp_path / "undisturbed.jsonl")]
    assert Counter(line["key"] for path in tmp_path.glob("r*.jsonl") if "runs" not in path.name
                   for line in store.read_jsonl(path)).most_common(1)[0][1] == 1


def test_after_a_stop_every_answer_is_kept(items, tmp_path):
    out, stop = tmp_path / "r.jsonl", threading.Event()

    def after_the_fifth(done: int, total: int) -> None:
        if done == 5:
            stop.set()
    with pytest.raises(Interrupted, match="^5 of 12 questions asked$"):
        evaluate(job(items, out), after_the_fifth, stop)
    assert n_lines(out) == 5
    assert evaluate(job(items, out)).n_resumed == 5


@pytest.mark.parametrize("workers", [1, 2])
def test_asked_to_stop_it_keeps_what_it_has_and_says_how_to_go_on(items, tmp_path, workers):
    out = tmp_path / "r.jsonl"
    line = ("evaluate", "--items", items, "--model", "stand-in:0.2", "--out", out, "--workers", workers)
    process = subprocess.Popen(command(*line), env=environment(), start_new_session=True, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with group_of(process):
        while not out.exists() or not out.read_bytes():
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGTERM)              # what Slurm and `timeout` send
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    n_kept = n_lines(out)
    assert 1 <= n_kept <= 12 - workers
    assert f"rekey: stopped, {n_kept} of 12 questions asked; run the same line again to go on" in errors
    assert "Traceback" not in errors
    assert f"{n_kept} answered before, {12 - n_kept} now" in run_command(*line).stdout


@pytest.mark.slow
def test_killed_at_random_with_other_numbers_of_workers_and_shards_the_lines_are_those_of_one_run(tmp_path):
    """No handler, no clean-up: the whole group of processes gets SIGKILL, between two answers or in one."""
    rng, items, out = random.Random(5), tmp_path / "items", tmp_path / "killed" / "r.jsonl"
    write_items(items, 191)
    plans = [["--workers", 1], ["--workers", 2], ["--workers", 3], ["--workers", 2, "--shard", "1/3"],
             ["--workers", 1, "--shard", "2/3"], ["--workers", 3, "--shard", "1/2"]]

    def line(*more: object) -> list[object]:
        return ["evaluate", "--items", items, "--model", "stand-in:0.03", "--out", out, *more]

    def n_answered() -> int:
        return len(answered_keys(out)) if out.parent.exists() else 0
    for plan in plans:
        wanted = n_answered() + rng.randint(1, 9)
        process = subprocess.Popen(command(*line(*plan)), env=environment(), start_new_session=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with group_of(process):
            while n_answered() < wanted:
                assert process.poll() is None, "through before it was killed"
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.05))
    assert 6 <= n_answered() < 150
    last = run_command(*line("--workers", 2))
    assert last.returncode == 0, last.stderr
    evaluate(EvaluateJob(items, StandIn("stand-in:0.03"), tmp_path / "whole.jsonl"), vlm=StandInVLM())
    assert outcomes(out) == outcomes(tmp_path / "whole.jsonl") and len(outcomes(out)) == 191
    files = [path for path in out.parent.iterdir() if "runs" not in path.name]
    assert len(files) == 4 and n_lines(*files) == 191                   # nothing was asked in vain


@pytest.mark.slow
def test_a_trained_control_reads_drawn_scenes_right_and_goes_on_after_a_kill(tmp_path):
    """The real thing, once: control:clean, killed after its first answer, and continued in another process."""
    write_benchmark(tmp_path / "scenes", 12, seed=5)
    out, settings = tmp_path / "r.jsonl", Settings(max_new_tokens=8)
    line = ("evaluate", "--items", tmp_path / "scenes", "--model", "control:clean", "--out", out, "--device", "cpu",
            "--max-new-tokens", 8)
    process = subprocess.Popen(command(*line, real=True), env=environment(), start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with group_of(process):
        while not out.exists() or not out.read_bytes():
            assert process.poll() is None
            time.sleep(0.02)
    summary = evaluate(EvaluateJob(tmp_path / "scenes", ModelSpec("control:clean", device_map="cpu"), out, settings))
    assert 1 <= summary.n_resumed < 12 and not summary.failures
    found = outcomes(out)
    assert len(found) == 12
    assert all(line["generation"]["text"] == line["item"]["answer"] for line in found)
    assert all(line["generation"]["image_sizes"] == [[96, 96]] for line in found)       # what the control sees of them
