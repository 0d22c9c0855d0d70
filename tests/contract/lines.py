"""A transport with a master that serves clients line by line; subclasses connect them."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.adapters.tcp.master import MasterFactory
from synrepl.adapters.tcp.worker import WorkerFactory
from synrepl.core.tokens import Token
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.serving.master import Master
from synrepl.services.writing.commit_listener import CommitListener, NullCommitListener
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from synrepl.wire.dialects import MODERN
from synrepl.wire.lines import DEFAULT_LINE_LIMIT
from tests.contract.follower import ONE
from tests.contract.world import CATALOGUE, SERVER_NAME, ContractStore, FollowerProcess, Transport


class LineTransport(Transport):
    """The master is the writer ``one``, and announces the facts of others."""

    longest = DEFAULT_LINE_LIMIT

    def __init__(self, site: ContractStore) -> None:
        super().__init__(site)
        self._writers: dict[str, StreamWriter] = {}

    async def begin(self) -> None:
        """Start a master."""
        site = self.site
        publisher = Publisher(site.scheduler, {each.name: RowCodec(each) for each in CATALOGUE})
        self._announcer = Announcer(site.scheduler, site.store, CATALOGUE, publisher, site.log)
        await self._writer(ONE, self._announcer)
        await self._announcer.start()
        self._master = Master(
            site.scheduler,
            CATALOGUE,
            self._announcer.states,
            publisher,
            site.store,
            lambda name, command: None,
            site.log,
        )
        self.serve(MasterFactory(site.scheduler, self._master, SERVER_NAME))

    def serve(self, factory: MasterFactory) -> None:
        """Accept clients."""
        raise NotImplementedError

    async def end(self) -> None:
        """Stop the master and all writers."""
        self._master.shut_down()
        await self._announcer.stop()
        for writer in self._writers.values():
            await writer.stop()
        self._writers.clear()

    async def append(self, name: str, stream: Stream, facts: Sequence[Sequence[Row]]) -> Token:
        """Append, and wake the master."""
        writer = self._writers.get(name) or await self._writer(name, NullCommitListener())
        written = await writer.append(stream, facts)
        self._announcer.wake(stream.name)
        return written.tokens[-1]

    async def waste(self, name: str, stream: Stream, count: int) -> Token:
        """Reserve tokens without writing."""
        async with await self._writers[name].reserve(stream, count) as reservation:
            return reservation.tokens[-1]

    async def _writer(self, name: str, settled: CommitListener) -> StreamWriter:
        site = self.site
        writer = StreamWriter(site.scheduler, site.store, name, list(CATALOGUE), settled, site.log)
        await writer.start()
        self._writers[name] = writer
        return writer

    def client(self, following: FollowerProcess) -> WorkerFactory:
        """The factory that connects a follower."""
        site = self.site
        return WorkerFactory(
            site.scheduler, following, following.name, SERVER_NAME, MODERN, site.log.info
        )
