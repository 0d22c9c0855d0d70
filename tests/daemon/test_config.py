"""Reading configurations: what is accepted, and what each refusal says."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.config import (
    HttpConfig,
    ListenerConfig,
    MasterConfig,
    RetentionConfig,
    WorkerConfig,
    is_loopback,
    load,
    load_master,
    load_worker,
)
from synrepl.daemon.config.decode import Unfit
from synrepl.daemon.config.handlers import HandlerConfig

MASTER = "server_name: example.com\ndatabase: embedded\ndata_dir: data\n"
WORKER = f"{MASTER}instance_name: w1\nmaster: {{port: 9392}}\n"


class ConfigFilesCase(TestCase):
    """A directory to write configurations into."""

    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def write(self, text: str | bytes, name: str = "a.yaml") -> Path:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def master(self, text: str = "") -> MasterConfig:
        return load_master([self.write(MASTER + text)])

    def worker(self, text: str = "") -> WorkerConfig:
        return load_worker([self.write(WORKER + text)])

    def refusal(self, text: str, base: str = MASTER) -> str:
        """What a person reads, without the directory."""
        with self.assertRaises(ConfigError) as caught:
            load([self.write(base + text)])
        return str(caught.exception).replace(f"{self.directory}/", "")


class MasterConfiguration(ConfigFilesCase):
    """A master's file."""

    def test_a_master_has_documented_defaults(self) -> None:
        config = self.master()
        self.assertEqual(config.instance_name, "master")
        self.assertEqual(config.ping_timeout, 15)
        self.assertEqual(config.live_queue_commands, 10_000)
        self.assertEqual(config.catalogue, "all")
        self.assertEqual(config.embedded_dsn_path, self.directory / "data" / "postgres.dsn")
        self.assertIsNone(config.http)
        self.assertIsNone(config.dsn)
        self.assertEqual(config.retention, RetentionConfig(every=60.0, keep=600.0, max=604_800.0))

    def test_reads_every_setting(self) -> None:
        config = self.master("""
instance_name: main
database_pool: {min: 2, connect_timeout: 500ms}
listeners: [{port: 1}, {port: 2, dialect: transitional, rows: current, line_limit: 1MiB}]
http: {port: 0, bind_address: "::1", max_body: 64KiB, allowed_hosts: [Shop.Example., "::1"]}
ping_timeout: 1m
retention: {every: 5s, keep: 0s, max: 1h}
stream_writers: {orders: w1, events: [w1, w2]}
streams: [{name: orders, columns: {id: text, amount: bigint}}]
catalogue: [events, caches]
handlers: ["a.b:C", {class: "d:E", config: {deep: [1, {x: null}]}}]
log: {level: debug, format: json}
""")
        self.assertEqual(config.database_pool.connect_timeout, 0.5)
        self.assertEqual(config.listeners[1].line_limit, 2**20)
        assert config.http is not None
        self.assertEqual(config.http.allowed_hosts, ("shop.example", "::1"))
        self.assertEqual(config.ping_timeout, 60)
        self.assertEqual(config.retention, RetentionConfig(every=5.0, keep=0.0, max=3600.0))
        self.assertEqual(config.writers_of("orders"), ("w1",))
        self.assertEqual(config.writers_of("other"), ("master",))
        self.assertEqual(list(config.streams[0].columns), ["id", "amount"])
        self.assertEqual(config.catalogue, ("events", "caches"))
        self.assertEqual(
            config.handlers,
            (
                HandlerConfig(path="a.b:C"),
                HandlerConfig(path="d:E", config={"deep": [1, {"x": None}]}),
            ),
        )

    def test_a_section_with_everything_commented_out_has_its_defaults(self) -> None:
        self.assertEqual(self.master("log:\nhttp:\n"), self.master())

    def test_reads_a_dsn_without_showing_its_password(self) -> None:
        path = self.write("server_name: x.org\ndatabase: postgresql://u:sesame@localhost/db\n")
        config = load_master([path])
        assert config.dsn is not None
        self.assertEqual(config.dsn.reveal(), "postgresql://u:sesame@localhost/db")
        self.assertNotIn("sesame", repr(config))

    def test_reads_secrets_from_files_relative_to_the_configuration(self) -> None:
        for name, value in (("dsn", "host=localhost"), ("token", "sesame")):
            self.write(value, name).chmod(0o600)
        text = "server_name: x.org\ndatabase_path: dsn\nhttp: {port: 1, secret_path: token}\n"
        config = load_master([self.write(text)])
        assert config.dsn is not None
        assert config.http is not None
        assert config.http.secret is not None
        self.assertEqual(config.dsn.reveal(), "host=localhost")
        self.assertEqual(config.http.secret.reveal(), "sesame")
        self.assertNotIn("sesame", repr(config))


