"""What it takes to read whole events: tables and a function of the room store, and the rights to use them."""

from __future__ import annotations

from synrepl.core.errors import StorageError
from synrepl.pipeline.source.database.whole_events import TABLES
from synrepl.storage.database import Transaction

#: The function that unpacks states.
_FUNCTION = "synrepl.state_changes(bytea)"

_PARTS = ", ".join(
    [
        *(
            f"('SELECT', 'synrepl.{table}', to_regclass('synrepl.{table}')::oid,"
            f" has_table_privilege(to_regclass('synrepl.{table}'), 'SELECT'))"
            for table in TABLES
        ),
        f"('EXECUTE', '{_FUNCTION}', to_regprocedure('{_FUNCTION}')::oid,"
        f" has_function_privilege(to_regprocedure('{_FUNCTION}'), 'EXECUTE'))",
    ]
)

#: The tables and the function that this role cannot use, and whether they are there.
_UNUSABLE = (
    f"SELECT name, privilege, number IS NOT NULL FROM (VALUES {_PARTS})"
    " AS parts (privilege, name, number, may) WHERE may IS NOT TRUE ORDER BY privilege DESC, name"
)


class RoomsNotGranted(StorageError):
    """stream {stream!r} cannot be read: the database's user lacks {rights}; grant them"""


class RoomsNotUpgraded(StorageError):
    """stream {stream!r} cannot be read: the schema of the database lacks {missing}; run 'synrepl schema' to upgrade it"""


class RoomRights:
    """What this role lacks to read whole events, as of the construction of this object.

    :ivar has_events: there are or were events of rooms, and this role may read them
    """

    def __init__(self, txn: Transaction) -> None:
        found = txn.execute(_UNUSABLE).fetchall()
        self._missing = [name for name, _, is_there in found if not is_there]
        self._refused = [f"{privilege} on {name}" for name, privilege, _ in found]
        # Also when all of them have been removed: a lake has their facts.
        self.has_events = not found and bool(
            txn.execute("SELECT is_called FROM synrepl._event_numbers").fetchone()[0]
        )

    def why_unreadable(self, stream: str) -> str | None:
        """Why a stream of whole events cannot be read; None if this role has what it takes."""
        if self._missing:
            return str(RoomsNotUpgraded(stream=stream, missing=", ".join(self._missing)))
        if self._refused:
            return str(RoomsNotGranted(stream=stream, rights=", ".join(self._refused)))
        return None
