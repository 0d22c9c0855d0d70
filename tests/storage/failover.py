"""A primary and an asynchronous standby that is promoted without the primary's last commits."""

from __future__ import annotations

from typing import Any

from synrepl.testing.standby import PrimaryAndStandby
from tests.driver.embedded_server import new_data_dir
from tests.storage.postgres import PostgresCase, prepare


class TwoServers(PrimaryAndStandby):
    """Both servers, for the duration of a test.

    :ivar dsn: leads to whichever of them takes writes
    """

    def __init__(self, case: Any) -> None:
        super().__init__(new_data_dir(case))
        case.addCleanup(self.stop)
        self.dsn = self.start()


class FailoverCase(PostgresCase):
    """Two servers with the tables of a few streams."""

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.servers = TwoServers(self)
        await prepare(self.servers.primary.dsn)
        self.dsn = self.servers.dsn

    async def disconnect(self) -> None:
        """Disconnect the standby: later commits will be lost."""
        await self.until(self.servers.has_caught_up)
        self.servers.disconnect()
        await self.until(self.servers.is_disconnected)

    def fail_over(self) -> None:
        """Promote the standby, which lacks the commits since :meth:`disconnect`."""
        self.servers.fail_over()
