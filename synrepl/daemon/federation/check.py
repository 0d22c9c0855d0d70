"""Checks the configuration of federation before a process starts."""

from __future__ import annotations

from synrepl.adapters.federation.certificates import ServedCertificate, TrustedAuthorities
from synrepl.core.errors import ConfigError
from synrepl.daemon.client_api.check import check_writer_urls
from synrepl.daemon.config.config import Config
from synrepl.daemon.config.signing_key import signing_key_of
from synrepl.federation.server_names import UnusableServerName, parse_server_name
from synrepl.streams.catalogue import Catalogue


class FederationNeedsDatabase(ConfigError):
    """rooms.federation: rooms and what is known of other servers are in the database; configure 'database'"""


class UnreachableServerName(ConfigError):
    """rooms.federation: other servers cannot reach this one by its server_name: {reason}"""


class BadSpoolDirectory(ConfigError):
    """rooms.federation.spool_dir: {path} is no directory; make it, or leave the setting out"""


def check_federation(config: Config, catalogue: Catalogue) -> None:
    """Check the ``federation`` section, and what it needs.

    :param catalogue: the streams of the process

    :raises FederationNeedsDatabase: :raises UnreachableServerName: :raises BadSpoolDirectory:
    :raises ConfigError: the signing key, the certificate or the authorities cannot be used
    """
    section = None if config.rooms is None else config.rooms.federation
    if section is None:
        return
    if not config.has_database:
        raise FederationNeedsDatabase()
    try:
        parse_server_name(config.server_name)
    except UnusableServerName as error:
        raise UnreachableServerName(reason=error) from None
    signing_key_of(config)
    TrustedAuthorities(section.trusted_ca_files, of_system=section.trust_system_authorities)
    if section.tls_certificate is not None:
        assert section.tls_private_key is not None  # they are configured together
        ServedCertificate(section.tls_certificate, section.tls_private_key, float, str)
    if section.spool_dir is not None and not section.spool_dir.is_dir():
        raise BadSpoolDirectory(path=section.spool_dir)
    if section.port is not None:
        check_writer_urls(config, catalogue)
