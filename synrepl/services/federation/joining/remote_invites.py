"""Invites of users of other servers: their server signs the invite, too, before it becomes a part of the room.

Source: https://spec.matrix.org/v1.16/server-server-api/#inviting-to-a-room
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from synrepl.core import jsons
from synrepl.rooms import Event, EventDraft, Judged, judge, server_of, stripped_event
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.joining.errors import SERVER_FAULTS, failure_of, outcome_of
from synrepl.services.federation.joining.own_membership import AskedMembership, MembershipMaker
from synrepl.services.federation.resident.arrivals import STRIPPED_TYPES, MembershipArrivals
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.persisting.read_view import read_view
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.reading.client_rooms import current_events
from synrepl.storage.rooms.states.state_handle import StoredState
from synrepl.storage.rooms.tables.numbers import require_room

#: Seconds that the other server has.
INVITE_S = 20.0


class _BuiltInvite(NamedTuple):
    """An invite, and stripped state of the room as JSON objects."""

    event: Event
    shown: Sequence[dict[str, Any]]


class RemoteInvites:
    """Invites users of other servers. It may be done in any process.

    :param arrivals: stores the invite in the process of the room
    """

    def __init__(
        self,
        database: Database,
        client: FederationClient,
        maker: MembershipMaker,
        sender: EventSender,
        arrivals: MembershipArrivals,
    ) -> None:
        self._database = database
        self._client = client
        self._maker = maker
        self._sender = sender
        self._arrivals = arrivals

    async def invite(self, inviter: str, asked: AskedMembership) -> Event:
        """Invite a user; nothing is stored unless the user's server takes the invite.

        :param asked: by whom the user is to be invited, with the content of the event
        :raises UnknownRoom: :raises BadEvent: :raises NoCanonicalJson:
        :raises EventNotAllowed: the rules of the room refuse it
        :raises RefusedByServers: :raises RoomNotAtServers: :raises ServersDidNotHelp:
        :raises SynreplError: the errors of :meth:`.MembershipArrivals.persist`
        """
        placement = await self._sender.placements.of(asked.room_id)
        built = await self._database.run(
            "build an invite",
            lambda txn: self._built(txn, inviter, asked, placement.version),
            read_only=True,
        )
        server = server_of(asked.user_id)
        try:
            raw = await self._client.invite(
                server, built.event, placement.version, built.shown, INVITE_S
            )
            signed = self._maker.with_signature_of(server, built.event, raw)
        except SERVER_FAULTS as error:
            raise failure_of(asked.room_id, [outcome_of(server, error)]) from error
        await self._arrivals.persist(placement.writer, signed)
        return signed

    def _built(
        self, txn: Transaction, inviter: str, asked: AskedMembership, version: str
    ) -> _BuiltInvite:
        content = {**asked.content, "membership": "invite"}
        draft = EventDraft("m.room.member", inviter, content, self._sender.now_ms(), asked.user_id)
        _, view = read_view(txn, require_room(txn, asked.room_id))
        judged: Judged[StoredState] = judge(self._sender.builder(version).build(draft, view), view)
        reason = judged.refusal or judged.soft_failure
        if reason is not None:
            raise EventNotAllowed(reason=reason.sentence)
        state = current_events(txn, asked.room_id, STRIPPED_TYPES)
        shown = [stripped_event(each.raw) for key, each in state.items() if key[1] == ""]
        return _BuiltInvite(judged.event, [jsons.decode(each, "state") for each in shown])
