"""The simulated database for operators: the writers of streams, and their open transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from simulator.watched_stream import WatchedStream
from synrepl.storage.database import Isolation, Record, Transaction, Values
from synrepl.storage.writers import FIRST_RESERVATION, LOCK_CLASS_BASE, SESSION

T = TypeVar("T")


class UnknownStatement(Exception):
    """A statement that the fake does not implement."""


class MembershipDatabase:
    """Runs transactions of operators atomically (implements ``storage.database.Database``).

    :param streams: all streams of the simulation, by name
    :param notified: called with the name of a stream on NOTIFY
    :param trip: awaited before the transaction and before its reply: takes time
    """

    def __init__(
        self,
        streams: Mapping[str, WatchedStream],
        notified: Callable[[str], object],
        trip: Callable[[], Awaitable[object]],
    ) -> None:
        self._streams = streams
        self._notified = notified
        self._trip = trip
        self._numbers: list[tuple[str, str]] = []

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run ``work`` in one transaction; see :class:`synrepl.storage.database.Database`."""
        await self._trip()
        txn: Any = _MembershipTransaction(self._streams, self._numbers, self._notified)
        result = work(txn)
        await self._trip()
        return result


class _MembershipTransaction:
    """Implements the statements of ``storage.membership`` and ``storage.writers`` only."""

    def __init__(
        self,
        streams: Mapping[str, WatchedStream],
        numbers: list[tuple[str, str]],
        notified: Callable[[str], object],
    ) -> None:
        self._streams = streams
        self._numbers = numbers
        self._notified = notified
        self._found: Sequence[Record] = ()
        self.rowcount = -1

    def execute(self, sql: str, params: Values = ()) -> Self:
        """Run one of the known statements."""
        words = " ".join(sql.split())
        for beginning, statement in _STATEMENTS.items():
            if words.startswith(beginning):
                self._found = statement(self, *params)
                self.rowcount = len(self._found)
                return self
        raise UnknownStatement(words)

    def fetchone(self) -> Record:
        """The only row."""
        return self._found[0]

    def fetchone_or_none(self) -> Record | None:
        """The only row, if there is one."""
        return self._found[0] if self._found else None

    def fetchall(self) -> Sequence[Record]:
        """All rows."""
        return self._found

    # -- statements: each returns its rows, or one row per changed row ------------

    def _is_known(self, stream: str, writer: str) -> bool:
        watched = self._streams[stream]
        return writer in watched.writers and writer not in watched.removed

    def _number(self, stream: str, writer: str) -> int:
        if (stream, writer) not in self._numbers:
            self._numbers.append((stream, writer))
        return self._numbers.index((stream, writer))

    def _exists(self, stream: str, writer: str) -> Sequence[Record]:
        return [(self._is_known(stream, writer),)]

    def _find(self, stream: str, writer: str) -> Sequence[Record]:
        return [(self._number(stream, writer),)] if self._is_known(stream, writer) else []

    def _find_held(self, stream: str, writer: str) -> Sequence[Record]:
        known = self._streams[stream].writers.get(writer)
        return [(self._number(stream, writer),)] if known is not None and known.held else []

    def _find_to_remove(self, stream: str, writer: str) -> Sequence[Record]:
        watched = self._streams[stream]
        if not self._is_known(stream, writer):
            return []
        may_go = writer in watched.draining or writer in watched.died
        return [(self._number(stream, writer), may_go or watched.writers[writer].held)]

    def _register(self, stream: str, writer: str) -> Sequence[Record]:
        self._streams[stream].writer(writer)
        return [("",)]

    def _add(self, stream: str, writer: str) -> Sequence[Record]:
        return [()] if self._streams[stream].bring_back(writer) else []

    def _drain(self, stream: str, writer: str) -> Sequence[Record]:
        if not self._is_known(stream, writer):
            return []
        self._streams[stream].draining.add(writer)
        return [()]

    def _conclude(self, stream: str, writer: str) -> Sequence[Record]:
        return [()] if self._streams[stream].conclude_drain(writer) else []

    def _is_draining(self, stream: str, writer: str) -> Sequence[Record]:
        return [(writer in self._streams[stream].draining,)]

    def _remove(self, number: int) -> Sequence[Record]:
        stream, writer = self._numbers[number]
        self._streams[stream].remove(writer)
        return [()]

    def _fence(self, number: int) -> Sequence[Record]:
        stream, writer = self._numbers[number]
        return [()] if self._streams[stream].fence(writer) else []

    def _try_lock(self, lock_class: int, half: int) -> Sequence[Record]:
        stream, writer = self._numbers[lock_class - LOCK_CLASS_BASE]
        state = self._streams[stream].writers[writer]
        return [(state.session is None if half == SESSION else not state.transactions,)]

    def _holder(self, *_: object) -> Sequence[Record]:
        return [("a process",)]

    def _notify(self, stream: str) -> Sequence[Record]:
        self._notified(stream)
        return [()]

    def _sequences(self, *streams: str) -> Sequence[Record]:
        return [(name, self._streams[name].last) for name in streams]

    def _look(self, _: int, streams: Sequence[str]) -> Sequence[Record]:
        rows: list[Record] = []
        for name in streams:
            seen = self._streams[name].observation()
            for writer, state in seen.writers.items():
                known: Record = (name, writer, state.epoch, state.position)
                known = (*known, state.is_held, state.is_removed, seen.recorded, seen.trimmed)
                known = (*known, seen.incarnation, seen.floor)
                session: Record = (
                    (0, SESSION, "", True, "", None) if state.is_alive else (None,) * 6
                )
                rows.append((*known, *session))
                for holder in state.holders:
                    number = holder.identity[0]
                    words = holder.description
                    rows.append((*known, number, FIRST_RESERVATION, "", False, words, None))
        return rows


_WRITERS = "UPDATE synrepl._writers SET"

#: By the beginning of a statement; the first match counts.
_STATEMENTS: Mapping[str, Callable[..., Sequence[Record]]] = {
    f"{_WRITERS} draining = false": _MembershipTransaction._add,
    f"{_WRITERS} draining = true": _MembershipTransaction._drain,
    f"{_WRITERS} drained = true": _MembershipTransaction._conclude,
    "SELECT draining FROM synrepl._writers": _MembershipTransaction._is_draining,
    f"{_WRITERS} number = DEFAULT": _MembershipTransaction._remove,
    f"{_WRITERS} epoch = epoch + 1, held = false, died = true": _MembershipTransaction._fence,
    "SELECT EXISTS (SELECT FROM synrepl._writers": _MembershipTransaction._exists,
    "SELECT number, draining OR died OR held FROM": _MembershipTransaction._find_to_remove,
    "SELECT number FROM synrepl._writers WHERE stream = %s AND writer = %s AND held": (
        _MembershipTransaction._find_held
    ),
    "SELECT number FROM synrepl._writers": _MembershipTransaction._find,
    "SELECT synrepl.add_writer": _MembershipTransaction._register,
    "SELECT pg_try_advisory_xact_lock": _MembershipTransaction._try_lock,
    "SELECT coalesce(w.holder": _MembershipTransaction._holder,
    "SELECT pg_notify": _MembershipTransaction._notify,
    "SELECT %s, CASE WHEN is_called": _MembershipTransaction._sequences,
    "SELECT w.stream, w.writer, w.epoch": _MembershipTransaction._look,
}
