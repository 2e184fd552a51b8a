"""The dashboard's connections: only so many, and on each a request that comes in time.

Every program of this computer can open one, and say nothing on it.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

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
