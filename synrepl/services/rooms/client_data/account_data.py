"""Account data of users: what clients keep for themselves, tags on rooms, and how far a user has read a room.

Source: https://spec.matrix.org/v1.16/client-server-api/#client-config and the section about room tagging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from synrepl.core import jsons
from synrepl.core.errors import InputError, Refused
from synrepl.services.rooms.client_data.stream_writers import (
    DataWriters,
    WrittenFact,
    written_fact,
)
from synrepl.storage.clients.account_data import read_account_data, write_account_data
from synrepl.storage.clients.receipts import (
    EventNotInRoom,
    is_before,
    place_of,
    stream_id_of,
)
from synrepl.storage.clients.written_values import StoredFact
from synrepl.storage.database import Database, Transaction
from synrepl.storage.outbox import Outbox
from synrepl.streams.synapse.account_data import ACCOUNT_DATA
from synrepl.streams.synapse.tag_account_data import TAG_ACCOUNT_DATA, TagAccountDataRow

#: Types whose content the server decides. Read markers are set by requests of their own.
READ_MARKER, PUSH_RULES = "m.fully_read", "m.push_rules"

TAGS = "m.tag"

#: Maximum size of one entry as JSON, of its type, and of the name of a tag, in bytes.
MAX_CONTENT_BYTES = 65_536
MAX_NAME_BYTES = 255

#: Maximum number of tags of a user on one room.
MAX_TAGS = 100

_SET, _TAG, _MARK = "set account data", "set tag", "set read marker"


class NoAccountData(InputError):
    """user {user_id} has no account data of type {type!r} there"""


class ControlledByServer(Refused):
    """account data of type {type!r} is set by the server, and not by clients"""


class AccountDataTooLarge(InputError):
    """the content has {size} bytes as JSON, and account data may have {most}"""


class BadAccountDataName(InputError):
    """{name!r} is not acceptable as {what}: it must have 1 to {most} bytes, and no NUL"""


class TooManyTags(Refused):
    """user {user_id} has {most} tags on room {room_id} already, which is the maximum"""


class AccountDataService:
    """Reads and changes account data, in whichever process its stream is written."""

    def __init__(self, database: Database, writers: DataWriters) -> None:
        self._database = database
        self._writers = writers
        writers.add(_SET, ACCOUNT_DATA, self._perform_set)
        writers.add(_TAG, ACCOUNT_DATA, self._perform_tag)
        writers.add(_MARK, ACCOUNT_DATA, self._perform_mark)

    # -- reading --------------------------------------------------------------------------

    async def get(self, user_id: str, room_id: str | None, kind: str) -> bytes:
        """The content of account data, as JSON.

        :param room_id: None for data that belongs to no room
        :raises NoAccountData: there is none
        """
        found = await self._find(user_id, room_id, kind)
        if found is None:
            raise NoAccountData(user_id=user_id, type=kind[:MAX_NAME_BYTES])
        return found

    async def tags(self, user_id: str, room_id: str) -> Mapping[str, Any]:
        """The tags of a user on a room, by name."""
        return _tags_in(await self._find(user_id, room_id, TAGS))

    async def _find(self, user_id: str, room_id: str | None, kind: str) -> bytes | None:
        if "\0" in kind or "\0" in (room_id or ""):
            return None

        def work(txn: Transaction) -> bytes | None:
            return read_account_data(txn, user_id, room_id, kind).content

        return await self._database.run("read account data", work, read_only=True)

    # -- changing -------------------------------------------------------------------------

    async def set(
        self, user_id: str, room_id: str | None, kind: str, content: Mapping[str, Any]
    ) -> WrittenFact | None:
        """Set account data, unless it is the same already.

        :raises ControlledByServer: :raises BadAccountDataName: :raises AccountDataTooLarge:
        :raises TooMuchAccountData: :raises SynreplError: the errors of :meth:`.DataWriters.run`
        """
        if kind in (READ_MARKER, PUSH_RULES):
            raise ControlledByServer(type=kind)
        check_name(kind, "a type of account data")
        if room_id is not None:
            check_room(room_id)
        text = _encoded(content)
        argument = {"user_id": user_id, "room_id": room_id, "type": kind, "content": text}
        return written_fact(await self._writers.run(_SET, user_id, argument))

    async def set_tag(
        self, user_id: str, room_id: str, tag: str, content: Mapping[str, Any] | None
    ) -> WrittenFact | None:
        """Put a tag on a room, or change it.

        :param content: None removes it
        :raises BadAccountDataName: :raises AccountDataTooLarge: :raises TooManyTags:
        :raises TooMuchAccountData: :raises SynreplError: the errors of :meth:`.DataWriters.run`
        """
        check_name(tag, "the name of a tag")
        check_room(room_id)
        text = None if content is None else _encoded(content)
        argument = {"user_id": user_id, "room_id": room_id, "tag": tag, "content": text}
        return written_fact(await self._writers.run(_TAG, user_id, argument))

    async def set_read_marker(
        self, user_id: str, room_id: str, event_id: str
    ) -> WrittenFact | None:
        """Mark everything up to an event as read, unless more of the room is marked already.

        :raises UnknownRoom: :raises NotAMember: :raises EventNotInRoom:
        :raises SynreplError: the errors of :meth:`.DataWriters.run`
        """
        check_room(room_id)
        check_name(event_id, "an event ID")
        argument = {"user_id": user_id, "room_id": room_id, "event_id": event_id}
        return written_fact(await self._writers.run(_MARK, user_id, argument))

    # -- in the process that writes ---------------------------------------------------------

    async def _perform_set(self, argument: dict[str, Any]) -> WrittenFact | None:
        user_id, room_id, kind = argument["user_id"], argument["room_id"], argument["type"]
        content: bytes = argument["content"].encode()

        def work(txn: Transaction, outbox: Outbox, writer: str) -> StoredFact | None:
            before, fact = read_account_data(txn, user_id, room_id, kind, lock=True)
            if before != content:
                _write(txn, outbox, writer, user_id, room_id, kind, content, before)
            return fact

        return await self._transact("set account data", work)

    async def _perform_tag(self, argument: dict[str, Any]) -> WrittenFact | None:
        user_id, room_id, tag = argument["user_id"], argument["room_id"], argument["tag"]
        text = argument["content"]

        def work(txn: Transaction, outbox: Outbox, writer: str) -> StoredFact | None:
            before, fact = read_account_data(txn, user_id, room_id, TAGS, lock=True)
            tags = dict(_tags_in(before))
            if text is None:
                tags.pop(tag, None)
            else:
                tags[tag] = jsons.decode(text, "a tag")
            if len(tags) > MAX_TAGS:
                raise TooManyTags(user_id=user_id, most=MAX_TAGS, room_id=room_id)
            content = jsons.canonical({"tags": tags})
            if content != before and (tags or before is not None):
                _write(txn, outbox, writer, user_id, room_id, TAGS, content, before)
            return fact

        return await self._transact("set a tag", work)

    async def _perform_mark(self, argument: dict[str, Any]) -> WrittenFact | None:
        user_id, room_id, event_id = argument["user_id"], argument["room_id"], argument["event_id"]

        def work(txn: Transaction, outbox: Outbox, writer: str) -> StoredFact | None:
            room_no, stream_id = place_of(txn, room_id, user_id, event_id)
            if stream_id is None:
                raise EventNotInRoom(event_id=event_id, room_id=room_id)
            before, fact = read_account_data(txn, user_id, room_id, READ_MARKER, lock=True)
            if before is not None:
                marked = jsons.decode(before, "a read marker")["event_id"]
                if marked == event_id or is_before(stream_id, stream_id_of(txn, room_no, marked)):
                    return fact
            content = jsons.encode({"event_id": event_id})
            _write(txn, outbox, writer, user_id, room_id, READ_MARKER, content, before)
            return fact

        return await self._transact("set a read marker", work)

    async def _transact(
        self, name: str, work: Callable[[Transaction, Outbox, str], StoredFact | None]
    ) -> WrittenFact | None:
        return await self._writers.transact(name, ACCOUNT_DATA, work, [TAG_ACCOUNT_DATA])


def _write(
    txn: Transaction,
    outbox: Outbox,
    writer: str,
    user_id: str,
    room_id: str | None,
    kind: str,
    content: bytes,
    before: bytes | None,
) -> None:
    write_account_data(txn, outbox, writer, user_id, room_id, kind, content, is_new=before is None)
    if kind == TAGS and room_id is not None and TAG_ACCOUNT_DATA.name in outbox.streams:
        # Where older followers look for tags.
        row = TagAccountDataRow(user_id, room_id, jsons.decode(content, "tags"))
        outbox.append(TAG_ACCOUNT_DATA, [row])


def _tags_in(content: bytes | None) -> Mapping[str, Any]:
    found = None if content is None else jsons.decode(content, "tags").get("tags")
    return found if isinstance(found, dict) else {}


def _encoded(content: Mapping[str, Any]) -> str:
    encoded = jsons.canonical(content)
    if len(encoded) > MAX_CONTENT_BYTES:
        raise AccountDataTooLarge(size=len(encoded), most=MAX_CONTENT_BYTES)
    return encoded.decode()


def check_name(name: str, what: str) -> None:
    """Check a name that a client chooses.

    :raises BadAccountDataName: it is empty or too long, or has a NUL
    """
    if not name or "\0" in name or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise BadAccountDataName(name=name[:MAX_NAME_BYTES], what=what, most=MAX_NAME_BYTES)


def check_room(room_id: str) -> None:
    """Check what is to be a room ID; it need not be the ID of a room that is here.

    :raises BadAccountDataName:
    """
    check_name(room_id, "a room ID")
    if not room_id.startswith("!"):
        raise BadAccountDataName(name=room_id, what="a room ID", most=MAX_NAME_BYTES)
