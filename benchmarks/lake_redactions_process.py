"""``python -m benchmarks.lake_redactions_process LAKE COUNT``: finds the redactions of a lake, and looks events up."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from threading import Event, Thread
from time import process_time

import numpy as np
from pyspark.sql import SparkSession

from synrepl.pipeline.lake.erase.erasures import RULES
from synrepl.pipeline.lake.erase.redacted_events import RedactedEvents
from synrepl.pipeline.lake.erase.redaction_index import RedactionIndex
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.positions.vector import PositionVector

#: Interval of reading /proc, in seconds.
_LOOK_S = 0.02

_LOOKUPS, _AT_ONCE = 200_000, 10_000

_ANONYMOUS = re.compile(r"RssAnon:\s+(\d+) kB")


class AnonymousMemory:
    """The highest anonymous memory of this process, as a ``with`` block.

    :ivar mib: in MiB
    """

    def __init__(self) -> None:
        self.mib = 0.0
        self._done = Event()
        self._looking = Thread(target=self._look)

    def __enter__(self) -> AnonymousMemory:
        self._looking.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._looking.join()

    def _look(self) -> None:
        while not self._done.wait(_LOOK_S):
            found = _ANONYMOUS.search(Path("/proc/self/status").read_text())
            assert found is not None
            self.mib = max(self.mib, int(found[1]) / 1024)


def _no_session() -> SparkSession:
    raise AssertionError("Spark was started")


def _lookup_us(events: RedactedEvents, count: int) -> float:
    """CPU time of looking up an event, in microseconds."""
    numbers = np.random.default_rng(1).integers(1, 2 * count, _LOOKUPS)
    begun = process_time()
    for begin in range(0, _LOOKUPS, _AT_ONCE):
        some = [f"$e{number:042}" for number in numbers[begin : begin + _AT_ONCE]]
        events.contain(["!room:example.org"] * len(some), some)
    return (process_time() - begun) / _LOOKUPS * 1e6


def main() -> None:
    """Find, look up and report."""
    lake, count = Lake(sys.argv[1]), int(sys.argv[2])
    index, (rule, *_) = RedactionIndex(lake, records=True), RULES
    with AnonymousMemory() as memory:
        begun = process_time()
        nothing_new = PositionVector({}, count)
        index.update(
            SessionOnDemand(_no_session, 2 * count), lake.table("events"), rule, nothing_new
        )
        found, cpu_s = index.redacted("events"), process_time() - begun
        lookup_us = _lookup_us(found, count)
    assert len(found) == count, f"{len(found)} of {count}"
    held = RedactedEvents(np.concatenate([*found.digests()]))
    report = {
        "mib": memory.mib,
        "cpu_s": cpu_s,
        "lookup_us": lookup_us,
        "lookup_held_us": _lookup_us(held, count),
        "files": len(found.runs),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
