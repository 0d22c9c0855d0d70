"""A process that asks for ``/health`` again and again, until it is told to stop: ``PORT PATH``.

Each request has a connection of its own, as those of a monitor do. Says ``{"probing": true}``
once it has begun, and at the end the seconds that each answer took, and how many requests had none.
"""

from __future__ import annotations

import select
import socket
import sys
import time

from benchmarks.child import limit_lifetime, report

#: Seconds between two requests, and the longest that one is waited for.
PAUSE_S, PATIENCE_S = 0.02, 30.0


def ask(port: int, path: str) -> bool:
    """One request; whether it was answered with 200."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
            sock.sendall(request.encode())
            answer = b""
            while piece := sock.recv(65_536):
                answer += piece
    except OSError:
        return False
    return answer.startswith(b"HTTP/1.1 200 ")


def main(port: int, path: str) -> None:
    """Ask until told to stop."""
    limit_lifetime()
    report({"probing": ask(port, path)})
    took: list[float] = []
    failures = 0
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        began = time.perf_counter()
        if ask(port, path):
            took.append(time.perf_counter() - began)
        else:
            failures += 1
    report({"took": took, "failures": failures})


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
