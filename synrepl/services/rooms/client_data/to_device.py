"""Messages to devices: sent once for each transaction ID, kept until their device has acknowledged them.

Source: https://spec.matrix.org/v1.16/client-server-api/#send-to-device-messaging
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from synrepl.core import jsons
from synrepl.core.errors import InputError
from synrepl.core.log import Logger
from synrepl.services.rooms.client_data.account_data import check_name
from synrepl.services.rooms.client_data.stream_writers import (
    DataWriters,
    WrittenFact,
    written_fact,
)
from synrepl.storage.clients.to_device import NewMessages, write_messages
from synrepl.storage.clients.written_values import StoredFact
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.streams.synapse.to_device import TO_DEVICE

#: Maximum size of the content of one message as JSON, in bytes.
MAX_MESSAGE_BYTES = 65_536

#: Maximum number of devices, counting all of a user as one, that one request sends messages to.
MAX_RECIPIENTS = 2_000

_ACTION = "send to devices"


class DeviceMessageTooLarge(InputError):
    """a message to {user_id} has {size} bytes as JSON, and one may have {most}"""


class TooManyRecipients(InputError):
    """one request sends messages to {most} devices at most; send several"""


class ToDeviceService:
    """Takes messages to devices, in whichever process their stream is written."""

    def __init__(self, server_name: str, writers: DataWriters, log: Logger) -> None:
        self._suffix = f":{server_name}"
        self._writers = writers
        self._log = log
        writers.add(_ACTION, TO_DEVICE, self._perform)

    async def send(
        self,
        sender: str,
        kind: str,
        contents: Mapping[str, Mapping[str, Mapping[str, Any]]],
        request: str,
    ) -> WrittenFact | None:
        """Send messages to devices of this server's users that are known; the others go nowhere.

        :param sender: of this server or another one
        :param contents: by user, and by device or ``*`` for all that are known
        :param request: identifies the request; a repeated one sends nothing
        :returns: None if nobody got anything
        :raises BadAccountDataName: :raises TooManyRecipients: :raises DeviceMessageTooLarge:
        :raises SynreplError: the errors of :meth:`.DataWriters.run`
        """
        check_name(kind, "a type of messages")
        if sum(map(len, contents.values())) > MAX_RECIPIENTS:
            raise TooManyRecipients(most=MAX_RECIPIENTS)
        texts: dict[str, dict[str, str]] = {}
        for user_id, messages in contents.items():
            encoded = {name: _encoded(user_id, each) for name, each in messages.items()}
            if user_id.endswith(self._suffix) and "\0" not in user_id:
                texts[user_id] = encoded
        argument = {
            "sender": sender,
            "kind": kind,
            "contents": texts,
            "request": sha256(request.encode("utf-8", "surrogatepass")).hexdigest(),
        }
        return written_fact(await self._writers.run(_ACTION, sender, argument))

    async def _perform(self, argument: dict[str, Any]) -> WrittenFact | None:
        contents = {
            user_id: {name: jsons.decode(text, "a message") for name, text in messages.items()}
            for user_id, messages in argument["contents"].items()
        }
        request = bytes.fromhex(argument["request"])
        new = NewMessages(argument["sender"], argument["kind"], contents, request)

        dropped = [0]

        def work(txn: Transaction, outbox: Outbox, writer: str) -> StoredFact | None:
            return write_messages(txn, outbox, writer, new, dropped.append)

        fact = await self._writers.transact("send to devices", TO_DEVICE, work)
        if dropped[-1]:
            self._log.warn(
                "{count} messages to devices that do not fetch them are dropped", count=dropped[-1]
            )
        return fact


def _encoded(user_id: str, content: Mapping[str, Any]) -> str:
    encoded = jsons.canonical(content)
    if len(encoded) > MAX_MESSAGE_BYTES:
        raise DeviceMessageTooLarge(
            user_id=user_id[:255], size=len(encoded), most=MAX_MESSAGE_BYTES
        )
    return encoded.decode()
