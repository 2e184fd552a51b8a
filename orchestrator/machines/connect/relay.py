"""Bytes between two connections, both ways, and a bound on how many there are at once."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from orchestrator.base.errors import FcctlError
from orchestrator.machines.tunnel_api import Stream

#: Connections that a machine may have open through us at once: workers of a search keep about three each.
MAX_CONNECTIONS = 128
#: Connections beyond that, in all, before the machine is no longer listened to.
MAX_REFUSED = 1000
PIECE_BYTES = 64 * 1024
#: How long threads may take to notice that their connections were closed, seconds.
JOIN_S = 5.0
_log = logging.getLogger(__name__)


class SocketStream:
    """A TCP connection of this computer, as a :class:`~orchestrator.machines.tunnel_api.Stream`."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock

    def recv(self, limit: int) -> bytes:
        return self._sock.recv(limit)

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(data)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes whoever reads it
        self._sock.close()


class Gate:
    """Takes what comes in and leads each connection on; closes all of them with itself.

    Args:
        reach: opens the other half of a connection.
        flooded: called, in a thread of its own, once the other side does nothing but open connections.
    """

    def __init__(self, reach: Callable[[], Stream], flooded: Callable[[], None], limit: int = MAX_CONNECTIONS) -> None:
        self._reach = reach
        self._flooded = flooded
        self._limit = limit
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._threads: set[threading.Thread] = set()
        self._inside = 0
        self._refused = 0
        self._closed = False

    def take(self, near: Stream) -> None:
        """Lead ``near`` on. Never blocks: it may be called by the thread that everything of a link waits for."""
        with self._lock:
            refused = self._closed or self._inside >= self._limit
            self._refused += refused
            if not refused:
                self._inside += 1
                self._streams.add(near)
            flooded = self._refused == MAX_REFUSED
        self._start(near.close if refused else lambda: self._lead(near))
        if flooded:
            _log.warning("a machine opens connections without end; it is not listened to any more")
            self._start(self._flooded)

    def _start(self, work: Callable[[], None]) -> None:
        def carried_out() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=carried_out, name="fcctl-relay", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _lead(self, near: Stream) -> None:
        far: Stream | None = None
        try:
            far = self._reach()
            with self._lock:
                self._streams.add(far)
                closed = self._closed
            if not closed:
                back = threading.Thread(target=_pump, args=(far, near), name="fcctl-relay-back", daemon=True)
                back.start()
                _pump(near, far)
                back.join()
        except (OSError, FcctlError) as error:
            _log.debug("a connection leads nowhere: %s", error)
        finally:
            for stream in (near, far):
                if stream is not None:
                    stream.close()
            with self._lock:
                self._inside -= 1
                self._streams -= {near, *([far] if far is not None else [])}

    def close(self) -> None:
        """Close every connection, and wait until nothing of them is left."""
        with self._lock:
            self._closed = True
            streams, threads = list(self._streams), list(self._threads)
        for stream in streams:
            stream.close()
        deadline = time.monotonic() + JOIN_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _pump(source: Stream, sink: Stream) -> None:
    """All of ``source`` into ``sink``; an error closes both, so that the other way ends too."""
    try:
        while data := source.recv(PIECE_BYTES):
            sink.sendall(data)
    except OSError:
        source.close()
        sink.close()
    else:
        sink.end()
