"""The interface of sources for ``synrepl tap record``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from synrepl.core.errors import Unavailable
from synrepl.tools.tap.recording import RecordingFile


class RecordingEnded(Unavailable):
    """the connection to {where} has ended: {reason}; what was said until then is in {path}"""


class RecordingNotWritable(Unavailable):
    """cannot write to {path}: {reason}; what was said until then is in it"""


class RecordingSource(Protocol):
    """Something to record."""

    async def record(
        self,
        reactor: Any,
        recording: RecordingFile,
        seconds: float | None,
        say: Callable[[str], object],
    ) -> None:
        """Record until it ends, is cancelled, or so many seconds have passed.

        :param say: tells a person what happens, in a sentence
        :raises Unavailable: nobody is there; then nothing is in the recording
        :raises RecordingEnded: the other side did not go on
        :raises RecordingNotWritable: no room is left
        """
