"""The server: one socket on loopback, until Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.base.errors import ConflictError
from orchestrator.views.dashboard.backend import Backend
from orchestrator.views.dashboard.guard import Access

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

        from orchestrator.views.dashboard.connections import Connection
        from orchestrator.views.dashboard.sections import SECTIONS
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
            f"port {port} of 127.0.0.1 is not to be had",
            cause=error.strerror,
            hint="fcctl ui --port 0 takes a free one",
        ) from error
    listener.listen(BACKLOG)
    return Server(listener, Access(listener.getsockname()[1], announce))
