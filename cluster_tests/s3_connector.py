"""Hadoop's connector for S3, ``s3a``, which PySpark comes without; for sessions of Spark in tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

#: Names a folder in which the connector's jars stay.
DIRECTORY = "SYNREPL_S3A_DIR"

#: A package that has the connector in it, with the client of AWS that it calls. Only these two files are taken.
_PACKAGE = "sagemaker-pyspark==1.4.5"
_JARS = ("hadoop-aws-3.3.1.jar", "aws-java-sdk-bundle-1.11.901.jar")

#: It is older than the other parts of Hadoop, which are PySpark's. It cannot parse the units in their defaults for it,
#: nor has it the class of another client that is among them.
_FOR_OLDER_HADOOP = {
    "aws.credentials.provider": "com.amazonaws.auth.EnvironmentVariableCredentialsProvider",
    "connection.establish.timeout": "30000",
    "connection.timeout": "200000",
    "multipart.purge.age": "86400",
    "threads.keepalivetime": "60",
}


def connector_settings(port: int, folder: Path) -> dict[str, str]:
    """Settings of Spark with which a session has the connector, and reaches a server of S3 on loopback.

    The account is that of the variables ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``.

    :param folder: where the jars are put, unless the environment names another one
    """
    there = _installed(Path(os.environ.get(DIRECTORY) or folder))
    of_server = {
        "endpoint": f"http://127.0.0.1:{port}",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    settings = {f"spark.hadoop.fs.s3a.{key}": value for key, value in of_server.items()}
    settings |= {f"spark.hadoop.fs.s3a.{key}": value for key, value in _FOR_OLDER_HADOOP.items()}
    return settings | {"spark.jars": ",".join(str(there / name) for name in _JARS)}


def _installed(folder: Path) -> Path:
    """A folder with the jars, which are put there if they are not."""
    done = folder / "installed"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder) as scratch:
            pip = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
            ]
            command = [*pip, "--no-deps", "--no-binary=:all:", f"--dest={scratch}", _PACKAGE]
            subprocess.run(command, check=True, stdout=sys.stderr)
            (source,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(source) as archive:
                for member in archive:
                    member.name = Path(member.name).name
                    if member.name in _JARS:
                        archive.extract(member, folder, filter="data")
        done.write_text("")
    return folder
