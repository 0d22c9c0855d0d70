"""Keys are fetched both ways, from their owners and from a notary."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from interop.federation.our_server import OurServer
from interop.federation.steps import Steps
from interop.federation.synapse_server import SynapseServer
from interop.report import Section

_STORY = """\
Each server publishes its keys over TLS, with a certificate of an authority that was made for this run, and both are notaries."""


def section(ours: OurServer, theirs: SynapseServer, authority: Path) -> Section:
    """Run it; its section of the report."""
    section = Section("Keys", _STORY.splitlines())
    steps = Steps(section)
    for who, server in (("ours", ours.name), ("theirs", theirs.name)):
        own = f"https://{server}/_matrix/key/v2/server"
        steps.holds(
            f"{who} publishes its keys", lambda own=own: _get(own, authority)["verify_keys"]
        )
    pairs = (("ours", ours.name, theirs.name), ("theirs", theirs.name, ours.name))
    for who, notary, server in pairs:
        asked = f"https://{notary}/_matrix/key/v2/query/{server}"

        def is_given(asked: str = asked, notary: str = notary, server: str = server) -> bool:
            (document,) = _get(asked, authority)["server_keys"]
            return (
                document["server_name"] == server
                and {notary, server} <= document["signatures"].keys()
            )

        steps.holds(f"{who} as a notary gives the keys of the other, signed by both", is_given)
    return section


def _get(url: str, authority: Path) -> Any:
    context = ssl.create_default_context(cafile=str(authority))
    with urllib.request.urlopen(url, timeout=30, context=context) as answer:
        return json.load(answer)
