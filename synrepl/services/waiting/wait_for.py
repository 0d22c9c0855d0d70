"""Read your writes: wait until this process has what was written elsewhere."""

from __future__ import annotations

from synrepl.core.errors import InputError, Unavailable
from synrepl.core.names import writer_name
from synrepl.core.tokens import MAX_TOKEN, BadToken, Token
from synrepl.services.position_waiters import PositionWaiters
from synrepl.services.sources import Key
from synrepl.services.status.stream_progress import writer_label
from synrepl.services.waiting.applied_positions import AppliedPositions
from synrepl.streams.catalogue import Catalogue

#: Seconds to wait when nobody says how long, and at most.
WAIT_S = 10.0
LONGEST_WAIT_S = 300.0


class BadWait(InputError):
    """{value!r} is not a time to wait: give seconds from 0 to {longest:g}, or a duration such as '500ms' or '2m'"""


class WaitTimedOut(Unavailable):
    """waited {timeout_s:g} s for token {wanted} of {stream!r} by {writer!r}, which is at {current}: {held}"""


class WaitFor:
    """Waits for tokens, which whoever has written facts knows.

    Once a wait is over, a reader in this process sees what the writer has
    written: handlers have dealt with it, and no cache is older (R4). A handler
    that waits for a token which only comes after the batch it has in hand
    waits in vain.

    :param own: where this process stands
    """

    def __init__(
        self, catalogue: Catalogue, own: AppliedPositions, waiters: PositionWaiters
    ) -> None:
        self._catalogue = catalogue
        self._own = own
        self._waiters = waiters

    async def wait_for(
        self, stream: str, writer: str | None, token: Token, timeout_s: float = WAIT_S
    ) -> Token:
        """Wait until everything of a writer at or below ``token`` is here; cancel it at will.

        :param writer: None where one number stands for all writers of the
            stream, or where it has only one
        :param timeout_s: seconds, at most :data:`LONGEST_WAIT_S`; 0 to look and not to wait
        :returns: the position, at ``token`` or above
        :raises UnknownStream: there is no such stream
        :raises InputError: the stream is not followed here, a writer must be
            named, or an argument makes no sense
        :raises WaitTimedOut: with where the position is by then, and who holds it
        :raises Unavailable: too many wait already, or the process stops
        """
        name = self._catalogue[stream].name
        if writer is not None:
            writer_name(writer)
        if not 0 <= token <= MAX_TOKEN:
            raise BadToken(value=token)
        if not 0 <= timeout_s <= LONGEST_WAIT_S:  # false for NaN too
            raise BadWait(value=timeout_s, longest=LONGEST_WAIT_S)
        keys = self._own.keys(name, writer)
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
            held=self._own.held(keys[0], token),
        )

    def _position(self, *keys: Key) -> Token:
        return max(map(self._own.position, keys))
