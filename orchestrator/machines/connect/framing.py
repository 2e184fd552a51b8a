"""The framing of :mod:`fcctl_remote.wire` over a process, with bounds: the other end is not trusted."""

from __future__ import annotations

import json
import time
from typing import Any, TypeVar

from fcctl_remote import wire
from orchestrator.base.clock import bounded
from orchestrator.base.errors import HostFault, LinkLost
from orchestrator.base.json_text import resident_bytes
from orchestrator.machines.connect.transport import Process

T = TypeVar("T")

#: The limit of a login shell's output before the agent's first line.
MAX_NOISE_BYTES = 64 * 1024
CHUNK = 256 * 1024
#: The memory limit of a frame; a list of 50,000 files takes half of it.
MAX_FRAME_MEMORY = 128 * 1024 * 1024
#: Fields of the wire's messages that are times, epoch seconds. Other floats are durations, seconds.
TIMES = frozenset(
    {"created", "started", "finished", "step_started", "heartbeat", "time", "deadline", "not_after"}
)  # fmt: skip
MOST_SECONDS = 1e10
#: The largest whole number that SQLite holds.
MOST = 2**63 - 1


class EndOfOutput(Exception):
    """The agent's output ended. Never leaves this package."""


class FrameStream:
    """Frames to and from an agent.

    Every method raises LinkLost after ``timeout_s`` of silence; HostFault for an invalid frame; EndOfOutput if nothing
    more can arrive; TimeoutError at :attr:`answer_by`, however much arrived until then.
    """

    def __init__(self, process: Process, timeout_s: float) -> None:
        self._process = process
        self._timeout_s = timeout_s
        self._buffer = bytearray()
        self._header: tuple[dict[str, Any], int] | None = None
        self._heard = time.monotonic()
        #: The deadline of the current answer, monotonic seconds.
        self.answer_by = float("inf")

    def write(self, message: dict[str, Any], blob: bytes | None = None) -> int:
        """Send one frame; returns its size in bytes."""
        if blob is not None:
            message = {**message, "blob": len(blob)}
        frame = json.dumps(message, separators=(",", ":")).encode() + b"\n" + (blob or b"")
        try:
            self._process.write(frame, self._timeout_s)
        except TimeoutError:
            raise silent(self._timeout_s) from None
        except OSError:
            raise EndOfOutput from None
        return len(frame)

    def skip_to_ready(self) -> None:
        """Skips what a login shell printed, up to the agent's first line."""
        mark = wire.READY.encode() + b"\n"
        while (position := self._buffer.find(mark)) < 0:
            if len(self._buffer) > MAX_NOISE_BYTES:
                raise HostFault(
                    f"the machine printed {len(self._buffer)} bytes instead of starting the host program",
                    fault="noise", hint="a startup file of the login shell (.bashrc, .zshenv, ...) prints too much; "
                    "make it print nothing",
                )  # fmt: skip
            self._fill()
        del self._buffer[: position + len(mark)]

    def read(self) -> tuple[dict[str, Any], bytes]:
        """The next frame, ticks included, and the bytes that belong to it."""
        if self._header is None:
            self._header = _parse(self._line())
        message, size = self._header
        while len(self._buffer) < size:
            self._fill()
        blob = bytes(memoryview(self._buffer)[:size]) if size else b""
        del self._buffer[:size]
        self._header = None
        return message, blob

    def idle(self, seconds: float) -> None:
        """Buffers what arrives for ``seconds``; notices a dead connection during an upload."""
        if len(self._buffer) < wire.MAX_FRAME_BYTES:
            try:
                self._fill(seconds)
            except TimeoutError:
                if time.monotonic() - self._heard > self._timeout_s:
                    raise silent(self._timeout_s) from None
        else:
            time.sleep(seconds)

    def _line(self) -> bytes:
        looked = 0
        while (end := self._buffer.find(b"\n", looked)) < 0:
            looked = len(self._buffer)
            if looked > wire.MAX_FRAME_BYTES:
                raise nonsense(f"a message is larger than {wire.MAX_FRAME_BYTES} bytes")
            self._fill()
        line = bytes(memoryview(self._buffer)[:end])
        del self._buffer[: end + 1]
        return line

    def _fill(self, wait_s: float | None = None) -> None:
        left = self.answer_by - time.monotonic()
        if wait_s is None and left <= 0:
            raise TimeoutError
        try:
            data = self._process.read(CHUNK, min(self._timeout_s, left) if wait_s is None else wait_s)
        except TimeoutError:
            if wait_s is not None or left <= self._timeout_s:
                raise
            raise silent(self._timeout_s) from None
        except OSError:
            raise EndOfOutput from None
        if not data:
            raise EndOfOutput
        self._heard = time.monotonic()
        self._buffer += data


def silent(seconds: float) -> LinkLost:
    return LinkLost(
        "the machine sent nothing more", cause=f"nothing arrived for {seconds:g} s",
        hint="a run on the machine continues without this connection; see it: fcctl ps; follow it: fcctl logs -f",
    )  # fmt: skip


def nonsense(what: str) -> HostFault:
    """The error for an answer that the host program would not give."""
    return HostFault(
        "the host program sent an invalid reply", fault="protocol", cause=what,
        hint="another program may have answered; check the connection: fcctl doctor",
    )  # fmt: skip


def _parse(line: bytes) -> tuple[dict[str, Any], int]:
    from pydantic_core import from_json  # bounds nesting, and is fast

    if resident_bytes(line) > MAX_FRAME_MEMORY:
        raise nonsense("a message needs too much memory")
    try:
        message = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise nonsense(f"a message is not JSON ({error})") from None
    if not isinstance(message, dict):
        raise nonsense("a message is not a JSON object")
    size = message.get("blob", 0)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= wire.MAX_BLOB_BYTES:
        raise nonsense("a message has an impossible `blob` size")
    return message, size


def in_range(value: T) -> T:
    """``value``, a message or a list of them, changed in place: every number is in range and not NaN."""
    if isinstance(value, list):
        for one in value:
            in_range(one)
    elif isinstance(value, wire.Record):
        for name, item in vars(value).items():
            if isinstance(item, (list, wire.Record)):
                in_range(item)
            else:
                setattr(value, name, _number(type(value), name, item))
    return value


def _number(shape: type[wire.Record], name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if name in TIMES:
        return bounded(float(value))
    if isinstance(value, int):
        return max(-MOST, min(value, MOST))
    if shape is wire.GateResult:
        return value  # of a step's document
    return max(0.0, min(value, MOST_SECONDS)) if value == value else 0.0  # noqa: PLR0124 - NaN alone differs from itself
