"""Instances: resumable, shardable, parallel, and honest about what failed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from experiments.cli import main
from experiments.demo_photos import demo_photos, demo_slots_file
from experiments.generate import GenerateJob, generate
from rekey.compositing import mask_margin_px
from rekey.images import load_image
from rekey.qa import build_question
from rekey.records import Item, from_json, to_json
from rekey.sampling import Pool, SamplingOptions, identity
from rekey.slots import read_slots, write_slots
from rekey.store import read_jsonl


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Path:
    """A folder with the demo's photographs and their annotation."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "photos").mkdir()
    photos = demo_photos()
    slots = {k: v for k, v in read_slots(demo_slots_file()).items() if k in photos}
    for image_id in slots:
        shutil.copyfile(photos[image_id], folder / "photos" / photos[image_id].name)
    write_slots(folder / "slots.jsonl", slots.values())
    return folder


def arguments(sources: Path, out: Path, *more: str, seed: int = 1) -> list[str]:
    return ["generate", "--slots", str(sources / "slots.jsonl"), "--images", str(sources / "photos"),
            "--seed", str(seed), "--out", str(out), *more]


def run(*args: str):
    return CliRunner().invoke(main, list(args), catch_exceptions=False)


@pytest.fixture(scope="session")
def instance(sources, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("instances") / "seed1"
    result = run(*arguments(sources, out, "--workers", "1"))
    assert result.exit_code == 0, result.output
    return out


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a finished instance, but for run.json, which holds times."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*"))
            if p.is_file() and p.name != "run.json"}


def test_every_item_follows_from_its_record_and_its_file_from_the_source(sources, instance):
    slots = read_slots(sources / "slots.jsonl")
    items = [from_json(Item, line) for line in read_jsonl(instance / "items.jsonl")]
    assert [i.record.image_id for i in items] == list(slots)
    for item in items:
        question = build_question(item.record)
        assert (item.question, item.options, item.answer) == (question.text, question.options, question.answer)
        assert item.certificate and all(c.passed for c in item.certificate)
        renewed = load_image(instance / item.image)
        assert renewed.sha256 == item.image_sha256
        source = load_image(next((sources / "photos").glob(f"{item.record.image_id}.*"))).pixels
        near = np.zeros(source.shape[:2], bool)
        for key in item.record.keys:
            box = key.slot.edit
            near[box.grown(mask_margin_px(box)).clipped(*source.shape[1::-1]).slices] = True
            assert (source[box.slices] != renewed.pixels[box.slices]).any()
        assert np.array_equal(source[~near], renewed.pixels[~near])


def test_the_first_draw_is_the_one_that_sample_prints(sources, instance, tmp_path):
    result = run("sample", "--slots", str(sources / "slots.jsonl"), "--seed", "1", "--out", str(tmp_path / "s.jsonl"))
    assert result.exit_code == 0
    sampled, n_first = {line["item_id"]: line for line in read_jsonl(tmp_path / "s.jsonl")}, 0
    for line in read_jsonl(instance / "items.jsonl"):
        if line["record"].get("draw", 0) == 0:
            assert sampled[line["item_id"]]["record"] == line["record"]
            assert sampled[line["item_id"]]["question"] == line["question"]
            n_first += 1
    assert n_first >= 3                                  # most edits certify at the first draw


def test_two_processes_make_the_same_bytes_as_one(sources, instance, tmp_path):
    result = run(*arguments(sources, tmp_path / "seed1", "--workers", "2"))
    assert result.exit_code == 0, result.output
    assert contents(tmp_path / "seed1") == contents(instance)


def test_merged_shards_equal_one_run(sources, instance, tmp_path):
    out = tmp_path / "seed1"
    for i in (3, 1):
        assert run(*arguments(sources, out, "--shard", f"{i}/3", "--workers", "1")).exit_code == 0
    result = run("merge", str(out))
    assert result.exit_code == 2
    assert "are not done" in result.output
    assert run(*arguments(sources, out, "--shard", "2/3", "--workers", "1")).exit_code == 0
    assert run("merge", str(out)).exit_code == 0
    assert contents(out) == contents(instance)
    assert run("merge", str(out)).exit_code == 0                     # again, as after a kill
    assert contents(out) == contents(instance)


