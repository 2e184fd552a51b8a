"""``agent``: answers the controller's calls over its standard input and output."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence

from fcctl_remote import wire
from fcctl_remote.agent.calls import Calls
from fcctl_remote.agent.framing import BadFrame, FrameReader, FrameWriter
from fcctl_remote.base.files import DiskFull, is_disk_full
from fcctl_remote.base.layout import BadName, Layout
from fcctl_remote.base.refusal import Refusal, disk_full
from fcctl_remote.record import Any

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
    method = calls.methods.get(str(frame.get("method")))
    if method is None:
        raise Refusal("bad_request", "no method %r" % str(frame.get("method"))[:80])
    return method(params, blob)


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
    if isinstance(error, DiskFull) or (isinstance(error, OSError) and is_disk_full(error)):
        return disk_full(str(getattr(error, "filename", None) or root), root).error
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what = "%s: %s" % (error.filename or root, (error.strerror or "permission denied").lower())
        return wire.CallError("denied", what, "make it writable there (ls -ld %s), or set another `root`" % root)
    import traceback

    traceback.print_exc()
    return wire.CallError("internal", "%s: %s" % (type(error).__name__, error))
