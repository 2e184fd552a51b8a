"""The API's routes, the service that answers a request or meets it with a fault, and the HTTP server on loopback."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import socket
import struct
import sys
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from email import message_from_bytes, policy
from email.message import Message
from fnmatch import fnmatchcase
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from orchestrator.emulator import instances, requests
from orchestrator.emulator.call import Call
from orchestrator.emulator.refusals import ApiError, invalid
from orchestrator.emulator.requests import Collection
from orchestrator.emulator.scenario import Effect, Faults
from orchestrator.emulator.world import World

Handler = Callable[[Call], dict[str, Any]]
_ZONE, _INSTANCE, _DISK = "zones/{zone}/", "zones/{zone}/instances/{name}", "zones/{zone}/disks/{name}"
_SNAPSHOT = "global/snapshots/{name}"


class Route(NamedTuple):
    action: str
    method: str
    pattern: re.Pattern[str]
    handler: Handler


#: The path of a collection, and its methods: list, get, aggregatedList.
_READ: tuple[tuple[Collection, str, str], ...] = (
    (requests.REGIONS, "", "lg"),
    (requests.ZONES, "", "lg"),
    (requests.MACHINE_TYPES, _ZONE, "lga"),
    (requests.ACCELERATOR_TYPES, _ZONE, "lga"),
    (requests.IMAGES, "global/", "lg"),
    (requests.NETWORKS, "global/", "l"),
    (requests.FIREWALLS, "global/", "lg"),
    (requests.INSTANCES, _ZONE, "la"),
    (requests.DISKS, _ZONE, "lga"),
    (requests.SNAPSHOTS, "global/", "lg"),
    (requests.ADDRESSES, "", "a"),
    (requests.RESERVATIONS, _ZONE, "lga"),
)
_OTHERS: tuple[tuple[str, str, str, Handler], ...] = (
    ("projects.get", "GET", "", requests.project),
    ("images.getFromFamily", "GET", "global/images/family/{name}", requests.image_of_family),
    ("imageFamilyViews.get", "GET", f"{_ZONE}imageFamilyViews/{{name}}", requests.image_family_view),
    ("instances.insert", "POST", f"{_ZONE}instances", instances.insert),
    ("instances.get", "GET", _INSTANCE, instances.get),
    ("instances.delete", "DELETE", _INSTANCE, requests.delete_instance),
    ("instances.start", "POST", f"{_INSTANCE}/start", requests.start),
    ("instances.stop", "POST", f"{_INSTANCE}/stop", requests.stop),
    ("instances.suspend", "POST", f"{_INSTANCE}/suspend", requests.suspend),
    ("instances.resume", "POST", f"{_INSTANCE}/resume", requests.resume),
    ("instances.setLabels", "POST", f"{_INSTANCE}/setLabels", instances.set_labels),
    ("instances.setMetadata", "POST", f"{_INSTANCE}/setMetadata", instances.set_metadata),
    ("instances.setScheduling", "POST", f"{_INSTANCE}/setScheduling", instances.set_scheduling),
    ("instances.setMachineType", "POST", f"{_INSTANCE}/setMachineType", instances.set_machine_type),
    ("instances.testIamPermissions", "POST", f"{_INSTANCE}/testIamPermissions", instances.test_permissions),
    ("instances.getGuestAttributes", "GET", f"{_INSTANCE}/getGuestAttributes", instances.guest_attributes),
    ("instances.getSerialPortOutput", "GET", f"{_INSTANCE}/serialPort", instances.serial_port),
    ("disks.insert", "POST", f"{_ZONE}disks", requests.insert_disk),
    ("disks.delete", "DELETE", _DISK, requests.delete_disk),
    ("disks.createSnapshot", "POST", f"{_DISK}/createSnapshot", requests.create_snapshot),
    ("snapshots.delete", "DELETE", _SNAPSHOT, requests.delete_snapshot),
    ("addresses.insert", "POST", "regions/{region}/addresses", requests.insert_address),
    ("addresses.delete", "DELETE", "regions/{region}/addresses/{name}", requests.delete_address),
    ("globalOperations.aggregatedList", "GET", "aggregated/operations", requests.OPERATIONS.aggregated),
    *(
        row
        for kind, place in (("zoneOperations", _ZONE), ("globalOperations", "global/"))
        for row in (
            (f"{kind}.list", "GET", f"{place}operations", requests.OPERATIONS.list_),
            (f"{kind}.get", "GET", f"{place}operations/{{name}}", requests.OPERATIONS.get),
            (f"{kind}.wait", "POST", f"{place}operations/{{name}}/wait", requests.wait_operation),
        )
    ),
)


def _reading(collection: Collection, place: str, verbs: str) -> list[tuple[str, str, str, Handler]]:
    name = collection.name
    rows = {
        "l": (f"{name}.list", "GET", f"{place}{name}", collection.list_),
        "g": (f"{name}.get", "GET", f"{place}{name}/{{name}}", collection.get),
        "a": (f"{name}.aggregatedList", "GET", f"aggregated/{name}", collection.aggregated),
    }
    return [rows[verb] for verb in verbs]


def _compiled(action: str, method: str, template: str, handler: Handler) -> Route:
    below = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template)
    pattern = r"projects/(?P<project>[^/]+)" + (f"/{below}" if below else "")
    return Route(action, method, re.compile(pattern), handler)


ROUTES = tuple(_compiled(*row) for row in (*(row for read in _READ for row in _reading(*read)), *_OTHERS))


@lru_cache(maxsize=512)
def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route of ``projects/...`` and the names in the path."""
    for route in ROUTES:
        if route.method == method and (match := route.pattern.fullmatch(path)):
            return route, match.groupdict()
    return None


