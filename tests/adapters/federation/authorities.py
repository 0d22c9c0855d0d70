"""Certificate authorities and certificates, made by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)


class CertificateFiles(NamedTuple):
    """A certificate and its key, in files."""

    certificate: Path
    private_key: Path


class Authority:
    """An authority that signs certificates.

    :param folder: for files
    :ivar path: of its own certificate
    """

    def __init__(self, folder: Path, name: str = "Tests") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Authority of {name}")])
        now = datetime.now(UTC)
        certificate = (
            self._builder(self._name, self._key, now - DAY, now + DAY)
            .add_extension(x509.BasicConstraints(True, None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}-authority.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self._count = 0

    def certificate(
        self,
        names: Sequence[str],
        *,
        begins: timedelta = -DAY,
        ends: timedelta = DAY,
        self_signed: bool = False,
    ) -> CertificateFiles:
        """A certificate for host names and addresses, with its validity relative to now."""
        self._count += 1
        now = datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"certificate {self._count}")])
        builder = self._builder(subject, key, now + begins, now + ends, not self_signed)
        if names:
            alternatives = x509.SubjectAlternativeName(list(map(_general_name, names)))
            builder = builder.add_extension(alternatives, critical=False)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(usage, critical=False)
        signed = builder.sign(key if self_signed else self._key, hashes.SHA256())
        files = CertificateFiles(
            self._folder / f"{self._count}.pem", self._folder / f"{self._count}-key.pem"
        )
        files.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        files.private_key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begins: datetime,
        ends: datetime,
        of_authority: bool = True,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name if of_authority else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
        )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
