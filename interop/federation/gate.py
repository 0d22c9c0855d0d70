"""A reverse proxy in front of a server's federation listener, where requests can be held."""

from __future__ import annotations

import socket
import ssl
import threading
from http.client import HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from interop.processes import LOOPBACK
from tests.adapters.federation.authorities import Authority

#: Longer than any server takes to answer.
_TIME_LIMIT_S = 120.0

#: Headers of one connection, which are not passed on.
_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "te", "upgrade"}
)


class Gate:
    """Passes requests on over TLS, and holds those for some paths while it is told to.

    So a server can be slow to answer some of the requests, for as long as a scenario wants it to be.

    :ivar port: where it listens, with a certificate for ``localhost``
    """

    def __init__(self, authority: Authority) -> None:
        self._trust = ssl.create_default_context(cafile=str(authority.path))
        self._upstream = 0
        self._held_path: str | None = None
        self._open = threading.Event()
        self._open.set()
        self._arrived = threading.Event()
        files = authority.certificate(["localhost"])
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(files.certificate, files.private_key)
        self._server = _Listener(self, tls)
        self.port: int = self._server.server_address[1]

    def leads_to(self, port: int) -> None:
        """Set the port of the listener that requests are passed on to."""
        self._upstream = port

    def hold(self, path: str) -> None:
        """Hold requests whose path has a text in it, from now on."""
        self._arrived.clear()
        self._open.clear()
        self._held_path = path

    def has_held(self) -> bool:
        """Whether a request has been held since :meth:`hold`."""
        return self._arrived.is_set()

    def release(self) -> None:
        """Pass on what is held, and hold nothing any more."""
        self._held_path = None
        self._open.set()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Pass a request on; without an answer, the connection is closed."""
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length) if length else None
        held = self._held_path
        if held is not None and held in handler.path:
            self._arrived.set()
            self._open.wait()
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in _HOP}
        connection = HTTPSConnection(
            "localhost", self._upstream, timeout=_TIME_LIMIT_S, context=self._trust
        )
        handler.close_connection = True
        try:
            connection.request(handler.command, handler.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            handler.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(content)))
            handler.send_header("Connection", "close")
            handler.end_headers()
            handler.wfile.write(content)
        except (OSError, HTTPException):
            return  # as if it had not answered
        finally:
            connection.close()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()


def named(port: int, gate: Gate | None) -> str:
    """The name of a server that listens on a port, behind a gate or not."""
    return f"localhost:{port if gate is None else gate.port}"


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100

    def __init__(self, gate: Gate, tls: ssl.SSLContext) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.gate = gate
        self._tls = tls

    def get_request(self) -> tuple[socket.socket, object]:
        """Accept a connection; its handshake is left to its own thread, which reads first."""
        accepted, address = super().get_request()
        accepted.settimeout(_TIME_LIMIT_S)
        return self._tls.wrap_socket(
            accepted, server_side=True, do_handshake_on_connect=False
        ), address

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that breaks off is no event here."""


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.gate.answer(self)

    do_PUT = do_POST = do_GET

    def log_message(self, _: str, *args: object) -> None:
        """Nothing is logged."""
