"""How file descriptors are shared out between listeners."""

from __future__ import annotations

import resource
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.daemon.config.config import HttpConfig, ListenerConfig
from synrepl.daemon.descriptors import RESERVED, divide_descriptors
from tests.services.world import RecordingLog

HTTP = HttpConfig(port=1)
LISTENERS = [ListenerConfig(port=2), ListenerConfig(port=3, max_connections=500)]


class DescriptorDivision(TestCase):
    def test_enough_descriptors_keep_the_configured_limits(self) -> None:
        for descriptors in (65_536, resource.RLIM_INFINITY):
            found = divide_descriptors(HTTP, LISTENERS, descriptors)
            self.assertEqual((found.http.total, found.http.of_address), (2_000, 1_000))
            self.assertEqual([each.total for each in found.listeners], [1_000, 500])
            log = RecordingLog()
            found.warn_if_cut(log)
            self.assertEqual((found.cut, log.lines), (False, []))

    def test_too_few_descriptors_are_divided_with_a_warning(self) -> None:
        found = divide_descriptors(HTTP, LISTENERS, 1_024)
        self.assertEqual(found.http.total, 412)
        self.assertEqual([each.total for each in found.listeners], [274, 137])
        self.assertEqual([each.of_address for each in found.listeners], [137, 137])
        log = RecordingLog()
        found.warn_if_cut(log)
        ((level, text),) = log.lines
        self.assertEqual(level, "warn")
        self.assertIn("1024 file descriptors are not enough", text)
        self.assertIn("http is limited to 412 connections, replication to 411", text)

    def test_unused_descriptors_go_to_the_other_side(self) -> None:
        found = divide_descriptors(HttpConfig(port=1, max_connections=50), LISTENERS, 1_024)
        self.assertEqual(found.http.total, 50)
        self.assertEqual(sum(each.total for each in found.listeners), 774)
        found = divide_descriptors(HTTP, [ListenerConfig(port=2, max_connections=10)], 1_024)
        self.assertEqual((found.http.total, found.listeners[0].total), (814, 10))

    def test_a_process_without_listeners_needs_none(self) -> None:
        self.assertFalse(divide_descriptors(None, (), 20).cut)

    @given(
        st.integers(1, 10_000),
        st.integers(1, 5_000),
        st.lists(st.integers(1, 5_000), max_size=4),
    )
    def test_never_divides_more_descriptors_than_there_are(
        self, descriptors: int, http: int, each: list[int]
    ) -> None:
        listeners = [ListenerConfig(port=0, max_connections=most) for most in each]
        found = divide_descriptors(HttpConfig(port=0, max_connections=http), listeners, descriptors)
        total = found.http.total + sum(limits.total for limits in found.listeners)
        least = 1 + len(each)  # everybody has one
        self.assertLessEqual(
            total, max(least, descriptors - min(RESERVED, descriptors // 2)) + least
        )
        for limits in (found.http, *found.listeners):
            self.assertTrue(1 <= limits.of_address <= limits.total)
        if not found.cut:
            self.assertEqual([found.http.total, *(x.total for x in found.listeners)], [http, *each])
