"""Many clients of one process that wait for news: ``PORT USERS``, on connections of their own.

Each line on standard input is a command: ``poll``, after which all clients wait, or ``answered COUNT``, which returns
when so many have got an answer. Reports are the number of clients and the seconds that it took.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from typing import Any

from benchmarks.child import limit_lifetime, report

#: Longest time to wait for answers, in seconds.
_PATIENCE_S = 60.0

#: Seconds between two looks for answers.
_PAUSE_S = 0.02

#: Connections that are opened, and requests that are sent, before the server gets time for them.
_AT_ONCE = 200


class PollingClient:
    """A client on a connection.

    :ivar since: the token of the next request
    :ivar answered: the body of the answer; None while it waits
    """

    def __init__(self, port: int, access_token: str, since: str) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._token = access_token
        self._received = b""
        self.since = since
        self.answered: Any = {}

    def fileno(self) -> int:
        """That of the connection."""
        return self._sock.fileno()

    def poll(self, timeout_ms: int = 60_000) -> None:
        """Ask for what is new."""
        path = f"/_matrix/client/v3/sync?timeout={timeout_ms}&since={self.since}"
        head = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\n\r\n"
        )
        self._sock.sendall(head.encode())
        self.answered = None

    def receive(self) -> bool:
        """Receive a part of the answer; whether it is complete."""
        self._received += self._sock.recv(65_536)
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return False
        status = head.split(b" ", 2)[1]
        (length,) = (
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        if len(body) < length:
            return False
        if status != b"200":
            raise AssertionError(body)
        self._received = b""
        self.answered = json.loads(body)
        self.since = self.answered["next_batch"]
        return True


def main(port: int, path: str) -> None:
    """Serve commands."""
    limit_lifetime()
    with open(path) as file:
        given = json.load(file)
    clients: list[PollingClient] = []
    with selectors.DefaultSelector() as selector:
        for command in sys.stdin:
            began = time.perf_counter()
            name, _, count = command.strip().partition(" ")
            if name == "open":
                for token in given["tokens"][len(clients) : int(count)]:
                    client = PollingClient(port, token, given["since"])
                    selector.register(client, selectors.EVENT_READ, client)
                    clients.append(client)
            elif name == "poll":
                asking = [each for each in clients if each.answered is not None]
                for place, client in enumerate(asking):
                    client.poll()
                    if place % _AT_ONCE == _AT_ONCE - 1:
                        time.sleep(0.01)
            else:
                _receive(selector, int(count))
            seconds = time.perf_counter() - began
            answered = [each for each in clients if each.answered is not None]
            with_news = sum("rooms" in each.answered for each in answered)
            report({"clients": len(clients), "seconds": seconds, "with_news": with_news})


def _receive(selector: selectors.BaseSelector, count: int) -> None:
    """Receive answers, as many as ``count``.

    It does not wait for each: to wake a process of the same machine takes the server several times as long as to send
    something to another one.
    """
    give_up = time.monotonic() + _PATIENCE_S
    while count > 0:
        time.sleep(_PAUSE_S)
        count -= sum(key.data.receive() for key, _ in selector.select(0))
        if time.monotonic() > give_up:
            raise AssertionError(f"{count} answers are missing")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