_LONGEST_DELAY_S = 86400.0
#: Of a request that no fault meets.
NOTHING = Effect.model_construct()


class LostReply(Exception):
    """The connection breaks in place of an answer."""


class Service:
    """Answers requests; thread-safe."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        self._recent: deque[float] = deque()

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        """The JSON answer with status 200.

        Args:
            path: below ``/compute/v1/``.

        Raises ApiError: every other status; LostReply: a scripted fault says that no answer arrives.
        """
        match = find(method, path)
        if match is None:
            raise ApiError("notFound", f"The requested URL /compute/v1/{path} was not found on this server.")
        route, at = match
        self._admit(route.action, at["project"])
        below = path.split("/", 2)[2] if path.count("/") > 1 else ""
        fault = self._faults.for_request(route.action, method, below, self._world.now())
        call = Call(self._world, route.action, path, at, query, body, fault)
        do = fault.do if fault is not None else NOTHING
        if do.delay is not None:
            self._sleep(do.delay)
        if do.http is not None:
            raise do.http.error()
        if do.drop == "before":
            raise LostReply
        waited = route.handler(call) if route.action.endswith(".wait") else None  # without the lock: it blocks
        with self._world.lock:
            answer = waited or (self._once(call, route) if method != "GET" else route.handler(call))
            copied: dict[str, Any] = json.loads(json.dumps(answer))
        if do.drop is not None:
            raise LostReply
        return copied

    def _once(self, call: Call, route: Route) -> dict[str, Any]:
        """A repeated requestId gets the first operation. A refused request is not recorded."""
        request_id = call.query.get("requestId")
        if not request_id:
            return route.handler(call)
        _check_uuid(request_id)
        key = f"{call.at['project']}/{request_id.lower()}"
        digest = hashlib.sha256(json.dumps([call.action, call.path, call.body], sort_keys=True).encode()).hexdigest()
        before = self._world.requests.get(key)
        if before is not None:
            if before[0] != digest:
                raise ApiError("conflict", f"requestId '{request_id}' was used for a different request.")
            return self._world.operations[before[1]].resource
        answer = route.handler(call)
        self._world.requests[key] = (digest, answer["selfLink"][answer["selfLink"].index("projects/") :])
        self._world.changed()
        return answer

    def _admit(self, action: str, project: str) -> None:
        scenario = self._world.scenario
        if any(fnmatchcase(action, denied) for denied in scenario.denied):
            raise ApiError("forbidden", f"Required 'compute.{action}' permission for 'projects/{project}'")
        public = action.startswith("image")
        if scenario.projects is not None and project not in scenario.projects and not public:
            raise ApiError("notFound", f"The resource 'projects/{project}' was not found")
        if scenario.requests_per_minute is None:
            return
        with self._world.lock:
            now = self._world.now()
            while self._recent and self._recent[0] <= now - 60:
                self._recent.popleft()
            if len(self._recent) >= scenario.requests_per_minute:
                raise ApiError("rateLimitExceeded", "Quota exceeded for quota metric 'Queries' of service compute.")
            self._recent.append(now)

    def _sleep(self, seconds: float) -> None:
        """Waits emulated seconds. A method of its own: a test of two commands at once waits in it."""
        self._world.timeline.wait(self._world.now() + seconds, lambda: False, real_limit_s=_LONGEST_DELAY_S)


def _check_uuid(text: str) -> None:
    try:
        zero = uuid.UUID(text).int == 0
    except ValueError:
        zero = True
    if zero:
        raise invalid("requestId", text, "Must be a valid, non-zero UUID.")


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
