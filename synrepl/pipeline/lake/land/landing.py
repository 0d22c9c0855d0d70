"""Lands streams in a lake, exactly once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from synrepl.core.errors import Refused, StorageError, Unavailable
from synrepl.core.tokens import Token
from synrepl.driver.held_snapshot import held_snapshot
from synrepl.pipeline.lake.data_files import DataFile, verify_files
from synrepl.pipeline.lake.erase.erasures import Epochs, Erasures
from synrepl.pipeline.lake.failover.lost_rows import LostRows, count_lost
from synrepl.pipeline.lake.in_parallel import in_parallel
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.task import LANDED, LandPart, StreamTask, land_part
from synrepl.pipeline.lake.on_demand import SessionOnDemand, on_demand
from synrepl.pipeline.lake.spark_tasks import cores_of, pack_for_cores, run_tasks
from synrepl.pipeline.lake.table import ErasedMeanwhile, LandedElsewhere, StreamTable
from synrepl.pipeline.lake.table_failovers import update_failovers
from synrepl.pipeline.lake.table_log import LakeConflict
from synrepl.pipeline.lake.watermarks import Watermarks
from synrepl.pipeline.source.database.settlement import (
    PAUSE_S,
    REAL_TIME,
    BlockingClock,
    SettlementPoller,
    Unsettled,
)
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.given_out_check import in_words, streams_set_back
from synrepl.pipeline.source.plan.chunks import (
    LimitedRows,
    check_not_trimmed,
    limit_rows,
    plan_chunks,
)
from synrepl.pipeline.source.reading.chunk_reader import NO_TABLE, ReadElsewhere
from synrepl.positions.vector import PositionVector
from synrepl.storage.database import QueryFailed, Transaction
from synrepl.storage.foreign.bounds import SafeBound
from synrepl.storage.store import Trimmed

#: Approximate number of rows that a task reads: a file of 10 to 50 MB. Starting a task takes 40 ms.
TASK_ROWS = 500_000

#: Reading a chunk and writing its file takes as long as this many rows, besides its rows: some 3 ms.
FILE_ROWS = 3000

#: Tasks of one stream in a commit: two for each core, so that few are idle at its end, and eight at
#: least. A killed process has to read their rows again, which takes some seconds.
CORE_TASKS, ROUND_TASKS = 2, 8

#: How many rounds in a row may be lost to another process that lands into the same lake.
MAX_BEATEN = 5

Vectors = Mapping[str, PositionVector]


class FailedOver(Unavailable):
    """the database failed over while it was read; nothing of this round was landed, land again"""


class GapInSource(StorageError):
    """stream {stream!r} has been trimmed up to {trimmed}, and the lake has it up to {after} only: what lies between is gone from the database; must re-land from {trimmed}: 'synrepl lake land --accept-gap {stream}' goes on there, and the lake keeps what it has"""


class DatabaseSetBack(Refused):
    """the database has given out fewer tokens than this lake has: {what}. It is an earlier copy of the database that the lake was landed from, or a sequence was set back; facts that get these tokens now would be skipped. Nothing was landed. Correct where the DSN leads, or restore the newer copy; 'synrepl lake check' names the rows that only the lake has. To go on with this database, {going_on}"""


@dataclass(frozen=True, slots=True)
class LandingRound:
    """The result of one round of landing.

    :ivar rows: by stream, the number of rows landed
    :ivar quarantined: by stream, the number of rows quarantined
    :ivar upto: by stream, the position of the lake now
    :ivar behind: by stream, the settled tokens that are not in the lake yet, of the writer with the
        most; 0 if everything is in the lake
    :ivar unsettled: by stream, of all streams landed, tokens that were allocated before the first
        round and are not settled yet
    :ivar lost: by stream, rows of the lake that the database lost in a failover found in this round
    """

    rows: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    upto: dict[str, PositionVector] = field(default_factory=dict)
    behind: dict[str, Token] = field(default_factory=dict)
    unsettled: dict[str, Unsettled] = field(default_factory=dict)
    lost: dict[str, list[LostRows]] = field(default_factory=dict)


@dataclass(slots=True)
class _StreamRound:
    """One stream's part of a round.

    :ivar start: the position of the lake before the round
    :ivar goal: the position up to which the source is settled
    :ivar end: the position that this round lands up to
    :ivar files: the files that tasks have written
    :ivar quarantined: the files of the quarantine that tasks have written
    """

    table: StreamTable
    start: PositionVector
    goal: PositionVector
    end: PositionVector
    files: list[DataFile] = field(default_factory=list)
    quarantined: list[DataFile] = field(default_factory=list)


class Landing:
    """Lands streams round by round; use it within :meth:`.Lake.write_lock`.

    A round observes how far the streams are settled, reads new rows in Spark tasks that each
    write their own files, and commits files and position of each stream together. If anything dies,
    the next round begins at the last commit.

    :param spark: a session on demand is called only for rounds with many rows
    :param dsn: the DSN that tasks connect to
    :param erasures: called in each round for what to erase from new rows
    :param accept_gaps: streams that may lack facts in the lake because they were trimmed before landing
    :param acknowledge: called with the positions that are durable in the lake
    :param epochs: called in each round for the epochs of all tables when ``erasures`` was determined;
        None if no other process can erase meanwhile
    :param round_rows: approximate number of rows of one stream in a commit; by default as many as
        the cores of the session read in some seconds
    :param land: lands one part, in a task; it must be picklable
    """

    def __init__(
        self,
        spark: SparkSession | SessionOnDemand,
        lake: Lake,
        source: SourceDatabase,
        dsn: str,
        *,
        erasures: Callable[[], Erasures] = Erasures,
        accept_gaps: Iterable[str] = (),
        acknowledge: Callable[[Vectors], object] = lambda upto: None,
        epochs: Callable[[], Epochs | None] = lambda: None,
        task_rows: int = TASK_ROWS,
        round_rows: int | None = None,
        clock: BlockingClock = REAL_TIME,
        land: LandPart = land_part,
    ) -> None:
        self._spark = on_demand(spark)
        self._lake = lake
        self._source = source
        self._dsn = dsn
        self._erasures = erasures
        self._accept_gaps = frozenset(accept_gaps)
        self._acknowledge = acknowledge
        self._epochs = epochs
        self._task_rows = task_rows
        self._round_rows = round_rows
        self._clock = clock
        self._land = land
        self._watermarks = Watermarks(lake)
        self._tables: dict[str, StreamTable] = {}
        self._stream_schemas: dict[str, StreamSchema] = {}
        # As they were when tasks were told what has been quarantined already.
        self._quarantines: dict[str, StreamTable | None] = {}

    def rounds(
        self, streams: Sequence[str], settle_timeout_s: float = 0.0
    ) -> Iterator[LandingRound]:
        """Land everything that is settled now, in as many rounds as it takes.

        Then wait for tokens that are allocated now and settle later, and land them. The last round
        reports what has not been settled by then.

        :param settle_timeout_s: how long to wait for them, in seconds from now
        :raises NoSuchStream: :raises GapInSource: :raises SchemaChanged: :raises DatabaseAway:
        :raises LakeFailed: :raises TaskFailed: :raises FileNotAsWritten:
        :raises NotConfirmed: :raises OlderServer: :raises FailedOver: :raises DatabaseSetBack:
        :raises ReadingAway: :raises ReadFailed: :raises ReadElsewhere: :raises Trimmed: in a task
        """
        self._source.refresh()
        deadline = self._clock.now() + settle_timeout_s
        poller = SettlementPoller(lambda: self._source.observe(streams), self._clock)
        known: dict[str, PositionVector] = {}
        bounds: Mapping[str, SafeBound] = poller.bounds
        late = not settle_timeout_s
        while True:
            for landed in self._land_all(bounds):
                known |= landed.upto
                landed.unsettled.update(poller.unsettled(known))
                yield landed
            if late or not poller.unsettled(known):
                return
            bounds = poller.poll(known, deadline)
            late = self._clock.now() + PAUSE_S > deadline
            if not bounds:  # nothing to land, but something else may hold the bound back now
                yield LandingRound(unsettled=poller.unsettled(known))

    def _land_all(self, bounds: Mapping[str, SafeBound]) -> Iterator[LandingRound]:
        """Land everything at or below the bounds, in as many rounds as it takes."""
        beaten = 0
        while bounds:
            try:
                landed = self._land_round(bounds)
            except ErasedMeanwhile:
                raise
            except (LandedElsewhere, LakeConflict):
                # Another process has landed this meanwhile, or our commit succeeded and its answer
                # was lost. Either way the position of the table tells where to go on.
                beaten += 1
                if not self._lake.is_shared or beaten > MAX_BEATEN:
                    raise
                self._tables.clear()
                self._stream_schemas.clear()
                continue
            yield landed
            if not any(landed.behind.values()):
                return

    def _land_round(self, bounds: Mapping[str, SafeBound]) -> LandingRound:
        landed = LandingRound()
        tables = self._open_tables(bounds)
        for stream, table in tables.items():
            self._record_failovers(stream, table, landed)
        self._check_given_out(tables, bounds)
        parts, limited = self._stream_rounds(tables, bounds)
        ends = {name: part.end for name, part in parts.items()}
        for row in self._read(self._chunks(parts, limited), ends, limited):
            part, file = parts[row["stream"]], msgspec.json.decode(row["file"], type=DataFile)
            (part.quarantined if row["quarantined"] else part.files).append(file)
        # Before any commit of any stream: if one file is missing here, all of them may be.
        in_parallel(self._verify, parts.values(), self._lake.path)
        in_parallel(self._commit, parts.values(), self._lake.path)
        for stream, part in parts.items():
            landed.rows[stream] += sum(file.rows for file in part.files)
            landed.quarantined[stream] += sum(file.rows for file in part.quarantined)
            landed.upto[stream] = part.end
            landed.behind[stream] = _between(part.end, part.goal)
        tokens = {stream: part.end.linear for stream, part in parts.items()}
        self._watermarks.record_all(tokens, time.time())
        self._acknowledge(landed.upto)
        return landed

    def _stream_rounds(
        self, tables: Mapping[str, StreamTable], bounds: Mapping[str, SafeBound]
    ) -> tuple[dict[str, _StreamRound], LimitedRows]:
        """What to land of each stream, and how many rows that is."""
        starts = {stream: self._start(stream, tables[stream], at) for stream, at in bounds.items()}
        # A new process may have proven less to be settled than another one has landed.
        goals = {stream: starts[stream].merge(at.bound) for stream, at in bounds.items()}
        limited = self._limited(starts, goals)
        parts = {
            stream: _StreamRound(table, starts[stream], goals[stream], limited.ends[stream])
            for stream, table in tables.items()
        }
        return parts, limited

    def _limited(self, starts: Vectors, goals: Vectors) -> LimitedRows:
        """What fits in a round; asks how many cores there are only if this takes Spark."""
        if self._round_rows is not None:
            return limit_rows(self._source, starts, goals, self._round_rows)
        few = self._spark.rows_here
        if few > 0:
            limited = limit_rows(self._source, starts, goals, few + 1)
            if not self._spark.is_needed(limited.rows):
                return limited
        # Each time, because executors of a cluster come and go.
        round_rows = TASK_ROWS * max(ROUND_TASKS, CORE_TASKS * cores_of(self._spark()))
        return limit_rows(self._source, starts, goals, round_rows)

    def _chunks(self, parts: Mapping[str, _StreamRound], limited: LimitedRows) -> list[bytes]:
        """The chunks to read, as JSON, grouped for tasks."""
        chunks = plan_chunks(
            self._source,
            {stream: part.start for stream, part in parts.items()},
            {stream: part.end for stream, part in parts.items()},
            {
                stream: [column.name for column in self._stream_schemas[stream].columns]
                for stream in parts
            },
            self._task_rows,
            counts=limited.counts,
        )
        cores = cores_of(self._spark()) if self._spark.is_needed(limited.rows) else 1
        groups = pack_for_cores(
            chunks, lambda chunk: chunk.rows + FILE_ROWS, self._task_rows, cores
        )
        return [msgspec.json.encode(group) for group in groups]

    def _record_failovers(self, stream: str, table: StreamTable, landed: LandingRound) -> None:
        """Find the rows of the lake that failovers have lost, and record the failovers."""
        known = table.failovers
        now = update_failovers(stream, known, table.position, self._source)
        if now == known:
            return
        for window in now.lost[len(known.lost) :]:
            found = count_lost(self._spark(), table, self._source, self._dsn, window)
            if found:
                landed.lost[stream] = found
        table.record_failovers(now)

    def _check_given_out(
        self, tables: Mapping[str, StreamTable], bounds: Mapping[str, SafeBound]
    ) -> None:
        """Check that the database gives out no token that the lake has.

        :raises DatabaseSetBack:
        """
        positions = {stream: table.position for stream, table in tables.items()}
        if found := streams_set_back(positions, bounds, self._source):
            anew = "land into another lake"
            back = "write them back by 'synrepl lake replay' before anything is appended"
            going_on = anew if self._source.is_lossy else f"{back}, or {anew}"
            raise DatabaseSetBack(what=in_words(found, positions), going_on=going_on)

    def _read(
        self, parts: Sequence[bytes], ends: Vectors, limited: LimitedRows
    ) -> Iterator[dict[str, str]]:
        """Run the tasks, and yield their reports of the files written."""
        try:
            with self._common_snapshot(limited.counts) as snapshot:
                work = self._work(ends, snapshot)
                yield from run_tasks(self._spark, parts, work, LANDED, limited.rows)
        except ReadElsewhere:
            before = self._source.incarnation
            self._source.observe(list(ends))
            if self._source.incarnation != before:
                raise FailedOver() from None
            raise

    @contextmanager
    def _common_snapshot(self, counts: Mapping[str, int]) -> Iterator[str]:
        """The name of a snapshot at which all tasks read whole events; "" if the round has none.

        The state after an event builds on the one after an earlier event. If that one was purged before another task read
        it, it would be in the lake without its state. The snapshot is held while tasks read.

        :raises ReadElsewhere: it would be one of another server
        """
        whole = [stream for stream in sorted(self._source.whole_events) if counts.get(stream)]
        if not whole:
            yield ""
            return

        def check(txn: Transaction) -> None:
            try:
                reached = txn.execute(self._source.identity_sql()).fetchone()[0]
            except QueryFailed as error:
                if error.sqlstate != NO_TABLE:
                    raise
                reached = False
            if not reached:
                raise ReadElsewhere(stream=whole[0])

        with held_snapshot(self._dsn, "lake", check) as snapshot:
            yield snapshot.name

    def _open_tables(self, bounds: Mapping[str, SafeBound]) -> dict[str, StreamTable]:
        """The tables of streams, as of now; they are created or widened if necessary."""

        def opened(stream: str) -> StreamTable:
            stream_schema, known = self._source.stream_schema(stream), self._tables.get(stream)
            # What a round that failed has made without a position may be gone.
            if known and known.has_position and self._stream_schemas[stream] == stream_schema:
                known.refresh()
                return known
            writers = bounds[stream].bound.writers
            return self._lake.ensure_table(stream_schema, writers, with_files=True)

        for stream, table in zip(bounds, in_parallel(opened, bounds, self._lake.path), strict=True):
            self._tables[stream] = table
            self._stream_schemas[stream] = self._source.stream_schema(stream)
        return {stream: self._tables[stream] for stream in bounds}

    def _start(self, stream: str, table: StreamTable, at: SafeBound) -> PositionVector:
        if not table.has_position:
            return PositionVector({}, at.trimmed)
        start = table.position
        try:
            check_not_trimmed(stream, start, at.trimmed)
        except Trimmed:
            if stream not in self._accept_gaps:
                raise GapInSource(stream=stream, trimmed=at.trimmed, after=start.linear) from None
            beyond = PositionVector({}, at.trimmed)
            table.append([], start, start.merge(beyond))
            return table.position
        return start

    def _work(self, ends: Vectors, snapshot: str) -> partial[Iterator[object]]:
        tasks = {}
        epochs = self._epochs() or Epochs()
        for stream in ends:
            table = self._tables[stream]
            quarantine = self._quarantines[stream] = self._lake.quarantine(stream)
            tasks[stream] = StreamTask(
                replace(self._stream_schemas[stream], computed=table.computed),
                table.path,
                self._lake.quarantine_folder(stream),
                _quarantined_upto(quarantine),
                epochs.streams.get(stream, 0),
                epochs.quarantines.get(stream, 0),
                snapshot if stream in self._source.whole_events else "",
            )
        return partial(self._land, self._dsn, tasks, self._erasures())

    def _verify(self, part: _StreamRound) -> None:
        verify_files(part.table.path, part.files)
        verify_files(self._lake.quarantine_folder(part.table.stream), part.quarantined)

    def _commit(self, part: _StreamRound) -> None:
        stream, table = part.table.stream, part.table
        epochs = self._epochs()
        quarantine = self._quarantines[stream]
        if part.quarantined:
            # First: if the process dies after it, the next round finds these rows in quarantine.
            start = _quarantined_upto(quarantine)
            quarantine = self._lake.ensure_quarantine(self._stream_schemas[stream])
            quarantine.append(
                part.quarantined,
                start,
                start.merge(part.end),
                None if epochs is None else epochs.quarantines.get(stream, 0),
                verified=True,
            )
        if quarantine is not None:
            quarantine.make_durable()
        if part.files or part.end != part.start or not table.has_position:
            epoch = None if epochs is None else epochs.streams.get(stream, 0)
            table.append(part.files, part.start, part.end, epoch, verified=True)
        # Even without a commit of this round: a process may have died after one, and before this.
        table.make_durable()


def _quarantined_upto(quarantine: StreamTable | None) -> PositionVector:
    return PositionVector() if quarantine is None else quarantine.position


def _between(at: PositionVector, goal: PositionVector) -> Token:
    return max([goal.linear - at.linear, *(goal[name] - at[name] for name in goal.writers)])