class WorkerConfiguration(ConfigFilesCase):
    """A worker's file."""

    def test_a_worker_has_documented_defaults(self) -> None:
        config = self.worker()
        self.assertEqual(config.name_as_follower, "w1")
        self.assertEqual((config.master.host, config.master.port), ("127.0.0.1", 9392))
        self.assertEqual((config.follow, config.starting), ("all", "earliest"))
        self.assertTrue(config.uses_embedded)
        self.assertEqual(config.lease, 86_400)

    def test_the_key_master_makes_it_a_worker(self) -> None:
        self.assertIsInstance(load([self.write(WORKER)]), WorkerConfig)
        self.assertIsInstance(load([self.write(MASTER)]), MasterConfig)

    def test_a_worker_without_a_database_catches_up_over_http(self) -> None:
        base = "server_name: x.org\ninstance_name: w1\nmaster: {port: 1%s}\n%s"
        self.assertIn("'catch_up: http'", self.refusal("", base % ("", "")))
        self.assertIn("'master.http_url'", self.refusal("", base % ("", "catch_up: http")))
        text = base % (", http_url: http://127.0.0.1:9393/", "catch_up: http")
        config = load_worker([self.write(text)])
        self.assertEqual(config.master.http_url, "http://127.0.0.1:9393")


class RefusedSettings(ConfigFilesCase):
    """Each names the file, the key, and what would be right."""

    def test_refuses_unknown_keys_and_names_the_nearest(self) -> None:
        for text, column, key, nearest in (
            ("pingtimeout: 1s", 1, "pingtimeout", "ping_timeout"),
            ("listeners: [{port: 1}, {port: 3, prot: 2}]", 34, "listeners[1].prot", "port"),
            ("log: {fromat: json}", 7, "log.fromat", "format"),
            ("handlers: [{clas: 'a:B', class: 'a:B'}]", 13, "handlers[0].clas", "class"),
        ):
            with self.subTest(key):
                self.assertEqual(
                    self.refusal(text),
                    f"a.yaml:4:{column}: there is no setting {key!r}; "
                    f"the nearest valid key is {nearest!r}",
                )

    def test_refuses_wrong_values(self) -> None:
        for text, message in (
            ("ping_timeout: soon", "'ping_timeout' must be a duration above zero such as"),
            ("ping_timeout: 0", "'ping_timeout' must be a duration above zero such as"),
            ("ping_timeout: [1]", ", not a list"),
            ("listeners: {port: 1}", "'listeners' must be a list (a map of settings each)"),
            ("listeners: [{port: '1'}]", "'listeners[0].port' must be a whole number between 0"),
            ("listeners: [{port: 65536}]", "not the int 65536"),
            ("listeners: [{port: true}]", "not true"),
            ("listeners: [{port: 1, insecure: 1}]", "must be true or false, not the int 1"),
            ("listeners: [{port: 1, dialect: old}]", "must be 'modern' or 'transitional', not"),
            ("listeners: [{}]", "the setting 'listeners[0].port' is required; give it a whole"),
            ("http: 80", "'http' must be a map of settings, not the int 80"),
            ("catalogue: al", "'catalogue' must be 'all' or 'none' or a list (a stream name each)"),
            ("catalogue: [a, B]", "'catalogue[1]': stream name 'B' is not a valid name"),
            ("stream_writers: {orders: []}", "'stream_writers.orders': name at least one"),
            ("stream_writers: {orders: [a, a]}", "'a' appears twice"),
            ("stream_writers: {orders: {}}", "'stream_writers.orders' must be a list"),
            ("streams: [{name: a, columns: {}}]", "'streams[0].columns': a stream needs"),
            (
                "streams: [{name: ok, columns: {a: text}}, {name: a, columns: {a: text, ctid: text}}]",
                "'streams[1].columns.ctid': column name 'ctid' is reserved (PostgreSQL has a system"
                " column of that name in every table), choose another",
            ),
            ("streams: [{name: a, columns: {xmin: text}}]", "'streams[0].columns.xmin': column"),
            (
                "streams: [{name: a, columns: {writer: text}}]",
                "'streams[0].columns.writer': column",
            ),
            ("streams: [{name: followers, columns: {a: text}}]", "'streams[0].name': the name"),
            ("streams: [{name: now, columns: {a: text}}]", "'streams[0].name': the name"),
            (
                "streams: [{name: a, columns: {a: txt}}]",
                "'streams[0].columns.a': column type 'txt'",
            ),
            (
                "streams: [{name: a, columns: {a: json}, invalidates: {c: [a]}}]",
                "'streams[0].invalidates.c': column 'a' is 'json', which cannot be part of a key",
            ),
            (
                "streams: [{name: a, columns: {a: text}, marks: {c: b}}]",
                "'streams[0].marks.c': there is no column 'b'",
            ),
            ("handlers: [nothing]", "'handlers[0].class' must be a class as"),
            ("database_pool: {min: 11}", "'database_pool.min': 11 is more than max, 10"),
            ("retention: {keep: 8d}", "'retention.keep': 691200 s is more than max, 604800 s"),
            ("retention: {every: 0s}", "'retention.every' must be a duration above zero"),
            ("retention: {max: 0s, keep: 0s}", "'retention.max' must be a duration above zero"),
            ("listeners: [{port: 1}, {port: 1}]", "'listeners': 'port 1' appears twice"),
            ("instance_name: a b", "'instance_name': writer name 'a b' is not a valid name"),
            ("log: {level: 5}", "'log.level' must be 'debug' or"),
            ("http: {port: 1, allowed_hosts: ['a b']}", "'http.allowed_hosts[0]' must be a host"),
            ("http: {port: 1, allowed_hosts: ['a.b:80']}", "a host name or address without a port"),
            ("http: {port: 1, max_connections: 0}", "must be a whole number between 1"),
            ("listeners: [{port: 1, max_connections: x}]", "'listeners[0].max_connections' must"),
            ("http: {port: 1, secret_path: nowhere}", "'http.secret_path': the secret file"),
        ):
            with self.subTest(text):
                refusal = self.refusal(text)
                self.assertRegex(refusal, r"^a\.yaml:4:\d+: ")
                self.assertIn(message, refusal)

    def test_refuses_unusable_database_settings(self) -> None:
        base = "server_name: x.org\n"
        self.assertIn("'database': a master needs a database", self.refusal("", base))
        self.assertIn("'data_dir'", self.refusal("database: embedded", base))
        refusal = self.refusal("database: mysql://u:sesame@h/db", base)
        self.assertIn("must be 'embedded' or a DSN", refusal)
        self.assertNotIn("sesame", refusal)
        self.write("host=localhost", "dsn").chmod(0o600)
        self.assertIn("either", self.refusal("database_path: dsn"))

    def test_refuses_public_addresses_without_tls_or_a_secret(self) -> None:
        for address in ("0.0.0.0", "::", "192.0.2.1", "example.com", ""):
            with self.subTest(address):
                refusal = self.refusal(f"listeners: [{{port: 1, bind_address: '{address}'}}]")
                self.assertIn("'listeners[0].bind_address'", refusal)
                self.assertIn("TLS is not built yet", refusal)
        self.assertIn(
            "secret_path", self.refusal("http: {port: 1, bind_address: '::', insecure: true}")
        )
        self.master("listeners: [{port: 1, bind_address: '::', insecure: true}]")

    def test_refuses_plain_text_to_a_database_on_another_machine(self) -> None:
        base = "server_name: x.org\n"
        worker = f"{base}instance_name: w1\ncatch_up: http\nmaster: {{port: 1, foreign: true, "
        self.write("host=db.example.com", "dsn").chmod(0o600)
        for text, key in (
            (f"{base}database: postgresql://u@db.example.com/x\n", "database"),
            (f"{base}database: host=db.example.com sslmode=prefer\n", "database"),
            (f"{base}database_path: dsn\n", "database_path"),
            (f"{worker}http_url: 'http://a', database_path: dsn}}\n", "master.database_path"),
        ):
            with self.subTest(text):
                insecure = "master.insecure" if "master" in key else "database_insecure"
                refusal = self.refusal("", text)
                self.assertIn(f"'{key}': the database at 'db.example.com' is on another", refusal)
                self.assertIn("add sslmode=verify-full to it", refusal)
                self.assertIn(f"accept plain text by '{insecure}: true'", refusal)
                if "master" in key:
                    load([self.write(text.replace("}", ", insecure: true}"))])
                else:
                    load([self.write(f"{text}database_insecure: true\n")])
        load([self.write(f"{base}database: host=db.example.com sslmode=verify-full\n")])

    def test_refuses_a_password_in_a_file_that_others_can_read(self) -> None:
        with_password = "server_name: x.org\ndatabase: postgresql://u:sesame@localhost/x\n"
        path = self.write(with_password)
        for mode, readers in ((0o644, "everybody"), (0o604, "everybody"), (0o640, "its group")):
            path.chmod(mode)
            if os.geteuid() == 0:
                os.chown(path, 65534, -1)
            with self.subTest(mode), self.assertRaises(ConfigError) as caught:
                load([path])
            message = str(caught.exception)
            self.assertIn(
                f"'database': there is a password in it, and this file can be read by {readers}",
                message,
            )
            self.assertIn(
                "name that in 'database_path', or accept it by 'database_insecure: true'", message
            )
            self.assertNotIn("sesame", message)
        # The other file has the permission, this one the password.
        extra = self.write("database_insecure: true\n", "b.yaml")
        load([path, extra])
        path.chmod(0o600)
        load([path])
        path.write_text(with_password.replace(":sesame", ""))
        path.chmod(0o644)
        load([path])

    def test_the_rules_hold_for_configurations_built_in_python(self) -> None:
        with self.assertRaisesRegex(Unfit, "TLS"):
            ListenerConfig(port=1, bind_address="0.0.0.0")
        with self.assertRaisesRegex(Unfit, "secret_path"):
            HttpConfig(port=1, bind_address="0.0.0.0", insecure=True)

    def test_recognises_loopback_addresses(self) -> None:
        for address in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
            self.assertTrue(is_loopback(address), address)
        for address in ("127.0.0.1.example.com", "localhost.", "", "10.0.0.1", "::ffff:10.0.0.1"):
            self.assertFalse(is_loopback(address), address)


