"""`rekey pairs`: folders that are built, killed and built on; what a check says; the paper's Table 1."""

import csv
import json
import shutil
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from experiments import pairs_build
from experiments.cli import main
from experiments.cli_pairs import pairs
from experiments.pair_sources import FigureSource, SceneSource
from experiments.pairs_build import build_pairs
from experiments.pairs_check import Limits, least_alike
from experiments.swap_pairs import main as swap_pairs
from probes.controls.exam import unseen_pairs
from probes.pair_scenes import draw_scene_pair
from probes.similarity import CLIP
from rekey.errors import InputError, Interrupted
from rekey.images import load_image
from rekey.pairs import changed_box, read_pairs
from rekey.scenes import render_scene
from rekey.store import read_json, read_jsonl

N = 6


def run(*words, exit_code=0, command=main):
    result = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result.output


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a finished folder, but for run.json, which holds times."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != "run.json"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "pairs"
    run("pairs", "build", "--from", "scenes", "--n", N, "--seed", 1, "--out", out, "--workers", 1)
    return out


@pytest.fixture(scope="module", autouse=True)
def no_weights(tmp_path_factory):
    """As on a machine without a network and without weights."""
    def refused(*_, **__):
        raise AssertionError("the network was asked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_HOME", str(tmp_path_factory.mktemp("empty")))
        patch.setattr(socket, "getaddrinfo", refused)
        yield


# --------------------------------------------------------------------------------------- build

