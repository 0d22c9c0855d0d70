"""Assembles the services of a process from a configuration and ports.

The daemons, the simulator, the benchmarks and the processes of tests are assembled here, and
differ only in the ports. Only tests of single services, and of connections that they replace,
make what they need themselves. An assembled process is complete and has done nothing yet; its
methods start its parts in the right order.
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
