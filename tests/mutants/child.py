"""Run tests until the first fails, and tell which; ``python -m tests.mutants.child ROOT TEST ...``.

The last line of the output is JSON: ``ran``, ``failed`` (a test's name, or null), ``why``.
"""

from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path

from hypothesis import Phase, settings

import synrepl.rooms


class First(unittest.TestResult):
    """Stops at the first failure, within a test's sub-tests, too."""

    def __init__(self) -> None:
        super().__init__()
        self.failfast = True


def main(root: str, names: list[str]) -> None:
    """Run and print."""
    where = Path(synrepl.rooms.__file__).resolve()
    if not where.is_relative_to(Path(root).resolve()):
        raise SystemExit(f"{where} is tested, which is not in {root}")
    # That a test fails is enough: shrinking its example takes minutes.
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutants", phases=phases, derandomize=True, database=None)
    settings.load_profile("mutants")
    result = First()
    for name in names:
        unittest.defaultTestLoader.loadTestsFromName(name).run(result)
        if not result.wasSuccessful():
            break
    result_json: dict[str, object] = {"ran": result.testsRun, "failed": None, "why": ""}
    for test, trace in [*result.failures, *result.errors]:
        result_json |= {"failed": test.id(), "why": trace.strip().splitlines()[-1][:200]}
        if "_FailedTest" in test.id():
            raise SystemExit(trace)
    print(json.dumps(result_json))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
