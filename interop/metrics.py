"""Counters that processes show to Prometheus."""

from __future__ import annotations

import re
from collections import Counter
from urllib.request import urlopen

from interop.processes import LOOPBACK

#: Rows received, by stream; a worker of either release counts each line RDATA.
INBOUND_RDATA = "synapse_replication_tcp_protocol_inbound_rdata_count"

#: Lines received, by command.
INBOUND_COMMANDS = "synapse_replication_tcp_protocol_inbound_commands"

#: The position of each stream, as a current worker has it.
POSITIONS = "synapse_storage_stream_current_position"

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read(port: int, path: str) -> str:
    """All metrics of the process that shows them on a port of this machine.

    :raises OSError: it does not answer
    """
    with urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def counter(text: str, name: str, label: str) -> Counter[str]:
    """A counter, summed by one of its labels.

    Older libraries show it without ``_total``, newer ones with, some twice.
    """
    for shown in (f"{name}_total", name):
        found: Counter[str] = Counter()
        for labels, value in re.findall(rf"^{re.escape(shown)}\{{(.*)\}} (\S+)$", text, re.M):
            found[dict(_LABEL.findall(labels)).get(label, "")] += int(float(value))
        if found:
            return found
    return Counter()
