"""Statements that are prepared on a connection, so that it parses and plans them once.

What a connection has prepared may be lost or void without its doing: by ``DISCARD ALL``, by a pooler that chooses
another connection to the server, or by DDL that changes the type of a result. Then the transaction is run again, and
prepares everything anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import psycopg2

from synrepl.driver.errors import one_line
from synrepl.storage.database import PlannedOnce, StalePlans

#: invalid_sql_statement_name (there is no such statement), feature_not_supported (its result would change its type).
_GONE = frozenset({"26000", "0A000"})

#: duplicate_prepared_statement
_THERE_ALREADY = "42P05"

#: A connection has other prepared statements than it should.
STALE_STATES = _GONE | {_THERE_ALREADY}

_PARAMETER = re.compile(r"%s|%\(\w+\)s")


class _PlannedText(NamedTuple):
    name: str
    prepare: str
    execute: str


@lru_cache(1_000)
def _prepared(sql: str) -> _PlannedText:
    name = "planned_" + blake2b(sql.encode(), digest_size=12).hexdigest()
    cells: list[str] = []

    def number(found: re.Match[str]) -> str:
        text = found.group()
        if text == "%s" or text not in cells:
            cells.append(text)
            return f"${len(cells)}"
        return f"${cells.index(text) + 1}"

    body = _PARAMETER.sub(number, sql)
    given = f" ({', '.join(cells)})" if cells else ""
    return _PlannedText(name, f"PREPARE {name} AS {body}", f"EXECUTE {name}{given}")


class PlannedStatements(NamedTuple):
    """Statements to send, with PREPARE where needed.

    :ivar new: names of those that are prepared by it
    :ivar is_any_reused: whether one was prepared before
    """

    statements: list[str]
    new: set[str]
    is_any_reused: bool


def planned_statements(parts: Iterable[str], known: Container[str]) -> PlannedStatements:
    """Prepare those of some statements that are :class:`~synrepl.storage.database.PlannedOnce`.

    :param known: names of those that are prepared already
    """
    statements: list[str] = []
    new: set[str] = set()
    is_any_reused = False
    for part in parts:
        if not isinstance(part, PlannedOnce):
            statements.append(part)
            continue
        prepared = _prepared(part)
        if prepared.name in known:
            is_any_reused = True
        elif prepared.name not in new:
            new.add(prepared.name)
            statements.append(prepared.prepare)
        statements.append(prepared.execute)
    return PlannedStatements(statements, new, is_any_reused)


class PreparedPlans:
    """The prepared statements of one connection."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._is_unsure = False

    def run(self, name: str, parts: Iterable[str], send: Callable[[str], None]) -> None:
        """Send statements in one text, those that are :class:`~synrepl.storage.database.PlannedOnce` prepared.

        :param name: what the transaction does, for errors
        :param send: takes a text with the same parameters as the parts
        :raises StalePlans: the connection has other prepared statements than it should; they are made again
            the next time
        """
        known = set() if self._is_unsure else self._known
        statements, new, is_any_reused = planned_statements(parts, known)
        if self._is_unsure:
            # An isolation level is set by the first statement, before which nothing may be run.
            statements.insert(int(statements[0].startswith("BEGIN")), "DEALLOCATE ALL")
        # If the script fails, it is unknown how far it got; a PREPARE outlives a rollback.
        self._is_unsure = self._is_unsure or bool(new)
        try:
            send(";\n".join(statements))
        except psycopg2.Error as error:
            state = error.pgcode or ""
            if state == _THERE_ALREADY or (state in _GONE and is_any_reused):
                self._is_unsure = True
                reason = error.diag.message_primary or one_line(error)
                raise StalePlans(name=name, sqlstate=state, attempts=1, reason=reason) from error
            raise
        if new or self._is_unsure:
            self._known, self._is_unsure = known | new, False
