"""Metrics, and the routes of a whole master: every path, asked for over a real connection."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

import json
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase, TestCase
from twisted.web.http_headers import Headers

from synrepl.adapters.http.client import HttpClient
from synrepl.adapters.http.errors import error_answer
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest
from synrepl.adapters.http.routes import Router
from synrepl.adapters.http.server import HttpServer
from synrepl.adapters.http.source import HttpSource
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range
from synrepl.daemon.http.api import common_routes, master_routes
from synrepl.daemon.metrics.metrics import ProcessMetrics
from synrepl.services.status.readiness import Readiness
from synrepl.services.trimmer import TrimCounts
from synrepl.streams.synapse.caches import CachesRow
from tests.adapters.raw_http_client import (
    ListeningServer,
    RawHttpClient,
    Reply,
    connect,
    reactor,
    request,
)
from tests.services.test_status import worker
from tests.services.world import MasterWorld, done, started

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: bytes) -> Samples:
    """Every sample of a text in Prometheus's format."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def metrics_of(world: MasterWorld) -> ProcessMetrics:
    return ProcessMetrics(world.status, {("/status", 200): 3})


class RenderedMetrics(SynchronousTestCase):
    """What a scrape shows."""

    def value(self, found: Samples, name: str, **labels: str) -> float:
        return found[f"synrepl_{name}", frozenset(labels.items())]

    def test_renders_the_metrics_of_a_master(self) -> None:
        world = started()
        done(world.intake.append("jobs", b'{"facts": [[[1], [2]], [[3]]]}', "k"))
        done(world.intake.append("jobs", b'{"facts": [[[1], [2]], [[3]]]}', "k"))
        done(world.store.record_positions(world.catalogue["jobs"], 1, {}))
        done(world.store.trim(world.catalogue["jobs"], 1, 0, 10))
        world.trimmer.counts["jobs"] = TrimCounts(rows=2)
        world.reserved_by_other("jobs", 3)

        @world.coherence.caches.cached(by_name=True)
        def get_name(user: str) -> str:
            return user

        for user in "aab":
            get_name(user)
        world.coherence.suspect("caches", [CachesRow("get_name", ["a"], 0)])
        world.coherence.suspect("caches", [CachesRow("get_mane", ["a"], 0)])
        metrics = metrics_of(world)
        metrics.render()
        world.clock.advance(2)
        body, content_type = metrics.render()
        self.assertIn("text/plain", content_type)
        found = samples(body)
        value = self.value
        self.assertEqual(value(found, "writer_position", stream="jobs", writer="master"), 2)
        self.assertEqual(value(found, "linear_position", stream="jobs"), 2)
        self.assertEqual(value(found, "stream_trimmed", stream="jobs"), 1)
        self.assertEqual(value(found, "rows_trimmed_total", stream="jobs"), 2)
        self.assertEqual(value(found, "rows_trimmed_total", stream="caches"), 0)
        counted = ("entries", "hits_total", "misses_total", "invalidations_total")
        self.assertEqual(
            [value(found, f"cache_{c}", cache="get_name") for c in counted], [1, 1, 2, 1]
        )
        self.assertEqual(value(found, "cache_rows_total", cache="get_name"), 1)
        self.assertEqual(value(found, "cache_rows_unknown_total"), 1)
        self.assertEqual(value(found, "stream_lag_rows", stream="jobs"), 3)
        self.assertEqual(value(found, "stream_lag_seconds", stream="jobs"), 2)
        self.assertEqual(
            value(found, "oldest_open_reservation_seconds", stream="jobs", writer="other"), 2
        )
        self.assertEqual(value(found, "facts_published_total", stream="jobs"), 2)
        self.assertEqual(value(found, "rows_published_total", stream="jobs"), 3)
        self.assertEqual(value(found, "rows_appended_total", stream="jobs"), 3)
        self.assertEqual(value(found, "appends_total", stream="jobs", outcome="ok"), 1)
        self.assertEqual(value(found, "appends_total", stream="jobs", outcome="replayed"), 1)
        self.assertEqual(value(found, "http_responses_total", route="/status", status="200"), 3)
        self.assertEqual(value(found, "followers_connected"), 0)
        self.assertEqual(value(found, "database_up"), 1)
        self.assertEqual(value(found, "uptime_seconds"), 2)
        self.assertEqual(
            value(
                found,
                "process_info",
                role="master",
                server_name="example.org",
                instance_name="master",
                version="1.2.3",
            ),
            1,
        )
        self.assertIn(("process_cpu_seconds_total", frozenset()), found)
        world.stop()

    def test_renders_the_metrics_of_a_worker(self) -> None:
        status = worker()
        body, _ = ProcessMetrics(lambda: status, {}).render()
        found = samples(body)
        value = self.value
        self.assertEqual(value(found, "follower_position", stream="jobs", writer="master"), 3)
        self.assertEqual(value(found, "follower_heard", stream="jobs", writer="master"), 5)
        self.assertEqual(value(found, "stream_lag_rows", stream="jobs"), 2)
        self.assertEqual(value(found, "follower_rows_total", stream="jobs"), 3)
        self.assertEqual(value(found, "follower_gaps_total", stream="jobs"), 2)
        self.assertEqual(value(found, "follower_connected"), 1)
        self.assertEqual(value(found, "follower_waiting_rows"), 0)

    def test_several_processes_in_one_python_have_separate_metrics(self) -> None:
        worlds = [started(), started()]
        bodies = [metrics_of(world).render()[0] for world in worlds]
        self.assertEqual(*(set(samples(body)) for body in bodies))


