"""Audits: countable by hand, degenerate, and of the published logs."""

import csv
import itertools
import json
import math
import re

import numpy as np
import pytest
from click.testing import CliRunner
from published import edited_slots, rows, write_responses
from responding import answered, renewed, write
from scipy import stats as scipy_stats

from experiments.audit import audit_figure, write_audit
from experiments.audit_text import as_markdown, as_text
from experiments.cli import main
from rekey.audit import AREAS_PX2, area_class, audit
from rekey.errors import InputError

N_DRAWS = 300


def files(folder, original, seeds, relabel=()):
    """seeds: lines by seed.  Arguments of `audit`."""
    paths = [write(folder / "original.jsonl", original)], [
        write(folder / f"seed{seed}.jsonl", lines) for seed, lines in seeds.items()]
    return (*paths, [write(folder / "relabel.jsonl", relabel)] if relabel else [])


def run(paths, **options):
    """An audit that can be written down: every output is made and parsed by a strict reader."""
    report = audit(*paths, **{"n_draws": N_DRAWS} | options)
    out = paths[0][0].parent / "audit"
    write_audit(report, out)
    data = json.loads((out / "audit.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert all(p is None or 0 < p <= 1 for p in p_values(data))
    for name in ("table.csv", "flips.csv"):
        table = list(csv.reader((out / name).open(encoding="utf-8", newline=""), strict=True))
        assert len({len(row) for row in table}) == 1
        assert not {"nan", "inf", "-inf"} & {cell.lower() for row in table for cell in row}
    for text in (as_text(report), as_markdown(report)):
        assert not re.search(r"\b(?:nan|None|inf)\b", text)
    assert (out / "audit.png").stat().st_size > 5000
    return report


def p_values(data):
    """All values of keys that name a p-value, wherever they are."""
    if isinstance(data, list):
        return [p for part in data for p in p_values(part)]
    if not isinstance(data, dict):
        return []
    names = ("p", "p_two_sided", "p_holm", "all_wrong", "all_right", "worst", "best")
    return [data[name] for name in names if name in data] + p_values(list(data.values()))


def one(paths, **options):
    (model,) = run(paths, **options).models
    return model


# --------------------------------------------------------------------------------- countable by hand

SMALL = {"adds": [("add", (0, 0, 30, 30))], "replaces": [("replace", (0, 0, 50, 50))],
         "both": [("add", (0, 0, 90, 90)), ("replace", (0, 0, 100, 100))]}


@pytest.fixture
def counted(tmp_path):
    """Four images; B is right.  a: right, then wrong twice; b: always right; c: wrong, then right once; d: failed."""
    original = [answered("a", "B"), answered("b", "B"), answered("c", "C"), answered("d", None)]
    seed1 = [renewed("a", 1, "A", edits=SMALL["adds"], source="red"),
             renewed("b", 1, "B", edits=SMALL["replaces"], source="red"),
             renewed("c", 1, "B", "position", SMALL["both"], options=("left", "right")), renewed("d", 1, "B")]
    seed2 = [renewed("a", 2, "I cannot see it.", edits=SMALL["adds"], source="red"),
             renewed("b", 2, "B", edits=SMALL["adds"], source="green"),
             renewed("c", 2, "A", "position", SMALL["both"], options=("left", "right")),
             renewed("d", 2, "B", finish="length")]
    relabel = [answered("a", "B"), answered("b", "C"), answered("c", "C"), answered("d", "B")]
    return files(tmp_path, original, {1: seed1, 2: seed2}, relabel)


def test_every_number_of_four_images_can_be_counted(counted):
    model = one(counted)
    assert (model.original.n, model.original.n_right, model.original.n_errors) == (3, 2, 1)
    assert [(seed.name, seed.score.n, seed.score.n_right) for seed in model.instances] == [
        ("seed 1", 4, 3), ("seed 2", 4, 1)]
    assert (model.renewed.score.n_unparsed, model.renewed.score.n_truncated, model.renewed.score.n_errors) == (1, 1, 0)
    assert model.renewed.mean == pytest.approx(0.5) and model.renewed.sd == pytest.approx(math.sqrt(0.125))
    assert model.renewed.binomial_sd == pytest.approx(0.25)
    assert model.renewed.images.value == pytest.approx((0 + 1 + 0.5 + 0.5) / 4)
    # d has no original.  a: 1 of 3 is right, b: all, c: 1 of 3 and not the original.  P(sum >= 1) = 1 - (2/3)^2.
    drop = model.drop
    assert (drop.n, drop.n_informative, drop.only_original) == (3, 2, None)
    assert drop.drop == pytest.approx((1 + 0 - 0.5) / 3) and drop.p == pytest.approx(5 / 9)
    assert drop.p_two_sided == 1.0
    assert (model.relabel_gap.only_original, model.relabel_gap.only_renewed) == (1, 0)
    assert model.relabel_gap.p_two_sided == 1.0 and model.relabel.n == 4


def test_chance_is_that_of_the_items_that_count(counted):
    model = one(counted)
    assert model.original.chance == 0.25
    assert model.original.corrected.value == pytest.approx((2 / 3 - 0.25) / 0.75)
    assert model.instances[0].score.chance == pytest.approx((3 * 0.25 + 0.5) / 4)


def test_parts_hold_their_items_and_the_originals_of_their_images(counted):
    parts = {(part.split, part.name): part for part in one(counted).parts}
    assert set(parts) == {("question", "attribute"), ("question", "position"), ("edit", "add"), ("edit", "replace"),
                          ("edit", "add+replace"), ("edit area", "below 1,000 px²"), ("edit area", "from 8,000 px²"),
                          *(("edit area", name) for name in ("1,000 to 1,999 px²", "2,000 to 3,999 px²"))}
    attribute, position = parts["question", "attribute"], parts["question", "position"]
    assert (attribute.n_images, attribute.renewed.n, attribute.renewed.n_right) == (3, 6, 3)
    assert (attribute.original.n, attribute.original.n_errors) == (2, 1)
    assert (position.n_images, position.renewed.n) == (1, 2)
    assert position.original.n == 0 and position.drop.p is None             # image c asked for an attribute before
    adds = parts["edit", "add"]
    assert (adds.n_images, adds.renewed.n, adds.renewed.n_right, adds.renewed.n_unparsed) == (2, 3, 1, 1)
    assert parts["edit area", "from 8,000 px²"].renewed.n == 2              # the smaller of 8,100 and 10,000
    assert [part.name for part in one(counted).parts if part.split == "edit area"][0] == "below 1,000 px²"


def test_flips_tell_what_each_item_came_to_memory_first(counted):
    flips = one(counted).flips
    assert [(flip.image_id, flip.original, flip.said, flip.answer, flip.renewed, flip.n_renewed_right, flip.n_stale)
            for flip in flips] == [("a", "correct", "blue", "blue", ("wrong", "unparsed"), 0, 1),
                                   ("c", "wrong", "white", "blue", ("correct", "wrong"), 1, 0),
                                   ("d", "error", None, "blue", ("correct", "truncated"), 1, 0)]


def test_stale_answers_are_those_to_items_that_offer_the_old_one(counted):
    stale = one(counted).stale
    assert (stale.n_items, stale.n_wrong, stale.n_stale) == (4, 1, 1)       # a and b twice; a said red, then nothing
    assert stale.rate == 0.25 and stale.rate_of_wrong == 1.0 and stale.p == 1.0


def test_the_area_classes_are_those_between_the_edges():
    assert [area_class(area) for area in (0, 999, 1000, 1999, 2000, 7999, 8000, 10**7)] == [
        "below 1,000 px²", "below 1,000 px²", "1,000 to 1,999 px²", "1,000 to 1,999 px²", "2,000 to 3,999 px²",
        "4,000 to 7,999 px²", "from 8,000 px²", "from 8,000 px²"]


def test_categories_of_another_benchmark_keep_their_originals(tmp_path):
    original = [answered(image, "B", category="fine color") for image in "abc"]
    model = one(files(tmp_path, original, {1: [renewed(image, 1, "C") for image in "abc"]}))
    (part,) = (part for part in model.parts if part.split == "question")
    assert (part.name, part.original.n, part.drop.n) == ("attribute", 3, 3)


# ------------------------------------------------------------------------------------- sensitivity

def exact_p(original, seeds):
    """By counting all places that the original may have among each image's answers."""
    answers = [[o, *r] for o, r in zip(original, seeds)]
    draws = [sum(chosen) for chosen in itertools.product(*answers)]
    return sum(draw >= sum(original) for draw in draws) / len(draws)


def test_the_bounds_are_those_of_all_ways_to_read_the_uncertain(tmp_path):
    texts = {"B": 1, "C": 0, "?": None}
    original, seeds = ["B", "B", "?", "C", "B"], [["C", "C"], ["?", "B"], ["C", "B"], ["?", "B"], ["C", "?"]]
    lines = {1: [], 2: []}
    for image, row in zip("abcde", seeds):
        for seed in (1, 2):
            lines[seed].append(renewed(image, seed, row[seed - 1]))
    model = one(files(tmp_path, [answered(image, text) for image, text in zip("abcde", original)], lines))
    unknown = [texts[text] for text in (*original, *itertools.chain(*seeds))]
    found = []
    for filled in itertools.product((0, 1), repeat=unknown.count(None)):
        values = iter(filled)
        known = [next(values) if value is None else value for value in unknown]
        found.append(exact_p(known[:5], [known[5 + 2 * n:7 + 2 * n] for n in range(5)]))
    one_p = model.sensitivity
    assert one_p.n_uncertain == 4
    assert (one_p.worst, one_p.best) == (pytest.approx(max(found)), pytest.approx(min(found)))
    assert (one_p.all_wrong, one_p.all_right) == (pytest.approx(found[0]), pytest.approx(found[-1]))
    assert model.drop.p == pytest.approx(found[0])                          # what is not read is not right


# ---------------------------------------------------------------------------------------- degenerate

def everywhere(text, images="abcd", seeds=(1, 2), of_original=None, **others):
    return ([answered(image, of_original or text, **others) for image in images],
            {seed: [renewed(image, seed, text, **others) for image in images] for seed in seeds})


def test_all_right_is_no_drop_and_says_nothing_against_it(tmp_path):
    model = one(files(tmp_path, *everywhere("B")))
    assert (model.drop.drop, model.drop.low, model.drop.high, model.drop.p) == (0, 0, 0, 1.0)
    assert (model.drop_images.low, model.drop_images.high) == (0, 0) and model.renewed.sd == 0
    assert model.plan.power == {} and model.flips == () and model.stale is None


def test_all_wrong_is_no_drop_either(tmp_path):
    model = one(files(tmp_path, *everywhere("C")))
    assert (model.drop.drop, model.drop.p) == (0, 1.0) and model.original.accuracy.low == 0
    assert model.original.corrected.value == pytest.approx(-1 / 3)


def test_one_seed_is_mcnemars_test_without_a_spread(tmp_path):
    model = one(files(tmp_path, *everywhere("C", "abcdef", seeds=(1,), of_original="B")))
    assert (model.drop.only_original, model.drop.only_renewed) == (6, 0)
    assert model.drop.p == pytest.approx(1 / 64) and model.renewed.sd is None and len(model.looks) == 1
    assert model.drop.drop == 1 and model.drop.high == 1


def test_no_discordant_pair_gives_one(tmp_path):
    original = [answered("a", "B"), answered("b", "C")]
    model = one(files(tmp_path, original, {1: [renewed("a", 1, "B"), renewed("b", 1, "C")]}))
    assert (model.drop.n, model.drop.n_informative, model.drop.p, model.drop.p_two_sided) == (2, 0, 1.0, 1.0)


def test_one_image_can_be_audited(tmp_path):
    model = one(files(tmp_path, *everywhere("C", "a", of_original="B")))
    assert model.drop.n == 1 and model.drop.p == pytest.approx(1 / 3) and model.drop_images.low == 1


def test_no_item_in_common_leaves_nothing_to_test(tmp_path):
    original, _ = everywhere("B", "ab")
    _, seeds = everywhere("B", "cd")
    model = one(files(tmp_path, original, seeds))
    assert model.drop.n == 0
    assert model.drop.p is model.p_holm is model.plan is model.drop_images.value is None
    assert model.original.n == 2 and model.renewed.score.n == 4


@pytest.mark.parametrize("text, count", ((None, "n_errors"), ("I cannot see it.", "n_unparsed")))
def test_a_benchmark_of_nothing_but_failures_or_refusals(tmp_path, text, count):
    original, seeds = everywhere(text)
    model = one(files(tmp_path, original, seeds))
    assert getattr(model.original, count) == 4 and getattr(model.renewed.score, count) == 8
    assert model.original.n == (0 if text is None else 4)
    assert model.drop.p == (None if text is None else 1.0)
    assert model.sensitivity.n_uncertain == 12 and model.sensitivity.worst == 1.0
    assert model.sensitivity.best == pytest.approx((1 / 3) ** 4)


def test_a_seed_that_answers_nothing_takes_no_part(tmp_path):
    original, seeds = everywhere("B", seeds=(1, 3))
    seeds[2] = [renewed(image, 2, None) for image in "abcd"]
    model = one(files(tmp_path, original, seeds))
    assert [seed.score.accuracy.value for seed in model.instances] == [1, None, 1]
    assert model.renewed.mean == 1 and model.drop.n == 4
    assert [look.n_seeds for look in model.looks] == [1, 2, 3]


def test_images_that_some_seeds_lack_use_the_seeds_they_have(tmp_path):
    original = [answered(image, "B") for image in "abc"]
    seeds = {1: [renewed("a", 1, "C"), renewed("b", 1, "C")], 2: [renewed("a", 2, "C")], 4: [renewed("d", 4, "B")]}
    model = one(files(tmp_path, original, seeds))
    assert model.drop.n == 2 and model.drop.p == pytest.approx(1 / 3 * 1 / 2) and model.drop.drop == 1
    assert [seed.score.n for seed in model.instances] == [2, 1, 1]


def test_items_of_two_options_and_of_one(tmp_path):
    two = one(files(tmp_path / "two", *everywhere("B", options=("left", "right"))))
    assert two.original.chance == 0.5 and two.original.corrected.value == 1
    only = one(files(tmp_path / "one", *everywhere("A", options=("yes",), answer="A")))
    assert only.original.chance == 1 and only.original.corrected.value is None and only.original.n_right == 4


def test_items_without_options_have_no_chance(tmp_path):
    model = one(files(tmp_path, *everywhere("7", of_original="12", options=(), answer="12")))
    assert model.original.chance == 0 and model.original.corrected == model.original.accuracy
    assert (model.drop.drop, model.stale) == (1, None) and model.flips[0].said == "12" == model.flips[0].answer


# ------------------------------------------------------------------------------- models and settings

def test_models_with_different_seeds_are_audited_side_by_side(tmp_path):
    first, seeds = everywhere("C", "abcde", of_original="B", model="memory")
    other, others = everywhere("B", "abcde", seeds=(3,), model="sight")
    lone = [answered("a", "B", model="lone")]
    report = run(files(tmp_path, first + other + lone, {**seeds, 3: others[3]}))
    memory, sight = report.models
    assert [[seed.name for seed in model.instances] for model in report.models] == [["seed 1", "seed 2"], ["seed 3"]]
    assert memory.drop.p == pytest.approx((1 / 3) ** 5) and memory.p_holm == pytest.approx(2 * memory.drop.p)
    assert sight.p_holm == 1.0
    assert report.notes == ("lone: left out, it has no answers to a renewed benchmark under the same settings",)
    (alone,) = run(files(tmp_path / "alone", other, {3: others[3]})).models
    assert alone == sight                                                   # whoever else is audited


def test_two_ways_of_asking_in_the_same_files_are_never_mixed(tmp_path):
    original, seeds = everywhere("C", of_original="B")
    again, more = everywhere("Answer: B", prompt="cot")
    report = run(files(tmp_path, original + again, {seed: seeds[seed] + more[seed] for seed in seeds}))
    assert [(model.name, model.original.n, model.drop.drop) for model in report.models] == [
        ("m, prompt direct", 4, 1), ("m, prompt cot", 4, 0)]


def test_settings_that_differ_between_original_and_renewed_are_refused(tmp_path):
    original, _ = everywhere("B", thinking=True)
    _, seeds = everywhere("B")
    with pytest.raises(InputError, match="no model answered both .* under the same settings") as caught:
        run(files(tmp_path, original, seeds))
    assert "m, thinking True: left out, it has no answers to a renewed benchmark" in str(caught.value)
    assert "m, thinking default: left out, it has no answers to the original" in str(caught.value)


def test_the_order_of_files_and_lines_says_nothing(tmp_path):
    rng = np.random.default_rng(0)
    images = [f"i{n:02d}" for n in range(40)]
    original = [answered(image, "B" if rng.random() < 0.9 else "A") for image in images]
    seeds = {seed: [renewed(image, seed, str(rng.choice(list("BACD"), p=(0.6, 0.2, 0.1, 0.1))), source="red")
                    for image in images] for seed in (1, 2, 10)}
    straight = run(files(tmp_path / "1", original, seeds))
    turned = run(files(tmp_path / "2", original[::-1], {seed: seeds[seed][::-1] for seed in (10, 2, 1)}))
    mixed = list(rng.permutation(np.array([line for lines in seeds.values() for line in lines], object)))
    together = run(files(tmp_path / "3", original, {0: mixed}))
    assert straight == turned == together
    assert [seed.name for seed in straight.models[0].instances] == ["seed 1", "seed 2", "seed 10"]
    assert straight.models[0].stale.n_wrong > 10


def test_the_later_of_two_answers_counts_a_failure_does_not_and_the_audit_says_so(tmp_path):
    original, seeds = everywhere("B", "ab")
    changed = [answered("a", "C", version="new"), answered("b", None, version="new")]
    report = run(files(tmp_path, original + changed, seeds))
    (model,) = report.models
    assert (model.original.n, model.original.n_right) == (2, 1)
    assert report.notes == ("2 images were asked again after a change; the later answers count",)
    failed_before = [answered("a", None, version="old"), *original]
    assert one(files(tmp_path / "2", failed_before, seeds)).original.n_right == 2
    doubled = audit([tmp_path / "original.jsonl"] * 2, [tmp_path / "seed1.jsonl"] * 2, n_draws=N_DRAWS)
    assert doubled.notes == report.notes                                    # a file named twice is one file


def test_renewed_items_among_the_originals_are_refused(tmp_path):
    original, seeds = everywhere("B")
    with pytest.raises(InputError, match="m answered a and a/seed1, both of image a; expected one benchmark"):
        run(files(tmp_path, original + seeds[1], seeds))
    with pytest.raises(InputError, match="a/seed1 is given as original and as renewed"):
        run(files(tmp_path, seeds[1], seeds))


def test_instances_without_records_are_called_by_their_files(tmp_path):
    original = write(tmp_path / "o.jsonl", [answered("a", "B")])
    paths = [write(tmp_path / name / "r.jsonl", [answered("a", "C", version=name)]) for name in ("x", "y")]
    paths.append(write(tmp_path / "z.jsonl", [answered("a", "C", version="z")]))
    (model,) = audit([original], paths, n_draws=N_DRAWS).models
    assert [seed.name.removeprefix(tmp_path.as_posix()) for seed in model.instances] == ["/x/r", "/y/r", "z"]


def test_more_seeds_than_there_are_looks_can_be_audited(tmp_path):
    original, seeds = everywhere("B", "ab", seeds=range(1, 104))
    (model,) = audit(*files(tmp_path, original, {0: [line for lines in seeds.values() for line in lines]}),
                     n_draws=N_DRAWS).models
    assert len(model.instances) == 103 and len(model.looks) == 100


# ------------------------------------------------------------------------------------- the command

def command(*words):
    result = CliRunner().invoke(main, ["audit", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def test_the_command_writes_all_files_says_what_is_found_and_may_be_run_again(counted):
    (original,), seeds, (relabel,) = counted
    out = original.parent / "out"
    words = ("--original", original, "--relabel", relabel, "--out", out,
             *itertools.chain(*(("--renewed", seed) for seed in seeds)))
    first = command(*words)
    assert first.exit_code == 0 and "table.md" in first.output
    assert "it is not shown that the original items are answered better" in first.output
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(before) == {"audit.json", "table.md", "table.csv", "flips.csv", "audit.png"}
    assert command(*words).output == first.output
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {name: data for name, data in after.items() if name != "audit.png"} == {
        name: data for name, data in before.items() if name != "audit.png"}
    table = list(csv.DictReader((out / "table.csv").open(encoding="utf-8")))
    (row,) = (row for row in table if (row["condition"], row["split"]) == ("renewed", "all"))
    assert (row["n"], row["n_right"], row["unparsed"], row["truncated"]) == ("8", "4", "1", "1")
    assert float(row["p"]) == pytest.approx(5 / 9, abs=1e-6) and row["low"] == ""


@pytest.mark.parametrize("change, message", (
    ({"--original": "gone.jsonl"}, "gone.jsonl: no such file"),
    ({"--original": "empty.jsonl"}, "no model answered both"),
    ({"--renewed": "empty.jsonl"}, "m: left out, it has no answers to a renewed benchmark"),
    ({"--original": "empty.jsonl", "--renewed": "empty.jsonl"}, "the files hold no responses"),
    ({"--relabel": "broken.jsonl"}, "broken.jsonl line 1: not JSON"),
    ({"--looks": "1"}, "looks: 2 seeds, 1 planned"),
    ({"--looks": "0"}, "0 is not in the range"),
    ({"--parser": "loose"}, "'loose' is not one of"),
    ({"--out": "empty.jsonl"}, "empty.jsonl")))
def test_bad_input_is_one_clear_line_and_nothing_is_written(counted, monkeypatch, change, message):
    folder = counted[0][0].parent
    monkeypatch.chdir(folder)
    (folder / "empty.jsonl").touch()
    (folder / "broken.jsonl").write_text("{\n")
    both = write(folder / "both.jsonl", [json.loads(line) for path in counted[1] for line in path.open()])
    words = {"--original": "original.jsonl", "--renewed": both.name, "--out": "out"} | change
    result = command(*itertools.chain(*words.items()))
    assert result.exit_code == 2 and message in result.output, result.output
    assert "Traceback" not in result.output and not (folder / "out").exists()


@pytest.mark.parametrize("names", (["m"], 3 * ["Qwen/Qwen3-VL-235B-A22B-Instruct-FP8, prompt cot, thinking True"]))
def test_the_figure_has_room_for_the_names_of_its_models(tmp_path, names):
    original, seeds = [], {1: [], 2: []}
    for number, name in enumerate(names):
        made = everywhere("C", of_original="B", model=f"{name}{number or ''}")
        original += made[0]
        for seed in seeds:
            seeds[seed] += made[1][seed]
    figure = audit_figure(run(files(tmp_path, original, seeds)))
    figure.draw_without_rendering()
    left, right = figure.axes
    labels = [label.get_window_extent() for label in left.get_yticklabels()]
    assert all(box.x0 >= 0 for box in labels) and left.get_window_extent().width > 0.25 * figure.bbox.width
    assert all(above.y0 >= below.y1 for below, above in itertools.pairwise(labels))
    assert right.get_legend().get_window_extent().x0 >= left.get_legend().get_window_extent().x1
    assert right.get_legend().get_window_extent().x1 <= figure.bbox.width


# ------------------------------------------------------------------------------- the published logs

@pytest.fixture(scope="module")
def published(data_pack, tmp_path_factory):
    made = write_responses(data_pack, tmp_path_factory.mktemp("published"))
    return audit([made["original"]], made["renewed"], [made["relabel"]], "paper", n_draws=N_DRAWS)


@pytest.fixture(scope="module")
def truth(data_pack):
    """(model, condition, seed) -> item -> right or not, by the published rule written anew."""
    lone = re.compile(r"(?<![A-Za-z])[A-Da-d](?![A-Za-z])")
    found = {}
    for row in rows(data_pack, "table1_standard"):
        letters = lone.findall(row["response"])
        found.setdefault((row["model"], row["condition"], row["seed"]), {})[row["item"]] = (
            bool(letters) and letters[-1].upper() == row["gold"])
    return found


def test_an_audit_of_the_logs_gives_the_published_mcnemar_counts(published, truth, data_pack):
    expected = json.loads((data_pack / "rekey" / "expected" / "expected_tables.json").read_text(encoding="utf-8"))
    assert len(published.models) == 8 and published.notes == ()
    for model in published.models:
        old, new = truth[model.name, "original", None], truth[model.name, "relabel", None]
        b, c = (sum(one[item] > other[item] for item in old) for one, other in ((old, new), (new, old)))
        gap, told = model.relabel_gap, expected["mcnemar_original_vs_relabel"][model.name]
        assert (gap.only_original, gap.only_renewed) == (b, c) == (told["b_orig_only"], told["c_relab_only"])
        assert gap.p_two_sided == pytest.approx(scipy_stats.binomtest(b, b + c).pvalue)
        assert gap.p_two_sided == pytest.approx(told["p_exact"], rel=0.01)
        assert gap.drop == pytest.approx((b - c) / 191)


def test_an_audit_of_the_logs_gives_table_1_and_figure_6(published, truth, data_pack):
    expected = json.loads((data_pack / "rekey" / "expected" / "expected_tables.json").read_text(encoding="utf-8"))
    kinds = {(row["seed"], row["item"]): row["category"] for row in rows(data_pack, "items")}
    for model in published.models:
        seeds = [truth[model.name, "rekey", seed] for seed in (1, 2, 3)]
        accuracies = [sum(seed.values()) / 191 for seed in seeds]
        told = expected["table1"][model.name]
        assert model.renewed.mean == pytest.approx(np.mean(accuracies))
        assert model.renewed.sd == pytest.approx(np.std(accuracies, ddof=1))
        assert f"{100 * model.renewed.mean:.1f}" == f"{told['rekey_mean']:.1f}"
        assert f"{100 * model.renewed.sd:.1f}" == f"{told['rekey_sd']:.1f}"
        assert f"{100 * model.original.accuracy.value:.1f}" == f"{told['original']:.1f}"
        assert f"{100 * model.relabel.accuracy.value:.1f}" == f"{told['relabel']:.1f}"
        for part in (part for part in model.parts if part.split == "question"):
            category = {"attribute": "direct_attributes", "position": "relative_position"}[part.name]
            right = [[seed[item] for item in seed if kinds[number, item] == category]
                     for number, seed in zip((1, 2, 3), seeds)]
            assert part.renewed.n == sum(map(len, right)) and part.renewed.n_right == sum(map(sum, right))
            bar = expected["fig6"][model.name][{"attribute": "attr", "position": "pos"}[part.name]]
            assert 100 * np.mean([np.mean(seed) for seed in right]) == pytest.approx(bar, abs=0.006)


def test_the_main_test_on_the_logs_is_that_of_a_loop_over_images(published, truth):
    p_values = {}
    for model in published.models:
        original, seeds = truth[model.name, "original", None], [truth[model.name, "rekey", seed] for seed in (1, 2, 3)]
        pmf, observed, drops = [1.0], 0, []
        for item, right in original.items():
            k = right + sum(seed[item] for seed in seeds)
            observed += right
            drops.append(right - sum(seed[item] for seed in seeds) / 3)
            pmf = [(pmf[n] if n < len(pmf) else 0) * (1 - k / 4) + (pmf[n - 1] if n else 0) * k / 4
                   for n in range(len(pmf) + 1)]
        p_values[model.name] = sum(pmf[observed:])
        assert model.drop.p == pytest.approx(p_values[model.name])
        assert model.drop.drop == pytest.approx(np.mean(drops)) == model.drop_images.value
        assert model.drop.low < model.drop.drop < model.drop.high
    running = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.get)):
        running = max(running, min(1.0, (8 - rank) * p_values[name]))
        assert next(model.p_holm for model in published.models if model.name == name) == pytest.approx(running)


def test_accuracy_by_edit_area_and_mode_of_attribute_items_is_the_published_logs(data_pack, tmp_path, truth):
    made = write_responses(data_pack, tmp_path, category="direct_attributes")
    report = audit([made["original"]], made["renewed"], parser="paper", n_draws=10)
    found, counted = {}, {}
    for model in report.models:
        for part in (part for part in model.parts if part.split != "question"):
            right, n = found.get(part.name, (0, 0))
            found[part.name] = right + part.renewed.n_right, n + part.renewed.n
    kinds = {(row["seed"], row["item"]): row["category"] for row in rows(data_pack, "items")}
    for (seed, item), edits in edited_slots(data_pack).items():
        if kinds[seed, item] != "direct_attributes":
            continue
        ((mode, (left, top, right, bottom)),) = edits
        edge = max(edge for edge in (0, *AREAS_PX2) if edge <= (right - left) * (bottom - top))
        for model in report.models:
            for name in (mode, edge):
                sums = counted.setdefault(name, [0, 0])
                sums[0] += truth[model.name, "rekey", seed][item]
                sums[1] += 1
    assert {area_class(name) if isinstance(name, int) else name: tuple(sums) for name, sums in counted.items()} == found
    shown = {name: f"{100 * right / n:.1f}" for name, (right, n) in found.items()}
    assert shown == {"below 1,000 px²": "50.7", "1,000 to 1,999 px²": "53.0", "2,000 to 3,999 px²": "69.1",
                     "4,000 to 7,999 px²": "71.3", "from 8,000 px²": "89.6", "add": "64.8", "replace": "73.5"}
