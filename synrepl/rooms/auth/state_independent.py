"""Checks of a single event, without any state.

Sources: https://spec.matrix.org/v1.16/server-server-api/#validating-hashes-and-signatures-on-received-events
(who must have signed); steps 1, 5.1, 5.2 and 5.4.1 of https://spec.matrix.org/v1.16/rooms/v12/#authorization-rules.
Size limits are checked when an :class:`~synrepl.rooms.event.Event` is parsed. Here signatures need only be
present; :mod:`synrepl.rooms.signatures` verifies them.
"""

from __future__ import annotations

from synrepl.rooms.auth import membership, third_party
from synrepl.rooms.auth.create import check_create
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import AUTHORISING_USER, CREATE, MEMBER
from synrepl.rooms.identifiers import is_user_id, server_part
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.versions import EventIds


def check_state_independent(event: Event) -> Refusal | None:
    """Check an event by itself.

    :returns: None when it passes
    """
    kind = event.type
    if kind == MEMBER:
        refusal = _check_member(event)
    elif kind == CREATE:
        refusal = check_create(event)
    else:
        refusal = None
    return refusal or _check_signed(event)


def _check_member(event: Event) -> Refusal | None:
    refusal = membership.check_complete(event)
    if refusal is not None:
        return refusal
    content = event.content
    if content["membership"] == "invite" and "third_party_invite" in content:
        return third_party.check_complete(event)
    if (
        content["membership"] == "join"
        and event.version.restricted_joins
        and AUTHORISING_USER in content
    ):
        return _check_authorising_user_signed(event)
    return None


def _check_signed(event: Event) -> Refusal | None:
    """The sender's server must have signed, and in versions 1 and 2 the server in the event ID.

    An invite with ``third_party_invite`` is made by the server of the invited user, so it is exempt.
    Its presence is enough here, unlike in :func:`~synrepl.rooms.signatures.signing_servers`: an
    incomplete one has already been refused.
    """
    server = server_part(event.sender)
    if not server or event.sender[0] != "@":
        return Refusal("sender-no-user", f"its sender {event.sender!r} is no user ID")
    if not _has_signed(event, server) and not (
        event.type == MEMBER
        and event.membership == "invite"
        and "third_party_invite" in event.content
    ):
        return Refusal("unsigned", f"the server of {event.sender} did not sign it")
    if event.version.event_ids is EventIds.GIVEN:
        named = server_part(event.event_id)
        if named != server and not _has_signed(event, named):
            return Refusal("unsigned-id", f"the server in {event.event_id} did not sign it")
    return None


def _check_authorising_user_signed(event: Event) -> Refusal | None:
    """Step 5.2, from version 8: the authorising user's server must have signed.

    The step names every membership, the section on signatures only joins. Servers do the latter,
    so that a user who joined this way can leave with the same content.
    :func:`~synrepl.rooms.signatures.signing_servers` requires only that the value names a server; here
    it must be a user ID.
    """
    authorising_user = event.content[AUTHORISING_USER]
    if not is_user_id(authorising_user):
        return Refusal("voucher-no-user", f"{AUTHORISING_USER} is no user ID")
    if not _has_signed(event, server_part(authorising_user)):
        return Refusal("voucher-unsigned", f"the server of {authorising_user} did not sign it")
    return None


def _has_signed(event: Event, server: str) -> bool:
    of_server = event.signatures.get(server)
    return isinstance(of_server, dict) and bool(of_server)
