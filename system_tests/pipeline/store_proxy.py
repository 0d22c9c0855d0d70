"""``python -m system_tests.pipeline.store_proxy PORT``: a proxy before an object store, with faults.

It prints its port. The plan of faults is sent to the path :data:`CONTROL`, which answers with the number
of requests by what happened to them.
"""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from contextlib import closing
from enum import StrEnum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

#: Requests to this path are to the proxy itself.
CONTROL = "/-/plan"


class StoreFault(StrEnum):
    """What happens to a request."""

    NONE = "it passes"
    BUSY = "it is answered with 503, and does not reach the server"
    SLOW = "it passes late"
    LOST = "it passes, and the connection ends instead of the answer"


class FaultPlan(msgspec.Struct, frozen=True):
    """What happens to requests; by default they pass.

    :ivar weights: relative frequencies of random faults
    :ivar seed: of the random numbers
    :ivar lose_once: lose the answer of the first PUT to a path with this in it
    """

    weights: dict[StoreFault, int] = {}
    seed: int = 0
    lose_once: str = ""


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.target = target
        self.seen = dict.fromkeys(StoreFault, 0)
        self._lock = threading.Lock()
        self.follow(FaultPlan())

    def handle_error(self, *args: object) -> None:
        """Write nothing: clients go away, as they should when an answer is late."""

    def follow(self, plan: FaultPlan) -> None:
        with self._lock:
            self._plan, self._chance = plan, random.Random(plan.seed)
            self._to_lose = plan.lose_once

    def choose(self, method: str, path: str) -> StoreFault:
        weights = self._plan.weights
        with self._lock:
            if self._to_lose and method == "PUT" and self._to_lose in path:
                self._to_lose, chosen = "", StoreFault.LOST
            else:
                # None without weights.
                chances = [*weights] or [StoreFault.NONE], [*weights.values()] or [1]
                chosen = self._chance.choices(*chances)[0]
            self.seen[chosen] += 1
        return chosen


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def log_message(self, *args: object) -> None:
        """Write nothing."""

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == CONTROL:
            if body:
                self.server.follow(msgspec.json.decode(body, type=FaultPlan))
            self._answer(200, [], msgspec.json.encode(self.server.seen))
            return
        fault = self.server.choose(self.command, self.path)
        if fault is StoreFault.BUSY:
            self._answer(503, [], b"")
            return
        if fault is StoreFault.SLOW:
            time.sleep(0.02)
        with closing(HTTPConnection("127.0.0.1", self.server.target, timeout=60)) as connection:
            # The name of the host is signed, so it stays as the client has sent it.
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
        if fault is StoreFault.LOST:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(answer.status, answer.getheaders(), data)

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        names = {name.lower() for name, _ in headers}
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if "content-length" not in names:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward


if __name__ == "__main__":
    proxy = _Proxy(int(sys.argv[1]))
    print(proxy.server_address[1], flush=True)
    proxy.serve_forever()
