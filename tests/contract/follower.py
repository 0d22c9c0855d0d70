"""The contract of followers, which holds over every transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from synrepl.core.tokens import Token
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from tests.contract.world import MOODS, NOTES, ContractStore, FollowerProcess, Transport

# Not a test case by itself, or the contract would run without a transport.
if TYPE_CHECKING:
    Base = TestCase
else:
    Base = object

ONE, TWO = "one", "two"


def facts(stream: Stream, *texts: str) -> list[list[Row]]:
    """One fact with one row per text."""
    row = stream.kinds[""]
    return [[row(text)] for text in texts]


class FollowerContract(Base):
    """The test methods, to be mixed into a test case that has a transport."""

    timeout = 120

    def transport(self, site: ContractStore) -> Transport:
        """The transport under test."""
        raise NotImplementedError

    async def setUp(self) -> None:  # type: ignore[override]
        self.site = ContractStore()
        self.addCleanup(self.site.scheduler.stop)
        self.net = self.transport(self.site)
        await self.net.begin()
        self.addCleanup(lambda: Deferred.fromCoroutine(self.net.end()))

    async def following(
        self, name: str = "f", *, earliest: bool = True, sizes: Sizes = DEFAULT_SIZES
    ) -> FollowerProcess:
        """Start a follower process."""
        made = FollowerProcess(self.site, name, earliest, sizes)
        self.addCleanup(lambda: Deferred.fromCoroutine(self.net.leave(made)))
        await self.join(made)
        return made

    async def join(self, following: FollowerProcess) -> None:
        """Connect a follower."""
        up = following.up()
        self.net.join(following)
        await up

    async def publish(self, *texts: str, writer: str = ONE, stream: Stream = NOTES) -> Token:
        """Append facts of one row each, and return the last token."""
        return await self.net.append(writer, stream, facts(stream, *texts))

    async def has_all(
        self, following: FollowerProcess, token: Token, writer: str = ONE, stream: Stream = NOTES
    ) -> None:
        """Wait for a token, and check that every fact was applied once and in order."""
        await following.reaches(stream, writer, token)
        stored = await self.site.facts(stream, writer)
        applied = following.applied.facts.get((stream.name, writer), [])
        self.assertEqual(_short(applied), _short(stored))
        self.assertEqual(applied, stored)
        self.assertEqual(following.position(stream, writer), token)

    async def test_fetches_facts_written_before_it_started(self) -> None:
        token = await self.publish(*map(str, range(50)))
        await self.has_all(await self.following(), token)
        self.assertGreater(self.site.fetches, 0)

    async def test_skips_earlier_facts_when_it_starts_now(self) -> None:
        before = await self.publish("a", "b")
        following = await self.following(earliest=False)
        await following.reaches(NOTES, ONE, before)
        token = await self.publish("c")
        await following.reaches(NOTES, ONE, token)
        applied = following.applied.facts[NOTES.name, ONE]
        self.assertEqual([fact.token for fact in applied], [token])
        self.assertEqual(self.site.fetches, 0)

    async def test_gets_live_rows_in_order_without_fetching(self) -> None:
        token = await self.publish("first")
        following = await self.following()
        await following.reaches(NOTES, ONE, token)
        fetches = self.site.fetches
        for n in range(20):
            token = await self.publish(*(f"{n} {nth}" for nth in range(20)))
        await self.has_all(following, token)
        self.assertEqual(self.site.fetches, fetches)  # they came over the transport

    async def test_keeps_the_rows_of_a_fact_together(self) -> None:
        following = await self.following()
        row = NOTES.kinds[""]
        many = [[row(f"{fact} {nth}") for nth in range(fact)] for fact in (1, 3, 2, 40)]
        token = await self.net.append(ONE, NOTES, many)
        await self.has_all(following, token)

    async def test_catches_up_after_a_disconnection(self) -> None:
        following = await self.following()
        await self.has_all(following, await self.publish("a"))
        await self.net.leave(following)
        token = await self.publish("b", "c")
        self.assertLess(following.position(NOTES, ONE), token)
        await self.join(following)
        await self.has_all(following, token)
        await self.has_all(following, await self.publish("d"))

    async def test_loses_nothing_when_connections_break_amid_a_fact(self) -> None:
        following, other = await self.following("f"), await self.following("g")
        row, token = NOTES.kinds[""], await self.publish("first")
        await self.has_all(following, token)
        for n in range(4):
            many = [[row(f"{n} {nth} {part}") for part in range(5)] for nth in range(40)]
            down, back = following.down(), following.up()
            following.break_after(102 + n, lambda: self.net.cut(following))
            await self.net.append(ONE, NOTES, many)
            await down
            await self.publish(f"{n} while it was away")
            await back
            token = await self.publish(f"{n} as soon as it was back")
            await self.has_all(following, token)
        await self.has_all(other, token)

    async def test_fetches_rows_that_were_lost_unnoticed(self) -> None:
        """The ``prev`` of the next POSITION shows the loss."""
        following = await self.following()
        await self.has_all(following, await self.publish("a"))
        following.lose(2)
        last = await self.publish("b", "c")
        token = await self.net.waste(ONE, NOTES, 1)
        self.assertGreater(token, last)
        await self.has_all(following, token)
        self.assertGreater(self.site.fetches, 0)
        await self.has_all(following, await self.publish("d"))

    async def test_applies_repeated_rows_once(self) -> None:
        following = await self.following()
        await self.has_all(following, await self.publish("a"))
        following.duplicates_lines = True
        await self.has_all(following, await self.publish("b", "c"))

    async def test_passes_tokens_without_facts(self) -> None:
        following = await self.following()
        await self.publish("a")
        await self.has_all(following, await self.net.waste(ONE, NOTES, 3))
        await self.has_all(following, await self.publish("b"))

    async def test_follows_a_new_writer(self) -> None:
        following = await self.following()
        first = await self.publish("a")
        await self.has_all(following, first)
        second = await self.publish("b", "c", writer=TWO)
        third = await self.publish("d")
        await self.has_all(following, second, TWO)
        await self.has_all(following, third)

    async def test_resets_an_in_memory_stream_that_was_lost_with_its_process(self) -> None:
        following = await self.following()
        await self.has_all(following, await self.publish("a", "b", "c", stream=MOODS), ONE, MOODS)
        reset = following.applied.next_reset()
        await self.net.end()
        self.site.forget()
        await self.net.begin()
        token = await self.publish("d", stream=MOODS)
        self.assertEqual(token, 1)
        self.assertEqual(await reset, (MOODS.name, ONE))
        await self.has_all(following, token, ONE, MOODS)

    async def test_a_slow_follower_holds_up_no_other_and_buffers_little(self) -> None:
        sizes = Sizes(high_water_rows=300, low_water_rows=100)
        slow = await self.following("slow", sizes=sizes)
        quick = await self.following("quick", sizes=sizes)
        await self.has_all(quick, await self.publish("a"))
        await slow.reaches(NOTES, ONE, 1)
        begun = slow.applied.hold()
        token: Token = 0
        for n in range(30):
            token = await self.publish(*(f"{n} {nth:>1000}" for nth in range(60)))
        await begun
        await self.has_all(quick, token)
        self.assertEqual(slow.position(NOTES, ONE), 1)
        slow.applied.release()
        await self.has_all(slow, token)
        # Plus what it had read when it paused the connection.
        self.assertLess(slow.most_waiting, 300 + 400)

    async def test_fetches_a_row_that_is_too_long_to_send(self) -> None:
        following = await self.following()
        await self.has_all(following, await self.publish("a"))
        token = await self.publish("b", "x" * (self.net.longest + 1), "c")
        await self.has_all(following, token)
        self.assertGreater(self.site.fetches, 0)
        await self.has_all(following, await self.publish("d"))


def _short(facts: Sequence[object]) -> list[str]:
    """Short texts of facts, for failure messages."""
    return [str(fact)[:60] for fact in facts]
