"""Dead letters: facts that a handler failed on, as functions of a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from synrepl.core.errors import Refused
from synrepl.core.tokens import Token
from synrepl.storage.database import Transaction

#: Maximum number of dead letters in one listing.
MOST_LISTED = 1_000

ADD = """
    INSERT INTO synrepl._dead_letters AS d (follower, handler, stream, writer, token,
        fact_writer, rows, error, message, traceback, attempts)
    VALUES %s
    ON CONFLICT (follower, handler, stream, writer, token)
    DO UPDATE SET rows = EXCLUDED.rows, error = EXCLUDED.error, message = EXCLUDED.message,
        traceback = EXCLUDED.traceback, attempts = d.attempts + EXCLUDED.attempts,
        replay_requested_at = NULL
"""

COUNTS = """
    SELECT handler, count(*) FROM synrepl._dead_letters WHERE follower = %s GROUP BY handler
"""

LOOK = """
    SELECT handler, stream, writer, token, fact_writer, rows::text, error, message, traceback,
        attempts, set_aside_at, replay_requested_at IS NOT NULL
    FROM synrepl._dead_letters
    WHERE follower = %s AND handler = coalesce(%s, handler) AND stream = coalesce(%s, stream)
        AND token = coalesce(%s, token) AND (replay_requested_at IS NOT NULL OR NOT %s)
    ORDER BY {order} LIMIT %s
"""
LOOK_OLDEST = LOOK.format(order="stream, writer, token, handler")
LOOK_NEWEST = LOOK.format(order="set_aside_at DESC, stream, writer, token, handler")

REQUEST_REPLAY = """
    UPDATE synrepl._dead_letters SET replay_requested_at = now()
    WHERE follower = %s AND handler = coalesce(%s, handler) AND stream = coalesce(%s, stream)
        AND token = coalesce(%s, token) AND NOT EXISTS (
            SELECT FROM unnest(%s::text[], %s::bigint[]) AS lost (stream, token)
            WHERE lost.stream = _dead_letters.stream AND lost.token = _dead_letters.token)
"""

#: Facts above the tokens known to have survived a failover: those in their table survived.
#: Below ``trimmed`` that is no longer known.
PERHAPS_LOST = """
    SELECT d.stream, 'synrepl.' || quote_ident(d.stream), s.counts_down,
        array_agg(DISTINCT d.token)
    FROM synrepl._dead_letters AS d JOIN synrepl._streams AS s USING (stream)
    WHERE d.follower = %s AND d.handler = coalesce(%s, d.handler)
        AND d.stream = coalesce(%s, d.stream) AND d.token = coalesce(%s, d.token)
        AND d.token > s.trimmed AND EXISTS (
            SELECT FROM synrepl._lost_ranges AS l
            WHERE l.stream = d.stream AND l.writer IN ('', d.fact_writer) AND l.floor > d.token
            GROUP BY l.incarnation HAVING max(l.kept) < d.token)
    GROUP BY d.stream, s.counts_down
"""

DISCARD = """
    DELETE FROM synrepl._dead_letters
    WHERE follower = %s AND handler = coalesce(%s, handler) AND stream = coalesce(%s, stream)
        AND token = coalesce(%s, token)
"""

TAKE = """
    DELETE FROM synrepl._dead_letters
    WHERE follower = %s AND handler = %s AND stream = %s AND writer = %s AND token = %s
        AND replay_requested_at IS NOT NULL
"""

FAILED_AGAIN = """
    UPDATE synrepl._dead_letters
    SET error = %s, message = %s, traceback = %s, attempts = attempts + 1,
        replay_requested_at = NULL
    WHERE follower = %s AND handler = %s AND stream = %s AND writer = %s AND token = %s
