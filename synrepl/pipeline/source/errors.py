"""Errors of readers, and recovering our errors from the exceptions that Spark wraps them in."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from string import Formatter

from synrepl.core.errors import Refused, StorageError, SynreplError


class MustReland(StorageError):
    """stream {stream!r} has been trimmed up to {trimmed}, and this reader is at {after}: what lies between is gone from the table; must re-land from {trimmed}: take in anew what the stream is about, then start with a new checkpointLocation and starting={trimmed}"""


class ReadBeforeFailover(Refused):
    """the database failed over, and may have lost facts that this query has read: {what}. Look for them in what the query writes to, then start it once with on_failover=warn: it goes on from its checkpoint, misses nothing and reads nothing twice"""


class ReadBeyondDatabase(Refused):
    """the database has given out fewer tokens than this query has read: {what}. It is an earlier copy of the database that the query began with, a sequence was set back, or the option starting was beyond the stream's last fact; facts that get these tokens now would be skipped. Correct where the DSN leads, or restore the newer copy; to go on with this database, start with a new checkpointLocation and a new place for the output"""


class NotSettled(Refused):
    """the read of stream {stream!r} is to end at {ending}, and only {bound} is settled: what lies between may still be committed; wait, or leave the option ending out"""


class EndNotSettled(Refused):
    """not all that the database has is settled after {wait_s} s: {what}; read again later, let settle_wait_s be longer, or read only what is settled by then (ending=now)"""


class StreamAppeared(Refused):
    """stream {stream!r} is new in the database and does not fit the columns this query began with: {reason}; start the query again, it goes on from its checkpoint"""


class BatchHasStream(Refused):
    """the batch that the last run did not finish has facts of stream {stream!r}, which the option stream does not name now; start once with it as it was, then change it"""


class ErrorInTask(SynreplError):
    """{message}"""


#: A string as ``repr`` writes it, or the ``repr`` of another value.
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"].*"""

_LINE = re.compile(r"(synrepl(?:\.\w+)+)\.(\w+): (.*)")


def original_error(exception: BaseException) -> SynreplError | None:
    """The error of ours that caused one of Spark's exceptions; None if there is none.

    Spark passes the traceback of a worker on as text, so the result is a new error of the same
    class with the same message.

    :param exception: raised by an action, or by ``awaitTermination`` of a query
    """
    for each in _chain(exception):
        if isinstance(each, SynreplError):
            return each
        # The last error raised is the one that ended it.
        for line in reversed(_LINE.findall(str(each))):
            if (cls := _class(line[0], line[1])) is not None:
                return _again(cls, line[2].strip())
    return None


def _chain(exception: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = exception
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _class(module: str, name: str) -> type[SynreplError] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, SynreplError) else None


def _again(cls: type[SynreplError], message: str) -> SynreplError:
    """Reconstruct the error from its message; most of its fields come back as strings."""
    pattern, quoted, known = "", set(), set()
    for text, name, _, conversion in Formatter().parse(cls.template()):
        pattern += re.escape(text)
        if name is not None:
            written = _QUOTED if conversion == "r" else ".*"
            pattern += f"(?P={name})" if name in known else f"(?P<{name}>{written})"
            known.add(name)
            if conversion == "r":
                quoted.add(name)
    match = re.fullmatch(pattern, message)
    if match is not None:
        facts = {
            name: _unquoted(text) if name in quoted else text
            for name, text in match.groupdict().items()
        }
        error = cls(**facts)
        if str(error) == message:
            return error
    return ErrorInTask(message=message)


def _unquoted(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
