"""The lease of a named follower: while it lasts, facts it has not acknowledged are not trimmed.

Its renewal is also the heartbeat by which masters see that the process runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger

#: Renewals per lease period, so that some may fail.
_RENEWALS = 4

#: Maximum time between two renewals, in seconds, so that a dead process is noticed soon.
HEARTBEAT_S = 10.0

#: Time between two log lines about renewals that fail, in seconds.
LOG_EVERY_S = 60.0


class LeaseStore(Protocol):
    """Records leases."""

    async def renew_lease(
        self, follower: str, streams: Sequence[str] | None, lease_s: float
    ) -> None:
        """See :meth:`synrepl.storage.store.FactStore.renew_lease`."""


class FollowerLease:
    """Renews the lease of one follower for as long as its process runs.

    The lease is not released at the end: a worker that stops usually comes back, and finds the
    facts it has missed until the lease expires.

    :param streams: names of the streams it follows; None for all
    :param lease_s: how long unacknowledged facts are kept, in seconds
    """

    def __init__(
        self,
        scheduler: Scheduler,
        leases: LeaseStore,
        follower: str,
        streams: Sequence[str] | None,
        lease_s: float,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._leases = leases
        self._follower = follower
        self._streams = streams
        self._lease_s = lease_s
        self._log = log

    async def start(self) -> None:
        """Acquire the lease. Await this before subscribing.

        :raises DatabaseAway: the lease cannot be recorded now
        """
        await self._renew()
        self._scheduler.spawn("renew the lease", self._renew_forever())

    async def _renew_forever(self) -> None:
        every = min(self._lease_s / _RENEWALS, HEARTBEAT_S)
        logged_at: float | None = None
        while True:
            await self._scheduler.sleep(every)
            try:
                await self._renew()
                logged_at = None
            except SynreplError as error:
                now = self._scheduler.seconds()
                if logged_at is not None and now - logged_at < LOG_EVERY_S:
                    continue
                logged_at = now
                self._log.warn(
                    "cannot renew the lease of follower {name}: {error}; trying again",
                    name=self._follower,
                    error=error,
                )

    async def _renew(self) -> None:
        await self._leases.renew_lease(self._follower, self._streams, self._lease_s)
