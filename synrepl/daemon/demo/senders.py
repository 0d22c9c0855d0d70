"""Appending the traffic: a few connections at a time, and each request exactly once."""

from __future__ import annotations

import secrets
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Condition, Thread

from synrepl.client.client import Client
from synrepl.core.errors import Unavailable
from synrepl.core.tokens import Token
from synrepl.daemon.demo.traffic import Request

CONNECTIONS = 4

#: For how long a request is tried, in seconds: much longer than a master takes to start.
PATIENCE_S = 120.0

#: One call of a client, in seconds; then it is seen whether to go on.
CALL_S = 30.0


class NotAppended(Unavailable):
    """request {number} (stream {stream!r}) was not appended within {seconds:g} s: {reason}"""


class Acknowledged:
    """What the writers said they have appended.

    :ivar ids: the stream IDs of the facts of a request, by its number
    :ivar writers: who wrote it, by its number
    :ivar rows: how many, by stream
    :ivar facts: how many, by stream
    :ivar last: the largest token by stream
    :ivar again: requests that had to be sent more than once
    :ivar replayed: those of them that had been appended the first time
    """

    def __init__(self) -> None:
        self.ids: dict[int, array[int]] = {}
        self.writers: dict[int, str] = {}
        self.rows: Counter[str] = Counter()
        self.facts: Counter[str] = Counter()
        self.last: dict[str, Token] = {}
        self.again = 0
        self.replayed = 0


class Senders:
    """Threads that send requests, in order, up to a limit that the scenario raises.

    :param client_for: who takes a request, always the same
    """

    def __init__(
        self, client_for: Callable[[Request], Client], requests: Iterator[Request]
    ) -> None:
        self.acknowledged = Acknowledged()
        self._client_for = client_for
        self._requests = requests
        self._prefix = secrets.token_hex(8)
        self._changed = Condition()
        self._limit: int | None = 0
        self._taken = 0
        self._running = 0
        self._stopped = False
        self._failure: Exception | None = None

    def start(self) -> None:
        """Start sending. The threads do not keep the process from ending."""
        self._running = CONNECTIONS
        for _ in range(CONNECTIONS):
            Thread(target=self._send_all, daemon=True).start()

    def allow(self, rows: int) -> None:
        """Go on until so many rows have been taken in hand."""
        with self._changed:
            self._limit = rows
            self._changed.notify_all()

    def allow_all(self) -> None:
        """Go on to the end."""
        with self._changed:
            self._limit = None
            self._changed.notify_all()

    def finish(self) -> None:
        """Take nothing more in hand, and end with what is."""
        with self._changed:
            self._requests = iter(())
        self.allow_all()

    def stop(self) -> None:
        """Send no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def rows(self) -> int:
        """Rows appended so far.

        :raises SynreplError: a request failed for good
        """
        return self.rows_by_stream.total()

    @property
    def rows_by_stream(self) -> Counter[str]:
        """As :attr:`rows`."""
        with self._changed:
            self._check()
            return Counter(self.acknowledged.rows)

    @property
    def done(self) -> bool:
        """All is appended.

        :raises SynreplError: a request failed for good
        """
        with self._changed:
            self._check()
            return not self._running

    def check(self) -> None:
        """Make sure that all goes well.

        :raises SynreplError: a request failed for good
        """
        with self._changed:
            self._check()

    def last_tokens(self) -> dict[str, Token]:
        """The largest token acknowledged so far, by stream."""
        with self._changed:
            return dict(self.acknowledged.last)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _send_all(self) -> None:
        try:
            while (request := self._next()) is not None:
                self._send(request)
        except Exception as error:  # whatever it is, the scenario must hear of it
            with self._changed:
                self._failure = self._failure or error
            self.stop()
        finally:
            with self._changed:
                self._running -= 1

    def _next(self) -> Request | None:
        with self._changed:
            while self._limit is not None and self._taken >= self._limit and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return None
            request = next(self._requests, None)
            if request is not None:
                self._taken += request.rows
            return request

    def _send(self, request: Request) -> None:
        client, count = self._client_for(request), len(request.facts)
        key = f"{self._prefix}-{request.number}"
        give_up = time.monotonic() + PATIENCE_S
        attempts = 0
        while True:
            attempts += 1
            try:
                appended = client.append_body(
                    request.stream, request.body, count, key=key, timeout_s=CALL_S
                )
                break
            except Unavailable as error:
                if self._stopped or time.monotonic() > give_up:
                    raise NotAppended(
                        number=request.number,
                        stream=request.stream,
                        seconds=PATIENCE_S,
                        reason=error,
                    ) from None
        ids = appended.ids
        with self._changed:
            told = self.acknowledged
            told.ids[request.number] = array("q", ids)
            told.writers[request.number] = appended.writer
            told.rows[request.stream] += request.rows
            told.facts[request.stream] += len(ids)
            told.last[request.stream] = max(appended.token, told.last.get(request.stream, 0))
            told.again += attempts > 1 or appended.attempts > 1
            told.replayed += appended.replayed
