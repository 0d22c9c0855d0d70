"""Stream positions from a master's ``/status``, for workers without a database."""

from __future__ import annotations

import msgspec

from synrepl.adapters.http.client import Answer, HttpClient, MasterAway, status_text
from synrepl.adapters.http.source import BadAnswer, SecretRefused
from synrepl.core.tokens import Token
from synrepl.storage.store import RecordedPositions
from synrepl.streams.definition import Stream


class _Stream(msgspec.Struct):
    position: int
    writers: dict[str, int]
    removed_writers: dict[str, int] = {}  # msgspec copies it
    last_reserved: int | None = None


class _Status(msgspec.Struct):
    """The members of a status that are used here."""

    streams: dict[str, _Stream]


class HttpPositions:
    """See :class:`synrepl.services.sources.PositionSource` and :class:`.IssuedTokens`.

    A master learns of the tokens of other processes when it next polls the database.
    """

    is_late = True

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._decode: msgspec.json.Decoder[_Status] = msgspec.json.Decoder(_Status)

    async def recorded(self, stream: Stream) -> RecordedPositions:
        """The positions that the master has announced for a stream.

        :raises MasterAway: it cannot be reached, or answers with an error of its own
        :raises SecretRefused: :raises BadAnswer:
        """
        found = (await self._status(stream)).get(stream.name)
        if found is None:
            raise self._bad(stream, "its status does not have it")
        return RecordedPositions(found.position, {**found.removed_writers, **found.writers})

    async def given_out(self, stream: Stream) -> Token | None:
        """The largest token that the master knows to have been issued.

        :returns: None for an older master that does not report it; 0 for a stream it does not have
        :raises MasterAway: :raises SecretRefused: :raises BadAnswer:
        """
        found = (await self._status(stream)).get(stream.name)
        return 0 if found is None else found.last_reserved

    async def _status(self, stream: Stream) -> dict[str, _Stream]:
        answer = await self._client.get("/status", {})
        if answer.status != 200:
            raise self._refusal(answer)
        try:
            return self._decode.decode(answer.body).streams
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._bad(stream, str(error)) from None

    def _refusal(self, answer: Answer) -> SecretRefused | MasterAway:
        where, status = self._client.where, status_text(answer.status)
        if answer.status in (401, 403):
            return SecretRefused(where=where, status=status)
        return MasterAway(where=where, reason=status)

    def _bad(self, stream: Stream, reason: str) -> BadAnswer:
        return BadAnswer(where=self._client.where, stream=stream.name, reason=reason[:200])
