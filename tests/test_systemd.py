"""The systemd units: systemd itself finds nothing to complain about."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import SkipTest, TestCase

from synrepl.cli.lake.land import command as land

UNITS = Path(__file__).resolve().parent.parent / "contrib" / "systemd"
PROGRAM = "/opt/synrepl/bin/synrepl"
SERVICES = ("synrepl-master.service", "synrepl-worker@.service")


class Verify(TestCase):
    """``systemd-analyze verify`` on copies whose program exists."""

    def verify(self, change: tuple[str, str] = ("", "")) -> str:
        """What systemd says about all units, after replacing one text by another."""
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            raise SkipTest("systemd-analyze is not installed")
        with TemporaryDirectory() as directory:
            copies = []
            for unit in sorted(UNITS.glob("synrepl*")):
                # 'worker@.service' is a template: an instance of it is what can be verified.
                copy = Path(directory) / unit.name.replace("@.", "@one.")
                text = unit.read_text().replace(PROGRAM, shutil.which("true") or "")
                copy.write_text(text.replace(*change) if change[0] else text)
                copies.append(str(copy))
            done = subprocess.run(
                [analyze, "verify", "--man=no", "--generators=no", *copies],
                capture_output=True,
                text=True,
                env={**os.environ, "SYSTEMD_UNIT_PATH": f"{directory}:"},
            )
            # Units that the machine brings along have warnings of their own.
            return "\n".join(line for line in done.stderr.splitlines() if "synrepl" in line)

    def test_systemd_accepts_all_units(self) -> None:
        self.assertEqual(self.verify(), "")

    def test_a_fault_would_be_noticed(self) -> None:
        self.assertIn("soon", self.verify(("WatchdogSec=30s", "WatchdogSec=soon")))
        self.assertIn("ProtectSistem", self.verify(("ProtectSystem", "ProtectSistem")))


class Content(TestCase):
    """What the units promise."""

    def service(self, name: str) -> configparser.SectionProxy:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(UNITS / name)
        return parser["Service"]

    def test_supervised_and_hardened(self) -> None:
        for name in SERVICES:
            service = self.service(name)
            for key, value in (
                ("Type", "notify"),
                ("WatchdogSec", "30s"),
                ("User", "synrepl"),
                ("NoNewPrivileges", "true"),
                ("ProtectSystem", "strict"),
                ("CapabilityBoundingSet", ""),
            ):
                with self.subTest(unit=name, key=key):
                    self.assertEqual(service[key], value)

    def test_the_lake_is_hardened_and_has_its_dsn_as_a_credential(self) -> None:
        service = self.service("synrepl-lake.service")
        for key, value in (
            ("User", "synrepl"),
            ("NoNewPrivileges", "true"),
            ("ProtectSystem", "strict"),
            ("CapabilityBoundingSet", ""),
            ("Restart", "on-failure"),
            ("LoadCredential", "dsn:/etc/synrepl/lake.dsn"),
        ):
            self.assertEqual(service[key], value)
        program, *arguments = service["ExecStart"].split()
        self.assertEqual(program, PROGRAM)
        named = [each for each in arguments if each.startswith("--")]
        with land.make_context("land", ["LAKE", *arguments[3:]], resilient_parsing=True):
            known = {option for each in land.params for option in each.opts}
        self.assertEqual([each for each in named if each not in known], [])

    def test_what_is_started(self) -> None:
        master, worker = (self.service(name)["ExecStart"] for name in SERVICES)
        self.assertEqual(master, f"{PROGRAM} master -c /etc/synrepl/master.yaml")
        self.assertEqual(worker, f"{PROGRAM} worker -c /etc/synrepl/worker-%i.yaml")
