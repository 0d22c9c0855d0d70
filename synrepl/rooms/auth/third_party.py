"""Third-party invites: users invited by e-mail address or another third-party identifier.

Source: step 5.4.1 of https://spec.matrix.org/v1.16/rooms/v12/#authorization-rules (5.3.1 in version 1),
and step 7.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

from signedjson.key import decode_verify_key_bytes
from signedjson.types import VerifyKey
from unpaddedbase64 import decode_base64

from synrepl.rooms.auth.power_levels import power_levels_at
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import MEMBER, THIRD_PARTY_INVITE
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.signatures import ED25519, decoded_signature, signed_json, verifies
from synrepl.rooms.state import StateEvents

#: Limit on signatures read, keys read, and (signature, key) pairs verified. A real invite has one
#: signature and two keys; without a limit, two crafted events could keep a server busy for half a minute.
_MAX_TRIES = 1_000


def token_of(event: Event) -> str | None:
    """The token of an invite with ``third_party_invite``: the state key of its ``m.room.third_party_invite``."""
    token = _signed(event).get("token")
    return token if isinstance(token, str) else None


def check_complete(event: Event) -> Refusal | None:
    """Check steps 5.4.1.2 and 5.4.1.3, which need no state."""
    if token_of(event) is None or "mxid" not in _signed(event):
        return Refusal("third-party-incomplete", "a third-party invite lacks mxid or token")
    return None


def check_third_party_invite(event: Event, target: str, state: StateEvents) -> Refusal | None:
    """Check step 5.4.1.

    :param target: the invited user
    """
    member = state.get((MEMBER, target))
    if member is not None and member.membership == "ban":
        return Refusal("third-party-banned", f"{target} is banned")
    refusal = check_complete(event)
    if refusal is not None:
        return refusal
    signed, token = _signed(event), token_of(event)
    if signed["mxid"] != target:
        return Refusal("third-party-other-user", f"the invite is signed for another than {target}")
    offer = state.get((THIRD_PARTY_INVITE, token or ""))
    if offer is None:
        return Refusal("third-party-unknown", "the room knows no third-party invite of that token")
    if offer.sender != event.sender:
        return Refusal("third-party-other-sender", f"{event.sender} did not offer that invite")
    if not _is_signed(signed, offer.content):
        return Refusal("third-party-signature", "no key of the offer verifies the invite")
    return None


def check_third_party_invite_event(
    event: Event, state: StateEvents, create: Event
) -> Refusal | None:
    """Check step 7: ``m.room.third_party_invite`` takes the power to invite."""
    levels = power_levels_at(state, create)
    if levels.of(event.sender) < levels.invite:
        return Refusal("invite-level", f"{event.sender} lacks the power to invite")
    return None


def _signed(event: Event) -> dict[str, Any]:
    invite = event.content.get("third_party_invite")
    signed = invite.get("signed") if isinstance(invite, dict) else None
    return signed if isinstance(signed, dict) else {}


def _is_signed(signed: dict[str, Any], offer: dict[str, Any]) -> bool:
    """Step 5.4.1.7: whether any signature verifies with any public key of the offer."""
    keys, covered = _public_keys(offer), signed_json(signed)
    tries = ((signature, key) for signature in _signatures(signed) for key in keys)
    return any(verifies(covered, signature, key) for signature, key in islice(tries, _MAX_TRIES))


def _signatures(signed: dict[str, Any]) -> list[bytes]:
    """The decoded ed25519 signatures, up to the limit."""
    found = (
        signature if key_id.startswith(ED25519) else None
        for keys in _values(signed.get("signatures"))
        for key_id, signature in (keys.items() if isinstance(keys, dict) else ())
    )
    decoded = map(decoded_signature, islice(found, _MAX_TRIES))
    return [each for each in decoded if each is not None]


def _values(servers: object) -> Iterable[object]:
    return servers.values() if isinstance(servers, dict) else ()


def _public_keys(offer: dict[str, Any]) -> list[VerifyKey]:
    """The distinct public keys of an ``m.room.third_party_invite``, up to the limit."""
    several = offer.get("public_keys")
    entries = several if isinstance(several, list) else []
    found = (
        entry.get("public_key") if isinstance(entry, dict) else None for entry in (offer, *entries)
    )
    keys = []
    for public in dict.fromkeys(each for each in islice(found, _MAX_TRIES) if type(each) is str):
        with suppress(ValueError):
            keys.append(decode_verify_key_bytes(ED25519, decode_base64(public)))
    return keys
