"""Grants for application roles: to append, to read, to request erasure.

A role that appends executes ``synrepl.append()``, and has no rights to the tables and
sequences behind it. All rights are Postgres grants, so ``\\dp`` and ``\\df+`` show them.
A role that may append to or read every stream may do so with later streams, too:
``synrepl._append()`` accepts every stream, and tables of new streams are shared with the
roles that may read ``synrepl._every_stream``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from synrepl.core.errors import InputError, Refused
from synrepl.storage.database import Transaction, value
from synrepl.storage.store import StreamNotMade

#: Functions that applications may execute; all others are for synrepl's own processes.
_FOR_APPLICATIONS = r"^(append|erase|_append|_append_.*)$"

_WRITES = "INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER"


class NoSuchRole(InputError):
    """there is no role {role!r} in this database server; CREATE ROLE makes one"""


class RoleAboveRights(Refused):
    """role {role!r} {reason}, so it may do everything to the facts, whatever it is granted; give the application a role of its own"""


class RightsLeft(Refused):
    """role {role!r} could still write by hand, since it has {rights}; nothing was changed: take that from PUBLIC, from the roles that it is a member of, or from the default privileges, or give the application another role"""


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights to grant to a role.

    :ivar append: append facts
    :ivar read: read facts
    :ivar erase: request the erasure of subjects
    :ivar streams: streams to append to or read; empty for all, including later ones
    """

    append: bool = False
    read: bool = False
    erase: bool = False
    streams: Sequence[str] = ()


def grant(txn: Transaction, role: str, rights: Rights) -> list[str]:
    """Grant rights in addition to existing ones, and revoke those for writing directly.

    :returns: the executed statements
    :raises RightsLeft: the role can still write directly, through other roles or defaults;
        and the errors of :func:`statements_to_grant`
    """
    statements = statements_to_grant(txn, role, rights)
    _run(txn, statements)
    left = _left(txn, role)
    if left:
        raise RightsLeft(role=role, rights=", ".join(left))
    return statements


def statements_to_grant(txn: Transaction, role: str, rights: Rights) -> list[str]:
    """The statements of :func:`grant`.

    :raises NoSuchRole:
    :raises RoleAboveRights:
    :raises StreamNotMade:
    """
    _check_role(txn, role)
    made = _streams(txn)
    for stream in rights.streams:
        if stream not in made:
            raise StreamNotMade(stream=stream)
    return [*_take_from(txn, role), *_give_to(role, rights, made)]


def revoke(txn: Transaction, role: str) -> list[str]:
    """Revoke everything that a role was granted in the schema.

    :returns: the executed statements
    :raises NoSuchRole:
    """
    statements = statements_to_revoke(txn, role)
    _run(txn, statements)
    return statements


def statements_to_revoke(txn: Transaction, role: str) -> list[str]:
    """The statements of :func:`revoke`.

    :raises NoSuchRole:
    """
    _check_exists(txn, role)
    name = _quoted(role)
    kinds = ("ALL FUNCTIONS IN SCHEMA", "ALL TABLES IN SCHEMA", "ALL SEQUENCES IN SCHEMA", "SCHEMA")
    return [f"REVOKE ALL ON {kind} synrepl FROM {name}" for kind in kinds]


def _give_to(role: str, rights: Rights, made: Sequence[str]) -> Iterator[str]:
    name = _quoted(role)
    yield f"GRANT USAGE ON SCHEMA synrepl TO {name}"
    functions, tables = [], []
    if rights.append:
        functions.append("append(text, jsonb, text)")
        if not rights.streams:
            functions.append("_append(text, jsonb, text)")
        functions += [f'"_append_{stream}"(jsonb, text)' for stream in rights.streams]
    if rights.erase:
        functions.append("erase(text)")
    if rights.read:
        tables += [f'"{stream}"' for stream in rights.streams or ("_every_stream", *made)]
    for function in functions:
        yield f"GRANT EXECUTE ON FUNCTION synrepl.{function} TO {name}"
    for table in tables:
        yield f"GRANT SELECT ON TABLE synrepl.{table} TO {name}"


