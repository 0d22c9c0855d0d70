"""The transcript of a run, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.clock import EPOCH


class Transcript:
    """Entries with time and actor, formatted only when they are read.

    :param seconds: returns the time
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._closed = False
        self._lines: list[tuple[float, str, str, dict[str, object]]] = []

    def add(self, who: str, words: str, **facts: object) -> None:
        """Add an entry; ``facts`` fill the placeholders of ``words`` when it is read."""
        if self._closed:
            return
        self._lines.append((self._seconds(), who, words, facts))

    def close(self) -> None:
        """Ignore further entries."""
        self._closed = True

    def lines(self) -> Iterator[str]:
        """The lines, as text."""
        for when, who, words, facts in self._lines:
            yield f"{when - EPOCH:9.4f}  {who:<12} {words.format(**facts)}"

    def log(self, who: str) -> ProcessLog:
        """The log of one process."""
        return ProcessLog(self, who)


class ProcessLog:
    """The log of one process, which services use as their ``Log``."""

    def __init__(self, transcript: Transcript, who: str) -> None:
        self._transcript = transcript
        self._who = who

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Log at level info."""
        self._transcript.add(self._who, format, **facts)

    def warn(self, format: str, **facts: object) -> None:  # noqa: A002
        """Log at level warning."""
        self._transcript.add(self._who, "! " + format, **facts)
