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
    "_backward_extremities",
    "_current_state",
    "_memberships",
    "_redactions",
    "_waiting_events",
)

#: What a superuser runs so that a role may check indexes.
_INSTALL = "'CREATE EXTENSION amcheck'"
_GRANT = "'GRANT EXECUTE ON FUNCTION {schema}.bt_index_check(regclass, boolean) TO {role}'"

#: Classes of SQLSTATE that mean that an index, or its file, is damaged.
_DAMAGE = ("XX", "58")
_INSUFFICIENT_PRIVILEGE = "42501"


class IndexesNotChecked(Refused):
    """the indexes cannot be checked before rows are removed, because {reason}; run {cure} as a superuser, or repeat the command with --without-index-check"""


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

    :raises IndexesNotChecked: the server does not have it, or the role may not
    """
    if amcheck_schema(txn) is not None:
        return
    txn.execute("SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'amcheck')")
    if not txn.fetchone()[0]:
        reason = "the server does not have PostgreSQL's extension amcheck"
        raise IndexesNotChecked(reason=reason, cure=_INSTALL)
    try:
        txn.execute("CREATE EXTENSION amcheck WITH SCHEMA synrepl")
    except QueryFailed as error:
        raise IndexesNotChecked(reason=error.facts["reason"], cure=_INSTALL) from error


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
    :raises IndexesNotChecked: the role may not check it
    """
    schema = amcheck_schema(txn)
    txn.execute("SELECT quote_ident(current_user)")
    (role,) = txn.fetchone()
    try:
        txn.execute(f"SELECT {schema}.bt_index_check(%s::regclass, true)", (index,))
    except QueryFailed as error:
        reason = error.facts["reason"]
        if error.sqlstate == _INSUFFICIENT_PRIVILEGE:
            cure = _GRANT.format(schema=schema, role=role)
            raise IndexesNotChecked(reason=reason, cure=cure) from error
        if error.sqlstate.startswith(_DAMAGE):
            raise IndexDamaged(index=index, reason=reason) from error
        raise
