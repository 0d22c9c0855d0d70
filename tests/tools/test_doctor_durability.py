"""Server settings under which commits can be lost unnoticed are findings."""

from __future__ import annotations

from unittest import TestCase

from twisted.internet.defer import Deferred

from synrepl.testing.postgres import with_durable_server
from synrepl.tools.doctor.durability import Durability, unsafe_settings
from synrepl.tools.doctor.examine import examine
from synrepl.tools.doctor.thresholds import Thresholds
from tests.storage.foreign_databases import foreign_database
from tests.storage.postgres import PostgresCase, Process


class UnsafeSettings(TestCase):
    def test_names_each_setting_that_risks_commits(self) -> None:
        for seen, text in (
            (Durability(True, True, "on", True), None),
            (Durability(True, True, "off", True), None),  # switched on by each transaction
            (Durability(True, True, "local", False), None),
            (Durability(False, True, "on", False), "fsync is off"),
            (Durability(True, False, "on", False), "full_page_writes is off"),
            (Durability(True, True, "local", True), "synchronous_commit is local"),
        ):
            with self.subTest(seen):
                found = list(unsafe_settings(seen))
                self.assertTrue(all(each.is_problem for each in found))
                self.assertEqual(len(found), text is not None)
                self.assertTrue(all(each.what.startswith(str(text)) for each in found))


class ServersWithUnsafeSettings(PostgresCase):
    async def found(self, dsn: str) -> list[str]:
        doctor = Process(dsn, "doctor")
        self.addCleanup(lambda: Deferred.fromCoroutine(doctor.close()))
        report = await examine(doctor.database, Thresholds())
        return [f"{each.severity} {each.what.split()[0]}" for each in report.findings]

    async def test_a_server_with_unsafe_settings_is_not_healthy(self) -> None:
        unsafe = ["warning fsync", "warning full_page_writes"]
        self.assertEqual(await self.found(self.dsn), unsafe)
        foreign = await foreign_database("1.43.0", self)
        self.assertEqual(await self.found(foreign), unsafe)
        await with_durable_server(self)
        self.assertEqual(await self.found(self.dsn), [])
        self.assertEqual(await self.found(foreign), [])
