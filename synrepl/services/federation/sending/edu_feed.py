"""Makes EDUs of what the process hears of users: typing, receipts, presence, and what others hand to senders."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.federation.outgoing_edus import (
    SentPresence,
    SentReceipt,
    encoded_edu,
    typing_edu,
)
from synrepl.rooms import server_of
from synrepl.services.federation.sending.destination_queue import DestinationQueue
from synrepl.services.federation.sending.registry import DestinationRegistry
from synrepl.streams.definition import Fact
from synrepl.streams.row import Row
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from synrepl.streams.synapse.federation import FederationRow
from synrepl.streams.synapse.presence import PRESENCE, PresenceRow
from synrepl.streams.synapse.receipts import RECEIPTS, ReceiptRow
from synrepl.streams.synapse.to_device import TO_DEVICE, ToDeviceRow
from synrepl.streams.synapse.typing import TYPING, TypingRow
from synrepl.streams.synapse.un_partial_stated_room import UN_PARTIAL_STATED_ROOM

#: Seconds after which servers are told again that a user still types: they forget it after some time.
TYPING_AGAIN_S = 30.0

#: Transactions a second that receipts in one room may cause: in a large room they are gathered for longer.
RECEIPT_TRANSACTIONS_S = 50.0

#: Seconds for which receipts are gathered, at least and at most, and presence.
RECEIPTS_S, LONGEST_RECEIPTS_S, PRESENCE_S = 0.2, 60.0, 3.0

#: Rooms in which somebody types, and receipts and presences that wait; others are not sent.
MAX_ROOMS, MAX_RECEIPTS, MAX_PRESENCES = 20_000, 20_000, 20_000

#: Rows that wait to be looked at. Beyond it, the oldest is dropped.
MAX_ROWS = 20_000


class ServersForEdus(Protocol):
    """See :class:`.KnownServers`."""

    async def of_rooms(self, room_ids: Collection[str]) -> Mapping[str, frozenset[str]]: ...

    async def of_users(self, users: Collection[str]) -> Mapping[str, frozenset[str]]: ...


class EduFeed:
    """Observes facts, and gives EDUs to the queues of the destinations that they concern.

    Nobody keeps these EDUs: a destination that is away does not get them. It observes the facts of a
    :class:`~.coherence.Coherence`.

    :param own: the name of this server
    :param wake: called with a queue that has something to send
    :param devices_changed: called when devices may have changed
    :param has_edus: called when there may be messages to devices, or device lists, for these destinations; None: for
        any
    :ivar counts: numbers of EDUs by type, and of what was dropped
    """

    def __init__(
        self,
        scheduler: Scheduler,
        own: str,
        registry: DestinationRegistry,
        servers: ServersForEdus,
        wake: Callable[[DestinationQueue], object],
        devices_changed: Callable[[], object],
        has_edus: Callable[[Collection[str] | None], object],
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._suffix = f":{own}"
        self._registry = registry
        self._servers = servers
        self._wake = wake
        self._devices_changed = devices_changed
        self._has_edus = has_edus
        self._log = log
        self._rows: deque[Row] = deque()
        self._is_running = False
        #: Users of this server who type, by room.
        self._typing: dict[str, frozenset[str]] = {}
        self._is_repeating = False
        self._receipts: dict[str, dict[tuple[str, str | None], SentReceipt]] = {}
        self._waiting_receipts = 0
        self._presences: dict[str, SentPresence] = {}
        self.counts: Counter[str] = Counter()

    # -- FactObserver ---------------------------------------------------------------------------

    def unknown_upto(self, stream: str, writer: str, token: Token) -> None:
        """Facts may be missing: nobody keeps what they tell of, or it is read from the database."""
        if stream == DEVICE_LISTS.name:
            self._devices_changed()
        elif stream in (TO_DEVICE.name, UN_PARTIAL_STATED_ROOM.name):
            self._has_edus(None)

    def applied(self, stream: str, writer: str, facts: Sequence[Fact]) -> None:
        """Take facts of the streams that EDUs are made of."""
        if stream == DEVICE_LISTS.name:
            self._devices_changed()
        elif stream == UN_PARTIAL_STATED_ROOM.name:
            self._has_edus(None)
        elif stream == TO_DEVICE.name:
            names = {r.entity for f in facts for r in f.rows if isinstance(r, ToDeviceRow)}
            servers = {name for name in names if not name.startswith("@")}
            if servers:
                self._has_edus(servers)
        elif stream in _HANDLED:
            for fact in facts:
                self._rows.extend(fact.rows)
            while len(self._rows) > MAX_ROWS:
                self._rows.popleft()
                self.counts["dropped"] += 1
            self._start()

    def _start(self) -> None:
        if not self._is_running and self._rows:
            self._is_running = True
            self._scheduler.spawn("make EDUs", self._run())

    async def _run(self) -> None:
        try:
            while self._rows:
                await self._scheduler.sleep(0)
                await self._take([self._rows.popleft() for _ in range(min(len(self._rows), 500))])
        finally:
            self._is_running = False

    async def _take(self, rows: Sequence[Row]) -> None:
        typing: dict[str, frozenset[str]] = {}
        for row in rows:
            if isinstance(row, TypingRow):
                typing[row.room_id] = frozenset(filter(self._is_own, row.user_ids))
            elif isinstance(row, ReceiptRow):
                self._take_receipt(row)
            elif isinstance(row, PresenceRow):
                self._take_presence(_presence_of_row(row))
        changed = {
            room_id: users
            for room_id, users in typing.items()
            if users != self._typing.get(room_id, frozenset())
        }
        if changed:
            await self._try("typing", self._send_typing(changed))

    async def _try(self, what: str, work: Awaitable[None]) -> None:
        try:
            await work
        except SynreplError as error:  # the database is away; nobody keeps these EDUs
            self.counts["dropped"] += 1
            self._log.warn("EDUs about {what} are not sent: {error}", what=what, error=error)

    def _is_own(self, user_id: str) -> bool:
        return user_id.endswith(self._suffix)

    def _put(self, names: Collection[str], put: Callable[[DestinationQueue], object]) -> None:
        """Add an EDU for destinations; those that are away miss it."""
        for queue in self._registry.queues(names):
            if queue.away is None:
                put(queue)
                self._wake(queue)

    # -- typing ------------------------------------------------------------------------------------

    async def _send_typing(self, changed: Mapping[str, frozenset[str]]) -> None:
        servers = await self._servers.of_rooms(changed.keys())
        for room_id, users in changed.items():
            before = self._typing.pop(room_id, frozenset())
            if users and len(self._typing) < MAX_ROOMS:
                self._typing[room_id] = users
            for user_id in sorted(users ^ before):
                edu = typing_edu(room_id, user_id, user_id in users)
                self._put_typing(servers.get(room_id, frozenset()), room_id, user_id, edu)
        if self._typing and not self._is_repeating:
            self._is_repeating = True
            self._scheduler.spawn("repeat typing", self._repeat_typing())

    def _put_typing(self, names: Collection[str], room_id: str, user_id: str, edu: bytes) -> None:
        self.counts["m.typing"] += 1
        self._put(
            names, lambda queue: queue.pending_edus().put(edu, ("m.typing", room_id, user_id))
        )

    async def _repeat_typing(self) -> None:
        """Tell servers again who still types, as long as anybody does."""
        try:
            while self._typing:
                await self._scheduler.sleep(TYPING_AGAIN_S)
                await self._try("typing", self._send_typing_again())
        finally:
            self._is_repeating = False

    async def _send_typing_again(self) -> None:
        servers = await self._servers.of_rooms(list(self._typing))
        for room_id, users in self._typing.items():
            for user_id in sorted(users):
                edu = typing_edu(room_id, user_id, True)
                self._put_typing(servers.get(room_id, frozenset()), room_id, user_id, edu)

    # -- receipts ------------------------------------------------------------------------------------

    def _take_receipt(self, row: ReceiptRow) -> None:
        if row.receipt_type != "m.read" or not self._is_own(row.user_id):
            return
        ts = row.data.get("ts") if isinstance(row.data, dict) else None
        receipt = SentReceipt(
            row.user_id, row.event_id, row.thread_id, ts if isinstance(ts, int) else 0
        )
        waiting = self._receipts.get(row.room_id)
        if waiting is None:
            if self._waiting_receipts >= MAX_RECEIPTS:
                self.counts["dropped"] += 1
                return
            waiting = self._receipts[row.room_id] = {}
            self._scheduler.spawn("send receipts", self._send_receipts(row.room_id))
        key = row.user_id, row.thread_id
        self._waiting_receipts += key not in waiting
        waiting[key] = receipt

    async def _send_receipts(self, room_id: str) -> None:
        """Gather the receipts of a room: the longer, the more servers are in it."""
        await self._scheduler.sleep(RECEIPTS_S)
        names: Collection[str] = ()
        try:
            names = (await self._servers.of_rooms([room_id])).get(room_id, frozenset())
            wait_s = min(len(names) / RECEIPT_TRANSACTIONS_S, LONGEST_RECEIPTS_S) - RECEIPTS_S
            if wait_s > 0:
                await self._scheduler.sleep(wait_s)
        except SynreplError as error:
            self.counts["dropped"] += 1
            self._log.warn("receipts are not sent: {error}", error=error)
        receipts = list(self._receipts.pop(room_id).values())
        self._waiting_receipts -= len(receipts)
        self.counts["m.receipt"] += len(receipts)

        def put(queue: DestinationQueue) -> None:
            edus = queue.pending_edus()
            for each in receipts:
                edus.put_receipt(room_id, each)

        self._put(names, put)

    # -- presence ------------------------------------------------------------------------------------

    def _take_presence(self, presence: SentPresence) -> None:
        if not self._is_own(presence.user_id):
            return
        if not self._presences:
            self._scheduler.spawn("send presence", self._send_presence())
        if len(self._presences) < MAX_PRESENCES or presence.user_id in self._presences:
            self._presences[presence.user_id] = presence
        else:
            self.counts["dropped"] += 1

    async def _send_presence(self) -> None:
        """Send the last presence of each user of some seconds to the servers that share a room."""
        await self._scheduler.sleep(PRESENCE_S)
        presences, self._presences = self._presences, {}
        await self._try("presence", self._send_presences(presences))

    async def _send_presences(self, presences: Mapping[str, SentPresence]) -> None:
        servers = await self._servers.of_users(presences.keys())
        for user_id, presence in presences.items():
            self._put_presence(servers.get(user_id, frozenset()), presence)

    def _put_presence(self, names: Collection[str], presence: SentPresence) -> None:
        self.counts["m.presence"] += 1
        self._put(names, lambda queue: queue.pending_edus().put_presence(presence))

    # -- what others hand to senders -----------------------------------------------------------------

    def take_handed(self, row: FederationRow) -> None:
        """Take a row of ``federation``, as real servers write it; others are counted and ignored."""
        try:
            self._take_handed_data(row.type, row.data)
        except (KeyError, TypeError, ValueError):
            self.counts["malformed"] += 1

    def _take_handed_data(self, kind: str, data: Any) -> None:
        if kind == "p":
            self._take_presence(_presence(data))
        elif kind == "pd":
            presence, names = _presence(data["state"]), _names(data["dests"])
            self._put_presence(names, presence)
        elif kind == "k":
            edu = data["edu"]
            self._put_handed(edu, (str(edu["edu_type"]), *map(str, data["key"])))
        elif kind == "e":
            self._put_handed(data, None)
        else:
            self.counts["malformed"] += 1

    def _put_handed(self, edu: Mapping[str, Any], key: tuple[str, ...] | None) -> None:
        kind, content, destination = edu["edu_type"], edu["content"], edu["destination"]
        if not (isinstance(kind, str) and isinstance(content, dict)):
            raise TypeError(kind)
        encoded = encoded_edu(kind, content)
        self.counts["handed over"] += 1
        self._put(_names([destination]), lambda queue: queue.pending_edus().put(encoded, key))


_HANDLED = frozenset({TYPING.name, RECEIPTS.name, PRESENCE.name})


def _presence_of_row(row: PresenceRow) -> SentPresence:
    return SentPresence(
        row.user_id, row.state, row.last_active_ts, row.status_msg, row.currently_active
    )


def _presence(data: Mapping[str, Any]) -> SentPresence:
    """A presence as a row of ``federation`` has it."""
    if not isinstance(data, dict):
        raise TypeError(data)
    status = data.get("status_msg")
    user_id, state = data["user_id"], data["state"]
    if not (isinstance(user_id, str) and isinstance(state, str)):
        raise TypeError(user_id)
    server_of(user_id)
    return SentPresence(
        user_id,
        state,
        int(data.get("last_active_ts") or 0),
        status if isinstance(status, str) else None,
        bool(data.get("currently_active")),
    )


def _names(values: Sequence[Any]) -> Sequence[str]:
    """Names of servers."""
    if not all(isinstance(each, str) for each in values):
        raise TypeError(values)
    return values