@pytest.mark.slow
def test_killed_at_twenty_random_points_and_resumed_it_ends_in_the_same_bytes(sources, instance, tmp_path):
    rng = random.Random(20)
    out, kills = tmp_path / "seed1", 0
    command = [sys.executable, "-m", "experiments.cli", *arguments(sources, out, "--workers", "2")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    started = time.monotonic()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    whole_s = time.monotonic() - started
    shutil.rmtree(out)
    while kills < 20:
        process = subprocess.Popen(command, env=environment, start_new_session=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.15, 0.75) * whole_s)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)       # no handler, no clean-up, workers included
            kills += 1
        if process.wait() == 0:                          # through before the kill came: start over
            assert contents(out) == contents(instance)
            shutil.rmtree(out)
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert contents(out) == contents(instance)           # no torn or temporary file is left either


def test_asked_to_stop_it_says_how_to_go_on(sources, instance, tmp_path):
    out = tmp_path / "seed1"
    command = [sys.executable, "-m", "experiments.cli", *arguments(sources, out, "--workers", "1")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not (out / "journal.jsonl").exists() or not (out / "journal.jsonl").read_bytes():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75                      # six images were still to be made
    assert "run the same line again to go on" in errors
    assert not (out / "items.jsonl").exists()
    assert run(*arguments(sources, out, "--workers", "1")).exit_code == 0
    assert contents(out) == contents(instance)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_stop_signal_to_the_whole_group_is_no_crash(sources, instance, tmp_path, signum):
    """What Slurm and `timeout` send: the parent, its workers and the process they are forked from all get it."""
    out = tmp_path / "seed1"
    command = [sys.executable, "-m", "experiments.cli", *arguments(sources, out, "--workers", "2")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, text=True)
    while not (out / "journal.jsonl").exists() or not (out / "journal.jsonl").read_bytes():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signum)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75, errors
    assert "images done; run the same line again to go on" in errors
    assert "Traceback" not in errors
    assert run(*arguments(sources, out, "--workers", "1")).exit_code == 0
    assert contents(out) == contents(instance)


