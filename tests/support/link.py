"""A bad network between a client and a server on loopback: it can stall, reset, delay, throttle and cut."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

CHUNK = 32 * 1024


class LinkProxy:
    """Relays TCP from :attr:`port` to ``upstream``; what it does to the bytes can be changed at any moment.

    * ``stall()`` / ``resume()``: bytes stop in both directions, the connections stay open (a dead link).
    * ``reset()``: every open connection gets an RST (a rebooted router); new ones are accepted.
    * ``refuse()`` / ``accept()``: new connections are closed at once.
    * ``delay_s``: added to each chunk, each way. ``bytes_per_s``: throttle, each way; None is unlimited.
    * ``cut_after(n, direction)``: reset all connections once ``n`` more bytes went ``up``, ``down`` or ``any``.
    * ``up``, ``down``: bytes relayed so far; ``connections``: how many were ever accepted.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.up = 0
        self.down = 0
        self.connections = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusing = False
        self._fuse: tuple[int, str] | None = None
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True, name="link-proxy").start()

    # ------------------------------------------------------------------------------------------ what it does
    def stall(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def refuse(self) -> None:
        self._refusing = True

    def accept(self) -> None:
        self._refusing = False

    def cut_after(self, n: int, direction: str = "any") -> None:
        if direction not in ("up", "down", "any"):
            raise ValueError(direction)
        with self._lock:
            self._fuse = (n, direction)

    def reset(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with contextlib.suppress(OSError):
                    # Wakes the thread that reads it; the RST goes out when the descriptor is closed.
                    end.shutdown(socket.SHUT_RD)
                end.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.resume()
        self.reset()

    def __enter__(self) -> LinkProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ the relay
    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                if self._refusing:
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self.upstream), 60)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if not self._closed:
                    self._pairs.append((near, far))
            if self._closed:  # after the connection was accepted, so close() did not see it
                near.close()
                far.close()
                return
            for source, sink, way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._relay, args=(source, sink, way), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if self.delay_s:
                    time.sleep(self.delay_s)
                self._flowing.wait()
                if self.bytes_per_s:
                    time.sleep(len(data) / self.bytes_per_s)
                passed, burnt = self._count(way, len(data))
                sink.sendall(data[:passed])
                if burnt:
                    self.reset()
                    return
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _count(self, way: str, size: int) -> tuple[int, bool]:
        """How many bytes may pass, and whether the fuse burns through with them."""
        with self._lock:
            burnt = False
            if self._fuse and self._fuse[1] in (way, "any"):
                left = self._fuse[0] - size
                burnt = left <= 0
                size = size + min(left, 0)
                self._fuse = None if burnt else (left, self._fuse[1])
            if way == "up":
                self.up += size
            else:
                self.down += size
            return size, burnt
