"""Transactions that invalidate cache entries in every process once they commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from synrepl.caches.registry import Caches
from synrepl.core.clock import Clock
from synrepl.core.errors import InputError
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.sizes import DEFAULT_SIZES
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.streams.definition import Stream
from synrepl.streams.effects import Key, scalar
from synrepl.streams.row import Row
from synrepl.streams.rows import BadRow, RowCodec
from synrepl.streams.synapse.caches import CACHES, CachesRow

T = TypeVar("T")

#: Maximum number of unknown cache names that are logged.
MAX_WARNINGS = 100


class BadInvalidation(InputError):
    """cache {cache!r} cannot be invalidated like this: {reason}"""


class Invalidations:
    """Builds the rows that invalidate cache entries in every process.

    A name that no cache of this process has is accepted, as other processes may have such a
    cache. It is logged once, because it may be a typo.

    :ivar max_keys: keys of one cache in one transaction above which the whole cache is
        invalidated instead
    """

    def __init__(
        self,
        clock: Clock,
        caches: Caches,
        coherence: Coherence,
        log: Logger,
        max_keys: int = DEFAULT_SIZES.invalidation_keys,
    ) -> None:
        self.max_keys = max_keys
        self._clock = clock
        self._caches = caches
        self._coherence = coherence
        self._log = log
        self._codec = RowCodec(CACHES)
        self._warned: set[str] = set()

    def row(self, cache: str, key: Sequence[Any] | None) -> CachesRow:
        """Build the row for one key of a cache, or for the whole cache.

        :raises BadInvalidation: no reader could apply it
        """
        if not cache or len(cache) > 255 or not cache.isprintable():
            raise BadInvalidation(cache=cache[:100], reason="this is no name of a cache")
        if isinstance(key, (str, bytes)):
            raise BadInvalidation(cache=cache, reason=f"write ({key!r},), a key is a tuple")
        if key is not None and not scalar(key):
            raise BadInvalidation(
                cache=cache, reason=f"{str(key)[:100]} has parts that no cached function can have"
            )
        keys = list(key) if key else None  # the empty key is the whole cache, too
        expansion = self._coherence.expansion(cache)
        if expansion is not None:
            expansion.check(keys)
        row = CachesRow(cache, keys, int(self._clock.seconds() * 1000))
        try:
            self._codec.check_storable(row)
        except BadRow as error:
            raise BadInvalidation(cache=cache[:100], reason=error.facts["reason"]) from None
        if expansion is None and not self._coherence.knows(cache):
            self._warn_once(cache)
        return row

    def has_whole(self, cache: str) -> bool:
        """Whether the whole of a name can be invalidated; an expansion always needs keys."""
        return self._coherence.expansion(cache) is None

    def _warn_once(self, cache: str) -> None:
        if cache not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(cache)
            self._log.warn("cache {cache} is invalidated, but not known here", cache=cache)

    def check_length(self, cache: str, key: Sequence[Any]) -> None:
        """Refuse a key that has more parts than those of the cache, if it is known here.

        Only for this program's own keys: those of another version may have more parts.

        :raises BadInvalidation: the key has too many parts
        """
        for known in self._caches.named(cache):
            arity = known.declaration.arity
            if len(key) > arity:
                raise BadInvalidation(
                    cache=cache, reason=f"its keys have {arity} parts, {len(key)} were given"
                )


class ChangeOutbox:
    """Collects the invalidations and facts that a transaction publishes when it commits.

    Passed to the work functions of :class:`Changes`, in the thread of the transaction.
    """

    def __init__(self, facts: Outbox, invalidations: Invalidations) -> None:
        self._facts = facts
        self._invalidations = invalidations
        self._keys: dict[str, dict[Key, CachesRow]] = {}

    def invalidate(self, cache: str, key: Sequence[Any]) -> None:
        """Invalidate the entry of ``key``, or all entries with that prefix, once this commits.

        :raises BadInvalidation: no reader could apply it
        :raises BadKeys: ``cache`` is an expansion that needs other keys
        """
        row = self._invalidations.row(cache, key)
        if row.keys is None:
            self._keys[cache] = {(): row}
            return
        self._invalidations.check_length(cache, key)
        keys = self._keys.setdefault(cache, {})
        if () in keys:
            return  # the whole cache is invalidated already
        keys[tuple(key)] = row
        if len(keys) > self._invalidations.max_keys and self._invalidations.has_whole(cache):
            self.invalidate_all(cache)

    def invalidate_all(self, cache: str) -> None:
        """Invalidate the whole cache once this commits.

        :raises BadInvalidation: as :meth:`invalidate`
        :raises BadKeys: as :meth:`invalidate`
        """
        self._keys[cache] = {(): self._invalidations.row(cache, None)}

    def append(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Append a fact to one of the streams that were passed to :meth:`Changes.run`."""
        self._facts.append(stream, rows)

    def close(self) -> None:
        """Append all invalidations as one fact."""
        rows = [row for keys in self._keys.values() for row in keys.values()]
        if rows:
            self._facts.append(CACHES, rows)


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """The result of a committed transaction.

    :ivar result: the return value of its work function
    :ivar writer: name of the writer of the facts
    :ivar tokens: the last token written to each stream, by name; wait for it in another
        process to be sure that it has this change
    """

    result: T
    writer: str
    tokens: Mapping[str, Token]


class Changes:
    """Runs transactions that invalidate cache entries in every process.

    :ivar invalidations: builds the rows of the ``caches`` stream
    """

    def __init__(self, writer: StreamWriter, invalidations: Invalidations) -> None:
        self._writer = writer
        self.invalidations = invalidations

    async def run(
        self,
        name: str,
        work: Callable[[Transaction, ChangeOutbox], T],
        streams: Sequence[Stream] = (),
    ) -> Changed[T]:
        """Run ``work`` in one transaction, and write the contents of its outbox in the same one.

        The entries are invalid in this process when this returns, and in other processes once
        they have followed. No cache is affected when the transaction rolls back.

        :param work: as for :meth:`synrepl.storage.database.Database.run`: it may run more than
            once, and only the last run counts
        :param streams: streams to which ``work`` may append facts
        :raises SynreplError: whatever :meth:`.StreamWriter.transact` and ``work`` raise; after
            ``CommitUnknown`` the entries are invalid in this process
        """

        def both(txn: Transaction, facts: Outbox) -> T:
            outbox = ChangeOutbox(facts, self.invalidations)
            result = work(txn, outbox)
            outbox.close()
            return result

        done = await self._writer.transact(name, (CACHES, *streams), both)
        tokens = {stream: facts[-1].token for stream, facts in done.facts.items()}
        return Changed(done.result, self._writer.writer, tokens)
