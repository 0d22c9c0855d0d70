"""Handler interfaces: implemented by the base classes, and by classes without them."""

from __future__ import annotations

from unittest import TestCase

from zope.interface import implementer
from zope.interface.verify import verifyClass, verifyObject

from synrepl.core.tokens import Token
from synrepl.services.following.consumer import Subscription
from synrepl.services.handler_interfaces import IHandler, ITransactionalHandler
from synrepl.services.handlers import Access, Batch, Handler, TransactionalHandler
from synrepl.storage.database import Transaction
from synrepl.wire.commands import Command
from tests.services.handler_fixtures import HandlersCase, texts_of


class HandlerWithoutBaseClass:
    """Implements the handler interface without the base class."""

    streams = frozenset({"notes"})
    view = None

    async def on_start(self, access: Access) -> None: ...

    async def on_rows(self, batch: Batch) -> None: ...

    async def on_command(self, source: str, command: Command) -> None: ...

    async def on_reset(self, stream: str, writer: str, position: Token) -> None: ...


@implementer(IHandler)
class TextsWithoutBaseClass(HandlerWithoutBaseClass):
    """Records the texts that it gets."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def on_rows(self, batch: Batch) -> None:
        self.texts += texts_of(batch)


@implementer(ITransactionalHandler)
class SeenWithoutBaseClass(HandlerWithoutBaseClass):
    """Inserts the texts that it gets into the table ``seen``."""

    def apply(self, txn: Transaction, batch: Batch) -> None:
        txn.insert_many("INSERT INTO seen (text) VALUES %s", [(t,) for t in texts_of(batch)])


class BaseClasses(TestCase):
    """The base classes implement the interfaces, signature by signature."""

    def test_handler_implements_its_interface(self) -> None:
        verifyClass(IHandler, Handler)
        verifyObject(IHandler, Handler())
        self.assertFalse(ITransactionalHandler.implementedBy(Handler))

    def test_transactional_handler_implements_both_interfaces(self) -> None:
        verifyClass(ITransactionalHandler, TransactionalHandler)
        self.assertTrue(IHandler.implementedBy(TransactionalHandler))

    def test_transactional_handler_requires_apply(self) -> None:
        class NoApply(TransactionalHandler):
            pass

        with self.assertRaisesRegex(TypeError, "apply"):
            NoApply()  # type: ignore[abstract]


class DeliveringWithoutBaseClass(HandlersCase):
    """A class that declares the interface works like one that inherits."""

    async def test_delivers_to_handlers_that_only_declare_the_interface(self) -> None:
        texts, seen = TextsWithoutBaseClass(), SeenWithoutBaseClass()
        worker = await self.worker(
            Subscription(texts, "texts"),  # type: ignore[arg-type]
            Subscription(seen, "seen"),  # type: ignore[arg-type]
        )
        last = await self.append("a", "b")
        await self.reaches(worker, last)
        self.assertEqual((texts.texts, self.seen()), (["a", "b"], ["a", "b"]))
        self.assertEqual((await self.places())["seen", "notes", "one"].position, last)
