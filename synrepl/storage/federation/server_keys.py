"""Keys of other servers, and of this one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from signedjson.key import decode_verify_key_bytes

from synrepl.federation.published_keys import KeyDocument, OwnKey
from synrepl.rooms import ServerKey
from synrepl.storage.database import Transaction

#: Maximum number of keys that are kept of a server; beyond it, those that expired first go.
MAX_KEYS_OF_SERVER = 200


class KnownKey(NamedTuple):
    """A key of a server.

    :ivar is_old: for events only
    """

    key: ServerKey
    is_old: bool


#: Keys by server and key ID.
KnownKeys = Mapping[str, Mapping[str, KnownKey]]


def read_keys(txn: Transaction, servers: Collection[str]) -> KnownKeys:
    """The keys of servers; of one without known keys there are none."""
    txn.execute(
        "SELECT server_name, key_id, verify_key, valid_until_ms, is_old FROM synrepl._server_keys"
        " WHERE server_name = ANY (%s::text[])",
        (list(servers),),
    )
    found: dict[str, dict[str, KnownKey]] = {server: {} for server in servers}
    for server, key_id, verify_key, until, is_old in txn.fetchall():
        key = ServerKey(decode_verify_key_bytes(key_id, bytes(verify_key)), until)
        found[server][key_id] = KnownKey(key, is_old)
    return found


def write_keys(
    txn: Transaction, documents: Iterable[KeyDocument], now_ms: int, *, is_direct: bool
) -> None:
    """Store documents of different servers.

    :param is_direct: they are from the servers themselves; others do not replace those that are valid for longer
    """
    # In one order in every process, so that transactions do not wait for one another in a circle.
    for document in sorted(documents, key=lambda each: each.server_name):
        _write_keys(txn, document.bounded(now_ms), now_ms, is_direct)


def _write_keys(txn: Transaction, document: KeyDocument, now_ms: int, is_direct: bool) -> None:
    name = document.server_name
    txn.execute(
        "INSERT INTO synrepl._server_key_documents AS kept"
        " (server_name, document, stated_until_ms, fetched_ms) VALUES (%s, %s, %s, %s)"
        " ON CONFLICT (server_name) DO UPDATE SET document = EXCLUDED.document,"
        " stated_until_ms = EXCLUDED.stated_until_ms, fetched_ms = EXCLUDED.fetched_ms"
        " WHERE %s OR kept.stated_until_ms <= EXCLUDED.stated_until_ms",
        (name, document.document, document.stated_until_ms, now_ms, is_direct),
    )
    keys = [(False, *item) for item in document.current.items()]
    keys += [(True, *item) for item in document.old.items() if item[0] not in document.current]
    txn.insert_many(
        "INSERT INTO synrepl._server_keys AS kept"
        " (server_name, key_id, verify_key, valid_until_ms, is_old, stated_until_ms) VALUES %s"
        " ON CONFLICT (server_name, key_id) DO UPDATE SET verify_key = EXCLUDED.verify_key,"
        " valid_until_ms = EXCLUDED.valid_until_ms, is_old = EXCLUDED.is_old,"
        " stated_until_ms = EXCLUDED.stated_until_ms"
        f" WHERE {is_direct} OR kept.stated_until_ms <= EXCLUDED.stated_until_ms",
        [
            (
                name,
                key_id,
                bytes(key.verify_key),
                key.valid_until,
                is_old,
                document.stated_until_ms,
            )
            for is_old, key_id, key in sorted(keys, key=lambda each: each[1])
        ],
    )
    txn.execute(
        "DELETE FROM synrepl._server_keys WHERE server_name = %s AND key_id IN"
        " (SELECT key_id FROM synrepl._server_keys WHERE server_name = %s"
        " ORDER BY stated_until_ms DESC, valid_until_ms DESC, key_id OFFSET %s)",
        (name, name, MAX_KEYS_OF_SERVER),
    )


class StoredDocument(NamedTuple):
    """The keys of a server, as it signed them.

    :ivar stated_until_ms: the end of their validity, as it states it
    """

    document: bytes
    stated_until_ms: int


def read_key_documents(txn: Transaction, servers: Collection[str]) -> Mapping[str, StoredDocument]:
    """The newest documents of servers; of one without, there is none."""
    txn.execute(
        "SELECT server_name, document, stated_until_ms FROM synrepl._server_key_documents"
        " WHERE server_name = ANY (%s::text[])",
        (list(servers),),
    )
    return {server: StoredDocument(bytes(text), until) for server, text, until in txn.fetchall()}


# -- this server -----------------------------------------------------------------------------


def read_own_keys(txn: Transaction) -> Sequence[OwnKey]:
    """The keys of this server, in the order in which they were added."""
    txn.execute(
        "SELECT key_id, verify_key, expires_ms FROM synrepl._own_keys ORDER BY added_ms, key_id"
    )
    return [OwnKey(*row) for row in txn.fetchall()]


def add_own_key(txn: Transaction, key_id: str, verify_key: str, now_ms: int) -> None:
    """Record a key with which a process signs, unless it is known already."""
    txn.execute(
        "INSERT INTO synrepl._own_keys (key_id, verify_key, added_ms) VALUES (%s, %s, %s)"
        " ON CONFLICT DO NOTHING",
        (key_id, verify_key, now_ms),
    )


def expire_own_keys(txn: Transaction, except_key_id: str, expires_ms: int) -> Sequence[str]:
    """Let all keys but one end at a time, unless they end before.

    :return: the IDs of those that had no end
    """
    txn.execute(
        "UPDATE synrepl._own_keys SET expires_ms = %s WHERE key_id <> %s AND expires_ms IS NULL"
        " RETURNING key_id",
        (expires_ms, except_key_id),
    )
    return sorted(row[0] for row in txn.fetchall())
