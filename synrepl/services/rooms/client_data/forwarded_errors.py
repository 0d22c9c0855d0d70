"""The errors of changes that the process which asked another one to make them gets as they are."""

from __future__ import annotations

from synrepl.core.errors import SynreplError
from synrepl.services.rooms.client_data.account_data import TooManyTags
from synrepl.services.rooms.client_data.presence import TooManyPresent
from synrepl.services.rooms.client_data.typing import TooManyType
from synrepl.storage.clients.account_data import TooMuchAccountData
from synrepl.storage.clients.receipts import EventNotInRoom, NotAMember, NotInThread

CLIENT_DATA_ERRORS: tuple[type[SynreplError], ...] = (
    EventNotInRoom,
    NotAMember,
    NotInThread,
    TooManyPresent,
    TooManyTags,
    TooManyType,
    TooMuchAccountData,
)
