"""A session whose failures have names."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from synrepl.core.errors import StorageError, SynreplError
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session
from synrepl.pipeline.source.errors import reason


class SparkFailed(StorageError):
    """Spark failed: {reason}"""


@contextmanager
def named_session(options: SessionOptions) -> Iterator[SparkSession]:
    """A session for the time of a command; what Spark raises becomes an error that names it.

    :raises SparkFailed: and whatever a task raised, and what :func:`.session.open_session` raises
    """
    # What goes wrong in a task comes back as an exception; Spark logs its traceback besides.
    logging.getLogger("pyspark").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="pyspark")
    with open_session(options) as session:
        try:
            yield session
        except (PySparkException, Py4JError) as error:  # the latter when its JVM has died
            raise in_our_words(error) from None


def in_our_words(error: Exception) -> SynreplError:
    """The named error that a task raised, or Spark's own on one line."""
    ours = reason(error)
    if ours is not None:
        return ours
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return SparkFailed(reason=lines[0][:500] if lines else type(error).__name__)
