"""Whether a process should be given work, and if not, why."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from synrepl.services.announcing.announcer import Announcer
from synrepl.services.following.failures import HandlerFailures
from synrepl.services.status.stream_progress import LagTracker
from synrepl.services.writing.stream_writer import StreamWriter

#: Says what is wrong, for a person, or nothing.
Check = Callable[[], str | None]


#: After how many seconds a stream that is stuck makes a process not ready.
READY_LAG_S = 60.0


class Readiness:
    """All checks of one process. It is not ready before :meth:`started` was called.

    :param checks: asked each time, in order
    :param warnings: of the same kind; what they find leaves the process ready
    """

    def __init__(self, checks: Iterable[Check], warnings: Iterable[Check] = ()) -> None:
        self._checks = tuple(checks)
        self._warnings = tuple(warnings)
        self._started = False

    def started(self, yes: bool = True) -> None:
        """The process has started (or, with False, is about to stop)."""
        self._started = yes

    def reasons(self) -> list[str]:
        """Why it is not ready; nothing when it is."""
        if not self._started:
            return ["not started yet, or stopping"]
        return [reason for check in self._checks if (reason := check()) is not None]

    def warnings(self) -> list[str]:
        """What is wrong elsewhere, which somebody should look after."""
        return [warning for check in self._warnings if (warning := check()) is not None]

    def to_json(self) -> dict[str, object]:
        """``{"ready", "reasons", "warnings"}``."""
        reasons = self.reasons()
        return {"ready": not reasons, "reasons": reasons, "warnings": self.warnings()}


def streams_observable(announcer: Announcer) -> Check:
    """The last look at the streams in the database went well."""

    def check() -> str | None:
        error = announcer.last_error
        return None if error is None else f"cannot look at the streams: {error}"

    return check


def lease_is_held(writer: StreamWriter) -> Check:
    """This process is the writer that it is named after."""

    def check() -> str | None:
        if writer.is_open:
            return None
        why = "" if writer.refusal is None else f": {writer.refusal}"
        return f"the name of writer {writer.writer!r} is not held{why}"

    return check


def is_connected(connected: Callable[[], bool], where: str) -> Check:
    """There is a connection to the master."""
    return lambda: None if connected() else f"not connected to the master at {where}"


def handlers_succeed(failures: HandlerFailures) -> Check:
    """No handler fails again and again."""
    return failures.summary


def lag_below(watch: LagTracker, seconds: float) -> Check:
    """No stream has been behind for longer than ``seconds``; see :class:`~.stream_progress.LagTracker`."""

    def check() -> str | None:
        late = {n: lag for n, lag in watch.measure().items() if lag.seconds > seconds}
        if not late:
            return None
        worst = max(late, key=lambda name: late[name].seconds)
        told = f"stream {worst} is {late[worst].rows} rows behind for {late[worst].seconds:.0f} s"
        others = len(late) - 1
        return told if not others else f"{told}, and {others} more for over {seconds:g} s"

    return check
