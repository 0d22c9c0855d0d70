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
    """Traffic that can be recorded."""

    async def record(
        self,
        reactor: Any,
        recording: RecordingFile,
        seconds: float | None,
        notify: Callable[[str], object],
    ) -> None:
        """Record until the connection ends, the coroutine is cancelled, or ``seconds`` have passed.

        :param notify: prints a sentence about progress
        :raises Unavailable: the connection cannot be made; the recording is empty
        :raises RecordingEnded: the other side ended the connection
        :raises RecordingNotWritable: the recording cannot be written, such as on a full disk
        """
