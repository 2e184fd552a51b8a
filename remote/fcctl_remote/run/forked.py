"""Runs a function in a forked child: its memory, its time and its crashes do not touch the supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable

from fcctl_remote.base import files
from fcctl_remote.base.text import one_line
from fcctl_remote.record import Any, Record
from fcctl_remote.run.process import Signals, exit_code, send

MAX_ANSWER_BYTES = 8 * 1024 * 1024


class Answer(Record):
    value: Any = None
    fault: str | None = None  # why there is no value
    stopped: str | None = None  # the reason ``stop`` gave


def aside(
    work: Callable[[], Any],
    signals: Signals,
    timeout_s: float,
    stop: Callable[[], str | None],
    idle: Callable[[], None],
    close: Iterable[int] = (),
) -> Answer:
    """Run ``work`` in a child and return its JSON value. ``close`` names descriptors the child must not hold."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(work, write, [read, *close])
    os.close(write)
    answer = Answer()
    pieces = bytearray()
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            answer.stopped = stop()
            if answer.stopped is not None:
                break
            if time.monotonic() > deadline:
                answer.fault = "reading the step's documents and gates took longer than %.0f s" % timeout_s
                break
            if signals.wait(0.2, also=read):
                block = os.read(read, 65536)
                if not block:
                    break
                pieces += block
            idle()
    finally:
        os.close(read)
        if answer.stopped or answer.fault:
            send(pid, signal.SIGKILL, group=True)
            send(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return _read(answer, bytes(pieces), status)


def _read(answer: Answer, data: bytes, status: int) -> Answer:
    if answer.stopped or answer.fault:
        return answer
    try:
        reply = json.loads(data)
    except ValueError:
        answer.fault = "reading the step's documents and gates ended with exit code %d" % exit_code(status)
        return answer
    answer.value, answer.fault = reply.get("value"), reply.get("fault")
    return answer


def _child(work: Callable[[], Any], write: int, close: Iterable[int]) -> None:
    """Never returns: whatever happens, the child ends here."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for fd in close:
            os.close(fd)
        try:
            data = files.to_json({"value": work()})
            if len(data) > MAX_ANSWER_BYTES:
                data = files.to_json({"fault": "the step has too many gates and documents to report"})
        except Exception as error:  # noqa: BLE001 - the fault must reach the supervisor, whatever it is
            import traceback

            traceback.print_exc()
            data = files.to_json({"fault": "%s: %s" % (type(error).__name__, one_line(str(error)))})
        with contextlib.suppress(BrokenPipeError):
            files.write_all(write, data)
        code = 0
    finally:
        os._exit(code)
