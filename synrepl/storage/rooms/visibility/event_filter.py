"""Filters of events as SQL, for use before ``LIMIT``.

The statements name the event ``e``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Events that a page looks at, at most, if it has a filter: beyond them, it ends and says where to go on.
FILTER_SCAN_ROWS = 10_000

#: The same for a filter that needs the JSON of each event.
JSON_SCAN_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class EventFilterSql:
    """Which events are wanted; None as a list: all.

    :ivar types: with ``*`` for any text
    :ivar contains_url: whether ``content`` has ``url``; an event that was redacted has none
    """

    types: Sequence[str] | None = None
    not_types: Sequence[str] = ()
    senders: Sequence[str] | None = None
    not_senders: Sequence[str] = ()
    contains_url: bool | None = None

    @property
    def predicate(self) -> str:
        """The conditions, each preceded by AND; empty if there are none."""
        found = []
        if self.types is not None:
            found.append(f"e.type_no = ANY ({_numbers('types')})")
        if self.not_types:
            found.append(f"e.type_no <> ALL ({_numbers('not_types')})")
        if self.senders is not None:
            found.append("e.sender = ANY (%(senders)s::text[])")
        if self.not_senders:
            found.append("e.sender <> ALL (%(not_senders)s::text[])")
        if self.contains_url is not None:
            found.append(f"{_HAS_URL} = {'true' if self.contains_url else 'false'}")
        return "".join(f" AND {each}" for each in found)

    @property
    def params(self) -> dict[str, object]:
        """The parameters of the conditions."""
        return {
            "types": _patterns(self.types or ()),
            "not_types": _patterns(self.not_types),
            "senders": list(self.senders or ()),
            "not_senders": list(self.not_senders),
        }

    @property
    def scan_rows(self) -> int | None:
        """Events that a page may look at; None: any number, because each is wanted."""
        if self.contains_url is not None:
            return JSON_SCAN_ROWS
        return FILTER_SCAN_ROWS if self.predicate else None


#: All events.
ALL_EVENTS = EventFilterSql()


def _numbers(name: str) -> str:
    """The numbers of types; they are looked up once for a statement."""
    return (
        "ARRAY(SELECT t.type_no FROM synrepl._event_types t"
        f" WHERE t.type LIKE ANY (%({name})s::text[]))"
    )


# The type json takes any escape that came in an event; jsonb refuses NUL. The text is searched first, which is quicker.
_HAS_URL = (
    "(e.redacted_by IS NULL AND EXISTS (SELECT FROM synrepl._room_event_json j"
    " WHERE j.event_no = e.event_no AND position('url'::bytea IN j.raw) > 0"
    " AND convert_from(j.raw, 'UTF8')::json -> 'content' -> 'url' IS NOT NULL))"
)


def _patterns(types: Sequence[str]) -> list[str]:
    """Types as patterns of LIKE."""
    return [
        each.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
        for each in types
    ]
