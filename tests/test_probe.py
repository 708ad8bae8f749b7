"""Runs of trials: killed, cut, stopped, extended or in parts they end in the same lines; what fails, fails alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from probing import image, refused, tiny_vlm

from experiments.probe import ProbeJob, engine_of, probe, report_lines, trials_file
from probes.backends import ModelSpec
from probes.phrases import REFLECTIONS
from rekey import store
from rekey.errors import InputError, Interrupted
from rekey.evaluate import Settings
from rekey.pairs import write_pairs
from rekey.records import SwapPair
from rekey.trials import Cell, read_trials

MODEL = ModelSpec("tiny:qwen3_vl")
CELLS = (Cell("base", image="b"), *(Cell("reasoning", phrase=phrase, kept=kept) for phrase in REFLECTIONS[:2]
                                    for kept in (0.5, 1.0)), Cell("user turn", phrase="Check again."))
SETTINGS = Settings(prompt="cot", temperature=1.0, max_new_tokens=6, seed=0)
N_PAIRS, N_CELLS = 5, 1 + len(CELLS)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    made = []
    for number in range(N_PAIRS):
        for side, seed in (("a", number), ("b", number + 50)):
            Image.fromarray(image(seed, 60, 80)).save(folder / f"{number}{side}.png")
        made.append(SwapPair(f"p{number}", f"{number}a.png", f"{number}b.png", "Which one is it?", ("red", "blue"),
                             "A", "B"))
    write_pairs(folder / "pairs.jsonl", made)
    return folder


def job_for(pairs: Path, out: Path, **changes) -> ProbeJob:
    return replace(ProbeJob(pairs, MODEL, out, CELLS, SETTINGS, pairs_at_once=2, rows_at_once=4), **changes)


def run(job: ProbeJob, **how):
    return probe(job, vlm=tiny_vlm("qwen3_vl"), **how)


@pytest.fixture(scope="module")
def whole(pairs, tmp_path_factory) -> bytes:
    """The file of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    summary = run(job_for(pairs, out))
    assert (summary.n_trials, summary.n_resumed, summary.failures) == (N_PAIRS * N_CELLS, 0, ())
    assert "times as many" in report_lines(summary)[1] and summary.n_one_by_one > summary.n_read
    return trials_file(out).read_bytes()


def lines_of(content: bytes) -> list[bytes]:
    return sorted(content.splitlines())


def test_a_run_cut_at_any_byte_goes_on_to_the_same_bytes(pairs, whole, tmp_path):
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    for cut in (3, ends[3] - 1, ends[N_CELLS] + 40, ends[2 * N_CELLS + 3], ends[-2] + 9, len(whole)):
        trials_file(tmp_path).write_bytes(whole[:cut])
        summary = run(job_for(pairs, tmp_path))
        assert trials_file(tmp_path).read_bytes() == whole, cut
        assert summary.n_resumed == sum(end <= cut for end in ends)


def test_a_killed_process_goes_on_to_the_same_bytes(pairs, whole, tmp_path):
    tiny_vlm("qwen3_vl")
    process = multiprocessing.get_context("fork").Process(target=run, args=(job_for(pairs, tmp_path),))
    process.start()
    file = trials_file(tmp_path)
    while process.is_alive() and not (file.exists() and file.stat().st_size):
        time.sleep(0.005)
    time.sleep(os.urandom(1)[0] / 255 / 2)
    process.kill()
    process.join(30)
    n_left = len(file.read_bytes())
    run(job_for(pairs, tmp_path))
    assert file.read_bytes() == whole, f"killed at byte {n_left}"


def test_a_stopped_run_says_how_far_it_came_and_goes_on_to_the_same_bytes(pairs, whole, tmp_path):
    stop = threading.Event()

    def stop_after_the_first_pairs(done: int, total: int) -> None:
        if done:
            stop.set()
    with pytest.raises(Interrupted, match=f"{2 * N_CELLS} of {N_PAIRS * N_CELLS} trials done"):
        run(job_for(pairs, tmp_path), progress=stop_after_the_first_pairs, stop=stop)
    assert whole.startswith(trials_file(tmp_path).read_bytes())
    run(job_for(pairs, tmp_path))
    assert trials_file(tmp_path).read_bytes() == whole


