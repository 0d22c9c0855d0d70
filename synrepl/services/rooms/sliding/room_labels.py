"""What a user's account data says of rooms: which are direct chats, and how they are tagged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from synrepl.caches.registry import Caches
from synrepl.core import jsons
from synrepl.storage.clients.account_data import read_account_data, read_in_rooms
from synrepl.storage.database import Database, Transaction
from synrepl.streams.synapse.account_data import DIRECT_ROOMS, ROOM_TAGS

#: Users whose labels are remembered, and the memory that they may take, in bytes.
MAX_USERS, MAX_BYTES = 50_000, 100 * 2**20

_ROOM_BYTES, _TAG_BYTES, _LABELS_BYTES = 150, 100, 500


@dataclass(frozen=True, slots=True)
class RoomLabels:
    """The labels of a user's rooms.

    :ivar direct: IDs of the rooms in ``m.direct``
    :ivar tags: names of the tags in ``m.tag``, by room ID; rooms without any are left out
    """

    direct: frozenset[str] = frozenset()
    tags: Mapping[str, frozenset[str]] = field(default_factory=dict)


#: The labels of a user, by ID.
LabelsOf = Callable[[str], Awaitable[RoomLabels]]


_NO_LABELS = RoomLabels()


async def no_labels(user_id: str) -> RoomLabels:
    """No room has labels, where no account data is served."""
    return _NO_LABELS


def cached_labels(caches: Caches, database: Database) -> LabelsOf:
    """The labels of a user's rooms, read once until they change."""

    @caches.cached(name="room_labels", max_entries=MAX_USERS, max_bytes=MAX_BYTES, size_of=_size_of)
    async def labels_of(user_id: str) -> RoomLabels:
        def work(txn: Transaction) -> RoomLabels:
            return read_labels(txn, user_id)

        return await database.run("read room labels", work, read_only=True)

    return labels_of


def read_labels(txn: Transaction, user_id: str) -> RoomLabels:
    """The labels of a user's rooms. What has another form than the specification's counts as absent.

    Sources: https://spec.matrix.org/v1.16/client-server-api/#mdirect, https://spec.matrix.org/v1.16/client-server-api/#mtag
    """
    tags = {
        room_id: frozenset(found)
        for room_id, content in read_in_rooms(txn, user_id, ROOM_TAGS).items()
        if isinstance(found := jsons.decode(content, "tags").get("tags"), dict) and found
    }
    direct = read_account_data(txn, user_id, None, DIRECT_ROOMS).content
    users = {} if direct is None else jsons.decode(direct, "direct rooms")
    rooms = (room for listed in users.values() if isinstance(listed, list) for room in listed)
    return RoomLabels(frozenset(each for each in rooms if isinstance(each, str)), tags)


def _size_of(labels: RoomLabels) -> int:
    tags = sum(_ROOM_BYTES + _TAG_BYTES * len(each) for each in labels.tags.values())
    return _LABELS_BYTES + _ROOM_BYTES * len(labels.direct) + tags
