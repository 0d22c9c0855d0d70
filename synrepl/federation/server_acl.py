"""Server ACLs: which servers may take part in a room.

Source: https://spec.matrix.org/v1.16/client-server-api/#mroomserver_acl
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from typing import Any

from synrepl.federation.server_names import UnusableServerName, parse_server_name


class ServerAcl:
    """The content of an ``m.room.server_acl``; what is malformed in it is ignored, as elsewhere.

    Without such an event every server is allowed; with one, only those that it lists.

    :param content: of the event
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._allows_literals = content.get("allow_ip_literals") is not False
        self._allow = _patterns(content.get("allow"))
        self._deny = _patterns(content.get("deny"))

    def allows(self, server_name: str) -> bool:
        """Whether a server may take part. A name that cannot be of a server may not."""
        try:
            address = parse_server_name(server_name)
        except UnusableServerName:
            return False
        if address.is_literal and not self._allows_literals:
            return False
        # The port does not count. An IPv6 address has its brackets, as in the name.
        host = server_name.lower()
        if address.port is not None:
            host = host.rpartition(":")[0]
        return not _matches(self._deny, host) and _matches(self._allow, host)


def _matches(patterns: Iterable[re.Pattern[str]], host: str) -> bool:
    return any(pattern.fullmatch(host) for pattern in patterns)


def _patterns(globs: object) -> tuple[re.Pattern[str], ...]:
    if not isinstance(globs, list):
        return ()
    # Each pattern is matched in time linear in its length and that of the name: ``translate`` makes atomic groups.
    texts = dict.fromkeys(each.lower() for each in globs if isinstance(each, str))
    return tuple(re.compile(translate(each.replace("[", "[[]"))) for each in texts)
