"""``synrepl doctor caches``, and what it asks: real processes with caches over a real database."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.caches.registry import Caches
from synrepl.cli import cli
from synrepl.cli.doctor.caches import tables
from synrepl.cli.terminal import show
from synrepl.daemon.config.config import AuditCachesConfig, load_master, load_worker
from synrepl.daemon.config.decode import BadSetting
from synrepl.daemon.http.caches import BadAudit, requested_keys
from synrepl.daemon.master import MasterProcess
from synrepl.daemon.worker import RunningWorker, WorkerProcess
from synrepl.storage.database import Database, Transaction
from synrepl.testing.postgres import with_durable_server
from synrepl.testing.redis import RedisTestServer
from tests.cli.cli_case import CliCase, InProcessMaster, free_port
from tests.storage.postgres import MIGRATED

SECRET = "s3cret"


class CachedNames:
    """A cached function over a table, in one process."""

    def __init__(self) -> None:
        self.caches: Caches = make_caches()
        self.database: Database | None = None
        self.of = self.caches.cached(by_name=True, name="name_of")(self._load)

    async def _load(self, key: str) -> str:
        assert self.database is not None

        def load(txn: Transaction) -> str:
            txn.execute("SELECT name FROM names WHERE key = %s", (key,))
            return str(txn.fetchone()[0])

        return await self.database.run("load", load, read_only=True)


class CachingMaster(InProcessMaster):
    """A master whose caches are its own."""

    def __init__(self, path: Path, dsn: str, settings: dict[str, str]) -> None:
        super().__init__(path, dsn, settings)
        self.dsn = dsn
        self.names = CachedNames()

    async def start(self, at: int | None = None) -> None:
        """Start it, with a table of names."""
        await self.run(MasterProcess(reactor, load_master([self.path]), self.names.caches))
        self.names.database = self.running.database.database
        await self.sql("CREATE TABLE IF NOT EXISTS names (key text PRIMARY KEY, name text)")
        await self.sql(f"INSERT INTO names VALUES ('a', '{SECRET}'), ('b', 'Bob')")

    async def sql(self, *statements: str) -> None:
        """Run statements in one transaction."""
        assert self.names.database is not None

        def work(txn: Transaction) -> None:
            for statement in statements:
                txn.execute(statement)

        await self.names.database.run("sql", work)

    async def change(self, *more: str) -> None:
        """Change the name of ``a``."""
        await self.sql("UPDATE names SET name = name || '!' WHERE key = 'a'", *more)


#: What plain SQL says in the transaction that changes ``a``.
INVALIDATE = """SELECT synrepl.append('caches',
    '[{"cache_func": "name_of", "keys": ["a"], "invalidation_ts": 1}]')"""


class DoctorOfRunningProcesses(CliCase):
    """``synrepl doctor`` on processes with caches."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        await with_durable_server(self)

    async def caching_master(self, **settings: str) -> CachingMaster:
        settings = {"catalogue": "[caches]", "audit_caches": "{every: 0s}", **settings}
        master = CachingMaster(self.directory / "master.yaml", await MIGRATED.copy(self), settings)
        self.addCleanup(lambda: Deferred.fromCoroutine(master.stop()))
        await master.start()
        for key in "ab":
            await master.names.of(key)
        return master

    async def worker(
        self, master: CachingMaster, **settings: str
    ) -> tuple[RunningWorker, CachedNames]:
        names = CachedNames()
        written = {
            "server_name": "example.com",
            "instance_name": "w",
            "catalogue": "[caches]",
            "database": master.dsn,
            "master": f"{{port: {master.port}, http_url: 'http://127.0.0.1:{master.http_port}'}}",
            "http": f"{{port: {free_port()}}}",
            "audit_caches": "{every: 0s}",
            **settings,
        }
        path = self.directory / "worker.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in written.items() if value))
        process = WorkerProcess(reactor, load_worker([path]), names.caches)
        self.addCleanup(lambda: Deferred.fromCoroutine(process.stop()))
        worker = await process.start()
        names.database = master.names.database
        while not worker.services.follower.positions:
            await TwistedScheduler(reactor).sleep(0.01)
        for key in "ab":
            await names.of(key)
        return worker, names

    def ask(self, port: int, path: str, body: bytes | None = None) -> Deferred[tuple[int, str]]:
        """Status and text of an answer."""

        def ask() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}{path}", body, timeout=30
                ) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        answered: Deferred[tuple[int, str]] = deferToThread(ask)
        return answered

    async def doctor(self, path: Path, code: int, *arguments: str) -> dict[str, Any]:
        """Run ``doctor caches``, and return its JSON."""
        done = await self.run_command("doctor", "caches", "-c", path, "--json", *arguments)
        self.assertEqual((done.code, done.err), (code, ""), done)
        self.assertNotIn(SECRET, done.out)
        answer: dict[str, Any] = json.loads(done.out)
        return answer

    async def test_reports_a_change_without_invalidation(self) -> None:
        master = await self.caching_master()
        await master.change()
        done = await self.run_command("doctor", "caches", "-c", master.path)
        self.assertEqual((done.code, done.err), (1, ""))
        self.assertEqual(
            done.out,
            """\
cache    entries  hits  misses  evictions  invalidations
name_of        2     0       2          0              0

2 entries checked: 1 coherent, 1 stale

stale: name_of ["a"]
  held str of 6, should be str of 7
  caches of master: 0 when it was loaded, 0 now
  caches of sql: 0 when it was loaded, 0 now
  no row of 'caches' above 0 up to 0 names it: the change was committed without an invalidation
""",
        )
        status, text = await self.ask(master.http_port, "/metrics")
        self.assertEqual(status, 200)
        self.assertIn('synrepl_cache_incoherent_total{cache="name_of"} 1.0', text)
        self.assertIn('synrepl_cache_audited_total{cache="name_of"} 2.0', text)
        self.assertEqual(await master.names.of("a"), f"{SECRET}!")
        done = await self.run_command("doctor", "caches", "-c", master.path)
        self.assertEqual(done.code, 0)
        self.assertIn("2 entries checked: 2 coherent\n", done.out)

    async def test_finds_nothing_after_an_invalidation(self) -> None:
        master = await self.caching_master(poll_interval="50ms")
        for _ in range(3):
            await master.names.of("a")
            await master.change(INVALIDATE)
            report = await self.doctor(master.path, 0)
            self.assertEqual((report["incoherent"], report["stale"]), (0, []))
            self.assertEqual(report["failed"] + report["behind"], 0)
        self.assertEqual(
            await self.ask(master.http_port, "/caches"),
            (200, json.dumps({"caches": master.names.caches.stats()}, separators=(",", ":"))),
        )

    async def test_audits_a_worker(self) -> None:
        await self.check_worker_audit("modern", "sql")

    async def test_audits_a_legacy_worker(self) -> None:
        await self.check_worker_audit("legacy", "(all)")

    async def check_worker_audit(self, dialect: str, label: str) -> None:
        master = await self.caching_master()
        await master.change(INVALIDATE)
        worker, names = await self.worker(master, dialect=dialect)
        assert worker.services.auditor is not None
        for _ in range(5):  # the fact may be anywhere when the audit looks
            await master.change(INVALIDATE)
            counts = (await worker.services.auditor.audit(100)).to_json()
            self.assertEqual((counts["incoherent"], counts["behind"], counts["failed"]), (0, 0, 0))
            await names.of("a")
        await master.change()
        report = await self.doctor(self.directory / "worker.yaml", 1, "--keys", "50")
        (found,) = report["stale"]
        self.assertEqual(
            (found["key"], found["positions"]["caches"][label]),
            (["a"], {"at_load": 6, "now": 6}),
        )
        status, text = await self.ask(0 if worker.http is None else worker.http.port, "/metrics")
        self.assertEqual(status, 200)
        self.assertIn('synrepl_cache_incoherent_total{cache="name_of"} 1.0', text)

    async def test_refuses_to_audit_a_worker_without_database(self) -> None:
        master = await self.caching_master()
        await self.worker(master, database="", catch_up="http")
        path = self.directory / "worker.yaml"
        done = await self.run_command("doctor", "caches", "-c", path)
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("409 NothingToCompareWith", done.err)
        self.assertIn("set 'database' in its configuration", done.err)

    async def test_examines_database_and_caches_together(self) -> None:
        master = await self.caching_master()
        done = await self.run_command("doctor", "-c", master.path)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertRegex(done.out, r"^database .*: synrepl's\n\nstream +given out ")
        self.assertTrue(done.out.endswith("\n\n2 entries checked: 2 coherent\n"), done.out)
        self.assertIn("\nnothing is wrong in the database\n\ncache ", done.out)
        await master.change()
        done = await self.run_command("doctor", "-c", master.path, "--json")
        self.assertEqual((done.code, done.err), (1, ""))
        answer = json.loads(done.out)
        self.assertEqual(
            (answer["healthy"], answer["complete"], answer["findings"]), (False, True, [])
        )
        self.assertEqual((answer["caches"]["incoherent"], answer["caches"]["checked"]), (1, 2))
        await master.sql("UPDATE synrepl._streams SET position = 7")
        done = await self.run_command("doctor", "-c", master.path, "--fix")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn("\ndone: caches: the sequence was used up beyond 7\n", done.out)
        await master.stop()
        done = await self.run_command("doctor", "-c", master.path)
        self.assertEqual((done.code, done.err), (3, ""))
        answer = "\nnothing is wrong in the database\n\ncaches were not looked at: nothing answers"
        self.assertIn(answer, done.out)
        done = await self.run_command("doctor", "-c", master.path, "--json")
        self.assertEqual((done.code, done.err), (3, ""))
        answer = json.loads(done.out)
        self.assertEqual((answer["healthy"], answer["complete"]), (False, False))
        self.assertIn("nothing answers", answer["caches_unknown"])

    async def test_reports_an_unreachable_redis(self) -> None:
        redis = RedisTestServer()
        self.addCleanup(redis.close)
        master = await self.caching_master(redis=f"{{port: {redis.port}}}")
        done = await self.run_command("doctor", "-c", master.path, "--json")
        self.assertEqual((done.code, done.err), (0, ""))
        where = f"127.0.0.1:{redis.port}"
        self.assertEqual(json.loads(done.out)["redis"], {"where": where, "reason": None})
        redis.stop()
        done = await self.run_command("doctor", "-c", master.path)
        self.assertEqual((done.code, done.err), (3, ""))
        self.assertIn(f"\nRedis was not looked at: Redis at {where} cannot be used: ", done.out)
        redis.start()

    async def test_refuses_everything_of_a_worker_without_database(self) -> None:
        master = await self.caching_master()
        await self.worker(master, database="", catch_up="http")
        done = await self.run_command("doctor", "-c", self.directory / "worker.yaml")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("409 NothingToCompareWith", done.err)

    async def test_sampler_counts_incoherent_entries(self) -> None:
        master = await self.caching_master(audit_caches="{every: 200ms, keys: 20}")
        await master.change()
        while not master.services.auditor.incoherent:
            await TwistedScheduler(reactor).sleep(0.01)
        self.assertEqual(master.services.auditor.incoherent, {"name_of": 1})

    async def test_reports_an_unreachable_process(self) -> None:
        master = await self.caching_master()
        await master.stop()
        done = await self.run_command("doctor", "caches", "-c", master.path)
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("nothing answers at", done.err)

    async def test_requires_and_sends_the_secret(self) -> None:
        (self.directory / "s").write_text(SECRET)
        (self.directory / "s").chmod(0o600)
        master = await self.caching_master(http_extra="secret_path: s")
        for path, body in (("/caches", None), ("/caches/audit", b"")):
            self.assertEqual((await self.ask(master.http_port, path, body))[0], 401)
        self.assertEqual((await self.doctor(master.path, 0))["checked"], 2)

    async def test_checks_the_body_of_an_audit_request(self) -> None:
        master = await self.caching_master()
        port = master.http_port
        self.assertEqual((await self.ask(port, "/caches/audit"))[0], 405)
        status, text = await self.ask(port, "/caches/audit", b'{"keys": 1}')
        self.assertEqual((status, json.loads(text)["checked"]), (200, 1))
        status, text = await self.ask(port, "/caches/audit", b"[]")
        self.assertEqual((status, json.loads(text)["error"]), (400, "BadAudit"))
        for key in "ab":
            master.names.caches.invalidate("name_of", (key,))
        done = await self.run_command("doctor", "caches", "-c", master.path)
        self.assertEqual(done.code, 0)
        self.assertIn("nothing to check: every cache is empty\n", done.out)

    async def test_refuses_a_worker_without_http(self) -> None:
        path = self.directory / "worker.yaml"
        path.write_text(
            "server_name: example.com\ninstance_name: w\ncatch_up: http\n"
            "master: {port: 1, http_url: 'http://127.0.0.1:1'}\n"
        )
        done = await self.run_command("doctor", "caches", "-c", path)
        self.assertEqual((done.code, done.out), (2, ""))
        self.assertIn("set 'http' in it", done.err)


