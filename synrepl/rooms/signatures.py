"""Signing events and other JSON, and verifying signatures.

Sources: https://spec.matrix.org/v1.16/appendices/#signing-json,
https://spec.matrix.org/v1.16/server-server-api/#signing-events,
https://spec.matrix.org/v1.16/server-server-api/#validating-hashes-and-signatures-on-received-events,
https://spec.matrix.org/v1.16/appendices/#checking-for-a-signature, and for the validity of keys
https://spec.matrix.org/v1.16/rooms/v5/#signing-key-validity-period.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from nacl.exceptions import BadSignatureError
from signedjson.key import decode_verify_key_bytes
from signedjson.types import SigningKey, VerifyKey
from unpaddedbase64 import decode_base64, encode_base64

from synrepl.core.errors import InputError
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import AUTHORISING_USER, MEMBER
from synrepl.rooms.hashes import canonical_json, content_hash, signed_bytes
from synrepl.rooms.identifiers import BadIdentifier, server_of
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.versions import EventIds, RoomVersion

#: Prefix of the key IDs of the only supported algorithm.
ED25519 = "ed25519:"

#: Bytes of a signature, and letters of its Base64.
_BYTES, _LETTERS = 64, 86

_NOT_SIGNED = ("signatures", "unsigned")


def signed_json(fields: Mapping[str, Any]) -> bytes:
    """The bytes that a signature covers: canonical JSON without ``signatures`` and ``unsigned``.

    :raises NoCanonicalJson: there is none
    """
    return canonical_json({key: fields[key] for key in fields if key not in _NOT_SIGNED})


def decoded_signature(signature: object) -> bytes | None:
    """Decode a signature from JSON; None if it is not Base64."""
    if not isinstance(signature, str):
        return None
    try:
        if len(signature) == _LETTERS:
            # Quicker. It leaves out letters that are not of the standard alphabet.
            decoded = a2b_base64(signature + "==")
            if len(decoded) == _BYTES:
                return decoded
        return decode_base64(signature)
    except ValueError:
        return None


def verifies(signed: bytes, signature: bytes | None, key: VerifyKey) -> bool:
    """Whether a signature of these bytes verifies with a key.

    :param signature: see :func:`decoded_signature`
    """
    if signature is None:
        return False
    try:
        key.verify(signed, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


class BadServerKey(InputError):
    """{key_id!r} is no key that signatures can be checked by: {reason}"""


class ServerKey(NamedTuple):
    """A server's public key.

    :ivar valid_until: end of its validity in milliseconds since 1970, inclusive; None if unlimited.
        The caller that fetched the key applies the specification's limit of seven days.
    """

    verify_key: VerifyKey
    valid_until: int | None = None

    def was_valid(self, at: int) -> bool:
        """Whether it was valid at a time in milliseconds since 1970."""
        return self.valid_until is None or at <= self.valid_until


#: Server keys by server name and key ID.
Keys = Mapping[str, Mapping[str, ServerKey]]


def server_key(key_id: object, key: object, valid_until: object = None) -> ServerKey:
    """Parse a published key; the arguments are unvalidated JSON.

    :param key: in unpadded Base64
    :param valid_until: an integer or None, see :class:`ServerKey`
    :raises BadServerKey: its algorithm is not supported, or it is malformed
    """
    if not isinstance(key_id, str):
        raise BadServerKey(key_id=type(key_id).__name__, reason="a key's ID is text")
    if not isinstance(key, str):
        raise BadServerKey(key_id=key_id, reason="it is no text")
    if valid_until is not None and type(valid_until) is not int:
        raise BadServerKey(key_id=key_id, reason="the end of its validity is no integer")
    try:
        verify_key = decode_verify_key_bytes(key_id, decode_base64(key))
    except ValueError as error:
        raise BadServerKey(key_id=key_id, reason=error) from None
    return ServerKey(verify_key, valid_until)


def keys_of(published: object) -> Keys:
    """Parse keys without expiry: unpadded Base64 by server name and key ID.

    :raises BadServerKey: one of them is malformed, or the structure is another
    """
    return {
        server: {key_id: server_key(key_id, key) for key_id, key in _object(keys).items()}
        for server, keys in _object(published).items()
    }


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise BadServerKey(key_id=type(value).__name__, reason="keys come in an object")
    return value


def signing_servers(event: Event) -> tuple[str, ...]:
    """The servers that must have signed an event.

    - The server of the sender, except for an invite with ``third_party_invite``: another server may send
      that on the sender's behalf, and the auth rules check its own signature. If the sender's server
      did sign, that signature is verified.
    - The server in the event ID, in versions where servers choose it.
    - The server of the user who authorised a restricted join.

    The auth rules require the same signatures to be present (:mod:`.auth.state_independent`). They refuse
    incomplete events first; here any authorising user that names a server counts, and only a third-party
    invite with ``signed``.

    :raises BadIdentifier: one of these identifiers names no server
    """
    servers: list[str] = []
    content = event.content
    member = event.type == MEMBER
    server = server_of(event.sender)
    third_party = member and event.membership == "invite" and _is_third_party(content)
    if server in event.signatures or not third_party:
        servers.append(server)
    if event.version.event_ids is EventIds.GIVEN:
        servers.append(server_of(event.event_id))
    if (
        event.version.restricted_joins
        and event.membership == "join"
        and member
        and AUTHORISING_USER in content
    ):
        authorising_user = content[AUTHORISING_USER]
        if not isinstance(authorising_user, str):
            raise BadIdentifier(
                text=str(authorising_user)[:80], kind="user ID", reason="it is no text"
            )
        servers.append(server_of(authorising_user))
    return tuple(dict.fromkeys(servers))


def _is_third_party(content: Mapping[str, Any]) -> bool:
    invite = content.get("third_party_invite")
    return isinstance(invite, dict) and isinstance(invite.get("signed"), dict)


def check_signatures(event: Event, keys: Keys) -> Refusal | None:
    """Whether each of the :func:`signing_servers` signed an event with one of the given keys.

    One valid signature per server is enough; others may be by unknown keys.
    """
    try:
        servers = signing_servers(event)
    except BadIdentifier as error:
        return Refusal("no-server", str(error))
    signed = event.signed_bytes()
    at = event.origin_server_ts if event.version.enforces_key_validity else None
    for server in servers:
        refusal = _check(event.signatures.get(server), server, signed, keys.get(server, {}), at)
        if refusal is not None:
            return refusal
    return None


def check_json_signature(
    signed: Mapping[str, Any], server: str, keys: Mapping[str, ServerKey]
) -> Refusal | None:
    """Whether a server signed a JSON object, other than an event, with one of its keys.

    :raises NoCanonicalJson: there is none of it
    """
    signatures = signed.get("signatures")
    of_server = signatures.get(server) if isinstance(signatures, dict) else None
    return _check(of_server, server, signed_json(signed), keys, None)


def _check(
    signatures: object, server: str, signed: bytes, keys: Mapping[str, ServerKey], at: int | None
) -> Refusal | None:
    if not isinstance(signatures, dict) or not signatures:
        return Refusal("not-signed", f"{server} did not sign it")
    unknown = False
    expired = bad = None
    for key_id, signature in signatures.items():
        key = keys.get(key_id)
        if key is None:
            unknown = True
        elif at is not None and not key.was_valid(at):
            expired = key_id
        elif verifies(signed, decoded_signature(signature), key.verify_key):
            return None
        else:
            bad = key_id
    # A refusal that more keys may resolve takes precedence.
    if unknown:
        return Refusal("unknown-key", f"of the keys that {server} signed it by, not all are known")
    if expired is not None:
        return Refusal("expired-key", f"key {expired} of {server} was not valid at its time")
    return Refusal("bad-signature", f"the signature by {bad} of {server} is wrong")


def sign_event(
    fields: Mapping[str, Any], version: RoomVersion, server: str, key: SigningKey
) -> dict[str, Any]:
    """Add the content hash and a signature to an event of this server.

    For an event of another server, use :func:`add_signature`.

    :raises NoCanonicalJson: there is none of it
    """
    hashes = {"sha256": encode_base64(content_hash(fields))}
    return add_signature({**fields, "hashes": hashes}, version, server, key)


def add_signature(
    fields: Mapping[str, Any], version: RoomVersion, server: str, key: SigningKey
) -> dict[str, Any]:
    """Add a signature to an event, leaving everything else as it is.

    Its ``hashes``, and so its ID, stay the same. This is for events of other servers, such as a
    restricted join that a user of this server authorises.

    :raises NoCanonicalJson: there is none of it
    """
    return _with_signature(fields, server, key, signed_bytes(fields, version))


def sign_json(fields: Mapping[str, Any], server: str, key: SigningKey) -> dict[str, Any]:
    """Add a signature to a JSON object; ``unsigned`` is not covered.

    :raises NoCanonicalJson: there is none of it
    """
    return _with_signature(fields, server, key, signed_json(fields))


def _with_signature(
    fields: Mapping[str, Any], server: str, key: SigningKey, signed: bytes
) -> dict[str, Any]:
    """Add a signature; a malformed ``signatures`` is replaced."""
    signature = encode_base64(key.sign(signed).signature)
    others = fields.get("signatures")
    others = others if isinstance(others, dict) else {}
    of_server = others.get(server)
    of_server = of_server if isinstance(of_server, dict) else {}
    of_server = {**of_server, f"{key.alg}:{key.version}": signature}
    return {**fields, "signatures": {**others, server: of_server}}
