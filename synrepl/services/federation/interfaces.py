"""Interfaces between federation and what carries its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from synrepl.federation.requests import FederationAnswer, FederationRequest

T = TypeVar("T")


class RunsInThreads(Protocol):
    """Runs work that takes long in threads.

    :ivar concurrency: number of works that run at the same time
    """

    concurrency: int

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread, and return its result."""


class FederationTransport(Protocol):
    """Sends requests to other servers."""

    async def send(self, request: FederationRequest) -> FederationAnswer:
        """Send a request, and wait until its answer is there as a whole, whatever its status.

        The request may have been carried out although this raises an ``Unavailable``.

        :raises DestinationAway: no connection, no answer in time, or one that broke off
        :raises DestinationBackedOff: the destination has failed lately, and nothing was sent
        :raises AnswerTooLarge: :raises AddressRefused:
        """
