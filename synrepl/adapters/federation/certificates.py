"""Certificates: those of other servers are verified for the name that discovery found, that of this one is served.

One context of OpenSSL serves all connections to other servers, because each costs a megabyte and ten milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from OpenSSL import SSL, crypto
from service_identity import CertificateError, VerificationError
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
)
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.core.errors import ConfigError, Refused

#: Why OpenSSL refuses a chain of certificates, by its numbers (``x509_vfy.h``).
_REASONS = {
    9: "it is not valid yet",
    10: "it has expired",
    18: "it is signed by itself",
    19: "its authority is not trusted",
    20: "its authority is not trusted",
    21: "its authority is not trusted",
    23: "it was revoked",
    26: "it is not for servers",
}


class BadAuthorities(ConfigError):
    """rooms.federation.trusted_ca_files: {path} has no certificates of authorities: {reason}; it must have some in PEM format"""


class BadCertificate(ConfigError):
    """rooms.federation: {path} cannot be used for TLS: {reason}; it must have, in PEM format, {wanted}"""


class CertificateRefused(Refused):
    """the certificate is not for {name!r}, or not trusted: {reason}"""


class TrustedAuthorities:
    """The authorities whose certificates are trusted.

    :param files: with certificates of authorities, in PEM format
    :param of_system: trust those of this machine, too
    :raises BadAuthorities:
    """

    def __init__(self, files: Iterable[Path] = (), *, of_system: bool = True) -> None:
        self.context = SSL.Context(SSL.TLS_METHOD)
        self.context.set_min_proto_version(SSL.TLS1_2_VERSION)
        self.context.set_mode(SSL.MODE_RELEASE_BUFFERS)
        if of_system:
            self.context.set_default_verify_paths()
        store = self.context.get_cert_store()
        assert store is not None
        for path in files:
            for certificate in _certificates(path):
                store.add_cert(certificate)

    def for_name(self, name: str) -> CertificateForName:
        """Makes connections to a server whose certificate must be for a host name or address."""
        return CertificateForName(self.context, name)


def _certificates(path: Path) -> list[crypto.X509]:
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadAuthorities(path=path, reason=error) from None
    return [crypto.X509.from_cryptography(each) for each in found]


@implementer(IOpenSSLClientConnectionCreator)
class CertificateForName:
    """Makes TLS connections to a server whose certificate must be for a name; sends the name unless it is an address."""

    def __init__(self, context: SSL.Context, name: str) -> None:
        self._context = context
        self._name = name
        self._is_address = _is_address(name)

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """A connection; what is wrong with the certificate is what it fails with."""
        connection = SSL.Connection(self._context)
        if not self._is_address:
            connection.set_tlsext_host_name(self._name.encode("ascii"))
        mode = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT
        connection.set_verify(mode, self._verification(tlsProtocol.failVerification))
        return connection

    def _verification(
        self, refuse: Callable[[Failure], object]
    ) -> Callable[[SSL.Connection, crypto.X509, int, int, int], bool]:
        """The function that OpenSSL asks for each certificate of a chain, the server's own last."""

        def verify(
            connection: SSL.Connection,
            certificate: crypto.X509,
            error: int,
            depth: int,
            is_trusted: int,
        ) -> bool:
            # What is raised here would be lost.
            if not is_trusted:
                reason = _REASONS.get(error, f"OpenSSL's error {error}")
            elif depth == 0:
                try:
                    self._check_name(certificate)
                    return True
                except Exception as refusal:  # also of a certificate that cannot be read
                    reason = f"{refusal}"
            else:
                return True
            refuse(Failure(CertificateRefused(name=self._name, reason=reason)))
            return False

        return verify

    def _check_name(self, certificate: crypto.X509) -> None:
        wanted = IPAddress_ID(self._name) if self._is_address else DNS_ID(self._name)
        try:
            patterns = extract_patterns(certificate)
            verify_service_identity(patterns, [wanted], [])
        except VerificationError:
            names = ", ".join(sorted(_text(each) for each in patterns)[:5])
            raise ValueError(f"it is for {names}") from None
        except CertificateError as error:
            raise ValueError(f"it names no server ({error})") from None


def _text(pattern: object) -> str:
    """The name or address in a pattern of a certificate."""
    found = getattr(pattern, "pattern", pattern)
    return (found.decode("ascii", "replace") if isinstance(found, bytes) else str(found))[:100]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@implementer(IOpenSSLServerConnectionCreator)
class ServedCertificate:
    """The certificate of this server, which is read again when its files have changed.

    A file that cannot be used any more changes nothing: the certificate that was read before is served.

    :param certificate: file with the certificate and those between it and its authority, in PEM format
    :param private_key: file with its key, in PEM format
    :param seconds: the time, in seconds
    :param report: is called with what is wrong with changed files
    :raises BadCertificate:
    """

    #: Seconds after which the files are looked at again.
    LOOK_S = 10.0

    def __init__(
        self,
        certificate: Path,
        private_key: Path,
        seconds: Callable[[], float],
        report: Callable[[BadCertificate], object],
    ) -> None:
        self._certificate = certificate
        self._private_key = private_key
        self._seconds = seconds
        self._report = report
        self._stamp = self._stamp_of_files()
        self._context, self._expires_at = self._read()
        self._looked_at = seconds()
        #: Number of times that the files were read anew.
        self.reloads = 0

    def serverConnectionForTLS(self, tlsProtocol: object) -> SSL.Connection:
        """A connection with the current certificate."""
        now = self._seconds()
        if now >= self._looked_at + self.LOOK_S:
            self._looked_at = now
            self._look()
        return SSL.Connection(self._context)

    def status(self) -> dict[str, float]:
        """When the certificate expires, in seconds since 1970, and how often it was read anew."""
        return {"expires_at": self._expires_at, "reloads": self.reloads}

    def _look(self) -> None:
        stamp = self._stamp_of_files()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._context, self._expires_at = self._read()
            self.reloads += 1
        except BadCertificate as error:
            self._report(error)

    def _stamp_of_files(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self._certificate, self._private_key))

    def _read(self) -> tuple[SSL.Context, float]:
        """The context with the certificate, and when it expires."""
        context = SSL.Context(SSL.TLS_METHOD)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        context.set_mode(SSL.MODE_RELEASE_BUFFERS)
        context.set_options(SSL.OP_NO_RENEGOTIATION | SSL.OP_CIPHER_SERVER_PREFERENCE)
        for path, use, wanted in (
            (self._certificate, context.use_certificate_chain_file, "a certificate"),
            (self._private_key, context.use_privatekey_file, "the private key of the certificate"),
        ):
            try:
                path.read_bytes()
                use(str(path))
            except OSError as error:
                raise BadCertificate(path=path, reason=error.strerror, wanted=wanted) from None
            except SSL.Error as error:
                reason = error.args[0][0][2] if error.args and error.args[0] else "it is malformed"
                raise BadCertificate(path=path, reason=reason, wanted=wanted) from None
        first = x509.load_pem_x509_certificate(self._certificate.read_bytes())
        return context, first.not_valid_after_utc.timestamp()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
