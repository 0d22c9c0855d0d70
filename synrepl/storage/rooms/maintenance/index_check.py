"""Checks the indexes that a proof of "nothing refers to it" relies on.

A damaged index may hide rows: whoever deletes what no index leads to, deletes what is in use. That has destroyed
rooms of other servers. ``amcheck`` compares an index with its table: every row must be in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.errors import Refused, StorageError
from synrepl.storage.database import QueryFailed, Transaction

#: Tables whose indexes lead to references to events and state groups.
CHECKED_TABLES = (
    "_rooms",
    "_room_events",
    "_room_heads",
    "_state_groups",
    "_state_lines",
    "_state_group_lines",
    "_forward_extremities",
)


class IndexesNotChecked(Refused):
    """the indexes cannot be checked before rows are removed, because {reason}; install PostgreSQL's extension amcheck with 'CREATE EXTENSION amcheck' as a superuser, or repeat the command with --without-index-check"""


class IndexDamaged(StorageError):
    """index {index} does not fit its table: {reason}; nothing was removed; rebuild it with 'REINDEX INDEX {index}', then run 'synrepl rooms verify'"""


def amcheck_schema(txn: Transaction) -> str | None:
    """The schema of the extension ``amcheck``, quoted; None if it is not installed."""
    txn.execute(
        "SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n"
        " ON n.oid = e.extnamespace WHERE e.extname = 'amcheck'"
    )
    found = txn.fetchone_or_none()
    return None if found is None else str(found[0])


def install_amcheck(txn: Transaction) -> None:
    """Install ``amcheck`` in the schema ``synrepl``, if the server has it and the role may.

    :raises IndexesNotChecked: it has not
    :raises QueryFailed: the role may not
    """
    if amcheck_schema(txn) is not None:
        return
    txn.execute("SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'amcheck')")
    if not txn.fetchone()[0]:
        raise IndexesNotChecked(reason="the server does not have the extension")
    txn.execute("CREATE EXTENSION amcheck WITH SCHEMA synrepl")


def checked_indexes(txn: Transaction, tables: Sequence[str] = CHECKED_TABLES) -> list[str]:
    """The B-tree indexes of tables."""
    txn.execute(
        "SELECT i.indexrelid::regclass::text FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam"
        " WHERE a.amname = 'btree' AND i.indisvalid"
        "  AND i.indrelid = ANY (SELECT to_regclass('synrepl.' || t) FROM unnest(%s::text[]) t)"
        " ORDER BY 1",
        (list(tables),),
    )
    return [str(name) for (name,) in txn.fetchall()]


def check_index(txn: Transaction, index: str) -> None:
    """Check an index; every row of its table must be in it. It locks nobody out.

    :raises IndexDamaged: it does not fit its table
    """
    schema = amcheck_schema(txn)
    try:
        txn.execute(f"SELECT {schema}.bt_index_check(%s::regclass, true)", (index,))
    except QueryFailed as error:
        raise IndexDamaged(index=index, reason=error.facts["reason"]) from error
