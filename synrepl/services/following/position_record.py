"""The recorded positions of a follower and of its handlers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range, Token
from synrepl.services.following.consumer import Consumer, PositionTracker, StartAt
from synrepl.services.following.sources import Key
from synrepl.services.handlers import Batch
from synrepl.storage import dead_letters, followers, handler_positions, incarnations
from synrepl.storage.database import Database, Transaction
from synrepl.storage.dead_letters import DeadLetter, FailedFact, FailureReason
from synrepl.storage.handler_positions import HandlerPosition, Place
from synrepl.storage.incarnations import Incarnations


class PositionWentBack(SynreplError):
    """handler {handler!r} of follower {follower!r} stands at {at} of {stream!r} ({writer!r}) on record, below {after}, from where it received; another process uses the follower's name: restart this worker"""


class HandlerLoss(NamedTuple):
    """What a handler may have been given, while it was away, of what a failover has lost."""

    handler: str
    key: Key
    lost: Range


class LoadedRecord(NamedTuple):
    """The record of a follower.

    :ivar own: its own positions
    :ivar losses: what plain handlers are still to be told
    """

    own: dict[Key, Token]
    losses: list[HandlerLoss]


class RereadPosition(NamedTuple):
    """The record of a transactional handler on a server that has taken over.

    :ivar position: None where there is none
    """

    position: Token | None
    incarnation: int
    floor: Token