def test_what_was_built_is_read_without_a_problem(built):
    found, problems = read_pairs(built)
    assert not problems and [pair.pair_id for pair in found] == [f"scenes-1-{k:06d}" for k in range(N)]
    assert read_json(built / "run.json")["pairs"] == {"color": N // 2, "position": N // 2}
    with Image.open(built / "contact_sheet.jpg") as sheet:
        assert sheet.width > 1500


def test_answers_of_scene_pairs_are_those_of_the_scenes_that_the_line_holds(built):
    for pair in read_pairs(built)[0]:
        values = []
        for side in "ab":
            objects = {one["shape"]: one for one in pair.source[side]}
            first, *others = (objects[shape] for shape in pair.source["shapes"])
            if pair.category == "color":
                values.append(first["color"])
                center = load_image(built / f"images/{pair.pair_id}_{side}.png").pixels[pair.changed.slices]
                assert (np.abs(center.astype(int) - first["rgb"]).max(-1) < 3).mean() > 0.2, "the color is not there"
                continue
            axis = "left" if pair.source["kind"] == "lr" else "top"
            at = [one[axis] + one["size_px"] / 2 for one in (first, *others)]
            values.append(pair.question.split(" or ")[0].split()[-1] if at[0] < at[1]
                          else pair.question.split(" or ")[1].split()[0])
        assert values == [pair.answer_text("a"), pair.answer_text("b")] and values[0] != values[1]


def test_the_scenes_are_none_that_the_exam_or_another_seed_shows():
    def grounds(pairs):
        return {pair.a.ground for pair in pairs}
    own = grounds(draw_scene_pair(1, k) for k in range(20))
    assert len(own) == 20
    assert not own & (grounds(unseen_pairs(10, 1)) | grounds(draw_scene_pair(2, k) for k in range(20)))


def test_a_pair_does_not_depend_on_how_many_there_are(built, tmp_path):
    build_pairs(SceneSource(2, 1), tmp_path / "two")
    whole, two = contents(built), contents(tmp_path / "two")
    images = [name for name in two if name.startswith("images/")]
    assert len(images) == 4 and all(two[name] == whole[name] for name in images)
    assert whole["pairs.jsonl"].startswith(two["pairs.jsonl"])


def test_killed_and_built_on_it_ends_in_the_same_bytes(built, tmp_path, monkeypatch):
    out, source, stop = tmp_path / "pairs", SceneSource(N, 1), threading.Event()
    with pytest.raises(Interrupted, match=f"3 of {N} pairs made"):
        build_pairs(source, out, progress=lambda done, total: done == 3 and stop.set(), stop=stop)
    # A kill leaves half a line, half an image under its final name on a bad disk, and a temporary file.
    with (out / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"pair_id":"scenes-1-0000')
    torn = out / "images" / "scenes-1-000001_b.png"
    torn.write_bytes(torn.read_bytes()[:100])
    (out / "images" / ".scenes-1-000004_a.png.0.tmp").write_bytes(b"x")
    monkeypatch.setattr(pairs_build, "PAIRS_PER_WORKER", 1)
    summary = build_pairs(source, out, workers=2)
    assert summary.n_resumed == 2
    assert contents(out) == contents(built)
    assert build_pairs(source, out).n_resumed == N and contents(out) == contents(built)


def test_another_plan_is_refused_with_what_differs(built, tmp_path):
    with pytest.raises(InputError, match="seed was 1, now 2"):
        build_pairs(SceneSource(N, 2), built)
    with pytest.raises(InputError, match="from was \"scenes\", now \"figures\""):
        build_pairs(FigureSource(N, 1), built)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        build_pairs(SceneSource(N, 1), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_asked_for_one_kind_of_question_all_are_of_it(tmp_path):
    assert {draft.draw().pair.category for draft in SceneSource(4, 1, "position").drafts()} == {"position"}
    drawn = [draft.draw() for draft in FigureSource(4, 1, ("geometry", "chart")).drafts()]
    assert [one.pair.category for one in drawn] == ["geometry", "chart", "geometry", "chart"]
    assert all(changed_box(one.a, one.b) for one in drawn)
    assert len({one.pair.question for one in drawn}) == 4, "forms are taken by turns"


def test_options_of_another_source_and_unknown_kinds_are_refused(tmp_path):
    build = ("pairs", "build", "--out", tmp_path / "x", "--from")
    assert "--ask: not for pairs from figures" in run(*build, "figures", "--seed", 1, "--ask", "color", exit_code=2)
    assert "--kind: not for pairs from scenes" in run(*build, "scenes", "--seed", 1, "--kind", "chart", exit_code=2)
    assert "--seed: is needed" in run(*build, "scenes", exit_code=2)
    assert "--renewed: name at least one" in run(*build, "items", exit_code=2)
    assert "'pie'" in run(*build, "figures", "--seed", 1, "--kind", "pie", exit_code=2)
    assert not (tmp_path / "x").exists()


# --------------------------------------------------------------------------------------- check

def test_a_check_lists_the_bad_pairs_measures_the_others_and_exits_with_3(built, tmp_path):
    shutil.copytree(built, tmp_path / "pairs")
    lines = read_jsonl(built / "pairs.jsonl")
    lines[1]["answer_b"] = lines[1]["answer_a"]
    (tmp_path / "pairs" / "images" / "scenes-1-000002_a.png").unlink()
    (tmp_path / "pairs" / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "{\n")
    output = run("pairs", "check", tmp_path / "pairs", "--min-ssim", 0.9999, exit_code=3)
    bad = [line for line in output.splitlines() if line.startswith("cannot be used: ")]
    assert ["line 2" in bad[0], "line 3" in bad[1], "line 7" in bad[2], len(bad)] == [True, True, True, 3]
    assert "CLIP: not computed" in output and "LPIPS: not computed" in output and "run  curl" in output
    assert output.count("less alike: scenes-1-") == 4 and "below 0.9999" in output
    with (tmp_path / "pairs" / "check" / "similarity.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["pair_id"][-1] for row in rows] == ["0", "3", "4", "5"] and all(row["lpips"] == "" for row in rows)
    assert (tmp_path / "pairs" / "check" / "least_alike.jpg").stat().st_size > 10_000


def test_a_file_without_a_usable_pair_exits_with_2(built, tmp_path):
    (tmp_path / "pairs.jsonl").write_bytes((built / "pairs.jsonl").read_bytes())       # without its images
    output = run("pairs", "check", tmp_path / "pairs.jsonl", exit_code=2)
    assert output.count("no image") == N and "no pair can be used" in output
    run("pairs", "check", tmp_path / "nowhere.jsonl", exit_code=2)


def test_the_defaults_in_the_help_are_those_of_the_modules_that_it_does_not_load():
    options = {option.name: option.default for option in pairs.commands["check"].params}
    assert Limits(options["min_clip"], options["min_ssim"], options["max_lpips"]) == Limits()
    assert options["clip"] == CLIP


def test_limits_flag_what_is_beyond_them_and_nothing_else():
    limits = Limits(clip=0.9, ssim=0.8, lpips=0.2)
    assert limits.missed({"clip": 0.9, "ssim": 0.8, "lpips": 0.2}) == []
    assert limits.missed({"clip": 0.95, "ssim": None, "lpips": 0.25}) == ["LPIPS 0.250 above 0.2"]
    assert limits.missed({"clip": 0.8, "ssim": 0.7}) == ["CLIP 0.800 below 0.9", "SSIM 0.700 below 0.8"]


def test_the_least_alike_come_first():
    lines = [{"ssim": 0.9, "lpips": 0.1}, {"ssim": 0.2, "lpips": 0.9}, {"ssim": 0.5, "lpips": 0.3}]
    assert least_alike(lines) == [1, 2, 0]
    assert least_alike([{"ssim": 0.9}, {"ssim": 0.5}, {"ssim": None}])[0] == 1


# ------------------------------------------------------------------------------------- Table 1

def test_the_table_holds_the_means_of_the_stored_lines_and_is_drawn_again_from_them(built, tmp_path):
    run("--pairs", built, "--out", tmp_path, command=swap_pairs)
    lines = read_jsonl(tmp_path / "similarity.jsonl")
    with (tmp_path / "table.csv").open() as file:
        rows = {row["category"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["color", "position", "all"]
    for name, row in rows.items():
        mine = [line["ssim"] for line in lines if name in (line["category"], "all")]
        assert int(row["n"]) == len(mine) and float(row["ssim"]) == pytest.approx(np.mean(mine), abs=1e-5)
        assert float(row["ssim_low"]) <= float(row["ssim"]) <= float(row["ssim_high"]) and row["clip"] == ""
    for pair, line in zip(read_pairs(built)[0], lines):
        drawn = draw_scene_pair(1, int(pair.pair_id[-6:]))
        assert (render_scene(drawn.a) != render_scene(drawn.b)).any() and 0.8 < line["ssim"] < 1
    first = {name: (tmp_path / name).read_bytes() for name in ("table.csv", "table.md", "figure.png")}
    for name in first:
        (tmp_path / name).unlink()
    run("--out", tmp_path, "--show", command=swap_pairs)
    assert {name: (tmp_path / name).read_bytes() for name in first} == first
    assert "not computed" in (tmp_path / "table.md").read_text()


def test_lines_that_are_there_are_not_measured_again_unless_the_images_changed(built, tmp_path, monkeypatch):
    from experiments import pair_similarity
    run("--pairs", built, "--out", tmp_path / "a", "--limit", 4, command=swap_pairs)
    before = (tmp_path / "a" / "similarity.jsonl").read_bytes()
    measured = []
    original = pair_similarity.measured

    def counted(a, b, metrics):
        measured.append(len(a))
        return original(a, b, metrics)
    monkeypatch.setattr(pair_similarity, "measured", counted)
    run("--pairs", built, "--out", tmp_path / "a", "--limit", 4, command=swap_pairs)
    assert measured == [] and (tmp_path / "a" / "similarity.jsonl").read_bytes() == before
    text = before.decode().replace(json.loads(before.splitlines()[0])["sha256_b"], "0" * 64)
    (tmp_path / "a" / "similarity.jsonl").write_text(text)
    run("--pairs", built, "--out", tmp_path / "a", "--limit", 4, command=swap_pairs)
    assert measured == [4] and (tmp_path / "a" / "similarity.jsonl").read_bytes() == before


def test_without_pairs_or_stored_lines_there_is_a_line_that_says_so(tmp_path):
    assert "--pairs: give the pairs" in run("--out", tmp_path, command=swap_pairs, exit_code=2)
    assert "no stored similarities" in run("--out", tmp_path, "--show", command=swap_pairs, exit_code=2)
