"""Opens a Spark session as a context manager, and ends it with its JVM and its files.

PySpark starts the JVM (:func:`pyspark.java_gateway.launch_gateway`); what is added here is a bound
on the time, the JVM's output in our log and in our errors, and its end with the session. PySpark
keeps one JVM for the life of a process, so the names ``SparkContext._gateway`` and ``_jvm``, which
it has no call to clear, are cleared here: without that a second session talks to the ended JVM.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from subprocess import Popen, TimeoutExpired
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark import SparkContext
from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from synrepl.core.errors import ConfigError, Refused, StorageError, SynreplError, Unavailable
from synrepl.pipeline.session.options import SessionOptions, hide_parameters
from synrepl.pipeline.session.requirements import (
    MasterUnreachable,
    find_java,
    require_connect,
    require_listening,
)
from synrepl.pipeline.session.settings import (
    SQL,
    changed_environ,
    environment,
    remove_secrets,
    scratch_directory,
    settings,
    write_files,
)
from synrepl.pipeline.source.errors import original_error

#: Spark's own output, at level INFO, one record a line.
log = logging.getLogger("synrepl.spark")

#: Seconds until a JVM has to be there; on an idle machine it takes 2.
START_PATIENCE_S = 120.0

#: Seconds that a JVM may take to exit before it is killed.
END_PATIENCE_S = 10.0

_TAIL_LINES = 40

#: PySpark has one JVM, and one mode (classic or Connect), for the whole process.
_only_session = threading.Lock()


class SessionOpen(Refused):
    """this process runs Spark already: end the open session first, or use it"""


class SparkNotStarted(Unavailable):
    """Spark did not start ({reason}); the last it said: {tail}"""


class SettingRefused(ConfigError):
    """the Spark Connect server {master} does not let a session set {key} ({reason}); only its owner can, where it starts"""


class SparkFailed(StorageError):
    """Spark failed: {reason}"""


@contextmanager
def named_session(options: SessionOptions) -> Iterator[SparkSession]:
    """A session for a command: exceptions of Spark become named errors.

    :raises SparkFailed: Spark raised an exception of its own
    :raises SynreplError: a task raised it, or :func:`open_session` did
    """
    # An exception in a task, or on the way to the JVM, is raised here; they would log its traceback besides.
    for name in ("pyspark", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="pyspark")
    with _deaths_unprinted(), interrupts_kept(), open_session(options) as session:
        try:
            yield session
        except (PySparkException, Py4JError) as error:  # the latter when its JVM has died
            raise named_error(error) from None


def named_error(error: Exception) -> SynreplError:
    """The error of ours that a task raised, or :class:`SparkFailed` with Spark's first line."""
    return original_error(error) or SparkFailed(reason=_first_line(error)[:500])


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise an interrupt again if an error was raised while it was being handled.

    PySpark makes a last call to the JVM when a command ends in whatever way, and over a new connection if it was interrupted.
    The error of this call would take the place of the interrupt, and look as if Spark had died.
    """
    try:
        yield
    except Exception as error:
        before = error.__context__
        while before is not None:
            if isinstance(before, KeyboardInterrupt):
                raise before from None
            before = before.__context__
        raise


@contextmanager
def open_session(options: SessionOptions) -> Iterator[SparkSession]:
    """Open a session; at the end its JVM and its scratch files are gone.

    Blocks for some 4 s. A process has one session at a time.

    :raises SessionOpen: this process has a session, or a JVM that other code started
    :raises ConnectMissing: the master is a Connect server, and its client is not installed
    :raises MasterUnreachable: nothing answers at the master's address, or it refuses us
    :raises SettingRefused: the Connect server does not let a session set that
    :raises JavaMissing: there is no Java to run Spark
    :raises SparkNotStarted: the JVM, or Spark in it, did not start
    :raises NoScratch: ``local_dir`` cannot be written to
    """
    if not _only_session.acquire(blocking=False):
        raise SessionOpen
    try:
        if SparkContext._gateway is not None:
            raise SessionOpen
        if options.is_connect:
            require_connect()
        require_listening(options.master)
        with _connect(options) if options.is_connect else _start(options) as session:
            yield session
    finally:
        _only_session.release()


@contextmanager
def _connect(options: SessionOptions) -> Iterator[SparkSession]:
    """A session on a Connect server; settings other than those of SQL are up to its owner."""
    mode = "SPARK_CONNECT_MODE_ENABLED"  # PySpark sets it and does not take it back
    master, key = hide_parameters(options.master), None
    with changed_environ({mode: os.environ.get(mode)}), ExitStack() as stack:
        builder = SparkSession.builder.remote(options.master).appName(options.app_name)
        try:
            session: SparkSession = builder.getOrCreate()
            stack.callback(_stop, session)
            session.version  # noqa: B018 - the first call that the server has to answer
            for key, value in {**SQL, **options.conf}.items():
                session.conf.set(key, value)
        except PySparkException as error:
            if key is None:
                raise MasterUnreachable(master=master, reason=_first_line(error)) from None
            raise SettingRefused(key=key, master=master, reason=_first_line(error)) from None
        yield session


@contextmanager
def _start(options: SessionOptions) -> Iterator[SparkSession]:
    """A session in a JVM of our own."""
    with scratch_directory(options.local_dir) as scratch, _sigint_kept(), ExitStack() as stack:
        java_home = find_java().home_for_spark(scratch)
        write_files(scratch, settings(options, scratch))
        output = _Output()
        with changed_environ(environment(options, java_home, scratch)):
            gateway = _launch(output)
            stack.callback(_end, gateway)
            try:
                # The settings are in the JVM, which has read them from the file.
                context = SparkContext(gateway=gateway)
            except Py4JError as error:
                cause = _first_line(error)  # asks the JVM
                _end(gateway)
                if not options.is_local:
                    raise MasterUnreachable(master=options.master, reason=cause) from None
                raise SparkNotStarted(reason=cause, tail=output.tail()) from None
            stack.callback(_stop, context)
            remove_secrets(scratch)
            session: SparkSession = SparkSession.builder.getOrCreate()
        yield session


class _Output:
    """A JVM's output, kept off the terminal: logged, and its last lines held for an error."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        reading, self.end = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def tail(self) -> str:
        """The last lines; waits a while for a JVM that has exited to have all of them read."""
        self._reader.join(1.0)
        return " | ".join(self._lines) or "(nothing)"

    def _read(self, reading: int) -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if text := line.rstrip():
                    self._lines.append(text)
                    log.info("%s", text)


