"""Large answers about the state of a room, made page by page while they are sent.

A room of 85,000 members is an answer of 60 MB. In memory there is a page of it, and eight bytes for each event.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from synrepl.core import jsons
from synrepl.core.errors import Unavailable
from synrepl.rooms import Event
from synrepl.storage.database import Database, Isolation, Transaction
from synrepl.storage.federation.served_states import (
    ServedState,
    StatePage,
    chain_numbers,
    events_of_numbers,
    hero_slots,
    ids_of_numbers,
    other_slots,
    slots_of_keys,
    state_before_event,
    state_page,
    stateless,
)
from synrepl.storage.rooms.states.state_digest import digest_of_total
from synrepl.storage.rooms.states.state_groups import CorruptState
from synrepl.storage.rooms.tables.events import events_by_id

T = TypeVar("T")

#: Slots of a state that are looked up at once, and events whose JSON is read at once.
PAGE = 400

#: Answers that are made at the same time.
MAX_STREAMS = 30

_NAMES = ("m.room.name", "m.room.canonical_alias")


class TooManyStateRequests(Unavailable):
    """{count} answers with whole states are being sent already; try again later"""


class StateStreams:
    """Makes large answers.

    :ivar active: number of answers that are being made
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.active = 0

    async def state(self, room_id: str, event_id: str) -> AsyncIterator[bytes]:
        """The answer to ``/state``: the state before an event, and its auth chain.

        :raises SynreplError: see :meth:`state_ids`
        """
        state = await self._locate(room_id, event_id)
        return self._counted(self._state(state, b'"pdus"', b'"auth_chain"', self._events))

    async def state_ids(self, room_id: str, event_id: str) -> AsyncIterator[bytes]:
        """The answer to ``/state_ids``.

        :raises EventNotStored: :raises EventIsOutlier: :raises EventInOtherRoom: :raises PartialEvent:
        :raises TooManyStateRequests:
        """
        state = await self._locate(room_id, event_id)
        return self._counted(self._state(state, b'"pdu_ids"', b'"auth_chain_ids"', self._ids))

    async def joined(
        self, event: Event, servers: Sequence[str], *, omit_members: bool, head: bytes
    ) -> AsyncIterator[bytes]:
        """The answer to ``send_join``: the state before the join, and the auth chains of both.

        With ``omit_members``, the chains are without that state. Servers that do not ask so may be too old to look
        for ``m.room.create`` anywhere but in the chain.

        :param servers: in the room before the join
        :param head: the first members of the answer as JSON, without brackets
        :raises SynreplError: see :meth:`state_ids`
        """
        state = await self._locate(event.room_id, event.event_id)
        return self._counted(self._joined(state, event, servers, omit_members, head))

    async def chain(self, room_no: int, numbers: Sequence[int]) -> AsyncIterator[bytes]:
        """The answer to ``/event_auth``.

        :param numbers: of the events of an auth chain
        :raises TooManyStateRequests: :raises NumberWithoutRow: the room is not here any more
        """
        self._check_active()
        state = await self._read("room of a chain", lambda txn: stateless(txn, room_no))
        return self._counted(self._whole_chain(state, numbers))

    # -- parts of answers -------------------------------------------------------------------

    async def _state(
        self,
        state: ServedState,
        entries: bytes,
        chain: bytes,
        listed: Callable[[ServedState, Sequence[int]], AsyncIterator[bytes]],
    ) -> AsyncIterator[bytes]:
        numbers = array("q")
        yield b"{%b:[" % entries
        first = b""
        async for page in self._pages(state, range(state.slots), is_whole=True):
            numbers.extend(page.event_nos)
            async for part in listed(state, page.event_nos):
                yield first + part
                first = b","
        yield b"],%b:[" % chain
        async for part in self._listed(state, await self._chain(state, numbers), listed):
            yield part
        yield b"]}"

    async def _whole_chain(
        self, state: ServedState, numbers: Sequence[int]
    ) -> AsyncIterator[bytes]:
        yield b'{"auth_chain":['
        async for part in self._listed(state, numbers, self._events):
            yield part
        yield b"]}"

    async def _joined(
        self,
        state: ServedState,
        event: Event,
        servers: Sequence[str],
        omit_members: bool,
        head: bytes,
    ) -> AsyncIterator[bytes]:
        numbers = array("q")
        slots: Sequence[int] = range(state.slots)
        if omit_members:
            slots = await self._slots_without_members(state, event)
        yield b'{%b,"state":[' % head
        first = b""
        async for page in self._pages(state, slots, is_whole=not omit_members):
            numbers.extend(page.event_nos)
            async for part in self._events(state, page.event_nos):
                yield first + part
                first = b","
        yield b'],"auth_chain":['
        own = await self._read(
            "number of a join", lambda txn: events_by_id(txn, [event.event_id])[event.event_id]
        )
        chain = await self._chain(state, numbers, [own.event_no], without_starts=omit_members)
        async for part in self._listed(state, chain, self._events):
            yield part
        yield b"]"
        if omit_members:
            yield b',"servers_in_room":%b' % jsons.encode(servers)
        yield b"}"

    async def _slots_without_members(self, state: ServedState, event: Event) -> list[int]:
        """All slots but those of members; where the room has no name, with those of a few.

        Source: https://spec.matrix.org/v1.16/server-server-api/#put_matrixfederationv2send_joinroomideventid
        """

        def read(txn: Transaction) -> list[int]:
            slots = other_slots(txn, state)
            names = slots_of_keys(txn, state, _NAMES)
            if not state_page(txn, state, names).event_nos:
                slots += hero_slots(txn, state, event.sender)
            return slots

        return await self._read("slots of a state", read)

    async def _pages(
        self, state: ServedState, slots: Sequence[int], *, is_whole: bool
    ) -> AsyncIterator[StatePage]:
        """The pages of a state.

        :raises CorruptState: it is whole, and does not fit its digest; all pages were given then
        """
        total = count = 0
        for at in range(0, len(slots), PAGE):
            part = slots[at : at + PAGE]

            def read(txn: Transaction, part: Sequence[int] = part) -> StatePage:
                return state_page(txn, state, part)

            page = await self._read("a page of a state", read)
            total += page.total
            count += len(page.event_nos)
            yield page
        if is_whole and (count != state.size or digest_of_total(total) != state.digest):
            reason = "its entries on the state line do not fit its digest"
            raise CorruptState(group=state.group, room_no=state.room_no, reason=reason)

    async def _chain(
        self,
        state: ServedState,
        starts: Sequence[int],
        more: Sequence[int] = (),
        *,
        without_starts: bool = False,
    ) -> array[int]:
        """The auth chain of a state and of more events; see :func:`.chain_numbers`."""

        def read(txn: Transaction) -> array[int]:
            return chain_numbers(txn, state.room_no, starts, more, without_starts=without_starts)

        return await self._read("auth chain of a state", read)

    async def _listed(
        self,
        state: ServedState,
        numbers: Sequence[int],
        listed: Callable[[ServedState, Sequence[int]], AsyncIterator[bytes]],
    ) -> AsyncIterator[bytes]:
        first = b""
        for at in range(0, len(numbers), PAGE):
            async for part in listed(state, numbers[at : at + PAGE]):
                yield first + part
                first = b","

    async def _events(self, state: ServedState, numbers: Sequence[int]) -> AsyncIterator[bytes]:
        """The JSON of some events, separated by commas; nothing if there are none."""
        if numbers:
            events = await self._read(
                "events of a state", lambda txn: events_of_numbers(txn, state, numbers)
            )
            yield b",".join(events)

    async def _ids(self, state: ServedState, numbers: Sequence[int]) -> AsyncIterator[bytes]:
        """The IDs of some events as JSON, separated by commas; nothing if there are none."""
        if numbers:
            ids = await self._read(
                "IDs of a state", lambda txn: ids_of_numbers(txn, state, numbers)
            )
            yield jsons.encode(ids)[1:-1]

    # -- limits -----------------------------------------------------------------------------

    async def _locate(self, room_id: str, event_id: str) -> ServedState:
        self._check_active()
        return await self._read(
            "state before an event", lambda txn: state_before_event(txn, room_id, event_id)
        )

    def _check_active(self) -> None:
        if self.active >= MAX_STREAMS:
            raise TooManyStateRequests(count=self.active)

    async def _counted(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.active += 1
        try:
            async for part in parts:
                yield part
        finally:
            self.active -= 1

    async def _read(self, name: str, work: Callable[[Transaction], T]) -> T:
        return await self._database.run(
            name, work, read_only=True, isolation=Isolation.REPEATABLE_READ
        )
