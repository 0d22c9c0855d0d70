"""When a call is repeated, and when it is given up: without I/O, at times that the test sets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.client.calls import append_call, get_call
from synrepl.client.errors import (
    AppendRefused,
    AppendUnconfirmed,
    ServerBusy,
    ServerUnreachable,
    UnusableAnswer,
)
from synrepl.client.exchange import (
    BACK_OFF,
    HttpReply,
    NoReply,
    Pause,
    Send,
    SendOutcome,
    exchange,
    retry_after,
)
from synrepl.core.errors import SynreplError

URL = "http://127.0.0.1:1"

AWAY = NoReply(ServerUnreachable(url=URL, reason="refused"), False)
LOST = NoReply(ServerUnreachable(url=URL, reason="no answer"), True)
DONE = HttpReply(200, b'{"ids":[1],"writer":"w"}')
CONFLICT = HttpReply(409, b'{"error":"NotAWriter","message":"no"}')


class Driver:
    """Drives an exchange; each request takes a second.

    :ivar seconds: the time
    :ivar pauses: those that were asked for
    :ivar sends: the requests
    """

    def __init__(self, timeout_s: float = 30.0, retries: bool = True) -> None:
        self.seconds = 1_000.0
        self.pauses: list[float] = []
        self.sends: list[Send] = []
        self._limits = timeout_s, retries

    def run(self, call: Any, *outcomes: SendOutcome) -> Any:
        """The result; the last outcome counts for all requests that follow."""
        left = list(outcomes)
        steps = exchange(call, URL, *self._limits, lambda: self.seconds)
        step = next(steps)
        try:
            while True:
                if isinstance(step, Pause):
                    self.pauses.append(step.seconds)
                    self.seconds += step.seconds
                    step = next(steps)
                else:
                    self.sends.append(step)
                    self.seconds += 1.0
                    step = steps.send(left.pop(0) if len(left) > 1 else left[0])
        except StopIteration as stop:
            return stop.value


def append() -> Any:
    return append_call("jobs", b"[[1]]", "key", 1)


class ExchangeRetries(TestCase):
    """One call, from its first request to its end."""

    def test_pauses_grow_up_to_a_limit_and_have_jitter(self) -> None:
        driver = Driver(timeout_s=60.0)
        result = driver.run(get_call("/status"), *[AWAY] * 9, HttpReply(200, b"{}"))
        self.assertEqual(result, {})
        for number, pause in enumerate(driver.pauses):
            longest = min(0.1 * 2**number, BACK_OFF.longest_s)
            self.assertTrue(longest / 2 <= pause <= longest, driver.pauses)

    def test_pauses_for_as_long_as_the_process_asks(self) -> None:
        driver = Driver()
        driver.run(get_call("/status"), HttpReply(503, b"{}", 7.0), HttpReply(200, b"{}"))
        self.assertEqual(driver.pauses, [7.0])

    @given(
        st.lists(
            st.sampled_from([AWAY, LOST, HttpReply(503, b"{}", 2.0), HttpReply(429, b"")]),
            min_size=1,
        ),
        st.floats(0.01, 100.0),
    )
    def test_neither_a_request_nor_a_pause_goes_beyond_the_time_of_the_call(
        self, outcomes: list[Any], timeout_s: float
    ) -> None:
        driver = Driver(timeout_s)
        with self.assertRaises(SynreplError):
            driver.run(append(), *outcomes)
        paused = sum(driver.pauses)
        self.assertLess(paused + len(driver.sends) - 1, timeout_s)
        self.assertTrue(all(0 < send.timeout_s <= timeout_s + 1e-6 for send in driver.sends))

    @given(
        st.lists(
            st.sampled_from([AWAY, HttpReply(503, b"{}"), HttpReply(429, b"<html>")]), min_size=1
        )
    )
    def test_an_append_that_never_arrived_is_not_called_unconfirmed(self, outcomes: Any) -> None:
        with self.assertRaises((ServerUnreachable, ServerBusy)):
            Driver().run(append(), *outcomes)

    @given(st.lists(st.sampled_from([AWAY, HttpReply(503, b"{}")]), max_size=5), st.data())
    def test_an_append_that_may_have_arrived_once_is_unconfirmed(
        self, outcomes: list[Any], data: st.DataObject
    ) -> None:
        lost = data.draw(st.sampled_from([LOST, HttpReply(502, b""), HttpReply(504, b"<html>")]))
        outcomes.insert(data.draw(st.integers(0, len(outcomes))), lost)
        with self.assertRaises(AppendUnconfirmed) as caught:
            Driver().run(append(), *outcomes, AWAY)
        self.assertEqual(caught.exception.key, "key")

    def test_a_refusal_after_an_attempt_that_may_have_arrived_leaves_the_outcome_unknown(
        self,
    ) -> None:
        for refusal in (CONFLICT, HttpReply(401, b"{}"), HttpReply(404, b"<html>")):
            with self.assertRaises(AppendUnconfirmed):
                Driver().run(append(), LOST, refusal)
        for status in (400, 413, 422):  # these hold for the first attempt, too
            with self.assertRaises(AppendRefused):
                Driver().run(append(), LOST, HttpReply(status, CONFLICT.body))

    def test_an_error_of_the_server_while_it_appends_leaves_the_outcome_unknown(self) -> None:
        internal = HttpReply(500, b'{"error":"InternalError","message":"see the log"}')
        for reply in (internal, HttpReply(200, b"<html>"), HttpReply(200, b"{}")):
            driver = Driver()
            with self.assertRaises(AppendUnconfirmed):
                driver.run(append(), reply)
            self.assertEqual(len(driver.sends), 1)

    def test_a_refusal_ends_the_call(self) -> None:
        driver = Driver()
        with self.assertRaises(AppendRefused):
            driver.run(append(), AWAY, CONFLICT)
        self.assertEqual(len(driver.sends), 2)

    def test_an_unusable_answer_ends_the_call(self) -> None:
        with self.assertRaises(UnusableAnswer):
            Driver().run(append(), HttpReply(404, b"<html>"))
        with self.assertRaises(UnusableAnswer):
            Driver().run(get_call("/status"), HttpReply(200, b"<html>"))

    def test_counts_the_requests_of_an_append(self) -> None:
        self.assertEqual(Driver().run(append(), AWAY, LOST, DONE).attempts, 3)

    def test_without_retries_there_is_one_request(self) -> None:
        driver = Driver(retries=False)
        with self.assertRaises(ServerUnreachable):
            driver.run(append(), AWAY)
        self.assertEqual((len(driver.sends), driver.pauses), (1, []))


class RetryAfter(TestCase):
    """The header, in both of its forms."""

    def test_reads_a_number_of_seconds(self) -> None:
        self.assertEqual([retry_after(text) for text in ("0", " 7 ", "120")], [0.0, 7.0, 120.0])

    def test_reads_a_date(self) -> None:
        soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
        found = retry_after(soon)
        assert found is not None
        self.assertTrue(90 < found <= 100, found)
        self.assertEqual(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), 0.0)

    def test_ignores_other_values(self) -> None:
        for text in (None, "", "soon", "-1", "1.5", "9" * 400, "٣"):
            self.assertIsNone(retry_after(text), text)
