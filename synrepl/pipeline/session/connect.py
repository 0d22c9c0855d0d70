"""A session on a Spark Connect server: a client, without a JVM or files of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from synrepl.core.errors import ConfigError
from synrepl.pipeline.session.jvm import changed_environ
from synrepl.pipeline.session.masters import MasterUnreachable
from synrepl.pipeline.session.options import SessionOptions, hide_parameters
from synrepl.pipeline.session.settings import SQL

#: Set by PySpark as it connects, and never taken back: a later session would be one of Connect.
_MODE = "SPARK_CONNECT_MODE_ENABLED"


class SettingRefused(ConfigError):
    """the Spark Connect server {master} does not let a session set {key} ({reason}); only its owner can, where it starts"""


@contextmanager
def open_session(options: SessionOptions) -> Iterator[SparkSession]:
    """Open one; the server drops what it has of it at the end.

    Only settings of SQL can be made there; the server's owner made the others.

    :raises MasterUnreachable: what answers is no such server, or refuses us
    :raises SettingRefused: it does not let a session set that
    """
    with changed_environ({_MODE: os.environ.get(_MODE)}):
        session = _connect(options)
        try:
            yield session
        finally:
            with suppress(PySparkException):
                session.stop()


def _connect(options: SessionOptions) -> SparkSession:
    builder = SparkSession.builder.remote(options.master).appName(options.app_name)
    master = hide_parameters(options.master)
    try:
        session: SparkSession = builder.getOrCreate()
        session.version  # noqa: B018 - asked for, so that the server has to answer
    except PySparkException as error:
        raise MasterUnreachable(master=master, reason=_first_line(error)) from None
    key = ""
    try:
        for key, value in {**SQL, **options.conf}.items():
            session.conf.set(key, value)
    except PySparkException as error:
        session.stop()
        raise SettingRefused(key=key, master=master, reason=_first_line(error)) from None
    return session


def _first_line(error: PySparkException) -> str:
    return str(error).split("\n")[0]
