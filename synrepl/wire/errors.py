"""The two base classes of protocol errors: by the peer, or by our own caller.

A remote error closes the connection. A local error is a mistake of our own
caller: it is raised before anything is queued and changes nothing.
"""

from __future__ import annotations

from synrepl.core.errors import ProtocolError


class RemoteProtocolError(ProtocolError):
    """the other side broke the protocol"""


class LocalProtocolError(ProtocolError):
    """this side was asked to send what the protocol does not allow"""
