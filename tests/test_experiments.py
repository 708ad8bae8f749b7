"""The experiments on drawn scenes and control models: tables against a count of the stored lines, and --show."""

import csv
import importlib
import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats as scipy_stats

from experiments.figures import in_lines
from experiments.generate import GenerateJob, generate
from experiments.scenes import write_benchmark
from probes.backends import ModelSpec
from probes.zoom_calls import TOOL_NAME
from rekey.records import Item, from_json, to_json
from rekey.sampling import SamplingOptions
from rekey.slots import read_slots, write_slots
from rekey.stats import mcnemar, sign_flip_test
from rekey.store import read_json, read_jsonl, write_jsonl

pytestmark = pytest.mark.xdist_group("experiments")          # one worker makes what its tests share

MODELS = ["--model", "control:clean", "--model", "control:contaminated"]
FAST = ["--batch-size", "16", "--max-new-tokens", "64"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """An original benchmark that control:contaminated knows, a relabeled and two renewed ones."""
    folder = tmp_path_factory.mktemp("scenes")
    write_benchmark(folder / "original", 12, 2026)
    write_benchmark(folder / "relabel", 12, 2026, relabel=True)
    for seed in (1, 2):
        generate(GenerateJob(folder / "original" / "slots.jsonl", folder / "original" / "images",
                             folder / f"seed{seed}", seed, sampling=SamplingOptions(), distractors="lure"))
    return folder


def benchmarks(scenes, *names):
    options = {"original": ["--original", "original"], "relabel": ["--relabel", "relabel"],
               "renewed": ["--renewed", "seed1", "--renewed", "seed2"]}
    return [str(scenes / word) if not word.startswith("--") else word for name in names for word in options[name]]


def run(name, *options, exit_code=0):
    module = importlib.import_module(f"experiments.{name}")
    result = CliRunner().invoke(module.main, [str(option) for option in options], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result.output


def table(out):
    with (out / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def shares(path):
    """Share of right answers by model, counted from the lines: the control models answer with a letter first."""
    right = {}
    for line in read_jsonl(path):
        right.setdefault(line["model"], []).append(line["generation"]["text"].strip()[:1] == line["item"]["answer"])
    return {model: np.mean(values) for model, values in right.items()}


@pytest.fixture(scope="module")
def renewal(scenes, tmp_path_factory):
    out = tmp_path_factory.mktemp("studies") / "renewal"
    run("renewal", *MODELS, *FAST, *benchmarks(scenes, "original", "relabel", "renewed"), "--out", out)
    return out


def test_the_renewal_table_says_what_the_lines_say(renewal):
    rows = {(row["model"], row["condition"]): row for row in table(renewal) if row["split"] == "all"}
    for condition, name in (("original", "original"), ("relabel", "relabel"), ("seed 1", "renewed-1"),
                            ("seed 2", "renewed-2")):
        for model, share in shares(renewal / "responses" / f"{name}.jsonl").items():
            assert float(rows[model, condition]["accuracy"]) == pytest.approx(share, abs=1e-5)
    knows, looks = rows["control:contaminated", "renewed"], rows["control:clean", "renewed"]
    assert float(knows["drop"]) > 0.3 > float(looks["drop"])
    assert float(knows["p_holm"]) < 0.01 < float(looks["p"])


@pytest.mark.parametrize("name", ["renewal", "relabel_gap", "categories", "difficulty"])
def test_tables_and_figures_are_drawn_again_without_a_model(name, renewal, tmp_path, monkeypatch):
    shutil.copytree(renewal / "responses", tmp_path / "responses")
    monkeypatch.setattr(ModelSpec, "load", lambda self: pytest.fail("a model was loaded"))
    output = run(name, "--show", "--out", tmp_path)
    assert "control:contaminated" in output and "control:clean" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "figure.png").stat().st_size > 5000
    assert read_json(tmp_path / "run.json")["settings"]["show"] is True
    before = (tmp_path / "table.csv").read_bytes()
    run(name, "--show", "--out", tmp_path)
    assert (tmp_path / "table.csv").read_bytes() == before


def test_asking_again_asks_nothing(renewal, scenes, monkeypatch):
    before = {path: path.read_bytes() for path in (renewal / "responses").iterdir()}
    monkeypatch.setattr(ModelSpec, "load", lambda self: pytest.fail("a model was loaded"))
    run("renewal", *MODELS, *FAST, *benchmarks(scenes, "original", "relabel", "renewed"), "--out", renewal)
    assert {path: path.read_bytes() for path in (renewal / "responses").iterdir()} == before


def test_the_relabel_gap_is_mcnemars(renewal, tmp_path):
    shutil.copytree(renewal / "responses", tmp_path / "responses")
    run("relabel_gap", "--show", "--out", tmp_path)
    for row in table(tmp_path):
        right = [{line["item"]["item_id"] for line in read_jsonl(renewal / "responses" / f"{name}.jsonl")
                  if line["model"] == row["model"] and line["generation"]["text"].strip() == line["item"]["answer"]}
                 for name in ("original", "relabel")]
        b, c = len(right[0] - right[1]), len(right[1] - right[0])
        assert (int(row["only_original"]), int(row["only_relabel"])) == (b, c)
        expected = scipy_stats.binomtest(b, b + c).pvalue if b + c else 1.0
        assert float(row["p"]) == pytest.approx(expected, rel=1e-4)


def test_categories_count_attribute_and_position_items(renewal, tmp_path):
    shutil.copytree(renewal / "responses", tmp_path / "responses")
    run("categories", "--show", "--out", tmp_path)
    lines = [line for n in (1, 2) for line in read_jsonl(renewal / "responses" / f"renewed-{n}.jsonl")]
    for row in table(tmp_path):
        if row["kind"] != "gap":
            right = [line["generation"]["text"].strip() == line["item"]["answer"] for line in lines
                     if line["model"] == row["model"] and line["item"]["record"]["question_type"] == row["kind"]]
            assert float(row["renewed"]) == pytest.approx(np.mean(right), abs=1e-5)


def test_cot_compares_the_same_items_asked_both_ways(scenes, tmp_path):
    run("cot", "--model", "control:clean", *FAST, *benchmarks(scenes, "original", "renewed"), "--out", tmp_path)
    rows = {row["condition"]: row for row in table(tmp_path)}
    assert set(rows) == {"original", "renewed"} and rows["renewed"]["n_items"] == "24"
    asked = {line["settings"]["prompt"]: line["asked"]
             for line in read_jsonl(tmp_path / "responses" / "original-cot.jsonl")}
    assert set(asked) == {"cot"} and "Think step by step" in asked["cot"]
    direct = shares(tmp_path / "responses" / "original-direct.jsonl")["control:clean"]
    assert float(rows["original"]["direct"]) == pytest.approx(direct)
    assert run("cot", "--show", "--out", tmp_path)


def test_answers_under_several_settings_are_not_mixed(scenes, tmp_path):
    for tokens in ("8", "9"):
        output = run("cot", "--model", "control:clean", "--max-new-tokens", tokens, "--batch-size", "16",
                     *benchmarks(scenes, "original"), "--out", tmp_path, exit_code=0 if tokens == "8" else 2)
    assert "under several settings" in output


def test_the_agentic_lines_hold_every_step(scenes, tmp_path, monkeypatch):
    from probes.vlm import LocalVLM
    real, box = LocalVLM.generate, [100, 100, 400, 400]
    call = f'<tool_call>{{"name": "{TOOL_NAME}", "arguments": {{"bbox_2d": {box}}}}}</tool_call>'

    def scripted(self, prompts, *rest, **more):             # no control model can use a tool: it is made to call once
        found = real(self, prompts, *rest, **more)
        if len(prompts[0].images) == 1 and "image_zoom_in_tool" in self.text_of(prompts[0].ids):
            ids = tuple(self.encode(call))
            return [type(found[0])(**{**vars(found[0]), "token_ids": ids, "text": call, "finish": "stop"})]
        return found
    monkeypatch.setattr(LocalVLM, "generate", scripted)
    output = run("agentic", "--model", "control:clean", "--max-new-tokens", "16", *benchmarks(scenes, "original"),
                 "--out", tmp_path)
    assert "the tool was used in 12 of 12 questions, 12 views" in output
    for line in read_jsonl(tmp_path / "responses" / "original-zoom.jsonl"):
        trace = line["generation"]["trace"]
        assert [("box" in step) for step in trace["steps"]] == [True, False]
        assert trace["steps"][0]["box"] == [38, 38, 154, 154]           # thousandths of 384 pixels, rounded outwards
        assert line["settings"]["zoom_steps"] == 5
    assert {line["settings"].get("zoom_steps") for line in
            read_jsonl(tmp_path / "responses" / "original-base.jsonl")} == {None}


def test_the_annotator_is_scored_and_its_slots_make_a_benchmark(scenes, tmp_path, monkeypatch):
    human = read_slots(scenes / "original" / "slots.jsonl")
    few = {name: human[name] for name in list(human)[:4]}
    write_slots(tmp_path / "slots.jsonl", few.values())
    from rekey.evaluate import VLM  # noqa: F401  (the protocol that the stand-in follows)
    from rekey.records import Generation

    class Annotator:
        """Says the human boxes, in thousandths."""

        def describe(self):
            return {"name": "annotator"}

        def answer(self, images, texts, settings, seeds):
            found = []
            for image in images:
                image_slots = next(one for one in few.values() if np.array_equal(pixels[one.image_id], image))
                said = [{"mode": "replace", "edit": [round(1000 * edge / 384) for edge in slot.edit.as_list()],
                         "context": [0, 0, 1000, 1000], "target": slot.targets[0]} for slot in image_slots.slots]
                found.append(Generation(json.dumps(said), (), 1, 1, ((384, 384),), "stop", 0.0))
            return found

    from rekey.images import load_image
    pixels = {name: load_image(scenes / "original" / "images" / f"{name}.png").pixels for name in few}
    monkeypatch.setattr(ModelSpec, "load", lambda self: Annotator())
    out = tmp_path / "study"
    run("annotator", "--model", "tiny:qwen3_vl", "--slots", tmp_path / "slots.jsonl",
        "--images", scenes / "original" / "images", "--questions", scenes / "original", "--out", out)
    rows = {(row["quantity"], row["mode"]): row for row in table(out)}
    assert float(rows["usable", "replace"]["value"]) == float(rows["human_targets_found", "replace"]["value"]) == 1.0
    assert float(rows["size_ratio", "replace"]["value"]) == pytest.approx(1.0, abs=0.03)
    assert float(rows["median_iou", "replace"]["value"]) > 0.95
    question = read_jsonl(out / "questions" / "items.jsonl")[0]["question"]
    assert from_json(Item, read_jsonl(scenes / "original" / "items.jsonl")[0]).question in question
    summary = generate(GenerateJob(out / "proposed.jsonl", scenes / "original" / "images", tmp_path / "made", 1,
                                   sampling=SamplingOptions()))
    assert summary.n_items == 4
    run("annotator", "--show", "--slots", tmp_path / "slots.jsonl", "--out", out)


@pytest.mark.parametrize(("name", "options", "said"), [
    ("renewal", [], "--model: name at least one model, or give --show to draw what is stored"),
    ("renewal", ["--show"], "no benchmark: give --original, --relabel or --renewed"),
    ("relabel_gap", [*MODELS, "--original", "nowhere"], "--relabel: is needed by this experiment"),
    ("renewal", [*MODELS, "--original", "nowhere", "--renewed", "nowhere"], "nowhere: no such file"),
    ("annotator", ["--show", "--slots", "nowhere"], "nowhere: cannot be read"),
])
def test_what_is_missing_is_one_line(name, options, said, tmp_path):
    output = run(name, *options, "--out", tmp_path / "out", exit_code=2)
    assert output.startswith(f"{name}: ") and said in output and len(output.splitlines()) == 1


def test_failed_questions_end_an_experiment_with_status_3(scenes, tmp_path):
    shutil.copytree(scenes / "original", tmp_path / "original")
    items = read_jsonl(tmp_path / "original" / "items.jsonl")
    items[0]["image_sha256"] = "0" * 64
    write_jsonl(tmp_path / "original" / "items.jsonl", map(to_json, items))
    output = run("renewal", "--model", "control:clean", *FAST, "--original", tmp_path / "original",
                 "--renewed", scenes / "seed1", "--out", tmp_path / "out", exit_code=3)
    assert "1 questions failed; the same line asks them again" in output
    rows = {row["condition"]: row for row in table(tmp_path / "out") if row["split"] == "all"}
    assert (rows["original"]["n"], rows["original"]["errors"]) == ("11", "1")


# ----------------------------------------------------------------------------------------- small things

def test_sign_flips_over_images_are_mcnemars_test_with_one_item_an_image():
    for b, c in ((7, 1), (0, 0), (3, 3), (12, 4)):
        differences = np.array([1.0] * b + [-1.0] * c + [0.0] * 20 + [np.nan])
        assert sign_flip_test(differences) == pytest.approx(mcnemar(b, c))


def test_sign_flips_are_those_of_all_sign_patterns():
    rng = np.random.default_rng(3)
    for _ in range(20):
        values = rng.integers(-3, 4, 9).astype(float)
        patterns = (np.arange(2 ** 9)[:, None] >> np.arange(9)) % 2 * 2 - 1
        sums = np.abs((patterns * np.abs(values)).sum(1))
        assert sign_flip_test(values) == pytest.approx((sums >= abs(values.sum())).mean())


@pytest.mark.parametrize(("name", "lines"), [
    ("control:contaminated-20", ["control:", "contaminated-20"]),
    ("Qwen/Qwen3-VL-235B-A22B-Instruct, original", ["Qwen/Qwen3-VL-", "235B-A22B-", "Instruct, original"]),
    ("x" * 40, ["x" * 17, "x" * 17, "x" * 6]), ("", [])])
def test_names_break_where_they_may(name, lines):
    assert in_lines(name).splitlines() == lines