class DoctorWithoutProcesses(SynchronousTestCase):
    """Arguments, request bodies, settings and rendering."""

    def test_refuses_bad_arguments(self) -> None:
        for arguments in (
            ["doctor", "caches"],
            ["doctor", "caches", "-c", "x", "--keys", "0"],
            ["doctor", "caches", "-c", "x", "--keys", "10001"],
            ["doctor", "nothing"],
            ["doctor", "-c", "x", "--database", "dbname=y"],
            ["doctor", "--database", "postgresql://me:hunter2@localhost/x"],
        ):
            done = CliRunner().invoke(cli, arguments)
            self.assertEqual((done.exit_code, "hunter2" in done.output), (2, False), arguments)

    def test_refuses_options_before_a_sub_command(self) -> None:
        for arguments in (
            ["doctor", "-c", "x", "database", "--database-path", "y"],
            ["doctor", "--json", "database", "-c", "x"],
        ):
            done = CliRunner().invoke(cli, arguments)
            self.assertEqual(done.exit_code, 2)
            self.assertIn("give options after 'database'", done.output)

    def test_parses_the_body_of_an_audit_request(self) -> None:
        self.assertEqual(
            [
                requested_keys(body)
                for body in (b"", b" \n", b"{}", b'{"keys": 1}', b'{"keys": 10000}')
            ],
            [100, 100, 100, 1, 10_000],
        )
        for body in (
            b"[]",
            b"x",
            b"\xff",
            b"[" * 100_000,
            b'{"keys": 0}',
            b'{"keys": 10001}',
            b'{"keys": -1}',
            b'{"keys": true}',
            b'{"keys": 1.5}',
            b'{"keys": "1"}',
            b'{"keys": 1e99}',
            b'{"keys": 1, "x": 1}',
            b'{"keys": ' + b"9" * 5000 + b"}",
        ):
            with self.subTest(body[:30]):
                self.assertRaises(BadAudit, requested_keys, body)

    def load(self, audit: str) -> AuditCachesConfig:
        """Load the setting from a file."""
        path = Path(self.mktemp())
        path.write_text(f"server_name: x\ndatabase: postgresql:///d\naudit_caches: {audit}\n")
        return load_master([path]).audit_caches

    def test_parses_the_audit_settings(self) -> None:
        self.assertEqual(self.load("{}"), AuditCachesConfig(every=60.0, keys=20))
        self.assertEqual(self.load("{every: 0s}").every, 0.0)
        self.assertEqual(self.load("{every: 1s, keys: 100}").keys, 100)
        with self.assertRaisesRegex(BadSetting, "101 keys in 1 s are more than 100 a second"):
            self.load("{every: 1s, keys: 101}")

    def rendered(self, counts: dict[str, Any], audit: dict[str, Any]) -> list[str]:
        """The lines that are printed."""
        with CliRunner().isolation() as (out, *_):
            show(tables(counts, audit))
            return out.getvalue().decode().splitlines()

    def test_renders_untrusted_text_safely(self) -> None:
        self.assertEqual(
            self.rendered({}, {"checked": 0}),
            ["nothing to check: no cache is open in this process"],
        )
        evil = {
            "checked": 1,
            "incoherent": 1,
            "left": 7,
            "errors": {"x\x1b: [red]E": 2},
            "stale": [{"cache": "c\x1b[2J", "key": ["[red]\x1b"], "positions": {"s": {"w": {}}}}],
        }
        self.assertEqual(
            self.rendered({}, evil),
            [
                "1 entry checked: 1 stale",
                r"failed 2 times: x\x1b: [red]E",
                "7 not checked, for the time was up",
                "",
                r'stale: c\x1b[2J ["[red]\u001b"]',
                "  held -, should be -",
                "  s of w: not remembered when it was loaded, - now",
                "  -",
            ],
        )
