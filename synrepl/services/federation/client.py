"""The endpoints of other servers, as methods.

Source: https://spec.matrix.org/v1.16/server-server-api/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from synrepl.core.slices import Slices
from synrepl.federation.answers import (
    DirectoryAnswer,
    MembershipTemplate,
    RoomStateAnswer,
    SendJoinAnswer,
    StateIds,
)
from synrepl.rooms import Event
from synrepl.services.federation.interfaces import FederationTransport

MembershipAction = Literal["join", "knock", "leave"]


class FederationClient:
    """Asks other servers.

    Every method raises the errors of :meth:`.FederationTransport.send`, :class:`.RequestRefusedByServer` for an answer
    with a status other than 200, and :class:`.BadFederationAnswer` for one that is not what it must be. Events are JSON
    as it was received, and nothing of them is checked.

    :param server_name: of this server
    :param slices: budget of the reactor's turns, in which large answers are examined; None to examine them at once
    """

    def __init__(
        self, transport: FederationTransport, server_name: str, slices: Slices | None = None
    ) -> None:
        self._transport = transport
        self._server_name = server_name
        self._slices = slices

    async def make_membership(
        self,
        destination: str,
        action: MembershipAction,
        room_id: str,
        user_id: str,
        versions: Sequence[str] = (),
    ) -> MembershipTemplate:
        """Ask for an event by which a user joins a room, knocks or leaves.

        :param versions: the room versions that this server knows; not for ``leave``
        """
        raise NotImplementedError

    async def send_join(
        self, destination: str, event: Event, *, omit_members: bool
    ) -> SendJoinAnswer:
        """Join a room; the caller closes the answer."""
        raise NotImplementedError

    async def send_knock(self, destination: str, event: Event) -> Sequence[bytes]:
        """Knock.

        :return: stripped state of the room
        """
        raise NotImplementedError

    async def send_leave(self, destination: str, event: Event) -> None:
        """Leave a room, or reject an invite."""
        raise NotImplementedError

    async def invite(
        self,
        destination: str,
        event: Event,
        room_version: str,
        invite_room_state: Sequence[Mapping[str, Any]],
    ) -> bytes:
        """Invite a user of another server.

        :return: the event, signed by that server, too
        """
        raise NotImplementedError

    async def state_ids(self, destination: str, room_id: str, event_id: str) -> StateIds:
        """The state before an event, as event IDs."""
        raise NotImplementedError

    async def state(self, destination: str, room_id: str, event_id: str) -> RoomStateAnswer:
        """The state before an event; the caller closes the answer."""
        raise NotImplementedError

    async def event(self, destination: str, event_id: str) -> bytes:
        """An event."""
        raise NotImplementedError

    async def event_auth(self, destination: str, room_id: str, event_id: str) -> Sequence[bytes]:
        """The auth chain of an event."""
        raise NotImplementedError

    async def backfill(
        self, destination: str, room_id: str, event_ids: Sequence[str], limit: int
    ) -> Sequence[bytes]:
        """Events before and at some events."""
        raise NotImplementedError

    async def missing_events(
        self,
        destination: str,
        room_id: str,
        earliest: Sequence[str],
        latest: Sequence[str],
        limit: int,
        min_depth: int,
    ) -> Sequence[bytes]:
        """Events between known ones and the latest ones, without either."""
        raise NotImplementedError

    async def send_transaction(
        self,
        destination: str,
        txn_id: str,
        origin_ts: int,
        pdus: Sequence[bytes],
        edus: Sequence[bytes],
    ) -> Mapping[str, str | None]:
        """Send events and EDUs.

        :return: by event ID, the error that the server has had with the event, or None
        """
        raise NotImplementedError

    async def query_directory(self, destination: str, alias: str) -> DirectoryAnswer:
        """The room that an alias of a server stands for."""
        raise NotImplementedError

    async def query_profile(
        self, destination: str, user_id: str, field: str | None = None
    ) -> Mapping[str, Any]:
        """The profile of a user, or a field of it."""
        raise NotImplementedError

    async def user_devices(self, destination: str, user_id: str) -> Mapping[str, Any]:
        """The devices of a user and their keys."""
        raise NotImplementedError

    async def server_keys(self, destination: str) -> bytes:
        """The keys of a server, as it publishes them."""
        raise NotImplementedError

    async def query_keys(
        self, notary: str, wanted: Mapping[str, Mapping[str, int]]
    ) -> Sequence[bytes]:
        """The keys of other servers, as a notary knows them.

        :param wanted: by server and key ID, the time in milliseconds at which the key must still be valid
        """
        raise NotImplementedError
