"""A request to another server, and its answer.

A body may be as large as a room, so it is read as a file; small ones are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO, Protocol

from synrepl.federation.errors import AnswerTooLarge

#: Maximum size of an answer, in bytes, and of one that has the state of a room.
MAX_ANSWER = 100 * 2**20
MAX_STATE_ANSWER = 500 * 2**20

#: Maximum size of a body that is read into memory at once, in bytes.
MAX_READ = 2**20


@dataclass(frozen=True, slots=True)
class FederationRequest:
    """A request to another server.

    :ivar destination: the name of the server, before any delegation
    :ivar path: such as ``/_matrix/federation/v1/state_ids/%21room``; its segments are percent-encoded
    :ivar query: parameters, which may be repeated
    :ivar content: the canonical JSON of an object; None for a request without a body
    :ivar timeout_s: seconds for the whole exchange
    :ivar head_timeout_s: seconds until the answer begins; None for ``timeout_s``
    :ivar max_bytes: maximum size of the answer's body
    :ivar ignores_back_off: it is made although the destination has failed lately
    :ivar is_signed: it is signed by this server; False for keys, which are needed to verify signatures
    """

    method: str
    destination: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    content: bytes | None = None
    timeout_s: float = 30.0
    head_timeout_s: float | None = None
    max_bytes: int = MAX_ANSWER
    ignores_back_off: bool = False
    is_signed: bool = True

    @property
    def subject(self) -> str:
        """The method and the path, for errors and logs."""
        return f"{self.method} {self.path}"


class SpooledBody(Protocol):
    """The body of an answer, in memory or in a file without a name.

    :ivar size: in bytes
    """

    @property
    def size(self) -> int: ...

    def read(self, most: int = MAX_READ) -> bytes:
        """The whole body.

        :raises AnswerTooLarge: it is larger than ``most`` bytes
        """

    def open(self) -> BinaryIO:
        """The body from its beginning. Only one reader at a time; it need not be closed."""

    def close(self) -> None:
        """Release memory and file; may be called again."""


class BytesBody:
    """A body in memory; see :class:`SpooledBody`.

    :param where: the server and the request, for errors
    """

    def __init__(self, data: bytes, where: str = "an answer") -> None:
        self._data = data
        self._where = where

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self._data)

    def read(self, most: int = MAX_READ) -> bytes:
        """See :meth:`SpooledBody.read`.

        :raises AnswerTooLarge:
        """
        if len(self._data) > most:
            raise AnswerTooLarge(where=self._where, limit=most)
        return self._data

    def open(self) -> BinaryIO:
        """See :meth:`SpooledBody.open`."""
        return BytesIO(self._data)

    def close(self) -> None:
        """See :meth:`SpooledBody.close`."""
        self._data = b""


@dataclass(frozen=True, slots=True)
class FederationAnswer:
    """The answer to a request, whatever its status. Who gets it closes its body.

    :ivar retry_after_s: seconds that the server wants to be left alone; 0 where it does not say
    """

    status: int
    body: SpooledBody
    retry_after_s: float = 0.0
