"""The jobs that complete partial rooms: claimed by one process at a time, and gone on with by any.

Each claim has a number. Every step of a job checks under the job's row lock that no later claim was made, so a process
that was slow writes nothing once another one has taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from synrepl.core.errors import StorageError
from synrepl.storage.database import Record, Transaction
from synrepl.storage.rooms.tables.partial_rooms import ResyncPhase
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Seconds for which a claim lasts without being renewed.
LEASE_S = 30

#: Seconds after which any process may claim a job that the process of the room's assignment does not.
LEFT_ALONE_S = 30

#: Jobs that are looked at by a claim.
_CANDIDATES = 200


class ClaimLost(StorageError):
    """the resync of room {room_id} was claimed by another process, or has ended"""


class ResyncJob(NamedTuple):
    """A job that is claimed; see the migration.

    :ivar room_epoch: of the room's row; if it is another one than ``epoch``, the room was removed or joined again
    """

    room_no: int
    epoch: int
    claim: int
    phase: ResyncPhase
    event_no: int | None
    source: str | None
    listed: int
    missing: int
    stored: int
    failures: int
    room_id: str
    version: str
    room_epoch: int


_JOB = (
    "j.room_no, j.epoch, j.claim, j.phase, j.event_no, j.source, j.listed, j.missing, j.stored, j.failures,"
    " r.room_id, r.version, r.epoch"
)


def _job(row: Record) -> ResyncJob:
    return ResyncJob._make((*row[:3], ResyncPhase(row[3]), *row[4:]))


def claim_jobs(
    txn: Transaction,
    owner: str,
    most: int,
    ours: Callable[[Transaction, Sequence[str]], Collection[str]],
    busy: Collection[int] = (),
) -> list[ResyncJob]:
    """Claim jobs that wait for nobody, those of the smallest rooms first.

    :param owner: the process that claims
    :param most: maximum number
    :param ours: which of some rooms are assigned to this process; others' jobs are claimed if nobody else did for long
    :param busy: rooms whose jobs this process works on
    """
    txn.execute(
        "SELECT j.room_no, r.room_id,"
        f" greatest(j.next_try, j.leased_until) < now() - make_interval(secs => {LEFT_ALONE_S})"
        " FROM synrepl._resync_jobs j JOIN synrepl._rooms r USING (room_no)"
        " WHERE j.ended_at IS NULL AND j.next_try <= now()"
        " AND (j.leased_until IS NULL OR j.leased_until <= now())"
        " AND j.room_no <> ALL (%s::int[])"
        " ORDER BY (SELECT count(*) FROM synrepl._partial_room_servers s WHERE s.room_no = j.room_no),"
        f" j.began_at LIMIT {_CANDIDATES} FOR UPDATE OF j SKIP LOCKED",
        (array_text(busy),),
    )
    found = txn.fetchall()
    assigned = set(ours(txn, [room_id for _, room_id, _ in found]))
    chosen = [
        int(room_no)
        for room_no, room_id, is_left_alone in found
        if is_left_alone or room_id in assigned
    ][:most]
    if not chosen:
        return []
    txn.execute(
        "UPDATE synrepl._resync_jobs j SET claim = claim + 1, owner = %s,"
        f" leased_until = now() + make_interval(secs => {LEASE_S})"
        " FROM synrepl._rooms r WHERE r.room_no = j.room_no AND j.room_no = ANY (%s::int[])"
        f" RETURNING {_JOB}",
        (owner, array_text(chosen)),
    )
    jobs = {job.room_no: job for job in map(_job, txn.fetchall())}
    return [jobs[room_no] for room_no in chosen]


def release_claims(txn: Transaction, owner: str) -> None:
    """End the claims of an earlier run of a process, which was killed."""
    txn.execute(
        "UPDATE synrepl._resync_jobs SET leased_until = NULL WHERE owner = %s AND ended_at IS NULL",
        (owner,),
    )


def renew_claims(txn: Transaction, jobs: Sequence[ResyncJob]) -> None:
    """Let the claims of jobs last longer; those that were lost stay lost."""
    txn.execute(
        "UPDATE synrepl._resync_jobs j"
        f" SET leased_until = now() + make_interval(secs => {LEASE_S})"
        " FROM unnest(%s::int[], %s::bigint[]) AS c (room_no, claim)"
        " WHERE j.room_no = c.room_no AND j.claim = c.claim AND j.ended_at IS NULL",
        (array_text([j.room_no for j in jobs]), array_text([j.claim for j in jobs])),
    )


def require_claim(txn: Transaction, job: ResyncJob) -> ResyncJob:
    """The job as it is now, locked until the transaction ends.

    :raises ClaimLost: it was claimed again, has ended, or its room was removed
    """
    txn.execute(
        f"SELECT {_JOB} FROM synrepl._resync_jobs j JOIN synrepl._rooms r USING (room_no)"
        " WHERE j.room_no = %s AND j.claim = %s AND j.epoch = %s AND j.ended_at IS NULL"
        " FOR UPDATE OF j",
        (job.room_no, job.claim, job.epoch),
    )
    found = txn.fetchone_or_none()
    if found is None or found[12] != job.epoch:
        raise ClaimLost(room_id=job.room_id)
    return _job(found)


def move_on(txn: Transaction, job: ResyncJob, phase: ResyncPhase, **columns: object) -> None:
    """Record that a job came forward; after :func:`require_claim`.

    :param phase: in which it is now
    :param columns: of its row
    """
    assigned = "".join(f", {name} = %s" for name in columns)
    txn.execute(
        "UPDATE synrepl._resync_jobs SET phase_at = CASE phase WHEN %s THEN phase_at ELSE now() END,"
        " phase = %s, progress_at = now(), failures = 0, reason = NULL,"
        f" leased_until = now() + make_interval(secs => {LEASE_S}){assigned} WHERE room_no = %s",
        (phase.value, phase.value, *columns.values(), job.room_no),
    )


def put_off(txn: Transaction, job: ResyncJob, reason: str, wait_s: float, failures: int) -> None:
    """Let a job wait; its claim ends.

    :param failures: rounds through the servers without an answer, in a row
    """
    txn.execute(
        "UPDATE synrepl._resync_jobs SET reason = %s, failures = %s,"
        " next_try = now() + make_interval(secs => %s), owner = NULL, leased_until = NULL"
        " WHERE room_no = %s AND claim = %s AND ended_at IS NULL",
        (reason.replace("\0", "\ufffd")[:500], failures, wait_s, job.room_no, job.claim),
    )


def wake_jobs(txn: Transaction, server: str | None = None, room_no: int | None = None) -> int:
    """Let jobs that wait go on now; returns their number.

    :param server: only those that could not ask this server, which is back
    :param room_no: only that of this room
    """
    only, params = "", dict[str, object]()
    if server is not None:
        only += (
            " AND EXISTS (SELECT FROM synrepl._resync_attempts a"
            "  WHERE a.room_no = j.room_no AND a.destination = %(server)s AND a.code <> 'ok')"
        )
        params["server"] = server
    if room_no is not None:
        only += " AND j.room_no = %(room)s"
        params["room"] = room_no
    txn.execute(
        "UPDATE synrepl._resync_jobs j SET next_try = now()"
        f" WHERE j.ended_at IS NULL AND j.next_try > now(){only}",
        params,
    )
    return txn.rowcount


def record_attempt(
    txn: Transaction, job: ResyncJob, destination: str, code: str, reason: str
) -> None:
    """Record the outcome of asking a server."""
    txn.execute(
        "INSERT INTO synrepl._resync_attempts AS a (room_no, destination, code, reason)"
        " VALUES (%s, %s, %s, %s) ON CONFLICT (room_no, destination) DO UPDATE SET"
        " attempts = CASE a.code WHEN excluded.code THEN a.attempts + 1 ELSE 1 END,"
        " code = excluded.code, reason = excluded.reason, attempted_at = now()",
        (job.room_no, destination, code, reason.replace("\0", "\ufffd")[:500]),
    )
