"""The dashboard's connections, with a real server and real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn

from orchestrator.views.dashboard import pages as connections
from orchestrator.views.dashboard.pages import Connection
from tests.support.waiting import wait_for

WHOLE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    monkeypatch.setattr(connections, "MOST", 5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            application, http=Connection, lifespan="off", log_config=None, ws="none", timeout_keep_alive=240
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        wait_for(lambda: server.started)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
    assert Connection._waiting == {}, "none is kept in mind that has gone"


def connect(port: int, stack: ExitStack, first: bytes = b"") -> socket.socket:
    found = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=240))
    found.sendall(first)
    return found


def closed(connection: socket.socket) -> bool:
    """Whether the server ends it; waits for that or for an answer."""
    try:
        return connection.recv(1000) == b""
    except ConnectionError:  # reset; or, where the server had ended it before anything was sent, a broken pipe
        return True


@pytest.mark.parametrize("part", [b"", b"GET", WHOLE[:30], WHOLE[:-1]])
def test_a_request_that_does_not_come_is_not_waited_for(port: int, part: bytes) -> None:
    with ExitStack() as stack:
        assert closed(connect(port, stack, part))


def test_nor_is_the_next_one_on_a_connection(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 240.0)  # for the whole ones, which this process may send late
    with ExitStack() as stack:
        one = connect(port, stack, WHOLE)
        assert b"204" in one.recv(1000)
        one.sendall(WHOLE)
        assert b"204" in one.recv(1000)
        monkeypatch.setattr(connections, "REQUEST_S", 0.3)
        one.sendall(WHOLE[:-1])
        assert closed(one)


def test_half_open_ones_keep_nobody_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 240.0)
    with ExitStack() as stack:
        half = [connect(port, stack, b"GET") for _ in range(20)]
        whole = connect(port, stack, WHOLE)
        assert b"204" in whole.recv(1000)
        assert closed(half[0]), "the oldest had to go"
        whole.sendall(WHOLE)
        assert b"204" in whole.recv(1000), "who has asked stays"
