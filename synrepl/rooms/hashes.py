"""Canonical JSON, content hash, reference hash and event ID.

Sources: https://spec.matrix.org/v1.16/appendices/#canonical-json,
https://spec.matrix.org/v1.16/server-server-api/#signing-events, the section "Event IDs" of
https://spec.matrix.org/v1.16/rooms/v3/ and of v4.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from synrepl.core.errors import InputError
from synrepl.core.jsons import canonical, canonical_of_decoded
from synrepl.rooms.redacting import signed_part
from synrepl.rooms.versions import EventIds, RoomVersion

Json = Mapping[str, Any]

#: What a server adds later or on the way. The last three are the reference's; the specification does
#: not name them.
_NOT_IN_CONTENT_HASH = (
    "signatures",
    "unsigned",
    "hashes",
    "age_ts",
    "outlier",
    "destinations",
)

_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")

#: Looking up a member of an enumeration takes as long as encoding the hash.
_URL_SAFE = EventIds.URL_SAFE_HASH

#: Letters of an unpadded SHA-256 in Base64.
_HASH_LETTERS = 43


class NoCanonicalJson(InputError):
    """there is no canonical JSON of it: {reason}"""


def canonical_json(value: Any) -> bytes:
    """Canonical JSON.

    :raises NoCanonicalJson: it holds NaN, an infinity, half a surrogate pair or something that is no
        JSON, or nests too deep
    """
    try:
        return canonical(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise _none(error) from None


def canonical_json_of_decoded(value: Any) -> bytes:
    """The same of what :func:`~synrepl.core.jsons.decode_exactly` gave; quicker.

    :raises NoCanonicalJson: see :func:`canonical_json`
    """
    try:
        return canonical_of_decoded(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise _none(error) from None


def _none(error: Exception) -> NoCanonicalJson:
    return NoCanonicalJson(reason=str(error) or type(error).__name__)


def content_hash(fields: Json) -> bytes:
    """SHA-256 of an event, as it should stand in its ``hashes``.

    :raises NoCanonicalJson: there is none of it
    """
    return sha256(canonical_json(_hashed(fields))).digest()


def content_hash_of_decoded(fields: Json) -> bytes:
    """The same of what :func:`~synrepl.core.jsons.decode_exactly` gave, such as an event's fields; quicker.

    :raises NoCanonicalJson: see :func:`content_hash`
    """
    return sha256(canonical_json_of_decoded(_hashed(fields))).digest()


def _hashed(fields: Json) -> dict[str, Any]:
    hashed = dict(fields)
    for key in _NOT_IN_CONTENT_HASH:
        hashed.pop(key, None)
    return hashed


def signed_bytes(fields: Json, version: RoomVersion) -> bytes:
    """What servers sign of an event: canonical JSON of its redacted form without ``signatures``.

    :raises NoCanonicalJson: there is none of it
    """
    return canonical_json(signed_part(fields, version))


def reference_hash(fields: Json, version: RoomVersion) -> bytes:
    """SHA-256 of an event's redacted form, by which others refer to it.

    :raises NoCanonicalJson: there is none of it
    """
    return sha256(signed_bytes(fields, version)).digest()


def event_id_of(signed: bytes, version: RoomVersion) -> str:
    """The ID of an event whose version computes it, from its :func:`signed_bytes`."""
    encoded = b2a_base64(sha256(signed).digest())
    if version.event_ids is _URL_SAFE:
        encoded = encoded.translate(_TO_URL_SAFE)
    return "$" + encoded[:_HASH_LETTERS].decode()
