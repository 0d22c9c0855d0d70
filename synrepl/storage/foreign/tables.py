"""The tables of a real Synapse's streams, by generation of its schema.

Source: the schemas and tables of 1.11.1, 1.20.1, 1.43.0 and 1.163.2, checked against the
lines of the same servers (``tests/storage/test_foreign_rows.py``). For 1.30, 1.74 and 1.100
only the schemas were checked, so the contents of rows may differ. Not covered, because they
have no table: ``typing``, ``federation``, ``presence_federation``. No rows were seen, so only
the columns are known to match, in ``un_partial_stated_room``, ``un_partial_stated_event``,
``device_lists_outbound_pokes`` and ``device_federation_outbox``; the last two are emptied as
they are sent. Rows of ``profile_updates`` were seen in a 1.163.2 configured to write them.

An event that stopped being an outlier has a second ID, in ``ex_outlier_stream``. A
change of 150 state entries at once, for which the newest servers send
``state-all``, is read entry by entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from synrepl.storage.foreign.feed import WRITER_COLUMN, ForeignStream, TableFeed
from synrepl.streams.definition import UNTAGGED


def _same(*names: str) -> dict[str, str]:
    """Cells of fields with columns of the same name."""
    return {name: f"t.{name}" for name in names}


def _one(
    table: str,
    cells: Mapping[str, str],
    *,
    sequence: str | None = None,
    recorded: str | None = None,
    **more: Any,
) -> ForeignStream:
    """A stream with one table."""
    return ForeignStream((TableFeed(table, cells, **more),), sequence, recorded)


# -- events and backfill: the same tables, IDs above and below 0

_EVENT = {
    "event_id": "e.event_id",
    "room_id": "e.room_id",
    "type": "e.type",
    "state_key": "s.state_key",
    "redacts": "r.redacts",
    "relates_to": "p.relates_to_id",
}
_ITSELF = {
    "e": ("events", "e.event_id = t.event_id"),
    "s": ("state_events", "s.event_id = e.event_id"),
    "r": ("redactions", "r.event_id = e.event_id"),
    "p": ("event_relations", "p.event_id = e.event_id"),
}
_MEMBER = {"m": ("room_memberships", "m.event_id = e.event_id")}
_REJECTED = {"x": ("rejections", "x.event_id = e.event_id")}
_STATE = TableFeed(
    "current_state_delta_stream", _same("room_id", "type", "state_key", "event_id"), kind="state"
)


def _events(
    cells: Mapping[str, str], joins: Mapping[str, tuple[str, str]], kind: str = UNTAGGED
) -> tuple[TableFeed, TableFeed]:
    return (
        TableFeed("events", cells, "stream_ordering", kind, joins),
        TableFeed("ex_outlier_stream", cells, "event_stream_ordering", kind, joins),
    )


_LEGACY_EVENTS = _events(
    {**_EVENT, "membership": "NULL", "rejected": "false", "outlier": "false"}, _ITSELF, "ev"
)
_MODERN_EVENTS = _events(
    {
        **_EVENT,
        "membership": "m.membership",
        "rejected": "x.event_id IS NOT NULL",
        "outlier": "false",
    },
    {**_ITSELF, **_MEMBER, **_REJECTED},
    "ev",
)
_CURRENT_EVENTS = _events(
    {
        **_EVENT,
        "membership": "m.membership",
        "rejected": "e.rejection_reason IS NOT NULL",
        "outlier": "e.outlier",
    },
    {**_ITSELF, **_MEMBER},
    "ev",
)
_BACKFILL = _events(_EVENT, _ITSELF)

# -- the others

_PRESENCE = TableFeed(
    "presence_stream",
    _same(
        "user_id",
        "state",
        "last_active_ts",
        "last_federation_update_ts",
        "last_user_sync_ts",
        "status_msg",
        "currently_active",
    ),
)
_RECEIPT = {
    **_same("room_id", "receipt_type", "user_id", "event_id"),
    "data": "t.data::json",
    "thread_id": "NULL",
}
_TO_DEVICE = (
    TableFeed("device_inbox", {"entity": "t.user_id"}, distinct=True),
    TableFeed("device_federation_outbox", {"entity": "t.destination"}, distinct=True),
)
_PUSHERS = (
    TableFeed(
        "pushers",
        {"user_id": "t.user_name", **_same("app_id", "pushkey"), "deleted": "false"},
        stream_id="id",
    ),
    TableFeed("deleted_pushers", {**_same("user_id", "app_id", "pushkey"), "deleted": "true"}),
)
_CACHES = {**_same("cache_func", "invalidation_ts"), "keys": "to_json(t.keys)"}
#: Only the oldest releases send the content, so it is left out here.
_DATA = {"data_type": "t.account_data_type", "content": "NULL"}
_ACCOUNT_DATA = (
    TableFeed("account_data", {"user_id": "t.user_id", "room_id": "NULL", **_DATA}),
    TableFeed("room_account_data", {**_same("user_id", "room_id"), **_DATA}),
)
#: On the wire: all current tags of the room, as JSON in a string.
_TAGS = TableFeed(
    "room_tags_revisions",
    {
        **_same("user_id", "room_id"),
        "data": "to_json('{' || coalesce("
        "(SELECT string_agg(to_json(g.tag) || ':' || g.content, ',') FROM room_tags AS g"
        " WHERE g.user_id = t.user_id AND g.room_id = t.room_id), '') || '}')",
    },
    also={"g": "room_tags"},
)
_TAGS_AS_ACCOUNT_DATA = TableFeed(
    "room_tags_revisions", {**_same("user_id", "room_id"), **_DATA, "data_type": "'m.tag'"}
)
_GROUPS = {**_same("group_id", "user_id", "type"), "content": "t.content::json"}


def _device(
    entity: str, destination: str = "NULL", signed: bool = False, known: bool = False
) -> dict[str, str]:
    """One row of ``device_lists``.

    :param signed: it is about signatures only
    :param known: its destinations are known
    """
    return {
        "entity": entity,
        "destination": destination,
        "is_signature": str(signed).lower(),
        "hosts_calculated": str(known).lower(),
    }


_DEVICES = "device_lists_stream"
_POKES = "device_lists_outbound_pokes"
_SIGNATURES = "user_signature_stream"

#: In every generation, and without a sequence in the older ones.
_ALWAYS = {
    "presence": ForeignStream((_PRESENCE,)),
    "receipts": _one("receipts_linearized", _RECEIPT),
    "push_rules": _one("push_rules_stream", _same("user_id"), distinct=True),
    "pushers": ForeignStream(_PUSHERS),
    "to_device": ForeignStream(_TO_DEVICE),
    "account_data": ForeignStream(_ACCOUNT_DATA),
    "tag_account_data": ForeignStream((_TAGS,)),
    "groups": _one("local_group_updates", _GROUPS),
    "user_signature": _one(_SIGNATURES, {"user_id": "t.from_user_id"}),
}

_LEGACY: Mapping[str, ForeignStream] = {
    **_ALWAYS,
    "events": ForeignStream((*_LEGACY_EVENTS, _STATE)),
    "backfill": ForeignStream(_BACKFILL),
    "caches": _one("cache_invalidation_stream", _CACHES),
    "public_rooms": _one(
        "public_room_list_stream", _same("room_id", "visibility", "appservice_id", "network_id")
    ),
    "device_lists": _one(
        _DEVICES,
        _device("t.user_id", "o.destination"),
        joins={
            "o": (
                _POKES,
                "o.stream_id = t.stream_id AND o.user_id = t.user_id AND o.device_id = t.device_id",
            )
        },
        distinct=True,
    ),
}

_CACHES_BY_WRITER = _one(
    "cache_invalidation_stream_by_instance", _CACHES, sequence="cache_invalidation_stream_seq"
)
_DEVICES_OR_HOSTS = ForeignStream(
    (
        TableFeed(_DEVICES, _device("t.user_id"), distinct=True),
        TableFeed(_POKES, _device("t.destination"), distinct=True),
    )
)

_TRANSITIONAL: Mapping[str, ForeignStream] = {
    **_LEGACY,
    "caches": _CACHES_BY_WRITER,
    "device_lists": _DEVICES_OR_HOSTS,
}

#: Schemas with several writers to a stream, and so with sequences and ``stream_positions``.
_SEVERAL_WRITERS: Mapping[str, ForeignStream] = {
    "backfill": ForeignStream(_BACKFILL, "events_backfill_stream_seq", "backfill"),
    "presence": ForeignStream((_PRESENCE,), "presence_stream_sequence", "presence_stream"),
    "receipts": _one(
        "receipts_linearized", _RECEIPT, sequence="receipts_sequence", recorded="receipts"
    ),
    "caches": _CACHES_BY_WRITER,
    "to_device": ForeignStream(_TO_DEVICE, "device_inbox_sequence", "to_device"),
    "account_data": ForeignStream(_ACCOUNT_DATA, "account_data_sequence", "account_data"),
}
_PARTIAL_STATE: Mapping[str, ForeignStream] = {
    "un_partial_stated_room": _one(
        "un_partial_stated_room_stream",
        _same("room_id"),
        sequence="un_partial_stated_room_stream_sequence",
    ),
    "un_partial_stated_event": _one(
        "un_partial_stated_event_stream",
        _same("event_id", "rejection_status_changed"),
        sequence="un_partial_stated_event_stream_sequence",
    ),
}

_MODERN: Mapping[str, ForeignStream] = {
    **_ALWAYS,
    **_SEVERAL_WRITERS,
    # It shares the sequence of account_data, whose recorded position does not cover it.
    "tag_account_data": ForeignStream((_TAGS,), "account_data_sequence"),
    "events": ForeignStream((*_MODERN_EVENTS, _STATE), "events_stream_seq", "events"),
    "device_lists": _DEVICES_OR_HOSTS,
}

_RECEIPTS_OF_THREADS = _one(
    "receipts_linearized",
    {**_RECEIPT, "thread_id": "t.thread_id"},
    sequence="receipts_sequence",
    recorded="receipts",
)
_ALL_ACCOUNT_DATA = ForeignStream(
    (*_ACCOUNT_DATA, _TAGS_AS_ACCOUNT_DATA), "account_data_sequence", "account_data"
)

#: Tags are in both streams: 1.74 still sends tag_account_data, 1.100 sends account_data.
_LATE_MODERN: Mapping[str, ForeignStream] = {
    **_MODERN,
    **_PARTIAL_STATE,
    "receipts": _RECEIPTS_OF_THREADS,
    "account_data": _ALL_ACCOUNT_DATA,
}

_CURRENT: Mapping[str, ForeignStream] = {
    **_SEVERAL_WRITERS,
    **_PARTIAL_STATE,
    "events": ForeignStream((*_CURRENT_EVENTS, _STATE), "events_stream_seq", "events"),
    "receipts": _RECEIPTS_OF_THREADS,
    "push_rules": _one(
        "push_rules_stream",
        _same("user_id"),
        distinct=True,
        sequence="push_rules_stream_sequence",
        recorded="push_rules_stream",
    ),
    "pushers": ForeignStream(_PUSHERS, "pushers_sequence", "pushers"),
    "device_lists": ForeignStream(
        (
            TableFeed(_DEVICES, _device("t.user_id"), distinct=True),
            TableFeed(_SIGNATURES, _device("t.from_user_id", signed=True), distinct=True),
            TableFeed(_POKES, _device("t.user_id", known=True), distinct=True),
        ),
        "device_lists_sequence",
        "device_lists_stream",
    ),
    "account_data": _ALL_ACCOUNT_DATA,
    "sticky_events": _one(
        "sticky_events",
        _same("room_id", "event_id"),
        sequence="sticky_events_sequence",
        recorded="sticky_events",
    ),
    "thread_subscriptions": _one(
        "thread_subscriptions",
        _same("user_id", "room_id", "event_id"),
        sequence="thread_subscriptions_sequence",
        recorded="thread_subscriptions",
    ),
    "quarantined_media": _one(
        "quarantined_media_changes",
        _same("origin", "media_id", "quarantined"),
        sequence="quarantined_media_id_seq",
        recorded="quarantined_media",
    ),
    "profile_updates": _one(
        "profile_updates",
        {**_same("user_id", "action"), "affected_fields": "t.affected_fields::json"},
        sequence="profile_updates_sequence",
        recorded="profile_updates",
    ),
}

#: The (table, column) that marks a generation of schemas, and its tables; oldest first.
#: Seen in 1.0 and 1.11, 1.20, 1.30 to 1.56, 1.74 and 1.100, 1.130 and 1.163.
TABLES: Sequence[tuple[tuple[str, str] | None, Mapping[str, ForeignStream]]] = (
    (None, _LEGACY),
    (("cache_invalidation_stream_by_instance", "stream_id"), _TRANSITIONAL),
    (("stream_positions", "stream_id"), _MODERN),
    (("receipts_linearized", "thread_id"), _LATE_MODERN),
    ((_DEVICES, WRITER_COLUMN), _CURRENT),
)
