"""Changes to the database that make caches stale everywhere, once they are committed."""

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

#: Names of caches that nobody here knows, and of which this was said.
MAX_WARNINGS = 100


class BadInvalidation(InputError):
    """cache {cache!r} cannot be invalidated like this: {reason}"""


class Invalidations:
    """Makes the rows that make cache entries stale everywhere.

    A name that no cache of this process has is let through: other processes may
    have one. It is logged once, for it may be a slip of the pen.
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
        """The row for one key of a cache, or for the whole of it.

        :raises BadInvalidation: it would make no sense to whoever reads it
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
        """Whether all of a name can be stale: a name that stands for many needs keys."""
        return self._coherence.expansion(cache) is None

    def _warn_once(self, cache: str) -> None:
        if cache not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(cache)
            self._log.warn("cache {cache} is invalidated, but not known here", cache=cache)

    def check_length(self, cache: str, key: Sequence[Any]) -> None:
        """Refuse a key that is longer than those of the cache, as far as it is known here.

        For this program's own keys: one of another version may have more parts.

        :raises BadInvalidation: it is longer
        """
        for known in self._caches.named(cache):
            arity = known.declaration.arity
            if len(key) > arity:
                raise BadInvalidation(
                    cache=cache, reason=f"its keys have {arity} parts, {len(key)} were given"
                )


class ChangeOutbox:
    """What goes out when a transaction commits: stale cache entries, and facts.

    Given to the work functions of :class:`Changes`, in the thread of the transaction.
    """

    def __init__(self, facts: Outbox, invalidations: Invalidations) -> None:
        self._facts = facts
        self._invalidations = invalidations
        self._keys: dict[str, dict[Key, CachesRow]] = {}

    def invalidate(self, cache: str, key: Sequence[Any]) -> None:
        """The entry of ``key``, or all that begin with it, is stale once this commits.

        :raises BadInvalidation: it would make no sense to whoever reads it
        :raises BadKeys: ``cache`` stands for many, and needs other keys
        """
        row = self._invalidations.row(cache, key)
        if row.keys is None:
            self._keys[cache] = {(): row}
            return
        self._invalidations.check_length(cache, key)
        keys = self._keys.setdefault(cache, {})
        if () in keys:
            return  # all of it is stale
        keys[tuple(key)] = row
        if len(keys) > self._invalidations.max_keys and self._invalidations.has_whole(cache):
            self.invalidate_all(cache)

    def invalidate_all(self, cache: str) -> None:
        """The whole cache is stale once this commits.

        :raises BadInvalidation: as :meth:`invalidate`
        :raises BadKeys: as :meth:`invalidate`
        """
        self._keys[cache] = {(): self._invalidations.row(cache, None)}

    def append(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Append a fact to one of the streams that :meth:`Changes.run` was given."""
        self._facts.append(stream, rows)

    def close(self) -> None:
        """Put all that is stale into one fact."""
        rows = [row for keys in self._keys.values() for row in keys.values()]
        if rows:
            self._facts.append(CACHES, rows)


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """A transaction that was committed.

    :ivar result: what its work returned
    :ivar writer: who wrote the facts
    :ivar tokens: by the name of a stream, the last token that it got: what to
        wait for in another process, so that it has this change
    """

    result: T
    writer: str
    tokens: Mapping[str, Token]


class Changes:
    """Runs transactions that tell every process which cache entries they make stale.

    :ivar invalidations: makes the rows that say so
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
        """Run ``work`` in one transaction, and with it write what it puts into the outbox.

        The entries are stale in this process once this returns, in others once they
        have followed. Nothing happens to any cache when the transaction rolls back.

        :param work: as for :meth:`synrepl.storage.database.Database.run`: it may run
            more than once, and only the last time counts
        :param streams: to which ``work`` may append facts, besides
        :raises SynreplError: what :meth:`.StreamWriter.transact` raises, and what
            ``work`` does; after ``CommitUnknown`` the entries are stale here
        """

        def both(txn: Transaction, facts: Outbox) -> T:
            outbox = ChangeOutbox(facts, self.invalidations)
            result = work(txn, outbox)
            outbox.close()
            return result

        done = await self._writer.transact(name, (CACHES, *streams), both)
        tokens = {stream: facts[-1].token for stream, facts in done.facts.items()}
        return Changed(done.result, self._writer.writer, tokens)
