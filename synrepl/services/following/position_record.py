"""The recorded positions of a follower and of its handlers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range, Token
from synrepl.services.following.consumer import Consumer, PositionTracker, StartAt
from synrepl.services.handlers import Batch
from synrepl.services.sources import Key
from synrepl.storage import incarnations
from synrepl.storage.database import Database, Transaction
from synrepl.storage.followers import dead_letters, handler_positions, named_followers
from synrepl.storage.followers.dead_letters import DeadLetter, FailedFact, FailureReason
from synrepl.storage.followers.handler_positions import HandlerPosition, Place
from synrepl.storage.incarnations import Incarnations


class PositionWentBack(SynreplError):
    """handler {handler!r} of follower {follower!r} is at {at} of {stream!r} ({writer!r}) on record, below {after}, from where it received; another process uses the follower's name: restart this worker"""


class HandlerLoss(NamedTuple):
    """Facts that a failover has lost, and that a handler may have got before its process stopped."""

    handler: str
    key: Key
    lost: Range


class LoadedRecord(NamedTuple):
    """The record of a follower, as loaded when its process starts.

    :ivar own: the positions of the follower itself
    :ivar losses: losses that plain handlers have not been informed of yet
    """

    own: dict[Key, Token]
    losses: list[HandlerLoss]


class RereadPosition(NamedTuple):
    """The recorded position of a transactional handler on a server that has taken over.

    :ivar position: None if that server has none
    """

    position: Token | None
    incarnation: int
    floor: Token