class SeveralErrors(ConfigFilesCase):
    """Everything that is wrong, in the order in which a person reads the files."""

    def refusals(self, *files: tuple[str, str]) -> list[str]:
        """What a person reads, line by line."""
        paths = [self.write(text, name) for name, text in files]
        with self.assertRaises(ConfigError) as caught:
            load(paths)
        return str(caught.exception).replace(f"{self.directory}/", "").splitlines()

    def test_reports_all_errors_of_one_file_in_order(self) -> None:
        text = (
            "server_name: a b\n"
            "log: {level: 5, fromat: json}\n"
            "http: {port: 1, bind_address: '::'}\n"
            "pingtimeout: 1s\n"
            "database: mysql://u:sesame@h/db\n"
            "listeners:\n"
            "  - {port: x}\n"
            "  - {}\n"
            "streams: [{name: a, columns: {}}, {name: B, columns: {c: text}}]\n"
        )
        found = self.refusals(("a.yaml", text))
        self.assertEqual(
            [line.split(" ")[0] for line in found],
            [
                f"a.yaml:{place}:"
                for place in [
                    "1:1",
                    "2:7",
                    "2:17",
                    "3:1",
                    "3:17",
                    "4:1",
                    "5:1",
                    "7:6",
                    "8:5",
                    "9:21",
                    "9:36",
                ]
            ],
            found,
        )
        self.assertNotIn("sesame", str(found))

    def test_reports_all_errors_of_several_files_in_order(self) -> None:
        found = self.refusals(
            ("c.yaml", "http: {prt: 1}\na: 1\n"),
            ("a.yaml", "server_name: x.org\nhttp: {port: x}\n"),
            ("b.yaml", "database: embedded\ninstance_name: 5\n"),
        )
        self.assertEqual(
            [line.split(": ")[0] for line in found],
            ["c.yaml:1:8", "c.yaml:2:1", "a.yaml:2:8", "b.yaml:2:1"],
        )

    def test_reports_all_inconsistent_settings(self) -> None:
        text = "server_name: x.org\nstreams: [{name: a, columns: {c: text}}]\n"
        found = self.refusals(("a.yaml", text), ("b.yaml", "stream_writers: {a: [x, x], b: []}\n"))
        self.assertEqual(
            found,
            [
                "b.yaml: 'database': a master needs a database: embedded, or a DSN",
                "b.yaml:1:18: 'stream_writers.a': 'x' appears twice",
                "b.yaml:1:29: 'stream_writers.b': name at least one writer",
            ],
        )

    def test_reports_errors_of_yaml_and_of_settings_together(self) -> None:
        found = self.refusals(
            ("a.yaml", "a: 1\nlog: {level: x}\nlog: {}\nno: 1\nhttp: &x {port: 1}\nredis: *x\n"),
            ("b.yaml", "streams:\n  - name: [\n"),
            ("c.yaml", "ping_timeout: never\n"),
            ("gone/d.yaml", "x"),
        )
        self.assertEqual(
            [line.partition(": ")[0].removeprefix("configuration ") for line in found],
            [
                *("a.yaml:1:1", "a.yaml:2:7", "a.yaml:3:1 is not usable YAML"),
                *("a.yaml:4:1 is not usable YAML", "a.yaml:6:8 is not usable YAML"),
                *(
                    "b.yaml:3:1 is not usable YAML",
                    "c.yaml:1:1",
                    "gone/d.yaml:1:1 is not usable YAML",
                ),
            ],
        )

    def test_reports_no_missing_settings_when_a_file_cannot_be_read(self) -> None:
        found = self.refusals(("a.yaml", "server_name: ["), ("b.yaml", "ping_timeout: 1s"))
        self.assertEqual(len(found), 1, found)


