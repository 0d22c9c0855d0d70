"""Has changes made by a process that writes the stream which tells of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.core.errors import Refused, Unavailable
from synrepl.core.tokens import Token
from synrepl.services.forwarding import ForwardsToWriter, PerformAction, WriterActions
from synrepl.services.rooms.assignment import by_weight
from synrepl.services.writing.stream_writer import NotAWriter, StreamWriter
from synrepl.storage.clients.written_values import StoredFact
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.store import Drained, Fenced, WriterRemoved, WriterTaken
from synrepl.streams.definition import Stream

#: A process that raises these did nothing; another one may be able to.
_CANNOT_WRITE = (Unavailable, NotAWriter, Drained, Fenced, WriterRemoved, WriterTaken)


class StreamNotServed(Refused):
    """this server does not have this: its catalogue lacks the stream {stream!r}"""


class WrittenFact(NamedTuple):
    """Where a fact is that tells of a change, so that its client can wait for it."""

    stream: str
    writer: str
    token: Token


class DataWriters:
    """Makes changes in a process that writes their stream: this one if it does, else another one.

    Each writer of a stream can make any change, and making one twice changes nothing more. So if one
    writer is away, the next one is asked.

    :param writer: writes the streams of this process; None if it writes none
    :param writers: the writers of each stream that is served, by its name
    :param forwarder: reaches the other processes
    """

    def __init__(
        self,
        instance: str,
        writer: StreamWriter | None,
        writers: Mapping[str, Sequence[str]],
        forwarder: ForwardsToWriter,
        actions: WriterActions,
    ) -> None:
        self.instance = instance
        self._writer = writer
        self._writers = writers
        self._forwarder = forwarder
        self._actions = actions
        self._own = frozenset(() if writer is None else (each.name for each in writer.streams))
        self._perform: dict[str, tuple[Stream, PerformAction]] = {}

    def serves(self, stream: Stream) -> bool:
        """Whether a stream is served at all."""
        return stream.name in self._writers

    def writes(self, stream: Stream) -> bool:
        """Whether this process writes a stream."""
        return stream.name in self._own

    def writers_of(self, stream: Stream) -> Sequence[str]:
        """The processes that write a stream; none if it is not served."""
        return self._writers.get(stream.name, ())

    def add(self, action: str, stream: Stream, perform: PerformAction) -> None:
        """Add an action, which appends to a stream; its argument and its result are JSON."""

        async def perform_for_other(argument: dict[str, Any]) -> Any:
            result = await perform(argument)
            return [*result] if isinstance(result, tuple) else result

        self._perform[action] = stream, perform
        self._actions.add(action, perform_for_other)

    async def run(self, action: str, key: str, argument: Mapping[str, Any]) -> Any:
        """Perform an action here, or elsewhere.

        :param key: which of several other processes is asked first; one for what belongs together
        :raises StreamNotServed: :raises WriterUnreachable: :raises ForwardingFailed:
        :raises SynreplError: the errors of the action
        """
        stream, _ = self._perform[action]
        if not self.serves(stream):
            raise StreamNotServed(stream=stream.name)
        others = [each for each in self._writers[stream.name] if each != self.instance]
        writers = by_weight(others, key)
        if self.writes(stream):
            writers.insert(0, self.instance)
        return await self._run_at(writers, action, argument)

    async def run_at(self, writer: str, action: str, argument: Mapping[str, Any]) -> Any:
        """Perform an action in one process and in no other.

        :raises WriterUnreachable: :raises ForwardingFailed: :raises SynreplError: see :meth:`run`
        """
        return await self._run_at([writer], action, argument)

    async def _run_at(
        self, writers: Sequence[str], action: str, argument: Mapping[str, Any]
    ) -> Any:
        _, perform = self._perform[action]
        for writer in writers[:-1]:
            try:
                return await self._run_once(writer, action, argument, perform)
            except _CANNOT_WRITE:
                continue
        return await self._run_once(writers[-1], action, argument, perform)

    async def _run_once(
        self, writer: str, action: str, argument: Mapping[str, Any], perform: PerformAction
    ) -> Any:
        if writer == self.instance:
            return await perform(dict(argument))
        return await self._forwarder.forward(writer, action, argument)

    # -- in the process that writes ---------------------------------------------------------

    async def transact(
        self,
        name: str,
        stream: Stream,
        work: Callable[[Transaction, Outbox, str], StoredFact | None],
        others: Iterable[Stream] = (),
    ) -> WrittenFact | None:
        """Run work in a transaction that appends to a stream.

        :param work: gets the name of this process as well, and returns the fact of what was there before, for the case
            that it appends nothing
        :param others: streams that get facts as well, if this process writes them
        :returns: the last fact, which the client of the change waits for
        :raises NotAWriter: this process does not write the stream
        :raises SynreplError: the errors of :meth:`.StreamWriter.transact`
        """
        writer, instance = self.required(stream), self.instance

        def appending(txn: Transaction, outbox: Outbox) -> StoredFact | None:
            return work(txn, outbox, instance)

        streams = [stream, *(each for each in others if self.writes(each))]
        done = await writer.transact(name, streams, appending)
        facts = done.facts.get(stream.name)
        if facts:
            return WrittenFact(stream.name, instance, facts[-1].token)
        return None if done.result is None else WrittenFact(stream.name, *done.result)

    def required(self, stream: Stream) -> StreamWriter:
        """The writer of this process.

        :raises NotAWriter: it does not write the stream
        """
        if self._writer is None or not self.writes(stream):
            others = " or ".join(map(repr, self.writers_of(stream))) or "no process"
            raise NotAWriter(writer=self.instance, stream=stream.name, writers=others)
        return self._writer


def written_fact(value: Sequence[Any] | None) -> WrittenFact | None:
    """The result of an action that is a fact."""
    return None if value is None else WrittenFact(*value)
