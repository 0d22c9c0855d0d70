"""Rules for the room, the user and the time of a row, by stream.

The first rule applies that matches the stream's name and columns. A declared stream with a column of
a usual name needs no rule of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.streams.columns import ColumnType


class ColumnRule(NamedTuple):
    """How to compute a value from the columns of a stream.

    :ivar stream: the stream's name; None for any
    :ivar columns: the columns it requires
    :ivar sql: an expression of these columns
    """

    stream: str | None
    columns: tuple[str, ...]
    sql: str


_MEMBER = "CASE WHEN type = 'm.room.member' THEN state_key END"

ROOM = (
    # The first key is a room only for these names (streams/synapse/expansions.py).
    ColumnRule(
        "caches",
        ("cache_func", "keys"),
        "CASE WHEN cache_func IN ('cs_cache_fake', 'ph_cache_fake', 'dr_cache_fake')"
        " THEN get_json_object(keys, '$[0]') END",
    ),
    ColumnRule(None, ("room_id",), "room_id"),
)

USER = (
    # A row has no sender of its event, only the user whose membership it changes.
    ColumnRule("events", ("type", "state_key"), _MEMBER),
    ColumnRule("backfill", ("type", "state_key"), _MEMBER),
    ColumnRule(None, ("user_id",), "user_id"),
    ColumnRule(None, ("sender",), "sender"),
    # A user, or another server.
    ColumnRule(None, ("entity",), "CASE WHEN entity LIKE '@%' THEN entity END"),
)

#: In milliseconds since the epoch.
AT_MS = (
    ColumnRule("caches", ("invalidation_ts",), "invalidation_ts"),
    ColumnRule("receipts", ("data",), "get_json_object(data, '$.ts')"),
    # Presence is written some time after it changes, so the newest time is the closest.
    ColumnRule(
        "presence",
        ("last_active_ts", "last_federation_update_ts", "last_user_sync_ts"),
        "greatest(last_active_ts, last_federation_update_ts, last_user_sync_ts)",
    ),
    ColumnRule(None, ("origin_server_ts",), "origin_server_ts"),
    ColumnRule(None, ("ts",), "ts"),
)

#: 9999-12-31, in milliseconds since the epoch. Some times come from other servers, and are wrong.
_LAST_MS = 253_402_214_400_000


def text_expression(rules: Sequence[ColumnRule], stream_schema: StreamSchema) -> str:
    """The SQL expression for a text in the rows of a stream; NULL if no rule applies."""
    return f"CAST({_expression(rules, stream_schema)} AS string)"


def time_expression(stream_schema: StreamSchema) -> str:
    """The SQL expression for a row's own time in ms; NULL if it has none, or an impossible one."""
    found = f"try_cast({_expression(AT_MS, stream_schema)} AS bigint)"
    return f"CASE WHEN {found} BETWEEN 1 AND {_LAST_MS} THEN {found} END"


def _expression(rules: Sequence[ColumnRule], stream_schema: StreamSchema) -> str:
    usable = {cell.name for cell in stream_schema.cells if cell.type is not ColumnType.TEXT_ARRAY}
    fitting = (
        rule.sql
        for rule in rules
        if rule.stream in (None, stream_schema.stream) and usable.issuperset(rule.columns)
    )
    return next(fitting, "NULL")
