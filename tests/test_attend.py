"""A stored trial is traced as decoding would have recorded it, in every regime; what cannot be traced is named."""

import dataclasses
import json
import math
import os
import re
import shutil
import signal

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from probing import refused

from experiments import cli_attend
from experiments.attend import AttendJob, attend
from experiments.cli import main
from experiments.probe import ProbeJob, probe
from experiments.swap_cells import BASES, INSTRUCTION, TRIGGER
from probes.attention import recording_image_attention
from probes.backends import ModelSpec
from probes.pair_scenes import draw_scene_pair
from probes.protocol import continue_cells
from probes.trace_store import N_WINDOW, iter_traces, read_trace, trace_path
from probes.tracing import settings_of
from probes.trial_rows import Case
from probes.vlm import load_vlm
from rekey import store
from rekey.errors import Interrupted
from rekey.evaluate import Settings
from rekey.pairs import changed_box, write_pairs
from rekey.records import SwapPair
from rekey.scenes import render_scene
from rekey.trials import Cell, read_trials

pytestmark = pytest.mark.xdist_group("attend")          # one worker makes what its tests share

MODEL = ModelSpec("control:grounded", device_map="cpu")
PROBE, MULTI_TURN = Cell("reasoning", phrase=TRIGGER), Cell("user turn", phrase=INSTRUCTION)
STEERED = dataclasses.replace(PROBE, log_bias=math.log(3), layers=(1, 3))
CELLS = (*BASES, PROBE, dataclasses.replace(PROBE, kept=0.5), MULTI_TURN,
         dataclasses.replace(PROBE, regime="splice"), dataclasses.replace(MULTI_TURN, regime="splice"),
         dataclasses.replace(PROBE, regime="none", image="a"), STEERED, dataclasses.replace(BASES[1], log_bias=0.5),
         dataclasses.replace(MULTI_TURN, history="removed"))


@pytest.fixture(scope="module")
def vlm():
    torch.set_num_threads(1)
    return load_vlm(MODEL.name, device_map="cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory, vlm):
    """A folder of trials of two pairs, and their traces."""
    folder = tmp_path_factory.mktemp("run")
    pairs = []
    for number in range(2):
        drawn = draw_scene_pair(5, number)
        a, b = render_scene(drawn.a), render_scene(drawn.b)
        for side, pixels in (("a", a), ("b", b)):
            Image.fromarray(pixels).save(folder / f"{number}{side}.png")
        pairs.append(SwapPair(f"p{number}", f"{number}a.png", f"{number}b.png", drawn.question.text,
                              tuple(drawn.question.options), drawn.letter("a"), drawn.letter("b"),
                              changed=changed_box(a, b)))
    write_pairs(folder / "pairs.jsonl", pairs)
    probe(ProbeJob(folder / "pairs.jsonl", MODEL, folder, CELLS, Settings("cot", max_new_tokens=48, seed=0)), vlm=vlm)
    summary = attend(AttendJob(folder, MODEL, folder / "traces"), load=lambda _: vlm)
    assert (summary.n_traced, summary.failures) == (2 * len(CELLS), [])
    return folder


@pytest.fixture(scope="module")
def trials(run):
    return {(trial.pair.pair_id, trial.cell): trial for trial in read_trials(run / "trials.jsonl")}


def trace_of(run, trial):
    return read_trace(trace_path(run / "traces", trial.key))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.condition}-{cell.regime}-{cell.kept}-{cell.log_bias}")
def test_a_trace_is_what_decoding_recorded(run, trials, vlm, cell):
    trial, first = trials["p1", cell], trials["p1", BASES[0]]
    trace = trace_of(run, trial)
    case = Case.of(vlm, trial.pair, run, settings_of(trial))
    with recording_image_attention(vlm) as recorded:
        outcome = continue_cells(vlm, [(case, first.second.token_ids, [cell])], settings_of(trial), 1)
    assert outcome.said[0].generation.token_ids == trial.second.token_ids
    (decoded,) = recorded.sequences()
    rows = decoded.query_index >= trace.attention.query_index[0]
    assert trace.attention.query_index[0] == (trace.t_after if cell.history == "removed" else trace.n_asked) - 1
    assert np.array_equal(decoded.query_index[rows], trace.attention.query_index)
    for name in ("scores", "region", "sink", "template", "question", "generated", "before_steering"):
        found, wanted = getattr(trace.attention, name), getattr(decoded, name)
        assert (found is None) == (wanted is None) == (name == "before_steering" and not cell.log_bias)
        if wanted is not None:
            assert np.abs(found - wanted[..., rows]).max() < 1e-5, name
    assert trace.t_after + len(trial.second.token_ids) - 1 == trace.n_tokens
    said = np.array(trace.texts, object)[trace.attention.query_index >= trace.t_after]
    assert "".join(said) == trial.second.text
    for name, weights in trace.maps.items():
        scores = trace.attention.scores[..., trace.window(name)].mean((1, 2))
        assert np.abs(weights.sum((1, 2)) - scores).max() < 1e-5, name


