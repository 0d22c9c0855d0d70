"""Lake maintenance: land new rows, apply erasures, compact files and remove unused ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from synrepl.pipeline.lake.acknowledgement import acknowledged_positions, streams_left_out
from synrepl.pipeline.lake.compact.compact import compact
from synrepl.pipeline.lake.data_files import FileNotAsWritten, FolderNotShared
from synrepl.pipeline.lake.erase.erase import ErasureReport, erase
from synrepl.pipeline.lake.erase.erasures import Epochs, Erasures
from synrepl.pipeline.lake.erase.pending import PendingErasures, pending, skip_earlier_redactions
from synrepl.pipeline.lake.erase.redaction_index import RedactionIndex, remove_unused_runs
from synrepl.pipeline.lake.failover.lost_rows import LostRows
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import Landing, LandingRound, Vectors
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.lake.table import DEFAULT_RETENTION_HOURS, StreamTable
from synrepl.pipeline.lake.table_log import LakeConflict
from synrepl.pipeline.lake.watermarks import Watermarks
from synrepl.pipeline.source.database.settlement import (
    REAL_TIME,
    SETTLE_TIMEOUT_S,
    BlockingClock,
    Unsettled,
)
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.storage.position_marks import PositionMark

#: How many times within the retention unused files are looked for.
REMOVALS_PER_RETENTION = 24

#: How often a run begins again that another process has disturbed.
ATTEMPTS = 5

#: Called after each round of landing.
RoundCallback = Callable[[LandingRound], object]


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """The result of one run of maintenance.

    :ivar rows: by stream, the number of rows landed
    :ivar quarantined: by stream, the number of rows quarantined, if any
    :ivar compacted_files: number of small files compacted into larger ones
    :ivar unsettled: by stream, tokens allocated before the run that could not be landed yet
    :ivar lost: by stream, rows of the lake that the database lost in a failover found in this run
    :ivar left_out: by stream that cannot be read, the reason
    """

    erased: ErasureReport
    compacted_files: int
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    upto: dict[str, str] = field(default_factory=dict)
    unsettled: dict[str, Unsettled] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    lost: dict[str, list[LostRows]] = field(default_factory=dict)


class LakeMaintenance:
    """Lands, erases and compacts; use it within :meth:`.Lake.write_lock`.

    :param spark: a session on demand is called only for work on many rows
    :param dsn: the DSN that tasks connect to
    :param accept_gaps: see :class:`.land.Landing`
    :param acknowledge: called with the positions up to which the lake needs no facts any more
    :param retention_hours: how long files that were replaced are kept from now on, for readers and
        time travel; None for what the tables have recorded
    """

    def __init__(
        self,
        spark: SparkSession | SessionOnDemand,
        lake: Lake,
        source: SourceDatabase,
        dsn: str,
        *,
        accept_gaps: Iterable[str] = (),
        acknowledge: Callable[[Vectors], object] = lambda upto: None,
        retention_hours: int | None = None,
        clock: BlockingClock = REAL_TIME,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._source = source
        self._acknowledge = acknowledge
        self._landed: Vectors = {}
        self._acknowledged: Vectors = {}
        self._known = Erasures()
        self._epochs: Epochs | None = None
        self._redactions = RedactionIndex(lake, records=True)
        self._watermarks: Mapping[str, Sequence[PositionMark]] = {}
        self._rows: Counter[str] = Counter()
        self._quarantined: Counter[str] = Counter()
        self._upto: dict[str, str] = {}
        self._lost: dict[str, list[LostRows]] = {}
        self._compacted: set[str] = set()
        self._retention_hours = retention_hours
        self._clock = clock
        self._has_unused = False
        self._removal_due = clock.now()
        self._landing = Landing(
            spark,
            lake,
            source,
            dsn,
            erasures=lambda: self._known,
            accept_gaps=accept_gaps,
            acknowledge=self._acknowledge_landed,
            epochs=lambda: self._epochs,
            clock=clock,
        )

    def run(
        self,
        streams: Sequence[str],
        on_round: RoundCallback = lambda landed: None,
        settle_timeout_s: float = SETTLE_TIMEOUT_S,
    ) -> MaintenanceReport:
        """Land everything that is settled now, then erase, then compact.

        What is erased in the source during a run is erased in the lake by the next run. Rows landed
        by a run that failed are in the report of the next run that succeeds.

        If the lake has no locks, and another process changes it at the same time so that a change of
        this one fails, it begins again with what it has not done.

        :param settle_timeout_s: how long to wait for facts to settle, see :meth:`.Landing.rounds`
        :raises: the errors of :meth:`.Landing.rounds`, :func:`.pending` and :func:`.erase`
        """
        for again in reversed(range(ATTEMPTS)):
            try:
                return self._run(streams, on_round, settle_timeout_s)
            except (LakeConflict, FileNotAsWritten, FolderNotShared):
                # Files are missing if another process has erased from them.
                if not (again and self._lake.is_shared):
                    raise
        raise AssertionError("unreachable")

    def _run(
        self, streams: Sequence[str], on_round: RoundCallback, settle_timeout_s: float
    ) -> MaintenanceReport:
        skip_earlier_redactions(self._source, self._lake)
        found = self._pending()
        self._known, self._epochs = found.known, found.epochs
        marks = self._source.watermarks()
        if marks != self._watermarks:  # finding the new ones reads all marks of the lake
            Watermarks(self._lake).import_marks(marks)
            self._watermarks = marks
        unsettled: dict[str, Unsettled] = {}
        changed = {stream for stream in streams if stream not in self._compacted}
        for landed in self._landing.rounds(streams, settle_timeout_s):
            unsettled = landed.unsettled
            self._rows += landed.rows
            changed.update(stream for stream, rows in landed.rows.items() if rows)
            self._quarantined += landed.quarantined
            self._upto |= {stream: str(at) for stream, at in landed.upto.items()}
            for stream, rows in landed.lost.items():
                self._lost.setdefault(stream, []).extend(rows)
            on_round(landed)
        # Again, as the rows just landed may be redactions.
        erased = erase(self._spark, self._lake, self._pending())
        self._acknowledge_searched()
        if erased.files:
            changed.update(streams)
        # The others have the same files as after the last compaction.
        self._compacted -= changed
        joined = 0
        for stream in sorted(changed):
            joined += compact(self._spark, self._lake, stream).joined
            self._compacted.add(stream)
        self._has_unused |= bool(joined)
        if self._has_unused and self._clock.now() >= self._removal_due:
            self._remove_unused(streams)
        # Adding to a Counter drops zeros.
        report = MaintenanceReport(
            erased,
            joined,
            dict(self._rows),
            dict(self._quarantined),
            self._upto,
            unsettled,
            streams_left_out(self._lake, self._source),
            self._lost,
        )
        self._rows, self._quarantined, self._upto, self._lost = Counter(), Counter(), {}, {}
        return report

    def _acknowledge_landed(self, landed: Vectors) -> None:
        self._landed = landed
        self._acknowledged = acknowledged_positions(self._lake, self._source, landed)
        self._acknowledge(self._acknowledged)

    def _acknowledge_searched(self) -> None:
        """Acknowledge the whole events that have been searched for redactions since they were landed."""
        if not self._source.whole_events & self._acknowledged.keys():
            return
        searched = acknowledged_positions(self._lake, self._source, self._landed)
        if searched != self._acknowledged:
            self._acknowledged = searched
            self._acknowledge(searched)

    def _pending(self) -> PendingErasures:
        return pending(self._spark, self._source, self._lake, self._redactions)

    def _remove_unused(self, streams: Sequence[str]) -> None:
        """Delete what was replaced before the retention."""
        tables = {stream: self._lake.table(stream) for stream in streams}
        if self._retention_hours is not None:
            for table in tables.values():
                table.set_retention(self._retention_hours)
        # While one of our own jobs reads, perhaps for longer than that, the files stay.
        with self._lake.removal_lock(wait=False) as nobody_reads:
            if nobody_reads:
                remove_unused_files(self._lake, tables)
        # Each time, all files are listed, and there may be thousands that are to be kept.
        hours = min((table.retention_hours for table in tables.values()), default=0)
        self._removal_due = self._clock.now() + hours * 3600 / REMOVALS_PER_RETENTION


def remove_unused_files(lake: Lake, tables: Mapping[str, StreamTable]) -> dict[str, int]:
    """Delete what tables, their quarantines, the watermarks and erasures have not needed for longer than the retention.

    Call it within :meth:`.Lake.write_lock` and :meth:`.Lake.removal_lock`. Files of watermarks and erasures are kept for as long as
    those of any of the tables.

    :param tables: by stream
    :returns: by stream, the number of files of its table that were deleted
    """
    ages = {stream: lake.removal_age(table.retention_hours) for stream, table in tables.items()}
    removed = {stream: table.remove_unused(ages[stream]) for stream, table in tables.items()}
    for stream, age in ages.items():
        if (quarantine := lake.quarantine(stream)) is not None:
            quarantine.remove_unused(age)
    longest = max(ages.values(), default=DEFAULT_RETENTION_HOURS)
    Watermarks(lake).remove_unused(longest)
    remove_unused_runs(lake, longest)
    return removed
