"""Checks the configuration of the client API before a process starts."""

from __future__ import annotations

from synrepl.core.errors import ConfigError
from synrepl.daemon.client_api.checkers import checker_class, users_path
from synrepl.daemon.client_api.users_file import read_users
from synrepl.daemon.config.client_streams import client_stream_writers
from synrepl.daemon.config.config import Config, WorkerConfig
from synrepl.daemon.config.signing_key import signing_key_of
from synrepl.streams.catalogue import Catalogue


class ClientApiNeedsDatabase(ConfigError):
    """rooms.client_api: rooms are kept in the database; configure 'database'"""


class WriterUrlMissing(ConfigError):
    """rooms.writer_urls: {writer!r} {does}, and requests of clients and other servers are forwarded to its HTTP listener; give its URL"""


def check_client_api(config: Config, catalogue: Catalogue) -> None:
    """Check the ``client_api`` section, and what it needs.

    :param catalogue: the streams of the process

    :raises ClientApiNeedsDatabase: :raises WriterUrlMissing:
    :raises ConfigError: the signing key, the users or the checker cannot be used
    """
    rooms = config.rooms
    signing_key_of(config)
    if rooms is None or rooms.clients is None:
        return
    if not config.has_database:
        raise ClientApiNeedsDatabase()
    check_writer_urls(config, catalogue)
    if rooms.clients.checker is None:
        read_users(users_path(config, rooms.clients), config.server_name)
    else:
        checker_class(rooms.clients)


def check_writer_urls(config: Config, catalogue: Catalogue) -> None:
    """Check that requests of others can be forwarded to each process that persists rooms or writes clients' data.

    :raises WriterUrlMissing:
    """
    if config.rooms is None:
        return
    known = writer_urls(config)
    needed = dict.fromkeys(config.rooms.writers, "persists events of rooms")
    for stream, writers in client_stream_writers(config, catalogue).items():
        needed |= {each: f"writes {stream!r}" for each in writers if each not in needed}
    for writer, does in needed.items():
        if writer != config.instance_name and writer not in known:
            raise WriterUrlMissing(writer=writer, does=does)


def writer_urls(config: Config) -> dict[str, str]:
    """The base URLs of the HTTP listeners of other processes, by instance; none without rooms."""
    if config.rooms is None:
        return {}
    urls = dict(config.rooms.writer_urls)
    if isinstance(config, WorkerConfig) and config.master.http_url is not None:
        urls.setdefault("master", config.master.http_url)
    urls.pop(config.instance_name, None)
    return urls
