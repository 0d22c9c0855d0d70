"""Writers and announcers over a failover that loses commits, on real servers."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg2
from twisted.internet.defer import Deferred

from synrepl.core.errors import Unavailable
from synrepl.core.tokens import Range, Token
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.incarnations import MARGIN
from synrepl.storage.store import FactsLost, NotConfirmed
from tests.storage.announcing_process import AnnouncingProcess
from tests.storage.failover import FailoverCase
from tests.storage.samples import NOTES, note

APPEND = "SELECT synrepl.append('notes', '[{\"text\": \"sql\"}]')"


class MastersOverAFailover(FailoverCase):
    """A master that announces, and appends that the standby never received."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.master = await self.start("master")

    async def start(self, name: str) -> AnnouncingProcess:
        announcing = AnnouncingProcess(self, self.process(name), name, poll_s=0.05)
        await announcing.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(announcing.stop()))
        return announcing

    async def append(self, by: StreamWriter, how_many: int = 1) -> Sequence[Token]:
        """Append, and retry while the database or the name is unavailable."""
        while True:
            try:
                return (await by.append(NOTES, [[note("a")] for _ in range(how_many)])).tokens
            except Unavailable:
                await self.tick()

    async def lose(self) -> tuple[list[Token], list[Token]]:
        """The tokens that survive, and those that are announced and lost."""
        kept = [*(await self.append(self.master.writer, 3)), self.sql(APPEND)]
        await self.until(lambda: self.master.listener.linear >= kept[-1])
        await self.disconnect()
        lost = [*(await self.append(self.master.writer, 40)), self.sql(APPEND)]
        await self.until(lambda: self.master.listener.linear >= lost[-1])
        return kept, lost

    async def confirmed(self) -> Token:
        """The floor, once the master has confirmed the server."""
        await self.until(lambda: bool(self.master.listener.jumps))
        return self.master.listener.jumps[0].upto

    async def test_a_master_that_stays_moves_everything_on(self) -> None:
        _, lost = await self.lose()
        self.fail_over()
        floor = await self.confirmed()
        self.assertGreater(floor, lost[-1] + MARGIN - 1)
        new = await self.append(self.master.writer, 2)
        self.assertGreater(new[0], floor)
        sql = self.sql(APPEND)
        await self.until(lambda: self.master.listener.linear >= sql)
        received = [fact.token for fact in self.master.listener.facts if fact.token > floor]
        self.assertEqual(sorted(received), [*new, sql])

    async def test_plain_sql_is_refused_until_a_master_has_confirmed(self) -> None:
        await self.lose()
        await self.master.stop()
        self.fail_over()
        error = self.assertRaises(psycopg2.Error, self.sql, APPEND)
        self.assertEqual(error.pgcode, "SY009")
        process = self.process("master")
        with self.assertRaises(NotConfirmed):
            await process.store.open_writer("master", [NOTES])
        await process.store.confirm({})
        self.assertGreater(self.sql(APPEND), MARGIN)

    async def test_a_second_writer_goes_on_above_what_was_announced(self) -> None:
        second = await self.start("second")
        _, lost = await self.lose()
        lost += await self.append(second.writer, 5)
        self.fail_over()
        (token,) = await self.append(second.writer)
        self.assertGreater(token, lost[-1] + MARGIN // 2)
        for each in (self.master, second):
            await self.until(lambda each=each: each.listener.linear >= token)  # type: ignore[misc]
            self.assertIn(token, [fact.token for fact in each.listener.facts])

    async def test_distinguishes_surviving_facts_from_those_that_may_be_lost(self) -> None:
        kept, lost = await self.lose()
        self.fail_over()
        floor = await self.confirmed()
        store = self.process("reader").store
        with self.assertRaises(FactsLost) as caught:
            await store.page(NOTES, Range(lost[5], floor), "master", 100)
        self.assertLessEqual(caught.exception.kept, lost[0])
        after = caught.exception.kept
        page = await store.page(NOTES, Range(0, after), "master", 100)
        self.assertTrue({fact.token for fact in page.facts} <= set(kept))
        self.assertEqual(self.sql("SELECT max(announced) FROM synrepl._lost_ranges"), lost[-1])

    async def test_a_reservation_of_the_old_server_is_void(self) -> None:
        await self.disconnect()
        async with await self.master.writer.reserve(NOTES, 2) as reservation:
            self.fail_over()
            await self.confirmed()
            with self.assertRaises(Exception) as caught:
                await reservation.write([[note("late")]])
        self.assertIn(type(caught.exception).__name__, ("ReservationVoid", "DatabaseAway"))
        new = await self.append(self.master.writer)
        self.assertGreater(new[0], reservation.tokens[-1] + MARGIN - 1)
