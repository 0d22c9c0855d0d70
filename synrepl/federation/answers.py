"""What other servers answer, checked for its form and its size; whether it is true is not known here.

Source: https://spec.matrix.org/v1.16/server-server-api/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self


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


class RoomStateAnswer:
    """The state of a room before an event, with its auth chain. A context manager: it closes the body."""

    def state(self) -> Iterator[bytes]:
        """The JSON of each event, in order, read in batches."""
        raise NotImplementedError

    def auth_chain(self) -> Iterator[bytes]:
        """The JSON of each event, in order, read in batches."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the body; may be called again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SendJoinAnswer(RoomStateAnswer):
    """The answer to ``send_join``.

    :ivar event: the join as the server has signed it, too; None where the answer has none
    :ivar members_omitted: ``state`` has not all memberships
    :ivar servers_in_room: servers that were in the room before the join; None where the answer has none
    """

    event: bytes | None
    members_omitted: bool
    servers_in_room: Sequence[str] | None
