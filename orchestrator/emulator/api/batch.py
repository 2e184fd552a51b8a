"""Batch requests: the multipart body that ``gcloud`` sends if a command names several resources."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from email import message_from_bytes, policy
from email.message import Message
from http import HTTPStatus
from typing import Any, NamedTuple

from orchestrator.emulator.core.refusals import ApiError

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
