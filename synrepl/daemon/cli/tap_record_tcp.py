"""Recording a master: be its client, and write down what both say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.error import ConnectError, DNSLookupError

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.daemon.cli.tail_peer import LINE_LIMIT, NoMaster, TailPeer
from synrepl.daemon.cli.tap_source import CannotWrite, RecordingEnded
from synrepl.daemon.cli.terminal import printable
from synrepl.services.tap.recorded_session import RecordedSession
from synrepl.services.tap.recording import RecordingFile
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Replicate
from synrepl.wire.dialects import Dialect
from synrepl.wire.session import Limits


@dataclass(frozen=True, slots=True)
class TcpSource:
    """A master to record; a :class:`~synrepl.daemon.cli.tap_source.Source`.

    :ivar name: what to be called there
    """

    host: str
    port: int
    dialect: Dialect
    name: str

    async def record(
        self,
        reactor: Any,
        recording: RecordingFile,
        seconds: float | None,
        say: Callable[[str], object],
    ) -> None:
        """Record one connection.

        :raises NoMaster: nobody is there
        :raises RecordingEnded: :raises CannotWrite: see :class:`.Source`
        """
        scheduler = TwistedScheduler(reactor)
        session = RecordedSession(
            recording,
            scheduler.seconds,
            name=self.name,
            dialect=self.dialect,
            limits=Limits(line=LINE_LIMIT),
        )
        endpoint = HostnameEndpoint(reactor, self.host, self.port)
        try:
            peer: TailPeer = await connectProtocol(endpoint, TailPeer(scheduler, session))
        except (ConnectError, DNSLookupError, OSError) as error:
            where = f"{self.host}:{self.port}"
            raise NoMaster(where=where, reason=str(error).rstrip(".")) from None
        peer.send(Replicate() if self.dialect.per_writer else Replicate("ALL", None))
        say(f"recording {peer.address}")
        close = partial(peer.close, CloseReason.LOCAL)
        ending = None if seconds is None else scheduler.callLater(seconds, close)
        try:
            while await peer.commands():
                pass  # they are on record already
        finally:
            if ending is not None and ending.active():
                ending.cancel()
            close()
            await peer.gone()  # whose last note belongs into the recording
            say(f"{recording.lines} lines are in {recording.path}")
        if session.trouble is not None:
            raise CannotWrite(path=recording.path, reason=session.trouble.strerror)
        if session.closed_reason is not CloseReason.LOCAL:
            reason = printable(str(session.fault or session.peer_error or "the master closed it"))
            raise RecordingEnded(where=peer.address, reason=reason, path=recording.path)
