"""Which servers are asked about a room, in which order, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.errors import ProtocolError, Refused, SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff
from synrepl.federation.errors import (
    AddressRefused,
    AnswerTooLarge,
    BadFederationAnswer,
    DestinationAway,
    DestinationBackedOff,
    RequestRefusedByServer,
)
from synrepl.services.federation.resync.interfaces import PushesJoins
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.partial.jobs import ResyncJob, record_attempt
from synrepl.storage.rooms.reading.resync_attempts import ServerAttempt, attempts
from synrepl.storage.rooms.tables.partial_rooms import (
    partial_room,
    servers_in_room,
    servers_of_senders,
)

T = TypeVar("T")

#: Servers that are asked in a round at most.
MAX_ASKED = 10

#: How long a server is left alone that could not help, unless all are.
SERVER_BACK_OFF = BackOff(5.0, 600.0)

#: A server that does not know that this one is in the room.
_NOT_TOLD = 403

_CODES: Mapping[type[SynreplError], str] = {
    DestinationAway: "away",
    DestinationBackedOff: "backed-off",
    AnswerTooLarge: "too-large",
    AddressRefused: "address-refused",
    BadFederationAnswer: "bad-answer",
}

#: What asking a server may raise.
ASKING_ERRORS = (Unavailable, ProtocolError, Refused)


class _AskableServers(NamedTuple):
    """
    :ivar proven: servers that have sent something into the room
    """

    joined_via: str
    servers: frozenset[str]
    proven: frozenset[str]
    attempts: Mapping[str, ServerAttempt]


def code_of(error: SynreplError) -> str:
    """A short name of what went wrong with a server."""
    if isinstance(error, RequestRefusedByServer):
        return f"refused-{error.status}"
    return _CODES.get(type(error), "failed")


class RoomServers:
    """The servers of one room, as they are asked for its job.

    :param pusher: tells servers of the join
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        pusher: PushesJoins,
        job: ResyncJob,
        server_name: str,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._pusher = pusher
        self._job = job
        self._server_name = server_name
        self._log = log
        #: Servers whose lists were wrong, and are not asked for another one before the job is claimed again.
        self.distrusted: set[str] = set()
        #: What went wrong last.
        self.reason = "no server is known to be in the room"

    async def in_order(self, first: str | None = None) -> list[str]:
        """The servers to ask in this round.

        The one by which the room was joined comes first, then others at random, before all those that have sent something
        into the room: the list of servers that came with the join may be wrong. Those that could not help lately come last,
        the one that has been left alone for longest first.

        :param first: is asked before all others
        """
        known = await self._database.run("servers of a room", self._known, read_only=True)
        others = sorted(known.servers - {self._server_name, known.joined_via})
        shuffled = sorted(others, key=lambda _: self._scheduler.random())
        shuffled.sort(key=lambda each: each not in known.proven)
        fresh: list[str] = []
        tired: list[str] = []
        for each in [known.joined_via, *shuffled]:
            attempt = known.attempts.get(each)
            (tired if attempt is not None and _is_left_alone(attempt) else fresh).append(each)
        tired.sort(key=lambda each: -known.attempts[each].seconds_ago)
        ordered = [*fresh, *tired]
        if first is not None:
            ordered = [first, *[each for each in ordered if each != first]]
        return ordered[:MAX_ASKED]

    def _known(self, txn: Transaction) -> _AskableServers:
        room_no = self._job.room_no
        row = partial_room(txn, room_no)
        tried = {each.destination: each for each in attempts(txn, room_no)}
        via = "" if row is None else row.joined_via
        proven = servers_of_senders(txn, room_no)
        return _AskableServers(via, servers_in_room(txn, room_no) | proven | {via}, proven, tried)

    async def ask(self, server: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask a server; None if it could not help, which is recorded.

        One that does not know that this server is in the room is told, and asked again.
        """
        try:
            return await self._asked(server, ask)
        except ASKING_ERRORS as error:
            await self.failed(server, code_of(error), str(error))
            return None

    async def _asked(self, server: str, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except RequestRefusedByServer as error:
            if error.status != _NOT_TOLD:
                raise
            await self.failed(server, code_of(error), str(error))
        await self._pusher.push(server, self._job.room_id)
        return await ask()

    async def failed(self, server: str, code: str, reason: str) -> None:
        """Record that a server could not help."""
        self.reason = f"{server}: {reason}"
        self._log.info(
            "{room} is not completed by {server}: {reason}",
            room=self._job.room_id,
            server=server,
            reason=reason,
        )
        await self._record(server, code, reason)

    async def helped(self, server: str) -> None:
        """Record that a server helped."""
        await self._record(server, "ok", "")

    async def _record(self, server: str, code: str, reason: str) -> None:
        await self._database.run(
            "record an attempt",
            lambda txn: record_attempt(txn, self._job, server, code, reason),
        )


def _is_left_alone(attempt: ServerAttempt) -> bool:
    wait_s = SERVER_BACK_OFF.delay_s(attempt.attempts, lambda: 0.0)
    return attempt.code != "ok" and attempt.seconds_ago < wait_s
