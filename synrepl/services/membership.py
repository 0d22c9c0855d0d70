"""Adds, drains and removes writers, with proof that no position waits for a removed one."""

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

#: Seconds between two checks for open transactions and reservations.
LOOK_S = 0.1

#: How long a removal retries, in seconds: recording a position, or refusing an append, holds the
#: writer's row or lock for a moment.
BUSY_S = 2.0


class StillOpen(Unavailable):
    """writer {writer!r} of stream {stream!r} gets no new tokens, but after {seconds:g} s this of it is open: {open}; when that has ended it is drained, the same command waits for it again"""


class Membership:
    """Lets an operator change which writers the streams of a database have."""

    def __init__(self, scheduler: Scheduler, database: Database) -> None:
        self._scheduler = scheduler
        self._database = database

    async def members(self, streams: Sequence[Stream]) -> list[Member]:
        """All writers of streams, including removed ones."""
        return await self._database.run(
            "list writers", lambda txn: membership.members(txn, streams), read_only=True
        )

    async def add(self, stream: Stream, writer: str) -> bool:
        """Let a writer write to a stream; False when it already could.

        :raises StreamNotMade: no master has created the stream's table
        """
        return await self._database.run(
            "add writer", lambda txn: membership.add(txn, stream.name, writer)
        )

    async def drain(self, stream: Stream, writer: str, timeout_s: float) -> None:
        """Stop a writer from taking tokens, and wait until all tokens that it has are settled.

        :raises NoSuchWriter: the stream has no such writer
        :raises BroughtBack: the writer was added again meanwhile
        :raises StillOpen: tokens were still unsettled after ``timeout_s`` seconds
        """
        await self._database.run(
            "drain writer", lambda txn: membership.drain(txn, stream.name, writer)
        )
        give_up = self._scheduler.seconds() + timeout_s
        # Appends that are being refused hold the lock briefly, one after the other, so waiting
        # for a moment at which nobody holds it may never end.
        settling, goal = SettlementTracker(-1), None  # as something may be open at 0, too
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
        """Remove a drained or dead writer from a stream.

        Its facts stay. The database refuses a process that wakes up later as this writer.

        :raises NoSuchWriter: the stream has no such writer
        :raises NotDrained: :raises WriterLives: the writer may still have open tokens
        :raises WriterBusy: its row or lock was held for too long
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
    """What keeps a writer from being drained, as text."""
    if seen.holders:
        return " and ".join(holder.description for holder in seen.holders)
    if seen.is_held and not seen.is_alive:
        return "its process is dead, and not fenced off yet"
    return "a transaction that has just ended, or is about to"