class MasterEndpoints(TestCase):
    """Every route of a master, over TCP."""

    timeout = 20

    def setUp(self) -> None:
        self.world = started()
        self.server = HttpServer(cast(Any, self.world.clock), routes(self.world))
        self.listening = ListeningServer(self.server)
        self.client: RawHttpClient | None = None

    async def tearDown(self) -> None:  # type: ignore[override]
        if self.client is not None:
            await self.client.close()
        self.server.close_connections()
        await self.listening.stop()
        self.world.stop()

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        if self.client is None:
            self.client = await connect(self.listening.port)
        self.client.send(request(method, path, body, headers))
        return await self.client.reply()

    async def test_appended_facts_can_be_fetched(self) -> None:
        reply = await self.ask(
            "POST", "/streams/jobs/facts", b"[[1],[2]]", {"Idempotency-Key": "k"}
        )
        self.assertEqual(reply.status, 200)
        self.assertEqual(reply.json, {"stream": "jobs", "writer": "master", "ids": [1, 2]})
        reply = await self.ask(
            "POST", "/streams/jobs/facts", b"[[1],[2]]", {"Idempotency-Key": "k"}
        )
        self.assertTrue(reply.json["replayed"])
        reply = await self.ask("POST", "/streams/jobs/facts", b"[[3]]", {"Idempotency-Key": "k"})
        self.assertEqual((reply.status, reply.json["error"]), (422, "KeyReused"))
        base = "/_synapse/replication/get_repl_stream_updates"
        for path in (f"{base}/jobs", f"{base}/jobs/abcdefghij"):
            reply = await self.ask("GET", f"{path}?from_token=0&upto_token=2")
            self.assertEqual(len(reply.json["updates"]), 2)
        reply = await self.ask("GET", f"{base}/nope?from_token=0&upto_token=2")
        self.assertEqual((reply.status, reply.json["error"]), (400, "UnknownStream"))

    async def test_a_follower_continues_from_a_limited_page(self) -> None:
        rows = json.dumps([[n, "x"] for n in range(500)]).encode()
        await self.ask("POST", "/streams/jobs/facts", rows)
        client = HttpClient(reactor, self.listening.url)
        source, after, got = HttpSource(client), 0, []
        while after < 500:
            page = await source.page(self.world.catalogue["jobs"], Range(after, 500), "master", 120)
            got += [fact.token for fact in page.facts]
            after = page.upto
        self.assertEqual(got, list(range(1, 501)))
        await client.close()

    async def test_refused_appends_have_their_status(self) -> None:
        for path, body, status, error in (
            ("/streams/nope/facts", b"[[1]]", 404, "UnknownStream"),
            ("/streams/pushers/facts", b'[["@u","a","k",false]]', 409, "NotAWriter"),
            ("/streams/jobs/facts", b'[[1],["x"]]', 400, "BadFact"),
            ("/streams/jobs/facts", b"[]", 400, "EmptyAppend"),
            ("/streams/jobs/facts", b"", 400, "BadBody"),
        ):
            reply = await self.ask("POST", path, body)
            self.assertEqual((reply.status, reply.json["error"]), (status, error))
        reply = await self.ask("POST", "/streams/jobs/facts", b"[[1]]", {"Idempotency-Key": "a b"})
        self.assertEqual((reply.status, reply.json["error"]), (400, "BadKey"))
        self.world.store.away = True
        reply = await self.ask("POST", "/streams/jobs/facts", b"[[1]]")
        self.assertEqual((reply.status, reply.json["error"]), (503, "DatabaseAway"))

    async def test_serves_many_appends_concurrently(self) -> None:
        clients = [await connect(self.listening.port) for _ in range(20)]
        for n, client in enumerate(clients):
            client.send(request("POST", "/streams/jobs/facts", b"[[%d],[%d]]" % (n, n)))
        replies = [await client.reply() for client in clients]
        ids = [token for reply in replies for token in reply.json["ids"]]
        self.assertEqual(sorted(ids), list(range(1, 41)))
        for client in clients:
            await client.close()

    async def test_serves_health_readiness_status_and_metrics(self) -> None:
        self.assertEqual((await self.ask("GET", "/health")).json, {"alive": True})
        ready = await self.ask("GET", "/ready")
        self.assertEqual(
            (ready.status, ready.json), (200, {"ready": True, "reasons": [], "warnings": []})
        )
        self.world.readiness.started(False)
        self.assertEqual((await self.ask("GET", "/ready")).status, 503)
        self.assertEqual((await self.ask("GET", "/status")).json["role"], "master")
        metrics = await self.ask("GET", "/metrics")
        self.assertIn(b'synrepl_linear_position{stream="jobs"} 0.0', metrics.body)
        self.assertIn("text/plain", metrics.headers["content-type"])

    async def test_serves_the_page_without_a_secret(self) -> None:
        page = await self.ask("GET", "/")
        self.assertEqual(page.headers["content-type"], "text/html; charset=utf-8")
        self.assertIn("default-src 'none'", page.headers["content-security-policy"])
        for part in (b'src="/page.js"', b'href="/page.css"'):
            self.assertIn(part, page.body)
        for part in (b"http://", b"https://", b"style=", b"onclick", b"<script>"):
            self.assertNotIn(part, page.body)
        script = await self.ask("GET", "/page.js")
        self.assertEqual(script.headers["content-type"], "text/javascript; charset=utf-8")
        for word in (
            b"innerHTML",
            b"outerHTML",
            b"insertAdjacentHTML",
            b"document.write",
            b"eval(",
        ):
            self.assertNotIn(word, script.body)
        self.assertEqual((await self.ask("GET", "/page.css")).status, 200)