class PositionRecord:
    """The record of one follower; without a database or a name there is none.

    A follower's own position, by which facts are trimmed, is one that all of its
    handlers have reached. It is never recorded ahead of that of a handler.
    """

    def __init__(
        self, database: Database | None, follower: str | None, incarnations: Incarnations
    ) -> None:
        self._storage = None if database is None or follower is None else (database, follower)
        self._incarnations = incarnations
        #: Of the server on which the record was loaded, and the floors of its streams.
        self._incarnation = 1
        self._floors: Mapping[str, Token] = {}

    @property
    def is_persistent(self) -> bool:
        """Positions outlive the process."""
        return self._storage is not None

    async def load(
        self, consumers: Sequence[Consumer], streams: Mapping[str, object]
    ) -> LoadedRecord:
        """Resume handlers from the record, and prepare the start of new ones.

        :param streams: whose positions depend on the view
        :raises ViewChanged: see :class:`.ViewChanged`
        :raises SynreplError: the record cannot be read
        """
        if self._storage is None:
            return LoadedRecord({}, [])
        database, follower = self._storage
        plain = {consumer.name for consumer in consumers if not consumer.is_transactional}

        def work(
            txn: Transaction,
        ) -> tuple[int, dict[str, Token], LoadedRecord, dict[Place, HandlerPosition]]:
            number = self._incarnations.check(txn)
            _inherit(txn, follower, consumers)
            _begin(txn, follower, consumers)
            own = followers.positions(txn, follower)
            places = handler_positions.positions(txn, follower)
            loaded = LoadedRecord(own, _losses(txn, places, plain, number))
            return number, incarnations.floors(txn), loaded, places

        number, floors, loaded, places = await database.run("load positions", work)
        self._incarnation, self._floors = number, floors
        for consumer in consumers:
            trackers = {
                (stream, writer): PositionTracker(at.position, at.position, at.started_from)
                for (handler, stream, writer), at in places.items()
                if handler == consumer.name
            }
            consumer.resume(trackers, streams)
        return loaded

    def is_void(self, tracker: PositionTracker, batch: Batch) -> bool:
        """Whether what the connection has brought is of a server that is gone, or may be."""
        return batch.upto < (tracker.floor or self._floors.get(batch.stream, 0))

    async def write(
        self,
        handlers: Mapping[Place, HandlerPosition],
        own: Mapping[Key, Token],
        transactional: Mapping[Place, PositionTracker],
    ) -> Collection[Place]:
        """Put positions on record; none goes back.

        Where another server has taken over, the positions of transactional handlers are not
        written but read: their effects are rolled back together with the record.

        :param transactional: the tracks of transactional handlers in the same streams
        :returns: what was read instead, into the tracks
        :raises SynreplError: that failed
        """
        if self._storage is None:
            return ()
        database, follower = self._storage

        # By now: positions that are read meanwhile are not those that are written here.
        known = {place: self._known(tracker) for place, tracker in transactional.items()}

        def work(txn: Transaction) -> Mapping[Place, RereadPosition]:
            number = self._incarnations.check(txn)
            stale = {
                place: _reread(txn, follower, place, number)
                for place, incarnation in known.items()
                if incarnation != number
            }
            keys = {(stream, writer) for _, stream, writer in stale}
            written = [(place, at) for place, at in handlers.items() if place not in stale]
            handler_positions.record(txn, follower, written)
            reached = {key: at for key, at in own.items() if key not in keys}
            followers.record(txn, follower, reached, by_handler=True)
            return stale

        stale = await database.run("record positions", work)
        for place, found in stale.items():
            transactional[place].reread(*found)
        return stale.keys()

    async def reread(self, transactional: Mapping[Place, PositionTracker]) -> None:
        """Read positions of transactional handlers again where another server has taken over.

        :raises SynreplError: they cannot be read
        """
        await self.write({}, {}, transactional)

    async def lost(self, key: Key) -> Range | None:
        """What of a writer failovers may have lost since the record was loaded.

        :raises SynreplError: it cannot be read
        """
        if self._storage is None:
            return None
        database, _ = self._storage

        def work(txn: Transaction) -> Range | None:
            self._incarnations.check(txn)
            return incarnations.lost_since(txn, self._incarnation).of(*key)

        return await database.run("look for losses", work)

    async def losses_reported(self, losses: Iterable[HandlerLoss]) -> None:
        """Record that handlers were told of losses, and go on from what is kept.

        :raises SynreplError: that failed
        """
        if self._storage is None:
            return
        database, follower = self._storage
        rows = [(follower, loss.handler, *loss.key, *loss.lost) for loss in losses]

        def work(txn: Transaction) -> None:
            places = handler_positions.positions(txn, follower)
            for _, handler, stream, writer, kept, _ in rows:
                known = places.get((handler, stream, writer))
                if known is not None:
                    at = min(known.position, kept)
                    handler_positions.put(txn, follower, (handler, stream, writer), at)
            if rows:
                txn.insert_many(incarnations.TOLD, rows)

        await database.run("record losses", work)

    def _known(self, tracker: PositionTracker) -> int:
        """The incarnation of the server whose record a track goes by."""
        return tracker.incarnation or self._incarnation

    async def reset(
        self, key: Key, handlers: Iterable[str], position: Token, *, forget: bool
    ) -> None:
        """Set positions, also to lower ones.

        :param forget: take the follower's own off the record
        :raises SynreplError: that failed
        """
        if self._storage is None:
            return
        database, follower = self._storage
        names = sorted(handlers)

        def work(txn: Transaction) -> None:
            for name in names:
                handler_positions.put(txn, follower, (name, *key), position)
            if forget:
                followers.forget(txn, follower, *key)

        await database.run("reset positions", work)

    async def apply(
        self,
        consumer: Consumer,
        tracker: PositionTracker,
        batch: Batch,
        work: Callable[[Transaction, Batch], Sequence[FailedFact]],
    ) -> None:
        """One transaction: the effects of a handler, what it could not take, and its position.

        :param work: called with the part of the batch that is not applied yet; returns the facts
            that become dead letters. Not called when another server has taken over: then the
            track goes back to what is on record there
        :raises PositionWentBack: :raises SynreplError: and what the handler raises
        """
        assert self._storage is not None
        database, follower = self._storage
        place: Place = (consumer.name, batch.stream, batch.writer)
        known = batch.after if tracker.recorded is None else min(batch.after, tracker.recorded)
        incarnation = self._known(tracker)

        def apply(txn: Transaction) -> RereadPosition | None:
            number = self._incarnations.check(txn)
            if batch.ordered and number != incarnation:
                return _reread(txn, follower, place, number)
            todo = _still_to_do(txn, follower, place, batch, known) if batch.ordered else batch
            if todo is not None:
                dead_letters.add(txn, follower, work(txn, todo))
            return None

        tracker.in_transaction = True
        try:
            elsewhere = await database.run("apply", apply)
        finally:
            tracker.in_transaction = False
        if elsewhere is not None:
            tracker.reread(*elsewhere)
        elif self._known(tracker) != incarnation:
            pass  # committed on a server that is gone: the track goes by another one's record
        elif batch.ordered:  # otherwise its tokens say nothing; the lane says when it has moved
            tracker.recorded = max(batch.upto, tracker.recorded or 0)

    async def add_dead_letters(
        self,
        consumer: Consumer,
        tracker: PositionTracker,
        batch: Batch,
        facts: Sequence[FailedFact],
    ) -> None:
        """Record dead letters, and the position of the handler behind them.

        :raises SynreplError: that failed
        """
        assert self._storage is not None
        database, follower = self._storage
        place: Place = (consumer.name, batch.stream, batch.writer)
        moved = {place: HandlerPosition(batch.upto, tracker.started_from)} if batch.ordered else {}

        def work(txn: Transaction) -> None:
            dead_letters.add(txn, follower, facts)
            handler_positions.record(txn, follower, moved.items())

        await database.run("set facts aside", work)

    async def replay(
        self, letter: DeadLetter, work: Callable[[Transaction], object] = lambda txn: None
    ) -> None:
        """One transaction: delete a dead letter, and do ``work``.

        Without effect when the letter is gone.

        :raises SynreplError: and what ``work`` raises
        """
        assert self._storage is not None
        database, follower = self._storage

        def replay(txn: Transaction) -> None:
            if dead_letters.take(txn, follower, letter):
                work(txn)

        await database.run("replay a dead letter", replay)

    async def keep_letter(self, letter: DeadLetter, reason: FailureReason) -> None:
        """Keep a dead letter after another failure.

        :raises SynreplError: that cannot be put on record
        """
        assert self._storage is not None
        database, follower = self._storage
        await database.run(
            "keep a dead letter",
            lambda txn: dead_letters.failed_again(txn, follower, letter, reason),
        )

    async def letters(
        self, newest: int, requested: int
    ) -> tuple[Mapping[str, int], Sequence[DeadLetter], Sequence[DeadLetter]]:
        """Dead letters: how many per handler, the newest, and those to be replayed.

        :raises SynreplError: they cannot be read
        """
        if self._storage is None:
            return {}, (), ()
        database, follower = self._storage

        def work(
            txn: Transaction,
        ) -> tuple[Mapping[str, int], Sequence[DeadLetter], Sequence[DeadLetter]]:
            counts = dead_letters.counts(txn, follower)
            if not counts:
                return counts, (), ()
            return (
                counts,
                dead_letters.look(txn, follower, newest=True, limit=newest),
                dead_letters.look(txn, follower, requested=True, limit=requested),
            )

        return await database.run("look at dead letters", work, read_only=True)


