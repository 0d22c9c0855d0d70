"""Claims the partitions of this process, so that no two processes send to one destination."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff, Retry
from synrepl.federation.partitions import PARTITIONS
from synrepl.services.rooms.assignment import by_weight
from synrepl.storage.database import DatabaseSession, Transaction
from synrepl.storage.federation.destination_partitions import (
    ClaimedPartition,
    claim_partitions,
    lock_partitions,
    release_partitions,
)

#: Seconds between two signs of life on the session, and without an answer after which it counts as lost.
HEARTBEAT_S, SILENCE_S = 5.0, 10.0

#: Seconds for which partitions rest after a process that did not give them back: requests of it may be under way.
TAKEOVER_S = 70.0

_BACK_OFF = BackOff(0.5, 10.0)


def assigned_partitions(instance: str, senders: Sequence[str]) -> frozenset[int]:
    """The partitions that a process is to own.

    When a sender is added or removed, only its own partitions move.

    :param senders: the processes that send, whatever their order
    """
    return frozenset(
        number
        for number in range(PARTITIONS)
        if by_weight(senders, f"destination partition {number}")[0] == instance
    )


class PartitionOwner:
    """Holds the locks of partitions on a session of its own. A session that is lost loses all.

    :param wanted: the partitions of this process
    :param settled: returns the position up to which ``events`` is settled
    :param claimed: called with claims of partitions, and with the position up to which ``events`` was settled then;
        nothing is sent for them before it has returned
    :param lost: called when nothing is owned any more
    :ivar epochs: of the claims, by partition
    """

    def __init__(
        self,
        scheduler: Scheduler,
        open_session: Callable[[], Awaitable[DatabaseSession]],
        instance: str,
        wanted: Collection[int],
        settled: Callable[[], Awaitable[int]],
        claimed: Callable[[Sequence[ClaimedPartition], int], Awaitable[object]],
        lost: Callable[[], object],
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._open_session = open_session
        self._instance = instance
        self._wanted = frozenset(wanted)
        self._settled = settled
        self._claimed = claimed
        self._lost = lost
        self._log = log
        self._session: DatabaseSession | None = None
        self._is_stopped = False
        self._resting = 0
        self.epochs: dict[int, int] = {}

    @property
    def missing(self) -> int:
        """Number of partitions that this process is to own and does not, or that still rest."""
        return len(self._wanted) - len(self.epochs) + self._resting

    async def run(self) -> None:
        """Claim what is to be had, and again what is lost, until :meth:`stop`."""
        retry = Retry(_BACK_OFF, self._scheduler.random)
        while not self._is_stopped:
            try:
                await self._own(retry)
            except SynreplError as error:
                self._session_lost(str(error))
            if not self._is_stopped:
                await self._scheduler.sleep(retry.failed())

    async def _own(self, retry: Retry) -> None:
        """Own partitions as long as the session lives."""
        session = self._session = await self._open_session()
        if self._is_stopped:
            await session.close()
            return
        session.on_lost(lambda reason: self._ended(session, reason))
        while self._session is session:
            await self._claim(session)
            retry.succeeded()
            await self._scheduler.sleep(HEARTBEAT_S)
            if self._session is session and not await self._answers(session):
                self._ended(session, f"no answer in {SILENCE_S:.0f} s")
                await session.close()

    async def _claim(self, session: DatabaseSession) -> None:
        missing = self._wanted - self.epochs.keys()
        if not missing:
            return
        settled = await self._settled()

        def work(txn: Transaction) -> Sequence[ClaimedPartition]:
            free = lock_partitions(txn, missing)
            return claim_partitions(txn, free, self._instance) if free else []

        claims = await session.run(work)
        if self._session is not session:
            return
        self.epochs.update((each.partition, each.epoch) for each in claims)
        own = [each for each in claims if each.previous_owner in (None, self._instance)]
        others = [each for each in claims if each not in own]
        if own:
            await self._claimed(own, settled)
        if others:
            self._resting += len(others)
            self._scheduler.spawn("take over destinations", self._take_over(session, others))

    async def _take_over(
        self, session: DatabaseSession, claims: Sequence[ClaimedPartition]
    ) -> None:
        """Begin to send when no request of the previous owners can be under way any more."""
        names = sorted({str(each.previous_owner) for each in claims})
        self._log.warn(
            "{count} destination partitions of {owners} are taken over in {seconds:.0f} s",
            count=len(claims),
            owners=", ".join(names),
            seconds=TAKEOVER_S,
        )
        await self._scheduler.sleep(TAKEOVER_S)
        retry = Retry(_BACK_OFF, self._scheduler.random)
        while self._session is session:
            try:
                settled = await self._settled()
            except SynreplError as error:
                self._log.warn("destination partitions wait: {error}", error=error)
                await self._scheduler.sleep(retry.failed())
                continue
            if self._session is session:
                self._resting -= len(claims)
                await self._claimed(claims, settled)
            return

    async def _answers(self, session: DatabaseSession) -> bool:
        """Whether the session answers in time."""
        answered: Promise[bool] = self._scheduler.promise()
        is_open = True

        def answer(result: bool) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                answered.callback(result)

        async def ask() -> None:
            try:
                await session.run(lambda txn: txn.execute("SELECT 1").fetchone())
            except SynreplError:
                answer(False)
            else:
                answer(True)

        timer = self._scheduler.callLater(SILENCE_S, answer, False)
        self._scheduler.spawn("ask the session of destinations", ask())
        result = await answered
        if timer.active():
            timer.cancel()
        return result

    def _ended(self, session: DatabaseSession, reason: str) -> None:
        if self._session is session:
            self._session_lost(reason)

    def _session_lost(self, reason: str) -> None:
        had, self._session = bool(self.epochs), None
        self.epochs.clear()
        self._resting = 0
        self._lost()
        if had and not self._is_stopped:
            self._log.warn("nothing is sent to other servers for now: {reason}", reason=reason)

    async def stop(self, *, is_quiet: bool) -> None:
        """Give everything back.

        :param is_quiet: whether no request is under way; otherwise whoever is next waits
        """
        self._is_stopped = True
        session, self._session = self._session, None
        epochs: Mapping[int, int] = dict(self.epochs)
        self.epochs.clear()
        self._lost()
        if session is None:
            return
        try:
            await session.close((lambda txn: release_partitions(txn, epochs)) if is_quiet else None)
        except SynreplError as error:
            self._log.warn("destinations were not given back: {error}", error=error)
