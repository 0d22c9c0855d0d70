"""A process that attacks a master's listeners: ``KIND TCP_PORT HTTP_PORT AMOUNT``.

It reports the result at the end.
"""

from __future__ import annotations

import fcntl
import json
import selectors
import socket
import struct
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from benchmarks.child import limit_lifetime, report

HELLO = b"NAME trouble\nPING 1\nREPLICATE\n"

#: Duration of the attacks by idle and slow clients, in seconds.
SLOW_S = 8.0

#: Seconds to wait for an answer before giving up.
PATIENCE_S = 60.0

_PIECE = 65_536


class Target:
    """The listeners under attack.

    :param amount: number of lines, connections or requests, depending on the attack
    """

    def __init__(self, tcp: int, http: int, amount: int) -> None:
        self.tcp = tcp
        self.http = http
        self.amount = amount

    def client(self) -> socket.socket:
        """Connect to the replication listener."""
        return socket.create_connection(("127.0.0.1", self.tcp), timeout=PATIENCE_S)

    def browser(self) -> socket.socket:
        """Connect to the HTTP listener."""
        return socket.create_connection(("127.0.0.1", self.http), timeout=PATIENCE_S)

    def head(self, method: str, path: str, **headers: object) -> bytes:
        """The head of an HTTP request."""
        fields = {"Host": f"127.0.0.1:{self.http}", **headers}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()


def pour(sock: socket.socket, lines: Iterable[bytes]) -> dict[str, object]:
    """Send lines as fast as the server reads them, until it has received all of them.

    Answers are read meanwhile; an ERROR in the last line is returned.
    """
    sock.setblocking(False)
    chunks, waiting, got = _chunks(lines), b"", bytearray()
    give_up = time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while time.monotonic() < give_up:
            try:
                if not waiting:
                    waiting = next(chunks, b"")
                if waiting:
                    waiting = waiting[sock.send(waiting) :]
                elif not _unsent(sock):
                    break
                else:
                    time.sleep(0.005)
            except BlockingIOError:
                selector.select(1.0)
            except OSError:
                break
            try:
                piece = sock.recv(_PIECE)
            except BlockingIOError:
                continue
            except OSError:
                break
            if not piece:
                break
            got += piece
            del got[:-2000]
    sock.setblocking(True)
    last = got.decode(errors="replace").splitlines()[-1:]
    return {"error": next((line for line in last if line.startswith("ERROR")), "")}


def _chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    some, size = [], 0
    for line in lines:
        some.append(line)
        size += len(line)
        if size > _PIECE:
            yield b"".join(some)
            some, size = [], 0
    yield b"".join(some)


def _unsent(sock: socket.socket) -> int:
    """Bytes that the peer's kernel has not acknowledged."""
    answer = fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4)
    return int(struct.unpack("i", answer)[0])


def new_instances(target: Target) -> dict[str, object]:
    """Send many USER_SYNC, each from another instance."""
    with target.client() as sock:
        sock.sendall(HELLO)
        lines = (b"USER_SYNC i%d @u:example.com start 5\n" % n for n in range(target.amount))
        return pour(sock, lines)


def leaving_users(target: Target) -> dict[str, object]:
    """Let many users sync over one connection, and lose it."""
    with target.client() as sock:
        sock.sendall(HELLO)
        lines = (b"USER_SYNC i @u%d:example.com start 5\n" % n for n in range(target.amount))
        return pour(sock, lines)


def replicate(target: Target) -> dict[str, object]:
    """Send REPLICATE repeatedly."""
    with target.client() as sock:
        sock.sendall(HELLO)
        return pour(sock, (b"REPLICATE\n" for _ in range(target.amount)))


def replicate_legacy(target: Target) -> dict[str, object]:
    """Send the legacy REPLICATE repeatedly, each time from the first token."""
    with target.client() as sock:
        return pour(sock, (b"REPLICATE events 0\n" for _ in range(target.amount)))


def federation_acks(target: Target) -> dict[str, object]:
    """Send many FEDERATION_ACK, each from another instance."""
    with target.client() as sock:
        sock.sendall(HELLO)
        return pour(sock, (b"FEDERATION_ACK i%d 5\n" % n for n in range(target.amount)))


def servers_up(target: Target) -> dict[str, object]:
    """Send many REMOTE_SERVER_UP; the master relays each to 200 clients."""
    others = [target.client() for _ in range(200)]
    for other in others:
        other.sendall(HELLO)
    with target.client() as sock:
        sock.sendall(HELLO)
        outcome = pour(sock, (b"REMOTE_SERVER_UP s%d.example\n" % n for n in range(target.amount)))
    for other in others:
        other.close()
    return outcome


