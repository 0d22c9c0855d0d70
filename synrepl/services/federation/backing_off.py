"""Leaves servers that have failed alone for a while, in all processes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from synrepl.core.clock import Scheduler
from synrepl.core.errors import StorageError, SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.federation.answers import printable
from synrepl.federation.back_off import DestinationFailure, failed, is_failure
from synrepl.federation.errors import (
    AddressRefused,
    AnswerTooLarge,
    DestinationAway,
    DestinationBackedOff,
    ServerNotAllowed,
)
from synrepl.federation.requests import FederationAnswer, FederationRequest
from synrepl.federation.server_acl import ServerAcl
from synrepl.federation.server_names import UnusableServerName, parse_server_name
from synrepl.services.federation.interfaces import FederationTransport
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.destinations import (
    FailingDestination,
    count_failing,
    delete_failure,
    failing_destinations,
    lock_failure,
    read_failure,
    read_failures,
    write_failure,
)

#: Seconds for which it is remembered whether a destination is failing, since another process may learn more.
REMEMBERED_S = 10.0

#: Maximum number of destinations of which it is.
MAX_DESTINATIONS = 20_000

#: Seconds between two looks at which destinations are failing, and number of those that are shown.
WATCH_S = 30.0
SHOWN = 20

_MAX_REASON = 300


class _Known(NamedTuple):
    """What is known of a destination.

    :ivar until: time until which it counts
    """

    failure: DestinationFailure | None
    until: float


class FailingDestinations(NamedTuple):
    """Destinations that have failed.

    :ivar longest: those that fail for longest
    """

    number: int
    longest: Sequence[FailingDestination]


def _failing(txn: Transaction) -> FailingDestinations:
    return FailingDestinations(count_failing(txn), failing_destinations(txn, SHOWN))


class BackOffTransport:
    """A transport that refuses requests to destinations that have failed lately.

    Failures are in the database, so that all processes know of them. A success ends them, and so does anything that
    shows that the server is up: :meth:`server_is_up`.

    :param acl: says which servers may be asked at all; None for all
    :ivar listeners: are called with the name of a server that is up again
    :ivar outcomes: numbers of requests by what came of them
    :ivar failing: destinations that have failed; see :meth:`watch_failing`
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        transport: FederationTransport,
        log: Logger,
        acl: ServerAcl | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._transport = transport
        self._log = log
        self._acl = acl
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self.listeners: list[Callable[[str], object]] = []
        self.outcomes: Counter[str] = Counter()
        self.failing = FailingDestinations(0, ())

    async def send(self, request: FederationRequest) -> FederationAnswer:
        """See :meth:`.FederationTransport.send`.

        :raises DestinationBackedOff: it has failed lately
        :raises ServerNotAllowed: the configuration does not allow it
        """
        server = request.destination
        try:
            parse_server_name(server)
        except UnusableServerName as error:
            raise DestinationAway(
                destination=server[:300], subject=request.subject, reason=error
            ) from None
        if self._acl is not None and not self._acl.allows(server):
            raise ServerNotAllowed(destination=server)
        before = await self._failure(server)
        if before is not None and not request.ignores_back_off:
            self._check(server, before)
        began_ms = self._now_ms()
        try:
            answer = await self._transport.send(request)
        except AnswerTooLarge:
            self.outcomes["too large"] += 1
            raise
        except AddressRefused as error:
            self.outcomes["address refused"] += 1
            await self._note_failure(server, began_ms, str(error), 0.0)
            raise
        except DestinationAway as error:
            self.outcomes["failed"] += 1
            await self._note_failure(server, began_ms, str(error.facts["reason"]), 0.0)
            raise
        if is_failure(answer.status):
            self.outcomes["failed"] += 1
            reason = f"it answered with status {answer.status}"
            await self._note_failure(server, began_ms, reason, answer.retry_after_s)
        else:
            self.outcomes["answered" if answer.status == 200 else "refused"] += 1
            if before is not None:
                await self.server_is_up(server)
        return answer

    async def server_is_up(self, server: str) -> None:
        """A server is up: it has sent a request, or another process has heard of it."""
        known = self._known.get(server)
        if known is not None and known.failure is None and self._scheduler.seconds() < known.until:
            return
        try:
            was_failing = await self._database.run(
                "server is up", lambda txn: delete_failure(txn, server)
            )
        except (StorageError, Unavailable) as error:
            self._log.warn("cannot record that {server} is up: {error}", server=server, error=error)
            return
        self._remember(server, None)
        if was_failing:
            self._log.info("{server} is up again", server=server)
            for listener in self.listeners:
                listener(server)

    async def failures(self, servers: Collection[str]) -> Mapping[str, DestinationFailure]:
        """The failures of those of some servers that have failed lately.

        Requests to them are made without another look into the database, for as long as it is remembered.
        """
        now = self._scheduler.seconds()
        unknown = [
            each for each in servers if each not in self._known or now >= self._known[each].until
        ]
        if unknown:
            found = await self._database.run(
                "failures of destinations", lambda txn: read_failures(txn, unknown), read_only=True
            )
            for server in unknown:
                self._remember(server, found.get(server))
        known = {each: self._known.get(each) for each in servers}
        return {
            server: each.failure
            for server, each in known.items()
            if each is not None and each.failure is not None
        }

    async def watch_failing(self) -> None:
        """Keep :attr:`failing` up to date."""
        while True:
            try:
                self.failing = await self._database.run(
                    "failing destinations", _failing, read_only=True
                )
            except (StorageError, Unavailable) as error:
                self._log.warn("cannot read which servers are failing: {error}", error=error)
            await self._scheduler.sleep(WATCH_S)

    def _check(self, server: str, failure: DestinationFailure) -> None:
        now_ms = self._now_ms()
        if now_ms < failure.retry_at_ms:
            self.outcomes["backed off"] += 1
            raise DestinationBackedOff(
                destination=server,
                failing_s=max(0.0, (now_ms - failure.failing_since_ms) / 1000),
                reason=failure.reason,
                retry_s=(failure.retry_at_ms - now_ms) / 1000,
            )

    async def _failure(self, server: str) -> DestinationFailure | None:
        known = self._known.get(server)
        if known is not None and self._scheduler.seconds() < known.until:
            return known.failure
        failure = await self._database.run(
            "failures of a destination", lambda txn: read_failure(txn, server), read_only=True
        )
        self._remember(server, failure)
        return failure

    async def _note_failure(
        self, server: str, began_ms: int, reason: str, retry_after_s: float
    ) -> None:
        now_ms, jitter = self._now_ms(), self._scheduler.random()
        text = printable(reason, _MAX_REASON)

        def work(txn: Transaction) -> DestinationFailure:
            before = lock_failure(txn, server)
            now = failed(before, began_ms, now_ms, text, lambda: jitter, retry_after_s)
            if now != before:
                write_failure(txn, server, now)
            return now

        try:
            self._remember(server, await self._database.run("a destination failed", work))
        except SynreplError as error:  # the caller is to hear of the destination
            self._log.warn(
                "cannot record that {server} failed: {error}", server=server, error=error
            )

    def _remember(self, server: str, failure: DestinationFailure | None) -> None:
        self._known[server] = _Known(failure, self._scheduler.seconds() + REMEMBERED_S)
        self._known.move_to_end(server)
        while len(self._known) > MAX_DESTINATIONS:
            self._known.popitem(last=False)

    def _now_ms(self) -> int:
        return int(self._scheduler.seconds() * 1000)
