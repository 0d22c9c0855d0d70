"""Warnings that may come with every request, logged now and then."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from synrepl.core.clock import Clock
from synrepl.core.log import Logger

#: Seconds between two warnings of one cause.
EVERY_S = 60.0

#: Causes that are remembered; the one that was logged first is forgotten for a new one.
MOST_CAUSES = 100


class ThrottledLog:
    """Logs a warning of each cause at once, and then at most once in :data:`EVERY_S`, with the number of those between."""

    def __init__(self, clock: Clock, log: Logger) -> None:
        self._clock = clock
        self._log = log
        self._logged: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def warn(self, cause: Hashable, format: str, **facts: object) -> None:  # noqa: A002
        """Warn, unless this cause was logged lately.

        :param cause: what makes warnings the same
        :param format: gets the number of warnings left out since the last one, if there are any
        """
        now = self._clock.seconds()
        at, left_out = self._logged.get(cause, (None, 0))
        if at is not None and now < at + EVERY_S:
            self._logged[cause] = at, left_out + 1
            return
        self._logged.pop(cause, None)
        self._logged[cause] = now, 0
        if len(self._logged) > MOST_CAUSES:
            self._logged.popitem(last=False)
        if left_out:
            format = f"{format} ({{left_out}} more since the last warning of this)"  # noqa: A001
            facts["left_out"] = left_out
        self._log.warn(format, **facts)
