"""Keys are fetched both ways, from their owners and from a notary."""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from functools import partial
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
        published = steps.does(f"{who} publishes its keys", partial(_ask, own, authority))
        section.check(
            "with a signature of its own", server in (published or {}).get("signatures", {})
        )
    for who, notary, server in (
        ("ours", ours.name, theirs.name),
        ("theirs", theirs.name, ours.name),
    ):
        steps.holds(
            f"{who} as a notary gives the keys of the other, signed by both",
            partial(_is_vouched_for, server, notary, authority),
        )
    return section


def _is_vouched_for(server: str, notary: str, authority: Path) -> bool:
    """Whether a notary gives the keys of a server, which it has to fetch."""
    keys = _ask(f"https://{server}/_matrix/key/v2/server", authority)["verify_keys"]
    still_valid = {"minimum_valid_until_ts": int(time.time() * 1000)}
    wanted = {"server_keys": {server: dict.fromkeys(keys, still_valid)}}
    found = _ask(f"https://{notary}/_matrix/key/v2/query", authority, wanted)["server_keys"]
    return any(
        each["server_name"] == server and {notary, server} <= each["signatures"].keys()
        for each in found
    )


def _ask(url: str, authority: Path, body: object = None) -> Any:
    context = ssl.create_default_context(cafile=str(authority))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return json.load(answer)
