"""Case files: what a person reads is what the trial holds; and `rekey plot` on whole folders."""

import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from traces import fake_trace

from experiments.attention_series import Panel
from experiments.case_text import answer_words, conversation, verdict
from experiments.cases import cases_of, folded, pick, strip, write_cases
from experiments.cli import main
from probes.trace_store import write_trace
from rekey import store
from rekey.geometry import Box
from rekey.pairs import write_pairs
from rekey.records import Generation, SwapPair, to_json
from rekey.trials import Cell, SwapTrial, grade_trial

pytestmark = pytest.mark.xdist_group("cases")          # one worker makes what its tests share

PAIR = SwapPair("p0", "a.png", "b.png", "What color is the kite?", ("red", "blue", "green"), "A", "B",
                changed=Box(16, 12, 32, 24))
FIRST = "<think>\nThe kite is red. Wait, let me check the image again. It is red.\n</think>\n\nA"
SETTINGS = {"prompt": "cot", "temperature": 0.1, "seed": 3, "max_new_tokens": 64}
PROBE = Cell("reasoning", kept=0.5, phrase="Let me look again.")


def said(text, finish="stop"):
    return Generation(text, (1, 2, 3), 90, 36, ((96, 96),), finish)


def trial(cell, text="So the answer is B.", pair=PAIR, kept=17, key="", **changed):
    made = SwapTrial(key or f"{cell.condition}-{cell.kept}", pair, "some/model", SETTINGS, cell, second=said(text))
    if cell.continues:
        made = replace(made, first="first", n_kept=5, n_kept_chars=kept, injected=(7, 8))
    return replace(made, **changed)


BASE = trial(Cell("base", image="a"), FIRST, key="first")


def pieces(one, first=FIRST):
    return [(turn.who, [(piece.kind, piece.text) for piece in turn.pieces]) for turn in conversation(one, first)][1:]


# --------------------------------------------------------------------------------------- conversation

def test_a_probe_shows_what_is_kept_cut_put_in_and_said_in_that_order():
    ((who, parts),) = pieces(trial(PROBE))
    assert who == "model"
    assert parts == [("kept", FIRST[:17]), ("cut", FIRST[17:]), ("phrase", "Let me look again."),
                     ("said", "So the answer is B.")]


def test_each_kind_of_history_is_told():
    turn = Cell("user turn", phrase="Look again.")
    model, user, answer = pieces(trial(turn, kept=len(FIRST)))
    assert model == ("model", [("kept", FIRST)]) and user == ("user", [("phrase", "Look again.")])
    assert answer == ("model", [("said", "So the answer is B.")])
    stripped = pieces(trial(replace(turn, history="stripped"), kept=1))[0][1]
    assert stripped == [("cut", FIRST[:FIRST.index("\n\nA")]), ("kept", "A")]
    assert pieces(trial(replace(turn, history="removed"), kept=0))[0][1] == [("cut", FIRST)]


def test_a_natural_phrase_is_marked_where_the_model_said_it():
    end = FIRST.index("again.") + len("again.")
    ((_, parts),) = pieces(trial(Cell("natural"), kept=end))
    assert parts[1] == ("phrase", "Wait, let me check the image again.")
    assert "".join(text for kind, text in parts if kind != "said") == FIRST


def test_a_first_answer_that_is_not_there_is_told():
    assert pieces(trial(PROBE), None)[0][1][0][0] == "missing"


@pytest.mark.parametrize("cell, text, kind, good", [
    (PROBE, "The answer is B.", "follows the image", True), (PROBE, "The answer is A.", "follows its text", False),
    (PROBE, "The answer is C.", "follows neither", False), (PROBE, "I cannot tell.", "unread", None),
    (Cell("base", image="b"), "B", "right", True), (Cell("base", image="b"), "A", "wrong", False),
    (Cell("reasoning", "a", "none"), "A", "right", True), (Cell("user turn", "a"), "B", "wrong", False)])
def test_verdicts(cell, text, kind, good):
    found = verdict(grade_trial(trial(cell, text), {"first": FIRST}))
    assert (found.kind, found.good) == (kind, good)


def test_answers_have_words():
    assert answer_words(PAIR, "B") == "(B) blue"
    assert answer_words(replace(PAIR, options=(), answer_a="7", answer_b="8"), "8") == "8"


