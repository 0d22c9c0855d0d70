"""Handlers are made from the configuration, and verified once more when they are."""

from __future__ import annotations

from synrepl.daemon import handlers
from synrepl.daemon.config.config import load_worker
from synrepl.daemon.handlers import HandlerUnusable
from tests.cli.test_check_config import WORKER
from tests.cli.test_cli import WorkingDirectoryCase
from tests.daemon.bad_handlers import Independent


class Loading(WorkingDirectoryCase):
    """Instances may have from their constructor what the interface asks for."""

    def loaded(self, handler: str) -> object:
        """The handler that a configuration makes."""
        path = self.directory / "worker.yaml"
        config = "{streams: [orders]}"
        path.write_text(
            f"{WORKER}handlers:\n  - {{class: 'tests.daemon.bad_handlers:{handler}', config: {config}}}\n"
        )
        (made,) = handlers.load(load_worker([path]))
        return made.handler

    def test_attributes_may_come_from_the_constructor(self) -> None:
        made = self.loaded("Independent")
        self.assertIsInstance(made, Independent)
        self.assertEqual(getattr(made, "streams", None), ["orders"])

    def test_refuses_an_instance_that_lacks_an_attribute(self) -> None:
        with self.assertRaises(HandlerUnusable) as caught:
            self.loaded("NoView")
        self.assertIn("it has no attribute 'view'", str(caught.exception))
