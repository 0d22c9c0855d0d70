"""SQL of a page of events: its parts, each read from an index in the order of the page, and merged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

from synrepl.rooms import HistoryVisibility
from synrepl.storage.database import Script, planned
from synrepl.storage.rooms.visibility.audience import EXCEPTION_BIT, WIDEST_SHIFT
from synrepl.storage.rooms.visibility.audience_sql import ViewerSql
from synrepl.storage.rooms.visibility.viewer_sql import (
    IS_BESIDE,
    IS_DIFFERENT,
    IS_EXCEPTION,
    IS_ON_LINE,
    NEVER,
)

#: Events beside the main line that a page looks at, of each history visibility that needs a membership.
SCAN_ROWS = 1_000


class PageSql:
    """The texts of statements for pages of one kind, which are made once.

    :param ordinary: the inputs for events whose visibility follows from the state after them
    :param wanted: conditions that do not depend on the viewer, each preceded by AND
    :ivar inputs: of the rules of what the viewer sees
    """

    def __init__(
        self,
        inputs: ViewerSql,
        ordinary: ViewerSql,
        wanted: str,
        *,
        is_topological: bool,
        backwards: bool,
    ) -> None:
        self.inputs = inputs
        self._shows_ordinary = ordinary.shows_ordinary()
        self._wanted = wanted
        self._is_topological = is_topological
        self._direction = "DESC" if backwards else "ASC"
        self._names = ("topological", "stream_id") if is_topological else ("stream_id",)
        self._columns = ", ".join(f"e.{each}" for each in self._names)

    @cached_property
    def probe(self) -> Script:
        """The history visibilities of events beside the line, each with the last event to look at."""
        events = (
            f"FROM synrepl._room_events e WHERE {IS_BESIDE} AND e.room_no = %(room)s"
            f" AND {_widest('v.number')} AND {self._in_window()} ORDER BY {self.order('e')}"
        )
        topological = "e.topological" if self._is_topological else "0"
        last = f"ARRAY[{topological}, e.stream_id] {events} OFFSET {SCAN_ROWS - 1} LIMIT 1"
        return planned(
            f"SELECT v.number, (SELECT {last}) FROM generate_series(0, {len(HistoryVisibility) - 1})"
            f" AS v (number) WHERE (SELECT e.event_no {events} LIMIT 1) IS NOT NULL"
        )

    def nth(self, number: int) -> str:
        """The ordering of one event of the window."""
        return (
            f"SELECT e.topological, e.stream_id FROM synrepl._room_events e"
            f" WHERE e.room_no = %(room)s AND e.stream_id IS NOT NULL AND {self._in_window()}"
            f" ORDER BY {self.order('e')} OFFSET {number - 1} LIMIT 1"
        )

    @cached_property
    def source(self) -> str:
        """A query for the numbers of the events of a page, where nothing is beside the main line."""
        return self.source_with(())

    def source_with(self, beside: Sequence[int]) -> str:
        """The same.

        :param beside: history visibilities of events that are beside the main line
        """
        parts = [
            self._on_line(),
            self._exceptions(),
            self._different(),
            *map(self._beside, beside),
        ]
        return (
            f"SELECT event_no FROM ({' UNION ALL '.join(parts)}) AS visible"
            f" ORDER BY {self.order()} LIMIT %(limit)s"
        )

    def _on_line(self) -> str:
        """Events on the main line, range by range."""
        return f"""
            (SELECT e.event_no, {self._columns}
               FROM unnest(%(from_topological)s::bigint[], %(from_stream)s::bigint[],
                           %(to_topological)s::bigint[], %(to_stream)s::bigint[])
                    WITH ORDINALITY AS range (from_topological, from_stream, to_topological, to_stream, place)
              CROSS JOIN LATERAL (
                    SELECT e.event_no, {self._columns} FROM synrepl._room_events e
                     WHERE e.room_no = %(room)s AND e.stream_id IS NOT NULL AND {IS_ON_LINE}
                       AND NOT ({IS_EXCEPTION}) AND NOT ({IS_DIFFERENT})
                       AND {
            self._between(
                "range.from_topological",
                "range.from_stream",
                "range.to_topological",
                "range.to_stream",
            )
        }
                       AND {self._shows_ordinary}{self._wanted}
                     ORDER BY {self.order("e")} LIMIT %(limit)s) AS e
              ORDER BY range.place, {self.order("e")} LIMIT %(limit)s)"""

    def _beside(self, visibility: int) -> str:
        """Events beside the main line."""
        return f"""
            (SELECT e.event_no, {self._columns} FROM synrepl._room_events e
              WHERE e.room_no = %(room)s AND {IS_BESIDE} AND {_widest(visibility)}
                AND NOT ({IS_EXCEPTION})
                AND {self._in_window()} AND {self._shows_ordinary}{self._wanted}
              ORDER BY {self.order("e")} LIMIT %(limit)s)"""

    def _exceptions(self) -> str:
        """Events whose visibility does not follow from the state after them."""
        # Each ordering has an index of its own, with this very expression.
        is_exception = (
            "((e.audience >> 17) & 1) = 1"
            if self._is_topological
            else f"(e.audience & {EXCEPTION_BIT}) <> 0"
        )
        # Slot by slot, as the indexes are: for several at once, the planner would rather read the window.
        return f"""
            (SELECT e.event_no, {self._columns} FROM unnest(%(slots)s::int[]) AS s (slot)
              CROSS JOIN LATERAL (
                    SELECT e.event_no, {self._columns} FROM synrepl._room_events e
                     WHERE e.room_no = %(room)s AND {is_exception} AND e.slot = s.slot
                       AND {NEVER} = 0 AND e.stream_id IS NOT NULL
                       AND {self._in_window()} AND {self.inputs.shows()}{self._wanted}
                     ORDER BY {self.order("e")} LIMIT %(limit)s) AS e
              ORDER BY {self.order("e")} LIMIT %(limit)s)"""

    def _different(self) -> str:
        """Events near the main line whose state may differ from it for the user."""
        return f"""
            (SELECT DISTINCT e.event_no, {self._columns} FROM synrepl._branch_memberships b
               JOIN synrepl._room_events e USING (event_no)
              WHERE b.room_no = %(room)s AND b.slot = ANY (%(slots)s::int[])
                AND {self._in_window("b")} AND {IS_ON_LINE} AND NOT ({IS_EXCEPTION})
                AND {self._shows_ordinary}{self._wanted}
              ORDER BY {self.order("e")} LIMIT %(limit)s)"""

    def order(self, table: str = "") -> str:
        """The columns of the ordering.

        :param table: whose columns they are
        """
        prefix = f"{table}." if table else ""
        return ", ".join(f"{prefix}{name} {self._direction}" for name in self._names)

    def _between(self, *bounds: str, table: str = "e") -> str:
        from_topological, from_stream, to_topological, to_stream = bounds
        if self._is_topological:
            return (
                f"({table}.topological, {table}.stream_id) >= ({from_topological}, {from_stream})"
                f" AND ({table}.topological, {table}.stream_id) < ({to_topological}, {to_stream})"
            )
        return f"{table}.stream_id >= {from_stream} AND {table}.stream_id < {to_stream}"

    def _in_window(self, table: str = "e") -> str:
        return self._between(
            "%(low_topological)s",
            "%(low_stream)s",
            "%(high_topological)s",
            "%(high_stream)s",
            table=table,
        )


@lru_cache(100)
def page_sql(
    inputs: ViewerSql, ordinary: ViewerSql, wanted: str, *, is_topological: bool, backwards: bool
) -> PageSql:
    """The texts for pages of one kind."""
    return PageSql(inputs, ordinary, wanted, is_topological=is_topological, backwards=backwards)


def _widest(visibility: int | str) -> str:
    return f"((e.audience >> {WIDEST_SHIFT}) & 3) = {visibility}"
