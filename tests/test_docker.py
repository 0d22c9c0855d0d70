"""The container image and the compose file: checks that need no container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import TestCase

import yaml
from psycopg2 import extensions

from synrepl.daemon.config.config import MasterConfig, WorkerConfig, load_master, load_worker
from synrepl.storage.launch.redis import RedisProcess
from tests.cli.cli_case import free_port

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
    """The compose file, the configuration that it mounts, and the secrets as they are made."""

    def setUp(self) -> None:
        self.compose: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
        self.services: dict[str, Any] = self.compose["services"]
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.secrets = self.directory / "secrets"
        shutil.copy(DOCKER / "make-secrets", self.directory)
        subprocess.run([self.directory / "make-secrets"], check=True, capture_output=True)

    def secret(self, name: str) -> str:
        return (self.secrets / name).read_text()

    def config(self, name: str) -> MasterConfig | WorkerConfig:
        """The configuration of a service, with the secrets in their places."""
        role, *arguments = self.services[name]["command"]
        files = []
        for path in (Path(word) for word in arguments if word != "-c"):
            text = (DOCKER / "config" / path.name).read_text()
            files.append(self.directory / path.name)
            files[-1].write_text(text.replace("/run/secrets", str(self.secrets)))
        return load_master(files) if role == "master" else load_worker(files)

    def processes(self) -> dict[str, MasterConfig | WorkerConfig]:
        return {name: self.config(name) for name in ("master", "worker1", "worker2")}

    def test_who_is_there(self) -> None:
        self.assertEqual(
            list(self.services),
            ["postgres", "redis", "master", "worker1", "worker2", "prometheus"],
        )
        self.assertEqual(self.services["postgres"]["image"], "postgres:17")
        self.assertEqual(self.services["redis"]["image"], "redis:7")
        always = [name for name, service in self.services.items() if "profiles" not in service]
        self.assertNotIn("prometheus", always)

    def test_ports_are_published_on_loopback_only(self) -> None:
        ports = [port for each in self.services.values() for port in each.get("ports", [])]
        self.assertEqual([port for port in ports if not port.startswith("127.0.0.1:")], [])
        self.assertEqual(len(ports), 3)

    def test_only_what_is_published_can_be_reached_from_outside(self) -> None:
        self.assertEqual(self.compose["networks"]["inside"], {"internal": True})
        defaults = self.compose["x-synrepl"]["networks"]
        for name, service in self.services.items():
            with self.subTest(name):
                self.assertIn("inside", service.get("networks", defaults))
                self.assertEqual("outside" in service.get("networks", defaults), "ports" in service)

    def test_every_secret_comes_from_a_file_that_only_its_reader_can_read(self) -> None:
        made = {path.name: path.stat() for path in self.secrets.iterdir()}
        self.assertEqual(made.keys(), self.compose["secrets"].keys())
        for name, secret in self.compose["secrets"].items():
            self.assertEqual(secret, {"file": f"./secrets/{name}"})
            self.assertEqual(made[name].st_mode & 0o777, 0o600)
        used = {name for each in self.services.values() for name in each.get("secrets", [])}
        self.assertEqual(used, set(self.compose["secrets"]))
        (user,) = re.findall(r"--uid (\d+)", (DOCKER / "Dockerfile").read_text())
        if os.geteuid() == 0:
            for name in self.compose["x-synrepl"]["secrets"]:
                self.assertEqual(made[name].st_uid, int(user))

    def test_the_configuration_is_acceptable(self) -> None:
        for name, config in self.processes().items():
            with self.subTest(name):
                self.assertEqual(config.instance_name, name)

    def test_processes_use_the_services_that_they_wait_for(self) -> None:
        processes = self.processes()
        for name, config in processes.items():
            with self.subTest(name):
                assert config.dsn is not None
                assert config.redis is not None
                given = extensions.parse_dsn(config.dsn.reveal())
                self.assertEqual(given["host"], "postgres")
                self.assertEqual(given["password"], self.secret("postgres_password"))
                self.assertEqual(config.redis.host, "redis")
                if isinstance(config, WorkerConfig):
                    self.assertEqual(config.master.host, "master")
                    assert config.master.secret is not None
                    self.assertEqual(config.master.secret.reveal(), self.secret("synrepl_http"))
        self.assertEqual(list(self.services["master"]["depends_on"]), ["postgres", "redis"])
        for name in "worker1", "worker2":
            self.assertEqual(list(self.services[name]["depends_on"]), ["master"])

    def test_redis_wants_the_password_that_the_processes_have(self) -> None:
        self.assertEqual(
            self.services["redis"]["command"], ["redis-server", "/run/secrets/redis_conf"]
        )
        port = free_port()
        redis = RedisProcess(self.directory, port, file=self.secrets / "redis_conf")
        redis.start()
        self.addCleanup(redis.kill)
        with socket.create_connection(("127.0.0.1", port), 10) as link:
            link.sendall(b"PING\r\n")
            self.assertTrue(link.recv(100).startswith(b"-NOAUTH"))
            link.sendall(f"AUTH {self.secret('synrepl_redis')}\r\n".encode())
            self.assertEqual(link.recv(100), b"+OK\r\n")

    def test_prometheus_can_scrape_every_process(self) -> None:
        prometheus = self.services["prometheus"]
        mounted = [volume.split(":")[0] for volume in prometheus["volumes"]]
        read = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
        self.assertIn("./prometheus.yml", mounted)
        for rules in read["rule_files"]:
            self.assertIn(f"../contrib/prometheus/{rules}", mounted)
            self.assertTrue((DOCKER / "../contrib/prometheus" / rules).exists())
        (job,) = read["scrape_configs"]
        self.assertEqual(job["authorization"], {"credentials_file": "/run/secrets/prometheus_http"})
        self.assertEqual(prometheus["secrets"], ["prometheus_http"])
        self.assertEqual(self.secret("prometheus_http"), self.secret("synrepl_http"))
        targets = {each for group in job["static_configs"] for each in group["targets"]}
        for name, config in self.processes().items():
            with self.subTest(name):
                assert config.http is not None
                self.assertIn(f"{name}:{config.http.port}", targets)
                self.assertEqual(config.http.bind_address, "0.0.0.0")
                assert config.http.secret is not None
                self.assertEqual(config.http.secret.reveal(), self.secret("synrepl_http"))
        self.assertEqual(len(targets), len(self.processes()))
