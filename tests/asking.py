"""What the tests of `rekey evaluate` share: a small benchmark, a model that loads nothing, a server with a script.

    items = write_items(tmp_path / "items", 12)            # pictures of 12 x 8 pixels; the answer is in the pixels
    StandIn("stand-in").load().answer([pixels], ["..."], Settings(), None)
    with Server() as server: ...                           # a real socket; answers right unless its script says else

`python -c "import asking; asking.main()" evaluate ...` is the command line with `StandIn` for every model.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from probes.backends import ModelSpec
from rekey import store
from rekey.evaluate import Failure, Identity, Settings, read_lines
from rekey.geometry import Box
from rekey.images import pixel_sha256
from rekey.records import Generation, Item, SamplingRecord, Slot, VisualKey, to_json

ROOT = Path(__file__).resolve().parents[1]
COLORS = ("red", "green", "blue", "black")
HEIGHT, WIDTH = 8, 12


def answer_of(pixels: np.ndarray) -> str:
    """The letter that only who sees the picture knows."""
    return "ABCD"[int(pixels.astype(int).sum()) % 4]


def write_items(folder: Path, n: int, seed: int = 0) -> list[Item]:
    """A benchmark of `n` pictures of noise, each with a question whose answer is `answer_of` its pixels."""
    rng = np.random.default_rng(seed)
    items = []
    (folder / "images").mkdir(parents=True)
    for number in range(n):
        pixels = rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        image = f"images/{number:04d}.png"
        Image.fromarray(pixels).save(folder / image)
        items.append(Item(f"noise_{number:04d}", image, pixel_sha256(pixels), f"What color is kite {number}?", COLORS,
                          answer_of(pixels), "direct_attributes"))
    save_items(folder, items)
    return items


def save_items(folder: Path, items: Sequence[Item]) -> None:
    store.write_jsonl(folder / "items.jsonl", map(to_json, items))


@dataclass(frozen=True)
class StandIn(ModelSpec):
    """A model that loads nothing and answers right after a moment; named "stand-in:SECONDS" it thinks for so long."""

    def identity(self) -> Identity:
        return Identity(self.name, {"backend": self.backend, "revision": self.revision, "max_pixels": self.max_pixels})

    def on_gpu_of(self, worker: int) -> StandIn:
        return self

    def load(self) -> StandInVLM:
        return StandInVLM(float(self.name.partition(":")[2] or 0))


class StandInVLM:
    def __init__(self, pause_s: float = 0.0):
        self.pause_s = pause_s
        self.seen: list[tuple[Any, ...]] = []
        """What it was given, call by call."""

    def describe(self) -> dict[str, Any]:
        return {"name": "stand-in", "process": os.getpid()}

    def answer(self, images: Sequence[np.ndarray], texts: Sequence[str], settings: Settings,
               seeds: Sequence[int] | None) -> list[Generation | Failure]:
        self.seen.append((images, texts, settings, seeds))
        time.sleep(self.pause_s * len(images))
        return [Generation(f"({answer_of(pixels)})", (1, 2), 20, 6, ((16, 24),), "stop", 0.01, len(images))
                for pixels in images]


def main() -> None:
    """The command line, with `StandIn` for every model."""
    import probes.backends
    from experiments.cli import main as rekey
    probes.backends.ModelSpec = StandIn
    rekey()


def command(*arguments: object, real: bool = False) -> list[str]:
    """The command line in a process of its own.  real: with real models."""
    start = ["-m", "experiments.cli"] if real else ["-c", "import asking; asking.main()"]
    return [sys.executable, *start, *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "HF_HUB_OFFLINE": "1",
                         "OMP_NUM_THREADS": "1"} | more


def run_command(*arguments: object, real: bool = False, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments, real=real), env=environment(**more), capture_output=True, text=True,
                          timeout=300)


def outcomes(path: Path) -> list[dict[str, Any]]:
    """All that a file of responses says, but for when, in which run and beside how many others it was said."""
    found = []
    for line in read_lines(path):
        del line["run"]
        if "generation" in line:
            line["generation"] = {name: value for name, value in line["generation"].items()
                                  if name not in ("elapsed_s", "batch_size")}
        found.append(line)
    return sorted(found, key=lambda line: line["key"])


def with_edit(item: Item, *boxes: Box) -> Item:
    """The item as made from records of edits in these boxes."""
    keys = tuple(VisualKey(Slot(item.item_id, f"s{n}", "replace", box, box), "replace", "kite", "red")
                 for n, box in enumerate(boxes))
    return replace(item, record=SamplingRecord(item.item_id, 1, "attribute", "color", keys))


# ------------------------------------------------------------------------------------------ a server

@dataclass
class Reply:
    """What the server does with a request: status, headers and body; or cuts the connection in mid-answer."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    pause_s: float = 0.0


def chat(text: str | None, finish: str = "stop", n_read: int | None = 30, **message: Any) -> dict[str, Any]:
    """A chat completion as OpenAI documents it."""
    usage = {} if n_read is None else {"usage": {"prompt_tokens": n_read, "completion_tokens": 2,
                                                 "total_tokens": n_read + 2}}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "served", **usage,
            "choices": [{"index": 0, "finish_reason": finish,
                         "message": {"role": "assistant", "content": text} | message}]}


class Server:
    """A server of the OpenAI chat protocol on a free port.  script: the reply to a request by its number, from 0, and
    body; None for the right answer, told from the pixels that came."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Reply | None] = lambda number, body: None,
                 models: Reply | None = None):
        self.script = script
        self.models = models or Reply(body={"object": "list", "data": [{"id": "served", "object": "model"}]})
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.n_open = self.most_open = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True          # else head and body come 40 ms apart

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.reply(server.models)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.reply(server.answer(body, self.headers.get("Authorization")))
                with server._lock:
                    server.n_open -= 1

            def reply(self, reply: Reply) -> None:
                data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in ({"Content-Type": "application/json"} | reply.headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[:len(data) // 2] if reply.cut else data)
                self.close_connection = reply.cut or self.close_connection

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def answer(self, body: dict[str, Any], key: str | None) -> Reply:
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            self.keys.append(key)
            self.n_open += 1
            self.most_open = max(self.most_open, self.n_open)
        reply = self.script(number, body) or Reply(body=chat(answer_of(pixels_in(body))))
        time.sleep(reply.pause_s)
        return reply

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Server:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pixels_in(body: dict[str, Any]) -> np.ndarray:
    """The picture of a chat request."""
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,")))))


def text_in(body: dict[str, Any]) -> str:
    return body["messages"][0]["content"][1]["text"]


@contextmanager
def group_of(process: subprocess.Popen):
    """A process started with start_new_session, killed with all its workers however the block ends."""
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
