"""Windows are means over counted rows, p-values those of all sign flips, and a score that tells nothing is said to."""

import csv
import itertools

import numpy as np
import pytest
from swapping import CONTROLS, FAST, run_experiment, table, write_scene_pairs
from traces import fake_trace

from experiments.attention_by_length import Series, line_of
from experiments.control_attention import auc
from experiments.swap_attention import Traced, separations
from experiments.swap_separation import separation, words
from experiments.swap_windows import AFTER, BEFORE, PHRASE, Where, changes, sign_flip_p, window_means
from probes.trace_store import iter_traces
from rekey.stats import sign_flip_test

BAND = Where("layers 1-2", (1, 2))


def traces_of(condition, n=12, **how):
    return [fake_trace(condition, f"p{number:02}", **how) for number in range(n)]


# ------------------------------------------------------------------------------------------- windows

def test_window_means_are_means_over_the_rows_of_the_window():
    trace = fake_trace(n_before=30, n_phrase=6, n_after=20, rise=0.1)
    means = window_means(trace, 10)
    assert means.n_tokens.tolist() == [10, 6, 10]
    attention = trace.attention
    first = trace.t_phrase - attention.query_index[0]                # rows are one per token, from the question's last
    rows = {BEFORE: slice(first - 10, first), PHRASE: slice(first, first + 6), AFTER: slice(first + 6, first + 16)}
    for window, part in rows.items():
        assert np.allclose(means.mass[window], attention.scores[..., part].mean(-1), atol=1e-6)
        percent = attention.percent()[part].mean()
        assert means.measure("percent")[window].mean() == pytest.approx(percent, abs=1e-4)
        enrichment = attention.enrichment()[part].mean()
        assert means.measure("enrichment")[window].mean() == pytest.approx(enrichment, abs=1e-5)
    without = 100 * means.mass.mean(2) / (1 - means.sink.mean(2))
    assert np.allclose(means.measure("without sink"), without) and (without > means.measure("percent")).all()
    short = window_means(fake_trace("base", n_after=5))
    assert short.n_tokens.tolist() == [0, 0, 4] and np.isnan(short.mass[BEFORE]).all()


def test_a_base_answer_is_cut_where_it_is_told_to():
    trace = fake_trace("base", n_after=40)
    means = window_means(trace, 10, cut=trace.n_asked + 25)
    assert means.n_tokens.tolist() == [10, 0, 10]
    assert np.allclose(means.mass[BEFORE], trace.attention.scores[..., 16:26].mean(-1), atol=1e-6)


def test_the_band_of_a_small_model_is_its_nearest_layer():
    assert Where.band(fake_trace(n_layers=36), (0.5, 0.6)).name == "layers 18-21 of 36"
    assert Where.band(fake_trace(n_layers=5), (0.5, 0.6)) == Where("layer 2 of 5", (2,))


@pytest.mark.parametrize("n", [1, 5, 10])
def test_sign_flips_are_counted_all(n):
    differences = np.random.default_rng(n).normal(0.3, 1, n)
    sums = [abs(np.dot(signs, differences)) for signs in itertools.product((-1, 1), repeat=n)]
    wanted = np.mean(np.array(sums) >= abs(differences.sum()) - 1e-9)
    assert sign_flip_p(differences) == pytest.approx(wanted, abs=0.01)
    whole = np.random.default_rng(n).integers(-4, 5, 30)
    assert sign_flip_p(whole / 4 * whole.max()) == pytest.approx(sign_flip_test(whole.astype(float)), rel=1e-9)
    assert sign_flip_p(np.zeros(0)) is None and sign_flip_p(np.zeros(4)) == 1.0


def test_a_planted_rise_is_found_and_none_is_not():
    found = {}
    means = [window_means(trace) for trace in (*traces_of("probe", rise=0.05), *traces_of("multi-turn", rise=0.2),
                                               *traces_of("base"))]
    for change in changes(means, [BAND]):
        found[change.condition, change.measure] = change
    assert {condition for condition, _ in found} == {"probe", "multi-turn", "multi-turn - probe"}
    probe, more = found["probe", "percent"], found["multi-turn - probe", "percent"]
    assert probe.n == more.n == 12 and probe.tokens == (30, 6, 19) and probe.reread
    assert probe.after - probe.before == pytest.approx(probe.change.value)
    assert probe.change.low < 5 < probe.change.high and probe.p == pytest.approx(2 / 2**12)
    assert more.change.low < 15 < more.change.high and more.before is None
    still = [window_means(trace) for trace in traces_of("probe")]
    assert changes(still, [BAND], ["percent"])[0].p > 0.05


def test_seeds_of_a_pair_count_once():
    means = [window_means(trace) for seed in (0, 1, 2) for trace in traces_of("probe", 6, seed=seed)]
    (one,) = changes(means, [BAND], ["percent"])
    assert one.n == 6
    by_pair = [np.mean([100 * np.diff(m.mass[[BEFORE, AFTER]][:, [1, 2]].mean((1, 2))) for m in means
                        if m.pair_id == f"p{pair:02}"]) for pair in range(6)]
    assert one.change.value == pytest.approx(np.mean(by_pair))


def test_a_line_is_the_mean_over_pairs_and_ends_where_half_of_them_do():
    series = [Series("probe", f"p{n}", np.arange(-3, 3 + n), np.full(6 + n, float(n)), 2) for n in range(4)]
    line = line_of([*series, Series("probe", "p3", np.arange(-3, 6), np.full(9, 5.0), 2)], window=10)
    assert (line.at[0], line.at[-1], line.n) == (-3, 3, 4), "of four pairs three go on to step 3, two to step 4"
    assert line.mean[0] == pytest.approx((0 + 1 + 2 + 4) / 4)
    assert line.low[0] < line.mean[0] < line.high[0]


