"""A worker of ours that writes, from the outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import yaml

from interop.processes import Process, free_ports
from interop.synrepl_processes import SynreplMaster, ready, start


class SynreplWriter:
    """A worker that writes, with the database of our master.

    A ``with`` block that ends it; in between it may be killed and started again.

    :param more: its settings, besides where it finds the master and the database
    :ivar http: port of its HTTP listener
    """

    def __init__(self, master: SynreplMaster, name: str, more: Mapping[str, Any]) -> None:
        (self.http,) = free_ports(1)
        self._directory = master.directory
        self._config = master.directory / f"{name}.yaml"
        found = yaml.safe_load((master.directory / "worker.yaml").read_text())
        http = {"port": self.http, "allowed_hosts": [name]}
        settings = {**found, "instance_name": name, "http": http, **more}
        self._config.write_text(yaml.safe_dump(settings, sort_keys=False))
        self._process: Process | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready.

        :raises ProcessEnded: :raises NotInTime:
        """
        self._process = start("worker", self._config, self._directory)
        ready(self._process, self.http)

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.stop()
