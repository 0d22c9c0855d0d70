"""Translates psycopg2 errors into those of :mod:`synrepl.storage.database`."""

from __future__ import annotations

import msgspec
import psycopg2

from synrepl.core.errors import SynreplError
from synrepl.storage.database import (
    ConstraintViolation,
    LockNotAvailable,
    QueryFailed,
    RaisedByDatabase,
    SerializationFailure,
    UniqueViolation,
)
from synrepl.storage.store import BadValue, NotConfirmed

#: Errors besides psycopg2's own that reading a result or adapting a value may raise:
#: NUL in a string, a lone surrogate, a type or JSON number without a counterpart.
VALUE_ERRORS = (ValueError, OverflowError, msgspec.DecodeError)

#: Errors after which the transaction is retried: serialization_failure, deadlock_detected.
CONFLICTS = frozenset({"40001", "40P01"})

#: The server closes the connection: shutdown, crash, starting up, idle in transaction too long.
_ENDINGS = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})

#: SQLSTATE class of the errors that our own SQL functions raise.
_OWN = "SY"

#: The code of this class that any statement may get: the server was promoted.
_NOT_CONFIRMED = "SY009"

#: not_null_violation and check_violation: errors of a value, as those of class 22 are.
_VALUE_STATES = frozenset({"23502", "23514"})


def is_lost(connection: psycopg2.extensions.connection, error: psycopg2.Error) -> bool:
    """Whether ``error`` means that the connection is lost; the statement may have taken effect."""
    state = error.pgcode or ""
    return bool(connection.closed) or state in _ENDINGS or state.startswith("08")


def one_line(error: BaseException) -> str:
    """The text of an error on one line, or its type when it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def translate(name: str, error: BaseException, attempts: int = 1) -> SynreplError:
    """The error of this product for one that a statement of ``name`` raised.

    :param error: a ``psycopg2.Error`` or one of :data:`VALUE_ERRORS`
    :param attempts: number of times the transaction was run
    """
    if not isinstance(error, psycopg2.Error):
        return BadValue(where=f"a value of {name!r}", reason=one_line(error))
    state, diag = error.pgcode or "", error.diag
    reason = diag.message_primary or one_line(error)
    if state == _NOT_CONFIRMED:
        return NotConfirmed(reason=reason)
    if state.startswith(_OWN):
        return RaisedByDatabase(
            name=name, code=state, reason=reason, detail=diag.message_detail or ""
        )
    if state.startswith("22") or state in _VALUE_STATES or isinstance(error, psycopg2.DataError):
        place = ".".join(filter(None, (diag.schema_name, diag.table_name, diag.column_name)))
        return BadValue(where=place or f"a value of {name!r}", reason=reason)
    if state == "23505":
        reason = f"{reason} {diag.message_detail or ''}".rstrip()
        return UniqueViolation(
            name=name, sqlstate=state, constraint=diag.constraint_name or "", reason=reason
        )
    if state.startswith("23"):
        return ConstraintViolation(
            name=name, sqlstate=state, constraint=diag.constraint_name or "", reason=reason
        )
    if state in CONFLICTS:
        return SerializationFailure(name=name, sqlstate=state, attempts=attempts, reason=reason)
    if state == "55P03":
        return LockNotAvailable(name=name, sqlstate=state, reason=reason)
    return QueryFailed(name=name, sqlstate=state, reason=reason)
