"""What the driver says, in the words of :mod:`synrepl.storage.database`."""

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

#: What reading a result or adapting a value may raise besides the driver's own errors:
#: NUL in a string, a lone surrogate, a type or JSON number that has no counterpart.
VALUE_ERRORS = (ValueError, OverflowError, msgspec.DecodeError)

#: Running the same transaction again is the cure: serialization_failure, deadlock_detected.
CONFLICTS = frozenset({"40001", "40P01"})

#: The server ends the connection: shutdown, crash, starting up, idle in transaction too long.
_ENDINGS = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})

#: Class of our own codes, raised by the SQL functions of the schema.
_OWN = "SY"

#: The one of these that every statement may meet: the server was promoted.
_NOT_CONFIRMED = "SY009"

#: not_null_violation and check_violation: as much about one value as class 22, data exceptions.
_VALUE_STATES = frozenset({"23502", "23514"})


def is_lost(connection: psycopg2.extensions.connection, error: psycopg2.Error) -> bool:
    """True when ``error`` means that the connection is gone, whatever became of the statement."""
    state = error.pgcode or ""
    return bool(connection.closed) or state in _ENDINGS or state.startswith("08")


def one_line(error: BaseException) -> str:
    """The text of an error on one line, or its type when it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def translate(name: str, error: BaseException, attempts: int = 1) -> SynreplError:
    """The named error for what a statement of ``name`` raised.

    :param error: a ``psycopg2.Error`` or one of :data:`VALUE_ERRORS`
    :param attempts: how often the transaction was run
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
