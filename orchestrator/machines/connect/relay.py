"""Forwards bytes between two connections, in both directions, with a limit on concurrent connections."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from orchestrator.base.errors import FcctlError
from orchestrator.machines.tunnel_api import Stream

#: The limit of concurrent connections of a machine: workers of a search keep about three each.
MAX_CONNECTIONS = 128
#: The limit of refused connections, in all, before the tunnel is closed.
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
            self._sock.shutdown(socket.SHUT_RDWR)  # unblocks the reader
        self._sock.close()


class Gate:
    """Accepts connections and forwards each one; closing it closes all of them.

    Args:
        reach: opens the other half of a connection.
        flooded: called in its own thread if the other side keeps opening connections beyond the limit.
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
        """Forwards ``near``. Never blocks: it may be called by the thread that serves the whole connection."""
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
        """Closes every connection and waits for its threads."""
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
    """Copies ``source`` to ``sink``; an error closes both, so that the other direction ends too."""
    try:
        while data := source.recv(PIECE_BYTES):
            sink.sendall(data)
    except OSError:
        source.close()
        sink.close()
    else:
        sink.end()
