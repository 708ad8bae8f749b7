"""`rekey demo`: three instances and a page that stands alone."""

import re
import shutil

import pytest
from click.testing import CliRunner

import experiments.cli_demo
import experiments.demo_photos
import experiments.demo_swap
from experiments.cli import main
from experiments.cli_demo import SEEDS
from experiments.demo_swap import MODELS, N_CASES
from experiments.swap_cells import INSTRUCTION, TRIGGER
from rekey.records import Item, from_json
from rekey.store import read_json, read_jsonl

pytestmark = pytest.mark.xdist_group("demo")          # one worker makes what its tests share

N_PAIRS = 8                     # half of what a user sees


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(experiments.demo_swap, "N_PAIRS", N_PAIRS)
        yield made(tmp_path_factory.mktemp("demo") / "demo")


def made(out):
    result = CliRunner().invoke(main, ["demo", "--out", str(out), "--workers", "2"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"Open {out}/index.html" in result.output
    return out


def test_three_instances_of_certified_items_that_share_no_question(demo):
    seen = set()
    for seed in SEEDS:
        items = [from_json(Item, line) for line in read_jsonl(demo / f"seed{seed}" / "items.jsonl")]
        assert len(items) >= 5
        assert all(certificate.passed for item in items for certificate in item.certificate)
        questions = {(item.record.image_id, item.question, item.answer_text) for item in items}
        assert not questions & seen
        seen |= questions
        assert (demo / f"seed{seed}" / "contact_sheet.jpg").exists()


def test_the_page_holds_every_question_and_all_of_its_pictures(demo):
    page = (demo / "index.html").read_text(encoding="utf-8")
    items = [from_json(Item, line) for seed in SEEDS for line in read_jsonl(demo / f"seed{seed}" / "items.jsonl")]
    for item in items:
        assert item.question in page
    pictures = re.findall(r'<img src="([^"]{5})', page)
    assert len(pictures) >= len(items)
    assert set(pictures) == {"data:"}
    for link in re.findall(r'href="([^"]+)"', page):
        assert (demo / link).exists()


def test_two_models_that_answer_alike_are_told_apart_by_whether_they_look_again(demo):
    trials = read_jsonl(demo / "swap" / "trials" / "trials.jsonl")
    defaults = {"place": None, "kept": 1.0, "regime": "recompute", "history": "kept", "phrase": ""}

    def answers(model: str, image: str, **cell: object) -> list[bool]:
        """By hand, from the lines: which trials of a cell end in the letter of the image seen."""
        chosen = [line for line in trials if line["model"] == model and line["cell"].get("image", "b") == image
                  and all(line["cell"].get(name, default) == cell.get(name, default)
                          for name, default in defaults.items())]
        assert len(chosen) == N_PAIRS
        return [line["second"]["text"].rpartition("</think>")[2].strip() == line["pair"][f"answer_{image}"]
                for line in chosen]

    looks, repeats = MODELS
    for model in MODELS:
        assert all(answers(model, "a", place="base")) and all(answers(model, "b", place="base"))
    for place, phrase in (("reasoning", TRIGGER), ("user turn", INSTRUCTION)):
        assert sum(answers(looks, "b", place=place, phrase=phrase)) >= N_PAIRS - 1
        assert sum(answers(repeats, "b", place=place, phrase=phrase)) == 0
        assert all(answers(repeats, "a", place=place, phrase=phrase))            # the null swap changes nothing
    assert sum(answers(repeats, "b", place="reasoning", phrase=TRIGGER, kept=0.25)) >= N_PAIRS - 1
    page = (demo / "index.html").read_text(encoding="utf-8")
    assert "Words, or a look?" in page and f"<td>{N_PAIRS} of {N_PAIRS}</td>" in page
    assert len(list((demo / "swap" / "cases").glob("scenes*.html"))) == N_CASES


def test_two_models_with_equal_scores_are_told_apart(demo):
    models = {model["name"]: model for model in read_json(demo / "audit" / "report" / "audit.json")["models"]}
    looks, knows = models["control:clean"], models["control:contaminated"]
    assert looks["original"]["accuracy"]["value"] == knows["original"]["accuracy"]["value"] == 1.0
    assert knows["p_holm"] < 1e-6 and looks["p_holm"] > 0.05
    assert knows["stale"]["rate"] > 0.4 > 0.1 > looks["stale"]["rate"]
    assert knows["relabel"]["accuracy"]["value"] > knows["renewed"]["mean"] + 0.2      # skill is left, memory is stale
    right = sum(line["generation"]["text"] == line["item"]["answer"] for seed in (1, 2, 3) for line in
                read_jsonl(demo / "audit" / "responses" / f"seed{seed}.jsonl") if line["model"] == knows["name"])
    assert knows["renewed"]["score"]["n_right"] == right
    page = (demo / "index.html").read_text(encoding="utf-8")
    assert "Memory or sight?" in page and "stale answers: " in page


def test_a_second_call_finds_everything_done(demo):
    before = {p: p.stat().st_mtime_ns for pattern in ("images/*.png", "responses/*s.jsonl", "responses/*[0-9l].jsonl")
              for p in demo.rglob(pattern)}
    assert sum(path.suffix == ".jsonl" for path in before) >= 5
    result = CliRunner().invoke(main, ["demo", "--out", str(demo), "--workers", "1"], catch_exceptions=False)
    assert result.exit_code == 0
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_a_folder_made_with_fewer_photos_is_not_half_continued(demo, tmp_path, monkeypatch):
    shutil.copytree(demo, tmp_path / "demo")
    real = experiments.demo_photos.find_spec
    monkeypatch.setattr(experiments.demo_photos, "find_spec", lambda name: None if name == "sklearn" else real(name))
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "demo"), "--workers", "1"])
    assert result.exit_code == 2
    assert "holds a run with other settings" in result.output


def test_photos_that_are_not_installed_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments.cli_demo, "_controls_are_here", lambda: False)      # asked in the tests above
    real = experiments.demo_photos.find_spec
    monkeypatch.setattr(experiments.demo_photos, "find_spec", lambda name: None if name == "sklearn" else real(name))
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "demo"), "--workers", "2"],
                                catch_exceptions=False)
    assert result.exit_code == 0
    assert "without china, flower, which ship with sklearn (pip install scikit-learn)" in result.output
    assert "5 photographs" in result.output