def _launch(output: _Output) -> Any:
    """Start a JVM with the environment as it is now, and return its gateway.

    In a thread, because PySpark waits for one without a limit.

    :raises SparkNotStarted: it exited, or did not answer within :data:`START_PATIENCE_S`
    """
    launched: Future[Any] = Future()

    def launch() -> None:
        try:
            to_pipe = {"stdout": output.end, "stderr": output.end}
            launched.set_result(launch_gateway(popen_kwargs=to_pipe))  # type: ignore[no-untyped-call,unused-ignore]
        except BaseException as error:
            launched.set_exception(error)
        finally:
            os.close(output.end)  # the reader ends when the JVM's copy is closed, too

    threading.Thread(target=launch, daemon=True).start()
    try:
        return launched.result(START_PATIENCE_S)
    except TimeoutError:
        cause = f"its JVM did not answer within {START_PATIENCE_S:.0f} s"
    except (PySparkException, Py4JError, OSError) as error:
        cause = _first_line(error)
    except BaseException:
        # Interrupted. PySpark keeps no hold of a process that it is still starting.
        with suppress(Exception):
            _end(launched.result(END_PATIENCE_S))
        raise
    raise SparkNotStarted(reason=cause, tail=output.tail())


def _end(gateway: Any) -> None:
    """End the JVM of a gateway; on return its process is gone, even if interrupted."""
    process: Popen[bytes] = gateway.proc
    try:
        with suppress(Py4JError, OSError):
            gateway.shutdown()
        with suppress(OSError, TimeoutExpired):
            assert process.stdin is not None
            process.stdin.close()  # the JVM exits when its standard input ends
            process.wait(END_PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        if SparkContext._gateway is gateway:
            SparkContext._gateway = SparkContext._jvm = None


def _stop(stoppable: SparkSession | SparkContext) -> None:
    """Stop it, even if its JVM was killed: then the first call raises, and the second finishes."""
    with _deaths_unprinted(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(2):
            with suppress(PySparkException, Py4JError, OSError):
                stoppable.stop()
                break


@contextmanager
def _deaths_unprinted() -> Iterator[None]:
    """Print no tracebacks if the JVM dies: the next call raises an error that says so."""
    root = logging.getLogger()
    root.addFilter(_is_not_of_py4j)
    servers: tuple[Any, ...] = (AccumulatorTCPServer, AccumulatorUnixServer)
    printing = [server.handle_error for server in servers]
    for server in servers:
        server.handle_error = _accumulators_lost
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)
        for server, before in zip(servers, printing, strict=True):
            server.handle_error = before


def _accumulators_lost(server: object, request: object, address: object) -> None:
    """The JVM's end of the connection for accumulators, which we do not use, was closed."""
    log.debug("the connection for accumulators ended", exc_info=True)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is ours to show.

    Py4J logs there, with a traceback, that a killed JVM's socket was closed while a command was sent.
    """
    return record.module != "java_gateway"


@contextmanager
def _sigint_kept() -> Iterator[None]:
    """Restore the handler of the interrupt key, which Spark replaces."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and before is not None:  # None: it was not set from Python
            signal.signal(signal.SIGINT, before)


def _first_line(error: Exception) -> str:
    """The first line of an error's message, or of what Java threw."""
    message = str(error)
    if isinstance(error, Py4JJavaError):
        with suppress(Py4JError, OSError):  # the JVM may have gone
            message = error.java_exception.toString()
    return next(
        (line.strip() for line in message.splitlines() if line.strip()), type(error).__name__
    )
