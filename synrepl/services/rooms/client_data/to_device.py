"""Messages to devices: sent once for each transaction ID, kept until their device has acknowledged them.

Those to users of other servers are kept until their server has them, which takes their IDs for the same purpose.

Sources: https://spec.matrix.org/v1.16/client-server-api/#send-to-device-messaging,
https://spec.matrix.org/v1.16/server-server-api/#send-to-device-messaging
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from synrepl.core import jsons
from synrepl.core.errors import InputError
from synrepl.core.log import Logger
from synrepl.federation.outgoing_edus import MAX_SENT_MESSAGE, message_edus
from synrepl.rooms import BadIdentifier, check_user_id, server_of
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


#: Number of hexadecimal digits of the ID of a message to another server. Together with the number of an EDU, it is within
#: the 32 characters that the specification allows.
_MESSAGE_ID_DIGITS = 24


class DeviceMessageTooLarge(InputError):
    """a message to {user_id} has {size} bytes as JSON, and one may have {most}"""


class TooManyRecipients(InputError):
    """one request sends messages to {most} devices at most; send several"""


class ToDeviceService:
    """Takes messages to devices, in whichever process their stream is written.

    :param is_federated: whether messages of this server's users go to other servers
    """

    def __init__(
        self, server_name: str, is_federated: bool, writers: DataWriters, log: Logger
    ) -> None:
        self._server_name = server_name
        self._is_federated = is_federated
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
        """Send messages to devices of this server's users that are known, and to those of users of other servers.

        Messages to devices that are not known go nowhere, nor do those of another server's user to another server.

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
        sends_out = self._is_federated and self._is_own(sender)
        texts: dict[str, dict[str, str]] = {}
        for user_id, messages in contents.items():
            if self._is_own(user_id):
                texts[user_id] = _encoded(user_id, messages, MAX_MESSAGE_BYTES)
            elif sends_out and _is_well_formed(user_id):
                texts[user_id] = _encoded(user_id, messages, MAX_SENT_MESSAGE)
        argument = {
            "sender": sender,
            "kind": kind,
            "contents": texts,
            "request": sha256(request.encode("utf-8", "surrogatepass")).hexdigest(),
        }
        return written_fact(await self._writers.run(_ACTION, sender, argument))

    def _is_own(self, user_id: str) -> bool:
        return user_id.partition(":")[2] == self._server_name and "\0" not in user_id

    async def _perform(self, argument: dict[str, Any]) -> WrittenFact | None:
        sender, kind, request = argument["sender"], argument["kind"], argument["request"]
        own: dict[str, Mapping[str, Any]] = {}
        others: dict[str, dict[str, Mapping[str, Any]]] = {}
        for user_id, texts in argument["contents"].items():
            messages = {name: jsons.decode(text, "a message") for name, text in texts.items()}
            if self._is_own(user_id):
                own[user_id] = messages
            else:
                others.setdefault(server_of(user_id), {})[user_id] = messages
        outgoing = [
            (server, edu)
            for server, of_server in others.items()
            for edu in message_edus(sender, kind, of_server, request[:_MESSAGE_ID_DIGITS])
        ]
        new = NewMessages(sender, kind, own, outgoing, bytes.fromhex(request))

        dropped = [0]

        def work(txn: Transaction, outbox: Outbox, writer: str) -> StoredFact | None:
            return write_messages(txn, outbox, writer, new, dropped.append)

        fact = await self._writers.transact("send to devices", TO_DEVICE, work)
        if dropped[-1]:
            self._log.warn(
                "{count} messages to devices that do not fetch them, or servers that are away, are dropped",
                count=dropped[-1],
            )
        return fact


def _is_well_formed(user_id: str) -> bool:
    try:
        check_user_id(user_id)
    except BadIdentifier:
        return False
    return "\0" not in user_id


def _encoded(user_id: str, messages: Mapping[str, Mapping[str, Any]], most: int) -> dict[str, str]:
    """Messages by device, as JSON."""
    encoded = {name: jsons.canonical(content) for name, content in messages.items()}
    for name, content in encoded.items():
        size = len(jsons.canonical(name)) + len(content)
        if size > most:
            raise DeviceMessageTooLarge(user_id=user_id[:255], size=size, most=most)
    return {name: content.decode() for name, content in encoded.items()}
