"""Reads the replication-related entries of Synapse's logs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LINE = re.compile(r"^\d{4}-\S+ \S+ (?P<logger>\S+):\d+ (?P<level>[A-Z]+) (?P<message>.*)$")

_SUBSCRIBES = re.compile(r"Subscribing to replication stream: '?(\w+)'? from (\S+)")
_DISCARDS = re.compile(r"Discarding RDATA (?:from|for)(?: unconnected)? stream '?(\w+)'?")

_GRAVE = frozenset({"ERROR", "CRITICAL"})

#: Patterns of expected errors, each with its reason.
_REASONS = (
    (r"Remote reported error: 'server shutting down'", "our master said so when SIGTERM ended it"),
    (r"Lost replication conn", "our master was ended"),
    (r"Failed to connect to replication", "our master was away"),
    (r"TypeError: 'NoneType' object is not iterable", "1.0 knows no null keys of a cache"),
    (r"RuntimeError: dictionary changed size", "its metrics were read while it made new ones"),
    (r"Could not find event \$event\d+:", "an appended row names an event that no database has"),
)

_VARYING = (
    (r"\$event\d+", "$event…"),
    (r"\[[\w.-]+-\w{5}\]", "[…]"),
    (r"'([A-Z_]+ )?[^']*'", r"'\g<1>…'"),
    (r"\{'.*", "{…}"),
    (r"0x[0-9a-f]+", "0x…"),
    (r"(?<=from )\d+(?= )|\b\d+(\.\d+)*\b", "N"),
)


class Entry(NamedTuple):
    """An entry of a log.

    :ivar cause: the last line of the traceback that follows it; "" if there is none
    """

    logger: str
    level: str
    message: str
    cause: str

    @property
    def is_error(self) -> bool:
        """True for ERROR and above."""
        return self.level in _GRAVE

    @property
    def about_replication(self) -> bool:
        """True if the replication code logged it."""
        return "replication" in self.logger

    @property
    def reason(self) -> str | None:
        """Why the error is expected; None if it is not."""
        text = f"{self.message} {self.cause}"
        return next((why for pattern, why in _REASONS if re.search(pattern, text)), None)

    @property
    def kind(self) -> str:
        """The message and its cause, without the parts that vary."""
        text = f"{self.message}: {self.cause}" if self.cause else self.message
        for pattern, instead in _VARYING:
            text = re.sub(pattern, instead, text)
        return text[:120]


def entries(log: Path) -> list[Entry]:
    """All entries of a log."""
    return list(_entries(log.read_text(errors="replace").splitlines()))


def subscriptions(log: Path) -> list[tuple[str, int]]:
    """The (stream, token) pairs that a legacy worker has logged as requested, in order."""
    found = _SUBSCRIBES.findall(log.read_text(errors="replace"))
    return [(stream, int(token)) for stream, token in found]


def discarded(log: Path) -> Counter[str]:
    """Number of RDATA lines that a modern worker has logged as dropped (at DEBUG), by stream."""
    return Counter(_DISCARDS.findall(log.read_text(errors="replace")))


def _continues(last: Entry, entry: Entry) -> bool:
    """True if an entry continues a traceback that was printed line by line."""
    begun = last.message.startswith("Traceback ") and last.logger == entry.logger
    return begun and (not last.cause or last.cause.startswith(" "))


def _entries(lines: list[str]) -> Iterator[Entry]:
    last: Entry | None = None
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            if last is not None and line.strip():
                last = last._replace(cause=line.strip())
            continue
        entry = Entry(**match.groupdict(), cause="")
        if last is not None and _continues(last, entry):
            last = last._replace(cause=entry.message)
            continue
        if last is not None:
            yield last
        last = entry
    if last is not None:
        yield last
