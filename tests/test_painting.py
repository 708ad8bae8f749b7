"""One painter for many workers: full batches, the right pictures, and nobody waits for ever."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from test_generate import children, contents, sources  # noqa: F401  (a fixture)

from editors.painting import Painting, Schedule
from experiments import painting as painting_module
from experiments.cli import main
from experiments.painting import PaintingService, RemotePainter
from rekey.compositing import mask_margin_px
from rekey.errors import InputError, WorkerLost
from rekey.geometry import Box
from rekey.images import load_image
from rekey.records import Item, from_json
from rekey.slots import read_slots, write_slots
from rekey.store import read_json, read_jsonl

ROOT = Path(__file__).resolve().parents[1]
NEVER_S = (60.0, 60.0)          # a linger that no test waits for
ONE, OTHER = Schedule(1.0, 2, 3.5), Schedule(0.5, 2, 3.5)


def wanted(seed: int, schedule: Schedule = ONE, side: int = 16) -> Painting:
    start = np.full((side, side, 3), seed % 256, np.uint8)
    return Painting(start, Box(0, 0, 8, 8), f"number {seed}", seed, schedule)


def picture_of(painting: Painting) -> np.ndarray:
    return painting.start ^ np.uint8(painting.seed * 7 % 256)


class FakePainter:
    """Paints what follows from each painting alone, notes its batches, and notices if it is called twice at once."""

    def __init__(self, duration_s: float = 0.0, bad: tuple[int, ...] = (), error: Exception | None = None):
        self.duration_s, self.bad, self.error = duration_s, bad, error
        self.batches: list[list[Painting]] = []
        self.threads: set[int] = set()
        self.may_paint = threading.Event()
        self.may_paint.set()

    def paint(self, paintings):
        self.threads.add(threading.get_ident())
        self.batches.append(list(paintings))
        self.may_paint.wait(60)
        time.sleep(self.duration_s)
        if any(painting.seed in self.bad for painting in paintings):
            raise self.error
        return [picture_of(painting) for painting in paintings]


def another(remote: RemotePainter) -> RemotePainter:
    """As another process has it: with a connection of its own."""
    return RemotePainter(remote.address, remote.authkey)


def until(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def ask_all(service: PaintingService, schedule_of: dict[int, Schedule], n_each: dict[int, int]) -> None:
    """Clients, by their numbers, ask for pictures one by one; each is the right one."""
    lock = threading.Lock()

    def client(number: int) -> None:
        remote = another(service.remote)
        for n in range(n_each[number]):
            painting = wanted(100 * number + n, schedule_of[number])
            (picture,) = remote.paint([painting])
            assert np.array_equal(picture, picture_of(painting))
        with lock:
            service.n_busy -= 1

    with ThreadPoolExecutor(len(schedule_of)) as pool:
        list(pool.map(client, schedule_of))


def test_everybody_gets_the_own_pictures_in_order():
    painter, rng = FakePainter(), np.random.default_rng(0)
    with PaintingService(painter, lambda side: 4 if side == 16 else 1, 6) as service:
        def client(number: int) -> None:
            remote = another(service.remote)
            for n in range(20):
                asked = [wanted(1000 * number + 10 * n + i, (ONE, OTHER)[i % 2], (16, 32)[number % 2])
                         for i in range(sizes[number, n])]
                for painting, picture in zip(asked, remote.paint(asked), strict=True):
                    assert np.array_equal(picture, picture_of(painting))
        sizes = rng.integers(0, 6, (6, 20))
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(client, range(6)))
    assert service.n_paintings == sizes.sum() == sum(map(len, painter.batches))
    assert all(len({painting.group for painting in batch}) == 1 for batch in painter.batches)
    assert all(len(batch) <= (4 if len(batch[0].start) == 16 else 1) for batch in painter.batches)
    assert len(painter.threads) == 1


def test_batches_are_full_as_long_as_enough_workers_ask(monkeypatch):
    monkeypatch.setattr(painting_module, "LINGER_S", NEVER_S)
    painter = FakePainter(0.002)
    with PaintingService(painter, lambda side: 4, 8) as service:
        ask_all(service, dict.fromkeys(range(8), ONE), dict.fromkeys(range(8), 10))
    assert sum(len(batch) == 4 for batch in painter.batches) >= 18          # of 20, but for the last
    assert service.describe()["edits"] == 80
    assert service.describe()["fill"] == round(80 / (4 * len(painter.batches)), 3) >= 0.85


def test_nobody_waits_for_workers_that_wait_themselves_or_have_ended(monkeypatch):
    monkeypatch.setattr(painting_module, "LINGER_S", NEVER_S)
    began = time.monotonic()
    with PaintingService(FakePainter(), lambda side: 16, 3) as service:
        ask_all(service, dict.fromkeys(range(3), ONE), dict.fromkeys(range(3), 4))      # never a full batch
    assert service.n_batches == 4
    with PaintingService(FakePainter(), lambda side: 16, 2) as service, ThreadPoolExecutor(1) as pool:
        picture = pool.submit(service.remote.paint, [wanted(1)])
        until(lambda: service._waiting)
        service.n_busy = 1                                                  # the other one had nothing to paint
        assert np.array_equal(picture.result(30)[0], picture_of(wanted(1)))
    assert time.monotonic() - began < 30


def test_a_full_batch_that_is_already_there_waits_for_nothing(monkeypatch):
    monkeypatch.setattr(painting_module, "LINGER_S", NEVER_S)
    began = time.monotonic()
    with PaintingService(FakePainter(), lambda side: 2, 2) as service:      # the other worker never asks
        assert len(service.remote.paint([wanted(n) for n in range(6)])) == 6
    assert service.describe() == {"batches": 3, "edits": 6, "fill": 1.0}
    assert time.monotonic() - began < 30


def test_a_batch_that_does_not_fill_is_painted_after_a_while():
    with PaintingService(FakePainter(), lambda side: 16, 3) as service:     # two that never ask
        assert len(service.remote.paint([wanted(1), wanted(2)])) == 2
    assert service.describe() == {"batches": 1, "edits": 2, "fill": 0.125}


@pytest.mark.parametrize("patience, latest", [(4, 6), (10 ** 6, None)], ids=["as it is", "without patience"])
def test_a_lone_painting_is_not_overtaken_for_ever(monkeypatch, patience, latest):
    monkeypatch.setattr(painting_module, "LINGER_S", NEVER_S)
    monkeypatch.setattr(painting_module, "PATIENCE", patience)
    painter = FakePainter(0.005)
    painter.may_paint.clear()
    with PaintingService(painter, lambda side: 2, 5) as service, ThreadPoolExecutor(2) as pool:
        lone = pool.submit(ask_all, service, {9: OTHER}, {9: 1})
        until(lambda: service._waiting)
        crowd = pool.submit(ask_all, service, dict.fromkeys(range(4), ONE), dict.fromkeys(range(4), 10))
        until(lambda: painter.batches)
        painter.may_paint.set()
        crowd.result(60)
        lone.result(60)
    place = next(n for n, batch in enumerate(painter.batches) if batch[0].schedule == OTHER)
    if latest is None:
        assert place >= 15                                                  # nearly all of the 20 others came first
    else:
        assert place <= latest


class Odd(Exception):
    """Cannot be made from what it keeps, as some exceptions of libraries."""

    def __init__(self, code: int, text: str):
        super().__init__(text)


@pytest.mark.parametrize("error, kind, text", [
    (InputError("the canvas is too large", "so is the batch"), InputError, "the canvas is too large\nso is the batch"),
    (MemoryError("no room"), MemoryError, "no room"),
    (Odd(3, "strange"), RuntimeError, "Odd: strange"),
], ids=["InputError", "MemoryError", "unpicklable"])
def test_what_the_painter_raises_reaches_who_asked_and_nobody_else(error, kind, text):
    painter = FakePainter(bad=(13,), error=error)
    with PaintingService(painter, lambda side: 1, 2) as service, ThreadPoolExecutor(2) as pool:
        spared = pool.submit(another(service.remote).paint, [wanted(n) for n in range(9)])
        remote = another(service.remote)
        with pytest.raises(kind) as raised:
            remote.paint([wanted(11), wanted(13), wanted(17)])
        assert type(raised.value) is kind
        assert str(raised.value) == text
        assert "in paint" in raised.value.__notes__[0]                      # where it was raised
        assert len(spared.result(30)) == 9
        assert np.array_equal(remote.paint([wanted(14)])[0], picture_of(wanted(14)))    # and it goes on


WAITING_WORKER = """
import sys
from test_painting import wanted
from experiments.painting import RemotePainter
RemotePainter(sys.argv[1], bytes.fromhex(sys.argv[2])).paint([wanted(2), wanted(3)])
"""


@pytest.mark.parametrize("painted", [False, True], ids=["while waiting", "while its picture is painted"])
def test_a_worker_that_is_killed_is_forgotten(monkeypatch, painted):
    monkeypatch.setattr(painting_module, "LINGER_S", NEVER_S)
    painter = FakePainter()
    painter.may_paint.clear()
    with PaintingService(painter, lambda side: 1 if painted else 3, 2) as service:
        key = service.remote.authkey.hex()
        worker = subprocess.Popen([sys.executable, "-c", WAITING_WORKER, service.remote.address, key],
                                  env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"})
        until(lambda: painter.batches if painted else len(service._waiting) == 2, 120)
        worker.kill()
        worker.wait()
        painter.may_paint.set()
        until(lambda: not service._waiting)
        service.n_busy = 1
        assert len(service.remote.paint([wanted(5), wanted(6)])) == 2
    asked = [painting.seed for batch in painter.batches for painting in batch]
    assert asked == ([2, 5, 6] if painted else [5, 6])      # what nobody waits for is not painted


def test_without_a_service_it_says_so():
    with PaintingService(FakePainter(), lambda side: 1, 1) as service:
        pass
    with pytest.raises(WorkerLost, match="the process that holds the weights ended"):
        service.remote.paint([wanted(1)])
    painter = FakePainter()
    painter.may_paint.clear()
    with ThreadPoolExecutor(1) as pool:
        with PaintingService(painter, lambda side: 1, 2) as service:
            first = pool.submit(another(service.remote).paint, [wanted(1), wanted(2)])
            until(lambda: painter.batches)
            threading.Timer(0.1, painter.may_paint.set).start()
        with pytest.raises(WorkerLost):                     # the second one was not painted any more
            first.result(30)
    assert len(painter.batches) == 1


def test_a_service_that_breaks_ends_the_waiting(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)

    def broken(side: int) -> int:
        raise ZeroDivisionError
    with PaintingService(FakePainter(), broken, 1) as service:
        with pytest.raises(WorkerLost):
            service.remote.paint([wanted(1)])


def test_only_who_has_the_key_is_served():
    with PaintingService(FakePainter(), lambda side: 1, 1) as service:
        folder = Path(service.remote.address).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with pytest.raises(AuthenticationError):
            Client(service.remote.address, "AF_UNIX", authkey=b"a guess")
        assert len(service.remote.paint([wanted(1)])) == 1
        assert service.remote.authkey.hex() not in repr(service.remote)
    assert not folder.exists()


def test_a_long_temporary_folder_is_no_obstacle(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with PaintingService(FakePainter(), lambda side: 1, 1) as service:
        assert len(service.remote.paint([wanted(1)])) == 1
    assert not list(deep.iterdir())


# ------------------------------------------------------------------------- whole runs, with a tiny FLUX.1

@pytest.fixture
def one_thread():
    """In this process as in those that are begun here: the cores are shared."""
    import torch
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def clear_flux(tmp_path_factory) -> tuple[str, ...]:
    """Options of `rekey generate` for an editor whose pictures keep the prepainted start, so that edits certify."""
    from editors.tiny_flux import tiny_flux
    built = tiny_flux(tmp_path_factory.mktemp("models") / "clear", vae="clear", transformer="still")
    settings = {"base": built.base, "controlnet": built.controlnet, "sigma_start": 0.05, "steps": 1,
                "canvases_px": 256, "text_tokens": 64, "dtype": "float32", "max_attempts": 1}
    return "--editor", "flux-canny", *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))


TINY_FLUX = ("--editor", "tiny-flux", "--set", "canvases_px=64")


@pytest.fixture(scope="module")
def few(sources, tmp_path_factory) -> Path:  # noqa: F811
    """The annotation of three of the demo's photographs."""
    path = tmp_path_factory.mktemp("annotation") / "slots.jsonl"
    slots = read_slots(sources / "slots.jsonl")
    write_slots(path, [slots[image_id] for image_id in ("coffee", "rocket", "flower")])
    return path


