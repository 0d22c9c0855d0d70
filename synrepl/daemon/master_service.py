"""``twistd synrepl-master``."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.python import usage

from synrepl.core.errors import SynreplError
from synrepl.daemon.config import load_master
from synrepl.daemon.master import MasterProcess
from synrepl.daemon.service import Options, ProcessService, exit_with_status, paths

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> ProcessService:
    """The master as a service.

    :raises UsageError: the configuration is not acceptable
    """
    try:
        config = load_master(paths(options))
    except SynreplError as error:
        raise usage.UsageError(str(error)) from error
    service = ProcessService(reactor, lambda: MasterProcess(reactor, config))
    exit_with_status(service)
    return service
