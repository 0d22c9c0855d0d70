"""How soon an event that was sent through one worker is in a sync that another one answers.

A master and two workers, as real processes: one persists the rooms and takes the message, the other one has the sync that
waits. Wall time, so other work on the machine counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from benchmarks.client_api import ApiClient, ClientApiSite
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most
from benchmarks.running_master import SERVER_NAME, RunningMaster, RunningWorker, free_ports

_MESSAGES = 400

#: Seconds before each message, in which the next sync gets there, and waits.
_PAUSE_S = 0.02

_STREAMS = ["events", "backfill", "caches"]
_ALICE, _BOB = (f"@{name}:{SERVER_NAME}" for name in ("alice", "bob"))


def run(scale: Scale) -> Iterator[Row]:
    """The median and the 99th percentile."""
    with TemporaryDirectory() as name, postgres() as dsn:
        directory = Path(name)
        site = ClientApiSite(directory, [_ALICE, _BOB])
        ports = dict(zip(("master", "w1", "w2"), free_ports(3), strict=True))
        clients = dict(zip(ports, free_ports(3), strict=True))
        secret = directory / "http.secret"
        secret.touch(mode=0o600)
        secret.write_text("for a site that only listens on loopback")

        def settings(process: str) -> dict[str, Any]:
            others = {
                each: f"http://127.0.0.1:{port}" for each, port in ports.items() if each != process
            }
            return {
                "catalogue": _STREAMS,
                "stream_writers": {each: ["master", "w1", "w2"] for each in _STREAMS},
                "http": {"port": ports[process], "secret_path": str(secret)},
                "rooms": {
                    **site.settings(["w1"], clients[process]),
                    "writer_urls": others,
                    "writer_secret_path": str(secret),
                },
            }

        with (
            RunningMaster(dsn, directory, settings("master"), http_port=ports["master"]) as master,
            RunningWorker(master, dsn, directory, "w1", ports["w1"], settings("w1")),
            RunningWorker(master, dsn, directory, "w2", ports["w2"], settings("w2")),
        ):
            sender = ApiClient(clients["w1"], site.token(_ALICE))
            reader = ApiClient(clients["w2"], site.token(_BOB))
            yield from _delivery(sender, reader, scale.of(_MESSAGES))


def _delivery(sender: ApiClient, reader: ApiClient, count: int) -> Iterator[Row]:
    room_id = sender.ask("POST", "/createRoom", {"preset": "public_chat"})["room_id"]
    reader.ask("POST", f"/join/{quote(room_id)}", {})
    arrivals: SimpleQueue[tuple[str, float]] = SimpleQueue()
    since = reader.ask("GET", "/sync")["next_batch"]

    def read() -> None:
        token, seen = since, 0
        while seen < count:
            answer = reader.ask("GET", f"/sync?timeout=30000&since={token}")
            now = time.perf_counter()
            token = answer["next_batch"]
            room = answer.get("rooms", {}).get("join", {}).get(room_id)
            for event in room["timeline"]["events"] if room else ():
                if event["type"] == "m.room.message":
                    seen += 1
                    arrivals.put((event["event_id"], now))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    found: list[float] = []
    for number in range(count):
        time.sleep(_PAUSE_S)
        begun = time.perf_counter()
        sent = sender.say(room_id, str(number))
        event_id, arrived = arrivals.get(timeout=60)
        if event_id != sent:
            raise AssertionError("another event arrived")
        found.append((arrived - begun) * 1e3)
    thread.join(60)
    percentiles = quantiles(found, n=100)
    spread = (min(found), max(found))
    for name, figure, most in (("p50", percentiles[49], 15), ("p99", percentiles[98], 50)):
        yield Row(
            f"sent through a worker until answered by another: {name}",
            figure,
            "ms",
            at_most(most),
            spread,
            f"{count} messages",
        )
