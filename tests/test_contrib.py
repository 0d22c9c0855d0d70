"""Alerts and the dashboard: they speak of metrics that there are, with labels that those have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, cast
from unittest import TestCase

import yaml
from prometheus_client.parser import text_string_to_metric_families

from synrepl.adapters.http.server import HttpServer
from synrepl.adapters.tcp.connection_table import ConnectionLimits, ConnectionTable
from synrepl.daemon.http.listener import connections_status, http_status
from synrepl.daemon.metrics.metrics import ProcessMetrics
from synrepl.services.status.bus_status import BusStatus
from synrepl.services.status.expected_followers import FollowerHealth, FollowerReport
from tests.services.test_status import worker
from tests.services.world import started

CONTRIB = Path(__file__).resolve().parent.parent / "contrib"

#: What Prometheus itself adds to every metric, or has.
OF_PROMETHEUS = {"job", "instance"}

_METRIC = re.compile(r"\b(?:synrepl_\w+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\)")
_LABEL = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def rules() -> list[dict[str, Any]]:
    """All alerts."""
    read = yaml.safe_load((CONTRIB / "prometheus" / "synrepl.rules.yml").read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


def targets() -> Iterator[tuple[str, str]]:
    """The expressions of the dashboard, each with its legend."""
    dashboard = json.loads((CONTRIB / "grafana" / "synrepl.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


@cache
def known() -> dict[str, set[str]]:
    """The labels of each metric, as far as it has samples."""
    world = started()
    found: dict[str, set[str]] = {}
    bus = BusStatus("127.0.0.1:6379", True, None, False, 1, 0, 0, {"RDATA": 1})
    table: ConnectionTable[Any] = ConnectionTable(ConnectionLimits())
    listeners = {
        "http": http_status(HttpServer(cast(Any, world.clock), ())),
        "listeners": [{"port": 9392, **connections_status(table)}],
        "handler_commands": {"waiting": 0, "dropped": 0},
        "ignored": {"TooManyInstances": 1},
        "federation": {"senders": {"s": 1}, "floor": 1, "held_by": "s", "lost_upto": None},
        "named_followers": [
            FollowerReport("w1", FollowerHealth.OK, 1.0, 60.0, connected=True).to_json()
        ],
    }
    for status in ({**world.status(), **listeners}, {**worker(), "bus": bus.to_json()}):
        body, _ = ProcessMetrics(partial(dict, status), {}).render()
        for family in text_string_to_metric_families(body.decode()):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = {label for sample in family.samples for label in sample.labels}
            found.setdefault(name, set()).update(labels)
    world.stop()
    return found


class Contrib(TestCase):
    def check(self, expression: str) -> None:
        """All metrics of an expression exist."""
        names = [match.group(0).partition("{")[0] for match in _METRIC.finditer(expression)]
        for name in names:
            self.assertIn(name, known(), expression)
        self.assertEqual(expression.count("("), expression.count(")"), expression)

    def test_alerts_use_known_metrics_and_labels(self) -> None:
        self.assertGreater(len(rules()), 5)
        for rule in rules():
            if "up{" not in rule["expr"]:
                self.check(rule["expr"])
            self.assertIn(rule["labels"]["severity"], {"critical", "warning"})
            for label in _LABEL.findall(rule["annotations"]["summary"]):
                self.known_label(rule["expr"], label)

    def test_the_dashboard_uses_known_metrics_and_labels(self) -> None:
        found = list(targets())
        self.assertGreater(len(found), 20)
        for expression, legend in found:
            self.check(expression)
            kept = {label.strip() for by in _BY.findall(expression) for label in by.split(",")}
            self.assertLessEqual(set(_LABEL.findall(legend)), kept, expression)
            for label in kept:
                self.known_label(expression, label)

    def test_metrics_in_alerts_about_followers_are_on_the_dashboard(self) -> None:
        shown = " ".join(expression for expression, _ in targets())
        for rule in rules():
            for metric in re.findall(r"synrepl_(?:named_)?follower_\w+", rule["expr"]):
                self.assertIn(metric, shown, rule["alert"])

    def known_label(self, expression: str, label: str) -> None:
        """A label that one of the metrics has; nothing is known of a metric without samples."""
        if label in OF_PROMETHEUS:
            return
        sets = [known()[match.group(0).partition("{")[0]] for match in _METRIC.finditer(expression)]
        self.assertTrue(any(label in labels or not labels for labels in sets), (expression, label))

    def test_the_dashboard_is_laid_out_without_overlaps(self) -> None:
        dashboard = json.loads((CONTRIB / "grafana" / "synrepl.json").read_text())
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            cells = {
                (place["x"] + x, place["y"] + y)
                for x in range(place["w"])
                for y in range(place["h"])
            }
            self.assertFalse(cells & taken, panel["title"])
            self.assertLessEqual(place["x"] + place["w"], 24)
            taken |= cells
        self.assertEqual(
            len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"])
        )

    def test_what_is_scraped(self) -> None:
        read = yaml.safe_load((CONTRIB / "prometheus" / "prometheus.yml").read_text())
        self.assertEqual(read["rule_files"], ["synrepl.rules.yml"])
        (job,) = read["scrape_configs"]
        self.assertEqual(job["job_name"], "synrepl")
