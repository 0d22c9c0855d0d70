"""The endpoints of other servers, as methods.

Source: https://spec.matrix.org/v1.16/server-server-api/
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from synrepl.core import jsons
from synrepl.core.slices import Slices
from synrepl.federation import answers
from synrepl.federation.answers import (
    DirectoryAnswer,
    MembershipAction,
    MembershipTemplate,
    RoomStateAnswer,
    SendJoinAnswer,
    StateIds,
)
from synrepl.federation.event_scanner import indexing
from synrepl.federation.requests import MAX_READ, MAX_STATE_ANSWER, FederationRequest, SpooledBody
from synrepl.federation.transactions import transaction_content
from synrepl.rooms import Event, canonical_json
from synrepl.services.federation.asking import V1, V2, Asking
from synrepl.services.federation.interfaces import FederationTransport

T = TypeVar("T")

#: Seconds for answers that a server has to compute, and for large ones to arrive.
ANSWER_S = 30.0
SLOW_S = 60.0
LARGE_S = 600.0

#: Maximum size of an answer with event IDs, and of one that is parsed as a whole, in bytes.
MAX_IDS_ANSWER = 64 * 2**20
MAX_EVENTS_ANSWER = answers.MAX_EVENTS_BYTES
MAX_DEVICES_ANSWER = 8 * 2**20


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
        self._asking = Asking(transport, slices)
        self._server_name = server_name

    # -- memberships --------------------------------------------------------------------------

    async def make_membership(
        self,
        destination: str,
        action: MembershipAction,
        room_id: str,
        user_id: str,
        versions: Sequence[str] = (),
        timeout_s: float = ANSWER_S,
    ) -> MembershipTemplate:
        """Ask for an event by which a user joins a room, knocks or leaves.

        It is asked for by a person who waits, so also a server is asked that has failed lately.

        :param versions: the room versions that this server knows; not for ``leave``
        """
        request = FederationRequest(
            "GET",
            destination,
            _path(V1, f"make_{action}", room_id, user_id),
            query=[("ver", version) for version in versions],
            timeout_s=timeout_s,
            ignores_back_off=True,
        )
        return await self._asking.small(
            request, lambda data: answers.membership_template(data, action, room_id, user_id)
        )

    async def send_join(
        self,
        destination: str,
        event: Event,
        *,
        omit_members: bool,
        timeout_s: float = LARGE_S,
        head_timeout_s: float = SLOW_S,
    ) -> SendJoinAnswer:
        """Join a room; the caller closes the answer.

        :param head_timeout_s: seconds until the answer begins
        """

        def request(version: str) -> FederationRequest:
            return FederationRequest(
                "PUT",
                destination,
                _path(version, "send_join", event.room_id, event.event_id),
                query=[("omit_members", "true")] if omit_members else (),
                content=_canonical(event.raw),
                timeout_s=timeout_s,
                head_timeout_s=head_timeout_s,
                max_bytes=MAX_STATE_ANSWER,
                ignores_back_off=True,
            )

        return await self._asking.either_version(
            request, lambda asked: self._asking.large(asked, _send_join_answer)
        )

    async def send_knock(
        self, destination: str, event: Event, timeout_s: float = SLOW_S
    ) -> Sequence[bytes]:
        """Knock.

        :return: stripped state of the room
        """
        request = FederationRequest(
            "PUT",
            destination,
            _path(V1, "send_knock", event.room_id, event.event_id),
            content=_canonical(event.raw),
            timeout_s=timeout_s,
            ignores_back_off=True,
        )
        return await self._asking.events(request, "knock_room_state")

    async def send_leave(self, destination: str, event: Event, timeout_s: float = SLOW_S) -> None:
        """Leave a room, or reject an invite."""

        def request(version: str) -> FederationRequest:
            return FederationRequest(
                "PUT",
                destination,
                _path(version, "send_leave", event.room_id, event.event_id),
                content=_canonical(event.raw),
                timeout_s=timeout_s,
                ignores_back_off=True,
            )

        await self._asking.either_version(
            request, lambda asked: self._asking.small(asked, lambda data: None)
        )

    async def invite(
        self,
        destination: str,
        event: Event,
        room_version: str,
        invite_room_state: Sequence[Mapping[str, Any]],
        timeout_s: float = SLOW_S,
    ) -> bytes:
        """Invite a user of another server.

        :return: the event, signed by that server, too
        """
        content = {
            "room_version": room_version,
            "event": _decoded(event.raw),
            "invite_room_state": list(invite_room_state),
        }
        request = FederationRequest(
            "PUT",
            destination,
            _path(V2, "invite", event.room_id, event.event_id),
            content=canonical_json(content),
            timeout_s=timeout_s,
            max_bytes=MAX_READ,
            ignores_back_off=True,
        )

        def read(body: SpooledBody) -> Generator[int, None, bytes]:
            return answers.signed_event((yield from indexing(body.open(), ("event",))))

        return await self._asking.read(request, read)

    # -- states and events --------------------------------------------------------------------

    async def state_ids(self, destination: str, room_id: str, event_id: str) -> StateIds:
        """The state before an event, as event IDs."""
        request = FederationRequest(
            "GET",
            destination,
            _path(V1, "state_ids", room_id),
            query=[("event_id", event_id)],
            timeout_s=LARGE_S,
            head_timeout_s=SLOW_S,
            max_bytes=MAX_IDS_ANSWER,
        )
        return await self._asking.read(request, answers.state_ids)

    async def state(self, destination: str, room_id: str, event_id: str) -> RoomStateAnswer:
        """The state before an event; the caller closes the answer."""
        request = FederationRequest(
            "GET",
            destination,
            _path(V1, "state", room_id),
            query=[("event_id", event_id)],
            timeout_s=LARGE_S,
            head_timeout_s=SLOW_S,
            max_bytes=MAX_STATE_ANSWER,
        )
        return await self._asking.large(request, _room_state_answer)

    async def event(self, destination: str, event_id: str) -> bytes:
        """An event."""
        request = FederationRequest("GET", destination, _path(V1, "event", event_id))
        found = await self._asking.events(request, "pdus")
        return self._asking.checked(request, lambda: answers.only_event(found))

    async def event_auth(self, destination: str, room_id: str, event_id: str) -> Sequence[bytes]:
        """The auth chain of an event."""
        path = _path(V1, "event_auth", room_id, event_id)
        request = FederationRequest("GET", destination, path, timeout_s=SLOW_S)
        return await self._asking.events(request, "auth_chain")

    async def backfill(
        self, destination: str, room_id: str, event_ids: Sequence[str], limit: int
    ) -> Sequence[bytes]:
        """Events before and at some events."""
        request = FederationRequest(
            "GET",
            destination,
            _path(V1, "backfill", room_id),
            query=[*(("v", event_id) for event_id in event_ids), ("limit", str(limit))],
            timeout_s=SLOW_S,
        )
        return await self._asking.events(request, "pdus")

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
        content = {
            "earliest_events": list(earliest),
            "latest_events": list(latest),
            "limit": limit,
            "min_depth": min_depth,
        }
        request = FederationRequest(
            "POST",
            destination,
            _path(V1, "get_missing_events", room_id),
            content=canonical_json(content),
            timeout_s=SLOW_S,
        )
        return await self._asking.events(request, "events")

    # -- transactions and queries -------------------------------------------------------------

    async def send_transaction(
        self,
        destination: str,
        txn_id: str,
        origin_ts: int,
        pdus: Sequence[bytes],
        edus: Sequence[bytes],
    ) -> Mapping[str, str | None]:
        """Send events and EDUs.

        :param origin_ts: milliseconds since 1970
        :return: by event ID, the error that the server has had with the event, or None
        """
        content = transaction_content(
            self._server_name, origin_ts, list(map(_canonical, pdus)), list(map(_canonical, edus))
        )
        request = FederationRequest(
            "PUT",
            destination,
            _path(V1, "send", txn_id),
            content=content,
            timeout_s=SLOW_S,
            max_bytes=MAX_READ,
        )
        return await self._asking.small(request, answers.transaction_result)

    async def query_directory(
        self, destination: str, alias: str, timeout_s: float = ANSWER_S
    ) -> DirectoryAnswer:
        """The room that an alias of a server stands for."""
        request = FederationRequest(
            "GET",
            destination,
            f"{V1}/query/directory",
            query=[("room_alias", alias)],
            timeout_s=timeout_s,
            ignores_back_off=True,
        )
        return await self._asking.small(request, answers.directory_answer)

    async def query_profile(
        self, destination: str, user_id: str, field: str | None = None
    ) -> Mapping[str, Any]:
        """The profile of a user, or a field of it."""
        query = [("user_id", user_id), *([] if field is None else [("field", field)])]
        request = FederationRequest("GET", destination, f"{V1}/query/profile", query=query)
        return await self._asking.small(request, answers.json_object)

    async def user_devices(self, destination: str, user_id: str) -> Mapping[str, Any]:
        """The devices of a user and their keys."""
        request = FederationRequest(
            "GET", destination, _path(V1, "user/devices", user_id), max_bytes=MAX_DEVICES_ANSWER
        )
        return await self._asking.small(
            request, lambda data: answers.device_list(data, user_id), MAX_DEVICES_ANSWER
        )

    # -- keys ---------------------------------------------------------------------------------

    async def server_keys(self, destination: str, *, ignores_back_off: bool = False) -> bytes:
        """The keys of a server, as it publishes them.

        :param ignores_back_off: the server is asked although it has failed lately
        """
        request = FederationRequest(
            "GET",
            destination,
            "/_matrix/key/v2/server",
            timeout_s=10.0,
            max_bytes=MAX_READ,
            ignores_back_off=ignores_back_off,
            is_signed=False,
        )
        return await self._asking.small(request, lambda data: data)

    async def query_keys(
        self, notary: str, wanted: Mapping[str, Mapping[str, int]]
    ) -> Sequence[bytes]:
        """The keys of other servers, as a notary knows them.

        :param wanted: by server and key ID, the time in milliseconds at which the key must still be valid
        """
        content = {
            "server_keys": {
                server: {key_id: {"minimum_valid_until_ts": at} for key_id, at in keys.items()}
                for server, keys in wanted.items()
            }
        }
        request = FederationRequest(
            "POST",
            notary,
            "/_matrix/key/v2/query",
            content=canonical_json(content),
            max_bytes=8 * MAX_READ,
            is_signed=False,
        )
        return await self._asking.small(request, answers.key_documents, 8 * MAX_READ)


def _send_join_answer(body: SpooledBody) -> Generator[int, None, SendJoinAnswer]:
    index = yield from indexing(body.open(), answers.SEND_JOIN_MEMBERS)
    return SendJoinAnswer(body, index)


def _room_state_answer(body: SpooledBody) -> Generator[int, None, RoomStateAnswer]:
    index = yield from indexing(body.open(), RoomStateAnswer.members)
    return RoomStateAnswer(body, index)


def _path(prefix: str, endpoint: str, *segments: str) -> str:
    """A path; its last segments are percent-encoded."""
    return "/".join([prefix, endpoint, *(quote(segment, safe="") for segment in segments)])


def _decoded(raw: bytes) -> Any:
    return jsons.decode_exactly(raw, "an event")[0]


def _canonical(raw: bytes) -> bytes:
    """The canonical JSON of JSON, so that the signature of the request is of what is sent."""
    return canonical_json(_decoded(raw))
