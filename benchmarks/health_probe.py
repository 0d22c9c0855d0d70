"""A process that polls ``/health`` until it receives a line on standard input: ``PORT PATH``.

Each request uses a new connection, as a monitor's requests do. The process reports
``{"probing": true}`` once it has started. At the end it reports the duration of each answered
request in seconds, and the number of failed requests.
"""

from __future__ import annotations

import select
import socket
import sys
import time

from benchmarks.child import limit_lifetime, report

#: Seconds between two requests, and the timeout of each.
PAUSE_S, PATIENCE_S = 0.02, 30.0


def ask(port: int, path: str) -> bool:
    """Make one request; True if the answer is 200."""
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
    """Poll until there is input."""
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
