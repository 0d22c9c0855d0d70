"""Every mutant still applies to the source; that each is caught is shown by ``python -m tests.mutants``."""

from __future__ import annotations

import ast
from collections import Counter
from pkgutil import resolve_name
from unittest import TestCase

from tests.mutants.__main__ import GROUPS, results
from tests.mutants.catalogue import FEDERATION, MUTANTS, RULES, STORE
from tests.mutants.mutant import REPOSITORY, DoesNotApply
from tests.mutants.run import Outcome

#: How many the room rules, the room store, and federation are to have at least.
ENOUGH = 40


class MutantCatalogue(TestCase):
    """The list, without running any."""

    def test_each_mutant_applies_exactly_once(self) -> None:
        wrong = []
        for mutant in MUTANTS:
            try:
                ast.parse(mutant.apply(REPOSITORY))
            except (DoesNotApply, SyntaxError) as error:
                wrong.append(f"{mutant.name}: {error}")
        self.assertEqual(wrong, [])

    def test_a_mutant_whose_text_is_gone_is_reported(self) -> None:
        mutant = MUTANTS[0]._replace(old="not in any source \0")
        with self.assertRaisesRegex(DoesNotApply, "is 0 times in"):
            mutant.apply(REPOSITORY)

    def test_there_are_enough_distinct_mutants(self) -> None:
        self.assertGreaterEqual(min(len(RULES), len(STORE), len(FEDERATION)), ENOUGH)
        names = Counter(mutant.name for mutant in MUTANTS)
        self.assertEqual([name for name, count in names.items() if count > 1], [])
        changes = Counter((mutant.path, mutant.old, mutant.new) for mutant in MUTANTS)
        self.assertEqual([change for change, count in changes.items() if count > 1], [])

    def test_their_tests_exist(self) -> None:
        for name in sorted({test for mutant in MUTANTS for test in mutant.tests}):
            resolve_name(name)
        self.assertEqual([mutant.name for mutant in MUTANTS if not mutant.tests], [])

    def test_each_mutant_was_tried_and_caught(self) -> None:
        for group, (mutants, path) in GROUPS.items():
            rows = [
                line.strip("| ").split(" | ")
                for line in path.read_text(encoding="utf-8").splitlines()
                if line.startswith("| ")
            ]
            self.assertEqual([row[0] for row in rows[1:]], [each.name for each in mutants], group)
            self.assertEqual([row[0] for row in rows if row[-1] == "nothing"], [], group)

    def test_results_of_mutants_that_were_not_tried_stay(self) -> None:
        mutants = MUTANTS[:3]
        before = results(mutants, [(each, Outcome("tests.rooms.old", "")) for each in mutants])
        after = results(mutants, [(mutants[1], Outcome("tests.rooms.new", ""))], before)
        rows = [line.split(" | ")[-1] for line in after.splitlines()[-3:]]
        self.assertEqual(rows, ["old |", "new |", "old |"])
