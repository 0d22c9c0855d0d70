"""A Spark session as a context manager: on the way out nothing of it is left."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from synrepl.core.errors import Refused, Unavailable
from synrepl.pipeline.session import connect, jvm
from synrepl.pipeline.session.available import require_connect
from synrepl.pipeline.session.java import find_java
from synrepl.pipeline.session.masters import MasterUnreachable, make_sure_it_listens
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.scratch import scratch_directory
from synrepl.pipeline.session.settings import environment, settings, write_files


class SessionOpen(Refused):
    """this process has a Spark session already (application {name!r} on {master}); end it first, or use that one"""


@contextmanager
def open_session(options: SessionOptions) -> Iterator[SparkSession]:
    """Open a session; at the end it is stopped, its JVM is gone and its scratch files, too.

    Starting one takes some 4 s and blocks. One process has one session at a time.

    :raises ConnectMissing: the client of Spark Connect is not installed, and the master is one
    :raises JavaMissing: there is no Java to run it
    :raises MasterUnreachable: nothing answers at the master's address
    :raises SparkNotStarted: the JVM, or Spark in it, did not start
    :raises SessionOpen: this process has one
    :raises NoScratch: ``local_dir`` cannot be written to
    """
    _make_sure_there_is_none()
    if options.connect:
        require_connect()
    make_sure_it_listens(options.master)
    if options.connect:
        with connect.open_session(options) as session:
            yield session
        return
    with (
        scratch_directory(options.local_dir) as scratch,
        _signals_kept(),
        _session(options, scratch) as session,
    ):
        yield session


@contextmanager
def _session(options: SessionOptions, scratch: Path) -> Iterator[SparkSession]:
    java_home = find_java(os.environ).home_for_spark(scratch)
    write_files(scratch, settings(options, scratch))
    output = jvm.Output()
    with jvm.changed_environ(environment(options, java_home, scratch)):
        gateway = jvm.start(output, scratch / "gateway")
        try:
            session = _start(options, gateway)
        except Py4JError as error:
            reason = _reason(error)  # as long as the JVM can be asked
            jvm.end(gateway)
            raise _failed(options, reason, output) from None
        except BaseException:
            jvm.end(gateway)
            raise
    try:
        yield session
    finally:
        try:
            _stop(session)
        finally:
            jvm.end(gateway)


def _start(options: SessionOptions, gateway: Any) -> SparkSession:
    # What is configured, the JVM has read from its file; it tells.
    SparkContext._ensure_initialized(gateway=gateway)
    context = SparkContext(conf=SparkConf(_jvm=gateway.jvm), gateway=gateway)
    return SparkSession(context)


def _stop(session: SparkSession) -> None:
    try:
        with warnings.catch_warnings(), suppress(Py4JError, OSError):
            # It may have been killed: then there is nothing to stop, no news to the caller.
            warnings.simplefilter("ignore", RuntimeWarning)
            session.stop()
    finally:
        # What a stop that fails leaves behind, and the next session would take for its own.
        SparkSession._instantiatedSession = None
        SparkSession._activeSession = None
        SparkContext._active_spark_context = None


def _failed(options: SessionOptions, reason: str, output: jvm.Output) -> Unavailable:
    if options.own_machine:
        return jvm.SparkNotStarted(reason=reason, tail=output.tail())
    return MasterUnreachable(master=options.master, reason=reason)


def _reason(error: Py4JError) -> str:
    """The first line of what Java threw, or of what went wrong in asking it."""
    said = str(error)
    if isinstance(error, Py4JJavaError):
        with suppress(Py4JError, OSError):  # the JVM may have gone
            said = error.java_exception.toString()
    return next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)


def _make_sure_there_is_none() -> None:
    active = SparkContext._active_spark_context
    if active is not None:
        raise SessionOpen(name=active.appName, master=active.master)
    # Importing it takes a second: who has not, has none.
    module = sys.modules.get("pyspark.sql.connect.session")
    if module is not None and module.SparkSession._get_default_session() is not None:
        raise SessionOpen(name="Spark Connect", master="its server")


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Spark takes the interrupt key for itself, and would keep it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None:  # what was not set from Python cannot be
            signal.signal(signal.SIGINT, before)
