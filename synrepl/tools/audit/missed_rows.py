"""Finds the row that should have invalidated a stale cache entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from synrepl.caches.registry import Caches
from synrepl.core.log import Logger
from synrepl.core.tokens import Range, Token
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.sources import LINEAR, Key, surviving_page
from synrepl.storage.store import FactStore, Observation, Trimmed
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Stream
from synrepl.tools.audit.sample import EntryLocation

#: Limits of a search, per stream: tokens to go back, and rows to read.
MOST_TOKENS = 10_000
MOST_ROWS = 100_000

_PAGE_ROWS = 2_000


class EntryPositions(NamedTuple):
    """A process's positions of a writer.

    :ivar at_load: the position when the load of the entry began; None if it is no longer known
    :ivar now: the position when the entry was found stale
    """

    at_load: Token | None
    now: Token


#: By stream and writer; the writer is LINEAR where one position stands for all.
Positions = Mapping[str, Mapping[str, EntryPositions]]


class RememberedPositions(NamedTuple):
    """A process's positions at one moment, by stream and writer.

    :ivar is_complete: whether nothing was forgotten, so that an absent writer had nothing applied
    """

    positions: Mapping[Key, Token]
    is_complete: bool

    def of(self, stream: str, writer: str) -> Token | None:
        """The position of a writer; None if it is not known."""
        return self.positions.get((stream, writer), 0 if self.is_complete else None)


class MissedRow(NamedTuple):
    """A row that names an entry, and was applied while the entry was in the cache.

    :ivar after_load: whether the row is known to have been applied after the entry was loaded;
        False if that is no longer known
    """

    stream: str
    writer: str
    token: Token
    after_load: bool


class SearchResult(NamedTuple):
    """The result of a search.

    :ivar spans: the ranges that were searched, by stream
    :ivar is_complete: whether every row since the load was searched; False if some were trimmed or
        exceeded the limits
    """

    row: MissedRow | None
    spans: Mapping[str, Range]
    is_complete: bool


class MissedRows:
    """Searches the streams for missed rows.

    :param coherence: the coherence of the audited process
    """

    def __init__(self, coherence: Coherence, catalogue: Catalogue, store: FactStore) -> None:
        self._coherence = coherence
        self._catalogue = catalogue
        self._store = store

    def positions_at(self, moment: int) -> RememberedPositions:
        """The positions of the process at a moment."""
        moments = self._coherence.moments
        found: dict[Key, Token] = {}
        for number, stream, writer, upto in moments:
            if number > moment:
                break
            found[stream, writer] = max(upto, found.get((stream, writer), 0))
        return RememberedPositions(found, is_complete=len(moments) != moments.maxlen)

    async def find(
        self, location: EntryLocation, positions: Positions, seen: Mapping[str, Observation]
    ) -> SearchResult:
        """Find the last row that names an entry, preferably one that is known to be after its load.

        :param positions: the process's positions when the entry was loaded, and was found stale
        :param seen: the streams whose rows can invalidate the entry
        :raises SynreplError: the store cannot be read
        """
        trial = _TrialCache(self._coherence, self._catalogue, location)
        found: list[MissedRow] = []
        spans: dict[str, Range] = {}
        is_complete = True
        for name, observation in seen.items():
            reached = positions[name]
            wanted = Range(
                min((at.at_load or 0 for at in reached.values()), default=0), observation.last
            )
            spans[name], rows = await self._look(self._catalogue[name], wanted, trial, reached)
            found += rows
            is_complete = is_complete and spans[name] == wanted
        row = max(found, key=lambda row: row.after_load, default=None)
        return SearchResult(row, spans, is_complete)

    async def _look(
        self,
        stream: Stream,
        wanted: Range,
        trial: _TrialCache,
        reached: Mapping[str, EntryPositions],
    ) -> tuple[Range, list[MissedRow]]:
        """Search one stream: the range searched, and the last matching row of each kind."""
        begin = at = max(wanted.after, wanted.upto - MOST_TOKENS)
        found: dict[bool, MissedRow] = {}
        rows = 0
        while at < wanted.upto and rows < MOST_ROWS:
            try:
                most = min(_PAGE_ROWS, MOST_ROWS - rows)
                page = await surviving_page(self._store, stream, Range(at, wanted.upto), None, most)
            except Trimmed as error:
                trimmed = error.facts["trimmed"]
                assert isinstance(trimmed, int)
                begin = at = trimmed
                continue
            for fact in page.facts:
                rows += len(fact.rows)
                after_load = _was_applied_after_load(
                    fact, reached.get(fact.writer) or reached.get(LINEAR)
                )
                if after_load is not None and trial.is_named_by(stream, fact):
                    row = MissedRow(stream.name, fact.writer, fact.token, after_load)
                    found[after_load] = row
            at = page.upto
        return Range(begin, at), list(found.values())


def _was_applied_after_load(fact: Fact, reached: EntryPositions | None) -> bool | None:
    """Whether a fact was applied while an entry was cached; False if unknown, None if it was not."""
    if reached is None or fact.token > reached.now:
        return None
    if reached.at_load is None:
        return False
    return True if fact.token > reached.at_load else None


class _TrialCache:
    """A copy of an entry's cache that holds only this entry, to try rows on.

    Rows are applied by the same rules as in the process itself.
    """

    def __init__(self, coherence: Coherence, catalogue: Catalogue, location: EntryLocation) -> None:
        caches = Caches(coherence.caches.runtime)
        caches.expansions = coherence.caches.expansions
        caches.effects = coherence.caches.effects
        declared = replace(
            location.cache.declaration, max_entries=1, max_bytes=None, size_of=None, ttl_s=None
        )
        self._cache = caches.open(declared, lambda: None)
        self._key = location.key
        self._coherence = Coherence(caches, catalogue, _SilentLog())

    def is_named_by(self, stream: Stream, fact: Fact) -> bool:
        """Whether a fact invalidates the entry."""
        cache, key = self._cache, self._key
        # Nothing is known about rows before the first fact of a writer, so all entries are dropped.
        self._coherence.begin(stream.name, fact.writer, fact.token - 1)
        if key not in cache.entries:
            cache.loaded(key, cache.begin(key), None)
        self._coherence.apply(stream.name, fact.writer, fact.token - 1, [fact])
        return key not in cache.entries


class _SilentLog(Logger):
    """Discards the log messages of a trial."""

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Discard it."""

    def warn(self, format: str, **facts: object) -> None:  # noqa: A002
        """Discard it."""
