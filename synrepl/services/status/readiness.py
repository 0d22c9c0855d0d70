"""Whether a process is ready for work, and if not, why."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from synrepl.services.announcing.announcer import Announcer
from synrepl.services.following.failures import HandlerFailures
from synrepl.services.status.stream_progress import LagTracker
from synrepl.services.writing.stream_writer import StreamWriter

#: Returns what is wrong, for a person, or None.
Check = Callable[[], str | None]


#: Seconds after which a stuck stream makes a process not ready.
READY_LAG_S = 60.0


class Readiness:
    """The checks of one process, which is not ready before :meth:`started` was called.

    :param checks: run on each request, in order
    :param warnings: checks whose findings leave the process ready
    """

    def __init__(self, checks: Iterable[Check], warnings: Iterable[Check] = ()) -> None:
        self._checks = tuple(checks)
        self._warnings = tuple(warnings)
        self._started = False

    def started(self, yes: bool = True) -> None:
        """The process has started, or with False is about to stop."""
        self._started = yes

    def reasons(self) -> list[str]:
        """Why the process is not ready; empty if it is."""
        if not self._started:
            return ["not started yet, or stopping"]
        return [reason for check in self._checks if (reason := check()) is not None]

    def warnings(self) -> list[str]:
        """Problems that leave the process ready, but need attention."""
        return [warning for check in self._warnings if (warning := check()) is not None]

    def to_json(self) -> dict[str, object]:
        """``{"ready", "reasons", "warnings"}``."""
        reasons = self.reasons()
        return {"ready": not reasons, "reasons": reasons, "warnings": self.warnings()}


def streams_observable(announcer: Announcer) -> Check:
    """A check that the last poll of the streams in the database succeeded."""

    def check() -> str | None:
        error = announcer.last_error
        return None if error is None else f"cannot look at the streams: {error}"

    return check


def lease_is_held(writer: StreamWriter) -> Check:
    """A check that this process holds its writer's lease."""

    def check() -> str | None:
        if writer.is_open:
            return None
        why = "" if writer.refusal is None else f": {writer.refusal}"
        return f"the name of writer {writer.writer!r} is not held{why}"

    return check


def is_connected(connected: Callable[[], bool], where: str) -> Check:
    """A check that there is a connection to the master."""
    return lambda: None if connected() else f"not connected to the master at {where}"


def handlers_succeed(failures: HandlerFailures) -> Check:
    """A check that no handler fails repeatedly."""
    return failures.summary


def lag_below(watch: LagTracker, seconds: float) -> Check:
    """A check that no stream has been behind for longer than ``seconds``; see :class:`.LagTracker`."""

    def check() -> str | None:
        late = {n: lag for n, lag in watch.measure().items() if lag.seconds > seconds}
        if not late:
            return None
        worst = max(late, key=lambda name: late[name].seconds)
        message = (
            f"stream {worst} is {late[worst].rows} rows behind for {late[worst].seconds:.0f} s"
        )
        others = len(late) - 1
        return message if not others else f"{message}, and {others} more for over {seconds:g} s"

    return check
