"""Presence of users: whether they are there, and what they say of it.

Source: https://spec.matrix.org/v1.16/client-server-api/#presence
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from synrepl.core.clock import Scheduler
from synrepl.core.errors import InputError, Refused, SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.services.following.consumer import FairLock
from synrepl.services.rooms.assignment import by_weight
from synrepl.services.rooms.client_data.presence_states import (
    OFFLINE,
    STATES,
    PresenceStates,
)
from synrepl.services.rooms.client_data.stream_writers import (
    DataWriters,
    StreamNotServed,
    WrittenFact,
    written_fact,
)
from synrepl.storage.clients.presence import (
    presence_fact,
    read_presence,
    read_present,
    shares_room,
    write_presence,
)
from synrepl.storage.clients.values import Presence
from synrepl.storage.database import Database, Transaction
from synrepl.storage.outbox import Outbox
from synrepl.streams.synapse.presence import PRESENCE

#: Maximum length of a status message in bytes.
MAX_STATUS_BYTES = 1_024

#: Seconds between two looks whose state has ended, and users whose presence is written in one transaction.
LOOK_EVERY_S, WRITTEN_AT_ONCE = 5.0, 500

#: Maximum number of users of one process that are not offline.
MAX_PRESENT = 200_000

_SET, _REPORT, _FOREIGN = "set presence", "report presence", "store presence"


class UnknownPresence(InputError):
    """{state!r} is no presence: use one of {states}"""


class StatusTooLong(InputError):
    """a status message may have {most} bytes, and no NUL"""


class PresenceNotVisible(Refused):
    """{user_id} shares no room with you"""


class TooManyPresent(Unavailable):
    """{most} users are not offline already, which is the maximum of this process; try again later"""


class ReportedSync(NamedTuple):
    """A user syncs with a process.

    :ivar wanted: the presence that the syncs ask for
    :ivar ago_s: seconds since the last one began: not a time, because processes have clocks of their own
    """

    user_id: str
    wanted: str
    ago_s: float


class ReportedActivity(NamedTuple):
    """A user has done something.

    :ivar ago_s: seconds since then
    """

    user_id: str
    ago_s: float


class PresenceService:
    """Reads and changes presence, in the process that decides that of the user."""

    def __init__(
        self, scheduler: Scheduler, database: Database, writers: DataWriters, log: Logger
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._writers = writers
        self._log = log
        self._states = PresenceStates()
        self._lock = FairLock(scheduler)
        writers.add(_SET, PRESENCE, self._perform_set)
        writers.add(_REPORT, PRESENCE, self._perform_report)
        writers.add(_FOREIGN, PRESENCE, self._perform_foreign)

    @property
    def is_served(self) -> bool:
        """Whether there is presence at all."""
        return self._writers.serves(PRESENCE)

    def decided_by(self, user_id: str) -> str:
        """The process that decides the presence of a user."""
        return by_weight(self._writers.writers_of(PRESENCE), user_id)[0]

    async def get(self, user_id: str, reader: str) -> Presence:
        """The presence of a user, as another one may see it.

        :raises StreamNotServed: :raises PresenceNotVisible: they share no room
        """
        self._check_served()

        def work(txn: Transaction) -> Presence:
            if reader != user_id and not shares_room(txn, reader, user_id):
                raise PresenceNotVisible(user_id=user_id)
            nothing = Presence(user_id, OFFLINE, None, 0, False)
            return read_presence(txn, [user_id]).get(user_id, nothing)

        return await self._database.run("read presence", work, read_only=True)

    async def set(self, user_id: str, state: str, status_msg: str | None) -> WrittenFact | None:
        """Set the presence of a user of this server; where the fact is that tells of it, also if it was the same before.

        None if nothing was ever told of the user, who stays offline.

        :raises UnknownPresence: :raises StatusTooLong: :raises StreamNotServed: :raises TooManyPresent:
        :raises SynreplError: the errors of :meth:`.DataWriters.run_at`
        """
        self._check_served()
        if state not in STATES:
            raise UnknownPresence(state=state[:100], states=", ".join(STATES))
        text = (status_msg or "").encode("utf-8", "replace")
        if len(text) > MAX_STATUS_BYTES or b"\0" in text:
            raise StatusTooLong(most=MAX_STATUS_BYTES)
        argument = {"user_id": user_id, "state": state, "status_msg": status_msg or None}
        return written_fact(await self._writers.run_at(self.decided_by(user_id), _SET, argument))

    async def report(
        self,
        decided_by: str,
        syncing: Sequence[ReportedSync],
        ceased: Sequence[str],
        active: Sequence[ReportedActivity],
    ) -> None:
        """Report who syncs with this process, and who does anything.

        :param decided_by: the process that decides the presence of these users
        :param ceased: users that do not sync with this process any more
        :raises SynreplError: the errors of :meth:`.DataWriters.run_at`
        """
        argument = {
            "instance": self._writers.instance,
            "syncing": [list(each) for each in syncing],
            "ceased": list(ceased),
            "active": [list(each) for each in active],
        }
        await self._writers.run_at(decided_by, _REPORT, argument)

    async def store_foreign(self, presences: Sequence[Presence]) -> None:
        """Store the presence of users of other servers, which those decide.

        :raises SynreplError: the errors of :meth:`.DataWriters.run`
        """
        rows = [list(each) for each in presences]
        await self._writers.run(_FOREIGN, "", {"presences": rows})

    def _check_served(self) -> None:
        if not self.is_served:
            raise StreamNotServed(stream=PRESENCE.name)

    # -- in the process that decides ----------------------------------------------------------

    async def run(self) -> None:
        """Take over what is stored, and end states as time passes, for as long as the process runs."""
        is_loaded = False
        while self._writers.writes(PRESENCE):
            try:
                if not is_loaded:
                    await self._load()
                    is_loaded = True
                await self._write()
            except SynreplError as error:
                self._log.warn("cannot write presence: {error}", error=error)
            await self._scheduler.sleep(LOOK_EVERY_S)

    async def _load(self) -> None:
        stored = await self._database.run("read presence", read_present, read_only=True)
        own = [each for each in stored if self.decided_by(each.user_id) == self._writers.instance]
        self._states.load(own[:MAX_PRESENT], self._scheduler.seconds())

    async def _know(self, users: Sequence[str]) -> None:
        """Read what is stored of users of whom nothing is known here."""
        unknown = self._states.unknown(users)
        if not unknown:
            return
        if len(self._states) + len(unknown) > MAX_PRESENT:
            raise TooManyPresent(most=MAX_PRESENT)
        found = await self._database.run(
            "read presence", lambda txn: read_presence(txn, unknown), read_only=True
        )
        self._states.load(found.values(), self._scheduler.seconds())

    async def _perform_set(self, argument: dict[str, Any]) -> WrittenFact | None:
        user_id = argument["user_id"]
        await self._know([user_id])
        now = self._scheduler.seconds()
        self._states.set(user_id, argument["state"], argument["status_msg"], now)
        fact = await self._write([user_id])
        if fact is None:  # it was the same before, or another write has taken it along
            stored = await self._database.run(
                "read a fact of presence", lambda txn: presence_fact(txn, user_id), read_only=True
            )
            fact = None if stored is None else WrittenFact(PRESENCE.name, *stored)
        return fact

    async def _perform_report(self, argument: dict[str, Any]) -> None:
        instance = argument["instance"]
        syncing = [ReportedSync(*each) for each in argument["syncing"]]
        active = [ReportedActivity(*each) for each in argument["active"]]
        came_at = self._scheduler.seconds()
        await self._know([each.user_id for each in syncing])
        for sync in syncing:
            began_at = came_at - sync.ago_s
            self._states.syncs(sync.user_id, instance, sync.wanted, began_at, came_at)
        for each in active:
            self._states.acts(each.user_id, came_at - each.ago_s)
        for user_id in argument["ceased"]:
            self._states.ceases(user_id, instance)
        users = [each.user_id for each in syncing]
        await self._write([*users, *(each.user_id for each in active)])

    async def _perform_foreign(self, argument: dict[str, Any]) -> None:
        await self._append([Presence._make(each) for each in argument["presences"]])

    async def _write(self, users: Sequence[str] | None = None) -> WrittenFact | None:
        """Write what has changed of some users, or of all; where the last fact is.

        One at a time, so that what is stored of a user in the end is what was decided last.
        """
        fact = None
        async with self._lock:
            changed = self._states.changed(self._scheduler.seconds(), users)
            for start in range(0, len(changed), WRITTEN_AT_ONCE):
                part = changed[start : start + WRITTEN_AT_ONCE]
                fact = await self._append(part)
                self._states.written(part)
        return fact

    async def _append(self, presences: Sequence[Presence]) -> WrittenFact | None:
        now_ms = int(self._scheduler.seconds() * 1000)

        def work(txn: Transaction, outbox: Outbox, writer: str) -> None:
            write_presence(txn, outbox, writer, presences, now_ms)

        return await self._writers.transact("write presence", PRESENCE, work)


def wanted_presence(asked: str | None) -> str | None:
    """What a sync asks for by ``set_presence``; None: it does not make the user present.

    :raises UnknownPresence:
    """
    if asked is None:
        return STATES[0]
    if asked not in STATES:
        raise UnknownPresence(state=asked[:100], states=", ".join(STATES))
    return None if asked == OFFLINE else asked
