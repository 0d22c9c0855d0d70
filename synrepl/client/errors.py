"""Errors of the clients, with the process's message."""

from __future__ import annotations

from synrepl.core.errors import InputError, ProtocolError, Refused, Unavailable


class BadUrl(InputError):
    """{url!r} is not the address of a process; it looks like http://127.0.0.1:9393"""


class BadSecret(InputError):
    """the secret cannot be sent: it must be visible ASCII characters without spaces"""


class BadRows(InputError):
    """rows for stream {stream!r} cannot be sent, at {path}: {reason}; a row is a list of JSON values in the order of the stream's columns"""


class ServerUnreachable(Unavailable):
    """nothing answers at {url}: {reason}; is the process running, and is this its http listener?"""


class ServerBusy(Unavailable):
    """{url} cannot do that now ({status} {code}): {message}"""


class UnusableAnswer(ProtocolError):
    """the answer of {url} cannot be used: {reason}; is this synrepl's http listener?"""


class ServerUntrusted(Refused):
    """the certificate of {url} is not accepted: {reason}; pass as 'tls' an ssl.SSLContext that knows its authority"""


class SecretRequired(Refused):
    """{url} wants its secret, or another one; pass it as 'secret', or in a configuration by 'secret_path'"""


class ServerRefused(Refused):
    """{url} refused ({status} {code}): {message}"""

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(str(self.facts["status"]))

    @property
    def code(self) -> str:
        """The name of the server's error, such as ``UnknownStream``; empty when it gave none."""
        return str(self.facts["code"])

    @property
    def message(self) -> str:
        """The server's message."""
        return str(self.facts["message"])


class AppendRefused(ServerRefused):
    """nothing was appended to stream {stream!r}: {url} refused ({status} {code}): {message}"""


class AppendUnconfirmed(Unavailable):
    """facts for stream {stream!r} may or may not have been appended ({reason}); to append them exactly once, repeat the call with key={key!r}"""

    @property
    def key(self) -> str:
        """The idempotency key to repeat the call with."""
        return str(self.facts["key"])


class WaitExpired(Unavailable):
    """stream {stream!r} did not reach the token in time: {message}"""
