"""Finds what a configuration would expose: passwords in files, plain text to other machines."""

from __future__ import annotations

from collections.abc import Iterator

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.decode import Unfit
from synrepl.daemon.config.secret import Secret
from synrepl.driver.dsn import refuse_plain_text


def exposed_database(key: str, dsn: Secret | None, insecure: str) -> Iterator[Unfit]:
    """Check whether a DSN exposes data or its password, unless the operator accepts it.

    :param key: the setting that holds the DSN
    :param insecure: the setting that accepts the exposure
    """
    if dsn is None:
        return
    try:
        refuse_plain_text(dsn.reveal(), f"'{insecure}: true'")
    except ConfigError as error:
        yield Unfit(key=key, reason=error)
    if dsn.readers is not None:
        yield Unfit(
            key=key,
            reason=f"there is a password in it, and this file can be read by {dsn.readers}: chmod "
            "it to 0600 (0640 will do for a file that belongs to root), put the DSN in a file of "
            f"its own and name that in 'database_path', or accept it by '{insecure}: true'",
        )
