"""The make-believe server of the store in memory: whether it is the one that was confirmed."""

from __future__ import annotations

from synrepl.storage.store import NotConfirmed


class MemoryServer:
    """One server after the other.

    :ivar incarnation: of the last one that was confirmed
    :ivar is_confirmed: nothing is written before
    """

    def __init__(self) -> None:
        self.incarnation = 1
        self.is_confirmed = True

    def promote(self) -> None:
        """Another server takes over, which may lack facts."""
        self.is_confirmed = False

    def require_confirmed(self) -> None:
        """Refuse what must not happen on a server that is not confirmed.

        :raises NotConfirmed:
        """
        if not self.is_confirmed:
            raise NotConfirmed(reason="the server was promoted")