class YamlFiles(ConfigFilesCase):
    """What is not read at all."""

    def test_refuses_ambiguous_or_unusable_yaml(self) -> None:
        for text, reason in (
            (b"a: 1\na: 2", "key 'a' appears twice in one map"),
            (b"log: {level: info, level: info}", "key 'level' appears twice"),
            (b"no: 1", "key False is not text; put it in quotes"),
            (b"a: &x [1]\nb: *x", "alias *x is not allowed"),
            (b"<<: {a: 1}", "not usable YAML"),
            (b"- a", "the top level is not a map"),
            (b"a: [1", "not usable YAML"),
            (b"a: 1\n---\nb: 1", "not usable YAML"),
            (b"a: !!python/object/apply:os.getcwd []", "not usable YAML"),
            (b"a: \xff", "not usable YAML"),
            (b"a: 9999-99-99", "not usable YAML"),
            (b"[" * 5000, "nested too deeply"),
            (b"#" * (256 * 1024 + 1), "larger than 256 KiB"),
        ):
            with self.subTest(text[:30]):
                refusal = self.refusal("", text.decode("latin-1")) if text[-1] != 0xFF else None
                if refusal is None:
                    with self.assertRaises(ConfigError) as caught:
                        load([self.write(text)])
                    refusal = str(caught.exception)
                self.assertIn("a.yaml", refusal)
                self.assertIn(reason, refusal)

    def test_refuses_an_absent_file(self) -> None:
        with self.assertRaisesRegex(ConfigError, "gone.yaml cannot be read: No such file"):
            load([self.directory / "gone.yaml"])

    @settings(max_examples=100)
    @given(st.text(max_size=60))
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        path = self.write(text.encode("utf-8", "surrogatepass"))
        with self.assertRaises(ConfigError):  # no such text has the required keys
            load([path])

    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["port", "name", "class", "min"]), inner, max_size=3)
        ),
        max_leaves=6,
    )

    @settings(max_examples=200)
    @given(st.dictionaries(st.sampled_from(list(MasterConfig.__dataclass_fields__)), values))
    def test_values_of_any_shape_are_read_or_refused(self, content: dict[str, object]) -> None:
        path = self.write(yaml.safe_dump({**content, "server_name": "x.org"}))
        with suppress(ConfigError):
            self.assertIsInstance(load_master([path]), MasterConfig)