def words(slots: Path, photos: Path, out: Path, *more: str) -> list[str]:
    return ["generate", "--slots", str(slots), "--images", str(photos), "--seed", "1", "--out", str(out), *more]


def run(*args: str):
    return CliRunner().invoke(main, list(args), catch_exceptions=False)


def begin(*args: str) -> subprocess.Popen:
    """The command in a process group of its own."""
    return subprocess.Popen([sys.executable, "-m", "experiments.cli", *args], start_new_session=True, text=True,
                            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def n_done(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.glob("journal*.jsonl"))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_random_weights_certify_nothing_and_the_bytes_are_those_of_one_process(sources, few, tmp_path):  # noqa: F811
    one, four = tmp_path / "one" / "out", tmp_path / "four" / "out"
    process = begin(*words(few, sources / "photos", four, *TINY_FLUX, "--workers", "4"))
    result = run(*words(few, sources / "photos", one, *TINY_FLUX, "--workers", "1"))
    assert result.exit_code == 3, result.output
    assert "0 certified items, 3 images without one" in result.output
    rejected = read_jsonl(one / "rejected.jsonl")
    assert len(rejected) >= 3 * 10
    assert not any(all(c["passed"] for c in line["certificate"]) for line in rejected)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 3, errors
    assert contents(four) == contents(one)
    painted = read_json(four / "run.json")["painted"]
    assert f"{painted['edits']} edits painted in {painted['batches']} batches" in output
    assert painted["edits"] == sum(len(line["certificate"]) for line in rejected)
    assert painted["batches"] < painted["edits"]                # three at a time, of the four in a batch
    assert "painted" not in read_json(one / "run.json")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_edits_of_a_model_certify_and_survive_kills_stops_and_shards(sources, clear_flux, tmp_path):  # noqa: F811
    slots, photos, out = sources / "slots.jsonl", sources / "photos", tmp_path / "killed" / "out"
    n_images = len(read_slots(slots))
    process = begin(*words(slots, photos, out, *clear_flux, "--workers", "2"))
    until(lambda: n_done(out) or process.poll() is not None, 300)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    n_killed = n_done(out)
    process = begin(*words(slots, photos, out, *clear_flux, "--workers", "2"))
    until(lambda: n_done(out) > n_killed or process.poll() is not None, 300)
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75, errors
    assert "Traceback" not in errors
    assert n_killed < n_done(out) < n_images

    whole = tmp_path / "whole" / "out"
    assert run(*words(slots, photos, whole, *clear_flux, "--workers", "1")).exit_code == 0
    items = [from_json(Item, line) for line in read_jsonl(whole / "items.jsonl")]
    assert len(items) == n_images
    for item in items:
        assert item.certificate and all(c.passed for c in item.certificate)
        source = load_image(next(photos.glob(f"{item.record.image_id}.*"))).pixels
        renewed = load_image(whole / item.image).pixels
        near = np.zeros(source.shape[:2], bool)
        for key in item.record.keys:
            box = key.slot.edit
            near[box.grown(mask_margin_px(box)).clipped(*source.shape[1::-1]).slices] = True
            assert (source[box.slices] != renewed[box.slices]).any()
        assert np.array_equal(source[~near], renewed[~near])
    assert run(*words(slots, photos, out, *clear_flux, "--workers", "1")).exit_code == 0
    assert contents(out) == contents(whole)

    out = tmp_path / "shards" / "out"
    for shard in ("2/2", "1/2"):
        assert run(*words(slots, photos, out, *clear_flux, "--workers", "4", "--shard", shard)).exit_code == 0
    assert run("merge", str(out)).exit_code == 0
    assert contents(out) == contents(whole)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("is_killed, status, said", [
    (False, 2, "rekey: out of GPU memory with 4 edits at once on a canvas of 256 px (tried to allocate it all); "
               "give a smaller --set batch_size"),
    (True, 1, "rekey: a worker process died"),
], ids=["the memory is full", "a worker is killed"])
def test_trouble_while_painting_is_one_line_and_what_was_finished_is_kept(
        sources, few, clear_flux, tmp_path, monkeypatch, is_killed, status, said):  # noqa: F811
    import torch

    from editors.flux_painter import FluxPainter
    call, out = FluxPainter.call, tmp_path / "out"

    def troubled(*words):
        if n_done(out):
            if not is_killed:
                raise torch.OutOfMemoryError("tried to allocate it all\nand more")
            os.kill(next(pid for child in children(os.getpid()) for pid in children(child)), signal.SIGKILL)
        return call(*words)
    monkeypatch.setattr(FluxPainter, "call", troubled)
    result = run(*words(few, sources / "photos", out, *clear_flux, "--workers", "2"))
    assert result.exit_code == status, result.output
    assert len([line for line in result.output.splitlines() if line.startswith(said)]) == 1
    assert "Traceback" not in result.output
    monkeypatch.undo()
    result = run(*words(few, sources / "photos", out, *clear_flux, "--workers", "1"))
    assert result.exit_code == 0
    assert "images were done before" in result.output
