"""Which facts a lake says that it no longer needs, and what it records of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.acknowledgement import acknowledged_positions
from synrepl.pipeline.lake.erase import erase, pending
from synrepl.pipeline.lake.erase.erasure_record import (
    ErasureRecord,
    read_erasure_record,
    write_erasure_record,
)
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import Vectors
from synrepl.pipeline.lake.maintenance import LakeMaintenance, MaintenanceReport
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.source.database.whole_events import positions_of_facts, whole_event_schema
from synrepl.positions.vector import PositionVector
from tests.pipeline.synthetic_lake import schema_of
from tests.pipeline.test_small_landings import no_session
from tests.pipeline.test_whole_events import STREAM, WholeEventsCase


def at(token: int) -> PositionVector:
    """A position of one writer."""
    return PositionVector({"w": token}, token)


class FactsOfWholeEventsThatAreNotOffered(SynchronousTestCase):
    """The source has ``events`` only, and the lake has whole events, too."""

    def acknowledged(self, whole: int, searched: int) -> PositionVector:
        """What is acknowledged of ``events`` at 100."""
        lake = Lake.open_or_create(Path(self.mktemp()), "tests", False)
        lake.ensure_table(schema_of("events")).append([], PositionVector(), at(100))
        lake.ensure_table(whole_event_schema(STREAM)).append([], PositionVector(), at(whole))
        write_erasure_record(lake, read_erasure_record(lake).searched({STREAM: at(searched)}))
        source: Any = SimpleNamespace(whole_events=frozenset())
        return acknowledged_positions(lake, source, {"events": at(100)})["events"]

    def test_are_needed_until_these_are_landed(self) -> None:
        self.assertEqual(self.acknowledged(whole=40, searched=90), at(40))

    def test_are_needed_until_these_are_searched_for_redactions(self) -> None:
        self.assertEqual(self.acknowledged(whole=40, searched=30), at(30))


class LandingWholeEvents(WholeEventsCase):
    """A lake with whole events."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        await self.stored()
        self.lake = Lake.open_or_create(Path(self.mktemp()), self.source.server, False)
        self.acknowledged: dict[str, PositionVector] = {}
        self.maintenance = LakeMaintenance(
            SessionOnDemand(no_session, 10**6),
            self.lake,
            self.source,
            self.dsn,
            acknowledge=self.acknowledge,
        )

    def acknowledge(self, upto: Vectors) -> None:
        self.acknowledged |= positions_of_facts(upto, self.source.whole_events)

    def land(self, *streams: str) -> MaintenanceReport:
        with self.lake.write_lock():
            return self.maintenance.run(streams or self.source.streams, settle_timeout_s=0.0)

    async def test_without_the_rights_or_the_schema_is_named_and_acknowledges_no_fact(self) -> None:
        self.assertEqual(self.land().left_out, {})
        self.sql("ALTER FUNCTION synrepl.state_changes(bytea) RENAME TO of_a_later_release")
        self.sql(
            "SELECT synrepl.append('events', jsonb_build_array(jsonb_build_object('kind', 'ev',"
            " 'event_id', '$x', 'room_id', '!x:a', 'type', 'm', 'rejected', false, 'outlier', false)),"
            " 'sql')"
        )
        self.source.refresh()
        report = self.land()
        self.assertEqual(report.left_out.keys(), {STREAM, "room_backfill"})
        self.assertIn("state_changes", report.left_out[STREAM])
        landed = self.lake.table(STREAM).position
        self.assertEqual(self.acknowledged["events"], landed)
        self.assertLess(landed.linear, self.lake.table("events").position.linear)

    async def test_without_rights_names_nothing_if_the_lake_never_had_them(self) -> None:
        self.sql("ALTER FUNCTION synrepl.state_changes(bytea) RENAME TO of_a_later_release")
        self.source.refresh()
        self.assertEqual(self.land().left_out, {})
        self.assertEqual(self.acknowledged["events"], self.lake.table("events").position)

    async def test_writes_no_record_of_erasures_without_anything_new(self) -> None:
        self.land("events")
        self.land("events")
        written: list[ErasureRecord] = []
        for module in (pending, erase):
            self.patch(module, "write_erasure_record", lambda lake, record: written.append(record))
        self.land("events")
        self.assertEqual(written, [])
