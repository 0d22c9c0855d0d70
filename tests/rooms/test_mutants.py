"""Every mutant still applies to the source; that each is caught is shown by ``python -m tests.mutants``."""

from __future__ import annotations

import ast
from collections import Counter
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from unittest import TestCase

from tests.mutants.__main__ import main
from tests.mutants.catalogue import MUTANTS, RULES, STORE
from tests.mutants.mutant import REPOSITORY, DoesNotApply

#: How many the room rules, and the room store, are to have at least.
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
        self.assertGreaterEqual(min(len(RULES), len(STORE)), ENOUGH)
        names = Counter(mutant.name for mutant in MUTANTS)
        self.assertEqual([name for name, count in names.items() if count > 1], [])
        changes = Counter((mutant.path, mutant.old, mutant.new) for mutant in MUTANTS)
        self.assertEqual([change for change, count in changes.items() if count > 1], [])

    def test_their_test_modules_exist(self) -> None:
        modules = {test for mutant in MUTANTS for test in mutant.tests}
        self.assertEqual([name for name in sorted(modules) if find_spec(name) is None], [])
        self.assertEqual([mutant.name for mutant in MUTANTS if not mutant.tests], [])

    def test_results_are_written_only_for_all_mutants(self) -> None:
        """Those of a few would take the place of the others."""
        printed = StringIO()
        with redirect_stderr(printed), self.assertRaises(SystemExit):
            main(["--write-results", MUTANTS[0].name])
        self.assertIn("takes no NAME", printed.getvalue())
