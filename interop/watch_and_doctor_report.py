"""The report section on ``synrepl watch`` and ``synrepl doctor`` beside a real server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from interop.observer import QuietSnapshot, StoppedProcess
from interop.releases import CURRENT
from interop.report import Section, Table, answers_table
from interop.synapse_over_redis import MAIN, NAMES
from interop.synapse_tables import OpenTransaction
from interop.synrepl_watch import Diagnosis, WatchSample

_DESCRIPTION = """\
A real server of {release} on a database of its own: the main process, two event persisters, two other
stream writers, and one process each for sync, federation and pushers, which communicate over
Redis. Beside it run `synrepl watch --redis … --json` and, repeatedly, `synrepl doctor
database`, both with the DSN of a read-only role; and a raw recorder: a
subscriber that records every line, without code of synrepl. Clients make {rounds} requests in
{seconds:.0f} s. At a quiet moment before, after, and at the end, the output of `watch` is compared with the
recording and with the table `stream_positions`, writer by writer.

Then, while clients of two kinds continue, the event persister `persister1` is stopped (SIGSTOP), twice:
repeatedly at random moments, until it happens to have an open transaction that has written
something; and until it happens to have committed events that it has not announced. The doctor has to
find the first (with `--older {older:g}`), the watch the second. Then the process continues (SIGCONT).

