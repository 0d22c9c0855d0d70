"""A raw recording of a Redis channel: a socket, messages, and nothing of synrepl."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from typing import Any, Self

import hiredis  # type: ignore[import-not-found,unused-ignore]

from interop.processes import LOOPBACK

#: A stream, and who writes it.
Key = tuple[str, str]


class RedisWire:
    """Listens to the channel of a server and says nothing; a ``with`` block.

    :param port: of Redis
    """

    def __init__(self, port: int, server_name: str) -> None:
        self._socket = socket.create_connection((LOOPBACK, port))
        subscribe: Any = ("SUBSCRIBE", server_name)
        self._socket.sendall(hiredis.pack_command(subscribe))
        self._announced: dict[Key, int] = {}
        self._rows: Counter[Key] = Counter()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def announced(self) -> dict[Key, int]:
        """How far each writer of each stream has said that it is."""
        with self._lock:
            return dict(self._announced)

    def rows(self) -> Counter[Key]:
        """How many lines RDATA came, by stream and writer."""
        with self._lock:
            return Counter(self._rows)

    def _read(self) -> None:
        reader = hiredis.Reader()
        try:
            while data := self._socket.recv(65536):
                reader.feed(data)
                while (message := reader.gets()) is not False:
                    if message[0] == b"message":
                        self._heard(message[2].decode())
        except OSError:
            if not self._stopped.is_set():
                raise

    def _heard(self, line: str) -> None:
        """Take note of RDATA stream writer token row, or POSITION stream writer prev new."""
        command, *words = line.split(" ", 4)
        with self._lock:
            if command == "POSITION":
                self._announced[words[0], words[1]] = int(words[3])
            elif command == "RDATA":
                key, token = (words[0], words[1]), words[2]
                self._rows[key] += 1
                if token != "batch":
                    self._announced[key] = max(int(token), self._announced.get(key, 0))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
