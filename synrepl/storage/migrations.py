"""Schema migrations, as numbered SQL files.

A folder contains::

    0001_streams.pre.sql     safe while processes of the previous version still run
    0002_trim_log.pre.sql
    0002_trim_log.post.sql   only when none of them runs any more
    full.sql                 optional: the sum of all, for new databases

They are applied in the order of their numbers, ``pre`` before ``post``, each in
one transaction together with its record in ``synrepl._migrations``. To upgrade,
apply ``pre``, replace the processes one by one, and apply ``post``. A ``pre`` after
a pending ``post`` has to wait for it.

A file is one script: no ``BEGIN`` or ``COMMIT``, nothing that Postgres refuses
in a transaction (``CREATE INDEX CONCURRENTLY``). Once released it never changes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.abc import Traversable
from importlib.resources import files

from synrepl.core.errors import InputError, Refused, StorageError
from synrepl.storage.database import Database, Transaction

FULL = "full.sql"

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.(pre|post)\.sql", re.ASCII)

#: One process at a time migrates. ('SY' << 16) + 'mi', clear of two-part locks.
_LOCK = 0x53596D69


class BadMigrations(InputError):
    """the migrations in {folder} cannot be used: {reason}"""


class MigrationEdited(StorageError):
    """migration {migration} was applied to this database with other contents than it has now; a released migration never changes: install the version that this database was made with, or restore the file"""


class DatabaseNewer(Refused):
    """the schema of the database is at {found}, which this version of synrepl does not know (it ends at {last}); install the version that upgraded the database, or a newer one"""


class MigrationsOutOfOrder(StorageError):
    """migration {applied} is applied to this database, but {missing} before it is not; restore the database, or apply the missing one by hand and record it in synrepl._migrations"""


class SchemaBehind(Refused):
    """the schema of the database lacks {missing}; run 'synrepl schema' to upgrade it (its help says when which phase is safe)"""


class MigrationPhase(StrEnum):
    """When a migration may be applied."""

    PRE = "pre"
    POST = "post"


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration file."""

    number: int
    name: str
    phase: MigrationPhase
    sql: str

    def __str__(self) -> str:
        return f"{self.number:04d}_{self.name}.{self.phase}"

    @property
    def checksum(self) -> str:
        """SHA-256 of the contents, with normalised line ends."""
        return hashlib.sha256(self.sql.replace("\r\n", "\n").encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Schema:
    """The contents of a folder: all migrations in order, and the full script if there is one."""

    migrations: tuple[Migration, ...]
    full: str | None


def load(folder: Traversable | None = None) -> Schema:
    """Read a folder of migrations, by default the product's own.

    :raises BadMigrations: a number is missing or used twice, or a file name is not valid
    """
    folder = files("synrepl.storage") / "schema" if folder is None else folder
    found: list[Migration] = []
    full: str | None = None
    for file in folder.iterdir():
        if file.name == FULL:
            full = file.read_text(encoding="utf-8")
        elif file.name.endswith(".sql"):
            parts = _FILE_NAME.fullmatch(file.name)
            if parts is None:
                reason = f"{file.name} is not named like 0001_name.pre.sql"
                raise BadMigrations(folder=folder, reason=reason)
            number, name, phase = parts.groups()
            sql = file.read_text(encoding="utf-8")
            found.append(Migration(int(number), name, MigrationPhase(phase), sql))
    found.sort(key=lambda migration: (migration.number, migration.phase is MigrationPhase.POST))
    _check_numbers(folder, found)
    return Schema(tuple(found), full)


def _check_numbers(folder: Traversable, ordered: Sequence[Migration]) -> None:
    last = 0
    seen: set[tuple[int, MigrationPhase]] = set()
    for migration in ordered:
        if (migration.number, migration.phase) in seen:
            raise BadMigrations(folder=folder, reason=f"{migration} has a number used before")
        if migration.number > last + 1:
            raise BadMigrations(folder=folder, reason=f"number {last + 1:04d} is missing")
        seen.add((migration.number, migration.phase))
        last = migration.number


def applied(txn: Transaction) -> dict[str, str]:
    """Checksums of the applied migrations by name; empty in a database without a schema."""
    txn.execute("SELECT to_regclass('synrepl._migrations') IS NOT NULL")
    if not txn.fetchone()[0]:
        return {}
    txn.execute("SELECT migration, checksum FROM synrepl._migrations ORDER BY migration")
    return dict(txn.fetchall())


def pending(txn: Transaction, schema: Schema) -> tuple[Migration, ...]:
    """The pending migrations, in order.

    :raises DatabaseNewer: the database is ahead of this code
    :raises MigrationEdited: an applied file has changed
    :raises MigrationsOutOfOrder: one is applied, but not its predecessor
    """
    done = applied(txn)
    known = {str(migration) for migration in schema.migrations}
    unknown = sorted(done.keys() - known)
    if unknown:
        last = str(schema.migrations[-1]) if schema.migrations else "nothing"
        raise DatabaseNewer(found=unknown[-1], last=last)
    missing: list[Migration] = []
    for migration in schema.migrations:
        checksum = done.get(str(migration))
        if checksum is None:
            missing.append(migration)
        elif missing:
            raise MigrationsOutOfOrder(applied=migration, missing=missing[0])
        elif checksum != migration.checksum:
            raise MigrationEdited(migration=migration)
    return tuple(missing)


def check(txn: Transaction, schema: Schema) -> None:
    """Check that this code can work with the database: every ``pre`` is applied.

    :raises SchemaBehind: one is not; and the errors of :func:`pending`
    """
    missing = [
        str(migration)
        for migration in pending(txn, schema)
        if migration.phase is MigrationPhase.PRE
    ]
    if missing:
        raise SchemaBehind(missing=", ".join(missing))


def apply_next(txn: Transaction, schema: Schema, upto: MigrationPhase) -> tuple[Migration, ...]:
    """Apply the next migration; to a database without a schema, all at once.

    :param upto: :attr:`MigrationPhase.PRE` stops before the first ``post``, except in a
        database without a schema, which no process can be using
    :returns: the applied migrations; empty if none was pending
    """
    txn.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    todo = pending(txn, schema)
    is_new = todo == schema.migrations
    if not is_new:
        todo = todo[:1]
        if upto is MigrationPhase.PRE and todo and todo[0].phase is MigrationPhase.POST:
            todo = ()
    if not todo:
        return ()
    scripts = [schema.full] if is_new and schema.full is not None else [m.sql for m in todo]
    for script in scripts:
        txn.execute(script)
    return _record(txn, todo)


def _record(txn: Transaction, done: tuple[Migration, ...]) -> tuple[Migration, ...]:
    txn.execute(
        "CREATE SCHEMA IF NOT EXISTS synrepl;"
        "CREATE TABLE IF NOT EXISTS synrepl._migrations ("
        " migration text PRIMARY KEY,"
        " checksum text NOT NULL,"
        " applied_at timestamptz NOT NULL DEFAULT now())"
    )
    txn.insert_many(
        "INSERT INTO synrepl._migrations (migration, checksum) VALUES %s",
        [(str(migration), migration.checksum) for migration in done],
    )
    return done


async def migrate(
    database: Database, schema: Schema, upto: MigrationPhase = MigrationPhase.POST
) -> tuple[Migration, ...]:
    """Apply all pending migrations, each in its own transaction.

    Any number of processes may call it at once.

    :param upto: :attr:`MigrationPhase.PRE` while processes of an older version still run
    :returns: the migrations that this call applied
    """
    total: tuple[Migration, ...] = ()
    while True:
        step = await database.run("migrate", lambda txn: apply_next(txn, schema, upto))
        if not step:
            return total
        total += step
