"""Named followers as a master sees them: which are missing, and which do not get on.

A worker renews its lease every few seconds, whichever way it is connected, so the database
shows which ones run. Its positions on record show whether it gets on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.sources import LINEAR
from synrepl.services.status.follower_lag import FollowerLag, StreamPositions, follower_lags
from synrepl.services.status.readiness import Check
from synrepl.services.status.stream_progress import Lag, LagTracker, StreamProgress, writer_label
from synrepl.storage.store import NamedFollower

#: Seconds between two looks at the record.
LOOK_S = 5.0

#: How many followers a summary names.
MOST_NAMED = 5


class FollowerHealth(StrEnum):
    """How a named follower is, in one word."""

    OK = "ok"
    BEHIND = "behind"  #: it moves, and has been behind for a while
    STUCK = "stuck"  #: it does not move while its stream does
    MISSING = "missing"  #: its process does not run, or hangs
    UNWATCHED = "unwatched"  #: it is no process that has to run, such as a lake between two runs


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """When a follower counts as missing or stuck.

    :ivar expected: names of followers that have to run, besides those that have a lease
    :ivar silent_s: seconds without a sign of life after which one is missing
    :ivar stuck_s: seconds for which one may be behind
    """

    expected: Collection[str] = ()
    silent_s: float = 30.0
    stuck_s: float = 60.0


@dataclass(frozen=True, slots=True)
class FollowerReport:
    """One named follower, as it was found.

    :ivar seen_s: seconds since its last sign of life; None where none is on record
    :ivar lease_s: remaining time of its lease; None without one
    :ivar connected: a client of that name is connected to this master over TCP
    :ivar lags: by stream, the writer that it is furthest behind
    :ivar seconds: for how long it has been behind, by stream
    :ivar trouble: what is wrong, for a person; None when nothing is
    """

    name: str
    health: FollowerHealth
    seen_s: float | None
    lease_s: float | None
    connected: bool
    lags: Mapping[str, FollowerLag] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    trouble: str | None = None

    @property
    def needs_attention(self) -> bool:
        """Somebody has to look after it."""
        return self.health in (FollowerHealth.MISSING, FollowerHealth.STUCK)

    def to_json(self) -> dict[str, Any]:
        """All of it; of the streams those in which it is behind."""
        return {
            "name": self.name,
            "health": self.health.value,
            "trouble": self.trouble,
            "seen_s": None if self.seen_s is None else round(self.seen_s, 3),
            "lease_s": None if self.lease_s is None else round(self.lease_s, 3),
            "connected": self.connected,
            "lag_rows": max((lag.tokens for lag in self.lags.values()), default=0),
            "lag_seconds": round(max(self.seconds.values(), default=0.0), 3),
            "streams": {
                stream: {
                    "writer": writer_label(lag.writer),
                    "position": lag.position,
                    "known": lag.known,
                    "lag_rows": lag.tokens,
                    "lag_seconds": round(self.seconds[stream], 3),
                    "handlers": list(lag.handlers),
                }
                for stream, lag in sorted(self.lags.items())
                if lag.tokens
            },
        }


class NamedFollowerStore(Protocol):
    """Where named followers are on record."""

    async def named_followers(self) -> Sequence[NamedFollower]:
        """See :meth:`synrepl.storage.store.FactStore.named_followers`."""


class _StreamLag(NamedTuple):
    """A follower in one stream.

    :ivar reached: its lowest position that is behind a writer
    :ivar known: the highest position of a writer
    :ivar worst: the lag behind the writer that it is furthest behind
    """

    reached: Token
    known: Token
    worst: FollowerLag


class _Place(NamedTuple):
    """A position of a follower in a stream, and when it was first seen there."""

    position: Token
    since: float


class ExpectedFollowers:
    """Looks at the record from time to time.

    While the record cannot be read, the last look counts: nobody is missed because the
    database is away.

    :param states: positions of the master's streams
    :param connected: names of the clients that are connected
    """

    def __init__(
        self,
        scheduler: Scheduler,
        followers: NamedFollowerStore,
        states: Mapping[str, StreamState],
        connected: Callable[[], Collection[str]],
        limits: FollowerLimits,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._followers = followers
        self._states = states
        self._connected = connected
        self._limits = limits
        self._log = log
        self._found: Mapping[str, NamedFollower] = {}
        self._lags: Mapping[str, Mapping[str, _StreamLag]] = {}
        self._places: dict[tuple[str, str], _Place] = {}
        self._watch = LagTracker(scheduler, self._progress)
        self._watches_since = scheduler.seconds()
        self._away_since: dict[str, float] = {}
        self._logged: set[str] = set()

    async def run(self) -> None:
        """Look for as long as the process runs."""
        while True:
            try:
                await self.look()
            except SynreplError as error:
                self._log.warn("cannot look at the named followers: {error}", error=error)
            await self._scheduler.sleep(min(LOOK_S, self._limits.silent_s / 2))

    async def look(self) -> None:
        """Look once, and log who has gone missing or stuck since the last look, and who came back.

        :raises SynreplError: the record cannot be read
        """
        found = await self._followers.named_followers()
        now, streams = self._scheduler.seconds(), self._streams()
        expected, connected = self._limits.expected, self._connected()
        self._found = {o.name: o for o in found if o.lease_s is not None or o.name in expected}
        self._lags = {
            name: _by_stream(follower_lags(one, streams)) for name, one in self._found.items()
        }
        for name in expected:
            if name in connected:
                self._away_since.pop(name, None)
            else:
                self._away_since.setdefault(name, now)
        places = {
            (name, stream): lag.reached
            for name, lags in self._lags.items()
            for stream, lag in lags.items()
        }
        self._places = {
            key: before
            if (before := self._places.get(key)) is not None and before.position == at
            else _Place(at, now)
            for key, at in places.items()
        }
        self._tell(self.reports())

    def reports(self) -> list[FollowerReport]:
        """All named followers, those that are missing or stuck first."""
        lags = self._watch.measure()
        connected = self._connected()
        names = sorted({*self._found, *self._limits.expected})
        reports = [self._report(name, name in connected, lags) for name in names]
        return sorted(reports, key=lambda report: not report.needs_attention)

    def trouble(self) -> str | None:
        """Who is missing or stuck, for a person."""
        told = [report.trouble for report in self.reports() if report.needs_attention]
        more = len(told) - MOST_NAMED
        listed = "; ".join(each for each in told[:MOST_NAMED] if each is not None)
        return (listed + (f"; and {more} more" if more > 0 else "")) or None

    # -- inside -----------------------------------------------------------------------

    def _streams(self) -> dict[str, StreamPositions]:
        return {
            name: StreamPositions(
                state.linear,
                state.positions,
                0 if state.observation is None else state.observation.trimmed,
                0 if state.observation is None else state.observation.floor,
            )
            for name, state in self._states.items()
            if not state.stream.in_memory
        }

    def _progress(self) -> list[StreamProgress]:
        return [
            StreamProgress(_label(name, stream), lag.reached, lag.known)
            for name, lags in self._lags.items()
            for stream, lag in lags.items()
        ]

    def _report(self, name: str, connected: bool, lags: Mapping[str, Lag]) -> FollowerReport:
        follower = self._found.get(name)
        if follower is None:
            silent = self._silence(name, None)
            health = FollowerHealth.OK if silent is None else FollowerHealth.MISSING
            return FollowerReport(
                name, health, None, None, connected, trouble=_missing(name, silent)
            )
        furthest = {stream: lag.worst for stream, lag in self._lags[name].items()}
        seconds = {stream: lags[_label(name, stream)].seconds for stream in furthest}
        silent = self._silence(name, follower.seen_s)
        health, trouble = FollowerHealth.OK, _missing(name, silent)
        late = {s: for_s for s, for_s in seconds.items() if for_s > self._limits.stuck_s}
        if follower.seen_s is None and name not in self._limits.expected:
            health = FollowerHealth.UNWATCHED
        elif trouble is not None:
            health = FollowerHealth.MISSING
        elif late:
            stuck = {stream: for_s for stream, for_s in late.items() if self._stands(name, stream)}
            health = FollowerHealth.STUCK if stuck else FollowerHealth.BEHIND
            trouble = _behind(name, furthest, stuck or late, is_stuck=bool(stuck))
        return FollowerReport(
            name, health, follower.seen_s, follower.lease_s, connected, furthest, seconds, trouble
        )

    def _silence(self, name: str, seen_s: float | None) -> float | None:
        """For how long a follower has been missing; None while it is not.

        One that was silent while this master did not watch may have had no database.
        """
        now = self._scheduler.seconds()
        if seen_s is not None:
            watched = now - self._watches_since
            return seen_s if min(seen_s, watched) > self._limits.silent_s else None
        away_since = self._away_since.get(name)
        if away_since is None or now - away_since <= self._limits.silent_s:
            return None
        return now - away_since

    def _stands(self, name: str, stream: str) -> bool:
        place = self._places[name, stream]
        return self._scheduler.seconds() - place.since > self._limits.stuck_s

    def _tell(self, reports: Collection[FollowerReport]) -> None:
        wanting = {report.name for report in reports if report.needs_attention}
        for report in reports:
            if report.needs_attention and report.name not in self._logged:
                self._log.warn("{trouble}", trouble=report.trouble)
            elif report.name in self._logged and not report.needs_attention:
                self._log.info("follower {name} is back", name=report.name)
        self._logged = wanting


def followers_healthy(expected: ExpectedFollowers) -> Check:
    """No follower that has to run is missing or stuck."""
    return expected.trouble


def _label(follower: str, stream: str) -> str:
    return f"{follower} {stream}"


def _by_stream(lags: Iterable[FollowerLag]) -> dict[str, _StreamLag]:
    found: dict[str, _StreamLag] = {}
    for lag in lags:
        reached = lag.known - lag.tokens if lag.tokens else lag.known
        before = found.get(lag.stream)
        if before is None:
            found[lag.stream] = _StreamLag(reached, lag.known, lag)
            continue
        behind = [
            each for each in (before, _StreamLag(reached, lag.known, lag)) if each.worst.tokens
        ]
        known = max(before.known, lag.known)
        worst = max(before.worst, lag, key=lambda each: each.tokens)
        found[lag.stream] = _StreamLag(
            min((e.reached for e in behind), default=known), known, worst
        )
    return found


def _missing(name: str, silent_s: float | None) -> str | None:
    if silent_s is None:
        return None
    return f"follower {name} is missing: no sign of it for {silent_s:.0f} s"


def _behind(
    name: str, lags: Mapping[str, FollowerLag], late: Mapping[str, float], *, is_stuck: bool
) -> str:
    worst = max(late, key=lambda stream: late[stream])
    lag = lags[worst]
    of = "" if lag.writer == LINEAR else f" of {lag.writer}"
    handlers = f", held up by {', '.join(lag.handlers)}" if lag.handlers else ""
    others = f", and behind in {len(late) - 1} more streams" if len(late) > 1 else ""
    at = "has no position" if lag.position is None else f"is at {lag.position}"
    how = "is stuck" if is_stuck else "is behind"
    return (
        f"follower {name} {how}: it {at} in {worst}{of}, which is at {lag.known}, for"
        f" {late[worst]:.0f} s{handlers}{others}"
    )
