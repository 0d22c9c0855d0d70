"""Interfaces between federation and what carries its requests."""

from __future__ import annotations

from typing import Protocol

from synrepl.federation.requests import FederationAnswer, FederationRequest


class FederationTransport(Protocol):
    """Sends requests to other servers."""

    async def send(self, request: FederationRequest) -> FederationAnswer:
        """Send a request, and wait until its answer is there as a whole, whatever its status.

        The request may have been carried out although this raises an ``Unavailable``.

        :raises DestinationAway: no connection, no answer in time, or one that broke off
        :raises DestinationBackedOff: the destination has failed lately, and nothing was sent
        :raises AnswerTooLarge: :raises AddressRefused:
        """
