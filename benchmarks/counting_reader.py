"""A process that reads from many connections and only counts: ``PORT CONNECTIONS HELLO``.

Says ``{"connected": n}`` once it has said hello on all of them (``|`` ends a
line), and when the server has closed them all, or it has had enough, how many
bytes each got, how many lines there were, and the seconds from first to last.
"""

from __future__ import annotations

import argparse
import select
import socket
import time

from benchmarks.child import limit_lifetime, report

_BUFFER = 2**20


def main() -> None:
    """Read until the end."""
    limit_lifetime()
    options = _parser().parse_args()
    end = options.end.replace("|", "\n").encode()
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    for _ in range(options.connections):
        sock = socket.create_connection(("127.0.0.1", options.port))
        sock.sendall(options.hello.replace("|", "\n").encode())
        sock.setblocking(False)
        sockets[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)
    report({"connected": len(sockets)})
    received = dict.fromkeys(sockets, 0)
    buffer = bytearray(2**14 if options.rate else _BUFFER)
    view = memoryview(buffer)
    total = lines = 0
    first = last = 0.0
    tail = b""
    while sockets and not (options.limit and total >= options.limit):
        for number, _ in poll.poll():
            count = sockets[number].recv_into(buffer)
            last = time.perf_counter()
            if count:
                received[number] += count
                total += count
                first = first or last
            if end:
                lines += buffer.count(b"\n", 0, count)
                tail = (tail + view[max(0, count - len(end)) : count])[-len(end) :]
            if not count or (end and tail == end):
                poll.unregister(number)
                sockets.pop(number).close()
            elif options.rate:
                time.sleep(max(0.0, first + total / options.rate - last))
    counts = received.values()
    report({"fewest": min(counts), "most": max(counts), "lines": lines, "wall": last - first})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("connections", type=int)
    parser.add_argument("hello")
    parser.add_argument("--end", default="", help="count lines, and close after these bytes")
    parser.add_argument("--rate", type=int, default=0, help="read no faster, in bytes/s")
    parser.add_argument("--limit", type=int, default=0, help="close after so many bytes")
    return parser


if __name__ == "__main__":
    main()