def _reread(txn: Transaction, follower: str, place: Place, number: int) -> RereadPosition:
    _, stream, _ = place
    position = handler_positions.position(txn, follower, place)
    return RereadPosition(position, number, incarnations.floor(txn, stream))


def _losses(
    txn: Transaction, places: Mapping[Place, HandlerPosition], plain: Collection[str], number: int
) -> list[HandlerLoss]:
    """What handlers may have seen that failovers have lost since their positions were recorded."""
    losses: list[HandlerLoss] = []
    since: dict[int, incarnations.Losses] = {}
    for (handler, stream, writer), at in sorted(places.items()):
        if handler not in plain or at.incarnation == number:
            continue
        found = since.get(at.incarnation)
        if found is None:
            found = since[at.incarnation] = incarnations.lost_since(txn, at.incarnation)
        lost = found.of(stream, writer)
        if lost is not None:
            losses.append(HandlerLoss(handler, (stream, writer), lost))
    return losses


def _inherit(txn: Transaction, follower: str, consumers: Sequence[Consumer]) -> None:
    """Copy a follower's positions from before handlers had their own to its handlers."""
    inherited = followers.inherited(txn, follower)
    if not inherited:
        return
    known = handler_positions.positions(txn, follower)
    taken_over = [
        ((consumer.name, *key), HandlerPosition(position, None))
        for key, position in inherited.items()
        for consumer in consumers
        if consumer.receives(key[0]) and (consumer.name, *key) not in known
    ]
    handler_positions.record(txn, follower, taken_over)


def _begin(txn: Transaction, follower: str, consumers: Sequence[Consumer]) -> None:
    """Protect from trimming what new handlers are to get, by moving the follower back."""
    places = handler_positions.positions(txn, follower)
    begun = {(handler, stream) for handler, stream, _ in places}
    for stream in sorted({stream for stream, _ in followers.positions(txn, follower)}):
        for consumer in consumers:
            start = consumer.start(stream)
            if (
                start is not None
                and start is not StartAt.NOW
                and consumer.receives(stream)
                and (consumer.name, stream) not in begun
            ):
                at = 0 if start is StartAt.EARLIEST else start
                followers.lower(txn, follower, stream, at)


def _still_to_do(
    txn: Transaction, follower: str, place: Place, batch: Batch, known: Token
) -> Batch | None:
    """Move the recorded position past a batch; the part of the batch that is not applied yet.

    The record, not the caller's memory, says what was applied: a commit whose
    answer was lost shows here.

    :param known: the least that the record is known to be; it stays below
        ``batch.after`` for a while when a position has moved past no facts
    """
    if handler_positions.advance(txn, follower, place, known, batch.upto):
        return batch
    at = handler_positions.position(txn, follower, place)
    if at is None:  # the row was deleted
        at = known
        row = (place, HandlerPosition(batch.upto, known))
        handler_positions.record(txn, follower, [row])
    if at >= batch.upto:
        return None
    if at < known:
        raise PositionWentBack(
            follower=follower,
            handler=place[0],
            stream=batch.stream,
            writer=batch.writer,
            at=at,
            after=known,
        )
    handler_positions.advance(txn, follower, place, at, batch.upto)
    facts = [fact for fact in batch.facts if fact.token > at]
    return replace(batch, after=at, facts=facts) if facts else None
