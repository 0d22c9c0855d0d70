"""What a lake remembers of erasures that were carried out: not whom they were about.

Subjects are kept as keyed digests. They tell a subject that is told again from one that is
new, and nobody a name: only whoever has the key *and* a guess can check it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from synrepl.core.errors import StorageError
from synrepl.pipeline.lake.lake import Lake
from synrepl.positions.vector import BadVector, PositionVector

RECORD_FILE = "synrepl-lake.erased"

#: ErrorInTask when a later release can no longer read what this one writes.
VERSION = 1

_KEY_BYTES = 32
_DIGEST_BYTES = 16


class ErasureRecordUnreadable(StorageError):
    """what the lake remembers of erasures, {path}, cannot be {what}: {reason}; if it cannot be repaired remove it: everything is erased once more then, which changes nothing that was"""


class ErasureRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file.

    :ivar key: hexadecimal
    :ivar subjects: digests of all subjects at the last erasing. One that is off the list since
        then, and comes back, counts as new
    :ivar redactions: by stream, the position up to which rows were asked what they redact
    """

    version: int
    key: str
    subjects: frozenset[str] = frozenset()
    redactions: dict[str, dict[str, object]] = {}

    def digest(self, subject: str) -> str:
        """A subject's digest."""
        key = bytes.fromhex(self.key)
        return hashlib.blake2b(subject.encode(), key=key, digest_size=_DIGEST_BYTES).hexdigest()

    def unrecorded(self, subjects: Iterable[str]) -> frozenset[str]:
        """Those of the subjects that are not remembered."""
        return frozenset(each for each in subjects if self.digest(each) not in self.subjects)

    def restricted_to(self, subjects: Iterable[str]) -> ErasureRecord:
        """The record of these subjects alone."""
        digests = frozenset(map(self.digest, subjects))
        return msgspec.structs.replace(self, subjects=self.subjects & digests)

    def position(self, stream: str) -> PositionVector:
        """Up to where a stream's rows were asked what they redact."""
        at = self.redactions.get(stream)
        return PositionVector() if at is None else PositionVector.from_json(at)

    def updated(self, subjects: Iterable[str], at: Mapping[str, PositionVector]) -> ErasureRecord:
        """The record once these are erased, and all that rows up to there redact."""
        return msgspec.structs.replace(
            self,
            subjects=frozenset(map(self.digest, subjects)),
            redactions={stream: position.to_json() for stream, position in at.items()},
        )


def read_erasure_record(lake: Lake) -> ErasureRecord:
    """What is remembered; of a lake that nothing was erased from, nothing.

    :raises ErasureRecordUnreadable:
    """
    path = lake.path / RECORD_FILE
    try:
        record = msgspec.json.decode(path.read_bytes(), type=ErasureRecord)
        if record.version != VERSION:
            reason = f"another release of synrepl wrote it (version {record.version})"
            raise ErasureRecordUnreadable(path=path, what="read", reason=reason)
        record.digest("")
        for stream in record.redactions:
            record.position(stream)
    except FileNotFoundError:
        return ErasureRecord(VERSION, secrets.token_hex(_KEY_BYTES))
    except OSError as error:
        raise ErasureRecordUnreadable(path=path, what="read", reason=_reason(error)) from None
    except (msgspec.DecodeError, BadVector, ValueError) as error:
        raise ErasureRecordUnreadable(
            path=path, what="read", reason=f"it is damaged ({error})"
        ) from None
    return record


def write_erasure_record(lake: Lake, record: ErasureRecord) -> None:
    """Remember; all of it, or nothing.

    :raises ErasureRecordUnreadable:
    """
    path = lake.path / RECORD_FILE
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        _write_synced(draft, msgspec.json.encode(record, order="deterministic") + b"\n")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ErasureRecordUnreadable(path=path, what="written", reason=_reason(error)) from None


def _write_synced(path: Path, data: bytes) -> None:
    # For the owner's eyes: readers of the lake have no use for the key.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or errno.EIO)
