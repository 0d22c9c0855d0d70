"""What the completion of partial rooms needs of other servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from synrepl.federation.answers import StateIds
from synrepl.rooms import ReceiptResult, RoomVersion
from synrepl.services.federation.answered_parts import StateWithAuthChain
from synrepl.services.federation.verifying import ChoosesEvents


class AsksForStates(Protocol):
    """Asks other servers; see :class:`.FederationClient`."""

    async def state_ids(self, destination: str, room_id: str, event_id: str) -> StateIds: ...

    async def state(
        self, destination: str, room_id: str, event_id: str
    ) -> AbstractContextManager[StateWithAuthChain]: ...

    async def event(self, destination: str, event_id: str) -> bytes: ...

    async def send_transaction(
        self,
        destination: str,
        txn_id: str,
        origin_ts: int,
        pdus: Sequence[bytes],
        edus: Sequence[bytes],
    ) -> Mapping[str, str | None]: ...


class VerifiesEvents(Protocol):
    """Verifies events; see :class:`.EventVerifier`."""

    async def verify(
        self,
        raws: Sequence[bytes],
        version: RoomVersion,
        *,
        origin: str | None = None,
        choose: ChoosesEvents | None = None,
    ) -> Sequence[ReceiptResult]: ...


class PushesJoins(Protocol):
    """Tells a server of the join of this server, which it has not heard of."""

    async def push(self, destination: str, room_id: str) -> None:
        """Send the join.

        :raises SynreplError: it could not be sent
        """
