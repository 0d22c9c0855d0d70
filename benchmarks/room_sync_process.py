"""First syncs of many rooms in a process of their own, for its memory: ``DSN``.

It reports the peak after the first page of rooms, and after all pages.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

from twisted.internet import reactor

from benchmarks.child import limit_lifetime, report
from benchmarks.coroutines import result_of
from benchmarks.counting_database import CountingDatabase
from benchmarks.room_sync import LAZY, PAGE, USER, everything
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.driver.blocking import BlockingDatabase
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import RoomPage, TimelineReader


def main(dsn: str) -> None:
    """Read, and report."""
    limit_lifetime()
    scheduler = TwistedScheduler(cast(Any, reactor))
    with BlockingDatabase(dsn, "benchmark") as database:
        counted = CountingDatabase(database)
        timelines = Timelines(counted, scheduler, RoomTails(scheduler, counted))
        reader, upto = TimelineReader(USER), everything(database)
        first, place = 0, 0
        while True:
            page = RoomPage(place, PAGE)
            update = result_of(timelines.initial(reader, upto, LAZY, page))
            if not update.joined:
                break
            first = first or _peak()
            place += PAGE
        report({"first": first, "all": _peak()})


def _peak() -> int:
    """Peak of the resident bytes."""
    text = Path("/proc/self/status").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1])
