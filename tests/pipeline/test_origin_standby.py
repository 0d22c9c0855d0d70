"""synrepl's own tables as an origin, on a real standby, where nobody's locks can be seen (R5)."""

from __future__ import annotations

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.origin.own import OwnOrigin
from synrepl.pipeline.origin.standing import Standing
from synrepl.pipeline.plan.plan import chunks
from synrepl.pipeline.reading.read import ReadElsewhere, Reader
from synrepl.pipeline.reading.schema import arrow_schema
from tests.driver.embedded import one
from tests.storage.failover import TwoServers
from tests.storage.postgres import PostgresCase, prepare
from tests.storage.samples import NOTES


class StandbyCase(PostgresCase):
    """A primary, and a copy of it that follows."""

    timeout = 180

    async def setUp(self) -> None:  # type: ignore[override]
        servers = TwoServers(self)
        self.primary, self.standby = servers.primary, servers.standby
        self.has_caught_up = servers.has_caught_up
        self.dsn = self.primary.dsn
        await prepare(self.dsn)
        await self.caught_up()  # the standby has the tables

    async def caught_up(self) -> None:
        """Wait until the standby has all that the primary has."""
        await self.until(self.has_caught_up)


class Bounds(StandbyCase):
    """What a reader of the standby may take for settled."""

    async def test_only_what_is_on_record(self) -> None:
        origin = OwnOrigin(BlockingDatabase(self.standby.dsn, "tests"))
        self.addCleanup(origin.close)

        def look() -> Standing:
            return origin.look(["notes"])["notes"]

        append = "SELECT synrepl.append('notes', %s)"
        self.sql(append, '[{"text": "a"}]')
        open_one = self.connect()
        open_one.autocommit = False
        self.sql(append, '[{"text": "late"}]', on=open_one)
        self.sql(append, '[{"text": "c"}]')
        await self.process("master").store.record_positions(NOTES, 1, {"sql": 1})
        await self.caught_up()
        # The gap of the open transaction looks there like one that nobody will fill.
        for _ in range(3):
            self.assertEqual((look().bound.linear, look().bound["sql"]), (1, 1))
        open_one.commit()
        await self.process("master").store.record_positions(NOTES, 3, {"sql": 3})
        await self.caught_up()
        bound = look().bound
        self.assertEqual((bound.linear, bound["sql"]), (3, 3))
        shape = origin.shape("notes")
        names = [column.name for column in shape.columns]
        (chunk,) = chunks(origin, {}, {"notes": bound}, {"notes": names})
        batches = Reader(self.standby.dsn).batches(chunk, arrow_schema(shape.columns))
        texts = [text for batch in batches for text in batch.column("text").to_pylist()]
        self.assertEqual(texts, ["a", "late", "c"])


class Readers(StandbyCase):
    """A task that comes to a standby, where the driver came to the primary."""

    async def test_refuses_a_standby_that_is_behind_what_was_looked_at(self) -> None:
        origin = OwnOrigin(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(origin.close)
        one(self.standby.dsn, "SELECT pg_wal_replay_pause()")
        self.sql("SELECT synrepl.append('notes', %s)", '[{"text": "a"}]')
        bound = origin.look(["notes"])["notes"].bound
        self.assertEqual(bound["sql"], 1)
        shape = origin.shape("notes")
        names = [column.name for column in shape.columns]
        (chunk,) = chunks(origin, {}, {"notes": bound}, {"notes": names})

        def texts() -> list[str]:
            batches = Reader(self.standby.dsn).batches(chunk, arrow_schema(shape.columns))
            return [text for batch in batches for text in batch.column("text").to_pylist()]

        error = self.assertRaises(ReadElsewhere, texts)
        self.assertIn("a standby that is behind it", str(error))
        one(self.standby.dsn, "SELECT pg_wal_replay_resume()")
        await self.caught_up()
        self.assertEqual(texts(), ["a"])
