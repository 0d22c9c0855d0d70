"""A sequence that a failover has set back, under running writers (R7), on a real database."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred

from synrepl.core.tokens import Range, Token
from synrepl.storage.tables import sequence_name
from tests.storage.announcing_process import AnnouncingProcess
from tests.storage.postgres import PostgresCase
from tests.storage.samples import NOTES, note

#: Postgres logs a sequence this far ahead, so it may lose as many values.
LOGGED_AHEAD = 32


class SequencesSetBack(PostgresCase):
    """Two processes write, both announce."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.written: list[str] = []
        self.one = await self.start("one")
        self.two = await self.start("two")

    async def start(self, name: str) -> AnnouncingProcess:
        announcing = AnnouncingProcess(self, self.process(name), name, poll_s=0.05)
        await announcing.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(announcing.stop()))
        return announcing

    async def append(self, by: AnnouncingProcess, how_many: int = 1) -> Sequence[Token]:
        texts = [f"{by.writer.writer} {len(self.written) + n}" for n in range(how_many)]
        self.written += texts
        return (await by.writer.append(NOTES, [[note(text)] for text in texts])).tokens

    def set_back(self) -> None:
        sequence = sequence_name(NOTES)
        last = self.sql(f"SELECT last_value FROM {sequence}")
        self.sql(f"SELECT setval('{sequence}', %s)", last - LOGGED_AHEAD)

    async def check_nothing_is_lost(self, *listening: AnnouncingProcess) -> None:
        store = self.process("reader").store
        facts = list((await store.page(NOTES, Range(0, 10**9), None, 10**6)).facts)
        texts = [note_.text for fact in facts for note_ in fact.rows]  # type: ignore[attr-defined]
        self.assertEqual(sorted(texts), sorted(self.written))
        for listener in (each.listener for each in listening):
            while listener.linear < facts[-1].token:
                await self.tick()
            seen = [fact for fact in facts if not listener.missed(fact)]
            self.assertEqual(listener.linear_facts, seen)
            self.assertEqual(sorted(listener.facts, key=lambda fact: fact.token), facts)

    async def test_running_writers_go_on_above_a_sequence_that_was_set_back(self) -> None:
        for _ in range(25):
            await self.append(self.one)
            await self.append(self.two, 2)
        self.set_back()
        for how_many in (1, 3, 40, 1):
            await self.append(self.one, how_many)
            self.set_back()
            await self.append(self.two, how_many)
            self.set_back()
        async with await self.one.writer.reserve(NOTES, 2) as reservation:
            self.written += ["reserved", "too"]
            await reservation.write([[note("reserved")], [note("too")]])
        await self.append(self.two)
        await self.check_nothing_is_lost(self.one, self.two)

    async def test_starting_repairs_a_sequence_that_was_set_back(self) -> None:
        for _ in range(25):
            await self.append(self.one)
            await self.append(self.two, 2)
        positions = dict(self.one.listener.positions)
        await self.one.stop()
        await self.two.stop()
        self.set_back()
        again = await self.start("one")
        self.assertGreaterEqual(again.state.positions["one"], positions["one"])
        before = again.state.linear
        (token,) = await self.append(again)
        self.assertGreater(token, max(before, *positions.values()))
        await self.until(lambda: again.listener.linear >= token)
        await self.check_nothing_is_lost()
