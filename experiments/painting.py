"""One painter for many processes: a model's weights lie in one of them, and its batches are filled by all.

    with PaintingService(editor.painter, editor.settings.batch_at) as service:
        for line in in_parallel(make, tasks, n_workers, stop):      # tasks carry `service.remote`
            service.n_busy = n_workers                              # how many may still ask

Around each picture lie some tenths of a second of plain image work (decoding, prepainting, edges, certificates, PNG).
That is done by the workers, each of which asks for one picture at a time and waits; what they ask for is gathered into
full batches of one shape and schedule.  A picture does not depend on what it was painted with, so neither does a run
on the number of workers.

Processes, since threads would keep the interpreter from the thread that launches the model's steps: a batch of a tiny
FLUX took about twice as long beside a thread of such work as beside a process (on 2 CPU cores).
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.connection
import os
import pickle
import queue
import secrets
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np

from editors.painting import Painter, Painting
from rekey.errors import WorkerLost

LINGER_SHARE = 0.5              # of what the last batch took: a quarter left batches of 4 half empty with 4 workers
LINGER_S = (0.02, 2.0)          # at least, and at most: the first batch takes as long as loading the weights
PATIENCE = 4                    # batches that may overtake a painting before its own, however small, comes first
LONGEST_ADDRESS = 100           # bytes; what the kernels allow for the path of a socket, 104 to 108


@dataclass(frozen=True)
class RemotePainter:
    """Implements `editors.painting.Painter` in a worker, by asking the process that holds the weights."""

    address: str
    authkey: bytes = field(repr=False)

    def check(self) -> None:
        """Done where the weights are, before there were workers."""

    def expect(self, prompts: Iterable[str]) -> None:
        """Said where the weights are, before there were workers."""

    def paint(self, paintings: Sequence[Painting]) -> list[np.ndarray]:
        """Raises what the painter raised, and WorkerLost where it is gone."""
        if not paintings:
            return []
        try:
            self._connection.send(list(paintings))
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerLost("the process that holds the weights ended; what was finished is kept: run the same line "
                             "again") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def describe(self) -> dict[str, Any]:
        """Nothing: what paints is described where the weights are."""
        return {}

    @functools.cached_property
    def _connection(self) -> Connection:
        return Client(self.address, "AF_UNIX", authkey=self.authkey)


@dataclass(eq=False)
class _Request:
    """Paintings that a worker waits for.  Holds the pictures until all are there."""

    connection: Connection
    paintings: list[Painting]
    arrived_s: float
    n_before: int
    """Batches that had been painted when it came."""
    pictures: dict[int, np.ndarray] = field(default_factory=dict)


_Place = tuple[_Request, int]           # a painting: which of a request


class PaintingService:
    """Serves a painter to other processes while the context is open.  Holds what they ask for, and counts.

    batch_at: canvas side in pixels -> paintings in a full batch.  `n_busy` says how many processes may still ask: once
    so many wait for pictures, there is nothing to wait for, and a batch that is not full is painted.  Otherwise one
    that is not full waits a little for more.  Full batches come first, but nothing is overtaken more than PATIENCE
    times.  The painter is only ever called from one thread.
    """

    def __init__(self, painter: Painter, batch_at: Callable[[int], int], n_busy: int):
        self.painter, self.batch_at, self._n_busy = painter, batch_at, n_busy
        self.n_batches = self.n_paintings = self.n_places = 0
        self._waiting: list[_Place] = []                    # in the order in which they came
        self._connections: set[Connection] = set()
        self._arrived: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._closing, self._doorstep = threading.Event(), threading.Lock()
        self._free_since_s = self._last_batch_s = 0.0

    def __enter__(self) -> PaintingService:
        self._folder = _private_folder()
        self.remote = RemotePainter(os.path.join(self._folder, "painter"), secrets.token_bytes(32))
        """What the workers are given."""
        self._listener = Listener(self.remote.address, "AF_UNIX", backlog=128, authkey=self.remote.authkey)
        self._woken, self._waker = multiprocessing.connection.Pipe(duplex=False)
        self._threads = [threading.Thread(target=run, name=f"painting-{run.__name__.strip('_')}", daemon=True)
                         for run in (self._accept, self._serve)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._waker.send_bytes(b"closing")
        with contextlib.suppress(OSError, EOFError):        # wakes the thread that accepts
            Client(self.remote.address, "AF_UNIX", authkey=self.remote.authkey).close()
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def n_busy(self) -> int:
        """How many processes may still ask for pictures."""
        return self._n_busy

    @n_busy.setter
    def n_busy(self, n: int) -> None:
        self._n_busy = n
        self._waker.send_bytes(b"busy")

    def describe(self) -> dict[str, Any]:
        """Plain JSON for `run.json`: batches, edits, and the share of the places in batches that edits filled."""
        return {"batches": self.n_batches, "edits": self.n_paintings,
                "fill": round(self.n_paintings / self.n_places, 3) if self.n_places else None}

    # -------------------------------------------------------------------------------------------- hearing

    def _accept(self) -> None:
        """A thread of its own, since a listener cannot be waited for together with connections."""
        with self._listener:
            while not self._closing.is_set():
                try:
                    connection = self._listener.accept()
                except (EOFError, ConnectionError, multiprocessing.AuthenticationError):
                    continue                                # a worker that died on the doorstep
                with self._doorstep:
                    if self._closing.is_set():              # nobody is left to take it in
                        connection.close()
                        continue
                    self._arrived.put(connection)
                self._waker.send_bytes(b"arrived")

    def _serve(self) -> None:
        try:
            while True:
                self._hear(0.0)
                if self._closing.is_set():                  # looked at after hearing, which takes in the call to wake
                    return
                if batch := self._due():
                    self._paint(batch)
                else:
                    self._hear(self._patience_s())
        finally:                                            # who waits hears that nothing comes any more
            with self._doorstep:
                self._closing.set()
                self._take_in()
            for connection in self._connections:
                connection.close()

    def _hear(self, timeout_s: float | None) -> None:
        """Take in what is asked for; wait for it at most so long."""
        for ready in multiprocessing.connection.wait([self._woken, *self._connections], timeout_s):
            if ready is self._woken:
                ready.recv_bytes()
                self._take_in()
                continue
            try:
                paintings = ready.recv()
            except (EOFError, OSError):
                self._forget(ready)
                continue
            request = _Request(ready, paintings, time.monotonic(), self.n_batches)
            self._waiting.extend((request, number) for number in range(len(paintings)))

    def _take_in(self) -> None:
        while not self._arrived.empty():
            self._connections.add(self._arrived.get())

    def _forget(self, connection: Connection) -> None:
        """A worker is gone: what it asked for is not painted."""
        self._connections.discard(connection)
        connection.close()
        self._waiting = [place for place in self._waiting if place[0].connection is not connection]

    # ------------------------------------------------------------------------------------------- choosing

    def _patience_s(self) -> float | None:
        """How long more may be waited for; None while there is nothing to paint."""
        if not self._waiting:
            return None
        linger_s = min(max(LINGER_S[0], LINGER_SHARE * self._last_batch_s), LINGER_S[1])
        since_s = max(self._free_since_s, self._waiting[0][0].arrived_s)
        return max(0.0, since_s + linger_s - time.monotonic())

    def _due(self) -> list[_Place]:
        """What to paint now; nothing where waiting for more is better."""
        if not self._waiting:
            return []
        groups: dict[Any, list[_Place]] = {}
        for request, number in self._waiting:
            groups.setdefault(request.paintings[number].group, []).append((request, number))

        def overtaken(members: list[_Place]) -> bool:
            return self.n_batches - members[0][0].n_before >= PATIENCE

        def fill(members: list[_Place]) -> float:
            return min(1.0, len(members) / self._size(members))
        chosen = max(groups.values(), key=lambda members: (overtaken(members), fill(members)))   # of equals, the oldest
        n_asking = len({request.connection for request, _ in self._waiting})
        if overtaken(chosen) or fill(chosen) == 1 or n_asking >= self.n_busy or self._patience_s() == 0:
            return chosen[:self._size(chosen)]
        return []

    def _size(self, members: list[_Place]) -> int:
        request, number = members[0]
        return self.batch_at(len(request.paintings[number].start))

    # ------------------------------------------------------------------------------------------- painting

    def _paint(self, batch: list[_Place]) -> None:
        chosen = set(batch)
        self._waiting = [place for place in self._waiting if place not in chosen]
        began_s = time.monotonic()
        try:
            pictures = self.painter.paint([request.paintings[number] for request, number in batch])
            failure = None
        except Exception as error:
            failure = _portable(error)
        self._free_since_s = time.monotonic()
        self._last_batch_s = self._free_since_s - began_s
        self.n_batches += 1
        self.n_paintings += len(batch)
        self.n_places += self._size(batch)
        if failure is not None:
            for request in {request for request, _ in batch}:
                self._waiting = [place for place in self._waiting if place[0] is not request]
                self._answer(request, failure)
            return
        for (request, number), picture in zip(batch, pictures, strict=True):
            request.pictures[number] = picture
            if len(request.pictures) == len(request.paintings):
                self._answer(request, [request.pictures[n] for n in range(len(request.paintings))])

    def _answer(self, request: _Request, answer: list[np.ndarray] | BaseException) -> None:
        try:
            request.connection.send(answer)
        except OSError:
            self._forget(request.connection)


def _portable(error: Exception) -> Exception:
    """An error that survives the way to another process, with its traceback as a note."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:                                       # its class may ask for other arguments than it keeps
        portable = RuntimeError(f"{type(error).__name__}: {error}")
        portable.add_note(error.__notes__[-1])
        return portable
    return error


def _private_folder() -> str:
    """A new folder that only this user can enter, with a path short enough for a socket in it."""
    folder = tempfile.mkdtemp(prefix="rekey-")
    if len(os.fsencode(folder)) <= LONGEST_ADDRESS - len("/painter"):
        return folder
    os.rmdir(folder)                                        # $TMPDIR of a batch job may be long
    return tempfile.mkdtemp(prefix="rekey-", dir="/tmp")
