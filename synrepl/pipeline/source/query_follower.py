"""A streaming query, or a landing, as a named follower: the database keeps facts until it has processed them."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set

from synrepl.core.errors import Refused
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.database.whole_events import base_of, positions_of_facts
from synrepl.pipeline.source.plan.offset import Offset
from synrepl.storage.database import Transaction
from synrepl.storage.followers import named_followers

#: Renewals per lease, so that some may fail or be late.
_RENEWALS = 4

#: Key of the linear position among a follower's positions by writer.
_LINEAR = ""


class NoFollowers(Refused):
    """option follower: the database is a Synapse's, which keeps nothing for a follower, and nothing is written there; leave the option out"""


class QueryFollower:
    """Acknowledges positions under a follower's name, so that trimming waits for them.

    :param streams: the streams that it follows; None for all
    :param lease_s: how long facts are kept after the last renewal or acknowledgement, in seconds
    :param whole_events: the streams of whole events, whose facts are those of other streams
    """

    def __init__(
        self,
        database: BlockingDatabase,
        name: str,
        streams: Sequence[str] | None,
        lease_s: float,
        whole_events: Set[str] = frozenset(),
    ) -> None:
        self._database = database
        self._name = name
        self._whole_events = whole_events
        self._streams = streams
        if streams is not None:
            self._streams = [*dict.fromkeys(base_of(each, whole_events) for each in streams)]
        self._lease_s = lease_s
        self._renewed = -float("inf")

    def renew_lease(self) -> None:
        """Renew the lease if it is due.

        :raises DatabaseAway:
        """
        if time.monotonic() - self._renewed >= self._lease_s / _RENEWALS:
            self._database.run("renew the lease", self._renew)
            self._renewed = time.monotonic()

    def acknowledge(self, done: Offset) -> None:
        """Record that everything up to these positions has been processed.

        :raises DatabaseAway:
        """
        at = {
            (stream, writer): token
            for stream, vector in positions_of_facts(done.streams, self._whole_events).items()
            for writer, token in (*vector.writers.items(), (_LINEAR, vector.linear))
        }

        def work(txn: Transaction) -> None:
            named_followers.record(txn, self._name, at)
            self._renew(txn)

        self._database.run("acknowledge positions", work)
        self._renewed = time.monotonic()

    def close(self) -> None:
        """Close the connection; the lease runs on until it expires."""
        self._database.close()

    def _renew(self, txn: Transaction) -> None:
        named_followers.renew_lease(txn, self._name, self._streams, self._lease_s)
