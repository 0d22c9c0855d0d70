"""Statements that are prepared on a connection, so that it parses and plans them once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

from synrepl.storage.database import PlannedOnce

_PARAMETER = re.compile("%s")


class _PlannedText(NamedTuple):
    name: str
    prepare: str
    execute: str


@lru_cache(1_000)
def _prepared(sql: str) -> _PlannedText:
    name = "planned_" + blake2b(sql.encode(), digest_size=12).hexdigest()
    numbers = count(1)
    body, parameters = _PARAMETER.subn(lambda _: f"${next(numbers)}", sql)
    cells = f" ({', '.join(['%s'] * parameters)})" if parameters else ""
    return _PlannedText(name, f"PREPARE {name} AS {body}", f"EXECUTE {name}{cells}")


class PreparedPlans:
    """The prepared statements of one connection."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._is_unsure = False

    def run(self, parts: Iterable[str], send: Callable[[str], None]) -> None:
        """Send statements in one text, those that are :class:`~synrepl.storage.database.PlannedOnce` prepared.

        :param send: takes a text with the same parameters as the parts
        """
        statements: list[str] = ["DEALLOCATE ALL"] if self._is_unsure else []
        known = set() if self._is_unsure else self._known
        new: set[str] = set()
        for part in parts:
            if not isinstance(part, PlannedOnce):
                statements.append(part)
                continue
            prepared = _prepared(part)
            if prepared.name not in known and prepared.name not in new:
                new.add(prepared.name)
                statements.append(prepared.prepare)
            statements.append(prepared.execute)
        # If the script fails, it is unknown how far it got; a PREPARE outlives a rollback.
        self._is_unsure = self._is_unsure or bool(new)
        send(";\n".join(statements))
        self._known, self._is_unsure = known | new, False
