"""One of the real daemons, as a child of the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from signal import SIGTERM, Signals

from synrepl.core.clock import Scheduler
from synrepl.core.errors import Unavailable
from synrepl.storage.launch.child import Account, guarded

#: How long a daemon may take to end in good order, in seconds.
_STOP_S = 20.0

_LOOK_S = 0.02


class Ended(Unavailable):
    """the {role} {name!r} ended by itself ({status}); its log {log} ends: {tail}"""


class DaemonProcess:
    """``synrepl master`` or ``synrepl worker`` in a process of its own.

    It does not outlive the demo, however that ends: the kernel tells it.

    :param role: the sub-command
    :param log: where its output goes; added to when it is started again
    :param environment: its environment variables; None for those of this process
    """

    def __init__(
        self,
        scheduler: Scheduler,
        role: str,
        name: str,
        config: Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._scheduler = scheduler
        self._role = role
        self._config = config
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False

    @property
    def pid(self) -> int:
        """The process ID, of the last start."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it."""
        command = guarded(
            Account(os.geteuid(), os.getegid(), ""),
            Path(sys.executable),
            ["-m", "synrepl", self._role, "-c", str(self._config.absolute())],
            Path.cwd(),
            SIGTERM,
        )
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,  # the interrupt key is for the demo, which ends all in order
            )
        self._asked = False

    def check(self) -> None:
        """Make sure that it runs, once it has been started.

        :raises Ended: it does not
        """
        code = None if self._process is None else self._process.poll()
        if code is not None:
            status = f"killed by {Signals(-code).name}" if code < 0 else f"exit status {code}"
            raise Ended(
                role=self._role, name=self.name, status=status, log=self._log, tail=self._tail()
            )

    def ask_to_stop(self) -> None:
        """Tell it to end in good order; fine when it is not running."""
        if self._process is not None and not self._asked:
            self._asked = True
            self._process.terminate()  # which does nothing once it has ended

    async def stop(self) -> None:
        """End it in good order, or by force if that takes too long."""
        self.ask_to_stop()
        if not await self.ended():
            await self.kill()

    async def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            await self.ended()

    async def ended(self) -> bool:
        """Wait for its end; whether that has come in time."""
        process, give_up = self._process, self._scheduler.seconds() + _STOP_S
        while process is not None and process.poll() is None:
            if self._scheduler.seconds() >= give_up:
                return False
            await self._scheduler.sleep(_LOOK_S)
        return True

    def _tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-4:])[-1000:]
