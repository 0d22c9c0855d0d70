"""Aliases of rooms, as functions of a transaction.

Source: https://spec.matrix.org/v1.16/client-server-api/#room-aliases
"""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.errors import InputError, Refused
from synrepl.storage.database import Transaction

#: Seconds within which a room is created that has claimed an alias.
CREATION_S = 60


class AliasInUse(Refused):
    """the alias {alias} is that of another room"""


class UnknownAlias(InputError):
    """no room has the alias {alias}"""


class RoomAlias(NamedTuple):
    """An alias.

    :ivar creator: the user who added it
    """

    alias: str
    room_id: str
    creator: str


def find_alias(txn: Transaction, alias: str) -> RoomAlias:
    """An alias.

    :raises UnknownAlias: there is none, or its room is not stored any more
    """
    txn.execute(
        "SELECT a.alias, a.room_id, a.creator FROM synrepl._room_aliases a"
        " JOIN synrepl._rooms r USING (room_id) WHERE a.alias = %s",
        (alias.replace("\0", ""),),
    )
    found = txn.fetchone_or_none()
    if found is None or "\0" in alias:
        raise UnknownAlias(alias=alias.replace("\0", "\ufffd")[:255])
    return RoomAlias(*found)


def add_alias(txn: Transaction, added: RoomAlias) -> None:
    """Add an alias. One whose room is not stored is taken over, if that room cannot be about to be created.

    :raises AliasInUse: another room has it
    """
    txn.execute(
        "INSERT INTO synrepl._room_aliases AS a (alias, room_id, creator) VALUES (%s, %s, %s)"
        " ON CONFLICT (alias) DO UPDATE SET room_id = excluded.room_id, creator = excluded.creator,"
        "  added_at = now() WHERE a.added_at < now() - make_interval(secs => %s)"
        "  AND NOT EXISTS (SELECT FROM synrepl._rooms r WHERE r.room_id = a.room_id)",
        (*added, CREATION_S),
    )
    if txn.rowcount == 0:
        raise AliasInUse(alias=added.alias)


def remove_alias(txn: Transaction, alias: str, room_id: str) -> None:
    """Remove an alias of a room."""
    txn.execute(
        "DELETE FROM synrepl._room_aliases WHERE alias = %s AND room_id = %s", (alias, room_id)
    )


def aliases_of(txn: Transaction, room_id: str, limit: int) -> list[str]:
    """The aliases of a room, at most ``limit``."""
    txn.execute(
        "SELECT alias FROM synrepl._room_aliases WHERE room_id = %s ORDER BY alias LIMIT %s",
        (room_id, limit),
    )
    return [str(alias) for (alias,) in txn.fetchall()]


def move_aliases(txn: Transaction, room_id: str, to_room_id: str) -> None:
    """Give all aliases of a room to another."""
    txn.execute(
        "UPDATE synrepl._room_aliases SET room_id = %s WHERE room_id = %s", (to_room_id, room_id)
    )
