"""What may be new for a user, and what answers that."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from synrepl.services.rooms.news.sync_token import SyncToken


class News(NamedTuple):
    """What may be new for a user between two tokens. What is not named has not changed.

    Rooms that are named may turn out to have nothing that the user sees.

    :ivar rooms: joined rooms with events, or changes of the state; None: any, the tables have to be asked
    :ivar membership: whether a membership of the user has changed, or may have; if not, the user is in each of
        ``rooms``, and was when the first of the tokens was given out
    :ivar receipts: joined rooms with receipts; None: any
    :ivar typing: joined rooms where users began or ceased to type; None: any
    :ivar account_data: of the user, in any room or in none
    :ivar presence: of anybody who shares a room with the user
    :ivar to_device: messages to devices of the user
    :ivar private_receipts: receipts of the user that nobody else is told of
    """

    rooms: frozenset[str] | None = frozenset()
    membership: bool = False
    receipts: frozenset[str] | None = frozenset()
    typing: frozenset[str] | None = frozenset()
    account_data: bool = False
    presence: bool = False
    to_device: bool = False
    private_receipts: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is new."""
        return self is NO_NEWS or self == NO_NEWS


NO_NEWS = News()

#: A resync: everything may be new, so the tables have to be asked. The answer to a token from too long ago.
ANY_NEWS = News(None, True, None, None, True, True, True, True)


class NewsSource(Protocol):
    """Says what may be new for a user, from memory wherever that is possible."""

    async def news_for(self, user_id: str, since: SyncToken, upto: SyncToken) -> News:
        """What may be new above ``since``, of what this process has applied.

        It never leaves out anything that is new at or below ``upto``.

        :param upto: positions of this process
        :raises SynreplError: the rooms of the user are not cached, and cannot be read now
        """
