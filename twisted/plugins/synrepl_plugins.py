"""``twistd synrepl-master -c FILE`` and ``twistd synrepl-worker -c FILE``."""

from twisted.application.service import ServiceMaker

master = ServiceMaker(
    "synrepl master",
    "synrepl.daemon.master_service",
    "Own the listeners of a synrepl server and fan its facts out",
    "synrepl-master",
)

worker = ServiceMaker(
    "synrepl worker",
    "synrepl.daemon.worker_service",
    "Follow a synrepl master",
    "synrepl-worker",
)