# -------------------------------------------------------------------------------------------- pages

class Page(HTMLParser):
    """What a browser would see: tags with their attributes, and the text in elements of a class."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.tags, self.open, self.texts = [], [], {}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        if tag not in ("meta", "img", "br", "link"):
            self.open.append((tag, (attrs.get("class") or "").split()))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for name in {name for _, names in self.open for name in names}:
            self.texts[name] = self.texts.get(name, "") + data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of pairs, with two pictures."""
    folder = tmp_path_factory.mktemp("pairs")
    pixels = np.full((48, 64, 3), 220, np.uint8)
    for name, color in (("a.png", (200, 0, 0)), ("b.png", (0, 0, 200))):
        pixels[PAIR.changed.slices] = color
        Image.fromarray(pixels).save(folder / name)
    write_pairs(folder / "pairs.jsonl", [PAIR])
    return folder


def test_what_models_and_pairs_say_is_text_and_never_markup(tmp_path, folder):
    evil = '<script>alert(1)</script> & <img src=x onerror="alert(2)"> \n\n  "猫" 😀 \ud83d \u202e'
    pair = replace(PAIR, pair_id="../" + evil, question=evil, options=(evil, "x", "y"), category=evil)
    trials = [replace(BASE, pair=pair, second=said(evil)),
              trial(replace(PROBE, phrase=evil), evil, pair, len(evil)),
              trial(Cell("base"), pair=pair, second=None, error=evil)]
    index, *pages = write_cases(tmp_path, cases_of(trials), folder)
    assert {path.parent for path in pages} == {tmp_path}
    for path in pages:
        page = Page(path)
        assert not [tag for tag, _ in page.tags if tag == "script"]
        assert all(attrs["src"].startswith("data:image/") for tag, attrs in page.tags if tag == "img")
    probe = Page(pages[1])
    readable = evil.replace("\ud83d", "?")                # half a character pair is no UTF-8
    assert probe.texts["phrase"].removeprefix("marked") == probe.texts["said"].removeprefix("said") == readable
    assert [tag for tag, _ in Page(index).tags].count("script") == 1, "its own filter"