"""


#: Maximum number of lost facts named in an error.
_NAMED = 5


class FactsOfDeadLettersLost(Refused):
    """a failover of the database has lost the facts of these dead letters: {tokens}{more}; a replay would apply what does not exist any more: append them again if they are to be, and 'synrepl dead-letters discard' these"""


@dataclass(frozen=True, slots=True)
class FailureReason:
    """Why a handler failed on a fact.

    :ivar error: the type of the exception, ``message`` its text
    """

    error: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class FailedFact:
    """A fact that becomes a dead letter.

    :ivar writer: the writer of the handler's position; "" for the linear view
    :ivar fact_writer: the writer of the fact; "" where it is not known
    :ivar rows: its rows as a JSON array, each as on the wire
    :ivar attempts: number of times the handler was called with it
    """

    handler: str
    stream: str
    writer: str
    token: Token
    fact_writer: str
    rows: str
    reason: FailureReason
    attempts: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter.

    :ivar replay_requested: whether the worker is to pass it to the handler again
    :ivar is_lost: whether a failover lost the fact, so that it is not replayed
    """

    fact: FailedFact
    set_aside_at: datetime
    replay_requested: bool
    is_lost: bool = False

    @property
    def place(self) -> tuple[str, str, str, Token]:
        """The key: handler, stream, writer and token."""
        return self.fact.handler, self.fact.stream, self.fact.writer, self.fact.token

    def to_json(self) -> dict[str, Any]:
        """Everything but the rows and the traceback, for status pages."""
        fact = self.fact
        return {
            "handler": fact.handler,
            "stream": fact.stream,
            "writer": fact.writer,
            "token": fact.token,
            "error": fact.reason.error,
            "message": fact.reason.message,
            "attempts": fact.attempts,
            "set_aside_at": self.set_aside_at.isoformat(),
            "replay_requested": self.replay_requested,
            "lost": self.is_lost,
        }


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters of a follower; None matches any value."""

    handler: str | None = None
    stream: str | None = None
    token: Token | None = None


def add(txn: Transaction, follower: str, facts: Iterable[FailedFact]) -> None:
    """Store facts as dead letters; for one that is stored already, the reason is replaced."""
    # What a real Synapse sends without order may be among them twice.
    once = {(fact.handler, fact.stream, fact.writer, fact.token): fact for fact in facts}
    rows = [
        (
            follower, fact.handler, fact.stream, fact.writer, fact.token, fact.fact_writer,
            fact.rows, fact.reason.error, fact.reason.message, fact.reason.traceback,
            fact.attempts,
        )
        for fact in once.values()
    ]  # fmt: skip
    if rows:
        txn.insert_many(ADD, rows)


def counts(txn: Transaction, follower: str) -> Mapping[str, int]:
    """How many there are, by handler."""
    return {str(handler): int(count) for handler, count in txn.execute(COUNTS, (follower,))}


def look(
    txn: Transaction,
    follower: str,
    selection: DeadLetterFilter = DeadLetterFilter(),  # it is frozen
    *,
    newest: bool = False,
    requested: bool = False,
    limit: int = MOST_LISTED,
) -> list[DeadLetter]:
    """List dead letters, in the order of their tokens.

    :param newest: list the newest ones instead, newest first
    :param requested: only those whose replay was requested
    """
    txn.execute(
        LOOK_NEWEST if newest else LOOK_OLDEST,
        (follower, selection.handler, selection.stream, selection.token, requested, limit),
    )
    found = txn.fetchall()
    gone = lost(txn, follower, selection) if found else frozenset()
    return [
        DeadLetter(
            FailedFact(
                str(handler), str(stream), str(writer), int(token), str(fact_writer), str(rows),
                FailureReason(str(error), str(message), str(traceback)), int(attempts),
            ),
            at,
            bool(again),
            (str(stream), int(token)) in gone,
        )
        for handler, stream, writer, token, fact_writer, rows, error, message, traceback,
            attempts, at, again in found
    ]  # fmt: skip


def lost(
    txn: Transaction, follower: str, selection: DeadLetterFilter
) -> frozenset[tuple[str, Token]]:
    """The facts of dead letters that a failover lost, as (stream, token)."""
    found: set[tuple[str, Token]] = set()
    txn.execute(PERHAPS_LOST, _values(follower, selection))
    for stream, table, counts_down, tokens in txn.fetchall():
        sign = -1 if counts_down else 1
        txn.execute(
            f"SELECT stream_id FROM {table} WHERE stream_id = ANY(%s)",
            ([sign * token for token in tokens],),
        )
        left = {abs(int(stream_id)) for (stream_id,) in txn.fetchall()}
        found |= {(str(stream), int(token)) for token in tokens if token not in left}
    return frozenset(found)


def request_replay(txn: Transaction, follower: str, selection: DeadLetterFilter) -> int:
    """Request the replay of dead letters, except those of lost facts; return their number.

    :raises FactsOfDeadLettersLost: all of them are of lost facts
    """
    gone = sorted(lost(txn, follower, selection))
    streams, tokens = [stream for stream, _ in gone], [token for _, token in gone]
    values = (*_values(follower, selection), streams, tokens)
    count = txn.execute(REQUEST_REPLAY, values).rowcount
    if gone and not count:
        raise FactsOfDeadLettersLost(
            tokens=", ".join(f"{token} of {stream}" for stream, token in gone[:_NAMED]),
            more=f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else "",
        )
    return count


def discard(txn: Transaction, follower: str, selection: DeadLetterFilter) -> int:
    """Delete dead letters; return their number."""
    return txn.execute(DISCARD, _values(follower, selection)).rowcount


def take(txn: Transaction, follower: str, letter: DeadLetter) -> bool:
    """Delete a dead letter that is being replayed; False if it is gone or no longer requested."""
    return txn.execute(TAKE, (follower, *letter.place)).rowcount == 1


def failed_again(
    txn: Transaction, follower: str, letter: DeadLetter, reason: FailureReason
) -> None:
    """Record that the handler failed on a replayed dead letter."""
    txn.execute(
        FAILED_AGAIN,
        (reason.error, reason.message, reason.traceback, follower, *letter.place),
    )


def _values(follower: str, selection: DeadLetterFilter) -> tuple[object, ...]:
    return follower, selection.handler, selection.stream, selection.token
