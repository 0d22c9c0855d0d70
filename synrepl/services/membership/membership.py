"""Adding, draining and removing writers, with proof that nobody waits for what will not come."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.clock import Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.tokens import Token
from synrepl.positions.settlement import SettlementTracker
from synrepl.storage import membership, writers
from synrepl.storage.database import Database, Transaction
from synrepl.storage.membership import Member, WriterBusy
from synrepl.storage.store import WriterState
from synrepl.streams.definition import Stream

#: Seconds between two looks at what is still open.
LOOK_S = 0.1

#: For how long a removal tries again, in seconds: a position that goes on record, or an
#: append that is just refused, has the writer's row or lock for a moment.
BUSY_S = 2.0


class StillOpen(Unavailable):
    """writer {writer!r} of stream {stream!r} gets no new tokens, but after {seconds:g} s this of it is open: {open}; when that has ended it is drained, the same command waits for it again"""


class Membership:
    """The writers of streams in one database, as an operator changes them."""

    def __init__(self, scheduler: Scheduler, database: Database) -> None:
        self._scheduler = scheduler
        self._database = database

    async def members(self, streams: Sequence[Stream]) -> list[Member]:
        """All writers of streams, removed ones too."""
        return await self._database.run(
            "list writers", lambda txn: membership.members(txn, streams), read_only=True
        )

    async def add(self, stream: Stream, writer: str) -> bool:
        """Let a writer write to a stream; False when it could already.

        :raises StreamNotMade: no master has made the stream's table
        """
        return await self._database.run(
            "add writer", lambda txn: membership.add(txn, stream.name, writer)
        )

    async def drain(self, stream: Stream, writer: str, timeout_s: float) -> None:
        """Let a writer take no more tokens, and wait until all that it has are settled.

        :raises NoSuchWriter: :raises BroughtBack: it was allowed to write again meanwhile
        :raises StillOpen: not all were, after ``timeout_s`` seconds
        """
        await self._database.run(
            "drain writer", lambda txn: membership.drain(txn, stream.name, writer)
        )
        give_up = self._scheduler.seconds() + timeout_s
        # Attempts that are being refused hold the lock for a moment, always others: so it
        # is not enough to look for a moment at which nobody does.
        settling, goal = SettlementTracker(-1), None  # for at 0 something may be open, too
        while True:
            last, seen = await self._look(stream, writer)
            goal = last if goal is None else goal
            if seen.is_held and not seen.is_alive:
                await self._fence(stream, writer)
            elif settling.observe(
                last, [h.identity for h in seen.holders]
            ) >= goal and await self._conclude(stream, writer):
                return
            if self._scheduler.seconds() >= give_up:
                raise StillOpen(
                    writer=writer, stream=stream.name, seconds=timeout_s, open=_what_is_open(seen)
                )
            await self._scheduler.sleep(LOOK_S)

    async def remove(self, stream: Stream, writer: str) -> None:
        """Let a writer that is drained or dead be one of the stream's no more.

        Its facts stay. Whoever wakes up later as this writer is refused by the database.

        :raises NoSuchWriter: :raises NotDrained: :raises WriterLives: :raises WriterBusy:
        """
        give_up = self._scheduler.seconds() + BUSY_S
        while True:
            try:
                await self._database.run(
                    "remove writer", lambda txn: membership.remove(txn, stream.name, writer)
                )
                return
            except WriterBusy:
                if self._scheduler.seconds() >= give_up:
                    raise
            await self._scheduler.sleep(LOOK_S)

    async def _look(self, stream: Stream, writer: str) -> tuple[Token, WriterState]:
        def look(txn: Transaction) -> tuple[Token, WriterState]:
            seen = writers.observe(txn, [stream])[stream.name]
            return seen.last, seen.writers[writer]

        return await self._database.run("look at writer", look, read_only=True)

    async def _conclude(self, stream: Stream, writer: str) -> bool:
        return await self._database.run(
            "conclude drain", lambda txn: membership.conclude_drain(txn, stream.name, writer)
        )

    async def _fence(self, stream: Stream, writer: str) -> None:
        await self._database.run(
            "fence writer", lambda txn: writers.fence(txn, stream.name, writer)
        )


def _what_is_open(seen: WriterState) -> str:
    """What keeps a writer from being drained, for a person."""
    if seen.holders:
        return " and ".join(holder.description for holder in seen.holders)
    if seen.is_held and not seen.is_alive:
        return "its process is dead, and not fenced off yet"
    return "a transaction that has just ended, or is about to"
