"""Templates of membership events, by which users of other servers join, knock, and leave.

Source: https://spec.matrix.org/v1.16/server-server-api/#joining-rooms
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, NamedTuple

from signedjson.types import SigningKey

from synrepl.core.clock import Clock
from synrepl.core.errors import InputError, Refused
from synrepl.rooms import (
    BadIdentifier,
    Event,
    EventBuilder,
    EventDraft,
    add_signature,
    event_of,
    room_version,
    server_of,
)
from synrepl.services.federation.resident.room_access import RoomAccess
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.remote_joins import (
    AUTHORISED_BY,
    authorisation_of_join,
    build_template,
)

#: What users of other servers do with a room by themselves.
RemoteMembership = Literal["join", "knock", "leave"]


class NotItsUser(Refused):
    """{user_id} is not a user of {server}"""


class IncompatibleRoomVersion(InputError):
    """room {room_id} has version {room_version}, which your server does not know"""


class MembershipForm(NamedTuple):
    """The answer to ``make_join``, ``make_knock`` and ``make_leave``.

    :ivar event: without hashes and signatures
    """

    room_version: str
    event: dict[str, object]


def check_own_user(user_id: str, server: str) -> None:
    """Check that a user is one of a server.

    :raises NotItsUser:
    """
    try:
        is_own = server_of(user_id) == server and "\0" not in user_id
    except BadIdentifier:
        is_own = False
    if not is_own:
        raise NotItsUser(user_id=user_id[:255], server=server)


class MembershipTemplates:
    """Makes templates.

    :param key: the signing key of this server
    """

    def __init__(
        self,
        clock: Clock,
        database: Database,
        access: RoomAccess,
        server_name: str,
        key: SigningKey,
    ) -> None:
        self._clock = clock
        self._database = database
        self._access = access
        self._server_name = server_name
        self._key = key

    async def make(
        self,
        origin: str,
        membership: RemoteMembership,
        room_id: str,
        user_id: str,
        versions: Collection[str],
    ) -> MembershipForm:
        """A template for a user of another server.

        :param versions: the room versions that the other server knows
        :raises NotItsUser: :raises IncompatibleRoomVersion: :raises EventNotAllowed:
        :raises UnableToAuthoriseJoin: :raises UnableToGrantJoin:
        :raises SynreplError: the errors of :meth:`.RoomAccess.for_newcomer`
        """
        check_own_user(user_id, origin)
        admitted = await self._access.for_newcomer(origin, room_id)
        version = admitted.room.version
        # Who leaves knows the version: an old specification has no such parameter there.
        if membership != "leave" and version not in (versions or ("1",)):
            raise IncompatibleRoomVersion(room_id=room_id, room_version=version)
        builder = EventBuilder(room_version(version), origin, self._key)
        now_ms = int(self._clock.seconds() * 1000)

        def work(txn: Transaction) -> dict[str, object]:
            content: dict[str, Any] = {"membership": membership}
            if membership == "join":
                user = authorisation_of_join(txn, room_id, user_id, self._server_name)
                content |= {} if user is None else {AUTHORISED_BY: user}
            draft = EventDraft("m.room.member", user_id, content, now_ms, user_id)
            return build_template(txn, room_id, builder, draft, self._countersigned)

        fields = await self._database.run("make a template", work, read_only=True)
        return MembershipForm(version, fields)

    def _countersigned(self, event: Event) -> Event:
        fields = add_signature(event.fields, event.version, self._server_name, self._key)
        return event_of(fields, event.version)
