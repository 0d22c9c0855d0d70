"""The HTTP routes of joins of rooms of other servers: ``POST /joins`` and ``GET /joins``."""

from __future__ import annotations

import msgspec

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core.errors import InputError, Refused, SynreplError
from synrepl.daemon.assemble.joining import JoiningServices
from synrepl.rooms import BadIdentifier, check_user_id, server_of
from synrepl.services.federation.joining.errors import (
    NoServerToAsk,
    RefusedByServers,
    RoomNotAtServers,
)
from synrepl.services.federation.joining.join import JoinRequest
from synrepl.storage.rooms.tables.aliases import UnknownAlias

#: Seconds for which a request waits for the end of a join.
WAIT_S = 0.5


class BadJoinRequest(InputError):
    """the body of this request is not acceptable: {reason}"""


class NotOurUser(Refused):
    """{user_id} is no user of {server_name}"""


class _Join(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request.

    :ivar room: its ID or an alias
    :ivar run: of a join that an earlier request began
    :ivar whole: the whole state of the room is wanted at once
    """

    room: str
    user_id: str
    via: list[str] = []  # msgspec copies it
    reason: str | None = None
    run: str | None = None
    whole: bool = False


_STATUSES: dict[type[SynreplError], int] = {
    UnknownAlias: 404,
    NoServerToAsk: 404,
    RoomNotAtServers: 404,
    RefusedByServers: 403,
    NotOurUser: 400,
}


def join_routes(joining: JoiningServices | None, server_name: str) -> list[Route]:
    """The routes of a process that asks other servers; none without federation."""
    if joining is None:
        return []
    joins, memberships = joining.joins, joining.memberships

    async def join(request: HttpRequest) -> HttpAnswer:
        asked = _asked(request.body, server_name)
        room = await memberships.find(asked.room)
        content = {} if asked.reason is None else {"reason": asked.reason}
        wanted = JoinRequest(
            room.room_id, asked.user_id, content, asked.via, room.servers, asked.whole
        )
        state = await joins.follow(wanted, WAIT_S, asked.run)
        joined = state.joined
        return json_answer(
            {
                "room_id": room.room_id,
                "run": state.run,
                "progress": state.progress,
                "joined": joined is not None,
                "event_id": None if joined is None or joined.sent is None else joined.sent.event_id,
                "partial": None if joined is None else joined.is_partial,
            }
        )

    async def running(request: HttpRequest) -> HttpAnswer:
        return json_answer(joins.status())

    return [
        Route("POST", "/joins", join, takes_body=True, statuses=_STATUSES),
        Route("GET", "/joins", running),
    ]


def _asked(body: bytes, server_name: str) -> _Join:
    try:
        asked = msgspec.json.decode(body, type=_Join)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadJoinRequest(reason=str(error)[:200]) from None
    try:
        check_user_id(asked.user_id)
    except BadIdentifier as error:
        raise BadJoinRequest(reason=error) from None
    if server_of(asked.user_id) != server_name:
        raise NotOurUser(user_id=asked.user_id, server_name=server_name)
    return asked