class MergedFiles(ConfigFilesCase):
    """Several files, and directories."""

    def test_later_files_win_and_maps_merge_one_level(self) -> None:
        first = self.write(f"{MASTER}http: {{port: 1, max_body: 1KiB}}\nlisteners: [{{port: 1}}]\n")
        second = self.write("http: {port: 2}\nlisteners: [{port: 9}]\n", "b.yaml")
        config = load_master([first, second])
        assert config.http is not None
        self.assertEqual((config.http.port, config.http.max_body), (2, 1024))
        self.assertEqual([each.port for each in config.listeners], [9])

    def test_reads_a_directory_in_the_order_of_names(self) -> None:
        self.write("ping_timeout: 2s", "conf/20.yaml")
        self.write(f"{MASTER}ping_timeout: 1s", "conf/10.yaml")
        self.write("not: read", "conf/30.yml")
        self.assertEqual(load_master([self.directory / "conf"]).ping_timeout, 2)

    def test_refuses_an_empty_directory(self) -> None:
        with self.assertRaisesRegex(ConfigError, "holds no"):
            load([self.directory])

    def test_errors_name_the_file_that_has_the_value(self) -> None:
        first = self.write(f"{MASTER}http: {{port: x, max_body: 1KiB}}\nlog: {{level: info}}\n")
        second = self.write("http: {max_body: 2KiB}\nlog: {levle: info}\n", "b.yaml")
        with self.assertRaisesRegex(ConfigError, r"/a\.yaml:4:8: 'http\.port' must be"):
            load([first, self.write("http: {max_body: 2KiB}", "b.yaml")])
        third = self.write("http: {port: 1}", "c.yaml")
        second.write_text("http: {max_body: 2KiB}\nlog: {levle: info}\n")
        with self.assertRaisesRegex(ConfigError, r"/b\.yaml:2:7: there is no setting 'log\.levle'"):
            load([first, second, third])

    def test_paths_are_relative_to_their_file(self) -> None:
        first = self.write(MASTER, "one.yaml")
        second = self.write("data_dir: there", "sub/two.yaml")
        self.assertEqual(load_master([first, second]).data_dir, self.directory / "sub" / "there")
