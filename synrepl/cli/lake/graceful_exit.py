"""Signal handling of commands with a Spark session: Spark is stopped before they exit."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from synrepl.cli.terminal import interruptible


class _Terminated(BaseException):
    """SIGTERM was received."""


@contextmanager
def graceful_exit() -> Iterator[None]:
    """Exit with 130 on Ctrl-C, silently; on SIGTERM, end by that signal once Spark is stopped.

    A process that is killed at once leaves behind Spark's scratch files, and Java for a moment.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with interruptible():
            yield
    except _Terminated:
        # End by the signal itself: a clean exit for systemd, status 143 for a shell.
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated
