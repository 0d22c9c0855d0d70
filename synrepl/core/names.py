"""Validates names, once, where they enter the process.

Names of writers, streams, columns and followers appear in lines split on spaces, in
SQL identifiers and in metric labels, so each kind has one narrow pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from synrepl.core.errors import InputError

MAX_NAME_LENGTH = 63  # that of a Postgres identifier


class BadName(InputError):
    """{kind} {value!r} is not a valid name: use {rule}"""


class BadKey(InputError):
    """the idempotency key is not acceptable: 1 to 255 visible ASCII characters are needed, without spaces"""


_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)


def idempotency_key(value: str) -> str:
    """Return ``value`` if it is a valid idempotency key.

    :raises BadKey: otherwise
    """
    if not _IDEMPOTENCY_KEY.fullmatch(value):
        raise BadKey()
    return value


def _checker(kind: str, pattern: str, rule: str, longest: int) -> Callable[[str], str]:
    compiled = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if len(value) > longest or not compiled.fullmatch(value):
            raise BadName(
                kind=kind, value=value[:100], rule=f"{rule}, at most {longest} characters"
            )
        return value

    check.__doc__ = f"Return ``value`` if it is a valid {kind}.\n\n:raises BadName: otherwise"
    return check


#: 45 leaves room for the suffixes of a stream's sequence and indexes.
stream_name = _checker(
    "stream name", r"[a-z][a-z0-9_]*", "lower-case letters, digits and '_', a letter first", 45
)
column_name = _checker(
    "column name", r"[a-z][a-z0-9_]*", "lower-case letters, digits and '_', a letter first", 45
)
writer_name = _checker(
    "writer name", r"[A-Za-z0-9][A-Za-z0-9_.:-]*", "letters, digits and '_.:-'", MAX_NAME_LENGTH
)
follower_name = _checker(
    "follower name", r"[A-Za-z0-9][A-Za-z0-9_.:-]*", "letters, digits and '_.:-'", MAX_NAME_LENGTH
)
#: Long enough for most class paths.
handler_name = _checker(
    "handler name", r"[A-Za-z0-9_][A-Za-z0-9_.:-]*", "letters, digits and '_.:-'", 200
)
server_name = _checker(
    "server name", r"[A-Za-z0-9.:\[\]-]+", "a host name, with ':port' if needed", 255
)