def test_regimes_are_read_as_they_were_run(run, trials):
    by_regime = {regime: trace_of(run, trials["p0", dataclasses.replace(
        PROBE, regime=regime, image="a" if regime == "none" else "b")]) for regime in ("recompute", "splice", "none")}
    before = {regime: trace.attention.scores[..., trace.window("before")] for regime, trace in by_regime.items()}
    assert np.abs(before["splice"] - before["none"]).max() < 1e-5, "both were read under image a"
    assert np.abs(before["recompute"] - before["none"]).max() > 1e-3, "read again under image b"
    after = {regime: trace.maps["after"] for regime, trace in by_regime.items()}
    assert np.abs(after["splice"] - after["none"]).max() > 1e-3
    assert {regime: trace.image_before for regime, trace in by_regime.items()} == {
        "recompute": "0b.png", "splice": "0a.png", "none": "0a.png"}
    base = trace_of(run, trials["p0", BASES[0]])
    assert base.n_asked == base.t_phrase == base.t_after and list(base.maps) == ["after"]
    generated = base.attention.scores[..., :before["none"].shape[-1]]        # row 0 feeds the question's last token
    whole = by_regime["none"].attention.scores[..., :generated.shape[-1]]
    assert np.abs(generated - whole).max() < 1e-5, "the base trial's own trace has the text as it was generated"


def test_a_run_that_was_stopped_and_goes_on_leaves_the_same_bytes(run, vlm, tmp_path):
    def stop(done, total):
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match=f"3 of {2 * len(CELLS)} trials traced"):
        attend(AttendJob(run, MODEL, tmp_path), stop, lambda _: vlm)
    kept = next(tmp_path.glob("*.npz"))
    changed = kept.stat().st_mtime_ns
    summary = attend(AttendJob(run, MODEL, tmp_path), load=lambda _: vlm)
    assert (summary.n_kept, summary.n_traced) == (3, 2 * len(CELLS) - 3)
    assert kept.stat().st_mtime_ns == changed
    names = {path.name for path in tmp_path.iterdir()} - {"traces.runs.jsonl"}
    assert names == {path.name for path in (run / "traces").iterdir()} - {"traces.runs.jsonl"}
    assert all((tmp_path / name).read_bytes() == (run / "traces" / name).read_bytes() for name in names)
    assert [line["key"] for line in store.read_jsonl(tmp_path / "traces.jsonl")] == \
        [trial.key for trial in read_trials(run / "trials.jsonl")]
    with refused("was made with window 100 .now 50.; give another --out"):
        attend(AttendJob(run, MODEL, tmp_path, window=50), load=lambda _: vlm)


def test_the_command_keeps_what_it_is_asked_for(run, tmp_path):
    out = tmp_path / "traces"
    line = ["attend", "--trials", str(run), "--model", MODEL.name, "--out", str(out), "--device", "cpu",
            "--conditions", "probe", "--layers", "1,-1", "--mean-heads", "--limit", "1"]
    shown = CliRunner().invoke(main, line)
    assert shown.exit_code == 0, shown.output
    assert cli_attend.N_WINDOW == N_WINDOW
    traces = list(iter_traces(out))
    assert len(traces) == 4 and all(trace.condition == "probe" for trace in traces)
    assert traces[0].attention.layers == (1, 4) and traces[0].attention.scores.shape[:2] == (2, 1)
    again = CliRunner().invoke(main, line)
    assert again.exit_code == 0 and "4 traced before, 0 now" in again.output


def changed_line(run, to, change):
    """The trials of the run in another folder, the last line changed."""
    lines = store.read_jsonl(run / "trials.jsonl")
    change(lines[-1])
    store.write_jsonl(to / "trials.jsonl", lines)
    shutil.copy(run / "trials.runs.jsonl", to)
    return to


@pytest.mark.parametrize(("change", "said"), [
    (lambda line: line["second"].update(n_prompt_tokens=7), "tokens before the answer when it is made again, and 7"),
    (lambda line: line.update(injected=[5, 6]), r"ids that were put in when it is made again, and \[5, 6\]"),
    (lambda line: line.update(first="gone"), "the answer that it continues is not in the file"),
    (lambda line: line["pair"].update(image_a="gone.png"), "gone.png"),
])
def test_a_trial_that_comes_out_otherwise_is_listed_and_the_rest_is_traced(run, vlm, tmp_path, change, said):
    changed_line(run, tmp_path, change)
    trials = read_trials(tmp_path / "trials.jsonl")
    job = AttendJob(tmp_path, MODEL, tmp_path / "out", pairs=run, keys=frozenset(t.key for t in trials[-2:]))
    summary = attend(job, load=lambda _: vlm)
    assert summary.n_traced == 1 and len(summary.failures) == 1
    assert trials[-1].pair.pair_id in summary.failures[0] or "gone" in summary.failures[0]
    assert re.search(said, summary.failures[0])


def test_what_cannot_be_traced_at_all_is_refused(run, vlm, tmp_path):
    with refused("holds trials of control:grounded, none of control:anchored"):
        attend(AttendJob(run, ModelSpec("control:anchored", device_map="cpu"), tmp_path / "out"))
    with refused('no trials of looking; it holds "base", "probe"'):
        attend(AttendJob(run, MODEL, tmp_path / "out", conditions=("looking",)))
    with refused(r"layers \[9\]: expected some of"):
        attend(AttendJob(run, MODEL, tmp_path / "out", layers=(9,)), load=lambda _: vlm)
    text = (run / "trials.jsonl").read_text()
    revision = json.loads(text.splitlines()[0])["settings"]["revision"]
    (tmp_path / "trials.jsonl").write_text(text.replace(revision, "0" * len(revision)))
    shutil.copy(run / "trials.runs.jsonl", tmp_path)
    with refused("asked with control:grounded in revision 000000000000, and control:grounded is here in revision"):
        attend(AttendJob(tmp_path, MODEL, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
