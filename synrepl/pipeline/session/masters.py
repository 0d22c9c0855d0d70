"""Whether anything listens where a master should be: Spark's own attempts take minutes to fail."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from synrepl.core.errors import Unavailable
from synrepl.pipeline.session.options import hide_parameters

#: Seconds to wait for each address.
PATIENCE_S = 5.0

#: Where a Spark Connect server listens unless told otherwise.
CONNECT_PORT = 15002


class MasterUnreachable(Unavailable):
    """the Spark master {master} cannot be reached ({reason}); is it running, and is the address right?"""


def make_sure_it_listens(master: str) -> None:
    """Connect once to a master elsewhere; a local one is not asked.

    :raises MasterUnreachable: none of its addresses takes connections
    """
    scheme, _, rest = master.partition("://")
    if scheme not in ("spark", "sc"):
        return
    # Standalone masters come in groups of which one leads: host:port,host:port
    reasons = []
    for address in rest.split("/")[0].split(","):
        where = urlsplit(f"//{address}")
        try:
            port = where.port or CONNECT_PORT
            socket.create_connection((where.hostname or "", port), PATIENCE_S).close()
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise MasterUnreachable(master=hide_parameters(master), reason="; ".join(reasons))