def test_a_lost_worker_is_one_line(sources, tmp_path):
    out = tmp_path / "seed1"
    command = [sys.executable, "-m", "experiments.cli", *arguments(sources, out, "--workers", "2")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    workers: list[int] = []
    while len(workers) < 2:                              # grandchildren: the fork server is between
        assert process.poll() is None
        workers = [pid for child in children(process.pid) for pid in children(child)]
        time.sleep(0.01)
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "rekey: a worker process died" in errors
    assert "Traceback" not in errors


def children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_shards_of_different_numbers_and_requeued_ones_give_every_image_once(sources, instance, tmp_path):
    out = tmp_path / "seed1"
    for shard in ("1/2", "2/2", "1/3"):
        assert run(*arguments(sources, out, "--shard", shard, "--workers", "1")).exit_code == 0
    assert run("merge", str(out)).exit_code == 0
    assert contents(out) == contents(instance)
    assert run(*arguments(sources, out, "--shard", "1/2", "--workers", "1")).exit_code == 0       # requeued too late
    assert run("merge", str(out)).exit_code == 0
    assert contents(out) == contents(instance)


def test_a_mended_or_exchanged_source_is_done_again(sources, instance, tmp_path):
    shutil.copytree(sources, tmp_path / "here")
    photo = next((tmp_path / "here" / "photos").glob("rocket.*"))
    whole, out = photo.read_bytes(), tmp_path / "seed1"
    photo.write_bytes(whole[:20_000])
    assert run(*arguments(tmp_path / "here", out, "--workers", "1")).exit_code == 3
    photo.write_bytes(whole)
    assert run(*arguments(tmp_path / "here", out, "--workers", "1")).exit_code == 0
    assert contents(out) == contents(instance)
    astronaut = tmp_path / "here" / "photos" / "astronaut.png"
    Image.fromarray(255 - load_image(astronaut).pixels).save(astronaut)
    assert run(*arguments(tmp_path / "here", out, "--workers", "1")).exit_code in (0, 3)
    changed = {name for name, data in contents(out).items() if contents(instance).get(name) != data}
    assert "images/astronaut.png" in changed
    assert not {name for name in changed if name.startswith("images/")} - {"images/astronaut.png"}


def test_merging_takes_the_newest_line_of_an_image(sources, instance, tmp_path):
    shutil.copytree(sources, tmp_path / "here")
    photo, out = next((tmp_path / "here" / "photos").glob("rocket.*")), tmp_path / "seed1"
    whole = photo.read_bytes()
    photo.write_bytes(whole[:20_000])
    for shard in ("1/2", "2/2"):
        assert run(*arguments(tmp_path / "here", out, "--shard", shard, "--workers", "1")).exit_code in (0, 3)
    assert run("merge", str(out)).exit_code == 3
    assert "rocket" in (out / "failed.jsonl").read_text()
    photo.write_bytes(whole)
    for shard in ("1/3", "2/3", "3/3"):
        assert run(*arguments(tmp_path / "here", out, "--shard", shard, "--workers", "1")).exit_code == 0
    assert run("merge", str(out)).exit_code == 0
    assert contents(out) == contents(instance)


def test_a_source_that_vanishes_during_the_run_is_listed(sources, instance, tmp_path):
    shutil.copytree(sources, tmp_path / "here")
    photo, out = next((tmp_path / "here" / "photos").glob("rocket.*")), tmp_path / "seed1"
    whole = photo.read_bytes()

    def after_the_first(done: int, total: int) -> None:
        if done == 1:
            photo.unlink()
    summary = generate(GenerateJob(tmp_path / "here" / "slots.jsonl", tmp_path / "here" / "photos", out, 1),
                       after_the_first)
    assert len(summary.failures) == 1
    assert summary.failures[0].startswith("rocket: ")
    photo.write_bytes(whole)
    assert run(*arguments(tmp_path / "here", out, "--workers", "1")).exit_code == 0
    assert contents(out) == contents(instance)


def test_pictures_of_items_that_are_no_more_go(sources, tmp_path):
    shutil.copytree(sources, tmp_path / "here")
    photo, out = next((tmp_path / "here" / "photos").glob("rocket.*")), tmp_path / "seed1"
    assert run(*arguments(tmp_path / "here", out, "--workers", "1")).exit_code == 0
    assert (out / "images" / "rocket.png").exists()
    photo.write_bytes(photo.read_bytes()[:20_000])
    assert run(*arguments(tmp_path / "here", out, "--workers", "1")).exit_code == 3
    assert not (out / "images" / "rocket.png").exists()
    assert not (out / "pairs" / "rocket.png").exists()


def test_a_finished_run_does_nothing_again_and_lost_images_come_back(sources, instance, tmp_path):
    out = tmp_path / "seed1"
    shutil.copytree(instance, out)
    times = {p: p.stat().st_mtime_ns for p in (out / "images").iterdir()}
    result = run(*arguments(sources, out, "--workers", "1"))
    assert result.exit_code == 0
    assert f"{len(times)} images were done before" in result.output
    assert {p: p.stat().st_mtime_ns for p in (out / "images").iterdir()} == times
    sorted(times)[1].unlink()
    sorted(times)[2].write_bytes(sorted(times)[2].read_bytes()[:1000])
    sorted((out / "pairs").iterdir())[0].unlink()
    assert run(*arguments(sources, out, "--workers", "1")).exit_code == 0
    assert contents(out) == contents(instance)


def test_a_folder_never_mixes_two_plans(sources, instance, tmp_path):
    out = tmp_path / "seed1"
    shutil.copytree(instance, out)
    before = contents(out)
    result = run(*arguments(sources, out, seed=2))
    assert result.exit_code == 2
    assert "holds a run with other settings (seed was 1, now 2)" in result.output
    result = run(*arguments(sources, out, "--distractors", "lure"))
    assert 'distractors was "paper", now "lure"' in result.output
    assert contents(out) == before
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "thesis.tex").write_text("precious")
    assert "is not empty and holds no run" in run(*arguments(sources, stranger)).output
    assert [p.name for p in stranger.iterdir()] == ["thesis.tex"]


