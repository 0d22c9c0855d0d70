"""Durations and sizes."""

from __future__ import annotations

from contextlib import suppress
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.daemon.config.units import LONGEST_SECONDS, duration, size


class Durations(TestCase):
    """Text with a unit, or seconds."""

    def test_reads_durations_with_units(self) -> None:
        for text, seconds in (
            ("500ms", 0.5),
            ("15s", 15),
            ("1.5 m", 90),
            ("2h", 7200),
            ("7d", 604800),
            (15, 15),
            (0.25, 0.25),
            (0, 0),
        ):
            with self.subTest(text):
                self.assertEqual(duration(text), seconds)

    def test_refuses_malformed_or_unbounded_durations(self) -> None:
        values: tuple[object, ...] = (
            "", "15", "s", "-1s", "15 seconds", "1h30m", "15S", "١s", "1e3s", "9" * 16 + "s",
            True, None, [], -1, float("nan"), float("inf"), LONGEST_SECONDS + 1, "4000d",
        )  # fmt: skip
        for value in values:
            with self.subTest(repr(value)), self.assertRaises(ValueError):
                duration(value)

    @given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m"]))
    def test_durations_are_proportional_to_their_amount(self, amount: int, unit: str) -> None:
        self.assertAlmostEqual(duration(f"{amount}{unit}"), amount * duration(f"1{unit}"))

    @given(st.one_of(st.text(max_size=20), st.floats(), st.integers()))
    def test_any_value_is_bounded_or_refused(self, value: object) -> None:
        with suppress(ValueError):
            self.assertTrue(0 <= duration(value) <= LONGEST_SECONDS)


class Sizes(TestCase):
    """Text with a binary unit, or bytes."""

    def test_reads_sizes_with_units(self) -> None:
        for text, count in (
            ("1B", 1),
            ("64KiB", 65536),
            ("0.5 MiB", 2**19),
            ("1GiB", 2**30),
            (7, 7),
        ):
            with self.subTest(text):
                self.assertEqual(size(text), count)

    def test_refuses_malformed_sizes(self) -> None:
        for value in ("64", "64KB", "64k", "-1B", "0B", "0.5B", 0, -1, 1.5, True, None, "2000GiB"):
            with self.subTest(repr(value)), self.assertRaises(ValueError):
                size(value)
