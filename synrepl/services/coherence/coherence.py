"""Keeps the caches and change indexes of a process coherent with the streams (invariant R4).

Code that applies facts calls this first and moves the position afterwards, so that no reader at a
token sees an older entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from synrepl.caches.cache import Declaration
from synrepl.caches.changes import ChangeIndex
from synrepl.caches.registry import Caches
from synrepl.core.errors import ConfigError
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.services.coherence.effects_plan import EffectsPlan, plan_of
from synrepl.services.coherence.fact_observer import FactObserver
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.effects import BadKeys, Expansion, Group
from synrepl.streams.row import Row
from synrepl.streams.synapse.caches import CACHES
from synrepl.streams.synapse.expansions import SYNAPSE_EXPANSIONS

_TOKEN = attrgetter("token")

#: Moments that are remembered, to find out which facts an entry may lack.
MOMENTS = 4_096


class NeverInvalidated(ConfigError):
    """no row of a stream and no expansion ever makes cache {cache!r} stale: declare what does, say by_name=True if somebody calls invalidate({cache!r}, …), or immutable=True"""


class SourceNotFollowed(ConfigError):
    """rows of stream {stream!r} make cache {cache!r} stale, but this process does not get them: let it follow {stream!r} too"""


class NoSuchRows(ConfigError):
    """caches are to be made stale by rows of stream {stream!r} (kind {kind!r}), which do not exist: correct the stream and the kind given to on_rows"""


class Moment(NamedTuple):
    """The application of facts: from here on the (stream, writer) is at ``upto``."""

    number: int
    stream: str
    writer: str
    upto: Token


class Coherence:
    """Applies facts to the caches and change indexes of one process.

    :param followed: names of the streams whose facts this process gets; None for all
    :param may_omit_facts: the process follows the linear view of a master that silently omits
        facts which no line can carry, or which were trimmed
    :ivar moments: the last applications of facts, oldest first
    :ivar invalidations: number of applied rows of the ``caches`` stream, by the cache name in
        them
    :ivar unknown: number of such rows whose cache name is unknown here; they are ignored
    :ivar bad: number of rows with bad keys, or on which a declared function failed; whole caches
        were cleared for them
    :ivar emptied: how often caches were cleared because facts were lost
    :ivar observers: get each fact after caches have dropped what it makes stale
    """

    def __init__(
        self,
        caches: Caches,
        catalogue: Catalogue,
        log: Logger,
        followed: Collection[str] | None = None,
        may_omit_facts: bool = False,
    ) -> None:
        self.caches = caches
        self._may_omit_facts = may_omit_facts
        self._log = log
        self._streams = {stream.name: stream for stream in catalogue}
        self._followed = frozenset(self._streams if followed is None else followed)
        self._expansions: dict[str, Expansion] = {}
        self._expansion_plans: dict[str, EffectsPlan] = {}
        self._plans: dict[str, dict[type[Row], EffectsPlan]] = {}
        self._planned_version = -1
        #: The parts of the plans that have a cache or change index here.
        self._active_plans: dict[str, dict[type[Row], EffectsPlan]] = {}
        self._active_expansions: dict[str, EffectsPlan] = {}
        self._active_version = (-1, -1)
        self._started: set[tuple[str, str]] = set()
        #: Position of the linear view of each stream, where facts may be omitted.
        self._linear_positions: dict[str, Token] = {}
        self._reached: dict[str, Token] = {}
        self._indexes = 0
        self._warned: set[str] = set()
        self.moments: deque[Moment] = deque(maxlen=MOMENTS)
        self.invalidations: dict[str, int] = {}
        self.unknown = 0
        self.bad = 0
        self.emptied = 0
        self.observers: list[FactObserver] = []

    def check(self) -> None:
        """Refuse caches that could be stale forever, including those declared later.

        :raises NeverInvalidated: nothing ever invalidates a cache
        :raises SourceNotFollowed: a cache is invalidated by a stream that is not followed here
        :raises NoSuchRows: effects are declared for rows that do not exist
        :raises BadCache: a declaration is invalid
        """
        self.caches.accept_only(self._accept, self._accept_rows)

    def sources(self, declared: Declaration) -> set[str]:
        """Names of the streams whose rows can invalidate a cache."""
        self._update_plans()
        own: set[str | Group] = {declared.name, *(Group(name) for name in declared.groups)}
        found = {
            name
            for name, plans in self._plans.items()
            if any(own & plan.targets for plan in plans.values())
        }
        if declared.by_name or any(own & plan.targets for plan in self._expansion_plans.values()):
            found.add(CACHES.name)
        return found

    def knows(self, cache: str) -> bool:
        """Whether a cache of that name is declared here."""
        return self.caches.is_declared(cache)

    def expansion(self, name: str) -> Expansion | None:
        """The expansion of that name."""
        self._update_plans()
        return self._expansions.get(name)

    # -- facts ------------------------------------------------------------------------

    def begin(self, stream: str, writer: str, position: Token) -> None:
        """Start applying every fact of a writer above ``position``.

        Earlier facts were not seen, so affected caches are cleared.
        """
        if (stream, writer) not in self._started:
            self._started.add((stream, writer))
            sequence = self._sequence_of(self._streams[stream])
            self._reached[sequence] = max(position, self._reached.get(sequence, 0))
            if position:
                self._clear_affected(stream, writer, position)
            else:  # there are no earlier facts
                self._begin_indexes(stream, 0)
                self._unknown(stream, writer, 0)
        if self._may_omit_facts and not writer:
            self._account(stream, position, 0)

    def apply(self, stream: str, writer: str, after: Token, facts: Sequence[Fact]) -> None:
        """Invalidate what these facts make stale.

        :param after: the position before them
        """
        self._update_plans()
        self.begin(stream, writer, after)
        if not facts:
            return
        sequence = self._sequence_of(self._streams[stream])
        upto = max(map(_TOKEN, facts))  # some streams have no order
        self._begin_new_indexes()
        if self._may_omit_facts and not writer:
            linear_position = self._linear_positions[stream]
            self._account(stream, upto, sum(fact.token > linear_position for fact in facts))
        self._reached[sequence] = max(upto, self._reached.get(sequence, 0))
        if self._plans[stream] or stream == CACHES.name:
            self._apply_effects(stream, facts)
            self._next_moment(stream, writer, upto)
        for observer in self.observers:
            observer.applied(stream, writer, facts)

    def _account(self, stream: str, upto: Token, facts: int) -> None:
        """Clear caches if the linear view may have omitted facts: it skipped tokens without a fact."""
        before = self._linear_positions.setdefault(stream, upto)
        if upto - before > facts:
            self._clear_affected(stream, "", upto)
        self._linear_positions[stream] = max(before, upto)

    def suspect(self, stream: str, rows: Sequence[Row]) -> None:
        """Invalidate what rows make stale that may or may not be committed, at unknown tokens.

        Change indexes are updated once the rows are found, at their tokens.
        """
        self._update_plans()
        self._apply_effects(stream, [Fact(0, "", tuple(rows))])

    def reset(self, stream: str, writer: str, upto: Token) -> None:
        """Clear every cache that lost facts at or below ``upto`` may have made stale."""
        if self._clear_affected(stream, writer, upto):
            self.emptied += 1
            self._log.warn(
                "rows of {stream} up to {upto} are lost: caches that they may affect are cleared",
                stream=stream,
                upto=upto,
            )

    def _clear_affected(self, stream: str, writer: str, upto: Token) -> bool:
        """Clear what unseen facts at or below ``upto`` can affect; False when that is no cache."""
        self._update_plans()
        self._begin_indexes(stream, upto)
        self._unknown(stream, writer, upto)
        plans = self._plans[stream]
        if not plans and stream != CACHES.name:
            return False
        for plan in plans.values():
            plan.clear(self.caches)
        if stream == CACHES.name:
            self.caches.clear()
        self._next_moment(stream, writer, upto)
        return True

    def _apply_effects(self, stream: str, facts: Sequence[Fact]) -> None:
        self._update_active_plans()
        if stream == CACHES.name:
            self._invalidate_by_name(facts)
        plans = self._active_plans[stream]
        if not plans:
            return
        sequence = self._sequence_of(self._streams[stream])
        for fact in facts:
            for row in fact.rows:
                plan = plans.get(type(row))
                if plan is not None:
                    failed = plan.apply(self.caches, row, sequence, fact.token)
                    if failed is not None:
                        self._not_understood(f"a row of {stream}", failed)

    def _invalidate_by_name(self, facts: Sequence[Fact]) -> None:
        """Apply rows of the ``caches`` stream, which are many."""
        named, expansions, applied = self.caches.named, self._expansions, self.invalidations
        active = self._active_expansions
        for fact in facts:
            row: Any
            for row in fact.rows:
                name, keys = row.cache_func, row.keys
                caches = named(name)
                if caches:
                    key = None if keys is None else tuple(keys)
                    for cache in caches:
                        cache.invalidate(key)
                if name in active:
                    self._expand(name, keys, fact.token)
                elif not caches and name not in expansions and not self.caches.is_declared(name):
                    self.unknown += 1
                    continue
                applied[name] = applied.get(name, 0) + 1

    def _expand(self, name: str, keys: list[Any] | None, token: Token) -> None:
        try:
            checked = self._expansions[name].check(keys)
        except BadKeys as error:
            self._bad_keys(name, error, token)
            return
        failed = self._active_expansions[name].apply(self.caches, checked, CACHES.name, token)
        if failed is not None:
            self._not_understood(f"a row that names {name}", failed)

    def _bad_keys(self, name: str, error: BadKeys, token: Token) -> None:
        """Clear everything that a row with unusable keys may invalidate."""
        self._expansion_plans[name].clear(self.caches)
        for index in self._indexes_of(CACHES):
            index.all_changed(token)
        self._not_understood(f"a row that names {name}", error)

    def _not_understood(self, what: str, error: Exception) -> None:
        self.bad += 1
        if what not in self._warned:
            self._warned.add(what)
            # Only our own errors are known not to contain secrets.
            self._log.warn(
                "{what} is not understood ({error}): every cache that it may affect is cleared",
                what=what,
                error=error if isinstance(error, BadKeys) else type(error).__name__,
            )

    # -- inside -----------------------------------------------------------------------

    def _unknown(self, stream: str, writer: str, upto: Token) -> None:
        for observer in self.observers:
            observer.unknown_upto(stream, writer, upto)

    def _accept(self, declared: Declaration) -> None:
        if declared.immutable:
            return
        sources = self.sources(declared)
        if not sources:
            raise NeverInvalidated(cache=declared.name)
        for stream in sorted(sources - self._followed):
            raise SourceNotFollowed(cache=declared.name, stream=stream)

    def _accept_rows(self, stream: str, kind: str) -> None:
        if stream not in self._streams or kind not in self._streams[stream].kinds:
            raise NoSuchRows(stream=stream, kind=kind)

    def _update_plans(self) -> None:
        """Include new declarations, as handlers may declare caches when they start."""
        caches = self.caches
        if self._planned_version == caches.effects_version:
            return
        version = caches.effects_version
        self._expansions = {e.name: e for e in (*SYNAPSE_EXPANSIONS, *caches.expansions.values())}
        self._expansion_plans = {name: plan_of(e.effects) for name, e in self._expansions.items()}
        self._plans = {name: self._plans_of(stream) for name, stream in self._streams.items()}
        # Set last, because transactions look up expansions in their threads.
        self._planned_version = version

    def _update_active_plans(self) -> None:
        """Renew the plans that are applied, when caches or indexes were added."""
        caches = self.caches
        version = (self._planned_version, caches.targets_version)
        if self._active_version == version:
            return
        self._active_plans = {}
        for name, plans in self._plans.items():
            sequence = self._sequence_of(self._streams[name])
            limited = {row: plan.limited_to(caches, sequence) for row, plan in plans.items()}
            self._active_plans[name] = {
                row: plan for row, plan in limited.items() if plan is not None
            }
        self._active_expansions = {}
        for name, plan in self._expansion_plans.items():
            active = plan.limited_to(caches, CACHES.name)
            if active is not None:
                self._active_expansions[name] = active
        self._active_version = version

    def _plans_of(self, stream: Stream) -> dict[type[Row], EffectsPlan]:
        """The effects of each row class, declared by the stream and by the user."""
        effects = dict(stream.effects)
        for kind, row in stream.kinds.items():
            more = self.caches.effects.get((stream.name, kind), ())
            if more:
                effects[row] = (*effects.get(row, ()), *more)
        return {row: plan_of(row_effects) for row, row_effects in effects.items() if row_effects}

    def _sequence_of(self, stream: Stream) -> str:
        return stream.numbered_with or stream.name

    def _begin_indexes(self, stream: str, token: Token) -> None:
        for index in self._indexes_of(self._streams[stream]):
            index.begin(token)

    def _indexes_of(self, stream: Stream) -> Iterator[ChangeIndex]:
        sequence = self._sequence_of(stream)
        for (of, _), index in self.caches.indexes.items():
            if of == sequence:
                yield index

    def _begin_new_indexes(self) -> None:
        """Start indexes created since: they do not know what was applied before."""
        if self._indexes == len(self.caches.indexes):
            return
        for (sequence, _), index in self.caches.indexes.items():
            if index.horizon is None and sequence in self._reached:
                index.begin(self._reached[sequence])
        self._indexes = len(self.caches.indexes)

    def _next_moment(self, stream: str, writer: str, upto: Token) -> None:
        self.caches.moment += 1
        self.moments.append(Moment(self.caches.moment, stream, writer, upto))


def caches_status(coherence: Coherence) -> dict[str, Any]:
    """The section ``caches`` of a status, JSON-ready.

    ``by_name`` holds the counters of each cache, ``rows`` the number of applied rows of the
    ``caches`` stream by cache name, ``unknown`` the number of rows with an unknown name, ``bad``
    the number of rows with bad keys, ``emptied`` how often caches were cleared because rows were
    lost.
    """
    return {
        "by_name": coherence.caches.stats(),
        "rows": dict(coherence.invalidations),
        "unknown": coherence.unknown,
        "bad": coherence.bad,
        "emptied": coherence.emptied,
    }
