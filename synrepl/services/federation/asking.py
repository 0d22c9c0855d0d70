"""Asks another server, and reads its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from synrepl.core.errors import InputError
from synrepl.core.slices import Slices
from synrepl.federation import answers
from synrepl.federation.errors import BadFederationAnswer, RequestRefusedByServer
from synrepl.federation.requests import MAX_READ, FederationRequest, SpooledBody
from synrepl.services.federation.interfaces import FederationTransport

T = TypeVar("T")

#: The two versions of some endpoints.
V1 = "/_matrix/federation/v1"
V2 = "/_matrix/federation/v2"

#: Bytes that are examined for one unit of :class:`Slices`: some ten microseconds.
_BYTES_OF_UNIT = 4096

#: Refusals of an endpoint that a server does not have.
_NO_SUCH_ENDPOINT = "M_UNRECOGNIZED"


class Asking:
    """Sends requests, and reads their answers in the ways that there are.

    Every method raises the errors of :class:`.FederationClient`.

    :param slices: budget of the reactor's turns, in which large answers are examined; None to examine them at once
    """

    def __init__(self, transport: FederationTransport, slices: Slices | None) -> None:
        self._transport = transport
        self._slices = slices

    async def either_version(
        self,
        request: Callable[[str], FederationRequest],
        ask: Callable[[FederationRequest], Awaitable[T]],
    ) -> T:
        """Ask by version 2 of an endpoint, or by version 1 if the server has no other."""
        try:
            return await ask(request(V2))
        except RequestRefusedByServer as error:
            if error.status not in (400, 404, 405) or error.errcode != _NO_SUCH_ENDPOINT:
                raise
        return await ask(request(V1))

    async def events(self, request: FederationRequest, name: str) -> tuple[bytes, ...]:
        """Ask, and read the events of an answer.

        :param name: of the member that has them
        """
        return await self.read(request, lambda body: answers.events(body, name))

    async def small(
        self, request: FederationRequest, parse: Callable[[bytes], T], most: int = MAX_READ
    ) -> T:
        """Ask, and parse an answer that is small."""
        body = await self._ask(request)
        try:
            return self.checked(request, lambda: parse(body.read(most)))
        finally:
            body.close()

    async def read(
        self,
        request: FederationRequest,
        read: Callable[[SpooledBody], Generator[int, None, T]],
    ) -> T:
        """Ask, and read an answer in steps."""
        body = await self._ask(request)
        try:
            return await self._in_steps(request, read(body))
        finally:
            body.close()

    async def large(
        self,
        request: FederationRequest,
        read: Callable[[SpooledBody], Generator[int, None, T]],
    ) -> T:
        """Ask, and make an answer that has the body, and closes it."""
        body = await self._ask(request)
        try:
            return await self._in_steps(request, read(body))
        except BaseException:
            body.close()
            raise

    async def _in_steps(self, request: FederationRequest, steps: Generator[int, None, T]) -> T:
        try:
            while True:
                size = next(steps)
                if self._slices is not None:
                    await self._slices.step(1 + size // _BYTES_OF_UNIT)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except InputError as error:
            raise _bad(request, error) from error

    def checked(self, request: FederationRequest, parse: Callable[[], T]) -> T:
        """What parsing returns.

        :raises BadFederationAnswer: the answer is not what it must be
        """
        try:
            return parse()
        except InputError as error:
            raise _bad(request, error) from error

    async def _ask(self, request: FederationRequest) -> SpooledBody:
        """Send a request.

        :raises RequestRefusedByServer: the status is not 200
        """
        answer = await self._transport.send(request)
        if answer.status == 200:
            return answer.body
        try:
            data = answer.body.read() if answer.body.size <= MAX_READ else b""
        finally:
            answer.body.close()
        error = answers.server_error(data)
        raise RequestRefusedByServer(
            destination=request.destination,
            subject=request.subject,
            status=answer.status,
            errcode=error.errcode,
            message=error.message,
            members=error.members,
        )


def _bad(request: FederationRequest, error: InputError) -> BadFederationAnswer:
    return BadFederationAnswer(
        destination=request.destination, subject=request.subject, reason=error
    )
