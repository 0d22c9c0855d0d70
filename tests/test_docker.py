"""The container image and the compose file: what can be told without a container engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import TestCase

import yaml

from synrepl.daemon.config import load_master, load_worker

DOCKER = Path(__file__).resolve().parent.parent / "docker"


class Dockerfile(TestCase):
    """The image."""

    def setUp(self) -> None:
        text = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
        lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
        self.steps = [(words[0], words[1]) for words in lines if not words[0].startswith("#")]

    def step(self, name: str) -> list[str]:
        return [rest for word, rest in self.steps if word == name]

    def test_bases_are_pinned_to_a_version(self) -> None:
        for base in self.step("FROM"):
            self.assertRegex(base, r"^[a-z]+:[0-9]+\.[0-9]+")

    def test_it_does_not_run_as_root(self) -> None:
        last_user = max(i for i, (word, _) in enumerate(self.steps) if word == "USER")
        self.assertNotIn(self.steps[last_user][1], ("root", "0"))
        self.assertNotIn("RUN", [word for word, _ in self.steps[last_user:]])

    def test_programs_get_signals(self) -> None:
        """In the shell form, SIGTERM would go to a shell."""
        for name in ("ENTRYPOINT", "CMD"):
            self.assertTrue(all(isinstance(json.loads(rest), list) for rest in self.step(name)))

    def test_it_has_a_health_check(self) -> None:
        (check,) = self.step("HEALTHCHECK")
        self.assertIn("/health", check)

    def test_what_is_copied_is_not_ignored(self) -> None:
        kept = re.findall(r"^!(.*)$", (DOCKER.parent / ".dockerignore").read_text(), re.MULTILINE)
        copied = [
            word
            for rest in self.step("COPY")
            if not rest.startswith("--from")
            for word in rest.split()[:-1]
        ]
        self.assertEqual(sorted(copied), sorted(kept))


class Compose(TestCase):
    """The compose file and the configuration that it mounts."""

    def setUp(self) -> None:
        self.compose: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
        self.services: dict[str, Any] = self.compose["services"]

    def test_who_is_there(self) -> None:
        self.assertEqual(list(self.services), ["postgres", "redis", "master", "worker1", "worker2"])
        self.assertEqual(self.services["postgres"]["image"], "postgres:17")
        self.assertEqual(self.services["redis"]["image"], "redis:7")

    def test_ports_are_published_on_loopback_only(self) -> None:
        ports = [port for each in self.services.values() for port in each.get("ports", [])]
        self.assertEqual([port for port in ports if not port.startswith("127.0.0.1:")], [])
        self.assertEqual(len(ports), 2)

    def test_every_secret_comes_from_a_file(self) -> None:
        script = (DOCKER / "make-secrets").read_text()
        for name, secret in self.compose["secrets"].items():
            self.assertEqual(secret, {"file": f"./secrets/{name}"})
            self.assertIn(f"> secrets/{name}", script)
        used = {name for each in self.services.values() for name in each.get("secrets", [])}
        self.assertEqual(used, set(self.compose["secrets"]))

    def test_the_configuration_is_acceptable(self) -> None:
        loaders = {"master": load_master, "worker": load_worker}
        with TemporaryDirectory() as directory:
            for name, value in (("synrepl_dsn", "host=postgres"), ("synrepl_http", "x")):
                secret = Path(directory) / name
                secret.write_text(value)
                secret.chmod(0o600)
            for path in (DOCKER / "config").iterdir():
                text = path.read_text().replace("/run/secrets", directory)
                (Path(directory) / path.name).write_text(text)
            for name in ("master", "worker1", "worker2"):
                role, *arguments = self.services[name]["command"]
                files = [Path(directory) / Path(word).name for word in arguments if word != "-c"]
                config = loaders[role](files)
                self.assertEqual(config.instance_name, name)
                self.assertIsNotNone(config.http)
