"""``agent``: answers the calls of the controller over its standard input and output, in the frames of ``wire``."""

from __future__ import annotations

import errno
import json
import os
import select
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence

from fcctl_remote import wire
from fcctl_remote.agent.calls import Calls
from fcctl_remote.base import files
from fcctl_remote.base.layout import BadName, Layout
from fcctl_remote.base.strict_json import to_strict_json
from fcctl_remote.record import Any
from fcctl_remote.wire import MAX_FRAME_BYTES, Refusal


class BadFrame(ValueError):
    """The peer does not speak the protocol; nothing after this can be trusted."""


class FrameReader:
    """Reads requests, and can tell whether the next one is there already."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._ahead: dict[str, Any] | None = None
        self.ended = False

    def next(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame and its blob; None at the end of the stream. Raises BadFrame: too long, no JSON object, or cut
        off."""
        while self._ahead is None and not self._parse_line():
            if not self._fill():
                if self._buffer:
                    raise BadFrame("the connection ended inside a message")
                return None
        frame, self._ahead = self._ahead, None
        assert frame is not None  # noqa: S101 - the loop above ends no other way
        return frame, self._blob(frame)

    def peek(self, timeout: float) -> dict[str, Any] | None:
        """Wait up to ``timeout`` seconds for the line of the next frame; None if there is none yet."""
        if self._ahead is None and not self._parse_line():
            ready, _, _ = select.select([self._fd], [], [], timeout)
            if ready:
                self._fill()
                self._parse_line()
        elif timeout:
            time.sleep(timeout)
        return self._ahead

    def _blob(self, frame: dict[str, Any]) -> bytes:
        size = frame.get("blob", 0)
        if not isinstance(size, int) or not 0 <= size <= MAX_FRAME_BYTES:
            raise BadFrame("the size of the blob is invalid: %r bytes" % (size,))
        while len(self._buffer) < size:
            if not self._fill(size - len(self._buffer)):
                raise BadFrame("the connection ended inside a blob")
        blob = bytes(self._buffer[:size])
        del self._buffer[:size]
        return blob

    def _parse_line(self) -> bool:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > MAX_FRAME_BYTES:
                raise BadFrame("a message is longer than %d bytes" % MAX_FRAME_BYTES)
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            frame = json.loads(line)
        except ValueError:
            raise BadFrame("a message is not JSON") from None
        if not isinstance(frame, dict):
            raise BadFrame("a message is not a JSON object")
        self._ahead = frame
        return True

    def _fill(self, least: int = 65536) -> bool:
        data = os.read(self._fd, min(max(least, 65536), 1024 * 1024))
        self._buffer += data
        self.ended = self.ended or not data
        return bool(data)


class FrameWriter:
    """Writes frames whole, also when two threads do."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def line(self, text: str) -> None:
        with self._lock:
            files.write_all(self._fd, text.encode("ascii") + b"\n")

    def send(self, frame: dict[str, Any], blob: bytes = b"") -> None:
        """Raises: BrokenPipeError, when the peer is gone; BadFrame, when the frame is too long to be read."""
        if blob:
            frame = {**frame, "blob": len(blob)}
        line = to_strict_json(frame)
        if len(line) > MAX_FRAME_BYTES:
            raise BadFrame("the reply has %d bytes, more than the limit of a message" % len(line))
        with self._lock:
            files.write_all(self._fd, line + b"\n")
            if blob:
                files.write_all(self._fd, blob)


TICK_EVERY_S = wire.TICK_S * 0.6


def serve(layout: Layout, runner: list[str], runner_sha256: str, mended: Sequence[str] = ()) -> int:
    """Answer calls until the input ends. Returns 0, or 1 when the peer does not speak the protocol."""
    out = os.dup(1)
    os.dup2(2, 1)  # a stray print must not look like a frame
    writer = FrameWriter(out)
    try:
        writer.line(wire.READY)
        threading.Thread(target=_tick, args=(writer,), daemon=True).start()
        return _serve(FrameReader(0), writer, Calls(layout, runner, runner_sha256, mended))
    except BrokenPipeError:
        return 0


def _tick(writer: FrameWriter) -> None:
    while True:
        time.sleep(TICK_EVERY_S)
        try:
            writer.send({"tick": time.time()})
        except OSError:
            os._exit(0)  # the link is gone, and the main thread may be waiting for a run's news


def _serve(reader: FrameReader, writer: FrameWriter, calls: Calls) -> int:
    while True:
        try:
            request = reader.next()
        except BadFrame as error:
            print("fcctl agent: %s" % error, file=sys.stderr)
            return 1
        if request is None:
            return 0
        _answer(reader, writer, calls, *request)
        del request  # one call's bytes must not be held while the next call's are made


def _answer(reader: FrameReader, writer: FrameWriter, calls: Calls, frame: dict[str, Any], blob: bytes) -> None:
    reply: dict[str, Any] = {"id": frame.get("id")}
    try:
        result, out = _call(calls, reader, frame, blob)
        writer.send({**reply, "result": wire.encode(result)}, out)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - every call gets an answer
        writer.send({**reply, "error": wire.encode(_call_error(error, calls.layout.root))})


def _call(calls: Calls, reader: FrameReader, frame: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
    params = frame.get("params") or {}
    if not isinstance(params, dict):
        raise Refusal("bad_request", "params must be an object")
    if frame.get("method") == "watch":
        return calls.watch(params, _pauser(reader))
    return calls.call(str(frame.get("method")), params, blob)


def _pauser(reader: FrameReader) -> Callable[[float], bool]:
    """Sleeps between looks at a run, and ends the long poll when another kind of call waits, or the link is gone."""

    def pause(seconds: float) -> bool:
        ahead = reader.peek(seconds)
        if reader.ended:
            os._exit(0)
        return ahead is not None and ahead.get("method") != "watch"

    return pause


def _call_error(error: Exception, root: str) -> wire.CallError:
    if isinstance(error, Refusal):
        return error.error
    if isinstance(error, (wire.WireError, BadName, KeyError)):
        return wire.CallError("bad_request", str(error))
    if files.is_disk_full(error):
        return wire.CallError(
            "disk_full",
            "the host's disk is full: cannot write %s" % (getattr(error, "filename", None) or root),
            "free disk space on the machine (df -h %s), then: fcctl ps, fcctl pull-results" % shlex.quote(root),
        )
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what = "%s: %s" % (error.filename or root, (error.strerror or "permission denied").lower())
        return wire.CallError(
            "denied", what, "make it writable on the machine (ls -ld %s), or set another `root` in the target" % root
        )
    if isinstance(error, OSError) and error.errno == errno.EIO:
        what = "the host's disk failed: cannot read or write %s" % (error.filename or root)
        return wire.CallError("disk_failed", what, "check the disk of the machine: sudo dmesg")
    if isinstance(error, OSError) and error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ETIMEDOUT):
        return _lock_error(error, root)
    import traceback

    traceback.print_exc()
    return wire.CallError("internal", "%s: %s" % (type(error).__name__, error))


def _lock_error(error: OSError, root: str) -> wire.CallError:
    """The answer where a lock cannot be had: NFS may have none, and a process that was stopped keeps its own."""
    place = error.filename or root
    message = "cannot lock %s: %s" % (place, (error.strerror or "no answer").lower())
    if error.errno != errno.ETIMEDOUT:
        return wire.CallError("denied", message, "set another `root` in the target, on a disk of the machine itself")
    return wire.CallError(
        "conflict", message, "find the process that locks it, on the machine: fuser -v %s" % shlex.quote(place)
    )
