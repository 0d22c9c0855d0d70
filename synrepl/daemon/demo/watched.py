"""What a process tells about itself over HTTP, kept over its restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from synrepl.client.client import Client
from synrepl.client.errors import ServerBusy, ServerUnreachable
from synrepl.core.tokens import Token
from synrepl.services.following.source import LINEAR
from synrepl.services.standing.standing import writer_label

#: What a worker counts by stream, as far as the demo shows it.
COUNTS = ("rows", "duplicates", "gaps", "fetched_rows", "resets")


class Watched:
    """A master or worker.

    :ivar status: the last one that could be had; None before the first, and
        after a restart until the next
    :ivar away: the last look found nobody
    """

    def __init__(self, url: str) -> None:
        self._client = Client(url, timeout_s=10.0, retries=False)
        self._before: dict[str, Counter[str]] = {name: Counter() for name in COUNTS}
        self.status: dict[str, Any] | None = None
        self.away = True

    def ready(self) -> bool:
        """Ask whether it is ready; blocks."""
        try:
            return bool(self._client.ready()["ready"])
        except (ServerUnreachable, ServerBusy):
            return False

    def look(self) -> None:
        """Ask for its status; blocks."""
        try:
            self.status = self._client.status()
            self.away = False
        except (ServerUnreachable, ServerBusy):
            self.away = True

    def restarted(self, rows: Counter[str] | None = None) -> None:
        """Its counts begin at 0 again; what was last seen of them is added to what comes.

        :param rows: the count of rows, when somebody knows it exactly
        """
        for name in COUNTS:
            self._before[name] = self.counts(name)
        if rows is not None:
            self._before["rows"] = rows
        self.status = None
        self.away = True

    def counts(self, name: str) -> Counter[str]:
        """One of :data:`COUNTS`, by stream; a lower bound for a process that was killed."""
        counts = {} if self.status is None else self.status.get("counts", {})
        now: Mapping[str, int] = counts.get(name, {})
        return self._before[name] + Counter(now)

    def positions(self, stream: str) -> dict[str, Token | None]:
        """By writer; of a follower of the linear view, that of all of them."""
        streams = {} if self.status is None else self.status["streams"]
        if stream not in streams:
            return {}
        told = streams[stream]
        found = {
            writer: at["position"] if isinstance(at, dict) else at
            for writer, at in told["writers"].items()
        }
        if "position" in told:  # a master's, which tells both
            found[writer_label(LINEAR)] = told["position"]
        return found
