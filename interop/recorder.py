"""A raw recording of a replication connection: a socket, lines, and nothing of synrepl."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO, NamedTuple, Self

from interop.processes import LOOPBACK

_PING_EVERY_S = 5.0


class RawRow(NamedTuple):
    """A line RDATA. The token is the one that the batch ends with."""

    token: int
    row: str


class Recorder:
    """Connects like a worker, keeps every line, and answers pings; a ``with`` block.

    :param legacy: whether the master is asked with ``REPLICATE ALL NOW``
    :param transcript: where lines go, as they come
    :ivar positions: how many lines POSITION there were
    """

    def __init__(self, port: int, legacy: bool, transcript: Path) -> None:
        self._writers = not legacy
        self._rows: dict[str, list[RawRow]] = {}
        self.positions = 0
        self._batches: dict[str, list[str]] = {}
        self._transcript: IO[str] = transcript.open("w", encoding="utf-8")
        self._socket = socket.create_connection((LOOPBACK, port))
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._ping, daemon=True),
        ]
        for line in ("NAME recorder", "REPLICATE ALL NOW" if legacy else "REPLICATE"):
            self._send(line)

    def rows(self) -> dict[str, list[RawRow]]:
        """The rows received so far, by stream and in order; batches only once they are complete."""
        with self._lock:
            return {stream: list(rows) for stream, rows in self._rows.items()}

    def count(self) -> Counter[str]:
        """How many rows that is, and those of batches whose end has not come."""
        with self._lock:
            count = Counter({stream: len(rows) for stream, rows in self._rows.items()})
            count.update({stream: len(rows) for stream, rows in self._batches.items()})
            return +count

    def _read(self) -> None:
        with self._socket.makefile("rb") as lines:
            try:
                for line in lines:
                    self._received(line.decode().removesuffix("\n"))
            except OSError:
                if not self._stopped.is_set():
                    raise

    def _received(self, line: str) -> None:
        self._transcript.write(json.dumps({"t": time.time_ns() // 1_000_000, "line": line}) + "\n")
        command, _, rest = line.partition(" ")
        with self._lock:
            if command == "RDATA":
                self._rdata(rest)
            elif command == "POSITION":
                self.positions += 1

    def _rdata(self, rest: str) -> None:
        stream, rest = rest.split(" ", 1)
        if self._writers:
            _, rest = rest.split(" ", 1)
        token, row = rest.split(" ", 1)
        batch = self._batches.setdefault(stream, [])
        batch.append(row)
        if token != "batch":
            rows = self._rows.setdefault(stream, [])
            rows += [RawRow(int(token), each) for each in batch]
            batch.clear()

    def _ping(self) -> None:
        while not self._stopped.wait(_PING_EVERY_S):
            self._send(f"PING {time.time_ns() // 1_000_000}")

    def _send(self, line: str) -> None:
        self._socket.sendall(line.encode() + b"\n")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()
        self._transcript.close()
