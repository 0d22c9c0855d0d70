"""What is done to rooms in a simulation, each until it is done, whatever is killed meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

from simulator.clock import Process
from simulator.rooms.kept_outliers import kept_outliers, staying_events
from simulator.rooms.partially import make_partial
from simulator.rooms.random_rooms import USERS
from simulator.rooms.room_model import GivenBatch, RoomModel
from simulator.rooms.room_processes import PersistingProcesses, RestartedProcess
from simulator.rooms.server import SimulatedServer
from simulator.transcript import Transcript
from simulator.truth import Violations
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.rooms import auth_dependencies
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.services.rooms.room_writers import RoomWriterNotLive, RoomWriters
from synrepl.storage.database import CommitUnknown, Transaction
from synrepl.storage.rooms.maintenance.purge import CannotPurge
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent, PersistedBatch
from synrepl.storage.rooms.tables.numbers import UnknownRoom
from synrepl.storage.store import Fenced

T = TypeVar("T")

#: Events of a room, about.
LARGEST_ROOM = 120

#: Seconds between attempts.
AGAIN_S = 0.2

#: Errors after which something is tried again; any other one is a defect.
_AWAY = (Unavailable, CommitUnknown, Fenced)


class RoomActions:
    """Gives events to persisting processes, and has rooms maintained.

    :param client: the process that asks the others; it is never killed
    :param writers: reads and changes the assignment of rooms
    :ivar counts: how often everything happened
    """

    def __init__(
        self,
        random: Random,
        transcript: Transcript,
        violations: Violations,
        server: SimulatedServer,
        client: Process,
        writers: RoomWriters,
        persisters: Mapping[str, PersistingProcesses],
        maintainer: RestartedProcess,
    ) -> None:
        self._random = random
        self._transcript = transcript
        self._violations = violations
        self._server = server
        self._client = client
        self._writers = writers
        self._persisters = persisters
        self._maintainer = maintainer
        self.counts: Counter[str] = Counter()

    # -- persisting ------------------------------------------------------------------------

    async def arrive(self, model: RoomModel) -> None:
        """A batch comes: live or old events in any order, outliers, events with states, events again."""
        random = self._random
        await self._client.sleep(random.random() * 0.3)
        if len(model.made.events) < LARGEST_ROOM:
            model.unsent += model.made.more(random.randint(0, 12))
        await self._give(model.batch(self._incoming(model)))

    def _incoming(self, model: RoomModel) -> list[IncomingEvent]:
        random = self._random
        available = model.available()
        how = random.choices(["live", "outliers", "state", "again"], [8, 1, 1, 1])[0]
        if how == "again":
            before = model.persisted_before()
            return [IncomingEvent(each) for each in random.sample(before, min(5, len(before)))]
        if how == "outliers":
            chosen = random.sample(available, min(random.randint(1, 5), len(available)))
            chosen.sort(key=model.made.events.index)
            return [IncomingEvent(each, outlier=True) for each in chosen]
        if how == "state" and available and len(model.room) > 6:
            known = model.with_states()
            state = random.choice(known).state_after if known else None
            if state is not None:
                event, partial = random.choice(available), random.random() < 0.3
                if partial:
                    self._server.operator.run(
                        "join partially", lambda txn: make_partial(txn, model.room_id)
                    )
                return [IncomingEvent(event, state_before=state.as_dict(), partial=partial)]
        size = random.randint(1, 15)
        pool = available[: size * 2]
        shuffled = random.random() < 0.6
        events = random.sample(pool, min(size, len(pool))) if shuffled else pool[:size]
        live, old = random.random() < 0.7, random.random() < 0.15
        return [IncomingEvent(each, live, old) for each in events]

    async def arrive_all(self, model: RoomModel) -> None:
        """All events come that may."""
        await self._give(model.batch([IncomingEvent(each) for each in model.available()]))

    async def _give(self, batch: GivenBatch) -> None:
        """Give a batch to the process that the room is assigned to, until one has persisted it."""
        model = batch.model
        if not batch.events:
            return
        model.under_way += 1
        name, done = await self._persisted(batch)
        model.under_way -= 1
        self.counts["batches"] += 1
        self.counts["events"] += len(batch.events)
        told = [(each.event_id, each.outcome.value, each.stream_id) for each in done.judged]
        self._transcript.add(name, "persisted {told}", told=told)
        judged = [each.event_id for each in done.judged]
        if judged != batch.judged or any(
            each.outcome is EventOutcome.WAITING for each in done.judged
        ):
            self._violations.add(
                "JUDGED", "{found} instead of {expected}", found=judged, expected=batch.judged
            )

    async def _persisted(self, batch: GivenBatch) -> tuple[str, PersistedBatch]:
        """Have a batch persisted; returns the name of the process that has done it."""
        room_id = batch.model.room_id
        while True:
            try:
                placed = await self._writers.place([room_id])
                name = placed.assignment.writer_of(room_id)
                return name, await self._persisters[name].persist(batch)
            except _AWAY:
                self.counts["given again"] += 1
                await self._client.sleep(AGAIN_S)

    async def move(self, model: RoomModel) -> None:
        """Assign a room to any process, or to none, while batches are under way."""
        random = self._random
        await self._client.sleep(random.random() * 0.5)
        writer = random.choice([*self._persisters, None])
        with suppress(UnknownRoom, RoomWriterNotLive):
            await self._writers.move(model.room_id, writer)
            self.counts["moved"] += 1
            self._transcript.add("client", "moved {room} to {to}", room=model.room_id, to=writer)

    # -- maintenance -----------------------------------------------------------------------

    async def rewrite(self, model: RoomModel, what: str) -> None:
        """Compact or collect a room, whatever else is done to it."""
        room_id, rebase = model.room_id, self._random.random() < 0.5

        def work(to: RoomMaintenance) -> Coroutine[Any, Any, object]:
            if what == "compact":
                return to.compact(room_id, index_check=False)
            return to.collect(room_id, index_check=False, rebase=rebase)

        await self._maintain(what, work)

    async def purge(self, model: RoomModel) -> None:
        """Purge the history of a room to which nothing comes meanwhile."""
        if not model.is_settled:
            return
        room_id = model.room_id
        if model.room.partial_event_ids:
            error = await self._maintain(
                "purge",
                lambda to: to.purge(room_id, PurgePoint.of_topological(9), index_check=False),
            )
            if not isinstance(error, CannotPurge):
                self._violations.add("PURGE", "a room with partial state was purged")
            return
        before, redacted_by = self._server.operator.run(
            "positions", lambda txn: _positions(txn, room_id)
        )
        by_stream = self._random.random() < 0.5
        positions = sorted(each[by_stream] for each in before.values())
        bound = positions[int(len(positions) * self._random.random() ** 0.5)]
        point = PurgePoint.of_stream(bound) if by_stream else PurgePoint.of_topological(bound)
        model.is_reworked = True
        await self._maintain("purge", lambda to: to.purge(room_id, point, index_check=False))
        staying = staying_events(model.room, before)
        full = {one for one, at in before.items() if at[by_stream] >= bound or one in staying}
        outliers = self._server.operator.run(
            "outliers", lambda txn: kept_outliers(txn, model.room, full, redacted_by)
        )
        model.purged(full, outliers)
        model.is_reworked = False
        self.counts["purged events"] += len(model.gone) + len(model.demoted)

    async def come_back(self, model: RoomModel) -> None:
        """Events that were purged, and that others follow, come with their states as other servers report them."""
        room = model.room
        candidates = [each for each in room if not model.is_full(each.event.event_id)]
        self._random.shuffle(candidates)
        for each in candidates[:20]:
            event, state = each.event, each.state_before
            if state is None or each.soft_failure is not None:
                continue
            if event.event_id not in self._followed(model):
                continue
            if not all(map(model.is_here, [*state.values(), *auth_dependencies(event)])):
                continue
            incoming = IncomingEvent(
                event, state_before=state.as_dict(), backfilled=self._random.random() < 0.5
            )
            model.is_reworked = True
            await self._persisted(GivenBatch(model, [incoming]))
            model.came_back(event.event_id)
            model.is_reworked = False
            self.counts["came back"] += 1
            return

    def _followed(self, model: RoomModel) -> set[str]:
        """Missing events that others follow."""

        def read(txn: Transaction) -> set[str]:
            txn.execute(
                "SELECT b.missing_id FROM synrepl._backward_extremities b"
                " JOIN synrepl._rooms r USING (room_no) WHERE r.room_id = %s",
                (model.room_id,),
            )
            return {missing_id for (missing_id,) in txn.fetchall()}

        return self._server.operator.run("followed", read)

    async def erase(self, models: Sequence[RoomModel]) -> None:
        """Erase a user, while nothing comes."""
        if not all(each.is_settled for each in models):
            return
        user = self._random.choice(USERS)
        for each in models:
            each.is_reworked = True
        await self._maintain("erase", lambda to: to.erase_user(user))
        for each in models:
            each.erased(user)
            each.is_reworked = False

    async def forget(self, model: RoomModel) -> None:
        """Remove a room; its events may come again."""
        if not model.is_stored or model.under_way:
            return
        room_id = model.room_id
        model.is_reworked = True
        await self._maintain("forget", lambda to: to.forget(room_id, "nobody.example", force=True))
        model.told_before = self._server.operator.run("last tokens", _last_tokens)
        model.forget()
        model.is_reworked = False

    async def _maintain(
        self, what: str, work: Callable[[RoomMaintenance], Coroutine[Any, Any, object]]
    ) -> SynreplError | None:
        """Have a room maintained, by the next process when one is killed.

        :returns: the error about the room, if it cannot be done
        """
        while True:
            try:
                await self._maintainer.ask(work(RoomMaintenance(self._maintainer.database)))
            except (CannotPurge, UnknownRoom) as error:
                return error
            except _AWAY as error:
                self.counts[f"{what} again"] += 1
                self._transcript.add(
                    "client", "{what}: {kind}", what=what, kind=type(error).__name__
                )
                await self._client.sleep(AGAIN_S)
            else:
                self.counts[what] += 1
                return None


def _positions(txn: Transaction, room_id: str) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """The topological ordering and stream ID of each event with a state, and which redaction applies to which event."""
    txn.execute(
        "SELECT e.event_id, e.topological, e.stream_id, r.event_id FROM synrepl._room_events e"
        " JOIN synrepl._rooms USING (room_no)"
        " LEFT JOIN synrepl._room_events r ON r.event_no = e.redacted_by WHERE room_id = %s",
        (room_id,),
    )
    rows = txn.fetchall()
    return (
        {
            each: (topological, stream)
            for each, topological, stream, _ in rows
            if stream is not None
        },
        {each: redaction for each, _, _, redaction in rows if redaction is not None},
    )


def _last_tokens(txn: Transaction) -> tuple[int, int]:
    """The largest tokens of the streams ``events`` and ``backfill``."""
    txn.execute(
        "SELECT (SELECT coalesce(max(stream_id), 0) FROM synrepl.events),"
        " (SELECT coalesce(max(abs(stream_id)), 0) FROM synrepl.backfill)"
    )
    events, backfill = txn.fetchone()
    return int(events), int(backfill)
