"""A Hive metastore, and Sail, a server of the Spark Connect protocol that reads Delta tables; both on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from system_tests.pipeline.spark_fixture import PATIENCE_S
from system_tests.pipeline.spark_servers import running

#: Names a folder in which Sail stays installed.
DIRECTORY = "SYNREPL_SAIL_DIR"

#: Sail wants an older PySpark beside it than ours, so it has an environment of its own. Clients may be newer.
_REQUIREMENTS = ("pysail==0.7.2", "pyspark-client==4.1.*")

_SAIL = """
import signal
from pysail.spark import SparkConnectServer
server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
print("listens at %s:%s" % server.listening_address, flush=True)
signal.pause()
"""


@contextmanager
def hive_metastore(folder: Path) -> Iterator[str]:
    """Run a Hive metastore; yields its host and port. Its classes are among Spark's, and so is its database, Derby."""
    conf = folder / "conf"
    conf.mkdir(parents=True)
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"{folder}/warehouse",
        "hive.async.log.enabled": "false",  # wants a library that is not among Spark's
    }
    properties = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    (conf / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
    port = _free_port()
    server = "org.apache.hadoop.hive.metastore.HiveMetaStore"
    command = ["spark-class", server, "-v", "-p", str(port)]
    with running(folder, command, "(Starting hive metastore)", SPARK_CONF_DIR=str(conf)):
        deadline = time.monotonic() + PATIENCE_S
        while not _listens(port):
            if time.monotonic() > deadline:
                raise AssertionError("the metastore does not listen")
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"


@contextmanager
def sail_server(folder: Path, metastore: str | None, **environ: str) -> Iterator[str]:
    """Run Sail; yields its address for ``sc://``.

    :param metastore: the Hive metastore that is its catalog; None for one of each session, in memory
    """
    python = _installed(Path(os.environ.get(DIRECTORY) or folder.parent / "sail-environment"))
    settings = {"PYTHONPATH": "", **environ}
    if metastore is not None:
        settings["SAIL_CATALOG__LIST"] = (
            f'[{{type="hive_metastore", name="hive", uris=["{metastore}"]}}]'
        )
        settings["SAIL_CATALOG__DEFAULT_CATALOG"] = "hive"
    with running(folder, [str(python), "-c", _SAIL], r"listens at (\S+)", **settings) as address:
        yield address


def _installed(folder: Path) -> Path:
    """The interpreter of an environment with Sail, which is made if it does not exist."""
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *_REQUIREMENTS], check=True, stdout=sys.stderr)
        done.write_text("")
    return python


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def _listens(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
