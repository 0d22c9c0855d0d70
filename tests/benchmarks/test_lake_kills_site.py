"""The landings of ``lake_kills``, by other processes in their place."""

from __future__ import annotations

import random
import sys

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.lake_kills_site import LakeSite

_LANDS = "import time\nwhile True: print(flush=True); time.sleep(0.01)"
_HANGS = "import sys, time; print('is stuck', file=sys.stderr, flush=True); time.sleep(1000)"


class Landings(SynchronousTestCase):
    def site(self, *programs: str) -> LakeSite:
        """A site without a database, with a process for each landing."""
        site = LakeSite(None, [()] * len(programs), random.Random(1))
        site.dsn = ""
        self.addCleanup(site.__exit__)
        self.addCleanup(site.end_landings)
        for lander, program in zip(site.landers, programs, strict=True):
            lander.command = [sys.executable, "-c", program]
            lander.ensure("")
        return site

    def test_have_to_land_something_each(self) -> None:
        self.site(_LANDS, _LANDS).wait_all_land()

    def test_of_which_one_hangs_are_a_failure_that_has_its_log(self) -> None:
        site = self.site(_HANGS, _LANDS)
        while "is stuck" not in site.landers[0].log():
            pass
        error = self.assertRaises(TimeoutError, site.wait_all_land, 0.5)
        self.assertIn("lander0 lands nothing", str(error))
        self.assertIn("lander0: is stuck", str(error))
