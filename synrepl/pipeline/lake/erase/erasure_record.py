"""The record of erasures that a lake has carried out, without the names of the subjects.

Subjects are stored as keyed digests, which show whether a subject is new. They reveal no names: only
somebody with the key *and* a guess can check the guess.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping

import msgspec

from synrepl.core.errors import StorageError
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import read_bytes, reason_of, replace_bytes
from synrepl.positions.vector import BadVector, PositionVector

RECORD_FILE = "synrepl-lake.erased"

#: Incremented when a later release can no longer read what this one writes.
VERSION = 1

_KEY_BYTES = 32
_DIGEST_BYTES = 16


class ErasureRecordUnreadable(StorageError):
    """what the lake remembers of erasures, {path}, cannot be {what}: {reason}; if it cannot be repaired remove it: everything is erased once more then, which changes nothing that was"""


class ErasureRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the file ``synrepl-lake.erased``.

    :ivar key: the key of the digests, in hexadecimal
    :ivar subjects: digests of all subjects at the last erasure. A subject that is removed from the
        source's list and added again counts as new
    :ivar redactions: by stream, the position up to which rows were searched for redactions
    """

    version: int
    key: str
    subjects: frozenset[str] = frozenset()
    redactions: dict[str, dict[str, object]] = {}

    def digest(self, subject: str) -> str:
        """The digest of a subject."""
        key = bytes.fromhex(self.key)
        return hashlib.blake2b(subject.encode(), key=key, digest_size=_DIGEST_BYTES).hexdigest()

    def unrecorded(self, subjects: Iterable[str]) -> frozenset[str]:
        """The subjects that are not in the record."""
        return frozenset(each for each in subjects if self.digest(each) not in self.subjects)

    def restricted_to(self, subjects: Iterable[str]) -> ErasureRecord:
        """The record without all other subjects."""
        digests = frozenset(map(self.digest, subjects))
        return msgspec.structs.replace(self, subjects=self.subjects & digests)

    def position(self, stream: str) -> PositionVector:
        """The position up to which a stream's rows were searched for redactions."""
        at = self.redactions.get(stream)
        return PositionVector() if at is None else PositionVector.from_json(at)

    def searched(self, at: Mapping[str, PositionVector]) -> ErasureRecord:
        """The record after some streams were searched for redactions in rows up to ``at``."""
        reached = {stream: position.to_json() for stream, position in at.items()}
        return msgspec.structs.replace(self, redactions={**self.redactions, **reached})

    def updated(self, subjects: Iterable[str], at: Mapping[str, PositionVector]) -> ErasureRecord:
        """The record after the erasure of these subjects, and of redactions in rows up to ``at``."""
        erased = frozenset(map(self.digest, subjects))
        return msgspec.structs.replace(self.searched(at), subjects=erased)


def read_erasure_record(lake: Lake) -> ErasureRecord:
    """Read the record of a lake; an empty one with a new key if it has none.

    :raises ErasureRecordUnreadable:
    """
    path = lake.path / RECORD_FILE
    try:
        record = msgspec.json.decode(read_bytes(path), type=ErasureRecord)
        if record.version != VERSION:
            reason = f"another release of synrepl wrote it (version {record.version})"
            raise ErasureRecordUnreadable(path=path, what="read", reason=reason)
        record.digest("")
        for stream in record.redactions:
            record.position(stream)
    except FileNotFoundError:
        return ErasureRecord(VERSION, secrets.token_hex(_KEY_BYTES))
    except OSError as error:
        raise ErasureRecordUnreadable(path=path, what="read", reason=reason_of(error)) from None
    except (msgspec.DecodeError, BadVector, ValueError) as error:
        raise ErasureRecordUnreadable(
            path=path, what="read", reason=f"it is damaged ({error})"
        ) from None
    return record


def write_erasure_record(lake: Lake, record: ErasureRecord) -> None:
    """Write the record of a lake, atomically.

    :raises ErasureRecordUnreadable:
    """
    path = lake.path / RECORD_FILE
    data = msgspec.json.encode(record, order="deterministic") + b"\n"
    try:
        # Only for the owner: readers of the lake do not need the key.
        replace_bytes(path, data, mode=0o600)
    except OSError as error:
        raise ErasureRecordUnreadable(path=path, what="written", reason=reason_of(error)) from None
