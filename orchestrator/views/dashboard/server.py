"""The server: one socket on loopback, until Ctrl-C, with limits on connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator.base.errors import ConflictError
from orchestrator.views.dashboard.guard import Access
from orchestrator.views.dashboard.site import Backend

#: At once; a process on macOS may have 256 files open.
MOST = 100
#: From a connection, or the first byte of its next request, until that request is whole, seconds.
REQUEST_S = 10.0


class Connection(H11Protocol):
    """One that has no whole request by :data:`REQUEST_S` is closed; and of too many, the oldest such one."""

    _waiting: ClassVar[dict[Connection, asyncio.TimerHandle]] = {}

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST:
            next(iter(self._waiting)).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._wait()
        else:
            self._served()

    def connection_lost(self, exc: Exception | None) -> None:
        self._served()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self not in self._waiting:
            self._waiting[self] = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _served(self) -> None:
        if (timer := self._waiting.pop(self, None)) is not None:
            timer.cancel()


#: What a browser that goes away mid-stream, or a slow one, may hold of us.
BACKLOG = 128
GRACE_S = 2


@dataclass
class Server:
    """Bound, not yet answering; :attr:`link` opens it in one browser."""

    socket: socket.socket
    access: Access

    @property
    def link(self) -> str:
        return self.access.link

    @property
    def port(self) -> int:
        return self.access.port

    def serve(self, backend: Backend) -> None:
        """Answer until SIGINT or SIGTERM."""
        import uvicorn

        from orchestrator.views.dashboard.pages import SECTIONS
        from orchestrator.views.dashboard.site import application

        config = uvicorn.Config(
            application(backend, self.access, SECTIONS),
            log_config=None, access_log=False, server_header=False, date_header=False, proxy_headers=False,
            ws="none", http=Connection, loop="asyncio", lifespan="on", timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=32 * 1024,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[self.socket])


def bind(port: int, announce: Callable[[str], None]) -> Server:
    """A server on 127.0.0.1, on any free port if ``port`` is 0.

    Raises:
        ConflictError: the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise ConflictError(
            f"port {port} of 127.0.0.1 is not available",
            cause=error.strerror,
            hint="let the system choose a free port: fcctl ui --port 0",
        ) from error
    listener.listen(BACKLOG)
    return Server(listener, Access(listener.getsockname()[1], announce))
