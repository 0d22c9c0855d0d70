"""Kills the connection of a process at a chosen write, by a trigger on every table that is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Written while events of others are taken in; ``events`` is the stream.
WRITTEN = (
    *("_room_events", "_room_event_json", "_room_heads", "_rooms", "_forward_extremities"),
    *("_backward_extremities", "_waiting_events", "_current_state", "_memberships", "_room_keys"),
    *("_state_groups", "_state_line", "_staged_events", "_received_transactions"),
    *("_failed_fetches", "_remote_memberships", "events", "backfill", "caches"),
)

#: The counter is a sequence, which keeps its value whatever becomes of the transaction.
_INSTALL = """
CREATE SEQUENCE public.writes MINVALUE 0 START 0;
CREATE TABLE public.killing (at bigint);
CREATE FUNCTION public.kill_at_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('public.writes') = (SELECT at FROM public.killing) THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
    END IF;
    RETURN NULL;
END
$$;
"""


class ConnectionKiller:
    """Ends connections at a write, each time at the next one.

    :param sql: runs a statement
    """

    def __init__(self, sql: Callable[..., Any]) -> None:
        self._sql = sql
        sql(_INSTALL)
        for table in WRITTEN:
            sql(
                f"CREATE TRIGGER kill_at_write AFTER INSERT OR UPDATE OR DELETE ON synrepl.{table}"
                " FOR EACH STATEMENT EXECUTE FUNCTION public.kill_at_write()"
            )

    def arm(self, number: int) -> None:
        """Kill at a write, counted from 0."""
        self._sql("SELECT setval('public.writes', 0, false)")
        self._sql("DELETE FROM public.killing")
        self._sql("INSERT INTO public.killing VALUES (%s)", number)

    @property
    def has_killed(self) -> bool:
        """Whether there were as many writes; it is not armed any more then."""
        count = int(self._sql("SELECT last_value FROM public.writes"))
        at = self._sql("SELECT at FROM public.killing")
        self._sql("DELETE FROM public.killing")
        return count >= int(at)
