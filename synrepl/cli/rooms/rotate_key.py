"""``synrepl rooms rotate-key``: replace the key with which this server signs."""

from __future__ import annotations

import os
import secrets
import string
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from signedjson.types import SigningKey

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import ShownProgress, with_database
from synrepl.core.errors import InputError
from synrepl.daemon.config import units
from synrepl.daemon.config.config import Config, load
from synrepl.daemon.config.secret import read_secret
from synrepl.daemon.config.signing_key import (
    SigningKeyNeeded,
    new_signing_key,
    parse_signing_key,
    signing_key_of,
    signing_key_path,
)
from synrepl.services.federation.keys.own_keys import public_key, record_rotation
from synrepl.storage.database import Database

#: Letters of the part of a key's ID that distinguishes it from others.
_ID_LETTERS = 6


class CannotReplaceKey(InputError):
    """{path} cannot be replaced: {reason}; nothing was changed"""


@click.command("rotate-key")
@config_option
@click.option(
    "--overlap",
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How long the old key stays valid; restart every process of the server before it ends.",
)
@json_option
def command(config: tuple[Path, ...], overlap: str, as_json: bool) -> None:
    """Make a new signing key, and let the old one end.

    The new key is written to the file of the old one, and both are published as valid until the old one ends; then it
    is published as a key that was used. What was signed with it stays valid. Processes on other machines need a copy
    of the file. A command that was interrupted can be repeated.
    """
    try:
        seconds = units.duration(overlap)
    except ValueError:
        raise click.BadParameter("give a duration such as '1h'", param_hint="--overlap") from None
    loaded = load(config)
    old, path = signing_key_of(loaded), signing_key_path(loaded)
    if old is None:
        raise SigningKeyNeeded(file=path.name)
    prepared = path.with_name(f"{path.name}.new")
    new = _prepare(path, prepared)
    now_ms = int(time.time() * 1000)
    expires_ms = now_ms + int(seconds * 1000)

    async def work(database: Database, _: Config, __: ShownProgress) -> Any:
        return await database.run(
            "rotate the signing key",
            lambda txn: record_rotation(txn, old, new, now_ms, expires_ms),
        )

    ended = with_database(config, work)
    os.replace(prepared, path)
    new_id = public_key(new)[0]
    if as_json:
        print_json(
            {"key_id": new_id, "file": str(path), "replaced": list(ended), "until_ms": expires_ms}
        )
        return
    until = datetime.fromtimestamp(expires_ms / 1000, UTC)
    click.echo(f"{path} has the new key {new_id}")
    for key_id in ended:
        click.echo(f"{key_id} stays valid until {until:%Y-%m-%d %H:%M:%S} UTC")
    click.echo("next: restart every process of this server before then, with this file")


def _prepare(path: Path, prepared: Path) -> SigningKey:
    """The new key, in a file beside that of the old one; that of an interrupted command, if there is one.

    :raises CannotReplaceKey:
    """
    letters = string.ascii_lowercase + string.digits
    version = f"a_{''.join(secrets.choice(letters) for _ in range(_ID_LETTERS))}"
    try:
        if not prepared.exists():
            before = path.stat()
            # Only its owner may ever read it, also while it is being written.
            partial = prepared.with_name(f"{prepared.name}.{os.getpid()}")
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(new_signing_key(version))
                file.flush()
                os.fsync(descriptor)
            os.chmod(partial, before.st_mode & 0o777)
            if os.geteuid() == 0:
                os.chown(partial, before.st_uid, before.st_gid)
            os.replace(partial, prepared)
    except OSError as error:
        raise CannotReplaceKey(path=path, reason=error.strerror) from None
    return parse_signing_key(read_secret(prepared))