def idle(target: Target) -> dict[str, object]:
    """Open connections and send nothing."""
    socks = _many(target.client, target.amount)
    time.sleep(SLOW_S)
    outcome = _ends(socks)
    return {"connected": len(socks), **outcome}


def slow(target: Target) -> dict[str, object]:
    """Send request heads byte by byte."""
    socks = _many(target.browser, target.amount)
    head = target.head("GET", "/status")
    end, sent = time.monotonic() + SLOW_S, 0
    while time.monotonic() < end and sent < len(head) - 4:
        for sock in socks:
            with suppress(OSError):
                sock.send(head[sent : sent + 1])
        sent += 1
        time.sleep(0.5)
    return {"connected": len(socks), **_ends(socks)}


def unfinished(target: Target) -> dict[str, object]:
    """Send requests without their bodies, and a complete one every 0.2 seconds."""
    socks = _many(target.browser, target.amount)
    for sock in socks:
        with suppress(OSError):
            sock.sendall(target.head("POST", "/streams/events/facts", Content_Length=1000) + b"[")
    answers: Counter[int] = Counter()
    end = time.monotonic() + SLOW_S
    while time.monotonic() < end:
        answers[_append(target)] += 1
        time.sleep(0.2)
    return {"appends": _named(answers), **_ends(socks)}


def appends(target: Target) -> dict[str, object]:
    """Send rounds of 200 concurrent appends."""
    answers: Counter[int] = Counter()
    body = b"[%b]" % json.dumps(_EVENT).encode()
    data = target.head("POST", "/streams/events/facts", Content_Length=len(body)) + body
    for _ in range(target.amount):
        socks = _many(target.browser, 200)
        for sock in socks:
            sock.sendall(data)
        for sock in socks:
            answers[_status(sock)] += 1
            sock.close()
    return {"appends": _named(answers)}


def foreign_host(target: Target) -> dict[str, object]:
    """Send requests with a foreign ``Host``, as a browser does after DNS rebinding."""
    answers: Counter[int] = Counter()
    for _ in range(target.amount):
        with target.browser() as sock:
            sock.sendall(target.head("GET", "/status", Host="evil.example"))
            answers[_status(sock)] += 1
    return {"answers": _named(answers)}


_EVENT = ["ev", ["$a", "!r:example.com", "m.room.message", None, None, None, None, False]]


def _append(target: Target) -> int:
    body = b"[%b]" % json.dumps(_EVENT).encode()
    try:
        with target.browser() as sock:
            data = target.head("POST", "/streams/events/facts", Content_Length=len(body)) + body
            sock.sendall(data)
            return _status(sock)
    except OSError:
        return 0


def _status(sock: socket.socket) -> int:
    """The status of the next answer; 0 if there is none."""
    sock.settimeout(PATIENCE_S)
    try:
        words = sock.recv(_PIECE).split(b" ", 2)
    except OSError:
        return 0
    return int(words[1]) if len(words) == 3 else 0


def _many(connect: Callable[[], socket.socket], amount: int) -> list[socket.socket]:
    socks = []
    for _ in range(amount):
        with suppress(OSError):
            socks.append(connect())
    return socks


def _ends(socks: Iterable[socket.socket]) -> dict[str, object]:
    """How many connections the server closed, and the last ERROR that it sent."""
    closed, words = 0, ""
    for sock in socks:
        sock.setblocking(False)
        got = b""
        try:
            while piece := sock.recv(_PIECE):
                got += piece
            closed += 1
        except BlockingIOError:
            pass
        except OSError:
            closed += 1
        words = next(
            (line for line in got.decode(errors="replace").splitlines() if "ERROR" in line), words
        )
        sock.close()
    return {"closed": closed, "error": words}


def _named(answers: Counter[int]) -> Mapping[str, int]:
    return {str(status): count for status, count in sorted(answers.items())}


ATTACKS: Mapping[str, Callable[[Target], dict[str, object]]] = {
    each.__name__: each
    for each in (
        new_instances,
        leaving_users,
        replicate,
        replicate_legacy,
        federation_acks,
        servers_up,
        idle,
        slow,
        unfinished,
        appends,
        foreign_host,
    )
}


if __name__ == "__main__":
    limit_lifetime()
    kind, tcp, http, amount = sys.argv[1:]
    report(ATTACKS[kind](Target(int(tcp), int(http), int(amount))))
