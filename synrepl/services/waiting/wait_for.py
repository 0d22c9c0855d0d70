"""Read your writes: wait until this process has facts that were written elsewhere."""

from __future__ import annotations

from synrepl.core.errors import InputError, Unavailable
from synrepl.core.names import writer_name
from synrepl.core.tokens import MAX_TOKEN, BadToken, Token
from synrepl.services.position_waiters import PositionWaiters
from synrepl.services.sources import Key
from synrepl.services.status.stream_progress import writer_label
from synrepl.services.waiting.applied_positions import AppliedPositions
from synrepl.streams.catalogue import Catalogue

#: Default and maximum timeout, in seconds.
WAIT_S = 10.0
LONGEST_WAIT_S = 300.0


class BadWait(InputError):
    """{value!r} is not a time to wait: give seconds from 0 to {longest:g}, or a duration such as '500ms' or '2m'"""


class WaitTimedOut(Unavailable):
    """waited {timeout_s:g} s for token {wanted} of {stream!r} by {writer!r}, which is at {current}: {held}"""


class WaitFor:
    """Waits for the tokens of written facts.

    After a wait, readers in this process see what the writer has written: handlers have processed
    it, and no cache is older (R4). A handler must not wait for a token above the batch that it is
    processing: the wait times out.

    :param applied: the positions of this process
    """

    def __init__(
        self, catalogue: Catalogue, applied: AppliedPositions, waiters: PositionWaiters
    ) -> None:
        self._catalogue = catalogue
        self._applied = applied
        self._waiters = waiters

    async def wait_for(
        self, stream: str, writer: str | None, token: Token, timeout_s: float = WAIT_S
    ) -> Token:
        """Wait until every fact of a writer up to ``token`` is applied here. It may be cancelled.

        :param writer: None where one position covers all writers of the stream, or where it has
            only one writer
        :param timeout_s: seconds, at most :data:`LONGEST_WAIT_S`; 0 to check without waiting
        :returns: the position, at ``token`` or above
        :raises UnknownStream: there is no such stream
        :raises InputError: the stream is not followed here, a writer must be named, or an
            argument is invalid
        :raises WaitTimedOut: with the current position, and what holds it back
        :raises Unavailable: too many callers wait already, or the process stops
        """
        name = self._catalogue[stream].name
        if writer is not None:
            writer_name(writer)
        if not 0 <= token <= MAX_TOKEN:
            raise BadToken(value=token)
        if not 0 <= timeout_s <= LONGEST_WAIT_S:  # false for NaN too
            raise BadWait(value=timeout_s, longest=LONGEST_WAIT_S)
        keys = self._applied.keys(name, writer)
        at = self._position(*keys)
        if at >= token:
            return at
        reached = await self._waiters.wait(keys, token, timeout_s)
        if reached is not None:
            return reached
        at = self._position(*keys)
        if at >= token:
            return at
        raise WaitTimedOut(
            timeout_s=timeout_s,
            wanted=token,
            stream=name,
            writer=writer_label(keys[0][1]),
            current=at,
            held=self._applied.why_below(keys[0], token),
        )

    def _position(self, *keys: Key) -> Token:
        return max(map(self._applied.position, keys))
