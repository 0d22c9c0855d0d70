"""The log observer: one line per event, as text for people or as JSON for machines."""

from __future__ import annotations

import time
from typing import TextIO, cast

from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.core import jsons
from synrepl.daemon.config.config import LogConfig

#: Maximum length of a message. Longer ones are cut, because they may contain a peer's input.
MAX_MESSAGE = 8192


@implementer(ILogObserver)
class LineObserver:
    """Writes each event to ``stream``; a traceback follows its line, or in JSON is a member of it.

    :param log: ``level`` is the lowest that is written; ``format`` ``json`` means one object
        per line, with ``time``, ``level``, ``namespace``, ``message`` and perhaps ``traceback``
    :param stream: the output, flushed after every event
    """

    def __init__(self, log: LogConfig, stream: TextIO) -> None:
        self._lowest = LogLevel.lookupByName(log.level)
        self._format = _as_json if log.format == "json" else _as_text
        self._stream = stream

    def __call__(self, event: LogEvent) -> None:
        """Write an event, if its level is high enough."""
        if event.get("log_level", LogLevel.info) < self._lowest:
            return
        self._stream.write(self._format(event) + "\n")
        self._stream.flush()


def begin(log: LogConfig, stream: TextIO) -> None:
    """Send this process's log to ``stream``. To be called once, when a process starts."""
    observer = cast(ILogObserver, LineObserver(log, stream))
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)


def _when(event: LogEvent) -> str:
    seconds = event.get("log_time", 0.0)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


def _level(event: LogEvent) -> str:
    level = event.get("log_level")
    return level.name if level is not None else "info"


def _message(event: LogEvent) -> str:
    text = formatEvent(event)
    if "log_traceback" in event:  # the message contains it too, for observers that do not know it
        text = text.removesuffix(event["log_traceback"]).rstrip()
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "…"


def _traceback(event: LogEvent) -> str | None:
    if "log_traceback" in event:
        return str(event["log_traceback"])
    failure = event.get("log_failure")
    return failure.getTraceback() if isinstance(failure, Failure) else None


def _as_text(event: LogEvent) -> str:
    # A message may contain a peer's input, whose line breaks and terminal codes are escaped.
    safe = _printable(_message(event))
    line = f"{_when(event)} {_level(event):<8} {event.get('log_namespace', '-')}: {safe}"
    traceback = _traceback(event)
    if traceback is None:
        return line
    return "\n".join([line, *map(_printable, traceback.rstrip().split("\n"))])


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _as_json(event: LogEvent) -> str:
    line = {
        "time": _when(event),
        "level": _level(event),
        "namespace": event.get("log_namespace"),
        "message": _message(event),
    }
    traceback = _traceback(event)
    if traceback is not None:
        line["traceback"] = traceback
    # A message may contain lone surrogates, which UTF-8 cannot encode.
    printable = {key: _encodable(value) for key, value in line.items()}
    return jsons.encode(printable).decode()


def _encodable(value: str | None) -> str | None:
    return None if value is None else value.encode("utf-8", "backslashreplace").decode()