def _take_from(txn: Transaction, role: str) -> Iterator[str]:
    """Revoke the direct rights that older versions needed for appending."""
    name = _quoted(role)
    yield f"REVOKE {_WRITES} ON ALL TABLES IN SCHEMA synrepl FROM {name}"
    yield f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA synrepl FROM {name}"
    yield f"REVOKE CREATE ON SCHEMA synrepl FROM {name}"
    txn.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p, aclexplode(p.proacl) held"
        " WHERE p.pronamespace = 'synrepl'::regnamespace AND p.proname !~ %s"
        " AND held.grantee = %s::regrole ORDER BY 1",
        (_FOR_APPLICATIONS, name),
    )
    for (function,) in txn.fetchall():
        yield f"REVOKE ALL ON FUNCTION {function} FROM {name}"


def _left(txn: Transaction, role: str) -> list[str]:
    """Rights to write directly that a role still has; at most five."""
    txn.execute(
        """
        SELECT held FROM (
            SELECT 'CREATE on schema synrepl' AS held
            WHERE has_schema_privilege(%(role)s, 'synrepl', 'CREATE')
            UNION ALL
            SELECT privilege || ' on ' || c.oid::regclass
            FROM pg_class c, unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS privilege
            WHERE c.relnamespace = 'synrepl'::regnamespace
              AND CASE WHEN c.relkind IN ('r', 'p', 'v')
                       THEN has_table_privilege(%(role)s, c.oid, privilege) END
            UNION ALL
            SELECT 'USAGE or UPDATE on ' || c.oid::regclass FROM pg_class c
            WHERE c.relnamespace = 'synrepl'::regnamespace
              AND CASE WHEN c.relkind = 'S'
                       THEN has_sequence_privilege(%(role)s, c.oid, 'USAGE, UPDATE') END
            UNION ALL
            SELECT 'EXECUTE on ' || p.oid::regprocedure FROM pg_proc p
            WHERE p.pronamespace = 'synrepl'::regnamespace AND p.proname !~ %(allowed)s
              AND has_function_privilege(%(role)s, p.oid, 'EXECUTE')
            UNION ALL
            SELECT d.privilege_type || ' on what will be made (ALTER DEFAULT PRIVILEGES)'
            FROM pg_default_acl a, aclexplode(a.defaclacl) d
            WHERE a.defaclnamespace IN (0, 'synrepl'::regnamespace)
              AND a.defaclrole = (SELECT nspowner FROM pg_namespace WHERE nspname = 'synrepl')
              AND a.defaclobjtype IN ('r', 'S', 'f') AND d.privilege_type <> 'SELECT'
              AND CASE d.grantee WHEN 0 THEN true
                  ELSE pg_has_role(%(role)s, d.grantee, 'MEMBER') END
        ) AS left_over LIMIT 5
        """,
        {"role": role, "allowed": _FOR_APPLICATIONS},
    )
    return [str(held) for (held,) in txn.fetchall()]


def _check_role(txn: Transaction, role: str) -> None:
    _check_exists(txn, role)
    txn.execute(
        "SELECT r.rolsuper, r.oid = n.nspowner, pg_has_role(r.oid, n.nspowner, 'MEMBER')"
        " FROM pg_roles r, pg_namespace n WHERE r.rolname = %s AND n.nspname = 'synrepl'",
        (role,),
    )
    is_super, is_owner, is_member = txn.fetchone()
    for is_so, reason in (
        (is_super, "is a superuser"),
        (is_owner, "is the owner of the schema synrepl"),
        (is_member, "is a member of the owner of the schema synrepl"),
    ):
        if is_so:
            raise RoleAboveRights(role=role, reason=reason)


def _check_exists(txn: Transaction, role: str) -> None:
    if not value(txn, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = %s)", (role,)):
        raise NoSuchRole(role=role)


def _streams(txn: Transaction) -> list[str]:
    txn.execute("SELECT stream FROM synrepl._streams ORDER BY stream")
    return [str(stream) for (stream,) in txn.fetchall()]


def _run(txn: Transaction, statements: Sequence[str]) -> None:
    for statement in statements:
        txn.execute(statement)


def _quoted(role: str) -> str:
    return '"' + role.replace('"', '""') + '"'
