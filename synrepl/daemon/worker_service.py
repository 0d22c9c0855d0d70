"""``twistd synrepl-worker``."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.python import usage

from synrepl.core.errors import SynreplError
from synrepl.daemon.config import load_worker
from synrepl.daemon.service import Options, ProcessService, exit_with_status, paths
from synrepl.daemon.worker import WorkerProcess

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> ProcessService:
    """The worker as a service.

    :raises UsageError: the configuration is not acceptable
    """
    try:
        config = load_worker(paths(options))
    except SynreplError as error:
        raise usage.UsageError(str(error)) from error
    service = ProcessService(reactor, lambda: WorkerProcess(reactor, config))
    exit_with_status(service)
    return service
