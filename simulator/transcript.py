"""What happened, to be read by a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.clock import EPOCH


class Transcript:
    """Lines with the time and who did it; put into words only when somebody reads them.

    :param seconds: gives the time
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._closed = False
        self._lines: list[tuple[float, str, str, dict[str, object]]] = []

    def add(self, who: str, words: str, **facts: object) -> None:
        """Note something; ``facts`` fill the placeholders of ``words`` later."""
        if self._closed:
            return
        self._lines.append((self._seconds(), who, words, facts))

    def close(self) -> None:
        """What comes from now on is not part of the story."""
        self._closed = True

    def lines(self) -> Iterator[str]:
        """The lines, as text."""
        for when, who, words, facts in self._lines:
            yield f"{when - EPOCH:9.4f}  {who:<12} {words.format(**facts)}"

    def log(self, who: str) -> ProcessLog:
        """A log for the services of one process."""
        return ProcessLog(self, who)


class ProcessLog:
    """The log of one process (services take it as their ``Log``)."""

    def __init__(self, transcript: Transcript, who: str) -> None:
        self._transcript = transcript
        self._who = who

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Something a person may want to know."""
        self._transcript.add(self._who, format, **facts)

    def warn(self, format: str, **facts: object) -> None:  # noqa: A002
        """Something a person should know."""
        self._transcript.add(self._who, "! " + format, **facts)
