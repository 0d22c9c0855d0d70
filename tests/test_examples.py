"""The examples in the docstrings of the front door, run as they stand: against a real master and worker."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
from collections.abc import Iterator
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from synrepl.client.client import Client
from synrepl.daemon.config.config import load_worker
from synrepl.daemon.worker import WorkerProcess
from tests.cli.cli_case import CliCase, InProcessMaster, free_port
from tests.test_front_door import facades

#: Where the examples have a master and a worker.
MASTER, WORKER = "http://127.0.0.1:9393", "http://127.0.0.1:9394"


def examples() -> Iterator[tuple[str, dict[str, str]]]:
    """Each name with the docstrings that have examples: its own and those of its members, in order."""
    for package in facades():
        module = importlib.import_module(package)
        for name in module.__all__:
            found = getattr(module, name)
            members = vars(found).items() if inspect.isclass(found) else ()
            texts = {
                path: inspect.getdoc(each) or ""
                for path, each in [(name, found), *((f"{name}.{key}", of) for key, of in members)]
                if callable(each)
            }
            texts = {path: text for path, text in texts.items() if ">>>" in text}
            if texts:
                yield name, texts


class Examples(CliCase):
    """Each docstring is a test of its own; those of one class share the master."""

    maxDiff = None

    async def worker(self, master: InProcessMaster) -> int:
        """Start a worker; the port that it listens on."""
        port = free_port()
        written = {
            "server_name": "example.com",
            "instance_name": "w",
            "catalogue": "[events, typing]",
            "streams": "[{name: orders, columns: {order_id: text, amount: bigint, note: 'json?'}}]",
            "catch_up": "http",
            "master": f"{{port: {master.port}, http_url: 'http://127.0.0.1:{master.http_port}'}}",
            "http": f"{{port: {port}}}",
            "audit_caches": "{every: 0s}",
        }
        path = self.directory / "worker.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in written.items()))
        worker = WorkerProcess(reactor, load_worker([path]))
        self.addCleanup(lambda: Deferred.fromCoroutine(worker.stop()))
        await worker.start()
        return port

    async def test_they_print_what_they_say(self) -> None:
        seen = set()
        for name, texts in examples():
            seen.add(name)
            if MASTER in "".join(texts.values()):
                await self.with_processes(texts)
            else:
                for path, text in texts.items():
                    self.assertEqual(run(path, text, {}), "")
        self.assertTrue({"Client", "AsyncClient", "Handler", "cached"} <= seen, seen)

    async def with_processes(self, texts: dict[str, str]) -> None:
        """Run examples in order, with a master and a worker that nobody has used."""
        # An audit would call the cached functions of the examples again.
        master = await self.master(audit_caches="{every: 0s}")
        urls = {
            MASTER: f"http://127.0.0.1:{master.http_port}",
            WORKER: f"http://127.0.0.1:{await self.worker(master)}",
        }
        for path, text in texts.items():
            for documented, real in urls.items():
                text = text.replace(documented, real)
            with Client(urls[MASTER]) as client:
                self.assertEqual(
                    await deferToThread(run, path, text, {"client": client, "Client": Client}), ""
                )


def run(name: str, text: str, names: dict[str, Any]) -> str:
    """What differs from what an example says; empty when nothing does."""
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    out = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=out.write)
    return out.getvalue()
