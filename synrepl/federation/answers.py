"""What other servers answer, checked for its form and its size; whether it is true is not known here.

Every function raises an :class:`.InputError` for an answer that is not what it must be.

Source: https://spec.matrix.org/v1.16/server-server-api/
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import msgspec

from synrepl.core import jsons
from synrepl.core.errors import InputError
from synrepl.core.jsons import BadJson
from synrepl.federation.event_scanner import (
    ObjectIndex,
    indexing,
    read_elements,
)
from synrepl.federation.requests import SpooledBody
from synrepl.rooms import BadIdentifier, check_server_name

MembershipAction = Literal["join", "knock", "leave"]

#: Maximum number of servers in a list; no room has had so many.
MAX_SERVERS = 50_000

#: Maximum number of event IDs of a state, or of its auth chain.
MAX_STATE_IDS = 500_000

#: Maximum number of events in an answer that is kept in memory, and of their bytes.
MAX_EVENTS = 20_000
MAX_EVENTS_BYTES = 32 * 2**20

#: Maximum length of an identifier, in bytes.
_MAX_ID = 255

_ID_LISTS = msgspec.json.Decoder(str)


class BadAnswerContent(InputError):
    """{reason}"""


class MembershipTemplate(NamedTuple):
    """The answer to ``make_join``, ``make_knock`` and ``make_leave``.

    :ivar room_version: ``1`` where the answer has none
    :ivar event: the event to complete and sign, with parents and auth events
    """

    room_version: str
    event: dict[str, Any]


class StateIds(NamedTuple):
    """The state before an event, as event IDs.

    :ivar auth_chain: of the state
    """

    state: tuple[str, ...]
    auth_chain: tuple[str, ...]


class DirectoryAnswer(NamedTuple):
    """What an alias stands for.

    :ivar servers: servers that may be in the room
    """

    room_id: str
    servers: tuple[str, ...]


class IndexedAnswer:
    """An answer that is read from its body in batches. A context manager: it closes the body.

    :param required: names of its members that are arrays
    :raises BadAnswerContent: one of them is missing, or no array
    """

    def __init__(self, body: SpooledBody, index: ObjectIndex, required: Collection[str]) -> None:
        self._body = body
        self._index = index
        for name in required:
            if name not in index.arrays:
                raise BadAnswerContent(reason=f"it has no array {name!r}")

    def elements(self, name: str) -> Iterator[bytes]:
        """The JSON of the elements of an array, in order. Only one array is read at a time."""
        return read_elements(self._body.open(), self._index.arrays[name])

    def size(self, name: str) -> int:
        """The number of elements of an array."""
        return self._index.arrays[name].size

    def close(self) -> None:
        """Release the body; may be called again."""
        self._body.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RoomStateAnswer(IndexedAnswer):
    """The state of a room before an event, with its auth chain.

    :cvar members: names of the members with the state and with the auth chain
    """

    members = ("pdus", "auth_chain")

    def __init__(self, body: SpooledBody, index: ObjectIndex) -> None:
        super().__init__(body, index, self.members)

    def state(self) -> Iterator[bytes]:
        """The JSON of each event, in order, read in batches."""
        return self.elements(self.members[0])

    def auth_chain(self) -> Iterator[bytes]:
        """The JSON of each event, in order, read in batches."""
        return self.elements(self.members[1])


class SendJoinAnswer(RoomStateAnswer):
    """The answer to ``send_join``.

    :ivar event: the join as the server has signed it, too; None where the answer has none
    :ivar members_omitted: ``state`` has not all memberships
    :ivar servers_in_room: servers that were in the room before the join, those with possible names; None where the
        answer has none
    """

    members = ("state", "auth_chain")

    def __init__(self, body: SpooledBody, index: ObjectIndex) -> None:
        super().__init__(body, index)
        omitted = index.values.get("members_omitted", b"false")
        if omitted not in (b"true", b"false"):
            raise BadAnswerContent(reason="'members_omitted' is neither true nor false")
        self.members_omitted = omitted == b"true"
        event = index.values.get("event", b"null")
        if event != b"null" and not event.startswith(b"{"):
            raise BadAnswerContent(reason="'event' is no object")
        self.event = None if event == b"null" else event
        self.servers_in_room: Sequence[str] | None = None
        if "servers_in_room" in index.arrays:
            self.servers_in_room = self._servers()

    def _servers(self) -> tuple[str, ...]:
        if self.size("servers_in_room") > MAX_SERVERS:
            raise BadAnswerContent(reason=f"it names more than {MAX_SERVERS} servers")
        return tuple(server_names(map(_text, self.elements("servers_in_room"))))


#: The members of an answer to ``send_join`` that are read.
SEND_JOIN_MEMBERS = ("state", "auth_chain", "event", "members_omitted", "servers_in_room")


def server_names(names: Iterator[object]) -> Iterator[str]:
    """Those of some values that are names of servers, each once."""
    seen: set[str] = set()
    for name in names:
        if isinstance(name, str) and name not in seen:
            try:
                check_server_name(name)
            except BadIdentifier:
                continue
            seen.add(name)
            yield name


def state_ids(body: SpooledBody) -> Generator[int, None, StateIds]:
    """The answer to ``state_ids``; in steps, as :func:`.indexing`.

    :raises BadJsonObject: :raises BadAnswerContent:
    """
    members = ("pdu_ids", "auth_chain_ids")
    answer = IndexedAnswer(body, (yield from indexing(body.open(), members)), members)
    found = []
    for name in members:
        if answer.size(name) > MAX_STATE_IDS:
            raise BadAnswerContent(reason=f"{name!r} has more than {MAX_STATE_IDS} event IDs")
        ids: list[str] = []
        for number, raw in enumerate(answer.elements(name)):
            if number % 1000 == 999:
                yield 1000 * len(raw)
            event_id = _text(raw)
            if event_id is None or not event_id.startswith("$"):
                raise BadAnswerContent(reason=f"{name!r} has something that is no event ID")
            ids.append(event_id)
        found.append(tuple(ids))
    return StateIds(*found)


def events(body: SpooledBody, name: str) -> Generator[int, None, tuple[bytes, ...]]:
    """The JSON of the elements of the only array that counts in an answer, which are events; in steps.

    :raises BadJsonObject: :raises BadAnswerContent:
    """
    if body.size > MAX_EVENTS_BYTES:
        raise BadAnswerContent(reason=f"it has more than {MAX_EVENTS_BYTES} bytes")
    answer = IndexedAnswer(body, (yield from indexing(body.open(), (name,))), (name,))
    if answer.size(name) > MAX_EVENTS:
        raise BadAnswerContent(reason=f"it has more than {MAX_EVENTS} events")
    return tuple(answer.elements(name))


def only_event(found: Sequence[bytes]) -> bytes:
    """The event of an answer that has one.

    :raises BadAnswerContent:
    """
    if len(found) != 1:
        raise BadAnswerContent(reason=f"it has {len(found)} events instead of one")
    return found[0]


def signed_event(index: ObjectIndex) -> bytes:
    """The event in an answer to an invite.

    :raises BadAnswerContent:
    """
    event = index.values.get("event", b"")
    if not event.startswith(b"{"):
        raise BadAnswerContent(reason="it has no object 'event'")
    return event


def json_object(data: bytes) -> dict[str, Any]:
    """An answer that is a small JSON object.

    :raises BadJson: :raises BadAnswerContent:
    """
    value = jsons.decode(data, "it")
    if not isinstance(value, dict):
        raise BadAnswerContent(reason="it is no JSON object")
    return value


def membership_template(
    data: bytes, action: MembershipAction, room_id: str, user_id: str
) -> MembershipTemplate:
    """The answer to ``make_join``, ``make_knock`` or ``make_leave``, which must be about what was asked.

    :raises BadJson: :raises BadAnswerContent:
    """
    answer = json_object(data)
    event, version = answer.get("event"), answer.get("room_version", "1")
    if not isinstance(event, dict) or not isinstance(version, str):
        raise BadAnswerContent(reason="it has no object 'event', or its 'room_version' is no text")
    wanted = {"type": "m.room.member", "room_id": room_id, "sender": user_id, "state_key": user_id}
    for name, value in wanted.items():
        if event.get(name) != value:
            raise BadAnswerContent(reason=f"{name!r} of its event is not {value!r}")
    content = event.get("content")
    if not isinstance(content, dict) or content.get("membership") != action:
        raise BadAnswerContent(reason=f"the membership of its event is not {action!r}")
    return MembershipTemplate(version, event)


def directory_answer(data: bytes) -> DirectoryAnswer:
    """The answer to ``query/directory``.

    :raises BadJson: :raises BadAnswerContent:
    """
    answer = json_object(data)
    room_id, servers = answer.get("room_id"), answer.get("servers", [])
    if not isinstance(room_id, str) or not room_id.startswith("!") or len(room_id) > _MAX_ID:
        raise BadAnswerContent(reason="its 'room_id' is no room ID")
    if not isinstance(servers, list) or len(servers) > MAX_SERVERS:
        raise BadAnswerContent(reason="its 'servers' is no array, or has too many names")
    return DirectoryAnswer(room_id, tuple(server_names(iter(servers))))


def device_list(data: bytes, user_id: str) -> dict[str, Any]:
    """The answer to ``user/devices``.

    :raises BadJson: :raises BadAnswerContent:
    """
    answer = json_object(data)
    devices = answer.get("devices")
    if answer.get("user_id") != user_id or type(answer.get("stream_id")) is not int:
        raise BadAnswerContent(reason=f"it is not about {user_id}, or has no number 'stream_id'")
    if not isinstance(devices, list) or not all(map(_is_device, devices)):
        raise BadAnswerContent(reason="its 'devices' is no array of devices")
    return answer


def _is_device(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("device_id"), str)
        and isinstance(value.get("keys"), dict)
    )


def transaction_result(data: bytes) -> dict[str, str | None]:
    """The answer to a transaction: by event ID, the error that the server has had with the event, or None.

    An older server may say nothing of the events.

    :raises BadJson: :raises BadAnswerContent:
    """
    pdus = json_object(data).get("pdus", {})
    if not isinstance(pdus, dict):
        raise BadAnswerContent(reason="its 'pdus' is no object")
    return {event_id: _error(result) for event_id, result in pdus.items()}


def _error(result: object) -> str | None:
    error = result.get("error") if isinstance(result, dict) else None
    return None if error is None else printable(str(error))


def key_documents(data: bytes) -> tuple[bytes, ...]:
    """The documents in a notary's answer, each the keys of a server.

    :raises BadJson: :raises BadAnswerContent:
    """
    try:
        return tuple(map(bytes, msgspec.json.decode(data, type=_KeyDocuments).server_keys))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadAnswerContent(reason=str(error) or type(error).__name__) from None


class _KeyDocuments(msgspec.Struct):
    server_keys: list[msgspec.Raw]


class ServerError(NamedTuple):
    """What a server says of a request that it refuses.

    :ivar errcode: ``M_UNKNOWN`` where it has none
    :ivar members: all that it says
    """

    errcode: str
    message: str
    members: Mapping[str, Any]


def server_error(data: bytes) -> ServerError:
    """The error in an answer; anything that is none, such as a page of a proxy, is one without details."""
    try:
        answer = json_object(data)
    except (BadJson, BadAnswerContent):
        return ServerError("M_UNKNOWN", "the answer says no more", {})
    errcode, message = answer.get("errcode"), answer.get("error")
    return ServerError(
        printable(errcode, 100) if isinstance(errcode, str) else "M_UNKNOWN",
        printable(message) if isinstance(message, str) else "the answer says no more",
        answer,
    )


def printable(text: str, most: int = 300) -> str:
    """Text of another server, fit for a message on one line."""
    line = " ".join(text[: 2 * most].split())
    return "".join(each if each.isprintable() else "�" for each in line)[:most]


def _text(raw: bytes) -> str | None:
    """A JSON string that is an identifier; None for anything else."""
    if len(raw) > 2 * _MAX_ID:
        return None
    try:
        return _ID_LISTS.decode(raw)
    except (msgspec.DecodeError, ValueError):
        return None
