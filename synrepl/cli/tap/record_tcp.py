"""Records a connection to a master, both directions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.raw_peer import LINE_LIMIT, RawPeer, ask_for_all, connect_peer
from synrepl.tools.tap.recorders import RecordedSession
from synrepl.tools.tap.recording import RecordingEnded, RecordingFile, RecordingNotWritable
from synrepl.wire.closing import CloseReason
from synrepl.wire.dialects import Dialect
from synrepl.wire.session import SessionLimits


@dataclass(frozen=True, slots=True)
class TcpRecordingSource:
    """A master to record; a :class:`~synrepl.tools.tap.recording.RecordingSource`.

    :ivar name: the client name to send
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
        notify: Callable[[str], object],
    ) -> None:
        """Record one connection.

        :raises NoMaster: the connection cannot be made
        :raises RecordingEnded: :raises RecordingNotWritable: see :class:`.RecordingSource`
        """
        scheduler = TwistedScheduler(reactor)
        session = RecordedSession(
            recording,
            scheduler.seconds,
            name=self.name,
            dialect=self.dialect,
            limits=SessionLimits(line=LINE_LIMIT),
        )
        peer = await connect_peer(
            reactor, self.host, self.port, RawPeer(scheduler, session, self.dialect)
        )
        peer.send(ask_for_all(self.dialect))
        notify(f"recording {peer.address}")
        close = partial(peer.close, CloseReason.LOCAL)
        ending = None if seconds is None else scheduler.callLater(seconds, close)
        try:
            while await peer.commands():
                pass  # recorded by the session
        finally:
            if ending is not None and ending.active():
                ending.cancel()
            close()
            await peer.wait_closed()  # its last entry belongs in the recording
            notify(f"{recording.lines} lines are in {recording.path}")
        if session.failure is not None:
            raise RecordingNotWritable(path=recording.path, reason=session.failure.strerror)
        if session.closed_reason is not CloseReason.LOCAL:
            raise RecordingEnded(where=peer.address, reason=peer.reason, path=recording.path)
