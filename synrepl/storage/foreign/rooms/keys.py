"""The public keys of servers, as a Synapse stores them.

``server_signature_keys`` has the keys that were valid when they were fetched. ``server_keys_json`` has
the responses that they came in, which also have keys that expired before, in ``old_verify_keys``.
A server does not store its own keys, which are in its configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from unpaddedbase64 import encode_base64

from synrepl.core.jsons import BadJson, decode
from synrepl.rooms import BadServerKey, ServerKey, server_key
from synrepl.storage.database import Transaction


def server_keys(txn: Transaction, servers: Collection[str]) -> dict[str, dict[str, ServerKey]]:
    """The keys of some servers, by server name and key ID.

    Of the validities of a key that was fetched several times, the latest counts. Malformed keys are
    left out.
    """
    wanted = list(servers)
    found: dict[str, dict[str, ServerKey]] = {}
    txn.execute(
        "SELECT server_name, key_id, verify_key, max(ts_valid_until_ms) FROM server_signature_keys"
        " WHERE server_name = ANY(%s) GROUP BY 1, 2, 3",
        (wanted,),
    )
    for server, key_id, key, valid_until in txn:
        _add(found, server, key_id, encode_base64(bytes(key)), valid_until)
    txn.execute(
        "SELECT DISTINCT ON (server_name, key_json) server_name, key_json FROM server_keys_json"
        " WHERE server_name = ANY(%s)",
        (wanted,),
    )
    for server, response in txn:
        for key_id, key, valid_until in _in_response(bytes(response), server):
            _add(found, server, key_id, key, valid_until)
    return found


def _add(
    found: dict[str, dict[str, ServerKey]],
    server: str,
    key_id: str,
    key: object,
    valid_until: object,
) -> None:
    try:
        parsed = server_key(key_id, key, valid_until)
    except BadServerKey:
        return
    keys = found.setdefault(server, {})
    known = keys.get(key_id)
    if known is None or (
        known.valid_until is not None
        and (parsed.valid_until is None or parsed.valid_until > known.valid_until)
    ):
        keys[key_id] = parsed


def _in_response(response: bytes, server: str) -> Iterator[tuple[str, Any, Any]]:
    """Key ID, key and end of validity of each key in a response."""
    try:
        fields = decode(response, "a server's keys")
    except BadJson:
        return
    if not isinstance(fields, dict) or fields.get("server_name") != server:
        return
    for name in ("verify_keys", "old_verify_keys"):
        keys = fields.get(name)
        for key_id, published in keys.items() if isinstance(keys, dict) else ():
            if isinstance(published, dict):
                valid_until = (
                    published.get("expired_ts")
                    if name == "old_verify_keys"
                    else fields.get("valid_until_ts")
                )
                yield key_id, published.get("key"), valid_until
