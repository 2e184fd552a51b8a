"""The HTTP server on loopback, and batches of requests."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from email import message_from_bytes, policy
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from orchestrator.emulator.refusals import ApiError
from orchestrator.emulator.service import LostReply

#: Below the server's root, not below the secret: gcloud keeps only host and port of the endpoint it was given. The
#: secret is asked of each request in the batch.
PATH = "/batch/compute/v1"
MAX_PARTS = 1000


class Part(NamedTuple):
    """One request of a batch. ``id`` is its Content-ID, ``target`` the URL of its first line."""

    id: str
    method: str
    target: str
    body: bytes


def parts_of(content_type: str, body: bytes) -> list[Part]:
    """The requests in a body. Raises ApiError: it is no batch of requests."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode("ascii", "replace")
    message = message_from_bytes(head + body, policy=policy.compat32)
    given = message.get_payload()
    if not isinstance(given, list) or len(given) > MAX_PARTS:
        raise ApiError("badRequest", "Failed to parse batch request.")
    return [_part(one) for one in given if isinstance(one, Message)]


def _part(message: Message) -> Part:
    number, content = str(message.get("Content-ID", "")), message.get_payload(decode=True)
    content = content if isinstance(content, bytes) else b""
    first, _, rest = content.replace(b"\r\n", b"\n").partition(b"\n")
    words = first.decode("utf-8", "replace").split(" ")
    if len(words) < 2 or not number.startswith("<") or not number.endswith(">") or not number.isprintable():
        raise ApiError("badRequest", "Failed to parse batch request.")
    return Part(number, words[0], words[1], rest.partition(b"\n\n")[2])


def answer(replies: Sequence[tuple[str, int, dict[str, Any]]]) -> tuple[str, bytes]:
    """Content type and body that answer (Content-ID, status, JSON) each, in the order of the requests."""
    boundary = f"batch_{secrets.token_hex(12)}"
    lines: list[str] = []
    for number, status, value in replies:
        lines += [
            f"--{boundary}",
            "Content-Type: application/http",
            f"Content-ID: <response-{number[1:]}",
            "",
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "Content-Type: application/json; charset=UTF-8",
            "",
            json.dumps(value),
        ]
    return f"multipart/mixed; boundary={boundary}", "\r\n".join([*lines, f"--{boundary}--", ""]).encode()


_LOG = logging.getLogger(__name__)
MAX_BODY = 4 * 1024 * 1024
#: ``answer(method, path, query, body)``: the JSON of status 200.
Answer = Callable[[str, str, dict[str, str], dict[str, Any]], dict[str, Any]]


class Server(ThreadingHTTPServer):
    """Listens on 127.0.0.1 only."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, secret: str, answer: Answer) -> None:
        self.answer = answer
        self.prefix = f"/{secret}"
        super().__init__(("127.0.0.1", port), _Handler)

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        # The base class asks the name service who 127.0.0.1 is, which can take seconds.
        self.server_name, self.server_port = "localhost", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's
        """Ignores clients that hang up. Any other error is a defect of the emulator; it is logged, because the client
        only sees a lost reply."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            _LOG.exception("a request to the emulator failed")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "fcctl-emulator"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = 600
    server: Server

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        try:
            body = self._body()
            if (method, self.path) == ("POST", PATH):
                self._serve_batch(body)
            else:
                self._reply(200, self._answer(method, self.path, body))
        except ApiError as error:
            self._reply(error.status, error.body())
        except LostReply:
            self._reset()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, method: str, target: str, body: bytes) -> dict[str, Any]:
        url = urlsplit(target)
        path = unquote(url.path)
        self._check_origin(path)
        # gcloud sends a fields mask and alt=json; both are ignored.
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        return self.server.answer(method, path[len(self.server.prefix) :], query, _json(body))

    def _serve_batch(self, body: bytes) -> None:
        """Serves the parts in order; each needs the secret, and a refused one does not stop the others."""
        replies: list[tuple[str, int, dict[str, Any]]] = []
        for part in parts_of(self.headers.get("Content-Type", ""), body):
            try:
                replies.append((part.id, 200, self._answer(part.method, part.target, part.body)))
            except ApiError as error:
                replies.append((part.id, error.status, error.body()))
        self._send(200, *answer(replies))

    def _check_origin(self, path: str) -> None:
        """Refuses requests from web pages and from other users."""
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        wanted = self.server.prefix + "/"
        known = hmac.compare_digest(path[: len(wanted)].encode(), wanted.encode())
        if not known or self.headers.get("Origin") or host not in ("127.0.0.1", "localhost"):
            raise ApiError("notFound", "Not Found")

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= MAX_BODY:
            self.close_connection = True
            raise ApiError("badRequest", "The request is too large.")
        return self.rfile.read(length)

    def _reply(self, status: int, value: dict[str, Any]) -> None:
        self._send(status, "application/json; charset=UTF-8", json.dumps(value).encode())

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        """Resets the connection, so that the client sees an error."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Logs nothing: the state has the requests."""


def _json(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise ApiError("badRequest", "Parse Error") from None
    if not isinstance(value, dict):
        raise ApiError("badRequest", "Parse Error")
    return value
