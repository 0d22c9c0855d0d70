"""The health of named followers, as a master sees it: which are missing, and which are stuck.

A worker renews its lease every few seconds, whatever its transport, so the database shows which
workers run. Their positions on record show whether they make progress.
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

#: Seconds between two checks.
CHECK_S = 5.0

#: Maximum number of followers named in a summary.
MOST_NAMED = 5


class FollowerHealth(StrEnum):
    """The health of a named follower, in one word."""

    OK = "ok"
    BEHIND = "behind"  #: it makes progress, but has been behind for a while
    STUCK = "stuck"  #: it makes no progress while its stream advances
    MISSING = "missing"  #: its process does not run, or hangs
    UNWATCHED = "unwatched"  #: it need not run all the time, such as a lake between two runs


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """When a follower counts as missing or stuck.

    :ivar expected: names of followers that have to run, besides those with a lease
    :ivar silent_s: seconds without a heartbeat after which a follower counts as missing
    :ivar stuck_s: seconds for which a follower may be behind
    """

    expected: Collection[str] = ()
    silent_s: float = 30.0
    stuck_s: float = 60.0


@dataclass(frozen=True, slots=True)
class FollowerReport:
    """The state of one named follower.

    :ivar seen_s: seconds since its last heartbeat; None if none is on record
    :ivar lease_s: remaining seconds of its lease; None without one
    :ivar connected: whether a client of that name is connected to this master over TCP
    :ivar lags: by stream, the lag behind the writer that it is furthest behind
    :ivar seconds: by stream, for how long it has been behind
    :ivar trouble: what is wrong, for a person; None if nothing is
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
        """Whether an operator should look at it."""
        return self.health in (FollowerHealth.MISSING, FollowerHealth.STUCK)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON, with the streams in which it is behind."""
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
    """Reads the record of named followers."""

    async def named_followers(self) -> Sequence[NamedFollower]:
        """See :meth:`synrepl.storage.store.FactStore.named_followers`."""


class _StreamLag(NamedTuple):
    """The lag of a follower in one stream.

    :ivar reached: its lowest position that is behind a writer
    :ivar known: the highest position of a writer
    :ivar worst: the lag behind the writer that it is furthest behind
    """

    reached: Token
    known: Token
    worst: FollowerLag


class _PositionSince(NamedTuple):
    """A position of a follower in a stream, and when it was first seen there."""

    position: Token
    since: float


class ExpectedFollowers:
    """Checks the named followers periodically.

    While the record cannot be read, the last result stays in force, so that an outage of the
    database does not make followers count as missing.

    :param states: the positions of the master's streams
    :param connected: returns the names of the connected clients
    :param limits: when a follower counts as missing or stuck
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
        self._positions: dict[tuple[str, str], _PositionSince] = {}
        self._lag_tracker = LagTracker(scheduler, self._progress)
        self._watching_since = scheduler.seconds()
        self._away_since: dict[str, float] = {}
        self._logged: set[str] = set()

    async def run(self) -> None:
        """Check the followers for as long as the process runs."""
        while True:
            try:
                await self.check()
            except SynreplError as error:
                self._log.warn("cannot look at the named followers: {error}", error=error)
            await self._scheduler.sleep(min(CHECK_S, self._limits.silent_s / 2))

    async def check(self) -> None:
        """Check once, and log followers that went missing, became stuck, or recovered since then.

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
        positions = {
            (name, stream): lag.reached
            for name, lags in self._lags.items()
            for stream, lag in lags.items()
        }
        self._positions = {
            key: before
            if (before := self._positions.get(key)) is not None and before.position == at
            else _PositionSince(at, now)
            for key, at in positions.items()
        }
        self._log_changes(self.reports())

    def reports(self) -> list[FollowerReport]:
        """All named followers, missing and stuck ones first."""
        lags = self._lag_tracker.measure()
        connected = self._connected()
        names = sorted({*self._found, *self._limits.expected})
        reports = [self._report(name, name in connected, lags) for name in names]
        return sorted(reports, key=lambda report: not report.needs_attention)

    def trouble(self) -> str | None:
        """The missing and stuck followers, for a person; None if there are none."""
        troubles = [report.trouble for report in self.reports() if report.needs_attention]
        more = len(troubles) - MOST_NAMED
        listed = "; ".join(trouble for trouble in troubles[:MOST_NAMED] if trouble is not None)
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
            stuck = {
                stream: for_s for stream, for_s in late.items() if self._is_stuck(name, stream)
            }
            health = FollowerHealth.STUCK if stuck else FollowerHealth.BEHIND
            trouble = _behind(name, furthest, stuck or late, is_stuck=bool(stuck))
        return FollowerReport(
            name, health, follower.seen_s, follower.lease_s, connected, furthest, seconds, trouble
        )

    def _silence(self, name: str, seen_s: float | None) -> float | None:
        """For how many seconds a follower has been missing; None if it is not.

        A follower that was silent before this master ran may just have had no database.
        """
        now = self._scheduler.seconds()
        if seen_s is not None:
            watched = now - self._watching_since
            return seen_s if min(seen_s, watched) > self._limits.silent_s else None
        away_since = self._away_since.get(name)
        if away_since is None or now - away_since <= self._limits.silent_s:
            return None
        return now - away_since

    def _is_stuck(self, name: str, stream: str) -> bool:
        position = self._positions[name, stream]
        return self._scheduler.seconds() - position.since > self._limits.stuck_s

    def _log_changes(self, reports: Collection[FollowerReport]) -> None:
        wanting = {report.name for report in reports if report.needs_attention}
        for report in reports:
            if report.needs_attention and report.name not in self._logged:
                self._log.warn("{trouble}", trouble=report.trouble)
            elif report.name in self._logged and not report.needs_attention:
                self._log.info("follower {name} is back", name=report.name)
        self._logged = wanting


def followers_healthy(expected: ExpectedFollowers) -> Check:
    """A check that no follower is missing or stuck."""
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
            item for item in (before, _StreamLag(reached, lag.known, lag)) if item.worst.tokens
        ]
        known = max(before.known, lag.known)
        worst = max(before.worst, lag, key=lambda item: item.tokens)
        found[lag.stream] = _StreamLag(
            min((item.reached for item in behind), default=known), known, worst
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
