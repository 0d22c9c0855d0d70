"""Traffic of real clients, which produces rows in every stream of a server."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

from interop.matrix_client import Server, User, q

_TEXTS = (
    "hello",
    "zurück – „so“",
    "日本語",
    "🙂🚀",
    "a\u2028b\u2029c",
    'tab\tquote" back\\slash',
    "",
)

_SYNC_MS = 2000


class Traffic:
    """Some users in some rooms.

    :param seed: of the choices that are made
    :param rounds: number of actions once all users and rooms exist; None
        for no limit
    :param groups: whether the server still has groups
    """

    def __init__(self, server: Server, seed: int, rounds: int | None, groups: bool = True) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._rounds = rounds
        self._names = (f"{seed}-{number}" for number in count())
        self._users: list[User] = []
        self._rooms: dict[str, list[User]] = {}
        self._events: dict[str, list[str]] = {}
        self._groups: list[tuple[User, str]] = []
        self._actions = [each for each in _WEIGHED if groups or each is not Traffic._group]
        self._weights = [_WEIGHED[each] for each in self._actions]
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Stop soon."""
        self._stopping.set()

    def run(self, users: int = 6, rooms: int = 4) -> None:
        """Make all requests; returns when they are made, or soon after :meth:`stop`."""
        self._users += [User(self._server, f"u{next(self._names)}") for _ in range(users)]
        done = threading.Event()
        syncing = [
            threading.Thread(target=self._sync, args=(user, done), daemon=True)
            for user in self._users[:3]
        ]
        for thread in syncing:
            thread.start()
        try:
            for _ in range(rooms):
                self._make_room()
            for _ in count() if self._rounds is None else range(self._rounds):
                if self._stopping.is_set():
                    break
                room = self._random.choice(list(self._rooms))
                user = self._random.choice(self._rooms[room])
                self._random.choices(self._actions, self._weights)[0](self, user, room)
        finally:
            done.set()
            for thread in syncing:
                thread.join()

    def _sync(self, user: User, done: threading.Event) -> None:
        since = ""
        while not done.is_set():
            path = f"/sync?timeout={_SYNC_MS}&set_presence=online{since}"
            answer = user.call("sync", "GET", path)
            if "next_batch" in answer:
                since = f"&since={q(answer['next_batch'])}"

    def _text(self) -> str:
        return " ".join(self._random.choices(_TEXTS, k=self._random.randint(1, 6)))

    def _make_room(self) -> None:
        creator, *others = self._random.sample(self._users, 4)
        made = creator.post(
            "create a room",
            "/createRoom",
            {
                "preset": self._random.choice(("public_chat", "private_chat")),
                "name": self._text(),
                "invite": [user.id for user in others],
            },
        )
        room = made["room_id"]
        self._rooms[room], self._events[room] = [creator], []
        for user in others:
            if "room_id" in user.post("join", f"/rooms/{q(room)}/join", {}):
                self._rooms[room].append(user)

    # -- one thing each ---------------------------------------------------------------

    def _message(self, user: User, room: str) -> None:
        event = user.send(room, {"msgtype": "m.text", "body": self._text()})
        if event is not None:
            self._events[room].append(event)

    def _redact(self, user: User, room: str) -> None:
        if self._events[room]:
            event = q(self._events[room].pop())
            path = f"/rooms/{q(room)}/redact/{event}/{next(self._names)}"
            user.put("redact", path, {"reason": self._text()})

    def _state(self, user: User, room: str) -> None:
        creator = self._rooms[room][0]
        key, value = self._random.choice(
            [("m.room.topic", "topic"), ("m.room.name", "name"), ("org.example.x", "y")]
        )
        creator.put("set state", f"/rooms/{q(room)}/state/{key}/", {value: self._text()})

    def _member(self, user: User, room: str) -> None:
        members = self._rooms[room]
        creator = members[0]
        outside = [each for each in self._users if each not in members]
        if outside and self._random.random() < 0.5:
            guest = self._random.choice(outside)
            creator.post("invite", f"/rooms/{q(room)}/invite", {"user_id": guest.id})
            if "room_id" in guest.post("join", f"/rooms/{q(room)}/join", {}):
                members.append(guest)
        elif len(members) > 2:
            members[-1].post("leave", f"/rooms/{q(room)}/leave", {})
            members.pop()

    def _typing(self, user: User, room: str) -> None:
        body = {"typing": self._random.random() < 0.7, "timeout": 3000}
        user.put("type", f"/rooms/{q(room)}/typing/{q(user.id)}", body)

    def _receipt(self, user: User, room: str) -> None:
        if self._events[room]:
            event = q(self._random.choice(self._events[room]))
            user.post("read", f"/rooms/{q(room)}/receipt/m.read/{event}", {})

    def _presence(self, user: User, room: str) -> None:
        body = {"presence": self._random.choice(("online", "unavailable", "offline"))}
        body["status_msg"] = self._text()
        user.put("set presence", f"/presence/{q(user.id)}/status", body)

    def _to_device(self, user: User, room: str) -> None:
        user.send_to_device(self._random.choice(self._users).id, {"text": self._text()})

    def _account_data(self, user: User, room: str) -> None:
        where = self._random.choice(("", f"/rooms/{q(room)}"))
        path = f"/user/{q(user.id)}{where}/account_data/org.example.{self._random.randrange(5)}"
        user.put("set account data", path, {"x": self._text()})

    def _tag(self, user: User, room: str) -> None:
        path = f"/user/{q(user.id)}/rooms/{q(room)}/tags/u.{self._random.randrange(3)}"
        if self._random.random() < 0.7:
            user.put("tag", path, {"order": self._random.random()})
        else:
            user.call("untag", "DELETE", path)

    def _push_rule(self, user: User, room: str) -> None:
        path = f"/pushrules/global/content/rule{self._random.randrange(3)}"
        user.put("set a push rule", path, {"pattern": "x", "actions": ["notify"]})

    def _pusher(self, user: User, room: str) -> None:
        body: dict[str, Any] = {
            "kind": self._random.choice(("http", "http", None)),
            "app_id": "org.example.app",
            "pushkey": f"key{self._random.randrange(4)}",
            "app_display_name": "app",
            "device_display_name": "device",
            "lang": "en",
            "data": {"url": "http://localhost/_matrix/push/v1/notify"},
        }
        user.post("set a pusher", "/pushers/set", body)

    def _device(self, user: User, room: str) -> None:
        user.put("name a device", f"/devices/{q(user.device)}", {"display_name": self._text()})

    def _keys(self, user: User, room: str) -> None:
        names = [f"{kind}:{user.device}" for kind in ("curve25519", "ed25519")]
        keys = {
            "user_id": user.id,
            "device_id": user.device,
            "algorithms": ["m.olm.v1.curve25519-aes-sha2"],
            "keys": {name: str(next(self._names)).ljust(43, "A") for name in names},
            "signatures": {user.id: {names[1]: "A" * 86}},
        }
        user.post("upload keys", "/keys/upload", {"device_keys": keys})

    def _profile(self, user: User, room: str) -> None:
        path = f"/profile/{q(user.id)}/displayname"
        user.put("set a name", path, {"displayname": self._text()})

    def _directory(self, user: User, room: str) -> None:
        body = {"visibility": self._random.choice(("public", "private"))}
        self._rooms[room][0].put("list a room", f"/directory/list/room/{q(room)}", body)

    def _group(self, user: User, room: str) -> None:
        if not self._groups or self._random.random() < 0.5:
            body = {"localpart": f"g{next(self._names)}", "profile": {"name": self._text()}}
            made = user.post("create a group", "/create_group", body)
            if "group_id" in made:
                self._groups.append((user, made["group_id"]))
            return
        owner, group = self._random.choice(self._groups)
        path = f"/groups/{q(group)}/admin/users/invite/{q(user.id)}"
        owner.put("invite to a group", path, {})
        user.put("join a group", f"/groups/{q(group)}/self/accept_invite", {})


_Action = Callable[[Traffic, User, str], None]

_WEIGHED: dict[_Action, int] = {
    Traffic._message: 30,
    Traffic._redact: 3,
    Traffic._state: 8,
    Traffic._member: 8,
    Traffic._typing: 10,
    Traffic._receipt: 12,
    Traffic._presence: 5,
    Traffic._to_device: 8,
    Traffic._account_data: 6,
    Traffic._tag: 6,
    Traffic._push_rule: 4,
    Traffic._pusher: 3,
    Traffic._device: 4,
    Traffic._keys: 3,
    Traffic._profile: 3,
    Traffic._directory: 4,
    Traffic._group: 3,
}
