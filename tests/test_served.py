"""Models behind a server: a real one of transformers, and one with a script for all that can go wrong."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from asking import Reply, Server, answer_of, chat, environment, text_in, write_items
from click.testing import CliRunner
from probing import refused

from experiments.cli import main
from experiments.evaluate import EvaluateJob, evaluate
from experiments.scenes import write_benchmark
from probes.backends import ModelSpec
from probes.controls.shelf import save_control
from probes.openai import LOST_IN_A_ROW, ServedVLM
from rekey.errors import Interrupted
from rekey.evaluate import Failure, Settings, read_lines
from rekey.records import Generation

openai = pytest.importorskip("openai")

KEY = "sk-test-0123456789"
FEW = Settings(max_new_tokens=8)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.002)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def items(tmp_path) -> Path:
    """Twelve questions about pictures of noise."""
    write_items(tmp_path / "items", 12)
    return tmp_path / "items"


def rekey(items: Path, out: Path, url: str, *more: object):
    return CliRunner().invoke(main, ["evaluate", "--items", str(items), "--model", "served", "--backend", "openai",
                                     "--base-url", url, "--out", str(out), *map(str, more)], catch_exceptions=False)


def about(number: int, reply: Reply):
    """A script that gives `reply` to every request about one question."""
    return lambda _, body: reply if f"kite {number}?" in text_in(body) else None


def by_item(out: Path) -> dict[str, dict]:
    return {line["item"]["item_id"]: line for line in read_lines(out)}


def picture(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (8, 12, 3), dtype=np.uint8)


def ask(server: Server, settings: Settings = FEW, seeds=None, **options) -> Generation | Failure:
    return ServedVLM("served", server.url, **options).answer([picture()], ["What?"], settings, seeds)[0]


# What is sent


def test_a_request_holds_the_picture_the_text_and_the_settings_and_no_more():
    with Server() as server:
        answer = ask(server)
        assert server.requests == [{
            "model": "served", "temperature": 0.0, "max_tokens": 8, "messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": server.requests[0]["messages"][0]["content"][0]["image_url"]},
                {"type": "text", "text": "What?"}]}]}]
    assert answer.text == answer_of(picture())          # told by the server from the decoded pixels
    assert (answer.n_prompt_tokens, answer.n_image_tokens, answer.image_sizes) == (30, None, None)
    assert (answer.finish, answer.token_ids, answer.reasoning) == ("stop", (), None) and answer.elapsed_s > 0


def test_thinking_and_seeds_are_sent_where_they_are_asked_for():
    with Server() as server:
        ask(server, Settings(thinking=False, temperature=0.7, max_new_tokens=5), seeds=[17])
        assert server.requests[0]["chat_template_kwargs"] == {"enable_thinking": False}
        assert (server.requests[0]["seed"], server.requests[0]["temperature"]) == (17, 0.7)


def test_every_question_is_answered_from_its_own_picture(items, tmp_path):
    with Server() as server:
        result = rekey(items, tmp_path / "r.jsonl", server.url, "--workers", 5)
        assert result.exit_code == 0, result.output
        assert len(server.requests) == 12
    assert all(line["generation"]["text"] == line["item"]["answer"] for line in by_item(tmp_path / "r.jsonl").values())


@pytest.mark.parametrize("workers", [1, 4])
def test_as_many_requests_are_open_as_there_are_workers(items, tmp_path, workers):
    with Server(lambda number, body: Reply(body=chat("A"), pause_s=0.1)) as server:
        rekey(items, tmp_path / "r.jsonl", server.url, "--workers", workers)
        assert server.most_open == workers


# What comes back


@pytest.mark.parametrize("body, expected", [
    (chat("A"), dict(text="A", finish="stop", n_prompt_tokens=30, reasoning=None)),
    (chat("A lot", "length"), dict(text="A lot", finish="length")),
    (chat("", reasoning_content="Hm, red."), dict(text="", reasoning="Hm, red.")),
    (chat(None, "length", reasoning="Hm, re"), dict(text="", finish="length", reasoning="Hm, re")),
    (chat("A", n_read=None), dict(text="A", n_prompt_tokens=None)),
    (chat("A", None), dict(text="A", finish="stop")),
    (chat(None, "content_filter"), dict(text="", finish="content_filter")),
    (chat(None, refusal="I cannot say."), dict(text="I cannot say.")),
    (chat([{"type": "text", "text": "A"}, {"type": "text", "text": "."}]), dict(text="A.")),
], ids=["plain", "length", "reasoning_content", "reasoning", "no usage", "no finish", "content_filter", "refusal",
        "parts"])
def test_what_the_server_said_is_what_is_kept(body, expected):
    with Server(lambda *_: Reply(body=body)) as server:
        answer = ask(server)
    assert {name: getattr(answer, name) for name in expected} == expected


@pytest.mark.parametrize("reply, reason", [
    (Reply(body=chat("A") | {"choices": []}), "the server's reply holds no answer"),
    (Reply(body={"error": {"message": "overloaded"}}), "the server's reply holds no answer"),
    (Reply(body={}), "the server's reply holds no answer"),
    (Reply(body=[1, 2]), "the server's reply holds no answer"),
    (Reply(body=chat("A") | {"choices": [{"index": 0}]}), "the server's reply holds no answer"),
    (Reply(body=chat("A") | {"choices": [{"message": "A"}]}), "the server's reply holds no answer"),
    (Reply(body=b"<html>gateway</html>", headers={"Content-Type": "text/html"}), "the server's reply holds no answer"),
    (Reply(body=b"<html>gateway</html>"), "the server's reply is not JSON"),
    (Reply(body=b""), "the server's reply is not JSON"),
    (Reply(400, {"error": {"message": "image too large"}}), "BadRequestError: Error code: 400"),
    (Reply(422, {"detail": "no"}), "UnprocessableEntityError"),
    (Reply(413, b"too big"), "APIStatusError"),
], ids=["no choices", "error with 200", "empty object", "a list", "no message", "a bare message", "html",
        "html as json", "nothing", "400", "422", "413"])
def test_a_reply_that_is_no_answer_fails_its_question_alone(items, tmp_path, reply, reason):
    with Server(about(3, reply)) as server:
        result = rekey(items, tmp_path / "r.jsonl", server.url)
        assert result.exit_code == 3 and "11 now, 1 failed" in result.output
        assert len(server.requests) == 12                   # such a reply would come again: it is not asked for at once
        line = by_item(tmp_path / "r.jsonl")["noise_0003"]
        assert line["error"].startswith(reason) and "\n" not in line["error"]
        server.script = lambda *_: None
        result = rekey(items, tmp_path / "r.jsonl", server.url)
        assert result.exit_code == 0 and "11 answered before, 1 now" in result.output
        assert len(server.requests) == 13


# Trying again


@pytest.mark.parametrize("reply", [Reply(500, {"error": "boom"}), Reply(503, b"busy"), Reply(429, {"error": "slow"}),
                                   Reply(body=chat("A"), cut=True)], ids=["500", "503", "429", "cut off"])
def test_what_passes_is_tried_again(items, tmp_path, reply):
    with Server(lambda number, body: reply if number < 2 else None) as server:
        result = rekey(items, tmp_path / "r.jsonl", server.url)
        assert result.exit_code == 0, result.output
        assert len(server.requests) == 12 + 2
    assert all(line["generation"]["text"] == line["item"]["answer"] for line in by_item(tmp_path / "r.jsonl").values())


def test_a_server_that_says_when_to_come_again_is_left_alone_until_then(monkeypatch):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.0)
    with Server(lambda number, body: Reply(429, {}, {"Retry-After": "1"}) if number == 0 else None) as server:
        began = time.monotonic()
        assert isinstance(ask(server), Generation)
        assert 1.0 <= time.monotonic() - began < 3.0 and len(server.requests) == 2


def test_pauses_grow(monkeypatch):
    pauses = []
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.5)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 8.0)
    monkeypatch.setattr(openai._base_client.time, "sleep", pauses.append)
    vlm = ServedVLM.__new__(ServedVLM)
    with Server() as server:
        vlm.__init__("served", server.url)
        server.script = lambda *_: Reply(503, {})
        vlm.answer([picture()], ["What?"], FEW, None)
        assert len(server.requests) == 6
    waited = [pause for pause in pauses if pause]           # the scripted server's own pauses are 0
    assert len(waited) == 5
    assert all(0.75 * 0.5 * 2 ** n <= pause <= 0.5 * 2 ** n for n, pause in enumerate(waited))


@pytest.mark.parametrize("reply, name", [(Reply(503, b"busy"), "InternalServerError"),
                                         (Reply(429, {"error": "slow"}), "RateLimitError"),
                                         (Reply(body=chat("A"), cut=True), "APIConnectionError")],
                         ids=["503", "429", "cut off"])
def test_what_does_not_pass_is_a_failure_that_a_resume_asks_again(items, tmp_path, reply, name):
    with Server(about(3, reply)) as server:
        result = rekey(items, tmp_path / "r.jsonl", server.url, "--workers", 2)
        assert result.exit_code == 3
        assert f"failed: noise_0003: {name}: " in result.output
        assert Counter(text_in(body) for body in server.requests).most_common(1)[0][1] == 6     # and five retries
        server.script = lambda *_: None
        assert rekey(items, tmp_path / "r.jsonl", server.url).exit_code == 0
        assert len(server.requests) == 11 + 6 + 1
    assert Counter("error" in line for line in by_item(tmp_path / "r.jsonl").values()) == {False: 12}


@pytest.mark.parametrize("reply", [Reply(503, b"busy"), Reply(429, {}), Reply(body=chat("A") | {"choices": []})],
                         ids=["503", "429", "no choices"])
@pytest.mark.parametrize("workers", [1, 3])
def test_many_questions_in_a_row_without_an_answer_stop_the_run(tmp_path, reply, workers):
    write_items(tmp_path / "items", 30)
    with Server(lambda number, body: reply if number >= 5 else None) as server:
        result = rekey(tmp_path / "items", tmp_path / "r.jsonl", server.url, "--workers", workers)
        assert result.exit_code == 75
        last = re.fullmatch(rf"rekey: stopped, {server.url} left (\d+) questions in a row unanswered \(.+\); run the "
                            "same line again to go on", result.output.splitlines()[-1])
        assert LOST_IN_A_ROW <= int(last[1]) < LOST_IN_A_ROW + workers          # some were on their way
        found = Counter("error" in line for line in by_item(tmp_path / "r.jsonl").values())
        assert found[False] == 5 and LOST_IN_A_ROW - 1 <= found[True] <= LOST_IN_A_ROW + workers
        server.script = lambda *_: None
        result = rekey(tmp_path / "items", tmp_path / "r.jsonl", server.url, "--workers", 2)
        assert result.exit_code == 0 and "5 answered before, 25 now" in result.output


def test_questions_that_the_server_refuses_one_by_one_do_not_stop_the_run(items, tmp_path):
    with Server(lambda *_: Reply(400, {"error": {"message": "no images here"}})) as server:
        result = rekey(items, tmp_path / "r.jsonl", server.url)
        assert result.exit_code == 3 and "0 now, 12 failed" in result.output and len(server.requests) == 12


# Servers that are not there, or not for us


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/v1", "127.0.0.1:{port}/v1", "http://127.0.0.1:99999/v1"])
def test_where_no_server_answers_is_one_line(items, tmp_path, url):
    url = url.format(port=free_port())
    result = rekey(items, tmp_path / "r.jsonl", url)
    lines = [line for line in result.output.splitlines() if line.startswith("rekey: ")]
    assert result.exit_code == 2 and len(lines) == 1
    assert lines[0].startswith(f"rekey: --base-url {url}: ")


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("when", ["at the start", "later"])
def test_a_key_that_is_refused_is_one_line_and_is_written_nowhere(items, tmp_path, monkeypatch, status, when):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    refusal = Reply(status, {"error": {"message": f"bad key {KEY}, sorry"}})
    with Server(lambda number, _: refusal if number >= 4 else None,
                refusal if when == "at the start" else None) as server:
        result = rekey(items, tmp_path / "out" / "r.jsonl", server.url, "--workers", 2)
        assert set(server.keys) <= {f"Bearer {KEY}"}
    lines = [line for line in result.output.splitlines() if line.startswith("rekey: ")]
    assert result.exit_code == 2 and len(lines) == 1 and lines[0].endswith("; set OPENAI_API_KEY")
    assert "the server refuses the key" in lines[0] and KEY not in result.output
    if when == "later":
        assert len(by_item(tmp_path / "out" / "r.jsonl")) == 4      # what the others brought is kept


def test_no_file_holds_the_key_even_if_the_server_repeats_it(items, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Server(about(3, Reply(400, {"error": {"message": f"not with {KEY}"}}))) as server:
        result = rekey(items, tmp_path / "out" / "r.jsonl", server.url)
        assert server.keys[0] == f"Bearer {KEY}"
    assert result.exit_code == 3 and KEY not in result.output
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) == 2 and not [path for path in files if KEY.encode() in path.read_bytes()]
    assert "not with ***" in by_item(tmp_path / "out" / "r.jsonl")["noise_0003"]["error"]


def test_a_password_in_the_address_is_refused(items, tmp_path):
    result = rekey(items, tmp_path / "r.jsonl", f"http://me:{KEY}@127.0.0.1:1/v1")
    assert result.exit_code == 2 and "--base-url: holds a password" in result.output
    assert not (tmp_path / "r.jsonl").exists() and KEY not in result.output.splitlines()[-1]


def test_a_model_that_the_server_does_not_have_is_one_line_with_those_it_has(items, tmp_path):
    with Server(lambda *_: Reply(404, {"error": {"message": "The model `served` does not exist"}}),
                Reply(body={"object": "list", "data": [{"id": "qwen"}, {"id": "llava"}]})) as server:
        result = rekey(items, tmp_path / "r.jsonl", server.url)
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].startswith(f"rekey: {server.url}: has no model 'served'")
    assert result.output.splitlines()[-1].endswith("it has qwen, llava")


@pytest.mark.parametrize("models", [Reply(404, {}), Reply(500, {}), Reply(body={"data": None}), Reply(body=b"x"),
                                    Reply(body=b"x", headers={"Content-Type": "text/plain"})],
                         ids=["404", "500", "null", "no json", "text"])
def test_a_server_that_does_not_list_its_models_is_asked_all_the_same(items, tmp_path, models):
    with Server(models=models) as server:
        assert rekey(items, tmp_path / "r.jsonl", server.url).exit_code == 0


def test_without_the_package_there_is_one_line(monkeypatch):
    monkeypatch.setattr("probes.openai.find_spec", lambda name: None)
    with refused(r"^--backend openai: needs the package openai; pip install -e '\.\[openai\]'$"):
        ServedVLM("served", "http://127.0.0.1:1/v1")


def test_answers_that_others_brought_are_kept_when_one_ends_the_run(items, tmp_path):
    """One of four open requests is told that the model is gone; the others are answered a little later."""
    def script(number, body):
        return Reply(404, {}) if number == 5 else Reply(body=chat("A"), pause_s=0.2)
    with Server(script) as server:
        assert rekey(items, tmp_path / "r.jsonl", server.url, "--workers", 4).exit_code == 2
        assert len(by_item(tmp_path / "r.jsonl")) == len(server.requests) - 1 >= 5


# A real server


@contextmanager
def serving(folder: Path, log: Path, port: int | None = None):
    """`transformers serve` of a folder; yields its process and address."""
    port = port or free_port()
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("transformers")), "serve", str(folder), "--port", str(port), "--host",
         "127.0.0.1", "--device", "cpu", "--dtype", "float32"],
        env=environment(), stdout=subprocess.DEVNULL, stderr=log.open("ab"), start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        yield process, f"http://127.0.0.1:{port}/v1"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """control:clean as a checkpoint folder."""
    return save_control("clean", tmp_path_factory.mktemp("models") / "clean")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_benchmark(folder, 4 + 2 + LOST_IN_A_ROW + 2, seed=5)
    return folder


@pytest.mark.slow
def test_a_served_model_answers_as_it_does_here_and_goes_on_at_another_address(clean, scenes, tmp_path):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    here, out = tmp_path / "here.jsonl", tmp_path / "served.jsonl"
    local = ModelSpec(str(clean), device_map="cpu", dtype="float32")
    evaluate(EvaluateJob(scenes, local, here, FEW))

    def job(url: str) -> EvaluateJob:
        return EvaluateJob(scenes, ModelSpec(str(clean), "openai", base_url=url, processor=str(clean)), out, FEW,
                           workers=2)
    with serving(clean, tmp_path / "log") as (process, url):
        assert str(clean) in job(url).model.load().served
        killed = []

        def kill(done: int, total: int) -> None:
            if done >= 4 and not killed:
                os.killpg(process.pid, signal.SIGKILL)
                killed.append(done)
        with pytest.raises(Interrupted, match="left [89] questions in a row unanswered .APIConnectionError: "):
            evaluate(job(url), kill)
    n_answered = len([line for line in by_item(out).values() if "error" not in line])
    assert 4 <= n_answered <= 6
    with serving(clean, tmp_path / "log") as (_, other):
        assert other != url
        summary = evaluate(job(other))
        assert summary.n_resumed == n_answered and not summary.failures
    expected, found = by_item(here), by_item(out)
    assert len(found) == 16
    for item_id, line in expected.items():
        served = found[item_id]["generation"]
        for name in ("text", "n_prompt_tokens", "n_image_tokens", "image_sizes", "finish"):
            assert served[name] == line["generation"][name], (item_id, name)
        assert served["text"] == line["item"]["answer"]

def test_sizes_are_told_only_where_the_server_read_as_many_tokens(clean):
    vlm_here = ModelSpec(str(clean), device_map="cpu").load()
    n_read = vlm_here.answer([np.zeros((96, 96, 3), np.uint8)], ["What?"], FEW, None)[0].n_prompt_tokens
    for told, known in ((n_read, True), (n_read + 1, False), (None, False)):
        with Server(lambda *_, n=told: Reply(body=chat("A", n_read=n))) as server:
            answer = ServedVLM("served", server.url, str(clean)).answer([np.zeros((96, 96, 3), np.uint8)], ["What?"],
                                                                        FEW, None)[0]
        assert (answer.image_sizes, answer.n_image_tokens) == ((((96, 96),), 36) if known else (None, None))
    with Server() as server:
        tiny = ServedVLM("served", server.url, str(clean)).answer([picture()], ["What?"], FEW, None)[0]
    assert tiny.text == answer_of(picture()) and tiny.image_sizes is None       # our own rules would have refused it
