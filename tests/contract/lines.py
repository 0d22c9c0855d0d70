"""A transport with a master that serves clients line by line; subclasses connect them."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.adapters.caches import make_caches
from synrepl.adapters.tcp.master import MasterFactory
from synrepl.adapters.tcp.worker import WorkerFactory
from synrepl.core.tokens import Token
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.wire.dialects import MODERN
from synrepl.wire.lines import DEFAULT_LINE_LIMIT
from tests.contract.follower import ONE
from tests.contract.world import CATALOGUE, SERVER_NAME, ContractStore, FollowerProcess, Transport
from tests.support.masters import build_listener, build_master
from tests.support.workers import build_worker


class LineTransport(Transport):
    """The master is the writer ``one``, and announces the facts of workers."""

    longest = DEFAULT_LINE_LIMIT

    def __init__(self, site: ContractStore) -> None:
        super().__init__(site)
        self._writers: dict[str, StreamWriter] = {}

    async def begin(self) -> None:
        """Start a master."""
        site = self.site
        coherence = Coherence(make_caches(), CATALOGUE, site.log)
        self._services = build_master(
            site.scheduler, site.store, coherence, CATALOGUE, site.log, name=ONE
        )
        await self._services.take_name()
        await self._services.begin()
        self._writers[ONE] = self._services.writer
        self.serve(build_listener(self._services))

    def serve(self, factory: MasterFactory) -> None:
        """Accept clients."""
        raise NotImplementedError

    async def end(self) -> None:
        """Stop the master and all writers."""
        await self._services.stop()
        for writer in self._writers.values():
            await writer.stop()
        self._writers.clear()

    async def append(self, name: str, stream: Stream, facts: Sequence[Sequence[Row]]) -> Token:
        """Append, and wake the master."""
        writer = self._writers.get(name) or await self._writer(name)
        written = await writer.append(stream, facts)
        self._services.announcer.wake(stream.name)
        return written.tokens[-1]

    async def waste(self, name: str, stream: Stream, count: int) -> Token:
        """Reserve tokens without writing."""
        async with await self._writers[name].reserve(stream, count) as reservation:
            return reservation.tokens[-1]

    async def _writer(self, name: str) -> StreamWriter:
        """Start a worker that only writes."""
        site = self.site
        services = build_worker(
            site.scheduler,
            CATALOGUE,
            site,
            (),
            site.log,
            name=name,
            follows=False,
            store=site.store,
            own=list(CATALOGUE),
        )
        assert services.writer is not None
        await services.take_names()
        self._writers[name] = services.writer
        return services.writer

    def client(self, following: FollowerProcess) -> WorkerFactory:
        """The factory that connects a follower.

        It is made here, not assembled, because lines pass through ``following``, which can lose
        and repeat them.
        """
        site = self.site
        return WorkerFactory(
            site.scheduler, following, following.name, SERVER_NAME, MODERN, site.log.info
        )