def test_more_triggers_later_add_lines_and_leave_the_old_ones(pairs, whole, tmp_path):
    trials_file(tmp_path).write_bytes(whole)
    more = CELLS + tuple(Cell("reasoning", phrase=phrase) for phrase in REFLECTIONS[2:6])
    later = run(job_for(pairs, tmp_path, cells=more))
    assert (later.n_resumed, later.n_trials) == (N_PAIRS * N_CELLS, N_PAIRS * (N_CELLS + 4))
    extended = trials_file(tmp_path).read_bytes()
    assert extended.startswith(whole)
    at_once = run(job_for(pairs, tmp_path / "at once", cells=more))
    assert later.n_read < at_once.n_read                    # batches that were complete are not read again
    said = [{trial.key: trial.second.token_ids for trial in read_trials(trials_file(out))}
            for out in (tmp_path, tmp_path / "at once")]
    assert said[0] == said[1]
    assert run(job_for(pairs, tmp_path, cells=more)).n_read == 0


def test_shards_hold_together_what_one_run_holds(pairs, whole, tmp_path):
    for shard in ((1, 2), (2, 2)):
        run(job_for(pairs, tmp_path, shard=shard))
    files = sorted(tmp_path.glob("trials-*-of-0002.jsonl"))
    assert len(files) == 2 and lines_of(b"".join(file.read_bytes() for file in files)) == lines_of(whole)
    assert run(job_for(pairs, tmp_path)).n_resumed == N_PAIRS * N_CELLS


def test_two_workers_leave_the_same_lines(pairs, whole, tmp_path):
    probe(job_for(pairs, tmp_path, workers=2))
    assert lines_of(trials_file(tmp_path).read_bytes()) == lines_of(whole)


def test_a_pair_whose_image_was_replaced_fails_alone_and_is_asked_again(pairs, whole, tmp_path):
    picture = pairs / "3b.png"
    good = picture.read_bytes()

    def replace_it(done: int, total: int) -> None:
        Image.fromarray(image(99, 60, 80)).save(picture)
    try:
        summary = run(job_for(pairs, tmp_path), progress=replace_it)
    finally:
        picture.write_bytes(good)
    (failure,) = summary.failures
    assert summary.n_failed == N_CELLS
    assert failure.startswith(f"p3, {N_CELLS} trials: ") and "another hash" in failure
    assert "first answers ran out of tokens" in "\n".join(report_lines(summary))        # random weights never stop
    again = run(job_for(pairs, tmp_path))
    assert (again.n_resumed, again.failures) == ((N_PAIRS - 1) * N_CELLS, ())
    said = {trial.key: trial.second.token_ids for trial in read_trials(trials_file(tmp_path))}
    lines = [json.loads(line) for line in whole.splitlines()]
    assert said == {line["key"]: tuple(line["second"]["token_ids"]) for line in lines}


def test_what_is_stored_of_a_first_answer_is_continued_even_where_it_would_be_said_differently(pairs, whole, tmp_path):
    firsts = [json.loads(line) for line in whole.splitlines()][:N_PAIRS * N_CELLS:N_CELLS]
    other = tiny_vlm("qwen3_vl").encode("it is red so let me look")
    for line in firsts:
        line["second"] |= {"token_ids": other, "text": "it is red so let me look"}
    store.write_jsonl(trials_file(tmp_path), firsts)
    run(job_for(pairs, tmp_path))
    kept = [trial.n_kept for trial in read_trials(trials_file(tmp_path)) if trial.cell.place == "reasoning"
            and trial.cell.kept == 1]
    assert kept == [len(other)] * len(kept) and len(kept) == 2 * N_PAIRS


def test_a_bad_model_file_or_folder_of_pairs_is_one_line(pairs, tmp_path):
    (tmp_path / "model").mkdir()
    store.write_json(tmp_path / "model" / "config.json", {"model_type": "llava", "architectures": ["Llava"]})
    with refused("no family of the probe engine"):
        engine_of(ModelSpec(str(tmp_path / "model")))
    with refused("--backend openai: has no states"):
        engine_of(ModelSpec("served", backend="openai", base_url="http://localhost:1/v1"))
    (tmp_path / "trials.jsonl").write_text("notes that somebody took, without an end")
    with refused("is no file of trials"):
        run(job_for(pairs, tmp_path))
    write_pairs(tmp_path / "gone" / "pairs.jsonl", [SwapPair("p", "no.png", "none.png", "?", ("x", "y"), "A", "B")])
    with pytest.raises(InputError, match="pair 'p': no image"):
        run(job_for(tmp_path / "gone", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
