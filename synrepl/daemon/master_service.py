"""``twistd synrepl-master``."""

from __future__ import annotations

from synrepl.daemon.checked_config import checked_master
from synrepl.daemon.master import MasterProcess
from synrepl.daemon.service import Options, ProcessService, service_of

__all__ = ["Options", "makeService"]


def makeService(options: Options) -> ProcessService:
    """The master as a service."""
    return service_of(options, checked_master, MasterProcess)
