"""The dialects of the protocol, as one table.

=============  ===========================  =====================================
dialect        spoken by Synapse            difference from its predecessor
=============  ===========================  =====================================
legacy         0.2x to 1.12, TCP            one token per stream, ``REPLICATE`` names it
transitional   1.13 to 1.21, TCP            writers; ``REPLICATE`` asks for positions
modern         1.22 to 1.6x, TCP            POSITION has the previous token too
current        today's, Redis               no greeting, no pings; all processes receive all
=============  ===========================  =====================================

A dialect refuses commands that it does not have. An attribute without an argument in
a dialect is ``None`` when read and left out when written, so the same command can be
written in every dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

from synrepl.wire import commands as c
from synrepl.wire import fields as f
from synrepl.wire.fields import Field


class Side(Enum):
    """An end of a connection. Redis has no ends: every process may send every command."""

    SERVER = "server"
    CLIENT = "client"

    @property
    def other(self) -> Side:
        """The opposite end."""
        return Side.CLIENT if self is Side.SERVER else Side.SERVER


@dataclass(frozen=True, slots=True, eq=False)
class CommandLayout:
    """The arguments of one command in one dialect.

    :ivar senders: the sides that may send it
    :ivar absent: attributes of the class without an argument here; always ``None``
    """

    command: type[c.Command]
    senders: tuple[Side, ...]
    fields: tuple[Field, ...]
    absent: tuple[str, ...]

    @property
    def usage(self) -> str:
        """The format, for messages."""
        return " ".join([self.command.verb, *(f"<{field.title}>" for field in self.fields)])


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """A dialect, as the codec needs it. Compared by identity.

    :ivar layouts: by verb; several where lines differ in their number of arguments,
        with the layout used for writing first
    :ivar per_writer: whether RDATA and POSITION name a writer
    :ivar has_sides: whether some commands belong to one side; False on Redis
    """

    name: str
    layouts: Mapping[bytes, tuple[CommandLayout, ...]]
    per_writer: bool
    has_sides: bool

    def __repr__(self) -> str:
        return f"<dialect {self.name}>"


_STREAM = Field(("stream",), f.NAME)
_WRITER = Field(("writer",), f.NAME)
_INSTANCE = Field(("instance",), f.NAME)
_USER = Field(("user",), f.WORD)
_TEXT = Field(("text",), f.TEXT)
_TASK = Field(("task",), f.WORD)
_ROW = Field(("row",), f.ROW)
_ROW_TOKEN = Field(("token",), f.ROW_TOKEN)
_START = Field(("token",), f.START)
_PREV = Field(("prev",), f.NUMBER)
_NEW = Field(("new",), f.NUMBER)
_ACKED = Field(("token",), f.SIGNED)  # a federation sender begins at -1
_SYNCING = Field(("syncing",), f.STATE)
_LAST_SYNC = Field(("last_sync_ms",), f.NUMBER)
_SEEN = ("access_token", "ip", "user_agent", "device", "last_seen_ms")

_S = (Side.SERVER,)
_C = (Side.CLIENT,)
_SC = (Side.SERVER, Side.CLIENT)

_L, _T, _M, _R = "legacy", "transitional", "modern", "current"
_TCP = (_L, _T, _M)
_ALL = (_L, _T, _M, _R)

#: Command, sides that may send it over TCP, and its arguments by group of dialects.
_TABLE: tuple[
    tuple[type[c.Command], tuple[Side, ...], dict[tuple[str, ...], tuple[Field, ...]]], ...
] = (
    (c.Server, _S, {_TCP: (Field(("name",), f.WORD),)}),
    (
        c.Rdata,
        _S,
        {(_L,): (_STREAM, _ROW_TOKEN, _ROW), (_T, _M, _R): (_STREAM, _WRITER, _ROW_TOKEN, _ROW)},
    ),
    (
        c.Position,
        _S,
        {
            (_L,): (_STREAM, _NEW),
            (_M, _R): (_STREAM, _WRITER, _PREV, _NEW),
            # Over Redis as over TCP: 1.13 to 1.21 do not send the previous token.
            (_T, _R): (_STREAM, _WRITER, _NEW),
        },
    ),
    (c.Error, _SC, {_TCP: (_TEXT,)}),
    (c.Ping, _SC, {_TCP: (_TEXT,)}),
    (c.Name, _C, {_TCP: (_TEXT,)}),
    (c.Replicate, _C, {(_L,): (_STREAM, _START), (_T, _M, _R): ()}),
    (
        c.UserSync,
        _C,
        {
            (_L,): (_USER, _SYNCING, _LAST_SYNC),
            # 1.74 still named no device on Redis, 1.100 does.
            (_R,): (_INSTANCE, _USER, Field(("device",), f.DEVICE), _SYNCING, _LAST_SYNC),
            (_T, _M, _R): (_INSTANCE, _USER, _SYNCING, _LAST_SYNC),
        },
    ),
    (c.ClearUserSync, _C, {(_T, _M, _R): (_INSTANCE,)}),
    # 1.13 to 1.19 name no instance, 1.20 and 1.21 do.
    (c.FederationAck, _C, {(_T, _M, _R): (_INSTANCE, _ACKED), (_L, _T): (_ACKED,)}),
    # Dropped somewhere between 1.22 and 1.3x.
    (
        c.RemovePusher,
        _C,
        {_TCP: (Field(("app_id",), f.WORD), Field(("push_key",), f.WORD), _USER)},
    ),
    # 1.13 still had it.
    (
        c.InvalidateCache,
        _C,
        {(_L, _T): (Field(("cache",), f.WORD), Field(("keys",), f.KEYS_SPACED))},
    ),
    (
        c.UserIp,
        _C,
        {
            (_L,): (_USER, Field(_SEEN, f.SEEN_SPACED)),
            (_T, _M, _R): (_USER, Field(_SEEN, f.SEEN_COMPACT)),
        },
    ),
    (c.Sync, _S, {(_L, _T): (_TEXT,)}),
    (c.RemoteServerUp, _SC, {_ALL: (Field(("server",), f.WORD),)}),
    (c.LockReleased, _SC, {(_R,): (Field(("instance", "lock", "key"), f.LOCK),)}),
    (c.NewActiveTask, _SC, {(_R,): (_TASK,)}),
    (c.CancelTask, _SC, {(_R,): (_TASK,)}),
)


def _layout(
    command: type[c.Command], senders: tuple[Side, ...], args: tuple[Field, ...]
) -> CommandLayout:
    present = {name for field in args for name in field.attributes}
    absent = tuple(name for name in command.__struct_fields__ if name not in present)
    return CommandLayout(command, senders, args, absent)


def _dialect(name: str, *, has_sides: bool = True) -> Dialect:
    layouts: dict[bytes, tuple[CommandLayout, ...]] = {}
    for command, senders, shapes in _TABLE:
        found = tuple(
            _layout(command, senders if has_sides else _SC, args)
            for names, args in shapes.items()
            if name in names
        )
        if found:
            layouts[command.verb.encode()] = found
    per_writer = _WRITER in layouts[b"RDATA"][0].fields
    return Dialect(name, MappingProxyType(layouts), per_writer, has_sides)


LEGACY = _dialect(_L)
TRANSITIONAL = _dialect(_T)
MODERN = _dialect(_M)
CURRENT = _dialect(_R, has_sides=False)

#: By name, as in a configuration.
DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {dialect.name: dialect for dialect in (LEGACY, TRANSITIONAL, MODERN, CURRENT)}
)


def _either(first: Dialect, second: Dialect, senders: tuple[Side, ...]) -> Dialect:
    """``first`` plus the commands of ``senders`` in ``second``, distinguished by argument count."""
    layouts = dict(first.layouts)
    for verb, others in second.layouts.items():
        known = layouts.get(verb, ())
        counts = {len(layout.fields) for layout in known}
        more = tuple(
            layout
            for layout in others
            if len(layout.fields) not in counts and set(senders) & set(layout.senders)
        )
        if known or more:
            layouts[verb] = known + more
    name = f"{second.name} or {first.name}"
    return Dialect(name, MappingProxyType(layouts), first.per_writer, has_sides=True)


@lru_cache(maxsize=8)
def opening(modern: Dialect) -> Dialect:
    """The dialect of a server until it knows whether its client is legacy or ``modern``."""
    return _either(modern, LEGACY, _SC)


#: The dialect of a client that sends a bare REPLICATE until it knows its server's dialect.
#: The first POSITION shows it: one token in the transitional dialect, two in the modern one.
#: A client sends the same lines in both.
TRANSITIONAL_OR_MODERN = _either(MODERN, TRANSITIONAL, _S)

#: By name, as in the configuration of a TCP client. With ``auto``, the server's first POSITION
#: selects modern or transitional; legacy servers need a REPLICATE of their own form.
CLIENT_DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        "auto": TRANSITIONAL_OR_MODERN,
        **{dialect.name: dialect for dialect in (MODERN, TRANSITIONAL, LEGACY)},
    }
)
