"""The arithmetic of the benchmarks, and that their parts exist. Nothing here is timed."""

from __future__ import annotations

import importlib
import pkgutil
from unittest import TestCase

import benchmarks
from benchmarks.__main__ import BENCHMARKS, results
from benchmarks.harness import (
    QUICK,
    Row,
    Scale,
    at_least,
    at_most,
    interleaved,
    ratio,
    shown,
    table,
)
from benchmarks.recorded import BEFORE, event_facts, numbered, rdata_lines
from synrepl.wire.codec import parse_line
from synrepl.wire.dialects import MODERN, Side


class BoundTests(TestCase):
    def test_at_least_holds_from_the_limit_up(self) -> None:
        self.assertTrue(at_least(0.5).holds(0.5) and at_least(0.5).holds(2))
        self.assertFalse(at_least(0.5).holds(0.49))
        self.assertEqual(str(at_least(0.5)), "≥ 0.5")

    def test_at_most_holds_up_to_the_limit(self) -> None:
        self.assertTrue(at_most(2).holds(2) and at_most(2).holds(0))
        self.assertFalse(at_most(2).holds(2.01))
        self.assertEqual(str(at_most(64)), "≤ 64")

    def test_a_row_passes_or_misses_its_bound(self) -> None:
        self.assertEqual(Row("a", 1.0, "x").verdict, "")
        self.assertEqual(Row("a", 1.0, "x", at_most(1)).verdict, "PASS")
        self.assertEqual(Row("a", 1.1, "x", at_most(1)).verdict, "MISS")


class RatioTests(TestCase):
    def test_pairs_are_compared_before_the_median_is_taken(self) -> None:
        # The machine was ten times as slow in the second round: no ratio shows it.
        row = ratio("a", [2, 20, 3], [1, 10, 1], of="b", measured_in="s", bound=at_most(2))
        self.assertEqual((row.figure, row.spread, row.verdict), (2, (2, 3), "PASS"))
        self.assertEqual(row.numbers, {"ours": 3, "other": 1})

    def test_sides_take_turns_and_the_first_round_is_thrown_away(self) -> None:
        calls: list[str] = []

        def side(name: str, figures: list[float]) -> float:
            calls.append(name)
            return figures.pop(0)

        one, two = [9.0, 1.0, 2.0], [9.0, 3.0, 4.0]
        found = interleaved({"a": lambda: side("a", one), "b": lambda: side("b", two)}, 2)
        self.assertEqual(found, {"a": [1, 2], "b": [3, 4]})
        self.assertEqual("".join(calls), "ababab")

    def test_a_scale_leaves_at_least_one(self) -> None:
        self.assertEqual(Scale(0.2, 1).of(10), 2)
        self.assertEqual(Scale(0.2, 1).of(1), 1)


class Output(TestCase):
    def test_numbers_have_three_digits(self) -> None:
        fields = [shown(number) for number in (0.51234, 2.0, 123.4, 1234567.0)]
        self.assertEqual(fields, ["0.512", "2", "123", "1,230,000"])

    def test_rows_become_a_markdown_table(self) -> None:
        row = Row("a", 0.61, "× b", at_least(0.5), (0.6, 0.7), "1 against 2 s")
        self.assertIn("| a | 0.61 × b | ≥ 0.5 | PASS | 0.6 … 0.7 | 1 against 2 s |", table([row]))
        self.assertIn("## some\n\n| measured", results({"some": [row]}))

    def test_rows_become_json(self) -> None:
        fields = Row("a", 3.0, "× b", at_most(2), (1, 4), "", {"ours": 6}).to_json()
        self.assertEqual((fields["verdict"], fields["bound"], fields["ours"]), ("MISS", "≤ 2", 6))


class BenchmarkModules(TestCase):
    def test_every_module_can_be_imported(self) -> None:
        names = [info.name for info in pkgutil.iter_modules(benchmarks.__path__)]
        for name in names:
            importlib.import_module(f"benchmarks.{name}")
        for benchmark in BENCHMARKS:
            # A module may have several, whose names begin with its own.
            known = [name for name in names if f"{benchmark}_".startswith(f"{name}_")]
            self.assertNotEqual(known, [], benchmark)

    def test_the_ledger_benchmark_runs(self) -> None:
        rows = list(BENCHMARKS["ledger"](Scale(QUICK.factor / 1000, 1)))
        self.assertEqual(len(rows), 2)

    def test_recorded_facts_are_numbered_without_a_hole(self) -> None:
        facts = numbered(7)
        self.assertEqual([fact.token for fact in facts], list(range(BEFORE + 1, BEFORE + 8)))
        self.assertEqual(numbered(len(event_facts()) + 1)[-1].rows, facts[0].rows)

    def test_recorded_lines_can_be_read(self) -> None:
        positions, lines = rdata_lines(500)
        for line in positions + lines:
            parse_line(line.removesuffix(b"\n"), MODERN, Side.SERVER)
        self.assertEqual(len(lines), 500)
