"""Reads servers' keys as servers publish them: answers of ``GET /_matrix/key/v2/server`` and of notaries.

https://spec.matrix.org/v1.16/server-server-api/#retrieving-server-keys
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synrepl.core import jsons
from synrepl.core.errors import InputError
from synrepl.core.jsons import BadJson
from synrepl.rooms import (
    BadServerKey,
    Keys,
    NoCanonicalJson,
    ServerKey,
    check_json_signature,
    server_key,
)


class BadPublishedKeys(InputError):
    """{where} has no keys of a server: {reason}; save the answer of GET /_matrix/key/v2/server there"""


def published_keys(data: bytes, where: object) -> Keys:
    """The keys in an answer, each server's signed by itself; by server name and key ID.

    Keys that the server uses now have no end of validity here: that in the answer says when to ask again.

    :param where: what the data was read from, for errors
    :raises BadPublishedKeys: it is no such answer, or is not signed by its server
    """
    try:
        found = jsons.decode(data, str(where))
    except BadJson as error:
        raise BadPublishedKeys(where=where, reason=error.facts["reason"]) from None
    answers = found.get("server_keys", [found]) if isinstance(found, dict) else [found]
    if not isinstance(answers, list):
        raise BadPublishedKeys(where=where, reason="'server_keys' is no array")
    return dict(_keys(answer, where) for answer in answers)


def _keys(answer: Any, where: object) -> tuple[str, Mapping[str, ServerKey]]:
    server = answer.get("server_name") if isinstance(answer, dict) else None
    if not isinstance(server, str):
        raise BadPublishedKeys(where=where, reason="it does not say the server's name")
    keys: dict[str, ServerKey] = {}
    try:
        for name, expires in (("old_verify_keys", "expired_ts"), ("verify_keys", None)):
            for key_id, entry in _members(answer, name).items():
                published = _members({key_id: entry}, key_id)
                end = None if expires is None else published.get(expires)
                keys[key_id] = server_key(key_id, published.get("key"), end)
        refusal = check_json_signature(answer, server, keys)
    except (BadServerKey, NoCanonicalJson, TypeError) as error:
        raise BadPublishedKeys(where=where, reason=error) from None
    if refusal is not None:
        raise BadPublishedKeys(where=where, reason=refusal.sentence)
    return server, keys


def _members(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A member that is an object; empty if there is none."""
    value = holder.get(name, {})
    if not isinstance(value, dict):
        raise TypeError(f"{name!r} is no object")
    return value