# ---------------------------------------------------------------------------------------- separation

def judged(n=20, plant=None, paired=True, seed=0):
    """n trials that follow the image, n that do not.  plant: (layer, head, mass) that the first have more of, after."""
    found = []
    for number in range(2 * n):
        follows = ("image", "text")[number % 2]
        trace = fake_trace("probe", f"p{number // 2 if paired else number:02}", follows, model=follows,
                           seed=2 * n * seed + number)
        if plant and follows == "image":
            layer, head, mass = plant
            trace.attention.scores[layer, head, trace.window("after")] += mass
        found.append(window_means(trace))
    return found


@pytest.mark.parametrize("paired", [True, False])
def test_a_planted_head_is_found_and_holds_on_other_pairs(paired):
    found = separation(judged(plant=(2, 1, 0.1), paired=paired), BAND)
    assert (found.n_image, found.n_text, found.paired) == (20, 20, paired)
    best = next(one for one in found.scores if one.where.startswith("layer 2 head 1 (highest of 12)")
                and one.quantity == "image after")
    assert best.auc == 1.0 and best.separates and best.p_adjusted < 0.01 and 0.2 < best.auc_before < 0.8
    assert all("layer 2 head 1" in one.name and one.held_out > 0.95 for one in found.held_out)
    others = [one for one in found.scores if one.quantity in ("own text after", "image in the phrase")]
    assert others and not any(one.differs for one in others)
    assert "Separate: none" not in next(line for line in words(found) if line.startswith("Single heads"))


def test_nothing_separates_where_there_is_nothing():
    found = [separation(judged(12, seed=seed), BAND) for seed in range(12)]
    assert sum(any(one.differs for one in each.scores) for each in found) <= 2, "0.6 are to be expected"
    assert sum(any(one.p <= 0.05 for one in each.scores) for each in found) >= 8, "each p alone would be fooled"
    heads = [one for each in found for one in each.held_out]
    assert np.mean([one.chosen for one in heads]) > 0.8 and 0.4 < np.mean([one.held_out for one in heads]) < 0.6


def test_auc_is_the_share_of_pairs_of_trials_that_it_says():
    means = judged(10, plant=(0, 0, 0.02))
    scores = {one.name: one for one in separation(means, BAND).scores}
    image, text = ([m.mass[AFTER, 0].mean() for m in means if m.follows == kind] for kind in ("image", "text"))
    assert scores["image after, layer 0"].auc == pytest.approx(auc(image, text))
    assert scores["image after, layer 0"].mean_image == pytest.approx(np.mean(image))


def test_too_few_trials_of_a_kind_are_not_compared():
    found = separation([window_means(trace) for trace in traces_of("probe")], BAND)
    assert not found.enough and found.scores == ()
    assert "12 trials follow the image and 0 their text" in words(found)[0]


def test_models_are_compared_alone_and_with_those_of_their_architecture():
    def traced(n_layers, model, follows):
        means = [window_means(fake_trace("probe", f"p{n}", follows[n % 2], model=model, n_layers=n_layers, seed=n))
                 for n in range(12)]
        return Traced(Where("layer 1", (1,)), means)

    both, image, text = ("image", "text"), ("image", "image"), ("text", "text")
    found = separations({"one": traced(4, "one", image), "two": traced(4, "two", text),
                         "large": traced(6, "large", both)})
    assert [(name, one.n_image, one.n_text) for name, one in found.items() if name.startswith("probe")] == [
        ("probe, one + two", 12, 12), ("probe, large", 6, 6)]
    alone = separations({"one": traced(4, "one", both), "two": traced(4, "two", both)})
    assert list(alone)[:3] == ["probe, one + two", "probe, one", "probe, two"]


# ------------------------------------------------------------------------------------- the experiment

def test_the_experiment_on_both_controls(tmp_path):
    write_scene_pairs(tmp_path / "pairs", 5)
    out = tmp_path / "out"
    line = ("--pairs", tmp_path / "pairs", *CONTROLS, *FAST, "--out", out)
    shown = run_experiment("swap_attention", *line)
    names = ("table.md", "table.csv", "figure.png", "separation.md", "separation.csv")
    made = {name: (out / name).read_bytes() for name in names}
    rows = [row for row in table(out) if row["measure"] == "percent"]
    assert {row["condition"] for row in rows} == {"base", "probe", "multi-turn", "multi-turn - probe"}
    assert {row["layers"] for row in rows} == {"all layers", *(f"layer {n} of 5" for n in range(5))}
    probe = next(row for row in rows if (row["model"], row["condition"], row["layers"])
                 == ("control:anchored", "probe", "layer 2 of 5"))
    traces = [trace for trace in iter_traces(out / "traces")
              if trace.model == "control:anchored" and trace.condition == "probe"]
    after = np.mean([100 * trace.attention.scores[2][:, trace.window("after")].mean() for trace in traces])
    assert len(traces) == int(probe["n_pairs"]) == 5 and float(probe["after"]) == pytest.approx(after, rel=1e-4)
    with (out / "separation.csv").open() as file:
        scores = list(csv.DictReader(file))
    assert {score["trials"] for score in scores} == {
        f"{condition}, control:grounded + control:anchored" for condition in ("probe", "multi-turn")}
    assert "5 trials follow the image, 5 their text" in shown.output
    for name in names:
        (out / name).unlink()
    run_experiment("swap_attention", "--out", out, "--show")
    assert {name: (out / name).read_bytes() for name in names} == made
    again = run_experiment("swap_attention", *line)
    assert "20 traced before, 0 now" in again.output