class PositionRecord:
    """Reads and writes the record of one follower; without a database or a name it is empty.

    The follower's own position, by which facts are trimmed, is one that all of its handlers have
    reached. It is never recorded ahead of that of a handler.
    """

    def __init__(
        self, database: Database | None, follower: str | None, incarnations: Incarnations
    ) -> None:
        self._storage = None if database is None or follower is None else (database, follower)
        self._incarnations = incarnations
        #: Incarnation of the server on which the record was loaded, and the floors of its streams.
        self._incarnation = 1
        self._floors: Mapping[str, Token] = {}

    @property
    def is_persistent(self) -> bool:
        """Whether positions outlive the process."""
        return self._storage is not None

    async def load(
        self, consumers: Sequence[Consumer], streams: Mapping[str, object]
    ) -> LoadedRecord:
        """Resume handlers from the record, and prepare the start of new ones.

        :param streams: the streams whose positions depend on the view
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
            own = named_followers.positions(txn, follower)
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
        """Whether a batch from the connection comes from a server that is gone, or may come from one."""
        return batch.upto < (tracker.floor or self._floors.get(batch.stream, 0))

    async def write(
        self,
        handlers: Mapping[Place, HandlerPosition],
        own: Mapping[Key, Token],
        transactional: Mapping[Place, PositionTracker],
    ) -> Collection[Place]:
        """Record positions; none goes back.

        Where another server has taken over, the positions of transactional handlers are read
        instead of written, as their effects were rolled back together with the record.

        :param transactional: the trackers of transactional handlers in the same streams
        :returns: the places whose positions were read into their trackers instead
        :raises SynreplError: the database refused, or is unavailable
        """
        if self._storage is None:
            return ()
        database, follower = self._storage

        # Taken now: positions that are reread meanwhile are not the ones written here.
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
            named_followers.record(txn, follower, reached, by_handler=True)
            return stale

        stale = await database.run("record positions", work)
        for place, found in stale.items():
            transactional[place].reread(*found)
        return stale.keys()

    async def reread(self, transactional: Mapping[Place, PositionTracker]) -> None:
        """Reread positions of transactional handlers where another server has taken over.

        :raises SynreplError: they cannot be read
        """
        await self.write({}, {}, transactional)

    async def lost(self, key: Key) -> Range | None:
        """The facts of a writer that failovers may have lost since the record was loaded.

        :raises SynreplError: they cannot be read
        """
        if self._storage is None:
            return None
        database, _ = self._storage

        def work(txn: Transaction) -> Range | None:
            self._incarnations.check(txn)
            return incarnations.lost_since(txn, self._incarnation).of(*key)

        return await database.run("look for losses", work)

    async def note_reported(self, losses: Iterable[HandlerLoss]) -> None:
        """Record that handlers were informed of losses, and move their positions back below them.

        :raises SynreplError: the database refused, or is unavailable
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
                txn.insert_many(incarnations.NOTIFIED_HANDLERS, rows)

        await database.run("record losses", work)

    def _known(self, tracker: PositionTracker) -> int:
        """The incarnation of the server whose record a tracker follows."""
        return tracker.incarnation or self._incarnation

    async def reset(
        self, key: Key, handlers: Iterable[str], position: Token, *, forget: bool
    ) -> None:
        """Set positions, including to lower ones.

        :param forget: delete the follower's own position
        :raises SynreplError: the database refused, or is unavailable
        """
        if self._storage is None:
            return
        database, follower = self._storage
        names = sorted(handlers)

        def work(txn: Transaction) -> None:
            for name in names:
                handler_positions.put(txn, follower, (name, *key), position)
            if forget:
                named_followers.forget(txn, follower, *key)

        await database.run("reset positions", work)

    async def apply(
        self,
        consumer: Consumer,
        tracker: PositionTracker,
        batch: Batch,
        work: Callable[[Transaction, Batch], Sequence[FailedFact]],
    ) -> None:
        """Commit the effects of a handler, its dead letters and its position in one transaction.

        :param work: called with the part of the batch that is not applied yet; returns the facts
            that become dead letters. Not called when another server has taken over: then the
            tracker goes back to the position recorded there
        :raises PositionWentBack: another process uses the follower's name
        :raises SynreplError: the transaction failed; also whatever the handler raises
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
            pass  # committed on a server that is gone: the tracker follows another one's record
        elif batch.ordered:  # else its tokens mean nothing, and the lane reports when it has moved
            tracker.recorded = max(batch.upto, tracker.recorded or 0)

    async def add_dead_letters(
        self,
        consumer: Consumer,
        tracker: PositionTracker,
        batch: Batch,
        facts: Sequence[FailedFact],
    ) -> None:
        """Record dead letters, and the position of the handler after them.

        :raises SynreplError: the database refused, or is unavailable
        """
        assert self._storage is not None
        database, follower = self._storage
        place: Place = (consumer.name, batch.stream, batch.writer)
        moved = {place: HandlerPosition(batch.upto, tracker.started_from)} if batch.ordered else {}

        def work(txn: Transaction) -> None:
            dead_letters.add(txn, follower, facts)
            handler_positions.record(txn, follower, moved.items())

        await database.run("store dead letters", work)

    async def replay(
        self, letter: DeadLetter, work: Callable[[Transaction], object] = lambda txn: None
    ) -> None:
        """Delete a dead letter and do ``work``, in one transaction.

        Has no effect when the letter is gone.

        :raises SynreplError: the transaction failed; also whatever ``work`` raises
        """
        assert self._storage is not None
        database, follower = self._storage

        def replay(txn: Transaction) -> None:
            if dead_letters.take(txn, follower, letter):
                work(txn)

        await database.run("replay a dead letter", replay)

    async def keep_letter(self, letter: DeadLetter, reason: FailureReason) -> None:
        """Keep a dead letter after another failure.

        :raises SynreplError: the failure cannot be recorded
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
        """Read dead letters: the number per handler, the newest, and those to be replayed.

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
    """Facts that handlers may have got, and that failovers lost since positions were recorded."""
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
    """Copy positions that a follower recorded before handlers had their own to its handlers."""
    inherited = named_followers.inherited(txn, follower)
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
    """Move the follower back, so that the facts new handlers are to get are not trimmed."""
    places = handler_positions.positions(txn, follower)
    begun = {(handler, stream) for handler, stream, _ in places}
    for stream in sorted({stream for stream, _ in named_followers.positions(txn, follower)}):
        for consumer in consumers:
            start = consumer.start(stream)
            if (
                start is not None
                and start is not StartAt.NOW
                and consumer.receives(stream)
                and (consumer.name, stream) not in begun
            ):
                at = 0 if start is StartAt.EARLIEST else start
                named_followers.lower(txn, follower, stream, at)


def _still_to_do(
    txn: Transaction, follower: str, place: Place, batch: Batch, known: Token
) -> Batch | None:
    """Move the recorded position past a batch, and return the part that is not applied yet.

    The record decides what was applied, not the caller's memory: a commit whose answer was lost
    shows here.

    :param known: lower bound of the record; it stays below ``batch.after`` for a while after a
        position has moved past tokens without facts
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
