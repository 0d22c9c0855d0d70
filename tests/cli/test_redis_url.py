"""Which Redis a command line means."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import TestCase

from synrepl.cli.redis_url import ENVIRONMENT, BadRedisUrl, PasswordInUrl, redis_from_options
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.config.secret import BadSecretFile


class RedisFromOptions(TestCase):
    def setUp(self) -> None:
        self.patch(os, "environ", {})

    def test_parses_urls_into_a_redis_configuration(self) -> None:
        for url, expected in {
            "redis://127.0.0.1": RedisConfig(),
            "redis://localhost:7000/3": RedisConfig(host="localhost", port=7000, database=3),
            "redis://[::1]:7000/": RedisConfig(host="::1", port=7000),
            "rediss://redis.example.org": RedisConfig(host="redis.example.org", tls=True),
            "rediss://a.b/?ca_file=/etc/ca.pem": RedisConfig(
                host="a.b", tls=True, ca_file=Path("/etc/ca.pem")
            ),
            "redis://a.b?insecure=true": RedisConfig(host="a.b", insecure=True),
            "unix:///run/redis%20one.sock": RedisConfig(host="", path=Path("/run/redis one.sock")),
            "unix:///run/redis.sock?database=2": RedisConfig(
                host="", path=Path("/run/redis.sock"), database=2
            ),
        }.items():
            with self.subTest(url):
                self.assertEqual(redis_from_options(url, None), expected)

    def test_reads_the_password_from_a_file_or_the_environment(self) -> None:
        path = Path(self.mktemp())
        path.write_text("sesame\n")
        path.chmod(0o600)
        for given in (path, None):
            os.environ[ENVIRONMENT] = "sesame" if given is None else "another"
            redis = redis_from_options("redis://us%65r@localhost", given)
            assert redis.password is not None
            self.assertEqual((redis.username, redis.password.reveal()), ("user", "sesame"))
            self.assertNotIn("sesame", repr(redis))

    def test_refuses_bad_urls(self) -> None:
        for url, said in {
            "localhost:6379": "none of redis://",
            "http://localhost": "none of redis://",
            "redis://": "no host",
            "redis://localhost:many": "no URL",
            "redis://localhost:99999": "no URL",
            "redis://[::1": "no URL",
            "redis://localhost/one": "no number",
            "redis://localhost?db=1": "nobody knows",
            "redis://redis.example.org": "another machine",
            "redis://user@localhost": "a user has to have a password",
            "redis://localhost?ca_file=/x": "ca_file",
            "unix://": "absolute path",
            "unix://run/redis.sock": "absolute path",
        }.items():
            with self.subTest(url):
                error = self.assertRaises(BadRedisUrl, redis_from_options, url, None)
                self.assertIn(said, str(error))

    def test_refuses_a_password_in_the_url(self) -> None:
        for url in ("redis://:sesame@localhost", "redis://user:sesame@localhost"):
            error = self.assertRaises(PasswordInUrl, redis_from_options, url, None)
            self.assertNotIn("sesame", str(error))

    def test_refuses_a_password_file_that_others_can_read(self) -> None:
        path = Path(self.mktemp())
        path.write_text("sesame")
        path.chmod(0o644)
        self.assertRaises(BadSecretFile, redis_from_options, "redis://localhost", path)