class FuzzedAppends(SynchronousTestCase):
    """Whatever is asked of a master, it is never a 500."""

    @given(
        st.sampled_from(["jobs", "events", "caches", "backfill", "nope", ""]),
        st.binary(max_size=30)
        | st.sampled_from(
            [b"[[1]]", b'{"rows":[["a",null,1]]}', b'[["state",["!r"]]]', b'[["\\ud800"]]']
        ),
        st.dictionaries(
            st.sampled_from(["from_token", "upto_token", "limit", "writer", "rows"]),
            st.sampled_from(["0", "1", "-1", "x", "", "9" * 30, "modern", "current", "é"]),
        ),
    )
    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
    )
    def test_no_input_causes_an_internal_error(
        self, stream: str, body: bytes, query: dict[str, str]
    ) -> None:
        world = started()
        router = Router(routes(world))
        for method, path in (
            ("POST", f"/streams/{stream}/facts"),
            ("GET", f"/_synapse/replication/get_repl_stream_updates/{stream}"),
        ):
            answers: list[HttpAnswer] = []
            asked = Deferred.fromCoroutine(self.exchange(router, method, path, query, body))
            asked.addCallback(answers.append)
            world.clock.advance(1.0)
            (answer,) = answers
            self.assertIn(answer.status, (200, 400, 404))
            json.loads(answer.body)
        world.stop()

    async def exchange(
        self, router: Router, method: str, path: str, query: dict[str, str], body: bytes
    ) -> HttpAnswer:
        route, placeholders = router.find(method, path.encode())
        try:
            return await route.handle(HttpRequest(placeholders, query, Headers(), body))
        except SynreplError as error:
            return error_answer(error, route.statuses)


class WorkerEndpoints(SynchronousTestCase):
    """The routes of a worker are those of every process."""

    def test_a_worker_takes_no_facts(self) -> None:
        status: dict[str, Any] = {"role": "worker"}
        table = common_routes(Readiness(()), lambda: status, lambda: (b"", "text/plain"))
        self.assertEqual(
            {route.pattern for route in table},
            {"/health", "/ready", "/status", "/metrics", "/", "/page.js", "/page.css"},
        )
        self.assertEqual({route.method for route in table}, {"GET"})
        private = {route.pattern for route in table if not route.public}
        self.assertEqual(private, {"/ready", "/status", "/metrics"})


def routes(world: MasterWorld) -> Any:
    """A master's routes."""
    metrics = metrics_of(world)
    return master_routes(world.intake, world.updates, world.readiness, world.status, metrics.render)