def test_avoided_questions_do_not_come_again(sources, instance, tmp_path):
    summary = generate(GenerateJob(sources / "slots.jsonl", sources / "photos", tmp_path / "again", 1,
                                   avoid=frozenset(identity(from_json(Item, line).record)
                                                   for line in read_jsonl(instance / "items.jsonl"))))
    assert summary.n_items + len(summary.failures) == len(read_slots(sources / "slots.jsonl"))
    released, fresh = ({(i.item_id, i.question, i.answer_text) for i in
                        (from_json(Item, line) for line in read_jsonl(folder / "items.jsonl"))}
                       for folder in (instance, tmp_path / "again"))
    assert not released & fresh


def test_images_that_give_no_item_are_listed_and_the_run_goes_on(sources, tmp_path):
    photos = tmp_path / "photos"
    shutil.copytree(sources / "photos", photos)
    broken = next(photos.glob("rocket.*"))
    broken.write_bytes(broken.read_bytes()[:20_000])
    result = run("generate", "--slots", str(sources / "slots.jsonl"), "--images", str(photos), "--seed", "1",
                 "--question-type", "position", "--out", str(tmp_path / "out"), "--workers", "1")
    assert result.exit_code == 3
    failed = read_jsonl(tmp_path / "out" / "failed.jsonl")
    assert [f["image_id"] for f in failed if "damaged or cut off" in f["reason"]] == ["rocket"]
    assert "no item: rocket: " in result.output
    assert len(read_jsonl(tmp_path / "out" / "items.jsonl")) + len(failed) == len(
        read_slots(sources / "slots.jsonl"))


def test_what_an_editor_cannot_paint_is_said_before_anything_is_done(sources, tmp_path):
    result = run(*arguments(sources, tmp_path / "out", "--attribute", "material"))
    assert result.exit_code == 2
    assert "--attribute material: the classical editor can change color and pattern only" in result.output
    assert not (tmp_path / "out").exists()


def test_patterns_are_painted_asked_and_measured(sources, tmp_path):
    result = run(*arguments(sources, tmp_path / "out", "--attribute", "pattern", "--question-type", "attribute",
                            "--workers", "2"))
    assert result.exit_code in (0, 3)
    items = [from_json(Item, line) for line in read_jsonl(tmp_path / "out" / "items.jsonl")]
    assert len(items) >= 5
    for item in items:
        assert item.question.startswith("What pattern")
        assert item.certificate[0].measured == item.answer_text == item.record.keys[0].pattern


def test_a_lure_is_offered_wherever_there_was_a_color(sources, tmp_path):
    generate(GenerateJob(sources / "slots.jsonl", sources / "photos", tmp_path / "out", 5, distractors="lure",
                         sampling=SamplingOptions(question_type="attribute")))
    items = [from_json(Item, line) for line in read_jsonl(tmp_path / "out" / "items.jsonl")]
    assert items
    for item in items:
        if item.record.keys[0].mode == "replace":
            assert item.source_answer in item.options
            assert item.answer_text != item.source_answer


def test_records_survive_json(sources):
    for image in read_slots(sources / "slots.jsonl").values():
        record = Pool(image).sample(3)
        assert from_json(type(record), json.loads(json.dumps(to_json(record)))) == record
