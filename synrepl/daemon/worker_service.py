"""``twistd synrepl-worker``."""

from __future__ import annotations

from synrepl.daemon.checked_config import checked_worker
from synrepl.daemon.service import Options, ProcessService, service_of
from synrepl.daemon.worker import WorkerProcess

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> ProcessService:
    """The worker as a service."""
    return service_of(options, checked_worker, WorkerProcess)
