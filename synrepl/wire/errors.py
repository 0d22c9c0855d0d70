"""Who broke the protocol: the two families that every error of ``wire`` belongs to.

A remote error closes the connection. A local one is a fault of our own
caller: it is raised before anything has been queued and changes nothing.
"""

from __future__ import annotations

from synrepl.core.errors import ProtocolError


class RemoteProtocolError(ProtocolError):
    """the other side broke the protocol"""


class LocalProtocolError(ProtocolError):
    """this side was asked to send what the protocol does not allow"""
