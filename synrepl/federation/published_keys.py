"""The keys of a server as it publishes them, and those of this one.

Source: https://spec.matrix.org/v1.16/server-server-api/#publishing-keys
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from signedjson.types import SigningKey

from synrepl.core import jsons
from synrepl.core.errors import InputError
from synrepl.core.jsons import BadJson
from synrepl.rooms import (
    BadServerKey,
    NoCanonicalJson,
    ServerKey,
    canonical_json,
    check_json_signature,
    server_key,
    sign_json,
)

#: Maximum size of a document, in bytes, and number of keys in it.
MAX_DOCUMENT = 64 * 2**10
MAX_KEYS = 50

#: Milliseconds after which a key is to be fetched again, whatever its server states.
LONGEST_VALIDITY_MS = 7 * 86_400_000

#: Milliseconds for which this server's keys are stated to be valid.
OWN_VALIDITY_MS = 86_400_000

#: Maximum length of the ID of a key, and what it begins with.
MAX_KEY_ID = 255
ED25519 = "ed25519:"

_MAX_TIME = 2**53


class BadKeyDocument(InputError):
    """this is no document with the keys of a server: {reason}"""


class KeyDocument(NamedTuple):
    """The keys of a server, signed by itself.

    :ivar stated_until_ms: ``valid_until_ts``, as it states it
    :ivar current: the keys that it uses, by their IDs, valid until then, for requests and events
    :ivar old: the keys that it used before, valid until it stopped, for events
    :ivar document: the JSON as received
    """

    server_name: str
    stated_until_ms: int
    current: Mapping[str, ServerKey]
    old: Mapping[str, ServerKey]
    document: bytes

    def bounded(self, now_ms: int) -> KeyDocument:
        """With no current key valid for longer than seven days from now."""
        until = min(self.stated_until_ms, now_ms + LONGEST_VALIDITY_MS)
        current = {name: key._replace(valid_until=until) for name, key in self.current.items()}
        return self._replace(current=current)


def parse_key_document(data: bytes, server_name: str | None = None) -> KeyDocument:
    """Read and verify a document: of any server, or of that which was asked for.

    Keys of algorithms that are not supported are left out.

    :raises BadKeyDocument: it is malformed, too large, of another server, or not signed by the server
    """
    if len(data) > MAX_DOCUMENT:
        raise BadKeyDocument(reason=f"it has more than {MAX_DOCUMENT} bytes")
    try:
        fields = jsons.decode(data, "it")
    except BadJson as error:
        raise BadKeyDocument(reason=error) from None
    if not isinstance(fields, dict):
        raise BadKeyDocument(reason="it is no object")
    name, until = fields.get("server_name"), fields.get("valid_until_ts")
    if not isinstance(name, str) or type(until) is not int or not 0 <= until <= _MAX_TIME:
        raise BadKeyDocument(reason="server_name or valid_until_ts is missing, or no name or time")
    if server_name is not None and name != server_name:
        raise BadKeyDocument(reason=f"it is of {name[:100]!r}, not of {server_name!r}")
    found = KeyDocument(
        name,
        until,
        _keys(fields, "verify_keys", until),
        _keys(fields, "old_verify_keys", None),
        data,
    )
    try:
        refusal = check_json_signature(fields, name, found.current)
    except NoCanonicalJson as error:
        raise BadKeyDocument(reason=error) from None
    if refusal is not None:
        raise BadKeyDocument(reason=refusal.sentence)
    return found


def _keys(fields: Mapping[str, Any], member: str, until: int | None) -> dict[str, ServerKey]:
    """The keys of a member of a document.

    :param until: the end of their validity; None where each has its own
    """
    entries = fields.get(member, {})
    if not isinstance(entries, dict) or len(entries) > MAX_KEYS:
        raise BadKeyDocument(reason=f"{member!r} is no object, or has more than {MAX_KEYS} keys")
    keys = {}
    for key_id, entry in entries.items():
        if not isinstance(entry, dict):
            raise BadKeyDocument(reason=f"a key in {member!r} is no object")
        end = entry.get("expired_ts") if until is None else until
        if type(end) is not int or not 0 <= end <= _MAX_TIME:
            raise BadKeyDocument(reason=f"{key_id[:100]!r} has no time at which it expired")
        if not is_key_id(key_id):
            continue
        try:
            keys[key_id] = server_key(key_id, entry.get("key"), end)
        except BadServerKey:
            continue
    return keys


def is_key_id(text: str) -> bool:
    """Whether a text may be the ID of a supported key."""
    return text.startswith(ED25519) and len(text) <= MAX_KEY_ID and text.isprintable()


class OwnKey(NamedTuple):
    """A public key of this server.

    :ivar verify_key: in unpadded Base64
    :ivar expires_ms: when it was or will be replaced; None if it is in use
    """

    key_id: str
    verify_key: str
    expires_ms: int | None


def own_key_document(
    server_name: str, keys: Iterable[OwnKey], signing_key: SigningKey, now_ms: int
) -> bytes:
    """The document of this server, signed.

    A key that will be replaced is current until then, and the document is valid no longer than that, so that others
    ask again in time.
    """
    current, old, until = {}, {}, now_ms + OWN_VALIDITY_MS
    for key in keys:
        if key.expires_ms is not None and key.expires_ms <= now_ms:
            old[key.key_id] = {"key": key.verify_key, "expired_ts": key.expires_ms}
            continue
        current[key.key_id] = {"key": key.verify_key}
        if key.expires_ms is not None:
            until = min(until, key.expires_ms)
    fields = {
        "server_name": server_name,
        "valid_until_ts": until,
        "verify_keys": current,
        "old_verify_keys": old,
    }
    return canonical_json(sign_json(fields, server_name, signing_key))


def countersigned(document: KeyDocument, notary: str, signing_key: SigningKey) -> bytes:
    """A document of another server with the signature of this one.

    :raises NoCanonicalJson: there is none of it
    """
    fields = jsons.decode(document.document, "it")
    return canonical_json(sign_json(fields, notary, signing_key))