In PostgreSQL a stopped process is known by its `application_name` only: each has its own in
`database.args` of its configuration. Recorded positions are behind those on the wire where a writer
announces a position without rows of its own."""

#: The process that is stopped, and one of the streams that it writes.
STOPPED = "persister1"
STREAM = "events"

#: Seconds within which the watch has to report a stream that advances and is not announced.
_ALARM_S = 5.0


@dataclass(frozen=True, slots=True)
class StoppedInTransaction:
    """Observations while a process was stopped in the middle of a transaction.

    :ivar older: the doctor's ``--older``, in seconds
    :ivar oldest: the oldest open transaction at the time
    :ivar then: the doctor's diagnosis at the time
    :ivar after: its diagnosis after the process had continued
    """

    older: float
    oldest: OpenTransaction | None
    then: Diagnosis
    after: Diagnosis


@dataclass(frozen=True, slots=True)
class StoppedAfterCommit:
    """Observations while a process was stopped with unannounced commits.

    :ivar alarms: the alarms of the watch
    :ivar seconds: time until the first alarm
    :ivar after: the doctor's diagnosis after the process had continued
    """

    moment: StoppedProcess
    alarms: Sequence[str]
    seconds: float
    after: Diagnosis


@dataclass(frozen=True, slots=True)
class WatchDoctorResult:
    """All observations.

    :ivar before: at the quiet moment before any request
    :ivar after: at the quiet moment after the first clients
    :ivar last: at the quiet moment at the end
    :ivar rounds: requests of the first clients
    :ivar seconds: duration of these requests
    :ivar samples: of the watch while the first clients were busy
    :ivar diagnoses: of the doctor while the first clients were busy
    :ivar said: lines that the watch printed on standard error
    """

    before: QuietSnapshot
    after: QuietSnapshot
    last: QuietSnapshot
    rounds: int
    seconds: float
    answers: Counter[tuple[str, int]]
    samples: Sequence[WatchSample]
    diagnoses: Sequence[Diagnosis]
    stopped_in_transaction: StoppedInTransaction
    stopped_after_commit: StoppedAfterCommit
    said: Sequence[str]


def section(found: WatchDoctorResult) -> Section:
    """Build the section with its tables and checks."""
    story = _DESCRIPTION.format(
        release=CURRENT,
        rounds=found.rounds,
        seconds=found.seconds,
        older=found.stopped_in_transaction.older,
    )
    title = f"watch and doctor beside a real {CURRENT} server of eight processes"
    section = Section(title, story.splitlines())
    section.tables.append(("At the last quiet moment:", _sides(found)))
    section.tables.append(("Requests of the clients:", answers_table(found.answers)))
    snapshots = {"before": found.before, "after": found.after, "at the end": found.last}
    for when, snapshot in snapshots.items():
        section.check(
            f"{when}: watch shows for every writer what was recorded, and what is in the database",
            not snapshot.wrong,
            ", ".join(snapshot.wrong),
        )
        section.check(
            f"{when}: every position in the database was announced",
            not snapshot.behind,
            ", ".join(snapshot.behind),
        )
    miscounted = found.last.miscounted(found.before)
    section.check(
        "watch counted the rows that were recorded", not miscounted, ", ".join(miscounted)
    )
    heard = {writer for _, writer in found.last.look.by_key("heard")}
    missing = {"master" if name == MAIN else name for name in NAMES} - heard
    section.check("watch heard all eight processes", not missing, ", ".join(sorted(missing)))
    faulty = [sample for sample in found.samples if not sample.well]
    lag = max(max(sample.by_key("lag_seconds").values(), default=0.0) for sample in found.samples)
    section.check(
        "while clients were busy, watch was connected, read the database, and raised no alarm",
        not faulty,
        f"{len(found.samples)} looks, the largest lag was {lag:.1f} s"
        + "".join(
            f"; {fault}" for sample in faulty[:3] for fault in sample.trouble + sample.alarms
        ),
    )
    ill = [diagnosis for diagnosis in found.diagnoses if diagnosis.status != 0]
    section.check(
        "while clients were busy, the doctor found nothing wrong",
        not ill,
        f"asked {len(found.diagnoses)} times" + "".join(f"; {diagnosis}" for diagnosis in ill),
    )
    _check_stopped_in_transaction(section, found.stopped_in_transaction)
    _check_stopped_after_commit(section, found.stopped_after_commit)
    section.check("watch had no errors to print", not found.said, " | ".join(found.said[:3]))
    return section


def _check_stopped_in_transaction(
    section: Section, stopped_in_transaction: StoppedInTransaction
) -> None:
    oldest = stopped_in_transaction.oldest
    section.check(
        f"stopped in a transaction: the oldest one in the database is {STOPPED}'s",
        oldest is not None and oldest.process == STOPPED,
        "there is none" if oldest is None else f"backend {oldest.pid} of {oldest.process}",
    )
    section.check(
        "the doctor named its backend and the process, and ended with status 1",
        oldest is not None
        and stopped_in_transaction.then.names(*oldest)
        and stopped_in_transaction.then.status == 1,
        "; ".join(finding["what"] for finding in stopped_in_transaction.then.findings),
    )
    _check_resumed(section, stopped_in_transaction.after)


def _check_stopped_after_commit(section: Section, stopped_after_commit: StoppedAfterCommit) -> None:
    moment = stopped_after_commit.moment
    section.check(
        f"stopped after a commit, at {moment.committed}, announced up to {moment.announced}: watch"
        f" reported it within {_ALARM_S:g} s",
        stopped_after_commit.seconds <= _ALARM_S,
        f"{stopped_after_commit.seconds:.1f} s: " + "; ".join(stopped_after_commit.alarms),
    )
    section.check(
        f"it reported {STREAM} of {STOPPED}, and no other process",
        any(
            alarm.startswith(f"{STREAM} of {STOPPED} is at ")
            for alarm in stopped_after_commit.alarms
        )
        and all(f" of {STOPPED} is at " in alarm for alarm in stopped_after_commit.alarms),
    )
    _check_resumed(section, stopped_after_commit.after)


def _check_resumed(section: Section, after: Diagnosis) -> None:
    section.check("after it continued, neither found anything wrong", after.status == 0, str(after))


def _sides(found: WatchDoctorResult) -> Table:
    last, since = found.last, found.before
    heard, committed = last.look.by_key("heard"), last.look.by_key("committed")
    counted, before = last.look.by_key("rows"), since.look.by_key("rows")
    rows = [
        (
            *key,
            announced,
            heard.get(key, "-"),
            last.recorded.get(key, "-"),
            committed.get(key, "-"),
            last.rows[key] - since.rows[key],
            counted.get(key, 0) - before.get(key, 0),
        )
        for key, announced in sorted(last.announced.items())
    ]
    headings = ("stream", "writer", "announced", "watch: wire", "recorded", "watch: database")
    return Table((*headings, "rows", "watch: rows"), rows)
