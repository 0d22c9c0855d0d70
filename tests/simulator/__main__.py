"""``python -m tests.simulator [TEST...]``: look for the seeds that catch the simulator's mutants anew.

Without arguments it looks for all, which takes minutes. Worth it after a change of the simulator:
a test whose seed no longer shows its defect searches for another one each time it runs.
"""

from __future__ import annotations

import json
import sys
from unittest import TextTestRunner, defaultTestLoader

from tests.simulator.mutants import CAUGHT, KNOWN, KNOWN_FILE

ALL = (
    "tests.simulator.test_failover_simulation.FailoverMutants",
    "tests.simulator.test_bus_mutants",
    "tests.simulator.test_cache_mutants",
    "tests.simulator.client_mutants",
    "tests.simulator.sending_mutants",
    "tests.simulator.joins_mutants",
    "tests.simulator.test_membership_mutants",
    "tests.simulator.test_mutants",
)


def main(names: list[str]) -> int:
    """Run these tests without what is known, and write down what they find."""
    before = {} if not names else dict(KNOWN)
    KNOWN.clear()
    result = TextTestRunner(verbosity=2).run(defaultTestLoader.loadTestsFromNames(names or ALL))
    KNOWN_FILE.write_text(f"{json.dumps(before | CAUGHT, indent=1, sort_keys=True)}\n")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
