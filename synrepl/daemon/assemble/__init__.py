"""Assembles the services of a process from a configuration and ports.

This is the only place where services are wired: the daemons, the simulator, the benchmarks and
the processes of tests differ only in the ports. Tests of one service make it themselves. An
assembled process is complete and has done nothing yet; its methods start its parts in the right
order.
"""

from __future__ import annotations

from synrepl.daemon.assemble.master import MasterServices, assemble_master
from synrepl.daemon.assemble.ports import Ports, WorkerPorts
from synrepl.daemon.assemble.worker import WorkerServices, assemble_worker, worker_coherence

__all__ = [
    "MasterServices",
    "Ports",
    "WorkerPorts",
    "WorkerServices",
    "assemble_master",
    "assemble_worker",
    "worker_coherence",
]
