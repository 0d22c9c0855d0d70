"""In which dialect ``synrepl watch`` asks, and when in another."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.raw_peer import NoMaster
from synrepl.cli.watch.sources import TcpLiveSource
from synrepl.tools.watch.announcements import Announcements
from synrepl.wire.dialects import Dialect
from tests.services.world import manual_clock


class TcpLiveSourceWhenUnreachable(TestCase):
    def test_tries_the_newest_dialects_first_again(self) -> None:
        clock = manual_clock()
        scheduler = TwistedScheduler(clock)
        asked: list[str] = []

        async def connect(dialect: Dialect) -> Any:
            asked.append(dialect.name)
            raise NoMaster(where="127.0.0.1:1", reason="refused")

        listening = TcpLiveSource(scheduler, connect, Announcements(scheduler))
        scheduler.spawn("listen", listening.run())
        clock.pump([10.0] * 4)
        scheduler.stop()
        self.assertEqual(asked, ["transitional or modern"] * 5)
        self.assertEqual(listening.trouble, "cannot connect to 127.0.0.1:1: refused")
