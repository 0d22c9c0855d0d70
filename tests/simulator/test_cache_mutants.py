"""Defects in what keeps caches coherent (R4), made on purpose: the simulator catches each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulator.application import EFFECTS_OF_JOBS, MOVED
from synrepl.caches.cache import Cache
from synrepl.caches.changes import ChangeIndex
from synrepl.caches.load import Load
from synrepl.core.tokens import Token
from synrepl.services.coherence import coherence as coherence_module
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.effects_plan import EffectsPlan, plan_of
from synrepl.services.coherence.invalidations import ChangeOutbox
from synrepl.services.coherence.listeners import CoherentCommitListener, CoherentPositionListener
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.handler_calls import HandlerCalls
from synrepl.services.handlers import Batch
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import AgedPositions
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.effects import Effects, Key
from synrepl.streams.synapse.caches import CACHES
from tests.simulator.mutants import MutantTestCase


class WriterDefects(MutantTestCase):
    """In the process that makes a change."""

    def test_caches_are_invalidated_before_the_commit(self) -> None:
        close, at_commit = ChangeOutbox.close, CoherentCommitListener.settled

        def early(outbox: ChangeOutbox) -> None:
            close(outbox)
            rows = [row for keys in outbox._keys.values() for row in keys.values()]
            outbox._invalidations._coherence.suspect(CACHES.name, rows)

        def not_again(
            settled: CoherentCommitListener,
            stream: Stream,
            tokens: Sequence[Token],
            facts: Sequence[Fact],
        ) -> None:
            if stream.name == CACHES.name:
                settled._next.settled(stream, tokens, facts)
            else:
                at_commit(settled, stream, tokens, facts)

        self.assert_caught(
            "R4", (ChangeOutbox, "close", early), (CoherentCommitListener, "settled", not_again)
        )

    def test_invalidate_all_does_nothing(self) -> None:
        def forget(outbox: ChangeOutbox, cache: str) -> None: ...

        self.assert_caught("R4 CRASH", (ChangeOutbox, "invalidate_all", forget))

    def test_what_is_found_after_a_loss_is_only_announced(self) -> None:
        def recovered(
            settled: CoherentCommitListener, stream: Stream, facts: Sequence[Fact]
        ) -> None:
            settled._next.recovered(stream, facts)

        def outcome_unknown(
            settled: CoherentCommitListener, stream: Stream, rows: Sequence[Any]
        ) -> None:
            settled._next.outcome_unknown(stream, rows)

        self.assert_caught(
            "R4",
            (CoherentCommitListener, "recovered", recovered),
            (CoherentCommitListener, "outcome_unknown", outcome_unknown),
        )

    def test_the_master_skips_other_writers(self) -> None:
        def writer_advanced(
            position_listener: CoherentPositionListener,
            stream: Stream,
            writer: str,
            prev: Token,
            new: Token,
            facts: Sequence[Fact],
        ) -> None:
            """Nothing."""

        self.assert_caught("R4", (CoherentPositionListener, "writer_advanced", writer_advanced))


class LoadDefects(MutantTestCase):
    """In a cache."""

    def test_a_load_is_stored_after_the_invalidation(self) -> None:
        def loaded(cache: Cache, key: Key, load: Load, value: Any) -> None:
            if cache.loads.get(key) is load:
                del cache.loads[key]
            cache._store(key, value, load.moment)
            load.succeed(value)

        self.assert_caught("R4", (Cache, "loaded", loaded))

    def test_a_caller_after_the_invalidation_joins_the_old_load(self) -> None:
        invalidate, clear, loaded = Cache.invalidate, Cache.clear, Cache.loaded
        stale: list[Load] = []  # what is in it is not stored, as it should be

        def keeps_loads(drop: Callable[..., None]) -> Callable[..., None]:
            def dropped(cache: Cache, *key: Key | None) -> None:
                before = dict(cache.loads)
                drop(cache, *key)
                stale.extend(load for at, load in before.items() if at not in cache.loads)
                cache.loads.update(before)

            return dropped

        def not_stored(cache: Cache, key: Key, load: Load, value: Any) -> None:
            if any(load is other for other in stale):
                cache.loads.pop(key, None)
            loaded(cache, key, load, value)

        self.assert_caught(
            "R4",
            (Cache, "invalidate", keeps_loads(invalidate)),
            (Cache, "clear", keeps_loads(clear)),
            (Cache, "loaded", not_stored),
        )

    def test_a_prefix_of_a_key_invalidates_nothing(self) -> None:
        invalidate = Cache.invalidate

        def only_full_keys(cache: Cache, key: Key | None) -> None:
            if not key or len(key) >= cache.declaration.arity:
                invalidate(cache, key)

        self.assert_caught("R4", (Cache, "invalidate", only_full_keys))


class ExpansionDefects(MutantTestCase):
    """Of a name that stands for entries of several caches."""

    def assert_caught_without(self, pair: int) -> None:
        def forgetful(effects: Effects) -> EffectsPlan:
            if effects == MOVED.effects:
                effects = (*effects[:pair], *effects[pair + 1 :])
            return plan_of(effects)

        self.assert_caught("R4", (coherence_module, "plan_of", forgetful))

    def test_the_first_pair_is_dropped(self) -> None:
        self.assert_caught_without(0)

    def test_the_last_pair_is_dropped(self) -> None:
        self.assert_caught_without(len(MOVED.effects) - 1)

    def test_rows_of_other_streams_have_no_effect(self) -> None:
        def without(effects: Effects) -> EffectsPlan:
            return EffectsPlan((), ()) if effects == EFFECTS_OF_JOBS else plan_of(effects)

        self.assert_caught("R4", (coherence_module, "plan_of", without), (Coherence, "check", str))


class FollowerDefects(MutantTestCase):
    """In a process that follows."""

    def test_the_position_moves_before_caches_are_invalidated(self) -> None:
        make_stale = Delivery._invalidate_caches

        def late(delivery: Delivery, batch: Batch) -> None:
            delivery._scheduler.callLater(0.05, make_stale, delivery, batch)

        self.assert_caught("R4", (Delivery, "_invalidate_caches", late))

    def test_caches_keep_entries_loaded_before_a_handlers_commit(self) -> None:
        def never(calls: HandlerCalls, batch: Batch) -> None: ...

        self.assert_caught("R4", (HandlerCalls, "_suspect_caches", never))

    def test_a_position_is_adopted_without_clearing_caches(self) -> None:
        def begin(coherence: Coherence, stream: str, writer: str, position: Token) -> None:
            coherence._linear_positions.setdefault(stream, position)

        self.assert_caught("R4", (Coherence, "begin", begin))

    def test_the_linear_view_counts_as_complete(self) -> None:
        def account(coherence: Coherence, stream: str, upto: Token, facts: int) -> None:
            coherence._linear_positions.setdefault(stream, upto)

        self.assert_caught("R4", (Coherence, "_account", account))

    def test_a_wait_returns_at_once(self) -> None:
        async def wait_for(
            waiting: WaitFor, stream: str, writer: str, token: Token, timeout_s: float
        ) -> Token:
            return token

        self.assert_caught("R4", (WaitFor, "wait_for", wait_for))


class IndexDefects(MutantTestCase):
    """Of what has changed."""

    def test_a_change_is_not_recorded(self) -> None:
        def changed(index: ChangeIndex, entity: object, token: Token) -> None: ...

        self.assert_caught("R4", (ChangeIndex, "changed", changed))

    def test_changes_before_the_start_count_as_known(self) -> None:
        def begin(index: ChangeIndex, token: Token) -> None:
            index._begun = True

        self.assert_caught("R4", (ChangeIndex, "begin", begin))

    def test_evicted_keys_count_as_unchanged(self) -> None:
        drop = ChangeIndex._drop_lowest

        def forget(index: ChangeIndex) -> None:
            floor = index._floor
            drop(index)
            index._floor = floor

        self.assert_caught("R4", (ChangeIndex, "_drop_lowest", forget))


class TrimDefects(MutantTestCase):
    """Mutants of trimming, and of notifying followers."""

    def test_unacknowledged_facts_are_trimmed(self) -> None:
        def nobody(store: MemoryStore, stream: Stream) -> list[Any]:
            return []

        self.assert_caught("TRIM", (MemoryStore, "_followers_of", nobody))

    def test_facts_are_trimmed_too_early(self) -> None:
        mark = MemoryStore.mark

        async def old_enough(store: MemoryStore, stream: Stream, *ages: float) -> AgedPositions:
            aged = await mark(store, stream, *ages)
            return AgedPositions(store._of(stream).recorded, aged.past_max)

        self.assert_caught("TRIM", (MemoryStore, "mark", old_enough))

    def test_caches_are_kept_when_facts_are_lost(self) -> None:
        def reset(coherence: Coherence, stream: str, writer: str, upto: Token) -> None: ...

        self.assert_caught("R4", (Coherence, "reset", reset))