def test_long_reasoning_is_folded_and_nothing_of_it_is_lost(tmp_path, folder):
    long = "".join(f"Step {n}: it is\nred. " for n in range(8000))
    assert "".join(folded(long)) == long and len(folded(long)[0]) < 1000 and folded("short") == ("short", "", "")
    first = replace(BASE, second=said(long + "A"))
    _, _, page = write_cases(tmp_path, cases_of([first, trial(PROBE, kept=len(long) // 2)]), folder)
    found = Page(page)
    assert [tag for tag, _ in found.tags].count("details") == 2
    assert long[5000:9000] in found.texts["kept"] and long[-9000:-5000] in found.texts["cut"]


def test_pages_show_the_images_of_the_trial_with_the_changed_box(tmp_path, folder):
    control = trial(Cell("reasoning", "a", "none", phrase="Hm."))
    cases = cases_of([BASE, trial(PROBE), control])
    _, base, probe, unswapped = map(Page, write_cases(tmp_path, cases, folder))
    boxes = [attrs["style"] for _, attrs in probe.tags if attrs.get("class") == "box"]
    assert boxes == ["left:25.000%;top:25.000%;width:25.000%;height:25.000%"] * 2
    assert len([1 for tag, _ in base.tags if tag == "img"]) == 1
    assert "dim" in unswapped.texts and "never shown" in unswapped.texts["dim"]


def test_the_strip_has_every_token_once_and_darker_where_there_is_more_on_the_image():
    trace = fake_trace("probe", n_before=30, n_phrase=6, n_after=500)
    found = strip(trace, Panel("all", (0, 1, 2, 3)))
    tokens = [token for part in found["parts"] for token in
              (part["tokens"] + part["hidden"] if part["hidden_last"] else part["hidden"] + part["tokens"])]
    assert "".join(token["text"] for token in tokens).replace("↵\n", "\n") == "".join(trace.texts[1:])
    assert [part["name"] for part in found["parts"]] == ["before", "phrase", "after"]
    assert len(found["parts"][2]["hidden"]) > 0
    levels = [token["level"] for token in sorted(tokens, key=lambda token: token["value"])]
    assert levels == sorted(levels) and levels[-1] == 20 > levels[0]
    whole = tokens[5]                             # rows 6 and 7: a part of a character, and what completes it
    assert (whole["text"], whole["at"]) == ("图", trace.n_asked + 6)
    assert whole["value"] == pytest.approx(trace.attention.percent()[6:8].mean(), rel=1e-5)


def test_some_of_every_kind_are_picked_in_their_order():
    trials = [BASE, *(trial(PROBE, "The answer is A.", key=f"text{n}") for n in range(9)),
              trial(PROBE, "The answer is B.", key="image"), trial(Cell("user turn"), key="turn")]
    cases = cases_of(trials)
    assert [case.trial.key for case in pick(cases, 4)] == ["first", "text0", "image", "turn"]
    assert [case.trial.key for case in pick(cases, 5)] == ["first", "text0", "text1", "image", "turn"]
    assert pick(cases, 99) == cases


# ---------------------------------------------------------------------------------------------- rekey plot

@pytest.fixture()
def run(tmp_path, folder, monkeypatch):
    """A folder as `rekey probe` leaves it, with one trace as `rekey attend` does."""
    monkeypatch.setattr("experiments.attention_figures.DPI", 50)         # drawn six times as fast
    out = tmp_path / "run"
    trace = fake_trace("probe", token_grid=(3, 4))
    trials = [BASE, trial(PROBE, key=trace.key)]
    store.write_jsonl(out / "trials.jsonl", map(to_json, trials))
    store.write_jsonl(out / "trials.runs.jsonl", [{"run": "1", "settings": {"pairs": str(folder / "pairs.jsonl")}}])
    write_trace(out / "traces", trace)
    return out


def plot(*arguments):
    return CliRunner().invoke(main, ["plot", *map(str, arguments)])


def test_plot_draws_what_there_is(run):
    result = plot(run, "--conditions", "probe", "--out", run / "figures")
    assert result.exit_code == 0, result.output
    made = {path.relative_to(run / "figures").as_posix() for path in (run / "figures").rglob("*") if path.is_file()}
    (case,) = [name for name in made if name.startswith("cases/p0")]
    assert made == {"curves.png", "curves_column.png", "enrichment.png", "heat_map_probe.png", "overlay_probe.png",
                    "cases/index.html", case}
    page = Page(run / "figures" / case)
    assert "phrase" in page.texts and "overlay" in {attrs.get("class") for _, attrs in page.tags}
    assert all(name.split("/")[0] in result.output for name in made)


def test_plot_says_what_is_missing_and_what_makes_it(run, tmp_path):
    shutil.rmtree(run / "traces")
    result = plot(run)
    assert result.exit_code == 0
    assert f"rekey attend --trials {run} --model some/model --out {run}/traces" in result.output
    assert (run / "plots" / "cases" / "index.html").exists()
    store.write_jsonl(run / "trials.runs.jsonl", [{"run": "1", "settings": {"pairs": str(tmp_path / "gone/p.jsonl")}}])
    moved = plot(run, "--cases", 1)
    assert moved.exit_code == 0 and "which is gone); give --pairs" in moved.output
    assert "1 of 2 trials have a case file" in moved.output


def test_plot_of_traces_alone_has_figures_and_no_cases(run):
    (run / "trials.jsonl").unlink()
    result = plot(run / "traces", "--out", run / "figures", "--layers", "-1")
    assert result.exit_code == 0, result.output
    assert "no case files" in result.output and (run / "figures" / "heat_map_probe.png").exists()


@pytest.mark.parametrize("arguments, problem", [
    (["nowhere"], "no such folder"), (["--conditions", "probes"], "holds nothing of probes; it holds"),
    (["--layers", "99"], "layer 99: is none of the recorded layers"), (["--pairs", "none.jsonl"], "no such pairs")])
def test_bad_choices_are_told_in_one_line(run, arguments, problem):
    result = plot(*(arguments if arguments == ["nowhere"] else [run, *arguments]))
    assert result.exit_code == 2 and problem in result.output
    assert "Traceback" not in result.output


def test_an_empty_folder_is_told(tmp_path):
    result = plot(tmp_path)
    assert result.exit_code == 2 and "holds neither trials nor traces" in result.output
    (tmp_path / "trials.jsonl").write_text(json.dumps({"no": "trial"}) + "\n")
    assert "is no trial" in plot(tmp_path).output
