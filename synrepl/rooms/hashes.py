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

#: Fields that servers add later or in transit. The last three are Synapse's; the specification does
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

#: A constant, because looking up an enumeration member takes as long as encoding the hash.
_URL_SAFE = EventIds.URL_SAFE_HASH

#: Length of a SHA-256 in unpadded Base64.
_HASH_LETTERS = 43


class NoCanonicalJson(InputError):
    """there is no canonical JSON of it: {reason}"""


def canonical_json(value: Any) -> bytes:
    """Encode as canonical JSON.

    :raises NoCanonicalJson: the value contains NaN, an infinity, a lone surrogate or something that is
        not JSON, or is nested too deeply
    """
    try:
        return canonical(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise _none(error) from None


def canonical_json_of_decoded(value: Any) -> bytes:
    """Encode the output of :func:`~synrepl.core.jsons.decode_exactly`; quicker.

    :raises NoCanonicalJson: see :func:`canonical_json`
    """
    try:
        return canonical_of_decoded(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise _none(error) from None


def _none(error: Exception) -> NoCanonicalJson:
    return NoCanonicalJson(reason=str(error) or type(error).__name__)


def content_hash(fields: Json) -> bytes:
    """Content hash of an event: the SHA-256 that its ``hashes`` should contain.

    :raises NoCanonicalJson: there is none of it
    """
    return sha256(canonical_json(_hashed(fields))).digest()


def content_hash_of_decoded(fields: Json) -> bytes:
    """Content hash of the output of :func:`~synrepl.core.jsons.decode_exactly`, such as an event's fields; quicker.

    :raises NoCanonicalJson: see :func:`content_hash`
    """
    return sha256(canonical_json_of_decoded(_hashed(fields))).digest()


def _hashed(fields: Json) -> dict[str, Any]:
    hashed = dict(fields)
    for key in _NOT_IN_CONTENT_HASH:
        hashed.pop(key, None)
    return hashed


def signed_bytes(fields: Json, version: RoomVersion) -> bytes:
    """The bytes that servers sign: canonical JSON of the redacted event without ``signatures``.

    :raises NoCanonicalJson: there is none of it
    """
    return canonical_json(signed_part(fields, version))


def reference_hash(fields: Json, version: RoomVersion) -> bytes:
    """Reference hash of an event: the SHA-256 of its redacted form.

    :raises NoCanonicalJson: there is none of it
    """
    return sha256(signed_bytes(fields, version)).digest()


def event_id_of(signed: bytes, version: RoomVersion) -> str:
    """The event ID in versions that derive it from :func:`signed_bytes`."""
    encoded = b2a_base64(sha256(signed).digest())
    if version.event_ids is _URL_SAFE:
        encoded = encoded.translate(_TO_URL_SAFE)
    return "$" + encoded[:_HASH_LETTERS].decode()
