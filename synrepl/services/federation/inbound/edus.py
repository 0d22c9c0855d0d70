"""Takes in EDUs of other servers: typing, receipts, presence, device lists, messages to devices.

A server may speak for its own users only, and in rooms only for those who are in them. What is malformed, or of a type
that is not known, is ignored: no EDU is a reason to refuse a transaction. Source:
https://spec.matrix.org/v1.16/server-server-api/#edus
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from synrepl.core.clock import Clock
from synrepl.core.errors import InputError, Refused, SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.federation.transactions import Edu
from synrepl.rooms import BadIdentifier, check_user_id, server_of
from synrepl.storage.clients.values import Presence

#: Users in one EDU about presence, receipts in one about receipts: others are ignored.
MAX_IN_EDU = 1_000

#: Rooms in one EDU about receipts.
MAX_ROOMS_IN_EDU = 100

#: Maximum length of an ID, in characters.
_MAX_ID = 255


class EduRefused(Refused):
    """an EDU of {origin} is ignored: {reason}"""


class ForeignReceipt(NamedTuple):
    """How far a user of another server has read.

    :ivar ts: milliseconds since 1970
    """

    room_id: str
    receipt_type: str
    user_id: str
    event_id: str
    thread_id: str | None
    ts: int


class EduSinks(Protocol):
    """Where EDUs go. What does not exist in this process is ignored."""

    async def typing(self, user_id: str, room_id: str, is_typing: bool) -> None:
        """A user begins or ceases to type; one who is not in the room is refused."""

    async def receipt(self, receipt: ForeignReceipt) -> None:
        """A user has read; one who is not in the room is refused."""

    async def presence(self, presences: Sequence[Presence]) -> None:
        """Users are there, or not."""

    async def device_list_changed(self, user_id: str) -> None:
        """The devices of a user have changed."""

    async def to_devices(
        self,
        sender: str,
        kind: str,
        messages: Mapping[str, Mapping[str, Mapping[str, Any]]],
        request: str,
    ) -> None:
        """Messages to devices of users of this server.

        :param request: identifies them; when they come again, nothing is sent
        """


class RoomAdmission(Protocol):
    """Which rooms a server may take part in."""

    async def admitted(self, origin: str, room_ids: Collection[str]) -> Collection[str]:
        """Those of some rooms that users of this server are in, and whose server ACL admits a server."""


_Handle = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class EduReceiver:
    """Takes in EDUs.

    :ivar outcomes: number of EDUs by type and outcome; types that are not known count as ``other``
    """

    def __init__(self, clock: Clock, sinks: EduSinks, rooms: RoomAdmission, log: Logger) -> None:
        self._clock = clock
        self._sinks = sinks
        self._rooms = rooms
        self._log = log
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._handlers: Mapping[str, _Handle] = {
            "m.typing": self._typing,
            "m.receipt": self._receipts,
            "m.presence": self._presence,
            "m.device_list_update": self._device_list,
            "m.signing_key_update": self._device_list,
            "m.direct_to_device": self._to_device,
        }

    async def receive(self, origin: str, edus: Iterable[Edu]) -> None:
        """Take in the EDUs of a transaction, in order.

        :raises Unavailable: messages to devices cannot be stored now; the transaction has to come again
        """
        for kind, content in edus:
            handle = self._handlers.get(kind)
            if handle is None:
                self.outcomes["other", "ignored"] += 1
                continue
            try:
                await handle(origin, content)
            except (InputError, Refused) as error:
                self.outcomes[kind, "refused"] += 1
                self._log.info("{kind} is ignored: {error}", kind=kind, error=error)
            except SynreplError as error:
                self.outcomes[kind, "failed"] += 1
                if kind == "m.direct_to_device" and isinstance(error, Unavailable):
                    raise
                self._log.warn("{kind} cannot be taken in: {error}", kind=kind, error=error)
            else:
                self.outcomes[kind, "taken"] += 1

    async def _typing(self, origin: str, content: Mapping[str, Any]) -> None:
        user_id, room_id = (
            _own_user(origin, content.get("user_id")),
            _id(content, "room_id", origin),
        )
        await self._check_room(origin, room_id)
        await self._sinks.typing(user_id, room_id, content.get("typing") is True)

    async def _receipts(self, origin: str, content: Mapping[str, Any]) -> None:
        named = list(content)[:MAX_ROOMS_IN_EDU]
        admitted = await self._rooms.admitted(origin, named)
        left = MAX_IN_EDU
        for room_id in named:
            if room_id not in admitted:
                continue
            for receipt in self._receipts_in(origin, room_id, content[room_id]):
                left -= 1
                if left < 0:
                    raise EduRefused(
                        origin=origin, reason=f"it has more than {MAX_IN_EDU} receipts"
                    )
                try:
                    await self._sinks.receipt(receipt)
                except (InputError, Refused):
                    continue  # as of a user who has just left

    def _receipts_in(self, origin: str, room_id: str, content: object) -> Iterator[ForeignReceipt]:
        for kind, users in _members(content):
            if kind != "m.read":  # private ones are not sent to others
                continue
            for user_id, receipt in _members(users):
                if not _is_own(origin, user_id) or not isinstance(receipt, dict):
                    continue
                event_ids, data = receipt.get("event_ids"), receipt.get("data")
                data = data if isinstance(data, dict) else {}
                event_id = event_ids[0] if isinstance(event_ids, list) and event_ids else None
                thread_id, ts = data.get("thread_id"), data.get("ts")
                if isinstance(event_id, str):
                    yield ForeignReceipt(
                        room_id,
                        kind,
                        user_id,
                        event_id,
                        thread_id if isinstance(thread_id, str) else None,
                        ts if type(ts) is int and 0 <= ts < 2**53 else self._now_ms(),
                    )

    async def _presence(self, origin: str, content: Mapping[str, Any]) -> None:
        push = content.get("push")
        found: dict[str, Presence] = {}
        for each in push[:MAX_IN_EDU] if isinstance(push, list) else ():
            user_id = each.get("user_id") if isinstance(each, dict) else None
            if not isinstance(user_id, str) or not _is_own(origin, user_id):
                continue
            state, text, ago = (
                each.get(name) for name in ("presence", "status_msg", "last_active_ago")
            )
            if state not in ("online", "offline", "unavailable"):
                continue
            since = self._now_ms() - ago if type(ago) is int and 0 <= ago <= self._now_ms() else 0
            found[user_id] = Presence(
                user_id,
                state,
                text[:1024].replace("\0", "\ufffd") if isinstance(text, str) else None,
                since,
                each.get("currently_active") is True,
            )
        if found:
            await self._sinks.presence(list(found.values()))

    async def _device_list(self, origin: str, content: Mapping[str, Any]) -> None:
        await self._sinks.device_list_changed(_own_user(origin, content.get("user_id")))

    async def _to_device(self, origin: str, content: Mapping[str, Any]) -> None:
        sender, kind = _own_user(origin, content.get("sender")), _id(content, "type", origin)
        message_id = _id(content, "message_id", origin)
        messages: dict[str, dict[str, Mapping[str, Any]]] = {}
        for user_id, devices in _members(content.get("messages")):
            found: dict[str, Mapping[str, Any]] = {
                name: each for name, each in _members(devices) if isinstance(each, dict)
            }
            if found:
                messages[user_id] = found
        if messages:
            request = f"{origin}\0{sender}\0{message_id}"
            await self._sinks.to_devices(sender, kind, messages, request)

    async def _check_room(self, origin: str, room_id: str) -> None:
        if room_id not in await self._rooms.admitted(origin, [room_id]):
            raise EduRefused(origin=origin, reason=f"it is about room {room_id}")

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _members(value: object) -> Iterable[tuple[str, Any]]:
    """The members of an object; none of anything else."""
    return value.items() if isinstance(value, dict) else ()


def _id(content: Mapping[str, Any], name: str, origin: str) -> str:
    value = content.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_ID or "\0" in value:
        raise EduRefused(
            origin=origin, reason=f"its {name!r} is no text of 1 to {_MAX_ID} characters"
        )
    return value


def _own_user(origin: str, user_id: object) -> str:
    if not isinstance(user_id, str) or not _is_own(origin, user_id):
        raise EduRefused(origin=origin, reason=f"{user_id!r:.100} is not one of its users")
    return user_id


def _is_own(origin: str, user_id: str) -> bool:
    try:
        check_user_id(user_id)
        return server_of(user_id) == origin and "\0" not in user_id
    except BadIdentifier:
        return False
