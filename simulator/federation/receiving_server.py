"""A server that takes transactions and remembers what came, and that can be told to take them badly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.pure_answer import PureAnswer, RefusedRequest
from simulator.federation.pure_request import PureRequest
from synrepl.core.clock import Promise
from synrepl.federation.requests import BytesBody, FederationAnswer, FederationRequest


class Reception(StrEnum):
    """What a server does with a transaction."""

    TAKEN = "taken"
    ANSWER_LOST = "taken, and the answer is lost"
    LOST = "lost"
    BROKEN = "answered with 500"
    REFUSED = "answered with 400"
    GARBAGE = "taken, and answered with no JSON"
    FORBIDDEN = "answered with 403"


class ReceivedPart(NamedTuple):
    """A transaction that was taken.

    :ivar event_ids: of its PDUs
    """

    origin: str
    txn_id: str
    event_ids: Sequence[str]
    edus: Sequence[Mapping[str, Any]]


class ReceivingServer:
    """Implements :class:`~simulator.federation.in_memory.FederationServer` for ``send``.

    A transaction that comes again is recognised by its ID, and those of one origin are taken one after the other.

    :param event_id_of: the ID of an event, given as it was sent
    :ivar next: what it does with the next transactions, in order
    :ivar otherwise: what it does with all others
    :ivar answer_s: seconds that it takes for an answer
    :ivar refused: events that it refuses, by ID
    :ivar unacceptable: events with which it answers 400, by ID
    :ivar taken: the transactions that it took, each once
    :ivar repeated: number of transactions that came again
    :ivar refusals: number of transactions that it has answered with 400
    :ivar faults: what its sender did wrong
    """

    def __init__(
        self,
        name: str,
        federation: InMemoryFederation,
        event_id_of: Callable[[Mapping[str, Any]], str],
    ) -> None:
        self.name = name
        self._federation = federation
        self._event_id_of = event_id_of
        self.next: deque[Reception] = deque()
        self.otherwise = Reception.TAKEN
        self.answer_s = 0.0
        self.refused: set[str] = set()
        self.unacceptable: set[str] = set()
        self.taken: list[ReceivedPart] = []
        self.repeated = self.refusals = 0
        self.faults: list[str] = []
        self._answers: dict[tuple[str, str], tuple[Sequence[str], PureAnswer]] = {}
        self._last: dict[str, Promise[None]] = {}
        federation.register(name, self)

    @property
    def event_ids(self) -> list[str]:
        """The events that came, in order; those that came twice twice."""
        return [each for part in self.taken for each in part.event_ids]

    @property
    def edus(self) -> list[Mapping[str, Any]]:
        """The EDUs that came, in order."""
        return [each for part in self.taken for each in part.edus]

    async def handle(self, origin: str, request: FederationRequest) -> FederationAnswer | None:
        """See :class:`~simulator.federation.in_memory.FederationServer`."""
        pure = PureRequest.of(origin, request)
        if pure.endpoint != "send":
            return _encoded(RefusedRequest(404, "M_UNRECOGNIZED").answer)
        done: Promise[None] = self._federation.scheduler.promise()
        before, self._last[origin] = self._last.get(origin), done
        if before is not None:
            await before
        try:
            return await self._receive(pure)
        finally:
            done.callback(None)

    async def _receive(self, request: PureRequest) -> FederationAnswer | None:
        reception = self.next.popleft() if self.next else self.otherwise
        if self.answer_s:
            await self._federation.scheduler.sleep(self.answer_s)
        if reception is Reception.LOST:
            return None
        if reception is Reception.BROKEN:
            return _encoded(RefusedRequest(500, "M_UNKNOWN").answer)
        if reception is Reception.FORBIDDEN:
            return _encoded(RefusedRequest(403, "M_FORBIDDEN").answer)
        # Nobody refuses what it has taken before.
        is_refused = reception is Reception.REFUSED or self._is_unacceptable(request)
        if is_refused and not self._knows(request):
            self.refusals += 1
            return _encoded(RefusedRequest(400, "M_BAD_JSON").answer)
        answer = self._take(request)
        if reception is Reception.ANSWER_LOST:
            return None
        if reception is Reception.GARBAGE:
            return _encoded(PureAnswer(raw=b"<html>"))
        return _encoded(answer)

    def _is_unacceptable(self, request: PureRequest) -> bool:
        pdus = request.body.get("pdus", [])
        return any(self._event_id_of(each) in self.unacceptable for each in pdus)

    def _knows(self, request: PureRequest) -> bool:
        return (request.origin, request.path[0]) in self._answers

    def _take(self, request: PureRequest) -> PureAnswer:
        pdus, edus = request.body.get("pdus", []), request.body.get("edus", [])
        if len(pdus) > 50 or len(edus) > 100 or not (pdus or edus):
            self.faults.append(f"{self.name} gets {len(pdus)} PDUs and {len(edus)} EDUs at once")
        event_ids = [self._event_id_of(each) for each in pdus]
        key = request.origin, request.path[0]
        known = self._answers.get(key)
        if known is not None:
            if list(known[0]) != event_ids:
                self.faults.append(
                    f"transaction {key[1]} for {self.name} had {known[0]}, and has {event_ids}"
                )
            self.repeated += 1
            return known[1]
        results = {each: {"error": "no"} if each in self.refused else {} for each in event_ids}
        answer = PureAnswer(body={"pdus": results})
        self._answers[key] = event_ids, answer
        self.taken.append(ReceivedPart(*key, event_ids, edus))
        return answer


def _encoded(answer: PureAnswer) -> FederationAnswer:
    return FederationAnswer(answer.status, BytesBody(answer.encoded()))


def decoded(raw: bytes) -> Mapping[str, Any]:
    """An event as it is sent."""
    found: Mapping[str, Any] = orjson.loads(raw)
    return found
