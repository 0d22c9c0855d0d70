"""The configuration of a master and of a worker, typed.

One YAML file per process; ``load_master`` and ``load_worker`` read it (or
several, merged). The annotated templates that ``synrepl init`` writes are the
reference for what each key means to an operator. Nothing here needs a reactor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from synrepl.core.errors import ConfigError, raise_all
from synrepl.core.loopback import LOOPBACK as LOOPBACK
from synrepl.core.loopback import is_loopback as is_loopback
from synrepl.daemon.config import files as config_files
from synrepl.daemon.config import values
from synrepl.daemon.config.database import EmbeddedConfig, PoolConfig
from synrepl.daemon.config.decode import Section, Unfit, decode, errors_of
from synrepl.daemon.config.files import Document
from synrepl.daemon.config.followers import FollowersConfig
from synrepl.daemon.config.handlers import HandlerConfig, unfit_handlers
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.config.rooms import RoomsConfig
from synrepl.daemon.config.secret import Secret, exposed_database
from synrepl.streams.declared import BadDeclaration, declare
from synrepl.streams.definition import Generation, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(Section):
    """The lowest level that is logged, and the format."""

    level: Literal["debug", "info", "warn", "error"] = "info"
    format: Literal["text", "json"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredStream(Section):
    """A stream declared by the user.

    :ivar columns: column names to column types, in wire order
    :ivar ephemeral: its facts are trimmed once every named follower has acknowledged them
    :ivar invalidates: for each cache, the columns whose values are the key that a row
        invalidates; no columns for the whole cache
    :ivar marks: for each change index, the column with the key that has changed
    """

    name: values.StreamName
    columns: Mapping[values.ColumnName, values.ColumnType]
    ephemeral: bool = False
    invalidates: Mapping[str, tuple[values.ColumnName, ...]] = field(default_factory=dict)
    marks: Mapping[str, values.ColumnName] = field(default_factory=dict)

    def faults(self) -> Iterator[Unfit]:
        if not self.columns:
            yield Unfit(key="columns", reason="a stream needs at least one column")
            return
        try:
            self.declare()
        except BadDeclaration as error:
            yield Unfit(key=error.key, reason=error.facts["reason"])

    def declare(self) -> Stream:
        """Make the stream.

        :raises BadDeclaration: a name is reserved, or an effect is invalid
        """
        return declare(
            self.name,
            self.columns,
            ephemeral=self.ephemeral,
            invalidates=self.invalidates,
            marks=self.marks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig(Section):
    """A TCP port on which the master speaks the replication protocol.

    :ivar dialect: the dialect for clients that send a bare ``REPLICATE``
    :ivar rows: the generation of the row shapes for such clients; ``auto`` for that of the dialect
    :ivar legacy_rows: the generation of the row shapes for legacy clients
    :ivar line_limit: maximum length of a line sent or accepted, in bytes
    :ivar insecure: the operator accepts plain text on an address that other machines can reach
    :ivar max_connections: maximum number of clients; ``max_connections_per_address`` from one address
    """

    port: values.Port
    bind_address: str = LOOPBACK
    dialect: Literal["modern", "transitional"] = "modern"
    rows: Literal["auto", "transitional", "modern", "current"] = "auto"
    legacy_rows: Literal["oldest", "legacy"] = "legacy"
    line_limit: values.Size = 16384
    insecure: bool = False
    max_connections: values.Count = 1_000
    max_connections_per_address: values.Count = 500

    def faults(self) -> Iterator[Unfit]:
        yield from _public(self.bind_address, self.insecure)

    @property
    def generation(self) -> Generation:
        """The generation of the row shapes for clients that send a bare ``REPLICATE``."""
        return Generation(self.dialect if self.rows == "auto" else self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig(Section):
    """The HTTP listener of a process.

    :ivar secret: requests must carry it as ``Authorization: Bearer …``
    :ivar allowed_hosts: host names accepted in requests, besides loopback names and the
        address that the request was sent to
    :ivar max_body: maximum size of a request body, in bytes
    :ivar max_connections: maximum number of connections; ``max_connections_per_address``
        from one address
    """

    port: values.Port
    bind_address: str = LOOPBACK
    secret: values.SecretFile | None = field(default=None, metadata={"key": "secret_path"})
    allowed_hosts: tuple[values.HostName, ...] = ()
    max_body: values.Size = 16 * 2**20
    max_connections: values.Count = 2_000
    max_connections_per_address: values.Count = 1_000
    insecure: bool = False

    def faults(self) -> Iterator[Unfit]:
        yield from _public(self.bind_address, self.insecure)
        if not is_loopback(self.bind_address) and self.secret is None:
            yield Unfit(key="secret_path", reason="required when bind_address is not loopback")


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterAddress(Section):
    """The addresses of a worker's master.

    :ivar http_url: base URL of the master's HTTP listener, for in-memory streams and
        for ``catch_up: http``
    :ivar foreign: the master is a real Synapse, which repeats and reorders the rows
        of some streams, such as ``caches``
    :ivar database: the DSN of that Synapse's database. Missed facts are read from it, and
        nothing is ever written
    :ivar insecure: the operator accepts plain text to that database
    """

    host: str = LOOPBACK
    port: values.RemotePort
    http_url: values.HttpUrl | None = None
    secret: values.SecretFile | None = field(default=None, metadata={"key": "secret_path"})
    foreign: bool = False
    database: values.SecretFile | None = field(default=None, metadata={"key": "database_path"})
    insecure: bool = False

    def faults(self) -> Iterator[Unfit]:
        if not self.insecure:
            yield from exposed_database("database_path", self.database, "master.insecure")
        if self.database is not None and not self.foreign:
            yield Unfit(key="database_path", reason="for a real Synapse only: 'foreign: true'")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig(Section):
    """How long rows of ephemeral streams are kept; all in seconds.

    :ivar every: interval of trimming
    :ivar keep: minimum age of a row that is trimmed, even if it is acknowledged
    :ivar max: maximum age of a row, even if it is not acknowledged
    """

    every: values.Timeout = 60.0
    keep: values.Duration = 600.0
    max: values.Timeout = 7 * 86_400.0

    def faults(self) -> Iterator[Unfit]:
        if self.keep > self.max:
            yield Unfit(key="keep", reason=f"{self.keep:g} s is more than max, {self.max:g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCachesConfig(Section):
    """The continuous audit, which compares cache entries with the database.

    :ivar every: interval in seconds; 0 for no audit
    :ivar keys: number of entries audited in each interval
    """

    every: values.Duration = 60.0
    keys: values.Count = 20

    def faults(self) -> Iterator[Unfit]:
        if self.every and self.keys > 100 * self.every:
            reason = f"{self.keys} keys in {self.every:g} s are more than 100 a second"
            yield Unfit(key="keys", reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """The settings that masters and workers share; a file with these keys alone serves both.

    :ivar database: ``"embedded"``, a DSN, or None if ``database_dsn`` is set
    :ivar database_dsn: the DSN from the file ``database_path``
    :ivar database_insecure: the operator accepts plain text to a database on another
        machine, and a password in a file that others can read
    :ivar catalogue: which of Synapse's streams there are
    :ivar stream_writers: the writers of a stream, unless it is the master alone
    :ivar federation_sender_instances: the workers that send the facts of the ``federation``
        stream to other servers. Without any, sending is not delegated, and the stream takes
        no facts
    :ivar rooms: the room store; None for none
    :ivar redis: a master publishes there in addition to its listeners; a worker follows
        there instead of its master's listener
    :ivar ping_timeout: seconds of silence after which a connection is closed
        (seed: TCP replication, first generation, 'Keep alives')
    """

    server_name: values.ServerName
    instance_name: values.WriterName
    data_dir: values.Directory | None = None
    database: Literal["embedded"] | values.Dsn | None = None
    database_dsn: values.SecretFile | None = field(default=None, metadata={"key": "database_path"})
    database_insecure: bool = False
    database_pool: PoolConfig = field(default_factory=PoolConfig)
    embedded: EmbeddedConfig = field(default_factory=EmbeddedConfig)
    catalogue: Literal["all", "none"] | tuple[values.StreamName, ...] = "all"
    streams: tuple[DeclaredStream, ...] = ()
    stream_writers: Mapping[values.StreamName, tuple[values.WriterName, ...]] = field(
        default_factory=dict
    )
    federation_sender_instances: tuple[values.WriterName, ...] = ()
    handlers: tuple[HandlerConfig, ...] = ()
    http: HttpConfig | None = None
    rooms: RoomsConfig | None = None
    redis: RedisConfig | None = None
    audit_caches: AuditCachesConfig = field(default_factory=AuditCachesConfig)
    ping_timeout: values.Timeout = 15.0
    log: LogConfig = field(default_factory=LogConfig)

    def faults(self) -> Iterator[Unfit]:
        if self.database is not None and self.database_dsn is not None:
            yield Unfit(key="database_path", reason="give either database or database_path")
        if not self.database_insecure:
            key = "database" if self.database_dsn is None else "database_path"
            yield from exposed_database(key, self.dsn, "database_insecure")
        if self.uses_embedded and self.data_dir is None:
            yield Unfit(key="data_dir", reason="required for 'database: embedded'")
        yield from _repeated("streams", [stream.name for stream in self.streams])
        for stream, writers in self.stream_writers.items():
            if not writers:
                yield Unfit(key=f"stream_writers.{stream}", reason="name at least one writer")
            yield from _repeated(f"stream_writers.{stream}", writers)
        yield from _repeated("federation_sender_instances", self.federation_sender_instances)

    @property
    def has_database(self) -> bool:
        """Whether there is a database, embedded or external."""
        return self.uses_embedded or self.dsn is not None

    @property
    def uses_embedded(self) -> bool:
        """Whether the database is the embedded one, which only the master starts."""
        return self.database == "embedded"

    @property
    def embedded_dsn_path(self) -> Path:
        """The file in which the master writes the DSN of the embedded database for other processes.

        :raises Unfit: there is no ``data_dir``
        """
        if self.data_dir is None:
            raise Unfit(key="data_dir", reason="required for 'database: embedded'")
        return self.data_dir / "postgres.dsn"

    @property
    def dsn(self) -> Secret | None:
        """The configured DSN; None for an embedded database or no database."""
        return self.database if isinstance(self.database, Secret) else self.database_dsn

    def writers_of(self, stream: str) -> tuple[str, ...]:
        """The instance names of the writers of ``stream``."""
        return self.stream_writers.get(stream, ("master",))


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterConfig(Config):
    """The configuration of the process that owns the listeners.

    :ivar live_queue_commands: maximum number of commands that the live lane of a connection
        queues before the client is disconnected (seed: TCP replication, 'Start up': "buffer
        a (fairly large) number of commands and then disconnect the client")
    :ivar poll_interval: seconds between polls for commits of other writers; normally a
        notification comes first
    """

    instance_name: values.WriterName = "master"
    listeners: tuple[ListenerConfig, ...] = ()
    live_queue_commands: values.Count = 10_000
    poll_interval: values.Timeout = 1.0
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    followers: FollowersConfig = field(default_factory=FollowersConfig)

    def faults(self) -> Iterator[Unfit]:
        # Zero-argument super() does not work in a dataclass with slots.
        yield from Config.faults(self)
        if self.database is None and self.database_dsn is None:
            yield Unfit(key="database", reason="a master needs a database: embedded, or a DSN")
        yield from _repeated(
            "listeners", [f"port {item.port}" for item in self.listeners if item.port]
        )
        yield from unfit_handlers(self.handlers, has_database=True, is_master=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(Config):
    """The configuration of a process that follows.

    :ivar dialect: the dialect of the connection; ``auto`` is transitional or modern,
        depending on how the master announces positions
    :ivar follow: the streams to follow
    :ivar follower_name: name under which its positions are recorded; None for ``instance_name``
    :ivar starting: where a follower without recorded positions begins
    :ivar catch_up: where missed facts are fetched
    :ivar lease: seconds for which a master retains facts that this worker has not acknowledged
    :ivar line_limit: maximum length of a line from the master, in bytes
    """

    master: MasterAddress
    dialect: Literal["auto", "modern", "transitional", "legacy"] = "auto"
    follow: Literal["all"] | tuple[values.StreamName, ...] = "all"
    follower_name: values.FollowerName | None = None
    starting: Literal["earliest", "now"] = "earliest"
    catch_up: Literal["database", "http"] = "database"
    lease: values.Timeout = 86_400.0
    line_limit: values.Size = 16384

    def faults(self) -> Iterator[Unfit]:
        yield from Config.faults(self)
        yield from unfit_handlers(self.handlers, has_database=self.has_database, is_master=False)
        if self.redis is not None and self.dialect not in ("auto", "modern"):
            yield Unfit(key="dialect", reason="over Redis there is only one; leave it out")
        if self.catch_up == "http" and self.master.http_url is None:
            yield Unfit(key="master.http_url", reason="required for 'catch_up: http'")
        if self.catch_up == "database" and self.master.foreign:
            if self.dialect != "legacy" and self.master.database is None:
                yield Unfit(
                    key="master.database_path",
                    reason="required to catch up with a real Synapse, whose facts are in its own "
                    "database; without it say 'catch_up: http'",
                )
        elif self.catch_up == "database" and self.database is None and self.database_dsn is None:
            yield Unfit(
                key="database", reason="required to catch up; without one say 'catch_up: http'"
            )

    @property
    def name_as_follower(self) -> str:
        """The name under which the positions are recorded."""
        return self.follower_name or self.instance_name


def load_master(paths: Sequence[Path]) -> MasterConfig:
    """Read a master's configuration from files and directories.

    :raises ConfigError: with the file, the line and the key; several at once as ``ConfigErrors``
    """
    return decode(MasterConfig, config_files.read(paths))


def load_worker(paths: Sequence[Path]) -> WorkerConfig:
    """Read a worker's configuration from files and directories.

    :raises ConfigError: with the file, the line and the key; several at once as ``ConfigErrors``
    """
    return decode(WorkerConfig, config_files.read(paths))


def load(paths: Sequence[Path]) -> MasterConfig | WorkerConfig:
    """Read the configuration of a master or worker; only workers have the key ``master``.

    :raises ConfigError: with the file, the line and the key; several at once as ``ConfigErrors``
    """
    return decode_either(config_files.read(paths))


def decode_either(document: Document) -> MasterConfig | WorkerConfig:
    """Read a document as a worker's configuration if it has the key ``master``, else as a master's.

    :raises ConfigError: see :func:`load`
    """
    if "master" in document.content:
        return decode(WorkerConfig, document)
    if document.faults:  # the key may be in the part that could not be read
        of_a_worker = set(map(_subject, errors_of(WorkerConfig, document)))
        raise_all([e for e in errors_of(MasterConfig, document) if _subject(e) in of_a_worker])
    return decode(MasterConfig, document)


def _subject(error: ConfigError) -> tuple[str, ...]:
    """Identify the subject of an error, without the nearest valid key, which depends on the role."""
    facts = {key: str(value) for key, value in error.facts.items()}
    return (
        type(error).__name__,
        facts.get("place", ""),
        facts.get("key", facts.get("file", "")),
    )


def _public(bind_address: str, insecure: bool) -> Iterator[Unfit]:
    if not insecure and not is_loopback(bind_address):
        yield Unfit(
            key="bind_address",
            reason=f"{bind_address!r} can be reached from other machines, and TLS is not built yet; "
            "bind to 127.0.0.1 behind a tunnel or proxy, or accept plain text by 'insecure: true'",
        )


def _repeated(key: str, items: Sequence[str]) -> Iterator[Unfit]:
    seen: set[str] = set()
    for item in items:
        if item in seen:
            yield Unfit(key=key, reason=f"{item!r} appears twice")
        seen.add(item)
