"""Loads configurations with every check that is possible before a start: streams, writers, handlers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from synrepl.core.errors import ConfigError, raise_all
from synrepl.daemon.catalogue import bad_streams, catalogue
from synrepl.daemon.client_api.check import check_client_api
from synrepl.daemon.config import files as config_files
from synrepl.daemon.config.config import Config, MasterConfig, WorkerConfig, decode_either
from synrepl.daemon.config.decode import decode
from synrepl.daemon.config.files import ConfigFault, Document, KeyPath, in_order
from synrepl.daemon.config.own_streams import own_streams
from synrepl.daemon.config.room_writers import check_room_writers
from synrepl.daemon.config.senders import check_sender
from synrepl.daemon.federation.check import check_federation
from synrepl.daemon.handlers import check_handler, include_working_directory

C = TypeVar("C", bound=Config)


class Misconfigured(ConfigError):
    """{place}: {error}"""


def checked_master(paths: Sequence[Path]) -> MasterConfig:
    """Load and check a master's configuration; see :func:`checked`."""
    document = config_files.read(paths)
    return checked(decode(MasterConfig, document), document)


def checked_worker(paths: Sequence[Path]) -> WorkerConfig:
    """Load and check a worker's configuration; see :func:`checked`."""
    document = config_files.read(paths)
    return checked(decode(WorkerConfig, document), document)


def checked_either(paths: Sequence[Path]) -> MasterConfig | WorkerConfig:
    """Load and check the configuration of either role; see :func:`checked`."""
    document = config_files.read(paths)
    return checked(decode_either(document), document)


def checked(config: C, document: Document) -> C:
    """Check the streams, writers and handlers of a configuration, and return it.

    Imports the modules of the handlers, from the working directory too.

    :param document: the files that it was read from
    :raises Misconfigured: a setting is wrong, with its place; several as ``ConfigErrors``
    """
    faults: list[ConfigFault] = []

    def note(path: KeyPath, error: ConfigError) -> None:
        place = document.place(path)
        faults.append(document.fault(path, Misconfigured(place=place, error=error)))

    bad = list(bad_streams(config))
    for error in bad:
        note(error.path, error)
    if not bad:
        known = catalogue(config)
        try:
            own_streams(config, known)
        except ConfigError as error:
            note(("stream_writers", str(error.facts["stream"])), error)
        try:
            check_room_writers(config, known)
        except ConfigError as error:
            note(("rooms",), error)
        include_working_directory()
        for check, path in (
            (check_client_api, "rooms"),
            (check_federation, "rooms"),
            (check_sender, "follow"),
        ):
            try:
                check(config, known)
            except ConfigError as error:
                note((path,), error)
        for index, item in enumerate(config.handlers):
            try:
                check_handler(item, config, known)
            except ConfigError as error:
                note(("handlers", index), error)
    raise_all(in_order(faults))
    return config
