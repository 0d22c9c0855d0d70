"""Who types in which room, as a process knows it from the stream ``typing``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact
from synrepl.streams.synapse.typing import TYPING, TypingRow


class TypingRooms:
    """The users that type in each room; a :class:`.FactObserver` and :class:`~.data_reader.TypingUsers`.

    The stream is in memory. When its writer starts again, nobody types any more, and clients that were told otherwise
    have to be told that. So rooms where somebody typed are remembered then.
    """

    def __init__(self) -> None:
        self._users: dict[str, Sequence[str]] = {}

    def __len__(self) -> int:
        """Number of rooms that are remembered."""
        return len(self._users)

    def users(self, room_id: str) -> Sequence[str]:
        """The users that type in a room."""
        return self._users.get(room_id, ())

    def rooms(self) -> Collection[str]:
        """Rooms where users type, or typed when facts were lost."""
        return self._users.keys()

    def unknown_upto(self, stream: str, writer: str, token: Token) -> None:
        """Facts may be missing: nobody types any more."""
        if stream == TYPING.name:
            self._users = {room_id: () for room_id, users in self._users.items() if users}

    def applied(self, stream: str, writer: str, facts: Sequence[Fact]) -> None:
        """Note who types."""
        if stream != TYPING.name:
            return
        for fact in facts:
            for row in fact.rows:
                if isinstance(row, TypingRow):
                    if row.user_ids:
                        self._users[row.room_id] = tuple(row.user_ids)
                    else:
                        self._users.pop(row.room_id, None)
