"""The ``followers`` section of a master's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from synrepl.daemon.config import values
from synrepl.daemon.config.decode import Section, Unfit
from synrepl.services.status.expected_followers import FollowerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowersConfig(Section):
    """When a named follower counts as missing or stuck; times in seconds.

    :ivar expected: names of followers that have to run, besides the workers that hold a lease
    :ivar required: the master is not ready while one of them is missing or stuck
    :ivar silent_after: time without a sign of life after which a follower is missing
    :ivar stuck_after: time without progress, while its stream advances, after which it is stuck
    """

    expected: tuple[values.FollowerName, ...] = ()
    required: bool = False
    silent_after: values.Timeout = 30.0
    stuck_after: values.Timeout = 60.0

    @property
    def limits(self) -> FollowerLimits:
        """These settings, for the service that watches followers."""
        return FollowerLimits(self.expected, self.silent_after, self.stuck_after)

    def faults(self) -> Iterator[Unfit]:
        for name in sorted({name for name in self.expected if self.expected.count(name) > 1}):
            yield Unfit(key="expected", reason=f"{name!r} appears twice")
