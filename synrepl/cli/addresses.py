"""Addresses at which a configuration's listeners are reachable from this machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.config import LOOPBACK, Config, HttpConfig, MasterConfig, WorkerConfig


class NoHttpListener(ConfigError):
    """the configuration has no HTTP listener to talk to: set {key!r} in it"""


class AnyPort(ConfigError):
    """{key!r} has port 0, which is a different one each time; set a fixed port there, or say {option} on the command line"""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """An HTTP listener.

    :ivar url: the URL, without a path
    :ivar secret: sent with each request; None for none
    """

    url: str
    secret: str | None


def reachable(bind_address: str) -> str:
    """The host at which a listener on this machine is reachable."""
    try:
        bound = ipaddress.ip_address(bind_address)
    except ValueError:
        return bind_address
    if bound.is_unspecified:
        return LOOPBACK if bound.version == 4 else "::1"
    return bind_address


def master_http(config: MasterConfig | WorkerConfig, url: str | None = None) -> HttpAddress:
    """The HTTP listener of the master.

    :param url: replaces the configured address; the configured secret is sent there, too
    :raises NoHttpListener: :raises AnyPort:
    """
    if isinstance(config, MasterConfig):
        return _own(config, "http", url)
    secret = config.master.secret
    found = url or config.master.http_url
    if found is None:
        raise NoHttpListener(key="master.http_url")
    return HttpAddress(found, None if secret is None else secret.reveal())


def writer_http(
    config: MasterConfig | WorkerConfig, stream: str, url: str | None = None
) -> HttpAddress:
    """The HTTP listener that appends a stream's facts: the worker's own if it writes the stream.

    :param url: replaces the configured address; the configured secret is sent there, too
    :raises NoHttpListener: :raises AnyPort:
    """
    writes = config.instance_name in config.stream_writers.get(stream, ())
    if writes and isinstance(config, WorkerConfig) and config.http is not None:
        return _own(config, "http", url)
    return master_http(config, url)


def own_http(config: Config) -> HttpAddress:
    """The HTTP listener of the process that the configuration is for.

    :raises NoHttpListener: :raises AnyPort:
    """
    return _own(config, "http", None)


def _own(config: Config, key: str, url: str | None) -> HttpAddress:
    http = config.http
    secret = None if http is None or http.secret is None else http.secret.reveal()
    if url is not None:
        return HttpAddress(url, secret)
    if http is None:
        raise NoHttpListener(key=key)
    return HttpAddress(_url(http), secret)


def _url(http: HttpConfig) -> str:
    if http.port == 0:
        raise AnyPort(key="http", option="--url")
    host = reachable(http.bind_address)
    return f"http://[{host}]:{http.port}" if ":" in host else f"http://{host}:{http.port}"
