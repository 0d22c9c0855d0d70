"""The JVM of a session: started quietly, ended for certain."""

from __future__ import annotations

import logging
import os
import shlex
import signal
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from subprocess import PIPE, Popen, TimeoutExpired
from threading import Thread
from time import monotonic
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from synrepl.core.errors import Unavailable

#: What Spark writes to its log is here at level INFO, a line a record.
log = logging.getLogger("synrepl.spark")

#: Seconds that ending in good order may take, and then a polite signal, and then the other one.
PATIENCE_S = 10.0

#: Seconds until a JVM has to be there; on a machine with nothing else to do it takes 2.
START_PATIENCE_S = 120.0

#: Seconds between two looks whether it is.
_LOOK_S = 0.05

_TAIL = 40
_HEAD = Struct("!ii")


class SparkNotStarted(Unavailable):
    """Spark did not start ({reason}); the last it said: {tail}"""


class Output:
    """What a JVM writes, kept off the terminal: its last lines, and all of it in our log.

    :ivar end: the file descriptor to write to; the reader ends when its last copy is closed
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_TAIL)
        reading, self.end = os.pipe()
        self._thread = Thread(target=self._drain, args=(reading,), name="spark log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close our copy of :attr:`end`."""
        if self.end >= 0:
            os.close(self.end)
            self.end = -1

    def tail(self) -> str:
        """The last lines, after the JVM has gone."""
        self._thread.join(PATIENCE_S)
        return " | ".join(self._lines) or "(nothing)"

    def _drain(self, reading: int) -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if text := line.rstrip():
                    self._lines.append(text)
                    log.info("%s", text)


@contextmanager
def changed_environ(changes: Mapping[str, str | None]) -> Iterator[None]:
    """This process's environment with ``changes``; None takes a variable away."""
    before = {name: os.environ.get(name) for name in changes}
    _set_environ(changes)
    try:
        yield
    finally:
        _set_environ(before)


def start(output: Output, told: Path) -> Any:
    """Start a JVM from the environment as it is now; gives its gateway.

    PySpark can start one, too. But whoever is interrupted meanwhile gets no hold of the process,
    and one that ends with status 0 is waited for without end.

    :param told: a file that is not there yet, in a private directory; it tells of the gateway
    :raises SparkNotStarted: it ended at once, or is not there after :data:`START_PATIENCE_S`
    """
    try:
        process = _launch(output, told)
    except OSError as error:
        raise SparkNotStarted(reason=error.strerror or error, tail="(nothing)") from None
    finally:
        output.close()
    try:
        return _connect(process, told)
    except BaseException as error:
        process.kill()
        process.wait()
        # What helped to start it has the pipe's other end until it is gone, too.
        tail = output.tail()
        if isinstance(error, (Py4JError, OSError, _NotThere)):
            raise SparkNotStarted(reason=error, tail=tail) from None
        raise


def end(gateway: Any) -> None:
    """End the JVM behind a gateway; on return there is no such process, even if interrupted."""
    process: Popen[bytes] = gateway.proc
    try:
        with suppress(Py4JError, OSError):
            gateway.shutdown()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()  # which it takes as the sign to go
        for step in (process.terminate, process.kill):
            try:
                process.wait(PATIENCE_S)
                break
            except TimeoutExpired:
                step()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if SparkContext._gateway is gateway:
            # Else the next session of this process would talk to the dead one.
            SparkContext._gateway = None
            SparkContext._jvm = None


class _NotThere(Exception):
    """A JVM did not come up."""


def _launch(output: Output, told: Path) -> Popen[bytes]:
    """Spark's script, which becomes the JVM; that writes to ``told`` where its gateway is."""
    script = Path(_find_spark_home()) / "bin" / "spark-submit"
    return Popen(  # noqa: S603
        [script, *shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])],
        stdin=PIPE,  # it goes when this is closed, as it is when we are killed
        stdout=output.end,
        stderr=output.end,
        env={**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)},
        # The interrupt key is for us; we end it in good order.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


def _connect(process: Popen[bytes], told: Path) -> Any:
    deadline = monotonic() + START_PATIENCE_S
    while not told.exists():  # it is put there whole
        try:
            status = process.wait(_LOOK_S)
        except TimeoutExpired:
            if monotonic() > deadline:
                raise _NotThere(f"its JVM was not there after {START_PATIENCE_S:.0f} s") from None
        else:
            raise _NotThere(f"its JVM ended with status {status}")
    # A port and a secret, each in Java's DataOutputStream's way.
    port, length = _HEAD.unpack_from(info := told.read_bytes())
    secret = info[_HEAD.size : _HEAD.size + length].decode()
    launch: Any = launch_gateway  # it has no annotations
    with changed_environ({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
        gateway = launch()  # which finds one running
    gateway.proc = process
    return gateway


def _set_environ(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
