"""The product's writers as they play in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from synrepl.core.tokens import Token
from synrepl.daemon.simulation_bus import SimulatedVoice
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.coherent import CoherentSettled
from synrepl.services.coherence.invalidate import Changes, Invalidations
from synrepl.services.writing.reservation import Reservation
from synrepl.services.writing.settled import Settled
from synrepl.services.writing.skip_idle import skip_idle
from synrepl.services.writing.write import StreamWriter
from synrepl.storage.database import Transaction
from synrepl.storage.store import Written
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.testing.simulator.parts import Key, Place, StaleOutbox, Watch

T = TypeVar("T")


def coherence_of(place: Place, leaves_out: bool = False) -> Coherence | None:
    """Keeps the caches of a process coherent, if it has any."""
    if place.application is None:
        return None
    caches = place.application.caches
    coherence = Coherence(caches, place.catalogue, place.log, leaves_out=leaves_out)
    coherence.check()
    return coherence


class SimulatedWriter:
    """A process's writer.

    :param coherence: None for a process without caches
    """

    def __init__(
        self, place: Place, name: str, settled: Settled, coherence: Coherence | None
    ) -> None:
        if coherence is not None:
            settled = CoherentSettled(coherence, name, settled)
        self._place = place
        self._name = name
        self._catalogue = place.catalogue
        self._writer = StreamWriter(
            place.life, place.store, name, place.catalogue, settled, place.log
        )
        self._changes: Changes | None = None
        if coherence is not None:
            rows = Invalidations(place.life, coherence.caches, coherence, place.log)
            self._changes = Changes(self._writer, rows)

    async def start(self) -> None:
        """Take the name."""
        await self._writer.start()

    def failed_over(self, incarnation: int) -> None:
        """Take the name on a server that has taken over."""
        self._writer.failed_over(incarnation)

    def skip_idle(self) -> None:
        """Go on while others write, from now on; for a process that announces itself."""
        looking = skip_idle(self._place.life, self._writer, self._place.log)
        self._place.life.spawn("skip idle", looking)

    async def append(
        self, stream: Stream, facts: Sequence[Sequence[Row]], key: str | None
    ) -> Written:
        """Append facts."""
        return await self._writer.append(stream, facts, key)

    async def change(
        self, name: str, work: Callable[[Transaction, StaleOutbox], T], streams: Sequence[Stream]
    ) -> T:
        """Run a transaction that says what it makes stale."""
        assert self._changes is not None
        return (await self._changes.run(name, work, streams)).result

    async def reserve(self, stream: Stream, count: int) -> Reservation:
        """Take tokens before writing."""
        return await self._writer.reserve(stream, count)

    def positions(self) -> Mapping[Key, Token]:
        """Where it stands itself."""
        ledger = self._writer.ledger
        return {(s.name, self._name): ledger(s.name).position for s in self._catalogue}

    async def stop(self) -> None:
        """Give the name back."""
        await self._writer.stop()


class WriterProcess(SimulatedWriter):
    """A process that only writes."""

    def __init__(self, place: Place, name: str, watch: Watch) -> None:
        voice = SimulatedVoice(place, name, watch)
        super().__init__(place, name, voice.settled, coherence_of(place))
        self._bus = voice.bus()

    async def start(self) -> None:
        """Take the name, then join the bus."""
        await super().start()
        if self._bus is not None:
            self._bus.start()
            self.skip_idle()

    async def stop(self) -> None:
        """Leave the bus, and give the name back."""
        if self._bus is not None:
            await self._bus.stop()
        await super().stop()
